"""Perflogs in, one tidy table out.

The format is described in config/perflog.yaml. What is damaged is said with
file and line, never skipped in silence: `read` raises at the first fault, or
returns the faults beside the good records.
"""
from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import pandas as pd

from . import plans, records, store
from .ingest import OLD_SCHEMAS as OLD_SCHEMAS
from .ingest import PerflogError as PerflogError
from .ingest import schemas as schemas
from .ingest import table as table
from .records import METRICS as METRICS
from .records import REPAIR as REPAIR
from .records import RESULTS, Part
from .records import finite as finite
from .records import metrics as metrics
from .tree import ATTACHED as ATTACHED

#: What makes a case: all its records of one run belong together.
CASE = [*plans.CASE]


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
    table = frame(store.parts(list(paths), report))
    return table if on_error == 'raise' else (table, errors)


def decided(frame: pd.DataFrame) -> pd.DataFrame:
    """One try of each case and run, out of several of a session.

    A try that was disturbed (not fit to be judged, or at mixed speed) is
    followed by another one (config/session.py) and does not count then.

    A try beyond a reference is followed by another one (config/session.py).
    Where none failed in the end, the figures of the first one count, as those
    of any other run do, for they were not picked for being good. Otherwise
    those that tell why the case failed, or could not be judged. An `again`
    that is the last, of a session that was killed, is a failure.
    """
    frame['tries'] = 1
    frame = _undisturbed(frame)
    again = frame['result'] == 'again'
    if not again.any():
        return frame
    frame['result'] = frame['result'].cat.set_categories(RESULTS)
    cases = frame.groupby([*CASE, 'run'], observed=True).ngroup()
    drop: list[int] = []
    for _, rows in frame[cases.isin(cases[again])].groupby(cases):
        times = rows['time'].unique()
        bad = rows['result'].isin(['fail', 'xpass', 'inconclusive'])
        last = rows['time'] == times[-1]
        good = not bad.any() and not (again[rows.index] & last).any()
        keep = rows.index[
            rows['time'] == times[0] if good else
            rows['time'].isin(rows['time'][bad]) if bad.any() else last]
        frame.loc[keep[again[keep]], 'result'] = 'pass' if good else 'fail'
        frame.loc[keep, 'tries'] += len(times) - 1
        drop += [*rows.index.difference(keep)]
    frame = frame.drop(drop).reset_index(drop=True)
    # Nobody knows a rank for it: none is left.
    frame['result'] = frame['result'].cat.remove_categories('again')
    return frame


def _undisturbed(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the disturbed tries that another one followed."""
    disturbed = (frame['result'] == 'inconclusive') | (
        frame['speed'] == 'mixed')
    if not disturbed.any():
        return frame
    rows = frame[frame['run'].isin(frame['run'][disturbed].unique())]
    cases = rows.groupby([*CASE, 'run'], observed=True)
    last = cases['time'].transform('max')
    drop = rows.index[disturbed[rows.index] & (rows['time'] < last)]
    if drop.empty:
        return frame
    case = cases.ngroup()
    tries = rows.loc[drop].groupby(case[drop])['time'].nunique()
    frame.loc[rows.index, 'tries'] += case.map(tries).fillna(0).astype(int)
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


def frame(parts: Sequence[Part]) -> pd.DataFrame:
    """Parts as the table that `read` gives."""
    part = records.joined(parts)
    # Of ten million records all of this is some GB: what was used is let go.
    del parts
    # Texts in the order in which they stand in the files, whatever the order
    # in which these were read.
    names = {name: at for at, name in enumerate(part.texts['file'])}
    rank = np.empty(len(names), np.int64)
    rank[[names[name] for name in files_in_order(names)]] = range(len(names))
    file = rank[part.heads['file']][part.head]
    texts = _in_order(part.heads, part.head, file, part) | _in_order(
        part.kinds, part.kind, file, part)
    stamps = texts['time']
    times = records.times(list(stamps.categories))[stamps.codes][part.head]
    order = np.lexsort((part.line, file, times))
    of = {**dict.fromkeys(part.heads, part.head[order]),
          **dict.fromkeys(part.kinds, part.kind[order])}
    table: dict[str, Any] = dict.fromkeys(_NAMES)
    table |= dict(zip(records.FIGURE, part.figure[:, order], strict=True))
    table |= {'time': pd.DatetimeIndex(times[order]).tz_localize('UTC'),
              'line': part.line[order]}
    del part, file, times, order
    for name, column in texts.items():
        if name in _COUNTS:
            table[name] = _counts(column, of[name])
        elif name != 'time':
            table[name] = pd.Categorical.from_codes(
                column.codes[of[name]], dtype=column.dtype)
    table |= {'emulated': np.asarray(table['emulated'] == '1'),
              'size': _counts(texts['point'], of['point'], records.size)}
    table['repeat'][table['repeat'].isna()] = 1
    return decided(pd.DataFrame(table, copy=False))


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
