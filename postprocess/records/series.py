"""Series of servers over time: files of a measurement.

A measurement may leave two files (attached.py): `series.csv` has one row per point and
metric, and `invalid.txt` the reasons why the measurement is not valid.
"""
from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from config import regular
from config.families import families

from . import attached

FILE, REASONS = 'series.csv', 'invalid.txt'
COLUMNS = ('second', 'series', 'metric', 'value', 'unit', 'phase', 'counts',
           'why')
PHASES = ('warmup', 'rest', 'test', 'after')
#: Test cases whose newest run is read, the newest first.
MAX_RUNS = 12
#: Kind of series -> unit of each of its metrics: `series` of a family.yaml.
Units = Mapping[str, Mapping[str, str]]


class Series(NamedTuple):
    """The series of one run of a test case."""
    #: Index of a record of the run.
    record: int
    #: Columns of the file; `counts` is '1' or '0', '' of what never counts.
    points: pd.DataFrame
    #: Why the run is not valid.
    reasons: tuple[str, ...] = ()

    @property
    def series_kinds(self) -> set[str]:
        """The kinds of the series: server, cpu, ..."""
        return {name.partition(' ')[0]
                for name in self.points['series'].unique()}

    @property
    def server_names(self) -> list[str]:
        """Names of the servers, by their number."""
        return sorted((name for name in self.points['series'].unique()
                       if name.startswith('server ')),
                      key=lambda name: int(name.split()[1]))


class Newest(NamedTuple):
    """The series of the newest run of some test cases, the newest first."""
    series: list[Series]
    faults: attached.Faults
    #: How many more test cases have a file of series, which was not read.
    more: int = 0


def read_series_of_newest_runs(frame: pd.DataFrame) -> Newest:
    """The series of the newest run of each test case, of at most MAX_RUNS.

    :param frame: as records.read gives it
    """
    last = frame['time'].groupby(frame['test_case'], observed=True).transform('max')
    runs = frame[frame['time'] == last].sort_values(
        'time', ascending=False, kind='stable')
    known = families()
    files: dict[Path, tuple[int, Units]] = {}
    for row in runs.drop_duplicates(['test_case', 'measurement']).itertuples():
        units = known[row.family].series if row.family in known else {}
        if not units:
            continue
        if file := attached.attached_file_path(row, FILE):
            files.setdefault(file, (row.Index, units))
    faults: attached.Faults = []
    series_of_runs = [
        Series(index, read_series_file(file, units, faults),
               _read_invalidity_reasons(file.parent))
        for file, (index, units) in list(files.items())[:MAX_RUNS]
    ]
    return Newest([one for one in series_of_runs if len(one.points)], faults,
                  max(len(files) - MAX_RUNS, 0))


def read_series_file(file: Path, units: Units, faults: attached.Faults
         ) -> pd.DataFrame:
    """The points of a file; see `attached.read_attached_file`.

    :param units: of the family
    """
    return attached.read_attached_file(
        file, COLUMNS, 'a file of series (postprocess/records/series.py)',
        functools.partial(_parse_series_row, units), 3, faults).sort_values(
            'second', kind='stable', ignore_index=True)


def _read_invalidity_reasons(folder: Path) -> tuple[str, ...]:
    """Why a run is not valid, in the words of who judged it."""
    try:
        return tuple(regular.read_regular_file(folder / REASONS).splitlines())
    except (OSError, UnicodeDecodeError):
        return ()


def _parse_series_row(known: Units, second: str, series: str, metric: str, value: str,
                      unit: str, phase: str, counts: str, why: str) -> tuple:
    """A row with its types.

    :raises ValueError: what is wrong with it
    """
    kind, _, name = series.partition(' ')
    units = known.get(kind, {})
    if not units or not name or (kind == 'server'
                                 and not name.isdecimal()):
        allowed = ' or '.join(f"'{k} {'N' if k == 'server' else 'NODE'}'"
                              for k in known)
        raise ValueError(f'series {series[:40]!r} is not {allowed}')
    if metric not in units:
        raise ValueError(f'metric {metric[:40]!r} is not one of '
                         + ', '.join(units))
    if unit != units[metric]:
        raise ValueError(f'unit {unit[:40]!r} of {metric} is not '
                         f'{units[metric]!r}')
    if phase not in PHASES:
        raise ValueError(f'phase {phase[:40]!r} is not one of '
                         + ', '.join(PHASES))
    if counts not in (('0', '1') if kind == 'server' else ('',)):
        raise ValueError(f'counts {counts[:40]!r} is not allowed for a '
                         f'{kind}')
    if bool(why) != (counts == '0'):
        raise ValueError(f'counts is {counts!r} and why is {why[:40]!r}; why '
                         'is given if counts is 0, and only then')
    return (attached.parse_nonnegative_number('second', second), series, metric,
            attached.parse_nonnegative_number('value', value), unit, phase, counts, why)
