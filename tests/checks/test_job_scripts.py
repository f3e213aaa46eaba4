"""Job scripts for clusters with PALS and with AMD GPUs, compared with files.

tests/data/clusters/NAME has the site and the expected scripts. If a script
changes on purpose, run this test with PLUMBLINE_WRITE_SCRIPTS=1, and read the
difference before you commit it.
"""
from __future__ import annotations

import os
import re

import pytest

from tests.conftest import ROOT, suite_in

CLUSTERS = ROOT / 'tests' / 'data' / 'clusters'
#: Check (and its folder), a filter, and the name of the file.
CASES = [
    ('osu', 'OsuPt2pt', 'program == "osu_latency" and buffers == "host"', 'latency'),
    ('osu', 'OsuPt2pt', 'program == "osu_bw" and buffers != "host"', 'gpu_bw'),
    ('osu', 'OsuCollective', 'program == "osu_allreduce" and layout[1] == "full" '
     'and layout[0] in (2, 6, 10)', 'allreduce'),
    ('nccl', 'NcclCollective', 'program == "all_reduce_perf" and layout.nodes == 2',
     'nccl'),
    ('taobench', 'TaoBench', 'scenario.job == "autoscale" and '
     'scenario.client_nodes == 2', 'tao'),
    ('smartredis', 'SmartRedisThroughput', 'scenario.client_nodes == 2 and '
     'scenario.deployment == "standard" and scenario.clients_per_node == 4', 'tensors'),
]


def job_scripts(suite, family, check, expression):
    """The scripts of the test cases, by the values that distinguish them."""
    done = suite.reframe('--dry-run', '-Sbringup=1', '-c', ROOT / 'checks' / family,
                         '-n', check, '-E', expression)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in sorted(suite.tmp.rglob(f'{check}_*/rfm_job.sh')):
        text = path.read_text().replace(str(suite.tmp), 'WORK')
        yield re.sub(r'\d{8}T\d{6}Z-\w{6}', 'SESSION',
                     text.replace(str(ROOT), 'ROOT'))


@pytest.mark.parametrize('cluster', ['polaris', 'mi300x'])
@pytest.mark.parametrize('family, check, expression, name', CASES)
def test_the_scripts_are_as_expected(tmp_path, cluster, family, check, expression,
                                     name):
    suite = suite_in(tmp_path)
    suite.write_site(tmp_path / cluster, (CLUSTERS / cluster / 'system.py').read_text())
    scripts = sorted(job_scripts(suite, family, check, expression))
    assert scripts
    text = re.sub(r'\S*/bin/python\S*', 'PYTHON', '\n'.join(scripts))
    # A path of the checkout that has a blank is in quotes.
    text = re.sub(r"'((?:ROOT|WORK|PYTHON)[^' ]*)'", r'\1', text)
    path = CLUSTERS / cluster / f'{name}.txt'
    if os.environ.get('PLUMBLINE_WRITE_SCRIPTS'):
        path.write_text(text)
    assert text == path.read_text()
