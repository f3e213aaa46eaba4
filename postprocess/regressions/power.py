"""The smallest change that the verdict finds.

docs/explanation/detection.md has the formulas and their sources.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from config.console import print_table
from config.records.units import point_text

from .. import results
from . import detect
from .events import Power, test_case_text
from .sessions import History

#: Normal quantile that all of 3 sessions, or 5 of 6, exceed nine times in ten.
NINE_IN_TEN = {3: 1.82, 6: 1.32}
#: Fewest sessions of a baseline that determine what can be found.
FEWEST = 20


def power_of_test_cases(hist: History, walk: detect.Walk, enough: np.ndarray
                        ) -> list[Power]:
    """What can be found in each test case, by its judged metric with the widest noise.

    :param enough: whether each metric has enough sessions
    """
    rows = np.flatnonzero(enough & hist.metrics['named'].to_numpy(bool)
                          & (walk.baseline.sum(1) >= FEWEST))
    if not len(rows):
        return []
    in_3, in_6 = (np.maximum(smallest_detectable_change(
        np.maximum(walk.spread, hist.floor)[rows], walk.phi[rows],
        walk.sessions[rows], walk.df[rows], window, walk.caution[rows]),
        hist.minimum[rows])
        for window in (3, 6))
    number_of_case = {int(hist.metrics['of'].iat[rows[number]]): number
                      for number in np.argsort(in_6, kind='stable').tolist()}
    return [Power(
        **results.place_fields(metric), metric=str(metric.metric),
        point=str(metric.point), in_3_sessions=share_of_value(hist, row, in_3[number]),
        in_6_sessions=share_of_value(hist, row, in_6[number]))
        for number in number_of_case.values()
        for row in [rows[number]] for metric in [hist.metrics.iloc[row]]]


def smallest_detectable_change(spread: np.ndarray, phi: np.ndarray,
                               number: np.ndarray, df: np.ndarray, window: int,
                               caution: np.ndarray | float = 0.0) -> np.ndarray:
    """Smallest lasting change that alarms nine times in ten within a window.

    The mean of the window must exceed its quantile, and each of its sessions but a
    quarter WORSE_SESSION spreads (of the shortest window all, WORSE_IN_SHORTEST):

        s max(t_df(q) sqrt(v(w) + v(n)) + 1.28 sqrt(v(w)), worse + z)

    with the normal quantile z that so many of w sessions exceed nine times in ten.

    :param number: sessions of the baseline
    :param window: sessions since the change, 3 or 6
    :returns: in the unit of the series
    """
    own = detect.variance_of_mean(window, phi)
    mean = detect.student_t_quantile(df, detect.QUANTILE + caution) * np.sqrt(
        own + detect.variance_of_mean(np.maximum(number, 1), phi)) + 1.28 * np.sqrt(own)
    worse = detect.WORSE_IN_SHORTEST if window == detect.WINDOWS[0] \
        else detect.WORSE_SESSION
    return spread * np.maximum(mean, worse + NINE_IN_TEN[window])


def share_of_value(hist: History, row: int, size: float) -> float:
    """A change for the worse as a share of the value: 0.05 is 5 %.

    :param size: in the unit of the series
    """
    return float(np.expm1(min(size, 700.0)) if hist.worse_direction_sign()[row] > 0
                 else -np.expm1(-size))


def print_power_table(power: Sequence[Power]) -> None:
    """The smallest change that is found in each test case, the largest first."""
    if not power:
        print('No test case has enough sessions to be compared with its history')
        return
    print_table([(
        test_case_text(one),
        f'{one.metric} {point_text(one.point)}'.strip(),
        f'{100 * one.in_3_sessions:.1f} %', f'{100 * one.in_6_sessions:.1f} %')
        for one in sorted(power, key=lambda one: -one.in_6_sessions)],
        ['test case', 'metric', '3 sessions', '6 sessions'], right=[2, 3])
    sizes = sorted(one.in_6_sessions for one in power)
    print('Nine times in ten, six sessions are enough to find a lasting change of '
          f'{100 * sizes[(len(sizes) - 1) // 2]:.1f} % in half of the test cases, and '
          f'of {100 * sizes[math.ceil(0.9 * len(sizes)) - 1]:.1f} % in 90 % of them')


def power_text(power: Power) -> str:
    """The smallest change that is found in a test case."""
    return (f'{100 * power.in_3_sessions:.1f} % in 3 sessions, '
            f'{100 * power.in_6_sessions:.1f} % in 6 '
            f'({f"{power.metric} {point_text(power.point)}".strip()})')
