"""config/families.py: what a family.yaml may say, and what is told of one
that is wrong."""
from __future__ import annotations

import re
import subprocess
import sys

import pytest

from config import families
from tests.conftest import ROOT

GOOD = '''\
title: Memory bandwidth
features:
  stream: {means: a STREAM, program: stream, built_with: mpi}
sources: [embedded]
parameters: [x, loop]
metrics:
  triad: {unit: MB/s, better: higher, point: B, means: a triad}
  triad_large: {unit: MB/s, better: higher, point: '', means: a mean}
derived:
  triad_large: {of: triad, from: 1024}
judged:
  - {metric: triad, at: [8, largest], instead: triad_large}
headline: [triad, {metric: wall_time, alone: true}]
limits:
  - {metric: triad, max: 1000000, why: no memory does that}
plots:
  - {kind: curve, metric: triad}
  - {kind: timeline, panels: [{of: server, metric: rate, beside: rate, says: x}]}
parsers: {stream: parser}
about: {stream: what memory gives, 'stream_*': the same}
series: {server: {rate: 1/s}}
bands: {rate: [1, 2]}
bands_when: [{when: {x: 'fast*'}, bands: {rate: [2, 3.5]}}]
parts: {all loops: {feature: stream, without: build it anew}}
'''


def made(folder, text=GOOD, name='stream'):
    path = folder / name / families.FILE
    path.parent.mkdir(parents=True)
    (path.parent / 'parser.py').touch()
    path.write_text(text)
    return path


def message(folder, old, new):
    """The faults of the good file with something else in it."""
    assert old in GOOD
    return families.faults_of_family_file(made(folder, GOOD.replace(old, new)),
                                          families.shared_metrics())


def test_a_good_file_is_read_whole(tmp_path):
    made(tmp_path)
    one = families.load_families(tmp_path, families.shared_metrics())['stream']
    assert one.title == 'Memory bandwidth' and not one.versions_apart
    assert one.features['stream'] == families.Feature(
        'a STREAM', 'stream', built_with='mpi')
    assert one.parts['all loops']['without'] == 'build it anew'
    assert one.headline[0] == {'metric': 'triad'}
    assert one.description_of_program('stream_mpi') == 'the same'
    assert one.description_of_program('other') == ''
    assert one.valid_value_bands('x=1') == {'rate': [1, 2]}
    assert one.valid_value_bands('y=fast') == {'rate': [1, 2]}
    assert one.valid_value_bands('x=faster') == {'rate': [2, 3.5]}


@pytest.mark.parametrize('when, params, selected', [
    ({}, 'program=a', True),
    ({'program': 'a'}, 'program=a placement=x', True),
    ({'program': 'a'}, 'program=ab', False),
    ({'program': ['b', 'a*']}, 'program=ab', True),
    ({'program': 'a', 'nodes': 2}, 'nodes=2 program=a', True),
    ({'program': 'a', 'nodes': 2}, 'nodes=4 program=a', False),
    ({'buffers': ['host', '']}, 'program=a', True),
    ({'buffers': ['host', '']}, 'buffers=cuda program=a', False),
    ([{'program': 'b'}, {'nodes': '[!1]x*'}], 'nodes=2xfull program=a', True),
    ([{'program': 'b'}, {'nodes': '[!1]x*'}], 'nodes=1xfull program=a', False)])
def test_test_cases_that_a_rule_selects(when, params, selected):
    assert families.parameters_match(when, params) is selected


@pytest.mark.parametrize('old, new, words', [
    ('title: Memory bandwidth\n', '', "title is missing; write title: "),
    ('headline: [', 'hedline: [', "13: unknown key 'hedline'; did you mean "
     "'headline'?"),
    ('means: a STREAM', 'meens: a STREAM', "3: features: stream: unknown key "
     "'meens'; did you mean 'means'?"),
    ('built_with: mpi', 'built_with: mpicc', "3: features: stream: "
     "built_with: 'mpicc' is not allowed; did you mean 'mpi'?"),
    ('without: build it anew', 'without: 3', '24: parts: all loops: '
     'without: expected text, got 3'),
    ('[embedded]', '[]', '4: sources: expected one or more of spack, '),
    ('better: higher, point: B', 'better: up, point: B', "7: metrics: "
     "triad: better: 'up' is not allowed; allowed: 'higher', 'lower', 'none'"),
    ('{metric: triad, at', '{metric: triads, at', "12: judged: metric: 'triads' is "
     "not a metric of this file or of config/metrics.yaml; did you mean 'triad'?"),
    ('at: [8', 'at: [eight', "12: judged: at: expected a size in B, smallest "
     "or largest, got 'eight'"),
    ('at: [8, largest]', 'max_tolerance: -1', '12: judged: max_tolerance: '
     'expected a number that is at least 0, got -1'),
    ('max: 1000000, ', '', '15: limits: expected a bound: min, max, max_of'),
    ('why: no', 'when: {lop: 1}, why: no', "15: limits: when: 'lop' is not in "
     "`parameters` of the family; did you mean 'loop'?"),
    ('why: no', 'when: [{x: 1}, {xx: 1}], why: no', "15: limits: when: 'xx' is not in "
     "`parameters` of the family; "),
    ('why: no', 'when: x=1, why: no', '15: limits: when: expected a mapping of '
     'parameters to patterns, such as '),
    ('why: no', 'when: {x: {}}, why: no', '15: limits: when: x: expected a pattern '
     'or a list of patterns, got {}'),
    ('when: {x', 'when: {z', "bands_when: when: 'z' is not in `parameters` of the "
     'family; '),
    ('sources:', 'title: x\nsources:', "4: 'title' occurs twice here "),
    ('title:', '- title:', 'not YAML'),
    (GOOD, '', '1: expected the keys of a family; the first line is title: '),
    (GOOD, 'judged: []\n', "headline is missing; write 'headline: [NAME]'"),
])
def test_what_is_wrong_has_a_line_and_what_is_allowed(tmp_path, old, new,
                                                      words):
    faults = message(tmp_path, old, new)
    assert any(words in fault for fault in faults), faults
    assert all(re.search(r'stream/family\.yaml:\d+: ', fault)
               for fault in faults)
    with pytest.raises(families.FamilyError) as first:
        families.load_families(tmp_path, families.shared_metrics())
    assert str(first.value) == faults[0]


@pytest.mark.parametrize('key, name, advice', [
    ('metrics', 'triad', 'move it to config/metrics.yaml'),
    ('features', 'stream', 'choose another name'),
    ('parsers', 'stream', 'choose another name')])
def test_two_families_do_not_give_one_name_two_meanings(tmp_path, key, name,
                                                        advice):
    made(tmp_path)
    text = 'title: x\nsources: [system]\njudged: []\nheadline: []\n'
    row = {'metrics': '{unit: s, better: lower, point: "", means: x}',
           'features': '{means: another}', 'parsers': 'parser'}[key]
    made(tmp_path, f'{text}{key}:\n  {name}: {row}\n', 'zoo')
    with pytest.raises(families.FamilyError, match=(
            rf'zoo/family\.yaml:6: {key}: {name}: .*stream/family\.yaml '
            'already has this name, and a name has only one meaning; '
            f'{advice}')):
        families.load_families(tmp_path, families.shared_metrics())


def test_the_program_of_a_feature_is_its_familys():
    """A look-aside cache on memcached is started as the stores say."""
    assert families.family_of_program('memcached', 'taobench') == 'keyvalue'
    assert families.family_of_program('tao_server', 'taobench') == 'taobench'
    assert families.family_of_program('osu_latency', 'osu') == 'osu'


def test_reframe_ends_in_one_line_where_a_file_is_wrong(tmp_path):
    made(tmp_path, GOOD.replace('judged:', 'judgd:'))
    done = subprocess.run(
        [sys.executable, '-c', 'import pathlib, config.families as f; '
         f'f.CHECKS = pathlib.Path({str(tmp_path)!r}); import config.common'],
        cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (f"{tmp_path}/stream/family.yaml:11: unknown key "
                           "'judgd'; did you mean 'judged'?\n")


def test_the_loader_needs_neither_reframe_nor_pandas():
    done = subprocess.run(
        [sys.executable, '-c', 'import sys, config.families as f; '
         'f.families(); print({"pandas", "reframe", "numpy", "checks"} '
         '& set(sys.modules))'], cwd=ROOT, capture_output=True, text=True,
        check=True)
    assert done.stdout == 'set()\n'


def test_shared_rows_are_read_as_strictly(tmp_path):
    path = tmp_path / 'metrics.yaml'
    path.write_text('latency: {unit: us, better: lower, point: B}\n')
    with pytest.raises(families.FamilyError, match=(
            r'yaml:1: latency: means is missing')):
        families.read_shared_rows(path, 'metrics')
    path.write_text('- {metric: latency, mx: 1, why: light is slower}\n')
    with pytest.raises(families.FamilyError, match=(
            r"yaml:1: unknown key 'mx'; did you mean 'max'\?")):
        families.read_shared_rows(path, 'limits')


def test_parameters_of_rules_are_parameters_of_checks():
    """A renamed parameter of a check would switch its limits off."""
    names_by_check: dict[str, set[str]] = {}
    for path in ROOT.glob('site-configs/*/cases.txt'):
        for line in path.read_text().splitlines():
            check, *words = line.split() or ['']
            names_by_check.setdefault(check, set()).update(
                word.partition('=')[0] for word in words if '=' in word)
    for family in families.families().values():
        text = ''.join(path.read_text() for path in family.folder.glob('*.py'))
        names = set().union(*(names_by_check.get(check, ()) for check in
                              re.findall(r'^class (\w+)', text, re.MULTILINE)))
        assert set(family.parameters) <= names, family.name
