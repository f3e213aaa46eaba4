"""Parser of redis-benchmark and valkey-benchmark, 6.2 to 9: text, -q, --csv.

The format is what `showLatencyReport` (`showReport` in Valkey 9) and `main`
of their source print; both programs print the same.  Times are in ms.
Carriage returns overwrite the progress: only the last part of such a line
counts, and the parts before it must be progress.

The long text has most values twice, so they are compared.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from ..core import text as saved
from ..core.parsers import ParseError, Record

#: Column -> metric and unit. Times are printed in ms and given in us.
COLUMNS = {
    'rps': ('operations', '1/s'),
    'avg_latency_ms': ('latency', 'us'),
    'min_latency_ms': ('latency_min', 'us'),
    'p50_latency_ms': ('latency_p50', 'us'),
    'p95_latency_ms': ('latency_p95', 'us'),
    'p99_latency_ms': ('latency_p99', 'us'),
    'max_latency_ms': ('latency_max', 'us'),
}
#: Names of a summary, in its order.
_SUMMARY = ('avg', 'min', 'p50', 'p95', 'p99', 'max')

#: Columns that grow from one to the next.
_ORDER = tuple(f'{name}_latency_ms' for name in _SUMMARY[1:])

# Digits are bounded so that a number stays finite.
_N = '(?:0|[1-9][0-9]{0,14})'
_TITLE = re.compile(r'====== (.+) ======')
#: The beginning of an output, of a report or of --csv.
_BEGIN = re.compile(f'{_TITLE.pattern}|"test","rps"')
# A name never contains a result: that would be two lines without a newline.
_NAME = '(?:(?!requests per second).)+'
_QUIET = re.compile(rf'({_NAME}): ({_N}\.\d\d) requests per second, '
                    rf'p50=({_N}\.\d{{3}}) msec')
_PROGRESS = re.compile(rf'({_NAME}): rps=\S+ \(overall: \S+\) '
                       r'avg_msec=\S+ \(overall: \S+\)')
_NODES = re.compile(r'Cluster has \d+ .*nodes:|'
                    r'(?:Master|Primary|Replica|Node) \d+: .+:\d+')
_WARNING = re.compile('WARN(?:ING)?: ')
_FAILURE = re.compile(r'Could not connect|Connection refused|NOAUTH|WRONGPASS'
                      r'|Error |ERR |Error:|disconnected|failed', re.I)


class Step(NamedTuple):
    """A line of a report: its pattern and how often it may come."""
    pattern: re.Pattern[str]
    minimum: int = 1
    maximum: int = 1


def _make_report_step(pattern: str, *times: int) -> Step:
    return Step(re.compile(pattern), *times)


_MANY = 10 ** 9
_TABLE = re.compile(rf'({_N}\.\d{{3}})% <= ({_N}\.\d{{3}}) milliseconds '
                    rf'\(cumulative count ({_N})\)')
_HEAD = ' {4}' + ' '.join(f' {{{9 - len(n)}}}{n}' for n in _SUMMARY)
#: A report between its title and the next one; blank lines do not count.
REPORT = (
    _make_report_step(rf'  (?P<requests>{_N}) requests completed in '
                      rf'(?P<seconds>{_N}\.\d\d) seconds'),
    _make_report_step(rf'  (?P<connections>{_N}) parallel clients'),
    _make_report_step(rf'  (?P<size>{_N}) bytes payload'),
    _make_report_step(r'  keep alive: \d+'),
    _make_report_step(r'  cluster mode: yes \(\d+ \w+\)|  node \[\d+\] configuration:'
                      r'|    (?:save|appendonly): .*|  host configuration "\w+": .*',
                      0, _MANY),
    _make_report_step('  multi-thread: (?:yes|no)'),
    _make_report_step(r'  threads: \d+', 0),
    # Valkey 9, if a rate was requested: the distribution of the rate.
    _make_report_step('RPS Summary:', 0),
    _make_report_step(r'  target RPS: [\d.]+', 0),
    _make_report_step(r'  RPS distribution \(reqs/sec\):', 0),
    _make_report_step(_HEAD, 0),
    _make_report_step(r'   (?: +[\d.]+){6}', 0),
    _make_report_step('Latency by percentile distribution:'),
    _make_report_step(f'(?P<quantiles>{_TABLE.pattern})', 1, _MANY),
    _make_report_step('Cumulative distribution of latencies:'),
    _make_report_step(f'(?P<steps>{_TABLE.pattern})', 1, _MANY),
    _make_report_step('Summary:'),
    _make_report_step(
        rf'  throughput summary: (?P<rps>{_N}\.\d\d) requests per second'),
    _make_report_step(r'  latency summary \(msec\):'),
    _make_report_step(_HEAD),
    _make_report_step(r'    (?P<row>(?: ?(?= *\S)[ \d.]{9}){6})'),
)


class Test(NamedTuple):
    """The values of one test."""
    name: str
    line: int
    size: int | None
    values: dict[str, float]
    #: Number of connections; None: the text does not have it.
    connections: str | None = None

    @property
    def params(self) -> str:
        """Parameters of its test case, as the checks name them."""
        operation = re.sub('[^a-z0-9]+', '_', self.name.lower()).strip('_')
        return f'operation={operation}' + (
            f' connections={self.connections}' if self.connections else '')


def parse(text: str) -> tuple[Record, ...]:
    """The values of one output.

    The test is a parameter: `operation=set`.

    :raises ParseError: a line is damaged, missing or contradictory.
    """
    return _Reader(text).read()


class _Reader:
    """Reads one output line by line."""

    def __init__(self, text: str):
        self.complete = text.endswith('\n')
        # Nothing that stands before a title is a row.
        self.lines = saved.strip_prefixes(text.split('\n'), _BEGIN, re.compile('(?!)'))
        self.number = 0
        self.header: list[str] = []
        self.cells = re.compile('')
        self.quiet = False
        self.tests: list[Test] = []
        self.names: set[str] = set()
        #: The current report: its title, the position in REPORT, the
        #: matches of that step, and the values by name.
        self.title = ''
        self.step = self.times = 0
        self.values_by_name: dict[str, list[str]] = {}

    def raise_parse_error(self, reason: str, line: int | None = None) -> NoReturn:
        line = line or max(self.number, 1)
        raise ParseError(line, self.lines[line - 1].removesuffix('\r'),
                         reason)

    def read(self) -> tuple[Record, ...]:
        for number, line in enumerate(self.lines, 1):
            self.number = number
            *before, last = line.removesuffix('\r').split('\r')
            for part in before:
                self.check_progress(part, last)
            if last.strip():
                self.read_line(last)
        if self.title:
            self.raise_parse_error(f'the report of {self.title} is incomplete')
        if not self.tests:
            self.raise_parse_error(
                'the output has no row: the benchmark did not finish'
            )
        if not self.complete:
            self.raise_parse_error('the last line is incomplete')
        return tuple(self.records_of_tests())

    def records_of_tests(self) -> Iterator[Record]:
        units = {column: (*what, 1000 if what[1] == 'us' else 1)
                 for column, what in COLUMNS.items()}
        for test in self.tests:
            for column, value in test.values.items():
                metric, unit, factor = units[column]
                # Three decimals in, none lost: 0.535 ms are 535 us.
                yield Record('redis-benchmark', '', test.size,
                             metric, round(value * factor, 3), unit, test.line,
                             test.params)

    def check_progress(self, part: str, result: str) -> None:
        """Check progress that was overwritten by the result of a test."""
        if not part.strip():
            return
        match = _PROGRESS.fullmatch(part)
        if not match:
            self.raise_parse_error(f'unexpected words {part[:60]!r}')
        if ' requests per second' in result and not result.startswith(
                f'{match[1]}: '):
            self.raise_parse_error(f'progress of {match[1]} before another result')

    def read_line(self, line: str) -> None:
        """Read one line that is not blank."""
        if not self.title and saved.AROUND.match(line):
            return
        # On a terminal blanks overwrite the progress, and are copied.
        if line.startswith('======') or 'requests per second, p50' in line:
            line = line.rstrip(' ')
        if self.title:
            self.read_report_line(line)
        elif _WARNING.match(line) or (
                not self.tests and not self.header
                and _NODES.fullmatch(line)):
            return
        elif self.header:
            self.read_csv_row(line)
        elif (title := _TITLE.fullmatch(line)) and not self.quiet:
            self.title = title[1]
            self.step = self.times = 0
            self.values_by_name = {}
        elif (quiet := _QUIET.fullmatch(line)) and (
                self.quiet or not self.tests):
            self.quiet = True
            self.add_test(quiet[1], None, {
                'rps': float(quiet[2]), 'p50_latency_ms': float(quiet[3])})
        elif not self.tests:
            self.read_csv_header(line)
        else:
            self.raise_parse_error(f'unexpected line {line[:60]!r}')

    def read_csv_header(self, line: str) -> None:
        """Read the header of --csv, or report why there are no values."""
        header = re.findall('"([^"]*)"', line)
        if header[:1] == ['test'] and sorted(header[1:]) == sorted(COLUMNS):
            self.header = header
            places = [2 if name == 'rps' else 3 for name in header[1:]]
            self.cells = re.compile('"([^"]+)"' + ''.join(
                rf',"({_N}\.\d{{{count}}})"' for count in places))
        elif _FAILURE.search(line) and 'rps' not in header:
            self.raise_parse_error(f'the benchmark failed: {line[:60]}')
        else:
            self.raise_parse_error('expected the header of redis-benchmark --csv, a '
                                   f'report or a line of -q, got {line[:60]!r}')

    def read_csv_row(self, line: str) -> None:
        """Read a row of --csv."""
        match = self.cells.fullmatch(line)
        if not match:
            self.raise_parse_error('the row does not have the columns of its header, '
                                   'each a number in quotation marks')
        name, *values = match.groups()
        self.add_test(name, None, dict(zip(
            self.header[1:], map(float, values), strict=True)))

    def read_report_line(self, line: str) -> None:
        """Read a line of a report: it must match the next step of REPORT."""
        while not ((step := REPORT[self.step]).pattern.fullmatch(line)
                   and self.times < step.maximum):
            if self.times < step.minimum:
                self.raise_parse_error(f'unexpected line {line[:60]!r} in the report '
                                       f'of {self.title}')
            self.step, self.times = self.step + 1, 0
        match = step.pattern.fullmatch(line)
        assert match
        self.times += 1
        for name, value in match.groupdict().items():
            self.values_by_name.setdefault(name, []).append(value)
        if self.step == len(REPORT) - 1:
            self.check_and_add_report()

    def check_and_add_report(self) -> None:
        """Check that the values of a complete report agree."""
        result = self.values_by_name
        cells = result['row'][0].split()
        if len(cells) != len(_SUMMARY) or not all(
                re.fullmatch(rf'{_N}\.\d{{3}}', cell) for cell in cells):
            self.raise_parse_error('a number in the latency summary is damaged')
        summary = dict(zip(_SUMMARY, map(float, cells), strict=True))
        tables = []
        for name in ('quantiles', 'steps'):
            table = [tuple(map(float, row)) for line in result[name]
                     for row in _TABLE.findall(line)]
            for column in zip(*table, strict=True):
                if list(column) != sorted(column):
                    self.raise_parse_error(
                        f'a table of {self.title} is not in ascending order'
                    )
            if table[-1][0] != 100:
                self.raise_parse_error(f'a table of {self.title} ends before 100 %')
            tables.append(table)
        requests, seconds = int(result['requests'][0]), result['seconds'][0]
        if not 0 < tables[0][-1][2] == tables[1][-1][2] <= requests:
            self.raise_parse_error('the two numbers of requests differ')
        if tables[0][-1][1] != summary['max']:
            self.raise_parse_error('the two maximum latencies differ')
        for quantile in (50, 95, 99):
            low = [ms for percent, ms, _ in tables[0] if percent <= quantile]
            high = [ms for percent, ms, _ in tables[0] if percent >= quantile]
            if not low[-1] <= summary[f'p{quantile}'] <= high[0]:
                self.raise_parse_error(f'p{quantile} differs from the distribution')
        # Seconds have two decimals, the rate comes from milliseconds.
        rps = float(result['rps'][0])
        if not (rps * (float(seconds) - 0.006) <= requests
                <= rps * (float(seconds) + 0.006)):
            self.raise_parse_error('the rate is not requests divided by seconds')
        self.add_test(self.title, int(result['size'][0]), {
            'rps': rps, **{f'{name}_latency_ms': value
                           for name, value in summary.items()}},
            result['connections'][0])
        self.title = ''

    def add_test(self, name: str, size: int | None, values: dict[str, float],
                 connections: str | None = None) -> None:
        """Add a complete test, if its values are plausible and it is new."""
        if values['rps'] == 0:
            self.raise_parse_error('rps is 0.00, which is not possible')
        if name in self.names:
            self.raise_parse_error(
                f'{name} occurs twice: the text has more than one output'
            )
        order = [values[key] for key in _ORDER if key in values]
        mean = values.get('avg_latency_ms', order[0])
        if order != sorted(order) or not order[0] <= mean <= order[-1]:
            self.raise_parse_error('the latencies are not in ascending order')
        self.names.add(name)
        self.tests.append(Test(name, self.number, size, values, connections))
