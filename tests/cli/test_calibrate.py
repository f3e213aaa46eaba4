"""plumb references calibrate: rounds until there is enough to judge by."""
from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import OSU, ROOT, two_cpus
from data.perflogs_factory import record, write

from cli.session import calibrate, commands
from cli.setup.venv import SetupError
from config.sessions.ordering import KNOWN
from postprocess.perflogs import plans
from postprocess.references.progress import Judgement, Progress

A, B, C = 'osu_latency', 'osu_bw', 'osu_init'


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
        #: Speed of a round.
        self.speeds: dict[int, str] = {}
        #: Cases of each round, and when it began.
        self.rounds: list[list[str]] = []
        self.began: list[float] = []
        self.ended_by: dict[int, str] = {}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def measured(self, work: Any, *options: str, only: Any = None, variables: Any,
                 quiet: bool = False) -> commands.Ended:
        # The times of earlier sessions, for the cost and the order.
        assert variables['PLUMBLINE_ROUND'] == '1' and Path(variables[KNOWN]).is_file()
        cases = self.cases if only is None else [key[2] for key in only]
        self.rounds.append(cases)
        self.began.append(self.now)
        number = len(self.rounds)
        self.now += self.takes * len(cases)
        rows = [self.record(name, number) for name in cases]
        if not rows:
            return commands.Ended(1, '', None, [])
        write(self.folder, rows)
        plan = plans.Plan(Path('plan'), {
            'run': rows[0]['run'], 'system': 'alpha', 'time': '',
            'commit': '', 'reframe': ''}, [
                {name: str(row[name]) for name in plans.COLUMNS}
                | {'name': f'Check %{row["program"]}'} for row in rows])
        failed = any(row['guard'] for row in rows)
        return commands.Ended(int(failed), self.ended_by.get(number, ''), plan, [
            {'partition': row['partition'], 'environ': row['environ'],
             'hashcode': row['case'], 'no_reference': f'{self.bad[row["case"]]}: '
             + self.why.get(row['case'], 'why'),
             'transient': self.bad[row['case']] == 'interference'}
            for row in rows if row['case'] in self.bad])

    def record(self, name: str, number: int) -> dict[str, Any]:
        bad = self.bad.get(name, 'interference' if number in self.disturbed.get(
            name, ()) else '')
        more = {'program': name, 'params': f'program={name}', 'case': name,
                'speed': self.speeds.get(number, 'fast'), 'day': number}
        if bad in ('client-bound', 'interference'):
            return record(size=8, repetition=0, result='inconclusive', **more)
        if bad:
            return record('completed', 0.0, repetition=0, result='fail',
                          guard=bad, **more)
        return record(size=8, repetition=0, **more)

    def progress(self, frame: Any) -> list[Progress]:
        good = frame[(frame['guard'] == '')
                     & (frame['result'] != 'inconclusive')]
        results = []
        for (program, speed), rows in good.groupby(
                ['program', 'speed'], observed=True):
            runs = rows['run'].nunique()
            enough = self.enough.get(program, 3)
            needs = None if enough is None else max(enough - runs, 0)
            results.append(Progress(
                'osu', 'OsuPt2pt', 'alpha', 'cpu', 'openmpi', 'embedded', '', speed,
                f'program={program}', runs, [Judgement(
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
    return calibrate.Calibration(commands.Work(
        {'name': 'alpha'}, {'PLUMBLINE_PERFLOGS': str(machine.folder)}, [],
        True, []), minutes, interval=60.0, lists_all=lists_all)


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
        'osu_init /osu_init  fast: 1 session, 0 of 1 tolerances within the max '
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


def test_both_speeds_that_a_machine_shows_are_calibrated(machine):
    machine.cases = [A]
    machine.speeds = {2: 'slow', 4: 'slow', 6: 'slow'}
    assert calibration(machine).run_all_rounds() == 0
    assert len(machine.rounds) == 6
    # What fewer than a quarter of the runs were at is not waited for.
    machine.rounds.clear()
    machine.folder = machine.folder / 'other'
    machine.speeds, machine.enough = {2: 'slow'}, {A: 5}
    assert calibration(machine).run_all_rounds() == 0
    assert len(machine.rounds) == 6


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
        'unready 4 test cases: more sessions would not help osu_get_bw /osu_get_bw '
        '(latency@8B); osu_latency /osu_latency (latency@8B); osu_put_bw /osu_put_bw '
        '(latency@8B); and 1 more (--all)',
        'unready 1 test case: needs sessions on other days osu_init /osu_init '
        '(about 8)']


def test_what_is_hopeless_of_a_case_does_not_stop_the_rest_of_it():
    one = Progress('osu', 'Check', 'alpha', 'cpu', 'gnu', 'embedded', '', 'fast', '', 5,
                   [Judgement('latency@8B', 1.0, 0.9, 0.3, 3, 3),
                    Judgement('worst_ratio', 1.0, 0.9, 0.3, None, None)])
    standing = calibrate.Standing([one])
    assert standing.sessions_needed == 3 and not standing.is_ready
    assert str(standing).endswith('more sessions would not help (worst_ratio), needs '
                                  'more sessions (about 3)')


def test_each_speed_class_is_counted(machine, capsys):
    machine.speeds = {2: 'slow', 4: 'slow', 6: 'slow'}
    machine.enough = {A: 2, B: 2, C: 3}
    subset = calibration(machine, minutes=3)
    assert subset.run_all_rounds() == subset.print_unready_reasons() == 0
    output = capsys.readouterr().out
    assert 'round 1: 0 of 3 test cases ready, 3 to go' in output
    assert ('round 3: 0 of 3 test cases ready (CPU speed class fast 2 of 3, slow 0 of '
            '3), 3 to go' in output)
    assert ('ready    2 of 3 test cases at CPU speed class fast' in output
            and '3 test cases: needs more sessions at CPU speed class slow' in output)


def test_the_time_that_is_left_is_that_of_the_slowest_test_case(machine, capsys):
    """One that is often inconclusive needs more rounds than sessions."""
    machine.enough = {A: 5, B: 12, C: 12}
    machine.disturbed = {B: {2, 3, 5, 6}}
    subset = calibration(machine)
    for _ in range(6):
        subset.read_round_results(subset.run_round())
    # 13 of 17 measurements were usable, and 2 of 6 of B, which needs 10 more.
    assert 25 < 10 * (6 + 1) / (2 + 13 / 17) < 26
    assert subset.time_left_text(30) == ', at least 26 min left'
    for _ in range(3):
        subset.read_round_results(subset.run_round())
    assert subset.standing[next(iter(subset.unready_test_cases))].sessions_needed == 7
    assert subset.time_left_text(90).startswith(', about ')
    machine.bad = dict.fromkeys([A, B, C], 'interference')
    nothing = calibration(machine)
    nothing.read_round_results(nothing.run_round())
    assert nothing.time_left_text(30) == ''


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
        assert ('1 test case: left out, failed in the last 3 rounds  osu_bw /osu_bw; '
                'exit_code' in output)
        assert 'no conclusive session yet; exit_code' in output
    else:
        assert (f'1 test case: left out, inconclusive in the last {rounds} rounds  '
                f'osu_bw /osu_bw; {bad}: why' in output)


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
    once = subset.run_round()
    subset.read_round_results(once)
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
    assert calibration(machine).run_all_rounds() == 1
    assert 'no test case ran' in capsys.readouterr().err


@pytest.mark.parametrize('given, words', [
    ({'minutes': 0.0}, '--minutes is 0; it must be more'),
    ({'reframe': ['--dry-run']}, '--dry-run measures nothing')])
def test_what_makes_no_sense_is_usage(given, words):
    args = argparse.Namespace(**{'minutes': 1.0, 'reframe': [], **given})
    with pytest.raises(SetupError, match=words):
        calibrate.calibrate(args)


def test_a_session_runs_only_the_cases_that_are_named(suite, tmp_path):
    pick = [*OSU, '-n', 'OsuStartup', '-E',
            'program in ("osu_hello", "osu_init")', '--mode=quick',
            '-Sbringup=1']
    assert suite.reframe('-r', *pick).returncode == 0
    rows = {(r['partition'], r['environ'], r['case']) for r in suite.records
            if r['program'] == 'osu_init'}
    only = tmp_path / 'only.json'
    only.write_text(json.dumps(sorted(rows)))
    done = suite.reframe('-r', *pick, PLUMBLINE_ONLY=str(only))
    assert done.returncode == 0, done.stdout
    assert 'Ran 2/2 test case' in done.stdout       # with what it is built by
    first, second = dict.fromkeys(r['run'] for r in suite.records)
    assert {r['program'] for r in suite.records if r['run'] == second} == {
        'osu_init'}
    assert plans.partial_sessions([suite.tmp / 'perflogs']) == {second: None}
    only.write_text('[]')
    done = suite.reframe('-r', *pick, PLUMBLINE_ONLY=str(only))
    assert done.returncode == 2


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
        deadline = time.monotonic() + 120
        while not suite.records:
            assert time.monotonic() < deadline and job.poll() is None
            time.sleep(0.2)
        job.send_signal(signal.SIGTERM)
        output, _ = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 1, output
    assert 'Interrupted. The values measured so far are kept' in output
    assert suite.records


def test_a_signal_during_a_query_of_duckdb_is_an_interrupt():
    """DuckDB turns the exception of the signal handler into its own."""
    import duckdb

    pid, signal_number = os.getpid(), int(signal.SIGTERM)
    sender = subprocess.Popen(['sh', '-c', f'sleep 0.5; kill -{signal_number} '
                               f'{pid}'])
    with pytest.raises(KeyboardInterrupt), calibrate.raise_interrupt_on_signals():
        duckdb.sql('select count(*) from range(1000000000) a, range(1000) b'
                   ).fetchall()
    assert sender.wait() == 0
    with pytest.raises(RuntimeError), calibrate.raise_interrupt_on_signals():
        raise RuntimeError('another error')


def test_a_signal_that_a_wrapper_repeats_is_one():
    """The second one must not end what follows the first, such as a summary."""
    with pytest.raises(KeyboardInterrupt), calibrate.raise_interrupt_on_signals():
        sender = subprocess.Popen([
            'sh', '-c', 'for i in 1 2; do sleep 0.5; kill -TERM $1; done', '',
            str(os.getpid())])
        time.sleep(30)
    assert sender.wait() == 0


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
    work = commands.Work(
        {'name': 'alpha'}, {'PLUMBLINE_PERFLOGS': '',
                            'RFM_REFERENCE_PREFIX': str(tmp_path)},
        [], True, [])
    args = argparse.Namespace(site='lumi', accept=accept)
    assert calibrate._propose_and_accept_references(args, work, {'osu'}) == (
        0, True)
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
    work = commands.Work(
        {'name': 'alpha'}, {'PLUMBLINE_PERFLOGS': '',
                            'RFM_REFERENCE_PREFIX': str(tmp_path)}, [], True, [])
    assert calibrate._propose_and_accept_references(
        argparse.Namespace(site='lumi', accept=True), work, {'osu'}) == (code, False)
    assert words in capsys.readouterr().err


def test_the_way_to_references_is_calibrate_everywhere():
    files = [ROOT / 'README.md', *ROOT.glob('docs/*/*.md'),
             *ROOT.glob('site-configs/*/README.md'),
             *ROOT.glob('cli/*.py')]
    for path in files:
        text = path.read_text()
        assert not re.search(r'three times$|after three|After 3 runs|'
                             r'three times, then', text, re.MULTILINE), path
        if 'references accept --site' in text:
            assert 'references calibrate --site' in text, path
