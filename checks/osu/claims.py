"""Minimum time that a program must have run for the values in its table.

If the iterations add up to more time than the program took, the table was not
measured. Iterations are counted as OMB 5.7 to 7.5 and the embedded programs
count them. Unknown times are left out, so the sum is a lower limit: the untimed
iterations may be faster, for example if a lossy link delays a few messages much.
"""
from __future__ import annotations

import re
from collections.abc import Mapping

from config.records import metrics

from .programs import Program

#: Above this many bytes the counts of large messages apply.
LARGE = 8192

#: Messages under way at once, unless option -W changes it.
WINDOW = 64

#: The first version with these counts.
SINCE = (5, 7)


def minimum_seconds(row: Program, version: str, values: Mapping[str, float],
                    ranks: int, threads: int, iterations: int = 0,
                    window: int = WINDOW) -> float:
    """Minimum time that a program took for its values, in s.

    :arg values: metric key -> value, in µs, MB/s and ms.
    :arg threads: threads of a rank, which measure at the same time.
    :arg iterations: of each size; 0: the program's default.
    """
    numbers = re.findall(r'\d+', version)[:2]
    if tuple(map(int, numbers)) < SINCE:
        return 0.0
    # Both directions or all pairs at once move several times the data.
    flows = {'one': 1, 'both': 2, 'pairs': ranks // 2}[row.flows]
    total = 0.0
    for metric, value in values.items():
        name, size = metrics.split_metric_key(metric)
        times = iterations or row.iterations[(size or 0) > LARGE]
        if name == 'init_time':
            total += value / 1e3
        elif name == 'latency':
            total += times * row.trips / threads * value / 1e6
        elif name in ('overall_time', 'pure_comm_time'):
            total += times * value / 1e6
        elif name == 'bandwidth' and value > 0:
            total += times * window * flows * (size or 0) / value / 1e6
    return total
