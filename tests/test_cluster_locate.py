"""plumb locate on the cluster in a box: the node with the slow link.

All links run under a common limit, so that they, and not the two cores of
many a machine, set the pace; that of one node is 20 % lower.
"""
from __future__ import annotations

import json
import os
import subprocess

import pytest
from conftest import ROOT, started_cluster

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
