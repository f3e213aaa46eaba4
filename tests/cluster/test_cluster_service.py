"""Services on the cluster in a box: killed, at fault, and out of reach."""
from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import rounds
from cluster import WORK, Cluster, Process
from conftest import of_family, until
from rounds import (
    Job,
    Round,
    build,
    left,
    listeners,
    load,
    observer,
    play,
    seen,
)

from checks.services.plan import Program, Step
from cli.setup.venv import ensure_folder_of_lock, ensure_store_servers
from config.sites import launch

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


def refused(job: Job, plan) -> str:
    """What ReFrame says of a job that fails, in one line of the conductor's,
    and leaves nothing."""
    before = seen(job.cluster)
    job.submit(plan)
    job.cluster.wait(job.number)
    assert len(job.lines()) == 1
    assert left(job.cluster, before, job.folder) == []
    return job.verdict()


# It works -----------------------------------------------------------------

@pytest.mark.cluster
@pytest.mark.parametrize('partition', ['slurm-srun', 'squeue-mpirun'])
def test_a_store_under_reframe(suite, cluster, tools, partition):
    before = seen(cluster)
    case = ['-r', '-Sbringup=1', '-SStoreServes.duration=0.5',
            '-SStoreServes.warmup=0', f'--system=devcluster:{partition}', '-n',
            '%scenario=valkeygetclient_nodes=3$']
    text, _ = suite.on(cluster, *case).communicate()
    assert 'Ran 2/2 test case(s)' in text and 'PASSED' in text, text
    assert {(r['num_nodes'], r['result']) for r in suite.records} == {
        ('4', 'no_reference')}
    assert left(cluster, before, suite.tmp) == []


@pytest.mark.cluster
@pytest.mark.parametrize('partition, jobs', [
    ('slurm-srun', ('autoscale', 'autoscale_v2_beta', 'custom', '64g',
                    'standalone')),
    ('squeue-mpirun', ('custom',))])
def test_taobench_with_two_nodes_of_clients(suite, cluster, partition, jobs):
    before = seen(cluster)
    text, _ = suite.on(
        cluster, '-r', '-Sbringup=1', f'--system=devcluster:{partition}',
        *of_family('taobench'), '-n', 'TaoBench', '-E',
        f'scenario.job in {jobs} and '
        'scenario.program == "tao_server" and scenario.scale == "small" and '
        'scenario.client_nodes == 2 * (scenario.job != "standalone")',
        # Enough to see the path; what is valid is seen on one machine.
        '-STaoBench.settings=memsize:0.008,warmup_time:4,test_time:4,'
        'stats_interval:500',
        '-STaoBench.client_settings=tunning_factor:0.3').communicate()
    invalid = [line for line in text.splitlines()
               if 'Reason: performance error: validity: ' in line]
    assert len(invalid) == len(jobs), text
    assert all('validity: the hit ratio is ' in line and 'too few keys' in line
               for line in invalid), invalid
    for job in jobs:
        subset = [r for r in suite.records if f'job={job} ' in r['params']]
        metrics = {r['metric']: float(r['value']) for r in subset}
        assert metrics['total_qps'] > 0, job
        assert metrics['spawned_instances'] == 1, job
        assert {r['num_nodes'] for r in subset} == {
            '1' if job == 'standalone' else '3'}, job
    assert left(cluster, before, suite.tmp) == []


#: Counts the ranks, and where they are.
COUNT = r'''
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    int one = 1, all, rank;
    char host[64];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    gethostname(host, sizeof host);
    printf("rank %d of %d on %s\n", rank, all, host);
    MPI_Finalize();
    return 0;
}
'''


@pytest.mark.cluster
@pytest.mark.parametrize('launcher', ['srun', 'mpirun'])
def test_ranks_of_an_mpi_program_beside_a_server(cluster, tools, tmp_path,
                                                 launcher):
    folder, env = rounds.MPI[launcher]
    ensure_folder_of_lock(folder)
    count = tmp_path / 'count'
    subprocess.run([WORK / folder / 'bin' / 'mpicc', '-x', 'c', '-', '-o',
                    count], input=COUNT, text=True, check=True)
    plan = load(0.1, tools)
    plan = replace(
        plan, clients=(replace(plan.clients[0], name='producer', nodes=2,
                               instances=2),
                       replace(plan.clients[0], name='consumer', nodes=1,
                               apart=True)),
        steps=(Step('measure', (
            Program((str(count),), role='producer', mpi=True),
            Program(('sh', '-c', 'echo consumer {index} of {count} on '
                     '$(hostname)'), role='consumer')), 60),),
        launcher=(*env, *launch.step_launch_command(launcher, 'openmpi', 4)),
        observer=str(observer()))
    before = seen(cluster)
    job = Job(cluster, launcher, tmp_path / 'job').submit(plan)
    cluster.wait(job.number)
    cluster.wait_idle(cluster.nodes)
    assert not job.verdict()
    output = (job.folder / 'job.out').read_text().splitlines()
    assert sorted(line for line in output if line.startswith('rank')) == [
        'rank 0 of 4 on n2', 'rank 1 of 4 on n2', 'rank 2 of 4 on n3',
        'rank 3 of 4 on n3']
    assert 'consumer 0 of 1 on n4' in output
    errors = (job.folder / 'run.1.err').read_text()
    # The ranks' CPU time is the job's own.
    assert errors.count('"within": true') == 4
    assert left(cluster, before, job.folder) == []
    # A rank that is killed ends all others, and the job.
    waits = ('sh', '-c', f'{count}; exec sleep 100')
    job.submit(replace(plan, steps=(Step('measure', (
        Program(waits, role='producer', mpi=True),), 60),)))
    until(lambda: sum(p.name == 'sleep' for p in cluster.processes('n3')) == 2)
    victim = next(p for p in cluster.processes('n3') if p.name == 'sleep')
    os.kill(victim.pid, signal.SIGKILL)
    cluster.wait(job.number)
    assert 'the ranks of producer ' in job.verdict(), job.verdict()
    assert left(cluster, before, job.folder) == []


# Any process killed ------------------------------------------------------

@pytest.mark.cluster
@pytest.mark.parametrize('victim, launcher', [
    ('server', 'mpirun'), ('client', 'srun'), ('agent', 'srun'),
    ('conductor', 'mpirun'), ('batch', 'srun'), ('launcher', 'mpirun'),
    ('scancel', 'srun'), ('node', 'mpirun')])
def test_nothing_is_left_whoever_is_killed(cluster, tools, tmp_path, victim,
                                           launcher):
    one = play(cluster, launcher, victim, load(10, tools), tmp_path / 'job',
               2, random.Random(victim))
    assert one.killed and one.verdict and not one.faults, one


@pytest.mark.cluster
@pytest.mark.parametrize('what, victim, launcher', [
    ('throughput', 'server', 'srun'), ('aggregation', 'ranks', 'mpirun')])
def test_nothing_is_left_of_ranks_whoever_is_killed(
        cluster, ranks, tmp_path, what, victim, launcher):
    # It is as long as its iterations take: many, so that it never ends.
    one = play(cluster, launcher, victim,
               rounds.PLANS[what](200, ranks, launcher), tmp_path / 'job', 2,
               random.Random(victim))
    assert one.killed and one.verdict and not one.faults, one


@pytest.mark.cluster
def test_what_killed_agents_left_the_next_ones_remove(cluster, tools,
                                                      tmp_path):
    # Once clients measure, every agent has a folder, and its mark in it.
    one = play(cluster, 'srun', 'agent', load(10, tools), tmp_path / 'job', 0,
               random.Random(1), after='run.*.measure.*.out')
    assert one.killed and one.data and not one.faults, one
    _, verdict = rounds.undisturbed(cluster, 'srun', load(0.1, tools),
                                    tmp_path / 'job')
    assert not verdict
    assert not [path for node in cluster.nodes
                for path in cluster.files(node) if rounds.DATA in path]


@pytest.mark.cluster
def test_the_count_sees_what_is_left(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, 'CLEANUP_TIMEOUT', 0)
    before = seen(cluster)
    assert left(cluster, before, tmp_path) == []
    cluster.ask('sh', '-c', 'mkdir /tmp/mine; mount -t tmpfs x /tmp/mine; '
                'touch /dev/shm/mine', node='n2')
    program = cluster.box(
        'exec', 'n3', '--', sys.executable, '-c', 'import socket, time\n'
        's = socket.create_server(("10.0.0.4", 7001))\ntime.sleep(60)')
    (tmp_path / 'x.private').mkdir()
    until(lambda: cluster.ports('n3'))
    result = left(cluster, before, tmp_path)
    program.terminate()
    program.wait()
    cluster.ask('sh', '-c', 'umount /tmp/mine; rmdir /tmp/mine; '
                'rm /dev/shm/mine', node='n2')
    words = ('n2: file /dev/shm/mine', 'n2: mount /tmp/mine',
             'n3: port 10.0.0.4:7001', 'n3: process', 'x.private')
    assert len(result) == len(words)
    for word in words:
        assert any(word in one for one in result), result


def test_the_faults_of_a_round():
    good = Round('srun', 'server', 'x', 1, 1, 1, 'FAILED',
                 'was killed by signal 9', ['service: x'])
    assert good.faults == []
    for change, words in (
            ({'left': ['n1: file /tmp/x']}, 'left: n1'),
            ({'ended': 99.0}, 'ended after 99'),
            ({'lines': ['service: x', 'service: y']}, '2 lines'),
            ({'verdict': 'another'}, 'another cause')):
        assert words in replace(good, **change).faults[0]


def test_an_agent_is_not_taken_for_the_conductor():
    agent = 'python /x/services agent service.json'
    conductor = f'python /x/services conduct service.json -- srun {agent}'
    for victim, group, other in (('agent', agent, conductor),
                                 ('conductor', conductor, agent)):
        is_it = rounds.VICTIMS[victim].is_it
        assert is_it(Process(1, 'python', group))
        assert not is_it(Process(1, 'python', other))


# Faults ---------------------------------------------------------------------

@pytest.mark.cluster
def test_a_wrong_interface(cluster, tools, tmp_path):
    line = refused(Job(cluster, 'srun', tmp_path / 'job'),
                   replace(load(1, tools), interface='ib7'))
    assert "no interface 'ib7' with an IPv4 address" in line
    assert 'eth0 (10.0.0.2)' in line and 'correct service_interface' in line


@pytest.mark.cluster
def test_a_port_that_is_taken_on_the_servers_node(cluster, tools, tmp_path):
    thief = cluster.box(
        'exec', 'n1', '--', sys.executable, '-c', 'import socket, time\n'
        's = socket.create_server(("10.0.0.2", 7002))\ntime.sleep(60)')
    try:
        until(lambda: cluster.ports('n1'))
        plan = load(1, tools)
        line = refused(Job(cluster, 'mpirun', tmp_path / 'job'),
                       replace(plan, server=replace(plan.server, port=7002)))
    finally:
        thief.terminate()
        thief.wait()
    assert 'port 7002 on n1 is in use by python' in line
    assert 'stop that program, or request another port' in line


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
@pytest.mark.parametrize('launcher', ['srun', 'mpirun'])
def test_a_server_is_reached_at_its_address_alone(cluster, tools, tmp_path,
                                                  launcher):
    home, other = cluster.address('n1'), '10.9.0.1'
    cluster.ask('sh', '-ec', 'ip link add other type veth peer name far; '
                f'ip addr add {other}/24 dev other; ip link set other up; '
                'ip link set far up', node='n1')
    plan = load(1, tools)
    waiting = replace(plan, steps=(*plan.steps, replace(
        plan.steps[1], name='wait', gate=False, programs=(Program((
            'sh', '-c', 'until [ -e go ]; do sleep 0.1; done')),))))
    job = Job(cluster, launcher, tmp_path / 'job').submit(waiting)
    try:
        until(lambda: list(job.folder.glob('run.*.wait.*.out')))
        # The server; nobody else listens for us once all agents are there.
        (ip, port), = listening(cluster, 'n1', rounds.STORE)
        assert ip == home
        assert not listening(cluster, 'n1', 'python')
        assert not [one for node in cluster.nodes[1:]
                    for one in listening(cluster, node, rounds.STORE,
                                         'python', 'plumbload', 'sh')]
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
