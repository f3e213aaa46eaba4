"""Records of all sessions in one table.

`read` returns the records as a table and raises at the first damaged line, or
returns the faults beside the good records. config/perflog.yaml describes the
format. Modules in reading order:

reading     perflog files as whole lines; damaged ones are reported
formats     columns of our format and of ReFrame's, and their queries
cache       Parquet files by system and month
plans       what sessions planned to run
reasons     why test cases failed or are inconclusive
clock       sessions whose clock was wrong
attached    files that a test case left beside its records
samples     raw samples of a repetition
series      what servers did over time
sql         ./plumb sql
"""
from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, overload

import duckdb

from config.families import metrics as metrics

from . import formats, plans
from .cache import opened as connect
from .formats import METRICS as METRICS
from .formats import REPAIR as REPAIR
from .formats import RESULTS
from .formats import finite as finite
from .formats import schema as schema
from .reading import ATTACHED as ATTACHED
from .reading import PerflogError as PerflogError
from .reading import table as table

if TYPE_CHECKING:
    # It takes longer to import than many an answer takes.
    import pandas as pd

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
    - `schema`, `repetition`, `num_nodes`, `num_tasks`, `tasks_per_node`: Int64;
      `emulated`: bool;
    - `size`: message size in bytes, Int64, <NA> for a figure without one;
    - `file`, `line`: where the record stands; `format`: of that file;
    - `tries`: how often the session measured the case (see `decided`);
    - everything else is text, as a category (group with observed=True);
      '' in a column that the record's schema does not have.

    A case that a session meant to run and has no record of, for the session
    was killed, is a record too: `completed` = 0, guard `missing`, at the
    time and in the file of the session's plan (postprocess/perflogs/plans.py).
    A session whose clock was wrong is a fault, and has no values
    (postprocess/perflogs/clock.py).

    :param paths: files, folders to search, or one of either
    :param on_error: 'raise': PerflogError at the first fault. 'collect':
        returns (table of the good records, list of PerflogError).
    """
    from . import clock
    errors: list[PerflogError] = []

    def report(file, line: int, reason: str) -> None:
        error = PerflogError(file, line, reason)
        if on_error == 'raise':
            raise error
        errors.append(error)

    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    with connect([*paths], report) as con:
        table = clock.checked(frame(con), report)
    return table if on_error == 'raise' else (table, errors)


def decided(frame: pd.DataFrame) -> pd.DataFrame:
    """One try of each case and run, out of several of a session.

    A try that was disturbed (not fit to be judged, or at mixed speed) is
    followed by another one (config/sessions/runner.py) and does not count
    then.

    A try beyond a reference is followed by another one
    (config/sessions/runner.py).
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
    import pandas as pd
    def split(text: str) -> dict[str, str]:
        parts = re.split(r'(?:^| )([^\s=]+)=', text)
        return dict(zip(parts[1::2], parts[2::2], strict=True))

    texts = frame['params'].astype(str)
    known = {text: split(text) for text in texts.unique()}
    names = list(dict.fromkeys(n for p in known.values() for n in p))
    return pd.DataFrame(
        {n: texts.map({t: p.get(n, '') for t, p in known.items()})
         for n in names}, index=frame.index)


def frame(con: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """The records of a connection as the table that `read` gives."""
    types = {name: kind for name, kind in formats.types().items()
             if name not in ('origin', 'line', 'fault')}
    texts = [name for name, kind in types.items() if kind == 'VARCHAR']
    texts += ['file', 'format']
    # A type of DuckDB is a category of pandas; texts would need 2 GiB.
    for name in texts:
        con.execute(f'''CREATE OR REPLACE TYPE "{name} words" AS ENUM (
            SELECT "{name}" FROM records GROUP BY 1
            ORDER BY min(time), min(line), 1)
            ''')
    chosen = ', '.join(f'"{name}"::"{name} words" AS "{name}"'
                       if name in texts else f'"{name}"'
                       for name in [*types, 'file', 'format', 'line'])
    table = con.execute(f'SELECT {chosen} FROM records').df()
    table = table.sort_values(['time', 'file', 'line'], ignore_index=True)
    table['time'] = table['time'].dt.tz_localize('UTC')
    counts = [name for name, kind in types.items() if kind == 'BIGINT']
    table = table.astype(dict.fromkeys(counts, 'Int64'))
    table['repetition'] = table['repetition'].fillna(1)
    return decided(table)
