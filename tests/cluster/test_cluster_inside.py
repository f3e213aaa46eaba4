"""A session inside one allocation: its test cases are steps of one job."""
from __future__ import annotations

import pytest
from conftest import OSU, of_family
from rounds import left, seen
from test_cluster_jobs import SHORT

from tests.conftest import ROOT

INSIDE = ('-C', str(ROOT / 'config' / 'inside.py'), '-r', '-Sbringup=1')


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


@pytest.mark.parametrize('variables, cause', [
    ({'SLURM_JOB_NODELIST': ''},
     'has no allocation of Slurm or PBS; run the command in a job script'),
    ({'SLURM_JOB_NODELIST': 'other[1-2]'},
     'the first node of the allocation is other1; run the command there')])
def test_a_place_that_is_no_allocation_is_refused(suite, variables, cause):
    done = suite.reframe(*INSIDE, *OSU, **variables)
    assert done.returncode and cause in ' '.join((done.stdout + done.stderr).split())
