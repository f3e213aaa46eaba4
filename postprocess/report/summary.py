"""Summaries over sessions, from which plots and tables are made.

One pass over all records, whatever is drawn: sorted once, and
quantiles looked up in place. pandas would sort again for each plot.
"""
from __future__ import annotations

import numpy as np
import pandas as pd

#: What a row is of: a metric of a kind (naming.assign_series_kinds) at a speed
#: and point.
KEYS = ['kind', 'speed', 'metric', 'point']


def point_statistics(frame: pd.DataFrame) -> pd.DataFrame:
    """Summarises each metric at each point over sessions.

    :param frame: records that count, one a run, with a column `kind`;
        sorted by time
    :returns: KEYS; `runs`, their `low` (10 %), `median` and `high` (90 %),
        `minimum` and `maximum`; of the newest run its `run`, `value`,
        `reference`, `lower`, `upper`, `result`. A point that the newest run of
        its metric lacks has no `value`: a curve is of one run.
    """
    frame = frame[frame['value'].notna()]
    group, starts, ends, values = _sort_values_by_group(frame, KEYS)
    # Records are sorted by time: the last one of a group is its newest.
    last = np.full(len(starts), -1)
    np.maximum.at(last, group, np.arange(len(frame)))
    rows = frame.iloc[last][[
        *KEYS, 'run', 'time', 'value', 'reference', 'lower', 'upper',
        'result']].reset_index(drop=True)
    newest = rows.loc[rows.groupby(KEYS[:-1], observed=True)['time'].transform(
        'idxmax'), 'run'] if len(rows) else rows['run']
    return rows.assign(
        value=rows['value'].where(
            rows['run'].astype(str).to_numpy() == newest.astype(str).to_numpy()),
        runs=ends - starts, low=_quantile_of_groups(values, starts, ends, 0.1),
        median=_quantile_of_groups(values, starts, ends, 0.5),
        high=_quantile_of_groups(values, starts, ends, 0.9),
        minimum=values[starts], maximum=values[ends - 1])


def box_statistics(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Quartiles, whiskers (to 1.5 times their distance) and what is beyond.

    :param frame: samples: repetitions of runs, with a column `kind`
    :returns: KEYS, `count`, `q1`, `q2`, `q3`, `low`, `high`; and of each
        sample beyond the whiskers its row in that table and its value
    """
    frame = frame[frame['value'].notna()]
    group, starts, ends, values = _sort_values_by_group(frame, KEYS)
    first = frame.iloc[np.unique(group, return_index=True)[1]] \
        if len(frame) else frame
    q1, q2, q3 = (_quantile_of_groups(values, starts, ends, q)
                  for q in (0.25, 0.5, 0.75))
    at = np.repeat(np.arange(len(starts)), ends - starts)
    far = 1.5 * (q3 - q1)
    inside = (values >= (q1 - far)[at]) & (values <= (q3 + far)[at])
    low, high = q1.copy(), q3.copy()
    np.minimum.at(low, at[inside], values[inside])
    np.maximum.at(high, at[inside], values[inside])
    out = (values < low[at]) | (values > high[at])
    return first[KEYS].reset_index(drop=True).assign(
        count=ends - starts, q1=q1, q2=q2, q3=q3, low=low, high=high,
        ), pd.DataFrame({'row': at[out], 'value': values[out]})


def _sort_values_by_group(frame: pd.DataFrame, keys: list[str]) -> tuple:
    """The number of each record's group; where each group starts and ends
    among the sorted values; these."""
    from ..naming import group_number_of_records
    group = group_number_of_records(frame, keys)
    values = frame['value'].to_numpy(float)
    order = np.lexsort((values, group))
    starts = np.searchsorted(group[order], np.arange(
        group.max() + 1 if len(group) else 0))
    return group, starts, np.append(starts[1:], len(group))[
        :len(starts)], values[order]


def _quantile_of_groups(values: np.ndarray, starts: np.ndarray, ends: np.ndarray,
                        part: float) -> np.ndarray:
    """A quantile of each group, between its neighbours as numpy has it."""
    at = starts + part * (ends - 1 - starts)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, np.maximum(ends - 1, low))
    return values[low] + (at - low) * (values[high] - values[low])
