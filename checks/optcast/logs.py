"""Reader of the logs of Optcast's clients and servers: spans of each thread.

The formats are those of osrg/optcast of April 2024 (reduction_server/src,
nccl_plugin/src, test/run.py). A launcher may put a tag before a line:

    [2026-11-21T00:22:33.668980153Z TRACE MODULE] WORDS          (Rust)
    HOST:PID:TID [0] 1234.567890 FUNCTION:LINE NCCL TRACE WORDS  (NCCL, ms)

A span is the time between the two lines that begin and end a piece of work:

    server  rank(T)/job(J) recv requested ... recv latency (send likewise),
            reduce start ... reduce latency;   T is the thread
    client  send : idx: I, j: J start ... done (recv likewise; the server's
            own client), reduce: task_id: T, idx: I, i: N, start ... (ring)
    client  req(0x..)/idx(I) allreduce start, allreduce requested, send done,
            recv done (NCCL under the plugin)

Statistics follow the original: they drop the first half of the samples, in
the order of their ends (for NCCL's requests: of each request).

A log gives no values if it has a span without a beginning or an end, a line
that is doubled or cut, a latency that contradicts its time stamps, or a
client that panicked.
"""
from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core.parsers import ParseError

_RUST = re.compile(
    r'\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{6})\d{3}Z '
    r'(?:TRACE|DEBUG|INFO|WARN|ERROR) +[\w:]+\] (.*)')
_NCCL = re.compile(r':\d+ \[\d+\] (\d+\.\d+) \w+:\d+ NCCL TRACE (req\(.*)')
_SERVER = re.compile(
    r'rank\((\d+)\)/job\((\d+)\) (?:'
    r'(recv|send) (?:(start|requested|barrier)|latency: (\d+)us, \d+\.\d\dGbps)|'
    r'(reduce|convert) (?:(wait recv|start)|latency: (\d+)us))')
_CLIENT = re.compile(
    r'(send|recv|reduce) {0,2}: (?:task_id: (\d+), )?idx: (\d+)'
    r'(?:, i: \d+)?(?:, j: (\d+))?,? (start|done)(?:, count: \d+)?')
_REQUEST = re.compile(
    r'req\((0x[0-9a-f]+)\)/idx\(\d+\) (allreduce start|send done|recv done|'
    r'allreduce requested)(?: size: \d+, csize: \d+, nsplit: \d+)?')
#: Steps of a request of NCCL.
_STEPS = ('allreduce start', 'allreduce requested', 'send done', 'recv done')
#: The two lines with the result of the server's own client.
RESULT = re.compile(
    r'(?:type: (?:agg|ring), .*?nsplit: (\d+), nreq: \d+, .*?'
    r'try_count: (\d+)|size: \d+\.\d\dMB, bandwidth: (\d+\.\d\d)Gbps) #')
_PANIC = re.compile(r"thread '[^']*'(?: \(\d+\))? panicked at (.*)")
#: Parts of a line of a span, complete or damaged.
_OF_A_SPAN = re.compile(
    r'rank\(|/job\(|(?:recv|send|reduce) latency|\ballreduce (?:start|req)|'
    r'idx: ?\d+, |task_id: \d+,|req\(0x')
#: A server ends its threads, in any way, when its clients have left; often a
#: thread that waits for data notices first. A client that left too early has
#: no result.
_OVER = re.compile('handle_connection: exiting|'
                   'Connection closed by remote peer')

DAMAGED = 'the line of the trace is damaged'

#: Longer than any line; some expressions need time quadratic in the length.
LONGEST = 10_000

#: Maximum delay of a thread between two lines, and of lines of other threads.
#: Unit: ms.
MAX_DELAY = 1000.0


@dataclass(frozen=True)
class Span:
    """A piece of work: row in the timeline, kind (the colour), start and end
    in ms since the first line of a span."""
    row: str
    kind: str
    start: float
    end: float

    @property
    def duration_ms(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Stats:
    """Statistics of the samples of one class of threads, in ms."""
    name: str
    len: int
    avg: float
    sd: float
    median: float
    min: float
    max: float

    @classmethod
    def from_samples(cls, name: str, samples: Iterable[float]) -> Stats:
        """Compute statistics like the original: standard deviation of a
        population; upper median for an even number."""
        v = sorted(samples)
        avg = sum(v) / len(v)
        sd = math.sqrt(sum((x - avg) ** 2 for x in v) / len(v))
        return cls(name, len(v), avg, sd, v[len(v) // 2], v[0], v[-1])

    def format_line(self) -> str:
        """The statistics as a line in the format of the original."""
        return (f'  {self.name:<4} len: {self.len}, avg: {self.avg:.2f}, '
                f'sd: {self.sd:.2f}, median: {self.median:.2f}, '
                f'min: {self.min:.2f}, max: {self.max:.2f}')


@dataclass
class Log:
    """One log: all spans, and the samples that are counted, class -> ms."""
    side: str
    spans: list[Span] = field(default_factory=list)
    samples: dict[str, list[float]] = field(default_factory=dict)
    #: Of the server's own client: Gb/s (of 2^30 bit) of each client.
    bandwidths: list[float] = field(default_factory=list)
    #: Other lines with their numbers, such as the table of nccl-tests.
    rest: list[tuple[int, str]] = field(default_factory=list)

    @property
    def sample_statistics(self) -> list[Stats]:
        return [Stats.from_samples(name, v) for name, v in self.samples.items() if v]


def parse_server_log(text: str) -> Log:
    """The log of a reduction server; of several servers, only one may trace.

    :raises ParseError: it cannot be trusted
    """
    return _Reader('server', text).read()


def parse_client_log(text: str) -> Log:
    """The log of clients, of which only one may trace.

    :raises ParseError: it cannot be trusted
    """
    return _Reader('client', text).read()


def refuse_panic(line: str, number: int, side: str = '') -> None:
    """:raises ParseError: the line reports that a thread panicked"""
    panicked = _PANIC.search(line)
    if panicked:
        of = f' of the {side}' * bool(side)
        raise ParseError(number, line, f'a thread{of} panicked at '
                         + panicked[1].rstrip(':'))


class _Reader:
    """Reads one log, line by line."""

    def __init__(self, side: str, text: str) -> None:
        self.log, self.text = Log(side), text
        #: Row -> start of its open span in ms, and line.
        self.open: dict[str, tuple[float, int]] = {}
        #: Request -> times of its lines so far.
        self.requests: dict[str, list[float]] = {}
        #: Samples in the order of their end, class and request -> ms.
        self.taken: dict[tuple[str, str], list[float]] = {}
        self.first: float | None = None
        self.last = -math.inf
        #: A server's clients have left.
        self.over = False
        #: Printed results: (parts of a request, requests).
        self.results: list[tuple[int, int]] = []

    def read(self) -> Log:
        """Read the whole log.

        :raises ParseError: the first line that cannot be trusted
        """
        for number, whole in enumerate(self.text.split('\n'), 1):
            line = whole.rstrip('\r')
            self.number, self.line = number, line
            if len(line) > LONGEST:
                self.raise_parse_error(f'the line has {len(line)} characters')
            if not self.over:
                refuse_panic(line, number, self.log.side)
            rust, nccl = _RUST.search(line), _NCCL.search(line)
            if rust:
                self.read_rust_line(rust)
            elif nccl:
                self.read_plugin_request(float(nccl[1]), nccl[2])
            elif _OF_A_SPAN.search(line) or '[20' in line:
                self.raise_parse_error(DAMAGED)
            else:
                self.log.rest.append((number, line))
        if self.log.side == 'server':
            self.assert_equal_round_counts()
        else:
            self.assert_client_finished()
        # The original regards the first half of the samples as the warm-up.
        for (kind, _), v in self.taken.items():
            self.log.samples.setdefault(kind, []).extend(v[len(v) // 2:])
        return self.log

    def raise_parse_error(self, reason: str, number: int = 0) -> None:
        raise ParseError(number or self.number, self.line, reason)

    # Lines --------------------------------------------------------------

    def read_rust_line(self, match: re.Match[str]) -> None:
        """Read a line of the server, or of its own client."""
        words = match[3]
        try:
            seconds = datetime.datetime.fromisoformat(match[1] + '+00:00').timestamp()
        except ValueError:
            self.raise_parse_error('the time stamp is not a valid time')
        # Microseconds, as the original's clock has them: differences of
        # large floats would have other last digits.
        at = seconds * 1e3 + int(match[2]) / 1e3
        if self.log.side == 'server' and _OVER.search(words):
            self.over = True
        result = RESULT.fullmatch(words)
        server, client = _SERVER.fullmatch(words), _CLIENT.fullmatch(words)
        if result and result[3]:
            self.log.bandwidths.append(float(result[3]))
        elif result:
            self.results.append((int(result[1]), int(result[2])))
        elif server:
            self.read_server_span(self.ms_since_first_span(at), server)
        elif client:
            kind, task, index, part, what = client.groups()
            row = (f'reduce({task}/{index})' if kind == 'reduce'
                   else f'{kind}({index}/{part})')
            if what == 'start':
                self.begin_span(row, self.ms_since_first_span(at))
            else:
                self.end_span(row, kind, self.ms_since_first_span(at))
        elif _OF_A_SPAN.search(words):
            self.raise_parse_error(DAMAGED)

    def ms_since_first_span(self, at: float) -> float:
        """Time since the first span, in ms."""
        if self.first is None:
            self.first = at
        if at < self.last - MAX_DELAY:
            self.raise_parse_error(f'the time stamp is {(self.last - at) / 1e3:.3f} s '
                                   'before that of a line above it')
        self.last = max(self.last, at)
        return at - self.first

    def read_server_span(self, at: float, work: re.Match[str]) -> None:
        thread, job, copy, step, copied, sum_, sum_step, summed = work.groups()
        kind = copy or sum_
        row = (f'{kind}({thread})/({job})' if kind == 'reduce'
               else f'{kind}({thread}/{job})')
        if step == 'requested' or sum_step == 'start':
            self.begin_span(row, at)
        elif step == 'barrier':
            # Of the embedded server: a barrier of clients between two sizes.
            self.open.pop(row, None)
        elif copied or summed:
            ms, printed_ms = self.end_span(row, kind, at), int(copied or summed) / 1e3
            # The start is stamped before the work, the end after it.
            if not printed_ms - 0.002 <= ms <= printed_ms + MAX_DELAY:
                self.raise_parse_error(
                    f'the latency is {printed_ms:.3f} ms, but {ms:.3f} ms elapsed '
                    'between the two lines')

    def read_plugin_request(self, at: float, words: str) -> None:
        """Read a line of NCCL's plugin."""
        match = _REQUEST.fullmatch(words)
        if not match:
            self.raise_parse_error(DAMAGED)
            return
        times = self.requests.setdefault(match[1], [])
        row = f'req({list(self.requests).index(match[1])})'
        step, due = match[2], _STEPS[len(times)]
        at = self.ms_since_first_span(at)
        if step != due:
            self.raise_parse_error(f'{row} has the line "{step}" where "{due}" must '
                                   'come next')
        if times and at < times[-1]:
            self.raise_parse_error(f'{row} has a time stamp before its previous one')
        times.append(at)
        if len(times) > 1:
            self.log.spans.append(Span(row, step.removeprefix('allreduce '), times[-2],
                                       at))
        if len(times) == len(_STEPS):
            start, requested, sent, done = times
            for kind, ms in (('e2e', done - start), ('req', requested - start),
                             ('send', sent - requested), ('recv', done - sent)):
                self.taken.setdefault((kind, row), []).append(ms)
            times.clear()

    def begin_span(self, row: str, at: float) -> None:
        if row in self.open:
            self.raise_parse_error(
                f'{row} begins twice: a line was lost or doubled, or '
                'two programs traced into one log')
        self.open[row] = at, self.number

    def end_span(self, row: str, kind: str, at: float) -> float:
        """The duration of the span that ends, in ms."""
        if row not in self.open:
            self.raise_parse_error(f'{row} ends, but no line begins it')
        start, _ = self.open.pop(row)
        if at < start:
            self.raise_parse_error(f'{row} ends before it begins')
        self.log.spans.append(Span(row, kind, start, at))
        self.taken.setdefault((kind, ''), []).append(at - start)
        return at - start

    # The whole log ------------------------------------------------------

    def assert_client_finished(self) -> None:
        """Refuse the log of a client that did not end its requests."""
        open_rows = [*self.open.items(), *(
            (f'req({index})', (times[-1], 0))
            for index, times in enumerate(self.requests.values()) if times)]
        for row, (_, number) in open_rows:
            self.raise_parse_error(f'{row} has no end: the log was cut, or its client '
                                   'died', number)
        traced = len(self.taken.get(('recv', ''), ()))
        # Of the server's own client.
        alone = traced and ('reduce', '') not in self.taken
        if alone and not self.results:
            self.raise_parse_error('the log has no line with the result: the client '
                                   'did not finish')
        if len(self.results) != len(self.log.bandwidths):
            self.raise_parse_error('a line of the result is missing')
        if len({*self.results}) > 1:
            self.raise_parse_error('the clients report different numbers of requests')
        if alone and traced != math.prod(self.results[0]):
            self.raise_parse_error(f'the log has {traced} of '
                                   f'{math.prod(self.results[0])} requested parts: '
                                   'lines are missing')

    def assert_equal_round_counts(self) -> None:
        """Refuse a log whose threads have different numbers of rounds, apart
        from the current round."""
        rounds: dict[str, dict[str, int]] = {}
        for row, count in Counter(span.row for span in self.log.spans).items():
            rounds.setdefault(re.findall(r'\d+', row)[1], {})[row] = count
        for rows in rounds.values():
            odd = min(rows, key=lambda row: rows[row])
            if max(rows.values()) - rows[odd] > 2:
                self.raise_parse_error(
                    f'{odd} has {rows[odd]} spans, but others of its job have '
                    f'{max(rows.values())}: lines are missing')
