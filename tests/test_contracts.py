"""Rules of the house that a reader cannot see at a glance."""
from __future__ import annotations

import ast
import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from checks.core import features
from cli.setup.venv import WORK
from config import families
from config.records import metrics
from config.version import VERSION
from tests.conftest import ROOT, git

CHECKS = sorted((ROOT / 'checks').rglob('*.py'))


def site_names() -> tuple[set[str], set[str]]:
    """Names of the systems of all sites, and of their partitions."""
    systems, partitions = set(), set()
    for path in ROOT.glob('site-configs/*/system.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict):
                keys = {k.value: v for k, v in zip(node.keys, node.values, strict=True)
                        if isinstance(k, ast.Constant)}
                if isinstance(name := keys.get('name'), ast.Constant):
                    systems |= {name.value} if 'hostnames' in keys else set()
                    partitions |= {name.value} if 'scheduler' in keys else set()
    return systems, partitions


def split_words(text: str) -> set[str]:
    return set(re.split(r'[\s:+%|,]+', text))


def places_named_in(path: Path, systems: set[str], partitions: set[str]) -> set[str]:
    """The systems and partitions of sites that a module names.

    A system counts in any text. A partition may be called like a word (cpu,
    gpu), so it counts only in `SYSTEM:PARTITION`, and where a module selects
    systems or partitions: `valid_systems = ...`, `partition.name == ...`.
    """
    words = {word for text in texts_of(path) for word in split_words(text)}
    selected = {name for text in texts_of(path)
                for name in re.findall(r'(?<!\S)[\w*-]+:([\w-]+)(?!\S)', text)}
    for node in ast.walk(ast.parse(path.read_text())):
        if (isinstance(node, (ast.Assign, ast.keyword, ast.Compare)) and re.search(
                r'valid_systems|(partition|system)\.(full)?name', ast.unparse(node))):
            selected |= {word for one in ast.walk(node)
                         if isinstance(one, ast.Constant) and isinstance(one.value, str)
                         for word in split_words(one.value)}
    return words & systems | selected & partitions


def texts_of(path: Path) -> list[str]:
    """The string constants of a file, docstrings left out."""
    tree = ast.parse(path.read_text())
    docs = {id(n.body[0].value) for n in ast.walk(tree)
            if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and n.body and isinstance(n.body[0], ast.Expr)}
    return [node.value for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            and id(node) not in docs]


def test_checks_name_no_place():
    systems, partitions = site_names()
    assert 'local' in systems and 'thishost' in partitions
    for path in CHECKS:
        # A site may call its partitions like the words of our checks.
        assert not places_named_in(path, systems, partitions | {'cpu', 'gpu'}), path


@pytest.mark.parametrize('source, names', [
    ("valid_systems = ['local:thishost']", {'local', 'thishost'}),
    ("if self.current_partition.fullname in ('a:gpu', 'b'): pass", {'gpu'}),
    ("valid_systems = ['+gpu_nvidia']\nkind = 'gpu'\ntext = 'a gpu: cpu'", set()),
])
def test_the_search_for_places_finds_them(tmp_path, source, names):
    path = tmp_path / 'check.py'
    path.write_text(source + '\n')
    assert places_named_in(path, {'local'}, {'thishost', 'gpu', 'cpu'}) == names


def test_postprocess_and_checks_do_not_know_each_other():
    for folder, others in (('checks', {'postprocess'}),
                           ('postprocess', {'checks', 'reframe'})):
        for path in (ROOT / folder).rglob('*.py'):
            for node in ast.walk(ast.parse(path.read_text())):
                names = ([a.name for a in node.names]
                         if isinstance(node, ast.Import)
                         else [node.module or '']
                         if isinstance(node, ast.ImportFrom) else [])
                assert not others & {n.split('.')[0] for n in names}, path


def test_the_docs_have_all_features_and_extras():
    text = (ROOT / 'docs' / 'reference' / 'site-files.md').read_text()
    own = {name: feature.means for family in families.families().values()
           for name, feature in family.features.items()}
    for title, names in (
            ('features of a partition', features.PARTITION_FEATURES),
            ('features of an environment', [*features.ENVIRON_FEATURES, *own]),
            ('extras of a partition', features.PARTITION_EXTRAS),
            ('extras of an environment', features.ENVIRON_EXTRAS)):
        rows = re.match(r'(?:\| `.*\n)*', text.partition(f'| **{title}** | |\n')[2])[0]
        table = dict(re.findall(r'^\| `([^`]+)` \| (.+) \|$', rows, re.M))
        assert {*table} == {*names}, title
        assert all(table[name] == own[name] for name in names if name in own)


def test_an_unknown_feature_of_a_check_suggests_the_nearest():
    with pytest.raises(features.GlossaryError, match='gpu_nvidia'):
        features.check_feature_names(['+gpu_amd +gpu_nvida'], [], 'Check')


@pytest.mark.parametrize('extras, words', [
    ({}, "feature 'redis': add the family 'keyvalue'"),
    ({'programs': {'keyvlue': {'source': 'system'}}}, "'keyvalue'"),
    ({'programs': {'keyvalue': {'source': 'spak'}}}, "'spack'"),
    ({'programs': {'keyvalue': {}}}, 'expected a mapping with the key'),
    ({'programs': {'keyvalue': {'source': 'spack'}}}, 'add the extra `stack`'),
    ({'programs': {'keyvalue': {'source': 'system'}},
      'transport': {'name': 'x', 'env': {}}}, 'evidence is missing'),
])
def test_typos_in_what_an_environment_says_of_its_programs(extras, words):
    site = {'systems': [], 'environments': [
        {'name': 'e', 'features': ['redis'], 'extras': extras}]}
    with pytest.raises(features.GlossaryError, match=words):
        features.check_site_features(site, 'system.py')


@pytest.mark.parametrize('name', families.families())
def test_a_family_names_what_it_has(name):
    family, shared = families.families()[name], families.shared_metrics()
    assert not {*family.metrics} & {*shared}
    known, in_series = {**shared, **family.metrics}, {
        metric for units in family.series.values() for metric in units}
    plots = [metric for row in family.plots for given in [row.get('metric', [])]
             for metric in (given if isinstance(given, list) else [given])]
    assert {*plots, *(row['metric'] for row in family.headline),
            *(row['of'] for row in family.derived.values()),
            *family.derived} <= {*known}
    assert {row['instead'] for row in family.judged if 'instead' in row} <= {
        *family.derived}
    for mean, row in family.derived.items():
        curve, mean = known[row['of']], known[mean]
        assert (curve['point'], mean['point']) == ('B', '')
        assert (curve['unit'], curve['better']) == (mean['unit'], mean['better'])
    for bands in (family.bands, *(row['bands'] for row in family.bands_when)):
        assert {*bands} <= in_series
        assert all(low <= high for low, high in bands.values())
    assert not [*families.faults_of_panels({
        'plots': family.plots, 'series': family.series})]
    for part in family.parts.values():
        assert any(re.fullmatch(feature if row.pattern else re.escape(feature),
                                part['feature'])
                   for feature, row in family.features.items())
    for module in family.parsers.values():
        assert (family.folder / f'{module}.py').is_file()


def test_metrics_table_is_well_formed():
    for row in metrics.metrics_by_name().values():
        assert row.better in ('higher', 'lower', 'none')
        assert row.point in ('', 'B') and row.unit and row.means


def test_perflog_columns_are_unique_and_documented():
    data = yaml.safe_load((ROOT / 'config' / 'perflog.yaml').read_text())
    assert all(column['means'] for column in data['columns'].values())
    names = [column['reframe'] for column in data['columns'].values()]
    assert len(names) == len(set(names))


def test_one_version_told_by_the_command_and_the_changelog():
    done = subprocess.run([ROOT / 'plumb', '--version'], text=True,
                          capture_output=True)
    assert done.stdout == f'plumb {VERSION}\n', done.stderr
    newest = re.search(r'^## \[(\d\S*)\]', (
        ROOT / 'CHANGELOG.md').read_text(), re.M)
    assert newest and newest[1] == VERSION


def tracked(root: Path, *options: str) -> list[str]:
    """What git keeps of a checkout; with options, some of it."""
    return git('ls-files', '-z', *options, folder=root).split('\0')[:-1]


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


def test_no_place_of_a_machine_and_no_registry_is_named():
    bad = re.compile(r'files\.pythonhosted|pypi\.org|(?<!\w)/root/|'
                     '/home/[a-z]')
    for name in tracked(ROOT):
        path = ROOT / name
        if name == 'tests/test_contracts.py' or 'golden' in path.parts:
            continue
        assert not bad.search(path.read_text(errors='replace')), name


# A family is a folder -------------------------------------------------------

#: Code that names a family or a program of one, and why.
NAMED = {
    'postprocess/report/plot.py': {'osu_barrier': 'the example of its --help'},
    'config/variables.py': dict.fromkeys(
        ('libtorch', 'optcast', 'redis', 'smartredis', 'tao_bench_server'),
        'the one table of variables'),
    'cli/demo/live.py': {'osu_latency': 'a fault of its ranks is shown',
                         'valkey': 'a fault of its server is shown'},
}
#: Where no family's programs and features are named either.
COMMON = ('cli', 'config', 'postprocess', 'checks/core')


def below_root(node: ast.AST) -> Path | None:
    """The path that an expression ROOT / 'a' / 'b' means."""
    if isinstance(node, ast.Name) and node.id == 'ROOT':
        return ROOT
    if (isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant)
            and (above := below_root(node.left))):
        return above / node.right.value
    return None


def test_what_a_bench_names_in_the_repository_is_there():
    lost = [f'{path.name}:{node.lineno}: {result}'
            for path in sorted((ROOT / 'bench').glob('*.py'))
            for node in ast.walk(ast.parse(path.read_text()))
            if (result := below_root(node)) and not result.exists()
            and not result.is_relative_to(ROOT / '.plumbline')]
    assert not lost


def test_links_between_the_docs_lead_somewhere():
    lost = []
    for name in tracked(ROOT, '*.md'):
        path = ROOT / name
        if 'templates' in path.parts:       # its links are of the copy
            continue
        for link in re.findall(r'\]\(([^)#\s]+)(?:#[^)]*)?\)',
                               path.read_text()):
            if '://' not in link and not (path.parent / link).exists():
                lost.append(f'{name}: {link}')
    assert not lost


def families_named_in(path: Path) -> set[str]:
    """The families that a file knows by name: in what it imports, and in its
    texts, but for examples of command lines.

    Only a family that sites offer by a feature: no other is called by name
    anywhere, and may be called like a word (stream, copy).
    """
    words = said_in(path)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            words |= {*(node.module or '').split('.'),
                      *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Import):
            words |= {word for alias in node.names
                      for word in alias.name.split('.')}
    return words & {name for name, family in families.families().items()
                    if family.features}


def said_in(path: Path) -> set[str]:
    """Words of a file's texts, but for examples of command lines."""
    return {word for text in texts_of(path) for line in text.splitlines()
            if './plumb ' not in line for word in re.split(r'\W+', line)}


def parts_named_in(path: Path) -> set[str]:
    """Features and programs of families that a file's texts name.

    A program that is called like its family, which has no feature, may be a
    word (stream, copy).
    """
    names, patterns = set(), []
    for family in families.families().values():
        names |= {*family.programs, *family.about, *(
            one.program for one in family.features.values() if one.program)}
        for name, feature in family.features.items():
            (patterns.append if feature.pattern else names.add)(name)
        if not family.features:
            names.discard(family.name)
    words = said_in(path)
    return words & names | {word for word in words for pattern in patterns
                            if re.fullmatch(pattern, word)}


def test_no_code_but_its_own_knows_a_family_by_name():
    bad = {}
    for folder in ('checks', 'cli', 'config', 'postprocess'):
        for path in sorted((ROOT / folder).rglob('*.py')):
            name = str(path.relative_to(ROOT))
            own = path.relative_to(ROOT).parts[1]
            if folder == 'checks' and own in families.families():
                # The library that a program uses may be called like a family.
                result = families_named_in(path) - {own, 'nccl'}
            else:
                result = families_named_in(path)
            if name.startswith(COMMON):
                result |= parts_named_in(path)
            result -= NAMED.get(name, {}).keys()
            if result:
                bad[name] = result
    assert not bad, ('ask config.families; what it does not say yet is a key '
                     'of family.yaml')


def test_the_search_for_families_finds_one(tmp_path):
    bad = tmp_path / 'bad.py'
    bad.write_text('"""About osu."""\nfrom checks.keyvalue import x\n'
                   "A = 'checks/osu/src'\nB = './plumb parse taobench F'\n")
    assert families_named_in(bad) == {'keyvalue', 'osu'}
    bad.write_text("SERVER = ('redis-server', 'a/memtier_benchmark')\n"
                   "if 'osu_alltoall' in features or 'store_bench' in x: y\n"
                   "'all_reduce_perf', 'tensorload', './plumb run -n valkey'"
                   "\n'a program', 'nothing of it'\n")
    assert parts_named_in(bad) == {
        'redis', 'memtier_benchmark', 'osu_alltoall', 'store_bench',
        'all_reduce_perf', 'tensorload'}


def lacks(root: Path, name: str) -> list[str]:
    """What a family lacks, a line each: where, and what to write there."""
    folder, tests = root / 'checks' / name, root / 'tests' / name
    output = families.faults_of_family_file(
        folder / families.FILE, families.shared_metrics()
    )
    if not (folder / 'README.md').is_file():
        output.append(f'checks/{name}/README.md: write what it measures, what '
                      'its values tell an operator, what usually breaks it')
    code = sorted(folder.glob('*.py'))
    if not code:
        return output
    if not list(tests.glob('test_*.py')):
        output.append(
            f'tests/{name}/test_{name}.py: write tests of its parser '
            'and checks'
        )
    for path in code:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name[0] != '_' \
                    and not ast.get_docstring(node):
                output.append(f'checks/{name}/{path.name}:{node.lineno}: '
                              f'class {node.name}: write under it what it '
                              'measures: """..."""')
    data = yaml.safe_load((folder / families.FILE).read_text()) or {}
    parsers = data.get('parsers') or {}
    if name not in parsers:
        output.append(f'checks/{name}/{families.FILE}: parsers: write '
                      f'parsers: {{{name}: parser}}, and checks/{name}/'
                      'parser.py with parse(text)')
    if not any(p.is_file() for p in (tests / 'golden').rglob('*')):
        output.append(f'tests/{name}/golden/: put what its programs really '
                      'printed there; tests/checks/test_parser_mutations.py '
                      'damages copies of it')
    settings = (root / 'pyproject.toml').read_text()
    typed = re.search(r'^files = \[(.*?)\]', settings, re.M | re.S)
    globs = re.findall('"(.*?)"', typed[1] if typed else '')
    for module in sorted(set(parsers.values())):
        path = f'checks/{name}/{module}.py'
        if not any(fnmatch.fnmatch(path, glob) or path.startswith(f'{glob}/')
                   for glob in globs):
            output.append(f'pyproject.toml: [tool.mypy] files: write "{path}"')
    return output


@pytest.mark.parametrize('name', sorted(
    path.parent.name for path in families.CHECKS.glob('*/family.yaml')))
def test_a_family_lacks_nothing(name):
    output = lacks(ROOT, name)
    assert not output, '\n'.join(output)


def test_every_family_that_is_parsed_has_damaged_copies():
    from tests.checks import test_parser_mutations as mutations
    folders = {mutations.family_of(path) for path in mutations.FILES}
    lost = {name for name, family in families.families().items()
            if family.parsers} - folders
    assert not lost, 'tests/<family>/golden/: no file that is damaged'


def test_no_family_has_a_line_in_the_settings_of_the_tools():
    """mypy reads checks of families like all else: what ReFrame's metaclass
    makes of a class is told to it once, in checks/core/base.py."""
    words = set(re.split(r'\W+', (ROOT / 'pyproject.toml').read_text()))
    assert not words & families.families().keys()
    assert 'overrides' not in words and 'mypy' in words


def test_the_linter_is_content():
    done = subprocess.run([sys.executable, '-m', 'ruff', 'check', '.'],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason='types are checked with the packages '
    'that are locked for Python 3.11; others have other types')
def test_types_are_right():
    done = subprocess.run([sys.executable, '-m', 'mypy'], cwd=ROOT, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
