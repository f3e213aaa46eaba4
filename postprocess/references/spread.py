"""The width of tolerances, and the number of sessions that makes them narrower.

Pure Python, because it is used after each session, where imports must be fast.

**Model.** The value of a session is centre * (1 + d + e). All sessions of one day on
the same nodes share d, whose variance is B; e has the variance W. This is the one-way
random effects model (Searle, Casella, McCulloch, Variance Components, 1992).

**Variances.** Let n sessions be on days with n_1, n_2, ... sessions. The effective
number of days is D = n^2 / sum n_i^2 (Kish, Survey Sampling, 1965). The prior is that
half of the variance is common to a day (B = W). Then the sum of squares about the mean
has the expectation W (2n - 1 - n / D), which gives W. The estimates of the analysis of
variance replace this prior by the weight k / (k + 8), where k is the smaller of their
degrees of freedom: different days - 1, and n - groups of the same day and nodes. So
sessions of one day alone say nothing about other days.

**Tolerance.** A later session is on another day, and its test case fails if both of its
measurements are out of tolerance (config/sessions/judged.py). The tolerance is the
prediction limit

    t(0.9995, n - 1) sqrt(B (1 + 1 / D) + W (0.55 + 1 / n))

with Student's t, but at least a floor and two of the last digits printed, rounded up to
0.01. 0.55 is the part of W that is left to two measurements. They are both beyond 2.19
standard deviations as seldom (1 in 5000) as one is beyond 3.54, about the limit with
many sessions: that would be a part of 0.38. B and W are estimates, so more is needed.

**Curves.** `worst_ratio` is the worst of all points of a test case's curves. B and W
are the means over the points of the noisiest third of a curve. In place of t stands the
normal quantile that one of all points exceeds in 1 of 5000 sessions (Bonferroni).

**Outliers.** From ten sessions on, a tenth of them at each end is pulled in to the
next one (Winsorised), the sum of squares is divided by the square of the share that is
left (Tukey and McLaughlin, Sankhya A 25, 1963), and t has fewer degrees of freedom.

bench/references.py measures false alarms and power.
"""
from __future__ import annotations

import functools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from config.sessions.judged import WITHIN_PART, relative_resolution

#: Date (UTC) and nodes of a session: sessions of one date and one set of nodes have
#: the deviation d in common.
Day = tuple[str, str]

#: Fewer sessions give no tolerance.
FEWEST_RUNS = 5
#: From so many sessions on, one of ten at each end is pulled in. With fewer, one
#: outlier looks like a wide spread, and may vanish with more sessions.
SURE_RUNS = 10
#: A test case that needs more sessions than this never gets a tolerance.
MAX_RUNS = 500
#: With fewer different days a tolerance is provisional: it depends on the prior.
ENOUGH_DAYS = 20
#: Smallest tolerances; '' is any metric without its own.
FLOORS = {'': 0.05, 'worst_ratio': 0.2}
#: Weight of the prior B = W, in degrees of freedom.
PRIOR_WEIGHT = 8
#: Quantile 0.9995 of the normal distribution.
Z = 3.2905
#: Sessions in which a point of a curve may be beyond its limit by chance: 1 of 5000.
CURVE_ALARMS = 2e-4


class Variances(NamedTuple):
    """The parts of the variance of values, relative to their centre."""
    #: Between days, and within a day.
    between: float
    within: float
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
                      days: Sequence[Day] = ()) -> float:
    """The fraction by which a later session may be worse than the median.

    :param values: a metric of each session
    :param floor: smallest tolerance, a fraction
    :param days: the day of each value; empty: all are of one day
    :returns: rounded up to 0.01; inf: too few sessions, or a median of 0
    """
    if len(values) < FEWEST_RUNS or statistics.median(values) <= 0:
        return math.inf
    return tolerance_of_variances(estimate_variances(values, days), floor)


def sessions_needed(values: Sequence[float], max_tolerance: float,
                    floor: float = FLOORS[''], days: Sequence[Day] = ()) -> int | None:
    """About how many more sessions until the tolerance is no wider than the max
    tolerance (`sessions_needed_by_variances`)."""
    if not values:
        return FEWEST_RUNS
    return None if statistics.median(values) <= 0 else (
        sessions_needed_by_variances(
            estimate_variances(values, days), max_tolerance, floor))


def tolerance_of_variances(variances: Variances, floor: float) -> float:
    """The tolerance, rounded up to 0.01; inf: too few sessions."""
    if variances.sessions < FEWEST_RUNS:
        return math.inf
    return round_up_to_hundredth(max(floor, prediction_limit(variances)))


def sessions_needed_by_variances(variances: Variances, max_tolerance: float,
                                 floor: float) -> int | None:
    """About how many more sessions until the tolerance is no wider than the max
    tolerance: on the same days if that is enough, else one on each of further days.

    It takes the variances seen for the true ones.

    :returns: 0: none; None: no number would do
    """
    # What is printed, or a floor above the max tolerance, does not depend on sessions.
    if round_up_to_hundredth(floor) > max_tolerance:
        return None
    sessions = variances.sessions
    if sessions < FEWEST_RUNS:
        return FEWEST_RUNS - sessions
    # What fewer sessions show of the variance may be one outlier.
    most = MAX_RUNS if sessions >= SURE_RUNS else 5 * SURE_RUNS
    for on_new_days in (False, True):
        for more in range(most - sessions + 1):
            later = variances._replace(
                sessions=sessions + more, days=variances.days + more * on_new_days)
            if tolerance_of_variances(later, floor) <= max_tolerance:
                return more
    return max(SURE_RUNS - sessions, 0) or None


def estimate_variances(values: Sequence[float], days: Sequence[Day] = ()) -> Variances:
    """The variances between days and within a day, as the module explains it.

    :param values: a metric of each session; their median is above 0
    :param days: the day of each value; empty: all are of one day
    """
    number, ends = len(values), _winsorised_count(len(values))
    if number < 2:
        return Variances(0.0, 0.0, number, 1.0)
    ordered = sorted(values)
    low, high = ordered[ends], ordered[-1 - ends]
    scale = statistics.median(ordered) * (1 - 2 * ends / number)
    shrunk = [min(max(value, low), high) / scale for value in values]
    groups = defaultdict(list)
    for day, value in zip(days or [('', '')] * number, shrunk, strict=True):
        groups[day].append(value)
    dates = Counter(date for date, _ in days) or {'': number}
    effective = number ** 2 / sum(count ** 2 for count in dates.values())
    whole = _sum_of_squares(shrunk)
    within = between = whole / (2 * number - 1 - number / effective)
    freedom = number - len(groups)
    if known := min(len(dates) - 1, freedom):
        rest = math.fsum(map(_sum_of_squares, groups.values()))
        weight = known / (known + PRIOR_WEIGHT)
        # Means of squares: of the differences within groups, and between them.
        inside = rest / freedom
        outside = max(0.0, (whole - rest - (len(groups) - 1) * inside) / (
            number - sum(len(group) ** 2 for group in groups.values()) / number))
        within += weight * (inside - within)
        between += weight * (outside - between)
    return Variances(between, within, number, effective)


def curve_variances(curves: Sequence[Sequence[Variances]]) -> Variances:
    """The variances of the noisiest third of several curves.

    :param curves: of each curve, the variances of its points in the order of size
    """
    thirds = []
    for points in curves:
        size = math.ceil(len(points) / 3)
        for part in (points[n:n + size] for n in range(0, len(points), size)):
            thirds.append(Variances(
                statistics.fmean(point.between for point in part),
                statistics.fmean(point.within for point in part),
                min(point.sessions for point in part),
                min(point.days for point in part),
                sum(map(len, curves))))
    return max(thirds, key=prediction_limit)


def prediction_limit(variances: Variances, within_part: float = WITHIN_PART,
                     z: float = Z) -> float:
    """The relative distance from the centre within which a later session is.

    :param within_part: part of W that is left in what is judged of a session
    :param z: quantile of the normal distribution, in place of which Student's is taken
    """
    number = variances.sessions
    factor = statistics.NormalDist().inv_cdf(1 - CURVE_ALARMS / variances.points) \
        if variances.points else student_quantile(
            max(1, number - 1 - 2 * _winsorised_count(number)), z)
    return factor * math.sqrt(variances.between * (1 + 1 / variances.days)
                              + variances.within * (within_part + 1 / number))


@functools.cache
def student_quantile(df: int, z: float) -> float:
    """Quantile of Student's t at the probability of a normal quantile, by Peizer and
    Pratt (JASA 63, 1968): 4 % too large with 4 degrees of freedom, less with more."""
    return math.sqrt(df * math.expm1(
        z ** 2 * (df - 5 / 6) / (df - 2 / 3 + 0.1 / df) ** 2))


def _sum_of_squares(values: Sequence[float]) -> float:
    """Sum of the squared distances from the mean."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _winsorised_count(sessions: int) -> int:
    """Sessions at each end that are pulled in."""
    return sessions // SURE_RUNS


def round_up_to_hundredth(value: float) -> float:
    """Rounded up to 0.01."""
    return math.ceil(value * 100 - 1e-9) / 100
