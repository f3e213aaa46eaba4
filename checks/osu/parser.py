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
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from ..core import text as saved
from ..core.parsers import ParseError, Record
from .programs import HELLO, INIT, INIT_5_3, PROGRAMS, Program, find_program


class Column(NamedTuple):
    """A column of a table."""
    #: Name of the metric, or Size, or a count or word that is only checked.
    name: str
    unit: str = ''
    #: Whether 0.00 is a valid value and not a sign of a broken clock or run.
    zero: bool = False
    #: Parameters of its test case: name=value.
    params: str = ''

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f'{self.name}[{self.params}]' if self.params else self.name


#: Longer than any line of OMB or of a launcher.
LONGEST = 4096

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

#: Columns of a table that 7.1 prints without a header.
_BARE = {
    'osu_barrier': ('Avg Latency(us)', 'Min Latency(us)', 'Max Latency(us)',
                    'Iterations'),
    'osu_ibarrier': ('Overall(us)', 'Compute(us)', 'Coll. Init(us)',
                     'MPI_Test(us)', 'MPI_Wait(us)', 'Pure Comm.(us)',
                     'Min Comm.(us)', 'Max Comm.(us)', 'Overlap(%)'),
}
_BARE_SHORT = {
    'osu_barrier': ('Avg Latency(us)',),
    'osu_ibarrier': ('Overall(us)', 'Compute(us)', 'Pure Comm.(us)',
                     'Overlap(%)'),
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
_ROW = re.compile(r' *[-+]?(?:[0-9.]|nan\b|inf\b)', re.IGNORECASE)
_WORD = re.compile('[^ ]+')
_PLAIN = re.compile('[0-9. ]+')
_NUMBERS = re.compile(r' *[-+]?(?:[0-9]+\.[0-9]+|[0-9]+(?: +[-+]?(?:[0-9]+'
                      r'(?:\.[0-9]*)?|nan|inf))(?: .*)?)')
TOPOLOGY = re.compile(r'Dimensions size = [0-9 ]+|'
                       r'Time took to create topology graph: ?[0-9.]+ us\.')
#: Lines of an output that come before its title.
PREAMBLE = re.compile(TOPOLOGY.pattern + r'|# Number of (?:Sender|Receiver) threads: '
                      r'[0-9]+|# Number of forked processes.*')
#: Start of a line -> programs that print it; others have no such line.
_OWNED = {
    'Dimensions size': 'neighbor_',
    'Time took to create': 'neighbor_',
    '# Number of forked processes': '_mp$',
    '# Number of Sender threads': '_mt$',
    '# Number of Receiver threads': '_mt$',
    '# [ pairs': '_mbw_mr$',
    '# Window creation': '_(put|get|get_acc|acc|cas|fop)_',
    '# Synchronization': '_(put|get|get_acc|acc|cas|fop)_',
    '# Overall = ': 'osu_i|_put_overlap$',
    '# Datatype: ': 'osu_(?!init|hello)',
}
#: Threads of osu_latency_mt, before its title or after it.
_THREADS = re.compile(r'^# Number of (Sender|Receiver) threads: ([1-9][0-9]{0,5})\s*$',
                      re.MULTILINE)
# A launcher's last lines may come first if a log joins both streams.
FAILURE = re.compile(
    r'DATA VALIDATION ERROR|Segmentation fault|MPI_ABORT|MPI_Abort'
    r'|exited on signal|noticed that|non-zero (?:exit|status)'
    r'|received signal|Killed|Bus error|Aborted', re.IGNORECASE)
_USAGE = re.compile(r' *usage *:', re.IGNORECASE)

# Digits are bounded so that a number stays finite.
_INTEGER = re.compile('0|[1-9][0-9]{0,17}')
_NUMBER = re.compile(r'(?:0|[1-9][0-9]{0,17})\.[0-9]{2}')

#: Title -> program; partitioned latency has a second one.
_TITLES = {row.title: name for name, row in PROGRAMS.items() if row.title} | {
    'mpi latency partitioned': 'osu_partitioned_latency'}
_COLLECTIVE = re.compile(
    r'(?P<later>non-blocking )?(?P<near>neighbor(?:hood)? )?(?P<what>'
    r'(?:all)?gatherv?|allreduce|alltoall[vw]?|barrier|bcast'
    r'|reduce(?:_scatter(?:_block)?)?|scatterv?)'
    r'(?: personalized exchange)? latency')
_PREFIX = {'openshmem': 'oshm_', 'upc': 'upc_all_', 'upc++': 'upcxx_'}


def program_of_title(what: str, version: str, topology: bool = False) -> str:
    """OMB's name of the program with this title.

    :arg what: the title between `OSU` and `Test`.
    :arg version: NCCL programs have kept their titles under new names.
    :arg topology: lines about a topology came before the title.  Only they
        distinguish osu_neighbor_alltoallw from osu_alltoallw.
    """
    # Remove the place of the buffers: MPI-CUDA, MPI_Put-ROCM, MPI-CUDA
    # MANAGED.
    title = re.sub(r'-[A-Z]{3,}(?: MANAGED)?(?= )', '', what).lower()
    title, persistent = re.subn(' persistent(?= |$)', '', title)
    after = '_persistent' if persistent else ''
    if title in _TITLES:
        return _TITLES[title] + after
    if fan := re.search(r'\bfan[- _]?(in|out)\b', title):
        return f'osu_bw_fan_{fan[1]}{after}'
    api, _, rest = title.partition(' ')
    if api in _PREFIX:
        name = re.sub(r' latency$', '', rest)
        return f'osu_{_PREFIX[api]}{_to_identifier(name)}'
    plain = re.sub('all-to-all(?=[vw]? )', 'alltoall', rest)
    plain = re.sub('broadcast', 'bcast', plain)
    before = 'osu_'
    if api in ('nccl', 'rccl', 'xccl'):
        # Their pt2pt titles are those of MPI.
        before += 'nccl_' if version_numbers(version) < (7, 3) else 'xccl_'
        if f'mpi {rest}' in _TITLES:
            return before + _TITLES[f'mpi {rest}'].removeprefix('osu_')
    elif api != 'mpi':
        return f'osu_{_to_identifier(title)}{after}'
    if match := _COLLECTIVE.fullmatch(plain):
        near = 'neighbor_' if match['near'] or topology else ''
        later = 'i' if match['later'] else ''
        return f'{before}{later}{near}{match["what"]}{after}'
    return f'osu_{_to_identifier(title)}{after}'


def _to_identifier(words: str) -> str:
    return re.sub('[^a-z0-9]+', '_', words).strip('_')


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 7.2-embedded.1 is (7, 2)."""
    match = re.match(r'[0-9]+(?:\.[0-9]+)*', version)
    return tuple(int(part) for part in match[0].split('.')) if match else ()


@functools.cache                        # asked for each line of a text
def row_of_title(program: str, what: str) -> Program:
    """The row of a program; if the table of programs lacks it, what the words of its
    title say."""
    row = find_program(program)
    if row:
        return row
    title = what.lower()
    metric = ('bandwidth' if 'bandwidth' in title else
              'message_rate' if 'rate' in title else
              'overall_time' if 'non-blocking' in title else 'latency')
    return Program(metrics=(metric,), largest=0, has_sizes='barrier' not in title)


@dataclass
class Table:
    """A header and the rows below it."""
    line: int
    columns: tuple[Column, ...]
    #: Where the columns of the header end; empty if that is not known.
    header_ends: tuple[int, ...] = ()
    windows: bool = False
    ends: tuple[int, ...] = ()
    sizes: list[int] = field(default_factory=list)
    rows: int = 0


class _Reader:
    """Reads one output line by line."""

    def __init__(self, text: str):
        self.complete = text.endswith('\n')
        self.lines = strip_prefixes(
            [line.removesuffix('\r') for line in text.split('\n')])
        self.number = 1
        self.what = self.program = self.version = ''
        self.titled_at = 0
        self.topology = False
        #: Numbers of lines that only some programs print, and these programs.
        self.owned: list[tuple[int, str]] = []
        self.heading: Column | None = None
        self.datatype = ''
        #: Data types with a complete table; and whether a type line is open.
        self.types: set[str] = set()
        self.marked = False
        self.tables: list[Table] = []
        self.records: list[Record] = []

    def raise_parse_error(self, reason: str, line: int | None = None) -> NoReturn:
        line = line or self.number
        raise ParseError(line, self.lines[line - 1], reason)

    def read(self) -> tuple[Record, ...]:
        if not any(map(str.strip, self.lines)):
            self.raise_parse_error('the output is empty')
        if not self.complete:
            self.raise_parse_error('the output is cut off: its last line has no end',
                                   len(self.lines))
        failed = saved.find_failure(self.lines)
        if failed is not None:
            self.raise_parse_error('the run failed: '
                                   f'{self.lines[failed].strip()[:60]!r}', failed + 1)
        for number, line in enumerate(self.lines, 1):
            self.number = number
            if len(line) > LONGEST:
                self.raise_parse_error(f'the line has {len(line)} characters')
            if line.strip(' '):
                self.read_line(line.rstrip(' '))
        self.assert_complete()
        return tuple(self.records)

    def read_line(self, line: str) -> None:
        """Read one line that is not blank."""
        # Most lines are rows, and no other line looks like a row.
        if self.tables and _PLAIN.fullmatch(line):
            self.read_row(line)
            return
        if _USAGE.match(line):
            self.raise_parse_error('the program printed its usage instead of a table: '
                                   'check its options')
        if FAILURE.search(line):
            self.raise_parse_error(f'the run failed: {line.strip()[:60]!r}')
        self.owned += [(self.number, programs) for start, programs in
                       _OWNED.items() if line.startswith(start)]
        if line.startswith(TITLE_START):
            self.read_title(line)
        elif TOPOLOGY.fullmatch(line) and not self.tables:
            self.topology = True
        elif not self.what:
            self.read_line_before_title(line)
        elif line in _HEADINGS:
            self.read_window_table_heading(_HEADINGS[line])
        elif self.heading and _WINDOWS.fullmatch(line):
            self.read_window_size_columns(line)
        elif match := _TYPE.fullmatch(line):
            self.read_data_type(match[1])
        elif (_HEADER.match(line)
              and not line.startswith('# Overall = ')):
            self.read_header(line)
        elif line.startswith('#'):
            if _HIDDEN_ROW.search(line) or line.startswith('# Datatype'):
                self.raise_parse_error(
                    'the comment contains a damaged row or data type'
                )
        elif self.row.result:
            self.read_single_result(line)
        elif _ROW.match(line):
            self.read_row(line)
        else:
            self.raise_parse_error(f'this is not a line of OMB: {line[:60]!r}'
                                   + saved.foreign_cause([line]))

    @property
    def row(self) -> Program:
        """What the program of the title prints."""
        return row_of_title(self.program, self.what)

    # Kinds of lines -----------------------------------------------------

    def read_line_before_title(self, line: str) -> None:
        """Read a line before the title: a launcher's, or a comment of OMB."""
        if INIT_5_3.fullmatch(line):
            self.what, self.version = 'MPI Init', '5.3'
            self.program = 'osu_init'
            self.read_single_result(line)
            return
        if not is_result_line(line):
            return
        if _NUMBERS.fullmatch(line):
            self.raise_parse_error('the row has no title above it')
        if _HEADER.match(line) or _TYPE.fullmatch(line):
            self.raise_parse_error('the header has no title above it')
        self.raise_parse_error('the result has no title above it')

    def read_title(self, line: str) -> None:
        match = _TITLE.fullmatch(line)
        if not match:
            self.raise_parse_error('the title has no name or no version')
        if self.what:
            # osu_mbw_mr prints its title twice from 6.0 to 7.2.
            if not (self.row.title_twice and not self.tables
                    and self.titled_at == self.number - 1
                    and line == self.lines[self.titled_at - 1].rstrip(' ')
                    and line not in self.lines[:self.titled_at - 1]):
                self.raise_parse_error(
                    'the text has a second title and so more than one output'
                )
            return
        self.what, self.version = match['what'], match['version']
        self.program = program_of_title(self.what, self.version, self.topology)
        self.titled_at = self.number

    def read_data_type(self, datatype: str) -> None:
        """Read the data type of the rows below (since 7.1), before or after
        the header; the next data type begins a table (-T all)."""
        if self.tables and self.tables[-1].rows:
            self.types.add(self.datatype)
            if datatype in self.types:
                self.raise_parse_error(f'the text has a second table of {datatype}')
        elif self.datatype not in ('', datatype):
            self.raise_parse_error(f'the table of {self.datatype} is missing')
        self.datatype = datatype
        self.marked = True

    def read_header(self, line: str) -> None:
        columns, ends = self.parse_header_columns(line)
        first = self.tables[0] if self.tables else None
        if first is None:
            columns = self.match_first_header_with_title(columns)
        else:
            last = self.tables[-1]
            if not self.marked or last.windows:
                self.raise_parse_error('the text has a second header and so more than '
                                       'one output')
            # -T all: 7.1 and 7.2 print `Avg Latency(us)` from the second
            # table on, whatever the program measures.
            values = [c for c in first.columns if c.unit]
            corrected = tuple(c for column in columns for c in
                              (values if column == LATENCY else [column]))
            if first.columns not in (columns, corrected):
                self.raise_parse_error(
                    'the header is of another program than the header above'
                )
            if columns != first.columns:
                columns, ends = first.columns, ()
        if self.row.narrow_rows or len(ends) != len(columns):
            ends = ()
        if first is None or self.tables[-1].rows:
            self.tables.append(Table(self.number, columns, ends))
        self.marked = False

    def parse_header_columns(self, line: str) -> tuple[tuple[Column, ...],
                                                       tuple[int, ...]]:
        """Columns of a header, and the place where each column ends."""
        columns, ends = [], []
        place = 1 if line.startswith('#') else 0
        while place < len(line):
            match = _PHRASE.match(line, place)
            if not match:
                words = re.split('  +', line[place:].strip())[0]
                self.raise_parse_error(f'the header has an unknown column {words!r}')
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
            self.raise_parse_error('the header has a column twice')
        return tuple(columns), tuple(ends)

    def match_first_header_with_title(self, columns: tuple[Column, ...]) -> tuple[
            Column, ...]:
        """Columns of the first header, if they match the title."""
        if SIZE in columns[1:] or (columns[0] == SIZE) != self.row.has_sizes:
            self.raise_parse_error('the column Size is missing or misplaced in the '
                                   'header')
        values = [column for column in columns if column.unit]
        if not values:
            self.raise_parse_error('the header has no column with values')
        expected = self.row.metrics[0]
        if self.program == 'osu_oshm_put_nb' and values[0].name == 'compute_time':
            self.program, expected = 'osu_oshm_put_overlap', 'compute_time'
        # osu_bw_fan_in and _out of 7.4 have the title of osu_bw and the header
        # of a latency above values in MB/s, because their kind is not BW.
        if (self.program == 'osu_bw' and self.marked and values == [LATENCY]
                and version_numbers(self.version) >= (7, 4)):
            self.program = 'osu_bw_fan'
            return tuple(BANDWIDTH if column == LATENCY else column
                         for column in columns)
        if values[0].name != expected:
            self.raise_parse_error(f'the header has {values[0].name}, but the title '
                                   f'requires {expected}')
        return columns

    def read_window_table_heading(self, heading: Column) -> None:
        """Read the heading of a table over window sizes (osu_mbw_mr -V)."""
        expected = RATE if self.tables else BANDWIDTH
        if (self.program != 'osu_mbw_mr' or heading != expected
                or len(self.tables) > 1
                or not all(table.windows for table in self.tables)):
            self.raise_parse_error('a heading of window sizes must not be here')
        self.heading = heading

    def read_window_size_columns(self, line: str) -> None:
        windows = [int(word) for word in line[1:].split()]
        assert self.heading
        columns = (SIZE, *(self.heading._replace(params=f'window={n}')
                           for n in windows))
        for before, after in zip(windows, windows[1:], strict=False):
            if after != 2 * before:
                self.raise_parse_error('each window size must be twice the size before '
                                       'it')
        if len(self.tables) != list(_HEADINGS.values()).index(self.heading):
            self.raise_parse_error('the text has a second header')
        if self.tables and len(columns) != len(self.tables[0].columns):
            self.raise_parse_error('the window sizes differ from those of the first '
                                   'table')
        self.tables.append(Table(self.number, columns, windows=True))
        self.marked = False

    def read_single_result(self, line: str) -> None:
        """Read the one result of osu_init or osu_hello."""
        if self.records:
            self.raise_parse_error('the text has a second result')
        pattern = self.row.result if self.titled_at else INIT_5_3
        match = pattern.fullmatch(line) if pattern else None
        if not match:
            self.raise_parse_error(f'this is not a line of {self.program}: '
                                   f'{line[:60]!r}')
        values = [int(group) for group in match.groups()]
        if min(values) < 1:
            self.raise_parse_error('the result has a value of zero')
        if len(values) > 1 and not values[1] <= values[3] <= values[2]:
            self.raise_parse_error('the mean is not between minimum and maximum')
        for name, value in zip(self.row.result_metrics, values, strict=True):
            self.add_record(None, name, value, 'ms' if 'time' in name else '1')

    # Rows ---------------------------------------------------------------

    def read_row(self, line: str) -> None:
        words = [(match[0], match.end()) for match in _WORD.finditer(line)]
        if not self.tables:
            self.begin_table_without_header(len(words))
        table = self.tables[-1]
        if self.heading and not table.columns[1].name.startswith(
                self.heading.name):
            self.raise_parse_error('the row has no window sizes above it')
        if table.rows and self.marked:
            self.raise_parse_error('the row follows a data type that has no header')
        if len(words) != len(table.columns):
            self.raise_parse_error(f'the row has {len(words)} fields, its header '
                                   f'{len(table.columns)} columns')
        size = None
        values = {}
        for column, (word, _) in zip(table.columns, words, strict=True):
            if column == SIZE:
                size = self.parse_size(line, word, table)
            elif column == VALIDATION:
                if word != 'Pass':
                    self.raise_parse_error(
                        "the program's validation of the data failed"
                        if word == 'Fail' else
                        f'the column Validation has {word!r} instead of Pass')
            elif column in COUNTS:
                if not _INTEGER.fullmatch(word):
                    self.raise_parse_error(f'{word!r} is not a count')
            else:
                values[column] = self.parse_value(column, word)
        if size is None and table.rows:
            self.raise_parse_error('the table has no sizes and must have one row only')
        self.check_column_alignment(table, tuple(end for _, end in words))
        self.check_mean_in_range(values)
        table.rows += 1
        self.marked = False
        of_type = f'type={self.datatype}' if self.types else ''
        for column, value in values.items():
            self.add_record(size, column.name, value, column.unit,
                            column.params or of_type)

    def begin_table_without_header(self, count: int) -> None:
        """Begin the table of a barrier of 7.1, which has no header."""
        if version_numbers(self.version)[:2] == (7, 1):
            for shape in (_BARE, _BARE_SHORT):
                if len(shape.get(self.program, ())) == count:
                    columns = tuple(_PHRASES[p] for p in shape[self.program])
                    self.tables.append(Table(self.number, columns))
                    return
        self.raise_parse_error('the row has no header above it')

    def parse_size(self, line: str, word: str, table: Table) -> int:
        if line.startswith(' ') or not _INTEGER.fullmatch(word):
            self.raise_parse_error(f'{word!r} is not a valid size')
        size = int(word)
        if table.sizes:
            last = table.sizes[-1]
            if size <= last:
                self.raise_parse_error(f'size {size} follows the larger or equal size '
                                       f'{last}')
            # OMB doubles from the first size on; 1 follows 0.
            if size != (2 * last or 1):
                self.raise_parse_error(f'rows are missing between sizes {last} and '
                                       f'{size}')
        table.sizes.append(size)
        return size

    def parse_value(self, column: Column, word: str) -> float:
        if not _NUMBER.fullmatch(word):
            if re.match('[-+]?(nan|inf)', word, re.IGNORECASE):
                self.raise_parse_error(f'{column.label} is {word}')
            if word.startswith('-'):
                self.raise_parse_error(f'{column.label} is negative: {word}')
            self.raise_parse_error(f'{word!r} is not a number with two decimals')
        value = float(word)
        if not value and not column.zero:
            self.raise_parse_error(f'{column.label} is zero')
        return value

    def check_column_alignment(self, table: Table, ends: tuple[int, ...]) -> None:
        """Refuse a shifted column: widths are fixed, so digits were lost or
        added."""
        if table.windows:
            # `  %10.2f` after a size of 7: a large rate shifts the others.
            line = self.lines[self.number - 1]
            expected = f'{table.sizes[-1]:<7}' + ''.join(
                f'  {word:>10}' for word in line.split()[1:])
            shifted = line.rstrip(' ') != expected
        else:
            ends = ends[table.columns[0] == SIZE:]
            table.ends = table.ends or ends
            shifted = ends != table.ends
        if shifted:
            self.raise_parse_error('a field is shifted: characters were lost or added')

    def check_mean_in_range(self, values: dict[Column, float]) -> None:
        named = {column.name: value for column, value in values.items()}
        for name in ('latency', 'pure_comm_time'):
            if f'{name}_max' in named and not (
                    named[f'{name}_min'] <= named[name]
                    <= named[f'{name}_max']):
                self.raise_parse_error(f'the mean {name} is not between minimum and '
                                       'maximum')

    def add_record(self, size: int | None, name: str, value: float, unit: str,
                   params: str = '') -> None:
        self.records.append(Record(self.program, self.version, size, name,
                                   float(value), unit, self.number, params))

    def assert_complete(self) -> None:
        """Refuse a text that is incomplete, after its last line."""
        if not self.what:
            self.raise_parse_error('the text has no title of an OSU program', 1)
        for line, programs in self.owned:
            if not re.search(programs, self.program):
                self.raise_parse_error(f'{self.program} does not print this line: the '
                                       'text has more than one output', line)
        for table in self.tables:
            if not table.rows:
                self.raise_parse_error('the header has no row below it', table.line)
            start = table.columns[0] == SIZE
            expected = table.header_ends[start:]
            # Other rows confirm a row's columns, else only the header can.
            if table.rows == 1 and expected and table.ends != expected:
                self.raise_parse_error('a field is shifted: characters were lost or '
                                       'added', self.records[-1].line)
        last = len(self.lines) - 1
        if not self.records:
            self.raise_parse_error('the text has a title but no result', last)
        if self.marked and self.tables:
            self.raise_parse_error(f'the table of {self.datatype} is missing', last)
        if self.heading:
            if not self.tables[-1].columns[1].name.startswith(
                    self.heading.name):
                self.raise_parse_error('the last heading has no table below it', last)
            if self.tables[0].sizes != self.tables[-1].sizes:
                self.raise_parse_error(
                    'the table of message rates has other sizes than '
                    'the table of bandwidths',
                    last,
                )


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


def parse_window(text: str) -> dict[str, str]:
    """How a one-sided program made its window and synchronised, under the names of the
    checks' parameters; empty if the output does not say."""
    window = re.search(r'^# Window creation: MPI_Win_(?:create_)?(\w+)\s*$', text,
                       re.MULTILINE)
    how = re.search(r'^# Synchronization: MPI_Win_([\w/]+)\s*$', text, re.MULTILINE)
    # It names the calls of a pair, such as lock/unlock.
    first = how[1].split('/')[0].replace('post', 'pscw') if how else ''
    return {name: word for name, word in (
        ('synchronisation', first), ('window', window[1] if window else '')) if word}


def parse_thread_counts(text: str) -> dict[str, int]:
    """Threads of osu_latency_mt: `sender_threads`, `receiver_threads`; empty if
    the output has no lines with them."""
    return {f'{end.lower()}_threads': int(count)
            for end, count in _THREADS.findall(text)}
