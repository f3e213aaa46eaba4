"""CSV of `plumb parse` as perflogs, so that saved results are read like records.

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
from config.records.columns import (
    SAVED,
    saved_value_records,
    schema_number_and_columns,
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
        folder = Path(name)
        for file in files:
            system = SAVED if file == '-' else Path(file).stem
            path = folder / f'{system}.v{schema_number_and_columns()[0]}.csv'
            if path.exists():
                raise ValueError(f'{file}: another file is also called {system}; the '
                                 'names of the files name the systems')
            with contextlib.nullcontext(sys.stdin) if file == '-' else open(
                    file, encoding='utf-8', newline='') as lines:
                rows = _read_parsed_rows(file, lines, report)
            with open(path, 'w', encoding='utf-8', newline='') as out:
                writer = csv.DictWriter(out, schema_number_and_columns()[1],
                                        restval='', lineterminator='\n')
                writer.writeheader()
                writer.writerows(_perflog_rows(system, rows))
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


def _perflog_rows(system: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Records of parsed rows: each repetition, then the median of several."""
    sessions = {name: n for n, name in enumerate(dict.fromkeys(
        row['file'] for row in rows))}
    values: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        key = *(row[name] for name in _CASE), row['metric'], row['size']
        values.setdefault(key, []).append(row)
    # A perflog is written in the order of its sessions.
    for repeated in sorted(values.values(), key=lambda r: sessions[r[0]['file']]):
        first = repeated[0]
        nodes, ranks = (int(first[name] or 0) for name in ('num_nodes', 'num_tasks'))
        start = datetime.datetime.fromtimestamp(sessions[first['file']],
                                                datetime.timezone.utc)
        yield from saved_value_records(
            [row['value'] for row in repeated], first['metric'], first['unit'],
            first['size'], system=system, time=f'{start:%Y-%m-%dT%H:%M:%SZ}',
            run=first['file'], family=first['family'], check=first['program'],
            params=first['params'], num_nodes=nodes or '', num_tasks=ranks or '',
            tasks_per_node=ranks // nodes if nodes and not ranks % nodes else '',
            program=first['program'], version=first['version'])
