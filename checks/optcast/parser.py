"""Parser of Optcast's evaluation: its printed output, or its logs.

    plumb parse optcast run.txt                  output of run.py
    plumb parse optcast client.log server.log    single logs
    plumb parse optcast LOGDIR                   the original's analysis

Metrics: busbw and algbw of each size (GB/s), and busbw_average; statistics of
client (e2e, req, send, recv) and server (recv, reduce, send) in ms, such as
`client_send_avg`, with `_len` as the number of samples; client_bandwidth, the
mean of the values that the server's own clients print (Gb/s of 2^30 bit).
"""
from __future__ import annotations

import argparse
import datetime
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from config import strict

from ..core import text as saved
from ..core.parsers import Output, ParseError, Record
from ..nccl import output as nccl
from ..nccl import parser as nccl_parser
from ..nccl import table
from ..nccl.programs import PROGRAMS
from . import logs
from .logs import Log, Stats
from .scenarios import RUN_SCRIPT

T = TypeVar('T')
#: Names of statistics in metrics.
STATISTICS = Stats._fields[1:]
#: Side -> possible classes of statistics; of the client: NCCL's plugin, the
#: server's own client, its ring.
CLASSES = {'client': ({'e2e', 'req', 'send', 'recv'}, {'send', 'recv'},
                      {'send', 'recv', 'reduce'}),
           'server': ({'recv', 'reduce', 'send'},
                      {'recv', 'reduce', 'send', 'convert'})}
_TITLE_OF_STATS = re.compile(r'(client|server) stats:\s*')
_STATS = re.compile(
    r'  (\w+) +len: (\d+), avg: (\d+\.\d\d), sd: (\d+\.\d\d), '
    r'median: (\d+\.\d\d), min: (\d+\.\d\d), max: (\d+\.\d\d)\s*')
_LIKE_STATS = re.compile(r'\blen: \d|\bmedian: ')
#: Beginnings of the parts of a printed output, anywhere in a line.
_TITLE = re.compile(rf'{table.BEGINS.pattern}|(?:client|server) stats:')
_OF_SERVER = re.compile(r'rank\(\d+\)/job\(\d+\) ')
#: Lines that only an output of nccl-tests has.
_OF_TABLE = re.compile(
    r'# nThread|# +Rank +\d|# +size +count|# Out of bounds v|# Avg bus b')
#: The command above a printed output, and its options.
_CALL = re.compile(rf'{saved.PROMPT}(?:\w+=\S* +)*(?:\S*python\S* )?\S*\brun\.py\b(.*)')
_OPTION = re.compile(r'--([\w-]+)[ =]+([^\s-]\S*)')
_RUN = re.compile(r'\brun\.py\b')
#: Options of run.py that others have the value of.
_NO_PARAMETERS = {'size', 'config', 'nrank', 'xlim', 'nccl_test_options'}
#: The commands of the clients and servers, which run.py prints.
_STARTED = re.compile(r'^(client|server): .*?-np (\d+) .*', re.M)
#: The first line below the command of a run: a command that it starts, or the output of
#: these; and lines that end its output.
_BEGIN_OF_RUN = re.compile(
    rf'{_STARTED.pattern}|{table.BEGINS.pattern}|{logs.RESULT.pattern}')
_END_OF_RUN = re.compile(rf'{_TITLE_OF_STATS.pattern}|{table.AVERAGE.pattern}')
_SERVERS = re.compile(r'--reduction-servers[ =](\S+)')


def parse(text: str) -> tuple[Record, ...]:
    """The records of one text: the outputs of runs, or a log.

    :raises ParseError: a part of the text cannot be trusted
    """
    return tuple(record for output in parse_log(text) for record in output.records)


def parse_log(text: str, options: argparse.Namespace | None = None) -> list[Output]:
    """The outputs of runs, each with the options of the command above it, or a log.

    :raises ParseError: a part of the text cannot be trusted
    """
    side = 'server' if _OF_SERVER.search(text) else 'client'
    if side == 'client':
        saved.refuse_failed_run(text.split('\n'), patterns=saved.CRASHES)
    return [_parse_run(run, side) for run in _runs(text)]


def _runs(text: str) -> list[str]:
    """The text of each run of run.py: one begins after the results of another."""
    starts, place, ended = [0], 0, False
    #: Place of the command of the next run, if it has one.
    call: int | None = None
    lines = text.split('\n')
    for line, bare in zip(lines, table.strip_prefixes(lines, _TITLE), strict=True):
        if _END_OF_RUN.match(bare):
            ended, call = True, None
        elif ended and _BEGIN_OF_RUN.search(bare):
            starts.append(place if call is None else call)
            ended, call = False, None
        elif ended and call is None and _find_call(bare):
            call = place
        place += len(line) + 1
    return saved.split_at(text, starts)


def _find_call(line: str) -> re.Match[str] | None:
    """The command of a run, if a line has it."""
    return _CALL.match(saved.last_command(line, _RUN)) if 'run.py' in line else None


def _parse_run(text: str, side: str) -> Output:
    """The output of a run, or a log."""
    lines = text.split('\n')
    bare = table.strip_prefixes(lines, _TITLE)
    if printed := read_printed_statistics(bare):
        log = logs.read_log('client', '\n'.join(filter(logs.RESULT.search, lines)))
        log.rest = [*enumerate(lines, 1)]
    else:
        log = logs.read_log(side, text)
    result = read_result(log) if log.side == 'client' else read_table(log.rest)
    call = next(filter(None, map(_find_call, bare)), None)
    parameters = _parameters_of_commands(call[1], '\n'.join(bare)) if call else {}
    statistics = printed or [(log.side, stats, len(lines)) for stats in log.statistics]
    return _output(
        log, result, parameters.get('type', 'optcast' if statistics else 'nccl'),
        statistics, ' '.join(
            f'{name}={value}' for name, value in sorted(parameters.items())
            if name not in _NO_PARAMETERS), logs.begin_of_log(text))


def _parameters_of_commands(options: str, text: str) -> dict[str, str]:
    """The parameters of a run, with those of the check under its names.

    :param options: options of run.py
    :param text: the output of run.py, with the commands that it started
    """
    parameters = {name.replace('-', '_'): value
                  for name, value in _OPTION.findall(options)}
    commands = {match[1]: match for match in _STARTED.finditer(text)}
    client, clients = commands['client'].group(0, 2) if 'client' in commands else (
        '', '')
    if data_type := dict(_OPTION.findall(client)).get('data-type'):
        parameters.setdefault('data_type', data_type)
    if clients := parameters.get('nrank', clients):
        parameters['clients'] = clients
    if servers := _SERVERS.search(client):
        parameters['servers'] = str(servers[1].count(',') + 1)
    elif 'server' in commands:
        parameters['servers'] = commands['server'][2]
    return {'type': 'optcast', **parameters}


def read_printed_statistics(lines: Sequence[str]) -> list[tuple[str, Stats, int]]:
    """The statistics that run.py printed, with side and line.

    :raises ParseError: they are damaged or incomplete
    """
    #: Side -> line of its title; side and class -> statistics and their line.
    titles: dict[str, int] = {}
    read: dict[tuple[str, str], tuple[Stats, int]] = {}
    side = ''
    for number, line in enumerate(lines, 1):
        fault = ''
        if len(line) > logs.LONGEST:
            fault = f'the line has {len(line)} characters'
        elif title := _TITLE_OF_STATS.fullmatch(line):
            side = title[1]
            fault = f'"{side} stats" occurs twice' * (side in titles)
            titles[side] = number
        elif side and (cells := _STATS.fullmatch(line)):
            stats = Stats(cells[1], int(cells[2]), *map(float, cells.groups()[2:]))
            if (side, stats.name) in read:
                fault = f'{stats.name} occurs twice'
            elif not (stats.len and stats.min <= stats.median <= stats.max
                      and stats.min - 0.011 <= stats.avg <= stats.max + 0.011
                      and stats.sd <= (stats.max - stats.min) / 2 + 0.011):
                fault = 'the statistics contradict each other'
            read[side, stats.name] = stats, number
        elif _LIKE_STATS.search(line):
            fault = 'the line of statistics is damaged'
        elif line.strip():
            side = ''
        if fault:
            raise ParseError(number, line, fault)
    if not titles:
        return []
    logs.refuse_panics('\n'.join(lines))
    # Statistics of a server are never alone.
    for side, number in {'client': titles.get('server', 0), **titles}.items():
        of_side = {name: stats for (of, name), (stats, _) in read.items() if of == side}
        if {*of_side} not in CLASSES[side]:
            raise ParseError(number, '', f'"{side} stats" is incomplete; it has '
                             f'{", ".join(sorted(of_side)) or "nothing"}')
        if side == 'client' and len({stats.len for name, stats in of_side.items()
                                     if name != 'reduce'}) > 1:
            raise ParseError(number, '', 'the classes of the client have different '
                             'numbers of samples')
    return [(side, stats, number) for (side, _), (stats, number) in read.items()]


def read_table(lines: Iterable[tuple[int, str]]) -> nccl.Output | None:
    """The table of all_reduce_perf in these lines (number, text), or None.

    :raises ParseError: it is incomplete, or its values contradict each other
    """
    # A launcher's words on how its processes ended do not belong to the table.
    numbered = list(lines)
    bare = table.strip_prefixes([line for _, line in numbered])
    texts = {number: line for (number, line), rest in zip(numbered, bare, strict=True)
             if rest.lstrip()[:1] in tuple('#0123456789')}
    if not any(map(_OF_TABLE.match, bare)):
        return None
    out = nccl_parser.read_output(''.join(
        texts.get(number, '') + '\n' for number in range(1, max(texts) + 1)))

    def refuse(reason: str, number: int) -> None:
        raise ParseError(number, texts[number], reason)

    if fault := nccl.contradiction(out, PROGRAMS['all_reduce_perf']):
        refuse(fault[1], fault[0])
    for row in out.rows:
        if not all(half.checked for _, half in row.halves_with_metric_suffix):
            refuse('the results were not checked: run with -c 1', row.line)
    if len({row.size for row in out.rows}) != len(out.rows):
        refuse('the table has a size twice', out.end)
    return out


def busbw_by_size(result: nccl.Output) -> dict[int, float]:
    """busbw in GB/s by size in B, out of place."""
    return {row.size: bandwidths(row.out_of_place, row.size, result.ranks)[1]
            for row in result.rows if row.out_of_place}


def bandwidths(half: nccl.Half, size: int, ranks: int) -> tuple[float, float]:
    """algbw and busbw in GB/s. Two decimals are too few for a slow link: below 1 GB/s
    they follow from the time, as nccl-tests calculates them."""
    if not half.time or not half.time.value or half.algbw.value >= 1:
        return half.algbw.value, half.busbw.value
    algbw = size / half.time.value / 1e3
    return algbw, algbw * 2 * (ranks - 1) / ranks


def _output(log: Log, result: nccl.Output | None, program: str,
            statistics: Iterable[tuple[str, Stats, int]], params: str,
            time: datetime.datetime | None) -> Output:
    """The records of a log.

    :param statistics: side, statistics of a class, line
    """
    records = []
    if log.bandwidths:
        records.append(Record('optcast', '', None, 'client_bandwidth',
                              fmean(log.bandwidths), 'Gb/s', 1))
    if result:
        records += [Record(program, '', row.size, name + suffix, value, 'GB/s',
                           row.line)
                    for row in result.rows
                    for suffix, half in row.halves_with_metric_suffix
                    for name, value in zip(('algbw', 'busbw'), bandwidths(
                        half, row.size, result.ranks), strict=True)]
        if result.average:
            records.append(Record(program, '', None, 'busbw_average',
                                  result.average.value, 'GB/s', result.end))
    records += [Record('optcast', '', None, f'{side}_{stats.name}_{name}',
                       round(float(getattr(stats, name)), 4),
                       '1' if name == 'len' else 'ms', line)
                for side, stats, line in statistics for name in STATISTICS]
    return Output(tuple(records), num_tasks=result.ranks if result else None,
                  params=params, time=time)


# A folder of logs ----------------------------------------------------------

@dataclass(frozen=True)
class Analysis:
    """Analysis of a folder of logs, like the original's."""
    output: Output
    client: Log
    server: Log | None
    table: nccl.Output | None
    #: Result of a ring of the same clients, in runs of this suite.
    ring: nccl.Output | None

    @property
    def program_version(self) -> str:
        """Version of the embedded program; '' for the original."""
        titles = (re.match(r'# optcast (\d+\.\d+) type ', line)
                  for _, line in self.client.rest)
        return next((title[1] for title in titles if title), '')

    @property
    def logs(self) -> tuple[Log, ...]:
        """The log of the clients, and that of the servers if there are servers."""
        return (self.client, self.server) if self.server else (self.client,)


def analyse_log_folder(folder: Path) -> Analysis:
    """Analyse the logs of a run: setting.yaml, client.log, server.log and the
    error logs of both.

    :raises ParseError: a file cannot be trusted; the error names it
    :raises OSError: client.log or setting.yaml is missing
    """
    def read(name: str, parse: Callable[[str], T]) -> T:
        try:
            return parse((folder / name).read_bytes().decode(errors='replace'))
        except ParseError as err:
            raise ParseError(err.line, err.text, err.reason, name) from None

    settings = read('setting.yaml', _parse_settings)
    kind = str(settings.get('type', 'optcast'))
    for errors in folder.glob('*_err.log'):
        read(errors.name, functools.partial(
            logs.refuse_panics, side=errors.name.partition('_')[0]))
    client = read('client.log', functools.partial(logs.read_log, 'client'))
    result = read('client.log', lambda _: read_result(client))
    server = ring = None
    if kind == 'optcast':
        server = read('server.log', functools.partial(logs.read_log, 'server'))
        if client.spans and not server.spans:
            raise ParseError(1, '', 'the log has no times of reductions (spans): '
                             'start the first server with RUST_LOG=TRACE', 'server.log')
    if (folder / 'ring.txt').exists():
        ring = read('ring.txt', lambda text: read_table(enumerate(text.split('\n'), 1)))
    # The parameters of the test case, as the check names them.
    params = {'data_type': settings.get('data_type'), **{
        name: settings.get(RUN_SCRIPT[name]) for name in ('clients', 'servers')}}
    return Analysis(_output(
        client, result, kind,
        [(log.side, stats, 1) for log in (client, server) if log
         for stats in log.statistics],
        ' '.join([f'type={kind}', *(f'{name}={value}' for name, value in params.items()
                                    if value is not None)]),
        read('client.log', logs.begin_of_log)), client, server, result, ring)


def _parse_settings(text: str) -> dict[str, Any]:
    try:
        settings = strict.parse_yaml(text, 'setting.yaml')
    except strict.Fault as err:
        raise ParseError(err.line, '', err.reason) from None
    if not isinstance(settings, dict):
        raise ParseError(1, '', 'the file has no settings of a run')
    return settings


def read_result(client: Log) -> nccl.Output | None:
    """The table of clients, or None if the server's own client printed a bandwidth.

    :raises ParseError: there is neither, or the table cannot be trusted
    """
    result = read_table(client.rest)
    if not result and not client.bandwidths:
        raise ParseError(max(1, len(client.rest) + len(client.spans)), '', 'the log '
                         'has no result: no table of nccl-tests and no line with the '
                         "bandwidth of the server's own client")
    return result


# Functions for `plumb parse` ----------------------------------------------

def parse_folder(folder: Path, options: argparse.Namespace | None
                 ) -> tuple[list[tuple[Path, Output]], str]:
    """Records of a folder of logs, and no text.

    :raises ParseError: a log cannot be trusted
    :raises ValueError: a file is missing
    """
    for name in ('setting.yaml', 'client.log'):
        if not (folder / name).exists():
            raise ValueError(f'{name} is missing, so this is not a folder of logs of '
                             'run.py; for printed output, give the files and not '
                             'the folder')
    return [(folder, analyse_log_folder(folder).output)], ''
