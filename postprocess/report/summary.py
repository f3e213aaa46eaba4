"""Summaries over sessions, from which plots and tables are made."""
from __future__ import annotations

import numpy as np
import pandas as pd

#: What a row is of: a metric of a kind (naming.assign_series_kinds) at a point.
KEYS = ['kind', 'metric', 'point']
#: Of a bootstrap: the interval's ends then vary by a few per cent of its width.
RESAMPLES = 1000


def point_statistics(frame: pd.DataFrame) -> pd.DataFrame:
    """Summarises each metric at each point over sessions.

    :param frame: records that count, one a run, with a column `kind`;
        sorted by time
    :returns: KEYS; `runs`, their `low` (10 %), `median` and `high` (90 %),
        `minimum` and `maximum`; of the newest run its `run`, `value`,
        `reference`, `lower`, `upper`, `result`. A point that the newest run of
        its metric lacks has no `value`: a curve is of one run.
    """
    frame, number = _number_points(frame)
    # Records are sorted by time: the last one of a point is its newest.
    rows = frame[~number.duplicated(keep='last')]
    rows = rows.set_axis(number[rows.index]).sort_index()[[
        *KEYS, 'session', 'time', 'value', 'reference', 'lower', 'upper', 'result']]
    newest = rows.loc[rows.groupby(KEYS[:-1], observed=True)['time'].transform(
        'idxmax'), 'session'] if len(rows) else rows['session']
    values = frame['value'].groupby(number)
    return rows.assign(
        value=rows['value'].where(
            rows['session'].astype(str).to_numpy() == newest.astype(str).to_numpy()),
        runs=values.size(), low=values.quantile(0.1), median=values.median(),
        high=values.quantile(0.9), minimum=values.min(), maximum=values.max())


def mean_statistics(frame: pd.DataFrame) -> pd.DataFrame:
    """Means over sessions, with 95 % intervals by the percentile bootstrap (Efron,
    1979), as papers draw them.

    :param frame: records that count, one a run, with a column `kind`
    :returns: KEYS; `median`: the mean; `low` and `high`: its interval
    """
    frame, number = _number_points(frame)
    rng = np.random.default_rng(1)
    rows = []
    for _, values in frame['value'].groupby(number):
        means = rng.choice(values.to_numpy(), (RESAMPLES, len(values))).mean(axis=1)
        rows.append((values.mean(), *np.quantile(means, [0.025, 0.975])))
    return frame.loc[~number.duplicated(), KEYS].reset_index(drop=True).join(
        pd.DataFrame(rows, columns=['median', 'low', 'high'], dtype=float))


def box_statistics(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Quartiles, whiskers (to 1.5 times their distance) and what is beyond.

    :param frame: samples: repetitions of runs, with a column `kind`
    :returns: KEYS, `count`, `q1`, `q2`, `q3`, `low`, `high`; and of each
        sample beyond the whiskers its row in that table and its value
    """
    frame, number = _number_points(frame)
    value = frame['value']
    values = value.groupby(number)
    q1, q2, q3 = (values.quantile(part) for part in (0.25, 0.5, 0.75))
    far = 1.5 * (q3 - q1)
    inside = value.between(number.map(q1 - far), number.map(q3 + far))
    whiskers = value[inside].groupby(number)
    low, high = whiskers.min().clip(upper=q1), whiskers.max().clip(lower=q3)
    out = ~value.between(number.map(low), number.map(high))
    return frame.loc[~number.duplicated(), KEYS].reset_index(drop=True).assign(
        count=values.size(), q1=q1, q2=q2, q3=q3, low=low, high=high,
        ), pd.DataFrame({'row': number[out], 'value': value[out]})


def _number_points(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """The records with a value, and the number of each record's point: of its KEYS."""
    frame = frame[frame['value'].notna()]
    return frame, frame.groupby(
        KEYS, observed=True, dropna=False, sort=False).ngroup()
