"""Every metric by its name (config/families.py), and keys of values."""
from __future__ import annotations

import functools
from dataclasses import dataclass

from .. import families
from ..schema import suggest_name
from ..sessions.judged import metric_key, point_with_unit, split_metric_key

__all__ = ['Metric', 'metric', 'metric_key', 'metrics_by_name',
           'perf_var', 'point_with_unit', 'split_metric_key', 'split_perf_var']


@dataclass(frozen=True)
class Metric:
    """One row of the table; `better` is higher, lower or none."""
    name: str
    unit: str
    better: str
    point: str
    means: str


@functools.cache
def metrics_by_name() -> dict[str, Metric]:
    """Every metric by its name."""
    return {name: Metric(name, **row)
            for name, row in families.all_metrics().items()}


def metric(name: str) -> Metric:
    """The metric with a name.

    :raises KeyError: it does not exist; the message has the nearest name
    """
    try:
        return metrics_by_name()[name]
    except KeyError:
        raise KeyError(f'unknown metric {name!r}: '
                       f'{suggest_name(name, metrics_by_name())} '
                       '(metrics: of a family.yaml, config/metrics.yaml)'
                       ) from None


def perf_var(metric: str, point: float | None = None,
             repetition: int | None = None) -> str:
    """Name of ReFrame's performance variable of a value.

    >>> perf_var('latency', 8), perf_var('latency', 8, 2), perf_var('init_time')
    ('latency@8B', 'latency@8B#2', 'init_time')
    """
    key = metric_key(metric, point)
    return key if repetition is None else f'{key}#{repetition}'


def split_perf_var(name: str) -> tuple[str, int | None, int | None]:
    """The inverse of `perf_var`: metric, point in bytes, and repetition.

    :raises ValueError: the text after the @ is not a size, or that after the # no
        number
    """
    key, hashed, repetition = name.partition('#')
    if hashed and not repetition.isdecimal():
        raise ValueError(f'{name!r} is not a value; write a number after the #')
    return *split_metric_key(key), int(repetition) if hashed else None
