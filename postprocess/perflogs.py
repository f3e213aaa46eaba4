"""Perflogs in, one tidy table out.

The format is described in config/perflog.yaml. What is damaged is said with
file and line, never skipped in silence: `read` raises at the first fault, or
returns the faults beside the good records.
"""
from __future__ import annotations

import csv
import datetime
import difflib
import functools
import io
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, overload

import numpy as np
import pandas as pd

from config import families, strict

from . import plans

CONFIG = Path(__file__).resolve().parent.parent / 'config'
#: Where metrics are named.
METRICS = 'config/metrics.yaml, checks/*/family.yaml'

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

RESULTS = ('pass', 'fail', 'xfail', 'xpass', 'again', 'recorded', 'unfit')
_NAME = re.compile(r'.+\.v(\d+)\.csv(\.h\d+)?')
#: Folder of what a case attached to its records: <run>-<environ>-<case>.
ATTACHED = re.compile(r'\d{8}T\d{6}Z-[0-9a-f]+-.+-\w+')
REPAIR = 'remove the line, or restore the file'


class PerflogError(Exception):
    """A fault of a perflog: `FILE:LINE: reason; what to do`."""

    def __init__(self, file: os.PathLike | str, line: int,
                 reason: str) -> None:
        super().__init__(f'{file}:{line}: {reason}')
        self.file, self.line, self.reason = str(file), line, reason


@functools.cache
def metrics() -> dict[str, dict[str, str]]:
    """Every metric: name -> {unit, better, point, means}."""
    return families.metrics()


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
    - `file`, `line`: where the record stands;
    - `tries`: how often the session measured the case (see `decided`);
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
    table = _Table()
    planned = []
    for file in _files(paths, report):
        if plans.is_plan(file):
            # Before the records: a session may end between the two.
            planned.append((file, plans.lives(file)))
            continue
        for columns, rows, lines in _rows(file, report):
            table.add(str(file), columns, rows, lines)
    _add_missing(table, [file for file, lives in planned if not lives],
                 report)
    frame = decided(_typed(table.frame(), report))
    return frame if on_error == 'raise' else (frame, errors)


def decided(frame: pd.DataFrame) -> pd.DataFrame:
    """One try of each case and run, out of those with the result `again`.

    A try beyond a reference is followed by another one (config/session.py).
    Where none failed in the end, the figures of the first one count, as those
    of any other run do, for they were not picked for being good. Otherwise
    those that tell why the case failed, or could not be judged. An `again`
    that is the last, of a session that was killed, is a failure.
    """
    again = frame['result'] == 'again'
    frame = frame.assign(tries=1)
    if not again.any():
        return frame
    cases = frame.groupby([*CASE, 'run'], observed=True).ngroup()
    drop: list[int] = []
    for _, rows in frame[cases.isin(cases[again])].groupby(cases):
        times = rows['time'].unique()
        bad = rows['result'].isin(['fail', 'xpass', 'unfit'])
        last = rows['time'] == times[-1]
        good = not bad.any() and not (again[rows.index] & last).any()
        keep = rows.index[
            rows['time'] == times[0] if good else
            rows['time'].isin(rows['time'][bad]) if bad.any() else last]
        frame.loc[keep[again[keep]], 'result'] = 'pass' if good else 'fail'
        frame.loc[keep, 'tries'] = len(times)
        drop += [*rows.index.difference(keep)]
    return frame.drop(drop).reset_index(drop=True)


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


def _add_missing(table: _Table, files: list[Path], report: Callable) -> None:
    """A record for each case that an ended session has none of."""
    read = [plan for file in files if (plan := plans.read(file, report))]
    there = table.distinct('run', 'partition', 'environ', 'case') \
        if read else set()
    for plan in read:
        rows = [(line, plan.row(case)) for line, case in
                enumerate(plan.cases, 2) if plan.key(case) not in there]
        if rows:
            table.add(str(plan.file), tuple(rows[0][1]),
                      [list(row.values()) for _, row in rows],
                      [line for line, _ in rows])


def _rows(file: Path, report: Callable) -> Iterator[tuple]:
    """(columns, well-formed rows of text, their line numbers) of a file."""
    name = _NAME.fullmatch(file.name)
    if not name:
        return report(file, 1, 'not the name of a perflog '
                      '(<check>.v<schema>.csv); move the file elsewhere')
    columns = schemas().get(int(name[1]))
    if not columns:
        known = ', '.join(map(str, schemas()))
        return report(file, 1, f'schema {name[1]} is not known (known: '
                      f'{known}); read it with a newer checkout of the suite')
    rows, numbers = table(file, columns, f'schema {name[1]} '
                          '(config/perflog.yaml)', report)
    # Every schema has its number in the first column.
    kept = [n for n, row in enumerate(rows) if row[0] == name[1]]
    if len(kept) < len(rows):
        first = next(n for n, row in enumerate(rows) if row[0] != name[1])
        report(file, numbers[first], f'a record of another schema than '
               f'{name[1]} ({len(rows) - len(kept)} of them); {REPAIR}')
        rows, numbers = [rows[n] for n in kept], [numbers[n] for n in kept]
    if rows:
        yield columns, rows, numbers


def table(file: Path, columns: Sequence[str], kind: str, report: Callable
          ) -> tuple[list[list[str]], Sequence[int]]:
    """Well-formed rows of a file with a header, and their line numbers.

    :param kind: what has such a header, for people
    :param report: called with file, line and reason of each fault
    """
    try:
        data = file.read_bytes()
    except OSError as err:
        report(file, 1, f'cannot be read ({err.strerror}); check the path '
               'and its permissions')
        return [], []
    lines = data.split(b'\n')
    tail = lines.pop()
    if not lines and not tail:
        report(file, 1, 'the file is empty; remove it')
        return [], []
    if not lines or _cells(lines[0]) != list(columns):
        report(file, 1, f'not the header of {kind}; restore the file')
        return [], []
    if tail:
        report(file, len(lines) + 1, 'the last line is cut off; remove it, '
               'or restore the file')
    elif len(lines) == 1:
        report(file, 1, 'no record after the header; remove the file')
        return [], []
    rows, numbers = _quick(data, len(lines), len(columns))
    if rows is None:
        rows, numbers = [], []
        for number, line in enumerate(lines[1:], 2):
            cells = _cells(line)
            if cells is None:
                report(file, number, f'not a line of CSV; {REPAIR}')
            elif len(cells) != len(columns):
                report(file, number, f'{len(cells)} columns, not '
                       f'{len(columns)}; {REPAIR}')
            else:
                rows.append(cells)
                numbers.append(number)
    return rows, numbers


def _quick(data: bytes, lines: int, columns: int):
    """All rows after the header at once; (None, None) if any is not well."""
    try:
        text = data[:data.rfind(b'\n') + 1].decode()
        rows = list(csv.reader(io.StringIO(text, newline=''), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None, None
    # A quote gone astray joins lines: then there are fewer rows.
    if len(rows) != lines or '\0' in text or any(
            len(row) != columns for row in rows):
        return None, None
    return rows[1:], range(2, lines + 1)


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


class _Codes(dict):
    """Distinct text -> its number, in order of appearance."""

    def __missing__(self, text: str) -> int:
        self[text] = code = len(self)
        return code


class _Table:
    """Rows of many files as columns of codes: each text is kept once."""

    def __init__(self) -> None:
        names = dict.fromkeys(n for c in schemas().values() for n in c)
        self.codes = {name: _Codes() for name in [*names, 'file']}
        self.parts: dict[str, list] = {name: [] for name in self.codes}
        self.lines: list[np.ndarray] = []

    def add(self, file: str, columns: tuple[str, ...], rows: list,
            lines: Iterable[int]) -> None:
        """Rows of cells, one a column, and the line each stands at."""
        given = dict(zip(columns, zip(*rows, strict=True), strict=True))
        for name, codes in self.codes.items():
            cells = given.get(name, (file if name == 'file' else '',
                                     ) * len(rows))
            self.parts[name].append(np.fromiter(
                map(codes.__getitem__, cells), np.int32, len(rows)))
        self.lines.append(np.asarray(lines))

    def distinct(self, *names: str) -> set[tuple[str, ...]]:
        """The texts that these columns have together."""
        frame = pd.DataFrame({name: np.concatenate(
            [np.empty(0, np.int32), *self.parts[name]]) for name in names}
            ).drop_duplicates()
        texts = [list(self.codes[name]) for name in names]
        return {tuple(text[code] for text, code in
                      zip(texts, row, strict=True))
                for row in frame.itertuples(index=False, name=None)}

    def frame(self) -> pd.DataFrame:
        """All columns as categories of text, and `line`."""
        def joined(parts: list) -> np.ndarray:
            return np.concatenate([np.empty(0, np.int32), *parts])

        columns = {
            name: pd.Categorical.from_codes(
                joined(self.parts[name]), pd.Index(list(codes), dtype=object))
            for name, codes in self.codes.items()}
        return pd.DataFrame(columns).assign(
            line=joined(self.lines).astype(int))


def _typed(frame: pd.DataFrame, report: Callable) -> pd.DataFrame:
    """Checks every cell; gives the columns their types, drops bad records.

    Works on the distinct texts of a column, so that its cost hardly grows
    with the number of records.
    """
    good = np.ones(len(frame), bool)

    def refuse(faults: pd.Series) -> None:
        """Rows with a reason (others None): one report a file and reason."""
        faults = faults[good].dropna()
        for (file, reason), rows in faults.groupby(
                [frame['file'].astype(object), faults], sort=False):
            more = f' (and {len(rows) - 1} more)' if len(rows) > 1 else ''
            report(file, frame['line'][rows.index[0]],
                   f'{reason}; {REPAIR}{more}')
        good[faults.index] = False

    typed: dict[str, pd.Series] = {}
    for name, (parse, dtype) in _PARSERS.items():
        cells = frame[name].cat
        values: list = []
        faults: list[str | None] = []
        for text in cells.categories:
            try:
                values.append(parse(text))
                faults.append(None)
            except ValueError as err:
                values.append(None)
                faults.append(f'{name} {text[:40]!r} {err}')
        codes = cells.codes.to_numpy()
        if any(faults):
            refuse(pd.Series(np.array(faults, dtype=object)[codes]))
        if dtype:
            typed['size' if name == 'point' else name] = pd.Series(
                pd.array(values, dtype=dtype)[codes])
    refuse(_against_metrics(frame, good))
    typed['emulated'] = frame['emulated'] == '1'
    typed['repeat'] = typed['repeat'].fillna(1)
    frame = frame.assign(**typed)[good]
    return frame.sort_values(['time', 'file', 'line'], ignore_index=True)


def _against_metrics(frame: pd.DataFrame, good: np.ndarray) -> pd.Series:
    """Why a record disagrees with the metric; None where not."""
    faults = pd.Series(None, index=frame.index, dtype=object)
    for (metric, unit, point), rows in frame[good].groupby(
            ['metric', 'unit', 'point'], observed=True).groups.items():
        row = metrics()[metric]
        if unit != row['unit']:
            faults[rows] = (f'unit {unit[:40]!r} of {metric} is not '
                            f"{row['unit']!r} ({METRICS})")
        elif point and not row['point']:
            faults[rows] = (f'{metric} has no point, but {point!r} is given '
                            f'({METRICS})')
    return faults


def _time(text: str) -> datetime.datetime:
    try:
        time = datetime.datetime.fromisoformat(text.replace('Z', '+00:00'))
    except ValueError:
        time = None
    if time is None or not time.tzinfo:
        raise ValueError('is not a time (RFC 3339)')
    return time.astimezone(datetime.timezone.utc)


def finite(text: str) -> float:
    if not re.fullmatch(r'[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?', text,
                        re.ASCII) or math.isinf(float(text)):
        raise ValueError('is not a finite number')
    return float(text)


def _finite_or_open(text: str) -> float:
    return finite(text) if text else math.nan


def _count(text: str) -> int | None:
    if text and not re.fullmatch(r'\d{1,18}', text, re.ASCII):
        raise ValueError('is not a whole number')
    return int(text) if text else None


def _size(text: str) -> int | None:
    if text and not re.fullmatch(r'\d{1,18} B', text, re.ASCII):
        raise ValueError("is not a size like '8 B'")
    return int(text[:-2]) if text else None


def _one_of(*words: str) -> Callable[[str], None]:
    def parse(text: str) -> None:
        if text not in words:
            raise ValueError('is not one of ' + ', '.join(words))
    return parse


def _known_metric(text: str) -> None:
    if text not in metrics():
        near = difflib.get_close_matches(text, metrics(), 1)
        hint = f", nearest: '{near[0]}'" if near else ''
        raise ValueError(f'is no metric ({METRICS}){hint}')


def _not_empty(text: str) -> None:
    if not text:
        raise ValueError('must not be empty')


#: Column -> what reads one text of it (ValueError: why not), and the type
#: that the column gets (None: stays text).
_PARSERS: dict[str, tuple[Callable, str | None]] = {
    'time': (_time, 'datetime64[us, UTC]'),
    'value': (finite, 'float64'),
    **dict.fromkeys(('reference', 'lower', 'upper'),
                    (_finite_or_open, 'float64')),
    **dict.fromkeys(('schema', 'repeat', 'num_nodes', 'num_tasks',
                     'tasks_per_node'), (_count, 'Int64')),
    'point': (_size, 'Int64'),
    'emulated': (_one_of('', '0', '1'), None),
    'better': (_one_of('higher', 'lower', 'none'), None),
    'result': (_one_of(*RESULTS), None),
    'metric': (_known_metric, None),
    **dict.fromkeys(('run', 'system', 'partition', 'environ', 'family',
                     'check'), (_not_empty, None)),
}
