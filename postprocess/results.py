"""Results of test cases, computed from the records alone.

The table of `plumb run`, page, verdict, JUnit, exit codes and the summary of a
nightly session take them from here.

- `fail`: a sanity check refused the test case, or a metric is out of tolerance
  or beyond a limit. A failure stays open until the test case passes on its nodes.
- `missing`: an earlier complete session of the same mode had the test case, and
  this one has not.
- `not_run`: it was not started or did not end.
- `flaky`: it failed, and passed when it was measured again: in the same session
  after a failure of build, run or sanity, or in a later session of the same
  nightly session on the same nodes.
- `xpass`: a known fault is gone. `xfail`: a known fault is still there.
- `pass`: compared with a reference or a limit.
- `inconclusive`: a sound run that cannot be compared.
- `no_reference`: a sound measurement without a reference.

Which measurement of a session counts is decided where the records are read
(postprocess/records). The result of a test case is the first one in this list that
any record of its newest session has. The sessions of one nightly session
(config/sessions/session_id.py) count as one. If one of them ended before a test
case did, and another one measured it, only the latter counts.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from config.console import count_with_noun
from config.sessions import judged
from config.sessions.session_id import first_session_id_by_session
from config.sites import topology

from . import naming

#: Results, the most telling first.
ORDER = ('fail', 'missing', 'not_run', 'flaky', 'xpass', 'xfail', 'pass',
         'inconclusive', 'no_reference')
#: Results with which a command exits with 1. A known fault that is gone is to
#: be removed from the reference file, as ReFrame has it.
FAILED = ('fail', 'missing', 'not_run', 'flaky', 'xpass')
#: States of a session, the worst first (`session_state`).
STATES = ('failed', 'regressed', 'cut short', 'degraded', 'not compared', 'good')
#: Exit code of a session that was not compared, with --require-compared.
NOT_COMPARED_CODE = 3
#: Results of sound test cases of which nothing has to be done at once: terminals
#: fold them.
GOOD = ('pass', 'no_reference')
#: Sessions in a row without a comparison after which a test case with a reference
#: makes a session degraded: one such session can be chance.
MAX_UNCOMPARED = 3
#: What a cell of `History` is if the test case was not expected to run.
NOT_EXPECTED = len(ORDER)
#: Guard of a test case that the session of it has no measurement of.
MISSING = 'missing'
#: Guard of a failure of an earlier session whose nodes have not passed since.
OPEN = 'open'
#: Guards of a test case whose session ended before it did.
CUT_SHORT = (MISSING, 'cancelled')
#: Guards of a test case whose job did not begin.
NOT_BEGUN = ('setup', 'submit', 'pending')
#: Sessions of a system after which what no longer runs is no longer reported.
RECENT = 10


def tally_text(results: Iterable[str], again: int = 0) -> str:
    """The number of test cases of each result, what matters last.

    :param results: one per test case: `result_by_test_case`
    :param again: how many of them were measured again: `count_measured_again`

    >>> tally_text(['pass', 'fail', 'pass'], 1), tally_text([])
    ('2 pass · 1 fail of 3 test cases, 1 measured again', 'no test case has a result')
    """
    counts = Counter(results)
    if not counts:
        return 'no test case has a result'
    order = [*GOOD, *(name for name in reversed(ORDER) if name not in GOOD)]
    return (' · '.join(f'{counts[name]} {name}' for name in order if counts[name])
            + f' of {count_with_noun(counts.total(), "test case")}'
            + f', {again} measured again' * bool(again))


@dataclass(frozen=True)
class Place:
    """The identity of a test case, and what it runs."""
    #: The short id, made from system, partition, environ, check, params, settings.
    test_case: str
    system: str
    partition: str
    environ: str
    check: str
    params: str
    settings: str
    family: str
    program: str
    source: str


PLACE = [*Place.__dataclass_fields__]
#: Columns by which test cases are listed.
LISTED = ['family', 'system', 'partition', 'environ', 'check', 'params', 'settings',
          'copy']


@dataclass(frozen=True)
class Result(Place):
    """The result of a test case, or of a copy of one, in its newest session."""
    session: str
    #: One of ORDER.
    result: str
    #: Repeat number, nodes: `--repeat`, `--distribute`, pinned nodes; '': one only.
    copy: str = ''
    #: ReFrame's display name.
    name: str = ''
    #: The guard of the record that decided; '': none refused it.
    guard: str = ''
    #: The guard of its failure, of which `guard` can be OPEN.
    failed_guard: str = ''
    #: The reason of that guard, or why it is inconclusive; '': unknown.
    reason: str = ''
    #: If it failed: why, in words that all outputs print; and the date (UTC).
    why: str = ''
    date: str = ''
    #: Whether the reason may vanish when it is measured again.
    transient: bool = False
    #: What earlier measurements of the session say: 'not confirmed', ...
    note: str = ''
    #: If a value of a metric failed it: the metric.
    metric: str = ''
    #: How often the session measured it.
    measurements: int = 1
    #: Sessions in a row, up to this one, in which it was not compared although it has
    #: a reference.
    uncompared: int = 0
    #: The measurement that decided, and the report or file of rows that has it.
    measurement: str = ''
    file: str = ''
    #: Of a verdict: whether its session is older than the newest one of its system.
    is_earlier: bool = False
    #: Nodes of its jobs, or of those that failed; empty: unknown, or none.
    nodes: frozenset[str] = frozenset()
    #: Nodes of one job.
    width: int = 1
    #: Regressions that include it, by `id`.
    regressions: list[str] = field(default_factory=list)
    #: Of a nightly session: the result in each of its sessions.
    sessions: tuple[Result, ...] = ()

    @property
    def is_failed(self) -> bool:
        """Whether the test case failed."""
        return self.result in FAILED

    @property
    def is_cut_short(self) -> bool:
        """Whether its session ended before the test case did."""
        return is_cut_short(self.result, self.guard)

    @property
    def is_compared(self) -> bool:
        """Whether a value was compared with a reference or a limit."""
        return (self.result in ('pass', 'xpass')
                or self.result in ('fail', 'xfail') and not self.guard)

    @property
    def is_open(self) -> bool:
        """Whether it is a failure of an earlier session."""
        return self.guard == OPEN

    @property
    def has_run(self) -> bool:
        """Whether its job began."""
        return (self.result not in ('missing', 'not_run')
                and self.guard not in NOT_BEGUN)

    @property
    def is_good(self) -> bool:
        """Neither failed nor regressed."""
        return not self.is_failed and not self.regressions


def result_by_test_case(outcomes: Iterable[Result]) -> dict[str, str]:
    """Short id of a test case -> the most telling result of its copies."""
    worst: dict[str, str] = {}
    for one in outcomes:
        worst[one.test_case] = min(one.result, worst.get(one.test_case, one.result),
                                   key=ORDER.index)
    return worst


def count_measured_again(records: pd.DataFrame) -> int:
    """How many test cases have several measurements of a copy in their nightly session.

    :param records: as `newest_records` has them
    """
    rows = records.drop_duplicates(['test_case', 'copy', 'session'])
    number = rows.groupby(['test_case', 'copy'], observed=True)['measurements'].sum()
    return number.index[number > 1].get_level_values('test_case').nunique()


def is_cut_short(result: str, guard: str) -> bool:
    """Whether a test case did not run because its session ended before it did."""
    return result == 'not_run' and guard in CUT_SHORT


def comparison_fault(outcomes: Collection[Result]) -> str:
    """Why too little of a session was compared; '': enough was.

    Most test cases of a system were not compared, of those of its newest session. Or
    one was not for too long, which also an earlier session can have left.

    :param outcomes: the results of its test cases
    """
    systems = sorted({one.system for one in outcomes})
    faults = []
    for system in systems:
        current = [one for one in outcomes
                   if one.system == system and not one.is_earlier]
        uncompared = len({one.test_case for one in current if one.uncompared})
        number = uncompared + compared_test_cases(current)
        if 2 * uncompared > number:
            faults.append(
                f'{uncompared} of {count_with_noun(number, "test case")} with a '
                'reference not compared' + f' on {system}' * (len(systems) > 1))
    long = sum(one.uncompared >= MAX_UNCOMPARED for one in outcomes)
    return ', '.join(faults) or (
        f'{count_with_noun(long, "test case")} with a reference not compared for '
        f'{MAX_UNCOMPARED} sessions or more' * bool(long))


def compared_test_cases(outcomes: Iterable[Result]) -> int:
    """Test cases of a session with a value that was compared with a reference or a
    limit. An earlier session's do not count.

    :param outcomes: the results of its test cases
    """
    return len({one.test_case for one in outcomes
                if one.is_compared and not one.is_earlier})


def session_state(outcomes: Collection[Result], *, regressed: bool, compared: bool,
                  broken: bool = False, ended_early: bool = False,
                  incomplete: bool = False) -> str:
    """The state of a session, one of STATES, for all that show it.

    It is degraded if test cases are missing or flaky, or if too little was compared.

    :param outcomes: the results of its test cases
    :param regressed: whether a regression has one of them
    :param compared: whether a metric was compared with its history; a test case
        that was compared with a reference or a limit is in `outcomes`
    :param broken: whether it could not run
    :param ended_early: whether something ended it
    :param incomplete: whether records or the page are missing or damaged
    """
    failed = {one.result for one in outcomes
              if one.is_failed and not one.is_cut_short}
    if broken or failed - {'flaky', 'missing'}:
        return 'failed'
    if regressed:
        return 'regressed'
    if ended_early or any(one.is_cut_short for one in outcomes):
        return 'cut short'
    if failed or incomplete or comparison_fault(outcomes):
        return 'degraded'
    return 'good' if compared or compared_test_cases(outcomes) else 'not compared'


def exit_code_of_state(state: str, require_compared: bool = False) -> int:
    """The exit code of a session: 0 good, or not compared; 1 anything worse.

    :param require_compared: 3 if it was not compared
    """
    if state == 'not compared':
        return NOT_COMPARED_CODE if require_compared else 0
    return 0 if state == 'good' else 1


# ------------------------------------------------- the newest result of each test case

def newest_records(frame: pd.DataFrame) -> pd.DataFrame:
    """The records that count of the newest session of each test case.

    `result` is one of ORDER, as text. `copy` is that of the first session of a nightly
    session: the further ones measure on chosen nodes.

    :param frame: as records.read and `debts.add_debts` give it, sorted by time
    """
    _, session = group_into_nightly_sessions(frame)
    case = naming.group_number_of_records(frame, ['test_case'])
    last = np.zeros(case.max(initial=-1) + 1, int)
    last[case] = session        # the records are sorted by time
    frame = frame[(session == last[case]) & ~_mask_measured_again(
        frame, case, session)]
    frame = frame[naming.mask_preferring_median_to_repetitions(frame)]
    ranks = _result_order_numbers(
        frame, naming.group_number_of_records(frame, ['test_case']),
        np.ones(len(frame), bool))
    return frame.assign(
        result=np.array(ORDER, object)[ranks],
        copy=frame['copy'].astype(str).where(
            _first_session_of_each_record(frame) == frame['session'].astype(str), ''))


def newest_results_of_test_cases(frame: pd.DataFrame) -> list[Result]:
    """The result of each test case in its newest session, one per copy.

    :param frame: as `newest_records` has it
    """
    return results_of_newest_records(newest_records(frame))


def results_of_newest_records(records: pd.DataFrame) -> list[Result]:
    """The results of test cases, from the records that `newest_records` gave."""
    copy = naming.group_number_of_records(records, ['test_case', 'copy'])
    rank = records['result'].map(ORDER.index)
    nodes = _nodes_by_copy(records, copy, rank)
    texts = _value_texts_by_copy(records, copy)
    deciding = records.assign(number=copy, rank=rank).sort_values(
        ['rank', 'guard'], ascending=[True, False], kind='stable').drop_duplicates(
            'number').sort_values(LISTED)
    results = []
    for row in deciding.itertuples():
        ran_on, width = nodes[row.number]
        metric, text = ('', '') if row.guard else texts.get(row.number, ('', ''))
        results.append(Result(
            **place_fields(row), session=str(row.session), result=str(row.result),
            copy=str(row.copy), name=str(row.name), guard=str(row.guard),
            failed_guard=str(getattr(row, 'failed_guard', row.guard)),
            reason=str(row.reason), why=_why_failed(row, text) * (
                row.result in FAILED), date=f'{row.time:%Y-%m-%d}', metric=metric,
            transient=bool(row.transient), note=str(row.note),
            measurements=int(row.measurements), measurement=str(row.measurement),
            file=str(row.file),
            uncompared=int(getattr(row, 'uncompared', 0)), nodes=ran_on, width=width))
    return results


def results_of_session(frame: pd.DataFrame, session: str
                       ) -> dict[tuple[str, str], Result]:
    """(test case, copy) -> result, of one session."""
    return {(one.test_case, one.copy): one for one in newest_results_of_test_cases(
        frame[frame['session'] == session])}


def records_of_nightly_session(frame: pd.DataFrame, session: str) -> pd.DataFrame:
    """The records of all sessions of a nightly session.

    :param session: its first session
    """
    return frame[_first_session_of_each_record(frame) == session]


def results_of_nightly_session(frame: pd.DataFrame, session: str
                               ) -> dict[tuple[str, str], Result]:
    """(test case, copy) -> result of a nightly session, with those of each of its
    sessions.

    :param session: its first session
    """
    records = records_of_nightly_session(frame, session)
    of_test_case: dict[str, list[Result]] = defaultdict(list)
    for name in sorted(map(str, records['session'].unique())):
        for one in results_of_session(records, name).values():
            of_test_case[one.test_case].append(one)
    return {(one.test_case, one.copy): replace(one, sessions=tuple(
        part for part in of_test_case[one.test_case]
        if part.session != session or part.copy == one.copy))
        for one in newest_results_of_test_cases(records)}


def _first_session_of_each_record(frame: pd.DataFrame) -> pd.Series:
    """The first session of the nightly session of each record."""
    return frame['session'].astype(object).map(
        first_session_id_by_session(map(str, frame['session'].unique())))


def place_fields(row: Any) -> dict[str, Any]:
    """The fields of `Place`, of a record."""
    return {name: str(getattr(row, name)) for name in PLACE}


def _nodes_by_copy(records: pd.DataFrame, copy: np.ndarray, rank: pd.Series
                   ) -> dict[int, tuple[frozenset[str], int]]:
    """Number of a copy -> nodes of its jobs, and how many one job has.

    Of a copy that failed, only the jobs that failed count: a nightly session measures
    it on other nodes, too.

    :param rank: the result of each record, as its number in ORDER
    """
    nodes_of_copy: dict[int, tuple[frozenset[str], int]] = {}
    rows = records[['nodes', 'num_nodes']].assign(number=copy)
    worst = rank.groupby(copy).transform('min')
    has_failed = worst.isin([*map(ORDER.index, FAILED)])
    rows = rows[(rank == worst) | ~has_failed].drop_duplicates()
    for nodes, count, number in rows.itertuples(index=False):
        before, width = nodes_of_copy.get(number, (frozenset(), 1))
        nodes_of_copy[number] = (
            before | frozenset(topology.nodes_of_record(str(nodes))),
            width if pd.isna(count) else max(width, int(count)))
    return nodes_of_copy


def _value_texts_by_copy(records: pd.DataFrame, copy: np.ndarray
                         ) -> dict[int, tuple[str, str]]:
    """Number of a copy -> its metric that is farthest out of tolerance, and how far."""
    failed = ((records['result'] == 'fail') & (records['metric'] != 'completed')
              & np.isfinite(records['value'])).to_numpy()
    values: dict[int, dict[str, tuple[float, float, str]]] = defaultdict(dict)
    for row, number in zip(records[failed].itertuples(), copy[failed], strict=True):
        values[number][judged.metric_key(str(row.metric), row.point)] = (
            row.value, row.reference, str(row.unit))
    return {number: judged.farthest_out_of_tolerance(of_copy)
            for number, of_copy in values.items()}


def _why_failed(row: Any, text: str) -> str:
    """Why a test case failed.

    :param row: the record that decided
    :param text: how far its values are out of tolerance
    """
    if row.result == 'xpass':
        return 'the known fault is fixed'
    if not row.guard:
        return text or 'the test case did not complete'
    reason = str(row.reason)
    # A message usually begins with the name of its guard.
    return reason if row.guard in (MISSING, OPEN) or reason.startswith(
        f'{row.guard}:') else ': '.join(filter(None, [str(row.guard), reason]))


# ------------------------------------------------- results over sessions

@dataclass
class History:
    """The result of each test case in each nightly session: one row per test
    case, one column per nightly session."""
    #: Sessions of each column, the oldest first; those of several systems on
    #: one date stand together, a second one of a system in the next column
    #: (unless it measured again what failed in the first one).
    sessions: list[list[str]]
    #: Of each record: the number of its column.
    session: np.ndarray
    #: Test cases: the number of each record's, and its newest record.
    case: np.ndarray
    last: pd.DataFrame
    #: Number in ORDER, or NOT_EXPECTED.
    ended: np.ndarray


def result_history(frame: pd.DataFrame, counted: np.ndarray, case: np.ndarray
                   ) -> History:
    """The result of each test case in each nightly session.

    :param frame: as records.read and `debts.add_debts` give it, sorted by time
    :param counted: whether a record counts
        (naming.mask_preferring_median_to_repetitions)
    :param case: the number of each record's test case, from 0
    """
    names, column = group_into_nightly_sessions(frame)
    counted = counted & ~_mask_measured_again(frame, case, column)
    rank = _result_order_numbers(frame, case, counted)
    many = case.max() + 1 if len(case) else 0
    ended = np.full((many, len(names)), NOT_EXPECTED)
    np.minimum.at(ended, (case[counted], column[counted]), rank[counted])
    last = np.zeros(many, int)
    np.maximum.at(last, case, np.arange(len(case)))
    return History(names, column, case, frame.iloc[last], ended)


def _mask_measured_again(frame: pd.DataFrame, case: np.ndarray, session: np.ndarray
                         ) -> np.ndarray:
    """Whether a record is of a test case whose session ended before it did, and that
    has another record in the same nightly session.

    :param case: the number of each record's test case
    :param session: the number of its nightly session
    """
    place = case * (session.max(initial=0) + 1) + session
    cut_short = ((frame['result'] == 'not_run')
                 & frame['guard'].isin(CUT_SHORT)).to_numpy()
    return cut_short & np.isin(place, place[~cut_short])


def _result_order_numbers(frame: pd.DataFrame, case: np.ndarray, counted: np.ndarray
                          ) -> np.ndarray:
    """The result of each record, as its number in ORDER.

    :param case: the number of each record's test case
    :param counted: whether a record counts
        (naming.mask_preferring_median_to_repetitions)
    """
    results = frame['result'].cat
    rank = np.array([*map(ORDER.index, results.categories)], int)[results.codes]
    rank[_flaky_record_positions(frame, case, rank, counted)] = ORDER.index('flaky')
    return rank


def _flaky_record_positions(frame: pd.DataFrame, case: np.ndarray, rank: np.ndarray,
                            counted: np.ndarray) -> np.ndarray:
    """Positions of the failed records of test cases that failed in one session of a
    nightly session, and passed in a later one on the same nodes."""
    first = first_session_id_by_session(map(str, frame['session'].unique()))
    sessions = Counter(first.values())
    again = frame['session'].isin([name for name, began in first.items()
                                   if sessions[began] > 1]).to_numpy() & counted
    failed = (rank <= ORDER.index('not_run')) & frame['guard'].ne(OPEN).to_numpy()
    again &= np.isin(case, np.unique(case[again & failed]))
    at: list[int] = np.flatnonzero(again).tolist()
    positions: dict[tuple[int, str], dict[str, list[int]]] = defaultdict(dict)
    for position, name in zip(at, frame['session'].iloc[at], strict=True):
        positions[case[position], first[name]].setdefault(name, []).append(position)
    ran_on = {n: topology.nodes_of_record(str(nodes)) for n, nodes in zip(
        at, frame['nodes'].iloc[at], strict=True)}
    flaky: list[int] = []
    for by_session in positions.values():
        nodes_of = {name: {node for n in by_session[name] for node in ran_on[n]}
                    for name in sorted(by_session)}
        bad = [name for name in nodes_of if failed[by_session[name]].any()]
        if len(bad) == 1 and any(
                name > bad[0] and (nodes & nodes_of[bad[0]] or not nodes
                                   or not nodes_of[bad[0]])
                for name, nodes in nodes_of.items()):
            flaky += [n for n in by_session[bad[0]] if failed[n]]
    return np.array(flaky, int)


def sessions_text(frame: pd.DataFrame) -> str:
    """How many sessions there are, as the page has columns. Sessions that measured
    again what failed, and those of other systems on one date, are no further ones."""
    number = len(group_into_nightly_sessions(frame)[0])
    runs = frame['session'].nunique()
    return count_with_noun(number, 'session') + (
        f' ({runs} of ReFrame)' if runs > number else '')


def group_into_nightly_sessions(frame: pd.DataFrame) -> tuple[list[list[str]],
                                                              np.ndarray]:
    """The sessions of each nightly session, and its number for each record.
    """
    first = frame.drop_duplicates('session')
    number: dict[tuple, int] = {}
    names: dict[tuple, list[str]] = {}
    of_session: dict[str, tuple] = {}
    began = first_session_id_by_session(map(str, first['session']))
    for row in first.itertuples():
        if (key := of_session.get(began[str(row.session)])):
            names[key].append(str(row.session))
            of_session[row.session] = key
            continue
        place = row.system, row.time.date()
        number[place] = number.get(place, -1) + 1
        key = place[1], number[place]
        names.setdefault(key, []).append(str(row.session))
        of_session[row.session] = key
    order = {key: n for n, key in enumerate(sorted(names))}
    column = frame['session'].cat.codes.map({
        code: order[of_session[name]] for code, name in
        enumerate(frame['session'].cat.categories) if name in of_session})
    return [names[key] for key in order], column.to_numpy(int)
