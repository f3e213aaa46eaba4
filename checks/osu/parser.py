"""Parser of the output of the OSU micro-benchmarks (OMB) 5.3 to 7.5.

The functions `print_header`, `print_preamble`, `print_only_header`,
`print_stats` and others in OMB's util/ define the format: comments, one title
with the version, a header of right-aligned columns, rows of numbers with two
decimals.  Versions differ in the order of the comments, in the header (with
or without `#`, absent in 7.1's barriers) and in the columns.  So the parser
reads the columns from the header, and each row must agree with it.  osu_init
of 5.3 prints a sentence of its own and no title.

A text gives values only if the parser understands every line, because values
of a failed run are worse than none.
"""
from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..core import text as saved
from ..core.parsers import Record
from ..core.tables import TableReader
from .programs import (
    HELLO,
    INIT,
    INIT_5_3,
    PROGRAMS,
    Program,
    find_program,
    version_numbers,
)


class Column(NamedTuple):
    """A column of a table."""
    #: Name of the metric, or Size, or a count or word that is only checked.
    name: str
    unit: str = ''
    #: Whether 0.00 is a valid value and not a sign of a broken clock or run.
    zero: bool = False
    #: Parameters of its test case: name=value.
    params: str = ''


SIZE = Column('Size')
LATENCY = Column('latency', 'us')
BANDWIDTH = Column('bandwidth', 'MB/s')
OVERALL = Column('overall_time', 'us')
RATE = Column('message_rate', '1/s')
VALIDATION = Column('Validation')
COUNTS = (Column('Iterations'), Column('Transmit Size'))

_PHRASES = {
    'Size': SIZE,
    'Latency (us)': LATENCY,
    'Avg Latency(us)': LATENCY,
    'Min Latency(us)': Column('latency_min', 'us'),
    'Max Latency(us)': Column('latency_max', 'us'),
    'Bandwidth (MB/s)': BANDWIDTH,
    'MB/s': BANDWIDTH,
    'Messages/s': RATE,
    'Overall(us)': OVERALL,
    'Compute(us)': Column('compute_time', 'us', zero=True),
    'Coll. Init(us)': Column('init_call_time', 'us'),
    'MPI_Test(us)': Column('test_call_time', 'us', zero=True),
    'MPI_Wait(us)': Column('wait_call_time', 'us'),
    'Pure Comm.(us)': Column('pure_comm_time', 'us'),
    'Min Comm.(us)': Column('pure_comm_time_min', 'us'),
    'Max Comm.(us)': Column('pure_comm_time_max', 'us'),
    'Overlap(%)': Column('overlap', '%', zero=True),
    'Validation': VALIDATION,
    'Iterations': COUNTS[0],
    'Transmit Size': COUNTS[1],
}
# The names contain blanks, and a single blank may separate two of them (`P50
# Tail BW(MB/s)` fills 17 of 18 places), so blanks alone do not split a header.
_PHRASE = re.compile(
    r' *(?:(?P<known>' + '|'.join(map(re.escape, _PHRASES)) + ')'
    r'|P(?P<rank>[1-9][0-9]?) Tail (?P<tail>Lat\(us\)|BW\(MB/s\)))(?= |$)')
_HEADER = re.compile(
    r'(?:# *)?(?:(?:Size|Operation) |(?:(?:Avg |Min |Max )?Latency'
    r'|Bandwidth|Overall) ?\(|MB/s|Messages/s|.*(?:Compute|Overlap)\()')

#: Headers of the tables that 7.1 prints without one: program and columns -> header.
_BARE = {
    ('osu_barrier', 1): 'Avg Latency(us)',
    ('osu_barrier', 4): 'Avg Latency(us) Min Latency(us) Max Latency(us) Iterations',
    ('osu_ibarrier', 4): 'Overall(us) Compute(us) Pure Comm.(us) Overlap(%)',
    ('osu_ibarrier', 9): 'Overall(us) Compute(us) Coll. Init(us) MPI_Test(us) '
    'MPI_Wait(us) Pure Comm.(us) Min Comm.(us) Max Comm.(us) Overlap(%)',
}

#: Beginning of a title.
TITLE_START = '# OSU'
_TITLE_ANYWHERE = re.compile(r'# OSU .+ Test v\d')
_TITLE = re.compile(r'# OSU (?P<what>[^#]+) Test '
                    r'v(?P<version>[0-9]+(?:\.[0-9]+)+[\w.+-]*)', re.ASCII)
_TYPE = re.compile(r'# Datatype: (MPI_[A-Z0-9_]+)\.')
_WINDOWS = re.compile(r'#( +[1-9][0-9]{0,9})+')
_HEADINGS = {
    '# Uni-directional Bandwidth (MB/sec)': BANDWIDTH,
    '# Message Rate Profile': RATE,
}
# No comment of OMB matches: it is a damaged row, or was joined with a row.
_HIDDEN_ROW = re.compile(r'# *[0-9.]+( +[0-9.]+)+$|[0-9] +[0-9]+\.[0-9]{2}\b')
#: A rule above and below the words of a launcher.
_RULE = re.compile('[-=*]{20,}')
_DECIMALS = re.compile(r'\d\.\d\d?\b')
_ROW = re.compile(r' *[-+]?(?:[0-9.]|nan\b|inf\b)', re.IGNORECASE)
_NUMBERS = re.compile(r' *[-+]?(?:[0-9]+\.[0-9]+|[0-9]+(?: +[-+]?(?:[0-9]+'
                      r'(?:\.[0-9]*)?|nan|inf))(?: .*)?)')
TOPOLOGY = re.compile(r'Dimensions size = [0-9 ]+|'
                       r'Time took to create topology graph: ?[0-9.]+ us\.')
#: Lines of an output that come before its title.
PREAMBLE = re.compile(TOPOLOGY.pattern + r'|# Number of (?:Sender|Receiver) threads: '
                      r'[0-9]+|# Number of forked processes.*')
#: Comments of one-sided programs and, before the title or after it, osu_latency_mt.
_SETUP = {name: re.compile(rf'^# {pattern}\s*$', re.MULTILINE) for name, pattern in {
    'sender_threads': r'Number of Sender threads: ([1-9][0-9]{0,5})',
    'receiver_threads': r'Number of Receiver threads: ([1-9][0-9]{0,5})',
    'synchronisation': r'Synchronization: MPI_Win_(\w+)(?:/[\w/]+)?',
    'window': r'Window creation: MPI_Win_(?:create_)?(\w+)',
    'pairs': r'\[ pairs: ([1-9][0-9]{0,8}) \].*',
    'window_size': r'\[ pairs: \d+ \] \[ window size: ([1-9][0-9]{0,8}) \]',
    'buffers': r'OSU \S+?-(CUDA MANAGED|CUDA|ROCM|OPENACC|MANAGED) .*'}.items()}
#: Places of the buffers of both ranks, if they are on a GPU: device or host.
_PLACES = re.compile(r'^# (?:Send Buffer|Rank 0 Memory) on \w+ \(([DHM])\) and '
                     r'(?:Receive Buffer|Rank 1 Memory) on \w+ \(([DHM])\)\s*$',
                     re.MULTILINE)
_ANY_TYPE = re.compile(f'^{_TYPE.pattern}', re.MULTILINE)
_USAGE = re.compile(r' *usage *:', re.IGNORECASE)

# Digits are bounded so that a number stays finite.
_INTEGER = re.compile('0|[1-9][0-9]{0,17}')
_NUMBER = re.compile(r'(?:0|[1-9][0-9]{0,17})\.[0-9]{2}')

#: Title -> program.
_TITLES = {row.title: name for name, row in PROGRAMS.items()}
_COLLECTIVE = re.compile(
    r'mpi (?P<later>non-blocking )?(?P<near>neighbor(?:hood)? )?(?P<what>'
    r'(?:all)?gatherv?|allreduce|alltoall[vw]?|barrier|bcast'
    r'|reduce(?:_scatter(?:_block)?)?|scatterv?)'
    r'(?: personalized exchange)? latency')


def program_of_title(what: str, topology: bool = False) -> str:
    """OMB's name of the program with this title; the words of the title if the suite
    does not know it.

    :arg what: the title between `OSU` and `Test`.
    :arg topology: lines about a topology came before the title.  Only they
        distinguish osu_neighbor_alltoallw from osu_alltoallw.
    """
    # Remove the place of the buffers: MPI-CUDA, MPI_Put-ROCM, MPI-CUDA
    # MANAGED.
    title = re.sub(r'-[A-Z]{3,}(?: MANAGED)?(?= )', '', what).lower()
    if match := re.fullmatch('[nr]ccl (.*)', title):
        return program_of_title(f'MPI {match[1]}').replace('osu_', 'osu_xccl_', 1)
    title, persistent = re.subn(' persistent(?= |$)', '', title)
    after = '_persistent' if persistent else ''
    if title in _TITLES:
        return _TITLES[title] + after
    plain = re.sub('all-to-all(?=[vw]? )', 'alltoall', title)
    match = _COLLECTIVE.fullmatch(plain.replace('broadcast', 'bcast'))
    if not match:
        return f'osu_{re.sub("[^a-z0-9]+", "_", title).strip("_")}{after}'
    near = 'neighbor_' if match['near'] or topology else ''
    return f'osu_{"i" * bool(match["later"])}{near}{match["what"]}{after}'


@functools.cache                        # asked for each line of a text
def row_of_program(program: str) -> Program:
    """The row of a program; if the table lacks it, what its name says."""
    return find_program(program.removesuffix('_persistent')) or Program(
        metrics=('bandwidth',) * ('bandwidth' in program), largest=0,
        has_sizes='barrier' not in program)


@dataclass
class Table:
    """A header and the rows below it."""
    line: int
    columns: tuple[Column, ...]
    #: Where the columns of the header and those of the rows end; empty: not known.
    header_ends: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    windows: bool = False
    sizes: list[int | None] = field(default_factory=list)


class _Reader(TableReader):
    """Reader of one output."""

    TITLE, NO_PREFIX = _TITLE_ANYWHERE, _NUMBERS

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.program = self.version = ''
        self.titled_at = 0
        self.topology = False
        #: Metric of the tables over window sizes (osu_mbw_mr -V).
        self.heading: Column | None = None
        self.datatype = ''
        #: Data types with a complete table; and whether a type line has no rows yet.
        self.types: set[str] = set()
        self.marked = False
        self.tables: list[Table] = []
        self.records: list[Record] = []

    def read(self) -> tuple[Record, ...]:
        if not any(self.lines):
            self.refuse('the output is empty')
        saved.refuse_cut_off(self.text)
        saved.refuse_failed_run(self.lines)
        self.read_lines()
        return tuple(self.records)

    @property
    def row(self) -> Program:
        """What the program of the title prints."""
        return row_of_program(self.program)

    def read_line(self, line: str) -> None:
        """Read one line that is not blank."""
        if _USAGE.match(line):
            self.refuse('the program printed its usage instead of a table: check its '
                        'options')
        if line.startswith('DATA VALIDATION ERROR'):
            self.refuse(f'the run failed: {line[:60]!r}')
        if line.startswith(TITLE_START):
            self.read_title(line)
        elif TOPOLOGY.fullmatch(line) and not self.tables:
            self.topology = True
        elif not self.program:
            self.read_line_before_title(line)
        elif line in _HEADINGS:
            self.heading = _HEADINGS[line]
        elif self.heading and _WINDOWS.fullmatch(line):
            self.begin_table_of_windows(self.heading, [*map(int, line[1:].split())])
        elif match := _TYPE.fullmatch(line):
            self.read_data_type(match[1])
        elif _HEADER.match(line):
            self.read_header(line)
        elif line.startswith('#'):
            if _HIDDEN_ROW.search(line) or line.startswith('# Datatype'):
                self.refuse('the comment contains a damaged row or data type')
        elif self.row.result:
            self.read_single_result(line, self.row.result)
        elif _ROW.match(line):
            self.read_row(line)
        # Tools that start with the program print above the first row.
        elif self.records or _DECIMALS.search(line) or (
                ' ' not in line.strip() and not _RULE.fullmatch(line)):
            self.refuse_damage(f'this is not a line of OMB: {line[:60]!r}')

    # Around the tables ----------------------------------------------------

    def read_line_before_title(self, line: str) -> None:
        """Read a line before the title: a launcher's, or a comment of OMB."""
        if INIT_5_3.fullmatch(line):
            self.program, self.version = 'osu_init', '5.3'
            self.read_single_result(line, INIT_5_3)
        elif is_result_line(line):
            kind = ('row' if _NUMBERS.fullmatch(line) else 'header'
                    if _HEADER.match(line) or _TYPE.fullmatch(line) else 'result')
            self.refuse(f'the {kind} has no title above it')

    def read_title(self, line: str) -> None:
        match = _TITLE.fullmatch(line)
        if not match:
            self.refuse('the title has no name or no version')
        if self.program:
            if (not self.row.title_twice or self.titled_at != self.number - 1
                    or line != self.lines[self.titled_at - 1]
                    or line in self.lines[:self.titled_at - 1]):
                self.refuse('the text has a second title and so more than one output')
            return
        self.version = match['version']
        self.program = program_of_title(match['what'], self.topology)
        self.titled_at = self.number

    def read_data_type(self, datatype: str) -> None:
        """Read the data type of the rows below (since 7.1), before or after
        the header; the next data type begins a table (-T all)."""
        if self.tables and self.tables[-1].sizes:
            self.types.add(self.datatype)
            if datatype in self.types:
                self.refuse(f'the text has a second table of {datatype}')
        elif self.datatype not in ('', datatype):
            self.refuse(f'the table of {self.datatype} is missing')
        self.datatype, self.marked = datatype, True

    def read_header(self, line: str) -> None:
        columns, ends = self.columns_of(line)
        if not self.tables:
            self.check_header_matches_title(columns)
        else:
            first = self.tables[0].columns
            if not self.marked or self.heading:
                self.refuse('the text has a second header and so more than one output')
            # -T all: 7.1 and 7.2 print `Avg Latency(us)` from the second
            # table on, whatever the program measures.
            corrected = tuple(c for column in columns for c in (
                [c for c in first if c.unit] if column == LATENCY else [column]))
            if first not in (columns, corrected):
                self.refuse('the header is of another program than the header above')
            if columns != first:
                columns, ends = first, ()
        if self.row.narrow_rows or len(ends) != len(columns):
            ends = ()
        if not self.tables or self.tables[-1].sizes:
            self.tables.append(Table(self.number, columns, ends))
        self.marked = False

    def columns_of(self, line: str) -> tuple[tuple[Column, ...], tuple[int, ...]]:
        """Columns of a header, and the place where each column ends."""
        columns, ends = [], []
        place = 1 if line.startswith('#') else 0
        while place < len(line):
            match = _PHRASE.match(line, place)
            if not match:
                words = re.split('  +', line[place:].strip())[0]
                self.refuse_damage(f'the header has an unknown column {words!r}')
            if match['known']:
                columns.append(_PHRASES[match['known']])
            else:
                # A non-blocking collective times the whole of a call.
                base = (BANDWIDTH if match['tail'].startswith('BW') else
                        OVERALL if OVERALL in columns else LATENCY)
                columns.append(base._replace(name=f'{base.name}_p{match["rank"]}'))
            place = match.end()
            ends.append(place)
        if len(set(columns)) < len(columns):
            self.refuse('the header has a column twice')
        return tuple(columns), tuple(ends)

    def check_header_matches_title(self, columns: tuple[Column, ...]) -> None:
        if SIZE in columns[1:] or (columns[0] == SIZE) != self.row.has_sizes:
            self.refuse('the column Size is missing or misplaced in the header')
        value = next((column.name for column in columns if column.unit), 'no value')
        expected = self.row.metrics[0] if self.row.metrics else value
        if value != expected:
            self.refuse(f'the header has {value}, but the title requires {expected}')

    def begin_table_of_windows(self, heading: Column, windows: list[int]) -> None:
        """Begin a table over window sizes (osu_mbw_mr -V): first the bandwidths, then
        the message rates."""
        if any(after != 2 * before for before, after in itertools.pairwise(windows)):
            self.refuse('each window size must be twice the size before it')
        if not self.row.varies_windows or len(self.tables) != (heading == RATE):
            self.refuse('a table of window sizes must not be here')
        columns = (SIZE, *(heading._replace(params=f'window={n}') for n in windows))
        if self.tables and len(columns) != len(self.tables[0].columns):
            self.refuse('the window sizes differ from those of the first table')
        self.tables.append(Table(self.number, columns, windows=True))
        self.marked = False

    def read_single_result(self, line: str, pattern: re.Pattern[str]) -> None:
        """Read the one result of osu_init or osu_hello."""
        if self.records:
            self.refuse('the text has a second result')
        match = pattern.fullmatch(line)
        if not match:
            self.refuse(f'this is not a line of {self.program}: {line[:60]!r}')
        values = [int(group) for group in match.groups()]
        if min(values) < 1:
            self.refuse('the result has a value of zero')
        if len(values) > 1 and not values[1] <= values[3] <= values[2]:
            self.refuse('the mean is not between minimum and maximum')
        for name, value in zip(self.row.result_metrics, values, strict=True):
            self.add_record(None, name, value, 'ms' if 'time' in name else '1')

    # Rows ---------------------------------------------------------------

    def read_row(self, line: str) -> None:
        words = line.split()
        if not self.tables:
            # A barrier of 7.1.
            header = _BARE.get((self.program, len(words)))
            if not header or version_numbers(self.version) != (7, 1):
                self.refuse_damage('the row has no header above it')
            self.tables.append(Table(self.number, self.columns_of(header)[0]))
        table = self.tables[-1]
        if self.heading and not table.columns[1].name.startswith(self.heading.name):
            self.refuse('the row has no window sizes above it')
        if table.sizes and self.marked:
            self.refuse('the row follows a data type that has no header')
        if len(words) != len(table.columns):
            self.refuse_damage(f'the row has {len(words)} fields, its header '
                               f'{len(table.columns)} columns')
        size = None
        values: dict[Column, float] = {}
        for column, word in zip(table.columns, words, strict=True):
            if column == SIZE:
                size = self.read_size(line, word, table)
            elif column == VALIDATION:
                if word != 'Pass':
                    self.refuse("the program's validation of the data failed"
                                if word == 'Fail' else
                                f'the column Validation has {word!r} instead of Pass')
            elif column in COUNTS:
                if not _INTEGER.fullmatch(word):
                    self.refuse(f'{word!r} is not a count')
            else:
                values[column] = self.read_value(column, word)
        if size is None and table.sizes:
            self.refuse('the table has no sizes and must have one row only')
        self.check_alignment(table, line, words)
        named = {column.name: value for column, value in values.items()}
        for name in ('latency', 'pure_comm_time'):
            if f'{name}_max' in named and not (
                    named[f'{name}_min'] <= named[name] <= named[f'{name}_max']):
                self.refuse(f'the mean {name} is not between minimum and maximum')
        table.sizes.append(size)
        self.marked = False
        of_type = f'type={self.datatype}' if self.types else ''
        for column, value in values.items():
            self.add_record(size, column.name, value, column.unit,
                            column.params or of_type)

    def read_size(self, line: str, word: str, table: Table) -> int:
        if line.startswith(' ') or not _INTEGER.fullmatch(word):
            self.refuse(f'{word!r} is not a valid size')
        size, last = int(word), table.sizes[-1] if table.sizes else None
        if last is not None and size <= last:
            self.refuse(f'size {size} follows the larger or equal size {last}')
        # OMB doubles from the first size on; 1 follows 0.
        if last is not None and size != (2 * last or 1):
            self.refuse(f'rows are missing between sizes {last} and {size}')
        return size

    def read_value(self, column: Column, word: str) -> float:
        name = column.name + (f'[{column.params}]' if column.params else '')
        value = self.read_number(name, word, _NUMBER, 'a number with two decimals')
        if not value and not column.zero:
            self.refuse(f'{name} is zero')
        return value

    def check_alignment(self, table: Table, line: str, words: list[str]) -> None:
        """Refuse a shifted column: widths are fixed, so digits were lost or
        added."""
        if table.windows:               # a large rate shifts the others
            shifted = line != f'{words[0]:<7}' + ''.join(
                f'  {word:>10}' for word in words[1:])
        else:
            ends = tuple(match.end() for match in re.finditer('[^ ]+', line))
            ends = ends[table.columns[0] == SIZE:]
            table.ends = table.ends or ends
            shifted = ends != table.ends
        if shifted:
            self.refuse('a field is shifted: characters were lost or added')

    def add_record(self, size: int | None, name: str, value: float, unit: str,
                   params: str = '') -> None:
        self.records.append(Record(self.program, self.version, size, name,
                                   float(value), unit, self.number, params))

    def check_end(self) -> None:
        last = len(self.lines) - 1
        if not self.program:
            self.refuse('the text has no title of an OSU program', 1)
        for table in self.tables:
            if not table.sizes:
                self.refuse('the header has no row below it', table.line)
            # Other rows confirm a row's columns, else only the header can.
            expected = table.header_ends[table.columns[0] == SIZE:]
            if len(table.sizes) == 1 and expected and table.ends != expected:
                self.refuse('a field is shifted: characters were lost or added',
                            self.records[-1].line)
        if not self.records:
            self.refuse('the text has a title but no result', last)
        if self.marked and self.tables:
            self.refuse(f'the table of {self.datatype} is missing', last)
        if self.heading and (len(self.tables) < 1 + (self.heading == RATE)
                             or self.tables[0].sizes != self.tables[-1].sizes):
            self.refuse('the table of message rates is missing, or has other sizes '
                        'than the table of bandwidths', last)


def is_result_line(line: str) -> bool:
    """Whether a line before any title is a row, a header or a result, whose title
    is missing."""
    return any(pattern.fullmatch(line.rstrip()) for pattern in (_NUMBERS, _TYPE)
               ) or any(pattern.match(line) for pattern in (
                   _HEADER, INIT, INIT_5_3, HELLO))


def strip_prefixes(lines: Sequence[str]) -> list[str]:
    """The lines without what a launcher or a page puts before each."""
    return saved.strip_prefixes(lines, _TITLE_ANYWHERE, _NUMBERS)


def parse(text: str) -> tuple[Record, ...]:
    """The records of one output of one OSU program.

    If a text has several data types (-T all), the type of later tables is a parameter,
    `type=MPI_INT`. So is each window size of a table over window sizes, `window=4`.

    :raises ParseError: a part of the text cannot be trusted.
    """
    return _Reader(text).read()


def parse_setup(text: str, validation_type: str = '') -> dict[str, str]:
    """What an output says of itself, under the names of the checks' parameters: how a
    one-sided program made its window and synchronised, the threads of osu_latency_mt,
    the pairs of osu_mbw_mr, buffers on a GPU, and data types.

    :arg validation_type: data type with which the checks validate the program
    """
    setup = {name: match[1] for name, pattern in _SETUP.items()
             if (match := pattern.search(text))}
    if 'synchronisation' in setup:      # its calls, such as lock/unlock
        setup['synchronisation'] = setup['synchronisation'].replace('post', 'pscw')
    if setup.get('window_size') == '64':
        del setup['window_size']
    if 'buffers' in setup:
        setup['buffers'] = setup['buffers'].lower()
        places = _PLACES.search(text)
        if places and places.groups() == ('H', 'H'):
            del setup['buffers']
        elif places and places.groups() != ('D', 'D'):
            setup['buffers'] += f'-{places[1]}-{places[2]}'
    if 'Transmit Size' in text:
        setup['derived_type'] = 'yes'
    types = set(_ANY_TYPE.findall(text))
    validated = validation_type.upper() if 'Validation' in text else ''
    if len(types) == 1 and types != {validated or 'MPI_CHAR'}:
        setup |= {'type': types.pop()}
    return setup
