"""Results of test cases, computed from the records alone.

The table of `plumb run`, page, verdict, JUnit, exit codes and the summary of a
nightly session take them from here.

- `fail`: a guard refused the test case, or a metric is out of tolerance or
  beyond a limit.
- `not_run`: it was planned, and it was not started or did not end.
- `flaky`: one session of a nightly session failed, and a later one, on the
  same nodes, did not.
- `xpass`: a known fault is gone. `xfail`: a known fault is still there.
- `pass`: compared with a reference or a limit.
- `inconclusive`: a sound run that cannot be compared.
- `no_reference`: a sound measurement without a reference.

One record decides: the result of a test case is the first one in this list
that any record of its newest session has. The sessions of one nightly session
(config/sessions/run_id.py) count as one. If one of them ended before a test
case did, and another one measured it, only the latter counts.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from config.console import count_with_noun
from config.sessions import judged, run_id
from config.sites import topology

from . import naming
from .perflogs import CASE, reasons
from .perflogs.plans import Partial

#: Results, the most telling first.
ORDER = ('fail', 'not_run', 'flaky', 'xpass', 'xfail', 'pass',
         'inconclusive', 'no_reference')
#: Results with which a command exits with 1. A known fault that is gone is to
#: be removed from the reference file, as ReFrame has it.
FAILED = ('fail', 'not_run', 'flaky', 'xpass')
#: Results of sound test cases of which nothing has to be done at once: terminals
#: fold them.
GOOD = ('pass', 'no_reference')
#: What a cell of `History` is without a record: the test case was expected to
#: run, or it was not.
NO_RECORD, NOT_EXPECTED = len(ORDER), len(ORDER) + 1
#: A test case is expected in a session if at least this part of the test
#: test cases ran that had run beside it.
BESIDE = 0.5

_FAIL, _NOT_RUN, _FLAKY = range(3)

#: Partition, environment, hash: a test case of a plan.
Key = tuple[str, str, str]


def tally_text(results: Iterable[str]) -> str:
    """The number of test cases of each result, what matters last.

    >>> tally_text(['pass', 'fail', 'pass'])
    '2 pass · 1 fail of 3 test cases'
    """
    counts = Counter(results)
    order = [*GOOD, *(name for name in reversed(ORDER) if name not in GOOD)]
    return (' · '.join(f'{counts[name]} {name}' for name in order if counts[name])
            + f' of {count_with_noun(counts.total(), "test case")}').lstrip()


@dataclass(frozen=True)
class Place:
    """The identity of a test case, and its place."""
    system: str
    partition: str
    environ: str
    family: str
    check: str
    params: str
    program: str
    source: str
    #: ReFrame's hash.
    case: str

    @property
    def test_case_key(self) -> tuple[str, ...]:
        """The identity of the test case: perflogs.CASE. A hash is not enough:
        test cases of two sources have the same, and it may change."""
        return tuple(getattr(self, name) for name in CASE)

    @property
    def plan_key(self) -> Key:
        """The identity of the test case in a plan."""
        return self.partition, self.environ, self.case


@dataclass(frozen=True)
class Result(Place):
    """The result of a test case in its newest session."""
    run: str
    #: One of ORDER.
    result: str
    #: The guard of the record that decided; '': none refused it.
    guard: str = ''
    #: Why it failed, or is inconclusive; '': only the guard is known.
    reason: str = ''
    #: If a metric is out of tolerance: the one that is farthest from its reference,
    #: and its change (config/sessions/judged.py:change_in_percent).
    metric: str = ''
    change: str = ''
    #: How often the session measured it.
    measurements: int = 1
    #: Nodes of its jobs; empty: unknown, or none.
    nodes: frozenset[str] = frozenset()
    #: Nodes of one job.
    width: int = 1
    #: Regressions that include it, by `id`.
    regressions: list[str] = field(default_factory=list)
    #: Of a nightly session: the result of each of its sessions.
    sessions: tuple[Result, ...] = ()

    @property
    def is_failed(self) -> bool:
        """Whether the test case failed."""
        return self.result in FAILED

    @property
    def is_cut_short(self) -> bool:
        """Whether its session ended before the test case did."""
        return reasons.is_cut_short(self.result, self.guard)

    @property
    def has_run(self) -> bool:
        """Whether its job began."""
        return self.result != 'not_run' and self.guard not in reasons.NOT_BEGUN

    @property
    def is_good(self) -> bool:
        """Neither failed nor regressed."""
        return not self.is_failed and not self.regressions

    @property
    def suspect_nodes(self) -> frozenset[str]:
        """Nodes on which all sessions failed, where all sessions on other
        nodes were sound, and there is one."""
        sessions = [one for one in self.sessions if one.has_run]
        if self.result != 'fail' or not all(one.nodes for one in sessions):
            return frozenset()
        nodes = frozenset(name for one in sessions if one.is_failed
                          for name in one.nodes)
        sound = [one for one in sessions if not one.is_failed]
        return nodes if sound and not any(
            one.nodes & nodes for one in sound) else frozenset()


def newest_records(frame: pd.DataFrame) -> pd.DataFrame:
    """The records that count of the newest session of each test case.

    `result` is one of ORDER, as text.

    :param frame: as perflogs.read gives it
    """
    _, session = group_into_nightly_sessions(frame)
    case = naming.group_number_of_records(frame, CASE)
    last = np.full(case.max(initial=-1) + 1, -1)
    np.maximum.at(last, case, session)
    frame = frame[(session == last[case]) & ~_mask_measured_again(frame, case, session)]
    frame = frame[naming.mask_preferring_median_to_repetitions(frame)]
    ranks = _result_order_numbers(frame, naming.group_number_of_records(frame, CASE),
                                  np.ones(len(frame), bool))
    return frame.assign(result=np.array(ORDER, object)[ranks])


def newest_results_of_test_cases(frame: pd.DataFrame) -> list[Result]:
    """The result of each test case in its newest session.

    :param frame: as perflogs.read gives it
    """
    return results_of_newest_records(newest_records(frame))


def results_of_newest_records(records: pd.DataFrame) -> list[Result]:
    """The result of each test case, from the records that `newest_records` gave."""
    nodes = _nodes_by_test_case(records)
    changes = _largest_change_by_test_case(records)
    records = records.assign(rank=records['result'].map(ORDER.index))
    records = records.sort_values(['rank', 'guard'], ascending=[
        True, False], kind='stable').drop_duplicates(CASE).sort_values(CASE)
    results = []
    for row in records.itertuples():
        place = place_fields(row)
        key = tuple(place[name] for name in CASE)
        ran_on, width = nodes[key]
        metric, change = ('', '') if str(row.guard) else changes.get(key, ('', ''))
        results.append(
            Result(
                **place,
                run=str(row.run),
                result=str(row.result),
                guard=str(row.guard),
                measurements=int(row.measurements),
                nodes=ran_on,
                width=width,
                metric=metric,
                change=change,
                reason=reasons.reason_of_result(row)
                if row.result in (*FAILED, 'inconclusive')
                else '',
            )
        )
    return results


def results_of_session(frame: pd.DataFrame, run: str) -> dict[Key, Result]:
    """The results of the test cases of one session.

    Copies of a test case (--distribute, --repeat) differ only in their hash, and
    each has a result.
    """
    records = frame[frame['run'] == run]
    of_hash = naming.group_number_of_records(records, [*CASE, 'case'])
    case_of_hash = np.zeros(of_hash.max(initial=-1) + 1, int)
    case_of_hash[of_hash] = naming.group_number_of_records(records, CASE)
    # Number of a copy among those of its test case: all 0 in most sessions.
    copy = pd.Series(case_of_hash).groupby(case_of_hash).cumcount().to_numpy()[of_hash]
    return _worst_result_by_plan_key([
        one for number in range(copy.max(initial=-1) + 1)
        for one in newest_results_of_test_cases(records[copy == number])])


def records_of_nightly_session(frame: pd.DataFrame, run: str) -> pd.DataFrame:
    """The records of all sessions of a nightly session.

    :param run: its first session
    """
    first = run_id.first_session_id_by_session(map(str, frame['run'].cat.categories))
    return frame[frame['run'].isin(
        [name for name, began in first.items() if began == run])]


def results_of_nightly_session(frame: pd.DataFrame, run: str) -> dict[Key, Result]:
    """The results of a nightly session, with those of each of its sessions.

    :param run: its first session
    """
    records = records_of_nightly_session(frame, run)
    by_session = [results_of_session(records, name)
                  for name in sorted(map(str, records['run'].unique()))]
    return {key: replace(one, sessions=tuple(
        session[key] for session in by_session if key in session))
        for key, one in _worst_result_by_plan_key(
                newest_results_of_test_cases(records)).items()}


def _worst_result_by_plan_key(results: list[Result]) -> dict[Key, Result]:
    """By what a plan knows; the worst one, if several have one key."""
    return {one.plan_key: one for one in sorted(
        results, key=lambda one: ORDER.index(one.result), reverse=True)}


def place_fields(row: Any) -> dict[str, Any]:
    """The fields of `Place`, of a record."""
    return {name: str(getattr(row, name))
            for name in Place.__dataclass_fields__}


def nodes_of_record(nodes: str, binding: str = '') -> list[str]:
    """Nodes of a record: those that the scheduler names, separated by blanks;
    where it names none (squeue), those that the ranks reported.

    >>> nodes_of_record('', 'n1:0,1 n2:0,1')
    ['n1', 'n2']
    """
    return topology.nodes_of_record(nodes) or [
        word.partition(':')[0] for word in binding.split()]


def _nodes_by_test_case(records: pd.DataFrame
           ) -> dict[tuple[str, ...], tuple[frozenset[str], int]]:
    """Test case -> nodes of its jobs, and how many one job has."""
    nodes_of_case: dict[tuple[str, ...], tuple[frozenset[str], int]] = {}
    rows = records[[*CASE, 'nodes', 'binding', 'num_nodes']].drop_duplicates()
    for *names, nodes, binding, number in rows.itertuples(index=False):
        key = tuple(map(str, names))
        before, width = nodes_of_case.get(key, (frozenset(), 1))
        nodes_of_case[key] = (
            before | frozenset(nodes_of_record(str(nodes), str(binding))),
            width if pd.isna(number) else max(width, int(number)),
        )
    return nodes_of_case


def _largest_change_by_test_case(records: pd.DataFrame
                                 ) -> dict[tuple[str, ...], tuple[str, str]]:
    """Test case -> its metric that is farthest out of tolerance, and its change."""
    failed = records[(records['result'] == 'fail') & records['reference'].notna()]
    farthest: dict[tuple[str, ...], tuple[Any, str, str]] = {}
    for row in failed.itertuples():
        key = tuple(str(getattr(row, name)) for name in CASE)
        rank = judged.deviation_rank(row.value, row.reference, row.unit)
        if key not in farthest or rank > farthest[key][0]:
            farthest[key] = (rank, judged.metric_key(str(row.metric), row.point),
                             judged.change_in_percent(row.value, row.reference))
    return {key: (metric, change) for key, (_, metric, change) in farthest.items()}


@dataclass
class History:
    """The result of each test case in each nightly session: one row per test
    test case, one column per nightly session."""
    #: Sessions of each column, the oldest first; those of several systems on
    #: one date stand together, a second one of a system in the next column
    #: (unless it measured again what failed in the first one).
    sessions: list[list[str]]
    #: Of each record: the number of its column.
    session: np.ndarray
    #: Test cases: the number of each record's, and its newest record.
    case: np.ndarray
    last: pd.DataFrame
    #: Number in ORDER, NO_RECORD or NOT_EXPECTED.
    ended: np.ndarray


def result_history(frame: pd.DataFrame, counted: np.ndarray, case: np.ndarray,
                   partial: Partial = {}) -> History:
    """The result of each test case in each nightly session.

    :param frame: as perflogs.read gives it, sorted by time
    :param counted: whether a record counts
        (naming.mask_preferring_median_to_repetitions)
    :param test case: the number of each record's test case, from 0
    :param partial: sessions that left test cases out on purpose
        (`plans.partial_sessions`)
    """
    names, column = group_into_nightly_sessions(frame)
    counted = counted & ~_mask_measured_again(frame, case, column)
    rank = _result_order_numbers(frame, case, counted)
    many = case.max() + 1 if len(case) else 0
    ended = np.full((many, len(names)), NOT_EXPECTED)
    flat = case * len(names) + column
    np.minimum.at(ended.reshape(-1), flat[counted], rank[counted])
    has_run = np.zeros(ended.shape, bool)
    has_run.reshape(-1)[flat[~_mask_cut_short(frame)]] = True
    last = np.zeros(many, int)
    np.maximum.at(last, case, np.arange(len(case)))
    rows = frame.iloc[last]
    place = naming.group_number_of_records(rows, ['family', 'system', 'partition'])
    skipped = np.array([bool(partial) and set(runs) <= partial.keys()
                        for runs in names], bool)
    for group in np.unique(place):
        rows_of_place = np.flatnonzero(place == group)
        ended[rows_of_place] = _mark_missing_records(
            ended[rows_of_place], has_run[rows_of_place], skipped)
    return History(names, column, case, rows, ended)


def _mask_cut_short(frame: pd.DataFrame) -> np.ndarray:
    """Whether a record is of a test case whose session ended before it did."""
    return frame['guard'].isin(reasons.CUT_SHORT).to_numpy()


def _mask_measured_again(frame: pd.DataFrame, case: np.ndarray, session: np.ndarray
                         ) -> np.ndarray:
    """Whether a record is of a test case whose session ended before it did, and that
    has another record in the same nightly session.

    :param case: the number of each record's test case
    :param session: the number of its nightly session
    """
    place = case * (session.max(initial=0) + 1) + session
    cut_short = _mask_cut_short(frame)
    return cut_short & np.isin(place, place[~cut_short])


def _result_order_numbers(frame: pd.DataFrame, case: np.ndarray, counted: np.ndarray
           ) -> np.ndarray:
    """The result of each record, as its number in ORDER.

    :param test case: the number of each record's test case
    :param counted: whether a record counts
        (naming.mask_preferring_median_to_repetitions)
    """
    results, guards = frame['result'].cat, frame['guard'].cat
    rank = np.array([ORDER.index(name) if name in ORDER else _FAIL
                     for name in results.categories], int)[results.codes]
    of_guard = np.array([
        -1 if not name else _NOT_RUN if name in reasons.NOT_RUN else _FAIL
        for name in guards.categories], int)[guards.codes]
    rank = np.where(of_guard >= 0, of_guard, rank)
    rank[_flaky_record_positions(frame, case, rank, counted)] = _FLAKY
    return rank


def _flaky_record_positions(frame: pd.DataFrame, case: np.ndarray, rank: np.ndarray,
                            counted: np.ndarray) -> np.ndarray:
    """Positions of the failed records of test cases that are flaky."""
    first = run_id.first_session_id_by_session(map(str, frame['run'].cat.categories))
    sessions = Counter(first.values())
    again = frame['run'].isin([run for run, began in first.items()
                               if sessions[began] > 1]).to_numpy() & counted
    failed = rank <= _NOT_RUN
    again &= np.isin(case, np.unique(case[again & failed]))
    at: list[int] = np.flatnonzero(again).tolist()
    positions: dict[tuple[int, str], dict[str, list[int]]] = defaultdict(dict)
    for position, run in zip(at, frame['run'].iloc[at], strict=True):
        positions[case[position], first[run]].setdefault(run, []).append(
            position
        )
    ran_on = {n: nodes_of_record(*map(str, pair)) for n, pair in zip(
        at, frame[['nodes', 'binding']].iloc[at].itertuples(index=False),
        strict=True)}
    flaky: list[int] = []
    for by_run in positions.values():
        nodes_of_run = {run: {name for n in by_run[run] for name in ran_on[n]}
                        for run in sorted(by_run)}
        bad = [run for run in nodes_of_run if failed[by_run[run]].any()]
        if len(bad) == 1 and any(
                run > bad[0] and (nodes & nodes_of_run[bad[0]] or not nodes
                                  or not nodes_of_run[bad[0]])
                for run, nodes in nodes_of_run.items()):
            flaky += [n for n in by_run[bad[0]] if failed[n]]
    return np.array(flaky, int)


def group_into_nightly_sessions(frame: pd.DataFrame) -> tuple[list[list[str]],
                                                              np.ndarray]:
    """The sessions of each nightly session, and its number for each record.
    """
    first = frame.drop_duplicates('run')
    number: dict[tuple, int] = {}
    names: dict[tuple, list[str]] = {}
    of_run: dict[str, tuple] = {}
    began = run_id.first_session_id_by_session(map(str, first['run']))
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


def _mark_missing_records(ended: np.ndarray, has_run: np.ndarray, skipped: np.ndarray
                          ) -> np.ndarray:
    """With NO_RECORD where a test case has no record of a session in which
    at least BESIDE of those ran that had run beside it.

    :param ended: of the test cases of one family, system and partition
    :param has_run: whether a test case ran in a session: one that resumes a session
        which was cut short has only those test cases that had not run
    :param skipped: sessions that left test cases out on purpose
    """
    ended = ended.copy()
    ran = ended != NOT_EXPECTED
    for case, sessions_of_case in enumerate(ran):
        there = np.flatnonzero(sessions_of_case)
        for at, until in zip(there, [*there[1:], ran.shape[1]], strict=True):
            if until == at + 1:
                continue
            near = has_run[:, at].copy()
            near[case] = False
            if not near.any():
                continue
            later = slice(at + 1, until)
            owed = (ran[near, later].mean(axis=0) >= BESIDE
                    ) & ~skipped[later]
            ended[case, later][owed] = NO_RECORD
    return ended
