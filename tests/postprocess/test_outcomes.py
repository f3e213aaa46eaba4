"""Results: one source for page, table and exit codes; what is missing."""
from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from perflogs_factory import case, record, short_id, write

from postprocess import results
from postprocess.records import read as read_records
from postprocess.records import sessions as read_sessions
from postprocess.regressions import verdict
from postprocess.report import build as report


def session_of(day: int) -> str:
    return record(day=day)['session']


def page(root: Path, tmp_path: Path) -> tuple[int, str, str]:
    """Exit code of the report, its line, the page."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = report.main(['--perflogs', str(root), '--output',
                            str(tmp_path / 'page')])
    text = tmp_path / 'page' / 'index.html'
    return code, out.getvalue(), text.read_text() if text.exists() else ''


def write_days(root: Path, days: list[str], mode: str = 'nightly',
               options: str = '', first: int = 0, ended: bool = True) -> None:
    """A session per day; each letter is a test case."""
    write(root, [case(name, day, mode=mode) for day, names in enumerate(days, first)
                 for name in names], options, ended)


def owed(root: Path) -> dict[int, str]:
    """Day -> the test cases that its session owes, with a mark if it was cut short."""
    frame = results.add_missing_records(read_records(root), read_sessions(root))
    rows = frame[frame['guard'] == results.MISSING]
    marks = {'missing': '', 'not_run': '!'}
    debts: dict[int, str] = {}
    for day in range(20):
        of_day = rows[rows['session'] == session_of(day)].sort_values('program')
        if len(of_day):
            debts[day] = ''.join(of_day['program']) + marks[of_day['result'].iloc[0]]
    return debts


@pytest.mark.parametrize('days, expected', [
    (['abcd'] * 3, {}),
    (['abcd', 'abc'], {1: 'd'}),
    (['abcd', 'a', 'abcd'], {1: 'bcd'}),         # most of them
    (['abcd', 'abc', 'abc'], {1: 'd'}),          # the last complete session had it
    (['abc', 'abcd'], {}),                       # a new one
])
def test_a_session_owes_what_the_last_complete_one_had(tmp_path, days, expected):
    write_days(tmp_path, days)
    assert owed(tmp_path) == expected


def test_a_family_or_a_partition_that_vanished_is_missing(tmp_path):
    more = [case('c', 0, family='stores'), case('d', 0, partition='gpu')]
    write(tmp_path, [case('a', 0), case('b', 1), *more, case('a', 1), case('b', 0)])
    assert owed(tmp_path) == {1: 'cd'}


def test_neither_another_mode_nor_a_choice_of_test_cases_owes_anything(tmp_path):
    write_days(tmp_path, ['abcd'])
    write_days(tmp_path, ['ab'], mode='quick', first=1)
    write_days(tmp_path, ['a'], options='-n a', first=2)
    assert owed(tmp_path) == {}
    # The session before these had it.
    write_days(tmp_path, ['abc'], first=3)
    assert owed(tmp_path) == {3: 'd'}


@pytest.mark.parametrize('options', [
    '', "'--tag=^quick$' -Smode=quick --max-retries=1",
    """'--tag=^quick$' -Smode=quick --max-retries=1 -J 'comment="a b"'"""])
def test_a_session_that_was_cut_short_owes_the_rest(tmp_path, options):
    """It does not count as a complete one. Its options are those of its log, which
    displays them with either kind of quotes."""
    root = tmp_path / 'logs'
    mode = 'quick' if options else ''
    write_days(root, ['abcd'], mode, options)
    write_days(root, ['ab'], mode, options, first=1, ended=False)
    assert owed(root) == {1: 'cd!'}
    code, line, text = page(root, tmp_path)
    assert code == 1 and '2 not_run' in line
    assert 'planned, but the session ended before it ran' in text
    write_days(root, ['abc'], mode, options, first=2)
    assert owed(root) == {1: 'cd!', 2: 'd'}


def test_what_is_missing_fails_page_and_verdict_until_it_is_measured(
        tmp_path, capsys):
    root = tmp_path / 'logs'
    write_days(root, ['abcd', 'abc'])
    code, line, text = page(root, tmp_path)
    assert code == 1 and '3 pass · 1 missing of 4 test cases' in line
    assert 'last ran 2026-11-01' in text and '<b>DEGRADED.</b>' in text
    words = ['--perflogs', str(root)]
    assert verdict.main(words) == 1
    out = capsys.readouterr().out
    assert 'DEGRADED: 1 test case missing. 3 test cases ran' in out
    assert f'./plumb run --site alpha {short_id(case("d", 0))}' in out
    # It is still missing when the next session has not got it either.
    write_days(root, ['abc'], first=2)
    assert verdict.main(words) == 1
    assert verdict.main([*words, '--session', session_of(2)]) == 0
    # It is measured, or it was removed on purpose.
    write_days(tmp_path / 'later', ['abcd', *['abc'] * (results.RECENT + 1)])
    assert verdict.main(['--perflogs', str(tmp_path / 'later')]) == 0
    write_days(root, ['d'], options='-n d', first=3)
    assert verdict.main(words) == 0
    assert '4 pass of 4 test cases' in page(root, tmp_path)[1]


def test_too_little_was_compared_in_page_and_verdict(tmp_path):
    root = tmp_path / 'logs'
    write(root, [case('a', 1), *(case(name, 1, 'inconclusive') for name in 'bc')])
    assert verdict.main(['--perflogs', str(root)]) == 1
    code, line, text = page(root, tmp_path)
    assert code == 1 and '1 pass · 2 inconclusive of 3 test cases' in line
    assert '<b>DEGRADED.</b>' in text


def test_each_copy_of_a_test_case_has_a_result(tmp_path):
    """A copy that is five times too slow does not hide behind a good one."""
    write(tmp_path, [
        case('one', 1, 'fail' if node == 'n2' else 'pass', nodes=node,
             name=f'OsuPt2pt %program=one %.nid={node}') for node in ('n1', 'n2')])
    ident = short_id(case('one', 1))
    frame = read_records(tmp_path)
    made = results.results_of_session(frame, session_of(1))
    assert {key: (one.result, *one.nodes) for key, one in made.items()} == {
        (ident, 'nid=n1'): ('pass', 'n1'), (ident, 'nid=n2'): ('fail', 'n2')}
    assert results.results_of_session(frame, 'none') == {}
    failure, = verdict.verdict_of_records(frame).failures
    assert failure.copy == 'nid=n2'


def test_the_newest_measurement_is_asked_per_test_case(tmp_path):
    """A short session in the hours of a long one does not hide what the long one
    finds afterwards."""
    long = session_of(1)
    write(tmp_path, [
        case('a', 1, 'pass', time='2026-11-02T04:00:00Z'),
        case('b', 1, 'fail', time='2026-11-02T20:00:00Z'),
        *(case(name, 1, 'pass', time='2026-11-02T10:00:00Z',
               session='20261102T095900Z-bbbbbb') for name in 'ab')])
    newest = {one.program: (one.session, one.result) for one in
              results.newest_results_of_test_cases(read_records(tmp_path))}
    assert newest == {'a': ('20261102T095900Z-bbbbbb', 'pass'), 'b': (long, 'fail')}


def test_test_cases_that_differ_in_a_setting_have_their_own_results(tmp_path):
    write(tmp_path, [case('a', 1, 'pass', settings='max_size=1000'),
                     case('a', 2, 'fail')])
    newest = results.newest_results_of_test_cases(read_records(tmp_path))
    assert {one.settings: one.result for one in newest} == {
        '': 'fail', 'max_size=1000': 'pass'}
    code, _, text = page(tmp_path, tmp_path / 'page')
    assert code == 1 and text.count('id="case=') == 2
    assert 'a (embedded) max_size=1000 ' in text
