"""What a run of Optcast's evaluation leaves: its printed output, or its logs.

    plumb parse optcast run.txt                  what run.py printed
    plumb parse optcast client.log server.log    each log by itself
    plumb parse optcast LOGDIR --xlim 20,60 --plots DIR
                                                 the original's analysis
    plumb parse optcast RUNS --plots DIR       a folder of printed outputs,
                                                 a run each: the sweep

Figures: busbw and algbw of each size (GB/s), busbw_average; the statistics
of client (e2e, req, send, recv) and server (recv, reduce, send) in ms, each
`client_send_avg` and so on, `_len` how many samples; client_bandwidth, what
the server's own client tells (mean of the clients, Gb/s of 2^30 bit).
"""
from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..core.parsers import ParseError, Record
from . import logs, table, words
from .logs import Log, Stats
from .table import Table

#: Of the suite's own runs, and of run.py.
SETTINGS = ('settings.yaml', 'setting.yaml')
STATISTICS = ('len', 'avg', 'sd', 'median', 'min', 'max')
#: Classes of the statistics, by side; the first set is NCCL's plugin, the
#: second the server's own client, the third its ring.
CLASSES = {'client': ({'e2e', 'req', 'send', 'recv'}, {'send', 'recv'},
                      {'send', 'recv', 'reduce'}),
           'server': ({'recv', 'reduce', 'send'},
                      {'recv', 'reduce', 'send', 'convert'})}

_BLOCK = re.compile(r'(client|server) stats:\s*')
_STATS = re.compile(
    r'  (\w+) +len: (\d+), avg: (\d+\.\d\d), sd: (\d+\.\d\d), '
    r'median: (\d+\.\d\d), min: (\d+\.\d\d), max: (\d+\.\d\d)\s*')
_LIKE_STATS = re.compile(r'\blen: \d|\bmedian: ')
_OF_SERVER = re.compile(r'rank\(\d+\)/job\(\d+\) ')


def parse(text: str) -> tuple[Record, ...]:
    """The figures of one text: a run's output, or a log.

    :raises ParseError: any of it cannot be trusted
    """
    printed, rest = _printed(text)
    if printed:
        panic = logs.first_panic(text)
        if panic:
            raise ParseError(panic[0], '', f'a thread panicked at {panic[1]}')
        if len({one.len for side, one, _ in printed if side == 'client'
                and one.name != 'reduce'}) > 1:
            raise ParseError(printed[0][2], '', 'classes of the client have '
                             'different numbers of samples')
        log = logs.Log('output')
        if any(logs.RESULT.search(line) for line in rest.splitlines()):
            log = logs.client('\n'.join(
                line for line in rest.splitlines()
                if logs.RESULT.search(line)))
        frame = table.read(enumerate(rest.split('\n'), 1))
        if not frame and not log.bandwidths:
            raise ParseError(1, text[:60], 'statistics without a result: a '
                             'table of NCCL, or a line with a bandwidth')
        return (*_of_table(frame, 'optcast'), *_of_client(log),
                *(record for side, stats, line in printed
                  for record in _of_stats(side, stats, line)))
    log = (logs.server(text) if _OF_SERVER.search(text)
           else logs.client(text))
    _refuse_panic(log)
    frame = table.read(log.rest)
    last = text.count('\n') + 1
    if log.side == 'client':
        _look_for_result(log, frame, last)
    return (*_of_table(frame, 'optcast' if log.spans else 'nccl'),
            *_of_client(log), *(record for stats in log.stats for record
                                in _of_stats(log.side, stats, last)))


def _printed(text: str) -> tuple[list[tuple[str, Stats, int]], str]:
    """The statistics that run.py printed, with side and line, and the text
    without them (its lines keep their numbers)."""
    results: list[tuple[str, Stats, int]] = []
    rest, side = [], ''
    blocks: dict[str, int] = {}
    for number, line in enumerate(text.split('\n'), 1):
        if len(line) > logs.LONGEST:
            raise ParseError(number, line, f'a line of {len(line)} '
                             'characters')
        block, stats = _BLOCK.fullmatch(line), _STATS.fullmatch(line)
        rest.append('')
        if block:
            side = block[1]
            if side in blocks:
                raise ParseError(number, line, f'{side} stats stand twice')
            blocks[side] = number
        elif stats and side:
            one = Stats(stats[1], int(stats[2]), *map(
                float, stats.groups()[2:]))  # type: ignore[arg-type]
            if (side, one.name) in {(s, o.name) for s, o, _ in results}:
                raise ParseError(number, line, f'{one.name} stands twice')
            if not (one.len and one.min <= one.median <= one.max
                    and one.min - 0.011 <= one.avg <= one.max + 0.011
                    and one.sd <= (one.max - one.min) / 2 + 0.011):
                raise ParseError(number, line, 'statistics that contradict '
                                 'each other')
            results.append((side, one, number))
        elif _LIKE_STATS.search(line):
            raise ParseError(number, line, 'a damaged line of statistics')
        else:
            rest[-1] = line
            if line.strip():
                side = ''
    for name, number in blocks.items():
        there = {one.name for s, one, _ in results if s == name}
        if there not in CLASSES[name]:
            raise ParseError(number, '', f'{name} stats are not whole: '
                             f'{", ".join(sorted(there)) or "none"}')
    if 'server' in blocks and 'client' not in blocks:
        raise ParseError(blocks['server'], '', 'no client stats')
    return results, '\n'.join(rest)


def _refuse_panic(log: Log) -> None:
    if log.panic:
        raise ParseError(log.panic[0], '', f'a thread of the {log.side} '
                         f'panicked at {log.panic[1]}')


def _look_for_result(log: Log, result: table.Table | None, line: int) -> None:
    if not result and not log.bandwidths:
        raise ParseError(line, '', 'no result: neither a table of NCCL nor a '
                         "line with the bandwidth of the server's own client")


def _of_table(result: table.Table | None, program: str) -> Iterable[Record]:
    if not result:
        return
    for row in result.rows:
        more = '_in_place' if row.in_place else ''
        yield Record(program, '', row.size, f'algbw{more}', row.algbw, 'GB/s',
                     row.line)
        yield Record(program, '', row.size, f'busbw{more}', row.busbw, 'GB/s',
                     row.line)
    yield Record(program, '', None, 'busbw_average', result.average, 'GB/s',
                 result.line)


def _of_client(log: Log) -> Iterable[Record]:
    if log.bandwidths:
        yield Record('optcast', '', None, 'client_bandwidth',
                     sum(log.bandwidths) / len(log.bandwidths), 'Gb/s', 1)


def _of_stats(side: str, stats: Stats, line: int) -> Iterable[Record]:
    for name in STATISTICS:
        yield Record('optcast', '', None, f'{side}_{stats.name}_{name}',
                     round(float(getattr(stats, name)), 4),
                     '1' if name == 'len' else 'ms', line)


# A folder of logs ----------------------------------------------------------

@dataclass(frozen=True)
class Analysis:
    """What the original's analysis finds in a folder of logs."""
    settings: dict[str, Any]
    client: Log
    server: Log | None
    table: Table | None
    #: Of the suite's own runs: what a ring of the same clients reached.
    ring: Table | None = None

    @property
    def type(self) -> str:
        return str(self.settings.get('type', 'optcast'))

    @property
    def version(self) -> str:
        """Of the suite's own program, which prints it; else ''."""
        titles = (re.match(r'# optcast (\d+\.\d+) type ', line)
                  for _, line in self.client.rest)
        return next((title[1] for title in titles if title), '')

    @property
    def records(self) -> tuple[Record, ...]:
        return (*_of_table(self.table, self.type), *_of_client(self.client),
                *(record for log in (self.client, self.server) if log
                  for stats in log.stats
                  for record in _of_stats(log.side, stats, 1)))

    def text(self) -> str:
        """What the original prints."""
        messages = []
        if self.table:
            messages += [line for _, line in self.client.rest
                     if line.startswith('#')]
        for log in (self.client, self.server):
            if log and log.stats:
                messages += [f'{log.side} stats:',
                         *(one.text() for one in log.stats), '']
        return '\n'.join(messages)

    def sentences(self) -> list[str]:
        """What holds the run back, in words."""
        results = []
        if self.server and self.server.stats:
            results.append(self.bottleneck()[1])
        share = words.client_share(self.client.stats)
        return [*results, *([share] if share else [])]

    def bottleneck(self) -> tuple[str, str]:
        """The class of the server's threads that sets the pace."""
        assert self.server
        ends = sorted(span.end for span in self.server.spans)
        # Half of the samples were dropped.
        half = ends[-1] - ends[len(ends) // 2]
        return words.bottleneck(self.server.stats, self.threads, half)

    @property
    def threads(self) -> dict[str, int]:
        """Threads of each class of a server."""
        return {'recv': int(self.settings.get('num_recvs', 4)),
                'send': int(self.settings.get('num_sends', 4)),
                'reduce': int(self.settings.get('num_threads', 2))}

    def draw(self, folder: Path, xlim: tuple[float, float] | None
             ) -> list[Path]:
        """Timelines of client and server, as PNG and SVG; of several sizes
        the sweep, too."""
        from . import sweep, timeline

        made = [path for log in (self.client, self.server)
                if log and log.spans
                for path in timeline.draw(
                    log.spans, f'{log.side} ({self.type})', folder, log.side,
                    xlim)]
        curves = {name: of.curve for name, of in (
            (self.type, self.table), ('ring', self.ring)) if of}
        if any(len(curve) > 1 for curve in curves.values()):
            made += sweep.draw(curves, 'busbw by size', folder, 'sweep')
        return made


def analyse(folder: Path) -> Analysis:
    """The logs of a run: setting.yaml, client.log, server.log and the errors
    of both.

    :raises ParseError: one of them cannot be trusted; names it
    :raises OSError: client.log or setting.yaml is missing
    """
    settings = _settings(folder)
    client = _log(folder / 'client.log', logs.client)
    for side in ('client', 'server'):
        errors = folder / f'{side}_err.log'
        if errors.exists():
            _in(errors.name, _refuse_panic, Log(
                side, panic=logs.first_panic(
                    errors.read_text(errors='replace'))))
    result = _in('client.log', table.read, client.rest)
    _in('client.log', _look_for_result, client, result,
        len(client.rest) + len(client.spans))
    server = None
    if settings.get('type', 'optcast') == 'optcast':
        server = _log(folder / 'server.log', logs.server)
        if client.spans and not server.spans:
            raise ParseError(1, '', 'no line of a span: the first server '
                             'traces (RUST_LOG=TRACE)', 'server.log')
    ring = folder / 'ring.txt'
    return Analysis(settings, client, server, result, _in(
        ring.name, table.read, enumerate(
            ring.read_text(errors='replace').split('\n'), 1))
        if ring.exists() else None)


def _settings(folder: Path) -> dict[str, Any]:
    path = next((folder / name for name in SETTINGS
                 if (folder / name).exists()), folder / SETTINGS[-1])
    try:
        result = yaml.safe_load(path.read_text())
    except yaml.YAMLError as err:
        mark = getattr(err, 'problem_mark', None)
        raise ParseError(mark.line + 1 if mark else 1, '', 'no YAML',
                         path.name) from None
    if not isinstance(result, dict) or not isinstance(
            result.get('type', ''), str):
        raise ParseError(1, '', 'no settings of a run', path.name)
    for name in ('num_recvs', 'num_sends', 'num_threads'):
        if type(result.get(name, 1)) is not int or result.get(name, 1) < 1:
            raise ParseError(1, '', f'{name}: {result[name]!r} is no number '
                             'of threads', path.name)
    return result


def _in(name: str, call: Any, *arguments: Any) -> Any:
    """A call whose ParseError tells in which file of the folder it is."""
    try:
        return call(*arguments)
    except ParseError as err:
        raise ParseError(err.line, err.text, err.reason, name) from None


def _log(path: Path, read: Any) -> Log:
    text = path.read_bytes().decode(errors='replace')
    log = _in(path.name, read, text)
    _in(path.name, _refuse_panic, log)
    return log


# A folder of printed outputs ------------------------------------------------

_CALL = re.compile(r'^(?:\$ )?(?:\S*python\S* )?\S*\brun\.py\b(.*)', re.M)
_OPTION = re.compile(r'--([\w-]+)[ =]+([^\s-]\S*)')
#: Options of run.py that make no curve of their own.
_SAME = {'size', 'config', 'nrank', 'xlim', 'nccl-test-options'}


def way(text: str) -> str:
    """What a printed output is of, by the command above it: `nccl`, or
    `optcast, chunksize 2M, nsplit 2`; '': it has no command."""
    call = _CALL.search(text)
    if not call:
        return ''
    options = dict(_OPTION.findall(call[1]))
    kind = options.pop('type', 'optcast')
    return ', '.join([kind, *(f'{name} {value}' for name, value
                              in sorted(options.items())
                              if name not in _SAME)])


def curves_of(runs: dict[Path, tuple[Record, ...]]
              ) -> dict[str, dict[int, float]]:
    """Way -> size -> busbw (GB/s; in and out of place their mean). A run of
    run.py has one size: those that differ in nothing else are one curve."""
    result: dict[str, dict[int, float]] = {}
    for path, records in runs.items():
        busbw: dict[int, list[float]] = {}
        for record in records:
            if record.size is not None and record.metric.startswith('busbw'):
                busbw.setdefault(record.size, []).append(record.value)
        name = way(path.read_text()) or path.stem
        if not busbw.keys().isdisjoint(result.get(name, {})):
            name = f'{name} ({path.stem})'
        result.setdefault(name, {}).update(
            {size: sum(of) / len(of) for size, of in busbw.items()})
    return result


def compared(curves: dict[str, dict[int, float]]) -> list[str]:
    """Who is ahead of NCCL, or of a ring, at each size, in words."""
    return [f'{size} B, {name}: ' + words.ahead(curve[size], other[size],
                                                against)
            for against in ('nccl', 'ring') if against in curves
            for other in [curves[against]]
            for name, curve in curves.items() if name.startswith('optcast')
            for size in sorted(curve.keys() & other.keys())]


def _printed_runs(paths: list[Path], plots: Path | None
                  ) -> tuple[list[tuple[Path, tuple[Record, ...]]], str]:
    from . import sweep

    runs = {path: _in(path.name, parse, path.read_text()) for path in paths}
    curves = curves_of(runs)
    output = compared(curves)
    if plots and any(curves.values()):
        output += [f'drawn: {path}' for path in sweep.draw(
            curves, 'busbw by size, mean of in and out of place', plots,
            'sweep')]
    return list(runs.items()), '\n'.join(output)


# What `plumb parse` asks --------------------------------------------------

def add_options(parser: argparse.ArgumentParser) -> None:
    """Options for folders of logs."""
    parser.add_argument('--xlim', metavar='A,B', help='window of the '
                        'timelines, from and to in ms since the first span')
    parser.add_argument('--plots', metavar='DIR', type=Path,
                        help='draw the timelines of client and server there, '
                        'PNG and SVG; of several sizes the sweep, too')
    parser.epilog = (
        'Example: ./plumb parse optcast log --xlim 20,60 --plots out: the '
        'statistics of client.log and server.log in log/ as CSV, what holds '
        'the run back on stderr, and the timelines out/client.svg and '
        'out/server.svg from 20 to 60 ms. Of a folder of printed outputs '
        '(*.txt, a run each): who is ahead, and out/sweep.svg.')


def parse_folder(folder: Path, options: argparse.Namespace | None
                 ) -> tuple[list[tuple[Path, tuple[Record, ...]]], str]:
    """Records of a folder of logs; what the original prints, what holds the
    run back, and the figures that were drawn, where asked for. Of a folder of
    printed outputs (*.txt): who is ahead, and the sweep.

    :raises ParseError: a log cannot be trusted; nothing is drawn
    :raises ValueError: an option is wrong
    """
    from . import timeline

    request = vars(options) if options else {}
    texts = sorted(folder.glob('*.txt'))
    if texts and not any((folder / name).exists() for name in SETTINGS):
        return _printed_runs(texts, request.get('plots'))
    xlim = timeline.window(request['xlim']) if request.get('xlim') else None
    result = analyse(folder)
    drawn = result.draw(request['plots'], xlim) if request.get('plots') else []
    return [(folder, result.records)], '\n'.join([
        result.text(), *result.sentences(), *(f'drawn: {path}'
                                            for path in drawn)])
