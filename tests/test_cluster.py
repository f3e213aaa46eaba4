"""The cluster in a box, OSU on it, and broken jobs under a real Slurm."""
from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import (
    LOGIN,
    SWITCH,
    Cluster,
    ClusterError,
    compiled,
    nanoseconds,
    of_a_million,
)
from conftest import ROOT, skip_missing, started_cluster, suite_in, until
from test_faults import GOLDEN, SCRIPT

from config import lock, topology

BOX = ROOT / 'tests' / 'cluster' / 'box'
BACKENDS = ('slurm', 'squeue')


# ------------------------------------------------- without a cluster

@pytest.mark.parametrize('text, value', [
    ('200us', 200_000), ('1.5ms', 1_500_000), ('0', 0)])
def test_delays(text, value):
    assert nanoseconds(text) == value


@pytest.mark.parametrize('text', ['200', 'fast', '-1us', '2000ms', 'us', ''])
def test_what_is_no_delay(text):
    with pytest.raises(ClusterError, match='is no delay'):
        nanoseconds(text)


@pytest.mark.parametrize('text, value', [
    ('1%', 10_000), ('0.5%', 5000), ('100%', 1_000_000), ('0', 0)])
def test_shares(text, value):
    assert of_a_million(text) == value


@pytest.mark.parametrize('text', ['1', '-1%', '101%', 'few', '%', 'nan%',
                                  'inf%', ''])
def test_what_is_no_share(text):
    with pytest.raises(ClusterError, match='is no share'):
        of_a_million(text)


def test_another_clock_for_one_host(tmp_path):
    if not shutil.which('cc'):
        skip_missing('cc', 'no C compiler')
    shim = compiled('clock.so', tmp_path)

    def clocks(host):
        said = subprocess.run(
            [sys.executable, '-c', 'import time; print(time.time(), '
             'time.clock_gettime(time.CLOCK_MONOTONIC))'], text=True,
            env={**os.environ, 'LD_PRELOAD': str(shim),
                 'BOX_CLOCK': f'{host}:120'}, capture_output=True, check=True)
        wall, steady = map(float, said.stdout.split())
        return wall - time.time(), steady - time.monotonic()

    wall, steady = clocks(socket.gethostname())
    assert 60 < wall < 121 and -60 < steady < 1
    assert -60 < clocks('another')[0] < 1


def test_missing_programs_are_named_with_their_packages(tmp_path):
    (tmp_path / 'python3').symlink_to(sys.executable)
    done = subprocess.run(
        [sys.executable, '-c', 'import cluster; cluster.PATH = "/nothing"; '
         'print(cluster.missing())'], cwd=BOX.parent, text=True,
        capture_output=True)
    assert 'slurmctld' in done.stdout and 'munge' in done.stdout
    assert 'box install' in done.stdout


def test_down_without_a_cluster_is_fine_and_removes_nothing(tmp_path):
    Cluster(tmp_path / 'none').down()
    (tmp_path / 'work').mkdir()
    (tmp_path / 'work' / 'thesis').write_text('')
    with pytest.raises(ClusterError, match='left alone'):
        Cluster(tmp_path / 'work').down()
    assert (tmp_path / 'work' / 'thesis').exists()


@pytest.mark.parametrize('words', [
    ['status'], ['exec', '--', 'true'], ['kill', 'n1'], ['boot', 'n1'],
    ['rate', 'n1', '1gbit'], ['unplug', 'n1']])
def test_commands_without_a_cluster_say_so(tmp_path, words):
    done = subprocess.run([BOX, '--dir', tmp_path / 'none', *words],
                          capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith('box: no cluster in '), done.stderr
    assert len(done.stderr.splitlines()) == 1


# ------------------------------------------------- the box

def left_over(folder: Path) -> list[str]:
    """Processes, mounts and interfaces that speak of a cluster's folder."""
    found = []
    for entry in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if str(folder) in (entry / 'mountinfo').read_text():
                found.append(f'{entry.name} '
                             + (entry / 'comm').read_text().strip())
            elif str(folder).encode() in (entry / 'cmdline').read_bytes():
                found.append(entry.name)
    found += [line for line in Path('/proc/mounts').read_text().splitlines()
              if str(folder) in line]
    return found


def interfaces() -> set[str]:
    return {line.split(':')[0].strip() for line in
            Path('/proc/net/dev').read_text().splitlines()[2:]}


@pytest.fixture
def own(tmp_path, tmp_path_factory):
    """Makes clusters of one test, and ends them."""
    made = []

    def up(name='box', **more):
        folder = tmp_path / name
        made.append(Cluster(folder))
        return started_cluster(folder, tmp_path_factory.getbasetemp(),
                          **{'nodes': 2, **more})
    yield up
    for cluster in made:
        cluster.down()


@pytest.fixture(scope='module')
def out_of_time(tmp_path_factory):
    """A program that hangs, on a cluster of its own.

    Slurm counts in minutes, and looks every half: the first test asks for
    it, so that the others run meanwhile.
    """
    tmp = tmp_path_factory.mktemp('late')
    cluster = started_cluster(tmp / 'box', tmp, nodes=2)
    suite = faulty_in(tmp)
    yield suite, suite.start(cluster, 'time_limit', *PAIR, '-Stime_limit=1m')
    cluster.down()


def test_a_site_made_here_has_the_switches_of_slurm(own, suite, tmp_path):
    """`scontrol show topology` of a real Slurm with leaf switches."""
    env = {k: v for k, v in os.environ.items() if k != 'SPACK_ROOT'}
    folder = tmp_path / 'boxed'
    done = own(nodes=3, switch=2).exec(
        ROOT / 'plumb', 'site', 'new', 'boxed', '--path', folder, '--yes',
        '--access=batch:--qos=normal', env={**env, **suite.variables})
    assert done.returncode == 0, done.stdout + done.stderr
    assert topology.load(folder / 'topology.yaml') == {
        'leaf1': topology.Switch(('n1', 'n2'), ()),
        'leaf2': topology.Switch(('n3',), ()),
        'top': topology.Switch((), ('leaf1', 'leaf2'))}
    assert '3 nodes on 2 leaf switches, 3 switches in all' in done.stdout
    text = (folder / 'system.py').read_text()
    assert "'--partition=batch', '--exclusive', '--qos=normal'" in text
    # Without accounting, nothing of it is enforced.
    assert 'accounting' not in done.stdout



@pytest.mark.cluster
def test_every_node_is_a_machine_of_its_own(cluster, out_of_time):
    names = cluster.ask('srun', '-N4', 'hostname').split()
    assert sorted(names) == cluster.nodes
    cluster.ask('sh', '-c', 'echo mine >/tmp/a; echo mine >/dev/shm/b',
                node='n1')
    assert cluster.files('n1') == ['/dev/shm/b', '/tmp/a']
    assert cluster.files('n2') == []
    cluster.ask('rm', '/tmp/a', '/dev/shm/b', node='n1')
    assert cluster.ask('getent', 'hosts', 'n3').split() == [
        cluster.address('n3'), 'n3']
    assert cluster.processes('n1') == [] and cluster.ports('n1') == set()
    # Nothing of it is seen, or can be reached, from outside.
    assert not interfaces() & {'br0', *cluster.nodes}
    assert cluster.ask('cat', 'tests/conftest.py', node='n2') == (
        ROOT / 'tests' / 'conftest.py').read_text()


@pytest.mark.cluster
def test_exec_is_the_command(cluster, tmp_path):
    done = cluster.exec('sh', '-c', 'pwd; echo $SEEN; cat; exit 7',
                        stdin=None, input='in', cwd=tmp_path,
                        env={**os.environ, 'SEEN': 'yes'})
    assert (done.returncode, done.stdout) == (7, f'{tmp_path}\nyes\nin')
    assert cluster.exec('sh', '-c', 'kill -9 $$').returncode == 137
    done = cluster.exec('no-such-program', node='n1')
    assert done.returncode == 127 and 'no-such-program on n1' in done.stderr
    done = cluster.exec('true', node='n9')
    assert done.returncode == 1
    assert done.stderr.strip() == ('box: no node \'n9\'; there are login, n1, '
                                   'n2, n3, n4')


@pytest.mark.cluster
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM,
                                    signal.SIGKILL])
def test_a_signal_to_exec_reaches_the_command(cluster, number):
    box = cluster.box('exec', 'n1', '--', 'sleep', '1000',
                      start_new_session=True)
    until(lambda: [p.name for p in cluster.processes('n1')] == ['sleep'])
    # Ctrl-C goes to the whole group, the others to the command in front.
    (os.killpg if number == signal.SIGINT else os.kill)(box.pid, number)
    assert box.wait() in (128 + number, -number)
    until(lambda: cluster.processes('n1') == [])


@pytest.mark.cluster
def test_a_dead_node_is_gone_and_comes_back(cluster):
    job = cluster.submit('#!/bin/sh\ntouch /tmp/mine; sleep 1000\n', '-wn2')
    until(lambda: cluster.files('n2') == ['/tmp/mine'])
    mine = {p.pid for p in cluster.processes('n2')}
    assert mine
    cluster.kill('n2')
    assert not any(Path(f'/proc/{pid}').exists() for pid in mine)
    with pytest.raises(ClusterError, match='n2 is dead; boot it'):
        cluster.ports('n2')
    assert 'n2@' not in cluster.ask('ip', '-br', 'link', node=SWITCH)
    assert cluster.wait(job)['JobState'] == 'NODE_FAIL'
    cluster.boot('n2')
    assert (cluster.processes('n2'), cluster.files('n2')) == ([], [])
    assert cluster.ask('srun', '-wn2', 'hostname') == 'n2\n'
    with pytest.raises(ClusterError, match='alive already'):
        cluster.boot('n2')


PING_PONG = '''
import socket, sys, time
if len(sys.argv) == 1:
    server = socket.create_server(('n2', 7000))
    peer, _ = server.accept()
    while data := peer.recv(1 << 16):
        if len(data) == 1:
            peer.sendall(data)
else:
    peer = socket.create_connection(('n2', 7000), 5)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(50):
        start = time.perf_counter()
        peer.sendall(b'x')
        peer.recv(1)
        times.append(time.perf_counter() - start)
    print(min(times))
    start = time.perf_counter()
    for _ in range(64):
        peer.sendall(bytes(1 << 16))
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
    print((64 << 16) / (time.perf_counter() - start))
'''


def ping_pong(cluster: Cluster) -> tuple[float, float]:
    """Round trip in s and rate in B/s between n1 and n2."""
    server = cluster.box('exec', 'n2', '--', sys.executable, '-c', PING_PONG)
    until(lambda: (cluster.address('n2'), 7000) in cluster.ports('n2'))
    trip, rate = map(float, cluster.ask(sys.executable, '-c', PING_PONG, 'x',
                                        node='n1').split())
    assert server.wait() == 0
    return trip, rate


@pytest.mark.cluster
def test_links(cluster):
    cluster.rate('n1', '100mbit')
    # 12.5 MB/s are the bound; the bucket lets the first bytes through.
    assert ping_pong(cluster)[1] < 20e6
    cluster.rate('n1', 'none')
    cluster.delay('n1', '20ms')
    assert cluster.link('n1') == {'delay': '20ms'}
    trip, _ = ping_pong(cluster)
    assert trip > 0.04
    cluster.delay('n1', '0')
    assert ping_pong(cluster)[0] < trip
    cluster.unplug('n1')
    with pytest.raises(ClusterError, match='on n1'):
        ping_pong_from = ('import socket; socket.create_connection('
                          f'({cluster.address("n2")!r}, 6818), 1)')
        cluster.ask(sys.executable, '-c', ping_pong_from, node='n1')
    cluster.plug('n1')
    cluster.wait_idle(cluster.nodes)
    cluster.ask(sys.executable, '-c', ping_pong_from, node='n1')
    assert cluster.link('n1') == {}
    with pytest.raises(ClusterError, match='no rate'):
        cluster.rate('n1', 'fast')


COUNT = '''
import socket, sys
if len(sys.argv) == 1:
    here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    here.bind(('n2', 7000))
    open('/tmp/ready', 'w')
    got = 0
    here.settimeout(60)
    while True:
        if here.recv(100) == b'last':
            break
        got += 1
        here.settimeout(2)
    print(got)
else:
    import time
    there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number in range(2000):
        there.sendto(b'x', ('n2', 7000))
        if number % 50 == 0:
            time.sleep(0.005)
    time.sleep(0.2)
    for _ in range(50):
        there.sendto(b'last', ('n2', 7000))
'''


def arrived(cluster: Cluster) -> int:
    """How many of 2000 datagrams come from n1 to n2."""
    cluster.ask('rm', '-f', '/tmp/ready', node='n2')
    server = cluster.box('exec', 'n2', '--', sys.executable, '-c', COUNT,
                         stdout=subprocess.PIPE)
    until(lambda: '/tmp/ready' in cluster.files('n2'))
    cluster.ask(sys.executable, '-c', COUNT, 'x', node='n1')
    return int(server.communicate()[0])


@pytest.mark.cluster
def test_a_link_that_loses_frames(cluster):
    try:
        cluster.loss('n2', '10%')
        assert cluster.link('n2') == {'loss': '10%'}
        assert 1700 < arrived(cluster) < 1900
        # The other way of making it worse is kept, and the first one goes.
        cluster.delay('n2', '1ms')
        cluster.loss('n2', '0')
        assert cluster.link('n2') == {'delay': '1ms'}
        assert arrived(cluster) == 2000
        until(lambda: [p.name for p in cluster.members(SWITCH)].count('relay')
              == 1)
    finally:
        cluster.delay('n2', '0')
        cluster.loss('n2', '0')
        cluster.ask('rm', '-f', '/tmp/ready', node='n2')


@pytest.mark.cluster
def test_clusters_side_by_side_leave_nothing(own, tmp_path):
    before = interfaces()
    one, two = own('one'), own('two')
    with pytest.raises(ClusterError, match='is there already'):
        one.up()
    assert one.ask('srun', '-N2', 'hostname').split()
    job = two.submit('#!/bin/sh\nsleep 1000\n', '-N2')
    until(lambda: two.job(job)['JobState'] == 'RUNNING')
    two.delay('n1', '1ms')
    assert left_over(one.folder) and left_over(two.folder)
    two.down()
    assert not left_over(two.folder) and not two.folder.exists()
    assert one.states() == {'n1': 'idle', 'n2': 'idle'}
    one.down()
    one.down()
    assert not left_over(one.folder) and list(tmp_path.iterdir()) == []
    assert interfaces() == before


@pytest.mark.cluster
@pytest.mark.skipif(os.geteuid() != 0, reason='a user runs all of this file '
                    'without rights')
def test_without_rights(cluster, tmp_path):
    """In a user namespace, as it is for everybody but root."""
    other = Cluster(tmp_path / 'box')
    done = subprocess.run(
        ['setpriv', '--bounding-set=-sys_admin', BOX, '--dir', other.folder,
         'up', '-n', '2', '--share', tmp_path], text=True,
        capture_output=True)
    assert done.returncode == 0, done.stderr
    try:
        assert other.ask('srun', '-N2', 'hostname').split()
        other.kill('n2')
        other.boot('n2')
        other.delay('n1', '1ms')
        other.rate('n2', '100mbit')
    finally:
        other.down()
    assert not left_over(other.folder)


@pytest.mark.cluster
def test_where_namespaces_are_forbidden(cluster, tmp_path):
    done = subprocess.run(
        ['unshare', '-Ur', 'sh', '-c', 'echo 0 >/proc/sys/user/'
         'max_net_namespaces; exec "$@"', 'sh', BOX, '--dir',
         tmp_path / 'box', 'up'], text=True, capture_output=True)
    assert done.returncode == 2
    assert 'forbidden here: unshare(' in done.stderr
    assert 'errno 28' in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / 'box').exists()


@pytest.mark.cluster
@pytest.mark.parametrize('victim', ['n1', LOGIN, SWITCH])
def test_down_after_a_part_was_killed(own, victim):
    cluster = own()
    os.kill(cluster.alive(victim), signal.SIGKILL)
    cluster.down()
    assert not left_over(cluster.folder) and not cluster.folder.exists()


@pytest.mark.cluster
@pytest.mark.parametrize('after', [0.05, 0.1, 0.15, 0.2, 0.3])
def test_up_that_is_killed_half_way(cluster, tmp_path, after):
    half = Cluster(tmp_path / 'half')
    process = half.box('up', '-n', '2')
    time.sleep(after)
    process.kill()
    process.wait()
    half.down()
    until(lambda: not left_over(half.folder))
    assert not half.folder.exists()


# ------------------------------------------------- the site

@pytest.mark.cluster
def test_the_site_is_sound(suite):
    done = suite.plumb('site', 'check', 'devcluster')
    assert done.returncode == 0, done.stdout + done.stderr


#: Little of each, so that sixteen ranks on two cores end within seconds.
SHORT = ['-SOsuPt2pt.max_size=4096', '-SOsuPt2pt.options=-i 50 -x 5',
         '-SOsuCollective.max_size=256', '-SOsuCollective.options=-i 20 -x 2']
CASES = ['-E', '(program == "osu_latency" or program == "osu_allreduce" and '
         'layout in ((2, "one"), (4, "one")) or program == "osu_hello" and '
         'layout == (4, "full"))', '-n', 'OsuPt2pt|OsuCollective|OsuStartup']


@pytest.mark.cluster
def test_osu_on_one_two_and_four_nodes(suite, cluster):
    """Both launchers, both backends: all partitions of the site at once."""
    run = suite.on(cluster, '-r', '-Sbringup=1', *SHORT, *CASES)
    text, _ = run.communicate()
    assert run.returncode == 0, text
    ran = {(r['partition'], r['program'], r['num_nodes'], r['num_tasks'])
           for r in suite.records}
    assert ran == {(f'{backend}-{launcher}', *case) for backend in BACKENDS
                   for launcher in ('srun', 'mpirun') for case in (
                       ('osu_latency', '1', '2'), ('osu_latency', '2', '2'),
                       ('osu_allreduce', '2', '2'),
                       ('osu_allreduce', '4', '4'), ('osu_hello', '4', '8'))}
    assert {r['result'] for r in suite.records} == {'recorded'}


#: The devcluster with ranks that are bound, as a site of its own.
BOUND = '''
import runpy
from config.launch import LAUNCH
site_configuration = runpy.run_path({system!r})['site_configuration']
for partition in site_configuration['systems'][0]['partitions']:
    kind = 'srun' if partition['launcher'] == 'srun' else 'openmpi'
    del partition['extras']['launcher_free']
    partition['extras']['launcher_pin'] = LAUNCH[kind][0]
'''


@pytest.fixture
def bound(suite, tmp_path):
    """Cases there: the text, and (program, placement) -> CPUs they had."""
    site = tmp_path / 'bound'
    site.mkdir()
    (site / 'system.py').write_text(BOUND.format(
        system=str(ROOT / 'site-configs' / 'devcluster' / 'system.py')))

    def run(cluster, *options):
        job = suite.on(
            cluster, '-r', '-Sbringup=1', '-n', 'OsuPt2pt',
            '-SOsuPt2pt.max_size=64', '-SOsuPt2pt.options=-i 20 -x 2',
            '-E', 'program in ("osu_latency", "osu_latency_mt")', *options,
            site=str(site))
        text, _ = job.communicate()
        report = json.loads(Path(suite.variables['PLUMBLINE_WORK'],
                                 'report.json').read_text())
        return text, {
            (case['program'], case['placement']): re.sub(
                r'n\d:', '', case['binding'])
            for case in report['runs'][0]['testcases']
            if 'placement' in case}
    return run


#: CPUs of the ranks of each node, nodes apart.
PLACED = {('osu_latency', 'intra_node'): '0,1',
          ('osu_latency_mt', 'intra_node'): '0,1',
          ('osu_latency', 'inter_node'): '0 0',
          ('osu_latency_mt', 'inter_node'): '0-1 0-1'}


@pytest.mark.cluster
def test_threads_of_a_rank_have_a_core_each(bound, own):
    """srun and mpirun, on one node and on two: as seen from inside."""
    text, had = bound(own(bind=True), '--system', 'devcluster:slurm-srun')
    assert had == PLACED, text


@pytest.mark.cluster
def test_ranks_that_slurm_did_not_bind_are_refused(bound, cluster):
    """TaskPlugin=task/none: --cpu-bind=cores is taken, and does nothing."""
    text, _ = bound(cluster, '--system', 'devcluster:slurm-srun')
    reasons = [line for line in text.splitlines() if 'Reason: ' in line]
    # A rank of two threads on a node of two cores has what it needs.
    assert len(reasons) == 3, text
    assert all('binding: run.1.1: n' in line and 'may run on all CPUs (0-1)'
               in line for line in reasons), reasons


@pytest.mark.cluster
def test_mpirun_binds_on_every_node(bound, cluster):
    text, had = bound(cluster, '--system', 'devcluster:slurm-mpirun')
    assert had == PLACED, text


# ------------------------------------------------- broken jobs

#: The devcluster with a program that misbehaves, as a site of its own.
FAULTY = '''
import runpy
from checks.lib.features import node_features
site_configuration = runpy.run_path({system!r})['site_configuration']
for environment in site_configuration['environments']:
    environment['features'] = ['mpi', 'osu', 'osu_latency', 'osu_hello']
    environment['extras'] = {{'programs': {{'osu': {{
        'source': 'system', 'prefix': {prefix!r}}}}}}}
for partition in site_configuration['systems'][0]['partitions']:
    partition['features'] = node_features(8)
'''


@pytest.fixture
def faulty(tmp_path):
    return faulty_in(tmp_path)


def faulty_in(tmp_path):
    """Starts the program with a fault under both backends at once."""
    suite = suite_in(tmp_path)
    prefix, site = tmp_path / 'omb', tmp_path / 'site'
    prefix.mkdir()
    site.mkdir()
    for name in ('osu_latency', 'osu_hello'):
        # No longer than a minute would be within Slurm's shortest limit.
        (prefix / name).write_text(SCRIPT.replace('sleep 60', 'sleep 1000'))
        (prefix / name).chmod(0o755)
    (site / 'system.py').write_text(FAULTY.format(
        system=str(ROOT / 'site-configs' / 'devcluster' / 'system.py'),
        prefix=str(prefix)))

    def start(cluster, fault, *options):
        return suite.on(
            cluster, '-r', '-Sbringup=1', '-p', 'mpich', *options,
            site=str(site), FAULT=fault,
            GOLDEN=str(GOLDEN / 'osu_latency.txt'))
    suite.start = start
    return suite


PAIR = ['-n', 'OsuPt2pt', '-E', 'placement == "inter_node" and '
        'program == "osu_latency"']


def both_failed(suite, run, words):
    """One line a backend with the words, and no figure kept."""
    text, _ = run.communicate()
    assert run.returncode == 1, text
    reasons = [line for line in text.splitlines() if 'Reason: ' in line]
    assert len(reasons) == 2 and all(words in r for r in reasons), text
    return text


@pytest.mark.cluster
def test_the_stand_in_passes_when_it_behaves(faulty, cluster):
    run = faulty.start(cluster, 'none', *PAIR)
    text, _ = run.communicate()
    assert run.returncode == 0, text


# ------------------------------------------------- plumb run, on the site

def plumb_run(suite, cluster, fault='none'):
    """`plumb run` on the login node, of one case that needs two nodes."""
    return cluster.box(
        'exec', '--', ROOT / 'plumb', 'run', '--site', suite.tmp / 'site',
        '--bringup', '--no-wait', '--', '--system=devcluster:slurm-srun',
        '-p', 'mpich', *PAIR, cwd=suite.tmp, env={
            **os.environ, **suite.variables, 'FAULT': fault,
            'GOLDEN': str(GOLDEN / 'osu_latency.txt')},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.cluster
def test_two_runs_at_once_both_go_on(faulty, cluster):
    # Nor does any of them heed that somebody measures on the login node.
    with lock.held(Path(faulty.variables['PLUMBLINE_LOCK'])):
        runs = [plumb_run(faulty, cluster) for _ in range(2)]
        for run in runs:
            text, _ = run.communicate(timeout=120)
            assert run.returncode == 0, text
            assert '1 cases, 0 failed' in text, text
    folders = sorted((faulty.tmp / 'work').glob('sessions/[0-9]*'))
    stages = {json.loads((folder / 'report.json').read_text())
              ['session_info']['prefix_stage'] for folder in folders}
    assert len(folders) == len(stages) == 2
    assert {r['run'] for r in faulty.records} == {
        folder.name for folder in folders}
    assert {r['result'] for r in faulty.records} == {'recorded'}


@pytest.mark.cluster
def test_a_run_that_is_ended_cancels_its_jobs_and_says_so(faulty, cluster):
    run = plumb_run(faulty, cluster, 'time_limit')
    until(lambda: 'RUNNING' in cluster.ask('squeue', '-h', '-o', '%T'), 90)
    run.send_signal(signal.SIGTERM)
    text, _ = run.communicate(timeout=60)
    assert run.returncode == 1, text
    assert 'Ended by SIGTERM' in text
    assert re.search('^fail +OsuPt2pt %program=osu_latency', text, re.M), text
    assert 'Traceback' not in text
    assert {r['guard'] for r in faulty.records} == {'cancelled'}
    # Slurm takes a moment to end what it was told to.
    until(lambda: not cluster.ask('squeue', '-h').strip())


@pytest.mark.cluster
def test_exit_code_after_good_output(faulty, cluster):
    both_failed(faulty, faulty.start(cluster, 'exit_code', *PAIR),
                'exit code 3')


@pytest.mark.cluster
def test_what_is_left_on_every_node_is_named(faulty, cluster):
    text = both_failed(faulty, faulty.start(cluster, 'leftover', *PAIR),
                       'leftover: run.1.1.err: 2 processes still ran')
    assert text.count('sleep (') >= 4
    for node in cluster.nodes:
        assert not any('987.4' in process.command
                       for process in cluster.processes(node))


@pytest.mark.cluster
def test_what_others_did_on_a_node_is_told(faulty, cluster):
    faulty.variables |= {'GO': str(faulty.tmp / 'go'),
                         'PLUMBLINE_OTHERS_LIMIT': '-1'}
    run = faulty.start(cluster, 'slow', *PAIR)
    text, _ = run.communicate()
    assert run.returncode == 0, text
    assert {r['result'] for r in faulty.records} == {'unfit'}
    # Two nodes of one kind: one file says what they are.
    name, = {r['machine'] for r in faulty.records}
    file, = faulty.tmp.glob('perflogs/devcluster/machines/*')
    assert file.name == f'{name}.json'


@pytest.mark.cluster
def test_time_limit_after_good_output(out_of_time):
    both_failed(*out_of_time, 'refused: time_limit: job')


@pytest.mark.cluster
def test_node_that_dies_after_good_output(faulty, cluster):
    run = faulty.start(cluster, 'time_limit', *PAIR)
    wrote = Path(faulty.variables['PLUMBLINE_WORK'], 'stage')
    until(lambda: sum('\n4194304 ' in p.read_text()
                      for p in wrote.rglob('run.1.1.out')) == 2)
    victims = set(cluster.ask('squeue', '-h', '-o', '%B').split())
    for node in victims:
        cluster.kill(node)
    try:
        text = both_failed(faulty, run, 'refused: ')
        # One backend knows, the other sees that the job is gone.
        assert 'ended in state NODE_FAIL' in text
        assert 'a node died?' in text
    finally:
        for node in victims:
            cluster.boot(node)


@pytest.mark.cluster
def test_more_nodes_than_there_are(faulty, cluster):
    text = both_failed(faulty, faulty.start(
        cluster, 'none', '-n', 'OsuStartup', '-E', 'layout == (8, "one")'),
        'sbatch')
    assert 'Requested node configuration is not available' in text


@pytest.mark.cluster
@pytest.mark.parametrize('nodes, waits', [(4, 'the build'), (3, 'the run')])
def test_nodes_that_do_not_come_free(faulty, cluster, nodes, waits):
    job = cluster.submit('#!/bin/sh\nsleep 1000\n', f'-N{nodes}',
                         '--exclusive')
    until(lambda: cluster.job(job)['JobState'] == 'RUNNING')
    try:
        both_failed(faulty, faulty.start(
            cluster, 'none', *PAIR, '-Smax_pending_time=8s'),
            'before it started (max_pending_time is 8')
    finally:
        cluster.ask('scancel', job)
        cluster.wait(job)
