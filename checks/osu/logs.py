"""Saved logs with the output of one or several OSU programs.

A log has what a shell, a launcher and a batch system printed around each
output: command lines, prefixes of ranks (`mpirun --tag-output`, `srun
--label`), the three lines of `time`, names of hosts. A JSON file of the
metrics operator (github.com/converged-computing/metrics-operator, SDK 0.0.2
to 0.0.21) has one log, or a list of logs::

    {"data": {"data": [line, ...], "metadata": {...}, "spec": {...}}, "spec": ...}
    [{"data": [line, ...] or text, "metadata": {...}, "spec": {...}}, ...]

Only the lines around an output are treated here. The output itself goes to
`parser.parse`, which refuses a damaged one. A log whose commands are known
must also have the whole table of each command.
"""
from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..core import text as saved
from ..core.parsers import Output, ParseError, Record
from . import programs
from .parser import (
    FAILURE,
    LONGEST,
    PREAMBLE,
    TITLE_START,
    is_result_line,
    parse,
    parse_thread_counts,
    parse_window,
    strip_prefixes,
)

_LAUNCHER = (r'mpirun|mpiexec(?:\.\w+)?|orterun|prterun|prun|srun|jsrun|lrun|aprun'
             r'|ibrun|flux(?: mini)? run')
_COMMAND = re.compile(
    rf'(?:\S*[$#>+] +)?(?P<timed>time +(?:-p +)?)?(?:\w+=\S* +)*'
    rf'(?:\S*/)?(?P<launcher>{_LAUNCHER}) (?P<before>.*?)'
    r'(?<!\S)(?:\S*/)?(?P<program>osu_[a-z0-9_]+)(?P<after> .*)?')
_PROGRAM = re.compile(r'(?<!\S)(?:\S*/)?osu_[a-z0-9_]+(?!\S)')
#: A line of `time` of bash (0m1.495s, 0m1,495s) or of POSIX (1.49).
_TIME = re.compile(r'(real|user|sys)\s+(?:(\d{1,9})m)?(\d{1,9})[.,](\d{1,9})s?')
_TIMES = {'real': 'wall_time', 'user': 'user_time', 'sys': 'system_time'}
#: Nodes of the allocation, which a program need not use all.
_ALLOCATED = re.compile(r'Number of tasks total \(across (\d+) nodes\) is \d+'
                        r'|Number of nodes: +(\d+)')
_BEGIN, _END = 'METRICS OPERATOR COLLECTION START', 'METRICS OPERATOR COLLECTION END'
#: First words of lines that are no rows: dates, times of day, addresses.
_NO_ROW = re.compile(r'\d{4}-\d\d-\d\d\b|\d\d:\d\d:\d\d\b|\d+(?:\.\d+){3}$')
_OMB_LINE = re.compile(r'#|\s*[-+.]?\d|\s*(?:nan|inf)\b|nprocs: |This is a test with',
                       re.IGNORECASE)
#: A row whose first characters were damaged.
_DAMAGED_ROW = re.compile(r'(?=\S*\d)\S{1,20}(?: +\S*\d\S*)+')

#: Options of launchers -> what they say; the first that is given counts.
_OPTIONS = {
    'ranks': ('np', 'n', 'ntasks'),
    'nodes': ('N', 'nodes', 'nnodes'),
    'per_node': ('npernode', 'N', 'ppn', 'ntasks-per-node', 'tasks-per-node'),
    'map_by': ('map-by',),
    'rank_by': ('rank-by',),
    'bind_to': ('bind-to',),
    'cpu_bind': ('cpu-bind', 'cpu_bind'),
    'distribution': ('distribution', 'm'),
    'per_set': ('a', 'tasks_per_rs'),
    'sets_per_node': ('r', 'rs_per_host'),
}
#: Launchers whose -N is a number of nodes, and not of ranks per node.
_NODES_LAUNCHERS = ('srun', 'flux')
#: OMB's options that set the largest message (-m FIRST:LAST, -M); without
#: `last` the largest message is not known.
_SIZES = re.compile(r'(?<!\S)(?:(?:-m|--message-size)[ =]?(?:\d*:)?(?P<last>\d{1,15})'
                    r'(?!\S)|-[mM]|--mem)')
#: Options that become parameters of the test case.
_MAPPING = ('map_by', 'rank_by', 'bind_to', 'cpu_bind', 'distribution')


@dataclass
class _Segment:
    """The lines of one output, and those around it."""
    #: Number of its first line, from 1.
    first: int
    command: re.Match[str] | None = None
    lines: list[str] = field(default_factory=list)
    times: dict[str, tuple[int, float]] = field(default_factory=dict)
    title: str = ''


def parse_text_log(text: str) -> list[Output]:
    """The outputs in a saved log, in order.

    :raises ParseError: the log is cut off, or a part of an output cannot be
        trusted; a log gives all of its outputs or none
    """
    lines = [line.removesuffix('\r') for line in text.split('\n')]
    if lines[-1].strip():
        raise ParseError(len(lines), lines[-1],
                         'the output is cut off: its last line has no end')
    return _parse_lines(lines)


def parse_json_logs(text: str) -> list[Output]:
    """The outputs in a JSON file of the metrics operator, in order.

    `Output.log` counts the logs of a list.

    :raises ParseError: it is not such a file, or see `parse_text_log`; the line is
        that of the log
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as err:
        line = getattr(err, 'lineno', 1)
        raise ParseError(line, '', f'not JSON: {getattr(err, "msg", err)}') from None
    several = isinstance(data, list)
    outputs: list[Output] = []
    for number, entry in enumerate(data if several else [data], 1):
        name = f'[{number}]' if several else ''
        log = entry.get('data') if isinstance(entry, dict) else None
        if isinstance(log, dict):
            log = log.get('data')
        lines = log.split('\n') if isinstance(log, str) else log
        if not isinstance(lines, list) or not lines or not all(
                isinstance(line, str) for line in lines):
            raise ParseError(1, '', 'no lines of a log in data or data.data', name)
        try:
            outputs += [one._replace(log=name) for one in _parse_lines(
                [part for line in lines for part in line.split('\n')])]
        except ParseError as err:
            raise ParseError(err.line, err.text, err.reason, name) from None
    return outputs


def _parse_lines(lines: list[str]) -> list[Output]:
    segments, allocated = _split_into_segments(lines)
    for number, line in enumerate(lines, 1):
        if '# OMB-Py ' in line:
            raise ParseError(number, line, 'OMB-Py, the programs of OMB in Python, is '
                             'not read: use the programs osu_*')
    if not segments:
        raise ParseError(1, lines[0], 'the text has no title of an OSU program')
    named = [one for one in segments if one.command]
    # The metrics operator prints each command.
    if len(named) < len(segments) and (named or _BEGIN in map(str.strip, lines)):
        one = next(one for one in segments if not one.command)
        raise ParseError(one.first, one.lines[0] if one.lines else '',
                         'the output has no command line above it')
    return [_parse_segment(one, allocated) for one in segments]


def _split_into_segments(lines: list[str]) -> tuple[list[_Segment], str]:
    """The segments of a log, and the number of nodes of its allocation."""
    segments: list[_Segment] = []
    before: dict[str, tuple[int, float]] = {}
    allocated, begun, last = '', 0, ''
    waiting: list[str] = []
    for number, (raw, line) in enumerate(
            zip(lines, strip_prefixes(lines), strict=True), 1):
        if len(raw) > LONGEST and not raw.startswith('METADATA '):
            raise ParseError(number, raw, f'the line has {len(raw)} characters')
        stripped = line.strip()
        here = segments[-1] if segments else None
        if match := _ALLOCATED.fullmatch(stripped):
            allocated = match[1] or match[2]
        if stripped in (_BEGIN, _END):
            if (stripped == _END) != bool(begun):
                raise ParseError(number, raw,
                                 'the log has a beginning or an end of the '
                                 'collection without the other')
            begun = number if stripped == _BEGIN else 0
        if match := _COMMAND.fullmatch(saved.last_command(stripped, _PROGRAM)):
            segments.append(_Segment(number, match, ['']))
        elif match := _TIME.fullmatch(stripped):
            times = here.times if here else before
            if here and len(times) == 3 and not here.command:
                times = before
            _add_time(times, number, raw, match)
            if here:
                here.lines.append('')
        elif (line.startswith(TITLE_START) and stripped != last
              and not (here and here.command and not here.title)):
            moved = _take_preamble(here) if here else waiting
            segments.append(_Segment(number - len(moved), None, [*moved, line],
                                     title=stripped))
            if before:
                _refuse_incomplete_times(before)
                segments[-1].times, before = before, {}
        elif here:
            here.lines.append(line)
            if line.startswith(TITLE_START):
                here.title = here.title or stripped
        elif is_result_line(line) and not _NO_ROW.match(stripped):
            segments.append(_Segment(number, None, [line]))
        elif PREAMBLE.fullmatch(stripped) or not stripped and waiting:
            waiting.append(line)
        else:
            waiting = []
        if stripped:
            last = stripped
    if begun:
        raise ParseError(len(lines), lines[-1],
                         'the log is cut off: the collection that begins '
                         f'in line {begun} has no end')
    if before:
        number = min(number for number, _ in before.values())
        raise ParseError(number, lines[number - 1],
                         'the lines of `time` belong to no output')
    return segments, allocated


def _take_preamble(segment: _Segment) -> list[str]:
    """Lines of an output that come before its title."""
    first = at = len(segment.lines)
    while at and (not segment.lines[at - 1].strip()
                  or PREAMBLE.fullmatch(segment.lines[at - 1].strip())):
        at -= 1
        if segment.lines[at].strip():
            first = at
    moved = segment.lines[first:]
    del segment.lines[first:]
    return moved


def _add_time(times: dict[str, tuple[int, float]], number: int, line: str,
              match: re.Match[str]) -> None:
    if list(times) != list(_TIMES)[:len(times)] or match[1] != [
            *_TIMES, ''][len(times)]:
        raise ParseError(number, line,
                         'the lines of `time` are not real, user and sys, once '
                         'for each output')
    seconds = 60 * int(match[2] or 0) + float(f'{match[3]}.{match[4]}')
    times[match[1]] = number, seconds


def _refuse_incomplete_times(times: dict[str, tuple[int, float]]) -> None:
    if times and len(times) < 3:
        raise ParseError(max(number for number, _ in times.values()), '',
                         'the lines of `time` are incomplete')


def _parse_segment(segment: _Segment, allocated: str) -> Output:
    end = max((number for number, line in enumerate(segment.lines, 1)
               if _is_line_of_omb(line)), default=0)
    if not end:
        raise ParseError(segment.first, '', 'the command printed no table')
    shift = segment.first - 1
    failed = saved.find_failure(segment.lines)
    if failed is not None:
        line = segment.lines[failed]
        raise ParseError(segment.first + failed, line,
                         f'the run failed: {line.strip()[:60]!r}')
    text = '\n'.join([*segment.lines[:end], ''])
    try:
        records = parse(text)
    except ParseError as err:
        raise ParseError(err.line + shift, err.text, err.reason) from None
    for number, line in enumerate(segment.lines[end:], segment.first + end):
        if FAILURE.search(line):
            raise ParseError(number, line, f'the run failed: {line.strip()[:60]!r}')
        if _DAMAGED_ROW.fullmatch(line.strip()) and not _NO_ROW.match(line.strip()):
            raise ParseError(number, line, f'this is not a line of OMB: {line[:60]!r}')
    _refuse_incomplete_times(segment.times)
    records = tuple(one._replace(line=one.line + shift) for one in records)
    first = records[0]
    about: dict[str, str] = {'allocated_nodes': allocated} if allocated else {}
    threads = parse_thread_counts(text)
    if len(threads) == 1:
        raise ParseError(segment.first, '', 'a number of threads is missing')
    about |= {name: str(count) for name, count in threads.items()}
    about |= parse_window(text)
    nodes = ranks = None
    if segment.command:
        nodes, ranks, mapping = _read_command(segment.command)
        about |= mapping
        _check_command(segment, segment.command, records, ranks)
        about |= _place_of_ranks(first.program, nodes, ranks)
    records += tuple(
        Record(first.program, first.version, None, _TIMES[name], seconds, 's', number)
        for name, (number, seconds) in segment.times.items())
    return Output(records, num_nodes=nodes, num_tasks=ranks, params=' '.join(
        f'{name}={value.replace(" ", "_")}' for name, value in about.items()))


def _place_of_ranks(program: str, nodes: int | None, ranks: int | None
                    ) -> dict[str, str]:
    """Where the ranks ran, under the names of the checks' parameters; empty if no
    check runs the program so."""
    row = programs.find_program(program)
    if not row or not row.group or not nodes or not ranks:
        return {}
    if row.group in ('multi', 'startup', 'collective'):
        return {'layout': f'{nodes}xone'} if ranks == nodes else {}
    if ranks != 2:
        return {}
    return {'placement': 'intra_node' if nodes == 1 else 'inter_node'}


def _is_line_of_omb(line: str) -> bool:
    return bool(_OMB_LINE.match(line)) and not _NO_ROW.match(line.strip())


def _read_command(command: re.Match[str]) -> tuple[int | None, int | None,
                                                   dict[str, str]]:
    """Nodes, ranks, and parameters of the test case, of a command line."""
    launcher = command['launcher'].split(' ')[0]
    given: dict[str, str] = {}
    for word in _iterate_options(command['before']):
        given.setdefault(*word)

    def value(name: str) -> str:
        return next((given[key] for key in _OPTIONS[name] if key in given), '')

    def number(name: str) -> int:
        text = value(name)
        return int(text) if text.isdecimal() and len(text) < 10 else 0

    ranks, nodes, each = number('ranks'), 0, 0
    if launcher in ('jsrun', 'lrun') and ranks:
        sets, ranks = ranks, ranks * (number('per_set') or 1)
        nodes = -(-sets // number('sets_per_node')) if number('sets_per_node') else 0
    else:
        if launcher in _NODES_LAUNCHERS:
            nodes = number('nodes')
            each = number('per_node') if 'N' not in given else 0
        else:
            mapped = re.fullmatch(r'ppr:(\d{1,9}):node(?:[:,].*)?', value('map_by'))
            each = int(mapped[1]) if mapped else number('per_node')
        nodes = nodes or (-(-ranks // each) if each else 0)
        ranks = ranks or nodes * each
    about = {name: text for name in _MAPPING if (text := value(name))}
    if options := (command['after'] or '').strip():
        about['options'] = options
    return nodes or None, ranks or None, about


def _iterate_options(text: str) -> Iterator[tuple[str, str]]:
    """Options of a launcher and their values; an option without one is '1'."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    for number, word in enumerate(words, 1):
        after = ''.join(words[number:number + 1])
        if match := re.fullmatch(r'-{1,2}([A-Za-z][\w-]*?)(?:=(.*)|(\d+))?', word):
            has_value = match[2] or match[3]
            yield match[1], has_value or ('1' if after.startswith('-') else after)


def _check_command(segment: _Segment, command: re.Match[str],
                   records: tuple[Record, ...], ranks: int | None) -> None:
    """Refuse an output that is not the whole output of its command."""
    first, line = records[0], command.string
    if first.program != command['program'] and not first.program.startswith(
            'osu_bw_fan'):
        raise ParseError(first.line, line,
                         f'the output is of {first.program}, but the command '
                         f'line is of {command["program"]}')
    if command['timed'] and not segment.times:
        raise ParseError(records[-1].line, line,
                         'the output is cut off: the lines of `time` are missing')
    for record in records:
        if record.metric == 'ranks' and ranks not in (None, int(record.value)):
            raise ParseError(record.line, line,
                             f'{record.value:g} of {ranks} ranks answered')
    sizes = _SIZES.search(command['after'] or '')
    if sizes and not sizes['last']:
        return
    last = records[-1]
    permitted = programs.last_message_sizes(
        first.program, ranks or 0, int(sizes['last']) if sizes else 0,
        next((one.size for one in records if one.size), 1))
    if permitted and last.size and not permitted[0] <= last.size <= permitted[1]:
        raise ParseError(last.line, line,
                         f'the table is cut off: it ends at {last.size} B '
                         f'instead of {permitted[1]} B')


def add_options(command: argparse.ArgumentParser) -> None:
    """Options of `plumb parse osu`."""
    command.add_argument(
        '--json', action='store_true', help='the files are JSON files of the metrics '
        'operator, with the lines of each log in data.data')


def parse_log(text: str, options: argparse.Namespace | None = None) -> list[Output]:
    """The outputs in a saved log, in order.

    :raises ParseError: an output cannot be trusted, or the log is cut off.
    """
    as_json = getattr(options, 'json', False)
    return parse_json_logs(text) if as_json else parse_text_log(text)
