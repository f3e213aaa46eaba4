"""Perflogs in, one tidy table out.

The format is described in config/perflog.yaml. What is damaged is said with
file and line, never skipped in silence: `read` raises at the first fault, or
returns the faults beside the good records.
"""
from __future__ import annotations

import contextlib
import csv
import functools
import gc
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, overload

import numpy as np
import pandas as pd

from config import strict

from . import plans, records
from .records import METRICS as METRICS
from .records import REPAIR, Part
from .records import finite as finite
from .records import metrics as metrics

CONFIG = Path(__file__).resolve().parent.parent / 'config'

_FIRST = (
    'schema', 'time', 'run', 'commit', 'reframe', 'system', 'partition',
    'environ', 'family', 'check', 'params', 'case', 'job', 'nodes',
    'num_nodes', 'num_tasks', 'tasks_per_node', 'source', 'program',
    'version', 'stack', 'spec', 'emulated', 'speed', 'repeat', 'metric',
    'point', 'value', 'unit', 'better', 'reference', 'lower', 'upper',
    'result', 'guard')
#: Columns of schemas that are no longer written, for files that still are.
OLD_SCHEMAS: dict[int, tuple[str, ...]] = {
    1: _FIRST, 2: (*_FIRST[:14], 'machine', 'binding', *_FIRST[14:])}

#: What makes a case: all its records of one run belong together.
CASE = ['family', 'system', 'partition', 'environ', 'source', 'check',
        'params', 'program']

_NAME = re.compile(r'.+\.v(\d+)\.csv(\.h\d+)?')
#: Folder of what a case attached to its records: <run>-<environ>-<case>.
ATTACHED = re.compile(r'\d{8}T\d{6}Z-[0-9a-f]+-.+-\w+')
#: Bytes of a file that are read at once.
PIECE = 1 << 20


class PerflogError(Exception):
    """A fault of a perflog: `FILE:LINE: reason; what to do`."""

    def __init__(self, file: os.PathLike | str, line: int,
                 reason: str) -> None:
        super().__init__(f'{file}:{line}: {reason}')
        self.file, self.line, self.reason = str(file), line, reason


@functools.cache
def schemas() -> dict[int, tuple[str, ...]]:
    """Every schema that can be read: number -> names of its columns."""
    current = strict.table(CONFIG / 'perflog.yaml')
    return OLD_SCHEMAS | {current['schema']: tuple(current['columns'])}


@overload
def read(paths: os.PathLike | str | Iterable[os.PathLike | str],
         on_error: Literal['raise'] = ...) -> pd.DataFrame: ...


@overload
def read(paths: os.PathLike | str | Iterable[os.PathLike | str],
         on_error: Literal['collect']
         ) -> tuple[pd.DataFrame, list[PerflogError]]: ...


def read(paths, on_error='raise'):
    """Reads perflogs into one row a record, sorted by time.

    The columns are those of the format, and

    - `time`: UTC timestamps; `value`, `reference`, `lower`, `upper`: floats
      (NaN where empty; value in `unit`, the thresholds are fractions);
    - `schema`, `repeat`, `num_nodes`, `num_tasks`, `tasks_per_node`: Int64;
      `emulated`: bool;
    - `size`: message size in bytes, Int64, <NA> for a figure without one;
    - `file`, `line`: where the record stands; `format`: of that file;
    - everything else is text, as a category (group with observed=True);
      '' in a column that the record's schema does not have.

    A case that a session meant to run and has no record of, for the session
    was killed, is a record too: `completed` = 0, guard `missing`, at the
    time and in the file of the session's plan (postprocess/plans.py).

    :param paths: files, folders to search, or one of either
    :param on_error: 'raise': PerflogError at the first fault. 'collect':
        returns (table of the good records, list of PerflogError).
    """
    errors: list[PerflogError] = []

    def report(file, line: int, reason: str) -> None:
        error = PerflogError(file, line, reason)
        if on_error == 'raise':
            raise error
        errors.append(error)

    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    parts: list[Part] = []
    planned = []
    for file in _files(paths, report):
        if plans.is_plan(file):
            # Before the records: a session may end between the two.
            planned.append((file, plans.lives(file)))
            continue
        parts += _parts(file, report)
    parts += _missing(parts, [file for file, lives in planned if not lives],
                      report)
    table = frame(parts)
    return table if on_error == 'raise' else (table, errors)


def expand(frame: pd.DataFrame) -> pd.DataFrame:
    """The parameters of each record: a column of text each, '' if unset.

    Same index as `frame`; read from `params` ("name=value name=value").
    """
    def split(text: str) -> dict[str, str]:
        parts = re.split(r'(?:^| )([^\s=]+)=', text)
        return dict(zip(parts[1::2], parts[2::2], strict=True))

    texts = frame['params'].astype(str)
    known = {text: split(text) for text in texts.unique()}
    names = list(dict.fromkeys(n for p in known.values() for n in p))
    return pd.DataFrame(
        {n: texts.map({t: p.get(n, '') for t, p in known.items()})
         for n in names}, index=frame.index)


def judged_records(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the single repeats where their median (repeat 0) is there."""
    where = [frame[c] for c in [*CASE, 'run', 'metric', 'point']]
    least = frame['repeat'].groupby(where, observed=True).transform('min')
    return frame[(frame['repeat'] == 0) | (least > 0)]


def _files(paths: Iterable, report: Callable) -> Iterator[Path]:
    """Every perflog once, in the order of its path."""
    found: set[Path] = set()

    def unreadable(err: OSError) -> None:
        report(err.filename, 1, f'cannot be read ({err.strerror}); '
               'check the path and its permissions')

    for path in map(Path, paths):
        if not path.exists():
            report(path, 1, 'does not exist; run `./plumb run` first, or '
                   'give another path')
        elif not path.is_dir():
            found.add(path)
        else:
            for folder, below, names in os.walk(path, onerror=unreadable):
                below[:] = [n for n in below if not ATTACHED.fullmatch(n)]
                found.update(Path(folder, n) for n in names
                             if not n.startswith('.')
                             and (n.endswith('.csv') or _NAME.fullmatch(n)
                                  or plans.is_plan(Path(folder, n))))
    # Plans first: what is recorded later is not missing.
    yield from sorted(found, key=lambda p: (not plans.is_plan(p), p))


def _missing(parts: list[Part], files: list[Path], report: Callable
             ) -> Iterator[Part]:
    """A record for each case that an ended session has none of."""
    read = [plan for file in files if (plan := plans.read(file, report))]
    if not read:
        return
    there = {key for part in parts for key in zip(*(
        part.text(name) for name in ('run', 'partition', 'environ', 'case')),
        strict=True)}
    for plan in read:
        rows = [(line, plan.row(case)) for line, case in
                enumerate(plan.cases, 2) if plan.key(case) not in there]
        if rows:
            yield records.from_rows(
                tuple(rows[0][1]), [list(row.values()) for _, row in rows],
                [line for line, _ in rows], str(plan.file), records.OURS,
                functools.partial(report, plan.file))


def _parts(file: Path, report: Callable) -> Iterator[Part]:
    """The good records of a file."""
    name = _NAME.fullmatch(file.name)
    if not name:
        return report(file, 1, 'not the name of a perflog '
                      '(<check>.v<schema>.csv); move the file elsewhere')
    columns = schemas().get(int(name[1]))
    if not columns:
        known = ', '.join(map(str, schemas()))
        return report(file, 1, f'schema {name[1]} is not known (known: '
                      f'{known}); read it with a newer checkout of the suite')
    kind = f'schema {name[1]} (config/perflog.yaml)'
    lines = _Lines(file, columns, kind, report)
    for text, first in lines.pieces():
        yield _part(file, text, first, name[1], columns, report)


def _part(file: Path, data: bytes, first: int, schema: str,
          columns: Sequence[str], report: Callable) -> Part:
    """The good records of whole lines of a file of ours."""
    with contextlib.suppress(UnicodeDecodeError), _uncollected():
        part = records.quick(data.decode(), columns, schema, str(file), first)
        if part is not None:
            return part
    rows, numbers = _rows(file, data, first, len(columns), report)
    # Every schema has its number in the first column.
    kept = [n for n, row in enumerate(rows) if row[0] == schema]
    if len(kept) < len(rows):
        bad = next(n for n, row in enumerate(rows) if row[0] != schema)
        report(file, numbers[bad], f'a record of another schema than '
               f'{schema} ({len(rows) - len(kept)} of them); {REPAIR}')
    return records.from_rows(
        columns, [rows[n] for n in kept], [numbers[n] for n in kept],
        str(file), records.OURS, functools.partial(report, file))


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's search for cycles: a third of the time where lists are
    made by the thousand, none of which is in a cycle."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Lines:
    """The lines of a file with a header, in pieces of whole lines."""

    def __init__(self, file: Path, columns: Sequence[str], kind: str,
                 report: Callable) -> None:
        self.file, self.columns = file, list(columns)
        self.kind, self.report = kind, report

    def pieces(self) -> Iterator[tuple[bytes, int]]:
        """(whole lines, number of the first one); faults are reported."""
        try:
            with open(self.file, 'rb') as handle:
                yield from self._pieces(handle)
        except OSError as err:
            self.report(self.file, 1, f'cannot be read ({err.strerror}); '
                        'check the path and its permissions')

    def _pieces(self, handle: BinaryIO) -> Iterator[tuple[bytes, int]]:
        header = handle.readline()
        if not header:
            return self.report(self.file, 1, 'the file is empty; remove it')
        if not header.endswith(b'\n') or _cells(
                header[:-1]) != self.columns:
            return self.report(self.file, 1, f'not the header of {self.kind}'
                               '; restore the file')
        first, rest = 2, b''
        while piece := handle.read(PIECE):
            data, newline, rest = (rest + piece).rpartition(b'\n')
            if newline:
                yield data + newline, first
                first += data.count(b'\n') + 1
        if rest:
            self.report(self.file, first, 'the last line is cut off; remove '
                        'it, or restore the file')
        elif first == 2:
            self.report(self.file, 1, 'no record after the header; remove '
                        'the file')


def table(file: Path, columns: Sequence[str], kind: str, report: Callable
          ) -> tuple[list[list[str]], list[int]]:
    """Well-formed rows of a file with a header, and their line numbers.

    :param kind: what has such a header, for people
    :param report: called with file, line and reason of each fault
    """
    rows: list[list[str]] = []
    numbers: list[int] = []
    for data, first in _Lines(file, columns, kind, report).pieces():
        more, lines = _rows(file, data, first, len(columns), report)
        rows += more
        numbers += lines
    return rows, numbers


def _rows(file: Path, data: bytes, first: int, columns: int,
          report: Callable) -> tuple[list[list[str]], Sequence[int]]:
    """Well-formed rows of whole lines, and their numbers."""
    lines = data[:-1].split(b'\n')
    rows = _quick(data, len(lines), columns)
    if rows is not None:
        return rows, range(first, first + len(lines))
    rows, numbers = [], []
    for number, line in enumerate(lines, first):
        cells = _cells(line)
        if cells is None:
            report(file, number, f'not a line of CSV; {REPAIR}')
        elif len(cells) != columns:
            report(file, number, f'{len(cells)} columns, not {columns}; '
                   f'{REPAIR}')
        else:
            rows.append(cells)
            numbers.append(number)
    return rows, numbers


def _quick(data: bytes, lines: int, columns: int) -> list[list[str]] | None:
    """All rows at once; None if any is not well."""
    try:
        text = data.decode()
        rows = list(csv.reader(io.StringIO(text, newline=''), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    # A quote gone astray joins lines: then there are fewer rows.
    if len(rows) != lines or '\0' in text or any(
            len(row) != columns for row in rows):
        return None
    return rows


def _cells(line: bytes) -> list[str] | None:
    """Cells of one line; None if it is not CSV."""
    if b'\0' in line:
        return None
    try:
        rows = list(csv.reader([line.decode().removesuffix('\r')],
                               strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    return rows[0] if len(rows) == 1 else []


def frame(parts: Sequence[Part]) -> pd.DataFrame:
    """Parts as the table that `read` gives."""
    part = records.joined(parts)
    # Texts in the order in which they stand in the files, whatever the order
    # in which these were read.
    names = {name: at for at, name in enumerate(part.texts['file'])}
    rank = np.empty(len(names), np.int64)
    rank[[names[name] for name in files_in_order(names)]] = range(len(names))
    file = rank[part.heads['file']][part.head]
    texts = _in_order(part.heads, part.head, file, part) | _in_order(
        part.kinds, part.kind, file, part)
    stamps = texts['time']
    times = np.array([records.time_of(text).replace(tzinfo=None)
                      for text in stamps.categories],
                     'datetime64[us]')[stamps.codes][part.head]
    order = np.lexsort((part.line, file, times))
    head, kind = part.head[order], part.kind[order]
    table: dict[str, Any] = dict.fromkeys(_NAMES)
    for name, column in texts.items():
        codes = kind if name in part.kinds else head
        table[name] = _counts(column, codes) if name in _COUNTS else \
            pd.Categorical.from_codes(column.codes[codes], dtype=column.dtype)
    table |= dict(zip(records.FIGURE, part.figure[:, order], strict=True))
    table |= {'time': pd.DatetimeIndex(times[order]).tz_localize('UTC'),
              'emulated': np.asarray(table['emulated'] == '1'),
              'line': part.line[order],
              'size': _counts(texts['point'], kind, records.size)}
    table['repeat'][table['repeat'].isna()] = 1
    return pd.DataFrame(table, copy=False)


def files_in_order(names: Iterable[str]) -> list[str]:
    """Files in the order of their paths; plans, of which a record is what
    no other file has, last."""
    return sorted(names, key=lambda name: (
        plans.is_plan(Path(name)), Path(name)))


def _in_order(table: dict[str, np.ndarray], which: np.ndarray,
              file: np.ndarray, part: Part) -> dict[str, pd.Categorical]:
    """Heads or kinds as categories, in order of their first records.

    :param which: of each record, its row of the table
    :param file: of each record, the rank of its file
    """
    size = len(next(iter(table.values())))
    first = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(first, which, (file << 40) + part.line)
    order = np.argsort(first, kind='stable')
    found = {}
    for name, codes in table.items():
        there = pd.unique(codes[order])
        number = np.zeros(len(part.texts[name]), np.int32)
        number[there] = range(len(there))
        found[name] = pd.Categorical.from_codes(number[codes], pd.Index(
            [part.texts[name][n] for n in there], dtype=object))
    return found


def _counts(texts: pd.Categorical, codes: np.ndarray,
            parse: Callable[[str], int | None] = records.count
            ) -> pd.api.extensions.ExtensionArray:
    """Whole numbers, <NA> where the text is empty."""
    return pd.array([parse(text) for text in texts.categories], 'Int64'
                    )[texts.codes[codes]]


#: Columns of the table, in order.
_NAMES = [*dict.fromkeys(n for c in schemas().values() for n in c), 'file',
          'format', 'line']
_COUNTS = ('schema', 'repeat', 'num_nodes', 'num_tasks', 'tasks_per_node')
