"""CSV of `plumb parse` as the record of sessions, so that saved results are read alike.

A CSV file is a system, called like the file. Each file that was parsed is a
session, and several outputs of one test case in it are its repetitions. The
test case is the program, its numbers of nodes and ranks, and its parameters.
The sessions have the order of the CSV; their times are seconds after 1970.
"""
from __future__ import annotations

import contextlib
import csv
import datetime
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from config.families import all_metrics
from config.records.columns import SAVED
from config.records.writing import (
    Measurement,
    Session,
    values_of_repetitions,
    write_rows,
)

#: Columns of `plumb parse` (cli/session/parse.py).
COLUMNS = ('file', 'output', 'family', 'program', 'version', 'num_nodes',
           'num_tasks', 'params', 'size', 'metric', 'value', 'unit')
#: Columns that make a test case of a session.
_CASE = ('file', 'family', 'program', 'version', 'num_nodes', 'num_tasks', 'params')


@contextlib.contextmanager
def perflogs_of_parsed_csv(files: Iterable[str], report: Callable[[str], Any]
                           ) -> Iterator[Path]:
    """A temporary folder with the perflogs of CSV files.

    :param files: CSV of `plumb parse`; `-` is standard input
    :param report: called with one line for each metric that is left out
    :raises ValueError: a file is not such CSV (file, line and reason), or two
        files have the same name
    :raises OSError: a file cannot be read
    """
    with tempfile.TemporaryDirectory(prefix='plumbline-') as name:
        folder, systems = Path(name), set()
        for file in files:
            system = SAVED if file == '-' else Path(file).stem
            if system in systems:
                raise ValueError(f'{file}: another file is also called {system}; the '
                                 'names of the files name the systems')
            systems.add(system)
            with contextlib.nullcontext(sys.stdin) if file == '-' else open(
                    file, encoding='utf-8', newline='') as lines:
                rows = _read_parsed_rows(file, lines, report)
            write_rows(folder, _sessions(system, rows))
        yield folder


def _read_parsed_rows(file: str, lines: TextIO, report: Callable[[str], Any]
                      ) -> list[dict[str, Any]]:
    """The rows whose metric is defined; `value` is a number.

    :raises ValueError: file, line and reason
    """
    reader = csv.DictReader(lines, strict=True)
    known, rows = all_metrics(), []
    unknown: dict[str, int] = {}
    try:
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError('not the CSV of `plumb parse`; its columns are '
                             + ','.join(COLUMNS))
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f'the row does not have {len(COLUMNS)} cells: is '
                                 'the file cut off?')
            metric = known.get(row['metric'])
            if metric is None:
                unknown.setdefault(row['metric'], reader.line_num)
                continue
            if row['unit'] != metric['unit']:
                raise ValueError(f'unit {row["unit"]!r} of {row["metric"]} is not '
                                 f'{metric["unit"]!r}')
            if row['size'] and not (row['size'].isdecimal() and metric['point']):
                raise ValueError(f'{row["metric"]} has no size {row["size"]!r}')
            for name in ('num_nodes', 'num_tasks'):
                if row[name] and not row[name].isdecimal():
                    raise ValueError(f'{name} {row[name]!r} is not a number')
            value = float(row['value'])
            if not math.isfinite(value):
                raise ValueError(f'{row["value"]!r} is not a finite number')
            rows.append({**row, 'value': value})
    except (ValueError, csv.Error) as err:
        raise ValueError(f'{file}:{max(reader.line_num, 1)}: {err}') from None
    if not rows:
        raise ValueError(f'{file}: no values; `plumb parse` prints why')
    for name, line in unknown.items():
        report(f'{file}:{line}: {name} is not a metric of a family.yaml; its values '
               'are left out')
    return rows


def _sessions(system: str, rows: list[dict[str, Any]]) -> Iterator[Session]:
    """Parsed rows as sessions: each file is one, and each program and parameters a
    measurement."""
    by_file: dict[str, dict[tuple, list[dict[str, Any]]]] = {}
    for row in rows:
        by_file.setdefault(row['file'], {}).setdefault(
            tuple(row[name] for name in _CASE), []).append(row)
    for number, (file, cases) in enumerate(by_file.items()):
        time = datetime.datetime.fromtimestamp(number, datetime.timezone.utc)
        yield Session(file, time, [
            _measurement(system, time, of_case) for of_case in cases.values()])


def _measurement(system: str, time: datetime.datetime, rows: list[dict[str, Any]]
                 ) -> Measurement:
    """The rows of a test case as a measurement."""
    first = rows[0]
    nodes, ranks = (int(first[name] or 0) for name in ('num_nodes', 'num_tasks'))
    repeated: dict[tuple, list[float]] = {}
    for row in rows:
        repeated.setdefault((row['metric'], row['unit'],
                             int(row['size']) if row['size'] else None),
                            []).append(row['value'])
    return Measurement(time, {
        'system': system, 'partition': SAVED, 'environ': SAVED, 'source': SAVED,
        'family': first['family'], 'check': first['program'],
        'params': first['params'], 'program': first['program'],
        'version': first['version'], 'num_nodes': nodes or None,
        'num_tasks': ranks or None,
        'tasks_per_node': ranks // nodes if nodes and not ranks % nodes else None},
        values_of_repetitions((*key, values) for key, values in repeated.items()))
