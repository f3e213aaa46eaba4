"""plumb locate on the cluster in a box: the node with the slow link.

All links run under a common limit, so that they, and not the two cores of
many a machine, set the pace; that of one node is 20 % lower.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess

import pytest
from conftest import OSU, ROOT, started_cluster, until

from cli.setup.venv import ensure_folder_of_lock

# Searches take minutes each.
pytestmark = [pytest.mark.cluster, pytest.mark.slow,
              pytest.mark.timeout(900)]

RATE, SLOW = '400mbit', '320mbit'
#: Little of each: a job has a second to run.
SHORT = ['-SOsuPt2pt.max_size=16384', '-SOsuPt2pt.iterations=12', '-SOsuPt2pt.warmup=2']


@pytest.fixture(scope='module')
def limited(tmp_path_factory):
    """Four nodes, each with the same limit to its link."""
    base = tmp_path_factory.getbasetemp()
    cluster = started_cluster(base / 'limited', base)
    for name in ('mpi', 'mpich'):
        ensure_folder_of_lock(name)
    for node in cluster.nodes:
        cluster.rate(node, RATE)
    yield cluster
    cluster.down()


def test_one_node_whose_link_is_20_percent_slower(limited, suite):
    slow = 'n2'
    limited.rate(slow, SLOW)
    try:
        done = limited.box(
            'exec', '--', ROOT / 'plumb', 'locate', '--site', 'devcluster',
            '--partition', 'slurm-srun', '--nodes', 'n[1-4]', '--json',
            str(suite.tmp / 'found.json'), '--', *SHORT, cwd=suite.tmp,
            env={**os.environ, **suite.variables},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text, _ = done.communicate()
    finally:
        limited.rate(slow, RATE)
    assert done.returncode == 1, text
    result = json.loads((suite.tmp / 'found.json').read_text())
    assert [(one['kind'], one['name'], one['verdict'])
            for one in result['named']] == [('node', slow, 'slow')], text
    assert result['named'][0]['ratio'] == pytest.approx(0.8, abs=0.08), text
    assert f'SLOW    node {slow}: ' in text
    # Where the nightly sessions look there is nothing of it.
    assert not suite.records
    [place] = (suite.tmp / 'work' / 'locate').iterdir()
    assert list(place.rglob('OsuPt2pt.log'))


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


def searching(cluster, suite, *options):
    """`plumb locate`, as it runs."""
    return cluster.box(
        'exec', '--', ROOT / 'plumb', 'locate', '--site', 'devcluster',
        '--json', str(suite.tmp / 'found.json'), *options, '--', *OSU, *SHORT,
        cwd=suite.tmp,
        env={**os.environ, **suite.variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def locate(cluster, suite, *options):
    """Ends such a search: what it names, and what it says."""
    job = searching(cluster, suite, *options)

    def ended():
        text, _ = job.communicate()
        assert job.returncode == 1, text
        result = json.loads((suite.tmp / 'found.json').read_text())
        return [(one['kind'], one['name'], one['verdict'])
                for one in result['named']], result, text
    return ended


def test_a_node_that_is_down_is_left_out(limited, suite):
    output = ''
    with rates(limited):
        limited.kill('n4')
        until(lambda: limited.states()['n4'].startswith('down'))
        job = searching(limited, suite, '--partition', 'slurm-srun')
        for line in job.stdout:
            output += line
            if re.search(r'\d+ jobs? in \d+ round', line):
                job.send_signal(signal.SIGTERM)
    assert re.search(r'left out, .*: n4 \(down', output), output
    assert 'program=osu_bw on slurm-srun+mpich, 3 nodes' in output, output
    # That it was cut short, by whichever process was the first to say so.
    assert job.wait() in (1, 128 + signal.SIGTERM, -signal.SIGTERM)


def test_a_node_that_dies_while_it_is_measured(limited, suite):
    """Its jobs fail, those that wait for it are given up, and it is named."""
    with rates(limited):
        ended = locate(limited, suite, '--partition', 'slurm-srun')
        until(lambda: limited.ask('squeue', '-h', '-t', 'R', '-w', 'n3',
                                  '-o', '%i').split())
        limited.kill('n3')
        named, _, text = ended()
    assert named == [('node', 'n3', 'fails')], text
