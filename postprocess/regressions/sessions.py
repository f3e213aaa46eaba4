"""The metrics of all test cases as series over sessions.

All sessions that began on one date (UTC) are one observation of a metric:
their median. Records that cannot be compared are left out: emulated, refused
by a guard, inconclusive, with a known fault, or of other suites.
"""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from config.sessions import clock, judged
from config.sessions.session_id import first_session_id_by_session

from .. import naming
from ..references.progress import add_edition_column, usable_records
from ..results import PLACE

#: What a metric is of; `node` is that of a copy of `--distribute`, else ''.
KEYS = ['test_case', 'source', 'edition', 'node']
#: Column of a test case's environment -> its name in texts; the most likely causes
#: first.
ENVIRONMENT_NAMES = {
    'nodes': 'nodes', 'binding': 'CPUs per rank', 'machine': 'node facts',
    'version': 'program version', 'stack': 'stack', 'spec': 'spec hash',
    'reframe': 'ReFrame', 'suite': 'suite version', 'num_nodes': 'number of nodes',
    'num_tasks': 'ranks', 'tasks_per_node': 'ranks per node', 'commit': 'suite commit'}
RAN_ON = ['session', *ENVIRONMENT_NAMES]
#: A change below this means nothing; smallest spread: both logs.
MINIMUM, FLOOR = 0.005, 0.001
#: Further quantile for what no family.yaml names to be judged.
UNNAMED = 1.5


class History(NamedTuple):
    """Series of metrics; arrays are series x sessions of the series, and end
    with NaN where a series has fewer sessions than another."""
    #: A row a series: KEYS, PLACE, metric, point, unit, better,
    #: named (in family.yaml), of (number of the test case).
    metrics: pd.DataFrame
    #: Sessions, sorted: numpy days.
    sessions: np.ndarray
    #: Number of the session of each value; -1: none.
    at: np.ndarray
    #: Log of the value, signed so that more is worse.
    x: np.ndarray
    runs: np.ndarray
    within: np.ndarray
    floor: np.ndarray
    minimum: np.ndarray
    #: Session -> its date.
    session_of: dict[str, np.datetime64]
    #: What each test case ran on, a row a test case and session: of, day,
    #: RAN_ON.
    ran: pd.DataFrame

    @property
    def last_session_positions(self) -> np.ndarray:
        """Position of the last session of each series."""
        return (self.at >= 0).sum(1) - 1

    def worse_direction_sign(self) -> np.ndarray:
        """1 where lower is better, else -1."""
        return np.where(self.metrics['better'] == 'lower', 1.0, -1.0)


def session_dates(frame: pd.DataFrame) -> dict[str, np.datetime64]:
    """Session -> the date (UTC) on which it, or its session, began."""
    first = frame.groupby('session', observed=True)['time'].min()
    began = first_session_id_by_session(map(str, first.index))
    date_of_session: dict[str, np.datetime64] = {}
    for run, time in first.items():
        start = clock.session_start_time(began[str(run)])
        date_of_session[str(run)] = np.datetime64(
            f'{min(start or time, time):%Y-%m-%d}', 'D')
    return date_of_session


def metric_histories(frame: pd.DataFrame) -> History:
    """The series of all metrics that have a better side.

    :param frame: as records.read gives it
    """
    session_of = session_dates(frame)
    frame = frame[frame['better'].isin(['lower', 'higher'])
                  & ~frame['emulated'] & (frame['suite'] != '')]
    frame, _ = usable_records(frame, include_reference_failures=True)
    # Against its reference, which people change: no history of its own.
    frame = frame[~frame['metric'].isin(['completed', 'worst_ratio'])]
    frame = add_edition_column(frame.assign(
        node=frame['copy'].map(_node_of_copy).astype(str))).reset_index(drop=True)
    days = np.array(sorted(set(session_of.values())), 'datetime64[D]')
    number = {run: int(np.searchsorted(days, day))
              for run, day in session_of.items()}
    code = naming.group_number_of_records(frame, [*KEYS, 'metric', 'point'])
    day = frame['session'].astype(object).map(number).to_numpy(int)
    metrics = _series_descriptions(frame, code)
    of = metrics['of'].to_numpy()[code]
    first = np.unique(naming.group_number_of_records(
        frame[['session']].assign(of=of), ['of', 'session']), return_index=True)[1]
    ran = frame[[*RAN_ON, 'system', 'file']].iloc[first].assign(
        of=of[first], day=day[first])
    table = pd.DataFrame({'code': code, 'day': day,
                          'value': frame['value'].to_numpy(float)})
    cells = table.groupby(['code', 'day'])['value'].agg(
        ['median', 'size', 'std']).reset_index()
    row = cells['code'].to_numpy()
    place = cells.groupby('code').cumcount().to_numpy()
    shape = (len(metrics), int(place.max(initial=-1)) + 1)
    value = np.full(shape, np.nan)
    at = np.full(shape, -1)
    runs, within = np.zeros(shape, int), np.full(shape, np.nan)
    value[row, place] = cells['median']
    at[row, place] = cells['day']
    runs[row, place] = cells['size']
    within[row, place] = cells['std']
    with np.errstate(invalid='ignore', divide='ignore'):
        within /= np.abs(value)
    x = _logs(value)
    x *= np.where(metrics['better'] == 'lower', 1.0, -1.0)[:, None]
    floor, minimum = _smallest_spread_and_change(metrics, value, x)
    return History(metrics, days, at, x, runs, within, floor, minimum,
                   session_of, ran)


def _node_of_copy(copy: str) -> str:
    """The node of a copy of `--distribute`; '': it is none.

    >>> _node_of_copy('repeat_no=0 nid=n2')
    'n2'
    """
    return next((word.removeprefix('nid=') for word in copy.split()
                 if word.startswith('nid=')), '')


def _series_descriptions(frame: pd.DataFrame, code: np.ndarray) -> pd.DataFrame:
    """The columns that describe each series."""
    last = np.zeros(code.max(initial=-1) + 1, int)
    np.maximum.at(last, code, np.arange(len(code)))
    table = frame.iloc[last][[*dict.fromkeys([
        *KEYS, *PLACE, 'metric', 'point', 'unit', 'better'])]]
    table = table.astype({name: str for name in table if name != 'point'}
                         ).reset_index(drop=True)
    table['of'] = table.groupby(KEYS, sort=False).ngroup()
    named = np.ones(len(table), bool)
    for (family, _), rows in table.groupby(['family', 'of'], sort=False):
        if family not in judged.judged_rules_by_family():
            continue
        names = judged.judged_metric_keys(family, [
            (metric, judged.point_in_bytes(point)) for metric, point
            in zip(rows['metric'], rows['point'], strict=True)])
        names |= {other for name in names
                  if (other := judged.derived_replacement_metric(family, name))}
        if names:
            named[rows.index] = [
                judged.metric_key(metric, point) in names for metric, point in
                zip(rows['metric'], rows['point'], strict=True)]
    return table.assign(named=named, point=table['point'].map(judged.point_with_unit))


def _logs(value: np.ndarray) -> np.ndarray:
    """The logs of series; a value of 0 or less counts as a thousandth of the smallest
    one above 0."""
    smallest = np.min(np.where(value > 0, value, np.inf), 1, initial=np.inf)
    lowest = np.where(np.isfinite(smallest), smallest, 1.0)[:, None] / 1000
    return np.log(np.where(np.isnan(value), np.nan, np.maximum(value, lowest)))


def _smallest_spread_and_change(metrics: pd.DataFrame, value: np.ndarray, x: np.ndarray
              ) -> tuple[np.ndarray, np.ndarray]:
    """Smallest spread, and smallest change that matters, of each series:
    what a program prints has a last digit."""
    with np.errstate(invalid='ignore'):
        middle = np.array([np.median(np.abs(row[np.isfinite(row)]))
                           for row in value]) if len(value) else np.empty(0)
    digit = np.array([judged.relative_resolution(family, metric, size) if size else 0.0
                      for family, metric, size in zip(
                          metrics['family'], metrics['metric'], middle, strict=True)])
    floor, minimum = np.full(len(x), FLOOR), np.full(len(x), MINIMUM)
    floor, minimum = np.maximum(floor, digit / 2), np.maximum(minimum, digit)
    # Values that jump to and fro between few: their gap is a digit.
    ordered = np.sort(x, 1)
    gaps = np.diff(ordered, axis=1)
    gaps = np.where(gaps > 1e-9, gaps, np.nan)
    count = np.isfinite(x).sum(1)
    with np.errstate(invalid='ignore'):
        jumps = (np.abs(np.diff(x, axis=1)) > 1e-9).sum(1)
    few = (np.isfinite(gaps).sum(1) + 1 <= count / 3) & (jumps > count / 5)
    for row in np.flatnonzero(few):
        floor[row] = max(floor[row], np.nanmin(gaps[row]) / 2)
    return floor, minimum
