#!/usr/bin/env python3
"""How far do runs of the same case lie apart, for each figure?

    for run in $(seq 10); do ./plumb run -- -n SmartRedis; done
    .plumbline/venv/bin/python bench/spread.py SmartRedis

Reads perflogs and prints, for each figure of the cases whose name contains
CASE (as in `./plumb history`), the median over the newest runs, the spread
(what references are made from: a standard deviation over the median, outliers
pulled in) and the least and the greatest run over the median. A run is what
was judged of it, else the median of its repeats. Runs that failed do not
count; those that were disturbed, or too small a machine's, do, and the column
`inconclusive` says how many.
Exit status 0: printed, 1: a figure has fewer runs than asked for, 2: no such
case.
"""
from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from postprocess import history, spread  # noqa: E402

HEAD = ('| check | case | figure | runs | inconclusive | median | spread '
        '| least, '
        'greatest |\n|---|---|---|---|---|---|---|---|')


def rows_of(perflogs: Path, case: str, runs: int) -> list[history.Row]:
    """All metrics of the cases, of their newest runs."""
    def damaged(file: Path, line: int, reason: str) -> None:
        print(f'{file}:{line}: {reason}', file=sys.stderr)

    _, known = history.nights(perflogs, '', case, 1, damaged)
    return [row for metric in sorted(known)
            for row in history.ask(perflogs, metric, case, runs, damaged)]


def table(rows: Iterable[history.Row]) -> Iterator[tuple[int, str]]:
    """For each figure its number of runs, and a line of Markdown."""
    figures: dict[tuple[str, ...], list[history.Row]] = {}
    for row in rows:
        if row.result not in ('fail', 'xpass', 'again'):
            figures.setdefault((row.name, row.metric, row.point),
                               []).append(row)
    for (_, metric, point), found in figures.items():
        values = [row.value for row in found]
        centre = statistics.median(values)
        inconclusive = sum(row.result == 'inconclusive' for row in found)
        apart = f'{spread.spread(values):.1%}' if values[1:] else '-'
        name = f'{metric}@{point}' if point else metric
        yield len(values), (
            f'| {found[0].check} | {found[0].params} '
            f'{found[0].partition}+{found[0].environ} | {name} | '
            f'{len(values)} | {inconclusive} | {centre:.4g} {found[0].unit} | '
            f'{apart} | {min(values) / (centre or 1):.2f}, '
            f'{max(values) / (centre or 1):.2f} |')


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('case', metavar='CASE')
    parser.add_argument('--runs', type=int, default=10, metavar='N',
                        help='newest runs that count (10)')
    parser.add_argument('--perflogs', type=Path, default=Path('perflogs'),
                        metavar='DIR')
    args = parser.parse_args()
    lines = list(table(rows_of(args.perflogs, args.case, args.runs)))
    if not lines:
        print(f'spread.py: no record of {args.case!r} in {args.perflogs}',
              file=sys.stderr)
        return 2
    print(HEAD, *(line for _, line in lines), sep='\n')
    return int(min(runs for runs, _ in lines) < args.runs)


if __name__ == '__main__':
    sys.exit(main())
