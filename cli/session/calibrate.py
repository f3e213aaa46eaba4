"""plumb references calibrate: sound sessions of each test case, then reference files.

A round has the test cases that have fewer sound sessions than --sessions: one session
of ReFrame for each place and settings. So the measurements of a test case are spread
over the time. The perflogs keep everything: the next calibration continues from them.
"""
from __future__ import annotations

import argparse
import contextlib
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cli.session import commands, identities, table
from cli.setup.venv import print_progress
from config import console
from config.places import CALIBRATE, site_option
from config.sessions.progress import duration_text
from postprocess import records, results
from postprocess.references import writing
from postprocess.references.progress import (
    Progress,
    progress_of_test_cases,
    sound_sessions_by_test_case,
)

#: A test case that failed, or was inconclusive, in so many rounds in a row is
#: left out of the next rounds.
ROUNDS = 3
#: The same for one with interference, which may end.
DISTURBED_ROUNDS = 12
#: Names of test cases that are printed with a reason.
NAMES = 3


class Calibration:
    """The test cases of a mode, and their sound sessions."""

    def __init__(self, work: commands.Work, args: argparse.Namespace) -> None:
        self.work = work
        #: Sound sessions that each test case needs.
        self.sessions: int = args.sessions
        #: Whether sessions count that only their reference failed, and no session
        #: before this command.
        self.new_level: bool = args.new_level
        #: Whether each round lists the test cases that are not ready.
        self.lists_all: bool = args.all
        #: Seconds between the beginnings of two rounds, at least.
        self.interval: float = args.interval
        self.end = time.monotonic() + 60 * args.minutes
        #: ReFrame sessions of all rounds, and the number of rounds begun.
        self.names: list[str] = []
        self.rounds = 0
        #: All of these are by the short IDs of test cases.
        self.identities: dict[str, identities.Identity] = {}
        #: How each test case ended in its last round.
        self.rows: dict[str, table.Row] = {}
        #: Sound sessions, and rounds in a row without one.
        self.sound: Counter[str] = Counter()
        self.barren: Counter[str] = Counter()
        #: Test cases that failed in their last round.
        self.failed: set[str] = set()

    @property
    def incomplete(self) -> list[str]:
        """Test cases with too few sound sessions."""
        return [key for key in self.rows if self.sound[key] < self.sessions]

    @property
    def unready_test_cases(self) -> list[str]:
        """Test cases with too few sound sessions that are measured again."""
        return [key for key in self.incomplete if self.barren[key] < (
            DISTURBED_ROUNDS if self.rows[key].transient else ROUNDS)]

    def run_all_rounds(self) -> int:
        """Run all rounds; return 0, or the exit code of one without test
        cases.

        :raises KeyboardInterrupt: a signal ended a round
        """
        while True:
            began = time.monotonic()
            ended = self.run_round()
            if any(one.ended_by for one in ended):
                raise KeyboardInterrupt
            if not ended[-1].has_begun:
                return commands.print_zero_test_cases_reason(self.work, ended[-1])
            self.read_round_results([one.session for one in ended])
            took = time.monotonic() - began
            self.print_round_progress(took)
            if not self.unready_test_cases:
                return 0
            now = time.monotonic()
            pause = max(began + self.interval - now, 0.0)
            if now + pause + took > self.end:
                print('\nStopped: another round of '
                      f'{duration_text(took)} would exceed --minutes.')
                return 0
            if pause:
                print_progress(f'the next round begins in {pause:.0f} s')
                time.sleep(pause)

    def run_round(self) -> list[commands.Ended]:
        """Run the sessions of a round: first all test cases, later those that are not
        ready."""
        self.rounds += 1
        if self.rounds == 1:
            return [commands.run_reframe_session(self.work)]
        print_progress(
            f'round {self.rounds}: '
            + console.count_with_noun(len(self.unready_test_cases), 'test case')
            + ' without enough sessions'
        )
        return [*commands.run_test_cases(
            self.work, [self.identities[key] for key in self.unready_test_cases])]

    def read_round_results(self, sessions: Sequence[str]) -> None:
        """Read the records after a round."""
        self.names += sessions
        frame, faults = records.read(self.work.perflog_folder, on_error='collect')
        for fault in faults:
            print(f'plumb references: {fault}')
        of_round = frame[frame['session'].isin(sessions)]
        self.identities = identities.identities_of_records(of_round) | self.identities
        ended_so = {one.test_case: one for session in sessions
                    for one in results.results_of_session(frame, session).values()}
        self.rows |= {row.test_case: row for session in sessions
                      for row in table.rows_of_session(
                          frame, session, self.work.perflog_folder)}
        # A test case that lacks a reference does have values.
        failed = {key for key, one in ended_so.items() if one.is_failed
                  and one.guard != 'reference' and (one.guard or not self.new_level)}
        self.failed = self.failed - ended_so.keys() | failed
        if self.new_level:
            frame = frame[frame['session'].isin(self.names)]
        self.sound |= sound_sessions_by_test_case(frame, of_round, self.new_level)
        sound_now = sound_sessions_by_test_case(of_round, of_round, self.new_level)
        for key in ended_so:
            self.barren[key] = 0 if sound_now[key] else self.barren[key] + 1

    def print_round_progress(self, took: float) -> None:
        """Print the progress, one line per test case that is not ready."""
        now = time.monotonic()
        missing = self.unready_test_cases
        print()
        shown = missing if self.lists_all else [
            key for key in missing if key in self.failed]
        console.print_entries([
            ('fail' if key in self.failed else 'unready', self.rows[key].name,
             [f'{self.sound[key]} of {self.sessions} sessions',
              *filter(None, [self.last_round_text(key)])])
            for key in sorted(shown, key=lambda key: key in self.failed)])
        ready = len(self.rows) - len(self.incomplete)
        left_out = len(self.incomplete) - len(missing)
        rounds = max((self.sessions - self.sound[key] for key in missing), default=0)
        console.print_lines([
            f'round {self.rounds}: {ready} of '
            f'{console.count_with_noun(len(self.rows), "test case")} ready'
            + f', {len(missing)} to go' * bool(missing)
            + ' (--all lists them)' * (len(shown) < len(missing))
            + f', {left_out} left out' * bool(left_out)
            + f'; this round took {duration_text(took)}'
            + (f', at least {duration_text(rounds * max(took, self.interval))} left'
               f', at most {duration_text(max(self.end - now, 0))}') * bool(missing)])
        if len(shown) < len(missing) and (reason := next(
                filter(None, map(self.last_round_text, missing)), '')):
            console.print_lines([
                f'  a measurement that did not count, for example: {reason[:160]}'])
        sys.stdout.flush()

    def last_round_text(self, key: str) -> str:
        """Why the last round of a test case did not count; '': it counted."""
        row = self.rows[key]
        return (row.text if key in self.failed else row.note) * bool(self.barren[key])

    def print_unready_reasons(self) -> int:
        """Print why test cases have too few sessions, one entry per reason, with the
        first names; return the exit code."""
        #: Without numbers, and the processes that interfered -> with them, and names.
        entries: dict[tuple[str, str], tuple[str, str, list[str]]] = {}
        for key in sorted(self.incomplete, key=lambda key: self.rows[key].name):
            row, rounds, text = (
                self.rows[key], self.barren[key], self.last_round_text(key))
            reason = 'needs more sessions' if not rounds else (
                'left out, ' * (key not in self.unready_test_cases)
                + f'{"failed" if key in self.failed else row.result} in the last '
                + (f'{rounds} rounds' if rounds > 1 else 'round'))
            group = re.sub(r'\d+', '0', reason), re.sub(
                r'\d+', '0', text) * (not row.transient)
            entries.setdefault(group, (reason, text, []))[2].append(
                f'{row.name} ({self.sound[key]} of {self.sessions} sessions)')
        console.print_entries([
            ('unready', f'{console.count_with_noun(len(names), "test case")}: {reason}',
             [*(names if self.lists_all or len(names) <= NAMES else
                [*names[:NAMES], f'and {len(names) - NAMES} more (--all)']),
              *filter(None, [text])])
            for reason, text, names in entries.values()])
        return 1 if self.failed else 0


@contextlib.contextmanager
def raise_interrupt_on_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like ^C, and ignore them afterwards.

    :raises KeyboardInterrupt: one of these signals came
    """
    def raise_interrupt(number: int, frame: Any) -> None:
        for one in numbers:             # `timeout` sends a signal twice
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt
    numbers = signal.SIGTERM, signal.SIGHUP
    before = {number: signal.signal(number, raise_interrupt) for number in numbers}
    try:
        yield
    except RuntimeError as err:
        # DuckDB's error if a signal handler raises during a query.
        if str(err) != 'Query interrupted':
            raise
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is raise_interrupt:
                signal.signal(number, handler)


def calibrate(args: argparse.Namespace) -> int:
    """Run `plumb references calibrate`; return the exit code."""
    commands.refuse_what_measures_nothing(args, 'references calibrate')
    with commands.prepare_session(args) as work:
        try:
            with raise_interrupt_on_signals():
                return _calibrate_and_write(args, work)
        except KeyboardInterrupt:
            print('\nInterrupted. The values measured so far are kept. '
                  f'{CALIBRATE}{site_option(args.site)} continues from them.')
            return 1


def summary_of_tolerances(measured: Sequence[Progress]) -> str:
    """What later sessions are compared with, in one line."""
    metrics = [one.is_narrow_enough for case in measured for one in case.judgements]
    judged = sum(any(one.is_narrow_enough for one in case.judgements)
                 for case in measured)
    return (f'{sum(metrics)} of {console.count_with_noun(len(metrics), "metric")} '
            f'have a tolerance, in {judged} of '
            f'{console.count_with_noun(len(measured), "test case")}'
            + '; the values of the other metrics vary too much for so few sessions'
            * (not all(metrics)))


def _calibrate_and_write(args: argparse.Namespace, work: commands.Work) -> int:
    """All rounds, then the reference files and the page; the exit code."""
    calibration = Calibration(work, args)
    code = calibration.run_all_rounds()
    if code:
        return code
    print()
    failed = calibration.print_unready_reasons()
    # Notes go to stderr: all that was printed before comes first.
    sys.stdout.flush()
    frame, _ = records.read(work.perflog_folder, on_error='collect')
    if args.new_level:
        frame = frame[frame['session'].isin(calibration.names)]
    of_mode = frame[(frame['system'] == work.system['name'])
                    & frame['test_case'].isin([*calibration.rows])]
    try:
        written = writing.write_references(
            of_mode, Path(work.variables['RFM_REFERENCE_PREFIX']), args.new_level)
    except (OSError, ValueError) as err:
        print(f'plumb references: {err}', file=sys.stderr)
        return 2
    # The records are from before: none was compared with the new references.
    page, _ = commands.write_report_page(work.perflog_folder, args.site, summary=False)
    site = site_option(args.site)
    console.print_lines([
        *[summary_of_tolerances(progress_of_test_cases(of_mode))] * written,
        f'Page: {page}' if page else 'No page was written: see the error above',
        *[f'Next: ./plumb references status{site}, then ./plumb run{site}'] * written])
    return max(failed, not page, not written)
