"""CSV of redis-benchmark and valkey-benchmark (--csv), 6.2 and newer.

The format is what `showLatencyReport` and `main` of redis-benchmark.c print:
a header of quoted names, then a row for each test, times in ms. The two `#`
lines that the suite's bundled.sh puts before it say what the store itself
counted; a saved output without them can be read too.
"""
from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator

from . import ParseError, Record

#: Column -> metric and unit. Times are printed in ms and given in us.
COLUMNS = {
    'rps': ('operations', '1/s'),
    'avg_latency_ms': ('latency', 'us'),
    'min_latency_ms': ('latency_min', 'us'),
    'p50_latency_ms': ('latency_p50', 'us'),
    'p95_latency_ms': ('latency_p95', 'us'),
    'p99_latency_ms': ('latency_p99', 'us'),
    'max_latency_ms': ('latency_max', 'us'),
}
_STORE = re.compile(r'# store (\w+) (\d[\w.-]*)')
_COUNTS = re.compile(r'# operation (\w+) size (\d+) calls (\d+) '
                     r'misses (\d+) evicted (\d+)')


def parse(text: str) -> tuple[Record, ...]:
    """The figures of one output, and what the store counted.

    Counts are the metrics `calls`, `misses` and `evicted`, unit 1.

    :raises ParseError: where any of it cannot be trusted.
    """
    program, version, size = 'redis-benchmark', '', None
    records: list[Record] = []
    header: list[str] | None = None
    last = 0
    for last, line in enumerate(text.splitlines(), 1):
        def wrong(reason: str, n: int = last, line: str = line) -> ParseError:
            return ParseError(n, line, reason)

        store, counts = _STORE.fullmatch(line), _COUNTS.fullmatch(line)
        if store:
            program, version = store.groups()
        elif counts:
            size = int(counts[2])
            records += [Record(program, version, size, name, float(value),
                               '1', last) for name, value in zip(
                ('calls', 'misses', 'evicted'), counts.groups()[2:],
                strict=True)]
        elif not line.strip() or line.startswith('WARNING: '):
            continue
        elif header is None:
            header = next(csv.reader([line]))
            if header[:1] != ['test'] or set(header[1:]) != set(COLUMNS):
                raise wrong('expected the header of redis-benchmark --csv, '
                            f'got {line[:60]!r}')
        else:
            records += _row(header, line, program, version, size, last, wrong)
    if not any(r.metric == 'operations' for r in records):
        raise ParseError(last, '', 'no row: the benchmark did not finish')
    if not text.endswith('\n'):
        raise ParseError(last, text.splitlines()[-1],
                         'the last line is cut short')
    return tuple(records)


def _row(header: list[str], line: str, program: str, version: str,
         size: int | None, number: int,
         wrong: Callable[[str], ParseError]) -> Iterator[Record]:
    """The records of one row; the test's own name is not in them."""
    cells = next(csv.reader([line]))
    if len(cells) != len(header):
        raise wrong(f'{len(cells)} columns, the header has {len(header)}')
    for name, cell in zip(header[1:], cells[1:], strict=True):
        metric, unit = COLUMNS[name]
        try:
            value = float(cell)
        except ValueError:
            raise wrong(f'{name}: {cell!r} is no number') from None
        if not math.isfinite(value) or value < 0 or (
                value == 0 and metric == 'operations'):
            raise wrong(f'{name}: {cell} cannot be')
        # Three decimals in, none lost: 0.535 ms are 535 us.
        yield Record(program, version, size, metric,
                     round(value * 1000, 3) if unit == 'us' else value,
                     unit, number)
