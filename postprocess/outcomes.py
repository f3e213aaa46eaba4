"""Test cases that wait: for a reference, for a tolerance, for their turn.

Their results are in postprocess/results.py.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from config.console import count_with_noun
from config.places import site_option
from config.references import more_sessions_text
from config.sessions import judged

from . import naming
from .perflogs import CASE
from .perflogs.plans import Left, Partial, Plan
from .references.progress import Progress, progress_of_test_cases
from .results import BESIDE, newest_records

#: So many later sessions must have left a test case out for it to be stale ...
SESSIONS = 3
#: ... each with at least BESIDE of those that ran beside it.


def sessions_needed_by_test_case(frame: pd.DataFrame, run: str | None = None,
                                 ahead: list[Progress] | None = None
          ) -> dict[tuple[str, str, str], int | None]:
    """The number of further sessions that the test cases of a session need
    until all judged metrics have a narrow enough tolerance.

    :param frame: records of that session, and of those before it
    :param run: the session; None: the newest one of each test case
    :param ahead: `progress` of these records; None: it is asked
    :returns: (partition, environment, hash) -> number; 0: there are enough,
        None: no number would do
    """
    records = frame[frame['run'] == run] if run else newest_records(frame)
    return {key: p.needs for key, p in _progress_by_test_case(
        records, progress_of_test_cases(frame) if ahead is None else ahead).items()}


def _progress_by_test_case(records: pd.DataFrame, ahead: list[Progress]
                 ) -> dict[tuple[str, str, str], Progress]:
    """The progress of the test cases of these records, with the keys of
    `sessions_needed_by_test_case`."""
    keys = ['system', 'check', 'partition', 'environ', 'source', 'speed',
            'params']
    known = {(*(str(getattr(p, key)) for key in keys), p.edition): p
             for p in ahead}
    progress_of_case = {}
    for row in records.drop_duplicates(
            ['run', *keys, 'version', 'case']).itertuples():
        place = tuple(str(getattr(row, name)) for name in keys)
        for edition in ('', str(row.version)):
            if place + (edition,) in known:
                progress_of_case[str(row.partition), str(row.environ),
                                 str(row.case)] = known[place + (edition,)]
    return progress_of_case


@dataclass
class Standing:
    """Test cases by what they have: a tolerance, a reference, or neither; in
    the newest session of each."""
    #: Test cases that a tolerance judged.
    judged: int = 0
    #: Test cases without a reference: a record of each, and what it waits for.
    waiting: list[tuple[Any, str]] = field(default_factory=list)
    #: Metrics that nothing judges in test cases with a reference: a record of
    #: the test case, the metric, and what it waits for.
    no_tolerance: list[tuple[Any, str, str]] = field(default_factory=list)


def summarize_reference_status(frame: pd.DataFrame, ahead: list[Progress] | None = None
             ) -> Standing:
    """Counts test cases with a tolerance, and lists what others lack.

    :param frame: as perflogs.read gives it
    :param ahead: as `sessions_needed_by_test_case` has it
    """
    standing_, records = Standing(), newest_records(frame)
    far = _progress_by_test_case(
        records, progress_of_test_cases(frame) if ahead is None else ahead
    )
    records = records[records['metric'] != 'completed']
    case = naming.group_number_of_records(records, CASE)
    tolerances = records[['lower', 'upper']].notna().any(axis=1).to_numpy()
    inconclusive = records['result'].eq('inconclusive').to_numpy()
    order = np.argsort(case, kind='stable')
    for at in np.split(order, np.flatnonzero(np.diff(case[order])) + 1):
        if not len(at) or inconclusive[at].any():
            continue
        rows, has_tolerance = records.iloc[at], tolerances[at]
        first = next(rows[:1].itertuples())
        standing_.judged += bool(has_tolerance.any())
        key = str(first.partition), str(first.environ), str(first.case)
        without_tolerance = _metrics_without_tolerance(
            str(first.family), rows, has_tolerance
        )
        if not without_tolerance:
            continue
        ahead_of = far.get(key)
        if rows['reference'].notna().any():
            standing_.no_tolerance += [
                (first, metric, _missing_tolerance_text(metric, ahead_of))
                for metric in without_tolerance
            ]
        elif (
            not has_tolerance.any() and rows['result'].eq('no_reference').all()
        ):
            standing_.waiting.append(
                (first, missing_reference_text(
                    ahead_of.needs if ahead_of else 0, str(first.system))))
    return standing_


def _missing_tolerance_text(metric: str, case: Progress | None) -> str:
    """The text on what a metric without a tolerance needs."""
    of = case.needs_of if case else {}
    # What is judged instead stands in its place.
    other = judged.derived_replacement_metric(case.family, metric) if case else None
    runs = of[metric] if metric in of else of.get(
        other or '', case.needs if case else 0)
    return ('propose references again' if runs == 0
            else f'no tolerance yet: {more_sessions_text(runs)}')


def _metrics_without_tolerance(
    family: str, rows: pd.DataFrame, has_tolerance: np.ndarray
) -> list[str]:
    """Metrics of a test case that are to be judged, and that no tolerance
    judges, nor one of the metric that is judged instead."""
    if family not in judged.judged_rules_by_family():
        return []
    points = [(str(metric), judged.point_in_bytes(point)) for metric, point in zip(
        rows['metric'], rows['point'], strict=True)]
    there = {judged.metric_key(*point) for point, tolerance in zip(
        points, has_tolerance, strict=True) if tolerance}
    return sorted(metric for metric in judged.judged_metric_keys(family, points)
                  if not {metric,
                          judged.derived_replacement_metric(family, metric)} & there)


def missing_reference_text(runs: int | None, site: str, lacks: str = '') -> str:
    """The text for people of a test case that waits for a reference.

    :param runs: as `sessions_needed_by_test_case` has it
    :param site: of the test case
    :param lacks: what is missing, where it is not simply a reference
    """
    if runs is None:
        # All other metrics get a reference all the same.
        todo = ('at least one metric varies too much, also after more '
                f'sessions; ./plumb references propose{site_option(site)} shows which')
    elif runs:
        todo = f'needs {count_with_noun(runs, "more session")}'
    else:
        todo = ('enough sessions exist; run ./plumb references propose'
                + site_option(site))
    return f'{lacks or "no reference"}: {todo}'


def stale_test_cases(frame: pd.DataFrame, partial: Partial = {}) -> pd.DataFrame:
    """Test cases that have not run for longer than their neighbours.

    The neighbours of a test case are those of its family, system and partition
    that ran in its last session (the last one with any). It is stale when at
    least three later sessions each ran half of them or more, and not it. So a
    few test cases picked with -n make no other one stale, nor does another
    mode.

    A test case that a session postponed counts there as if it had run: a site
    whose sessions are all partial sees what none of them meant to run. And
    what is left more often than the sessions within which it was to have its
    turn is stale, too.

    :param partial: sessions that left test cases out on purpose
        (`plans.partial_sessions`)
    :returns: the last record of each such test case, the one that ran longest
        ago first
    """
    case = naming.group_number_of_records(frame, CASE)
    # The last record of each test case and run, in the order of the records.
    run = naming.group_number_of_records(
        frame[['run']].assign(case=case), ['case', 'run']
    )
    ends = np.zeros(run.max(initial=-1) + 1, int)
    np.maximum.at(ends, run, np.arange(len(run)))
    ends.sort()
    place = naming.group_number_of_records(frame, ['family', 'system', 'partition'])[
        ends
    ]
    runs = frame['run'].iloc[ends].astype(str).to_numpy(object)
    lost: list[int] = []
    for group in range(place.max(initial=-1) + 1):
        sessions: dict[str, set[int]] = {}
        last: dict[int, int] = {}
        for at in np.flatnonzero(place == group).tolist():
            number = int(case[ends[at]])
            sessions.setdefault(runs[at], set()).add(number)
            last[number] = at
        numbers = dict(zip(
            frame.iloc[ends[[*last.values()]]][CASE].astype(str).itertuples(
                index=False, name=None), last, strict=True))
        left = {run: None if left_out is None else
                {numbers[key] for key in left_out if key in numbers}
                for run, left_out in partial.items()}
        names = sorted(sessions)
        stale_cases = {*_test_cases_not_run_recently([sessions[name] for name in names],
                                                     [left.get(name, set())
                                                      for name in names]),
                       *_overdue_test_cases(
                     {number: runs[at] for number, at in last.items()},
                     numbers, partial)}
        lost += [int(ends[last[number]]) for number in stale_cases]
    return frame.iloc[sorted(lost)]


def _overdue_test_cases(last: Mapping[int, str],
                        numbers: Mapping[tuple[str, ...], int],
                        partial: Partial) -> Iterator[int]:
    """Test cases that more sessions left than should have passed until their
    turn.

    :param last: test case -> the run that had it last
    :param numbers: key of a test case -> its number
    """
    for key, number in numbers.items():
        waits = [left_out[key] for run, left_out in sorted(partial.items())
                 if left_out and key in left_out and run > last[number]]
        if waits and 0 < waits[-1] < len(waits):
            yield number


def postponed_test_cases(frame: pd.DataFrame, plans: Iterable[Plan]) -> list[Left]:
    """Test cases that a budget left to other sessions and that have not run
    since, the one that ran longest ago first.

    :param plans: of each system the newest one under a budget
    """
    waiting = []
    for plan in plans:
        later = frame[(frame['system'] == plan.head['system'])
                      & (frame['run'].astype(str) > plan.session_name)]
        since = {tuple(map(str, key)) for key in later[
            ['partition', 'environ', 'case']].drop_duplicates().itertuples(
                index=False)}
        waiting += [one for one in plan.left if tuple(
            one.case[name] for name in ('partition', 'environ', 'case')
            ) not in since]
    return sorted(waiting, key=lambda one: one.last)


def _test_cases_not_run_recently(sessions: list[set[int]], left: list[set[int] | None]
              ) -> Iterable[int]:
    """Test cases that the last sessions left out, by the rule of `stale_test_cases`.

    :param sessions: what each session ran, the oldest first
    :param left: what each left to others; None: nobody knows what
    """
    recent = set().union(*sessions[-SESSIONS:])
    last: dict[int, int] = {}
    beside: dict[int, set[int]] = {}
    for at, cases in enumerate(sessions):
        for case in cases - recent:
            last[case] = at
            if len(cases) > 1:
                beside[case] = cases - {case}
    for case, at in last.items():
        near = beside.get(case, set())
        later = zip(sessions[at + 1:], left[at + 1:], strict=True)
        without = [cases for cases, skipped in later
                   if near and skipped is not None and case not in skipped
                   and len((cases | skipped) & near) >= BESIDE * len(near)]
        if len(without) >= SESSIONS:
            yield case
