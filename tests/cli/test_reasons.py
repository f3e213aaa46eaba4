"""Why a family has no test case on a site.

docs/reference/sites.md has the reason of each site and family of the
repository; tests/test_words.py compares the page with what is generated.
"""
from __future__ import annotations

import ast
import copy

import pytest

from checks.core import features
from cli.site.reasons import reason_without_test_cases
from config.families import families
from docs import generate
from tests.conftest import ROOT

SITES = sorted(path.parent for path in ROOT.glob('site-configs/*/cases.txt'))

#: A site on which every family of the suite has test cases.
SITE = {
    'systems': [{'name': 'alpha', 'partitions': [
        {'name': 'cpu', 'environs': ['all']},
        {'name': 'gpu', 'environs': ['all'], 'features': ['gpu_nvidia'],
         'devices': [{'type': 'gpu', 'num_devices': 4}]}]}],
    'environments': [{'name': 'all', 'features': [
        'mpi', 'osu', 'redis', 'tensor_redis', 'nccl_tests', 'tao_server']}]}


def changed(environment=(), **partitions):
    """SITE with other features of its environment or keys of its partitions."""
    site = copy.deepcopy(SITE)
    if environment:
        site['environments'][0]['features'] = [*environment]
    for part in site['systems'][0]['partitions']:
        part.update(partitions.get(part['name'], {}))
    return site


def family_by_check():
    """Name of each check -> the family whose folder has it."""
    return {node.name: path.parent.name for path in ROOT.glob('checks/*/*.py')
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ClassDef)}


@pytest.fixture(scope='module')
def families_with_cases():
    """Site -> the families that its cases.txt has."""
    checks = {folder.name: {
        line.split()[0] for line in (folder / 'cases.txt').read_text().splitlines()
        if line and line[0] not in '#['} for folder in SITES}
    owner = family_by_check()
    return {site: {owner[name] for name in names} for site, names in checks.items()}


@pytest.mark.parametrize('folder', SITES, ids=lambda folder: folder.name)
@pytest.mark.parametrize('family', families())
def test_a_family_has_a_reason_if_it_has_no_test_case(families_with_cases, folder,
                                                      family):
    """cases.txt is what ReFrame generates for the site (`site check`)."""
    reason = reason_without_test_cases(family, generate.load_site(folder))
    assert (not reason) == (family in families_with_cases[folder.name]), reason
    if reason:
        why, colon, advice = reason.partition(': ')
        assert colon and 'add' in advice
        row = f'| {folder.name} | {family} | {why} |'
        assert row in (ROOT / 'docs' / 'reference' / 'sites.md').read_text()


@pytest.mark.parametrize('site, family, software', [
    ('hgx-h100', 'optcast',
     'stack optcast or embedded (built with stack mpi-host or mpi-cuda)'),
    ('gcp-slurm', 'osu', 'stack mpi-host or embedded (built with stack mpi)'),
    # memcached is a program of the family keyvalue.
    ('lumi', 'taobench', 'stack keyvalue, embedded or stack taobench'),
    ('local', 'osu', 'embedded')])
def test_the_page_of_sites_has_the_program_and_not_only_its_mpi(site, family,
                                                                software):
    configuration = generate.load_site(ROOT / 'site-configs' / site)
    assert generate.software_text(family, configuration) == software


@pytest.mark.parametrize('family', families())
def test_a_site_with_everything_has_all_families(family):
    assert reason_without_test_cases(family, SITE) == ''


@pytest.mark.parametrize('family, site, words', [
    ('smartredis', changed(['mpi', 'smartredis']), [
        'no environment has the feature tensor_redis, tensor_valkey or tensor_keydb, '
        'and all has only smartredis: add ']),
    ('taobench', changed(['mpi']), [
        'no environment has the feature tao_server, tao_bench or memcached: add '
        "environs.embedded_program_environment(NAME, 'taobench') or ",
        "environs.stack_environment(NAME, 'taobench') or an environment with"]),
    ('osu', changed(['redis']), [
        'no environment has the feature osu: add environs.mpi_environment(NAME, '
        'LIBRARY) or environs.stack_environment(']),
    ('optcast', changed(['redis']), [
        'no environment has the feature mpi or optcast_server: add '
        'environs.mpi_environment(NAME, LIBRARY) or ']),
    ('nccl', changed(gpu={'features': []}), [
        'no partition has the feature gpu_nvidia or gpu_amd: if the site has']),
    ('nccl', changed(gpu={'devices': []}), [
        'partition gpu has no devices of type gpu: add the GPUs of a node']),
    ('nccl', changed(gpu={'environs': []}), [
        'partition gpu does not have the environment all: add it to environs']),
    ('osu', changed(gpu={'environs': []}, cpu={'environs': []}), [
        'partition cpu or gpu does not have the environment all: add it']),
])
def test_each_reason(family, site, words):
    reason = reason_without_test_cases(family, site)
    for part in words:
        assert part in reason


@pytest.mark.parametrize('family', families().values(), ids=lambda one: one.name)
def test_needs_are_names_of_the_glossary(family):
    assert {*family.environment_needs} <= {*features.environ_features()}
    assert {*family.partition_needs} <= {*features.PARTITION_FEATURES}
