"""The level of a session: one number for all metrics, compared with references.

A machine that is a little slower everywhere may be within the tolerance of each
metric. The level of a session is the median, over all metrics with a tolerance, of
log(value / reference), signed so that more is worse. It is 0 if the machine is as it
was when its references were made.

The tolerance of the level is

    max(MIN_TOLERANCE, centre + Z * spread)

with the centre and the spread of the levels of the first DAYS earlier days against
the same references (`detect.estimate_noise`). The centre counts up to MIN_TOLERANCE: a
slow drift is not followed further. Later days do not count, so that a change that lasts
fails in each session.

All numbers come from the columns `value` and `reference` of the records, also of those
that the ReFrame of a site wrote.
"""
from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd

from config.console import count_with_noun

from .. import naming
from ..printed import PrintedCommands
from ..regressions.detect import estimate_noise
from .progress import usable_records

#: Smallest tolerance, and the widest one that is useful.
MIN_TOLERANCE, MAX_TOLERANCE = 0.02, 0.05
#: A session is judged if it has so many metrics with a tolerance. An earlier day
#: counts if it has half of them, and its level was within MAX_TOLERANCE.
FEWEST_METRICS = 10
#: How far back earlier sessions count, and the number of days that make the tolerance.
HISTORY, DAYS = pd.Timedelta(days=100), 10
#: Spreads that a level may be from the centre.
Z = 3.0


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
        missing = max(DAYS - self.days, 0)
        judged = (
            f'tolerance {100 * self.tolerance:.1f} %' if self.tolerance is not None else
            f'not judged: needs sessions on {count_with_noun(missing, "more day")}'
            if missing else 'not judged: earlier levels vary too much')
        return (f'{self.system}: level {100 * self.worse:+.1f} %, {judged} '
                f'({self.date}, {self.metrics} metrics; + is worse)')

    def advice_lines(self, commands: PrintedCommands) -> list[str]:
        """What to do if it failed."""
        calibrate = commands.measure(
            'references calibrate', self.system, '--new-level')
        return ['to do: check clocks, power, kernel, fabric',
                *[f'if intended: {calibrate}'] * bool(calibrate)]


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
    before = records[~records['now']]
    by_day = before.groupby([before['time'].dt.date, 'metric_number'])[
        'worse'].median().groupby(level=0).agg(['median', 'size'])
    levels = by_day['median'][by_day['size'] >= len(now) / 2].to_numpy()
    levels = levels[abs(levels) <= MAX_TOLERANCE]
    tolerance = level_tolerance(levels)
    return Level(system, f"{records_now['time'].min():%Y-%m-%d}",
                 math.expm1(now.median()),
                 None if tolerance > MAX_TOLERANCE else tolerance, len(now),
                 len(levels))


def level_tolerance(levels: np.ndarray) -> float:
    """The tolerance of the level of a session, as a fraction.

    :param levels: levels of earlier days (logs), the oldest first
    :returns: inf: too few days
    """
    if len(levels) < DAYS:
        return math.inf
    [centre], [spread], _ = estimate_noise(levels[None, :DAYS])
    return max(MIN_TOLERANCE, min(float(centre), MIN_TOLERANCE) + Z * float(spread))
