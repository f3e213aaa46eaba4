"""Parser of TaoBench's logs: statistics of a server, and output of clients.

The server prints a line every few seconds (DCPerf, packages/tao_bench, the
patches of memcached).  The same log contains stderr, and the file's buffer
cuts lines anywhere.  The values are those of the original's parser.  It uses a
line only if it has all of KEYS.  From the end of the log it counts lines under
load with a good hit rate until it has enough.

Three kinds of logs are refused that the original accepts: a number that
contains a comma, of which the original reads a part; a line that occurs twice;
more slow answers than the hit rate has misses.  Unlike the original, this
parser does not count a line with an impossible number (nan, negative, a
counter that ran backwards) or with a field twice, because a part of another
line was lost.  It keeps the logs of several servers in one file apart.
"""
from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core import text as saved
from ..core.parsers import Output, ParseError, Record, parse_json
from ..loadgen import memtier

#: Fields of the statistics that the original's evaluation needs.
KEYS = ('fast_qps', 'hit_rate', 'slow_qps', 'slow_qps_oom',
        'nanosleeps_per_sec')
#: The last field of a line: of any build, and of the newest.
LAST = ('slow_resp', 'nanosleeps_per_sec')
#: Smallest hit rate of a point that counts.
MIN_HIT_RATE = 0.88
#: Why a point is not counted although its line can be trusted.
NO_LOAD = 'no load: fast_qps is not above 1'
COLD = f'hit_rate is below {MIN_HIT_RATE}'
#: Program whose requests/s have a score, and those that give a score of 1.
DCPERF, BASELINE = 'tao_bench_server', 683000.0
#: Unit of each value of a summary.
UNITS = {'fast_qps': '1/s', 'slow_qps': '1/s', 'total_qps': '1/s',
         'hit_ratio': '1', 'num_data_points': '1'}
#: The same of DCPerf's report on all servers of a job.
REPORT_UNITS = {**UNITS, 'score': '1', 'spawned_instances': '1',
                'successful_instances': '1'}
#: Metric of a client's report -> the operation that it counts.
CLIENT_OPERATIONS = {'qps': 'get', 'set_qps': 'set'}
#: Length of the window, and between two lines, in the original. Unit: s.
WINDOW, INTERVAL = 360.0, 5.0
#: Points of 72 that may be missing.
_MISSING = 10

#: The beginning of a job's result, alone or among what is printed: a report of
#: benchpress, or the metrics that a script prints at its end.
_REPORT = re.compile(r'^Results Report:\s*$(?:\s*\{)?|^\s*\{\s*"benchmark_'
                     r'|^\{$(?=(?:\n .*)*\n +"total_qps")', re.MULTILINE)
_START = 'fast_qps ='
_OOM = 'OUT OF MEMORY'
#: First lines of a server: of the original, and of the embedded one.
_BANNER = re.compile(r'Initialized item generators\.'
                     r'|(?P<program>tao_server) (?P<version>\S+) \(embedded\)')
_NUMBER = re.compile(r'[0-9]+\.?[0-9]*')
#: The rest of a number after a comma: 675,943.1 must not be read as 675.
_AFTER_COMMA = re.compile(r'[0-9][0-9.]*M?')
_DIGITS = re.compile('[0-9]+')
_LINE_END = re.compile('\r\n|\n|\r')
#: fast / (fast + slow) equals the hit rate apart from two errors: requests in
#: flight at the ends of an interval (one per connection; an interval has at
#: least the second value, in s), and the first value, because the rate has
#: three digits and the counters are read one after the other.
_HIT_RATE_ERROR, _SHORTEST = 0.02, 0.1
_PIECE = re.compile(r'\b(?:fast_qps|hit_rate|slow_qps|wh_qps|curr_it|'
                    r'slow_qps_oom|crnt_conn|slow_th|slow_reqs|slow_resp|'
                    r'nanosleeps_per_sec) =')
#: The beginnings of an output, and damage before one: a part of another line.
_TITLE = re.compile('fast_qps =|ALL STATS|Results Report:')
_DAMAGE = re.compile(f'.*(?:{_PIECE.pattern}).*')
# Smaller than the difference of two 64-bit counters that ran backwards.
_MAXIMUM = 1e12


@dataclass(frozen=True)
class Point:
    """One line of a server's statistics, or what is between these lines: a failed
    allocation, the rest of a line that is cut."""
    line: int
    #: Name -> value, of the fields that could be read; curr_it in millions.
    values: Mapping[str, float]
    #: Reason why it must not be counted, whatever its rates; '' for none.
    fault: str = ''
    #: Whether it stands for an interval of the server.
    is_interval: bool = True

    @property
    def why_not_counted(self) -> str:
        """Reason why it is not counted; '': it is under load with a warm cache."""
        if self.fault:
            return self.fault
        if self.values['fast_qps'] <= 1:
            return NO_LOAD
        if self.values['hit_rate'] < MIN_HIT_RATE:
            return COLD
        return ''

    @property
    def has_rates(self) -> bool:
        """Whether it has rates, also in the format of an older build."""
        return {'fast_qps', 'hit_rate', 'slow_qps'} <= set(self.values)

    @property
    def is_readable(self) -> bool:
        """Whether its numbers can be trusted; an older build has fewer of them."""
        return self.is_interval and (not self.fault or 'older build' in self.fault)

    @property
    def is_under_load(self) -> bool:
        """Whether it has rates and clients send requests."""
        return self.has_rates and (self.values['fast_qps'] > 1
                                   or self.values['slow_qps'] > 1)


@dataclass(frozen=True)
class Log:
    """The log of one server."""
    points: tuple[Point, ...]
    #: The program that wrote it and its version; empty if unknown.
    program: str = DCPERF
    version: str = ''

    @property
    def intervals(self) -> list[Point]:
        """The lines of statistics, one per interval."""
        return [point for point in self.points if point.is_interval]


@dataclass(frozen=True)
class Summary:
    """Values of one server by the original's rule."""
    log: Log = field(repr=False)
    #: Maximum number of points that the original uses.
    max_points: int
    counted: tuple[Point, ...] = field(repr=False)
    fast_qps: float
    slow_qps: float
    total_qps: float
    hit_ratio: float
    num_data_points: int

    def why_left_out(self, point: Point) -> str:
        """Reason why a point is not counted; '': it is."""
        if self.counted and point.line < self.counted[0].line:
            return point.why_not_counted or (
                f'the point is before the last {self.max_points} points')
        return point.why_not_counted


def counted_window_seconds(test_time: float) -> float:
    """Length of the counted window at the end of a test. Unit: s."""
    return min(test_time, WINDOW)


def expected_point_count(window: float = WINDOW, interval: float = INTERVAL) -> int:
    """Number of points that a server's log needs in a window.

    Of the 72 points in 360 s, every 5 s, the original's code needs 62.  Longer
    windows may lack the same number, shorter windows the same share.

    :param window: unit: s
    :param interval: between two lines. Unit: s
    """
    count = window / interval
    return max(math.ceil(count - min(_MISSING, count * _MISSING / 72)), 1)


def parse(text: str) -> tuple[Record, ...]:
    """The records of a server's or a client's log, or of all reports in a text.

    :raises ParseError: nothing in the text can be trusted
    """
    return tuple(record for output in parse_log(text) for record in output.records)


def parse_log(text: str, options: Any = None) -> list[Output]:
    """The records of a log, or of each report in a text; a report has the job, the
    number of machines of clients, and its time, too.

    :param options: not used
    :raises ParseError: nothing in the text can be trusted
    """
    text = _strip_prefixes(text)
    if reports := [report.start() for report in _REPORT.finditer(text)]:
        return [parse_report(part) for part in saved.split_at(text, reports)]
    return [Output((parse_client_log if _is_client_log(text) else _records_of_servers)(
        text))]


def _records_of_servers(text: str) -> tuple[Record, ...]:
    """The records of the log of a server. If a file has several servers, their number
    is a parameter: `server=2`."""
    logs, lines = parse_server_logs(text), _LINE_END.split(text)
    results = []
    for number, log in enumerate(logs, 1):
        values = summarise_log(log)
        if not values.counted:
            point = log.points[-1]
            raise ParseError(
                point.line, lines[point.line - 1], 'no line of this server is counted; '
                f'the last one: {point.why_not_counted}')
        numbers = {name: float(getattr(values, name)) for name in UNITS}
        if log.program == DCPERF:
            numbers['score'] = values.total_qps / BASELINE
        results += [Record(log.program, log.version, None, name, value,
                           REPORT_UNITS[name], values.counted[-1].line,
                           f'server={number}' if len(logs) > 1 else '')
                    for name, value in numbers.items()]
    return tuple(results)


def _strip_prefixes(text: str) -> str:
    """The text without what a launcher or a page puts before each line.

    :raises ParseError: the prefixes are those of several servers
    """
    lines = text.split('\n')
    falls = 0
    last: tuple[int, ...] = ()
    for number, line in enumerate(lines, 1):
        before, start, _ = line.partition(_START)
        if not start or _DAMAGE.fullmatch(before):
            continue
        # A time grows, apart from midnight. Labels of servers take turns.
        now = tuple(map(int, _DIGITS.findall(before)))
        falls += now < last
        last = now
        if falls > 1:
            raise ParseError(number, line, 'the lines of several servers alternate: '
                             'parse each server separately')
    return '\n'.join(saved.strip_prefixes(lines, _TITLE, _DAMAGE))


# A server's log ------------------------------------------------------------

def parse_server_logs(text: str) -> list[Log]:
    """The logs in a file, one per start of a server.

    :raises ParseError: there are no statistics that can be trusted
    """
    lines = _LINE_END.split(_strip_prefixes(text))
    saved.refuse_failed_run(lines, patterns=saved.CRASHES)
    seen: dict[str, int] = {}
    #: Of each start of a server: its points, and its program and version if known.
    starts: list[tuple[list[Point], tuple[str, ...]]] = [([], ())]
    for number, line in enumerate(lines, 1):
        words, points = line.strip(), starts[-1][0]
        if banner := _BANNER.match(words):
            starts.append(([], banner.groups() if banner['program'] else ()))
        elif words.startswith(_START):
            points.append(_parse_point(number, words))
            if points[-1].is_under_load and seen.setdefault(words, number) != number:
                raise ParseError(number, line, 'the line is the same as line '
                                 f'{seen[words]}: the file has two copies of '
                                 'the statistics')
        elif words.startswith(_OOM):
            points.append(Point(number, {}, 'out of memory: an item had no room',
                                False))
        elif _PIECE.search(words) or _OOM in words:
            points.append(Point(number, {}, 'this is only a part of a line of '
                                'statistics', False))
    points = [point for points, _ in starts for point in points]
    if not points:
        raise ParseError(1, lines[0], f'the text has no statistics ({_START} ...): it '
                         'is not the log of a server or a client of TaoBench'
                         if text.strip() else 'the output is empty')
    if not any(point.has_rates and point.is_readable for point in points):
        raise ParseError(points[0].line, lines[points[0].line - 1],
                         'no line of statistics is complete; the first one: '
                         f'{points[0].fault}')
    return [Log(tuple(points), *origin) for points, origin in starts if points]


def _parse_point(number: int, line: str) -> Point:
    """The point of a line, with its fault if it has one.

    :raises ParseError: a number contains a comma, or the line contradicts itself
    """
    values: dict[str, float] = {}
    fault = f'the line is cut in two by {_OOM}' if _OOM in line else ''
    for part in line.split(','):
        name, equals, text = map(str.strip, part.partition('='))
        if not equals and _AFTER_COMMA.fullmatch(name):
            raise ParseError(number, line, 'a number contains a comma: '
                             f'...,{name[:24]}')
        if not equals or not text:
            continue
        if name in values:
            fault = fault or f'{name} occurs twice: two lines were joined'
        # Only curr_it has a unit; without it the line was cut.
        digits = text.removesuffix('M') if name == 'curr_it' else text
        if (_NUMBER.fullmatch(digits) and math.isfinite(float(digits))
                and (name != 'curr_it' or digits != text)):
            values[name] = float(digits)
            if name in KEYS and values[name] > (
                    1 if name == 'hit_rate' else _MAXIMUM):
                fault = fault or f'{name} = {text[:24]} is impossible'
        elif name in KEYS:
            fault = fault or (f'{name} = {text[:24]!r} is not a number that '
                              'a server prints')
    absent = [name for name in KEYS if name not in values]
    if absent and not fault:
        whole = line.rpartition(',')[2].partition('=')[0].strip() in LAST
        fault = (f'{" and ".join(absent)} missing: an older build wrote it'
                 if whole and not {'fast_qps', 'hit_rate', 'slow_qps'} & set(absent)
                 else f'the line is cut or damaged: it has no {absent[0]}')
    point = Point(number, values, fault)
    if point.is_readable and point.is_under_load:
        total = values['fast_qps'] + values['slow_qps']
        error = _HIT_RATE_ERROR + values.get('crnt_conn', 0.0) / _SHORTEST / total
        if values['hit_rate'] - values['fast_qps'] / total > error:
            raise ParseError(
                number, line, f'slow_qps = {values["slow_qps"]:.1f} exceeds the '
                f'misses of fast_qps = {values["fast_qps"]:.1f} at hit_rate = '
                f'{values["hit_rate"]:.3f}')
    return point


def summarise_log(log: Log, window: float = WINDOW, interval: float = INTERVAL
                  ) -> Summary:
    """The values of one server.

    :param window: seconds that are averaged
    :param interval: seconds between two lines
    """
    expected = expected_point_count(window, interval)
    backwards = [point for point in reversed(log.points) if not point.why_not_counted]
    del backwards[expected:]
    fast, slow = (sum(point.values[name] for point in backwards)
                  / max(len(backwards), 1) for name in ('fast_qps', 'slow_qps'))
    return Summary(log, expected, tuple(reversed(backwards)), fast, slow, fast + slow,
                   fast / (fast + slow) if backwards else 0.0, len(backwards))


def combine_summaries(summaries: Sequence[Summary | None]
                      ) -> dict[str, float]:
    """Values of all servers under the names of the original's report.

    :param summaries: one per server that was started; None: it has no values
    """
    good = [summary for summary in summaries if summary]
    sums = {name: sum(getattr(summary, name) for summary in good) for name in UNITS}
    return {**sums, 'hit_ratio': sums['hit_ratio'] / max(len(good), 1),
            'spawned_instances': len(summaries), 'successful_instances': len(good)}


# The result of a job --------------------------------------------------------

def parse_report(text: str) -> Output:
    """The records of the JSON that a job ends with: a report of benchpress, as it
    prints and saves it, or the metrics alone, as a script of DCPerf prints them.

    :raises ParseError: there is none, it is damaged, or nothing was measured
    """
    saved.refuse_failed_run(text.split('\n'), patterns=saved.CRASHES)
    start = _REPORT.search(text)
    if not start:
        raise ParseError(text.count('\n') + 1, text[-80:], 'DCPerf printed no result')
    at = text.index('{', start.start())
    line = text.count('\n', 0, at) + 1
    # On one line, if benchpress does not print to a terminal.
    end = (re.compile(r'\{.*\}[ \t\r]*$', re.MULTILINE).match(text, at)
           or re.compile(r'^\}\s*$', re.MULTILINE).search(text, at))
    if not end:
        raise ParseError(line, '', 'the report is cut off: its last brace is missing')
    document = parse_json(text[at:end.end()].rstrip(), 'the report', line)
    metrics = document.get('metrics', document)

    def line_of(name: str) -> int:
        return text.count('\n', 0, max(text.find(f'"{name}"', at), at)) + 1

    is_client = metrics.get('role') == 'client'
    known = CLIENT_OPERATIONS if is_client else REPORT_UNITS
    values = {name: metrics[name] for name in known if name in metrics}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ParseError(line_of(name), str(value)[:80],
                             f'{name} is {value!r}: expected a number')
    params, time = _context_of_report(document)
    if is_client:
        if not any(values.values()):
            raise ParseError(line_of('metrics'), '', 'the report of a client has no '
                             'qps: its test did not end; see its log')
        return Output(tuple(
            Record('tao_bench_client', '', None, 'operations', float(value), '1/s',
                   line_of(name), f'operation={known[name]}')
            for name, value in values.items() if value), params=params, time=time)
    if missing := set(UNITS) - set(values):
        raise ParseError(line_of('metrics'), '', 'the report lacks '
                         + ', '.join(sorted(missing)))
    if not (values['num_data_points'] and values['total_qps']):
        raise ParseError(line_of('num_data_points'), '', 'nothing was measured: '
                         'num_data_points or total_qps is 0; see the logs of the '
                         'servers')
    if abs(values['fast_qps'] + values['slow_qps'] - values['total_qps']) > 0.5:
        raise ParseError(line_of('total_qps'), '', 'total_qps is not the sum of '
                         'fast_qps and slow_qps')
    values.setdefault('score', values['total_qps'] / BASELINE)
    return Output(tuple(
        Record(DCPERF, '', None, name, float(value), REPORT_UNITS[name], line_of(name))
        for name, value in values.items()), params=params, time=time)


def _context_of_report(document: Mapping[str, Any]
                       ) -> tuple[str, datetime.datetime | None]:
    """Parameters of the test case, and the time, that a report has."""
    job = re.fullmatch(r'tao_bench_(\w+)', str(document.get('benchmark_name')))
    words = document.get('benchmark_args')
    options = ' '.join(map(str, words)) if isinstance(words, list) else ''
    clients = re.search(r'--num-clients[ =](\d+)', options)
    # Without names of hosts and interfaces.
    options = re.sub(
        r'--(?:server-hostname|interface-name|num-clients)[ =]\S+', '', options)
    about = {'job': job and job[1], 'client_nodes': clients and clients[1],
             'options': re.sub(r'[\s|]+', '_', options.strip())}
    seconds = document.get('timestamp')
    return (' '.join(f'{name}={text}' for name, text in about.items() if text),
            datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
            if type(seconds) is int and 0 < seconds < 2 ** 32 else None)


# A client's log ------------------------------------------------------------

def _is_client_log(text: str) -> bool:
    """Whether the text has memtier's table and no statistics of a server.

    :raises ParseError: it has both
    """
    client, server = (re.search(rf'^[ \t]*{start}', text, re.MULTILINE)
                      for start in ('ALL STATS', _START))
    if client and server:
        second = max(client.start(), server.start())
        raise ParseError(text.count('\n', 0, second) + 1, '', 'the file has the logs '
                         'of a server and of a client: parse them separately')
    return client is not None


def parse_client_log(text: str) -> tuple[Record, ...]:
    """The records of the test, the second of a client's two runs.

    :raises ParseError: there are not two runs, or one cannot be trusted
    """
    lines = text.split('\n')
    runs = memtier.parse(text)
    if len(runs) != 2:
        raise ParseError(
            len(lines), lines[-1], 'the file has only one of two runs: the '
            'test did not end' if len(runs) == 1 else f'the file has {len(runs)} '
            'runs, but a client has two, warm-up and test: parse each client '
            'separately')
    _, test = runs
    return tuple(record._replace(program='tao_bench_client',
                                 params=f'{test.params} {record.params}')
                 for record in test.records)
