"""Reader of the result folders of SmartSim-Scaling.

The folder of a session has a `run.cfg` ([run] and [attributes]) and, for each
rank, a `rank_N_timing.csv` without a header: rank, function, seconds. Each
application writes `main()` last. The producer of an aggregation in the original
writes no times. The program tensorload writes such files, too (`--folder`),
without a run.cfg.

The original's own evaluation drops the first row of every file; this module
counts all rows.
"""
from __future__ import annotations

import configparser
import math
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from config.records import metrics, samples

from ..core.parsers import ParseError, Record

#: Name of the original in records.
PROGRAM = 'smartsim-scaling'

#: Kind of a program -> the functions that have metrics.
FUNCTIONS = {
    'throughput': ('client()', 'put_tensor', 'unpack_tensor', 'loop_time'),
    'inference': ('client()', 'warmup', 'put_tensor', 'run_script', 'run_model',
                  'unpack_tensor', 'loop_time'),
    'producer': ('put_dataset', 'append_to_list'),
    'consumer': ('client()', 'poll_list', 'get_list', 'loop_time')}
#: Those that a rank calls once, not once per iteration.
ONCE = ('client()', 'warmup', 'put_dataset', 'loop_time')
#: Metrics of functions with another name.
_METRICS = {'client()': 'client_time', 'warmup': 'warmup_time'}

_FILE = re.compile(r'rank_(\d+)_timing\.csv$')
#: Size of the tensors in the name of a session; `.size` is in those of a test
#: case.
_SIZE = re.compile(r'(?:-TB|\.size)(\d+)(?:[-.]|$)')
#: Maximum length of a row.
MAX_ROW = 100
#: Name of a session of a producer.
_PRODUCER = re.compile(r'-sess-prod\b')
#: Function that only sessions of one kind have -> that kind.
_KINDS = {'run_model': 'inference', 'get_list': 'consumer',
          'put_tensor': 'throughput', 'append_to_list': 'producer'}


@dataclass(frozen=True)
class Session:
    """A finished session."""
    path: Path
    #: Both sections of run.cfg; empty: there is none.
    attributes: Mapping[str, str]
    #: Rank -> function -> durations of its calls, in order. Unit: seconds.
    calls: Mapping[int, Mapping[str, list[float]]]

    @property
    def kind(self) -> str:
        """Key of FUNCTIONS."""
        functions = {name for times in self.calls.values() for name in times}
        return next(kind for name, kind in _KINDS.items() if name in functions)

    @property
    def size(self) -> int | None:
        """Size of a tensor, of whole floats; None: unknown. Unit: bytes."""
        name = _SIZE.search(self.path.name)
        text = self.attributes.get('tensor_bytes') or (name[1] if name else '')
        return int(text) // 4 * 4 if text.isdigit() else None

    @property
    def version(self) -> str:
        """The version of SmartRedis that run.cfg has."""
        return self.attributes.get('smartredis_version', '').strip('"')

    @property
    def num_nodes(self) -> int | None:
        """Nodes of the clients and the database; None: run.cfg does not have them."""
        names = ('client_nodes', *(() if self.attributes.get('colocated') == '1'
                                   else ('database_nodes',)))
        counts = [self.attributes.get(name, '') for name in names]
        return sum(map(int, counts)) if all(map(str.isdecimal, counts)) else None

    @property
    def loop_times(self) -> list[float]:
        """The time of the loop of each rank; 0: unknown. Unit: seconds."""
        return [sum(rank.get('loop_time', ())) for rank in self.calls.values()]

    def call_samples(self, first_rank: int = 0) -> list[samples.Sample]:
        """All calls.

        :arg first_rank: number of its rank 0 in the samples.
        """
        suffix = f'/{self.size}B' if self.size else ''
        return [samples.Sample(first_rank + rank, function.removesuffix('()') + suffix,
                               number, seconds)
                for rank, functions in self.calls.items()
                for function, times in functions.items()
                for number, seconds in enumerate(times)]

    def records(self) -> tuple[Record, ...]:
        """Metrics over all ranks, with `bandwidth` if the size is known."""
        def make_record(metric: str, value: float) -> Record:
            return Record(PROGRAM, self.version, self.size, metric, value,
                          metrics.metric(metric).unit, 1)

        results = []
        for function in FUNCTIONS[self.kind]:
            times = sorted(time for rank in self.calls.values()
                           for time in rank.get(function, ()))
            results += [make_record(metric, _value_of_metric(metric, times))
                        for metric in metrics_of_function(function) if times]
        loops = self.loop_times
        if self.kind == 'throughput' and self.size and all(loops):
            one_way = sum(
                self.size * len(rank.get('put_tensor', ())) / loop for rank, loop in
                zip(self.calls.values(), loops, strict=True)) / 1e6
            results += [make_record('bandwidth', 2 * one_way),
                        make_record('one_way_bandwidth', one_way)]
        return tuple(results)


def read_sessions(folder: Path) -> Iterator[tuple[Path, Session | ParseError]]:
    """Each session below a folder, in order of names, or why it does not count.

    :raises ParseError: there is no session
    """
    timed = {path.parent for path in folder.rglob('rank_*_timing.csv')
             if _FILE.search(path.name)}
    configured = {path.parent for path in folder.rglob('run.cfg')}
    # A run has a run.cfg, too, and its sessions are below it.
    runs = {parent for path in timed | configured for parent in path.parents}
    # The original's producers write no times.
    sessions = timed | {path for path in configured - runs
                     if not _PRODUCER.search(path.name)}
    if not sessions:
        raise ParseError(1, '', 'the folder and its subfolders have no '
                         'rank_N_timing.csv')
    for path in sorted(sessions):
        try:
            yield path, read_session(path)
        except ParseError as error:
            yield path, error


def read_session(path: Path) -> Session:
    """The session in a folder.

    :raises ParseError: it is not finished, or a file cannot be trusted
    """
    attributes = _read_session_attributes(path)
    files = {int(match[1]): file for file in path.glob('rank_*_timing.csv')
             if (match := _FILE.search(file.name))}
    calls = {rank: _read_timing_file(file, rank)
             for rank, file in sorted(files.items())}
    session = Session(path, attributes, calls)
    functions = {name for times in calls.values() for name in times}
    if calls and not functions & {*_KINDS}:
        raise ParseError(1, '', 'the files lack the times of all functions: '
                         + ', '.join(_KINDS))
    # The consumer of an aggregation is one rank, whatever client_total is.
    total = attributes.get('client_total', '')
    ranks = (int(total) if total.isdigit() and calls and session.kind != 'consumer'
             else max(calls, default=0) + 1)
    if odd := sorted({*range(ranks)} ^ {*calls}):
        raise ParseError(
            1, '', f'unfinished: {len(calls)} ranks have a rank_N_timing.csv instead '
            f'of ranks 0 to {ranks - 1}; the first difference is rank {odd[0]}')
    for rank, times in session.calls.items():
        for name in sorted(functions):
            counts = len(times.get(name, ())), len(session.calls[0].get(name, ()))
            if counts[0] != counts[1]:
                raise ParseError(
                    1, '', f'unfinished: rank {rank} has {counts[0]} calls of '
                    f'{name}, but rank 0 has {counts[1]}')
    return session


def _read_session_attributes(session: Path) -> dict[str, str]:
    path = session / 'run.cfg'
    config = configparser.ConfigParser(interpolation=None)
    if not path.exists():
        return {}
    try:
        config.read_string(path.read_text(encoding='utf-8-sig'))
    except (configparser.Error, UnicodeDecodeError) as err:
        words = str(err).partition('\n')[0]
        raise ParseError(getattr(err, 'lineno', 1), '', words, 'run.cfg') from None
    return {key: value for section in config.sections()
            for key, value in config[section].items()}


def _read_timing_file(path: Path, rank: int) -> dict[str, list[float]]:
    """Function -> durations of its calls. Unit: seconds.

    :raises ParseError: a row is damaged, or the last ones are missing
    """
    times: dict[str, list[float]] = {}
    number, line = 0, '\n'
    with path.open(newline='', errors='replace') as file:
        for number, line in enumerate(file, 1):
            row = line.rstrip('\r\n').split(',')
            if not line.endswith('\n'):
                break
            if len(row) != 3 or row[0] != str(rank) or len(line) > MAX_ROW:
                raise ParseError(number, line, f'expected {rank},FUNCTION,SECONDS',
                                 path.name)
            try:
                seconds = float(row[2])
            except ValueError:
                seconds = math.nan
            if not 0 <= seconds < math.inf:
                raise ParseError(number, line, f'{row[2]!r} is not a time', path.name)
            times.setdefault(row[1], []).append(seconds)
    if not line.endswith('\n') or 'main()' not in times:
        raise ParseError(max(number, 1), line, 'unfinished: the file ends before the '
                         'row of main()', path.name)
    return times


def metrics_of_function(function: str) -> list[str]:
    """The metrics of a timed function, as family.yaml has them."""
    name = _METRICS.get(function, function)
    return [metric for metric in (name, f'{name}_p99')
            if metric in metrics.metrics_by_name()]


def _value_of_metric(metric: str, times: list[float]) -> float:
    """The 99th percentile, the mean (loop_time) or the median of sorted times in s, in
    the unit of the metric."""
    value = statistics.median(times)
    if metric == 'loop_time':
        value = statistics.fmean(times)
    elif metric.endswith('_p99'):
        low, share = divmod(0.99 * (len(times) - 1), 1)
        low, high = times[int(low)], times[min(int(low) + 1, len(times) - 1)]
        value = low + share * (high - low)
    return value * {'us': 1e6, 'ms': 1e3, 's': 1}[metrics.metric(metric).unit]
