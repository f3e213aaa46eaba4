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
from .detect import MINIMUM

#: What a metric is of; `node` is that of a copy of `--distribute`, else ''.
KEYS = ['test_case', 'source', 'edition', 'node']
#: Column of a test case's environment -> its name in texts; the most likely causes
#: first.
ENVIRONMENT_NAMES = {
    'nodes': 'nodes', 'machine': 'node facts', 'version': 'program version',
    'stack': 'stack', 'spec': 'spec hash', 'reframe': 'ReFrame',
    'suite': 'suite version', 'num_nodes': 'number of nodes', 'num_tasks': 'ranks',
    'tasks_per_node': 'ranks per node', 'commit': 'suite commit'}
RAN_ON = ['session', *ENVIRONMENT_NAMES]
#: Further quantile for what no family.yaml names to be judged.
UNNAMED = 1.5


class History(NamedTuple):
    """Series of metrics; arrays are series x sessions, NaN: no value."""
    #: A row a series: KEYS, PLACE, metric, point, unit, better,
    #: named (in family.yaml), of (number of the test case).
    metrics: pd.DataFrame
    #: Sessions, sorted: numpy days.
    sessions: np.ndarray
    #: The value, in the unit of its metric.
    value: np.ndarray
    #: Its log, signed so that more is worse; of a value of 0 a stand-in, see `_logs`.
    x: np.ndarray
    #: Measurements of the session, and their standard deviation in the unit of x.
    runs: np.ndarray
    within: np.ndarray
    #: Of each series: smallest change that matters. What a program prints has a last
    #: digit.
    minimum: np.ndarray
    #: What each test case ran on, a row a test case and session: of, day,
    #: RAN_ON.
    ran: pd.DataFrame

    @property
    def last(self) -> np.ndarray:
        """The last session of each series."""
        return self.x.shape[1] - 1 - np.isfinite(self.x)[:, ::-1].argmax(1)

    def worse_direction_sign(self) -> np.ndarray:
        """1 where lower is better, else -1."""
        return np.where(self.metrics['better'] == 'lower', 1.0, -1.0)

    def is_zero(self, row: int, there: slice | np.ndarray) -> bool:
        """Whether the median of some sessions of a series is 0, or less.

        :param there: the sessions
        """
        values = self.value[row, there]
        known = values[np.isfinite(values)]
        return bool(len(known) and np.median(known) <= 0)

    def share_of_value(self, rows: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Changes for the worse of metrics as shares of their values: 0.05 is 5 %.

        :param sizes: in the unit of the series
        """
        sign = self.worse_direction_sign()[rows]
        return sign * np.expm1(sign * np.minimum(sizes, 700.0))


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
    cells = frame['value'].astype(float).groupby([code, day]).agg(
        ['median', 'size', 'std'])
    at = tuple(cells.index.get_level_values(level) for level in (0, 1))
    value, runs, within = (np.full((len(metrics), len(days)), np.nan)
                           for _ in range(3))
    value[at], runs[at], within[at] = cells['median'], cells['size'], cells['std']
    with np.errstate(invalid='ignore', divide='ignore'):
        within /= np.abs(value)
    x = _logs(value) * np.where(metrics['better'] == 'lower', 1.0, -1.0)[:, None]
    digit = np.array([judged.relative_resolution(family, metric, size) if size else 0.0
                      for family, metric, size in zip(
                          metrics['family'], metrics['metric'],
                          np.nanmedian(np.abs(value), 1), strict=True)])
    return History(metrics, days, value, x, runs, within, np.maximum(MINIMUM, digit),
                   ran)


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
