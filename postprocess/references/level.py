"""The level of a session: one number for all metrics, compared with references.

A machine that is a little slower everywhere may be within the tolerance of each
metric. The level of a session is the median, over all metrics with a tolerance, of
log(value / reference), signed so that more is worse. It is 0 if the machine is as it
was when its references were made.

The level has a tolerance of its own. The levels of earlier sessions against the same
references have the variances B between days and W within a day (spread.py). A session
is measured once, so its prediction limit is

    t(0.995, n - 1) sqrt(B (1 + 1 / D) + W (1 + 1 / n))

around the median of these levels, which counts up to MIN_TOLERANCE: a slow drift is
not followed further. The tolerance is at least MIN_TOLERANCE. A session out of
tolerance fails, and does not count as an earlier session of those after it. So a
change that lasts fails in each session, until fewer than FEWEST_DAYS days of HISTORY
are left from before the change.

All numbers come from the columns `value` and `reference` of the records, also of those
that the ReFrame of a site wrote.
"""
from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from config.console import count_with_noun
from config.places import CALIBRATE, site_option

from .. import naming
from . import spread
from .progress import day_of_each_session, usable_records

#: Smallest tolerance, and the widest one that is useful.
MIN_TOLERANCE, MAX_TOLERANCE = 0.02, 0.05
#: A session is judged if it has so many metrics with a tolerance. An earlier session
#: counts if it has half of them, and was within MAX_TOLERANCE and its own tolerance.
FEWEST_METRICS = 10
#: How far back earlier sessions count.
HISTORY = pd.Timedelta(days=100)
#: The level is judged after sessions on so many days.
FEWEST_DAYS = 10
#: Quantile 0.995 of the normal distribution.
Z = 2.5758


@dataclass(frozen=True)
class Level:
    """The level of a system in a session."""
    system: str
    #: Date (UTC) on which the session began.
    date: str
    #: How much worse than its references, as a fraction; negative: better.
    worse: float
    #: Tolerance as a fraction; None: the level is not judged.
    tolerance: float | None
    #: Metrics with a tolerance, and days of earlier sessions with them.
    metrics: int
    days: int

    @property
    def is_failed(self) -> bool:
        """Whether the level is out of tolerance."""
        return self.tolerance is not None and self.worse > self.tolerance

    @property
    def text(self) -> str:
        """The level in one line."""
        missing = max(FEWEST_DAYS - self.days, 0)
        judged = (
            f'tolerance {100 * self.tolerance:.1f} %' if self.tolerance is not None else
            f'not judged: needs sessions on {count_with_noun(missing, "more day")}'
            if missing else 'not judged: earlier levels vary too much')
        return (f'{self.system}: level {100 * self.worse:+.1f} %, {judged} '
                f'({self.date}, {self.metrics} metrics; + is worse)')

    @property
    def lines(self) -> list[str]:
        """The level, and what to do if it failed."""
        return [self.text, *[
            '  to do: check clocks, power, kernel, fabric',
            f'  if intended: {CALIBRATE}{site_option(self.system)} --new-level'
            ] * self.is_failed]


def session_levels(frame: pd.DataFrame, sessions: Collection[str]) -> list[Level]:
    """The level of each system in a session.

    A system with too few metrics with a tolerance is left out.

    :param frame: records of the session, and of those before it, as records.read gives
        them
    :param sessions: the ReFrame sessions that count as this session
    """
    first = frame['time'][frame['session'].isin(sessions)].min()
    good, _ = usable_records(frame[frame['time'] >= first - HISTORY],
                             include_reference_failures=True)
    good = good[good['better'].isin(['lower', 'higher']) & (good['value'] > 0)
                & ~good['metric'].isin(['completed', 'worst_ratio'])]
    good = good.assign(
        metric_number=naming.group_number_of_records(
            good, ['test_case', 'source', 'metric', 'point']),
        now=good['session'].isin(sessions))
    judged = good[good['now'] & (good['reference'] > 0)
                  & good[['lower', 'upper']].notna().any(axis=1)]
    reference_of = judged.groupby('metric_number')['reference'].last()
    good = good[good['metric_number'].isin(reference_of.index)]
    sign = np.where(good['better'] == 'lower', 1.0, -1.0)
    good = good.assign(worse=sign * np.log(
        good['value'] / good['metric_number'].map(reference_of)))
    return [*filter(None, (_level_of_system(str(system), records) for system, records
                           in good.groupby('system', observed=True)))]


def _level_of_system(system: str, records: pd.DataFrame) -> Level | None:
    """The level of one system; None: too few metrics."""
    records_now = records[records['now']]
    now = records_now.groupby('metric_number')['worse'].median()
    if len(now) < FEWEST_METRICS:
        return None
    levels, days = [], []
    for _, session in sorted(records[~records['now']].groupby('session', observed=True),
                             key=lambda item: item[1]['time'].min()):
        level = session.groupby('metric_number')['worse'].median()
        if len(level) >= len(now) / 2:
            levels.append(float(level.median()))
            days.append((day_of_each_session(session.head(1)).iloc[0][0], ''))
    levels, days = levels_within_tolerance(levels, days)
    tolerance = level_tolerance(levels, days)
    return Level(system, f"{records_now['time'].min():%Y-%m-%d}",
                 math.expm1(now.median()),
                 None if tolerance > MAX_TOLERANCE else tolerance, len(now),
                 len({*days}))


def levels_within_tolerance(levels: Sequence[float], days: Sequence[spread.Day]
                            ) -> tuple[list[float], list[spread.Day]]:
    """The sessions whose level passed, compared with those before that passed.

    A session right after one that failed is left out, too: during a change that lasts,
    some sessions pass by chance, and would widen the tolerance.

    :param levels: levels of sessions in the order of time (logs)
    :param days: their days
    :returns: their levels and days
    """
    passed: list[float] = []
    days_passed: list[spread.Day] = []
    is_sound = True
    for level, day in zip(levels, days, strict=True):
        was_sound, is_sound = is_sound, (
            abs(level) <= MAX_TOLERANCE
            and math.expm1(level) <= level_tolerance(passed, days_passed))
        if was_sound and is_sound:
            passed.append(level)
            days_passed.append(day)
    return passed, days_passed


def level_tolerance(levels: Sequence[float], days: Sequence[spread.Day]) -> float:
    """The tolerance of the level of a session, as a fraction.

    :param levels: levels of earlier sessions (logs)
    :param days: their days
    :returns: inf: too few days
    """
    if len({*days}) < FEWEST_DAYS:
        return math.inf
    variances = spread.estimate_variances([*map(math.exp, levels)], days)
    centre = min(max(statistics.median(levels), -MIN_TOLERANCE), MIN_TOLERANCE)
    return max(MIN_TOLERANCE, centre + spread.prediction_limit(variances, 1.0, Z))
