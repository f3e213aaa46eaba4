"""Parser of memtier_benchmark 1.4 to 2.3: text, and --json-out-file.

The text is what `run_stats::print` and its relatives in run_stats.cpp write:
for each run a title, a header, a row a command and `Totals`; the JSON has
the same under the same titles.  Latencies are ms.  A KB of memtier has 1024
bytes (`m_bytes_rx + m_bytes_tx) / 1024.0`, run_stats.cpp, 2.3.0).

Values that 2.3.0 prints wrong are not read: the best and the worst of several
runs (copies of others; the worst may be the best), the mean latency of Totals
in JSON (always 0), the percentiles of Totals of the mean over runs in JSON
(those of an empty histogram), and KB/sec of Totals with --command (twice the
sum).
memtier counts error replies as operations, and only stderr shows them: keep
both streams (`> FILE 2>&1`), or use the store's own counters.
"""
from __future__ import annotations

import datetime
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from ..core import text as saved
from ..core.parsers import Output, ParseError, Record, parse_json

PROGRAM = 'memtier_benchmark'
#: The commands of memtier without --command; they add up to Totals.
OWN = ('Sets', 'Gets', 'Waits')
#: Keys of the block that only the embedded program writes.
CLIENT = ('CPU Seconds', 'Busiest Thread', 'Limited By', 'Histogram')

#: Options that make another test case, under their names in the JSON -> default.
_OPTIONS = {
    'ratio': '1:10', 'rate_limit': '0', 'protocol': 'redis',
    'unix socket': 'None', 'cluster_mode': 'false', 'tls': 'false',
    'key_minimum': '0', 'key_maximum': '10000000', 'key_pattern': 'R:R',
    'key_stddev': '0.0', 'key_median': '0.0', 'key_zipf_exp': '0.0',
    'multi_key_get': '0', 'data_size_range': '0:0', 'data_size_list': '',
    'data_size_pattern': 'R', 'random_data': 'false', 'data_import': 'None',
    'expiry_range': '0:0', 'reconnect_interval': '0', 'wait-ratio': '0:0'}
#: Options that are a parameter of each test case, if the text has them -> default, and
#: name of the parameter.
_ALWAYS = {'pipeline': ('1', 'pipeline'), 'data_size': ('32', 'payload')}
#: Those that a command line has without a value.
_FLAGS = ('cluster_mode', 'tls', 'random_data')
#: Option of a command line -> its name in the JSON, where another letter or word
#: stands for it.
_OF_COMMAND = {
    'rate-limiting': 'rate_limit', 'd': 'data_size', 'R': 'random_data',
    'P': 'protocol', 'S': 'unix socket', 'unix-socket': 'unix socket',
    'wait-ratio': 'wait-ratio', 'key-zipf-exp': 'key_zipf_exp'}
#: Ends with a ParseError: reason, line.
Refuse = Callable[[str, int], NoReturn]

#: A command, as memtier makes a row's name of it.
_COMMAND = re.compile(r'[A-Za-z][\w.-]{0,63}')
_TITLE = re.compile(r'ALL STATS|RUN #(?P<run>[1-9][0-9]*) RESULTS'
                    r'|(?P<copy>BEST|WORST) RUN RESULTS'
                    r'|AGGREGATED AVERAGE RESULTS \([1-9][0-9]* runs\)')
#: The beginning of a JSON document.
DOCUMENT = re.compile(r'^\s*\{\s*"configuration"', re.MULTILINE)
#: The beginning of an output, which may stand behind a prefix.
BEGIN = re.compile(r'(?<![\w.,-])[1-9]\d* +Threads[ \t\r]*$', re.MULTILINE)
#: Progress before it.
PROGRESS = re.compile(r'\[RUN #\d')
#: A command line of the program, and its options.
CALL = re.compile(r'(?:^|[\s/])memtier_benchmark (.*)', re.MULTILINE)
_FAILURE = re.compile(r'error|refused|dropped|failure|exceeded|interrupted'
                      r'|crashed|NOAUTH|WRONGPASS|timed out', re.IGNORECASE)
_ABOUT = (re.compile(r'[1-9]\d* +Threads'),
          re.compile(r'[1-9]\d* +Connections per thread'),
          re.compile(r'[1-9]\d* +(?:Requests per client|Seconds)'))
#: The end of the parameters of memtier_benchmark 1.2.
_OLD = re.compile(r'[1-9]\d* +Requests per thread')
_TOO_OLD = ('memtier_benchmark 1.3 or older wrote this table, which is not read: use '
            '1.4 or newer')
_COLUMN = re.compile(r'(Type|Ops/sec|Hits/sec|Misses/sec|MOVED/sec|ASK/sec'
                     r'|KB/sec|Avg\. Latency|p\d+(?:\.\d+)? Latency) *')
_LIKE_ROW = re.compile(r'[A-Z]\w+ +\d+\.\d\d +(?:\d|-)')
# Digits are bounded so that a number stays finite.
_NUMBER = re.compile(r'(?:0|[1-9][0-9]{0,14})\.([0-9]+)')
_DISTRIBUTION = ('Request Latency Distribution',
                 re.compile(r'Type +<= msec +Percent'), re.compile('-+'))
_SHARE = re.compile(r'\S.* +\d+\.\d{3} +\d+\.\d{3}')
_VERIFIED = re.compile(r'Performing data verification\.\.\.'
                       r'|Data verification completed:'
                       r'|\d+ +keys (?:verified successfuly|(failed))\.')


@dataclass(frozen=True)
class Row:
    """The values of one command in one run; rates per second, times in ms."""
    name: str
    line: int
    operations: float
    hits: float | None
    misses: float | None
    kilobytes: float | None
    #: Mean latency; None where it is not to be had.
    mean: float | None
    #: Percentile -> latency.
    percentiles: Mapping[str, float]
    #: Operations that were answered in each whole second of the run; only in JSON.
    by_second: tuple[int, ...] = ()


class Client(NamedTuple):
    """The load generator itself, as the embedded program describes it."""
    #: Its CPU time. Unit: s.
    cpu: float
    #: Largest share of a core that one of its threads used.
    busiest: float
    #: What limited the rate: client, rate or server.
    limited: str
    #: Latencies of all requests: [begin of the bucket in ns, number].
    histogram: list[list[int]]


@dataclass(frozen=True)
class Table:
    """A title and its rows."""
    title: str
    line: int
    rows: tuple[Row, ...]
    #: Parameters of the test case: name=value name=value.
    params: str
    #: Size of a value. Unit: bytes; None: the text does not have it.
    size: int | None = None
    client: Client | None = None
    #: Time at which the run began; only in JSON.
    time: datetime.datetime | None = None

    @property
    def has_own_commands(self) -> bool:
        """Whether it has no --command: then KB/sec of Totals is right."""
        return all(row.name in OWN for row in self.rows[:-1])

    @property
    def used(self) -> tuple[Row, ...]:
        """The rows with operations; Totals of one command are its values again."""
        used = tuple(row for row in self.rows if row.operations)
        return used[:-1] if len(used) == 2 else used


def parse(text: str) -> list[Output]:
    """The outputs: one for each run, or one for the mean over runs if the text has
    no other.

    The command is a parameter: `operation=set`. If there are several, those of
    Totals are `operation=all`.

    :raises ParseError: a line is damaged, missing or contradictory.
    """
    tables = read_tables(text)
    runs = [table for table in tables if re.match('ALL STATS|RUN #', table.title)]
    means = [table for table in tables if table.title.startswith('AGGREGATED')]
    return [Output(tuple(_records_of_table(table)), params=table.params,
                   time=table.time)
            for table in runs or means]


def read_tables(text: str) -> list[Table]:
    """All tables of a text or of JSON documents.

    :raises ParseError: a line is damaged, missing or contradictory.
    """
    lines = saved.strip_prefixes(text.split('\n'), BEGIN, re.compile('(?!)'))

    def refuse(reason: str, line: int) -> NoReturn:
        line = min(max(line, 1), len(lines))
        raise ParseError(line, lines[line - 1].removesuffix('\r'), reason)

    if not text.strip():
        refuse('empty output', 1)
    saved.refuse_failed_run(lines)
    tables = [
        table for first, document in saved.split_documents(text, DOCUMENT)
        for table in _read_json_tables(first, document, refuse)
    ] if DOCUMENT.search(text) or text.lstrip()[0] == '{' and not BEGIN.search(
        text) else _TextReader(lines, refuse).read_tables()
    if not tables:
        refuse('the output has no row: it is incomplete', len(lines))
    for table in tables:
        _check_table_consistency(table, refuse)
    return tables


def _check_table_consistency(table: Table, refuse: Refuse) -> None:
    """Check that the values of a table agree."""
    *commands, totals = table.rows
    for row in commands:
        if not _COMMAND.fullmatch(row.name):
            refuse(f'{row.name[:40]!r} is not the name of a command', row.line)
    if totals.operations == 0:
        refuse('the number of operations is zero', totals.line)
    names = ('operations', 'kilobytes') if table.has_own_commands else ('operations',)
    for what in names:
        values = [getattr(row, what) or 0.0 for row in table.rows]
        # Each is rounded to a hundredth.
        if abs(sum(values[:-1]) - values[-1]) > 0.006 * len(values):
            refuse(f'{what} do not add up to those of Totals', totals.line)
    for row in table.rows:
        order = [ms for _, ms in sorted(row.percentiles.items(),
                                        key=lambda item: float(item[0]))]
        if order != sorted(order):
            refuse(f'percentiles of {row.name} are not in ascending order', row.line)


def _values_of_row(row: Row, with_bytes: bool) -> Iterator[tuple[str, float, str]]:
    """Metric, value and unit."""
    yield 'operations', row.operations, '1/s'
    hits, misses = row.hits or 0.0, row.misses or 0.0
    if hits + misses:
        yield 'hit_operations', hits, '1/s'
        yield 'miss_operations', misses, '1/s'
        yield 'hit_ratio', round(hits / (hits + misses), 6), '1'
    if row.kilobytes is not None and with_bytes:
        yield 'bandwidth', round(row.kilobytes * 1024 / 1e6, 6), 'MB/s'
    if row.mean is not None:
        yield 'latency', round(row.mean * 1000, 3), 'us'
    for name, ms in row.percentiles.items():
        yield _percentile_metric(name), round(ms * 1000, 3), 'us'


def _records_of_table(table: Table) -> Iterator[Record]:
    for row in table.used:
        operation = ('all' if row.name == 'Totals' else
                     row.name.lower().removesuffix('s'))
        for metric, value, unit in _values_of_row(
                row, table.has_own_commands or row.name != 'Totals'):
            yield Record(PROGRAM, '', table.size, metric, value, unit, row.line,
                         f'operation={operation}')


def _params_of_clients(threads: int, connections: int, options: Mapping[str, Any]
                       ) -> str:
    """Parameters of the clients.

    :param connections: of each thread
    :param options: others of the program's options, under their names in its JSON
    """
    text = f'connections={threads * connections}'
    text += f' client_threads={threads}' if threads > 1 else ''
    text += ''.join(f' {parameter}={options[name]}'
                    for name, (_, parameter) in _ALWAYS.items() if options.get(name))
    # The path of a socket or of a file is of one run.
    return text + ''.join(
        f' {name.replace(" ", "_")}='
        + ('true' if default == 'None' else str(options[name]))
        for name, default in _OPTIONS.items()
        if str(options.get(name, default)) != default)


def _percentile_metric(name: str) -> str:
    """Metric of a percentile: 99.90 is latency_p999, 100 is latency_max."""
    whole, _, part = name.partition('.')
    return ('latency_max' if int(whole) == 100 else
            f'latency_p{whole}{part.rstrip("0")}')


# Text --------------------------------------------------------------------

class _TextReader:
    """Reads the text; in a table, and from its parameters to it, every line must be
    known."""

    def __init__(self, lines: list[str], refuse: Refuse):
        self.lines = [line.rstrip('\r').rsplit('\r', 1)[-1].rstrip(' \t')
                      for line in lines]
        self.fail = refuse
        self.number = 0
        self.complete = lines[-1] == ''
        #: Options of the command line above the output.
        self.options: dict[str, str] = {}

    def raise_parse_error(self, reason: str) -> NoReturn:
        self.fail(reason, self.number)

    def next_line(self) -> str:
        """The next line that is not blank; '' at the end."""
        while self.number < len(self.lines):
            self.number += 1
            if self.lines[self.number - 1]:
                return self.lines[self.number - 1]
        return ''

    def read_tables(self) -> list[Table]:
        tables: list[Table] = []
        titles: set[str] = set()
        line = self.next_line()
        while line := self.skip_foreign_lines(line, bool(tables)):
            numbers = []
            for number, pattern in enumerate(_ABOUT):
                line = self.next_line() if number else line
                if _OLD.fullmatch(line):
                    self.raise_parse_error(_TOO_OLD)
                if not pattern.fullmatch(line):
                    self.raise_parse_error(f'unexpected line {line[:60]!r}')
                numbers.append(int(line.split()[0]))
            params = _params_of_clients(numbers[0], numbers[1], self.options)
            line = self.next_line()
            while title := _TITLE.fullmatch(line):
                if line in titles and line != 'ALL STATS':
                    self.raise_parse_error(
                        f'{title[0]} occurs twice: the text has more than '
                        'one output'
                    )
                titles.add(line)
                tables.append(self.read_table(line, params))
                line = self.read_table_footer()
            if not tables:
                self.raise_parse_error('the line ends before its values')
        if not self.complete:
            self.raise_parse_error('the last line is incomplete')
        return tables

    def skip_foreign_lines(self, line: str, after_table: bool) -> str:
        """Skips what is no output; returns the first line of one, '' for none."""
        self.options = {}
        while line and not _ABOUT[0].fullmatch(line):
            if call := CALL.search(saved.last_command(line, CALL)):
                unknown = saved.VARIABLE.search(call[1])
                given = {} if unknown else saved.options_of_command(call[1])
                named = {_OF_COMMAND.get(option, option.replace('-', '_')): value
                         for option, value in given.items()}
                self.options = {
                    name: usual for name, (usual, _) in _ALWAYS.items()
                    if not unknown} | named | (
                    dict.fromkeys({*_FLAGS} & {*named}, 'true'))
            elif _FAILURE.search(line) and not saved.AROUND.match(line):
                self.raise_parse_error(f'the benchmark failed: {line[:60]}')
            elif after_table and (_TITLE.fullmatch(line) or _LIKE_ROW.match(line)):
                self.raise_parse_error(f'unexpected line {line[:60]!r}: lines before '
                                       'it were lost or doubled')
            line = self.next_line()
        return line

    def read_table(self, title: str, params: str) -> Table:
        at = self.number
        rule = self.next_line()
        header = self.next_line()
        columns, ends = self.parse_header(header)
        if set(rule) != {'='} or set(self.next_line()) != {'-'}:
            self.raise_parse_error('a line of dashes in the table is damaged')
        rows = [self.read_row(columns, ends)]
        while rows[-1].name != 'Totals':
            rows.append(self.read_row(columns, ends))
            if rows[-1].name in [row.name for row in rows[:-1]]:
                self.raise_parse_error(f'{rows[-1].name} twice')
        names = [row.name for row in rows]
        if len(rows) == 1 or (columns[2] == 'Hits/sec'
                              and names != [*OWN, 'Totals']):
            self.raise_parse_error('rows are missing')
        size = self.options.get('data_size', '')
        return Table(title, at, tuple(rows), params,
                     int(size) if size.isdecimal() else None)

    def parse_header(self, line: str) -> tuple[list[str], list[int]]:
        """Columns of a header and where each ends."""
        columns, ends, place = [], [], 0
        while place < len(line):
            match = _COLUMN.match(line, place)
            if not match and line[place:].startswith('Latency'):
                self.raise_parse_error(_TOO_OLD)
            if not match:
                self.raise_parse_error(f'unknown column {line[place:].split()[0]!r}')
            columns.append(match[1])
            ends.append(match.end(1))
            place = match.end()
        if (columns[:2] != ['Type', 'Ops/sec'] or columns[-1] != 'KB/sec'
                or len(set(columns)) < len(columns)):
            self.raise_parse_error('columns are missing or misplaced')
        return columns, ends

    def read_row(self, columns: list[str], ends: list[int]) -> Row:
        line = self.next_line()
        cells = list(re.finditer(r'\S+', line))
        if _TITLE.fullmatch(line) or len(cells) != len(columns) or [
                cell.end() for cell in cells[1:]] != ends[1:]:
            self.raise_parse_error('the columns of the row do not line up with '
                                   'its header')
        result: dict[str, float | None] = {}
        for column, cell in zip(columns[1:], cells[1:], strict=True):
            digits = 5 if 'Latency' in column else 2
            number = _NUMBER.fullmatch(cell[0])
            if number and len(number[1]) == digits:
                result[column] = float(cell[0])
            elif cell[0] == '---' and column != 'Ops/sec':
                result[column] = None
            else:
                self.raise_parse_error(f'{column}: {cell[0]} is not a number')
        latencies = {name: value for name, value in result.items()
                     if 'Latency' in name}
        operations = result['Ops/sec'] or 0.0
        if operations and (None in latencies.values()
                           or result['KB/sec'] is None
                           and cells[0][0] != 'Waits'):
            self.raise_parse_error('a value is missing')
        mean = latencies.pop('Avg. Latency', None)
        if operations and not mean:
            self.raise_parse_error('the mean latency is missing')
        return Row(cells[0][0], self.number, operations,
                   result.get('Hits/sec'), result.get('Misses/sec'),
                   result['KB/sec'], mean,
                   {name[1:].removesuffix(' Latency'): value
                    for name, value in latencies.items()
                    if value is not None})

    def read_table_footer(self) -> str:
        """The distribution, the verification; returns what comes next."""
        line = self.next_line()
        if line == _DISTRIBUTION[0]:
            for pattern in _DISTRIBUTION[1:]:
                if not pattern.fullmatch(self.next_line()):
                    self.raise_parse_error('the distribution is damaged')
            line, last = self.next_line(), ''
            while line == '---' or _SHARE.fullmatch(line):
                last = line.split()[-1]
                line = self.next_line()
            if last != '100.000':
                self.raise_parse_error('the distribution is incomplete')
        while match := _VERIFIED.fullmatch(line):
            if match[1] and not line.startswith('0 '):
                self.raise_parse_error('data verification failed')
            line = self.next_line()
        return line


# JSON --------------------------------------------------------------------

def _read_json_tables(first: int, text: str, refuse: Refuse) -> Iterator[Table]:
    """The tables of a --json-out-file that begins at a line."""
    nan = re.search(r':\s*(-?nan)\b', text)
    if nan:
        refuse(f'a value is {nan[1]}, as memtier_benchmark 2.1 and older print for an '
               'interval without answers: use 2.2 or newer, or the text output',
               first + text.count('\n', 0, nan.start(1)))
    document = parse_json(text, 'the JSON document', first)
    try:
        configuration = document['configuration']
        params = _params_of_clients(configuration['threads'], configuration['clients'],
                                    configuration)
        size = configuration.get('data_size') or None
    except (KeyError, AttributeError, TypeError):
        refuse('the JSON has no configuration: it is not an output of '
               'memtier_benchmark', first)
    for title, block in document.items():
        if not _TITLE.fullmatch(title):
            continue
        line = first + text.count('\n', 0, text.find(json.dumps(title)))
        try:
            rows = tuple(_read_json_rows(block, title, line, refuse))
            client = (_read_client(block, title, line, refuse)
                      if 'Client' in block else None)
            time = datetime.datetime.fromtimestamp(
                block['Runtime']['Start time'] // 1000, datetime.timezone.utc)
        except (KeyError, TypeError, AttributeError, OverflowError, ValueError,
                OSError) as err:
            refuse(f'{title}: {err} is missing or no number', line)
        yield Table(title, line, rows, params, size, client, time)


def _read_client(block: dict[str, Any], title: str, line: int, refuse: Refuse
                 ) -> Client:
    """The load generator itself, compared with the rows."""
    client = Client(*(block['Client'][key] for key in CLIENT))
    if client.limited not in ('client', 'rate', 'server'):
        refuse(f'{title}: limited by {client.limited!r}', line)
    if client.cpu < 0 or not 0 <= client.busiest <= 1.1:
        refuse(f'{title}: its CPU time is not possible', line)
    if sum(number for _, number in client.histogram) != block['Totals']['Count']:
        refuse(f'{title}: the histogram has another number of requests than Totals',
               line)
    return client


def _read_json_rows(block: dict[str, Any], title: str, line: int, refuse: Refuse
                    ) -> Iterator[Row]:
    """The rows of one run, each compared with the run's time."""
    def require(good: bool, reason: str) -> None:
        if not good:
            refuse(f'{title}: {reason}', line)

    runtime = block['Runtime']
    require(runtime['Interrupted'] == 'false', 'interrupted')
    require(runtime['Time unit'] == 'MILLISECONDS', f'time unit {runtime["Time unit"]}')
    span = runtime['Total duration']
    require(span == runtime['Finish time'] - runtime['Start time'],
            'the duration is not that from start to finish')
    rows = {name: row for name, row in block.items()
            if isinstance(row, dict) and 'Ops/sec' in row}
    require(list(rows)[-1:] == ['Totals'] and len(rows) > 1, 'rows are missing')
    require(not rows['Totals']['Connection Errors'], 'connection errors')
    require(sum(row['Count'] for row in rows.values()) == 2 * rows['Totals']['Count'],
            'counts do not add up to that of Totals')
    for name, row in rows.items():
        latencies = {key[1:]: ms for key, ms in row['Percentile Latencies'].items()
                     if re.fullmatch(r'p\d+\.\d+', key)}
        numbers = [row[key] for key in (
            'Count', 'Ops/sec', 'Hits/sec', 'Misses/sec', 'Average Latency',
            'Min Latency', 'Max Latency', 'KB/sec')] + [*latencies.values()]
        require(bool(latencies) and min(numbers) >= 0,
                f'{name}: a number is missing or negative')
        rate, count = row['Ops/sec'], row['Count']
        # The mean over runs has no time of its own.
        if 'AVERAGE' not in title:
            require(abs(rate * span / 1000 - count) <= rate * 0.002 + 1,
                    f'{name}: Ops/sec is not the count by the duration')
            require('KB/sec RX' not in row or abs(
                row['KB/sec RX'] + row['KB/sec TX'] - row['KB/sec']) <= 0.02,
                f'{name}: KB/sec is not the sum of RX and TX')
            require(not count or (row['Min Latency'] <= min(latencies.values())
                                  and max(latencies.values()) <= row['Max Latency']),
                    f'{name}: a percentile is beyond the extremes')
        reads = name in ('Gets', 'Totals') and set(OWN[:2]) <= set(rows)
        yield Row(name, line, rate,
                  row['Hits/sec'] if reads else None,
                  row['Misses/sec'] if reads else None,
                  row['KB/sec'], row['Average Latency'] or None,
                  {} if name == 'Totals' and 'AVERAGE' in title else latencies,
                  tuple(row['Time-Serie'].get(str(second), {}).get('Count', 0)
                        for second in range(span // 1000))
                  if 'Time-Serie' in row else ())


# Clients of one run ------------------------------------------------------

class Run(NamedTuple):
    """The measurement of all clients of one run."""
    #: What limited each client, in their order: client, rate or server.
    limited: tuple[str, ...]
    #: The values of all requests.
    records: tuple[Record, ...]


def read_run(text: str, count: int = 1) -> Run:
    """One run: the JSON documents of all its clients, one after the other.

    The percentiles of several clients are those of all their requests, which needs
    the histograms of the embedded program.

    :param count: number of clients
    :raises ParseError: a document is missing, damaged or contradictory.
    """
    tables = [table for table in read_tables(text) if table.title == 'ALL STATS']
    if len(tables) != count:
        raise ParseError(1, '', f'{count} clients ran, but the text has '
                         f'{len(tables)} outputs')
    rows, clients = [table.used[-1] for table in tables], [
        table.client for table in tables if table.client]
    if count > 1 and len(clients) < count:
        raise ParseError(1, '', f'{count - len(clients)} of {count} clients printed no '
                         'histogram, and without it their latencies cannot be combined')
    row = rows[0] if count == 1 else _sum_of_rows(rows, clients)
    values = [*_values_of_row(row, True)]
    if clients:
        requests = sum(number for one in clients for _, number in one.histogram)
        values += [
            ('client_cpu', sum(one.cpu for one in clients) / requests * 1e6, 'us'),
            ('client_cpu_share', max(one.busiest for one in clients), '1'),
            ('client_limited', float(any(one.limited == 'client' for one in clients)),
             '1')]
    return Run(tuple(one.limited for one in clients), tuple(
        Record(PROGRAM, '', tables[0].size, metric, value, unit, row.line)
        for metric, value, unit in values))


def _sum_of_rows(rows: Sequence[Row], clients: Sequence[Client]) -> Row:
    """The row of all requests of several clients."""
    histogram: Counter[int] = Counter()
    for client in clients:
        for lower, number in client.histogram:
            histogram[lower] += number
    operations = sum(row.operations for row in rows)
    longest = max(row.percentiles.get('100.00', 0) for row in rows)
    return Row(
        rows[0].name, rows[0].line, operations, sum(row.hits or 0 for row in rows),
        sum(row.misses or 0 for row in rows), sum(row.kilobytes or 0 for row in rows),
        sum(row.operations * (row.mean or 0) for row in rows) / operations,
        {name: longest if float(name) == 100 else
         histogram_percentile(histogram, float(name) / 100) / 1e6
         for name in rows[0].percentiles})


def histogram_percentile(histogram: Mapping[int, int], share: float) -> float:
    """The percentile of a histogram by nearest rank: the middle of the bucket of the
    request with the rank ceil(share * n) of n.

    :param share: from 0 to 1
    """
    # 0.07 * 100 is a little more than 7.
    rank = max(1, math.ceil(share * sum(histogram.values()) - 1e-9))
    for lower in sorted(histogram):
        rank -= histogram[lower]
        if rank <= 0:
            # Below 256 ns a bucket has 1 ns; then there are 128 per power of two.
            return lower + (1 << max(0, lower.bit_length() - 8)) // 2
    raise ValueError('a histogram is empty')
