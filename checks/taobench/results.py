"""Points over time from the files of a run: logs and CPU use.

`plumb report` plots `format_points_over_time`, see docs/reference/perflogs.md.
"""
from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence

from checks.core.parsers import ParseError
from checks.loadgen import memtier
from checks.taobench.parser import Log, Point, Summary
from checks.taobench.validity import Cpu
from config.records import tables

COLUMNS = ('second', 'series', 'metric', 'value', 'unit', 'phase', 'counts',
           'why')

#: Begin and end of each phase, in s since 1970.
Phases = Mapping[str, tuple[float, float]]


class Busy:
    """CPU use of a node over time, recorded by observe.c.

    :raises ParseError: a line is damaged
    """

    def __init__(self, text: str, node: str = '') -> None:
        self.node = node
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


def log_of_clients(phases: Mapping[float, Sequence[str]]) -> Log:
    """The log of a server without statistics, from the reads and writes of its clients
    in each second. A read that missed was followed by a write.

    :param phases: start of each phase since the first one in s -> JSON of each client
    :raises ParseError: a client did not end its run
    """
    counts: dict[int, list[int]] = {}
    for start, texts in phases.items():
        for [table] in map(memtier.read_tables, texts):
            sets, gets = (row.by_second for row in table.rows[:2])
            for second, (read, missed) in enumerate(zip(gets, sets, strict=True),
                                                    round(start)):
                total = counts.setdefault(second, [0, 0])
                total[0] += max(read - missed, 0)
                total[1] += missed
    return Log(tuple(
        Point(second + 1, {
            'fast_qps': fast, 'slow_qps': slow,
            'hit_rate': fast / (fast + slow) if fast + slow else 0.0,
            'slow_qps_oom': 0.0, 'nanosleeps_per_sec': 0.0})
        for second in range(max(counts, default=-1) + 1)
        for fast, slow in [counts.get(second, (0, 0))]))


def format_points_over_time(
    summary: Sequence[Summary | None],
    starts: Sequence[float],
    interval: float,
    busy: Busy,
    phases: Phases,
) -> str:
    """All points of the servers of a run and of their node, as CSV.

    :param starts: time when each server began to count. Unit: s since 1970
    :param interval: time between two points. Unit: s
    """
    first = min(starts)
    table: list[tuple[object, ...]] = []

    def add_rows(at: float, name: str, values: Mapping[str, tuple[float, str]],
                 counts: str = '', why: str = '') -> None:
        # A point belongs to the interval that ends at its time.
        phase = next((phase for phase, (begin, end) in phases.items()
                      if begin < at <= end + interval / 2), '')
        if not phase:
            phase = ('after' if at > phases['test'][1] else
                     'rest' if at > phases['warmup'][1] else 'warmup')
        for metric, (value, unit) in values.items():
            table.append((f'{at - first:.3f}', name, metric, value, unit, phase, counts,
                          why))

    for index, (one, start) in enumerate(zip(summary, starts, strict=True)):
        # A damaged line belongs to an interval, too.
        for number, point in enumerate(one.log.intervals if one else (), 1):
            if one and point.has_rates:
                why, values = one.why_left_out(point), point.values
                add_rows(start + number * interval, f'server {index}', {
                    'fast_qps': (values['fast_qps'], '1/s'),
                    'slow_qps': (values['slow_qps'], '1/s'),
                    'total_qps': (values['fast_qps'] + values['slow_qps'], '1/s'),
                    'hit_rate': (values['hit_rate'], '1')}, '01'[not why], why)
    for at, share in busy.cpu_use_over_time():
        if at >= first:
            add_rows(at, f'cpu {busy.node}', {'cpu_total': (share.total, '%'),
                                              'cpu_user': (share.user, '%')})
    out = io.StringIO()
    tables.write_csv(out, COLUMNS, table)
    return out.getvalue()
