"""Parser of the output of tensorload and of SmartSim-Scaling's folders.

tensorload (src/main.c) prints, for each size of a tensor::

    # tensorload 1.0 throughput
    # client embedded commands SET
    # ranks 4 iterations 100 bytes 65536
    # function (s)       calls   min   mean   p50   p95   p99   max
    put_tensor             400   ...
    # moved 388.7 MB/s
    # loops 5981.0 1/s
    # verified 400
    # end

Times are in seconds, over all ranks and iterations. `moved` is the sum over
the ranks of the bytes in both directions, divided by the `loop_time` of the
rank; `loops` is the same for iterations.
"""
from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.parsers import Output, ParseError, Record
from .folders import read_sessions
from .functions import METRICS, UNITS
from .saved import RankStatistics, SessionRecords, session_parameters

_FIRST = re.compile(r'# tensorload (\d+\.\d+) '
                    r'(throughput|inference|producer|consumer)$')
_CLIENT = re.compile(r'# client (\S+) commands (\S+)$')
_SHAPE = re.compile(r'# ranks (\d+) iterations (\d+) bytes (\d+)$')
_HEAD = re.compile(r'# function \(s\) +calls +min +mean +p50 +p95 +p99 +max$')
_MOVED = re.compile(r'# moved (\d+\.\d+) MB/s$')
_LOOPS = re.compile(r'# loops (\d+\.\d+) 1/s$')
_VERIFIED = re.compile(r'# verified (\d+)$')
#: Seconds have nine digits behind the point, as tensorload prints them.
_ROW = re.compile(r'([a-z_]+(?:\(\))?) +(\d+)((?: +\d{1,9}\.\d{9}){6})$')


@dataclass(frozen=True)
class Times:
    """Statistics of the calls of one function. Unit: seconds."""
    calls: int
    min: float
    mean: float
    p50: float
    p95: float
    p99: float
    max: float
    line: int


@dataclass(frozen=True)
class Run:
    """Output of one run of tensorload."""
    version: str
    mode: str
    client: str
    commands: str
    ranks: int
    iterations: int
    #: Size of a tensor.
    bytes: int
    functions: Mapping[str, Times]
    #: MB/s, in both directions.
    moved: float
    #: Iterations per second of all ranks.
    loops: float
    verified: int
    #: Line of `moved`.
    line: int


class _Lines:
    """The lines of a text, and the number of the next line."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.at = 0

    def make_parse_error(self, reason: str) -> ParseError:
        """The error for the current line."""
        text = self.lines[self.at] if self.at < len(self.lines) else ''
        return ParseError(self.at + 1, text, reason)

    def match_line_and_advance(self, pattern: re.Pattern[str],
                               what: str) -> re.Match[str]:
        """Match the current line and go to the next one.

        :raises ParseError: the line does not match.
        """
        match = (pattern.match(self.lines[self.at])
                 if self.at < len(self.lines) else None)
        if not match:
            raise self.make_parse_error(f'expected {what}')
        self.at += 1
        return match


def parse_runs(text: str) -> tuple[Run, ...]:
    """The runs in a text.

    :raises ParseError: a line is not from tensorload, or the text is cut.
    """
    lines = _Lines(text)
    results = []
    while lines.at < len(lines.lines):
        if not lines.lines[lines.at].strip():
            lines.at += 1
            continue
        results.append(_parse_run(lines))
    if not results:
        raise ParseError(1, '', 'the text has no output of tensorload')
    return tuple(results)


def _parse_run(lines: _Lines) -> Run:
    version, mode = lines.match_line_and_advance(_FIRST,
                                                 'a line "# tensorload ..."').groups()
    client, commands = lines.match_line_and_advance(_CLIENT,
                                                    'a line "# client ..."').groups()
    ranks, iterations, size = map(int, lines.match_line_and_advance(
        _SHAPE, 'a line "# ranks ..."').groups())
    lines.match_line_and_advance(_HEAD, 'the heads of the columns')
    functions: dict[str, Times] = {}
    while row := (_ROW.match(lines.lines[lines.at])
                  if lines.at < len(lines.lines) else None):
        name, calls, values = row.groups()
        times = [float(value) for value in values.split()]
        if name in functions:
            raise lines.make_parse_error(f'{name} occurs twice')
        low, mean, p50, p95, p99, top = times
        # Times are rounded to ns, so a mean may differ in the last digit.
        if sorted(times[2:]) != times[2:] or not (
                low - 2e-9 <= mean <= top + 2e-9) or low > p50:
            raise lines.make_parse_error(
                f'{name}: min, p50, p95, p99 and max are not in '
                'ascending order, or exclude the mean'
            )
        functions[name] = Times(int(calls), low, mean, p50, p95, p99, top,
                                lines.at + 1)
        lines.at += 1
    expected = set(METRICS[mode]) | {'main()'}
    if missing := sorted(expected - set(functions)):
        raise lines.make_parse_error(f'the times of {", ".join(missing)} are missing')
    line = lines.at + 1
    moved = float(lines.match_line_and_advance(_MOVED, 'a line "# moved ..."')[1])
    loops = float(lines.match_line_and_advance(_LOOPS, 'a line "# loops ..."')[1])
    verified = int(
        lines.match_line_and_advance(_VERIFIED, 'a line "# verified ..."')[1])
    lines.match_line_and_advance(re.compile('# end$'), 'a line "# end"')
    return Run(version, mode, client, commands, ranks, iterations, size,
               functions, moved, loops, verified, line)


def records_of_run(run: Run) -> tuple[Record, ...]:
    """The records of a run."""
    def make_record(metric: str, value: float, unit: str, line: int) -> Record:
        return Record('tensorload', run.version, run.bytes, metric, value,
                      unit, line)

    results = [make_record(metric, getattr(times, column) * factor, UNITS[factor],
                           times.line)
               for function, metrics in METRICS[run.mode].items()
               for times in (run.functions[function],)
               for metric, column, factor in metrics]
    if run.mode == 'inference':
        results.append(make_record('inference_rate', run.loops, '1/s',
                                   run.line + 1))
    if run.mode in ('throughput', 'consumer'):
        results.append(make_record('bandwidth', run.moved, 'MB/s', run.line))
    if run.mode == 'throughput':
        results.append(make_record('one_way_bandwidth', run.moved / 2, 'MB/s',
                                   run.line))
    return tuple(results)


def parse(text: str) -> tuple[Record, ...]:
    """The records of all runs in a text.

    :raises ParseError: a part of the text cannot be trusted.
    """
    return tuple(record for run in parse_runs(text) for record in records_of_run(run))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for result folders of SmartSim-Scaling."""
    parser.add_argument(
        '--statistics', metavar='FILE', type=Path,
        help='write one row per session, rank and function to FILE: mean, min, max, '
             'median and standard deviation, and the attributes of run.cfg')
    parser.add_argument(
        '--perflogs', metavar='DIR', type=Path,
        help='write records and raw samples to the new folder DIR, for plot, report, '
             'compare and export')
    parser.epilog = (
        'Example: "./plumb parse smartredis results --statistics all.csv --perflogs '
        'old" reads all finished sessions of SmartSim-Scaling below results, and lists '
        'the others on stderr; "./plumb plot checks/smartredis/smartsim.yaml '
        '--perflogs old" draws them.')


def parse_folder(folder: Path, options: argparse.Namespace | None = None
                 ) -> tuple[list[tuple[Path, Output | ParseError]], str]:
    """The sessions in a result folder of SmartSim-Scaling: output, or why a
    session has none. The text counts them.

    :raises ParseError: there is no session
    :raises ValueError: an option is invalid
    :raises OSError: a file cannot be written
    """
    given = vars(options) if options else {}
    statistics, perflogs = given.get('statistics'), given.get('perflogs')
    if (statistics or perflogs) and len(given['files']) > 1:
        raise ValueError('--statistics and --perflogs need exactly one folder')
    ranks, records = RankStatistics(), SessionRecords()
    sessions: list[tuple[Path, Output | ParseError]] = []
    for path, session in read_sessions(folder):
        if isinstance(session, ParseError):
            sessions.append((path, session))
            continue
        sessions.append((path, Output(session.records(),
                                      params=session_parameters(session))))
        if statistics:
            ranks.add(session, folder)
        if perflogs:
            records.add(session)
    finished = sum(not isinstance(result, ParseError) for _, result in sessions)
    if statistics:
        ranks.write(statistics)
    if perflogs and finished:
        records.write(perflogs, folder.resolve().name)
    return sessions, ('' if finished == len(sessions) else
                      f'{folder}: {finished} of {len(sessions)} sessions are read; '
                      'the others are listed above')


def bandwidth_dip_ratio(bandwidths: Mapping[int, float]) -> float | None:
    """Ratio of the bandwidth at 64 to 128 KiB to that of neighbouring sizes.

    It is the smallest ratio at a size from 64 KiB (65536 B) to 128 KiB
    (131072 B). The expected value is interpolated between the two neighbouring
    sizes, with both axes logarithmic. None: there are too few sizes.

    :arg bandwidths: size in bytes -> bandwidth.
    """
    sizes = sorted(bandwidths)
    ratios = []
    for low, size, high in zip(sizes, sizes[1:], sizes[2:], strict=False):
        if 65536 <= size <= 131072 and all(
                bandwidths[s] > 0 for s in (low, size, high)):
            share = math.log(size / low) / math.log(high / low)
            expected = math.exp((1 - share) * math.log(bandwidths[low])
                                + share * math.log(bandwidths[high]))
            ratios.append(bandwidths[size] / expected)
    return min(ratios, default=None)
