"""TaoBench from its jobs to its records: real servers, real clients."""
from __future__ import annotations

import contextlib
import csv
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from checks.core.parsers import ParseError
from checks.services import ask
from checks.taobench import parser as tao
from checks.taobench import results, sizing
from checks.taobench.scenarios import Scenario
from checks.taobench.taobench import format_value_sizes
from postprocess import records
from postprocess.references import progress
from tests.conftest import LIMIT, ROOT, of_family, require_program, until
from tests.serving.job import build_programs

#: A run of a few seconds, of a cache that is warm at once.
SHORT = {'memory': 0.004, 'warmup_time': 2, 'test_time': 2, 'interval': 0.5}


@pytest.fixture(scope='session')
def built(programs):
    """Folder of tao_server and the embedded memtier_benchmark."""
    return programs


# Pure parts ---------------------------------------------------------------

def test_the_observer_records_the_cpu_use_of_its_node(tmp_path):
    observer = subprocess.Popen([build_programs() / 'observe', '--wait', '0.1',
                                 tmp_path / 'cpu'])

    def rows():
        return [row for path in tmp_path.glob('cpu.*.csv')
                for row in path.read_text().splitlines()]
    until(lambda: len(rows()) > 20, observer)
    observer.send_signal(signal.SIGTERM)
    assert observer.wait(LIMIT) == 0
    first, last = (float(row.split(',')[0]) for row in (rows()[1], rows()[-1]))
    cpu = results.Busy('\n'.join(rows()) + '\n').cpu_use_between(first, last)
    assert 0 <= cpu.user <= cpu.total <= 100


def test_the_share_of_a_time():
    busy = results.Busy('at,user,system,idle,steal\n'
                        '10.0,0,0,0,0\n11.0,20,50,30,0\n'
                        '12.0,40,100,50,10\n13.0,40,100,150,10\n')
    assert busy.cpu_use_between(10, 12) == (75.0, 20.0)
    assert busy.cpu_use_between(12.5, 13.5) is None
    assert [share.total for _, share in busy.cpu_use_over_time()] == [70, 80, 0]
    with pytest.raises(ParseError, match='not a sample of the CPU use'):
        results.Busy('at,user,system,idle,steal\n10.0,1,2\n')


def test_points_of_a_server_that_prints_none():
    """Of each second, in which a client reads, and writes what it missed."""
    text = (ROOT / 'tests/keyvalue/golden/memtier-2.3.0.memcached.json').read_text()
    log = results.log_of_clients({0: [text, text], 1.6: [text]})
    assert [p.values['fast_qps'] for p in log.points] == [2 * 16360, 0, 16360]
    assert [p.values['slow_qps'] for p in log.points] == [2 * 1820, 0, 1820]
    assert log.points[0].values['hit_rate'] == pytest.approx(16360 / 18180)


def test_points_over_time_have_a_phase_and_a_reason():
    line = ('fast_qps = {}, hit_rate = {}, slow_qps = 9.0, wh_qps = 0.0, '
            'curr_it = 1.00M, slow_qps_oom =  0.0, nanosleeps_per_sec = {}.0')
    text = '\n'.join(line.format(91.0, rate, n) for n, rate in enumerate((
        0.5, 0.5, 0.9, 0.5, 0.9, 0.9)))
    log, = tao.parse_server_logs(text)
    rows = list(csv.DictReader(results.format_points_over_time(
        [tao.summarise_log(log, 4, 1), None], [100.0, 100.5], 1.0,
        results.Busy('at,user,system,idle,steal\n100,0,0,0,0\n101,10,60,30,0\n',
                     'n1'),
        {'warmup': (100.0, 102.0), 'test': (102.0, 105.0)}).splitlines()))
    fast = [row for row in rows if row['metric'] == 'fast_qps']
    assert [row['phase'] for row in fast] == [
        'warmup', 'warmup', 'test', 'test', 'test', 'after']
    assert [row['counts'] for row in fast] == list('001011')
    assert fast[3]['why'] == 'hit_rate is below 0.88'
    assert not fast[2]['why']
    assert [(row['series'], row['value']) for row in rows
            if row['metric'].startswith('cpu')] == [
        ('cpu n1', '70.0'), ('cpu n1', '10.0')]


def test_a_small_point_grows_with_the_machine():
    small, more = (Scenario('standalone').sizes(cpus) for cpus in (2, 16))
    assert (small.memory, small.warmup_time, small.tuning) == (0.016, 120, 0.802)
    assert (more.memory, more.warmup_time) == (0.128, 120)
    assert 0.802 < more.tuning < 0.8125
    # memcached asks for 32 MB where items may have 16.
    original = Scenario('standalone', 'tao_bench_server').sizes(2)
    assert sizing.cache_size_mb(original.memory) >= 32 and original.warmup_time == 120
    assert Scenario('autoscale', 'tao_bench_server', 'original').sizes(2) == (
        sizing.Sizes())


def test_look_aside_sizes_are_those_of_compressed_values():
    weights = [item.split(':') for item in format_value_sizes().split(',')]
    total = sum(float(weight) for _, weight in weights)
    mean = sum(int(size) * float(weight) for size, weight in weights) / total
    assert abs(mean - 200) < 2 and int(weights[-1][0]) == 521


def test_a_server_of_text_is_no_server_of_the_binary_protocol():
    with socket.create_server(('127.0.0.1', 0)) as listener:
        def answer():
            with listener.accept()[0] as sock:
                sock.recv(100)
                sock.sendall(b'ERROR\r\n' * 8)
        import threading
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ValueError, match="memcached's binary protocol"):
            ask.memcached_counters(ask.Server(*listener.getsockname()))
        thread.join()


# Under ReFrame --------------------------------------------------------------

#: Of one family alone: ReFrame reads the others for a second.
OF_IT = of_family('taobench')


def run(suite, *options, scenario='standalone', **settings):
    return ['-r', *OF_IT, '-Sbringup=1', '-n', 'TaoBench', '-E',
            f'str(scenario) == "{scenario} tao_server small"',
            *(f'-STaoBench.{name}={value}' for name, value in
              {**SHORT, **settings}.items() if value is not None), *options]


def attached(suite, name):
    (path,) = Path(suite.variables['PLUMBLINE_PERFLOGS']).rglob(name)
    return path.read_text()


def why(done):
    """What ReFrame says made a run invalid."""
    text = done.stdout
    assert 'FAILED' in text, text
    return re.search('Reason: performance error: validity: (.*)', text)[1]


@pytest.mark.strict
@pytest.mark.alone
def test_a_good_run(suite):
    """The point of quick mode, in less time: it has the machine for itself,
    20 s, which `./plumb run` gives it as well."""
    done = suite.reframe(
        '-r', *OF_IT, '-Sbringup=1', '-n', 'TaoBench', '-E',
        'str(scenario) == "standalone tao_server small"',
        '-STaoBench.test_time=6', '-STaoBench.interval=0.5')
    assert 'PASSED' in done.stdout, done.stdout
    values = {r['metric']: float(r['value']) for r in suite.records}
    assert 0.88 <= values['hit_ratio'] <= 0.9
    assert values['spawned_instances'] == 1
    assert values['total_qps'] == pytest.approx(
        values['fast_qps'] + values['slow_qps'])
    assert 0 < values['cpu_user'] < values['cpu_total'] <= 100
    assert values['latency_p50'] < values['latency_p99']
    assert {r['source'] for r in suite.records} == {'embedded'}
    assert len(attached(suite, 'series.csv').splitlines()) > 25
    done = suite.plumb(
        'report', '--perflogs', suite.variables['PLUMBLINE_PERFLOGS'],
        '--output', str(suite.tmp / 'page'))
    assert done.returncode == 0, done.stderr
    assert 'over time' in (suite.tmp / 'page' / 'index.html').read_text()


def assert_kept_and_no_reference(suite):
    """What is left of a run that is not valid."""
    assert attached(suite, 'invalid.txt')
    by = {r['metric']: r for r in suite.records}
    assert by['completed']['guard'] == 'validity'
    assert by['total_qps']['result'] == 'inconclusive'
    usable, notes = progress.usable_records(records.read(
        suite.variables['PLUMBLINE_PERFLOGS']))
    assert usable.empty and 'refused by a sanity check' in notes[0]


@pytest.fixture
def victim(suite):
    """Starts a run and finds a process of it once the test has begun."""
    def start(word, *options, file, **settings):
        job = suite.start(*run(suite, *options, **settings))
        until(lambda: list(suite.tmp.rglob(file)), job)
        until(lambda: pids_of(word), job)
        return job, pids_of(word)[0]

    def pids_of(word):
        results = []
        for path in Path('/proc').glob('[0-9]*'):
            with contextlib.suppress(OSError):
                command = (path / 'cmdline').read_bytes()
                if (command.split(b'\0')[0].endswith(b'/' + word)
                        and str(suite.tmp).encode() in command):
                    results.append(int(path.name))
        return results
    return start


@pytest.mark.strict
@pytest.mark.alone
def test_a_starved_client(suite, victim):
    # Each client has a server of its own; one is stopped for the test.
    job, client = victim(
        b'memtier_benchmark', file='run.1.test.0.out', servers=2, memory=0.008,
        keys=4000, test_time=12)
    # It has passed the gate: it uses CPU time (in ticks).
    until(lambda: int(Path(f'/proc/{client}/stat').read_text().rpartition(
        ')')[2].split()[11]) > 5, job)
    os.kill(client, signal.SIGSTOP)
    time.sleep(9)
    os.kill(client, signal.SIGCONT)
    text, _ = job.communicate(timeout=LIMIT)
    assert 'validity: ' in text and 'a client has too few CPUs' in text, text


def test_one_instance_killed(suite, victim):
    job, server = victim(b'tao_server', file='run.1.test.0.out',
                         servers=2, memory=0.008,
                         test_time=LIMIT)       # until it is killed
    os.kill(server, signal.SIGKILL)
    text, _ = job.communicate(timeout=LIMIT)
    assert 'service: ' in text, text
    assert 'was killed by signal 9 (SIGKILL) while it served' in text


def test_a_later_repetition_does_not_hide_one_that_is_not_valid(suite):
    done = suite.reframe(*run(
        suite, '-Srepetitions=2', keys=2000,
        # The warm-up ends with its requests: in a second the cache may still
        # be cold, and then no point has a hit ratio.
        warmup_time=None))
    output = why(done)
    assert 'run.1: the hit ratio' in output
    assert 'run.2: the hit ratio' in output
    assert 'too few keys' in output
    assert_kept_and_no_reference(suite)
    [original] = suite.tmp.rglob('run.2.server0.log')
    assert 'fast_qps' in original.read_text()


def test_an_invalid_run_beside_other_programs_is_inconclusive(suite):
    """A slow warm-up is not a fault of the server if others have the CPUs."""
    done = suite.reframe(*run(suite, keys=2000, warmup_time=None),
                         # Each share of other programs counts, even none.
                         PLUMBLINE_OTHERS_LIMIT='-1')
    assert done.returncode == 0, done.stdout
    assert {r['result'] for r in suite.records} == {'inconclusive'}
    frame = records.read(suite.variables['PLUMBLINE_PERFLOGS'])
    [reasons] = set(frame['reason'])
    assert 'other programs used ' in reasons and 'too few keys' in reasons


def test_a_server_without_statistics_has_points_of_its_clients(suite):
    """memcached without patches: its clients write the keys that they miss."""
    require_program('memcached')
    suite.reframe(
        '-r', *OF_IT, '-Sbringup=1', '-n', 'TaoLookAside', '-E',
        'scenario.client_nodes == 0', *(
            f'-STaoLookAside.{name}={value}' for name, value in {
                **SHORT, 'interval': 1, 'memory': 0.064, 'keys': 500}.items()))
    values = {r['metric']: float(r['value']) for r in suite.records}
    assert values['total_qps'] == pytest.approx(
        values['fast_qps'] + values['slow_qps'])
    assert values['fast_qps'] > 0 and values['num_data_points'] > 0
    assert 'server 0,hit_rate' in attached(suite, 'series.csv')


def test_an_interval_that_the_load_generator_does_not_have_is_refused(suite):
    require_program('memcached')
    done = suite.reframe('--dry-run', *OF_IT, '-Sbringup=1', '-n', 'TaoLookAside', '-E',
                         'scenario.client_nodes == 0', '-STaoLookAside.interval=0.5')
    assert 'the load generator counts whole seconds: set it to 1' in ' '.join(
        done.stdout.split()), done.stdout


@pytest.mark.parametrize('setting, expected', [
    ("options='-m 64'", 'options: remove -m: use the setting memory'),
    ("client_options='--key-maximum=5'",
     'client_options: remove --key-maximum=5: use the setting keys'),
    ("options='-o \"x'", 'No closing quotation'),
    ('servers=99', 'servers = 99: each needs a core')])
def test_settings_that_are_refused(suite, setting, expected):
    name, _, value = setting.partition('=')
    done = suite.reframe(*run(suite, '--dry-run', **{name: value.strip("'")})[1:])
    assert expected in done.stdout and done.returncode == 1, done.stdout


def test_options_reach_the_server_and_are_part_of_the_identity(suite):
    done = suite.reframe(*run(suite, '--dry-run', options='-o tao_smart_nanosleep=1',
                              client_options='--pipeline 2')[1:])
    assert done.returncode == 0, done.stdout
    [script] = suite.tmp.rglob('TaoBench_*/rfm_job.sh')
    assert re.search('tao_server .* -o tao_smart_nanosleep=1\n', script.read_text())
    assert script.read_text().count(' --pipeline 2') == 4
