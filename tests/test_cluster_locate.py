"""plumb locate on the cluster in a box: the node with the slow link.

All links run under a common limit, so that they, and not the two cores of
many a machine, set the pace; that of one node is 20 % lower.
"""
from __future__ import annotations

import contextlib
import json
import os
import subprocess

import pytest
from conftest import ROOT, started_cluster, until

from cli.setup import ensure_wheel

RATE, SLOW = '400mbit', '320mbit'
#: Little of each: a job has a second to run.
SHORT = ['-SOsuPt2pt.max_size=16384', '-SOsuPt2pt.options=-i 12 -x 2']


@pytest.fixture(scope='module')
def limited(tmp_path_factory):
    """Four nodes, each with the same limit to its link."""
    base = tmp_path_factory.getbasetemp()
    cluster = started_cluster(base / 'limited', base)
    for name in ('mpi', 'mpich'):
        ensure_wheel(name)
    for node in cluster.nodes:
        cluster.rate(node, RATE)
    yield cluster
    cluster.down()


@pytest.mark.cluster
# On a busy machine a search takes minutes.
@pytest.mark.timeout(900)
def test_one_node_whose_link_is_20_percent_slower(limited, suite):
    slow = 'n2'
    limited.rate(slow, SLOW)
    try:
        done = limited.box(
            'exec', '--', ROOT / 'plumb', 'locate', '--site', 'devcluster',
            '--partition', 'slurm-srun', '--nodes', 'n[1-4]', '--json',
            str(suite.tmp / 'found.json'), '--', *SHORT, cwd=suite.tmp,
            # Else ReFrame looks after 9, 17, 27 s whether a job has ended.
            env={**os.environ, **suite.variables, 'RFM_POLL_RATE_MIN': '2'},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text, _ = done.communicate()
    finally:
        limited.rate(slow, RATE)
    assert done.returncode == 1, text
    found = json.loads((suite.tmp / 'found.json').read_text())
    assert [(one['kind'], one['name'], one['verdict'])
            for one in found['named']] == [('node', slow, 'slow')], text
    assert found['named'][0]['ratio'] == pytest.approx(0.8, abs=0.08), text
    assert f'SLOW    node {slow}: ' in text
    # Where the nights look there is nothing of it.
    assert not suite.records
    [place] = (suite.tmp / 'work' / 'locate').iterdir()
    assert list(place.rglob('OsuPt2pt.v3.csv'))


@contextlib.contextmanager
def rates(cluster, **slow):
    """A tenth of what a machine of two cores moves for all links, so that
    they set the pace beside other work too, but for these nodes."""
    for node in cluster.nodes:
        cluster.rate(node, slow.get(node, '100mbit'))
    try:
        yield
    finally:
        for node in cluster.nodes:
            if cluster.pid(node) is None:
                cluster.boot(node)
            cluster.rate(node, RATE)


def locate(cluster, suite, *options):
    """The search of `plumb locate`, as it runs: (process, its verdict)."""
    report = suite.tmp / 'found.json'
    job = cluster.box(
        'exec', '--', ROOT / 'plumb', 'locate', '--site', 'devcluster',
        '--json', str(report), *options, '--', *SHORT, cwd=suite.tmp,
        # Else ReFrame looks after 9, 17, 27 s whether a job has ended.
        env={**os.environ, **suite.variables, 'RFM_POLL_RATE_MIN': '2'},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def ended():
        text, _ = job.communicate()
        assert job.returncode == 1, text
        found = json.loads(report.read_text())
        return [(one['kind'], one['name'], one['verdict'])
                for one in found['named']], found, text
    return ended


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_a_node_that_dies_while_it_is_measured(limited, suite):
    """Its jobs fail, those that wait for it are given up, and it is named."""
    with rates(limited):
        ended = locate(limited, suite, '--partition', 'slurm-srun')
        until(lambda: limited.ask('squeue', '-h', '-t', 'R', '-w', 'n3',
                                  '-o', '%i').split(), 120)
        limited.kill('n3')
        named, _, text = ended()
    assert named == [('node', 'n3', 'fails')], text
