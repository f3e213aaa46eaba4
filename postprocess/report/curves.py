"""The values of metrics over sessions: for small plots and the view of a test case."""
from __future__ import annotations

import html
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from config.records.units import number_text

from .tidy import Tidy

#: Newest sessions of a small plot, and of a curve in the view of a test case.
SPARK, MAX_SESSIONS = 90, 400


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
        Curve(rows['column'].to_numpy(), rows['value'].to_numpy(float))
        for (number, metric, point), rows in records.groupby(
            keys, observed=True, dropna=False, sort=False)[['column', 'value']]}
    return {key: curve for key, curve in curves.items() if key in wanted}


def sparkline(curve: Curve | None, lines: Lines = NO_LINES, since: int | None = None,
              text: str = '') -> str:
    """A small plot of a curve, as SVG; '' if it has fewer than two values.

    It has the newest SPARK values; baseline (a line), reference (dashed), tolerance
    (a band), and a mark where a change began.

    :param since: number of the first session of a change
    :param text: for screen readers; '': number of sessions, smallest and largest value
    """
    if curve is None or len(curve.values) < 2:
        return ''
    sessions, values = curve.sessions[-SPARK:], curve.values[-SPARK:]
    text = text or (f'{len(values)} sessions, {number_text(values.min())} to '
                    f'{number_text(values.max())}')
    shown = [*values.tolist(), *(line for line in (lines.baseline, lines.reference)
                                 if line is not None)]
    low, high = min(shown), max(shown)
    # A tolerance far away does not flatten the curve: its band ends at the edge.
    span = high - low
    for end in (lines.low, lines.high):
        if end is not None and low - span <= end <= high + span:
            low, high = min(low, end), max(high, end)
    scale = 24 / (high - low) if high > low else 0.0

    def y(value: float) -> float:
        return round(min(max(27 - (value - low) * scale, 0), 30), 1) if scale else 15

    x = np.linspace(2, 98, len(values))
    parts = []
    if lines.low is not None or lines.high is not None:
        top = 0 if lines.high is None else y(lines.high)
        bottom = 30 if lines.low is None else y(lines.low)
        parts.append(f'<path class="band" d="M0 {top}H100V{bottom}H0z"/>')
    parts += [f'<path class="{name}" d="M0 {y(value)}H100"/>'
              for name, value in (('base', lines.baseline), ('level', lines.reference))
              if value is not None]
    if since is not None and sessions[0] < since <= sessions[-1]:
        at = int(np.searchsorted(sessions, since))
        parts.append(f'<path class="since" d="M{(x[at - 1] + x[at]) / 2:.1f} 0V30"/>')
    points = ' '.join(f'{place:.4g},{y(value):g}'
                      for place, value in zip(x, values, strict=True))
    return (f'<svg class="spark" viewBox="0 0 100 30" preserveAspectRatio="none" '
            f'role="img" aria-label="{html.escape(text)}">{"".join(parts)}'
            f'<polyline points="{points}"/></svg>')
