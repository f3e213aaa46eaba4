"""Parser of Optcast's evaluation: its printed output, or its logs.

    plumb parse optcast run.txt                  output of run.py
    plumb parse optcast client.log server.log    single logs
    plumb parse optcast LOGDIR --xlim 20,60 --plots DIR
                                                 the original's analysis
    plumb parse optcast RUNS --plots DIR         a folder of outputs of
                                                 run.py: the sweep

Metrics: busbw and algbw of each size (GB/s), and busbw_average; statistics of
client (e2e, req, send, recv) and server (recv, reduce, send) in ms, such as
`client_send_avg`, with `_len` as the number of samples; client_bandwidth, the
mean of the values that the server's own clients print (Gb/s of 2^30 bit).
"""
from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from config.records.units import size_text

from ..core.parsers import ParseError, Record
from ..nccl import parser as nccl
from ..nccl import table
from ..nccl.output import Judge, Output
from ..nccl.programs import PROGRAMS
from . import logs, words
from .logs import Log, Stats

#: File with the settings of a run.
SETTINGS = 'setting.yaml'
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
#: Beginnings of the parts of a printed output, anywhere in a line.
_TITLE = re.compile(rf'{table.BEGINS.pattern}|(?:client|server) stats:')
_LIKE_STATS = re.compile(r'\blen: \d|\bmedian: ')
_OF_SERVER = re.compile(r'rank\(\d+\)/job\(\d+\) ')
#: Lines that only an output of nccl-tests has.
_OF_TABLE = re.compile(
    r'# nThread|# +Rank +\d|# +size +count|# Out of bounds v|# Avg bus b')


def parse(text: str) -> tuple[Record, ...]:
    """The records of one text: the output of a run, or a log.

    :raises ParseError: a part of the text cannot be trusted
    """
    printed, rest = _split_off_printed_statistics(text)
    if printed:
        panic = logs.find_first_panic(text)
        if panic:
            raise ParseError(panic[0], '', f'a thread panicked at {panic[1]}')
        if len({stats.len for side, stats, _ in printed if side == 'client'
                and stats.name != 'reduce'}) > 1:
            raise ParseError(printed[0][2], '', 'the classes of the client '
                             'have different numbers of samples')
        log = logs.Log('output')
        if any(logs.RESULT.search(line) for line in rest.splitlines()):
            log = logs.parse_client_log('\n'.join(
                line for line in rest.splitlines()
                if logs.RESULT.search(line)))
        frame = read_table(enumerate(rest.split('\n'), 1))
        if not frame and not log.bandwidths:
            raise ParseError(1, text[:60], 'the text has statistics, but no '
                             'result: no table of nccl-tests and no line with '
                             'a bandwidth')
        return (*_records_of_table(frame, 'optcast'), *_records_of_client_log(log),
                *(record for side, stats, line in printed
                  for record in _records_of_stats(side, stats, line)))
    log = (logs.parse_server_log(text) if _OF_SERVER.search(text)
           else logs.parse_client_log(text))
    _refuse_log_with_panic(log)
    frame = read_table(log.rest)
    last = text.count('\n') + 1
    if log.side == 'client':
        _require_result_in_log(log, frame, last)
    return (
        *_records_of_table(frame, 'optcast' if log.spans else 'nccl'),
        *_records_of_client_log(log),
        *(
            record
            for stats in log.sample_statistics
            for record in _records_of_stats(log.side, stats, last)
        ),
    )


def _split_off_printed_statistics(text: str) -> tuple[list[tuple[str, Stats, int]],
                                                      str]:
    """The statistics of run.py, with side and line, and the text without them
    (its lines keep their numbers)."""
    results: list[tuple[str, Stats, int]] = []
    rest, side = [], ''
    blocks: dict[str, int] = {}
    whole = text.split('\n')
    for number, line in enumerate(table.strip_prefixes(whole, _TITLE), 1):
        if len(line) > logs.LONGEST:
            raise ParseError(number, line, f'the line has {len(line)} '
                             'characters')
        block, stats = _BLOCK.fullmatch(line), _STATS.fullmatch(line)
        rest.append('')
        if block:
            side = block[1]
            if side in blocks:
                raise ParseError(number, line, f'"{side} stats" occurs twice')
            blocks[side] = number
        elif stats and side:
            read = Stats(stats[1], int(stats[2]), *map(
                float, stats.groups()[2:]))  # type: ignore[arg-type]
            if (side, read.name) in {(s, o.name) for s, o, _ in results}:
                raise ParseError(number, line, f'{read.name} occurs twice')
            if not (read.len and read.min <= read.median <= read.max
                    and read.min - 0.011 <= read.avg <= read.max + 0.011
                    and read.sd <= (read.max - read.min) / 2 + 0.011):
                raise ParseError(number, line, 'the statistics contradict '
                                 'each other')
            results.append((side, read, number))
        elif _LIKE_STATS.search(line):
            raise ParseError(number, line, 'the line of statistics is damaged')
        else:
            rest[-1] = whole[number - 1]
            if line.strip():
                side = ''
    for name, number in blocks.items():
        classes = {stats.name for s, stats, _ in results if s == name}
        if classes not in CLASSES[name]:
            raise ParseError(number, '', f'"{name} stats" is incomplete; it '
                             f'has {", ".join(sorted(classes)) or "nothing"}')
    if 'server' in blocks and 'client' not in blocks:
        raise ParseError(blocks['server'], '', 'the text has "server stats", '
                         'but no "client stats"')
    return results, '\n'.join(rest)


def _refuse_log_with_panic(log: Log) -> None:
    if log.panic:
        raise ParseError(log.panic[0], '', f'a thread of the {log.side} '
                         f'panicked at {log.panic[1]}')


def _require_result_in_log(log: Log, result: Output | None, line: int) -> None:
    if not result and not log.bandwidths:
        raise ParseError(line, '', 'the log has no result: no table of '
                         "nccl-tests and no line with the bandwidth of the "
                         "server's own client")


def read_table(lines: Iterable[tuple[int, str]]) -> Output | None:
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
    out = nccl.read_output(''.join(
        texts.get(number, '') + '\n' for number in range(1, max(texts) + 1)))

    def refuse(reason: str, number: int) -> None:
        raise ParseError(number, texts[number], reason)

    fault = Judge(out, refuse).find_first_inconsistent_row(PROGRAMS['all_reduce_perf'])
    if fault:
        refuse(fault[1], fault[0])
    for row in out.rows:
        if not all(half.checked for _, half in row.halves_with_metric_suffix):
            refuse('the results were not checked: run with -c 1', row.line)
    if len({row.size for row in out.rows}) != len(out.rows):
        refuse('the table has a size twice', out.end)
    return out


def busbw_by_size(table: Output) -> dict[int, float]:
    """busbw in GB/s by size in B, out of place."""
    return {row.size: row.out_of_place.busbw.value for row in table.rows
            if row.out_of_place}


def _records_of_table(result: Output | None, program: str) -> Iterable[Record]:
    if not result:
        return
    for row in result.rows:
        for suffix, half in row.halves_with_metric_suffix:
            yield Record(program, '', row.size, f'algbw{suffix}', half.algbw.value,
                         'GB/s', row.line)
            yield Record(program, '', row.size, f'busbw{suffix}', half.busbw.value,
                         'GB/s', row.line)
    assert result.average
    yield Record(program, '', None, 'busbw_average', result.average.value, 'GB/s',
                 result.end)


def _records_of_client_log(log: Log) -> Iterable[Record]:
    if log.bandwidths:
        yield Record('optcast', '', None, 'client_bandwidth',
                     sum(log.bandwidths) / len(log.bandwidths), 'Gb/s', 1)


def _records_of_stats(side: str, stats: Stats, line: int) -> Iterable[Record]:
    for name in STATISTICS:
        yield Record('optcast', '', None, f'{side}_{stats.name}_{name}',
                     round(float(getattr(stats, name)), 4),
                     '1' if name == 'len' else 'ms', line)


# A folder of logs ----------------------------------------------------------

@dataclass(frozen=True)
class Analysis:
    """Analysis of a folder of logs, like the original's."""
    settings: dict[str, Any]
    client: Log
    server: Log | None
    table: Output | None
    #: Result of a ring of the same clients, in runs of this suite.
    ring: Output | None = None

    @property
    def allreduce_implementation(self) -> str:
        return str(self.settings.get('type', 'optcast'))

    @property
    def program_version(self) -> str:
        """Version of the embedded program; '' for the original."""
        titles = (re.match(r'# optcast (\d+\.\d+) type ', line)
                  for _, line in self.client.rest)
        return next((title[1] for title in titles if title), '')

    @property
    def records(self) -> tuple[Record, ...]:
        return (
            *_records_of_table(self.table, self.allreduce_implementation),
            *_records_of_client_log(self.client),
            *(
                record
                for log in (self.client, self.server)
                if log
                for stats in log.sample_statistics
                for record in _records_of_stats(log.side, stats, 1)
            ),
        )

    def format_report(self) -> str:
        """The analysis in the format of the original."""
        lines = []
        if self.table:
            lines += [line for _, line in self.client.rest
                      if line.startswith('#')]
        for log in (self.client, self.server):
            if log and log.sample_statistics:
                lines += [f'{log.side} stats:',
                          *(stats.format_line() for stats in log.sample_statistics), '']
        return '\n'.join(lines)

    def summary_sentences(self) -> list[str]:
        """Sentences that name the bottleneck of the run."""
        results = []
        if self.server and self.server.sample_statistics:
            results.append(self.find_bottleneck()[1])
        share = words.describe_client_time_shares(self.client.sample_statistics)
        return [*results, *([share] if share else [])]

    def find_bottleneck(self) -> tuple[str, str]:
        """The class of the server's threads that limits the run, and a
        sentence."""
        assert self.server
        ends = sorted(span.end for span in self.server.spans)
        # Half of the samples were dropped.
        half = ends[-1] - ends[len(ends) // 2]
        return words.find_and_describe_bottleneck(
            self.server.sample_statistics, self.thread_counts, half
        )

    @property
    def thread_counts(self) -> dict[str, int]:
        """Threads of each class of a server."""
        return {'recv': int(self.settings.get('num_recvs', 4)),
                'send': int(self.settings.get('num_sends', 4)),
                'reduce': int(self.settings.get('num_threads', 2))}

    def draw_plots(self, folder: Path, xlim: tuple[float, float] | None
             ) -> list[Path]:
        """Draw timelines of client and server, as PNG and SVG, and the sweep
        if there are several sizes."""
        from . import sweep, timeline

        made = [path for log in (self.client, self.server)
                if log and log.spans
                for path in timeline.draw(
                    log.spans, f'{log.side} ({self.allreduce_implementation})', folder,
                    log.side,
                    xlim)]
        curves = {name: busbw_by_size(of) for name, of in (
            (self.allreduce_implementation, self.table), ('ring', self.ring)) if of}
        if any(len(curve) > 1 for curve in curves.values()):
            made += sweep.draw(curves, 'busbw by size', folder, 'sweep')
        return made


def analyse_log_folder(folder: Path) -> Analysis:
    """Analyse the logs of a run: setting.yaml, client.log, server.log and the
    error logs of both.

    :raises ParseError: a file cannot be trusted; the error names it
    :raises OSError: client.log or setting.yaml is missing
    """
    settings = _read_run_settings(folder)
    client = _read_log_file(folder / 'client.log', logs.parse_client_log)
    for side in ('client', 'server'):
        errors = folder / f'{side}_err.log'
        if errors.exists():
            _call_with_file_name_in_error(errors.name, _refuse_log_with_panic, Log(
                side, panic=logs.find_first_panic(
                    errors.read_text(errors='replace'))))
    result = _call_with_file_name_in_error('client.log', read_table, client.rest)
    _call_with_file_name_in_error('client.log', _require_result_in_log, client, result,
                                  len(client.rest) + len(client.spans))
    server = None
    if settings.get('type', 'optcast') == 'optcast':
        server = _read_log_file(folder / 'server.log', logs.parse_server_log)
        if client.spans and not server.spans:
            raise ParseError(1, '', 'the log has no span: start the first '
                             'server with RUST_LOG=TRACE', 'server.log')
    ring = folder / 'ring.txt'
    return Analysis(settings, client, server, result, _call_with_file_name_in_error(
        ring.name, read_table, enumerate(
            ring.read_text(errors='replace').split('\n'), 1))
        if ring.exists() else None)


def _read_run_settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        result = yaml.safe_load(path.read_text())
    except yaml.YAMLError as err:
        mark = getattr(err, 'problem_mark', None)
        raise ParseError(mark.line + 1 if mark else 1, '',
                         'the file is not valid YAML', path.name) from None
    if not isinstance(result, dict) or not isinstance(
            result.get('type', ''), str):
        raise ParseError(1, '', 'the file has no settings of a run',
                         path.name)
    for name in ('num_recvs', 'num_sends', 'num_threads'):
        if type(result.get(name, 1)) is not int or result.get(name, 1) < 1:
            raise ParseError(1, '', f'{name}: {result[name]!r} is not a '
                             'number of threads', path.name)
    return result


def _call_with_file_name_in_error(name: str, call: Any, *arguments: Any) -> Any:
    """Result of a call; its ParseError names the file of the folder."""
    try:
        return call(*arguments)
    except ParseError as err:
        raise ParseError(err.line, err.text, err.reason, name) from None


def _read_log_file(path: Path, read: Any) -> Log:
    text = path.read_bytes().decode(errors='replace')
    log = _call_with_file_name_in_error(path.name, read, text)
    _call_with_file_name_in_error(path.name, _refuse_log_with_panic, log)
    return log


# A folder of printed outputs ------------------------------------------------

_CALL = re.compile(r'^(?:\$ )?(?:\S*python\S* )?\S*\brun\.py\b(.*)', re.M)
_OPTION = re.compile(r'--([\w-]+)[ =]+([^\s-]\S*)')
#: Options of run.py that do not make a separate curve.
_SAME = {'size', 'config', 'nrank', 'xlim', 'nccl-test-options'}


def curve_name_of_output(output: str) -> str:
    """Name of the curve of a printed output, from the command above it:
    `nccl`, or `optcast, chunksize 2M, nsplit 2`; '' without a command."""
    call = _CALL.search(output)
    if not call:
        return ''
    options = dict(_OPTION.findall(call[1]))
    kind = options.pop('type', 'optcast')
    return ', '.join([kind, *(f'{name} {value}' for name, value
                              in sorted(options.items())
                              if name not in _SAME)])


def bandwidth_curves(runs: dict[Path, tuple[Record, ...]], metric: str = 'busbw'
                     ) -> dict[str, dict[int, float]]:
    """Name of the curve -> size -> bandwidth (GB/s; mean of in and out of place).

    A run of run.py has one size. Runs that differ only in size are one curve.

    :param metric: busbw | algbw
    """
    result: dict[str, dict[int, float]] = {}
    for path, records in runs.items():
        values: dict[int, list[float]] = {}
        for record in records:
            if record.size is not None and record.metric.startswith(metric):
                values.setdefault(record.size, []).append(record.value)
        name = curve_name_of_output(path.read_text()) or path.stem
        if not values.keys().isdisjoint(result.get(name, {})):
            name = f'{name} ({path.stem})'
        result.setdefault(name, {}).update(
            {size: sum(of) / len(of) for size, of in values.items()})
    return result


def curve_comparison_sentences(curves: dict[str, dict[int, float]]) -> list[str]:
    """Sentences that compare Optcast with NCCL or a ring at each size."""
    return [f'{size_text(size)}, {name}: '
            + words.compare_bandwidths(curve[size], other[size], against)
            for against in ('nccl', 'ring') if against in curves
            for other in [curves[against]]
            for name, curve in curves.items() if name.startswith('optcast')
            for size in sorted(curve.keys() & other.keys())]


def _parse_outputs_and_draw_sweep(paths: list[Path], plot_folder: Path | None
                  ) -> tuple[list[tuple[Path, tuple[Record, ...]]], str]:
    from . import sweep

    runs = {
        path: _call_with_file_name_in_error(path.name, parse, path.read_text())
        for path in paths
    }
    curves = bandwidth_curves(runs)
    lines = curve_comparison_sentences(curves)
    if plot_folder and any(curves.values()):
        # The published plots have algbw, and the printed averages busbw.
        lines += [f'drawn: {path}' for metric, name in (
            ('busbw', 'sweep'), ('algbw', 'sweep_algbw')) for path in sweep.draw(
                bandwidth_curves(runs, metric),
                f'{metric} by size, mean of in and out of place', plot_folder, name,
                metric=metric)]
    return list(runs.items()), '\n'.join(lines)


# Functions for `plumb parse` ----------------------------------------------

def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for folders of logs."""
    parser.add_argument('--xlim', metavar='A,B', help='window of the '
                        'timelines: from A to B in ms since the first span')
    parser.add_argument('--plots', metavar='DIR', type=Path,
                        help='draw the timelines of client and server into '
                        'DIR, as PNG and SVG; with several sizes also the '
                        'sweep')
    parser.epilog = (
        'Example: "./plumb parse optcast log --xlim 20,60 --plots out" prints '
        'the statistics of client.log and server.log in log/ as CSV, prints '
        'the bottleneck on stderr, and draws the timelines out/client.svg and '
        'out/server.svg from 20 to 60 ms. For a folder of printed outputs '
        '(*.txt, one per run) it compares the runs and draws out/sweep.svg.')


def parse_folder(folder: Path, options: argparse.Namespace | None
                 ) -> tuple[list[tuple[Path, tuple[Record, ...]]], str]:
    """Records of a folder of logs, and a text: the original's analysis, the
    bottleneck, and the names of plots. For a folder of printed outputs (*.txt)
    the text compares the runs and names the plot of the sweep.

    :raises ParseError: a log cannot be trusted; nothing is drawn
    :raises ValueError: an option is invalid
    """
    from . import timeline

    given = vars(options) if options else {}
    texts = sorted(folder.glob('*.txt'))
    if texts and not (folder / SETTINGS).exists():
        return _parse_outputs_and_draw_sweep(texts, given.get('plots'))
    xlim = timeline.parse_time_window(given['xlim']) if given.get('xlim') else None
    result = analyse_log_folder(folder)
    drawn = result.draw_plots(given['plots'], xlim) if given.get('plots') else []
    return [(folder, result.records)], '\n'.join([
        result.format_report(), *result.summary_sentences(), *(f'drawn: {path}'
                                                               for path in drawn)])
