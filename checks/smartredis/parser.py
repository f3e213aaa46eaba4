"""Parser of the output of tensorload and of SmartSim-Scaling's folders.

tensorload (src/main.c) writes the times of all calls as SmartSim-Scaling does
(folders.py), and prints what it has done::

    # tensorload 1.0 throughput
    # client embedded
    # ranks 4 iterations 100 bytes 65536
    # verified 400
    # end
"""
from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NamedTuple, NoReturn

from ..core import text as saved
from ..core.parsers import Output, ParseError
from .folders import read_sessions
from .saved import (
    part_of_session,
    run_time,
    session_parameters,
    statistics_rows,
    write_perflogs,
    write_statistics,
)

_TITLE = re.compile(r'# tensorload \d')
_OUTPUT = re.compile(
    r'^# tensorload \d+\.\d+ (throughput|inference|producer|consumer)\n'
    r'# client (\S+)\n'
    r'# ranks (\d+) iterations (\d+) bytes (\d+)\n'
    r'# verified (\d+)\n'
    r'# end$', re.MULTILINE)


class Run(NamedTuple):
    """Output of one run of tensorload; `bytes` of a tensor."""
    mode: str
    client: str
    ranks: int
    iterations: int
    bytes: int
    verified: int


def parse_run(text: str) -> Run:
    """The output of a run, without the prefix that a launcher puts before each line.

    Lines of other programs before and after it are ignored: UCX, for example,
    writes its messages to stdout.

    :raises ParseError: another line is within the output, or the output is cut
    """
    lines = saved.strip_prefixes(text.split('\n'), _TITLE, re.compile('(?!)'))
    saved.refuse_failed_run(lines)
    titles = [number for number, line in enumerate(lines) if _TITLE.search(line)]
    match = _OUTPUT.search('\n'.join(lines))
    if not match or len(titles) > 1:
        first = titles[0] if titles else 0
        raise ParseError(first + 1, lines[first], 'expected one output of tensorload, '
                         'from "# tensorload" to "# end"'
                         + saved.foreign_cause(lines[first:]))
    mode, client, *numbers = match.groups()
    return Run(mode, client, *map(int, numbers))


def parse(text: str) -> NoReturn:
    """Refuse a file, because the times of a run are in several files.

    :raises ParseError: always
    """
    raise ParseError(1, text.partition('\n')[0], 'name the folder with the files '
                     'rank_N_timing.csv of all ranks instead of one file')


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
        raise ValueError('--statistics and --perflogs accept one folder of timings '
                         'only; name one folder')
    rows, parts = [], []
    sessions: list[tuple[Path, Output | ParseError]] = []
    for path, one in read_sessions(folder):
        if isinstance(one, ParseError):
            sessions.append((path, one))
            continue
        sessions.append((path, Output(
            one.records(), num_nodes=one.num_nodes, num_tasks=len(one.calls),
            params=session_parameters(one), time=run_time(one))))
        # Not all calls of all sessions at once.
        rows += statistics_rows(one, folder) if statistics else []
        parts += [part_of_session(one)] if perflogs else []
    if statistics:
        write_statistics(rows, statistics)
    if perflogs and parts:
        write_perflogs(parts, perflogs, folder.resolve().name)
    read = sum(isinstance(one, Output) for _, one in sessions)
    return sessions, ('' if read == len(sessions) else
                      f'{folder}: {read} of {len(sessions)} sessions are read; '
                      'the others are listed above')
