"""Debts: what sessions owe of earlier ones, until it is paid or a person decides.

A test case that vanished, and a failure whose nodes have not passed since, become
records of each later session, so that verdict, page, JUnit, mail and exit code report
them alike. Results are computed from the records in results.py.
"""
from __future__ import annotations

import datetime
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from config.sessions import judged
from config.sites import topology

from . import naming, records
from .regressions import decisions
from .results import MISSING, OPEN, group_into_nightly_sessions

#: Result of a value -> its rank: the lowest one is that of its measurement. One that
#: was compared pays for each failure. One that is sound but was not compared pays for
#: the failure of a sanity check alone.
_RANKS = {'fail': 0, 'xfail': 1, 'inconclusive': 1, 'xpass': 2, 'pass': 2,
          'no_reference': 3, 'flaky': 3}


class Read(NamedTuple):
    """The perflogs of folders, and what people decided about them."""
    #: As records.read gives it, with `add_debts`.
    frame: pd.DataFrame
    #: As records.sessions gives it.
    sessions: pd.DataFrame
    decided: list[decisions.Decision]
    faults: records.Faults


def read(*folders: str | Path) -> Read:
    """The records of folders, with those of the debts of their sessions.

    :raises ValueError: a file of decisions is damaged
    """
    frame, sessions, faults = records.read_with_sessions(folders)
    decided = [one for folder in folders
               for one in decisions.load_decisions(Path(folder))]
    return Read(add_debts(frame, sessions, decided), sessions, decided, faults)


def add_debts(frame: pd.DataFrame, sessions: pd.DataFrame,
              decided: Sequence[decisions.Decision] = ()) -> pd.DataFrame:
    """The records, and one for each debt of a session.

    A session that selected all test cases of its mode owes those that an earlier
    complete session of the same system and mode had. They are `missing`; if the session
    was cut short, `not_run` with the guard `missing`. A session also owes a pass on the
    nodes of each failure of its test cases: a failure that is open is a copy of its own
    with the guard `open`. What a person retired is not owed. What a person muted is
    `xfail`.

    The columns `uncompared` and `failed_guard` are those of `Result`.

    :param frame: as records.read gives it, sorted by time
    :param sessions: as records.sessions gives it, of the same paths
    """
    if frame.empty:
        return frame
    _, session = group_into_nightly_sessions(frame)
    frame = frame.assign(uncompared=_uncompared_sessions(frame, session),
                         failed_guard=frame['guard'])
    retired = {name: one.since for one in decided if one.kind == 'retired'
               for name in one.metrics}
    added = [row for row in (*_missing_records(frame, sessions),
                             *_open_failures(frame, session))
             if not _is_retired(retired, row)]
    if added:
        frame = _with_records_of_debts(frame, added)
    return _mark_muted_failures(frame, decided)


def _with_records_of_debts(frame: pd.DataFrame, added: Sequence[_Debt]) -> pd.DataFrame:
    """The records, and one for each of some debts, sorted by time."""
    at = [row.at for row in added]
    rows = frame.loc[at].assign(
        session=[row.session for row in added], time=pd.to_datetime(
            [row.time for row in added], utc=True), metric='completed',
        point=np.nan, value=0.0, unit='1', better='higher', reference=np.nan,
        lower=np.nan, upper=np.nan, repetition=0, copy=[row.copy for row in added],
        note='', job='', nodes=[row.nodes for row in added], binding='', measurement='',
        measurements=[int(row.guard == OPEN) for row in added], transient=False,
        uncompared=0, result=[row.result for row in added],
        guard=[row.guard for row in added], reason=[row.reason for row in added])
    # Categories that both have: of a million records no text is made.
    kinds = {name: pd.CategoricalDtype(frame[name].cat.categories.union(
        rows[name].astype(str).unique())) for name in frame.select_dtypes('category')}
    return pd.concat([frame.astype(kinds), rows.astype(kinds)]).sort_values(
        'time', kind='stable', ignore_index=True)


class _Debt(NamedTuple):
    """What a session owes."""
    #: Index of an earlier record of the test case, and its date.
    at: int
    since: datetime.date
    test_case: str
    session: str
    time: pd.Timestamp
    result: str
    guard: str
    reason: str
    #: Of an open failure: the nodes that have not passed since, and those of the job
    #: that failed.
    nodes: str = ''
    copy: str = ''


def _is_retired(retired: Mapping[str, datetime.date], debt: _Debt) -> bool:
    """Whether a person retired a test case, or its failure on some nodes, after the
    debt began."""
    return any(debt.since <= retired[name] for name in (
        debt.test_case, f'{debt.test_case} {debt.copy}') if name in retired)


def _mark_muted_failures(frame: pd.DataFrame, decided: Sequence[decisions.Decision]
                         ) -> pd.DataFrame:
    """The records, with `xfail` for the failures that a person muted."""
    muted = np.zeros(len(frame), bool)
    for one in decided:
        if one.failures:
            at = np.flatnonzero(frame['test_case'].isin(one.metrics)
                                & frame['result'].eq('fail'))
            muted[at] |= np.array([
                one.is_muted_on(row.time.date()) and one.hides(
                    str(row.failed_guard), topology.nodes_of_record(str(row.nodes)))
                for row in frame.iloc[at].itertuples()], bool)
    if not muted.any():
        return frame
    kind = pd.CategoricalDtype(frame['result'].cat.categories.union(['xfail']))
    return frame.assign(result=frame['result'].astype(kind).where(~muted, 'xfail'))


def _uncompared_sessions(frame: pd.DataFrame, session: np.ndarray) -> np.ndarray:
    """The `uncompared` of each record (see `Result`).

    :param session: the number of each record's nightly session
    """
    inconclusive = frame['result'].eq('inconclusive').to_numpy()
    if not inconclusive.any():
        return np.zeros(len(frame), int)
    case = naming.group_number_of_records(frame, ['test_case'])
    place = case * (session.max() + 1) + session
    table = pd.DataFrame({
        'case': case, 'inconclusive': inconclusive,
        'compared': (frame['result'].isin(['pass', 'xpass'])
                     | frame['result'].isin(['fail', 'xfail']) & frame['guard'].eq('')),
        # Not `completed` of a measurement that a check refused, which has a tolerance.
        # Of an inconclusive one the record has the reference without its tolerance.
        'judged': (frame['metric'].ne('completed')
                   & (frame['lower'].notna() | frame['upper'].notna())
                   | frame['result'].eq('inconclusive') & frame['reference'].notna()),
        }).groupby(place, sort=True).agg(
            {'case': 'first', 'inconclusive': 'any', 'compared': 'any',
             'judged': 'any'})
    missed = table['inconclusive'] & ~table['compared']
    # A comparison, or another test case, begins to count anew.
    block = (table['compared'] | table['case'].ne(table['case'].shift())).cumsum()
    known = table['judged'] | table.groupby('case')['compared'].cummax()
    return missed.groupby(block).cumsum().where(missed & known, 0).loc[
        place].to_numpy(int)


def _missing_records(frame: pd.DataFrame, sessions: pd.DataFrame) -> Iterator[_Debt]:
    """The test cases that sessions owe because they selected all of their mode."""
    measured = frame.drop_duplicates(['session', 'test_case'])
    cases_of = {str(session): {str(name): at for name, at in zip(
        rows['test_case'], rows.index, strict=True)} for session, rows
        in measured.groupby('session', observed=True)}
    for _, group in sessions[sessions['selected_all']].sort_values(
            'started').groupby(['system', 'mode'], observed=True):
        owed: dict[str, int] = {}
        for row in group[~group['running']].itertuples():
            had = cases_of.get(str(row.session), {})
            for case, at in owed.items():
                if case not in had:
                    last = frame.at[at, 'time']
                    yield _Debt(
                        at, last.date(), case, str(row.session),
                        row.started if pd.isna(row.ended) else row.ended,
                        'not_run' if row.cut_short else 'missing', MISSING,
                        'planned, but the session ended before it ran' if row.cut_short
                        else 'not in this session, although an earlier session of the '
                             f'mode measured it; last measured on {last:%Y-%m-%d}')
            if not row.cut_short:
                owed |= had


def _open_failures(frame: pd.DataFrame, session: np.ndarray) -> Iterator[_Debt]:
    """The failures of earlier nightly sessions whose nodes have not passed since, for
    each nightly session that measured the test case.

    :param session: the number of each record's nightly session
    """
    # A session of another suite has no name.
    failed = frame['result'].eq('fail') & frame['session'].ne('')
    if not failed.any():
        return
    rank = frame['result'].map(_RANKS).astype(float)
    has_tolerance = frame['lower'].notna() | frame['upper'].notna()
    # It passed when it was measured again.
    rank = rank.mask(frame['result'].eq('flaky') & has_tolerance, _RANKS['pass'])
    rows = frame.assign(number=session, rank=rank)[
        frame['session'].ne('') & frame['test_case'].isin(
            frame['test_case'][failed].unique())].dropna(subset='rank')
    # The worst value of a measurement decides.
    rows = rows.sort_values(['rank', 'metric'], kind='stable').drop_duplicates(
        ['test_case', 'session', 'copy']).sort_values(
            ['test_case', 'number', 'time'], kind='stable')[
                ['test_case', 'number', 'session', 'time', 'nodes', 'rank', 'guard']]
    nodes_of = {text: frozenset(topology.nodes_of_record(str(text)))
                for text in rows['nodes'].unique()}
    for case, of_case in itertools.groupby(
            rows.itertuples(), lambda row: row.test_case):
        # Nodes of a failure -> it, its nodes that have not passed since, and whether
        # only a compared value pays for it.
        owed: dict[frozenset[str], tuple[Any, frozenset[str], bool]] = {}
        for number, group in itertools.groupby(of_case, lambda row: row.number):
            together = [*group]
            for row in together:
                nodes = nodes_of[row.nodes]
                if row.rank == _RANKS['fail']:
                    owed[nodes] = row, nodes, not row.guard or (
                        nodes in owed and owed[nodes][2])
                elif row.rank >= _RANKS['pass']:
                    is_compared = row.rank == _RANKS['pass']
                    owed = {key: (first, left if kept else left - nodes, of_value)
                            for key, (first, left, of_value) in owed.items()
                            for kept in [of_value and not is_compared]
                            if kept or nodes and left - nodes}
            for row, left, _ in owed.values():
                if row.number != number:
                    yield _Debt(
                        row.Index, row.time.date(), str(case), str(together[0].session),
                        together[-1].time, 'fail', OPEN,
                        _open_text(frame.loc[row.Index], left),
                        topology.record_of_nodes(left) if left else '',
                        f'nodes={row.nodes}'.replace(' ', ',') if row.nodes else '')


def _open_text(row: Any, left: Collection[str]) -> str:
    """Why a failure is open.

    :param row: a record of the measurement that failed
    :param left: the nodes that have not passed since
    """
    why = str(row.reason or row.guard) if row.guard else (
        f'{judged.metric_key(str(row.metric), row.point)} out of tolerance')
    where, there = (f' on {row.nodes}', f' on {topology.fold_host_list(left)}') \
        if left else ('', '')
    return (f'failed{where} on {row.time:%Y-%m-%d}, and has not passed{there} since: '
            + why)
