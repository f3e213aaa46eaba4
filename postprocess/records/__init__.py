"""The record of all sessions as tables.

ReFrame writes it: a report of each session, rows of each value as the session goes on,
and a log. `read` returns all values as a table, `sessions` one row per session, and
`read_with_sessions` both. Values
come from the report where it can be read, otherwise from the rows; rows of other suites
are read, too. config/perflog.yaml describes the columns. Modules in reading order:

files       the files of the record, and their faults
rows        rows, of this suite and of others
reports     reports
typed       texts of both as measurements with typed columns
cache       one Parquet file per report and file of rows; the database of all
sessions    reports and logs as sessions
counting    which measurement of a test case counts
attached    files that a measurement left: samples, series
samples     raw samples of a measurement
series      what servers did over time
parsed      saved results (plumb parse) as records
sql         ./plumb sql
"""
from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Literal, overload

from . import counting
from .cache import open_records_database as open_records_database
from .cache import restrict_views_to_site as restrict_views_to_site
from .counting import NOT_CONFIRMED as NOT_CONFIRMED
from .counting import OUT_THEN_PASSED as OUT_THEN_PASSED
from .files import Faults as Faults
from .files import PerflogError as PerflogError
from .typed import METRICS as METRICS

if TYPE_CHECKING:
    # It takes longer to import than many an answer takes.
    import duckdb
    import pandas as pd

Paths = os.PathLike | str | Iterable[os.PathLike | str]
#: Columns of `read` that are neither texts nor times.
_COUNTS = ('repetition', 'num_nodes', 'num_tasks', 'tasks_per_node', 'measurements')
_FLAGS = ('emulated', 'transient')
_NUMBERS = ('point', 'value', 'reference', 'lower', 'upper')


@overload
def read(paths: Paths, on_error: Literal['raise'] = ...) -> pd.DataFrame: ...


@overload
def read(paths: Paths, on_error: Literal['collect']
         ) -> tuple[pd.DataFrame, Faults]: ...


def read(paths, on_error='raise'):
    """Read the record into one row per value, sorted by time; the values of a
    measurement have the order of the report.

    Only the measurement of a test case that counts in its session is there
    (`counting`). The columns are those of config/perflog.yaml, and

    - `time`: UTC timestamps; `value`, `reference`, `lower`, `upper`, `point`: floats
      (NaN where empty; value in `unit`, the thresholds are fractions, the point in
      bytes);
    - `metric`, `point`, `repetition`: of perf_var. Repetition 0 is the median of
      several repetitions;
    - `num_nodes`, `num_tasks`, `tasks_per_node`, `measurements` (how often the session
      measured this test case and copy): Int64; `emulated`, `transient`: bool;
    - `better`: higher, lower or none;
    - `copy`: number and node of a copy, e.g. `repeat_no=0 nid=n2`;
    - `guard`, `reason`: the sanity check or stage that refused the values, and why; of
      an inconclusive measurement its reasons;
    - `note`: '', NOT_CONFIRMED or OUT_THEN_PASSED;
    - `file`: the report, the file of rows or the log.

    Texts are categories (group with observed=True). A measurement without values, or
    that a check refused, has a record `completed` = 0, result `fail` or `not_run`.

    :param paths: files, folders to search, or one of either
    :param on_error: 'raise': PerflogError at the first fault. 'collect':
        returns (table of the good records, list of PerflogError).
    """
    faults: Faults = []
    with _open(paths, faults) as con:
        if faults and on_error == 'raise':
            raise faults[0]
        frame = _read_results(con)
    return frame if on_error == 'raise' else (frame, faults)


def sessions(paths: Paths) -> pd.DataFrame:
    """The sessions, one row each, sorted by their start; faults are left out.

    Columns: `session`; `system`; `mode` ('': none); `started`, `ended`: UTC;
    `selected_all`: no option selected fewer test cases than the mode has, or changed
    them; `cut_short`: it ended before all of its test cases did; `running`: it has not
    ended; `command`.
    """
    with _open(paths, []) as con:
        return _read_sessions(con)


def read_with_sessions(paths: Paths) -> tuple[pd.DataFrame, pd.DataFrame, Faults]:
    """The tables of `read` and `sessions`, and the faults."""
    faults: Faults = []
    with _open(paths, faults) as con:
        return _read_results(con), _read_sessions(con), faults


def _open(paths: Paths, faults: Faults
          ) -> contextlib.AbstractContextManager[duckdb.DuckDBPyConnection]:
    return open_records_database(
        [paths] if isinstance(paths, str | os.PathLike) else [*paths], faults)


def _read_sessions(con: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """The view `sessions` as the table of `sessions`."""
    frame = con.execute('FROM sessions').df()
    for name in ('started', 'ended'):
        frame[name] = frame[name].dt.tz_localize('UTC')
    return frame


def _read_results(con: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """The view `results` as the table of `read`."""
    con.execute('CREATE TEMP TABLE counted_read AS FROM counted '
                'ORDER BY time, session, test_case, copy')
    measurements = con.execute(
        f'SELECT {counting.COMMON_COLUMNS} FROM counted_read').df()
    for name in {*measurements} - {'time', *_COUNTS, *_FLAGS}:
        texts = measurements[name].fillna('').astype('category')
        measurements[name] = texts.cat.as_ordered()
    con.execute('CREATE TEMP TABLE values_read AS ' + counting.values_query(
        'SELECT rowid AS of_measurement, * FROM counted_read', 'of_measurement'))
    values = con.execute(_with_categories(
        con, 'values_read', ('metric', 'unit', 'better', 'result'))).df()
    # There are fewer measurements than values, and texts of all would need 2 GiB.
    table = measurements.iloc[values.pop('of_measurement')].reset_index(drop=True)
    table = table.join(values.drop(columns='position'))
    table['time'] = table['time'].dt.tz_localize('UTC')
    for kind, names in (('Int64', _COUNTS), (bool, _FLAGS), (float, _NUMBERS)):
        for name in names:
            table[name] = table[name].astype(kind)
    return table


def _with_categories(con: duckdb.DuckDBPyConnection, table: str,
                     columns: Collection[str]) -> str:
    """SQL of a table in which the texts of some columns are categories of pandas."""
    for name in columns:
        con.execute(f'''CREATE TYPE "{name} words" AS ENUM (
            SELECT DISTINCT coalesce("{name}", '') FROM {table} ORDER BY 1)''')
    replaced = ', '.join(f'''coalesce("{name}", '')::"{name} words" AS "{name}"'''
                         for name in columns)
    return f'SELECT * REPLACE ({replaced}) FROM {table}'
