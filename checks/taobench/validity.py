"""Validity of a run of TaoBench, and the likely cause if it is invalid.

The rules are those of the original's guide. The likely cause is derived from
the points that the parser leaves out.
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
    combine_summaries,
    counted_window_seconds,
    expected_point_count,
)
from checks.taobench.sizing import CPUS_PER_SERVER

#: Bandwidth of the network in the guide: the minimum for the CPUs of one server, the
#: minimum for more, and the maximum. Unit: Mb/s.
MIN_LINK, MIN_LINK_MANY_CPUS, MAX_LINK = 10_000, 20_000, 50_000
#: Hit ratio of a valid run.
HIT_RATIO = (MIN_HIT_RATE, 0.9)
#: CPU use of the server's machine, in total and in user mode. Unit: %.
CPU, USER = (70.0, 80.0), (15.0, 30.0)
CPU_V2, USER_V2 = (75.0, 80.0), (25.0, 30.0)
#: A server with a smaller share of the usual request rate is starved.
MIN_RATE_SHARE = 0.5
#: Tolerance of the window. Unit: lines.
WINDOW_TOLERANCE = 2
#: Growth of the hit rate above which a cache is still being filled.
MIN_GROWTH = 0.02

#: `cause` of a Reason -> explanation.
CAUSES = {
    'few_keys': 'there are too few keys: the cache holds nearly all of them',
    'many_keys': 'there are too many keys, or the cache is smaller than '
                 'server_memsize of the clients',
    'cold': 'the warm-up was too short: the cache was still being filled',
    'starved': 'a client has too few CPUs or a slow network, or did not run '
               'all the time',
    'killed': 'a server was killed or crashed',
    'memory': 'items had no room: the cache is too small for the threads',
    'build': 'the server is an older build that lacks a field of the '
             'statistics',
    'busy': 'other processes, or the clients, use the machine',
    'kernel': 'the kernel takes too much time: check timer interrupts, '
              'iommu=pt, and the affinity of the NIC',
    'unknown': 'see the lines that were left out',
}


def min_link_speed(cpus: int) -> int:
    """Minimum bandwidth of the servers' machine with so many CPUs. Unit: Mb/s."""
    return MIN_LINK if cpus <= CPUS_PER_SERVER else MIN_LINK_MANY_CPUS


def network_note(cpus: int, interface: str, speed: int) -> str:
    """A note if the rule for the network could not be checked, or if the
    interface is faster than recommended; empty: no note. A slower interface is
    refused before the servers start.

    :param cpus: CPUs of the servers' machine
    :param speed: 0: unknown. Unit: Mb/s
    """
    if not speed:
        return (f'the kernel does not report the speed of {interface}: make sure that '
                f'it has at least {min_link_speed(cpus)} Mb/s, which the guide of '
                'TaoBench requires')
    if speed > MAX_LINK:
        return (f'{interface} has {speed} Mb/s; the guide of TaoBench recommends at '
                f'most {MAX_LINK}')
    return ''


class Cpu(NamedTuple):
    """CPU use of the server's machine during the test. Unit: %."""
    total: float
    user: float


@dataclass(frozen=True)
class Expected:
    """Requirements of a valid run. Times in s."""
    instances: int
    warmup_time: float
    test_time: float
    interval: float = 5.0
    #: Pause of the clients between warm-up and test.
    rest: float = 0.0
    #: The semaphores of tao_bench_autoscale_v2_beta.
    v2: bool = False
    #: Connections to each server; empty: not checked.
    connections: Sequence[int] = ()

    @property
    def points_per_server(self) -> int:
        """Number of points that each server needs."""
        return expected_point_count(counted_window_seconds(self.test_time),
                                    self.interval)


@dataclass(frozen=True)
class Reason:
    """A broken rule of a run."""
    #: instances | ended | points | hit_ratio | connections | balance |
    #: clients | cpu_total | cpu_user
    rule: str
    #: The measured and the expected value.
    text: str
    #: A key of CAUSES.
    cause: str

    def __str__(self) -> str:
        return f'{self.text}: {CAUSES[self.cause]}'


def find_invalidity_reasons(summary: Sequence[Summary | None], expected: Expected,
                            cpu: Cpu | None = None, limited: Sequence[str] = ()
          ) -> list[Reason]:
    """Reasons why a run is invalid; empty: it is valid.

    :param summary: summary of each server that was started, over the window of
        `expected`; None: it has no values
    :param cpu: None: not known and not checked
    :param limited: names of clients that were the limit themselves
    """
    reasons = [*_find_server_count_violations(summary, expected)]
    for index, one in enumerate(summary, 1):
        if one:
            reasons += _find_server_point_violations(index, one, expected)
    if limited:
        reasons.append(Reason('clients', f'{", ".join(limited)} could not '
                              'send requests faster', 'starved'))
    reasons += _find_load_balance_violations(summary)
    reasons += _find_hit_ratio_violations(summary)
    if cpu:
        reasons += _find_cpu_use_violations(cpu, expected)
    return reasons


def _find_server_count_violations(summary: Sequence[Summary | None], expected: Expected
               ) -> list[Reason]:
    good = sum(one is not None for one in summary)
    if good == expected.instances:
        return []
    return [Reason('instances', f'only {good} of {expected.instances} servers '
                   'have statistics', 'killed')]


def _find_server_point_violations(index: int, one: Summary,
                                  expected: Expected) -> list[Reason]:
    """Broken rules in the points of one server."""
    reasons = []
    lines = [point for point in one.log.points if not point.out_of_memory]
    # A server prints until after the end of the test. Each line comes a little
    # late, and the first and the last line may be missing.
    minimum = (expected.warmup_time + expected.rest
               + expected.test_time) / expected.interval
    if len(lines) < 0.95 * minimum - 2:
        reasons.append(Reason(
            'ended', f'server {index} has {len(lines)} of {minimum:.0f} lines '
            'of statistics', 'killed'))
    required, window = expected.points_per_server, _points_in_window(one, expected)
    if one.num_data_points < required:
        reasons.append(Reason(
            'points', f'server {index} has {one.num_data_points} of {required} '
            'data points', 'killed' if reasons
            else _likely_cause_of_invalid_points(one, window, expected)))
    dip = _invalid_points_between_valid(one)
    good = sum(point.is_counted for point in window)
    if not reasons and good < required - WINDOW_TOLERANCE:
        # The original continues into the warm-up until it has enough points.
        reasons.append(Reason(
            'points', f'server {index} has {good} valid points of '
            f'{len(window)} in the test',
            _likely_cause_of_invalid_points(one, window, expected)))
    if dip and not reasons:
        reasons.append(Reason(
            'points', f'server {index} has {len(dip)} invalid points in the '
            f'window (from line {dip[0].line})',
            _likely_cause_of_invalid_points(one, window, expected)))
    if expected.connections:
        opened = [point.values['crnt_conn'] for point in window
                  if point.is_under_load and 'crnt_conn' in point.values]
        required = expected.connections[index - 1]
        if opened and statistics.median(opened) < 0.95 * required:
            reasons.append(Reason(
                'connections', f'server {index} had '
                f'{statistics.median(opened):.0f} of {required} connections',
                'starved'))
    return reasons


def _points_in_window(one: Summary, expected: Expected) -> Sequence[Point]:
    """The points at the end of the test, counted from the first request."""
    points = [p for p in one.log.points if not p.out_of_memory]
    start = next((at for at, p in enumerate(points) if p.is_under_load), 0)
    end = start + round((expected.warmup_time + expected.rest
                         + expected.test_time) / expected.interval)
    result = points[max(end - round(counted_window_seconds(expected.test_time)
                                    / expected.interval), 0):end]
    # The time between warm-up and test shifts the window a little.
    late = next((at for at, p in enumerate(result) if p.is_under_load), 0)
    return result[late if late <= WINDOW_TOLERANCE else 0:]


def _invalid_points_between_valid(one: Summary) -> list[Point]:
    """Invalid points between valid points; a single one may be chance."""
    taken = one.counted
    dip = [point for point in one.log.points if taken and not point.is_counted
           and taken[0].line < point.line < taken[-1].line
           and not point.out_of_memory]
    return dip if len(dip) > max(one.max_points / 20, 1) else []


def _likely_cause_of_invalid_points(one: Summary, points: Sequence[Point],
                                    expected: Expected
             ) -> str:
    """The likely cause of invalid points in the window."""
    if sum(point.is_from_older_build for point in points) > len(points) / 2:
        return 'build'
    busy = [p for p in points if p.is_under_load]
    if len(busy) < 0.9 * len(points) or not busy:
        return 'starved'
    low = [p for p in busy if p.values['hit_rate'] < MIN_HIT_RATE]
    if low:
        # A third, or half of few points: one point may have few reads.
        part = max(len(busy) // 3, min(len(busy) // 2, 2), 1)
        first, variance = _hit_rate_and_variance(busy[:part], expected.interval)
        last, other = _hit_rate_and_variance(busy[-part:], expected.interval)
        # Points with few reads vary by chance: allow three standard errors.
        chance = 3 * math.sqrt(variance + other)
        if last - first > max(MIN_GROWTH, chance):
            return 'cold'
        if any(point.out_of_memory or point.values.get('slow_qps_oom', 0) > 0
               for point in one.log.points):
            return 'memory'
        return 'many_keys' if len(low) > len(busy) / 2 else 'unknown'
    return 'unknown'


def _hit_rate_and_variance(points: Sequence[Point], interval: float
              ) -> tuple[float, float]:
    """Hits per read in some points, and its variance (binomial)."""
    hits, misses = (interval * sum(p.values[name] for p in points)
                    for name in ('fast_qps', 'slow_qps'))
    rate = hits / (hits + misses)
    return rate, rate * (1 - rate) / (hits + misses)


def _find_load_balance_violations(summary: Sequence[Summary | None]) -> list[Reason]:
    """Broken rules of servers with far fewer requests than the others."""
    rates = [one.total_qps for one in summary if one and one.num_data_points]
    if len(rates) < 2:
        return []
    usual = statistics.median_high(rates)
    return [Reason('balance', f'server {index} had {one.total_qps:.0f} '
                   f'requests/s, the others {usual:.0f}', 'starved')
            for index, one in enumerate(summary, 1)
            if one and one.num_data_points
            and one.total_qps < MIN_RATE_SHARE * usual]


def _find_hit_ratio_violations(summary: Sequence[Summary | None]) -> list[Reason]:
    good = [one for one in summary if one and one.num_data_points]
    if not good:
        return []
    ratio = combine_summaries(good)['hit_ratio']
    low, high = HIT_RATIO
    if low <= ratio <= high:
        return []
    # It may be below 0.88 if slow responses exceed the misses.
    cause = 'few_keys' if ratio > high else 'many_keys'
    return [Reason('hit_ratio', f'the hit ratio is {ratio:.4f}; valid: {low} '
                   f'to {high}', cause)]


def _find_cpu_use_violations(cpu: Cpu, expected: Expected) -> list[Reason]:
    reasons = []
    total, user = (CPU_V2, USER_V2) if expected.v2 else (CPU, USER)
    for rule, share, (low, high), causes in (
            ('cpu_total', cpu.total, total, ('starved', 'busy')),
            ('cpu_user', cpu.user, user, ('kernel', 'busy'))):
        if not low <= share <= high:
            name = rule.removeprefix('cpu_')
            reasons.append(Reason(
                rule, f'the {name} CPU use is {share:.0f} %; valid: '
                f'{low:.0f} to {high:.0f} %', causes[share > high]))
    return reasons
