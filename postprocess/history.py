"""`plumb history`: a metric of each test case, night by night.

A question to the cache (postprocess/cache.py). pandas is not imported,
because that takes longer than the answer.
"""
from __future__ import annotations

import argparse
import difflib
import functools
import itertools
import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb

from . import cache
from .formats import sql_text

HELP = """How a metric went: a line a case and point, a column a night.

METRIC is a metric's name (latency, bandwidth, operations, ...). CASE is a
part of what stands above each table, `check params @system:partition+environ`,
or a case's hash; without it all cases with the metric are shown. Of several
repeats in a run the median counts. `change` is the last night against the
median of those before it that are shown.

Examples:
  ./plumb history latency
  ./plumb history latency "OsuPt2pt program=osu_latency" --last 30
  ./plumb history bandwidth @alpha:gpu --csv > bandwidth.csv
  ./plumb history operations --json --perflogs /shared/perflogs

--csv and --json give a row a night, case and point: time, run, system,
partition, environ, check, params, case, metric, point, value, unit, better,
result.

Exit codes: 0 good, 1 there are damaged places in the perflogs (each is told
on stderr), 2 usage, or nothing that matches.
"""
COLUMNS = ('time', 'run', 'system', 'partition', 'environ', 'check', 'params',
           'case', 'metric', 'point', 'value', 'unit', 'better', 'result')
#: What people call a test case, in SQL.
_NAME = "concat(\"check\", ' ', params, ' @', system, ':', partition, '+', " \
        "environ)"
#: One row per night, test case and point: of several repetitions what was
#: judged counts, or else the median of all.
_ROWS = '''WITH matching AS NOT MATERIALIZED (
    SELECT *, coalesce(repeat, 1) = 0 AS judged FROM records
    WHERE metric = {metric}
    AND ({case} = '' OR contains({name}, {case}) OR "case" = {case})
), nights AS (
    SELECT run, left(replace(run, '-', ''), 8) AS day FROM matching
    GROUP BY run ORDER BY day DESC, run DESC LIMIT {last}
), counting AS (
    SELECT *, {name} AS name FROM matching JOIN nights USING (run)
    QUALIFY judged OR NOT bool_or(judged)
    OVER (PARTITION BY name, run, point)
)
SELECT strftime(last(time ORDER BY "case", time, line),
    '%Y-%m-%dT%H:%M:%SZ'), run, any_value(system), any_value(partition),
    any_value(environ), any_value("check"), any_value(params),
    last("case" ORDER BY "case", time, line), metric, point, median(value),
    last(unit ORDER BY "case", time, line),
    last(better ORDER BY "case", time, line),
    last(CASE WHEN guard = '' THEN result ELSE 'fail' END
        ORDER BY "case", time, line)
FROM counting GROUP BY name, run, day, metric, point ORDER BY day, run'''


class Row(NamedTuple):
    """A metric of a case at a point, in one run."""
    time: str
    run: str
    system: str
    partition: str
    environ: str
    check: str
    params: str
    case: str
    metric: str
    point: str
    value: float
    unit: str
    better: str
    result: str

    @property
    def name(self) -> str:
        """What people call the case."""
        return (f'{self.check} {self.params} @{self.system}:'
                f'{self.partition}+{self.environ}')

    @property
    def key(self) -> Key:
        """The line of the table on which it stands."""
        return self.point, self.unit, self.better

    def __str__(self) -> str:
        return f'{self.value:.4g}' + '!' * (self.result in ('fail', 'xpass'))


#: Point, unit, better: a line of the table.
Key = tuple[str, str, str]


def parser() -> argparse.ArgumentParser:
    head, _, rest = HELP.partition('\n\n')
    cmd = argparse.ArgumentParser(
        prog='plumb history', description=head, epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    cmd.add_argument('metric', metavar='METRIC')
    cmd.add_argument('case', metavar='CASE', nargs='?', default='')
    cmd.add_argument('--perflogs', type=Path, default=Path('perflogs'),
                     metavar='DIR', help='folder of perflogs')
    cmd.add_argument('--last', type=int, metavar='N', help='only the newest '
                     'N nights; 0: all (default: 8, with --csv and --json '
                     'all)')
    form = cmd.add_mutually_exclusive_group()
    form.add_argument('--csv', action='store_true', help='rows as CSV')
    form.add_argument('--json', action='store_true', help='rows as JSON')
    return cmd


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    cmd = parser()
    args = cmd.parse_args(argv)
    last = args.last if args.last is not None else (
        0 if args.csv or args.json else 8)
    if last < 0:
        cmd.error(f'--last is {last}; the least is 0')
    if not args.perflogs.is_dir():
        print(f'plumb history: {args.perflogs}: no folder of perflogs; run '
              '`./plumb run` first, or name another with --perflogs',
              file=sys.stderr)
        return 2
    faults: list[str] = []

    def report(file: Path, line: int, reason: str) -> None:
        faults.append(f'{file}:{line}: {reason}')

    with cache.opened([args.perflogs], report, missing=False) as con:
        found = ask(con, args.metric, args.case, last)
        known = {name for name, in con.execute(
            'SELECT DISTINCT metric FROM records').fetchall()
            } if not found else set()
    for fault in faults:
        print(f'plumb history: {fault}', file=sys.stderr)
    if not found:
        print(f'plumb history: {_nothing(args, known)}', file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps([row._asdict() for row in found], indent=1))
    elif args.csv:
        import csv
        out = csv.writer(sys.stdout, lineterminator='\n')
        out.writerow(COLUMNS)
        out.writerows(found)
    else:
        print('\n'.join(table(found)))
    return 1 if faults else 0


def _nothing(args: argparse.Namespace, known: set[str]) -> str:
    """Why there is no row."""
    if args.metric in known:
        return (f'no case with {args.metric} matches {args.case!r}; without '
                'CASE all are shown')
    if not known:
        return (f'no records in {args.perflogs}: run `./plumb run` first, or '
                'name another folder with --perflogs')
    near = difflib.get_close_matches(args.metric, known, 1)
    hint = f'nearest: {near[0]!r}; ' if near else ''
    names = ', '.join(sorted(known)[:12])
    return (f'no records of {args.metric!r}; {hint}there are {names}'
            + ', ...' * (len(known) > 12))


def ask(con: duckdb.DuckDBPyConnection, metric: str, case: str, last: int
        ) -> list[Row]:
    """The rows of a metric, in order of test case, point and time.

    :param con: of cache.opened
    :param last: only the newest nights that have it; 0: all
    """
    # Not as parameters: the client imports pandas for those.
    found = con.execute(_ROWS.format(
        metric=sql_text(metric), case=sql_text(case), name=_NAME,
        last=last or 'NULL')).fetchall()
    return sorted(map(Row._make, found), key=lambda row: (
        row.name.split(), _order(row.key)))


@functools.cache
def _size(point: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r'\d+', point, re.ASCII)[:1]))


def _order(key: Key) -> tuple[tuple[int, ...], Key]:
    return _size(key[0]), key


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Lines of text: one table per test case and unit, one column per night.
    """
    for name, group in itertools.groupby(rows, lambda row: row.name):
        units: dict[tuple[str, ...], list[Row]] = {}
        for row in group:
            units.setdefault(row.key[1:], []).append(row)
        for (unit, better), mine in units.items():
            way = '' if better == 'none' else f', {better} is better'
            yield f'{name}\n{mine[0].metric} ({unit}){way}'
            yield from _cells(mine)
            yield ''
    yield '! failed'


def _cells(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of one table."""
    nights: dict[str, str] = {}
    # Sorted again, because points of several sizes follow on each other.
    for row in sorted(rows, key=lambda row: (
            row.run.replace('-', '')[:8], row.run, row.time)):
        nights[row.run] = row.time[5:16].replace('T', ' ')
    lines = [['', *nights.values(), 'change']]
    for (point, *_), line in itertools.groupby(rows, lambda row: row.key):
        there = {row.run: row for row in line}
        lines.append([point or 'all', *(str(there.get(run, '-'))
                                        for run in nights),
                      _change([row.value for row in there.values()])])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        yield '  '.join(f'{cell:>{width}}' for cell, width
                        in zip(cells, widths, strict=True))


def _change(values: list[float]) -> str:
    """The last value against the median of those before it."""
    before = statistics.median(values[:-1]) if values[1:] else 0
    return f'{values[-1] / before - 1:+.1%}' if before else ''
