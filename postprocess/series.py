"""What servers did over time: the series beside the perflogs.

A case may leave files beside its perflog, in <family>/<run>-<case>/; of
these, `series.csv` is read here, one row a point and metric. As with
perflogs, what is damaged is said with file and line; that there is no such
file is no fault.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from . import perflogs

FILE = 'series.csv'
COLUMNS = ('second', 'series', 'metric', 'value', 'unit', 'phase', 'counts',
           'why')
#: Kind of series -> unit of each of its metrics.
UNITS = {'server': {'fast_qps': '1/s', 'slow_qps': '1/s', 'total_qps': '1/s',
                    'hit_rate': '1'},
         'cpu': {'cpu_total': '%', 'cpu_user': '%'}}
PHASES = ('warmup', 'rest', 'test', 'after')
#: Cases whose newest run is read, the newest first.
MOST_RUNS = 12
#: Where valid runs of TaoBench are, by its guide; tests/ hold them against
#: those that checks/ judges by.
BANDS = {'hit_rate': (0.88, 0.9), 'cpu_total': (70.0, 80.0),
         'cpu_user': (15.0, 30.0)}
BANDS_V2 = BANDS | {'cpu_total': (75.0, 80.0), 'cpu_user': (25.0, 30.0)}
#: Points that are not needed say so with these words: no fault of the run.
SPARE = 'before the last'


class Series(NamedTuple):
    """The series of one run of a case."""
    #: Index of a record of the run.
    record: int
    #: Columns of the file; `counts` is '1' or '0', '' of what never counts.
    points: pd.DataFrame

    @property
    def servers(self) -> list[str]:
        """Names of the servers, by their number."""
        return sorted((name for name in self.points['series'].unique()
                       if name.startswith('server ')),
                      key=lambda name: int(name.split()[1]))


class Newest(NamedTuple):
    """The series of the newest run of some cases, the newest first."""
    series: list[Series]
    faults: list[perflogs.PerflogError]
    #: How many more cases have a file of series, which was not read.
    more: int = 0


def newest(frame: pd.DataFrame) -> Newest:
    """The series of the newest run of each case, of at most MOST_RUNS.

    :param frame: as perflogs.read gives it
    """
    last = frame['time'].groupby([frame[c] for c in perflogs.CASE],
                                 observed=True).transform('max')
    runs = frame[frame['time'] == last].sort_values(
        'time', ascending=False, kind='stable')
    files: dict[Path, int] = {}
    for row in runs.drop_duplicates([*perflogs.CASE, 'run']).itertuples():
        name = f'{row.run}-{row.case}'
        file = Path(row.file).parent / row.family / name / FILE
        if perflogs.ATTACHED.fullmatch(name) and _there(file):
            files.setdefault(file, row.Index)
    faults: list[perflogs.PerflogError] = []
    found = [Series(index, read(file, faults))
             for file, index in list(files.items())[:MOST_RUNS]]
    return Newest([one for one in found if len(one.points)], faults,
                  max(len(files) - MOST_RUNS, 0))


def read(file: Path, faults: list[perflogs.PerflogError]) -> pd.DataFrame:
    """The good points of a file; its faults are added to a list."""
    def report(file, line: int, reason: str) -> None:
        faults.append(perflogs.PerflogError(file, line, reason))

    points: dict[tuple, tuple] = {}
    refused: dict[str, list[int]] = {}
    for row, line in zip(*perflogs.table(
            file, COLUMNS, 'a file of series (postprocess/series.py)',
            report), strict=True):
        try:
            point = _point(*row)
            if point[:3] in points:
                raise ValueError(f'{row[1]} has {row[2]} twice at {row[0]} s')
            points[point[:3]] = point
        except ValueError as err:
            refused.setdefault(str(err), []).append(line)
    for reason, lines in refused.items():
        more = f' (and {len(lines) - 1} more)' if len(lines) > 1 else ''
        report(file, lines[0], f'{reason}; {perflogs.REPAIR}{more}')
    return pd.DataFrame(list(points.values()), columns=COLUMNS).sort_values(
        'second', kind='stable', ignore_index=True)


def findings(series: Series, bands: dict[str, tuple[float, float]]
             ) -> list[str]:
    """What is not as in a valid run: short texts, the most telling first."""
    test = series.points[series.points['phase'] == 'test']
    return [*_silent(series), *_left_out(series), *_outside(test, bands)]


def _silent(series: Series) -> Iterator[str]:
    """Servers whose lines end well before the test does."""
    points = series.points
    ends = points.groupby('series')['second'].max()
    end = points.loc[points['phase'] == 'test', 'second'].max()
    for name in series.servers:
        if ends[name] < 0.95 * end:
            yield f'{name} is silent after {ends[name]:.0f} s'


def _left_out(series: Series) -> Iterator[str]:
    """Points of the test that should count and do not, the most first."""
    lines = series.points[
        (series.points['phase'] == 'test') & (series.points['counts'] != '')
        ].drop_duplicates(['series', 'second'])
    out = lines[(lines['counts'] == '0')
                & ~lines['why'].str.startswith(SPARE)]
    for why, mine in sorted(out.groupby('why'), key=lambda g: -len(g[1])):
        names = [n for n in series.servers if n in set(mine['series'])]
        where = '' if len(names) == len(series.servers) else (
            f" ({', '.join(names)})")
        yield (f'{len(mine)} of {len(lines)} points of the test do not '
               f'count{where}: {why}')


def _outside(test: pd.DataFrame, bands: dict[str, tuple[float, float]]
             ) -> Iterator[str]:
    """Shares that are not in their band during the test."""
    means = test[test['counts'] == '1'].pivot_table(
        index='series', columns='metric', values='value')
    if {'fast_qps', 'total_qps'} <= set(means):
        low, high = bands['hit_rate']
        ratio = (means['fast_qps'] / means['total_qps']).mean()
        if not low <= ratio <= high:
            yield f'hit ratio {ratio:.4f}, not {low} to {high}'
    for (name, metric), mine in test[test['counts'] == ''].groupby(
            ['series', 'metric']):
        low, high = bands[metric]
        if not low <= mine['value'].mean() <= high:
            yield (f"CPU of {name.removeprefix('cpu ')}: "
                   f"{metric.removeprefix('cpu_')} "
                   f"{mine['value'].mean():.1f} %, not {low:.0f} to "
                   f'{high:.0f} %')


def _there(file: Path) -> bool:
    """Whether there is such a file, be it unreadable."""
    try:
        return bool(os.stat(file))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _point(second: str, series: str, metric: str, value: str, unit: str,
           phase: str, counts: str, why: str) -> tuple:
    """A row with its types.

    :raises ValueError: what is wrong with it
    """
    kind, _, name = series.partition(' ')
    units = UNITS.get(kind, {})
    if not units or not name or (kind == 'server'
                                 and not name.isdecimal()):
        raise ValueError(f"series {series[:40]!r} is not 'server N' or 'cpu "
                         "NODE'")
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
        raise ValueError(f'counts {counts[:40]!r} cannot be of a {kind}')
    if bool(why) != (counts == '0'):
        raise ValueError(f'counts {counts!r} does not go with why '
                         f'{why[:40]!r}')
    return (_number('second', second), series, metric,
            _number('value', value), unit, phase, counts, why)


def _number(name: str, text: str) -> float:
    try:
        number = perflogs.finite(text)
    except ValueError as err:
        raise ValueError(f'{name} {text[:40]!r} {err}') from None
    if number < 0:
        raise ValueError(f'{name} {text[:40]!r} is less than 0')
    return number
