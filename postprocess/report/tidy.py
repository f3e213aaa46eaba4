"""Records for plots and page: test cases and series are numbered once, and summarised
over sessions."""
from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .. import naming

#: What a row of a summary is of: a metric of a kind (naming.assign_series_kinds) at a
#: point.
KEYS = ['kind', 'metric', 'point']
#: Of a bootstrap: the interval's ends then vary by a few per cent of its width.
RESAMPLES = 1000
#: What metrics are made of.
DRAWN = ['kind', 'session', 'measurement', 'time', 'metric', 'point', 'value',
         'reference', 'lower', 'upper', 'result', 'judged', 'sample']


@dataclass(frozen=True)
class Tidy:
    """Records, with the numbers of their test cases and series."""
    #: As records.read gives them, and `kind`.
    frame: pd.DataFrame
    #: The number of each record's test case by its short id.
    case: np.ndarray
    #: The number of each record's kind: its row in `table`.
    kind: np.ndarray
    #: naming.assign_series_kinds, and `valid`: whether no guard refused the
    #: run; those of refused runs are kinds apart.
    table: pd.DataFrame
    #: Whether a record counts for its run, or is of one of its repetitions;
    #: both where there are no repetitions.
    judged: np.ndarray
    sample: np.ndarray

    @functools.cached_property
    def metric_records(self) -> pd.DataFrame:
        """DRAWN of each record that has a metric."""
        has_value = (self.frame['metric'] != 'completed').to_numpy()
        frame = self.frame.loc[
            has_value, [c for c in DRAWN if c in self.frame]
        ]
        return frame.assign(
            kind=self.kind[has_value], judged=self.judged[has_value],
            sample=self.sample[has_value])

    @functools.cached_property
    def point_statistics_without_repetitions(self) -> pd.DataFrame:
        """point_statistics of what counts."""
        return point_statistics(
            self.metric_records[self.metric_records['judged']]
        )


def build_tidy_records(frame: pd.DataFrame) -> Tidy:
    """Numbers the records.

    :param frame: as records.read gives it, or a part of it
    """
    case = naming.group_number_of_records(frame, ['test_case'])
    run = naming.group_number_of_records(frame, ['test_case', 'copy', 'session'])
    sound = (frame['guard'].isin(['', 'reference'])
             | (frame['result'] == 'flaky')).to_numpy()
    valid = sound if sound.all() else ~np.isin(run, run[~sound])
    kind, table = naming.assign_series_kinds(frame, valid)
    metric = naming.group_number_of_records(
        frame[['metric', 'point']].assign(run=run), ['run', 'metric', 'point']
    )
    repetition = frame['repetition'].to_numpy(np.int64)
    alone = np.bincount(metric)[metric] == 1
    return Tidy(frame.assign(kind=kind), case, kind, table,
                judged=naming.mask_preferring_median_to_repetitions(frame, metric),
                sample=(repetition > 0) | alone)


def point_statistics(frame: pd.DataFrame) -> pd.DataFrame:
    """Summarises each metric at each point over sessions.

    :param frame: records that count, one a run, with a column `kind`;
        sorted by time
    :returns: KEYS; of those that `drop_inconclusive` keeps: `runs`, their `low`
        (10 %), `median` and `high` (90 %), `minimum` and `maximum`; of the newest run
        its `run`, `value`, `reference`, `lower`, `upper`, `result`. A point that the
        newest run of its metric lacks has no `value`: a curve is of one run.
    """
    frame, number = _number_points(frame)
    sound = drop_inconclusive(frame, number)
    # Records are sorted by time: the last one of a point is its newest.
    rows = frame[~number.duplicated(keep='last')]
    rows = rows.set_axis(number[rows.index]).sort_index()[[
        *KEYS, 'session', 'time', 'value', 'reference', 'lower', 'upper', 'result']]
    newest = rows.loc[rows.groupby(KEYS[:-1], observed=True)['time'].transform(
        'idxmax'), 'session'] if len(rows) else rows['session']
    values = sound['value'].groupby(number)
    return rows.assign(
        value=rows['value'].where(
            rows['session'].astype(str).to_numpy() == newest.astype(str).to_numpy()),
        runs=values.size(), low=values.quantile(0.1), median=values.median(),
        high=values.quantile(0.9), minimum=values.min(), maximum=values.max())


def mean_statistics(frame: pd.DataFrame) -> pd.DataFrame:
    """Means over sessions, with 95 % intervals by the percentile bootstrap (Efron,
    1979), as papers draw them.

    :param frame: records that count, one a run, with a column `kind`
    :returns: KEYS; `value`: the mean; `low` and `high`: its interval
    """
    frame, number = _number_points(frame)
    frame = drop_inconclusive(frame, number)
    number = number[frame.index]
    rng = np.random.default_rng(1)
    rows = []
    for _, values in frame['value'].groupby(number):
        means = rng.choice(values.to_numpy(), (RESAMPLES, len(values))).mean(axis=1)
        rows.append((values.mean(), *np.quantile(means, [0.025, 0.975])))
    return frame.loc[~number.duplicated(), KEYS].reset_index(drop=True).join(
        pd.DataFrame(rows, columns=['value', 'low', 'high'], dtype=float))


def box_statistics(frame: pd.DataFrame) -> pd.DataFrame:
    """Quartiles, whiskers (to 1.5 times their distance) and the farthest values beyond.

    :param frame: values, with a column `kind`
    :returns: KEYS, `count`, `q1`, `q2`, `q3`, `low`, `high`, `minimum` and `maximum`;
        the last two are NaN if nothing is beyond the whiskers
    """
    frame, number = _number_points(frame)
    frame = drop_inconclusive(frame, number)
    number = number[frame.index]
    value = frame['value']
    values = value.groupby(number)
    q1, q2, q3 = (values.quantile(part) for part in (0.25, 0.5, 0.75))
    far = 1.5 * (q3 - q1)
    whiskers = value[value.between(number.map(q1 - far), number.map(q3 + far))].groupby(
        number)
    low, high = whiskers.min().clip(upper=q1), whiskers.max().clip(lower=q3)
    minimum, maximum = values.min(), values.max()
    return frame.loc[~number.duplicated(), KEYS].reset_index(drop=True).assign(
        count=values.size(), q1=q1, q2=q2, q3=q3, low=low, high=high,
        minimum=minimum.where(minimum < low), maximum=maximum.where(maximum > high))


def drop_inconclusive(frame: pd.DataFrame, number: pd.Series) -> pd.DataFrame:
    """The records without inconclusive ones, which say nothing about the program; all
    records of a point that has no other ones.

    :param number: the number of each record's point
    """
    if 'result' not in frame:
        return frame
    inconclusive = frame['result'].eq('inconclusive')
    return frame[~inconclusive | inconclusive.groupby(number).transform('all')]


def _number_points(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """The records with a value, and the number of each record's point: of its KEYS."""
    frame = frame[frame['value'].notna()]
    return frame, frame.groupby(
        KEYS, observed=True, dropna=False, sort=False).ngroup()
