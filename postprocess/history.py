"""`plumb history`: how a metric went, night by night, from the store.

Asked are the lookups of the store (postprocess/lookup.py), which need the
standard library alone: numpy, polars and pandas are imported only where new
perflogs are to be read first, for that takes longer than the answer should.
"""
from __future__ import annotations

import argparse
import functools
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import manifest, plans
from .lookup import FILE, Lookup

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
#: Places in a kind of figure (records.KIND).
_REPEAT, _POINT = 0, 2
#: What people call a case, of store.CASE.
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


#: Point, unit, better: a line of the table.
Key = tuple[str, str, str]


class Layout(NamedTuple):
    """What the figures of a metric of a case in a run are."""
    keys: tuple[Key, ...]
    #: Of each key, its result, and which of the figures count; of several
    #: the median does.
    results: list[str]
    which: list[list[int]]
    #: Of each key the one figure that it has.
    plain: bool


class Night(NamedTuple):
    """A metric of a case in a run."""
    name: str
    run: str
    layout: Layout
    #: All that was measured, and of each the time and the columns of its case.
    values: list[float]
    origin: list[tuple[str, list[str]]]

    def judged(self) -> list[float]:
        """Of each key what was judged, else the median of its repeats."""
        values = self.values
        return values if self.layout.plain else [
            _median([values[at] for at in which])
            for which in self.layout.which]

    def column(self, keys: tuple[Key, ...]
               ) -> tuple[list[str], list[float | None]]:
        """Texts and values of keys; '-' and None where there is none."""
        values: list[float | None] = [*self.judged()]
        texts = ('%.4g\n' * len(values) % tuple(values)).split('\n')[:-1]
        for at, result in enumerate(self.layout.results):
            if result in ('fail', 'xpass'):
                texts[at] += '!'
        if keys == self.layout.keys:
            return texts, values
        there = {key: at for at, key in enumerate(self.layout.keys)}
        places = [there.get(key) for key in keys]
        return (['-' if at is None else texts[at] for at in places],
                [None if at is None else values[at] for at in places])


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

    found, known = nights(args.perflogs, args.metric, args.case, last,
                          report)
    for fault in faults:
        print(f'plumb history: {fault}', file=sys.stderr)
    if not found:
        print(f'plumb history: {_nothing(args, known)}', file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps([row._asdict() for row in rows(found, args.metric)],
                         indent=1))
    elif args.csv:
        import csv
        out = csv.writer(sys.stdout, lineterminator='\n')
        out.writerow(COLUMNS)
        out.writerows(rows(found, args.metric))
    else:
        print('\n'.join(table(found, args.metric)))
    return 1 if faults else 0


def _nothing(args: argparse.Namespace, known: set[str]) -> str:
    """Why there is no row."""
    if args.metric in known:
        return (f'no case with {args.metric} matches {args.case!r}; without '
                'CASE all are shown')
    if not known:
        return (f'no records in {args.perflogs}: run `./plumb run` first, or '
                'name another folder with --perflogs')
    import difflib
    near = difflib.get_close_matches(args.metric, known, 1)
    hint = f'nearest: {near[0]!r}; ' if near else ''
    names = ', '.join(sorted(known)[:12])
    return (f'no records of {args.metric!r}; {hint}there are {names}'
            + ', ...' * (len(known) > 12))


def ask(folder: Path, metric: str, case: str, last: int, report: Any
        ) -> list[Row]:
    """The rows of a metric, in order of case, point and time.

    :param last: only the newest nights that have it; 0: all
    """
    found, _ = nights(folder, metric, case, last, report)
    return list(rows(found, metric))


def nights(folder: Path, metric: str, case: str, last: int, report: Any
           ) -> tuple[list[Night], set[str]]:
    """A metric in each night, in order of case and time, and the names of all
    metrics."""
    def question(known: manifest.Known) -> tuple[list[Night], set[str]]:
        return _asked(known, metric, case, last)

    found = manifest.asked(folder, report, question)
    if found is None:                   # there is something new to be read
        from . import store
        found = store.using(folder, report, question)
    return found


def _asked(known: manifest.Known, metric: str, case: str, last: int
           ) -> tuple[list[Night], set[str]]:
    parts = [Lookup(known.place / name / FILE)
             for name in known.manifest['parts']]
    metrics = {name for part in parts for name in part.metrics}
    live = known.sources()
    runs: dict[str, list[tuple[Lookup, list[str], int]]] = {}
    for part in parts:
        if metric not in part.metrics:
            continue
        names = [_NAME.format(*words) for words in part.cases]
        part.choose([case in name or case == words[-1] for name, words
                     in zip(names, part.cases, strict=True)], live)
        for at, run in enumerate(part.runs):
            runs.setdefault(run, []).append((part, names, at))
    found: dict[str, list[Night]] = {}
    layouts: dict[tuple[tuple[str, ...], ...], Layout] = {}
    left = last or len(runs)
    for run in sorted(runs, key=plans.age, reverse=True):
        if not left:
            break
        seen = _figures(runs[run], metric)
        left -= bool(seen)
        for name, (kinds, values, origin) in seen.items():
            if (key := tuple(kinds)) not in layouts:
                layouts[key] = _layout(key)
            found.setdefault(name, []).append(
                Night(name, run, layouts[key], values, origin))
    return [night for name in sorted(found, key=str.split)
            for night in reversed(found[name])], metrics


#: Of a case in a run: kind, value, and time and case of each figure.
_Figures = tuple[list[tuple[str, ...]], list[float],
                 list[tuple[str, list[str]]]]


def _figures(parts: Iterable[tuple[Lookup, list[str], int]], metric: str
             ) -> dict[str, _Figures]:
    """All figures of a metric in a run, by the name of their case.

    :param parts: those that have the run, the names of their cases, and the
        run's number there
    """
    found: dict[str, _Figures] = {}
    for part, names, run in parts:
        for head, which, values in part.figures(metric, run):
            case = part.case(head)
            mine = found.setdefault(names[case], ([], [], []))
            mine[0].extend([part.kinds[kind] for kind in which])
            mine[1].extend(values)
            mine[2].extend([(part.time(head), part.cases[case])]
                           * len(values))
    return found


def _layout(kinds: Sequence[tuple[str, ...]]) -> Layout:
    """Of figures of these kinds, those that count at each point: what was
    judged, else all repeats."""
    there: dict[str, list[int]] = {}
    for at, kind in enumerate(kinds):
        there.setdefault(kind[_POINT], []).append(at)
    keys, results, found = [], [], []
    for point, which in there.items():
        judged = [at for at in which
                  if int(kinds[at][_REPEAT] or 1) == 0] or which
        _, _, _, unit, better, result, guard = kinds[judged[-1]]
        keys.append((point, unit, better))
        results.append('fail' if guard else result)
        found.append(judged)
    return Layout(tuple(keys), results, found,
                  found == [[at] for at in range(len(kinds))])


def rows(nights: Iterable[Night], metric: str) -> Iterator[Row]:
    """A row a night and point, in order of case, point and time."""
    for _, group in _by_case(nights):
        for _, number, at, value in sorted(
                (_order(key), number, at, value)
                for number, night in enumerate(group) for at, (key, value)
                in enumerate(zip(night.layout.keys, night.judged(),
                                 strict=True))):
            night = group[number]
            (point, unit, better), which = (
                night.layout.keys[at], night.layout.which[at])
            time, (check, params, system, partition, environ, case) = \
                night.origin[which[-1]]
            yield Row(time, night.run, system, partition, environ, check,
                      params, case, metric, point, value, unit, better,
                      night.layout.results[at])


def _by_case(nights: Iterable[Night]) -> Iterator[tuple[str, list[Night]]]:
    """Name of each case, and its nights."""
    for name, group in itertools.groupby(nights, lambda night: night.name):
        yield name, list(group)


def _median(values: list[float]) -> float:
    """To import `statistics` takes as long as all else here."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 \
        else (ordered[half - 1] + ordered[half]) / 2


@functools.cache
def _size(point: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r'\d+', point, re.ASCII)[:1]))


def table(nights: Iterable[Night], metric: str) -> Iterator[str]:
    """Lines of text: a table a case and unit, a column a night."""
    for name, group in _by_case(nights):
        keys = tuple(sorted({key for layout in {
            night.layout.keys for night in group} for key in layout},
            key=_order))
        columns = [night.column(keys) for night in group]
        tables: dict[tuple[str, ...], list[int]] = {}
        for at, key in enumerate(keys):
            tables.setdefault(key[1:], []).append(at)
        for (unit, better), places in tables.items():
            way = '' if better == 'none' else f', {better} is better'
            yield f'{name}\n{metric} ({unit}){way}'
            shown, texts, values = [''], [], []
            for night, (words, numbers) in zip(group, columns, strict=True):
                mine = [numbers[at] for at in places]
                if mine.count(None) < len(mine):
                    shown.append(night.origin[-1][0][5:16].replace('T', ' '))
                    texts.append([words[at] for at in places])
                    values.append(mine)
            lines = [
                [keys[at][0] or 'all' for at in places], *texts,
                [_change([value for value in line if value is not None])
                 for line in zip(*values, strict=True)]]
            shown.append('change')
            form = '  '.join(
                f'%{max(len(head), *map(len, column))}s'
                for head, column in zip(shown, lines, strict=True))
            yield form % tuple(shown)
            for line in zip(*lines, strict=True):
                yield form % line
            yield ''
    yield '! failed'


def _order(key: Key) -> tuple[tuple[int, ...], Key]:
    return _size(key[0]), key


def _change(values: list[float]) -> str:
    """The last value against the median of those before it."""
    before = _median(values[:-1]) if values[1:] else 0
    return f'{values[-1] / before - 1:+.1%}' if before else ''
