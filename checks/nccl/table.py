"""Reader of the text that nccl-tests 2.0 to 2.19 and rccl-tests print.

The format is what `common.cu` and `util.cu` print. It has no fixed set of
columns: 2.0 has neither root nor (where there is none) redop, rccl-tests -O
only one of the halves and -M three more, -I eight more, -S a time of day. So
the header names the columns and sets where each of them ends. A field that is
wider than its column moves the fields after it, as printf does.

A text gives values only if it is complete and consistent: one table, all sizes
from the smallest to the largest requested one, data checked and correct, and
in each row algbw = size / time and busbw = factor x algbw to the printed
digits.
"""
from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import NoReturn

from ..core import text as saved
from ..core.parsers import ParseError
from . import failures
from .output import MAX_ROWS, Half, Judge, Output, Printed, Row
from .programs import OPERATIONS, PROGRAMS, TYPES, strip_build_suffix

#: No line of these programs, of NCCL or of a launcher is as long.
LONGEST = 4096

#: srun -l, Open MPI 4 and 5 --tag-output, Hydra -prepend-rank.
_TAG = re.compile(r'(?:\[[\w.@-]+,\d+\](?:<std(?:out|err)>)?:'
                  r'|\[\d+\](?= |$)|<std(?:out|err)>:| *\d+:(?= |$))')

_PARAMETERS = re.compile(
    r'# nThread (?P<threads>\d+) nGpus (?P<gpus>\d+) '
    r'minBytes (?P<minimum>\d+) maxBytes (?P<maximum>\d+) '
    r'(?:step: (?P<step>\d+)\((?P<kind>factor|bytes)\) )?warmup iters: \d+ '
    r'iters: \d+ (?:agg iters: \d+ )?validation: (?P<checks>\d+) ?'
    r'(?:graph: \d+)?(?: unalign: \d+)?')
_RANK = re.compile(
    r'# +Rank +(?P<rank>\d+) (?:Group +(?P<group>\d+) )?'
    r'Pid +(?P<pid>\d+) on +(?P<host>\S+) device +(?P<device>\d+) '
    r'\[(?P<address>[0-9a-fA-Fx:.]+)\] (?P<name>(?:(?!# +Rank ).)+)')
_VERSION = re.compile(r'# nccl-tests version (\d+(?:\.\d+)+[\w.+-]*) '
                      r'nccl-headers=\d+ nccl-library=(\d+)')
#: To 2.17.8, and newer ones.
_RCCL_VERSION = re.compile(
    r'(?:# )?rccl-tests(?:: Version ([\w.:/+-]+)'
    r'| version (\d+(?:\.\d+)+[\w.:/+-]*) rccl-headers=\d+ rccl-library=(\d+))')
#: First lines of an output, anywhere in a line, and a row.
BEGINS = re.compile(r'# [nr]ccl-tests version \d|# Collective test starting: '
                     r'|# nThread \d')
_FIELDS = re.compile(r'(?:#? *\d+ +\d+ +(?:' + '|'.join(TYPES)
                     + r')\b.*|(?=.*\d)[-+.\d e]+)')
_START = re.compile(r'# Collective test starting: (\S+)')
_END = re.compile(r'# Collective test concluded: (\S+)')
_HEADER = re.compile(r'# +size +count +type\b')
_UNITS = re.compile(r'# +\(B\) +\(elements\) +(?:\((?:us|GB/s|%)\) *)+'
                    r'(?:%Y-%m-%d %H:%M:%S)?')
_HALVES = re.compile(r'# +(?=out|in)(?P<first>out-of-place)?'
                     r'(?: \(\+ per-iteration\))? *'
                     r'(?P<second>in-place(?: \(\+ per-iteration\))?)?')
_BOUNDS = re.compile(r'# Out of bounds values +: (\d+) (OK|FAILED)')
AVERAGE = re.compile(r'# Avg bus bandwidth +: (\S+)(?: (OK|FAILED))?')
ROW = re.compile(r'#? *\d+ +\d+ +(?:' + '|'.join(TYPES) + r')\b')
_CLOCK = re.compile(r' +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d')
#: A line that is none of these may hide one that it was joined to.
_HIDDEN = re.compile(
    r'\d +\d+ +(?:' + '|'.join(TYPES) + r') +|# nThread|# Using devices|'
    r'Rank +\d+ .*Pid|Out of bounds v|Avg bus b|size +count|\(elements\)|'
    r'^#? *(?:\d+\.\d\d? +){2}|\d\.\d\d? +(?:N/A|0) +\d+\.\d|'
    r'out-of-p|in-place|minBytes \d|ccl-tests:? [vV]ersion|Collective test|'
    r'^[-+.\deE]+$')

_NUMBER = re.compile(r'(?:0|[1-9]\d{0,15})(?:\.\d{1,5})?')
_INTEGER = re.compile(r'0|[1-9]\d{0,17}')

#: Columns of a half of the table, those of the whole row, and those of -I.
_HALF = ('time', 'cputime', 'algbw', 'busbw', '#wrong', 'error')
_ITERATION = ('i_min', 'i_max', 'i_p99', 'i_cv%')
#: Of rccl-tests -M, at the end: what RCCL chose.
_CHOSEN = ('algo', 'proto', 'nchannels')
_WHOLE = ('size', 'count', 'type', 'redop', 'root')
_MAY_BE_EMPTY = ('redop', 'root')

#: Parts of an output in their order, and what a message calls them.
_PARTS = {
    'parameters': 'the line "# nThread ...", which begins the output of nccl-tests',
    'devices': 'the line "# Using devices"',
    'title': 'the line "out-of-place ... in-place" above the header of the table',
    'header': 'the header of the table',
    'units': 'the line of units below the header',
    'bounds': 'the line "Out of bounds values"',
    'average': 'the line "Avg bus bandwidth"',
}
SEVERAL_TABLES = (
    'the text has more than one table: the program was built without MPI '
    '(MPI=1) and was started once per rank, or two outputs were joined')


def strip_prefixes(lines: Sequence[str], title: re.Pattern[str] = BEGINS) -> list[str]:
    """The lines without what a launcher or a page puts before each; the tag of a
    rank stays, because a table may have one only.

    :arg title: beginnings of the parts of an output that have a prefix of their own
    """
    return saved.strip_prefixes(lines, title, _FIELDS, keep=_TAG)


class _Reader:
    """Reader of one text; each refusal names a line."""

    def __init__(self, text: str) -> None:
        lines = text.split('\n')
        self.lines = strip_prefixes(lines)
        #: What was removed before each line, and what the lines of the run had.
        self.removed = [line.removesuffix(rest) for line, rest in
                        zip(lines, self.lines, strict=True)]
        self.prefixes: list[str] = []
        self.number = 1
        self.out = Output()
        #: Part of `_PARTS` -> its line, in the order of the text.
        self.parts: dict[str, int] = {}
        self.ends: tuple[int, ...] = ()
        self.halves: tuple[str, ...] = ()
        self.concluded = ''
        self.tag: str | None = None
        # A blank after the tag is part of the tag if comments have it, too.
        self.blank = any(line[tag.end():].startswith(' #')
                         for line in self.lines[:MAX_ROWS]
                         if (tag := _TAG.match(line)))
        self.groups: list[int] = []

    def raise_parse_error(self, reason: str, line: int = 0) -> NoReturn:
        line = line or self.number
        text = self.lines[line - 1] if line <= len(self.lines) else ''
        raise ParseError(line, text.removesuffix('\r'), reason)

    def read(self) -> Output:
        self.refuse_failed_run()
        try:
            for number, line in enumerate(self.lines, 1):
                self.number = number
                self.read_line(line)
            self.assert_complete()
        except ParseError as error:
            self.refuse_crashed_run(error)
            raise
        self.refuse_crashed_run(None)
        Judge(self.out, self.raise_parse_error).check_all_rows()
        return self.out

    # Failed runs ---------------------------------------------------------

    def possible_failure_lines(self) -> list[tuple[int, str]]:
        return failures.possible_failure_lines(self.lines, ROW, LONGEST)

    def refuse_failed_run(self) -> None:
        """Refuse a run that prints its own reason of failure."""
        if failure := failures.find_reason(self.possible_failure_lines()):
            self.raise_parse_error(failure[1], failure[0])

    def refuse_crashed_run(self, error: ParseError | None) -> None:
        """Refuse a run that died, unless `error` has a more exact reason."""
        if error and re.search('wrong|FAILED|more than one', error.reason):
            return
        if failure := failures.find_crash(self.possible_failure_lines()):
            number, line = failure
            self.raise_parse_error(f'the run failed: {line.strip()[:100]}', number)

    # Line by line ---------------------------------------------------------

    def read_line(self, raw: str) -> None:
        if len(raw) > LONGEST:
            self.raise_parse_error(f'the line has more than {LONGEST} characters')
        line = raw.rstrip(' \r\t')
        tag = _TAG.match(line)
        if tag:
            line = line[tag.end() + self.blank:]
        for pattern, read in self.READERS:
            match = pattern.fullmatch(line)
            if match:
                self.check_single_rank(tag[0] if tag else '')
                read(self, match)
                return
        if _HEADER.match(line):
            self.check_single_rank(tag[0] if tag else '')
            self.read_header(line)
        elif ROW.match(line):
            self.check_single_rank(tag[0] if tag else '')
            self.read_row(line)
        elif _HIDDEN.search(line) and self.is_damage(line):
            self.raise_parse_error(
                'this line is not a line of the table: it is cut, or '
                'several ranks wrote at the same time'
                + saved.foreign_cause([line])
            )
        elif 'NCCL WARN' in line or line.startswith('# error: '):
            self.out.warnings.append((self.number, line.strip()))

    def is_damage(self, line: str) -> bool:
        """Whether a line that no output has is damage: any in the table, and a part
        of an output elsewhere, but not the comment or number of someone else."""
        return bool(self.parts) or bool(re.search(r'[a-z(#]', line))

    def check_single_rank(self, tag: str) -> None:
        """Refuse a table whose lines come from more than one rank.

        A prefix may change, as a time does. If an earlier one returns, two ranks wrote.
        """
        prefix = self.removed[self.number - 1]
        if not self.prefixes or prefix != self.prefixes[-1]:
            if prefix in self.prefixes:
                self.raise_parse_error('the text has lines of more than one rank: the '
                                       f'prefix {prefix.strip()!r} returns after '
                                       f'{self.prefixes[-1].strip()!r}')
            self.prefixes.append(prefix)
        tag = tag.strip()
        if self.tag not in (None, tag):
            self.raise_parse_error('the text has tables of more than one rank '
                                   f'({self.tag!r} and {tag!r}): was the program built '
                                   'with MPI?')
        self.tag = tag

    def begin_part(self, name: str) -> None:
        """Note the line of a part, which a text has once and in its order."""
        if name in self.parts:
            self.raise_parse_error(
                SEVERAL_TABLES if name == 'parameters' else
                f'{_PARTS[name]} is printed twice: the text has more than one run')
        missing = list(_PARTS)[len(self.parts)]
        if missing != name:
            self.raise_parse_error(f'the output lacks {_PARTS[missing]} before '
                                   'this line')
        self.parts[name] = self.number

    @property
    def current_part(self) -> str:
        return next(reversed(self.parts), '')

    def read_parameters(self, match: re.Match[str]) -> None:
        self.begin_part('parameters')
        self.out.threads, self.out.gpus, self.out.minimum, self.out.maximum = (
            int(match[name])
            for name in ('threads', 'gpus', 'minimum', 'maximum')
        )
        if not self.out.threads * self.out.gpus:
            self.raise_parse_error('nThread or nGpus is 0, so a process has no rank')
        # The client of checks/optcast measures any list of sizes.
        self.out.step = int(match['step']) if match['step'] else None
        self.out.by_factor = match['kind'] == 'factor'
        self.out.checks = int(match['checks'])

    def read_version_line(self, match: re.Match[str]) -> None:
        if self.out.version:
            self.raise_parse_error(SEVERAL_TABLES)
        self.out.version = match[1]
        self.out.library = int(match[2])

    def read_rccl_version(self, match: re.Match[str]) -> None:
        if self.out.version:
            self.raise_parse_error(
                'the text has two version lines, so it is the output '
                'of more than one run'
            )
        self.out.version = match[1] or match[2]
        self.out.library = int(match[3] or 0)

    def read_collective_start_line(self, match: re.Match[str]) -> None:
        if self.out.program:
            self.raise_parse_error(SEVERAL_TABLES)
        self.out.program = self.check_program_name(match[1])

    def check_program_name(self, name: str) -> str:
        name = strip_build_suffix(name)
        if name not in PROGRAMS:
            self.raise_parse_error(f'{name} is not a known program of nccl-tests; '
                                   f'known programs: {", ".join(PROGRAMS)}')
        return name

    def read_collective_end_line(self, match: re.Match[str]) -> None:
        if self.concluded:
            self.raise_parse_error(
                'the text has two last lines, so it is the output of '
                'more than one run'
            )
        self.concluded = self.check_program_name(match[1])

    def read_devices_title(self, match: re.Match[str]) -> None:
        self.begin_part('devices')

    def read_rank_line(self, match: re.Match[str]) -> None:
        if self.current_part != 'devices':
            self.raise_parse_error(
                'the line of a rank is outside of the list of devices'
            )
        # Ranks are numbered over all processes, whatever their group.
        if int(match['rank']) != len(self.out.places):
            self.raise_parse_error(f'rank {match["rank"]} is listed in place of rank '
                                   f'{len(self.out.places)}')
        self.out.places += ((match['host'], int(match['pid']),
                             int(match['device'])),)
        self.out.addresses += ((match['host'], match['address']),)
        self.groups.append(int(match['group'] or 0))

    def read_in_place_titles(self, match: re.Match[str]) -> None:
        self.begin_part('title')
        self.halves = tuple(half for half, title in (
            ('out_of_place', match['first']), ('in_place', match['second']))
            if title)

    def read_units_line(self, match: re.Match[str]) -> None:
        self.begin_part('units')
        printed_units = re.findall(r'\((us|GB/s|%)\)', match[0])
        units = {'time': 'us', 'cputime': 'us', 'algbw': 'GB/s',
                 'busbw': 'GB/s', 'i_min': 'us', 'i_max': 'us',
                 'i_p99': 'us', 'i_cv%': '%'}
        if printed_units != [units[name] for name in self.out.columns
                             if name in units]:
            self.raise_parse_error('the units do not match the columns of the header')

    def read_out_of_bounds_line(self, match: re.Match[str]) -> None:
        self.begin_part('bounds')
        if int(match[1]) or match[2] != 'OK':
            self.raise_parse_error(f'{match[1]} rows have wrong values (exit code 7)')

    def read_average_line(self, match: re.Match[str]) -> None:
        self.begin_part('average')
        word = match[1]
        if re.fullmatch(r'-?nan|-?inf', word):
            self.raise_parse_error(f'the average is {word}: no row was measured')
        if match[2] == 'FAILED':
            self.raise_parse_error('FAILED: the average is below 0.9 times '
                                   'NCCL_TESTS_MIN_BW (exit code 7)')
        try:
            value = float(word)
        except ValueError:
            self.raise_parse_error(f'the average {word!r} is not a valid number')
        if not re.fullmatch(r'\d+(?:\.\d+)?(?:e[+-]\d+)?', word) or \
                f'{value:g}' != word:
            self.raise_parse_error(f'the average {word!r} is not a valid number')
        digits = 6 - 1 - math.floor(math.log10(value)) if value else 6
        self.out.average = Printed(value, 0.5 * 10.0 ** -digits)
        self.out.end = self.number

    READERS = (
        (_PARAMETERS, read_parameters),
        (_VERSION, read_version_line),
        (_RCCL_VERSION, read_rccl_version),
        (_START, read_collective_start_line),
        (_END, read_collective_end_line),
        (re.compile('# Using devices'), read_devices_title),
        (_RANK, read_rank_line),
        (_HALVES, read_in_place_titles),
        (_UNITS, read_units_line),
        (_BOUNDS, read_out_of_bounds_line),
        (AVERAGE, read_average_line),
    )

    # The table ------------------------------------------------------------

    def read_header(self, line: str) -> None:
        self.begin_part('header')
        words = [(m[0], m.end()) for m in re.finditer(r'[^ ]+', line[1:])]
        names = [name for name, _ in words]
        known = {*_WHOLE, *_HALF, *_ITERATION, *_CHOSEN, 'timestamp'}
        for name in names:
            if name not in known:
                self.raise_parse_error(f'the header has an unknown column {name!r}')
        whole = [name for name in names if name in _WHOLE]
        rest = [name for name in names
                if name not in (*_WHOLE, *_CHOSEN, 'timestamp')]
        chosen = tuple(name for name in names if name in _CHOSEN)
        each, left = divmod(len(rest), len(self.halves))
        first = rest[:each]
        if (left or not first or first * len(self.halves) != rest
                or whole != [name for name in _WHOLE if name in whole]
                or whole[:3] != ['size', 'count', 'type']
                or names[:len(whole)] != whole
                or first[0] not in ('time', 'cputime')
                or first[1:3] != ['algbw', 'busbw']
                or first[3:4] not in (['#wrong'], ['error'])
                or tuple(first[4:]) not in ((), _ITERATION)
                or chosen not in ((), tuple(names[-3:]))
                or 'timestamp' in names[:-1]):
            self.raise_parse_error('the header has missing or misplaced columns')
        self.out.columns = tuple(names)
        self.ends = tuple(end + 1 for _, end in words)

    def is_version_2_17_5_or_later(self) -> bool:
        """Whether version 2.17.5 or later wrote the table."""
        names = self.out.columns
        if '#wrong' not in names:
            return False
        at = names.index('#wrong')
        return self.ends[at] - self.ends[at - 1] == 8

    def split_row(self, line: str) -> list[str]:
        """The fields of a row, one per column; '' for an empty field."""
        if line.startswith('#'):
            line = ' ' + line[1:]
        names, ends = self.out.columns, self.ends
        if names[-1] == 'timestamp':
            clock = re.search(_CLOCK.pattern + '$', line)
            if not clock:
                self.raise_parse_error('the row has no time of day in its last column')
            line, names, ends = line[:clock.start()], names[:-1], ends[:-1]
        words = [(m[0], m.end()) for m in re.finditer(r'[^ ]+', line)]
        results, at, before = [], 0, -2
        for number, (name, end) in enumerate(zip(names, ends, strict=True)):
            width = end - (ends[number - 1] + 2 if number else 0)
            word, stop = words[at] if at < len(words) else ('', -1)
            # Since 2.17.5 N/A is a character narrower than its column.
            narrow = word == 'N/A' and width == 6
            due = before + 2 + max(width - narrow, len(word))
            if name == _CHOSEN[0]:      # 8 wide, and no blanks before it
                due = before + max(8, len(word))
            if word and stop == due:
                results.append(word)
                at, before = at + 1, stop
            elif name in _MAY_BE_EMPTY:
                results.append('')
                before += 2 + width
            else:
                self.raise_parse_error(
                    f'column {name} has no value at its place: '
                    'characters were lost or added, or several ranks '
                    'wrote into one line'
                    + saved.foreign_cause(self.lines[self.number - 1:self.number + 1])
                )
        if at != len(words):
            self.raise_parse_error(f'the row has {len(words) - at} fields too many')
        return results

    def read_row(self, line: str) -> None:
        if self.current_part != 'units':
            self.raise_parse_error('the row is outside of the table')
        if len(self.out.rows) >= MAX_ROWS:
            self.raise_parse_error(f'the table has more than {MAX_ROWS} rows')
        words = self.split_row(line)
        names = [name for name in self.out.columns if name in _WHOLE]
        whole = dict(zip(names, words[:len(names)], strict=True))
        last = None if _CHOSEN[0] not in self.out.columns else -len(_CHOSEN)
        rest = words[len(names):last]
        each = len(rest) // len(self.halves)
        columns = self.out.columns[len(names):]
        halves = {
            half: self.parse_row_half(dict(zip(
                columns, rest[number * each:(number + 1) * each],
                strict=False)))
            for number, half in enumerate(self.halves)}
        for name in ('size', 'count'):
            if not _INTEGER.fullmatch(whole[name]):
                self.raise_parse_error(f'{whole[name]!r} is not a valid {name}')
        root = whole.get('root', '')
        if root and not re.fullmatch(r'-1|\d{1,6}', root):
            self.raise_parse_error(f'{root!r} is not a valid root')
        if whole.get('redop', '') not in ('', 'none', *OPERATIONS):
            self.raise_parse_error(f'{whole["redop"]!r} is not a known reduction')
        self.out.rows.append(Row(
            self.number, int(whole['size']), int(whole['count']),
            whole['type'], whole.get('redop', ''),
            int(root) if root else None,
            halves.get('out_of_place'), halves.get('in_place')))

    def parse_row_half(self, words: dict[str, str]) -> Half:
        numbers = {name: self.parse_printed_number(name, word)
                   for name, word in words.items()
                   if name not in ('#wrong', 'error')}
        if 'i_min' in numbers and not (
                numbers['i_min'].value <= numbers['i_p99'].value
                <= numbers['i_max'].value):
            self.raise_parse_error('i_min, i_p99 and i_max are not in ascending order')
        return Half(numbers.get('time'), numbers['algbw'], numbers['busbw'],
                    self.parse_data_check(words))

    def parse_data_check(self, words: dict[str, str]) -> bool:
        """Whether the program checked the data; refuse wrong data."""
        if 'error' in words:            # the largest error, to 2.11
            word = words['error']
            if not re.fullmatch(r'\de[+-]\d\d|N/A', word):
                self.raise_parse_error(
                    f'{word!r} is not a valid error (* marks an error '
                    'that is too large)'
                )
            return word != 'N/A'
        word = words['#wrong']
        if word == 'N/A':
            return False
        if word != '0':
            self.raise_parse_error(f'the data arrived wrong: {word} wrong element(s)')
        return True

    def parse_printed_number(self, name: str, word: str) -> Printed:
        if not _NUMBER.fullmatch(word):
            what = ('it is nan or infinite' if re.search('nan|inf', word, re.I)
                    else 'expected a decimal number')
            self.raise_parse_error(f'{name} is {word!r}: {what}')
        decimals = len(word.partition('.')[2])
        value = float(word)
        width = 6 if name in ('algbw', 'busbw') else 7
        # As many decimals as the width lets stand (since 2.17.5); before,
        # bandwidths have two, and the time by its size.
        fits = next((n for n in (2, 1) if len(f'{value:.{n}f}') <= width), 0)
        old = (2 if width == 6 else 0 if value >= 10000 else
               1 if value >= 100 else 2)
        if decimals not in (fits, old):
            self.raise_parse_error(f'{name} is {word!r}: digits were lost or added')
        return Printed(value, 0.5 * 10.0 ** -decimals)

    # The whole text --------------------------------------------------------

    def assert_complete(self) -> None:
        """Refuse a text that lacks a part, after its last line."""
        self.number = max(1, len(self.lines) - 1)
        if len(self.parts) < len(_PARTS):
            missing = list(_PARTS.values())[len(self.parts)]
            self.raise_parse_error('this is not a complete output of nccl-tests: it '
                                   f'lacks {missing}'
                                   + ': was the run cut short?' * bool(self.parts))
        if not self.out.rows:
            self.raise_parse_error('the table has no row: nothing was measured',
                                   self.parts['header'])
        # 2.17.5 widened the column #wrong and prints its version.
        if self.is_version_2_17_5_or_later() and not self.out.version or (
                self.out.library and not self.out.program):
            self.raise_parse_error('the first lines of the output are missing: the '
                                   'version, or "Collective test starting"')
        if bool(self.out.program) != bool(self.concluded):
            self.raise_parse_error('the line "Collective test starting" or "concluded" '
                                   'is missing: was the run cut short?')
        if self.out.program != self.concluded:
            self.raise_parse_error(f'{self.out.program} started, but {self.concluded} '
                                   'concluded: the text has more than one run')
        places = self.out.places
        if not places:
            self.raise_parse_error('no rank is listed below "# Using devices"',
                                   self.parts['devices'])
        each = self.out.threads * self.out.gpus
        for place, group in itertools.groupby(places, lambda p: p[:2]):
            if len(list(group)) % each:
                self.raise_parse_error(
                    f'process {place[1]} on {place[0]} does not list '
                    f'{each} ranks: lines were lost',
                    self.parts['devices'],
                )
        self.out.rank_tag = self.tag or ''
        self.out.hosts = tuple(dict.fromkeys(host for host, _, _ in places))
        # With several communicators (NCCL_TESTS_SPLIT), that of rank 0 prints.
        self.out.ranks = self.groups.count(self.groups[0])


def read_output(text: str) -> Output:
    """The output of one run.

    :raises ParseError: a part of the text cannot be trusted
    """
    return _Reader(text).read()
