"""Which metrics of a family are judged, by `judged` of its family.yaml.

Checks and postprocess both ask it.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ..families import derived as derived_metrics
from ..families import families

#: Cap of a tolerance, as a fraction, where a row has none of its own: a wider
#: one cannot tell a sick machine from a healthy one.
MAX_TOLERANCE = 0.3
#: A case beyond a tolerance is measured again at the end of its session, and
#: fails if it is beyond in so many tries. What disturbs a machine for a while
#: seldom does so four times, so that tolerances can be narrow (postprocess/
#: spread.py) and few runs are enough for one: of a metric that varies by 15 %
#: half as many as with three tries.
MEASUREMENTS = 4
#: Quantile 1 - 0.001^(1/TRIES) of the normal distribution: all tries of a run
#: are beyond it once in a thousand.
Z = 0.9237
#: Bounds are so much wider where a single try must be believed: quantile
#: 0.999 over that.
ONE_MEASUREMENT = 3.0902 / Z
#: A mean over fewer sizes than this says no more than one of them.
FEWEST_SIZES = 3


def table() -> dict[str, list[dict]]:
    """Family -> list of {metric, at, ...} (config/schemas/family.yaml)."""
    return {name: family.judged for name, family in families().items()}


def max_tolerance(family: str, metric: str) -> float:
    """Cap of the tolerance of a judged metric, as a fraction.

    :param metric: a judged one, or the derived one that stands in for it
    """
    return next(
        (
            rule.get('max_tolerance', MAX_TOLERANCE)
            for rule in table()[family]
            if metric in (rule['metric'], rule.get('instead'))
        ),
        MAX_TOLERANCE,
    )


def instead(family: str, metric: str) -> str | None:
    """The derived metric that is judged in place of a judged metric where
    the tolerance of that is too wide; None: there is none."""
    base, _ = split(metric)
    return next((rule.get('instead') for rule in table()[family]
                 if rule['metric'] == base), None)


def derived(family: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """The derived metrics of a case: means over a range of its curve.

    The geometric mean exp(mean(log x)), so that each size weighs the same
    whatever its value. A curve with fewer than three sizes in the range, or
    a value of 0 there, has none.

    :param metrics: metric -> value, of one run
    """
    values_by_key = {}
    for rule in table().get(family, ()):
        name = rule.get('instead')
        if not name:
            continue
        what = derived_metrics()[name]
        numbers = [
            value for metric, value in metrics.items()
            for base, size in [split(metric)]
            if base == what['of'] and size is not None
            and what.get('from', 0) <= size <= what.get('to', math.inf)]
        if len(numbers) >= FEWEST_SIZES and min(numbers) > 0:
            values_by_key[name] = math.exp(
                sum(map(math.log, numbers)) / len(numbers))
    return values_by_key


def key(metric: str, point: float | None = None) -> str:
    """Name of a metric: `latency@8B`, or `init_time` without a point.

    :param point: as `position` has it
    """
    at = position(point)
    return metric if at is None else f'{metric}@{at}B'


def split(metric: str) -> tuple[str, int | None]:
    """The inverse of `key`: metric name and point in bytes.

    :raises ValueError: after the @ is no size
    """
    name, _, point = metric.partition('@')
    if not point:
        return name, None
    if not point.endswith('B') or not point[:-1].isdigit():
        raise ValueError(f'{metric!r} is no metric: after @ comes a size '
                         'like 8B')
    return name, int(point[:-1])


def position(point: float | None) -> int | None:
    """The point of a record in bytes; None or NaN: it is of the whole run."""
    return None if point is None or point != point else int(point)


def point(point: float | None) -> str:
    """A point with its unit, as perflogs and people have it: `8 B`, or ``."""
    at = position(point)
    return '' if at is None else f'{at} B'


def judged_metrics(family: str) -> set[str]:
    """Names of the metrics that a reference judges somewhere, without the
    derived ones that stand in for them."""
    return {rule['metric'] for rule in table()[family]}


def worse_by(family: str, metric: str, better: str, value: float,
             reference: float) -> float:
    """How much worse a value is than its reference: a ratio, 1 = as good.

    value / reference where lower is better, the inverse where higher is; 1
    where the two differ by less than the program can print, or where one
    is 0 and there is no ratio.
    """
    return ratio(better, value, reference, resolution(family, metric))


def ratio(better: str, value: float, reference: float, digit: float
          ) -> float:
    """The same, where the last digit that the program prints is known."""
    near = abs(value - reference) <= digit * 1.001
    if near or not value or not reference:
        return 1.0
    return value / reference if better == 'lower' else reference / value


def improved(better: str, value: float, reference: float,
             lower: float | None, upper: float | None) -> bool:
    """Whether a value is better than its reference by far more than the
    tolerance lets it be worse: news, and no failure.

    A worse value is measured again before it fails, a better one is not: it
    must be further away, as far as a tolerance for a single try would be.

    :param lower, upper: tolerances as fractions; None or NaN: open
    """
    tolerance = {'lower': upper, 'higher': lower}.get(better)
    if not reference or tolerance is None or not abs(tolerance) < 1:
        return False
    ratio = value / reference if better == 'higher' else (
        reference / value if value else math.inf)
    return ratio > 1 + ONE_MEASUREMENT * abs(tolerance)


def resolution(family: str, metric: str) -> float:
    """Last digit that the program prints, in the metric's unit; 0: any."""
    return next((rule.get('resolution', 0) for rule in table()[family]
                 if rule['metric'] == metric), 0)


def judged(family: str,
           available: Iterable[tuple[str, int | None]]) -> set[str]:
    """Keys of the metrics that are judged, out of those that are available.

    :param available: (metric, message size in B; None: the whole run)
    :raises ValueError: there is no such family
    """
    if family not in table():
        raise ValueError(
            f'there is no checks/{family}/family.yaml; `judged: []` in it '
            'judges nothing')
    points = set(available)
    keys = set()
    for rule in table()[family]:
        sizes = {size for metric, size in points
                 if metric == rule['metric'] and size is not None}
        if (rule['metric'], None) in points:
            keys.add(key(rule['metric']))
        elif sizes:
            named = {'smallest': min(sizes), 'largest': max(sizes)}
            positions = (named.get(at, at) for at in rule.get('at', ()))
            first = next((size for size in positions if size in sizes), None)
            if first is not None:
                keys.add(key(rule['metric'], first))
    return keys
