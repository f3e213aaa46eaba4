"""The progress of a session: from the lines that ReFrame prints to one line."""
from __future__ import annotations

from pathlib import Path

from cli.session import process
from config.sessions.progress import Progress


def ended(number: int, total: int, result: str = 'OK', name: str = 'x') -> str:
    """ReFrame's line for a test case that has ended."""
    return f'[ {result:>8} ] ({number}/{total}) {name} /a1b2c3d4 @alpha:cpu+gnu'


def progress(*lines: str) -> Progress:
    now = Progress()
    for line in lines:
        now.read_line(line)
    return now


def test_a_failure_is_one_until_its_retry_passes():
    lines = [ended(1, 4), ended(2, 4, 'FAIL', 'y')]
    assert progress(*lines).text(0).startswith('2 of 4 test cases and builds, 1 failed')
    lines.append('[==========] Retrying 1 failed check(s) (retry 1/1)')
    assert progress(*lines).text(0).startswith('retry 1: ')
    assert ' failed' not in progress(*lines, ended(1, 1, name='y')).text(0)


def test_no_time_is_promised_that_may_last_for_minutes():
    """The last job may take longer than expected."""
    assert 'left' not in Progress().text(500)
    assert '1 min left at this pace' in progress(ended(3, 4)).text(240)
    assert 'left' not in progress(ended(3, 4)).text(150)
    # Builds are faster than a test case that fills a cache for 20 min.
    assert 'left' not in progress(ended(1, 2, name='TaoPrograms ~a:b+c')).text(174)


def test_a_long_session_fits_on_a_line():
    now = progress(*(ended(n, 1000, 'FAIL', f'x{n}') for n in range(1, 500)))
    assert len(now.text(3 * 3600)) <= 80


def shown(tmp_path: Path, monkeypatch, times: list[float], texts: list[str]) -> None:
    """What is printed without a terminal, at these times, of this output."""
    output = tmp_path / 'output'
    output.touch()
    monkeypatch.setattr(process.time, 'monotonic', iter(times).__next__)
    with process.SessionProgress(output, echo=False) as session:
        for text in texts:
            with open(output, 'a') as handle:
                handle.write(text)
            session.report_if_due()


def test_without_a_terminal_a_line_is_printed_every_so_often(
        tmp_path, monkeypatch, capsys):
    shown(tmp_path, monkeypatch, [0.0, 10.0, 61.0, 122.0, 183.0],
          [ended(1, 4) + '\n', '', '', ended(2, 4) + '\n'])
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(' test')[0] for line in lines] == [
        'plumb: 1 of 4', 'plumb: 2 of 4']


def test_half_a_line_waits_for_its_end(tmp_path, monkeypatch, capsys):
    line = ended(1, 4)
    shown(tmp_path, monkeypatch, [0.0, 61.0, 122.0], [line[:20], line[20:] + '\n'])
    assert capsys.readouterr().err.startswith('plumb: 1 of 4')
