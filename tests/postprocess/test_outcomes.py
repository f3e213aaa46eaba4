"""Outcomes: one source for page, table and exit codes; plans; stale test
cases."""
from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from perflogs_factory import record, write

from cli.session import account
from postprocess import outcomes, perflogs, results
from postprocess.perflogs import plans
from postprocess.report import build as report
from postprocess.report import sections


def run_of(day: int) -> str:
    return record(day=day)['run']


def plan(root: Path, day: int, programs: list[str]) -> Path:
    """The plan of a day's session, as config/sessions/runner.py writes it."""
    example = record(day=day)
    cases = [{**{c: example[c] for c in (
        'partition', 'environ', 'family', 'check', 'emulated', 'source',
        'version', 'stack')}, 'program': name, 'params': f'program={name}',
        'case': f'c{name}', 'name': f'OsuPt2pt %{name}'}
        for name in programs]
    path = root / 'alpha' / 'sessions' / f"{example['run']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({
        'plan': 1, **{c: example[c] for c in (
            'run', 'time', 'system', 'suite', 'commit', 'reframe')},
        'cases': cases}))
    return path


def case(name: str, day: int, result: str = 'no_reference', **more) -> dict:
    return record(program=name, params=f'program={name}', case=f'c{name}',
                  day=day, result=result, **more)


def refused(name: str, day: int, guard: str) -> dict:
    return case(name, day, 'fail', metric='completed', value=0.0, repetition=0,
                guard=guard)


def page(root: Path, tmp_path: Path) -> tuple[int, str, str]:
    """Exit code of the report, its line, the page."""
    import contextlib
    import io
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = report.main(['--perflogs', str(root), '--output',
                            str(tmp_path / 'page')])
    text = tmp_path / 'page' / 'index.html'
    return code, out.getvalue(), text.read_text() if text.exists() else ''


def test_what_a_killed_session_owes_is_a_record(tmp_path):
    root = tmp_path / 'logs'
    write(root, [case('a', 1), case('b', 1), case('a', 2)])
    path = plan(root, 2, ['a', 'b'])
    frame = perflogs.read(root)
    row, = frame[frame['guard'] == 'missing'].itertuples()
    assert (row.program, row.metric, row.value, row.result) == (
        'b', 'completed', 0.0, 'fail')
    assert row.file == str(path)
    assert row.suite == '0.1.0'
    code, line, text = page(root, tmp_path)
    assert code == 1 and '1 not run' in line
    assert 'planned, but the session ended before it ran' in text


def test_a_killed_session_owes_no_test_case_that_no_longer_exists(tmp_path):
    """After a check was renamed, plans of earlier sessions have its old name."""
    write(tmp_path, [case('new', 3), case('new', 4)])
    plan(tmp_path, 1, ['old', 'older', 'new'])
    assert set(perflogs.read(tmp_path)['guard']) == {'', 'missing'}
    # It has fewer, so the others may still exist.
    plan(tmp_path, 3, ['new'])
    missing = perflogs.read(tmp_path).query('guard == "missing"')
    assert set(missing['program']) == {'old', 'older', 'new'}
    write(tmp_path, [case('newer', 4), case('newest', 4)])
    plan(tmp_path, 4, ['new', 'newer', 'newest'])
    missing = perflogs.read(tmp_path).query('guard == "missing"')
    assert list(missing['program']) == ['new'] and set(missing['run']) == {run_of(1)}


def test_a_test_case_with_damaged_records_alone_has_run(tmp_path):
    """After a metric was renamed, its earlier records are damaged."""
    write(tmp_path, [case('a', 1, metric='renamed'), case('b', 1)])
    plan(tmp_path, 1, ['a', 'b'])
    frame, faults = perflogs.read(tmp_path, 'collect')
    assert [*frame['program']] == ['b'] and 'not a metric' in str(faults[0])


def test_a_session_that_lives_owes_nothing(tmp_path):
    write(tmp_path, [case('a', 1)])
    path = plan(tmp_path, 2, ['a', 'b'])
    # The lock is one process's: another one holds it.
    child = subprocess.Popen(
        [sys.executable, '-c', 'import fcntl, sys; f = open(sys.argv[1], '
         '"r+"); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); '
         'sys.stdin.read()', str(path)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE)
    assert child.stdout and child.stdin
    child.stdout.readline()
    assert set(perflogs.read(tmp_path)['guard']) == {''}
    child.stdin.close()
    child.wait()
    assert list(perflogs.read(tmp_path)['guard']) == ['', 'missing',
                                                      'missing']


@pytest.mark.parametrize('text', ['', '{', '[]', '{"plan": 2}',
                                  '{"plan": 1, "cases": [{}]}'])
def test_a_damaged_plan_is_told(tmp_path, text):
    write(tmp_path, [case('a', 1)])
    path = plan(tmp_path, 1, ['a'])
    path.write_text(text)
    frame, faults = perflogs.read(tmp_path, 'collect')
    assert len(frame) == 1 and len(faults) == 1
    assert faults[0].file == str(path)


def test_one_failure_of_several_rounds_fails_the_case(tmp_path):
    """--reruns, --duration, --max-retries: once is enough."""
    write(tmp_path, [refused('a', 1, 'ranks'), case('a', 1, 'pass')])
    frame = perflogs.read(tmp_path)
    [(key, one)] = results.results_of_session(frame, run_of(1)).items()
    assert (key, one.result, one.guard) == (
        ('cpu', 'openmpi', 'ca'), 'fail', 'ranks')


def test_each_copy_of_a_test_case_has_a_result(tmp_path):
    """--distribute and --repeat make copies that differ in their hash alone."""
    write(tmp_path, [case('one', 1) | {'case': 'c1'},
                     refused('one', 1, 'job_state') | {'case': 'c2', 'nodes': 'n2'},
                     case('two', 1), case('one', 2) | {'case': 'c1', 'nodes': 'n3'}])
    frame, _ = perflogs.read(str(tmp_path), on_error='collect')
    first = results.results_of_session(frame, run_of(1))
    assert {key[2]: (one.result, *one.nodes) for key, one in first.items()} == {
        'c1': ('no_reference', 'n1'), 'c2': ('fail', 'n2'),
        'ctwo': ('no_reference', 'n1')}
    assert results.results_of_session(frame, 'none') == {}


def test_page_table_and_exit_codes_agree(tmp_path, monkeypatch):
    """Whatever a session did: made-up ones after a good one."""
    # What is drawn is not looked at here.
    monkeypatch.setattr(sections, 'draw_plot', lambda *_: {
        'svg': '', 'stem': 'x', 'note': '', 'png': False})
    draw = random.Random(7)
    ends = ['pass', 'fail', 'no_reference', 'xfail', 'xpass', 'inconclusive',
            'build', 'setup', 'cancelled', 'nothing']
    seen: set[str] = set()
    shown: set[str] = set()
    # A page takes its time: in five of them are two test cases of each end.
    pages_of = [ends[start:start + 4] for start in (0, 4, 8, 2, 6)]
    pages_of[2] += ends[:2]
    for number in range(60):
        root = tmp_path / str(number)
        paged = number < len(pages_of)
        names = [f'p{n}' for n in range(
            4 if paged else draw.randint(1, 4))]
        write(root, [case(name, 1, 'pass') for name in names])
        plan(root, 2, names)
        ended = (dict(zip(names, pages_of[number], strict=True)) if paged
                 else {name: draw.choice(ends) for name in names})
        rows = [refused(name, 2, end) if end in ('build', 'setup',
                                                 'cancelled')
                else case(name, 2, end)
                for name, end in ended.items() if end != 'nothing']
        write(root, rows)
        path = account.find_plan(str(root), run_of(2))
        rows = account.rows_by_test_case(path, perflogs.read(root), []).values()
        failed = {one.name for one in rows if one.result in results.FAILED}
        assert {one.name for one in rows if one.result == 'not_run'} == {
            f'{name} /c{name}' for name, end in ended.items()
            if end in ('build', 'cancelled', 'nothing')}
        assert failed == {f'{name} /c{name}' for name, end in ended.items()
                          if end not in ('pass', 'no_reference', 'xfail',
                                         'inconclusive')}
        seen |= set(ended.values())
        if paged:
            shown |= set(ended.values())
            code, line, text = page(root, tmp_path / str(number))
            assert code == bool(failed)
            output = sum(int(number) for number in re.findall(
                r'(\d+) (?:failed|not run)', line))
            gone = int((re.search(r'<b>(\d+)</b> known faults? fixed', text)
                        or [0, 0])[1])
            assert output + gone == len(failed), (ended, line)
    assert seen == shown == set(ends)


def left_out(sessions: list[str]) -> list[str]:
    """Stale test cases of made-up sessions; a letter is a test case."""
    frame = [case(name, day) for day, names in enumerate(sessions)
             for name in names]
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), frame)
        return sorted(outcomes.stale_test_cases(perflogs.read(folder))['program'])


@pytest.mark.parametrize('sessions, expected', [
    (['abcd'] * 4, []),
    (['abcd', 'abc', 'abc'], []),                # two are too few
    (['abcd', 'abc', 'abc', 'abc'], ['d']),
    (['abcd', 'abc', 'abc', 'abc', 'd'], []),    # it ran again
    (['abcd', 'a', 'a', 'a', 'a'], []),          # -n a is no neighbourhood
    (['abcd', 'a', 'abc', 'a', 'bc', 'a', 'ab'], ['d']),
    (['abcd', 'wxyz', 'wxyz', 'wxyz'], []),      # another mode
    (['abcd', 'd', 'abc', 'abc', 'abc'], ['d']),
    (['d', 'abc', 'abc', 'abc'], []),            # it never had neighbours
])
def test_stale_cases(sessions, expected):
    assert left_out(sessions) == expected


def test_a_session_that_left_cases_out_on_purpose_makes_none_stale(tmp_path):
    root = tmp_path / 'logs'
    write(root, [case(name, day) for day, names in enumerate(
        ['abcd', 'abc', 'abc', 'abc']) for name in names])
    assert 'stale: 1' in page(root, tmp_path / 'before')[1]
    for day in (1, 2, 3):
        path = plan(root, day, list('abc'))
        path.write_text(path.read_text().replace(
            '"plan": 1', '"plan": 1, "partial": true'))
    runs = {run_of(day) for day in (1, 2, 3)}
    assert set(plans.partial_sessions([root])) == runs
    assert set(plans.partial_sessions([root / 'alpha'])) == runs
    assert 'stale' not in page(root, tmp_path / 'after')[1]


def test_a_stale_case_is_shown_and_fails_nothing(tmp_path):
    root = tmp_path / 'logs'
    write(root, [case(name, day) for day in range(4) for name in 'abc'
                 if (name, day > 0) != ('c', True)])
    code, line, text = page(root, tmp_path)
    assert code == 0 and 'stale: 1' in line
    assert 'Stale.' in text and 'last ran 2026-11-01 03:00' in text
