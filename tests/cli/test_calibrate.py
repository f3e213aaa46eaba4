"""plumb references calibrate: rounds until there is enough to judge by."""
from __future__ import annotations

import argparse
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT, OSU, ROOT, two_cpus, until
from data.perflogs_factory import record, short_id, write

from cli.session import calibrate, commands
from cli.setup.venv import SetupError
from postprocess.references.progress import Judgement, Progress

A, B, C = 'osu_latency', 'osu_bw', 'osu_init'


def shown(name: str) -> str:
    """The short name of a test case."""
    return f'{name} (embedded) {short_id(record(params=f"program={name}"))}'


class Machine:
    """Stands in for ReFrame, the clock, and what the runs are worth."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0
        #: Seconds that a case takes.
        self.takes = 10.0
        self.cases = [A, B, C]
        #: Runs that a case needs; None: never.
        self.enough: dict[str, int | None] = {}
        #: Cases that need these on other days.
        self.other_days: set[str] = set()
        #: Case -> guard of its runs, or why they are inconclusive.
        self.bad: dict[str, str] = {}
        #: Case -> the text of the session.
        self.why: dict[str, str] = {}
        #: Case -> rounds in which it has interference.
        self.disturbed: dict[str, set[int]] = {}
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
        bad = self.bad.get(name, 'interference' if number in self.disturbed.get(
            name, ()) else '')
        more = {'program': name, 'params': f'program={name}',
                'name': f'Check %program={name}', 'day': number}
        if bad in ('client-bound', 'interference'):
            reason = f'{bad}: {self.why.get(name, "why")}'
            return record(size=8, inconclusive=reason, no_reference=reason,
                          transient=bad == 'interference', **more)
        if bad:
            return record('completed', 0.0, guard=bad, **more)
        return record(size=8, **more)

    def progress(self, frame: Any) -> list[Progress]:
        good = frame[(frame['guard'] == '')
                     & (frame['result'] != 'inconclusive')]
        results = []
        for (program, test_case), rows in good.groupby(
                ['program', 'test_case'], observed=True):
            runs = rows['session'].nunique()
            enough = self.enough.get(program, 3)
            needs = None if enough is None else max(enough - runs, 0)
            results.append(Progress(
                'osu', 'OsuPt2pt', 'alpha', 'cpu', 'openmpi', 'embedded', '',
                f'program={program}', '', test_case, runs, [Judgement(
                    'latency@8B', 1.0, 0.9, 0.3, needs,
                    None if program in self.other_days else needs)]))
        return results


@pytest.fixture
def machine(tmp_path, monkeypatch):
    machine = Machine(tmp_path / 'perflogs')
    monkeypatch.setattr(calibrate, 'progress_of_test_cases', machine.progress)
    monkeypatch.setattr(commands, 'run_reframe_session', machine.measured)
    monkeypatch.setattr(calibrate, 'time', machine)
    return machine


def calibration(machine, minutes=60.0, lists_all=False):
    return calibrate.Calibration(
        work(PLUMBLINE_PERFLOGS=str(machine.folder)), minutes, interval=60.0,
        lists_all=lists_all)


def work(**variables: str) -> commands.Work:
    return commands.Work({'name': 'alpha', 'partitions': []}, variables, [], [], True,
                         [], False)


def measure_round(calibration: calibrate.Calibration) -> None:
    calibration.read_round_results([one.session for one in calibration.run_round()])


def test_each_round_runs_what_is_not_there_yet(machine, capsys):
    machine.enough = {A: 1, B: 2, C: 4}
    assert calibration(machine, lists_all=True).run_all_rounds() == 0
    assert machine.rounds == [[A, B, C], [B, C], [C], [C]]
    # Spread over the time, also where a round is short.
    gaps = [b - a for a, b in zip(machine.began, machine.began[1:],
                                  strict=False)]
    assert min(gaps) == 60
    output = capsys.readouterr().out
    assert (
        f'{shown(C)}  1 session, 0 of 1 tolerances within the max '
        'tolerance, needs more sessions (about 3)' in output
    )
    assert ('round 1: 1 of 3 test cases ready, 2 to go; this round took 30 s, at least '
            '3 min left, at most 59 min' in output)
    assert 'round 4: 3 of 3 test cases ready; this round took 10 s\n' in output


def test_test_cases_that_are_not_ready_are_only_counted(machine, capsys):
    machine.enough = {A: 1, B: 2, C: 4}
    assert calibration(machine).run_all_rounds() == 0
    output = capsys.readouterr().out
    assert 'needs more' not in output
    assert '1 of 3 test cases ready, 2 to go (--all lists them)' in output


def test_what_earlier_runs_have_left_counts(machine):
    machine.enough = dict.fromkeys([A, B, C], 4)
    write(machine.folder, [machine.record(A, day) for day in (-2, -1)])
    assert calibration(machine, minutes=1).run_all_rounds() == 0
    assert machine.rounds == [[A, B, C]], 'the first round is always made'
    assert calibration(machine).run_all_rounds() == 0
    assert len(machine.rounds) > 2
    ran = Counter(name for round in machine.rounds for name in round)
    assert ran == {A: 2, B: 4, C: 4}


def test_no_round_is_begun_that_would_not_end_in_time(machine, capsys):
    machine.takes = 100.0                               # a round: 5 minutes
    machine.enough = dict.fromkeys([A, B, C], 99)
    assert calibration(machine, minutes=14).run_all_rounds() == 0
    assert len(machine.rounds) == 2 and machine.now <= 14 * 60
    assert 'Stopped: another round' in capsys.readouterr().out


def test_what_cannot_become_ready_today_has_one_line_per_reason(machine, capsys):
    more = [f'osu_{name}' for name in ('put_bw', 'put_latency', 'get_bw')]
    machine.cases += more
    machine.enough = {A: None, B: 1, C: 9, **dict.fromkeys(more, None)}
    machine.other_days = {C}
    subset = calibration(machine)
    assert subset.run_all_rounds() == subset.print_unready_reasons() == 0
    assert len(machine.rounds) == 1
    output = capsys.readouterr().out
    assert 'round 1: 1 of 6 test cases ready, 5 left out; this round' in output
    assert [' '.join(line.split()) for line in output.splitlines()[-2:]] == [
        'unready 4 test cases: more sessions would not help '
        + '; '.join(f'{shown(name)} (latency@8B)'
                    for name in ('osu_get_bw', 'osu_latency', 'osu_put_bw'))
        + '; and 1 more (--all)',
        'unready 1 test case: needs sessions on other days '
        f'{shown(C)} (about 8)']


@pytest.mark.parametrize('bad, rounds, code', [
    ('exit_code', 3, 1), ('client-bound', 3, 0), ('interference', 12, 0)])
def test_after_bad_rounds_a_case_is_left_out(machine, capsys, bad, rounds, code):
    """Interference may end, and a round measures a test case only once."""
    machine.bad, machine.enough = {B: bad}, {A: 5, C: 5}
    subset = calibration(machine)
    assert subset.run_all_rounds() == 0
    ran = Counter(name for round in machine.rounds for name in round)
    assert ran == {A: 5, B: rounds, C: 5}, 'the others go on'
    assert subset.print_unready_reasons() == code
    output = capsys.readouterr().out
    assert '2 of 3 test cases ready, 1 left out; this round' in output
    if code:
        assert ('1 test case: left out, failed in the last 3 rounds  '
                f'{shown(B)}; exit_code' in output)
        assert 'no conclusive session yet; exit_code' in output
    else:
        assert (f'1 test case: left out, inconclusive in the last {rounds} rounds  '
                f'{shown(B)}; {bad}: why' in output)


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
    measure_round(subset)
    assert subset.failed and not subset.excluded_test_cases
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
    ({'minutes': 0.0}, '--minutes is 0; it must be more'),
    ({'reframe': ['--dry-run']}, '--dry-run measures nothing')])
def test_what_makes_no_sense_is_usage(given, words):
    args = argparse.Namespace(**{'minutes': 1.0, 'reframe': [], **given})
    with pytest.raises(SetupError, match=words):
        calibrate.calibrate(args)


@two_cpus
@pytest.mark.timeout(1200)
def test_from_a_bare_machine_to_a_judgement(suite):
    """The path of docs/how-to/references.md: run, calibrate, run."""
    pick = ['--', *OSU, '-n', 'OsuStartup', '-E',
            'program == "osu_init"']
    done = suite.plumb('run', *pick)
    assert done.returncode == 0, done.stdout + done.stderr
    assert './plumb references calibrate' in done.stdout
    done = suite.plumb('references', 'calibrate', '--accept', '--interval',
                       '1', '--minutes', '60', *pick, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'round 4: ' in done.stdout
    path = suite.tmp / 'references' / 'osu.yaml'
    assert path.is_file(), done.stdout + done.stderr
    assert '$from' in path.read_text()
    done = suite.plumb('run', *pick)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'Bring-up' not in done.stdout


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


def test_a_signal_during_a_query_of_duckdb_is_an_interrupt():
    """DuckDB turns the exception of the signal handler into its own."""
    import duckdb

    with pytest.raises(KeyboardInterrupt), calibrate.raise_interrupt_on_signals():
        sender = subprocess.Popen(
            ['sh', '-c', f'sleep 0.5; kill -TERM {os.getpid()}'])
        duckdb.sql('select count(*) from range(1000000000) a, range(1000) b'
                   ).fetchall()
    assert sender.wait() == 0
    with pytest.raises(RuntimeError), calibrate.raise_interrupt_on_signals():
        raise RuntimeError('another error')


def test_a_signal_that_a_wrapper_repeats_is_one():
    """The second one must not end what follows the first, such as a summary."""
    with pytest.raises(KeyboardInterrupt), calibrate.raise_interrupt_on_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)


PROPOSED = """\
OsuStartup:
  $index: [$partition, params]
  'alpha:cpu': {'%s': {init_time: [1.0, null, 0.1, ms]}}
"""


@pytest.mark.parametrize('accept', [False, True])
@pytest.mark.parametrize('known', [False, True])
def test_only_accept_accepts_and_only_what_is_new(tmp_path, monkeypatch,
                                                  accept, known):
    """On every site: here lumi."""
    path = tmp_path / 'osu.yaml'
    if known:
        path.write_text(PROPOSED % 'program=osu_init')
    before = path.read_bytes() if known else b''
    proposal = tmp_path / 'osu.proposed.yaml'
    proposal.write_text((PROPOSED % 'program=osu_init'
                         ).replace('1.0', '2.0'))
    monkeypatch.setattr(
        calibrate.references, 'make_and_write_system_proposals',
        lambda *_: calibrate.references.acceptance.read_proposals(tmp_path))
    args = argparse.Namespace(site='lumi', accept=accept)
    assert calibrate._propose_and_accept_references(
        args, work(PLUMBLINE_PERFLOGS='', RFM_REFERENCE_PREFIX=str(tmp_path)),
        {'osu'}) == (0, True)
    if accept and not known:
        assert 'init_time: [2.0, ' in path.read_text()
    else:
        assert (path.read_bytes() if path.exists() else b'') == before


@pytest.mark.parametrize('code, proposed', [(0, True), (0, False), (2, False)])
def test_nothing_is_to_be_accepted_if_nothing_was_proposed(
        machine, capsys, monkeypatch, code, proposed):
    machine.enough = dict.fromkeys([A, B, C], 1)
    for module, name, value in (
            (commands, 'write_report_page', ('index.html', None)),
            (calibrate, '_propose_and_accept_references', (code, proposed))):
        monkeypatch.setattr(module, name, lambda *_, value=value: value)
    assert calibrate._calibrate_and_propose(argparse.Namespace(
        site='alpha', minutes=1.0, interval=60.0, all=False, accept=False, reframe=[]),
        calibration(machine).work) == code
    assert ('Next: ./plumb references accept --site alpha, if' in
            capsys.readouterr().out) is proposed


@pytest.mark.parametrize('fault, code, words', [
    (calibrate.references.TooFewSessions('1 of 3 runs'), 0,
     'nothing is proposed yet: 1 of'),
    (calibrate.references.Refused('several programs'), 1, 'references: several'),
    (ValueError('damaged'), 2, 'plumb references: damaged')])
def test_too_few_sessions_for_a_proposal_are_no_error(
        tmp_path, monkeypatch, capsys, fault, code, words):
    def refuse(*_):
        raise fault
    monkeypatch.setattr(calibrate.references, 'make_and_write_system_proposals', refuse)
    assert calibrate._propose_and_accept_references(
        argparse.Namespace(site='lumi', accept=True),
        work(PLUMBLINE_PERFLOGS='', RFM_REFERENCE_PREFIX=str(tmp_path)),
        {'osu'}) == (code, False)
    assert words in capsys.readouterr().err
