"""plumb references calibrate: rounds until each test case has enough sessions."""
from __future__ import annotations

import argparse
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT, OSU, ROOT, until
from data.perflogs_factory import record, short_id, write

from cli import __main__
from cli.session import calibrate, commands
from cli.setup.venv import SetupError

A, B, C = 'osu_latency', 'osu_bw', 'osu_init'


def shown(name: str) -> str:
    """The short name of a test case."""
    return f'{name} (embedded) {short_id(record(params=f"program={name}"))}'


class Machine:
    """Stands in for ReFrame and the clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0
        #: Seconds that a case takes.
        self.takes = 10.0
        self.cases = [A, B, C]
        #: Case -> guard of its runs, or why they are inconclusive.
        self.bad: dict[str, str] = {}
        #: Case -> the text of the session.
        self.why: dict[str, str] = {}
        #: Cases of each round, and when it began.
        self.rounds: list[list[str]] = []
        self.began: list[float] = []
        self.ended_by: dict[int, str] = {}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def measured(self, work: Any, *options: str, any_mode: bool = False
                 ) -> commands.Ended:
        cases = [name for name in self.cases
                 if not any_mode or f'^Check%program={name}$' in options]
        self.rounds.append(cases)
        self.began.append(self.now)
        number = len(self.rounds)
        self.now += self.takes * len(cases)
        rows = [self.record(name, number) for name in cases]
        if not rows:
            return commands.Ended('', 1, '', False, Path())
        write(self.folder, rows)
        return commands.Ended(
            rows[0]['session'], int(any(row['guard'] for row in rows)),
            self.ended_by.get(number, ''), True, Path())

    def record(self, name: str, number: int) -> dict[str, Any]:
        bad = self.bad.get(name, '')
        more = {'program': name, 'params': f'program={name}',
                'name': f'Check %program={name}', 'day': number}
        if bad in ('client-bound', 'interference'):
            reason = f'{bad}: {self.why.get(name, "why")}'
            return record(size=8, inconclusive=reason, no_reference=reason,
                          transient=bad == 'interference', **more)
        if bad == 'slow':
            return record(size=8, value=2.0, reference=1.0, upper=0.1, result='fail',
                          **more)
        if bad:
            return record('completed', 0.0, guard=bad, **more)
        return record(size=8, **more)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    machine = Machine(tmp_path / 'perflogs')
    monkeypatch.setattr(commands, 'run_reframe_session', machine.measured)
    monkeypatch.setattr(calibrate, 'time', machine)
    return machine


def arguments(**changed: Any) -> argparse.Namespace:
    return argparse.Namespace(**{
        'site': 'alpha', 'minutes': 60.0, 'interval': 60.0, 'sessions': 5, 'all': False,
        'new_level': False, 'reframe': [], **changed})


def calibration(machine, **changed):
    return calibrate.Calibration(
        work(PLUMBLINE_PERFLOGS=str(machine.folder)), arguments(**changed))


def work(**variables: str) -> commands.Work:
    return commands.Work({'name': 'alpha', 'partitions': []}, variables, [], [], True,
                         [], False)


def measured(machine) -> Counter:
    """The number of rounds of each case."""
    return Counter(name for names in machine.rounds for name in names)


def test_each_round_runs_what_has_too_few_sessions(machine, capsys):
    # What earlier sessions have left counts.
    write(machine.folder, [machine.record(A, day) for day in (-4, -3, -2, -1)])
    write(machine.folder, [machine.record(B, day) for day in (-8, -7)])
    assert calibration(machine, all=True).run_all_rounds() == 0
    assert machine.rounds == [[A, B, C], [B, C], [B, C], [C], [C]]
    # Spread over the time, also where a round is short.
    gaps = [b - a for a, b in zip(machine.began, machine.began[1:], strict=False)]
    assert min(gaps) == 60
    output = capsys.readouterr().out
    assert f'unready  {shown(C)}  1 of 5 sessions' in output
    assert ('round 1: 1 of 3 test cases ready, 2 to go; this round took 30 s, at least '
            '4 min left, at most 59 min' in output)
    assert 'round 5: 3 of 3 test cases ready; this round took 10 s\n' in output


def test_test_cases_that_are_not_ready_are_only_counted(machine, capsys):
    assert calibration(machine, minutes=0).run_all_rounds() == 0
    output = capsys.readouterr().out
    assert 'of 5 sessions' not in output
    assert '0 of 3 test cases ready, 3 to go (--all lists them)' in output


def test_no_round_is_begun_that_would_not_end_in_time(machine, capsys):
    machine.takes = 100.0                               # a round: 5 minutes
    subset = calibration(machine, minutes=14)
    assert subset.run_all_rounds() == subset.print_unready_reasons() == 0
    assert len(machine.rounds) == 2 and machine.now <= 14 * 60
    output = capsys.readouterr().out
    assert 'Stopped: another round' in output
    assert f'3 test cases: needs more sessions  {shown(B)} (2 of 5 sessions)' in (
        ' '.join(output.split('\n')))


@pytest.mark.parametrize('bad, rounds, code', [
    ('exit_code', 3, 1), ('client-bound', 3, 0), ('interference', 6, 0)])
def test_after_bad_rounds_a_case_is_left_out(machine, monkeypatch, capsys, bad, rounds,
                                             code):
    """Interference may end, and a round measures a test case only once."""
    monkeypatch.setattr(calibrate, 'DISTURBED_ROUNDS', 6)
    machine.bad = {B: bad}
    subset = calibration(machine)
    assert subset.run_all_rounds() == 0
    assert measured(machine) == {A: 5, B: rounds, C: 5}, 'the others go on'
    assert subset.print_unready_reasons() == code
    output = capsys.readouterr().out
    assert '2 of 3 test cases ready, 1 left out; this round' in output
    if code:
        assert ('1 test case: left out, failed in the last 3 rounds  '
                f'{shown(B)} (0 of 5 sessions); exit_code' in output)
        assert '0 of 5 sessions; exit_code' in output
    else:
        assert (f'1 test case: left out, inconclusive in the last {rounds} rounds  '
                f'{shown(B)} (0 of 5 sessions); {bad}: why' in output)


@pytest.mark.parametrize('new_level, rounds, code', [(False, 3, 1), (True, 5, 0)])
def test_a_new_level_counts_what_only_its_reference_failed(
        machine, new_level, rounds, code):
    """And nothing that was measured before."""
    machine.cases, machine.bad = [A], {A: 'slow'}
    write(machine.folder, [
        machine.record(A, day) | {'value': 1.0, 'result': 'pass'} for day in (-2, -1)])
    subset = calibration(machine, new_level=new_level)
    assert subset.run_all_rounds() == 0
    assert len(machine.rounds) == rounds
    assert subset.print_unready_reasons() == code


@pytest.mark.parametrize('bad, lines', [('client-bound', 2), ('interference', 1)])
def test_interference_by_whatever_process_is_one_reason(machine, capsys, bad, lines):
    machine.cases, machine.bad = [A, B], {A: bad, B: bad}
    machine.why = {A: 'python', B: 'make'}
    subset = calibration(machine, minutes=0)
    assert subset.run_all_rounds() == subset.print_unready_reasons() == 0
    assert capsys.readouterr().out.count('\nunready') == lines


def test_a_failure_that_is_gone_is_forgotten(machine):
    machine.bad = {B: 'time_limit'}
    subset = calibration(machine)
    subset.read_round_results([one.session for one in subset.run_round()])
    assert subset.failed == {short_id(record(params=f'program={B}'))}
    machine.bad = {}
    assert subset.run_all_rounds() == subset.print_unready_reasons() == 0


def test_a_round_that_a_signal_ended_is_the_last(machine):
    machine.ended_by = {2: 'SIGTERM'}
    with pytest.raises(KeyboardInterrupt):
        calibration(machine).run_all_rounds()
    assert len(machine.rounds) == 2


def test_zero_cases_are_an_error(machine, capsys):
    machine.cases = []
    assert calibration(machine).run_all_rounds() == 2
    assert 'no test case ran' in capsys.readouterr().err


@pytest.mark.parametrize('given, words', [
    (['--minutes', '0'], "'0' is not a number of at least 0.001"),
    (['--sessions', '4'], "'4' is not a number of at least 5"),
    (['--dry-run'], '--dry-run measures nothing')])
def test_what_makes_no_sense_is_usage(given, words, capsys):
    with pytest.raises((SetupError, SystemExit)) as error:
        calibrate.calibrate(__main__.parse_command_line(
            ['references', 'calibrate', *given]))
    assert words in str(error.value) + capsys.readouterr().err


def code_of_calibrate(machine, folder: Path, monkeypatch) -> int:
    """The exit code of a calibration that writes to a folder, without the page."""
    monkeypatch.setattr(commands, 'write_report_page',
                        lambda *_, **__: ('index.html', None))
    return calibrate._calibrate_and_write(
        arguments(), work()._replace(variables={
            'PLUMBLINE_PERFLOGS': str(machine.folder),
            'RFM_REFERENCE_PREFIX': str(folder)}))


@pytest.mark.parametrize('text, code', [('', 0), ('OsuPt2pt: 3', 2)])
def test_what_was_measured_is_written(machine, monkeypatch, tmp_path, capsys, text,
                                      code):
    """And no other test case of the perflogs."""
    if text:
        (tmp_path / 'osu.yaml').write_text(text)
    write(machine.folder, [machine.record('osu_get_bw', day) for day in range(-6, 0)])
    assert code_of_calibrate(machine, tmp_path, monkeypatch) == code
    after = (tmp_path / 'osu.yaml').read_text()
    if code:
        assert after == text
    else:
        assert f'program={A}' in after and 'osu_get_bw' not in after
        assert ' have a tolerance, in ' in capsys.readouterr().out


def test_nothing_written_is_no_success(machine, monkeypatch, tmp_path, capsys):
    machine.bad = dict.fromkeys([A, B, C], 'client-bound')
    assert code_of_calibrate(machine, tmp_path, monkeypatch) == 1
    assert 'no reference was written' in capsys.readouterr().err


def test_a_signal_ends_it_and_keeps_what_was_measured(suite):
    job = subprocess.Popen(
        [str(ROOT / 'plumb'), 'references', 'calibrate', '--', *OSU,
         '-n', 'OsuStartup', '-E', 'program == "osu_init"'], text=True,
        env={**os.environ, **suite.variables}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT)
    try:
        until(lambda: suite.records, job)
        job.send_signal(signal.SIGTERM)
        output, _ = job.communicate(timeout=LIMIT)
    finally:
        job.kill()
    assert job.returncode == 1, output
    assert 'Interrupted. The values measured so far are kept' in output
    assert suite.records


@pytest.fixture
def kept_signals():
    """What a test in this process ignores, no program of a later test ignores."""
    before = {number: signal.getsignal(number)
              for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures('kept_signals')
def test_a_signal_during_a_query_of_duckdb_is_an_interrupt():
    """DuckDB turns the exception of the signal handler into its own. With several
    threads it may go on with the query, which takes a CPU until this worker ends."""
    import duckdb

    with (duckdb.connect(config={'threads': 1}) as con,
          pytest.raises(KeyboardInterrupt), calibrate.raise_interrupt_on_signals()):
        sender = subprocess.Popen(
            ['sh', '-c', f'sleep 0.5; kill -TERM {os.getpid()}'])
        con.sql('select count(*) from range(1000000000) a, range(1000) b').fetchall()
    assert sender.wait() == 0
    with pytest.raises(RuntimeError), calibrate.raise_interrupt_on_signals():
        raise RuntimeError('another error')


@pytest.mark.usefixtures('kept_signals')
def test_a_signal_that_a_wrapper_repeats_is_one():
    """The second one must not end what follows the first, such as a summary."""
    with pytest.raises(KeyboardInterrupt), calibrate.raise_interrupt_on_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
