"""Saved results as the record of sessions, so that they are read alike.

A CSV file of `plumb parse` is a system, called like the file. Each file that was
parsed is a session, and several outputs of one test case in it are its repetitions.
The test case is the program, its numbers of nodes and ranks, and its parameters.

A Parquet file of `plumb export` has the systems, sessions and test cases that it was
made of.
"""
from __future__ import annotations

import contextlib
import csv
import datetime
import itertools
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import duckdb

from config.families import all_metrics
from config.records.columns import PARSED, SAVED
from config.records.writing import (
    Measurement,
    Session,
    Value,
    values_of_repetitions,
    write_rows,
)

from .typed import COUNTS, FLAGS, RESULTS, TEXTS

#: Columns of a measurement in the Parquet of `plumb export`.
_EXPORTED = ('time', *(name for name in TEXTS if name != 'inconclusive'),
             *(name for name in COUNTS if name != 'number_of_values'), *FLAGS)
#: Columns that make a test case of a session.
_CASE = ('file', 'family', 'program', 'version', 'num_nodes', 'num_tasks', 'params')


@contextlib.contextmanager
def perflogs_of_saved_results(files: Iterable[str], report: Callable[[str], Any]
                              ) -> Iterator[Path]:
    """A temporary folder with the perflogs of files.

    :param files: CSV of `plumb parse`, `-` is one on standard input; or Parquet of
        `plumb export`, which is called `*.parquet`
    :param report: called with one line for each metric that is left out
    :raises ValueError: a file is not such CSV or Parquet (file, line and reason), or
        two files of CSV have the same name
    :raises OSError: a file cannot be read
    """
    with tempfile.TemporaryDirectory(prefix='plumbline-') as name:
        folder, systems = Path(name), set()
        for file in files:
            if file.endswith('.parquet'):
                write_rows(folder, _exported_sessions(file))
                continue
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
        if tuple(reader.fieldnames or ()) != PARSED:
            raise ValueError('not the CSV of `plumb parse`; its columns are '
                             + ','.join(PARSED))
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f'the row does not have {len(PARSED)} cells: is '
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
            time = datetime.datetime.fromisoformat(row['time'].replace('Z', '+00:00'))
            if time.tzinfo is None:
                raise ValueError(f'time {row["time"]!r} has no zone')
            if not math.isfinite(value):
                raise ValueError(f'{row["value"]!r} is not a finite number')
            rows.append({**row, 'value': value, 'time': time})
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
    for file, cases in by_file.items():
        measurements = [_measurement(system, of_case) for of_case in cases.values()]
        yield Session(file, min(one.time for one in measurements), measurements)


def _measurement(system: str, rows: list[dict[str, Any]]) -> Measurement:
    """The rows of a test case as a measurement."""
    first = rows[0]
    nodes, ranks = (int(first[name] or 0) for name in ('num_nodes', 'num_tasks'))
    repeated: dict[tuple, list[float]] = {}
    for row in rows:
        repeated.setdefault((row['metric'], row['unit'],
                             int(row['size']) if row['size'] else None),
                            []).append(row['value'])
    return Measurement(max(row['time'] for row in rows), {
        'system': system, 'partition': SAVED, 'environ': SAVED, 'source': SAVED,
        'family': first['family'], 'check': first['program'],
        'params': first['params'], 'program': first['program'],
        'version': first['version'], 'num_nodes': nodes or None,
        'num_tasks': ranks or None,
        'tasks_per_node': ranks // nodes if nodes and not ranks % nodes else None},
        values_of_repetitions((*key, values) for key, values in repeated.items()))


def _exported_sessions(file: str) -> Iterator[Session]:
    """The sessions of a Parquet file of `plumb export`.

    :raises ValueError: it is not such a file
    :raises OSError: it cannot be read
    """
    with open(file, 'rb'), duckdb.connect() as con:
        try:
            table = con.read_parquet(file)
        except duckdb.Error as err:
            raise ValueError(f'{file}: not a Parquet file ({str(err).splitlines()[0]})'
                             ) from None
        if missing := [name for name in (*_EXPORTED, 'metric', 'point', 'repetition',
                                         'reason') if name not in table.columns]:
            raise ValueError(f'{file}: not the Parquet of `plumb export`; it has no '
                             f'column {missing[0]}')
        ordered = table.order('session, time, measurement').fetchall()
    rows = [dict(zip(table.columns, row, strict=True)) for row in ordered]
    for session, of_session in itertools.groupby(rows, key=lambda row: row['session']):
        measurements = [
            _exported_measurement([*of_one]) for _, of_one in itertools.groupby(
                of_session, key=lambda row: row['measurement'])]
        yield Session(session, min(one.time for one in measurements), measurements)


def _exported_measurement(rows: list[dict[str, Any]]) -> Measurement:
    """The rows of a measurement as `plumb export` wrote them. One that was refused has
    the row `completed`, and no values."""
    first = rows[0]
    columns = {name: first[name] for name in _EXPORTED[1:] if first[name] is not None}
    if first['result'] == 'inconclusive':
        columns['inconclusive'] = first['reason']
    several = any(row['repetition'] == 0 for row in rows)
    values = [Value(row['metric'], row['value'], row['point'],
                    row['repetition'] or None if several else None,
                    row['reference'] or 0.0, row['lower'], row['upper'],
                    row['result'] if row['result'] in RESULTS else 'pass', row['unit'])
              for row in rows if row['metric'] != 'completed']
    return Measurement(first['time'].replace(tzinfo=datetime.timezone.utc), columns,
                       values)
