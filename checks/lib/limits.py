"""config/limits.yaml: what physics allows.

A figure beyond it is too good to be true: a clock, a unit or a program is
broken, and the run fails however good it looks.
"""
from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from . import metrics

TABLE = Path(__file__).resolve().parents[2] / 'config' / 'limits.yaml'


@functools.cache
def table() -> tuple[dict[str, Any], ...]:
    """The limits, each with metric, and min or max; see the file."""
    rows = yaml.safe_load(TABLE.read_text())
    for row in rows:
        metrics.metric(row['metric'])
        unknown = set(row) - {'metric', 'when', 'min', 'max', 'max_of', 'why'}
        if unknown or not {'min', 'max', 'max_of'} & set(row):
            raise ValueError(f'{TABLE}: bad entry {row}')
    return tuple(rows)


def beyond(figures: Mapping[str, float], params: str,
           site: Mapping[str, Any]) -> list[str]:
    """One line for each figure that physics forbids.

    :arg figures: figure key -> value in the metric's own unit.
    :arg params: the case's parameters, ``name=value`` with blanks between.
    :arg site: extras of the partition; ``max_of`` names one of them.
    """
    bad = []
    for row in table():
        if not re.search(row.get('when', ''), params):
            continue
        low = row.get('min')
        high = row.get('max')
        if high is None and row.get('max_of') in site:
            high = site[row['max_of']]
        for figure, value in figures.items():
            name = metrics.split(figure)[0]
            if name != row['metric']:
                continue
            if (low is not None and value < low or
                    high is not None and value > high):
                bound = low if low is not None and value < low else high
                bad.append(f'{figure} = {value:g} {metrics.metric(name).unit}'
                           f' is beyond {bound:g}: {row["why"]}')
    return bad
