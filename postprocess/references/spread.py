"""The width of tolerances.

**Model.** The value of a session is centre * (1 + d + e). All sessions of one day share
d; e is that of the session. Both have the variance V: half of the variance is common to
a day. This is the one-way random effects model (Searle, Casella, McCulloch, Variance
Components, 1992).

**Noise.** The spread s of all sessions is that of `detect.estimate_noise`. Let n
sessions be on days with n_1, n_2, ... sessions. The effective number of days is
D = n^2 / sum n_i^2 (Kish, Survey Sampling, 1965). The sum of squares about the mean,
(n - 1) s^2, has the expectation V (2n - 1 - n / D), which gives V.

**Tolerance.** A later session is on another day, and its test case fails if both of its
measurements are out of tolerance (config/sessions/judged.py). The tolerance is the
prediction limit

    t(0.9995, n - 1) sqrt(V (1 + 1 / D + 0.55 + 1 / n))

with Student's t, but at least a floor and two of the last digits printed, rounded up to
0.01. 0.55 is the part of the variance of e that is left to two measurements. They are
both beyond 2.19 standard deviations as seldom (1 in 5000) as one is beyond 3.54, about
the limit with many sessions: that would be a part of 0.38. V is an estimate, so more is
needed.

**Curves.** `worst_ratio` is the worst of all points of a test case's curves. V is the
mean over the points of the noisiest third of a curve. In place of t stands the normal
quantile that one of all points exceeds in 1 of 5000 sessions (Bonferroni).

bench/references.py measures false alarms and power.
"""
from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from config.sessions.judged import WITHIN_PART, relative_resolution

from ..regressions.detect import estimate_noise

#: Fewer sessions give no tolerance.
FEWEST_RUNS = 5
#: With fewer different days a tolerance is provisional: it depends on the prior.
ENOUGH_DAYS = 20
#: Smallest tolerances; '' is any metric without its own.
FLOORS = {'': 0.05, 'worst_ratio': 0.2}
#: Quantile 0.9995 of the normal distribution.
Z = 3.2905
#: Sessions in which a point of a curve may be beyond its limit by chance: 1 of 5000.
CURVE_ALARMS = 2e-4


class Noise(NamedTuple):
    """The noise of a metric, relative to its centre."""
    #: Variance that is common to a day, and as large within a day.
    variance: float
    #: Sessions, and effective number of days.
    sessions: int
    days: float
    #: Points of which the worst is judged; 0: it is a single metric.
    points: int = 0


def noise_floor(family: str, metric: str, centre: float, smallest: float) -> float:
    """The relative change that noise alone can make: two of the last digits printed,
    because either value may be rounded, and at least `smallest`.

    :param centre: above 0
    """
    return max(smallest, 2 * relative_resolution(family, metric, centre))


def compute_tolerance(values: Sequence[float], floor: float = FLOORS[''],
                      days: Sequence[str] = ()) -> float:
    """The fraction by which a later session may be worse than the median.

    :param values: a metric of each session
    :param floor: smallest tolerance, a fraction
    :param days: the day of each value; empty: all are of one day
    :returns: rounded up to 0.01; inf: too few sessions, or a median of 0
    """
    if len(values) < FEWEST_RUNS or statistics.median(values) <= 0:
        return math.inf
    return tolerance_of_noise(noise_of_sessions(values, days), floor)


def tolerance_of_noise(noise: Noise, floor: float) -> float:
    """The tolerance, rounded up to 0.01; inf: too few sessions."""
    if noise.sessions < FEWEST_RUNS:
        return math.inf
    return round_up_to_hundredth(max(floor, prediction_limit(noise)))


def noise_of_sessions(values: Sequence[float], days: Sequence[str] = ()) -> Noise:
    """The noise of a metric, as the module explains it.

    :param values: a metric of each session; their median is above 0
    :param days: the date of each value; empty: all are of one day
    """
    number = len(values)
    if number < 2:
        return Noise(0.0, number, 1.0)
    counts = Counter(days).values() or [number]
    effective = number ** 2 / sum(count ** 2 for count in counts)
    _, [spread], _ = estimate_noise(np.array([values]) / statistics.median(values))
    return Noise(float(spread) ** 2 * (number - 1) / (
        2 * number - 1 - number / effective), number, effective)


def noise_of_curves(curves: Sequence[Sequence[Noise]]) -> Noise:
    """The noise of the noisiest third of several curves.

    :param curves: of each curve, the noise of its points in the order of size
    """
    thirds = []
    for points in curves:
        size = math.ceil(len(points) / 3)
        for part in (points[n:n + size] for n in range(0, len(points), size)):
            thirds.append(Noise(
                statistics.fmean(point.variance for point in part),
                min(point.sessions for point in part),
                min(point.days for point in part),
                sum(map(len, curves))))
    return max(thirds, key=prediction_limit)


def prediction_limit(noise: Noise) -> float:
    """The relative distance from the centre within which a later session is."""
    number = noise.sessions
    factor = statistics.NormalDist().inv_cdf(1 - CURVE_ALARMS / noise.points) \
        if noise.points else student_quantile(max(1, number - 1), Z)
    return factor * math.sqrt(
        noise.variance * (1 + 1 / noise.days + WITHIN_PART + 1 / number))


@functools.cache
def student_quantile(df: int, z: float) -> float:
    """Quantile of Student's t at the probability of a normal quantile, by Peizer and
    Pratt (JASA 63, 1968): 4 % too large with 4 degrees of freedom, less with more."""
    return math.sqrt(df * math.expm1(
        z ** 2 * (df - 5 / 6) / (df - 2 / 3 + 0.1 / df) ** 2))


def round_up_to_hundredth(value: float) -> float:
    """Rounded up to 0.01."""
    return math.ceil(value * 100 - 1e-9) / 100
