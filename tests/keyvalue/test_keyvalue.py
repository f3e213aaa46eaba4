"""Stores under load, through ReFrame: real servers, real faults."""
from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from checks.keyvalue.scenarios import (
    AXES,
    Scenario,
    modes_of,
    store_scenarios_with_first_mode,
)
from checks.services.server import PREFIX
from checks.stores.servers import STORES, Needs, make_server_role
from config.records.scenarios import MODES
from tests.checks.test_faults import another_site
from tests.conftest import LIMIT, ROOT, of_family, skip_missing, suite_in, until

SHORT = ('-SStoreServes.duration=0.5', '-SStoreServes.warmup=0.1',
         '-Srepetitions=1')


#: Of one family alone: ReFrame reads the others for a second.
OF_IT = of_family('keyvalue')
RUN = ('-r', *OF_IT, '-Sbringup=1')


def case(store, what):
    """Options for one load of a store, and little time."""
    return ('-n', 'StoreServes', '-p', f'^{store.environ}$',
            '-E', f'str(scenario) == "{store.name} {what}"', *SHORT)


def measure(suite, store, what, *more, mode='quick', **env):
    """One load of a store; without a mode what two CPUs are too few for."""
    return suite.reframe(*RUN, *(['--mode', mode] if mode else []),
                         *case(store, what), *more, **env)


#: Three scenarios of one session.
MEASURED = 'get', 'connect', 'get shards=3'


@pytest.fixture(scope='module')
def measured(store, tmp_path_factory):
    """Scenario -> metric -> its record."""
    suite = suite_in(tmp_path_factory.mktemp('measured'))
    done = suite.reframe(*RUN, '-n', 'StoreServes', '-p', f'^{store.environ}$', '-E',
                         f'str(scenario)[{len(store.name) + 1}:] in {MEASURED}', *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    records = suite.records
    assert {r['program'] for r in records} == {store.name}
    return {scenario: {r['metric']: r for r in records if words in r['params']
                       and ('shards=3' in r['params']) == ('shards=3' in words)}
            for scenario, words in zip(MEASURED, (
                'operation=get', 'operation=connect', 'shards=3'), strict=True)}


def test_a_store_is_measured(measured):
    records = measured['get']
    assert {'operations', 'bandwidth', 'latency_p50', 'latency_p99',
            'latency_p999', 'server_cpu', 'memory_ratio', 'ready_time',
            'evictions', 'client_cpu_share', 'hit_ratio'} <= set(records)
    one = records['operations']
    assert one['version'] and one['point'] == '64 B'
    assert one['source'] in ('wheel', 'system')
    assert 'operation=get payload=64 pipeline=1' in one['params']
    assert float(one['value']) > 100
    assert float(records['memory_ratio']['value']) > 1
    assert float(records['server_cpu']['value']) > 0
    assert float(records['hit_ratio']['value']) == 1
    assert records['evictions']['value'] == '0.0'


def test_connections_are_counted(measured):
    records = measured['connect']
    assert 'connection_rate' in records and 'operations' not in records


def test_a_cluster_of_three(measured):
    assert float(measured['get shards=3']['operations']['value']) > 100


def test_a_run_on_shared_cpus_is_no_measurement(suite, store):
    cpu = min(os.sched_getaffinity(0))
    done = measure(suite, store, 'get', mode='full', first=f'taskset -cp {cpu} $$')
    assert done.returncode == 0, done.stdout + done.stderr
    assert {r['result'] for r in suite.records} == {'inconclusive'}
    assert re.search(r'too few CPUs: 1 server and \d+ clients? shared 1 CPU instead '
                     r'of \d', suite.records[0]['reason'])


# What breaks, as an operator sees it ---------------------------------------

def refused(suite, done, guard):
    assert done.returncode == 1, done.stdout + done.stderr
    assert {r['metric'] for r in suite.records} <= {'completed'}
    assert {r['guard'] for r in suite.records} == {guard}
    return ' '.join(done.stdout.split())


def test_a_setting_out_of_range(suite):
    done = suite.reframe('-l', *OF_IT, '-SStoreServes.requests=0')
    assert done.returncode, done.stdout
    assert 'is too small; the smallest value is 20' in done.stdout + done.stderr


def test_options_reach_the_server_and_the_load_generator(suite, store):
    done = measure(suite, store, 'get', '-SStoreServes.options=--hz 50',
                   '-SStoreServes.client_options=--timeout 7')
    assert done.returncode == 0, done.stdout
    script = next(suite.tmp.rglob('StoreServes_*/rfm_job.sh'))
    # The path is in quotes if it has other characters than letters.
    assert re.search(r"-server'? --hz 50 -\n", script.read_text())
    assert script.read_text().count(' --timeout 7') == 1
    assert suite.records[0]['settings'].startswith(
        'options=--hz 50 client_options=--timeout 7')


@pytest.mark.parametrize('store, setting, option, instead', [
    ('redis', 'options', '--PORT 9', '--PORT: the check sets it'),
    ('redis', 'options', '--maxmemory=9', '--maxmemory=9: use the setting memory'),
    ('memcached', 'options', '-Mt9', '-Mt9: select another scenario'),
    ('redis', 'client_options', '-d9', '-d9: select another scenario'),
    ('redis', 'client_options', '--test-t=9', 'use the settings duration and warmup'),
    ('redis', 'client_options', '--json-out-file x', 'the check sets')])
def test_options_that_decide_what_is_measured_are_refused(
        suite, store, setting, option, instead):
    done = suite.reframe('--dry-run', *OF_IT, '-Sbringup=1', '-n', 'StoreServes', '-E',
                         f'str(scenario) == "{store} get"',
                         f'-SStoreServes.{setting}={option}')
    assert done.returncode == 1, done.stdout
    assert f'{setting}: remove ' in done.stdout and instead in done.stdout, done.stdout


def test_memory_below_the_data(suite, store):
    done = measure(suite, store, 'get', '-SStoreServes.memory=2')
    output = refused(suite, done, 'service')
    assert 'step fill' in output or 'client 0' in output
    assert 'OOM' in output and 'the store is full' in output


def test_too_few_open_files(suite, store):
    done = measure(suite, store, 'get connections=1000', mode='nightly',
                   first='ulimit -n 900')
    output = refused(suite, done, 'service')
    assert 'open files limit 900 (ulimit -Hn) is too low for 1000' in output


def test_a_store_that_is_broken(suite, tmp_path):
    store_of(suite, tmp_path, '#!/bin/sh\necho "Fatal: out of luck"; exit 1\n')
    done = suite.reframe(*RUN, '--mode=quick', '-n', 'StoreServes', '-E',
                         'str(scenario) == "keydb get"')
    assert re.search('ended with exit code 1 before it answered; the last lines of .*'
                     'Fatal: out of luck', refused(suite, done, 'service')), done.stdout


def store_of(suite, tmp_path, script, features=('keydb',)):
    """A site whose only store is this script, under KeyDB's name."""
    fake = tmp_path / 'fake' / 'bin' / 'keydb-server'
    fake.parent.mkdir(parents=True)
    fake.write_text(script)
    fake.chmod(0o755)
    another_site(suite, tmp_path, f'''
site_configuration['environments'].append(
    {{'name': 'stores', 'cc': 'cc', 'features': {list(features)!r},
      'extras':
     {{'programs': {{'keyvalue': {{'source': 'system',
                                  'prefix': '{fake.parent.parent}'}}}}}}}})
site_configuration['systems'][0]['partitions'][0]['environs'] = ['stores']
''')


#: A store that speaks RESP and counts keys as it should, and gives LIE.
LIAR = """#!/usr/bin/env python3
import collections, os, re, socketserver, sys
config = sys.stdin.read()
data, asked = {}, collections.Counter()

class Store(socketserver.StreamRequestHandler):
    def handle(self):
        while head := self.rfile.readline():
            words = []
            for _ in range(int(head[1:])):
                size = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(size + 2)[:-2])
            self.wfile.write(self.answer(words[0].upper(), words))

    def answer(self, name, words):
        if name == b'INFO':
            text = ('redis_version:6.3.4\\r\\nprocess_id:%d\\r\\n'
                    'used_memory:%d\\r\\ndb0:keys=%d,expires=0\\r\\n' % (
                        os.getpid(), sum(map(len, data.values())) or 1,
                        len(data)))
            text = text.replace('used_', 'total_commands_processed:%d\\r\\n'
                                'used_' % sum(asked.values()))
            return b'$%d\\r\\n%s\\r\\n' % (len(text), text.encode())
        if name == b'CONFIG':
            return b'*2\\r\\n$4\\r\\nsave\\r\\n$0\\r\\n\\r\\n'
        asked[name] += 1
        old = data.get(words[1], b'') if len(words) > 1 else b''
        lie = LIE
        if name == b'SET':
            data.setdefault(words[1], words[2])
            if not lie:
                data[words[1]] = words[2]
        if lie:
            return lie
        if name == b'GET':
            return b'$%d\\r\\n%s\\r\\n' % (len(old), old)
        return b'+PONG\\r\\n' if name == b'PING' else b'+OK\\r\\n'

socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer.daemon_threads = True
socketserver.ThreadingTCPServer.request_queue_size = 128
socket = re.search(r'^unixsocket "(.+)"$', config, re.M)
host = re.search(r'^bind (\\S+)', config, re.M)
port = int(re.search(r'^port (\\d+)', config, re.M)[1])
kind = socketserver.ThreadingTCPServer
if socket:
    kind.address_family = 1
with kind(socket[1] if socket else (host[1], port), Store) as server:
    server.serve_forever()
"""


def test_a_store_that_lies(suite, tmp_path):
    store_of(suite, tmp_path, LIAR.replace(
        'LIE', r"b'$0\r\n\r\n' if name == b'GET' else b''"))
    done = suite.reframe(
        *RUN,
        '--mode=nightly',
        '-n',
        'StoreServes',
        '-E',
        'str(scenario) == "keydb get payload=1048576"',
        *SHORT,
    )
    output = refused(suite, done, 'service')
    assert 'has 0 bytes, not 1048576 as written' in output


def test_ctrl_c_leaves_nothing(suite, store, tmp_path):
    scratch = tmp_path / 'tmp'
    scratch.mkdir()
    job = subprocess.Popen(
        [str(ROOT / 'plumb'), 'run', '--bringup', '--', *OF_IT, '-n',
         'StoreServes', '-p', f'^{store.environ}$', '-E',
         f'str(scenario) == "{store.name} get"',
         '-SStoreServes.duration=60'],
        env={**os.environ, **suite.variables, 'TMPDIR': str(scratch)},
        start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    until(lambda: list(suite.tmp.rglob('run.1.measure.0.out')), job)
    os.killpg(job.pid, signal.SIGINT)
    assert job.wait(LIMIT) != 0
    until(lambda: not left_in(scratch) + list(suite.tmp.rglob('secrets.private.*')))


def left_in(scratch):
    """Data folders, and processes that live in them."""
    results = list(scratch.glob(f'{PREFIX}*'))
    for path in Path('/proc').glob('[0-9]*/cwd'):
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(str(scratch)):
                results.append(path)
    return results


# The generators of others --------------------------------------------------

def test_under_the_generators_of_others(suite):
    results = [name for name in ('redis-benchmark', 'memtier_benchmark')
               if shutil.which(name)]
    if not shutil.which('redis-server'):
        skip_missing('redis-server', 'no redis-server on PATH')
    if not results:
        skip_missing('redis-benchmark', 'neither redis-benchmark nor '
                     'memtier_benchmark on PATH')
    done = suite.reframe(*RUN, '--mode=nightly', '-n', 'StoreGenerators',
                         '-Srepetitions=1', '-E',
                         'str(scenario).startswith("redis get generator")',
                         '-SStoreGenerators.requests=20000',
                         '-SStoreGenerators.duration=1')
    assert done.returncode == 0, done.stdout + done.stderr
    assert {r['program'] for r in suite.records} == set(results)
    assert all(f'validation: {r["program"]} does not compare values; after the '
               'measurement the suite compares all bytes'
               in r['not_checked'] for r in suite.records)
    assert {'operations', 'latency_p99', 'server_cpu'} <= {
        r['metric'] for r in suite.records}


@pytest.mark.parametrize('operation, lie, words', [
    ('get', r"b'$64\r\n%s\r\n' % bytes(64) if name == b'GET' "
     "and asked[name] > 3000 else b''", 'is wrong at byte 0'),
    ('set', r"b'+OK\r\n' if name == b'SET' and old else b''",
     'has 65 bytes, not 64 as written'),
], ids=['wrong', 'drops'])
def test_a_store_that_lies_to_the_generators_of_others(
        suite, tmp_path, operation, lie, words):
    """redis-benchmark takes whatever it gets."""
    if not shutil.which('redis-benchmark'):
        skip_missing('redis-benchmark', 'no redis-benchmark on PATH')
    store_of(suite, tmp_path, LIAR.replace('LIE', lie),
             features=['keydb', 'store_bench'])
    (tmp_path / 'fake' / 'bin' / 'keydb-benchmark').symlink_to(
        shutil.which('redis-benchmark'))
    done = suite.reframe(
        *RUN,
        '--mode=nightly',
        '-n',
        'StoreGenerators',
        '-Srepetitions=1',
        '-E',
        f'str(scenario) == "keydb {operation} generator=benchmark"',
        '-SStoreGenerators.requests=10000',
    )
    output = refused(suite, done, 'service')
    assert re.search(words, output), output


def test_a_generator_whose_clock_is_wrong(suite, tmp_path):
    """20 000 requests at 10/s take half an hour, and not a second."""
    if not (shutil.which('redis-server') and shutil.which('redis-benchmark')):
        skip_missing('redis-benchmark', 'no redis-server or no '
                     'redis-benchmark on PATH')
    programs = tmp_path / 'redis' / 'bin'
    programs.mkdir(parents=True)
    (programs / 'redis-server').symlink_to(shutil.which('redis-server'))
    (programs / 'redis-benchmark').write_text(
        f'#!/bin/bash\n{shutil.which("redis-benchmark")} "$@" | '
        r"""sed 's/^\("GET",\)"[0-9.]*"/\1"10.00"/'""" + '\n')
    (programs / 'redis-benchmark').chmod(0o755)
    another_site(suite, tmp_path, f'''
for _env in site_configuration['environments']:
    if 'redis' in _env['features']:
        _env['features'] = ['redis', 'store_bench']
        _env['extras']['programs']['keyvalue']['prefix'] = (
            {str(programs.parent)!r})
''')
    done = suite.reframe(*RUN, '--mode=nightly', '-n', 'StoreGenerators',
                         '-Srepetitions=1', '-E',
                         'str(scenario).startswith("redis get generator=ben")',
                         '-SStoreGenerators.requests=20000')
    output = refused(suite, done, 'wall_time')
    assert 'the iterations multiplied by the printed times give 2e+03 s' in output, \
        output


# Its parts -----------------------------------------------------------------

def test_every_axis_begins_at_the_base_point_and_modes_grow():
    known = dict(store_scenarios_with_first_mode('valkey'))
    assert len(known) == len(
        list(store_scenarios_with_first_mode('valkey'))), 'a load stands twice'
    for axis, modes in AXES.items():
        assert set(modes) <= set(MODES) and axis in Scenario.__annotations__
    assert modes_of(Scenario('valkey')) == {*MODES, 'veto'}
    assert modes_of(Scenario('valkey', payload=16)) == {'full'}
    assert {scenario.payload for scenario in known} >= {16, 1 << 20}
    assert {scenario.connections for scenario in known} >= {1, 1000}
    assert str(Scenario('valkey', 'set', shards=3)) == 'valkey set shards=3'


@pytest.mark.parametrize('store', STORES)
def test_no_secret_on_a_command_line_and_no_open_door(store):
    role = make_server_role(store, '/opt', Needs(threads=4))
    values = dict.fromkeys(('address', 'port', 'data'), 'X') | {'password': 'SECRET'}
    command = [word.format_map(values) for word in role.command]
    rest = role.config.format_map(values)
    assert 'SECRET' not in ' '.join(command)
    assert ('SECRET' in rest) == role.password == (store != 'memcached')
    bind = ' '.join(command) + '\n' + rest
    assert re.search(r'(^|\s)(-l |bind |--bind=)X', bind)
    assert '0.0.0.0' not in bind


@pytest.mark.parametrize('store', ['redis', 'valkey', 'keydb'])
def test_threads_and_clients_without_a_password(store):
    role = make_server_role(store, '/opt', Needs(4, open=True))
    assert (role.cpus, role.password) == (4, True)
    lines = role.config.splitlines()
    assert ('server-threads 4' if store == 'keydb' else 'io-threads 4') in lines
    assert f'user {role.user} on >{{password}} ~* &* +@all' in lines
    assert 'protected-mode no' in lines and 'requirepass' not in role.config


def test_the_load_generator_is_built_with_the_compiler_of_the_site(tmp_path):
    build = ROOT / 'checks' / 'loadgen' / 'src' / 'build.sh'
    done = subprocess.run([str(build), str(tmp_path / 'out')], text=True,
                          capture_output=True,
                          env={**os.environ, 'CC': 'no-such-compiler'})
    assert done.returncode and 'no-such-compiler' in done.stderr
