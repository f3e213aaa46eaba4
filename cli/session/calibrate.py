"""plumb references calibrate: rounds until the tolerances are narrow enough.

A round has the test cases that are not ready yet: one session of ReFrame for each
place and settings. So the measurements of a test case are spread over the time.
progress.py computes the progress from the perflogs; nothing else is kept from one
round, or one `run_all_rounds`, to the next.
"""
from __future__ import annotations

import argparse
import contextlib
import math
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cli.session import commands, identities, table
from cli.session import process as session
from cli.setup.venv import SetupError, print_progress
from config import console
from config import references as grammar
from config.places import CALIBRATE, site_option
from config.sessions.progress import duration_text
from postprocess import outcomes, records, results
from postprocess.references import editing
from postprocess.references import proposal as references
from postprocess.references.progress import (
    Progress,
    progress_of_test_cases,
    usable_records,
)
from postprocess.references.spread import FEWEST_RUNS

#: A test case that failed, or was inconclusive, in so many rounds in a row is
#: left out of the next rounds.
ROUNDS = 3
#: The same for one with interference, which may end.
DISTURBED_ROUNDS = 12
#: Names of test cases that are printed with a reason.
NAMES = 3


def _sessions_needed_today(one: Progress | None) -> int:
    """Sessions that a test case still needs; 0: no further session on the same days
    would help.

    :param one: None: it has no conclusive session yet
    """
    if one is None:
        return FEWEST_RUNS
    return 0 if one.is_mixed else max(
        (judgement.needs_on_same_days or 0 for judgement in one.judgements), default=0)


def _reasons_and_details(one: Progress) -> Iterator[tuple[str, str]]:
    """Why a test case is not ready, each with details."""
    if one.is_mixed:
        yield 'several programs or numbers of ranks', ''
        return
    if never := [judgement.metric for judgement in one.judgements
                 if judgement.needs is None]:
        yield 'more sessions would not help', ', '.join(never)
    for reason, needs in (
            ('needs sessions on other days',
             [judgement.needs for judgement in one.judgements
              if judgement.needs and not judgement.needs_on_same_days]),
            ('needs more sessions',
             [judgement.needs_on_same_days for judgement in one.judgements
              if judgement.needs_on_same_days])):
        if needs:
            yield reason, f'about {max(filter(None, needs))}'


def _progress_text(one: Progress | None) -> str:
    if one is None:
        return 'no conclusive session yet'
    below = sum(judgement.needs == 0 for judgement in one.judgements)
    return ', '.join([
        console.count_with_noun(one.runs, 'session'),
        f'{below} of {len(one.judgements)} tolerances within the max tolerance',
        *(reason + f' ({detail})' * bool(detail)
          for reason, detail in _reasons_and_details(one))])


class Calibration:
    """The test cases of a mode, and their progress."""

    def __init__(self, work: commands.Work, minutes: float,
                 interval: float, lists_all: bool = False) -> None:
        self.work = work
        #: Whether each round lists the test cases that are not ready.
        self.lists_all = lists_all
        #: Seconds between the beginnings of two rounds, at least.
        self.interval = interval
        self.begin = time.monotonic()
        self.end = self.begin + 60 * minutes
        #: Number of rounds begun.
        self.rounds = 0
        self.families: set[str] = set()
        #: All of these are by the short IDs of test cases.
        self.identities: dict[str, identities.Identity] = {}
        #: None: no conclusive session yet.
        self.progress: dict[str, Progress | None] = {}
        #: Rounds in which each test case was measured, and with usable values.
        self.measured: Counter[str] = Counter()
        self.usable: Counter[str] = Counter()
        #: Rounds in a row without a usable measurement.
        self.barren: Counter[str] = Counter()
        #: How each test case ended in its last round.
        self.rows: dict[str, table.Row] = {}
        #: Test cases that failed in their last round.
        self.failed: set[str] = set()

    @property
    def excluded_test_cases(self) -> set[str]:
        """Test cases that are not measured again."""
        return {key for key, number in self.barren.items() if number >= (
            DISTURBED_ROUNDS if self.rows[key].transient else ROUNDS)}

    @property
    def unready_test_cases(self) -> list[str]:
        """Test cases that are not ready, and are measured again."""
        return [key for key, one in self.progress.items()
                if _sessions_needed_today(one) and key not in self.excluded_test_cases]

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
            + ' without enough values'
        )
        return [*commands.run_test_cases(
            self.work, [self.identities[key] for key in self.unready_test_cases])]

    def read_round_results(self, sessions: Sequence[str]) -> None:
        """Read the records after a round."""
        frame, faults = records.read(self.work.perflog_folder, on_error='collect')
        for fault in faults:
            print(f'plumb references: {fault}')
        ahead = progress_of_test_cases(frame)
        ended_so = {one.test_case: one for session in sessions
                    for one in results.results_of_session(frame, session).values()}
        # If versions have separate references: only the current version.
        newest = frame[frame['test_case'].isin([*ended_so]) & (frame['guard'] == '')
                       ].drop_duplicates('test_case', keep='last')
        known = outcomes.progress_by_test_case(
            newest, [one for one in ahead if one.runs])
        now = {key: known.get(key) for key in ended_so}
        self.progress |= now
        of_round = frame[frame['session'].isin(sessions)]
        self.identities = identities.identities_of_records(of_round) | self.identities
        self.families |= {one.family for one in ended_so.values()}
        self.rows |= {row.test_case: row for session in sessions
                      for row in table.rows_of_session(
                          frame, session, self.work.perflog_folder, ahead)}
        # A test case that lacks a reference does have values.
        failed = {key for key, one in ended_so.items()
                  if one.is_failed and one.guard != 'reference'}
        self.failed = self.failed - now.keys() | failed
        self.measured.update(now.keys())
        good, _ = usable_records(of_round)
        self.usable.update({*good['test_case'].astype(str)})
        for key in now:
            barren = key in failed or not now[key]
            self.barren[key] = self.barren[key] + 1 if barren else 0

    def print_round_progress(self, took: float) -> None:
        """Print the progress, one line per test case that is not ready."""
        now = time.monotonic()
        missing = self.unready_test_cases
        print()
        shown = missing if self.lists_all else [
            key for key in missing if key in self.failed]
        console.print_entries([
            ('fail' if key in self.failed else 'unready', self.rows[key].name,
             [_progress_text(self.progress[key]),
              *[self.rows[key].text] * (key in self.failed)])
            for key in sorted(shown, key=lambda key: key in self.failed)])
        ready = sum(one is not None and one.needs == 0
                    for one in self.progress.values())
        left = len(self.progress) - ready - len(missing)
        console.print_lines([
            f'round {self.rounds}: {ready} of '
            f'{console.count_with_noun(len(self.progress), "test case")} ready'
            + f', {len(missing)} to go' * bool(missing)
            + ' (--all lists them)' * (len(shown) < len(missing))
            + f', {left} left out' * bool(left)
            + f'; this round took {duration_text(took)}'
            + self.time_left_text(took)
            + f', at most {duration_text(max(self.end - now, 0))}' * bool(missing)])
        sys.stdout.flush()

    def time_left_text(self, took: float) -> str:
        """The time until all test cases are ready, by the rounds so far; '': nothing
        can be said, because none had usable values.

        :param took: seconds of the last round
        """
        missing = self.unready_test_cases
        if not missing or not self.usable.total():
            return ''
        share = self.usable.total() / self.measured.total()
        # The share of a test case counts as if one more round had the share of all.
        rounds = max(
            _sessions_needed_today(self.progress[key]) * (self.measured[key] + 1)
            / (self.usable[key] + share) for key in missing)
        # Fewer sessions do not show how much the values vary.
        fewest = min(one.runs if (one := self.progress[key]) else 0 for key in missing)
        minutes = math.ceil(math.ceil(rounds) * max(took, self.interval) / 60)
        return (f', {"at least" if fewest < FEWEST_RUNS else "about"} '
                f'{duration_text(60 * minutes)} left')

    def reasons_and_details(self, key: str) -> Iterator[tuple[str, str, str]]:
        """Why a test case failed, or is not ready: reasons, each with details and the
        text of the session."""
        row, rounds = self.rows[key], self.barren[key]
        is_failed, progress = key in self.failed, self.progress[key]
        if is_failed or not progress:
            yield ('left out, ' * (key in self.excluded_test_cases)
                   + f'{"failed" if is_failed else row.result} in the last '
                   + (f'{rounds} rounds' if rounds > 1 else 'round'),
                   '', row.text if is_failed else row.note)
        if progress:
            for reason, detail in _reasons_and_details(progress):
                yield reason, detail, ''

    def print_unready_reasons(self) -> int:
        """Print why test cases failed or are not ready, one entry per reason, with the
        first names; return the exit code."""
        #: Without numbers, and the processes that interfered -> with them, and names.
        entries: dict[tuple[str, str], tuple[str, str, list[str]]] = {}
        for key in sorted(self.progress, key=lambda key: self.rows[key].name):
            for reason, detail, text in self.reasons_and_details(key):
                group = re.sub(r'\d+', '0', reason), re.sub(
                    r'\d+', '0', text) * (not self.rows[key].transient)
                entries.setdefault(group, (reason, text, []))[2].append(
                    self.rows[key].name + f' ({detail})' * bool(detail))
        console.print_entries([
            ('unready', f'{console.count_with_noun(len(names), "test case")}: {reason}',
             [*(names if self.lists_all or len(names) <= NAMES else
                [*names[:NAMES], f'and {len(names) - NAMES} more (--all)']),
              *filter(None, [text])])
            for reason, text, names in entries.values()])
        return 1 if self.failed else 0


@contextlib.contextmanager
def raise_interrupt_on_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like ^C, but a repeated signal once.

    :raises KeyboardInterrupt: one of these signals came
    """
    received = session.ReceivedSignals()

    def raise_interrupt(number: int, frame: Any) -> None:
        if received.record_signal(number, frame):
            raise KeyboardInterrupt
    before = {number: signal.signal(number, raise_interrupt)
              for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except RuntimeError as err:
        # DuckDB's error if a signal handler raises during a query.
        if str(err) != 'Query interrupted':
            raise
        raise KeyboardInterrupt from None
    finally:
        received.wait_for_repetitions()
        for number, handler in before.items():
            signal.signal(number, handler)


def calibrate(args: argparse.Namespace) -> int:
    """Run `plumb references calibrate`; return the exit code."""
    if args.minutes <= 0:
        raise SetupError(f'--minutes is {args.minutes:g}; it must be more '
                         'than 0')
    action = commands.find_non_run_action(args.reframe)
    if action:
        raise SetupError(f'{action} measures nothing, so calibration cannot '
                         'use it; use ./plumb run with this option')
    commands.refuse_mode_veto(args.mode, 'references calibrate')
    with commands.prepare_session(args) as work:
        try:
            with raise_interrupt_on_signals():
                return _calibrate_and_propose(args, work)
        except KeyboardInterrupt:
            print('\nInterrupted. The values measured so far are kept. '
                  f'{CALIBRATE}{site_option(args.site)} continues from them.')
            return 1


def _calibrate_and_propose(
    args: argparse.Namespace, work: commands.Work
) -> int:
    """All rounds, then the proposals and the page; the exit code."""
    calibration = Calibration(work, args.minutes, args.interval, args.all)
    code = calibration.run_all_rounds()
    if code:
        return code
    print()
    failed = calibration.print_unready_reasons()
    code, proposed = _propose_and_accept_references(args, work, calibration.families)
    page, _ = commands.write_report_page(work.perflog_folder)
    site = site_option(args.site)
    console.print_lines([
        f'Page: {page}' if page else 'No page was written: see the error above',
        *[f'Next: ./plumb run{site}' if args.accept else
          f'Next: ./plumb references accept{site}, if the proposed references are '
          f'right; then ./plumb run{site}'] * (proposed and not code)])
    return max(failed, code, not page)


def _propose_and_accept_references(args: argparse.Namespace, work: commands.Work,
                                   families: set[str]) -> tuple[int, bool]:
    """Proposes references. With --accept, accepts those of test cases that
    have none; the exit code, and whether any was proposed.

    :param families: of the test cases that were measured
    """
    # Its notes go to stderr: all that was printed before comes first.
    sys.stdout.flush()
    place = Path(work.variables['RFM_REFERENCE_PREFIX'])
    proposed: dict[str, Any] = {}

    def propose_and_accept() -> int:
        try:
            proposed.update(references.make_and_write_system_proposals(
                work.perflog_folder, work.system['name'], place,
                commands.site_folder(args.site).name))
        except references.TooFewSessions as err:
            # No error: the next call continues.
            print(f'plumb references: nothing is proposed yet: {err}', file=sys.stderr)
        proposals = {family: proposal for family, proposal in proposed.items()
                     if family in families}
        # Keys are regular expressions (ReFrame's $index).
        accepted = [' '.join(map(str, keys)) for family in proposals
                    for keys, _ in grammar.iterate_reference_entries(
                        editing.read_editable_yaml(place / f'{family}.yaml'))]

        def is_new_reference(keys: tuple) -> bool:
            text = ' '.join(map(str, keys))
            return not any(text == known or re.fullmatch(known, text)
                           for known in accepted)
        if args.accept and any(
                is_new_reference(keys) for proposal in proposals.values()
                for keys, _ in grammar.iterate_reference_entries(proposal)):
            return references.accept_and_print(place, proposals, is_new_reference)
        return 0
    return references.run_and_print_errors(propose_and_accept), bool(proposed)
