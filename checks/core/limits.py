"""Physical limits: config/limits.yaml, and the limits of the family.

A value that exceeds its limit is impossible: a clock, a unit or a program is
broken. So the test case fails, however good the value looks.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from config import families
from config.records import metrics

#: The minimum size of a message that must fill a link. Unit: bytes.
LARGE = 1 << 20


def limits_of_family(family: str) -> list[dict[str, Any]]:
    """The limits of a family: the shared ones and its own."""
    return families.shared_limits() + families.families()[family].limits


def _bandwidth(site: Mapping[str, Any], extra: str | None, metric: str
               ) -> float | None:
    """A bandwidth of the site, which is in MB/s, in the unit of a metric."""
    if extra is None or extra not in site:
        return None
    return float(site[extra]) / (1e3 if metrics.metric(metric).unit == 'GB/s' else 1)


def exceeded_limits(family: str, values: Mapping[str, float], params: str,
                    site: Mapping[str, Any]) -> list[str]:
    """One line for each value that exceeds a physical limit.

    :arg values: value of each metric, in the metric's own unit.
    :arg params: the test case's parameters, ``name=value``, separated by
        blanks.
    :arg site: extras of the partition; ``max_of`` names one of them.
    """
    bad = []
    for row in limits_of_family(family):
        if not families.parameters_match(row.get('when', {}), params):
            continue
        low = row.get('min')
        high = row.get('max', _bandwidth(site, row.get('max_of'), row['metric']))
        for metric, value in values.items():
            name, size = metrics.split_metric_key(metric)
            if name != row['metric'] or (size or 0) < row.get('from', 0):
                continue
            text = f'{metric} = {value:g} {metrics.metric(name).unit}'
            if 'per' in row:
                # 1 B in 1 us is 1 MB/s.
                value = (size or 0) / value if value > 0 else math.inf
                text += f' ({value:g} MB/s)'
            if (low is not None and value < low or
                    high is not None and value > high):
                side, limit = (('below', low) if low is not None
                               and value < low else ('above', high))
                bad.append(f'{text} is {side} the physical limit {limit:g}: '
                           f'{row["why"]}')
    return bad


def low_values_note(family: str, values: Mapping[str, float], params: str,
                    site: Mapping[str, Any]) -> str:
    """A note on values below half of what the hardware allows; empty: none.

    Only the largest message of a curve is compared. Nothing fails, because a
    good reason is possible (a shared link, a slower rail chosen on purpose)
    that only the site can judge. Arguments: see `exceeded_limits`.
    """
    notes = []
    for row in limits_of_family(family):
        limit = _bandwidth(site, row.get('half_of'), row['metric'])
        if limit is None or not families.parameters_match(row.get('when', {}), params):
            continue
        sizes = [size for name, size in map(metrics.split_metric_key, values)
                 if name == row['metric'] and size
                 and size >= row.get('from', LARGE)]
        if not sizes:
            continue
        metric = metrics.metric_key(row['metric'], max(sizes))
        if values[metric] < limit / 2:
            notes.append(f'{metric} = {values[metric]:g} is below half of '
                         f'{limit:g}: {row["why"]}')
    return '; '.join(notes)
