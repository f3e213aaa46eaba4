"""DCPerf's scripts as the check runs them, with a DCPerf whose scripts only print."""
from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from tests.conftest import LIMIT, ROOT, of_family, suite_in, until

#: A script that does nothing for some seconds and then prints and writes what DCPerf's
#: does. Its clients print their command.
SCRIPT = r'''#!/usr/bin/env python3
import argparse, json, os, pathlib, socket, subprocess, sys, time
root = pathlib.Path(os.path.abspath(__file__)).parents[2]
parser = argparse.ArgumentParser(allow_abbrev=False)
for name in ('memsize', 'warmup-time', 'test-time', 'stats-interval', 'num-clients',
             'clients-per-thread', 'port-number-start', 'idle'):
    parser.add_argument(f'--{name}', type=float, default=0)
args, rest = parser.parse_known_args()
if '--fail' in rest:
    sys.exit('no such interface')
seconds = args.warmup_time + args.test_time
if '--with-client' in rest:
    # Of its server, or of one that is not there.
    other = socket.create_server(('127.0.0.1', 0))
    port = other.getsockname()[1]
    if '--refused' in rest:
        other.close()
    subprocess.Popen([root / 'benchmarks/tao_bench/tao_bench_client', '-s', '127.0.0.1',
                      '-p', str(port), '--test-time=2'])
    seconds = 600
if '--lose-servers' in rest:
    seconds = 0
port = int(args.port_number_start)
if port:
    listener = socket.create_server(('', port))
    (root / 'benchmarks/tao_bench/client_instructions.txt').write_text(''.join(
        f'Client {n + 1}:\n' + ''.join(
            "./benchpress_cli.py run tao_bench_custom -r client -i '" + json.dumps({
                'server_hostname': '127.0.0.1', 'server_port_number': port,
                'number': 2 * n + part}) + "'\n" for part in (0, 1)) + '\n'
        for n in range(int(args.num_clients))))
time.sleep(seconds)
lines = int((args.warmup_time + args.test_time) * 1000 / args.stats_interval)
idle = args.idle
(root / 'tao-bench-server-1-260101_000000.log').write_text(''.join(
    f'fast_qps = {890 + n if n >= idle else 0}.0, hit_rate = 0.890, '
    f'slow_qps = {110 + n / 8 if n >= idle else 0:.1f}, '
    'wh_qps = 0.0, curr_it = 0.05M, slow_qps_oom =  0.0, crnt_conn = 40, slow_th = 3, '
    f'slow_reqs = 1, slow_resp = 1, nanosleeps_per_sec = {n}.00\n'
    for n in range(lines)))
print(json.dumps({'spawned_instances': 1, 'successful_instances': 1, 'role': 'server',
                  'fast_qps': 890.0, 'slow_qps': 110.0, 'hit_ratio': 0.89,
                  'total_qps': 1000.0, 'num_data_points': 9}, indent=4))
'''

#: A client that prints its arguments.
CLIENT = '#!/bin/sh\necho "$@"\n'

#: A client without one of its libraries.
WITHOUT_LIBRARY = '''#!/bin/sh
echo "tao_bench_client: error while loading shared libraries: libevent-2.1.so.7" >&2
exit 127
'''


@pytest.fixture
def installed(tmp_path):
    """Folder of a DCPerf."""
    root = tmp_path / 'DCPerf'
    for name, text in {
            **{f'packages/tao_bench/{name}.py': SCRIPT for name in (
                'run_standalone', 'run_autoscale')},
            'packages/tao_bench/run.py': CLIENT, 'benchpress_cli.py': CLIENT,
            'benchmarks/tao_bench/tao_bench_server': CLIENT,
            'benchmarks/tao_bench/tao_bench_client': CLIENT,
            'benchmarks/tao_bench/leader_sizes.json': '{}',
            'benchmarks/tao_bench/server_0.csv': 'of an earlier run'}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return root


def run(suite, installed, *options, scenario='standalone tao_bench_server small',
        **env):
    return suite.reframe(
        *of_family('taobench'), '-Sbringup=1', '-n', 'TaoBenchOriginal', '-E',
        f'str(scenario) == "{scenario}"', '-STaoBenchOriginal.warmup_time=2',
        '-STaoBenchOriginal.test_time=9', '-STaoBenchOriginal.interval=0.5', *options,
        TAOBENCH_PREFIX=str(installed / 'benchmarks' / 'tao_bench'), **env)


def test_the_logs_of_the_servers_are_evaluated(suite, installed):
    done = run(suite, installed, '-r', '-STaoBenchOriginal.options=--smart-nanosleep 1')
    assert 'PASSED' in done.stdout, done.stdout
    values = {r['metric']: float(r['value']) for r in suite.records}
    # The clients start late and lose 5 s of the test. Of the 8 lines of the others, the
    # last 7 count: lines 15 to 21.
    assert (values['total_qps'], values['num_data_points']) == (
        pytest.approx(1000 + 18 + 18 / 8, abs=0.1), 7)
    assert values['score'] == values['total_qps'] / 683000
    assert values['spawned_instances'] == 1 and 0 < values['cpu_total'] <= 100
    assert {r['settings'] for r in suite.records if r['metric'] == 'total_qps'} == {
        'warmup_time=2 test_time=9 interval=0.5 options=--smart-nanosleep 1'}
    assert all(re.fullmatch('sha256-[0-9a-f]{8}', r['version']) for r in suite.records)
    assert all("DCPerf's clients do not compare the values" in r['not_checked']
               for r in suite.records)
    # DCPerf's folder is as before.
    assert not [*installed.glob('*.log'), *installed.glob('benchmarks/*/*.txt')]


def test_a_script_that_fails_is_named_with_its_last_line(suite, installed):
    done = run(suite, installed, '-r', '-STaoBenchOriginal.options=--fail')
    assert re.search('service: server 0 ended with exit code 1; the last lines of .*: '
                     'no such interface', done.stdout), done.stdout


@pytest.mark.parametrize('options, client, why', [
    ('', WITHOUT_LIBRARY, 'tao_bench_client ended with exit code 127 after . of 2 s of '
     'a phase; the last line of the client: tao_bench_client: error while loading'),
    (' --refused', CLIENT, 'no server on 127.0.0.1:[0-9]*: tao_bench_client ended with '
     'exit code 0 after . of 2 s')])
def test_a_client_that_cannot_start_ends_the_job(suite, installed, options, client,
                                                 why):
    """DCPerf's scripts do not notice it, and serve for the whole time."""
    (installed / 'benchmarks/tao_bench/tao_bench_client').write_text(client)
    done = run(suite, installed, '-r',
               f'-STaoBenchOriginal.options=--with-client{options}')
    assert re.search(f'service: {why}', done.stdout), done.stdout


def test_a_client_that_is_missing_ends_the_job(installed, tmp_path):
    (installed / 'benchmarks/tao_bench/tao_bench_client').unlink()
    server, _ = start(installed, tmp_path, 0, 'server', 9, 'run_standalone.py',
                      '--with-client')
    assert server.wait(LIMIT) == 1
    assert re.match('failed: tao_bench_client .*: No such file', server.stdout.read())


def test_servers_that_end_early_are_named(suite, installed):
    done = run(suite, installed, '-r', '-STaoBenchOriginal.options=--lose-servers')
    assert re.search('service: the servers of run_standalone.py ended after . of at '
                     'least 9 s; their last line: fast_qps', done.stdout), done.stdout


def test_clients_that_start_late_lose_the_end_of_the_test(suite, installed):
    """The servers of run_standalone.py end at their own time."""
    done = run(suite, installed, '-r', '-STaoBenchOriginal.options=--idle 8',
               PLUMBLINE_OTHERS_LIMIT='1e6')
    assert 'validity: the clients started so late that the servers ended before' in \
        ' '.join(done.stdout.split()), done.stdout


@pytest.mark.parametrize('word, seen', [('--tls', ''), ('', '255')])
def test_a_client_without_tls_gets_new_memory_that_is_zero(tmp_path, word, seen):
    client = tmp_path / 'client'
    client.write_text('#!/bin/sh\necho "[$MALLOC_PERTURB_]"\n')
    client.chmod(0o755)
    done = subprocess.run(
        [ROOT / 'checks/taobench/dcperf_client.sh', '--test-time=0', *word.split()],
        cwd=tmp_path, env={**os.environ, 'DCPERF_CLIENT': str(client)},
        capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (f'[{seen}]\n', 0)
    assert not (tmp_path / 'client.failed').exists()


def test_the_version_is_that_of_the_clone(installed, tmp_path):
    for words in ('init -q', 'add .', 'commit -q -m x'):
        subprocess.run(['git', '-c', 'user.name=x', '-c', 'user.email=x@x', '-C',
                        installed, *words.split()], check=True)
    server, folder = start(installed, tmp_path, 0, 'server', 0, 'run_standalone.py',
                           '--stats-interval', 500)
    assert server.wait(LIMIT) == 0
    assert re.fullmatch('[0-9-]{10}-[0-9a-f]{7,}\n', (
        folder / 'version.txt').read_text())


def test_sizes_are_options_of_the_script(suite, installed):
    done = run(suite, installed, '--dry-run')
    assert done.returncode == 0, done.stdout
    [script] = suite.tmp.rglob('TaoBenchOriginal_*/rfm_job.sh')
    text = script.read_text()
    assert 'server 9 run_standalone.py --real --memsize ' in text
    assert '--warmup-time 2 --test-time 9' in text
    assert '--stats-interval 500' in text and '    server 0 ' not in text


def test_options_with_a_setting_are_refused(suite, installed):
    refused = {
        '--memsize=4': 'options: remove --memsize=4: use the setting memory',
        # argparse accepts the beginning of an option.
        '--test 4': 'options: remove --test: use the setting test_time',
        '--num-clients 4': 'select a scenario with this number of client nodes'}
    done = run(suite, installed, '--dry-run',
               f'-PTaoBenchOriginal.options={",".join(refused)}')
    assert f'{len(refused)} failure(s)' in done.stdout, done.stdout
    for why in refused.values():
        assert why in done.stdout, done.stdout


def test_a_prefix_outside_dcperf_is_refused(suite, installed):
    (installed / 'packages/tao_bench/run_standalone.py').unlink()
    done = run(suite, installed, '-r')
    assert 'run_standalone.py does not exist: the prefix must be the folder ' \
        'benchmarks/tao_bench of a clone of DCPerf' in done.stdout


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as other:
        return other.getsockname()[1]


def start(installed, tmp_path, number, *words):
    folder = tmp_path / f'run.1.run.{number}.dcperf'
    return subprocess.Popen(
        [ROOT / 'checks/taobench/dcperf.sh', installed, folder, *map(str, words)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, 'LC_ALL': 'C'},
        # It ends its process group if it fails.
        start_new_session=True), folder


def test_clients_run_the_commands_of_the_script(installed, tmp_path):
    server, _ = start(
        installed, tmp_path, 0, 'server', 9, 'run_autoscale.py', '--warmup-time', 2,
        '--test-time', 15, '--num-clients', 2, '--stats-interval', 500,
        '--port-number-start', free_port())
    client, folder = start(installed, tmp_path, 2, 'client', 1)
    assert client.wait(LIMIT) == 0, client.stdout.read()
    numbers = [re.search('"number": ([0-9]+)', path.read_text())[1]
               for path in sorted(folder.glob('client_*.log'))]
    assert numbers == ['2', '3']
    assert server.wait(LIMIT) == 0


def test_a_client_of_one_server_gets_its_host(installed, tmp_path):
    server = tmp_path / 'run.1.run.0.dcperf'
    client, _ = start(installed, tmp_path, 1, 'client', 0, '--test-time', 5)
    until(lambda: (tmp_path / 'run.1.run.1.dcperf').exists(), client)
    server.mkdir()
    try:
        listener = socket.create_server(('127.0.0.1', 11211))
    except OSError:
        client.kill()
        client.wait()
        pytest.skip('another program uses port 11211')
    with listener:
        Path(server, 'host.txt').write_text('127.0.0.1\n')
        assert client.wait(LIMIT) == 0
    assert client.stdout.read() == 'client --server-hostname 127.0.0.1 --test-time 5\n'


#: A site with nodes of 16 CPUs and an installed DCPerf.
SITE = """
from config.common import SETTINGS
site_configuration = {{**SETTINGS, 'systems': [{{
    'name': 'big', 'hostnames': ['.*'], 'partitions': [{{
        'name': 'cpu', 'scheduler': 'local', 'launcher': 'srun', 'environs': ['dcperf'],
        'processor': {{'num_cpus': 16, 'num_cpus_per_core': 1, 'num_sockets': 1,
                      'num_cpus_per_socket': 16}},
        'extras': {{'max_nodes': 4, 'node_memory': 256, 'launcher_pin': [],
                   'service_interface': 'hsn0'}}}}]}}],
    'environments': [{{'name': 'dcperf', 'features': ['tao_bench'], 'extras': {{
        'programs': {{'taobench': {{'source': 'system', 'prefix': {prefix!r}}}}}}}}}]}}
"""


#: Words of the command of the servers -> options of a client.
COMMANDS = {
    'run_autoscale.py --real --memsize 0 --warmup-time 0 --test-time 720 '
    '--stats-interval 5000 --num-clients 2 --clients-per-thread 0 --interface-name '
    'hsn0': 'client 1',
    '--interface-name hsn0 --fast-threads-ratio 1.25 --slow-threads-use-semaphore 1 '
    '--conns-per-server-core 85': 'client 1',
    'run.py server --real --memsize 64 --warmup-time 1200 --test-time 360 '
    '--stats-interval 5000 --interface-name hsn0':
    'client 1 --real --server-memsize 64 --warmup-time 1200 --test-time 360 '
    '--wait-after-warmup 5'}


def test_servers_and_clients_on_nodes_of_their_own(tmp_path, installed):
    suite = suite_in(tmp_path)
    suite.write_site(tmp_path / 'site', SITE.format(
        prefix=str(installed / 'benchmarks/tao_bench')))
    done = suite.reframe('--dry-run', '-Sbringup=1', *of_family('taobench'), '-n',
                         'TaoBenchOriginal', '-E', 'scenario.client_nodes == 2 and '
                         'scenario.job in ("autoscale", "autoscale_v2_beta", "custom")')
    assert done.returncode == 0, done.stdout
    commands = {}
    for script in suite.tmp.rglob('TaoBenchOriginal_*/rfm_job.sh'):
        server, _, client = lines = [line for line in script.read_text().splitlines()
                                     if 'dcperf.sh' in line]
        assert all(f'${{nodes[{number}]}}' in line for number, line in enumerate(lines))
        commands[server] = client
    assert len(commands) == len(COMMANDS)
    for words, options in COMMANDS.items():
        [client] = [client for server, client in commands.items()
                    if server.endswith(words)]
        assert client.endswith(options)


def test_a_long_warm_up_is_announced_before_the_job(tmp_path, installed):
    """`plumb run` prints the cost of a session from these time limits."""
    suite = suite_in(tmp_path)
    suite.write_site(tmp_path / 'site', SITE.format(
        prefix=str(installed / 'benchmarks/tao_bench')))
    done = suite.reframe('--describe', *of_family('taobench'), '-n', 'TaoBenchOriginal',
                         '-E', 'scenario.scale == "original" and '
                         'scenario.job in ("autoscale", "64g")')
    auto, deprecated = json.loads(done.stdout[done.stdout.index('['):])
    # 5 s per GB of memory, 720 s of test, and the margins of the scripts.
    assert auto['time_limit'] == 5 * 256 + 720 + 600
    assert 'deprecated: use autoscale' in deprecated['descr']
