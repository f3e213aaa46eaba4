"""How each case ended: the one source of page, table and exit codes.

A case's outcome is what all its records of its newest session say together:
one record that failed, or a guard, fails it; so does a session that meant to
run it and was killed before (the record `missing`, postprocess/perflogs.py).
The sessions of one night (config/run_id.py) count as one: a failure that was
gone when `plumb nightly` measured the case again is no pass.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from config import judged, run_id

from . import naming
from .perflogs import CASE
from .plans import Left, Partial, Plan
from .progress import Progress, progress

#: From the most telling one on: one record of it decides.
ORDER = ('fail', 'xpass', 'xfail', 'pass', 'unfit', 'recorded')
#: What makes an exit code 1. A known fault that is gone is to be taken out of
#: the reference file, as ReFrame has it.
FAILED = ('fail', 'xpass')
#: So many later sessions must have left a case out for it to be stale ...
SESSIONS = 3
#: ... each with at least this part of those that ran beside it.
BESIDE = 0.5


def newest(frame: pd.DataFrame) -> pd.DataFrame:
    """The judged records of the newest session of each case.

    `result` is what counts, as text: a guard fails a record whatever it says.

    :param frame: as perflogs.read gives it
    """
    _, night = _nights(frame)
    case = naming.number(frame, CASE)
    last = np.full(case.max(initial=-1) + 1, -1)
    np.maximum.at(last, case, night)
    frame = frame[night == last[case]]
    frame = frame[naming.judged(frame)]
    result = frame['result'].astype(object).mask(frame['guard'] != '', 'fail')
    return frame.assign(result=result)


def of_session(frame: pd.DataFrame, run: str
               ) -> dict[tuple[str, str, str], tuple[str, str]]:
    """How the cases of one session ended.

    :returns: (partition, environment, hash) -> (result, guard)
    """
    frame = newest(frame[frame['run'] == run])
    frame = frame.assign(rank=frame['result'].map(ORDER.index))
    found: dict[tuple[str, str, str], tuple[str, str]] = {}
    for row in frame.sort_values(['rank', 'guard'], ascending=[
            True, False]).itertuples():
        key = (str(row.partition), str(row.environ), str(row.case))
        found.setdefault(key, (str(row.result), str(row.guard)))
    return found


def tries(frame: pd.DataFrame, run: str) -> dict[tuple[str, str, str], int]:
    """The cases that a session measured more than once, and how often.

    :returns: (partition, environment, hash) -> number
    """
    mine = frame[(frame['run'] == run) & (frame['tries'] > 1)]
    return {(str(row.partition), str(row.environ), str(row.case)): row.tries
            for row in mine.itertuples()}


def needs(frame: pd.DataFrame, run: str | None = None,
          ahead: list[Progress] | None = None
          ) -> dict[tuple[str, str, str], int | None]:
    """How many more runs the cases of a session need until all that is
    judged of them has a bound that can judge.

    :param frame: records of that session, and of those before it
    :param run: the session; None: the newest one of each case
    :param ahead: `progress` of these records; None: it is asked
    :returns: (partition, environment, hash) -> number; 0: there are enough,
        None: no number would do
    """
    mine = frame[frame['run'] == run] if run else newest(frame)
    return {key: p.needs for key, p in _progress_of(
        mine, progress(frame) if ahead is None else ahead).items()}


def _progress_of(mine: pd.DataFrame, ahead: list[Progress]
                 ) -> dict[tuple[str, str, str], Progress]:
    """How far the cases of these records are, as `needs`."""
    keys = ['system', 'check', 'partition', 'environ', 'source', 'speed',
            'params']
    known = {(*(str(getattr(p, key)) for key in keys), p.edition): p
             for p in ahead}
    found = {}
    for row in mine.drop_duplicates(
            ['run', *keys, 'version', 'case']).itertuples():
        place = tuple(str(getattr(row, name)) for name in keys)
        for edition in ('', str(row.version)):
            if place + (edition,) in known:
                found[str(row.partition), str(row.environ),
                      str(row.case)] = known[place + (edition,)]
    return found


@dataclass
class History:
    """How each case ended in each night: a row a case, a column a night."""
    #: Sessions of each night, the oldest first; those of several systems on
    #: one date stand together, a second one of a system in the next column
    #: (but where it only measured again what the night's first one had).
    nights: list[list[str]]
    #: Cases: the number of each record's case, and its newest record.
    case: np.ndarray
    last: pd.DataFrame
    #: Number in ORDER; NONE: the case was to run and has no record; NOT_RUN:
    #: nobody meant to.
    ended: np.ndarray


#: What a cell of History is without a record.
NONE, NOT_RUN = len(ORDER), len(ORDER) + 1


def history(frame: pd.DataFrame, judged: np.ndarray, case: np.ndarray,
            partial: Partial = {}) -> History:
    """How each case ended in each night.

    :param frame: as perflogs.read gives it, sorted by time
    :param judged: whether a record counts (naming.judged)
    :param case: the number of each record's case, from 0
    :param partial: runs that left cases out on purpose (`plans.partial`)
    """
    nights, column = _nights(frame)
    rank = frame['result'].cat.codes.map(
        dict(enumerate(map(ORDER.index, frame['result'].cat.categories)))
        ).to_numpy(int)
    rank = np.where(frame['guard'] != '', 0, rank)
    many = case.max() + 1 if len(case) else 0
    ended = np.full((many, len(nights)), NOT_RUN)
    flat = case * len(nights) + column
    np.minimum.at(ended.reshape(-1), flat[judged], rank[judged])
    last = np.zeros(many, int)
    np.maximum.at(last, case, np.arange(len(case)))
    rows = frame.iloc[last]
    place = naming.number(rows, ['family', 'system', 'partition'])
    skipped = np.array([bool(partial) and set(runs) <= partial.keys()
                        for runs in nights], bool)
    for group in np.unique(place):
        mine = np.flatnonzero(place == group)
        ended[mine] = _owed(ended[mine], skipped)
    return History(nights, case, rows, ended)


def _nights(frame: pd.DataFrame) -> tuple[list[list[str]], np.ndarray]:
    """The nights, and which one each record is of."""
    first = frame.drop_duplicates('run')
    number: dict[tuple, int] = {}
    names: dict[tuple, list[str]] = {}
    of_run: dict[str, tuple] = {}
    began = run_id.first_of(map(str, first['run']))
    for row in first.itertuples():
        if (key := of_run.get(began[str(row.run)])):
            names[key].append(str(row.run))
            of_run[row.run] = key
            continue
        place = row.system, row.time.date()
        number[place] = number.get(place, -1) + 1
        key = place[1], number[place]
        names.setdefault(key, []).append(str(row.run))
        of_run[row.run] = key
    order = {key: n for n, key in enumerate(sorted(names))}
    column = frame['run'].cat.codes.map({
        code: order[of_run[run]] for code, run in
        enumerate(frame['run'].cat.categories) if run in of_run})
    return [names[key] for key in order], column.to_numpy(int)


def _owed(ended: np.ndarray, skipped: np.ndarray) -> np.ndarray:
    """With NONE where a case has no record of a night in which at least
    BESIDE of those ran that had run beside it.

    :param ended: of the cases of one family, system and partition
    :param skipped: nights that left cases out on purpose
    """
    ended = ended.copy()
    ran = ended != NOT_RUN
    for case, mine in enumerate(ran):
        there = np.flatnonzero(mine)
        for at, until in zip(there, [*there[1:], ran.shape[1]], strict=True):
            if until == at + 1:
                continue
            near = ran[:, at].copy()
            near[case] = False
            if not near.any():
                continue
            later = slice(at + 1, until)
            owed = (ran[near, later].mean(axis=0) >= BESIDE
                    ) & ~skipped[later]
            ended[case, later][owed] = NONE
    return ended


@dataclass
class Standing:
    """How far the cases are judged, in the newest session of each."""
    #: Cases that a bound judged.
    judged: int = 0
    #: Cases without a reference: a record of each, and what it waits for.
    waiting: list[tuple[Any, str]] = field(default_factory=list)
    #: Figures that nothing judges in cases with a reference: a record of the
    #: case, the figure, and what it waits for.
    unjudged: list[tuple[Any, str, str]] = field(default_factory=list)


def standing(frame: pd.DataFrame, ahead: list[Progress] | None = None
             ) -> Standing:
    """What is judged, what waits for a reference, what for a bound.

    :param frame: as perflogs.read gives it
    :param ahead: as `needs` has it
    """
    found, mine = Standing(), newest(frame)
    far = _progress_of(mine, progress(frame) if ahead is None else ahead)
    mine = mine[mine['metric'] != 'completed']
    case = naming.number(mine, CASE)
    bounds = mine[['lower', 'upper']].notna().any(axis=1).to_numpy()
    unfit = mine['result'].eq('unfit').to_numpy()
    order = np.argsort(case, kind='stable')
    for at in np.split(order, np.flatnonzero(np.diff(case[order])) + 1):
        if not len(at) or unfit[at].any():
            continue
        rows, bounded = mine.iloc[at], bounds[at]
        first = next(rows[:1].itertuples())
        found.judged += bool(bounded.any())
        key = str(first.partition), str(first.environ), str(first.case)
        unbounded = _without_bound(str(first.family), rows, bounded)
        if not unbounded:
            continue
        ahead_of = far.get(key)
        if rows['reference'].notna().any():
            found.unjudged += [(first, figure, _unjudged(figure, ahead_of))
                               for figure in unbounded]
        elif not bounded.any() and rows['result'].eq('recorded').all():
            found.waiting.append(
                (first, words(ahead_of.needs if ahead_of else 0)))
    return found


def _unjudged(figure: str, mine: Progress | None) -> str:
    """What a figure without a bound waits for: each for its own runs."""
    of = mine.needs_of if mine else {}
    # What is judged instead stands in its place.
    other = judged.instead(mine.family, figure) if mine else None
    runs = of[figure] if figure in of else of.get(
        other or '', mine.needs if mine else 0)
    about = ('no number of runs would do' if runs is None
             else 'propose again' if not runs else
             f'needs about {runs} more run{"s" * (runs > 1)}')
    return f'unjudged: {about}'


def _without_bound(family: str, rows: pd.DataFrame, bounded: np.ndarray
                   ) -> list[str]:
    """Figures of a case that are to be judged, and that no bound judges,
    nor one of the metric that is judged instead."""
    if family not in judged.table():
        return []
    points = [(str(metric), None if pd.isna(size) else int(size))
              for metric, size in zip(rows['metric'], rows['size'],
                                      strict=True)]
    there = {judged.key(*point) for point, bound in zip(
        points, bounded, strict=True) if bound}
    return sorted(figure for figure in judged.judged(family, points)
                  if not {figure, judged.instead(family, figure)} & there)


def words(runs: int | None, lacks: str = '') -> str:
    """What people are told of a case that waits for a reference.

    :param runs: as `needs` has it
    :param lacks: what is missing, where it is not simply a reference
    """
    if runs is None:
        # For what remains there is a reference all the same.
        what = ('no number of runs would do for all of it: ./plumb '
                'references propose')
    elif runs:
        what = f'needs {runs} more run{"s" * (runs > 1)}'
    else:
        what = 'has runs enough: ./plumb references propose'
    return ': '.join(filter(None, ['recorded', lacks, what]))


def stale(frame: pd.DataFrame, partial: Partial = {}) -> pd.DataFrame:
    """Cases that have not run for longer than their neighbours.

    A case's neighbours are those of its family, system and partition that ran
    in its last session (the last one with any). It is stale when at least
    three later sessions each ran half of them or more, and not it. So a few
    cases picked with -n make no other one stale, nor does another mode.

    What a session left to other nights counts there as if it had run: a site
    whose nights are all partial sees what none of them meant to run. And what
    is left more often than the nights within which it was to have its turn is
    stale, too.

    :param partial: sessions that left cases out on purpose (`plans.partial`)
    :returns: the last record of each such case, the one that ran longest ago
        first
    """
    case = naming.number(frame, CASE)
    # The last record of each case and run, in the order of the records.
    run = naming.number(frame[['run']].assign(case=case), ['case', 'run'])
    ends = np.zeros(run.max(initial=-1) + 1, int)
    np.maximum.at(ends, run, np.arange(len(run)))
    ends.sort()
    place = naming.number(frame, ['family', 'system', 'partition'])[ends]
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
        left = {run: None if some is None else
                {numbers[key] for key in some if key in numbers}
                for run, some in partial.items()}
        names = sorted(sessions)
        found = {*_left_out([sessions[name] for name in names],
                            [left.get(name, set()) for name in names]),
                 *_beyond_their_turn(
                     {number: runs[at] for number, at in last.items()},
                     numbers, partial)}
        lost += [int(ends[last[number]]) for number in found]
    return frame.iloc[sorted(lost)]


def _beyond_their_turn(last: Mapping[int, str],
                       numbers: Mapping[tuple[str, ...], int],
                       partial: Partial) -> Iterator[int]:
    """Cases that more nights left than should have passed until their turn.

    :param last: case -> the run that had it last
    :param numbers: key of a case -> its number
    """
    for key, number in numbers.items():
        waits = [some[key] for run, some in sorted(partial.items())
                 if some and key in some and run > last[number]]
        if waits and 0 < waits[-1] < len(waits):
            yield number


def rotated(frame: pd.DataFrame, plans: Iterable[Plan]) -> list[Left]:
    """Cases that a budget left to other nights and that have not run since,
    the one that ran longest ago first.

    :param plans: of each system the newest one under a budget
    """
    found = []
    for plan in plans:
        later = frame[(frame['system'] == plan.head['system'])
                      & (frame['run'].astype(str) > plan.run)]
        since = {tuple(map(str, key)) for key in later[
            ['partition', 'environ', 'case']].drop_duplicates().itertuples(
                index=False)}
        found += [one for one in plan.left if tuple(
            one.case[name] for name in ('partition', 'environ', 'case')
            ) not in since]
    return sorted(found, key=lambda one: one.last)


def _left_out(sessions: list[set[int]], left: list[set[int] | None]
              ) -> Iterable[int]:
    """Cases that the last sessions left out, by the rule of `stale`.

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
        without = [cases for cases, some in later
                   if near and some is not None and case not in some
                   and len((cases | some) & near) >= BESIDE * len(near)]
        if len(without) >= SESSIONS:
            yield case
