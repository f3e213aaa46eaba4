"""Figures as an operator looks for them: which, and in which words."""
from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from config.families import families
from config.records.metrics import split_metric_key
from config.records.sizes import size_with_unit

#: Figures in a row, at most, where nothing is judged.
MAXIMUM = 3
#: Unit -> larger ones and how many of it they are, the largest first. A
#: value is told in the first one of which it is as many as LEAST.
_LARGER: dict[str, list[tuple[str, float]]] = {
    '1/s': [('G/s', 1e9), ('M/s', 1e6), ('k/s', 1e3), ('/s', 0)],
    'us': [('s', 1e6), ('ms', 1e3), ('us', 0)],
    'ms': [('s', 1e3), ('ms', 0)],
    'ns': [('ms', 1e6), ('us', 1e3), ('ns', 0)],
    'MB/s': [('GB/s', 1e3), ('MB/s', 0)],
    '1': [('', 0)],
}
MINIMUM = {'us': 10, 'ms': 10, 'ns': 10, 'MB/s': 10}


class Metric(NamedTuple):
    """A metric of a case."""
    metric: str
    #: Message size in B; None: of the whole run.
    size: int | None
    value: float
    unit: str
    #: 0 or None: none.
    reference: float | None = None
    #: Bounds were set for it.
    judged: bool = False


def parse_reported_metric(key: str, value: float, unit: str, reference: float | None,
                          judged: bool) -> Metric:
    """A metric from its key in ReFrame's report: local:thishost:x@8B."""
    metric, size = split_metric_key(key.rpartition(':')[2])
    return Metric(metric, size, value, unit, reference, judged)


def metrics_text(tags: Iterable[str], metrics: Sequence[Metric]) -> str:
    """What a row of the table says: what is judged, else the headline."""
    shown = [one for one in metrics if one.judged]
    for name in sorted(families().keys() & set(tags)):
        shown = shown or _headline_metrics(families()[name].headline, metrics)
    return ', '.join(_metric_text(one) for one in shown or metrics[:1])


def _headline_metrics(rules: Iterable[Mapping[str, Any]],
                      metrics: Sequence[Metric]) -> list[Metric]:
    headline: list[Metric] = []
    for rule in rules:
        of_it = {one.size: one for one in metrics
                 if one.metric == rule['metric']}
        sizes = sorted(size for size in of_it if size is not None)
        named = {'smallest': sizes[0], 'largest': sizes[-1]} if sizes else {}
        sizes_to_show = [named.get(at, at) for at in rule.get('at', ())
                  ] if sizes else [None]
        first = next(
            (of_it[size] for size in sizes_to_show if size in of_it), None
        )
        if first and first not in headline and not (
                headline and rule.get('alone')):
            headline.append(first)
    return headline[:MAXIMUM]


def _metric_text(one: Metric) -> str:
    text = f'{one.metric} {value_with_unit(one.value, one.unit)}'
    if one.size is not None:
        text += f' at {size_with_unit(one.size)}'
    if one.reference:
        text += f' (reference {value_with_unit(one.reference, one.unit)})'
    return text


def value_with_unit(value: float, unit: str) -> str:
    """A value in three digits and the unit that people would choose."""
    larger, factor = next(
        (name, factor) for name, factor in _LARGER.get(unit, [(unit, 0)])
        if not factor or abs(value) >= factor * MINIMUM.get(unit, 1))
    digits = format_three_digits(value / (factor or 1))
    return f'{digits} {_microsecond_unit() if larger == "us" else larger}'.rstrip()


def format_three_digits(value: float) -> str:
    """Three digits that count, never an exponent; a count is whole."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f'{value:.{max(2 - math.floor(math.log10(abs(value))), 0)}f}'


def _microsecond_unit() -> str:
    """As the terminal can show it."""
    try:
        'µ'.encode(sys.stdout.encoding or 'ascii')
    except (UnicodeEncodeError, LookupError):
        return 'us'
    return 'µs'
