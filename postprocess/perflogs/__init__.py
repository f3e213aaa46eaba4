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
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, overload

import duckdb

from config.families import all_metrics as all_metrics
from config.records.columns import (
    schema_number_and_columns as schema_number_and_columns,
)

from . import formats, plans
from .cache import open_records_database as connect
from .formats import METRICS as METRICS
from .formats import REPAIR as REPAIR
from .formats import RESULTS
from .formats import parse_finite_number as parse_finite_number
from .reading import ATTACHED as ATTACHED
from .reading import PerflogError as PerflogError

if TYPE_CHECKING:
    # It takes longer to import than many an answer takes.
    import pandas as pd

#: What makes a test case: all its records of one run belong together.
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

    - `time`: UTC timestamps; `value`, `reference`, `lower`, `upper`, `point`:
      floats (NaN where empty; value in `unit`, the thresholds are fractions,
      the point in the unit of the metric's points: bytes);
    - `schema`, `repetition`, `num_nodes`, `num_tasks`, `tasks_per_node`:
      Int64; `emulated`: bool;
    - `file`, `line`: where the record stands; `format`: of that file;
    - `tries`: how often the session measured the test case (see
      `drop_superseded_retries`);
    - everything else is text, as a category (group with observed=True);
      '' in a column that the record's schema does not have.

    A test case that a session meant to run and has no record of, for the
    session was killed, is a record too: `completed` = 0, guard `missing`, at
    the time and in the file of the session's plan
    (postprocess/perflogs/plans.py). A session whose clock was wrong is a
    fault, and has no values (postprocess/perflogs/clock.py).

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
        table = clock.drop_wrong_clock_values(records_as_dataframe(con), report)
    return table if on_error == 'raise' else (table, errors)


def drop_superseded_retries(frame: pd.DataFrame) -> pd.DataFrame:
    """One try of each test case and run, out of several of a session.

    A try that was disturbed (not fit to be judged, or at mixed speed) is
    followed by another one (config/sessions/runner.py) and does not count
    then.

    A try beyond a reference is followed by another one
    (config/sessions/runner.py).
    Where none failed in the end, the metrics of the first one count, as those
    of any other run do, for they were not picked for being good. Otherwise
    those that tell why the test case failed, or could not be judged. If the last
    one was compared with nothing, because the CPU speed class had changed to one
    without a reference, it counts. An `retried` that is the last, of a session that
    was killed, is a failure.
    """
    frame['measurements'] = 1
    frame = _drop_retried_inconclusive(frame)
    again = frame['result'] == 'retried'
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
        if good and not rows['result'][last].isin(['pass', 'xfail']).any():
            frame.loc[rows.index[last], 'measurements'] += len(times) - 1
            drop += [*rows.index[~last]]
            continue
        keep = rows.index[
            rows['time'] == times[0] if good else
            rows['time'].isin(rows['time'][bad]) if bad.any() else last]
        frame.loc[keep[again[keep]], 'result'] = 'pass' if good else 'fail'
        frame.loc[keep, 'measurements'] += len(times) - 1
        drop += [*rows.index.difference(keep)]
    frame = frame.drop(drop).reset_index(drop=True)
    # Nobody knows a rank for it: none is left.
    frame['result'] = frame['result'].cat.remove_categories('retried')
    return frame


def _drop_retried_inconclusive(frame: pd.DataFrame) -> pd.DataFrame:
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
    measurements = rows.loc[drop].groupby(case[drop])['time'].nunique()
    frame.loc[rows.index, 'measurements'] += (
        case.map(measurements).fillna(0).astype(int)
    )
    return frame.drop(drop).reset_index(drop=True)


def records_as_dataframe(con: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """The records of a connection as the table that `read` gives."""
    types = formats.column_types()
    del types['fault']
    texts = [name for name, kind in types.items() if kind == 'VARCHAR']
    # A type of DuckDB is a category of pandas; texts would need 2 GiB.
    for name in texts:
        con.execute(f'''CREATE OR REPLACE TYPE "{name} words" AS ENUM (
            SELECT "{name}" FROM records GROUP BY 1
            ORDER BY min(time), min(line), 1)
            ''')
    chosen = ', '.join(f'"{name}"::"{name} words" AS "{name}"'
                       if name in texts else f'"{name}"'
                       for name in types)
    table = con.execute(f'SELECT {chosen} FROM records').df()
    table = table.sort_values(['time', 'file', 'line'], ignore_index=True)
    table['time'] = table['time'].dt.tz_localize('UTC')
    table = table.astype(dict.fromkeys(formats.COUNTS, 'Int64'))
    table = table.astype({'point': float})
    table['repetition'] = table['repetition'].fillna(1)
    return drop_superseded_retries(table)
