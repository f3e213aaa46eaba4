"""plumb site check: every kind of fault in a site's folder is one line."""
from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

import perflogs_factory as perflogs
import pytest
import yaml

from cli.session.commands import load_site_configuration
from cli.site import check as sites
from cli.site import spack_yaml
from tests.conftest import ROOT

SITE = '''
from config.common import SETTINGS
site_configuration = {
    **SETTINGS,
    'systems': [{
        'name': 'cluster', 'hostnames': ['cluster'],
        'modules_system': 'lmod',
        'partitions': [{
            'name': 'cluster-a', 'scheduler': 'slurm', 'launcher': 'srun',
            'access': ['--exclusive'], 'environs': ['gnu'],
            'features': [],
            'processor': {'num_cpus': 64, 'num_cpus_per_core': 1},
            'extras': {'max_nodes': 2, 'launcher_pin': ['--cpu-bind=cores']},
        }]}],
    'environments': [{
        'name': 'gnu', 'cc': 'mpicc', 'modules': ['openmpi/5'],
        'features': ['osu', 'osu_latency'],
        'extras': {'mpi_library': 'openmpi 5',
                   'programs': {'osu': {'source': 'module'}}}},
        # more
        ],
}
'''

#: Environments that a test adds.
MT = '''
        {'name': 'mt', 'features': ['osu', 'osu_latency_mt'],
         'extras': {'mpi_library': 'openmpi 5',
                    'programs': {'osu': {'source': 'module'}}}},
'''
STORES = '''
        {'name': 'stores', 'features': ['valkey'],
         'extras': {'programs': {'keyvalue': {'source': 'system'}}}},
'''

TENSORS = '''
        {'name': 'tensors', 'cc': 'mpicc', 'features': ['tensor_redis'],
         'extras': {'mpi_library': 'othermpi 1', 'programs': {
             'keyvalue': {'source': 'system'},
             'smartredis': {'source': 'embedded'}}}},
'''


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / 'cluster'
    folder.mkdir()
    (folder / 'system.py').write_text(SITE)
    return folder


def change(folder: Path, old: str, new: str) -> None:
    path = folder / 'system.py'
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def findings(folder: Path) -> str:
    return '\n'.join(sites.examine_site(folder).findings)


def test_cores_near_gpus_that_are_unknown(site):
    change(site, "'features': []", "'features': ['gpu_nvidia']")
    assert 'the cores near its GPUs are unknown' in str(sites.examine_site(site).facts)


def test_services_on_a_launcher_that_never_ran_servers(site, tmp_path, monkeypatch):
    """PALS: until the perflogs have values of such a test case."""
    folder = tmp_path / 'perflogs'
    monkeypatch.setenv('PLUMBLINE_PERFLOGS', str(folder))
    change(site, "'environs': ['gnu']", "'environs': ['gnu', 'stores']")
    change(site, '# more', STORES)
    change(site, "'launcher': 'srun'", "'launcher': 'mpiexec'")
    change(site, "'openmpi 5'", "'cray-mpich 8.1'")
    cases = sites.list_test_cases_with_reframe(site)['cases']
    expected = ['services    untested with the launcher PALS of partition cluster-a: '
                'the perflogs have no values of a test case that starts servers there']
    assert sites.unproven_launcher_lines(cases) == expected
    kind = {'system': 'cluster', 'family': 'keyvalue', 'check': 'StoreServes'}
    # Refused, and of another partition.
    perflogs.write(folder, [
        perflogs.record('completed', 0, guard='sanity', reason='x',
                        partition='cluster-a', **kind),
        perflogs.record(partition='other', **kind)])
    assert sites.unproven_launcher_lines(cases) == expected
    perflogs.write(folder, [perflogs.record(day=2, partition='cluster-a', **kind)])
    assert sites.unproven_launcher_lines(cases) == []
    change(site, "'max_nodes': 2", "'max_nodes': 2, 'launcher_step': ['mpiexec']")
    cases = sites.list_test_cases_with_reframe(site)['cases']
    assert not any(case['unproven_launcher'] for case in cases)


def test_an_entry_without_a_test_case(site):
    """Such an entry would compare nothing without a message; a measured one with
    settings may be of those that a person gave."""
    references(site, ['intra_node', 'intra_nod'], 'latency@8B')
    words = ('osu.yaml:4: OsuPt2pt: buffers=host placement=intra_nod '
             'program=osu_latency: no test case of the site has these keys')
    path = site / 'references' / 'osu.yaml'
    path.write_text(path.read_text() + """$from:
  OsuPt2pt:
    buffers=host placement=intra_nod program=osu_latency:
      {source: 'measured: 5 sessions on 1 day', date: 2026-11-05}
""")
    lines = [line for line in findings(site).splitlines() if 'has these keys' in line]
    assert len(lines) == 1 and words in lines[0]
    path.write_text("""$from:
  OsuPt2pt:
    buffers=host placement=intra_node program=osu_latency | max_size=64:
      {source: 'measured: 5 sessions on 1 day', date: 2026-11-05}
OsuPt2pt:
  $index: [params, settings]
  buffers=host placement=intra_node program=osu_latency:
    max_size=64: {latency@8B: [1.0, null, 0.1, us]}
""")
    assert 'no test case of the site has these keys' not in findings(site)


# -------------------------------------------------------------- snapshots

def test_a_change_of_the_cases_is_shown_until_it_is_accepted(site, capsys):
    def check(update=False):
        code = sites.check(argparse.Namespace(all=False, sites=[str(site)],
                                              update=update, references=False))
        return code, capsys.readouterr().out

    code, out = check()
    assert code == 1 and 'cases.txt:1: the file does not exist' in out
    assert check(update=True)[0] == 0
    kept = (site / 'cases.txt').read_text()
    for modes, place in (('quick', 'intra_node'), ('smoke,quick', 'inter_node')):
        assert (f'[cluster-a+gnu | {modes},nightly,full | none]\nOsuPt2pt '
                f'buffers=host placement={place} program=osu_latency\n') in kept
    # A site loses the second node: cases go, and it is seen.
    change(site, "'max_nodes': 2", "'max_nodes': 1")
    code, out = check()
    assert code == 1
    assert (f'{site}/cases.txt:1: the test cases of the site differ from this file; if '
            f'this is intended, run ./plumb site check {site} --update, and git diff '
            'shows the differences\n'
            ) in out
    assert 'program=osu_latency' not in out
    assert (site / 'cases.txt').read_text() == kept
    assert re.search(r'sites: 1, to fix: 1; 0 of \d+ test cases with a tolerance; '
                     'programs of environments: 1 ', out)


@pytest.mark.parametrize('files', [
    [('locks/mpi-host.lock', '{"roots": [', 'is not a lock file of Spack'),
     ('locks/mpi-hots.lock', '{}', "spack-envs/ has no stack 'mpi-hots'"),
     ('references/oso.yaml', '{}',
      "this site has no family 'oso'; did you mean 'osu'"),
     ('references/osu.yaml', 'OsuPt2ptt: {$index: [params],\n'
      '  x: {latency@8B: [1, null, 1, us]}}',
      'OsuPt2ptt: x: no test case of the site has these keys'),
     ('topology.yaml', 'switches: {a: {switches: b}}', "has no switch 'b'"),
     ('hardware.yaml', 'nic: {X1: {rate: 1}}',
      'X1: missing or unknown keys: arch')],
    [('hardware.yaml', 'nics: {}',
      'hardware.yaml: nics: expected the key gpu')],
], ids=['all', 'hardware'])
def test_files_that_only_the_suite_reads(site, files):
    for file, text, _ in files:
        (site / file).parent.mkdir(exist_ok=True)
        (site / file).write_text(text)
    results = [line for line in sites.examine_site(site).findings
               if 'cases.txt:1: the file does not exist' not in line]
    for file, _, words in files:
        assert sum(words in line for line in results) == 1, (file, results)
    assert len(results) == len(files), results


def test_cases_that_agree_share_a_line():
    case = {'check': 'C', 'params': 'program=p x=1', 'modes': ['full'],
            'reference': 'own', 'where': 'a+gnu'}
    text = sites.snapshot_text([
        {**case, 'where': 'b+gnu'}, case,
        {**case, 'where': 'b+gnu', 'params': 'program=p x=2'},
        {**case, 'params': 'program=p x=2'},
        {**case, 'params': 'program=q x=2'},
        {**case, 'where': 'c+gnu', 'reference': 'none'}])
    assert [ln for ln in text.splitlines()[3:] if ln] == [
        '[a+gnu b+gnu | full | own]', 'C program=p x=1,2',
        '[a+gnu | full | own]', 'C program=q x=2',
        '[c+gnu | full | none]', 'C program=p x=1']


@pytest.mark.strict
def test_every_site_is_sound(suite):
    done = suite.plumb('site', 'check', '--all')
    assert done.returncode == 0, done.stdout
    # Test cases with a tolerance: a published value that selects none counts nothing.
    counts = {site: int(number) for site, number in re.findall(
        r'^([\w-]+): good, .*; (\d+) of \d+ test cases with a tolerance', done.stdout,
        re.MULTILINE)}
    for site, number in {'alps': 5, 'aws-parallelcluster': 13, 'gcp-slurm': 74,
                         'hgx-h100': 1, 'lumi': 10}.items():
        assert counts[site] >= number, done.stdout


# -------------------------------------------------------------- system.py

@pytest.mark.parametrize('old, new, words', [
    ("'features': []", "'features': ['gpu_nvida']", "did you mean 'gpu_nvidia'"),
    ("'max_nodes': 2", "'max_nodes': '2'", "max_nodes is '2'; write a whole number"),
    ("'max_nodes': 2", "'max_nodes': 2, 'node_counts': [1, 3]",
     'node_counts has 3; write whole numbers from 1 to max_nodes, 2'),
    ("'scheduler'", "'schedular'", "required property; is "
     "'schedular'"),
    ("'environs': ['gnu']", "'environs': ['gun']", 'gun'),
    ('site_configuration = {', 'site_configuration = {{', 'system.py:'),
    ("'osu_latency'", "'osu_latencies'", 'no test case can run'),
    ("'processor': {'num_cpus': 64, 'num_cpus_per_core': 1},", '',
     "partition cluster:cluster-a has no 'processor' with num_cpus and "
     'num_cpus_per_core: write'),
    ("'launcher_pin': ['--cpu-bind=cores']", '', ''),
    ("'srun',\n            'access': ['--exclusive'], 'environs': ['gnu'],",
     "'mpirun', 'access': ['--exclusive'], 'environs': ['gnu', 'mt'],",
     'has a launcher_pin without {cpus}: threads would share a core; write {cpus} '),
])
def test_a_fault_of_the_site_is_one_line(site, old, new, words):
    change(site, old, new)
    change(site, '# more', MT * ("'mt'" in new))
    lines = [ln for ln in sites.examine_site(site).findings
             if 'cases.txt:1: the file does not exist' not in ln]
    assert (words in lines[0]) if words else not lines
    assert len(lines) <= 1


@pytest.mark.parametrize('old, new, extra', [
    ("'launcher_pin': ['--cpu-bind=cores']", '', 'launcher_pin')])
def test_unknown_options_of_a_launcher_are_one_line(site, old, new, extra):
    change(site, "'srun'", "'ibrun'")
    change(site, old, new)
    change(site, '# more', STORES * ("'stores'" in new))
    line, = (ln for ln in sites.examine_site(site).findings
             if 'cases.txt:1: the file does not exist' not in ln)
    assert (f'system.py: partition cluster:cluster-a needs launcher options for '
            f'{extra}, and those of ibrun with openmpi 5 are unknown; add them to its '
            f"extras: '{extra}': [...],") in line


def test_faults_that_hide_none_are_a_line_each(site):
    changes = [
        ("5',\n                   'programs'",
         "5', 'stack': 'mpi-hots', 'programs'",
         "system.py:18: spack-envs/ has no stack 'mpi-hots'"),
        ("'num_cpus': 64", "'num_cpus': 64, 'num_sockets': 2, "
         "'num_cpus_per_socket': 16",
         'processor: num_cpus is 64, but num_sockets x num_cpus_per_socket '
         'is 2 x 16 = 32'),
        # Because of the two sockets.
        ("'srun'", "'ibrun'", 'needs launcher options for launcher_socket_pin, and '),
        ("['--exclusive']", '[]', 'partition cluster:cluster-a: access has no --excl'),
        ("'launcher_pin'", "'max_pending': '90', 'launcher_pin'",
         "partition cluster:cluster-a: max_pending is '90'; write a time such as ")]
    for old, new, _ in changes:
        change(site, old, new)
    lines = [ln for ln in sites.examine_site(site).findings
             if 'cases.txt:1: the file does not exist' not in ln]
    for *_, words in changes:
        assert sum(words in line for line in lines) == 1, (words, '\n'.join(lines))
    assert len(lines) == len(changes), lines


def test_a_launcher_that_cannot_start_an_mpi_program_in_a_job(site):
    change(site, "'srun'", "'ssh'")
    change(site, "'environs': ['gnu']", "'environs': ['tensors']")
    change(site, '# more', TENSORS)
    line, = (line for line in findings(site).splitlines()
             if 'how its launcher starts a program inside a job' in line)
    assert 'partition cluster:cluster-a: the suite does not know' in line


def test_environments_without_a_partition_or_a_test_case(site):
    """The second has the software for GPUs, and its partition has none."""
    change(site, '# more', MT + """{'name': 'rccl', 'features': ['rccl_tests'],
         'extras': {'programs': {'nccl': {'source': 'module'}}}},""")
    change(site, "'environs': ['gnu']", "'environs': ['gnu', 'rccl']")
    lines = (site / 'system.py').read_text().splitlines()
    faults = '\n'.join(sites.environment_faults(
        site, load_site_configuration(site / 'system.py'), [{'environ': 'gnu'}]))
    for name, words in (
            ('mt', 'no partition uses environment mt; add it to a partition'),
            ('rccl', 'environment rccl: no test case exists')):
        line = next(n for n, text in enumerate(lines, 1) if f"'{name}'" in text)
        assert f'{site}/system.py:{line}: {words}' in faults


def test_two_systems_are_two_sites(site):
    change(site, '}]}],\n', "}]}, {'name': 'b', 'hostnames': ['b'], "
           "'partitions': []}],\n")
    assert '2 systems' in findings(site)


def test_a_stack_needs_the_sites_word(site):
    fault, = sites.stack_faults(site, ['mpi-host'])
    assert 'has no folder spack/' in fault
    (site / 'spack').mkdir()
    assert not [*sites.stack_faults(site, ['mpi-host'])]
    near, = sites.stack_faults(site, ['mpi-hots'])
    assert "did you mean 'mpi-host'?" in near


# ------------------------------------------------------------- references

def references(folder: Path, placements: list[str], metric: str,
               complete: bool = False) -> None:
    (folder / 'references').mkdir(exist_ok=True)
    cases = {f'buffers=host placement={p} program=osu_latency':
             {metric: [1.0, None, 0.1, 'us']} for p in placements}
    (folder / 'references' / 'osu.yaml').write_text(yaml.safe_dump({
        'complete': complete, 'OsuPt2pt': {'$index': ['params'], **cases}}))


def test_checks_are_counted_as_reframe_lists_them(tmp_path):
    case = {'check': 'OsuPt2pt', 'family': 'osu', 'params': '', 'name': 'OsuPt2pt',
            'modes': ['quick', 'full'], 'misplaced': '', 'fault': '', 'lacks': '',
            'reference': 'none', 'judges': False}
    verdict = sites.Verdict('alpha')
    sites.compare_test_cases_with_snapshot(verdict, tmp_path, [
        {**case, 'where': where} for where in ('cpu+openmpi', 'cpu+mpich')], [], False)
    assert verdict.facts[0].endswith('; smoke 0, quick 2, nightly 0, full 2, veto 0')
    assert verdict.facts[1].startswith(
        'checks      smoke 0, quick 1, nightly 0, full 1, veto 0 (as ')
    assert [line for line in verdict.findings if 'cases.txt' in line]
    local = sites.Verdict('local')
    sites.compare_test_cases_with_snapshot(
        local, ROOT / 'site-configs' / 'local', [{**case, 'where': 'a+b'}], [], False)
    assert 'snapshot    not used' in local.facts[-1] and not local.findings


def test_every_case_needs_a_reference_where_they_are_complete(site):
    both = ['intra_node', 'inter_node']
    change(site, "'mpi_library': 'openmpi 5',", '')
    references(site, both[:1], 'latency@8B')
    verdict = sites.examine_site(site)
    assert ('references  osu: 1 of 2 test cases with a tolerance, not marked complete: '
            'true'
            in verdict.facts)
    assert not [f for f in verdict.findings if 'reference' in f]
    references(site, both[:1], 'latency@8B', complete=True)
    result = findings(site)
    assert 'osu.yaml:1: no reference yet for OsuPt2pt' in result
    assert 'but the file has `complete: true`' in result
    references(site, both, 'latency@8B', complete=True)
    verdict = sites.examine_site(site)
    # The ratio of a curve asks for one of its own where it has points.
    assert ('references  osu: 2 of 2 test cases with a tolerance, complete: true'
            in verdict.facts)
    assert not [f for f in verdict.findings if 'reference' in f]
    # With a reference that has no tolerance, or one wider than the max tolerance.
    path = site / 'references' / 'osu.yaml'
    data = yaml.safe_load(path.read_text())
    for place, tolerance in zip(both, (None, 0.31), strict=True):
        data['OsuPt2pt'][f'buffers=host placement={place} program=osu_latency'] = {
            'latency@8B': [1.0, None, tolerance, 'us']}
    path.write_text(yaml.safe_dump(data))
    verdict = sites.examine_site(site)
    assert ('references  osu: 0 of 2 test cases with a tolerance, 2 with a '
            'reference but no useful tolerance (none, or wider than the max '
            'tolerance), complete: true') in verdict.facts
    assert not [f for f in verdict.findings if 'reference' in f]


def test_references_with_a_tolerance_are_listed_with_their_source(site, capsys):
    references(site, ['intra_node', 'inter_node'], 'latency@8B')
    path = site / 'references' / 'osu.yaml'
    data = yaml.safe_load(path.read_text())
    keys = sorted(key for key in data['OsuPt2pt'] if key != '$index')
    data['OsuPt2pt'][keys[0]] = {'latency@8B': [1.0, None, 0.31, 'us']}
    path.write_text(yaml.safe_dump(data | {'$from': {'OsuPt2pt': {
        key: {'source': 'a paper', 'date': '2026-05'} for key in keys}}}))
    sites.check(argparse.Namespace(all=False, sites=[str(site)], update=False,
                                   references=True))
    rows = [line for line in capsys.readouterr().out.splitlines()
            if 'a paper' in line]
    # The other one has a tolerance that is wider than the max tolerance.
    assert len(rows) == 1 and re.fullmatch(
        r' +osu_latency intra_node [0-9a-f]{8} +cluster-a\+gnu +a paper, 2026-05',
        rows[0])


def test_a_partition_with_too_few_cores_leaves_the_others_their_references(site):
    change(site, "'partitions': [{", """'partitions': [{
            'name': 'tiny', 'scheduler': 'slurm', 'launcher': 'srun',
            'access': [], 'environs': ['gnu'], 'features': [],
            'processor': {'num_cpus': 1, 'num_cpus_per_core': 1},
            'extras': {'launcher_pin': ['--cpu-bind=cores'],
                       'launcher_oversubscribe': ['--overcommit']},
        }, {""")
    references(site, ['intra_node', 'inter_node'], 'latency@8B')
    # Two ranks on one core are never compared.
    assert ('references  osu: 2 of 2 test cases with a tolerance, not marked complete: '
            'true'
            in sites.examine_site(site).facts)


# ------------------------------------------------------------------ Spack

def test_stacks_are_loaded_with_one_variable(tmp_path, monkeypatch):
    """The fake Spack loads the stack `nccl` alone."""
    (tmp_path / 'bin').mkdir()
    spack = tmp_path / 'bin' / 'spack'
    spack.write_text('#!/bin/sh\n[ -n "$PLUMBLINE_SITE" ] && '
                     '[ -z "$PLUMBLINE_ROOT$PLUMBLINE_WORK" ] && '
                     'case $2 in */nccl) exit 0;; esac\n'
                     'echo "==> Warning: x" >&2\n'
                     'echo "==> Error: /p.yaml:3: no file" >&2; exit 1\n')
    spack.chmod(0o755)
    monkeypatch.setenv('SPACK_ROOT', str(tmp_path))
    (fault,), note = spack_yaml.faults_of_loading_stacks(
        tmp_path, ['nccl', 'mpi', 'nccl']
    )
    assert note == '1 of 2 load with Spack'
    assert fault == (
        f'{spack_yaml.ENVS}/mpi/spack.yaml:1: Spack cannot load this file '
        f'with PLUMBLINE_SITE={tmp_path}: ==> Error: /p.yaml:3: no file')
    monkeypatch.delenv('SPACK_ROOT')
    monkeypatch.setenv('PATH', '/no/such')
    assert spack_yaml.faults_of_loading_stacks(tmp_path, ['mpi'])[1].startswith(
        'not loaded, because Spack is not available')


def test_reframes_own_variables_do_not_leak_in(site, monkeypatch):
    monkeypatch.setenv('RFM_CHECK_SEARCH_PATH', os.devnull)
    monkeypatch.setenv('RFM_REFERENCE_PREFIX', '/no/such')
    monkeypatch.setenv('RFM_SYSTEM', 'elsewhere')
    assert 'cases.txt:1: the file does not exist' in findings(site)
