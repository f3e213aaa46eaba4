"""Points over time from the files of a run: logs and CPU use.

`plumb report` plots `format_points_over_time`, see docs/reference/perflogs.md.
"""
from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from checks.core.parsers import ParseError
from checks.taobench.parser import Log, Point, Summary
from checks.taobench.validity import Cpu

COLUMNS = ('second', 'series', 'metric', 'value', 'unit', 'phase', 'counts',
           'why')

#: Begin and end of each phase, in s since 1970.
Phases = Mapping[str, tuple[float, float]]


class Busy:
    """CPU use of a node over time, recorded by observe.c.

    :raises ParseError: a line is damaged
    """

    def __init__(self, text: str) -> None:
        self.notes: list[tuple[float, ...]] = []
        for number, line in enumerate(text.splitlines()[1:], 2):
            try:
                at, *ticks = map(float, line.split(','))
                if len(ticks) != 4:
                    raise ValueError
            except ValueError:
                raise ParseError(number, line, 'the line is not a sample of '
                                 'the CPU use') from None
            self.notes.append((at, *ticks))

    def cpu_use_between(self, first: float, last: float) -> Cpu | None:
        """CPU use in an interval; None: it has fewer than two samples."""
        inside = [note for note in self.notes if first <= note[0] <= last]
        return _cpu_use(inside[0], inside[-1]) if len(inside) > 1 else None

    def cpu_use_over_time(self) -> Iterator[tuple[float, Cpu]]:
        """Time and CPU use since the previous sample, for each sample but the
        first."""
        for before, now in zip(self.notes, self.notes[1:], strict=False):
            share = _cpu_use(before, now)
            if share:
                yield now[0], share


def _cpu_use(before: Sequence[float], now: Sequence[float]) -> Cpu | None:
    user, system, idle, steal = (b - a for a, b in zip(
        before[1:], now[1:], strict=True))
    total = user + system + idle + steal
    # Steal counts as busy, but not as user time.
    return Cpu(100 * (total - idle) / total, 100 * user / total) \
        if total > 0 else None


def counts_from_client_rows(texts: Sequence[str], interval: float
                            ) -> list[tuple[float, float]]:
    """Hits and misses in each interval of a server without statistics, from the rows
    of its clients. A read that missed was followed by a write.

    :param texts: CSV of --series of one phase, one per client
    :raises ParseError: a text is damaged
    """
    results: list[tuple[float, float]] = []
    for text in texts:
        last = 0.0
        for number, row in enumerate(csv.DictReader(io.StringIO(text))):
            try:
                time, operations, misses = (float(row[name]) for name in (
                    'time_s', 'operations', 'misses'))
            except (KeyError, TypeError, ValueError):
                raise ParseError(number + 2, str(row), 'this is not a row of '
                                 '--series') from None
            if time - last < interval / 2:
                # Rows after the end have answers that were still in flight.
                break
            last = time
            if number == len(results):
                results.append((0.0, 0.0))
            hits, missed = results[number]
            results[number] = (hits + max(operations - 2 * misses, 0),
                               missed + misses)
    return results


def log_from_counts(items: Sequence[tuple[float, float]], interval: float) -> Log:
    """A server's points from its hits and misses in each interval."""
    return Log(tuple(Point(number, {
        'fast_qps': fast / interval, 'slow_qps': slow / interval,
        'hit_rate': fast / (fast + slow) if fast + slow else 0.0,
        'slow_qps_oom': 0.0, 'nanosleeps_per_sec': 0.0})
        for number, (fast, slow) in enumerate(items, 1)))


def format_points_over_time(
    summary: Sequence[Summary | None],
    starts: Sequence[float],
    interval: float,
    busy: Mapping[str, Busy],
    phases: Phases,
) -> str:
    """All points of the servers of a run and of their nodes, as CSV.

    :param starts: time when each server began to count. Unit: s since 1970
    :param interval: time between two points. Unit: s
    :param busy: name of a node -> its CPU use
    """
    first = min(starts)
    out = io.StringIO()
    table = csv.writer(out, lineterminator='\n')
    table.writerow(COLUMNS)

    def phase_at_time(at: float) -> str:
        for name, (begin, end) in phases.items():
            # A point belongs to the interval that ends at its time.
            if begin < at <= end + interval / 2:
                return name
        return 'after' if at > phases['test'][1] else (
            'rest' if at > phases['warmup'][1] else 'warmup')

    def write_rows(at: float, name: str, values: Mapping[str, tuple[float, str]],
                   counts: str, why: str) -> None:
        for metric, (value, unit) in values.items():
            table.writerow([f'{at - first:.3f}', name, metric, repr(value),
                            unit, phase_at_time(at), counts, why])

    for index, (one, start) in enumerate(zip(summary, starts, strict=True)):
        if not one:
            continue
        # A damaged line belongs to an interval, too.
        for number, point in enumerate(one.log.intervals, 1):
            if not point.has_rates:
                continue
            why = one.why_left_out(point)
            values = {name: (point.values[name], '1/s')
                      for name in ('fast_qps', 'slow_qps')}
            values['total_qps'] = (sum(v for v, _ in values.values()), '1/s')
            values['hit_rate'] = (point.values['hit_rate'], '1')
            write_rows(start + number * interval, f'server {index}', values,
                       '01'[not why], why)
    for node, notes in busy.items():
        for at, share in notes.cpu_use_over_time():
            if at >= first:
                write_rows(at, f'cpu {node}', {'cpu_total': (share.total, '%'),
                                               'cpu_user': (share.user, '%')},
                           '', '')
    return out.getvalue()
