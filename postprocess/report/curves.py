"""The values of metrics over sessions, which the script of the page draws."""
from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from .tidy import Tidy

#: Newest sessions of a curve.
MAX_SESSIONS = 400


class Key(NamedTuple):
    """A metric of a test case at a point."""
    #: Number of the test case.
    test_case: int
    metric: str
    #: Unit: bytes; -1: the metric has no point.
    point: int = -1


def key_of_record(row: Any) -> Key:
    """The key of a record's metric; the record has the number of its test case."""
    return Key(int(row.number), str(row.metric),
               -1 if pd.isna(row.point) else int(row.point))


def point_number(point: str) -> int:
    """A point in bytes, of its text `8 B`; -1: no point."""
    return int(point.split()[0]) if point else -1


class Curve(NamedTuple):
    """The values of a metric over sessions, the oldest first."""
    #: Numbers of the sessions.
    sessions: np.ndarray
    values: np.ndarray
    #: Whether each value is inconclusive: no line joins it.
    inconclusive: np.ndarray

    @property
    def sound(self) -> Curve:
        """The curve without inconclusive values."""
        return Curve(*(part[~self.inconclusive] for part in self))


class Lines(NamedTuple):
    """What the values of a metric are compared with; None: unknown."""
    baseline: float | None = None
    reference: float | None = None
    #: Ends of the tolerance.
    low: float | None = None
    high: float | None = None


NO_LINES = Lines()


def curves_of_metrics(data: Tidy, session: np.ndarray,
                      wanted: Collection[Key]) -> dict[Key, Curve]:
    """The curves of some metrics. Of several values in a session the last one counts.

    :param session: the number of each record's session
    :param wanted: keys of these metrics
    """
    records = data.metric_records
    points = [key.point for key in wanted if key.point >= 0]
    records = records[
        records['judged'] & records['value'].notna()
        & records['metric'].isin({key.metric for key in wanted})
        & (records['point'].isin(points) | records['point'].isna())]
    at = data.frame.index.get_indexer(records.index)
    records = records.assign(number=data.case[at], column=session[at])
    keys = ['number', 'metric', 'point']
    records = records.drop_duplicates([*keys, 'column'], keep='last').sort_values(
        'column', kind='stable')
    curves = {
        Key(int(number), str(metric), -1 if point != point else int(point)):
        Curve(rows['column'].to_numpy(), rows['value'].to_numpy(float),
              rows['result'].eq('inconclusive').to_numpy())
        for (number, metric, point), rows in records.groupby(
            keys, observed=True, dropna=False, sort=False)[
                ['column', 'value', 'result']]}
    return {key: curve for key, curve in curves.items() if key in wanted}
