"""Services on the cluster in a box: killed, and out of reach."""
from __future__ import annotations

import random
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import rounds
from cluster import Cluster
from conftest import of_family, until
from rounds import (
    Job,
    build,
    left,
    listeners,
    load,
    play,
    seen,
)

from checks.loadgen import memtier
from checks.services.parser import split_service_record
from checks.services.plan import Program
from checks.taobench.sizing import key_count
from cli.setup.venv import ensure_folder_of_lock, ensure_store_servers

#: How a node asks a server: without and with a password of its own.
ASK = '''
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 3) as sock:
    for line in sys.argv[3:]:
        sock.sendall(line.encode() + b'\\r\\n')
        print(sock.recv(1000).decode().strip())
'''


@pytest.fixture(scope='module')
def tools(cluster, tmp_path_factory):
    """A folder with the load generator, and stores where a plan has them."""
    if not any(one['store'] == rounds.STORE for one in ensure_store_servers()):
        pytest.skip(f'no {rounds.STORE}: no wheel for this Python')
    folder = tmp_path_factory.mktemp('load')
    build(folder)
    return folder


@pytest.fixture(scope='module')
def ranks(tools):
    """The same folder, with programs of MPI ranks for each launcher."""
    for folder, _ in rounds.MPI.values():
        ensure_folder_of_lock(folder)
    rounds.build_ranks(tools)
    return tools


# It works -----------------------------------------------------------------

@pytest.mark.cluster
def test_a_store_under_reframe(suite, cluster, tools):
    before = seen(cluster)
    case = ['-r', *of_family('keyvalue'), '-Sbringup=1', '-SStoreServes.duration=0.5',
            '-SStoreServes.warmup=0', '--system=devcluster:squeue-mpirun', '-n',
            '%scenario=valkeygetclient_nodes=3$']
    text, _ = suite.on(cluster, *case).communicate()
    assert 'Ran 2/2 test case(s)' in text and 'PASSED' in text, text
    assert {(r['num_nodes'], r['result']) for r in suite.records} == {
        ('4', 'no_reference')}
    assert left(cluster, before, suite.tmp) == []


@pytest.mark.cluster
def test_its_job_script_runs_again(suite, cluster, tools):
    """With sbatch, and with salloc and bash; without its server it fails."""
    case = ['-r', *of_family('keyvalue'), '-Sbringup=1', '-SStoreServes.duration=0.5',
            '--keep-stage-files', '-SStoreServes.warmup=0',
            '--system=devcluster:slurm-srun', '-n',
            '%scenario=valkeygetclient_nodes=3$']
    text, _ = suite.on(cluster, *case).communicate()
    assert 'PASSED' in text, text
    [script] = suite.tmp.glob('work/stage/**/StoreServes_*/rfm_job.sh')
    before = seen(cluster)
    submit = ('sbatch', '--parsable', '--output=/dev/null', '--error=/dev/null',
              str(script))

    number = cluster.exec(*submit).stdout.strip()
    assert cluster.wait(number)['JobState'] == 'COMPLETED'
    done = cluster.exec('salloc', '--nodes=4', '--exclusive', 'bash', str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    folders = [*script.parent.glob('again.*')]
    assert len(folders) == 2
    for folder in folders:
        services, output = split_service_record((folder / 'run.1.out').read_text())
        assert memtier.read_run(output, 3).records
        assert services.steps['measure'].counter_increase('commands') > 0

    script.write_text(re.sub(r'(?m)^ +server 0 .*\n', '', script.read_text()))
    number = cluster.exec(*submit).stdout.strip()
    assert cluster.wait(number)['ExitCode'] == '1:0'
    assert left(cluster, before, suite.tmp) == []


class HeterogeneousJob(Job):
    """The first node in one group, and the others in another one."""

    def start(self, script: str) -> None:
        self.number = self.cluster.submit(
            script, '--nodes=1', '--cpus-per-task=2', '--output=job.out',
            '--error=job.err', ':', '--nodes=3', '--cpus-per-task=2', cwd=self.folder)


@pytest.mark.cluster
def test_clients_in_another_group_of_a_heterogeneous_job(cluster, tools, tmp_path):
    plan = load(1, tools)
    job = HeterogeneousJob(cluster, 'srun', tmp_path / 'job').submit(
        replace(plan, clients=(replace(plan.clients[0], het_group=1),)))
    assert job.wait() == 'COMPLETED', job.lines()
    assert job.verdict() == ''
    services, _ = split_service_record((job.folder / 'run.1.out').read_text())
    assert [server.node for server in services.servers] == ['n1']
    assert services.client_nodes == ('n2', 'n3', 'n4')
    assert services.steps['measure'].counter_increase('commands') > 0


@pytest.mark.cluster
def test_taobench_on_several_nodes(suite, cluster):
    before = seen(cluster)
    text, _ = suite.on(
        cluster, '-r', '-Sbringup=1', '--system=devcluster:slurm-srun',
        *of_family('taobench'), '-n', 'TaoBench', '-E',
        'str(scenario) == "autoscale tao_server small from 2 nodes"',
        # Enough to see the path; what is valid is seen on one machine.
        *(f'-STaoBench.{setting}' for setting in (
            'memory=0.008', 'warmup_time=4', 'test_time=4', 'interval=0.5',
            f'keys={key_count(0.008, 0.3)}'))).communicate()
    [invalid] = [line for line in text.splitlines()
                 if 'Reason: performance error: validity: ' in line]
    assert 'the hit ratio is ' in invalid and 'too few keys' in invalid
    assert {r['num_nodes'] for r in suite.records} == {'3'}
    metrics = {r['metric']: float(r['value']) for r in suite.records}
    assert metrics['total_qps'] > 0 and metrics['spawned_instances'] == 1
    # The observer of the server's node recorded it.
    assert 0 < metrics['cpu_total'] <= 100
    assert left(cluster, before, suite.tmp) == []


# Any process killed ------------------------------------------------------

@pytest.mark.cluster
@pytest.mark.parametrize('victim, launcher', [
    ('batch', 'srun'), ('launcher', 'mpirun'), ('scancel', 'srun'),
    ('node', 'mpirun')])
def test_nothing_is_left_whoever_is_killed(cluster, tools, tmp_path, victim,
                                           launcher):
    """What only a scheduler and a launcher have; tests/serving kills the others."""
    one = play(cluster, launcher, victim, load(10, tools), tmp_path / 'job',
               2, random.Random(victim))
    assert one.killed and one.verdict and not one.faults, one


@pytest.mark.cluster
def test_nothing_is_left_of_ranks_that_are_killed(cluster, ranks, tmp_path):
    # It is as long as its iterations take: many, so that it never ends.
    one = play(cluster, 'mpirun', 'ranks',
               rounds.PLANS['aggregation'](200, ranks, 'mpirun'), tmp_path / 'job', 2,
               random.Random('ranks'))
    assert one.killed and one.verdict and not one.faults, one


@pytest.mark.cluster
def test_the_count_sees_what_is_left(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, 'CLEANUP_TIMEOUT', 0)
    before = seen(cluster)
    assert left(cluster, before, tmp_path) == []
    cluster.ask('sh', '-c', 'mkdir /tmp/mine; mount -t tmpfs x /tmp/mine; '
                'touch /dev/shm/mine', node='n2')
    program = cluster.box(
        'exec', 'n3', '--', sys.executable, '-c', 'import socket, time\n'
        's = socket.create_server(("10.0.0.4", 7001))\ntime.sleep(600)')
    (tmp_path / 'secrets.private.x').mkdir()
    until(lambda: cluster.ports('n3'))
    result = left(cluster, before, tmp_path)
    program.terminate()
    program.wait()
    cluster.ask('sh', '-c', 'umount /tmp/mine; rmdir /tmp/mine; '
                'rm /dev/shm/mine', node='n2')
    words = ('n2: file /dev/shm/mine', 'n2: mount /tmp/mine',
             'n3: port 10.0.0.4:7001', 'n3: process', 'secrets.private.x')
    assert len(result) == len(words)
    for word in words:
        assert any(word in one for one in result), result


# Reach ----------------------------------------------------------------------

def listening(cluster: Cluster, node: str, *programs: str
              ) -> list[tuple[str, int]]:
    """Where programs of these names listen; nobody's name is unknown."""
    results = listeners(cluster, node)
    assert '' not in results.values(), results
    return [
        where for where, who in results.items() if who.startswith(programs)
    ]


def request(cluster: Cluster, node: str, address: str, port: int, *lines: str
          ) -> list[str]:
    """What a server says to a node; empty: nobody there."""
    done = cluster.exec(sys.executable, '-c', ASK, address, str(port), *lines,
                        node=node)
    return done.stdout.split('\n')[:-1]


@pytest.mark.cluster
def test_a_server_is_reached_at_its_address_alone(cluster, tools, tmp_path):
    home, other = cluster.address('n1'), '10.9.0.1'
    cluster.ask('sh', '-ec', 'ip link add other type veth peer name far; '
                f'ip addr add {other}/24 dev other; ip link set other up; '
                'ip link set far up', node='n1')
    plan = load(1, tools)
    waiting = replace(plan, steps=(*plan.steps, replace(
        plan.steps[1], name='wait', gate=False, programs=(Program((
            'sh', '-c', 'until [ -e go ]; do sleep 0.1; done')),))))
    job = Job(cluster, 'srun', tmp_path / 'job').submit(waiting)
    try:
        until(lambda: list(job.folder.glob('run.*.wait.*.out')))
        # The server; nothing else of the job listens.
        (ip, port), = listening(cluster, 'n1', rounds.STORE)
        assert ip == home
        assert not listening(cluster, 'n1', 'python')
        assert not [one for node in cluster.nodes[1:]
                    for one in listening(cluster, node, rounds.STORE,
                                         'python', 'memtier', 'sh')]
        # From another node, without the password: nothing but a refusal.
        answer = request(cluster, 'n2', home, port, 'PING', 'GET x',
                         'CONFIG GET *', 'SHUTDOWN', 'AUTH wrong')
        assert [line.split()[0] for line in answer] == [
            '-NOAUTH', '-NOAUTH', '-NOAUTH', '-NOAUTH', '-WRONGPASS']
        # At its node, but at another address; the address is there.
        for address in ('127.0.0.1', other):
            assert request(cluster, 'n1', address, port, 'PING') == []
        assert request(cluster, 'n1', home, port, 'PING')
        # This machine has no way into the cluster: it finds nobody, or
        # another server of its own network at that address.
        answer = subprocess.run(
            [sys.executable, '-c', ASK, home, str(port), 'PING'], text=True,
            capture_output=True).stdout
        assert 'NOAUTH' not in answer
    finally:
        (job.folder / 'go').touch()
        cluster.wait(job.number)
        cluster.ask('ip', 'link', 'del', 'other', node='n1')
    assert job.verdict() == ''
