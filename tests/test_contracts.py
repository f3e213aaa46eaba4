"""Rules of the house that a reader cannot see at a glance."""
from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from checks.lib import features, limits, metrics
from cli.setup import WORK
from config.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
CHECKS = sorted((ROOT / 'checks').rglob('*.py'))


def site_names() -> set[str]:
    """Names of systems and partitions of all sites."""
    names = set()
    for path in ROOT.glob('site-configs/*/system.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict):
                pairs = {k.value: v.value for k, v in
                         zip(node.keys, node.values, strict=True)
                         if isinstance(k, ast.Constant)
                         and isinstance(v, ast.Constant)}
                if 'hostnames' in str(ast.dump(node)) or 'scheduler' in pairs:
                    names |= {pairs['name']} if 'name' in pairs else set()
    return names


def words_of(path: Path) -> set[str]:
    """Words of the string constants of a file, docstrings left out."""
    tree = ast.parse(path.read_text())
    docs = {id(n.body[0].value) for n in ast.walk(tree)
            if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and n.body and isinstance(n.body[0], ast.Expr)}
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) \
                and id(node) not in docs:
            words |= set(re.split(r'[\s:+%|,]+', node.value))
    return words


def test_checks_name_no_place():
    names = site_names()
    assert {'local', 'thishost'} <= names
    for path in CHECKS:
        assert not words_of(path) & names, path


def test_the_search_for_places_finds_one(tmp_path):
    bad = tmp_path / 'bad.py'
    bad.write_text("valid_systems = ['local:thishost']\n")
    assert {'local', 'thishost'} <= words_of(bad)


def test_postprocess_and_checks_do_not_know_each_other():
    for folder, other in (('checks', 'postprocess'),
                          ('postprocess', 'checks')):
        for path in (ROOT / folder).rglob('*.py'):
            for node in ast.walk(ast.parse(path.read_text())):
                names = ([a.name for a in node.names]
                         if isinstance(node, ast.Import)
                         else [node.module or '']
                         if isinstance(node, ast.ImportFrom) else [])
                assert not any(n.split('.')[0] == other for n in names), path


def test_glossary_is_in_the_docs():
    text = (ROOT / 'site-configs' / 'README.md').read_text()
    assert features.markdown() in text, (
        'run python -m checks.lib.features and paste it')


@pytest.mark.parametrize('wrong, right', [
    ('gpu_nvida', 'gpu_nvidia'), ('speed_sentinal', 'speed_sentinel')])
def test_unknown_feature_suggests_the_nearest(wrong, right):
    site = {'systems': [{'name': 's', 'partitions': [
        {'name': 'p', 'features': [wrong]}]}]}
    with pytest.raises(features.GlossaryError, match=right):
        features.check_site(site, 'system.py')
    with pytest.raises(features.GlossaryError, match=right):
        features.check_needs([f'+nodes_1 +{wrong}'], [], 'Check')


def test_unknown_extra_is_refused():
    site = {'systems': [{'name': 's', 'partitions': [
        {'name': 'p', 'extras': {'speed_bands_ns': {'fats': [1, 2]}}}]}]}
    with pytest.raises(features.GlossaryError,
                       match="speed_bands_ns: unknown .* mean 'fast'"):
        features.check_site(site, 'system.py')
    site = {'systems': [], 'environments': [
        {'name': 'e', 'extras': {'mpi_libary': 'x'}}]}
    with pytest.raises(features.GlossaryError, match='mpi_library'):
        features.check_site(site, 'system.py')


@pytest.mark.parametrize('extras, words', [
    ({}, "feature 'redis' needs programs: keyvalue"),
    ({'programs': ['keyvalue']}, 'expected family -> source'),
    ({'programs': {'keyvlue': {'source': 'system'}}}, "'keyvalue'"),
    ({'programs': {'keyvalue': {'source': 'spak'}}}, "'spack'"),
    ({'programs': {'keyvalue': {'source': 'system', 'prefx': '/x'}}},
     "'prefix'"),
    ({'programs': {'keyvalue': {}}}, 'expected a source'),
    ({'programs': {'keyvalue': {'source': 'spack'}}}, 'no stack is named'),
    ({'programs': {'keyvalue': {'source': 'system'}},
      'transport': {'name': 'x', 'env': {}, 'evidnce': 'y'}}, "'evidence'"),
    ({'programs': {'keyvalue': {'source': 'system'}},
      'transport': {'name': 'x', 'env': {}}}, 'evidence is missing'),
])
def test_typos_in_what_an_environment_says_of_its_programs(extras, words):
    site = {'systems': [], 'environments': [
        {'name': 'e', 'features': ['redis'], 'extras': extras}]}
    with pytest.raises(features.GlossaryError, match=words):
        features.check_site(site, 'system.py')


def test_metrics_table_is_well_formed():
    for row in metrics.table().values():
        assert row.better in ('higher', 'lower', 'none')
        assert row.point in ('', 'B') and row.unit and row.means


@pytest.mark.parametrize('figure', ['latency@8B', 'wall_time'])
def test_figure_keys_round_trip(figure):
    assert metrics.key(*metrics.split(figure)) == figure


def test_unknown_metric_suggests_the_nearest():
    with pytest.raises(KeyError, match='bandwidth'):
        metrics.metric('bandwith')


def test_limits_are_well_formed_and_bite():
    bad = limits.beyond('osu', {'latency@8B': 0.001}, 'program=osu_latency',
                        {})
    assert 'latency@8B' in bad[0] and '15 ns' in bad[0]
    fine = limits.beyond('osu', {'bandwidth@8B': 3.0}, 'placement=inter_node '
                         'program=osu_bw', {'nic_bandwidth': 25000})
    assert not fine
    fast = limits.beyond('osu', {'bandwidth@8B': 3e4}, 'placement=inter_node '
                         'program=osu_bw', {'nic_bandwidth': 25000})
    assert 'NICs' in fast[0]


def test_perflog_columns_are_unique_and_documented():
    data = yaml.safe_load((ROOT / 'config' / 'perflog.yaml').read_text())
    assert data['schema'] == 3 and all(data['columns'].values())


def test_one_version_told_by_the_command_and_the_changelog():
    done = subprocess.run([ROOT / 'plumb', '--version'], text=True,
                          capture_output=True)
    assert done.stdout == f'plumb {VERSION}\n', done.stderr
    newest = re.search(r'^## \[(\d\S*)\]', (
        ROOT / 'CHANGELOG.md').read_text(), re.M)
    assert newest and newest[1] == VERSION


def test_licence_is_the_official_text():
    text = (ROOT / 'LICENSE').read_bytes()
    assert hashlib.sha256(text).hexdigest() == (
        'cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30')


def tracked(root: Path, *options: str) -> list[str]:
    """What git keeps of a checkout; with options, some of it."""
    return subprocess.run(
        ['git', 'ls-files', '-z', *options], cwd=root, text=True, check=True,
        capture_output=True).stdout.split('\0')[:-1]


def only_true_here(root: Path, work: Path) -> dict[str, str]:
    """Tracked files that another machine's clone could not use: why not.

    A file is one that set-up makes if set-up's own folder, which is never
    tracked, has one at the same place.
    """
    bad = {name: 'is ignored, and tracked all the same'
           for name in tracked(root, '-ci', '--exclude-standard')}
    for name in tracked(root):
        path = root / name
        if path.is_symlink():
            where = Path(os.path.normpath(path.parent / path.readlink()))
            if path.readlink().is_absolute():
                bad[name] = f'is a link into one machine: {path.readlink()}'
            elif not where.is_relative_to(root):
                bad[name] = f'is a link out of the repository: {where}'
        if os.path.lexists(work / name):
            bad.setdefault(name, 'is made by set-up')
    return bad


def test_nothing_is_tracked_that_is_true_on_one_machine_alone():
    assert not only_true_here(ROOT, WORK)


def test_the_search_for_what_is_true_here_alone_finds_it(tmp_path):
    root, work = tmp_path / 'checkout', tmp_path / 'work'
    for folder in (root / 'bin', root / 'docs', work / 'bin'):
        folder.mkdir(parents=True)
    (root / '.gitignore').write_text('*.log\n')
    (root / 'docs' / 'page').symlink_to('../.gitignore')
    (root / 'docs' / 'out').symlink_to('../../work')
    (root / 'bin' / 'reframe').symlink_to(work / 'venv/bin/reframe')
    for path in (root / 'bin' / 'plumb', work / 'bin' / 'plumb',
                 root / 'run.log'):
        path.touch()
    subprocess.run(['git', 'init', '-q'], cwd=root, check=True)
    subprocess.run(['git', 'add', '-f', '.'], cwd=root, check=True)
    found = only_true_here(root, work)
    assert {name: why.split(':')[0] for name, why in found.items()} == {
        'bin/reframe': 'is a link into one machine',
        'bin/plumb': 'is made by set-up',
        'docs/out': 'is a link out of the repository',
        'run.log': 'is ignored, and tracked all the same'}


def test_no_place_of_a_machine_and_no_registry_is_named():
    bad = re.compile(r'files\.pythonhosted|pypi\.org|(?<!\w)/root/|'
                     '/home/[a-z]')
    for name in tracked(ROOT):
        path = ROOT / name
        if name == 'tests/test_contracts.py' or 'golden' in path.parts:
            continue
        assert not bad.search(path.read_text(errors='replace')), name


@pytest.mark.parametrize('tool', [
    ['ruff', 'check', '.'], ['mypy']])
def test_linters_are_clean(tool):
    done = subprocess.run([sys.executable, '-m', *tool], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
