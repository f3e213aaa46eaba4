"""The progress of a session: from ReFrame's process to one line."""
from __future__ import annotations

import types

import pytest

from cli.session import process
from config.sessions.progress import Progress
from config.sessions.runner import Reporter


def task(name: str) -> types.SimpleNamespace:
    case = types.SimpleNamespace(
        partition=types.SimpleNamespace(name='cpu'),
        environ=types.SimpleNamespace(name='gnu'),
        check=types.SimpleNamespace(hashcode=name))
    return types.SimpleNamespace(testcase=case)


def test_test_cases_are_counted_once_and_retries_besides(tmp_path):
    reporter = Reporter(tmp_path, {('cpu', 'gnu', name): 10.0 for name in 'abcd'})
    assert Progress.read(tmp_path).ended == 0
    reporter.on_task_success(task('a'))
    reporter.on_task_failure(task('b'))
    reporter.on_task_success(task('a build'))
    now = Progress.read(tmp_path)
    assert (now.cases, now.ended, now.failed) == (4, 2, 1)
    assert now.seconds_left(30.0) == 30.0
    reporter.count_retries([task('b')])
    assert Progress.read(tmp_path).again == 1
    reporter.on_task_success(task('b'))
    now = Progress.read(tmp_path)
    assert (now.ended, now.failed, now.again) == (2, 0, 0)
    assert now.expected == 50 and now.expected_ended == 30


def test_without_an_end_no_time_is_promised(tmp_path):
    assert Progress.read(tmp_path) is None
    assert Progress(4, expected=40).seconds_left(5) is None
    assert 'left' not in Progress(4, expected=40).text(5)


def test_no_time_is_promised_that_may_last_for_minutes():
    """The last job may take longer than expected, and retries begin after pauses."""
    assert 'about 1 min left' in Progress(4, 3, expected=4, expected_ended=3).text(240)
    assert 'left' not in Progress(4, 3, expected=4, expected_ended=3).text(150)
    assert 'left' not in Progress(4, 4, again=1, expected=5, expected_ended=4).text(900)


@pytest.mark.parametrize('text', ['', '{', '{"cases": 1, "more": 2}', '[]'])
def test_a_damaged_file_is_no_progress(tmp_path, text):
    (tmp_path / 'progress.json').write_text(text)
    assert Progress.read(tmp_path) is None


def test_a_long_session_fits_on_a_line():
    line = Progress(1000, 999, 123, 45, 1e6, 5e5).text(3 * 3600)
    assert len(line) <= 78, line


def test_without_a_terminal_a_line_is_printed_every_so_often(
        tmp_path, monkeypatch, capsys):
    times = iter([0.0, 10.0, 61.0, 122.0, 183.0])
    monkeypatch.setattr(process.time, 'monotonic', lambda: next(times))
    Progress(4, 1, expected=4, expected_ended=1).write(tmp_path)
    with process.SessionProgress(tmp_path) as shown:
        shown.report_if_due()               # too early
        shown.report_if_due()
        shown.report_if_due()               # nothing has changed
        Progress(4, 2, expected=4, expected_ended=2).write(tmp_path)
        shown.report_if_due()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(' test')[0] for line in lines] == [
        'plumb: 1 of 4', 'plumb: 2 of 4']


def test_without_a_terminal_each_wait_for_a_retry_is_printed(
        tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(process.time, 'monotonic', iter(range(9)).__next__)
    with process.SessionProgress(tmp_path) as shown:
        for again in 0, 2, 2, 1, 0, 1:
            Progress(4, 4, again=again).write(tmp_path)
            shown.report_if_due()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(' ·')[0] for line in lines] == [
        'plumb: 4 of 4 test cases, 2 to measure again',
        'plumb: 4 of 4 test cases, 1 to measure again']


def test_the_cost_of_a_short_session_is_printed(tmp_path, capsys):
    """Though it ended before anything was reported of it."""
    with process.SessionProgress(tmp_path):
        Progress(1, cost='1 test cases (1 checks)').write(tmp_path)
    assert capsys.readouterr().out == 'Cost: 1 test cases (1 checks)\n'
