"""Validity of a run of TaoBench, by the rules of the original's guide."""
from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from checks.taobench.parser import (
    COLD,
    NO_LOAD,
    Point,
    Summary,
    combine_summaries,
    counted_window_seconds,
    expected_point_count,
)
from config import families

#: A server with a smaller share of the usual request rate is starved.
MIN_RATE_SHARE = 0.5
#: Tolerance of the window. Unit: lines.
WINDOW_TOLERANCE = 2

STARVED = ('a client has too few CPUs or a slow network, or did not run all the time')
KILLED = 'a server was killed or crashed'
BUSY = 'other processes, or the clients, use the machine'
KERNEL = ('the kernel takes too much time: check timer interrupts, iommu=pt, and the '
          'affinity of the NIC')
FEW_KEYS = 'there are too few keys: the cache holds nearly all of them'
MANY_KEYS = ('the warm-up was too short, there are too many keys, or the cache is '
             'smaller than server_memsize of the clients')


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
    #: Name of the job, which has valid ranges in family.yaml.
    job: str = ''
    #: Connections to each server; empty: not checked.
    connections: Sequence[int] = ()

    @property
    def points_per_server(self) -> int:
        """Number of points that each server needs."""
        return expected_point_count(counted_window_seconds(self.test_time),
                                    self.interval)


def find_invalidity_reasons(summary: Sequence[Summary | None], expected: Expected,
                            cpu: Cpu | None = None, limited: Sequence[str] = ()
                            ) -> Iterator[str]:
    """Broken rules of a run, each with its likely cause; none: it is valid.

    :param summary: summary of each server that was started, over the window of
        `expected`; None: it has no values
    :param cpu: None: not known and not checked
    :param limited: names of clients that were the limit themselves
    """
    if expected.test_time < expected.interval:
        yield 'the clients started so late that the servers ended before the test did'
        return
    good = [one for one in summary if one]
    if len(good) != expected.instances:
        yield (f'only {len(good)} of {expected.instances} servers have statistics: '
               + KILLED)
    for index, one in enumerate(summary, 1):
        if one:
            yield from _broken_rules_of_server(index, one, expected)
    if limited:
        yield f'{", ".join(limited)} could not send requests faster: {STARVED}'
    counted = [one for one in good if one.num_data_points]
    if not counted:
        return
    usual = statistics.median_high(one.total_qps for one in counted)
    for index, one in enumerate(summary, 1):
        if one and one.num_data_points and one.total_qps < MIN_RATE_SHARE * usual:
            yield (f'server {index} had {one.total_qps:.0f} requests/s, the others '
                   f'{usual:.0f}: {STARVED}')
    bands = families.families()['taobench'].valid_value_bands(f'job={expected.job}')
    ratio, (low, high) = combine_summaries(counted)['hit_ratio'], bands['hit_rate']
    if not low <= ratio <= high:
        # It may be below 0.88 if slow responses exceed the misses.
        yield (f'the hit ratio is {ratio:.4f}; valid: {low} to {high}: '
               + (FEW_KEYS if ratio > high else MANY_KEYS))
    if cpu:
        for name, share, too_low in (
                ('total', cpu.total, STARVED), ('user', cpu.user, KERNEL)):
            low, high = bands[f'cpu_{name}']
            if not low <= share <= high:
                yield (f'the {name} CPU use is {share:.0f} %; valid: {low:.0f} to '
                       f'{high:.0f} %: {BUSY if share > high else too_low}')


def _broken_rules_of_server(index: int, one: Summary, expected: Expected
                            ) -> Iterator[str]:
    # A server prints until after the end of the test. Each line comes a little
    # late, and the first and the last line may be missing.
    minimum = (expected.warmup_time + expected.rest
               + expected.test_time) / expected.interval
    if len(one.log.intervals) < 0.95 * minimum - 2:
        yield (f'server {index} has {len(one.log.intervals)} of {minimum:.0f} lines '
               f'of statistics: {KILLED}')
        return
    required, window = expected.points_per_server, _points_in_window(one, expected)
    invalid = Counter(filter(None, (point.why_not_counted for point in window)))
    valid = len(window) - invalid.total()
    # The original continues into the warm-up until it has enough points.
    if one.num_data_points < required or valid < required - WINDOW_TOLERANCE:
        reason = invalid.most_common(1)[0][0] if invalid else 'the test was too short'
        cause = {COLD: MANY_KEYS, NO_LOAD: STARVED}.get(reason, '')
        yield (f'server {index} has {valid} of {required} data points in the test: '
               + ': '.join(filter(None, (reason, cause))))
    if expected.connections:
        opened = [point.values['crnt_conn'] for point in window
                  if point.is_under_load and 'crnt_conn' in point.values]
        due = expected.connections[index - 1]
        if opened and statistics.median(opened) < 0.95 * due:
            yield (f'server {index} had {statistics.median(opened):.0f} of {due} '
                   f'connections: {STARVED}')


def _points_in_window(one: Summary, expected: Expected) -> Sequence[Point]:
    """The points at the end of the test, counted from the first request."""
    points = one.log.intervals
    start = next((at for at, p in enumerate(points) if p.is_under_load), 0)
    end = start + round((expected.warmup_time + expected.rest
                         + expected.test_time) / expected.interval)
    result = points[max(end - round(counted_window_seconds(expected.test_time)
                                    / expected.interval), 0):end]
    # The time between warm-up and test shifts the window a little.
    late = next((at for at, p in enumerate(result) if p.is_under_load), 0)
    return result[late if late <= WINDOW_TOLERANCE else 0:]
