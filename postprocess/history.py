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

from . import records, store

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
_KIND = ('repeat', 'metric', 'point', 'unit', 'better', 'result', 'guard')
_CASE = store.CASE
#: What people call a case, of _CASE.
_NAME = '{} {} @{}:{}+{}'


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
        return _NAME.format(self.check, self.params, self.system,
                            self.partition, self.environ)


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
    if not place.manifest['parts']:
        return [], set()
    words = place.texts('run', 'file', *_CASE, *_KIND)
    known = {name for texts in words.values() for name in texts['metric']}
    parts = [_Part(place, number, texts, metric) for number, texts
             in words.items() if metric in texts['metric']]
    for part in parts:
        part.choose(case)
    if last:
        newest = set(sorted({run for part in parts for run in part.runs()},
                            key=records.age)[-last:])
        for part in parts:
            part.leave(newest)
    rows: dict[tuple[str, str, str], list[tuple[Row, int]]] = {}
    for part in parts:
        for row, name, repeat in part.rows():
            rows.setdefault((name, row.point, row.run), []).append(
                (row, repeat))
    cases = {name: name.split() for name, _, _ in rows}
    sizes = {point: _size(point) for _, point, _ in rows}
    ages = {run: records.age(run) for _, _, run in rows}
    return [_judged(rows[key]) for key in sorted(rows, key=lambda key: (
        cases[key[0]], sizes[key[1]], key[1], ages[key[2]]))], known


class _Part:
    """A part of the store, which has the metric."""

    def __init__(self, place: store.Store, number: int,
                 texts: dict[str, list[str]], metric: str) -> None:
        self._place, self._number, self._texts = place, number, texts
        self._metric = metric
        self._heads = self._get('heads', 'what', 'run', 'file', 'time')
        #: Which heads are asked for.
        self._good = np.zeros(0, bool)

    def _get(self, table: str, *columns: str, where: str = 'true',
             values: Sequence[Any] = ()) -> dict[str, np.ndarray]:
        return self._place.get(table, columns, where, values,
                               [store.part_name(self._number)])

    def choose(self, case: str) -> None:
        """Asks for a case, and for files that are there."""
        sources = self._place.sources()
        live = np.array([text in sources for text in self._texts['file']],
                        bool)
        cases = self._get('cases', *_CASE)
        #: Of each case what it is called, and its columns.
        self._cases = [
            [self._texts[name][code] for name, code in zip(
                _CASE, codes, strict=True)] for codes in zip(
                    *(cases[name].tolist() for name in _CASE), strict=True)]
        self._names = [_NAME.format(*words) for words in self._cases]
        match = np.array([case in name or case == words[-1] for name, words
                          in zip(self._names, self._cases, strict=True)],
                         bool)
        self._good = live[self._heads['file']] & match[self._heads['what']]

    def runs(self) -> list[str]:
        """The runs that are asked for."""
        return [self._texts['run'][code] for code in np.unique(
            self._heads['run'][self._good]).tolist()]

    def leave(self, runs: set[str]) -> None:
        """Asks for some runs alone."""
        late = np.array([text in runs for text in self._texts['run']], bool)
        self._good &= late[self._heads['run']]

    def rows(self) -> Iterator[tuple[Row, str, int]]:
        """What is asked for: record, name of its case, number of its
        repeat."""
        there = np.flatnonzero(self._good)
        if not len(there):
            return
        texts = self._texts
        kinds = self._get('kinds', 'kind', *_KIND, where='metric = ?',
                          values=[texts['metric'].index(self._metric)])
        words = {kind: [texts[name][code] for name, code in zip(
            _KIND, codes, strict=True)] for kind, *codes in zip(*(
                column.tolist() for column in kinds.values()), strict=True)}
        figures = self._get(
            'figures', 'head', 'kind', 'value',
            where='kind BETWEEN ? AND ? AND head BETWEEN ? AND ?',
            values=[min(words), max(words), int(there[0]), int(there[-1])])
        times = self._times(self._heads['time'][there])
        heads = {}
        for head, what, run, time in zip(there.tolist(), *(
                self._heads[name][there].tolist() for name in (
                    'what', 'run', 'time')), strict=True):
            check, params, system, partition, environ, case = \
                self._cases[what]
            heads[head] = self._names[what], (
                times[time], texts['run'][run], system, partition, environ,
                check, params, case)
        keep = self._good[figures['head']]
        for head, kind, value in zip(*(column[keep].tolist() for column
                                       in figures.values()), strict=True):
            repeat, metric, point, unit, better, result, guard = words[kind]
            name, columns = heads[head]
            yield Row(*columns, metric, point, value, unit, better,
                      'fail' if guard else result), name, int(repeat or 1)

    def _times(self, codes: np.ndarray) -> dict[int, str]:
        """Texts of times, of which there are too many to read all."""
        found = self._get('texts', 'code', 'text', where="name = 'time' AND "
                          'code BETWEEN ? AND ?',
                          values=[int(codes.min()), int(codes.max())])
        return dict(zip(found['code'].tolist(), found['text'].tolist(),
                        strict=True))


def _judged(rows: list[tuple[Row, int]]) -> Row:
    """One row of a run: what was judged, else the median of its repeats."""
    least = min(repeat for _, repeat in rows)
    mine = [row for row, repeat in rows if not repeat or least]
    return mine[-1] if len(mine) == 1 else mine[-1]._replace(
        value=statistics.median(r.value for r in mine))


def _size(point: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r'\d+', point, re.ASCII)[:1]))


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of text: a table a case and unit, a column a night."""
    cases: dict[tuple[str, str, str], dict[str, dict[str, Row]]] = {}
    for row in rows:
        cases.setdefault((row.name, row.unit, row.better), {}).setdefault(
            row.point, {})[row.run] = row
    for (name, unit, better), points in cases.items():
        runs = {run: row for line in points.values()
                for run, row in line.items()}
        order = sorted(runs, key=records.age)
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


