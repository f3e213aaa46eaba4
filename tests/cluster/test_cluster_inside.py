"""A session inside one allocation: its test cases are steps of one job."""
from __future__ import annotations

import re
import socket

import pytest
from conftest import OSU, of_family
from rounds import left, seen
from test_cluster_jobs import SHORT

from cli.session.commands import refuse_several_partitions
from config.commandline import SetupError
from config.sites import allocation
from tests.conftest import ROOT

INSIDE = ('-C', str(ROOT / 'config' / 'inside.py'), '-r', '-Sbringup=1')

#: Open MPI under PBS.
PBS = """
from config.common import SETTINGS
site_configuration = {
    **SETTINGS,
    'systems': [{
        'name': 'cluster', 'hostnames': ['.*'],
        'partitions': [{
            'name': 'nodes', 'scheduler': 'pbs', 'launcher': 'mpirun',
            'environs': ['mpi'], 'access': ['-q workq', '-l place=scatter:excl'],
            'processor': {'num_cpus': 2, 'num_cpus_per_core': 1},
            'extras': {'max_nodes': 8}}]}],
    'environments': [{
        'name': 'mpi', 'cc': 'false', 'features': ['mpi', 'osu', 'osu_latency'],
        'extras': {'mpi_library': 'openmpi', 'programs': {
            'osu': {'source': 'embedded'}}}}],
}
"""


def jobs(cluster):
    """Number of all jobs that the cluster has had."""
    return cluster.ask('scontrol', '-o', 'show', 'jobs').count('JobId=')


@pytest.mark.cluster
@pytest.mark.parametrize('launcher, family, check, scenario, nodes', [
    ('srun', OSU, 'OsuPt2pt', 'program == "osu_latency" and placement == "inter_node"',
     2),
    ('mpirun', OSU, 'OsuPt2pt', 'program == "osu_latency" and placement == '
     '"inter_node"', 2),
    ('srun', of_family('smartredis'), 'SmartRedisThroughput',
     'str(scenario) == "valkey client_nodes=1 clients_per_node=1 iterations=1000"', 2),
    ('mpirun', of_family('smartredis'), 'SmartRedisThroughput',
     'str(scenario) == "valkey clients_per_node=1 iterations=1000"', 1)])
def test_test_cases_are_steps_of_one_job(suite, cluster, tmp_path, launcher, family,
                                         check, scenario, nodes):
    before, count = seen(cluster), jobs(cluster)
    settings = SHORT if family == OSU else []
    (tmp_path / 'job.sh').write_text('#!/bin/bash\nexec "$@"\n')
    suite.on(cluster, *INSIDE, f'--system=devcluster:slurm-{launcher}', *family, '-n',
             check, '-E', scenario, *settings, wrapper=(
                 'sbatch', '--wait', '--nodes=3', '--exclusive',
                 f'--output={tmp_path}/out', str(tmp_path / 'job.sh'))).communicate()
    text = (tmp_path / 'out').read_text()
    assert '[  PASSED  ]' in text, text
    assert jobs(cluster) == count + 1
    assert {record['num_nodes'] for record in suite.records} == {str(nodes)}, text
    assert {len(record['nodes'].split()) for record in suite.records} == {1}
    assert left(cluster, before, suite.tmp) == []


@pytest.mark.cluster
@pytest.mark.parametrize('launcher', ['srun', 'mpirun'])
def test_a_session_in_the_shell_of_salloc(suite, cluster, launcher):
    """A step on the first node, as the message for other machines says."""
    step = ('srun --overlap --cpu-bind=none --pty -N1 -n1 '
            '-w $(scontrol show hostnames | head -n1) "$@"')
    before, count = seen(cluster), jobs(cluster)
    text, _ = suite.on(
        cluster, *INSIDE, f'--system=devcluster:slurm-{launcher}', *OSU, '-n',
        'OsuPt2pt', '-E', 'program == "osu_latency" and placement == "inter_node"',
        *SHORT, wrapper=('salloc', '--nodes=3', '--exclusive', 'bash', '-c', step, '-')
        ).communicate()
    assert 'Ran 2/2 test case(s) from 2 check(s) (0 failure(s)' in text, text
    assert jobs(cluster) == count + 1
    assert {record['num_nodes'] for record in suite.records} == {'2'}, text
    assert left(cluster, before, suite.tmp) == []


@pytest.mark.parametrize('variables, cause', [
    ({'SLURM_JOB_NODELIST': ''},
     'has no allocation of Slurm or PBS; run the command in a job script'),
    ({'SLURM_JOB_NODELIST': 'other[1-2]'},
     'the first node of the allocation is other1; run the command there')])
def test_a_place_that_is_no_allocation_is_refused(suite, variables, cause):
    done = suite.reframe(*INSIDE, *OSU, **variables)
    assert done.returncode and cause in ' '.join((done.stdout + done.stderr).split())


PARTITIONS = [
    {'name': 'a', 'access': ['-p', 'short'], 'environs': []},
    {'name': 'b', 'access': ['--partition=long,gpu --exclusive']},
    {'name': 'c', 'access': ['-q long']}, {'name': 'd', 'access': ['--exclusive']}]


@pytest.mark.parametrize('variables, names', [
    ({'SLURM_JOB_PARTITION': 'short'}, 'a'), ({'SLURM_JOB_PARTITION': 'gpu'}, 'b'),
    # A job of the queue long was routed.
    ({'PBS_QUEUE': 'small', 'PBS_O_QUEUE': 'long'}, 'bc'),
    ({'SLURM_JOB_PARTITION': 'other'}, 'd')])
def test_the_partitions_are_those_of_the_allocation(monkeypatch, variables, names):
    for name in ('SLURM_JOB_PARTITION', 'PBS_QUEUE', 'PBS_O_QUEUE'):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    fitting = allocation.partitions_of_allocation(PARTITIONS)
    assert ''.join(part['name'] for part in fitting) == names
    with pytest.raises(SetupError, match='no partition of the site has '):
        allocation.partitions_of_allocation(
            [part for part in PARTITIONS[:3] if part not in fitting])


def test_the_same_nodes_are_not_measured_in_two_partitions():
    site = {'name': 'site', 'partitions': PARTITIONS[1:3]}
    refuse_several_partitions(site, ['--system=site:c'])
    with pytest.raises(SetupError, match='allocation: b, c; select one, .*=site:b'):
        refuse_several_partitions(site, ['-n', 'x'])


@pytest.fixture
def pbs_job(suite, tmp_path):
    """Variables of a job of PBS on three nodes, of which this one is the first."""
    suite.write_site(tmp_path / 'cluster', PBS)
    nodes = [socket.gethostname(), 'second', 'third']
    (tmp_path / 'nodes').write_text(''.join(f'{name}\n' * 2 for name in nodes))
    return {'PBS_JOBID': '7.server', 'PBS_NODEFILE': str(tmp_path / 'nodes'),
            'SLURM_JOB_NODELIST': ''}


def test_a_job_of_pbs_has_its_test_cases_on_its_first_nodes(suite, pbs_job):
    done = suite.reframe(*INSIDE[:2], '--dry-run', *OSU, '-n', 'OsuPt2pt', '-E',
                         'placement == "inter_node"', **pbs_job)
    assert 'Ran 2/2' in done.stdout, done.stdout + done.stderr
    [script] = [path.read_text() for path in suite.tmp.rglob('OsuPt2pt_*/rfm_job.sh')]
    assert '#PBS' not in script
    file = re.search('export PBS_NODEFILE=(.*)', script)[1]
    assert open(file).read().split() == [socket.gethostname(), 'second']
    # Open MPI with support for PBS looks for the job's id in the folder of the file.
    assert file.endswith('/7.server')
    hostfile = re.search('export OMPI_MCA_orte_default_hostfile=(.*)', script)[1]
    assert open(hostfile).read() == f'{socket.gethostname()} slots=1\nsecond slots=1\n'
    assert 'mpirun -np 2' in script


def test_the_command_that_runs_failures_again_stays_in_the_job(suite, pbs_job):
    done = suite.plumb('run', '--inside', '--bringup', '-n', 'OsuPt2pt', *OSU,
                       **pbs_job)
    assert done.returncode == 1
    assert re.search(r'Next: ./plumb run --site \S+ --bringup --inside \w+',
                     done.stdout), done.stdout + done.stderr
