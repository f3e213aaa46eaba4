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

import bisect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ..core import text as saved
from ..core.parsers import Output, ParseError, Record, parse_json

PROGRAM = 'memtier_benchmark'
#: The commands of memtier without --command; they add up to Totals.
OWN = ('Sets', 'Gets', 'Waits')

#: A command, as memtier makes a row's name of it.
_COMMAND = re.compile(r'[A-Za-z][\w.-]{0,63}')
_TITLE = re.compile(r'ALL STATS|RUN #(?P<run>[1-9][0-9]*) RESULTS'
                    r'|(?P<copy>BEST|WORST) RUN RESULTS'
                    r'|AGGREGATED AVERAGE RESULTS \([1-9][0-9]* runs\)')
#: The beginning of an output, which may stand behind a prefix.
_BEGIN = re.compile(r'(?<!\S)[1-9]\d* +Threads\r?$')
_FAILURE = re.compile(r'error|refused|dropped|failure|exceeded|interrupted'
                      r'|crashed|NOAUTH|WRONGPASS|timed out', re.IGNORECASE)
#: Lines before the tables: of stderr, where both streams were kept.
_BEFORE = re.compile(
    r'\[RUN #\d+\] (?:Preparing|Launching) |\[RUN #\d+ \d+%.* msec latency$'
    r'|Writing results to |Json file .* created|Json file closed'
    r'|Saving JSON output file: |=====.*=====$|[\w-].* =(?: |$)')
_ABOUT = (re.compile(r'[1-9]\d* +Threads'),
          re.compile(r'[1-9]\d* +Connections per thread'),
          re.compile(r'[1-9]\d* +(?:Requests per client|Seconds)'))
_COLUMN = re.compile(r'(Type|Ops/sec|Hits/sec|Misses/sec|MOVED/sec|ASK/sec'
                     r'|KB/sec|Avg\. Latency|p\d+(?:\.\d+)? Latency) *')
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


@dataclass(frozen=True)
class Table:
    """A title and its rows."""
    title: str
    line: int
    rows: tuple[Row, ...]
    #: Parameters of the test case: name=value name=value.
    params: str


def parse(text: str) -> list[Output]:
    """The outputs: one for each run, or one for the mean over runs if the text has
    no other.

    The command is a parameter: `operation=set`. If there are several, those of
    Totals are `operation=all`.

    :raises ParseError: a line is damaged, missing or contradictory.
    """
    lines = saved.strip_prefixes(text.split('\n'), _BEGIN, re.compile('(?!)'))

    def refuse(reason: str, line: int) -> NoReturn:
        line = min(max(line, 1), len(lines))
        raise ParseError(line, lines[line - 1].removesuffix('\r'), reason)

    if not text.strip():
        refuse('empty output', 1)
    failed = saved.find_failure(lines)
    if failed is not None:
        refuse(f'the benchmark failed: {lines[failed].strip()[:60]}', failed + 1)
    size: int | None = None
    if text.lstrip()[0] == '{':
        size, tables = _read_json_tables(text, refuse)
    else:
        tables = _TextReader(lines, refuse).read_tables()
    if not tables:
        refuse('the output has no row: it is incomplete', len(lines))
    for table in tables:
        _check_table_consistency(table, refuse)
    runs = [table for table in tables
            if re.match('ALL STATS|RUN #', table.title)]
    means = [table for table in tables if table.title.startswith('AGGREGATED')]
    return [Output(tuple(_records_of_table(table, size)), params=table.params)
            for table in runs or means]


def _check_table_consistency(
    table: Table, refuse: Callable[[str, int], NoReturn]
) -> None:
    """Check that the values of a table agree."""
    *commands, totals = table.rows
    for row in commands:
        if not _COMMAND.fullmatch(row.name):
            refuse(f'{row.name[:40]!r} is not the name of a command', row.line)
    if totals.operations == 0:
        refuse('the number of operations is zero', totals.line)
    own = all(row.name in OWN for row in commands)
    for what in ('operations', 'kilobytes') if own else ('operations',):
        values = [getattr(row, what) or 0.0 for row in table.rows]
        # Each is rounded to a hundredth.
        if abs(sum(values[:-1]) - values[-1]) > 0.006 * len(values):
            refuse(f'{what} do not add up to those of Totals', totals.line)
    for row in table.rows:
        order = [ms for _, ms in sorted(row.percentiles.items(),
                                        key=lambda item: float(item[0]))]
        if order != sorted(order):
            refuse(
                f'percentiles of {row.name} are not in ascending order',
                row.line,
            )


def _records_of_table(table: Table, size: int | None) -> Iterator[Record]:
    own = all(row.name in OWN for row in table.rows[:-1])
    used = [row for row in table.rows if row.operations]
    # Totals of one command are its values again.
    for row in used[:-1] if len(used) == 2 else used:
        values = [('operations', row.operations, '1/s')]
        operation = ('all' if row.name == 'Totals' else
                     row.name.lower().removesuffix('s'))
        hits, misses = row.hits or 0.0, row.misses or 0.0
        if hits + misses:
            values += [('hit_operations', hits, '1/s'),
                       ('miss_operations', misses, '1/s'),
                       ('hit_ratio', round(hits / (hits + misses), 6), '1')]
        if row.kilobytes is not None and (own or row.name != 'Totals'):
            values.append(('bandwidth',
                           round(row.kilobytes * 1024 / 1e6, 6), 'MB/s'))
        if row.mean is not None:
            values.append(('latency', round(row.mean * 1000, 3), 'us'))
        values += [(_percentile_metric(name), round(ms * 1000, 3), 'us')
                   for name, ms in row.percentiles.items()]
        for metric, value, unit in values:
            yield Record(PROGRAM, '', size, metric, value, unit, row.line,
                         f'operation={operation}')


def _params_of_clients(threads: int, connections: int) -> str:
    """Parameters of the clients.

    :param connections: of each thread
    """
    text = f'connections={threads * connections}'
    return text + (f' client_threads={threads}' if threads > 1 else '')


def _percentile_metric(name: str) -> str:
    """Metric of a percentile: 99.90 is latency_p999, 100 is latency_max."""
    whole, _, part = name.partition('.')
    return ('latency_max' if int(whole) == 100 else
            f'latency_p{whole}{part.rstrip("0")}')


# Text --------------------------------------------------------------------

class _TextReader:
    """Reads the text; every line after the first table must be known."""

    def __init__(self, lines: list[str],
                 refuse: Callable[[str, int], NoReturn]):
        self.lines = [line.removesuffix('\r').rsplit('\r', 1)[-1].rstrip(' ')
                      for line in lines]
        self.fail = refuse
        self.number = 0
        self.complete = lines[-1] == ''

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
        while line:
            line = self.skip_stderr_lines(line)
            numbers = []
            for number, pattern in enumerate(_ABOUT):
                line = self.next_line() if number else line
                if not pattern.fullmatch(line):
                    self.raise_parse_error(f'unexpected line {line[:60]!r}')
                numbers.append(int(line.split()[0]))
            params = _params_of_clients(numbers[0], numbers[1])
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

    def skip_stderr_lines(self, line: str) -> str:
        """Skips what stderr says; returns the first line of an output."""
        while not _ABOUT[0].fullmatch(line):
            if not line:
                self.raise_parse_error('the output has no row: it is incomplete')
            if not _BEFORE.match(line):
                self.raise_parse_error(f'the benchmark failed: {line[:60]}'
                                       if _FAILURE.search(line) else
                                       f'unexpected line {line[:60]!r}')
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
        return Table(title, at, tuple(rows), params)

    def parse_header(self, line: str) -> tuple[list[str], list[int]]:
        """Columns of a header and where each ends."""
        columns, ends, place = [], [], 0
        while place < len(line):
            match = _COLUMN.match(line, place)
            if not match and line[place:].startswith('Latency'):
                self.raise_parse_error('memtier_benchmark 1.3 or older wrote this '
                                       'table, which is not read: use 1.4 or newer')
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

def _read_json_tables(text: str, refuse: Callable[[str, int], NoReturn]
               ) -> tuple[int | None, list[Table]]:
    """Size of a value and the tables of a --json-out-file."""
    nan = re.search(r':\s*(-?nan)\b', text)
    if nan:
        refuse(f'a value is {nan[1]}, as memtier_benchmark 2.1 and older print for an '
               'interval without answers: use 2.2 or newer, or the text output',
               text.count('\n', 0, nan.start(1)) + 1)
    document = parse_json(text, 'the JSON document')
    try:
        configuration = document['configuration']
        size = configuration.get('data_size') or None
        params = _params_of_clients(configuration['threads'], configuration['clients'])
        for name, default in ('pipeline', 1), ('ratio', '1:10'), ('rate_limit', 0):
            value = configuration.get(name, default)
            params += f' {name}={value}' * (value != default)
    except (KeyError, AttributeError, TypeError):
        refuse('the JSON has no configuration: it is not an output of '
               'memtier_benchmark', 1)
    ends = [match.start() for match in re.finditer('\n', text)]
    tables, place = [], 0
    for title, block in document.items():
        if _TITLE.fullmatch(title):
            # As they follow one another in the text.
            place = max(text.find(json.dumps(title), place), place)
            tables.append(_parse_json_table(text, ends, place, title, block, params,
                                            refuse))
    return size, tables


def _parse_json_table(text: str, ends: list[int], place: int, title: str,
                      block: dict[str, Any], params: str,
                      refuse: Callable[[str, int], NoReturn]) -> Table:
    """One run; `ends` are the ends of the lines, `place` is its title's."""
    def line_number_of_key(name: str) -> int:
        at = text.find(json.dumps(name) + ':', place)
        return bisect.bisect_left(ends, at if at >= 0 else place) + 1

    def raise_table_error(reason: str, name: str = title) -> NoReturn:
        refuse(f'{title}: {reason}', line_number_of_key(name))

    try:
        return Table(title, line_number_of_key(title), tuple(
            _parse_json_rows(block, title, line_number_of_key, raise_table_error)),
            params)
    except (KeyError, TypeError, AttributeError) as err:
        raise_table_error(f'{err} is missing or no number')


def _parse_json_rows(block: dict[str, Any], title: str,
                     line_of: Callable[[str], int],
                     wrong: Callable[..., NoReturn]) -> Iterator[Row]:
    """The rows of one run, each held against the run's time."""
    runtime = block['Runtime']
    if runtime['Interrupted'] != 'false':
        wrong('interrupted', 'Runtime')
    if runtime['Time unit'] != 'MILLISECONDS':
        wrong(f'time unit {runtime["Time unit"]}', 'Runtime')
    span = runtime['Total duration']
    if span != runtime['Finish time'] - runtime['Start time']:
        wrong('the duration is not that from start to finish', 'Runtime')
    rows = {name: row for name, row in block.items()
            if isinstance(row, dict) and 'Ops/sec' in row}
    if list(rows)[-1:] != ['Totals'] or len(rows) < 2:
        wrong('rows are missing')
    if rows['Totals']['Connection Errors']:
        wrong('connection errors', 'Totals')
    if sum(row['Count'] for row in rows.values()) != (
            2 * rows['Totals']['Count']):
        wrong('counts do not add up to that of Totals', 'Totals')
    for name, row in rows.items():
        latencies = {key[1:]: ms for key, ms in
                     row['Percentile Latencies'].items()
                     if re.fullmatch(r'p\d+\.\d+', key)}
        numbers = [row[key] for key in (
            'Count', 'Ops/sec', 'Hits/sec', 'Misses/sec', 'Average Latency',
            'Min Latency', 'Max Latency', 'KB/sec')] + [*latencies.values()]
        if not latencies or min(numbers) < 0:
            wrong('a number is missing or negative', name)
        rate, count = row['Ops/sec'], row['Count']
        # The mean over runs has no time of its own.
        if 'AVERAGE' not in title:
            if abs(rate * span / 1000 - count) > rate * 0.002 + 1:
                wrong('Ops/sec is not the count by the duration', name)
            if 'KB/sec RX' in row and abs(row['KB/sec RX'] + row['KB/sec TX']
                                          - row['KB/sec']) > 0.02:
                wrong('KB/sec is not what came and went', name)
            if count and not (
                    row['Min Latency'] <= min(latencies.values())
                    and max(latencies.values()) <= row['Max Latency']):
                wrong('a percentile is beyond the extremes', name)
        reads = name in ('Gets', 'Totals') and set(OWN[:2]) <= set(rows)
        yield Row(name, line_of(name), rate,
                  row['Hits/sec'] if reads else None,
                  row['Misses/sec'] if reads else None,
                  row['KB/sec'], row['Average Latency'] or None,
                  {} if name == 'Totals' and 'AVERAGE' in title else
                  latencies)
