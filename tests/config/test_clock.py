"""A clock that leaps hides no failure (config/sessions/clock.py)."""
from __future__ import annotations

import datetime
import os
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip('pandas')
import perflogs_factory as make
from conftest import OSU, ROOT

from config.sessions import clock
from postprocess import export, records, results
from postprocess.regressions import verdict
from postprocess.report import build as report

DAY = datetime.timedelta(days=1)
LATEST = clock.max_possible_record_time


@pytest.fixture(autouse=True)
def times_matter(any_date, monkeypatch) -> None:
    """Times that are to come are wrong, other than in other tests."""
    monkeypatch.setattr(clock, 'max_possible_record_time', LATEST)


def session(days: float, result: str = 'pass', name: str = 'aaaaaa',
            **columns) -> dict:
    """A record of a session that began so many days from now."""
    time = clock.current_utc_time() + days * DAY
    return make.record(
        'latency', 1.0 if result == 'pass' else 2.0, 8, result=result,
        reference=1.0, upper=0.2, time=f'{time:%Y-%m-%dT%H:%M:%SZ}',
        session=f'{time:%Y%m%dT%H%M%SZ}-{name}', **columns)


def written(folder: Path, *made: dict) -> Path:
    """Perflogs of these sessions, in the order of writing."""
    for record in made:
        make.write(folder, [record])
    return folder


def result(folder: Path) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Program -> result and guard; and the faults."""
    frame, faults = records.read(folder, on_error='collect')
    return {str(row.program): (row.result, row.guard) for row in
            results.newest_records(frame).itertuples()}, [*map(str, faults)]


def test_a_session_that_is_ahead_hides_no_failure(tmp_path, capsys):
    ahead = session(400)
    logs = str(written(tmp_path / 'p', ahead, session(-0.1, 'fail')))
    text = tmp_path / 'plumb.prom'
    for command, code in (
            (lambda: verdict.main(['--perflogs', logs]), 1),
            (lambda: report.main(['--perflogs', logs, '--output',
                                  str(tmp_path / 'page')]), 1),
            (lambda: export.main(['--perflogs', logs, '--openmetrics',
                                  str(text)]), 1)):
        assert command() == code
        lines = capsys.readouterr().err.splitlines()
        assert any(f'session {ahead["session"]} ' in line and 'Remove sessions' in line
                   for line in lines)
    page = (tmp_path / 'page' / 'index.html').read_text()
    assert '1 test case failed' in page


@pytest.mark.parametrize('ended', [True, False])
def test_a_session_that_is_ahead_has_no_values(tmp_path, ended):
    written(tmp_path, session(-2, 'fail'))
    make.write(tmp_path, [session(400)], ended=ended)
    results, faults = result(tmp_path)
    assert results == {'osu_latency': ('fail', '')}
    assert faults and all('began at' in fault for fault in faults)
    assert len(records.sessions(tmp_path)) == 1


def test_a_time_that_has_come_by_now_is_still_wrong(tmp_path):
    """The clock was ahead, and this date has passed since."""
    written(tmp_path, session(-1))
    old = (clock.current_utc_time() - 30 * DAY).timestamp()
    for path in (tmp_path / 'sessions').iterdir():
        os.utime(path, (old, old))
    results, faults = result(tmp_path)
    assert not results and all('was last written at' in fault for fault in faults)


@pytest.mark.parametrize('what', ['session', 'file', 'folder'])
def test_no_session_begins_while_the_clock_is_behind(tmp_path, what):
    written(tmp_path, session(-1))
    sessions = tmp_path / 'sessions'
    assert clock.reason_clock_is_behind(tmp_path) == ''
    assert clock.reason_clock_is_behind(tmp_path / 'none') == ''
    soon = (clock.current_utc_time() + DAY).timestamp()
    if what == 'session':
        path = sessions / f'{session(400)["session"]}.log'
        path.touch()
    else:
        path = {'file': tmp_path / 'alpha/cpu/OsuPt2pt.log', 'folder': sessions}[what]
        os.utime(path, (soon, soon))
    assert clock.reason_clock_is_behind(tmp_path).startswith(f'{path}: ')
    assert 'Remove sessions' in clock.reason_clock_is_behind(tmp_path)


def test_the_commands_that_remove_a_session(tmp_path):
    ahead = session(400)
    logs = written(tmp_path / 'perflogs', session(-1), ahead)
    page = (ROOT / 'docs' / 'reference' / 'perflogs.md').read_text()
    text = page.partition('## Remove sessions\n')[2].partition('\n## ')[0]
    _, commands = re.findall(r'```sh runnable\n(.*?)```', text, re.DOTALL)
    (tmp_path / 'old.txt').write_text(ahead['session'] + '\n')
    subprocess.run(['bash', '-ec', commands], cwd=tmp_path, check=True)
    assert clock.reason_clock_is_behind(logs) == ''
    assert result(logs) == ({'osu_latency': ('pass', '')}, [])


def test_plumb_run_and_reframe_refuse_to_begin(suite):
    sessions = suite.tmp / 'perflogs' / 'sessions'
    sessions.mkdir(parents=True)
    name = session(400)['session']
    (sessions / f'{name}.log').touch()
    done = suite.plumb('run', '--', '-n', 'OsuStartup', *OSU)
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if name in line]
    assert 'Set the clock' in line and 'ReFrame' not in done.stdout
    done = suite.reframe('-r', '-n', 'OsuStartup', *OSU)
    assert done.returncode == 1 and f'{name}.log: began at' in done.stdout + done.stderr
    assert [path.name for path in sessions.iterdir()] == [f'{name}.log']
