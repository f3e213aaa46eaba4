"""Whether a run of TaoBench is valid, and the likely cause if not.

Pure.  The rules are those of the original's guide; what made a run invalid
is read from the points that its parser leaves out.
"""
from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from checks.taobench.parser import (
    MIN_HIT_RATE,
    Point,
    Summary,
    combine,
    expected_points,
    window_of,
)

#: Hit ratio of a good run.
HIT_RATIO = (MIN_HIT_RATE, 0.9)
#: Busy CPU of the server's machine, and that of user mode. Unit: %.
CPU, USER = (70.0, 80.0), (15.0, 30.0)
CPU_V2, USER_V2 = (75.0, 80.0), (25.0, 30.0)
#: A server with a smaller share of the usual request rate is starved.
MIN_RATE_SHARE = 0.5
#: Tolerance of the window. Unit: lines.
WINDOW_TOLERANCE = 2
#: Growth of the hit rate above which a cache is still being filled.
MIN_GROWTH = 0.02

#: Likely causes of an invalid run; `cause` of a Reason.
CAUSES = {
    'few_keys': 'too few keys for the cache: it holds nearly all of them',
    'many_keys': 'too many keys for the cache, or a cache that is smaller '
                 'than the clients were told',
    'cold': 'the warm-up was cut short: the cache was still being filled',
    'starved': 'a starved client: it has too few CPUs, a slow network, or '
               'did not run all the time',
    'killed': 'a server was killed or has crashed',
    'memory': 'items found no room: the cache is too small for the threads',
    'build': 'an older build of the server: it lacks a field of the '
             'statistics',
    'busy': 'something else runs on the machine, or the clients do',
    'kernel': 'the kernel takes the time: interrupts of timers, an IOMMU '
              'that is not passed through, no affinity of the NIC',
    'unknown': 'see the lines that were left out',
}


class Cpu(NamedTuple):
    """CPU of the server's machine during the test. Unit: %."""
    total: float
    user: float


@dataclass(frozen=True)
class Expected:
    """What a valid run must have. Times in s."""
    instances: int
    warmup_time: float
    test_time: float
    interval: float = 5.0
    #: Pause of the clients between warm-up and test.
    rest: float = 0.0
    #: The semaphores of tao_bench_autoscale_v2_beta.
    v2: bool = False
    #: Points a server: code | guide.
    rule: str = 'code'
    #: Connections to each server; none: not judged.
    connections: Sequence[int] = ()

    @property
    def points(self) -> int:
        """Points that each server should have."""
        return expected_points(window_of(self.test_time), self.interval,
                               self.rule)


@dataclass(frozen=True)
class Reason:
    """A rule that a run breaks."""
    #: instances | ended | points | hit_ratio | connections | balance |
    #: clients | cpu_total | cpu_user
    rule: str
    #: What was found, and what was expected.
    text: str
    #: A key of CAUSES: what probably made it so.
    cause: str

    def __str__(self) -> str:
        return f'{self.text}: {CAUSES[self.cause]}'


def judge(summary: Sequence[Summary | None], expected: Expected,
          cpu: Cpu | None = None, limited: Sequence[str] = ()
          ) -> list[Reason]:
    """Why a run is invalid; none: it is valid.

    :param found: of each server that was started, summed up over the window
        of `expected`; None: it left no figures
    :param cpu: None: not known, not judged
    :param limited: names of clients that set the pace themselves
    """
    reasons = [*_instances(summary, expected)]
    for index, one in enumerate(summary, 1):
        if one:
            reasons += _server(index, one, expected)
    if limited:
        reasons.append(Reason('clients', f'{", ".join(limited)} could not '
                              'ask faster', 'starved'))
    reasons += _balance(summary)
    reasons += _hit_ratio(summary)
    if cpu:
        reasons += _cpu(cpu, expected)
    return reasons


def _instances(summary: Sequence[Summary | None], expected: Expected
               ) -> list[Reason]:
    good = sum(one is not None for one in summary)
    if good == expected.instances:
        return []
    return [Reason('instances', f'{good} of {expected.instances} servers '
                   'have left statistics', 'killed')]


def _server(index: int, one: Summary, expected: Expected) -> list[Reason]:
    """What is wrong with one server's points."""
    reasons = []
    lines = [point for point in one.log.points if not point.out_of_memory]
    # A server prints to the end of the test and beyond; each line comes a
    # little late, and the first and the last may be missing.
    minimum = (expected.warmup_time + expected.rest
             + expected.test_time) / expected.interval
    if len(lines) < 0.95 * minimum - 2:
        reasons.append(Reason(
            'ended', f'server {index}: {len(lines)} lines of statistics, '
            f'not {minimum:.0f}', 'killed'))
    wanted, window = expected.points, _window(one, expected)
    if one.num_data_points < wanted:
        reasons.append(Reason(
            'points', f'server {index}: {one.num_data_points} data points, '
            f'not {wanted} (by the {expected.rule} of the original)',
            'killed' if reasons else _lacking(one, window, expected)))
    dip = _dip(one)
    good = sum(point.counts for point in window)
    if not reasons and good < wanted - WINDOW_TOLERANCE:
        # The original walks back into the warm-up for as many as it wants.
        reasons.append(Reason(
            'points', f'server {index}: {good} of {len(window)} points of '
            'the test count', _lacking(one, window, expected)))
    if dip and not reasons:
        reasons.append(Reason(
            'points', f'server {index}: {len(dip)} points of the window do '
            f'not count (from line {dip[0].line})',
            _lacking(one, window, expected)))
    if expected.connections:
        opened = [point.values['crnt_conn'] for point in window
                  if point.busy and 'crnt_conn' in point.values]
        wanted = expected.connections[index - 1]
        if opened and statistics.median(opened) < 0.95 * wanted:
            reasons.append(Reason(
                'connections', f'server {index}: '
                f'{statistics.median(opened):.0f} connections, not {wanted}',
                'starved'))
    return reasons


def _window(one: Summary, expected: Expected) -> Sequence[Point]:
    """The lines at the end of the test, counted from the first request."""
    points = [p for p in one.log.points if not p.out_of_memory]
    start = next((at for at, p in enumerate(points) if p.busy), 0)
    end = start + round((expected.warmup_time + expected.rest
                         + expected.test_time) / expected.interval)
    result = points[max(end - round(window_of(expected.test_time)
                                   / expected.interval), 0):end]
    # Steps of a job between warm-up and test shift the window a little.
    late = next((at for at, p in enumerate(result) if p.busy), 0)
    return result[late if late <= WINDOW_TOLERANCE else 0:]


def _dip(one: Summary) -> list[Point]:
    """Points that do not count between points that do; one may be chance."""
    taken = one.counted
    dip = [point for point in one.log.points if taken and not point.counts
           and taken[0].line < point.line < taken[-1].line
           and not point.out_of_memory]
    return dip if len(dip) > max(one.wanted / 20, 1) else []


def _lacking(one: Summary, points: Sequence[Point], expected: Expected
             ) -> str:
    """The likely cause of points of the window that do not count."""
    if sum(point.older for point in points) > len(points) / 2:
        return 'build'
    busy = [p for p in points if p.busy]
    if len(busy) < 0.9 * len(points) or not busy:
        return 'starved'
    low = [p for p in busy if p.values['hit_rate'] < MIN_HIT_RATE]
    if low:
        # A third, but of few points half: one may have hardly any reads.
        part = max(len(busy) // 3, min(len(busy) // 2, 2), 1)
        first, variance = _hit_rate(busy[:part], expected.interval)
        last, other = _hit_rate(busy[-part:], expected.interval)
        # Points of few reads vary by chance: three standard errors.
        chance = 3 * math.sqrt(variance + other)
        if last - first > max(MIN_GROWTH, chance):
            return 'cold'
        if any(point.out_of_memory or point.values.get('slow_qps_oom', 0) > 0
               for point in one.log.points):
            return 'memory'
        return 'many_keys' if len(low) > len(busy) / 2 else 'unknown'
    return 'unknown'


def _hit_rate(points: Sequence[Point], interval: float
              ) -> tuple[float, float]:
    """Hits a read of some points, and its variance: that of a binomial."""
    hits, misses = (interval * sum(p.values[name] for p in points)
                    for name in ('fast_qps', 'slow_qps'))
    rate = hits / (hits + misses)
    return rate, rate * (1 - rate) / (hits + misses)


def _balance(summary: Sequence[Summary | None]) -> list[Reason]:
    """Servers that got far fewer requests than the others."""
    rates = [one.total_qps for one in summary if one and one.num_data_points]
    if len(rates) < 2:
        return []
    usual = statistics.median_high(rates)
    return [Reason('balance', f'server {index}: {one.total_qps:.0f} requests '
                   f'a second, the others {usual:.0f}', 'starved')
            for index, one in enumerate(summary, 1)
            if one and one.num_data_points
            and one.total_qps < MIN_RATE_SHARE * usual]


def _hit_ratio(summary: Sequence[Summary | None]) -> list[Reason]:
    good = [one for one in summary if one and one.num_data_points]
    if not good:
        return []
    ratio = float(combine(good)['hit_ratio'])
    low, high = HIT_RATIO
    if low <= ratio <= high:
        return []
    # Beside 0.88: a rate of slow responses that is not that of misses.
    cause = 'few_keys' if ratio > high else 'many_keys'
    return [Reason('hit_ratio', f'hit ratio {ratio:.4f}, not {low} to '
                   f'{high}', cause)]


def _cpu(cpu: Cpu, expected: Expected) -> list[Reason]:
    reasons = []
    total, user = (CPU_V2, USER_V2) if expected.v2 else (CPU, USER)
    for rule, share, (low, high), causes in (
            ('cpu_total', cpu.total, total, ('starved', 'busy')),
            ('cpu_user', cpu.user, user, ('kernel', 'busy'))):
        if not low <= share <= high:
            name = rule.removeprefix('cpu_')
            reasons.append(Reason(
                rule, f'{name} CPU {share:.0f} %, not {low:.0f} to '
                f'{high:.0f} %', causes[share > high]))
    return reasons
