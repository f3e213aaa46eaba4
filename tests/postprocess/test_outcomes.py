"""Results: one source for page, table and exit codes; what is missing."""
from __future__ import annotations

import contextlib
import io
import threading
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml
from perflogs_factory import case, record, short_id, write

from config.sessions import lock
from postprocess import debts, results
from postprocess.records import read as read_records
from postprocess.regressions import decisions, verdict
from postprocess.report import build as report
from postprocess.report import plots


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests read the words of the page."""
    monkeypatch.setattr(plots, 'drawings_of_family', lambda *_: [])


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
    frame = debts.read(str(root)).frame
    rows = frame[frame['guard'] == results.MISSING]
    marks = {'missing': '', 'not_run': '!'}
    by_day: dict[int, str] = {}
    for day in range(20):
        of_day = rows[rows['session'] == session_of(day)].sort_values('program')
        if len(of_day):
            by_day[day] = ''.join(of_day['program']) + marks[of_day['result'].iloc[0]]
    return by_day


@pytest.mark.parametrize('days, expected', [
    (['abcd'] * 3, {}),
    (['abcd', 'abc'], {1: 'd'}),
    (['abcd', 'a', 'abcd'], {1: 'bcd'}),         # most of them
    (['abcd', 'abc', 'abc'], {1: 'd', 2: 'd'}),  # until a person retires it
    (['abcd', 'abc', 'abcd', 'abcd'], {1: 'd'}),
    (['abc', 'abcd'], {}),                       # a new one
])
def test_a_session_owes_what_an_earlier_complete_one_had(tmp_path, days, expected):
    write_days(tmp_path, days)
    assert owed(tmp_path) == expected


def test_a_family_or_a_partition_that_vanished_is_missing(tmp_path, capsys):
    more = [case('c', 0, family='stores'), case('d', 0, partition='gpu')]
    write(tmp_path, [case('a', 0), case('b', 1), *more, case('a', 1), case('b', 0)])
    assert owed(tmp_path) == {1: 'cd'}
    code, line, failed = say(capsys, tmp_path)
    assert code == 1 and 'DEGRADED: 2 test cases missing' in line and len(failed) == 2


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
    mode = 'quick' if options else ''
    write_days(tmp_path, ['abcd'], mode, options)
    write_days(tmp_path, ['ab'], mode, options, first=1, ended=False)
    write_days(tmp_path, ['abc'], mode, options, first=2)
    assert owed(tmp_path) == {1: 'cd!', 2: 'd'}


def test_the_page_has_what_a_session_that_was_cut_short_owes(tmp_path):
    write_days(tmp_path / 'logs', ['abcd'])
    write_days(tmp_path / 'logs', ['ab'], first=1, ended=False)
    code, line, text = page(tmp_path / 'logs', tmp_path)
    assert code == 1 and '2 not_run' in line
    assert 'planned, but the session ended before it ran' in text


def test_what_is_missing_fails_page_and_verdict_until_it_is_measured(
        tmp_path, capsys):
    root = tmp_path / 'logs'
    write_days(root, ['abcd', 'abc'])
    code, line, text = page(root, tmp_path)
    assert code == 1 and '3 pass · 1 missing of 4 test cases' in line
    assert 'last measured on 2026-11-01' in text and '<b>DEGRADED.</b>' in text
    words = ['--perflogs', str(root)]
    assert verdict.main(words) == 1
    out = capsys.readouterr().out
    assert 'DEGRADED: 1 test case missing. 3 test cases ran' in out
    assert f'./plumb run --site alpha {short_id(case("d", 0))}' in out
    # It is still missing when the later sessions have not got it either.
    write_days(root, ['abc'] * 12, first=2)
    assert verdict.main(words) == 1
    assert verdict.main([*words, '--session', session_of(13)]) == 1
    write_days(root, ['d'], options='-n d', first=14)
    assert verdict.main(words) == 0
    assert '4 pass of 4 test cases' in page(root, tmp_path)[1]


@pytest.mark.parametrize('later, code', [('-n c', 1), ('-n a', 0)])
def test_one_of_two_selections_of_a_day_was_killed(tmp_path, capsys, later, code):
    """The good one does not hide the other, until that ran to its end."""
    root = tmp_path / 'logs'
    write_days(root, ['abc'])
    write_days(root, ['a'], options='-n a', first=1, ended=False)
    assert say(capsys, root)[0] == 1
    write(root, [case(later[-1], 1, mode='nightly', time='2026-11-02T20:00:00Z',
                      session='20261102T200000Z-bbbbbb')], later)
    end, line, _ = say(capsys, root)
    assert (end, 'CUT SHORT' in line) == (code, code == 1)
    if code:
        assert page(root, tmp_path)[0] == 1
    # The day after has its own verdict.
    write_days(root, ['abc'], first=2)
    assert say(capsys, root)[0] == 0


def failures_of_junit(text: str) -> dict[str, str]:
    """Name -> message of each test that failed."""
    return {test.get('name', ''): test[0].get('message', '')
            for test in ET.fromstring(text).iter('testcase')
            if test.find('failure') is not None}


def say(capsys, root: Path, *words: str) -> tuple[int, str, dict[str, str]]:
    """Exit code of the verdict, its closing line, and what fails in its JUnit."""
    file = root / 'junit.xml'
    code = verdict.main(['--perflogs', str(root), '--junit', str(file), *words])
    failed = failures_of_junit(file.read_text())
    assert bool(failed) == (code == 1)
    return code, capsys.readouterr().out.splitlines()[-1], failed


@pytest.mark.parametrize('days, code, words', [
    # Five times too slow, and inconclusive, all of them.
    ([{'a': 'pass', 'b': 'pass'}, {'a': 'inconclusive', 'b': 'inconclusive'}], 1,
     'DEGRADED: 2 of 2 test cases with a reference not compared. '),
    ([{'a': 'pass', 'b': 'pass', 'c': 'pass'},
      {'a': 'pass', 'b': 'inconclusive', 'c': 'inconclusive'}], 1,
     'DEGRADED: 2 of 3 test cases with a reference not compared. '),
    ([{'a': 'pass', 'b': 'pass'}, {'a': 'pass', 'b': 'inconclusive'}], 0, 'GOOD'),
    ([{'a': 'pass', 'b': 'pass'}, *[{'a': 'pass', 'b': 'inconclusive'}] * 2], 0,
     'GOOD'),
    ([{'a': 'pass', 'b': 'pass'}, *[{'a': 'pass', 'b': 'inconclusive'}] * 3], 1,
     'DEGRADED: 1 test case with a reference not compared for 3 sessions or more. '),
    ([{'a': 'pass', 'b': 'pass'}, *[{'a': 'pass', 'b': 'inconclusive'}] * 2,
      {'a': 'pass', 'b': 'pass'}, {'a': 'pass', 'b': 'inconclusive'}], 0, 'GOOD'),
    # Nothing ever had a reference.
    ([{'a': 'no_reference', 'b': 'inconclusive'}] * 4, 0, 'NOT COMPARED. ')])
def test_too_little_was_compared(tmp_path, capsys, days, code, words):
    root = tmp_path / 'logs'
    write(root, [case(name, day, result, mode='nightly') for day, session
                 in enumerate(days) for name, result in session.items()])
    end, line, _ = say(capsys, root)
    assert end == code and words in line


def test_the_page_says_that_too_little_was_compared(tmp_path):
    write(tmp_path / 'logs', [case('a', 0), case('a', 1, 'inconclusive')])
    code, _, text = page(tmp_path / 'logs', tmp_path)
    assert code == 1 and '<b>DEGRADED.</b>' in text
    assert '1 of 1 test case with a reference not compared. ' in text
    assert '<b>Inconclusive.</b>' in text and 'Nothing f' not in text


def test_a_value_with_a_reference_was_not_compared_in_its_first_session(
        tmp_path, capsys):
    """The record of an inconclusive test case has its reference, and no tolerance."""
    write(tmp_path, [case('a', 1, 'inconclusive', reference=1.0)])
    assert say(capsys, tmp_path)[0] == 1


@pytest.mark.parametrize('system', ['alpha', 'beta'])
@pytest.mark.parametrize('result, words, code', [
    ('inconclusive', 'DEGRADED: 2 of 2 test cases with a reference not compared', 1),
    ('no_reference', 'NOT COMPARED', 3)])
def test_what_an_earlier_session_compared_does_not_count(
        tmp_path, capsys, system, result, words, code):
    """Another mode compared ten test cases the day before. On another system it
    compares them the same day, and the throttled one is reported with its name."""
    root, is_other = tmp_path / 'logs', system == 'beta'
    write(root, [case(name, int(is_other), mode='full') for name in 'abcdefghij'])
    write(root, [case(name, day, each, mode='nightly', system=system, time=(
        f'2026-11-0{day + 1}T05:00:00Z'), session=f'2026110{day + 1}T050000Z-bbbbbb')
        for name in 'ab' for day, each in ((0, 'pass'), (1, result))
        if is_other or each == result])
    words += ' on beta' * (is_other and code == 1)
    if is_other and code == 3:
        words, code = 'GOOD', 0         # of alpha, in the same session
    end, line, _ = say(capsys, root) if code != 3 else (0, '', {})
    if code == 3:
        end = verdict.main(['--perflogs', str(root), '--require-compared'])
        line = capsys.readouterr().out.splitlines()[-1]
    assert (end, words in line) == (code, True), line


def test_an_invalid_test_case_without_a_reference_has_none(tmp_path, capsys):
    """It failed, beside other programs: its values are kept, and are inconclusive."""
    busy = {'inconclusive': 'other programs used 80 % of the CPUs'}
    write(tmp_path, [case('a', 1, 'inconclusive', **busy),
                     case('a', 1, 'validity', reason='the hit ratio is 0.8', **busy)])
    code, line, _ = say(capsys, tmp_path)
    assert code == 1 and 'FAILED: 1 test case failed. ' in line, line


def sessions_on(*days: tuple[str, str], first: int = 0, **more) -> list[dict]:
    """A session per pair of node and result."""
    return [case('a', day, result, nodes=node, mode='nightly', **more)
            for day, (node, result) in enumerate(days, first)]


#: Nodes and results of sessions -> whether a failure is open after the last one.
OPEN_FAILURES = [
    # Slurm selects another node.
    ([('n1', 'pass'), ('n7', 'exit_code'), ('n1', 'pass')], True),
    ([('n1', 'pass'), ('n7', 'fail'), ('n1', 'pass'), ('n2', 'pass')], True),
    ([('n1', 'pass'), ('n7', 'fail'), ('n1', 'pass'), ('n7', 'pass')], False),
    ([('n7', 'fail'), ('n7', 'inconclusive')], True),
    # Nothing says that the value is within its tolerance again.
    ([('n7', 'pass'), ('n7', 'fail'), ('n7', 'no_reference')], True),
    ([('n7', 'fail'), ('n7', 'exit_code'), ('n7', 'no_reference')], True),
    ([('n7', 'fail'), ('n7', 'no_reference'), ('n7', 'pass')], False),
    ([('n7', 'exit_code'), ('n7', 'no_reference')], False),
    ([('n1 n7', 'fail'), ('n1 n2', 'pass'), ('n2 n7', 'pass')], False),
    ([('n1 n7', 'fail'), ('n1 n2', 'pass')], True),
    ([('', 'fail'), ('n1', 'pass')], False)]


def test_a_failure_is_open_until_its_nodes_pass(tmp_path):
    """Each history is that of another system; all end on the same day."""
    write(tmp_path, [
        one | {'system': f's{number}',
               'session': one['session'].replace('aaaaaa', f'{number:06}')}
        for number, (days, _) in enumerate(OPEN_FAILURES)
        for one in sessions_on(*days, first=4 - len(days))])
    expected = {f's{number}' for number, (_, is_open) in enumerate(OPEN_FAILURES)
                if is_open}
    for session in None, '2026-11-04':
        judged, _ = verdict.verdict_of_perflogs(str(tmp_path), session)
        assert {event.system for event in judged.failures} == expected, session
        assert judged.state == 'failed'


def test_an_open_failure_has_its_nodes_and_what_to_do(tmp_path, capsys):
    write(tmp_path, sessions_on(
        ('n7', 'exit_code'), ('n1', 'pass'), reason='Bus error'))
    ident, site = short_id(case('a', 0)), tmp_path / 'sites' / 'alpha'
    site.mkdir(parents=True)
    (site / 'system.py').touch()
    verdict.main(['--perflogs', str(tmp_path), '--site', str(site)])
    out = capsys.readouterr().out
    assert f'a (embedded) {ident} nodes=n7 on alpha:cpu openmpi: failed on n7 on ' \
        '2026-11-01, and has not passed on n7 since: Bus error' in out
    assert f'run --site {site} {ident} -P pinned_nodes=n7; if' in out
    assert f'verdict mute {ident} --site {site} ' in out
    assert f'verdict retire NODE --site {site} ' in out
    # The history of its values has no gap.
    results_ = results.newest_results_of_test_cases(debts.read(str(tmp_path)).frame)
    assert [(one.result, *one.nodes) for one in results_] == [
        ('pass', 'n1'), ('fail', 'n7')]
    code, _, text = page(tmp_path, tmp_path)
    assert code == 1 and 'failed on n7 on 2026-11-01, and has not passed on n7' in text


def test_an_open_failure_is_of_the_nodes_that_have_not_passed(tmp_path, capsys):
    """Another node of the job that failed has passed since."""
    write(tmp_path, sessions_on(('n1 n7', 'exit_code'), ('n1 n2', 'pass')) + [
        case('b', day, result, nodes=nodes) for day, (nodes, result) in enumerate([
            ('n3 n7', 'exit_code'), ('n3 n4', 'pass')])])
    verdict.main(['--perflogs', str(tmp_path)])
    assert 'n7 of alpha: 2 osu test cases failed before' in capsys.readouterr().out


def test_a_failure_has_the_nodes_that_failed_alone(tmp_path, capsys):
    """The nightly session measured it again on other nodes, where it passed."""
    bad = {'result': 'exit_code', 'reason': 'exit code 3'}
    write(tmp_path, [
        case('a', 1, nodes='n1 n2', **bad),
        case('a', 1, nodes='n3 n4', session=f'{session_of(1)}01',
             time='2026-11-02T04:00:00Z')])
    code, line, failures = say(capsys, tmp_path)
    assert code == 1 and '[ran on n[1-2]]' in ''.join(failures.values())
    assert 'nothing was compared: 1 failed, and too few sessions' in line
    # A mute is for these nodes, too.
    ident = short_id(case('a', 0))
    assert verdict.main(['mute', ident, '--until', '2099-01-01', '--reason', 'x',
                         '--perflogs', str(tmp_path)]) == 0
    capsys.readouterr()
    assert say(capsys, tmp_path)[0] == 0
    write(tmp_path, [case('a', 2, nodes='n3 n4', **bad)])
    assert say(capsys, tmp_path)[0] == 1


def test_what_was_measured_again_is_counted_once(tmp_path, capsys):
    write(tmp_path, [case('a', 1, 'fail', retry=0), case('b', 1, 'pass'), case(
        'a', 1, 'pass', retry=1, time='2026-11-02T04:00:00Z')])
    verdict.main(['--perflogs', str(tmp_path)])
    assert '2 test cases ran, 1 measured again;' in capsys.readouterr().out
    code, out, text = page(tmp_path, tmp_path)
    assert code == 0 and '<b>1</b> measured again' in text
    assert '2 pass of 2 test cases, 1 measured again, 1 session;' in out


def test_a_person_closes_a_failure_of_a_node_that_left(tmp_path, capsys):
    write(tmp_path, sessions_on(('n7', 'fail'), ('n1', 'pass')))
    for words in 'n7', '*on alpha:cpu*', 'a (emb*', short_id(case('a', 0)):
        (tmp_path / 'decisions.yaml').unlink(missing_ok=True)
        assert verdict.main(['retire', words, '--reason', 'sold', '--perflogs',
                             str(tmp_path)]) == 0
        assert 'retired: 1 test case' in capsys.readouterr().out
    assert say(capsys, tmp_path)[0] == 0
    # It fails there again.
    write(tmp_path, [case('a', 5, 'fail', nodes='n7')])
    assert say(capsys, tmp_path)[0] == 1


def test_a_muted_failure_is_a_known_fault_until_its_date(tmp_path, capsys):
    write(tmp_path, sessions_on(('n7', 'exit_code'), ('n1', 'pass')))
    ident, perflogs = short_id(case('a', 0)), ('--perflogs', str(tmp_path))
    assert verdict.main(['mute', ident, '--until', '2099-01-01', '--reason', 'x',
                         *perflogs]) == 0
    capsys.readouterr()
    code, line, _ = say(capsys, tmp_path)
    assert code == 0 and '1 with a known fault' in line
    path = tmp_path / 'decisions.yaml'
    path.write_text(path.read_text().replace('2099-01-01', '2026-11-01'))
    assert say(capsys, tmp_path)[0] == 1


@pytest.mark.parametrize('later, code', [
    ({'nodes': 'n7'}, 0), ({'nodes': 'n6 n7'}, 0), ({'nodes': ''}, 0),
    ({'nodes': 'n1'}, 1), ({'nodes': 'n7', 'result': 'sanity'}, 1),
    ({'nodes': 'n7', 'result': 'fail'}, 1)])
def test_a_mute_hides_the_same_failure_of_its_nodes_alone(
        tmp_path, capsys, later, code):
    write(tmp_path, sessions_on(('n7', 'exit_code'), ('n1', 'pass')))
    words = ['mute', short_id(case('a', 0)), '--until', '2099-01-01', '--perflogs',
             str(tmp_path), '--reason']
    assert verdict.main([*words, 'cable of n7']) == 0
    write(tmp_path, [case('b', day) for day in range(5)] + [case('a', 4, **{
        'result': 'exit_code', 'reason': 'Bus error', 'mode': 'nightly', **later})])
    capsys.readouterr()
    assert say(capsys, tmp_path)[0] == code
    if code:
        # The first one stays muted.
        assert verdict.main([*words, 'another']) == 0
        capsys.readouterr()
        assert say(capsys, tmp_path)[0] == 0


def test_two_people_who_decide_at_once_lose_no_decision(tmp_path, monkeypatch):
    """The second one waits until the first one, who has read the file, has written."""
    write(tmp_path, [case(name, 0, 'exit_code') for name in 'ab'])
    waits, read, hold = (threading.Event(), decisions.load_decisions,
                         lock.hold_file_lock)
    reads: list[Path] = []
    holds: list[Path] = []

    def mute(name: str) -> None:
        assert verdict.main(['mute', short_id(case(name, 0)), '--until', '2099-01-01',
                             '--reason', name, '--perflogs', str(tmp_path)]) == 0
        waits.set()

    second = threading.Thread(target=mute, args='b')

    def read_while_the_second_one_begins(folder: Path) -> list[decisions.Decision]:
        decided = read(folder)
        reads.append(folder)
        if len(reads) == 2:         # the first time is for the verdict
            second.start()
            waits.wait()
        return decided

    def hold_and_count(path: Path, *args: Any, **more: Any) -> Any:
        holds.append(path)
        if len(holds) == 2:
            waits.set()
        return hold(path, *args, **more)

    monkeypatch.setattr(decisions, 'load_decisions', read_while_the_second_one_begins)
    monkeypatch.setattr(lock, 'hold_file_lock', hold_and_count)
    mute('a')
    second.join()
    assert {one.reason for one in read(tmp_path)} == {'a', 'b'}


def test_what_is_missing_is_retired(tmp_path, capsys):
    """An environment of a family was removed: it is missing, not forgotten."""
    def write_session(day: int, *names: str) -> None:
        write(tmp_path, [*(case(name, day, mode='nightly') for name in 'ab'), *(
            case(name, day, mode='nightly', environ='old') for name in names)])

    perflogs = '--perflogs', str(tmp_path)
    write_session(0, 'c', 'd')
    for day in range(1, 13):
        write_session(day)
    code, line, failed = say(capsys, tmp_path)
    assert code == 1 and 'DEGRADED: 2 test cases missing' in line and len(failed) == 2
    assert verdict.main(['retire', '* old', '--reason', 'removed', *perflogs]) == 0
    ident = yaml.safe_load((tmp_path / 'decisions.yaml').read_text())[0]['id']
    assert say(capsys, tmp_path)[0] == 0
    assert verdict.main(['undo', ident, *perflogs]) == 0
    capsys.readouterr()
    assert say(capsys, tmp_path)[0] == 1


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
    failure, = verdict.judge_session(frame).failures
    [member] = failure.failed
    assert member.copy == 'nid=n2'


def test_the_newest_measurement_is_asked_per_test_case(tmp_path, capsys):
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
    code, line, failed = say(capsys, tmp_path)
    assert code == 1 and 'FAILED: 1 test case failed' in line and len(failed) == 1


def test_interference_does_not_pay_for_a_measurement_out_of_tolerance(tmp_path, capsys):
    """Two sound measurements are out of tolerance, and the third one is disturbed."""
    write(tmp_path, [record('latency', value, 8, result=result, retry=retry,
                            reference=1.0, upper=0.2, inconclusive=inconclusive,
                            time=f'2026-11-02T{retry + 3:02}:00:00Z')
                     for retry, (result, value, inconclusive) in enumerate([
                         ('fail', 2.0, ''), ('fail', 3.0, ''),
                         ('pass', 2.5, 'other programs used 50 % of the CPUs')])])
    code, line, _ = say(capsys, tmp_path)
    assert code == 1 and 'FAILED' in line


def test_test_cases_that_differ_in_a_setting_have_their_own_results(tmp_path):
    write(tmp_path, [case('a', 1, 'pass', settings='max_size=1000'),
                     case('a', 2, 'fail')])
    newest = results.newest_results_of_test_cases(read_records(tmp_path))
    assert {one.settings: one.result for one in newest} == {
        '': 'fail', 'max_size=1000': 'pass'}
    code, _, text = page(tmp_path, tmp_path / 'page')
    assert code == 1 and text.count('id="case=') == 2
    assert 'a (embedded) max_size=1000 ' in text
