"""The cluster in a box: its nodes, links and ends."""
from __future__ import annotations

import contextlib
import os
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
from conftest import ROOT, nested_tests, skip_missing, until

from config.sites import topology

BOX = ROOT / 'tests' / 'cluster' / 'box'


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
        output = subprocess.run(
            [sys.executable, '-c', 'import time; print(time.time(), '
             'time.clock_gettime(time.CLOCK_MONOTONIC))'], text=True,
            env={**os.environ, 'LD_PRELOAD': str(shim),
                 'BOX_CLOCK': f'{host}:120'}, capture_output=True, check=True)
        wall, steady = map(float, output.stdout.split())
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
    results = []
    for entry in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if str(folder) in (entry / 'mountinfo').read_text():
                results.append(f'{entry.name} '
                               + (entry / 'comm').read_text().strip())
            elif str(folder).encode() in (entry / 'cmdline').read_bytes():
                results.append(entry.name)
    results += [line for line in Path('/proc/mounts').read_text().splitlines()
                if str(folder) in line]
    return results


def interfaces() -> set[str]:
    return {line.split(':')[0].strip() for line in
            Path('/proc/net/dev').read_text().splitlines()[2:]}


def test_a_site_made_here_has_the_switches_of_slurm(own, suite, tmp_path):
    """`scontrol show topology` of a real Slurm with leaf switches."""
    env = {k: v for k, v in os.environ.items() if k != 'SPACK_ROOT'}
    folder = tmp_path / 'boxed'
    done = own(nodes=3, switch=2).exec(
        ROOT / 'plumb', 'site', 'new', 'boxed', '--path', folder, '--yes',
        '--access=batch:--qos=normal', env={**env, **suite.variables})
    assert done.returncode == 0, done.stdout + done.stderr
    assert topology.load_switches(folder / 'topology.yaml') == {
        'leaf1': topology.Switch(('n1', 'n2'), ()),
        'leaf2': topology.Switch(('n3',), ()),
        'top': topology.Switch((), ('leaf1', 'leaf2'))}
    assert '3 nodes on 2 leaf switches, 3 switches in all' in done.stdout
    text = (folder / 'system.py').read_text()
    assert "'--partition=batch', '--exclusive', '--qos=normal'" in text
    # Without accounting, nothing of it is enforced.
    assert 'accounting' not in done.stdout


@pytest.mark.cluster
def test_every_node_is_a_machine_of_its_own(cluster):
    names = cluster.ask('srun', '-N4', 'hostname').split()
    assert sorted(names) == cluster.nodes
    cluster.ask('sh', '-c', 'echo mine >/tmp/a; echo mine >/dev/shm/b',
                node='n1')
    # An Open MPI job of an earlier test that was killed may have left files.
    assert {'/dev/shm/b', '/tmp/a'} <= {*cluster.files('n1')}
    assert not {'/dev/shm/b', '/tmp/a'} & {*cluster.files('n2')}
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
    until(lambda: '/tmp/mine' in cluster.files('n2'))
    subset = {p.pid for p in cluster.processes('n2')}
    assert subset
    cluster.kill('n2')
    assert not any(Path(f'/proc/{pid}').exists() for pid in subset)
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
    here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
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
            time.sleep(0.05)
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


#: A worker that does not end by itself in time: it is killed.
INTERRUPTED = """
import contextlib, time
def test_it(cluster):
    open({begun!r}, 'w').write(str(cluster.folder))
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(100)
"""


@pytest.mark.cluster
def test_tests_that_are_interrupted_leave_none(tmp_path):
    begun = tmp_path / 'begun'
    tests = subprocess.Popen(
        [*nested_tests(tmp_path, INTERRUPTED.format(begun=str(begun))),
         '--cluster', '-n1', '--basetemp', tmp_path / 'base', tmp_path],
        cwd=tmp_path, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT)
    until(begun.exists)
    tests.send_signal(signal.SIGINT)
    text, _ = tests.communicate(timeout=60)
    assert tests.returncode == 2, text
    assert left_over(Path(begun.read_text())) == []


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
