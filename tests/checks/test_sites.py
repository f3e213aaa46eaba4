"""The sites, and the data they are made from: hardware, published values."""
from __future__ import annotations

import collections
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from conftest import OSU, ROOT

from checks.core import hardware, limits
from cli.session.commands import load_site_configuration
from config.references import read
from config.sites import launch
from tests.checks.test_faults import (
    GOLDEN,
    PARAMS,
    SCRIPT,
    reference,
)

#: Every site but `local`, which is detected, and the cluster of the tests,
#: which has no hardware of its own.
SITES = sorted(path.parent.name
               for path in ROOT.glob('site-configs/*/system.py')
               if path.parent.name not in ('local', 'devcluster'))


def folder(site: str) -> Path:
    return ROOT / 'site-configs' / site


@pytest.mark.parametrize('site', SITES)
def test_site_is_sound(site):
    configuration = load_site_configuration(folder(site) / 'system.py')
    environments = {e['name']: e for e in configuration['environments']}
    system, = configuration['systems']
    used = set()
    for part in system['partitions']:
        used |= set(part['environs'])
        # What its hardware allows, and ranks that stay on their cores.
        assert part['extras'].items() >= hardware.bandwidth_extras(
            part['devices']).items()
        assert launch.launcher_extra(
            'launcher_pin', part['launcher'], next(
                environments[name]['extras']['mpi_library'] for name in part['environs']
                if 'mpi_library' in environments[name]['extras']), part['extras'])
        assert part['processor']['num_cpus_per_core'] in (1, 2)
    assert used == set(environments)
    for environment in environments.values():
        extras = environment['extras']
        # What Spack does not install is built where it runs.
        assert extras['programs'] and ('stack' in extras or all(
            origin['source'] == 'embedded' and environment['cc']
            for origin in extras['programs'].values()))
    assert (folder(site) / 'README.md').is_file()


@pytest.mark.parametrize('site', SITES)
def test_every_cluster_offers_the_checks_of_smartredis(site):
    cases = (folder(site) / 'cases.txt').read_text().splitlines()
    # KeyDB probably does not start on ARM with large pages.
    databases = 'redis,valkey' if site == 'alps' else 'redis,valkey,keydb'
    for kind in ('Throughput', 'Inference', 'Aggregation'):
        lines = [line for line in cases if line.startswith(f'SmartRedis{kind} ')]
        for words in ('deployment=colocated', 'db_nodes=1 ', '16 db_tpq',
                      f'db={databases} '):
            assert any(words in line for line in lines), words
    # Each with the library of SmartRedis.
    for environment in load_site_configuration(folder(site) / 'system.py')[
            'environments']:
        if 'tensor_redis' in environment['features']:
            assert 'smartredis' in environment['features']
            assert environment['extras']['programs']['smartredis'] == {
                'source': 'spack'}


def test_reframe_takes_sites_and_their_published_values(suite):
    """Without Slurm, Lmod and programs: a site with GPUs of its own launcher options,
    and one with mpirun. Without its published values a test case would fail, because
    the file is complete. `plumb site check --all` loads all sites.
    """
    lumi = yaml.safe_load((folder('lumi') / 'references' / 'osu.yaml').read_text())
    suite.write_references({'complete': True, 'OsuPt2pt': lumi['OsuPt2pt'],
                            '$from': {'OsuPt2pt': {
                                key: source | {'date': '2026'} for key, source in
                                lumi['$from']['OsuPt2pt'].items()}}})
    options = {'lumi': ['--system', 'lumi:lumi-g', '-E', 'buffers == "rocm"'],
               'gcp-slurm': ['-Sbringup=1', '-E', 'buffers == "host"']}

    def dry_run(site):
        *more, expression = options[site]
        return suite.reframe(
            '--dry-run', *OSU, '-n', 'OsuPt2pt', '--stage', str(suite.tmp / site),
            *more, f'{expression} and program == "osu_bw" and '
            'placement == "inter_node"', PLUMBLINE_SITE=site)

    with ThreadPoolExecutor(2) as pool:
        for site, done in zip(options, pool.map(dry_run, options), strict=True):
            assert done.returncode == 0, (site, done.stdout + done.stderr)
            scripts = [p.read_text() for p in (suite.tmp / site).rglob('rfm_job.sh')
                       if 'osu_bw' in p.read_text()]
            assert scripts and all('#SBATCH --ntasks-per-node=1' in s
                                   for s in scripts), site


#: Variable of site local -> files below its prefix.
PREFIXES = {
    'OMB_PREFIX': ['osu_bw'],
    'OPTCAST_PREFIX': ['bin/optcast-reduction-server', 'lib/libnccl-net.so'],
    'SMARTREDIS_PREFIX': ['include/client.h'],
    'TAOBENCH_PREFIX': ['tao_bench_server', 'tao_bench_client',
                        'leader_sizes.json'],
}


def test_site_local_with_a_prefix_in_each_variable(suite, tmp_path):
    source = (ROOT / 'site-configs' / 'local' / 'system.py').read_text()
    assert set(re.findall(r"'(\w+_PREFIX)'", source)) == set(PREFIXES)
    for name in sum(PREFIXES.values(), []):
        path = tmp_path / 'prefix' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('')
        path.chmod(0o755)
    done = suite.reframe('--show-config=environments',
                         **dict.fromkeys(PREFIXES, str(tmp_path / 'prefix')))
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"optcast_server"' in done.stdout and '"tao_bench"' in done.stdout


# Hardware ---------------------------------------------------------------

def test_devices_and_limits_of_a_node():
    node = hardware.reframe_devices(('H100-SXM5-80GB', 8), ('ConnectX-7-NDR400', 8))
    assert node[0] == {'type': 'gpu', 'arch': 'sm_90', 'num_devices': 8,
                       'model': 'H100-SXM5-80GB'}
    assert hardware.bandwidth_extras(node) == {
        'nic_bandwidth': 400000, 'one_nic_bandwidth': 50000,
        'gpu_link_bandwidth': 450000, 'gpu_bandwidth': 450000}


@pytest.mark.parametrize('name, near', [
    ('H100-SXM-80GB', 'H100-SXM5-80GB, H200-SXM5-141GB'),
    ('connectx-7', 'ConnectX-7-NDR400'),
    ('Slingshot-11', '')])
def test_unknown_model_names_the_catalogue_and_the_nearest(name, near):
    with pytest.raises(hardware.HardwareError) as caught:
        hardware.reframe_devices((name, 8))
    output = str(caught.value)
    assert f'unknown NIC or GPU {name!r}' in output
    assert f'the nearest in config/hardware.yaml are {near}' in output
    assert "in a file hardware.yaml beside system.py" in output


def test_a_site_adds_models_of_its_own(tmp_path):
    row = {'arch': 'infiniband', 'rate': 200, 'source': 'ibstat',
           'date': '2026-11'}
    (tmp_path / 'hardware.yaml').write_text(yaml.safe_dump(
        {'nic': {'BlueField-3-NDR200': row}}))
    system = tmp_path / 'system.py'
    node = hardware.reframe_devices(('BlueField-3-NDR200', 2), ('H200-SXM5-141GB', 4),
                                    site=system)
    assert [d['arch'] for d in node] == ['infiniband', 'sm_90']
    assert hardware.bandwidth_extras(node, site=system) == {
        'nic_bandwidth': 50000, 'one_nic_bandwidth': 25000,
        'gpu_link_bandwidth': 450000, 'gpu_bandwidth': 450000}
    with pytest.raises(hardware.HardwareError, match='BlueField-3-NDR200'):
        hardware.reframe_devices(('BlueField-3-NDR20', 2), site=system)
    # Of two rows of one name nobody knows which one holds.
    other = tmp_path / 'other'
    other.mkdir()
    (other / 'hardware.yaml').write_text(yaml.safe_dump(
        {'nic': {'Cassini-200': row}}))
    with pytest.raises(hardware.HardwareError, match='already'):
        hardware.reframe_devices(('Cassini-200', 1), site=other)


@pytest.mark.parametrize('change, words', [
    (lambda row: row.pop('source'), 'X1: missing or unknown keys: source'),
    (lambda row: row.update(rates=1), 'X1: missing or unknown keys: rates')])
def test_broken_table_of_hardware(monkeypatch, tmp_path, change, words):
    row = {'arch': 'a', 'rate': 1, 'source': 's', 'date': '2025-01'}
    change(row)
    path = tmp_path / 'hardware.yaml'
    path.write_text(yaml.safe_dump({'nic': {'X1': row}}))
    monkeypatch.setattr(hardware, 'TABLE', path)
    with pytest.raises(hardware.HardwareError, match=words):
        hardware.find_model('X1')


def test_what_two_gpus_of_a_node_can_exchange():
    def bad(metric, program='osu_bw', buffers='cuda'):
        return limits.exceeded_limits(
            'osu', {'bandwidth@4194304B': metric}, f'buffers={buffers} '
            f'placement=intra_node program={program}',
            {'gpu_link_bandwidth': 450000})
    assert 'GPUs' in bad(451000)[0]
    assert 'GPUs' in bad(451000, buffers='rocm')[0]
    assert not bad(449000)
    assert not bad(600000, program='osu_bibw')      # both ways at once
    # No link of a GPU: what a core copies bounds it.
    assert 'GPUs' not in str(bad(451000, buffers='host'))


INTER = 'buffers=host placement=inter_node program=osu_bw'


def test_far_below_the_hardware():
    site = {'one_nic_bandwidth': 25000}
    values = {'bandwidth@8B': 3.0, 'bandwidth@4194304B': 12000.0}
    assert 'bandwidth@4194304B = 12000 is below half of 25000' in (
        limits.low_values_note('osu', values, INTER, site))
    assert not limits.low_values_note(
        'osu', {'bandwidth@4194304B': 13e3}, INTER, site
    )
    assert not limits.low_values_note(
        'osu', {'bandwidth@8192B': 3.0}, INTER, site
    )
    assert not limits.low_values_note('osu', values, INTER, {})
    assert not limits.low_values_note(
        'osu', values, INTER.replace('inter', 'intra'), site)


# Published values ---------------------------------------------------------

def test_shipped_references_are_published_values_with_useful_tolerances():
    """All files are read strictly. `plumb site check --all` finds a test case for each
    entry."""
    useful = collections.Counter()
    for path in ROOT.glob('site-configs/*/references/*.yaml'):
        entries = [*read(path).all_entries()]
        assert entries and all(entry.is_published for entry in entries), path
        useful[path.parts[-3]] += sum(
            entry.has_useful_tolerance(path.stem) for entry in entries)
    assert useful == {'alps': 4, 'aws-parallelcluster': 13, 'gcp-slurm': 74,
                      'hgx-h100': 1, 'lumi': 10}


@pytest.fixture
def published(suite, tmp_path):
    """The local site with a published value, and OMB's real output."""
    program = tmp_path / 'omb' / 'osu_latency'
    program.parent.mkdir()
    program.write_text(SCRIPT)
    program.chmod(0o755)
    suite.variables |= {'OMB_PREFIX': str(program.parent),
                        'GOLDEN': str(GOLDEN / 'osu_latency.txt')}

    def run(*args, point='8B', value=123.5):
        table = reference('.*', **{f'latency@{point}': [value, None, 1.0, 'us']})
        key = f'local:thishost | .* | system | {PARAMS}'
        suite.write_references({**table, '$from': {'OsuPt2pt': {key: {
            'source': 'data sheet', 'date': '2025-12'}}}})
        return suite.reframe('-r', *OSU, '-n', 'OsuPt2pt', '-E',
                             'program=="osu_latency"', '-p', '.*-omb',
                             '--exec-policy=serial', *args, FAULT='none')
    suite.run = run
    return suite


def judged(suite):
    """The reference and the result of the value, and the case's note."""
    record, = (r for r in suite.records
               if (r['metric'], r['point']) == ('latency', '8 B'))
    return record['reference'], record['result'], record['no_reference']


def test_published_values_judge_until_the_site_is_measured(published):
    done = published.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert judged(published) == (
        '123.5', 'pass', 'published values: data sheet (2025-12)')


def test_published_values_can_fail_a_test_case_of_bringup(published):
    done = published.run('-Sbringup=1', value=1e-3)
    assert done.returncode == 1, done.stdout
    assert judged(published)[:2] == ('0.001', 'fail')


def test_published_values_that_do_not_fit(published):
    done = published.run(point='7B')
    assert done.returncode == 1
    assert 'latency@7B: this test case has no such metric' in done.stdout + done.stderr
