"""The metrics of a family that are compared with references.

`judged` of its family.yaml lists them. Checks and postprocess use
this module.
"""
from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..console import count_with_noun
from ..families import all_derived_metrics as derived_metrics
from ..families import families
from ..records.units import change_text, size_text, value_text

#: Max tolerance, as a fraction, of a row without its own: with a wider one,
#: faulty and healthy machines would look alike.
MAX_TOLERANCE = 0.3
#: A test case that fails is measured again at the end of its session
#: (config/sessions/modes.py). It fails if it is out of tolerance in so many
#: measurements.
MEASUREMENTS = 2
#: Part of the variance within a day that is left to these measurements
#: (postprocess/references/spread.py). Of 50 metrics with a noise of 5 %, one fails in
#: 1.0 % of healthy sessions; with 0.38 in 1.8 % (bench/references.py, after 20 days).
WITHIN_PART = 0.55
#: Factor of a tolerance if a single measurement decides, and half of the variance is
#: common to a day.
ONE_MEASUREMENT = math.sqrt(2 / (1 + WITHIN_PART))
#: Ratio that stands for an infinite one: records have finite values only.
INFINITE = 1e6
#: Fewest sizes for a mean: one over fewer is hardly better than a single size.
FEWEST_SIZES = 3


def judged_rules_by_family() -> dict[str, list[dict]]:
    """Family -> list of {metric, at, ...} (config/schemas/family.yaml)."""
    return {name: family.judged for name, family in families().items()}


def max_tolerance(family: str, metric: str) -> float:
    """Max tolerance of a metric with a reference, as a fraction.

    :param metric: a metric of `judged`, or the derived one that replaces it
    """
    return next(
        (
            rule.get('max_tolerance', MAX_TOLERANCE)
            for rule in judged_rules_by_family()[family]
            if metric in (rule['metric'], rule.get('instead'))
        ),
        MAX_TOLERANCE,
    )


def derived_replacement_metric(family: str, metric: str) -> str | None:
    """The derived metric that replaces a metric of `judged` if the
    tolerance of the latter would be too wide; None: there is none."""
    base, _ = split_metric_key(metric)
    return next((rule.get('instead') for rule in judged_rules_by_family()[family]
                 if rule['metric'] == base), None)


def compute_derived_metrics(
    family: str, metrics: Mapping[str, float]
) -> dict[str, float]:
    """The derived metrics of a test case: means over a range of its curve.

    The geometric mean exp(mean(log x)) gives each size the same weight. If the
    range has fewer than three sizes, or a value of 0, there is no mean.

    :param metrics: metric -> value, of one measurement
    """
    values_by_key = {}
    for rule in judged_rules_by_family().get(family, ()):
        name = rule.get('instead')
        if not name:
            continue
        what = derived_metrics()[name]
        numbers = [
            value for metric, value in metrics.items()
            for base, size in [split_metric_key(metric)]
            if base == what['of'] and size is not None
            and what.get('from', 0) <= size <= what.get('to', math.inf)]
        if len(numbers) >= FEWEST_SIZES and min(numbers) > 0:
            values_by_key[name] = math.exp(
                sum(map(math.log, numbers)) / len(numbers))
    return values_by_key


def metric_key(metric: str, point: float | None = None) -> str:
    """Name of a metric: `latency@8B`, or `init_time` without a point.

    :param point: see `point_in_bytes`
    """
    at = point_in_bytes(point)
    return metric if at is None else f'{metric}@{at}B'


def split_metric_key(metric: str) -> tuple[str, int | None]:
    """The inverse of `metric_key`: metric name and point in bytes.

    :raises ValueError: the text after the @ is not a size
    """
    name, _, point = metric.partition('@')
    if not point:
        return name, None
    if not point.endswith('B') or not point[:-1].isdigit():
        raise ValueError(f'{metric!r} is not a metric; write a size like 8B '
                         'after the @')
    return name, int(point[:-1])


def point_in_bytes(point: float | None) -> int | None:
    """The point of a record in bytes; None: the record has no point."""
    return None if point is None or point != point else int(point)


def point_with_unit(point: float | None) -> str:
    """A point with its unit, as in perflogs: `8 B`; without a point: empty."""
    at = point_in_bytes(point)
    return '' if at is None else f'{at} B'


def judged_metric_names(family: str) -> set[str]:
    """Names of the metrics that may have a reference, without the derived ones
    that replace them."""
    return {rule['metric'] for rule in judged_rules_by_family()[family]}


def worsening_of_metric(family: str, metric: str, better: str, value: float,
                        reference: float) -> float:
    """`worsening_ratio`, with the last digit that the program prints."""
    return worsening_ratio(better, value, reference, printed_resolution(family, metric))


def worsening_ratio(better: str, value: float, reference: float, digit: float = 0.0
          ) -> float:
    """The ratio by which a value is worse than its reference; 1: equally good.

    If lower is better, it is value / reference, else the inverse. It is 1 if the two
    differ by at most one digit. A bandwidth that fell to 0 is INFINITE times worse, and
    a latency of 0 is as much better. It is NaN if one of them is missing (NaN).

    :param digit: last digit that the program prints, in the unit of the values
    """
    if abs(value - reference) <= digit * 1.001:
        return 1.0
    worse, better_one = (value, reference) if better == 'lower' else (reference, value)
    if not better_one:
        return INFINITE
    return min(max(worse / better_one, 1 / INFINITE), INFINITE)


def farthest_out_of_tolerance(values: Mapping[str, tuple[float, float, str]]
                              ) -> tuple[str, str]:
    """The metric that is farthest from its reference, and in words how far it is, and
    how many more there are.

    :param values: metric and point -> value, reference (NaN: a limit) and unit, of what
        is out of tolerance
    """
    metric, (value, reference, unit) = max(
        values.items(), key=lambda one: deviation_rank(*one[1]))
    name, size = split_metric_key(metric)
    text = name + (f' at {size_text(size)}' if size is not None else '')
    if math.isnan(reference):
        text += f' beyond a limit: {value_text(value, unit)}'
    else:
        text += (f' {change_in_percent(value, reference)} against its reference: '
                 f'{value_text(value, unit)}, reference {value_text(reference, unit)}')
    more = len(values) - 1
    return name, text + (f'; {count_with_noun(more, "more metric")}' if more else '')


def deviation_rank(value: float, reference: float, unit: str) -> tuple[bool, float]:
    """Rank of a metric out of tolerance: of several, the highest is reported.

    It is |log(value / reference)|, infinite if one of them is missing. Ratios of
    metrics (unit `1`) rank lowest, because they depend on other metrics.
    """
    ratio = worsening_ratio('lower', value, reference)
    return unit != '1', math.inf if math.isnan(ratio) else abs(math.log(ratio))


def change_in_percent(value: float, reference: float) -> str:
    """A value as a change against its reference: `+66 %`, or `3.2 x` if it is
    more than twice or less than half; without a positive reference `out of tolerance`.

    >>> change_in_percent(1.66, 1), change_in_percent(32, 1), change_in_percent(1, 0)
    ('+66 %', '32 x', 'out of tolerance')
    """
    if reference <= 0:
        return 'out of tolerance'
    return change_text(value / reference)


#: Begins the note of a measurement with a value that is clearly better.
IMPROVED = 'improved: calibrate again'


def is_improved(better: str, value: float, reference: float,
                lower: float | None, upper: float | None) -> bool:
    """Whether a value is clearly better than its reference.

    Only worse values are measured again. A better value must therefore differ
    by as much as a tolerance for a single measurement (ONE_MEASUREMENT).

    :param lower, upper: tolerances as fractions; None or NaN: open
    """
    tolerance = {'lower': upper, 'higher': lower}.get(better)
    if not reference or tolerance is None or not abs(tolerance) < 1:
        return False
    return (worsening_ratio(better, reference, value)
            > 1 + ONE_MEASUREMENT * abs(tolerance))


def printed_resolution(family: str, metric: str) -> float:
    """Last digit that the program prints, in the metric's unit; 0: unknown."""
    return next((rule.get('resolution', 0) for rule in judged_rules_by_family().get(
        family, ()) if rule['metric'] == metric), 0)


def relative_resolution(family: str, metric: str, value: float) -> float:
    """The last digit that the program prints, as a fraction of a value above 0: the
    floor of every estimate of noise. 0: unknown.

    >>> relative_resolution('osu', 'latency', 0.16)
    0.0625
    """
    return printed_resolution(family, metric) / value


def judged_metric_keys(family: str,
                       available: Iterable[tuple[str, int | None]]) -> set[str]:
    """Keys of the available metrics that are compared with references.

    :param available: (metric, message size in B; None: no point)
    :raises ValueError: the family does not exist
    """
    if family not in judged_rules_by_family():
        raise ValueError(
            f'checks/{family}/family.yaml does not exist; add it, with '
            '`judged: []` if no metric shall have a reference')
    points = set(available)
    return {metric_key(*key) for rule in judged_rules_by_family()[family]
            if (key := key_of_rule(rule, points))}


def key_of_rule(rule: Mapping[str, Any], available: Collection[tuple[str, int | None]]
                ) -> tuple[str, int | None] | None:
    """Metric and size that a rule of family.yaml names: the first available one of the
    sizes in `at`; None: none is available.

    :param available: (metric, message size in B; None: no point)
    """
    metric = rule['metric']
    if (metric, None) in available:
        return metric, None
    sizes = {size for name, size in available if name == metric and size is not None}
    named = {'smallest': min(sizes), 'largest': max(sizes)} if sizes else {}
    return next(((metric, size) for size in (
        named.get(at, at) for at in rule.get('at', ())) if size in sizes), None)
