"""Reader of the result folders of SmartSim-Scaling.

The folder of a session has a `run.cfg` ([run] and [attributes]) and, for each
rank, a `rank_N_timing.csv` without a header: rank, function, seconds. The
program tensorload writes such files, too (`--folder`), without a run.cfg.

The original's own evaluation drops the first row of every file; this module
counts all rows.
"""
from __future__ import annotations

import configparser
import csv
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from ..core.parsers import ParseError, Record
from .functions import METRICS, UNITS

_FILE = re.compile(r'rank_(\d+)_timing\.csv$')
#: Size of the tensors in the name of a session.
_SIZE = re.compile(r'-TB(\d+)(?:-|$)')
#: Function that only sessions of one kind have -> that kind.
_KINDS = {'run_model': 'inference', 'get_list': 'consumer',
          'put_tensor': 'throughput', 'append_to_list': 'producer'}


def read_sessions(folder: Path) -> Iterator[tuple[Path, tuple[Record, ...]]]:
    """Folder and records of every session below a folder, in order of names.

    :raises ParseError: there is no session, or a file cannot be trusted.
    """
    folders = sorted({path.parent
                      for path in folder.rglob('rank_*_timing.csv')
                      if _FILE.search(path.name)})
    if not folders:
        raise ParseError(1, '', 'the folder and its subfolders have no '
                         'rank_N_timing.csv')
    for session in folders:
        yield session, read_session_records(session)


def read_session_records(session: Path) -> tuple[Record, ...]:
    """The records of a session, with `bandwidth` if its size is known.

    :raises ParseError: a file cannot be trusted; the message names it.
    """
    attributes = _read_session_attributes(session)
    times: dict[str, list[float]] = {}
    loops: dict[int, float] = {}
    calls: dict[int, int] = {}
    for path in sorted(session.glob('rank_*_timing.csv')):
        match = _FILE.search(path.name)
        if not match:
            continue
        rank = int(match[1])
        for function, seconds in _read_timing_rows(path, rank):
            times.setdefault(function, []).append(seconds)
            if function == 'loop_time':
                loops[rank] = seconds
            calls[rank] = calls.get(rank, 0) + (function == 'put_tensor')
    kind = next((kind for name, kind in _KINDS.items() if name in times), '')
    if not kind:
        raise ParseError(1, '', f'{session.name}: the files have times of '
                         f'none of the functions {", ".join(_KINDS)}')
    name = _SIZE.search(session.name)
    text = attributes.get('tensor_bytes') or (name[1] if name else '')
    size = int(text) if text.isdigit() else None
    version = attributes.get('smartredis_version', '').strip('"')

    def make_record(metric: str, value: float, unit: str) -> Record:
        return Record('smartsim-scaling', version, size, metric, value, unit,
                      1)

    results = [
        make_record(
            metric,
            _mean_or_percentile(sorted(times[function]), column) * factor,
            UNITS[factor],
        )
        for function, metrics in METRICS[kind].items()
        if function in times
        for metric, column, factor in metrics
    ]
    if kind == 'throughput' and size and loops and all(loops.values()):
        one_way = sum(size * calls[rank] / loop
                      for rank, loop in loops.items()) / 1e6
        results += [make_record('bandwidth', 2 * one_way, 'MB/s'),
                    make_record('one_way_bandwidth', one_way, 'MB/s')]
    return tuple(results)


def _read_session_attributes(session: Path) -> dict[str, str]:
    path = session / 'run.cfg'
    config = configparser.ConfigParser(interpolation=None)
    if not path.exists():
        return {}
    try:
        config.read_string(path.read_text())
    except (configparser.Error, UnicodeDecodeError) as err:
        words = str(err).partition('\n')[0]
        raise ParseError(getattr(err, 'lineno', 1), '',
                         f'{session.name}/run.cfg: {words}') from None
    return {key: value for section in config.sections()
            for key, value in config[section].items()}


def _read_timing_rows(path: Path, rank: int) -> Iterator[tuple[str, float]]:
    with path.open(newline='') as file:
        for number, row in enumerate(csv.reader(file), 1):
            where = f'{path.parent.name}/{path.name}:{number}'
            if len(row) != 3 or row[0] != str(rank):
                raise ParseError(number, ','.join(row), f'{where}: expected '
                                 f'{rank},FUNCTION,SECONDS')
            try:
                seconds = float(row[2])
            except ValueError:
                seconds = math.nan
            if not 0 <= seconds < math.inf:
                raise ParseError(number, ','.join(row),
                                 f'{where}: {row[2]!r} is not a time')
            yield row[1], seconds


def _mean_or_percentile(times: list[float], column: str) -> float:
    if column == 'mean':
        return statistics.fmean(times)
    at = int(column[1:]) / 100 * (len(times) - 1)
    low = int(at)
    high = min(low + 1, len(times) - 1)
    return times[low] + (at - low) * (times[high] - times[low])
