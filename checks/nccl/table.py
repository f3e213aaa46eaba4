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

from ..core import text as saved
from ..core.parsers import ParseError
from ..core.tables import TableReader, sizes_between
from . import failures
from .output import Half, Output, Printed, Row, check_output
from .programs import OPERATIONS, PROGRAMS, TYPES, strip_build_suffix

#: First lines of an output, anywhere in a line.
BEGINS = re.compile(r'# [nr]ccl-tests version \d|# Collective test starting: '
                    r'|# nThread \d')
AVERAGE = re.compile(r'# Avg bus bandwidth +: (\S+)(?: (OK|FAILED))?')
_TYPES = '|'.join(TYPES)
ROW = re.compile(rf'#? *\d+ +\d+ +(?:{_TYPES})\b')
#: A row, whole or in part, which is no prefix.
_FIELDS = re.compile(rf'(?:{ROW.pattern}.*|(?=.*\d)[-+.\d e]+)')
#: Names of the columns of a table with one or two halves; -I has the columns i_*,
#: -M of rccl-tests those of what RCCL chose.
_COLUMNS = re.compile(
    r'size count type( redop)?( root)?'
    r'(?P<half> (?:cpu)?time algbw busbw (?:#wrong|error)(?: i_min i_max i_p99 i_cv%)?)'
    r'(?P<second>(?P=half))?(?P<chosen> algo proto nchannels)?( timestamp)?')
_CLOCK = re.compile(r' +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$')
#: A line that is none of those of an output may hide one that it was joined to.
_HIDDEN = re.compile(
    rf'\d +\d+ +(?:{_TYPES}) +|# nThread|# Using devices|'
    r'Rank +\d+ .*Pid|Out of bounds v|Avg bus b|size +count|\(elements\)|'
    r'^#? *(?:\d+\.\d\d? +){2}|\d\.\d\d? +(?:N/A|0) +\d+\.\d|'
    r'out-of-p|in-place|minBytes \d|ccl-tests:? [vV]ersion|Collective test|'
    r'^(?=.*\d)[-+.\deE]+$')
_ONLY_NUMBER = re.compile(r'\d+(?:\.\d+)*')
#: Values of the columns of a whole row.
_WHOLE = {name: re.compile(pattern) for name, pattern in {
    'size': r'0|[1-9]\d{0,17}', 'count': r'0|[1-9]\d{0,17}', 'type': _TYPES,
    'redop': '|'.join(('', 'none', *OPERATIONS)), 'root': r'-1|\d{1,6}'}.items()}
_NUMBER = re.compile(r'(?:0|[1-9]\d{0,15})(?:\.\d{1,5})?')

#: Parts of an output in their order: name -> its line, for messages.
_PARTS = {
    'parameters': 'the line "# nThread ...", which begins the output of nccl-tests',
    'devices': 'the line "# Using devices"',
    'halves': 'the line "out-of-place ... in-place" above the header of the table',
    'header': 'the header of the table',
    'units': 'the line of units below the header',
    'bounds': 'the line "Out of bounds values"',
    'average': 'the line "Avg bus bandwidth"',
}
SEVERAL_TABLES = (
    'the text has more than one table: the program was built without MPI '
    '(MPI=1) and was started once per rank, or two outputs were joined')


def strip_prefixes(lines: Sequence[str], title: re.Pattern[str] = BEGINS) -> list[str]:
    """The lines without what a launcher or a page puts before each.

    :arg title: beginnings of the parts of an output that have a prefix of their own
    """
    return saved.strip_prefixes(lines, title, _FIELDS)


class _Reader(TableReader):
    """Reader of one text."""

    TITLE, NO_PREFIX = BEGINS, _FIELDS

    def __init__(self, text: str) -> None:
        super().__init__(text)
        #: Prefixes that the lines of the run had.
        self.seen: list[str] = []
        self.out = Output()
        #: Parts of `_PARTS` that were read.
        self.parts: list[str] = []
        self.ends: tuple[int, ...] = ()
        self.halves: tuple[str, ...] = ()
        self.concluded = ''
        #: (host, process, group) of each rank.
        self.ranks: list[tuple[str, str, str]] = []

    def read(self) -> Output:
        failure, crash = failures.find_failures(self.lines, ROW)
        if failure:
            self.refuse(f'the run failed: {failure[1][:160]}', failure[0])
        try:
            self.read_lines()
        except ParseError as damage:
            # Wrong data end the program, too, and are the more exact reason.
            if not crash or re.search('wrong|FAILED|more than one', damage.reason):
                raise
        if crash:
            self.refuse(f'the run failed: {crash[1][:100]}', crash[0])
        check_output(self.out, self.refuse)
        return self.out

    def read_line(self, line: str) -> None:
        part, read, match = next(
            ((part, read, match) for part, pattern, read in self.LINES
             if (match := pattern.fullmatch(line))), ('', None, None))
        if not match:
            self.check_foreign_line(line)
            return
        self.refuse_another_rank(self.prefixes[self.number - 1])
        if part:
            self.begin_part(part)
        if read:
            read(self, match)

    def check_foreign_line(self, line: str) -> None:
        """Refuse a line that hides one of an output, or the rest of it."""
        # What stands before the first part is of someone else, and so is a number or
        # an address after the last one, unless it is the rest of this line.
        ended = len(self.parts) == len(_PARTS) and self.number > self.out.end + 1
        if self.parts and _HIDDEN.search(line) and not (
                ended and _ONLY_NUMBER.fullmatch(line)):
            self.refuse_damage('this line is not a line of the table: it is cut, or '
                               'several ranks wrote at the same time')

    def refuse_another_rank(self, prefix: str) -> None:
        """Refuse an earlier prefix that returns: two ranks wrote. It may change, as a
        time does."""
        if prefix in self.seen[:-1]:
            self.refuse(f'the text has lines of more than one rank: {prefix.strip()!r} '
                        f'returns after {self.seen[-1].strip()!r}')
        if [prefix] != self.seen[-1:]:
            self.seen.append(prefix)

    def begin_part(self, name: str) -> None:
        """Note the line of a part, which a text has once and in its order."""
        if name in self.parts:
            self.refuse(SEVERAL_TABLES if name in list(_PARTS)[:1] else
                        f'{_PARTS[name]} is printed twice: the text has more than one '
                        'run')
        missing = list(_PARTS)[len(self.parts)]
        if missing != name:
            self.refuse(f'the output lacks {_PARTS[missing]} before this line')
        self.parts.append(name)

    def read_parameters(self, match: re.Match[str]) -> None:
        out = self.out
        out.threads, out.gpus, out.minimum, out.maximum = map(int, match.groups()[:4])
        if not out.threads * out.gpus:
            self.refuse('nThread or nGpus is 0, so a process has no rank')
        if match['step']:               # the client of Optcast measures any sizes
            out.request = sizes_between(out.minimum, out.maximum, int(match['step']),
                                        match['kind'] == 'factor') or self.refuse(
                'minBytes, maxBytes and step do not give a valid list of sizes')
        out.options |= {'agg_iters': match['agg'] or '1',
                        **dict(re.findall(r'(\w+): (\w+)', match['options']))}
        if match['checks'] == '0':
            self.refuse('the program checked no data (-c 0), so its line "Out of '
                        'bounds values : 0 OK" proves nothing')

    def read_blocking(self, match: re.Match[str]) -> None:
        self.out.options['blocking'] = '1'

    def read_version(self, match: re.Match[str]) -> None:
        if self.out.version:
            self.refuse(SEVERAL_TABLES)
        self.out.version = match[1]

    def read_start_or_end(self, match: re.Match[str]) -> None:
        name = strip_build_suffix(match[2])
        if name not in PROGRAMS:
            self.refuse(f'{name} is not a known program of nccl-tests; known programs: '
                        f'{", ".join(PROGRAMS)}')
        if (self.out.program, self.concluded)[match[1] == 'concluded']:
            self.refuse(SEVERAL_TABLES)
        if match[1] == 'concluded':
            self.concluded = name
        else:
            self.out.program = name

    def read_rank(self, match: re.Match[str]) -> None:
        if self.parts[-1:] != ['devices']:
            self.refuse('the line of a rank is outside of the list of devices')
        # Ranks are numbered over all processes, whatever their group.
        if int(match['rank']) != len(self.ranks):
            self.refuse(f'rank {match["rank"]} is listed in place of rank '
                        f'{len(self.ranks)}')
        self.ranks.append((match['host'], match['pid'], match['group'] or '0'))
        self.out.addresses += ((match['host'], match['address']),)

    def read_halves(self, match: re.Match[str]) -> None:
        self.halves = tuple(half for half, title in zip(
            ('out_of_place', 'in_place'), match.groups(), strict=True) if title)

    def read_bounds(self, match: re.Match[str]) -> None:
        if int(match[1]) or match[2] != 'OK':
            self.refuse(f'{match[1]} rows have wrong values (exit code 7)')

    def read_average(self, match: re.Match[str]) -> None:
        word = match[1]
        if re.fullmatch(r'-?nan|-?inf', word):
            self.refuse(f'the average is {word}: no row was measured')
        if match[2] == 'FAILED':
            self.refuse('FAILED: the average is below 0.9 times NCCL_TESTS_MIN_BW '
                        '(exit code 7)')
        if not re.fullmatch(r'\d+(?:\.\d+)?(?:e[+-]\d+)?', word) or (
                f'{float(word):g}' != word):
            self.refuse(f'the average {word!r} is not a valid number')
        value = float(word)
        digits = 6 - 1 - math.floor(math.log10(value)) if value else 6
        self.out.average = Printed(value, 0.5 * 10.0 ** -digits)
        self.out.end = self.number

    # The table ------------------------------------------------------------

    def read_header(self, match: re.Match[str]) -> None:
        words = list(re.finditer(r'[^ ]+', match[0][1:]))
        columns = _COLUMNS.fullmatch(' '.join(word[0] for word in words))
        if not columns or bool(columns['second']) != (len(self.halves) == 2):
            self.refuse('the header has unknown, missing or misplaced columns')
        self.out.columns = tuple(word[0] for word in words)
        self.ends = tuple(word.end() + 1 for word in words)

    def split_row(self, line: str) -> list[str]:
        """The fields of a row, one per column; '' for an empty field."""
        line, names = line.replace('#', ' ', 1), list(self.out.columns)
        if names[-1] == 'timestamp':
            names.pop()
            line, clock = _CLOCK.subn('', line)
            if not clock:
                self.refuse('the row has no time of day in its last column')
        words = line.split()
        if len(words) == len(names) - 1 and 'redop' in names:
            words.insert(names.index('redop'), '')      # as hypercube_perf prints it
        printed, before = '', -2
        for name, word, end in zip(names, words, self.ends, strict=False):
            width, before = end - before - 2, end
            # Since 2.17.5 N/A is a character narrower than its column.
            width -= word == 'N/A' and width == 6
            # `algo` is 8 wide, and has no blanks before it.
            printed += word.rjust(8) if name == 'algo' else '  ' + word.rjust(width)
        # A page may have taken the blanks at the beginning of each row.
        if len(words) != len(names) or printed.lstrip(' ') != line.lstrip(' '):
            self.refuse_damage(
                'the fields are not at the places of their columns: characters were '
                'lost or added, or several ranks wrote into one line')
        return words

    def read_row(self, match: re.Match[str]) -> None:
        if self.parts[-1:] != ['units']:
            self.refuse('the row is below the table' if 'units' in self.parts else
                        'the output lacks '
                        f'{list(_PARTS.values())[len(self.parts)]} before this row')
        words, names = self.split_row(match[0]), self.out.columns
        first = names.index('algbw') - 1
        whole = dict(zip(names[:first], words, strict=False))
        for name, word in whole.items():
            if not _WHOLE[name].fullmatch(word):
                self.refuse(f'{word!r} is not a valid {name}')
        width = 8 if 'i_min' in names else 4
        halves = {half: self.read_half(dict(zip(
            names[first:first + width], words[first + number * width:], strict=False)))
            for number, half in enumerate(self.halves)}
        root = whole.get('root', '')
        self.out.rows.append(Row(
            self.number, int(whole['size']), int(whole['count']), whole['type'],
            whole.get('redop', ''), int(root) if root else None,
            halves.get('out_of_place'), halves.get('in_place')))

    def read_half(self, words: dict[str, str]) -> Half:
        # `error` is the largest error, to 2.11; * marks one that is too large.
        checked = words.pop('#wrong', '') or words.pop('error')
        if not re.fullmatch(r'0|N/A|\de[+-]\d\d', checked):
            self.refuse(f'the data arrived wrong: {checked} wrong element(s)')
        numbers = {name: Printed(
            self.read_number(name, word, _NUMBER, 'a decimal number'),
            0.5 * 10.0 ** -len(word.partition('.')[2])) for name, word in words.items()}
        return Half(numbers.get('time'), numbers['algbw'], numbers['busbw'],
                    checked != 'N/A')

    #: Lines of an output: the part of `_PARTS` that it is, its pattern and its reader.
    LINES = tuple((part, re.compile(pattern), read) for part, pattern, read in (
        ('', r'# nccl-tests version (\d+(?:\.\d+)+[\w.+-]*) nccl-headers=\d+ '
         r'nccl-library=\d+', read_version),
        # rccl-tests to 2.17.8, and newer ones.
        ('', r'(?:# )?rccl-tests: Version ([\w.:/+-]+)', read_version),
        ('', r'# rccl-tests version (\d+(?:\.\d+)+[\w.:/+-]*) rccl-headers=\d+ '
         r'rccl-library=\d+', read_version),
        ('', r'# Collective test (starting|concluded): (\S+)', read_start_or_end),
        ('parameters',
         r'# nThread (\d+) nGpus (\d+) minBytes (\d+) maxBytes (\d+) '
         r'(?:step: (?P<step>\d+)\((?P<kind>factor|bytes)\) )?warmup iters: \d+ '
         r'iters: \d+ (?:agg iters: (?P<agg>\d+) )?validation: (?P<checks>\d+)'
         # Each version adds options: graph, unalign, side_work, work_sms, direction.
         r'(?P<options>(?: [a-z_]+: \w+)*) ?', read_parameters),
        ('', r'# Blocking Enabled: .*', read_blocking),
        ('devices', r'# Using devices', None),
        ('', r'# +Rank +(?P<rank>\d+) (?:Group +(?P<group>\d+) )?Pid +(?P<pid>\d+) '
         r'on +(?P<host>\S+) device +\d+ \[(?P<address>[0-9a-fA-Fx:.]+)\] '
         r'(?:(?!# +Rank ).)+', read_rank),
        ('halves', r'# +(?=out|in)(out-of-place)?(?: \(\+ per-iteration\))? *'
         r'(in-place(?: \(\+ per-iteration\))?)?', read_halves),
        ('header', r'# +size +count +type\b.*', read_header),
        ('units', r'# +\(B\) +\(elements\) +(?:\((?:us|GB/s|%)\) *)+'
         r'(?:%Y-%m-%d %H:%M:%S)?', None),
        ('', ROW.pattern + '.*', read_row),
        ('bounds', r'# Out of bounds values +: (\d+) (OK|FAILED)', read_bounds),
        ('average', AVERAGE.pattern, read_average)))

    def check_end(self) -> None:
        out, ranks = self.out, self.ranks
        self.number = max(1, len(self.lines) - 1)
        if len(self.parts) < len(_PARTS):
            self.refuse('this is not a complete output of nccl-tests: it lacks '
                        + list(_PARTS.values())[len(self.parts)]
                        + ': was the run cut short?' * bool(self.parts))
        if not out.rows:
            self.refuse('the table has no row: nothing was measured')
        # 2.17.5 widened the column #wrong and prints its version and program.
        at = out.columns.index('algbw') + 2
        if (out.columns[at] == '#wrong' and self.ends[at] - self.ends[at - 1] == 8
                and not (out.version and out.program)):
            self.refuse('the first lines of the output are missing: the version, or '
                        '"Collective test starting"')
        if out.program != self.concluded:
            self.refuse(f'{out.program or "no program"} started, but '
                        f'{self.concluded or "no program"} concluded: was the run cut '
                        'short, or has the text more than one run?')
        if not ranks:
            self.refuse('no rank is listed below "# Using devices"')
        each = out.threads * out.gpus
        for place, group in itertools.groupby(ranks, lambda rank: rank[:2]):
            if len(list(group)) % each:
                self.refuse(f'process {place[1]} on {place[0]} does not list {each} '
                            'ranks: lines were lost')
        out.hosts = tuple(dict.fromkeys(host for host, _, _ in ranks))
        # With several communicators (NCCL_TESTS_SPLIT), that of rank 0 prints.
        out.ranks = sum(group == ranks[0][2] for _, _, group in ranks)


def read_output(text: str) -> Output:
    """The output of one run.

    :raises ParseError: a part of the text cannot be trusted
    """
    return _Reader(text).read()
