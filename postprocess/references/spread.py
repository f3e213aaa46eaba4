"""The width of tolerances, and the number of runs that makes them narrower.

Pure Python, because it is used after each session, where imports must be fast.

- The centre of n runs is their median, the spread a standard deviation over
  the centre. From ten runs on, a tenth of them at each end is pulled in to
  the next one (Winsorised), and the deviation divided by the share that is
  left (Tukey and McLaughlin, Sankhya A 25, 1963; Yuen, Biometrika 61, 1974),
  so that one run in ten disturbed by something else does not count.
- A tolerance is max(floor, two of the last digits printed, tolerance_factor(n)
  * spread), rounded up to 0.01. `tolerance_factor` is a one-sided tolerance
  factor in the form of Howe (JASA 64, 1969): z(p) sqrt(1 + 1/n) sqrt(df /
  chi2(0.01, df)). A test case beyond it is measured again and fails if all its
  tries are beyond (config/sessions/judged.py, TRIES), so that p = 1 -
  0.001^(1/TRIES) will do: in 99 of 100 references, normal noise gives less
  than one false alarm in a thousand runs. A prediction tolerance (Student's t)
  holds that only on average over references, and no longer when runs are added
  until the tolerance is narrow enough: that picks those whose spread came out
  small by chance. bench/references.py measures it.
- `sessions_needed` is its inverse: it takes the spread seen for the true one.
"""
from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

from config.sessions.judged import Z

#: Fewer runs say too little of the spread to judge by.
FEWEST_RUNS = 5
#: From here on a run at each end is pulled in: with fewer, one disturbed run
#: looks like a wide spread, and nobody says never.
SURE_RUNS = 10
#: More runs than this in all are as good as never.
MAX_RUNS = 500
#: Smallest tolerances; '' is any metric without its own.
FLOORS = {'': 0.05, 'worst_ratio': 0.3}
#: Quantile 0.01 of chi-squared by degrees of freedom.
CHI2 = {2: 0.02010, 3: 0.11483, 4: 0.29711, 5: 0.55430, 6: 0.87209,
        7: 1.23904, 8: 1.64650, 9: 2.08790}


def compute_tolerance(values: Sequence[float], floor: float = FLOORS[''],
                      resolution: float = 0.0) -> float:
    """The fraction by which a further value may be worse than the median.

    :param values: a metric of each run
    :param floor: smallest tolerance, a fraction
    :param resolution: last digit printed, in the unit of the values
    :returns: rounded up to 0.01; inf: too few runs, or a median of 0
    """
    centre = statistics.median(values) if values else 0
    if len(values) < FEWEST_RUNS or centre <= 0:
        return math.inf
    return _round_up_to_hundredth(
        max(
            floor,
            2 * resolution / centre,
            tolerance_factor(len(values))
            * _winsorised_deviation(values)
            / centre,
        )
    )


def sessions_needed(values: Sequence[float], max_tolerance: float,
                    floor: float = FLOORS[''], resolution: float = 0.0
                ) -> int | None:
    """About how many more runs until the tolerance is no wider than the max
    tolerance: at least, while there are fewer than FEWEST_RUNS.

    :returns: 0: it is; None: no number of runs would do
    """
    if not values:
        return FEWEST_RUNS
    centre = statistics.median(values)
    if centre <= 0:
        return None
    return _sessions_until_tolerance(
        len(values),
        _winsorised_deviation(values) / centre,
        max_tolerance,
        max(floor, 2 * resolution / centre),
    )


def worst_ratio_tolerance(ratios: Sequence[float], floor: float) -> float:
    """The tolerance of each run's worst ratio to a curve, whose centre is 1.

    Besides, 10 % above the worst run (those pulled in apart), so that the
    runs that a reference is made of pass.
    """
    if len(ratios) < FEWEST_RUNS:
        return math.inf
    return _round_up_to_hundredth(
        max(
            floor,
            _worst_ratio_with_margin(ratios),
            statistics.median(ratios)
            - 1
            + tolerance_factor(len(ratios)) * _winsorised_deviation(ratios),
        )
    )


def worst_ratio_sessions_needed(
    ratios: Sequence[float], max_tolerance: float, floor: float
) -> int | None:
    """As `sessions_needed`, for worst ratios."""
    if not ratios:
        return FEWEST_RUNS
    offset = statistics.median(ratios) - 1
    worst = _worst_ratio_with_margin(ratios)
    if _round_up_to_hundredth(worst) > max_tolerance and len(ratios) < SURE_RUNS:
        # With more runs the worst one may be pulled in.
        return SURE_RUNS - len(ratios)
    return _sessions_until_tolerance(
        len(ratios),
        _winsorised_deviation(ratios),
        max_tolerance,
        max(floor, worst),
        offset,
    )


def relative_spread(values: Sequence[float]) -> float:
    """The spread over the median: a fraction; inf for a median of 0."""
    centre = statistics.median(values)
    return _winsorised_deviation(values) / centre if centre > 0 else math.inf


@functools.cache
def tolerance_factor(runs: int) -> float:
    """Spreads within which a further try lies with p as above, after
    `runs`."""
    free = runs - 1 - 2 * _winsorised_count(runs)
    chi2 = CHI2.get(free)
    if chi2 is None:
        # Wilson and Hilferty, 1931; z(0.01) = -2.3263. At 10: 2 % low.
        part = 2 / (9 * free)
        chi2 = free * (1 - part - 2.3263 * math.sqrt(part)) ** 3
    return Z * math.sqrt((1 + 1 / runs) * free / chi2)


def _sessions_until_tolerance(
    runs: int,
    spread: float,
    max_tolerance: float,
    minimum: float,
    offset: float = 0.0,
) -> int | None:
    """The first number of runs at which all is within the max tolerance, less
    those there are."""
    # What is printed, or a floor above the max tolerance, is no question of
    # runs.
    if _round_up_to_hundredth(minimum) > max_tolerance:
        return None
    if runs < FEWEST_RUNS:
        # The spread of two or three runs says nothing of how many it takes.
        return FEWEST_RUNS - runs
    # What fewer show of the spread may be one disturbed run.
    maximum = MAX_RUNS if runs >= SURE_RUNS else 5 * SURE_RUNS
    for total in range(runs, maximum + 1):
        if offset + Z * spread > max_tolerance:
            break
        if (
            _round_up_to_hundredth(offset + tolerance_factor(total) * spread)
            <= max_tolerance
        ):
            return total - runs
    return SURE_RUNS - runs if runs < SURE_RUNS else None


def _winsorised_count(runs: int) -> int:
    """Runs at each end that are pulled in."""
    return runs // SURE_RUNS


def _worst_ratio_with_margin(ratios: Sequence[float]) -> float:
    """10 % above the worst run that is not pulled in, as a fraction."""
    return sorted(ratios)[-1 - _winsorised_count(len(ratios))] * 1.1 - 1


def _winsorised_deviation(values: Sequence[float]) -> float:
    """Winsorised standard deviation; 0 of a single value."""
    runs, ends = len(values), _winsorised_count(len(values))
    if runs < 2:
        return 0.0
    inner = sorted(values)
    if ends:
        inner[:ends] = [inner[ends]] * ends
        inner[-ends:] = [inner[-ends - 1]] * ends
    mean = math.fsum(inner) / runs
    square = math.fsum((value - mean) ** 2 for value in inner)
    return math.sqrt(square / (runs - 1)) / (1 - 2 * ends / runs)


def _round_up_to_hundredth(value: float) -> float:
    """Rounded up to 0.01."""
    return math.ceil(value * 100 - 1e-9) / 100
