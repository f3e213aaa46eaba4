"""What physics allows: config/limits.yaml, and the limits of the family.

A figure beyond it is too good to be true: a clock, a unit or a program is
broken, and the run fails however good it looks.
"""
from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from config import families

from . import metrics

#: The least message that must fill a link. Unit: bytes.
LARGE = 1 << 20


def limits_of(family: str) -> list[dict[str, Any]]:
    """The limits of a family: those of all, and its own."""
    return families.shared_limits() + families.families()[family].limits


def exceeded_limits(family: str, values: Mapping[str, float], params: str,
           site: Mapping[str, Any]) -> list[str]:
    """One line for each figure that physics forbids.

    :arg figures: figure key -> value in the metric's own unit.
    :arg params: the case's parameters, ``name=value`` with blanks between.
    :arg site: extras of the partition; ``max_of`` names one of them.
    """
    bad = []
    for row in limits_of(family):
        if not re.search(row.get('when', ''), params):
            continue
        low = row.get('min')
        high = row.get('max')
        if high is None and row.get('max_of') in site:
            high = site[row['max_of']]
        for metric, value in values.items():
            name, size = metrics.split(metric)
            if name != row['metric'] or (size or 0) < row.get('from', 0):
                continue
            output = f'{metric} = {value:g} {metrics.metric(name).unit}'
            if 'per' in row:
                # 1 B in 1 us is 1 MB/s.
                value = (size or 0) / value if value > 0 else math.inf
                output += f' ({value:g} MB/s)'
            if (low is not None and value < low or
                    high is not None and value > high):
                bound = low if low is not None and value < low else high
                bad.append(f'{output} is beyond {bound:g}: {row["why"]}')
    return bad


def below_half_of_limit(family: str, values: Mapping[str, float], params: str,
              site: Mapping[str, Any]) -> str:
    """What is far below the hardware, in a sentence; empty: nothing is.

    Looks at the largest message of a curve alone. It fails nothing: a good
    reason is possible (a shared link, a slower rail chosen on purpose), and
    only the site knows.

    :arg family: as for `beyond`, like the others.
    """
    notes = []
    for row in limits_of(family):
        bound = site.get(row.get('half_of', ''))
        if bound is None or not re.search(row.get('when', ''), params):
            continue
        sizes = [size for name, size in map(metrics.split, values)
                 if name == row['metric'] and size and size >= LARGE]
        if not sizes:
            continue
        metric = metrics.key(row['metric'], max(sizes))
        if values[metric] < bound / 2:
            notes.append(f'{metric} = {values[metric]:g} is below half of '
                         f'{bound:g}: {row["why"]}')
    return '; '.join(notes)
