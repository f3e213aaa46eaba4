"""Parser of redis-benchmark and valkey-benchmark, 6.2 to 9: text, -q, --csv.

The format is what `showLatencyReport` (`showReport` in Valkey 9) and `main`
of their source print; both programs print the same.  Times are in ms.
Carriage returns overwrite the progress: only the last part of such a line
counts, and the parts before it must be progress.

The long text has most values twice, so they are compared. A text may have several
outputs; what others print around them is ignored.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from ..core import text as saved
from ..core.parsers import Output, ParseError, Record

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
# A name never contains a result: that would be two lines without a newline.
_NAME = '(?:(?!requests per second).)+'
_QUIET = re.compile(rf'({_NAME}): ({_N}\.\d\d) requests per second, '
                    rf'p50=({_N}\.\d{{3}}) msec')
#: Names of tests that stand behind a prefix.
_KNOWN = (r'(?<![\w.])(?:PING_\w+|[HM]?SET|GET|INCR|[LR](?:PUSH|POP)|[SZX]ADD'
          r'|[SZ]POP\w*|LRANGE_\d+)\b')
#: The beginning of an output, of a report, of --csv or of a line of -q.
BEGIN = re.compile(f'{_TITLE.pattern}|"test","rps"|{_KNOWN}'
                   r'(?=[^:\n]*: [\d.]+ requests per second)')
#: A command line of the program, and its options.
CALL = re.compile(r'(?:^|[\s/])(?:redis|valkey|keydb)-benchmark (.*)', re.MULTILINE)
#: What redis-benchmark to 6.0 prints: a line of a report, of -q, a row of --csv.
_OLD = re.compile(r'\d+\.\d\d% <= \d+(?:\.\d)? milliseconds'
                  rf'|(?:{_NAME}: )?[\d.]+ requests per second|"[^"]+","[\d.]+"')
#: A part of an output, which is damage outside of one.
_PART = re.compile(r'(?<![\w.:])\d+\.\d{2,3}(?![\w.])|\brequests\b|\brps\b|msec'
                   r'|percentile|[cC]umulative|={4}|summary|^"|milliseconds')
_PROGRESS = re.compile(rf'({_NAME}): rps=\S+ \(overall: \S+\) '
                       r'avg_msec=\S+ \(overall: \S+\)')
_NODES = re.compile(r'Cluster has \d+ .*nodes:|'
                    r'(?:Master|Primary|Replica|Node) \d+: .+:\d+')
_WARNING = re.compile('WARN(?:ING)?: ')
_FAILURE = re.compile(r'Could not connect|Connection refused|NOAUTH|WRONGPASS'
                      r'|Error |ERR |Error:|disconnected|failed', re.I)

#: What distinguishes test cases -> its part of a report; its option; an option of which
#: only the presence counts; and the values that change nothing.
_OF_REPORT = {'client_threads': 'threads', 'keep_alive': 'keep_alive',
              'cluster': 'cluster', 'rate_limit': 'rate_limit'}
_OF_COMMAND = {'connections': 'c', 'client_threads': 'threads', 'pipeline': 'P',
               'keep_alive': 'k', 'keys': 'r', 'rate_limit': 'rps'}
_PRESENT = {'tls': 'tls', 'cluster': 'cluster', 'unix_socket': 's'}
_DEFAULTS = {'keep_alive': ('1',), 'appendonly': ('no',), 'save': ('',)}


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
    _make_report_step(r'  keep alive: (?P<keep_alive>\d+)'),
    _make_report_step(
        r'  cluster mode: yes \((?P<cluster>\d+) \w+\)|  node \[\d+\] configuration:'
        r'|(?:    |  host configuration )"?(?P<setting>\w+)"?: ?(?P<set_to>.*)',
        0, _MANY),
    _make_report_step('  multi-thread: (?:yes|no)'),
    _make_report_step(r'  threads: (?P<threads>\d+)', 0),
    # Valkey 9, if a rate was requested: the distribution of the rate.
    _make_report_step('RPS Summary:', 0),
    _make_report_step(r'  target RPS: (?P<rate_limit>[\d.]+)', 0),
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
    #: What the text or the command line above it has of the clients: ` name=value`.
    clients: str = ''

    @property
    def params(self) -> str:
        """Parameters of its test case, as the checks name them."""
        operation = re.sub('[^a-z0-9]+', '_', self.name.lower()).strip('_')
        return f'operation={operation}{self.clients}'


def parse(text: str) -> list[Output]:
    """The outputs in a text.

    The test is a parameter: `operation=set`.

    :raises ParseError: a line is damaged, missing or contradictory.
    """
    return _Reader(text).read()


class _Reader:
    """Reads a text line by line."""

    def __init__(self, text: str):
        self.complete = text.endswith('\n')
        self.text = text.split('\n')
        self.lines, self.progress = _strip_prefixes(self.text)
        self.number = 0
        #: Columns of --csv, and the line of a header that has no row yet.
        self.header: list[str] = []
        self.cells = re.compile('')
        self.without_row = 0
        #: Options of the last command line.
        self.options: dict[str, str] = {}
        #: The test of the last line of progress, until its result.
        self.unfinished = ''
        #: The tests of each output; a test that occurs again begins another one.
        self.outputs: list[dict[str, Test]] = [{}]
        #: The current report: its title, the position in REPORT, the
        #: matches of that step, and the values by name.
        self.title = ''
        self.step = self.times = 0
        self.values_by_name: dict[str, list[str]] = {}

    def raise_parse_error(self, reason: str, line: int | None = None) -> NoReturn:
        line = line or max(self.number, 1)
        raise ParseError(line, self.text[line - 1].removesuffix('\r'), reason)

    def read(self) -> list[Output]:
        saved.refuse_failed_run(self.lines)
        for number, line in enumerate(self.lines, 1):
            self.number = number
            for part in self.progress[number - 1]:
                self.check_progress(part, line)
            if line.strip():
                self.read_line(line)
        if self.title:
            self.raise_parse_error(f'the report of {self.title} is incomplete')
        if self.unfinished:
            self.raise_parse_error(f'{self.unfinished} has progress but no result')
        if self.without_row:
            self.raise_parse_error('the header has no row below it', self.without_row)
        if not self.outputs[0]:
            self.raise_parse_error(
                'the text has no output of redis-benchmark, valkey-benchmark or '
                'memtier_benchmark, or the benchmark did not finish', 1)
        if not self.complete:
            self.raise_parse_error('the last line is incomplete')
        return [Output(tuple(_records_of_tests(tests.values())))
                for tests in self.outputs]

    def check_progress(self, part: str, result: str) -> None:
        """Check progress that was overwritten by the result of a test."""
        match = _PROGRESS.match(part.strip())
        if part.strip() and not match:
            self.raise_parse_error(f'unexpected words {part[:60]!r}')
        if match and not result.strip():
            self.raise_parse_error(f'{match[1]} has progress but no result')
        if match and ' requests per second' in result and not result.startswith(
                f'{match[1]}: '):
            self.raise_parse_error(f'progress of {match[1]} before another result')

    def read_line(self, line: str) -> None:
        """Read one line that is not blank."""
        if self.title:
            self.read_report_line(line)
        elif title := _TITLE.fullmatch(line):
            self.title = title[1]
            self.step = self.times = 0
            self.values_by_name = {}
        elif quiet := _QUIET.fullmatch(line):
            self.add_test(quiet[1], None, {
                'rps': float(quiet[2]), 'p50_latency_ms': float(quiet[3])})
        elif line.startswith('"test"'):
            self.read_csv_header(line)
        elif self.header and line.startswith('"'):
            self.read_csv_row(line)
        elif call := CALL.search(saved.last_command(line, CALL)):
            self.options = {} if saved.VARIABLE.search(call[1]) else {
                'P': '1', **saved.options_of_command(call[1])}
        elif progress := _PROGRESS.fullmatch(line.strip()):
            self.unfinished = progress[1]
        else:
            self.check_foreign_line(line)

    def check_foreign_line(self, line: str) -> None:
        """Refuse a line outside of an output that is a part of one, or reports that
        the program failed."""
        if _WARNING.match(line) or _NODES.fullmatch(line) or saved.AROUND.match(line):
            return
        if _FAILURE.search(line):
            self.raise_parse_error(f'the benchmark failed: {line[:60]}')
        if _OLD.fullmatch(line):
            self.raise_parse_error('redis-benchmark 6.0 or older wrote this, which is '
                                   'not read: use 6.2 or newer')
        if _PART.search(line):
            self.raise_parse_error(
                f'unexpected line {line[:60]!r}: it is not of redis-benchmark, '
                'valkey-benchmark or memtier_benchmark, or it is damaged')

    def read_csv_header(self, line: str) -> None:
        """Read the header of --csv."""
        if self.without_row:
            self.raise_parse_error('the header has no row below it', self.without_row)
        header = re.findall('"([^"]*)"', line)
        if sorted(header[1:]) != sorted(COLUMNS):
            self.raise_parse_error('the header is not that of redis-benchmark --csv')
        self.header, self.without_row = header, self.number
        places = [2 if name == 'rps' else 3 for name in header[1:]]
        self.cells = re.compile('"([^"]+)"' + ''.join(
            rf',"({_N}\.\d{{{count}}})"' for count in places))

    def read_csv_row(self, line: str) -> None:
        """Read a row of --csv."""
        match = self.cells.fullmatch(line)
        if not match:
            self.raise_parse_error('the row does not have the columns of its header, '
                                   'each a number in quotation marks')
        self.without_row = 0
        name, *values = match.groups()
        self.add_test(name, None, dict(zip(
            self.header[1:], map(float, values), strict=True)))

    def read_report_line(self, line: str) -> None:
        """Read a line of a report: it must match the next step of REPORT."""
        while not ((step := REPORT[self.step]).pattern.fullmatch(line)
                   and self.times < step.maximum):
            if self.times < step.minimum:
                if _OLD.fullmatch(line):
                    self.check_foreign_line(line)
                self.raise_parse_error(f'unexpected line {line[:60]!r} in the report '
                                       f'of {self.title}')
            self.step, self.times = self.step + 1, 0
        match = step.pattern.fullmatch(line)
        assert match
        self.times += 1
        for name, value in match.groupdict().items():
            if value is not None:
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
            {'connections': result['connections'][0], **{
                name: result[key][0] for name, key in _OF_REPORT.items()
                if key in result}, **{
                name: value.replace(' ', '_') for name, value in zip(
                    result.get('setting', ()), result.get('set_to', ()), strict=True)}})
        self.title = ''

    def add_test(self, name: str, size: int | None, values: dict[str, float],
                 printed: Mapping[str, str] = MappingProxyType({})) -> None:
        """Add a complete test, if its values are plausible and are not those of
        another output again.

        :arg printed: parameters that its report has
        """
        if self.unfinished not in ('', name):
            self.raise_parse_error(f'progress of {self.unfinished} before another '
                                   'result')
        self.unfinished = ''
        if values['rps'] == 0:
            self.raise_parse_error('rps is 0.00, which is not possible')
        order = [values[key] for key in _ORDER if key in values]
        mean = values.get('avg_latency_ms', order[0])
        if order != sorted(order) or not order[0] <= mean <= order[-1]:
            self.raise_parse_error('the latencies are not in ascending order')
        options = self.options
        params = {name: options[option] for name, option in _OF_COMMAND.items()
                  if option in options}
        params |= {name: 'true' for name, option in _PRESENT.items()
                   if option in options} | dict(printed)
        given = options.get('d', '')
        size = int(given) if size is None and given.isdecimal() else size
        params['payload'] = '' if size is None else str(size)
        if any(name in tests and tests[name].values == values
               for tests in self.outputs):
            self.raise_parse_error(f'{name} occurs twice, with the same values to the '
                                   'last digit: lines were doubled')
        if name in self.outputs[-1]:
            self.outputs.append({})
        self.outputs[-1][name] = Test(
            name, self.number, size, values, ''.join(
                f' {key}={value}' for key, value in params.items()
                if value and value not in _DEFAULTS.get(key, ())))


def _strip_prefixes(text: list[str]) -> tuple[list[str], list[list[str]]]:
    """The lines without prefixes and progress, and the progress of each."""
    lines, progress = [], []
    for number, line in enumerate(text):
        first, *between = line.rstrip('\r').split('\r')
        last = between.pop() if between else ''
        title = _TITLE.fullmatch(last.rstrip())
        name = title or _QUIET.fullmatch(last.rstrip())
        # The prefix stands before the progress, and before the lines below.
        before = (first.partition(f'{name[1]}: rps=')[0] if name else first).rstrip()
        before = '' if _FAILURE.search(before) else before
        progress.append([first.removeprefix(before), *between] * bool(last))
        if title:
            tag = re.sub(r'\d+', r'\\d+', re.escape(before))
            below = re.match(rf'{tag}(\s*)  \d', ''.join(text[number + 1:number + 2]))
            last = f'{before}{below[1] if below else ""}{last}'
        lines.append(last or first)
    # Nothing that stands before a title is a row. On a terminal blanks overwrite the
    # progress, and are copied.
    return [line.rstrip() for line in saved.strip_prefixes(
        lines, BEGIN, re.compile('(?!)'))], progress


def _records_of_tests(tests: Iterable[Test]) -> Iterator[Record]:
    units = {column: (*what, 1000 if what[1] == 'us' else 1)
             for column, what in COLUMNS.items()}
    for test in tests:
        for column, value in test.values.items():
            metric, unit, factor = units[column]
            # Three decimals in, none lost: 0.535 ms are 535 us.
            yield Record('redis-benchmark', '', test.size,
                         metric, round(value * factor, 3), unit, test.line,
                         test.params)
