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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..core import text as saved
from ..core.parsers import Output, ParseError, Record
from ..core.tables import LONGEST
from . import programs
from .parser import (
    PREAMBLE,
    TITLE_START,
    is_result_line,
    parse,
    parse_setup,
    strip_prefixes,
)

_LAUNCHER = (r'mpirun(?:_rsh)?|mpiexec(?:\.\w+)?|orterun|prterun|prun|srun|jsrun|lrun'
             r'|aprun|ibrun|flux(?: mini)? run')
_COMMAND = re.compile(
    rf'{saved.PROMPT}(?:(?:\S*/)?time -v +|(?P<timed>(?:\S*/)?time +(?:-p +)?))?'
    r'(?:\w+=\S* +)*'
    # What starts a launcher elsewhere, or with other rights or limits.
    r'(?:(?:ssh|sudo|nohup|timeout|nice|env|docker|podman|kubectl|apptainer'
    r'|singularity) (?:\S+ +)*?[\'"]?)?'
    rf'(?:\S*/)?(?P<launcher>{_LAUNCHER}) (?P<before>.*?)'
    r'(?<![^\s\'"])(?:\S*/)?(?P<program>osu_[a-z0-9_]+)(?P<after>[ \'"].*)?')
_PROGRAM = re.compile(r'(?<![^\s\'"])(?:[^\s\'"]*/)?osu_[a-z0-9_]+(?![^\s\'"])')
#: A line of `time` of bash (0m1.495s, 0m1,495s) or of POSIX (1.49).
_TIME = re.compile(r'(real|user|sys)\s+(?:(\d{1,9})m)?(\d{1,9})[.,](\d{1,9})s?')
#: The line of `time` of GNU (0.12user 0.05system 0:05.12elapsed), tcsh and zsh.
_TIME_LINE = re.compile(
    r'(?P<user>\d+\.\d+)u(?:ser)? (?P<sys>\d+\.\d+)s(?:ystem)? '
    r'(?P<real>[\d:]+\.\d+)(?:elapsed)? [\d.]+%.*'
    r'|.* (?P<user_>\d+\.\d+)s user (?P<sys_>\d+\.\d+)s system \d+% cpu '
    r'(?P<real_>[\d:]+\.\d+) total')
_TIMES = {'real': 'wall_time', 'user': 'user_time', 'sys': 'system_time'}
#: Nodes of the allocation, which a program need not use all.
_ALLOCATED = re.compile(r'Number of tasks total \(across (\d+) nodes\) is \d+'
                        r'|Number of nodes: +(\d+)')
_BEGIN, _END = 'METRICS OPERATOR COLLECTION START', 'METRICS OPERATOR COLLECTION END'
#: Lines that are no rows: dates, times of day, addresses, seconds since 1970, and jobs
#: in a list of Slurm, and counters of `time` and `perf stat`.
_NO_ROW = re.compile(
    r'\d{4}-\d\d-\d\d\b|\d\d:\d\d:\d\d\b|\d+(?:\.\d+){3}$|1[5-9]\d{8}(?:\.\d{3,9})?$'
    r'|\d+(?:[._]\w+)* .*\b(?:COMPLET(?:ED|ING)|RUNNING)\b'
    r'|\d+inputs\+|[\d.,]+ +(?:msec +)?[a-z][\w/:-]+ +#')
#: A header, a row, or what may be left of one.
_OMB_LINE = re.compile(
    r'# *(?:\d|OSU|Size|Datatype|Avg|Overall|Operation|Bandwidth|Latency|Uni-dir'
    r'|Message|MB/s)|\s*[-+.]?\d\S*(?:\s{2,}|(?:\s+(?:\S*\d\S*|Pass|Fail|-?nan|inf))*\s*$)'
    r'|\s*[-+]?(?:nan|inf)\b|nprocs: |This is a test with', re.IGNORECASE)
#: Titles of OMB-Py and OMB-J, which have no version.
_OTHER_OMB = re.compile(r'# OMB[- ]Py|# OSU (?:Open MPI )?[\w-]+ Test\s*$')
#: A row whose first characters were damaged.
_DAMAGED_ROW = re.compile(r'(?=\S*\d)\S{1,20}(?: +\S*\d\S*)+')

#: Options of launchers -> what they say; the first that is given counts.
_OPTIONS = {
    'ranks': ('np', 'n', 'ntasks'),
    'nodes': ('N', 'nodes', 'nnodes'),
    'per_node': ('npernode', 'ppn', 'perhost', 'ntasks-per-node', 'tasks-per-node'),
    'per_node_short': ('N',),           # of other launchers than srun and flux
    'hosts': ('H', 'host'),
    'map_by': ('map-by',),
    'rank_by': ('rank-by',),
    'bind_to': ('bind-to',),
    'cpu_bind': ('cpu-bind', 'cpu_bind'),
    'distribution': ('distribution', 'm'),
    'per_set': ('a', 'tasks_per_rs'),
    'sets_per_node': ('r', 'rs_per_host'),
}
#: Options that become parameters of the test case.
_MAPPING = ('map_by', 'rank_by', 'bind_to', 'cpu_bind', 'distribution')
#: OMB's options that set the largest message (-m FIRST:LAST, -M); without
#: `last` the largest message is not known.
_SIZES = re.compile(r'(?<!\S)(?:(?:-m|--message-size)[ =]?(?:\d*:)?(?P<last>\d{1,15})'
                    r'(?!\S)|-[mM]|--mem)')


@dataclass
class _Segment:
    """The lines of one output, from that of its command on."""
    #: Index of its first line.
    first: int
    command: re.Match[str] | None = None
    has_title: bool = False


def parse_json_logs(text: str) -> list[Output]:
    """The outputs in a JSON file of the metrics operator, in order.

    `Output.log` counts the logs of a list.

    :raises ParseError: it is not such a file, or see `parse_log`; the line is
        that of the log
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise ParseError(getattr(err, 'lineno', 1), '', f'not JSON: {err}') from None
    outputs: list[Output] = []
    for number, entry in enumerate(data if isinstance(data, list) else [data], 1):
        name = f'[{number}]' if isinstance(data, list) else ''
        log = entry.get('data') if isinstance(entry, dict) else None
        if isinstance(log, dict):
            log = log.get('data')
        lines = log.split('\n') if isinstance(log, str) else log
        if not isinstance(lines, list) or not lines or not all(
                isinstance(line, str) for line in lines):
            raise ParseError(1, '', 'the key data, or data.data, must have the '
                             'lines of a log', name)
        try:
            outputs += [one._replace(log=name)
                        for one in _parse_lines('\n'.join(lines).split('\n'))]
        except ParseError as err:
            raise ParseError(err.line, err.text, err.reason, name) from None
    return outputs


def _parse_lines(raw: list[str]) -> list[Output]:
    for number, line in enumerate(raw, 1):
        if _OTHER_OMB.search(line):
            raise ParseError(number, line, 'the programs of OMB in Python (OMB-Py) and '
                             'Java (OMB-J) are not read: use the programs osu_*')
        if len(line) > LONGEST and not line.startswith('METADATA '):
            raise ParseError(number, line, f'the line has {len(line)} characters')
    lines = strip_prefixes(raw)
    marks = [(number, line.strip()) for number, line in enumerate(lines, 1)
             if line.strip() in (_BEGIN, _END)]
    for at, (number, mark) in enumerate(marks):
        if mark != (_END if at % 2 else _BEGIN) or at == len(marks) - 1 and not at % 2:
            raise ParseError(number, raw[number - 1], 'the log is cut off: the begin '
                             'or the end of the collection is missing')
    segments = _split_into_segments(lines)
    if not segments:
        saved.refuse_failed_run(lines)
        raise ParseError(1, raw[0], 'the text has no title of an OSU program')
    # The metrics operator prints each command.
    if marks or any(one.command for one in segments):
        for one in segments:
            if not one.command:
                raise ParseError(one.first + 1, raw[one.first],
                                 'the output has no command line above it')
    times = _read_times(lines, segments)
    allocated = [match[1] or match[2] for line in lines
                 if (match := _ALLOCATED.fullmatch(line.strip()))]
    ends = [*(one.first for one in segments[1:]), len(lines)]
    return [_parse_segment(one, lines[one.first:end], allocated[-1:], time)
            for one, end, time in zip(segments, ends, times, strict=True)]


def _split_into_segments(lines: list[str]) -> list[_Segment]:
    """The outputs of a log, by their command lines or titles."""
    segments: list[_Segment] = []
    last = ''
    for number, line in enumerate(lines):
        stripped = line.strip()
        here = segments[-1] if segments else None
        match = _COMMAND.fullmatch(saved.last_command(stripped, _PROGRAM))
        # A line of a script with a variable is no command that ran.
        if match and not (saved.VARIABLE.search(stripped)
                          or _TIME_LINE.fullmatch(stripped)):
            segments.append(_Segment(number, match))
            lines[number] = ''
        elif line.startswith(TITLE_START) and stripped != last:
            if not here or here.has_title or not here.command:
                first = at = number     # some lines of an output precede its title
                while at and (not lines[at - 1].strip()
                              or PREAMBLE.fullmatch(lines[at - 1].strip())):
                    at -= 1
                    first = at if lines[at].strip() else first
                here = _Segment(first)
                segments.append(here)
            here.has_title = True
        elif not here and is_result_line(line) and not _NO_ROW.match(stripped):
            segments.append(_Segment(number))
        last = stripped or last
    return segments


def _read_times(lines: list[str], segments: list[_Segment]) -> list[list[Record]]:
    """The records of `time` of each output, without program. The lines of `time` may
    come before or after their output."""
    read = [(number, *time) for number, line in enumerate(lines, 1)
            for time in _times_in_line(line.strip())]
    runs = [one for one in segments if one.command and one.command['timed']]
    runs = runs or segments * bool(read)
    if [name for _, name, _ in read] != list(_TIMES) * len(runs):
        number = read[-1][0] if read else runs[0].first + 1
        raise ParseError(number, '', 'each output needs the lines real, user and sys '
                         'of `time` exactly once; some are missing, incomplete or '
                         'repeated')
    for number, _, _ in read:
        lines[number - 1] = ''
    records = [Record('', '', None, _TIMES[name], seconds, 's', number)
               for number, name, seconds in read]
    triples = iter([records[at:at + 3] for at in range(0, len(records), 3)])
    return [next(triples) if one in runs else [] for one in segments]


def _times_in_line(line: str) -> Iterator[tuple[str, float]]:
    """The times that a line of `time` has: real, user or sys, and seconds."""
    if match := _TIME.fullmatch(line):
        yield match[1], 60 * int(match[2] or 0) + float(f'{match[3]}.{match[4]}')
    elif match := _TIME_LINE.fullmatch(line):
        for name in _TIMES:
            parts = (match[name] or match[f'{name}_']).split(':')
            yield name, sum(float(part) * 60 ** place
                            for place, part in enumerate(reversed(parts)))


def _parse_segment(segment: _Segment, lines: list[str], allocated: list[str],
                   times: list[Record]) -> Output:
    """The output of a segment.

    :param allocated: number of nodes of the allocation, if the log has it
    """
    def is_line_of_omb(line: str) -> bool:
        return bool(_OMB_LINE.match(line)) and not _NO_ROW.match(line.strip())

    first, command = segment.first, segment.command
    end = max((number for number, line in enumerate(lines, 1) if is_line_of_omb(line)),
              default=0)
    if not end:
        raise ParseError(first + 1, '', 'the command printed no table')
    saved.refuse_failed_run(lines, first + 1)
    text = '\n'.join([*lines[:end], ''])
    try:
        records = parse(text)
    except ParseError as err:
        raise ParseError(err.line + first, err.text, err.reason) from None
    size = records[-1].size
    for number, line in enumerate(lines[end:], first + end + 1):
        if _DAMAGED_ROW.fullmatch(line.strip()) and not _NO_ROW.match(line.strip()):
            raise ParseError(number, line, f'this is not a line of OMB: {line[:60]!r}')
        if size is not None and re.match(rf'\W*{2 * size or 1}(?!\d).*\d\.\d', line):
            raise ParseError(number, line, 'this row of the next size is damaged: '
                             f'{line[:60]!r}' + saved.foreign_cause([line]))
    records = tuple(one._replace(line=one.line + first) for one in records)
    program, version = records[0].program, records[0].version
    about = dict(zip(('allocated_nodes',), allocated, strict=False))
    row = programs.find_program(program)
    about |= parse_setup(text, row.validation_type if row else '')
    if ('sender_threads' in about) != ('receiver_threads' in about):
        raise ParseError(first + 1, '', 'only one of the lines "Number of Sender '
                         'threads" and "Number of Receiver threads" is there')
    nodes, ranks = None, next(
        (int(one.value) for one in records if one.metric == 'ranks'), None)
    if pairs := about.pop('pairs', None):
        ranks = 2 * int(pairs)
    if command:
        nodes, given, mapping = _read_command(command)
        ranks = given or ranks
        _check_command(command, records, given)
        about |= mapping | _place_of_ranks(program, nodes, ranks)
    records += tuple(one._replace(program=program, version=version) for one in times)
    return Output(records, num_nodes=nodes, num_tasks=ranks, params=' '.join(
        f'{name}={value.replace(" ", "_")}' for name, value in about.items()))


def _place_of_ranks(program: str, nodes: int | None, ranks: int | None
                    ) -> dict[str, str]:
    """Where the ranks ran, under the names of the checks' parameters; empty if no
    check runs the program so."""
    row = programs.find_program(program)
    if not row or not nodes or not ranks:
        return {}
    if row.group in ('multi', 'startup', 'collective'):
        return {'layout': f'{nodes}xone'} if ranks == nodes else {}
    return {'placement': 'intra_node' if nodes == 1 else 'inter_node'
            } if ranks == 2 else {}


def _read_command(command: re.Match[str]) -> tuple[int | None, int | None,
                                                   dict[str, str]]:
    """Nodes, ranks, and parameters of the test case, of a command line."""
    launcher = command['launcher'].split(' ')[0]
    given = saved.options_of_command(command['before'])

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
        if launcher in ('srun', 'flux'):        # their -N is a number of nodes
            nodes, each = number('nodes'), number('per_node')
        else:
            mapped = re.fullmatch(r'ppr:(\d{1,9}):node(?:[:,].*)?', value('map_by'))
            each = (int(mapped[1]) if mapped else number('per_node')
                    or number('per_node_short') or 'pernode' in given)
            if not each and ranks:
                nodes = _nodes_of_hosts(value('hosts'), ranks)
        nodes = nodes or (-(-ranks // each) if each else 0)
        ranks = ranks or nodes * each
    about = {name: text for name in _MAPPING if (text := value(name))}
    if options := (command['after'] or '').strip(' \'"'):
        about['options'] = options
    return nodes or None, ranks or None, about


def _nodes_of_hosts(hosts: str, ranks: int) -> int:
    """Nodes of ranks that fill a list of hosts and slots (n1:2,n2:2); 0: they do not.
    """
    slots: Counter[str] = Counter()
    for host in filter(None, hosts.split(',')):
        name, _, count = host.partition(':')
        slots[name] += int(count) if count.isdecimal() and len(count) < 5 else 1
    return len(slots) if sum(slots.values()) == ranks else 0


def _check_command(command: re.Match[str], records: tuple[Record, ...],
                   ranks: int | None) -> None:
    """Refuse an output that is not the whole output of its command."""
    first = records[0]
    if first.program != command['program'] and any(
            map(programs.find_program, (first.program, command['program']))):
        raise ParseError(first.line, command.string, f'the output is of {first.program}'
                         f', but the command line is of {command["program"]}')
    sizes = _SIZES.search(command['after'] or '')
    if sizes and not sizes['last']:
        return
    if missing := programs.missing_part(
            records, ranks or 0, int(sizes['last']) if sizes else 0):
        raise ParseError(missing[1], command.string, missing[2])


def add_options(command: argparse.ArgumentParser) -> None:
    """Options of `plumb parse osu`."""
    command.add_argument(
        '--json', action='store_true', help='the files are JSON files of the metrics '
        'operator, with the lines of each log in data.data')


def parse_log(text: str, options: argparse.Namespace | None = None) -> list[Output]:
    """The outputs in a saved log, in order.

    :raises ParseError: an output cannot be trusted, or the log is cut off; a log gives
        all of its outputs or none
    """
    if getattr(options, 'json', False):
        return parse_json_logs(text)
    lines = [line.removesuffix('\r') for line in text.split('\n')]
    saved.refuse_cut_off([line.strip() for line in lines])
    return _parse_lines(lines)
