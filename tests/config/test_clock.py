"""A clock that leaps hides no failure (config/sessions/clock.py, clock.py).
"""
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
from postprocess import export, perflogs, results
from postprocess.perflogs import reasons
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
        reference='1.0', upper='0.2', time=f'{time:%Y-%m-%dT%H:%M:%SZ}',
        run=f'{time:%Y%m%dT%H%M%SZ}-{name}', **columns)


def written(folder: Path, *records: dict) -> Path:
    """Perflogs of these records, in the order of writing."""
    for record in records:
        make.write(folder, [record])
    return folder


def result(folder: Path) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Program -> result and guard; and the faults."""
    frame, faults = perflogs.read(folder, on_error='collect')
    return {str(row.program): (row.result, row.guard) for row in
            results.newest_records(frame).itertuples()}, [*map(str, faults)]


AHEAD = session(400), session(-0.1, 'fail')
BEHIND = session(-0.1), session(-400, 'fail')


@pytest.mark.parametrize('records', [AHEAD, BEHIND])
def test_a_session_of_a_wrong_clock_hides_no_failure(
        tmp_path, capsys, records):
    logs = str(written(tmp_path / 'p', *records))
    wrong = max(records, key=lambda row: abs(
        datetime.datetime.fromisoformat(row['time'].replace('Z', '+00:00'))
        - clock.current_utc_time()))['run']
    text = tmp_path / 'plumb.prom'
    for command, code in (
            (lambda: verdict.main(['--perflogs', logs]), 1),
            (lambda: report.main(['--perflogs', logs, '--output',
                                  str(tmp_path / 'page')]), 1),
            (lambda: export.main(['--perflogs', logs, '--openmetrics',
                                  str(text)]), 1)):
        assert command() == code
        [line] = capsys.readouterr().err.splitlines()
        assert f'session {wrong} ' in line and 'Remove a session' in line
    assert re.findall(r'^plumb_case_failed{.*} (\d)$', text.read_text(),
                      re.M) == ['1']
    page = (tmp_path / 'page' / 'index.html').read_text()
    assert '1 of 1 test cases failed' in page


def test_a_good_session_of_a_wrong_clock_is_no_pass(tmp_path):
    ended, [fault] = result(written(
        tmp_path, session(-2), session(-1), session(400)))
    assert ended == {'osu_latency': ('fail', 'session_clock')}
    assert 'has the time' in fault
    # What is written later, with a right clock, counts.
    ended, faults = result(written(tmp_path, session(-0.5)))
    assert ended == {'osu_latency': ('pass', '')} and len(faults) == 1


def test_the_node_whose_clock_is_wrong_is_named():
    """The guard of checks/machine/nodes.py is not that of a session."""
    text = 'run.1: the clock of n1 is wrong: n1 is 120 s ahead of n3'
    assert reasons.failure_reason_text('clock', text) == text
    assert reasons.failure_reason_text('session_clock', text) == reasons.CLOCK


def test_a_time_that_has_come_by_now_is_still_wrong(tmp_path):
    """The clock was ahead, and this date has passed since."""
    [file] = make.write(written(tmp_path, session(-1)),
                        [session(-30, 'fail', 'bbbbbb')])
    old = (clock.current_utc_time() - 30 * DAY).timestamp()
    os.utime(file, (old, old))
    ended, [fault] = result(tmp_path)
    assert ended == {'osu_latency': ('fail', '')}
    assert 'its file was last written at' in fault
    # Without this modification time, the order of writing remains.
    os.utime(file)
    ended, [fault] = result(tmp_path)
    assert ended == {'osu_latency': ('fail', 'session_clock')}
    assert 'aaaaaa was written before' in fault or (
        'bbbbbb was written after' in fault)


def test_only_one_session_of_many_is_wrong(tmp_path):
    ahead = [session(-10), *(session(n - 9) for n in range(8))]
    ahead[1] = session(-0.5, name='bbbbbb')
    behind = [*(session(n - 9) for n in range(8)), session(-0.2)]
    behind[7] = session(-40, name='bbbbbb')
    for records in ahead, behind:
        folder = tmp_path / records[0]['run']
        ended, [fault] = result(written(folder, *records))
        assert ended == {'osu_latency': ('pass', '')}
        assert re.search(r'session \S*-bbbbbb was written', fault)


def test_a_clock_that_leaps_while_a_session_runs(tmp_path):
    first = session(-1)
    later = {**session(-30), 'run': first['run'], 'program': 'osu_bw'}
    ended, [fault] = result(written(tmp_path, first, later))
    assert {*ended.values()} == {('fail', 'session_clock')} and len(ended) == 2
    assert 'began at' in fault


def test_sessions_beside_each_other_are_no_contradiction(tmp_path):
    hour = 1 / 24
    one, other = (session(-1), session(-1 + hour, name='bbbbbb'))
    late = {**session(-1 + 2 * hour), 'run': one['run'], 'program': 'osu_bw'}
    # Clocks of two login nodes differ by some minutes.
    early = session(-1 + hour - 3 / 60 * hour, name='cccccc')
    ended, faults = result(written(tmp_path, one, other, early, late))
    assert not faults and ended['osu_bw'] == ('pass', '')


@pytest.mark.parametrize('what', ['session', 'file', 'folder'])
def test_no_session_begins_while_the_clock_is_behind(tmp_path, what):
    plans = tmp_path / 'sessions'
    plans.mkdir()
    [file] = make.write(tmp_path.parent, [
        session(-1, system=tmp_path.name)])
    (plans / f'{session(-1)["run"]}.json').write_text('{}')
    assert clock.reason_clock_is_behind(tmp_path) == ''
    assert clock.reason_clock_is_behind(tmp_path / 'none') == ''
    soon = (clock.current_utc_time() + DAY).timestamp()
    if what == 'session':
        path = plans / f'{session(400)["run"]}.json'
        path.write_text('{}')
    else:
        path = {'file': file, 'folder': plans}[what]
        os.utime(path, (soon, soon))
    assert clock.reason_clock_is_behind(tmp_path).startswith(f'{path}: ')
    assert 'Remove a session' in clock.reason_clock_is_behind(tmp_path)


def test_the_commands_that_remove_a_session(tmp_path):
    ahead = session(400)
    logs = written(tmp_path / 'perflogs', session(-1), ahead,
                   {**ahead, 'check': 'OsuCollective'})
    run = ahead['run']
    plans = logs / 'alpha' / 'sessions'
    plans.mkdir()
    (plans / f'{run}.json').write_text('{}')
    page = (ROOT / 'docs' / 'how-to' / 'troubleshooting.md').read_text()
    text = page.partition('### Remove a session\n')[2].partition('\n#')[0]
    commands = re.sub('run=.*', f'run={run}', '\n'.join(
        line for line in text.splitlines() if line.startswith('    ')))
    subprocess.run(['bash', '-ec', commands], cwd=tmp_path, check=True)
    assert clock.reason_clock_is_behind(logs / 'alpha') == ''
    ended, [fault] = result(logs)
    assert ended == {'osu_latency': ('pass', '')}
    assert 'OsuCollective' in fault and 'remove the file' in fault


def test_plumb_run_and_reframe_refuse_to_begin(suite):
    plans = suite.tmp / 'perflogs' / 'local' / 'sessions'
    plans.mkdir(parents=True)
    run = session(400)['run']
    (plans / f'{run}.json').write_text('{}')
    done = suite.plumb('run', '--', '-n', 'OsuStartup', *OSU)
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if run in line]
    assert 'Set the clock' in line and 'ReFrame' not in done.stdout
    done = suite.reframe('-r', '-n', 'OsuStartup', *OSU)
    assert done.returncode == 1 and f'{run}.json: began at' in done.stderr
    assert [path.name for path in plans.iterdir()] == [f'{run}.json']
    # What measures nothing is not refused.
    assert suite.reframe('-l', '-n', 'OsuStartup', *OSU).returncode == 0
