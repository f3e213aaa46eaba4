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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

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
STATISTICS = ('len', 'avg', 'sd', 'median', 'min', 'max')
#: Side -> possible classes of statistics; of the client: NCCL's plugin, the
#: server's own client, its ring.
CLASSES = {'client': ({'e2e', 'req', 'send', 'recv'}, {'send', 'recv'},
                      {'send', 'recv', 'reduce'}),
           'server': ({'recv', 'reduce', 'send'},
                      {'recv', 'reduce', 'send', 'convert'})}
_BLOCK = re.compile(r'(client|server) stats:\s*')
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
_CALL = re.compile(r'^(?:\$ )?(?:\S*python\S* )?\S*\brun\.py\b(.*)', re.M)
_OPTION = re.compile(r'--([\w-]+)[ =]+([^\s-]\S*)')
#: Options of run.py that others have the value of.
_NO_PARAMETERS = {'size', 'config', 'nrank', 'xlim', 'nccl_test_options'}
#: The commands of the clients and servers, which run.py prints.
_STARTED = re.compile(r'^(client|server): .*?-np (\d+) .*', re.M)
_SERVERS = re.compile(r'--reduction-servers[ =](\S+)')


def parse(text: str) -> tuple[Record, ...]:
    """The records of one text: the output of a run, or a log.

    :raises ParseError: a part of the text cannot be trusted
    """
    [output] = parse_log(text)
    return output.records


def parse_log(text: str, options: argparse.Namespace | None = None) -> list[Output]:
    """The output of a run or a log, with the options of the command above it.

    :raises ParseError: a part of the text cannot be trusted
    """
    lines = list(enumerate(text.split('\n'), 1))
    if not _OF_SERVER.search(text):
        saved.refuse_failed_run(text.split('\n'), patterns=saved.CRASHES)
    printed = read_printed_statistics(lines)
    bare = table.strip_prefixes([line for _, line in lines], _TITLE)
    call = _CALL.search('\n'.join(bare))
    parameters = _parameters_of_commands(call[1], '\n'.join(bare)) if call else {}
    if printed:
        client = logs.parse_client_log('\n'.join(
            line for _, line in lines if logs.RESULT.search(line)))
        result = read_table(lines)
    else:
        client = (logs.parse_server_log(text) if _OF_SERVER.search(text)
                  else logs.parse_client_log(text))
        result = read_table(client.rest)
        printed = [(client.side, stats, len(lines))
                   for stats in client.sample_statistics]
    if client.side == 'client':
        _require_result(client, result)
    program = parameters.get('type', 'optcast' if printed else 'nccl')
    return [Output(
        (*_records_of_result(client, result, program),
         *(record for side, stats, line in printed
           for record in _records_of_stats(side, stats, line))),
        num_tasks=result.ranks if result else None,
        params=' '.join(f'{name}={value}' for name, value in sorted(parameters.items())
                        if name not in _NO_PARAMETERS), time=logs.begin_of_log(text))]


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


def read_printed_statistics(lines: Sequence[tuple[int, str]]
                            ) -> list[tuple[str, Stats, int]]:
    """The statistics that run.py printed, with side and line.

    :raises ParseError: they are damaged or incomplete
    """
    blocks: dict[str, dict[str, tuple[Stats, int]]] = {}
    starts: dict[str, int] = {}
    side = ''
    bare = table.strip_prefixes([line for _, line in lines], _TITLE)
    for number, line in enumerate(bare, 1):
        if len(line) > logs.LONGEST:
            raise ParseError(number, line, f'the line has {len(line)} characters')
        block, stats = _BLOCK.fullmatch(line), _STATS.fullmatch(line)
        if block:
            side = block[1]
            if side in blocks:
                raise ParseError(number, line, f'"{side} stats" occurs twice')
            blocks[side], starts[side] = {}, number
        elif stats and side:
            read = Stats(stats[1], int(stats[2]), *map(
                float, stats.groups()[2:]))  # type: ignore[arg-type]
            if read.name in blocks[side]:
                raise ParseError(number, line, f'{read.name} occurs twice')
            if not (read.len and read.min <= read.median <= read.max
                    and read.min - 0.011 <= read.avg <= read.max + 0.011
                    and read.sd <= (read.max - read.min) / 2 + 0.011):
                raise ParseError(number, line, 'the statistics contradict each other')
            blocks[side][read.name] = read, number
        elif _LIKE_STATS.search(line):
            raise ParseError(number, line, 'the line of statistics is damaged')
        elif line.strip():
            side = ''
    if blocks:
        logs.refuse_panics('\n'.join(bare))
    for side, block_stats in blocks.items():
        if set(block_stats) not in CLASSES[side]:
            raise ParseError(starts[side], '', f'"{side} stats" is incomplete; it has '
                             f'{", ".join(sorted(block_stats)) or "nothing"}')
    if len({stats.len for name, (stats, _) in blocks.get('client', {}).items()
            if name != 'reduce'}) > 1:
        raise ParseError(starts['client'], '', 'the classes of the client have '
                         'different numbers of samples')
    if 'server' in blocks and 'client' not in blocks:
        raise ParseError(starts['server'], '', 'the text has "server stats", but no '
                         '"client stats"')
    return [(side, stats, number) for side, block_stats in blocks.items()
            for stats, number in block_stats.values()]


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


def _records_of_result(client: Log, result: nccl.Output | None, program: str
                       ) -> Iterator[Record]:
    if client.bandwidths:
        yield Record('optcast', '', None, 'client_bandwidth',
                     sum(client.bandwidths) / len(client.bandwidths), 'Gb/s', 1)
    if not result:
        return
    for row in result.rows:
        for suffix, half in row.halves_with_metric_suffix:
            algbw, busbw = bandwidths(half, row.size, result.ranks)
            yield Record(program, '', row.size, f'algbw{suffix}', algbw, 'GB/s',
                         row.line)
            yield Record(program, '', row.size, f'busbw{suffix}', busbw, 'GB/s',
                         row.line)
    if result.average:
        yield Record(program, '', None, 'busbw_average', result.average.value, 'GB/s',
                     result.end)


def _records_of_stats(side: str, stats: Stats, line: int) -> Iterator[Record]:
    for name in STATISTICS:
        yield Record('optcast', '', None, f'{side}_{stats.name}_{name}',
                     round(float(getattr(stats, name)), 4),
                     '1' if name == 'len' else 'ms', line)


# A folder of logs ----------------------------------------------------------

@dataclass(frozen=True)
class Analysis:
    """Analysis of a folder of logs, like the original's."""
    #: Contents of setting.yaml.
    settings: dict[str, Any]
    client: Log
    server: Log | None
    table: nccl.Output | None
    #: Result of a ring of the same clients, in runs of this suite.
    ring: nccl.Output | None = None
    #: Time of the first line of the client's log that has one.
    time: datetime.datetime | None = None

    @property
    def type(self) -> str:
        """The implementation of the all-reduce: optcast, nccl, ring, sharp."""
        return str(self.settings.get('type', 'optcast'))

    @property
    def program_version(self) -> str:
        """Version of the embedded program; '' for the original."""
        titles = (re.match(r'# optcast (\d+\.\d+) type ', line)
                  for _, line in self.client.rest)
        return next((title[1] for title in titles if title), '')

    @property
    def parameters(self) -> str:
        """The parameters of the test case that setting.yaml has, as the check names
        them."""
        names = {'data_type': 'data_type', 'clients': RUN_SCRIPT['clients'],
                 'servers': RUN_SCRIPT['servers']}
        return ' '.join([f'type={self.type}', *(
            f'{name}={self.settings[option]}' for name, option in names.items()
            if self.settings.get(option) is not None)])

    @property
    def logs(self) -> tuple[Log, ...]:
        return (self.client, self.server) if self.server else (self.client,)

    @property
    def records(self) -> tuple[Record, ...]:
        return (*_records_of_result(self.client, self.table, self.type),
                *(record for log in self.logs for stats in log.sample_statistics
                  for record in _records_of_stats(log.side, stats, 1)))


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
    for errors in folder.glob('*_err.log'):
        read(errors.name, functools.partial(
            logs.refuse_panics, side=errors.name.partition('_')[0]))
    client = read('client.log', logs.parse_client_log)
    result = read('client.log', lambda _: _require_result(
        client, read_table(client.rest)))
    server = ring = None
    if settings.get('type', 'optcast') == 'optcast':
        server = read('server.log', logs.parse_server_log)
        if client.spans and not server.spans:
            raise ParseError(1, '', 'the log has no span: start the first server '
                             'with RUST_LOG=TRACE', 'server.log')
    if (folder / 'ring.txt').exists():
        ring = read('ring.txt', lambda text: read_table(
            enumerate(text.split('\n'), 1)))
    with open(folder / 'client.log', errors='replace') as lines:
        begin = next(filter(None, map(logs.begin_of_log, lines)), None)
    return Analysis(settings, client, server, result, ring, begin)


def _parse_settings(text: str) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError as err:
        mark = getattr(err, 'problem_mark', None)
        raise ParseError(mark.line + 1 if mark else 1, '', 'the file is not valid YAML'
                         ) from None
    if not isinstance(settings, dict):
        raise ParseError(1, '', 'the file has no settings of a run')
    return settings


def _require_result(client: Log, result: nccl.Output | None) -> nccl.Output | None:
    """The table of clients, or None if the server's own client printed a bandwidth."""
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
                             'run.py; of printed outputs give the files')
    result = analyse_log_folder(folder)
    return [(folder, Output(result.records,
                            num_tasks=result.table.ranks if result.table else None,
                            params=result.parameters, time=result.time))
            ], ''
