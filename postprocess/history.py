"""`plumb history`: how a metric went, night by night, from the store.

Only the columns and row groups that the question needs are read, and pandas
is not imported, for that alone takes longer than the answer should.
"""
from __future__ import annotations

import argparse
import csv
import difflib
import json
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import store

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
_HEAD = COLUMNS[:8]
#: Columns of HEAD that make a case.
_CASE = ('check', 'params', 'system', 'partition', 'environ')


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
        return (f'{self.check} {self.params} '
                f'@{self.system}:{self.partition}+{self.environ}')


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

    rows, known = ask(args.perflogs, args.metric, args.case, last, report)
    for fault in faults:
        print(f'plumb history: {fault}', file=sys.stderr)
    if not rows:
        print(f'plumb history: {_nothing(args, known)}', file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps([row._asdict() for row in rows], indent=1))
    elif args.csv:
        out = csv.writer(sys.stdout, lineterminator='\n')
        out.writerows([COLUMNS, *rows])
    else:
        print('\n'.join(table(rows)))
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


def ask(folder: Path, metric: str, case: str, last: int, report: Any
        ) -> tuple[list[Row], set[str]]:
    """The rows of a metric, in order of case, point and time, and the names
    of all metrics.

    :param last: only so many nights; 0: all
    """
    return store.using(folder, report,
                       lambda place: _asked(place, metric, case, last))


def _asked(place: store.Store, metric: str, case: str, last: int
           ) -> tuple[list[Row], set[str]]:
    known: set[str] = set()
    runs: set[str] = set()
    parts = []
    for tables in place.tables():
        texts = tables.texts(*_HEAD, 'file', 'metric', 'point', 'unit',
                             'better', 'result', 'guard', 'repeat')
        known.update(texts['metric'])
        if metric not in texts['metric']:
            continue
        heads = tables.get('heads', (*_HEAD, 'file'))
        good = _cases(heads, texts, case, set(place.sources()))
        if not good.any():
            continue
        runs.update(texts['run'][n] for n in np.unique(heads['run'][good]))
        parts.append((tables, texts, heads, good))
    newest = set(sorted(runs, key=_age)[-last:])
    rows: dict[tuple, list[tuple[Row, int]]] = {}
    for tables, texts, heads, good in parts:
        if last:
            late = np.array([text in newest for text in texts['run']], bool)
            good = good & late[heads['run']]
        for row, repeat in _rows(tables, texts, heads, good, metric):
            rows.setdefault(
                (*row.name.split(), _size(row.point), row.point,
                 _age(row.run)), []).append((row, repeat))
    return [_judged(rows[key]) for key in sorted(rows, key=_sortable)], known


def _cases(heads: dict[str, np.ndarray], texts: dict[str, list[str]],
           case: str, sources: set[str]) -> np.ndarray:
    """Which heads are of a case, and of a file that is there."""
    live = np.array([text in sources for text in texts['file']], bool)
    good = live[heads['file']]
    if not case:
        return good
    names, which = np.unique(np.stack([heads[name] for name in _CASE]),
                             axis=1, return_inverse=True)
    match = np.array([case in '{} {} @{}:{}+{}'.format(*(
        texts[name][code] for name, code in zip(_CASE, codes, strict=True)))
        for codes in names.T.tolist()], bool)
    hashes = np.array([text == case for text in texts['case']], bool)
    return good & (match[which.ravel()] | hashes[heads['case']])


def _rows(tables: store.Tables, texts: dict[str, list[str]],
          heads: dict[str, np.ndarray], good: np.ndarray, metric: str
          ) -> Iterator[tuple[Row, int]]:
    """The records of a metric in some heads of a part, with their repeat."""
    there = np.flatnonzero(good)
    if not len(there):
        return
    columns = ('metric', 'point', 'unit', 'better', 'result', 'guard')
    kinds = tables.get('kinds', ('kind', 'repeat', *columns), 'metric = ?',
                       [texts['metric'].index(metric)])
    words = {int(kind): ([texts[name][code] for name, code in zip(
        columns, codes, strict=True)], texts['repeat'][repeat])
        for kind, repeat, *codes in zip(*(
            kinds[name].tolist() for name in ('kind', 'repeat', *columns)),
            strict=True)}
    figures = tables.get(
        'figures', ('head', 'kind', 'value'),
        'kind BETWEEN ? AND ? AND head BETWEEN ? AND ?',
        [min(words), max(words), int(there[0]), int(there[-1])])
    keep = good[figures['head']]
    cache: dict[int, dict[str, Any]] = {}
    for head, kind, value in zip(*(figures[name][keep].tolist() for name in (
            'head', 'kind', 'value')), strict=True):
        if head not in cache:
            cache[head] = {name: texts[name][heads[name][head]]
                           for name in _HEAD}
        (name, point, unit, better, result, guard), repeat = words[kind]
        yield Row(**cache[head], metric=name, point=point, value=value,
                  unit=unit, better=better,
                  result='fail' if guard else result), int(repeat or 1)


def _judged(rows: list[tuple[Row, int]]) -> Row:
    """One row of a run: what was judged, else the median of its repeats."""
    least = min(repeat for _, repeat in rows)
    mine = [row for row, repeat in rows if not repeat or least]
    return mine[-1]._replace(value=statistics.median(r.value for r in mine))


def _age(run: str) -> tuple[str, str]:
    """Runs in order of time: 20261101T030000Z-..., or a date."""
    return run.replace('-', '')[:8], run


def _size(point: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r'\d+', point, re.ASCII)[:1]))


def _sortable(key: tuple) -> tuple:
    return tuple(map(repr, key[:-3])) + key[-3:]


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of text: a table a case and unit, a column a night."""
    cases: dict[tuple[str, str, str], dict[str, dict[str, Row]]] = {}
    for row in rows:
        cases.setdefault((row.name, row.unit, row.better), {}).setdefault(
            row.point, {})[row.run] = row
    for (name, unit, better), points in cases.items():
        runs = {run: row for line in points.values()
                for run, row in line.items()}
        order = sorted(runs, key=_age)
        way = '' if better == 'none' else f', {better} is better'
        yield f'{name}\n{rows[0].metric} ({unit}){way}'
        lines = [['', *(runs[run].time[5:16].replace('T', ' ')
                        for run in order), 'change']]
        for point, line in points.items():
            values = [line[run].value for run in order if run in line]
            lines.append([point or 'all', *(
                f'{line[run].value:.4g}' + '!' * (
                    line[run].result in ('fail', 'xpass'))
                if run in line else '-' for run in order), _change(values)])
        widths = [max(map(len, column)) for column in zip(
            *lines, strict=True)]
        for cells in lines:
            yield '  '.join(cell.rjust(width) for cell, width in zip(
                cells, widths, strict=True))
        yield ''
    yield '! failed'


def _change(values: list[float]) -> str:
    """The last value against the median of those before it."""
    before = statistics.median(values[:-1]) if values[1:] else 0
    return f'{values[-1] / before - 1:+.1%}' if before else ''


