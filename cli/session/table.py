"""Figures as an operator looks for them: which, and in which words."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from config.families import families
from config.records.metrics import split_metric_key
from config.records.units import size_text, value_text

#: Figures in a row, at most, where nothing is judged.
MAXIMUM = 3


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
    text = f'{one.metric} {value_text(one.value, one.unit)}'
    if one.size is not None:
        text += f' at {size_text(one.size)}'
    if one.reference:
        text += f' (reference {value_text(one.reference, one.unit)})'
    return text
