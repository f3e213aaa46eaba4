"""OSU on the cluster in a box, and broken jobs under a real Slurm."""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import LIMIT, OSU, ROOT, started_cluster, suite_in, until

from config.sessions import lock
from tests.checks.test_faults import GOLDEN, SCRIPT

# ------------------------------------------------- the site

#: Little of each, so that sixteen ranks on two cores end within seconds.
SHORT = ['-SOsuPt2pt.max_size=4096', '-SOsuPt2pt.iterations=50', '-SOsuPt2pt.warmup=5',
         '-SOsuCollective.max_size=256', '-SOsuCollective.iterations=20',
         '-SOsuCollective.warmup=2']
CASES = ['-E', '(program == "osu_latency" or program == "osu_allreduce" and '
         'layout == (4, "one") or program == "osu_hello" and '
         'layout == (4, "full"))', '-n', 'OsuPt2pt|OsuCollective|OsuStartup']


@pytest.mark.cluster
def test_osu_on_one_two_and_four_nodes(suite, cluster, out_of_time):
    """Each launcher, and each backend, in sessions side by side."""
    partitions = 'slurm-srun', 'squeue-mpirun'
    for run in [suite.on(cluster, '-r', *OSU, '-Sbringup=1', *SHORT, *CASES,
                         f'--system=devcluster:{partition}')
                for partition in partitions]:
        text, _ = run.communicate(timeout=LIMIT)
        assert run.returncode == 0, text
    ran = {(r['partition'], r['program'], r['num_nodes'], r['num_tasks'])
           for r in suite.records}
    assert ran == {(partition, *case) for partition in partitions for case in (
        ('osu_latency', '1', '2'), ('osu_latency', '2', '2'),
        ('osu_allreduce', '4', '4'), ('osu_hello', '4', '8'))}
    assert {r['result'] for r in suite.records} == {'no_reference'}


@pytest.mark.cluster
def test_mode_veto_measures_every_node_of_a_reservation_at_once(suite, cluster):
    """One copy of a short test case per node, and a node that is down fails its own."""
    cluster.ask('scontrol', 'create', 'reservation=after_repair', 'starttime=now',
                'duration=60', 'nodes=n2,n3,n4', 'users=root', 'flags=ignore_jobs')
    cluster.ask('scontrol', 'update', 'NodeName=n4', 'State=DRAIN', 'Reason=disk')
    try:
        job = cluster.box(
            'exec', '--', ROOT / 'plumb', 'run', '--site', 'devcluster', '--bringup',
            '--mode', 'veto', '--', '--system=devcluster:slurm-srun', *OSU,
            '-SOsuCollective.max_size=256', '-SOsuCollective.iterations=20',
            '-SOsuCollective.warmup=2', '-J', 'reservation=after_repair', cwd=suite.tmp,
            env={**os.environ, **suite.variables}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        text, _ = job.communicate(timeout=LIMIT)
    finally:
        cluster.ask('scontrol', 'update', 'NodeName=n4', 'State=RESUME')
        cluster.ask('scontrol', 'delete', 'reservation=after_repair')
    assert job.returncode == 1, text
    records = [r for r in suite.records if r['result'] != 'fail']
    assert {(r['nodes'], r['copy'], r['program'], r['result']) for r in records} == {
        (node, f'nid={node}', 'osu_allreduce', 'no_reference')
        for node in ('n2', 'n3')}, text
    assert len({r['test_case'] for r in suite.records}) == 1
    assert re.search(r'^ *fail .*n4', text, re.M), text


#: The devcluster with ranks that are bound, as a site of its own.
BOUND = '''
import runpy
site_configuration = runpy.run_path({system!r})['site_configuration']
for partition in site_configuration['systems'][0]['partitions']:
    del partition['extras']['launcher_free']
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
            cluster, '-r', '-Sbringup=1', *OSU, '-n', 'OsuPt2pt',
            '-SOsuPt2pt.max_size=64', '-SOsuPt2pt.iterations=20', '-SOsuPt2pt.warmup=2',
            '-E', 'program in ("osu_latency", "osu_latency_mt")', *options,
            site=str(site))
        text, _ = job.communicate()
        report = json.loads(max((suite.tmp / 'perflogs').glob('sessions/*.json')
                                ).read_text())
        return text, {
            (case['program'], case['placement']): re.sub(
                r'n\d:', '', case['binding'])
            for case in report['runs'][0]['testcases']
            if 'placement' in case}
    return run


#: CPUs of the ranks of each node, nodes apart.
PLACED = {('osu_latency', 'intra_node'): '0-1',
          ('osu_latency_mt', 'intra_node'): '0-1',
          ('osu_latency', 'inter_node'): '0 0',
          ('osu_latency_mt', 'inter_node'): '0-1 0-1'}


@pytest.mark.cluster
def test_threads_of_a_rank_have_a_core_each(bound, own):
    """srun and mpirun, on one node and on two: as seen from inside."""
    text, had = bound(own(bind=True), '--system', 'devcluster:slurm-srun')
    assert had == PLACED, text


@pytest.mark.cluster
def test_mpirun_binds_on_every_node(bound, cluster):
    text, had = bound(cluster, '--system', 'devcluster:slurm-mpirun')
    assert had == PLACED, text


# ------------------------------------------------- broken jobs

#: The devcluster with a program that misbehaves, as a site of its own.
FAULTY = '''
import runpy
site_configuration = runpy.run_path({system!r})['site_configuration']
for environment in site_configuration['environments']:
    environment['features'] = ['mpi', 'osu', 'osu_latency', 'osu_hello']
    environment['extras'] = {{'programs': {{'osu': {{
        'source': 'system', 'prefix': {prefix!r}}}}}}}
for partition in site_configuration['systems'][0]['partitions']:
    partition['extras']['max_nodes'] = 8
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

    def start(cluster, fault, *options, wrapper=()):
        return suite.on(
            cluster, '-r', '-Sbringup=1', '-p', 'mpich', *options,
            site=str(site), wrapper=wrapper, FAULT=fault,
            GOLDEN=str(GOLDEN / 'osu_latency.txt'))
    suite.start = start
    return suite


PAIR = [*OSU, '-n', 'OsuPt2pt', '-E', 'placement == "inter_node" and '
        'program == "osu_latency"']


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


def both_failed(suite, run, words):
    """One line a backend with the words, and no value kept."""
    text, _ = run.communicate()
    assert run.returncode == 1, text
    reasons = [line for line in text.splitlines() if 'Reason: ' in line]
    assert len(reasons) == 2 and all(words in r for r in reasons), text
    return text


# ------------------------------------------------- plumb run, on the site

#: A command that ends a session with a signal, as batch scripts use it.
WRAPPER = ['timeout', '-s', 'SIGTERM', '1000']


def plumb_run(suite, cluster, fault='none', wrapper=()):
    """`plumb run` on the login node, of one case that needs two nodes."""
    return cluster.box(
        'exec', '--', *wrapper, ROOT / 'plumb', 'run', '--site', suite.tmp / 'site',
        '--bringup', '--no-wait', '--', '--system=devcluster:slurm-srun',
        '-p', 'mpich', *PAIR, cwd=suite.tmp, env={
            **os.environ, **suite.variables, 'FAULT': fault,
            'GOLDEN': str(GOLDEN / 'osu_latency.txt')},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.cluster
def test_a_run_does_not_wait_for_who_measures_on_the_login_node(faulty, cluster):
    with lock.hold_file_lock(Path(faulty.variables['PLUMBLINE_LOCK'])):
        run = plumb_run(faulty, cluster)
        text, _ = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, text
    assert ' of 1 test case · ' in text, text
    assert {r['result'] for r in faulty.records} == {'no_reference'}


@pytest.mark.cluster
def test_a_signal_while_a_job_is_submitted_leaves_none(faulty, cluster):
    def is_submitted():
        return 'rfm_' in cluster.ask('squeue', '-h', '-o', '%j') or any(
            process.name == 'sbatch' for process in cluster.processes('login'))
    run = plumb_run(faulty, cluster, 'time_limit', WRAPPER)
    until(is_submitted)
    run.send_signal(signal.SIGTERM)
    text, _ = run.communicate(timeout=LIMIT)
    assert 'Ended by SIGTERM' in text and 'is killed' not in text, text
    assert not cluster.ask('squeue', '-h', '-t', 'PD,R').strip(), text
    until(lambda: not cluster.ask('squeue', '-h').strip())


@pytest.mark.cluster
def test_what_is_left_on_every_node_is_named(faulty, cluster):
    text = both_failed(faulty, faulty.start(cluster, 'leftover', *PAIR),
                       'leftover: run.1.err: 2 processes still ran')
    assert text.count('sleep (') >= 4
    for node in cluster.nodes:
        assert not any('987.4' in process.command
                       for process in cluster.processes(node))


@pytest.mark.cluster
def test_time_limit_after_good_output(out_of_time):
    both_failed(*out_of_time, 'time_limit: job')


@pytest.mark.cluster
def test_node_that_dies_after_good_output(faulty, cluster):
    run = faulty.start(cluster, 'time_limit', *PAIR)
    wrote = Path(faulty.variables['PLUMBLINE_WORK'], 'stage')
    until(lambda: sum('\n4194304 ' in p.read_text()
                      for p in wrote.rglob('run.1.out')) == 2)
    victims = set(cluster.ask('squeue', '-h', '-o', '%B').split())
    for node in victims:
        cluster.kill(node)
    try:
        text = both_failed(faulty, run, 'sanity error: ')
        # One backend knows, the other sees that the job is gone.
        assert 'ended in state NODE_FAIL' in text
        assert 'or a node was lost' in text
    finally:
        for node in victims:
            cluster.boot(node)


@pytest.mark.cluster
def test_more_nodes_than_there_are(faulty, cluster):
    text = both_failed(faulty, faulty.start(
        cluster, 'none', *OSU, '-n', 'OsuStartup', '-E',
        'layout == (8, "one")'),
        'sbatch')
    assert 'Requested node configuration is not available' in text


@pytest.mark.cluster
def test_nodes_that_do_not_come_free(faulty, cluster):
    """Here for the build; a nightly session shows it of the test case."""
    job = cluster.submit('#!/bin/sh\nsleep 1000\n', '-N4', '--exclusive')
    until(lambda: cluster.job(job)['JobState'] == 'RUNNING')
    try:
        both_failed(faulty, faulty.start(
            cluster, 'none', *PAIR, '-Smax_pending_time=8s'),
            'before it started (max_pending_time is 8')
    finally:
        cluster.ask('scancel', job)
        cluster.wait(job)
