"""`plumb history` and `plumb export`: what they say is what the table has."""
from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import perflogs_factory as make
import pytest

from config.sessions import judged
from postprocess import debts, export, history, naming
from postprocess.records import read as read_records
from postprocess.records import sql
from postprocess.regressions import verdict

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path) -> Path:
    """Five sessions of two test cases; the last of one fails, and a hostile
    one."""
    root = tmp_path / 'p'
    make.write(root, [
        make.record('latency', 1 + day / 10, size, day=day,
                    repetition=repetition,
                    params=f'program={name}', program=name,
                    reference=1.0, upper=0.2,
                    result='fail' if day == 5 and name == 'a' else 'pass')
        for day in range(1, 6) for size in (8, 1024) for name in 'ab'
        for repetition in (0, 1, 2)] + [
        make.record('completed', 0.0, day=5, repetition=0, program='evil',
                    params='x=<"&\'> \\', guard='transport',
                    reason='"tcp", <used>\u0085]]>')])
    return root


def test_history_shows_each_session(tree, capsys):
    assert history.main(['latency', 'program=a', '--perflogs',
                         str(tree)]) == 0
    text = capsys.readouterr().out
    ident = make.short_id(make.case('a', 1))
    assert f'a (embedded) {ident} @alpha:cpu+openmpi\nOsuPt2pt program=a\n' in text
    assert 'program=b' not in text
    assert history.main(['latency', ident, '--perflogs', str(tree)]) == 0
    assert capsys.readouterr().out == text
    lines = [line.split() for line in text.splitlines()]
    at = next(n for n, line in enumerate(lines) if line[:2] == ['session', '(UTC)'])
    assert lines[at][2:4] == ['8', 'B']
    assert [line[2] for line in lines[at + 1:at + 6]] == [
        '1.1', '1.2', '1.3', '1.4', '1.5!']
    assert lines[at + 6][:3] == ['change', '+20', '%'] and lines[at + 7][0] == 'worse'
    assert f'\nVerdict on {ident}: Failed: ' in text


def test_history_shows_nodes_that_differ(tmp_path, capsys):
    make.write(tmp_path, [make.record('latency', 1.0, 8, day=day, nodes=nodes)
                          for day, nodes in enumerate(['n1', 'n1', 'n[2-3]'], 1)])
    assert history.main(['latency', '--perflogs', str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    at = next(n for n, row in enumerate(rows) if row[:2] == ['session', '(UTC)'])
    assert [row[-1] for row in rows[at:at + 4]] == ['nodes', 'n1', 'n1', 'n[2-3]']


def verdict_lines(folder: Path, case: str, capsys) -> list[str]:
    """What `plumb history` reports of the verdict on a test case."""
    assert history.main(['latency', case, '--perflogs', str(folder)]) == 0
    return [line for line in capsys.readouterr().out.splitlines()
            if line.startswith('Verdict on ')]


def test_history_ends_with_the_verdict_on_its_test_cases(tmp_path, capsys):
    make.write(tmp_path, make.slow_node())
    assert verdict.main(['--perflogs', str(tmp_path), '--json', '-']) == 1
    [event] = [one for one in json.loads(capsys.readouterr().out)['events']
               if one['kind'] == 'regression']
    [line] = verdict_lines(tmp_path, 'n=2 @', capsys)
    assert f': Regressed: {event["title"]}, since {event["since"]} ' in line
    [line] = verdict_lines(tmp_path, 'n=3 @', capsys)
    assert line.endswith(': no regression')


def test_history_keeps_the_verdict_until_something_changes(
        tmp_path, capsys, monkeypatch):
    """Decisions and records are such changes."""
    make.write(tmp_path, make.slow_node())
    before = verdict_lines(tmp_path, 'n=2 @', capsys)
    compute = history._verdict_by_test_case
    monkeypatch.setattr(history, '_verdict_by_test_case',
                        lambda _: pytest.fail('it is computed again'))
    assert verdict_lines(tmp_path, 'n=2 @', capsys) == before
    monkeypatch.setattr(history, '_verdict_by_test_case', compute)
    assert verdict.main(['--perflogs', str(tmp_path), '--json', '-']) == 1
    [ident] = [one['id'] for one in json.loads(capsys.readouterr().out)['events']
               if one['kind'] == 'regression']
    assert verdict.main(['mute', ident, '--until', '2999-01-01', '--reason', 'x',
                         '--perflogs', str(tmp_path)]) == 0
    capsys.readouterr()
    [line] = verdict_lines(tmp_path, 'n=2 @', capsys)
    assert ': Muted: ' in line
    make.write(tmp_path, [make.record(
        'completed', 0.0, day=41, params='n=2', check='Check2', program='p2',
        partition='p0', guard='transport', reason='tcp')])
    assert any(': Failed: ' in line
               for line in verdict_lines(tmp_path, 'n=2 @', capsys))


def test_history_of_many_test_cases_lists_them(tree, capsys, monkeypatch):
    """The last session is compared with the median of those before it."""
    monkeypatch.setattr(history, 'TABLES', 1)
    assert history.main(['latency', '--perflogs', str(tree)]) == 0
    head, first, second, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ['change', 'points', 'test', 'case']
    assert first.split()[:3] == ['+20', '%', '2']
    # Last, where the eye is.
    assert second.split() == [
        'fail', '+20', '%', '2', 'a', '(embedded)',
        make.short_id(make.case('a', 1)), '@alpha:cpu+openmpi']


def test_history_as_data_is_the_table(tree, capsys):
    assert history.main(['latency', '--json', '-', '--perflogs',
                         str(tree)]) == 0
    rows = json.loads(capsys.readouterr().out)
    frame = read_records(tree)
    frame = frame[
        naming.mask_preferring_median_to_repetitions(frame) & (frame['metric']
                                                               == 'latency')]
    assert sorted((r['session'], r['params'], r['point'], r['value'])
                  for r in rows) == sorted(zip(
                      frame['session'], frame['params'], map(
                          judged.point_with_unit, frame['point']), frame['value'],
                      strict=True))
    assert history.main(['latency', '--csv', '-', '--last', '2', '--perflogs',
                         str(tree)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 * 4


@pytest.mark.parametrize(('words', 'why'), [
    (['latencyy'], "did you mean 'latency'?"),
    (['latency', 'nope'], "matches 'nope'"),
    (['latency', '--perflogs', '/nowhere'], 'is not a folder'),
])
def test_history_of_nothing(tree, capsys, words, why):
    given = [] if '--perflogs' in words else ['--perflogs', str(tree)]
    assert history.main([*words, *given]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert why in line


def test_history_never_mixes_settings_or_sources(tmp_path, capsys):
    """Test cases that differ in a setting (-S), and sources of one test case."""
    make.write(tmp_path, [
        *make.latencies([1.0, 1.0], (8,), settings='max_size=1000'),
        *make.latencies([5.0, 5.0], (8,)),
        *make.latencies([9.0, 9.0], (8,), first=2, source='spack')])
    words = ['latency', '--json', '-', '--perflogs', str(tmp_path)]
    assert history.main(words) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row['settings'], row['source'], row['value']) for row in rows} == {
        ('max_size=1000', 'embedded', 1.0), ('', 'embedded', 5.0), ('', 'spack', 9.0)}
    ident = make.short_id(make.record(settings='max_size=1000'))
    assert history.main(['latency', ident, *words[1:]]) == 0
    assert {row['test_case'] for row in json.loads(
        capsys.readouterr().out)} == {ident}
    assert history.main(['latency', '--perflogs', str(tmp_path)]) == 0
    assert capsys.readouterr().out.count('lower is better') == 3


def test_history_does_without_pandas(tree):
    """To import numpy or pandas takes longer than the answer may."""
    done = subprocess.run(
        [sys.executable, '-c', 'import sys\n'
         'from postprocess import history\n'
         'assert history.main(sys.argv[1:]) == 0\n'
         'assert not {"pandas", "numpy"} & {*sys.modules}',
         'latency', '--perflogs', str(tree)], cwd=ROOT, capture_output=True,
        text=True, check=True)
    assert 'OsuPt2pt program=b' in done.stdout


def test_parquet_has_all_records(tree, tmp_path):
    file = tmp_path / 'all.parquet'
    assert export.main(['--perflogs', str(tree), '--parquet', str(file)]) == 0
    frame = read_records(tree)
    rows = duckdb.sql('SELECT value, point, metric, emulated, guard FROM '
                      f"read_parquet('{file}')").fetchall()
    assert [r[0] for r in rows] == frame['value'].tolist()
    assert {r[1] for r in rows} == {8, 1024, None}
    assert {r[3] for r in rows} == {False}
    assert [r[4] or '' for r in rows] == frame['guard'].tolist()


def test_no_cell_of_a_csv_file_is_a_formula(tmp_path):
    hostile = ['=HYPERLINK("http://x")', '+cmd|x', '-cmd|x', '@SUM(A1)',
               '-1+cmd|x']
    make.write(tmp_path / 'p', [
        make.record(value=-1.5, stack='-', program=text, params=f'n={n}')
        for n, text in enumerate([*hostile, '-1.5', 'a=b'])])
    file = tmp_path / 'all.csv'
    assert sql.main(['--perflogs', str(tmp_path / 'p'), '--csv', str(file),
                     'SELECT *, 1 AS "=1+1" FROM results ORDER BY params']) == 0
    assert "'=1+1" in file.read_text().splitlines()[0].split(',')
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row['program'] for row in rows] == [
        *(f"'{text}" for text in hostile), '-1.5', 'a=b']
    assert {row['value'] for row in rows} == {'-1.5'}
    assert {row['stack'] for row in rows} == {'-'}


def test_openmetrics_can_be_parsed(tree, tmp_path):
    parser = pytest.importorskip('prometheus_client.openmetrics.parser')
    file = tmp_path / 'plumb.prom'
    assert export.main(['--perflogs', str(tree), '--openmetrics',
                        str(file)]) == 0
    families = {f.name: f for f in parser.text_string_to_metric_families(
        file.read_text())}
    assert sorted(families) == ['plumb_case_failed',
                                'plumb_case_run_seconds', 'plumb_latency']
    failed = {s.labels['params']: s.value
              for s in families['plumb_case_failed'].samples}
    assert failed == {'program=a': 1, 'program=b': 0,
                      'x=<"&\'> \\': 1}
    assert {(s.labels['params'], s.labels['point']): s.value for s in
            families['plumb_latency'].samples} == {
        (f'program={name}', f'{size} B'): 1.5 for name in 'ab'
        for size in (8, 1024)}


def test_openmetrics_has_what_is_missing_or_open(tmp_path):
    """As the verdict has it, with the values of the session that measured it last."""
    make.write(tmp_path, [
        *(make.case('a', day, result, nodes=node, mode='nightly')
          for day, (node, result) in enumerate([('n7', 'exit_code'), ('n1', 'pass')])),
        make.case('b', 0, mode='nightly'), make.case('c', 0, mode='nightly'),
        make.case('c', 1, mode='nightly')])
    lines = [*export.openmetrics_lines(debts.read(tmp_path).frame)]
    file = tmp_path / 'plumb.prom'
    assert export.main(['--perflogs', str(tmp_path), '--openmetrics', str(file)]) == 0
    assert file.read_text().splitlines() == lines
    values = {(name, program, copy): float(value) for line in lines for name, program,
             copy, value in re.findall(
                 r'(\w+){.*program="(\w)".*,copy="([^"]*)".* (\S+)$', line)}
    assert {key[1:]: value for key, value in values.items()
            if key[0] == 'plumb_case_failed'} == {
        ('a', ''): 0, ('a', 'nodes=n7'): 1, ('b', ''): 1, ('c', ''): 0}
    assert values['plumb_latency', 'b', ''] == 1
    began = values['plumb_case_run_seconds', 'b', '']
    assert began == values['plumb_case_run_seconds', 'c', ''] - 24 * 3600


def test_export_errors(tree, tmp_path, capsys):
    with pytest.raises(SystemExit) as usage:
        export.main(['--perflogs', str(tree)])
    assert usage.value.code == 2
    capsys.readouterr()
    (tmp_path / 'empty').mkdir()
    for words, why in (
            (['--perflogs', str(tmp_path / 'empty')], 'no records'),
            (['--perflogs', str(tmp_path / 'gone')], 'does not exist')):
        assert export.main([*words, '--parquet', str(tmp_path / 'x')]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert why in line
    for form in ('openmetrics', 'parquet'):
        assert export.main(['--perflogs', str(tree), f'--{form}', str(
            tmp_path / 'no' / 'x')]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert 'cannot be written' in line
    file = next(tree.rglob('*.json'))
    file.write_text('{')
    assert export.main(['--perflogs', str(tree), '--parquet',
                        str(tmp_path / 'x')]) == 1
    assert f'{file}:' in capsys.readouterr().err
    assert not list(tmp_path.glob('.*'))


def test_history_is_at_most_100_columns_wide(tmp_path, capsys):
    """Whatever the number of sizes."""
    make.write(tmp_path, make.latencies(
        [1234.567, 1300.0], [1 << n for n in range(24)]))
    assert history.main(['latency', '--perflogs', str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 80 < max(map(len, lines)) <= 100
