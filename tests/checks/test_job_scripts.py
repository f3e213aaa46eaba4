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
#: File -> check (and its folder), and a filter.
CASES = {
    'latency': ('osu', 'OsuPt2pt', 'program == "osu_latency" and buffers == "host"'),
    'gpu_bw': ('osu', 'OsuPt2pt', 'program == "osu_bw" and buffers != "host"'),
    'allreduce': ('osu', 'OsuCollective', 'program == "osu_allreduce" and '
                  'layout[1] == "full" and layout[0] in (2, 6, 10)'),
    'nccl': ('nccl', 'NcclCollective', 'program == "all_reduce_perf" and '
             'layout.nodes == 2'),
    'tao': ('taobench', 'TaoBench', 'scenario.job == "autoscale" and '
            'scenario.client_nodes == 2'),
    'tensors': ('smartredis', 'SmartRedisThroughput', 'scenario.client_nodes == 2 and '
                'scenario.deployment == "standard" and '
                'scenario.clients_per_node == 4'),
}


def job_scripts(suite, family, check, expression):
    """The scripts of the test cases, by the values that distinguish them."""
    done = suite.reframe('--dry-run', '-Sbringup=1', '-c', ROOT / 'checks' / family,
                         '-n', check, '-E', expression)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in sorted(suite.tmp.rglob(f'{check}_*/rfm_job.sh')):
        text = path.read_text().replace(str(suite.tmp), 'WORK')
        yield re.sub(r'\d{8}T\d{6}Z-\w{6}', 'SESSION',
                     text.replace(str(ROOT), 'ROOT'))


@pytest.mark.parametrize('cluster, name', [
    *(('polaris', name) for name in CASES), ('mi300x', 'gpu_bw'), ('mi300x', 'nccl')])
def test_the_scripts_are_as_expected(tmp_path, cluster, name):
    suite = suite_in(tmp_path)
    suite.write_site(tmp_path / cluster, (CLUSTERS / cluster / 'system.py').read_text())
    scripts = sorted(job_scripts(suite, *CASES[name]))
    assert scripts
    text = re.sub(r'\S*/bin/python\S*', 'PYTHON', '\n'.join(scripts))
    # A path of the checkout that has a blank is in quotes.
    text = re.sub(r"'((?:ROOT|WORK|PYTHON)[^' ]*)'", r'\1', text)
    path = CLUSTERS / cluster / f'{name}.txt'
    if os.environ.get('PLUMBLINE_WRITE_SCRIPTS'):
        path.write_text(text)
    assert text == path.read_text()


def test_settings_of_the_vendor_are_only_in_their_test_cases(tmp_path):
    suite = suite_in(tmp_path)
    suite.write_site(tmp_path / 'mi300x',
                     (CLUSTERS / 'mi300x' / 'system.py').read_text())
    settings = {}
    for script in job_scripts(
            suite, 'nccl', 'NcclCollective',
            'program in ("all_reduce_perf", "sendrecv_perf") and '
            '(layout.nodes, layout.gpus) in ((1, 4), (1, 8), (2, 8))'):
        program = re.search(r'(\w+)_perf -b', script)[1]
        layout = tuple(int(re.search(rf'#SBATCH --{name}=(\d+)', script)[1])
                       for name in ('ntasks', 'ntasks-per-node'))
        settings[program, layout] = {*re.findall(r'export (NCCL_\w*NCHANNELS\w*=\d+)',
                                              script)}
    partial, peer = {'NCCL_MIN_NCHANNELS=32'}, {'NCCL_NCHANNELS_PER_NET_PEER=4'}
    assert settings == {
        ('all_reduce', (4, 4)): partial, ('sendrecv', (4, 4)): partial,
        ('all_reduce', (8, 8)): set(), ('sendrecv', (8, 8)): set(),
        ('all_reduce', (16, 8)): set(), ('sendrecv', (16, 8)): peer}


@pytest.mark.parametrize('site, launcher, cores', [
    ('hgx-h100', 'mpirun -np 8 --map-by slot --bind-to none',
     '0-13:14-27:28-41:42-55:56-69:70-83:84-97:98-111'),
    ('lumi', 'srun --cpus-per-task=7 --cpu-bind=none',
     '49-55:57-63:17-23:25-31:1-7:9-15:33-39:41-47')])
def test_ranks_run_on_the_cores_of_their_gpus(tmp_path, site, launcher, cores):
    suite = suite_in(tmp_path)
    suite.variables['PLUMBLINE_SITE'] = str(ROOT / 'site-configs' / site)
    script, = job_scripts(
        suite, 'nccl', 'NcclCollective', 'program == "all_reduce_perf" and '
        f'(layout.nodes, layout.gpus) == (1, {cores.count(":") + 1})')
    assert f'export PLUMBLINE_RANK_CPUS={cores}\n' in script
    assert f' -- {launcher} ' in script
    first, _, last = cores.partition(':')[0].partition('-')
    assert f'export OMP_NUM_THREADS={int(last) - int(first) + 1}\n' in script


@pytest.mark.parametrize('site', ['alps', 'aws-parallelcluster'])
def test_nccl_finds_its_plugin(tmp_path, site):
    """packages.yaml of these sites says that system.py sets the path."""
    folder = ROOT / 'site-configs' / site
    settings = (folder / 'spack' / 'packages.yaml').read_text()
    assert 'LD_LIBRARY_PATH, which system.py sets' in settings.replace('\n  # ', ' ')
    suite = suite_in(tmp_path)
    suite.variables['PLUMBLINE_SITE'] = str(folder)
    scripts = list(job_scripts(suite, 'nccl', 'NcclCollective',
                               'program == "sendrecv_perf" and layout.nodes == 2'))
    assert scripts
    for script in scripts:
        assert re.search(r'export LD_LIBRARY_PATH=/\S+/lib\$\{LD_LIBRARY_PATH:\+',
                         script)
        assert ('NCCL_NCHANNELS_PER_NET_PEER=4' in script) == (site == 'alps')
