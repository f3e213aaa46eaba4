"""Reader of the logs of Optcast's clients and servers: spans of each thread.

The formats are those of osrg/optcast of April 2024 (reduction_server/src,
nccl_plugin/src, test/run.py). Lines have two forms:

    [HOST] [2026-11-21T00:22:33.668980153Z TRACE MODULE] WORDS      (Rust)
    HOST:PID:TID [0] 1234.567890 FUNCTION:LINE NCCL TRACE WORDS     (NCCL, ms)

A span is the time between the two lines that begin and end a piece of work:

    server  rank(T)/job(J) recv requested ... recv latency (send likewise),
            reduce start ... reduce latency;   T is the thread; the embedded
            server adds `of N B` for a smaller message
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

import calendar
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core.parsers import ParseError

#: Prefixes of run.py (`-v`) and of mpirun.
_PREFIX = re.compile(r'(?:(?:client|server) std(?:out|err): )?'
                     r'(?:\[(?!\d{4}-)[^\]\s]*\] ?)?')
_RUST = re.compile(
    r'\[(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d\.\d{9})Z '
    r'(?:TRACE|DEBUG|INFO |INFO|WARN |WARN|ERROR) +([\w:]+)\] (.*)')
_NCCL = re.compile(r'(?:\[[\d: -]+\] )?(?:[^\s:]+:\d+:\d+ \[\d+\] )?'
                   r'(\d+\.\d+) \w+:\d+ NCCL TRACE (req\(.*)')
_SERVER = re.compile(
    r'rank\((\d+)\)/job\((\d+)\) (?:'
    r'(recv|send) (?:(start|requested|barrier)|'
    r'latency: (\d+)us, (\d+\.\d\d)Gbps(?: of (\d+) B)?)|'
    r'(reduce|convert) (?:(wait recv|start)|latency: (\d+)us))')
_CLIENT = re.compile(
    r'(send|recv|reduce) {0,2}: (?:task_id: (\d+), )?idx: (\d+)'
    r'(?:, i: (\d+))?(?:, j: (\d+))?,? (start|done)(?:, count: \d+)?')
_REQUEST = re.compile(
    r'req\((0x[0-9a-f]+)\)/idx\((\d+)\) (?:(allreduce start|send done|'
    r'recv done)|(allreduce requested)'
    r'(?: size: \d+, csize: \d+, nsplit: \d+)?)')
RESULT = re.compile(
    r'(?:type: (?:agg|ring), .*?nsplit: (\d+), nreq: \d+, .*?'
    r'try_count: (\d+)|size: (\d+\.\d\d)MB, bandwidth: (\d+\.\d\d)Gbps) #')
_SIZE = re.compile(r'recv thread\(\d+\) all ranks get connected!, '
                   r'size: (\d+)')
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
    in ms since the first line of a span, and line of its end."""
    row: str
    kind: str
    start: float
    end: float
    line: int

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
    #: Line and place of a panic; on a server only before its clients left.
    panic: tuple[int, str] | None = None
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


class _Reader:
    """Reads one log, line by line."""

    def __init__(self, side: str, text: str) -> None:
        self.log, self.text = Log(side), text
        #: Row -> start of its open span in ms, and line.
        self.open: dict[str, tuple[float, int]] = {}
        #: Request -> times of its lines so far.
        self.requests: dict[str, list[float]] = {}
        self.numbers: dict[str, str] = {}
        #: Samples in the order of their end, class (and request) -> ms.
        self.taken: dict[tuple[str, str], list[float]] = {}
        self.first: float | None = None
        self.last = -math.inf
        self.over, self.size = False, 0
        #: Printed results: (parts of a request, requests).
        self.results: list[tuple[int, int]] = []

    def read(self) -> Log:
        """Read the whole log.

        :raises ParseError: the first line that cannot be trusted
        """
        lines = self.text.split('\n')
        for number, whole in enumerate(lines, 1):
            line = whole.rstrip('\r')
            self.number, self.line = number, line
            if len(line) > LONGEST:
                self.raise_parse_error(f'the line has {len(line)} characters')
            words = line[_PREFIX.match(line).end():]  # type: ignore[union-attr]
            panicked = _PANIC.search(line)
            if panicked:
                if not self.over and not self.log.panic:
                    self.log.panic = number, panicked[1].rstrip(':')
                continue
            rust, nccl = _RUST.fullmatch(words), _NCCL.fullmatch(words)
            if rust:
                self.read_rust_line(rust)
            elif nccl:
                self.read_plugin_request(float(nccl[1]), nccl[2])
            elif _OF_A_SPAN.search(line) or line.startswith('[20'):
                self.raise_parse_error(DAMAGED)
            else:
                self.log.rest.append((number, words))
        if not self.log.panic:
            self.assert_log_complete()
        self.drop_warmup_samples()
        return self.log

    def raise_parse_error(self, reason: str, number: int = 0) -> None:
        raise ParseError(number or self.number, self.line, reason)

    # Lines --------------------------------------------------------------

    def read_rust_line(self, match: re.Match[str]) -> None:
        """Read a line of the server, or of its own client."""
        year, month, day, hour, minute = map(int, match.groups()[:5])
        # Microseconds, as the original's clock has them: differences of
        # large floats would have other last digits.
        seconds = calendar.timegm((year, month, day, hour, minute, 0))
        at = seconds * 1e3 + int(float(match[6]) * 1e6) / 1e3
        if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24
                and minute < 60 and float(match[6]) < 61):
            self.raise_parse_error('the time stamp is not a valid time')
        words = match[8]
        if self.log.side == 'server' and _OVER.search(words):
            self.over = True
        sized = _SIZE.fullmatch(words)
        if sized and not self.size:
            self.size = int(sized[1])
        result = RESULT.fullmatch(words)
        if result:
            if result[4]:
                self.log.bandwidths.append(float(result[4]))
            else:
                self.results.append((int(result[1]), int(result[2])))
            return
        work = _SERVER.fullmatch(words)
        if work:
            self.read_server_span(self.ms_since_first_span(at), work)
            return
        work = _CLIENT.fullmatch(words)
        if work:
            self.read_client_span(self.ms_since_first_span(at), work)
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
        thread, job = work[1], work[2]
        kind = work[3] or work[8]
        row = (f'{kind}({thread})/({job})' if kind == 'reduce'
               else f'{kind}({thread}/{job})')
        latency = work[5] or work[10]
        if work[4] == 'requested' or work[9] == 'start':
            self.begin_span(row, at)
        elif work[4] == 'barrier':
            # Of the embedded server: a barrier of clients between two sizes.
            self.open.pop(row, None)
        elif latency:
            ms = self.end_span(row, kind, at)
            printed_ms = int(latency) / 1e3
            # The start is stamped before the work, the end after it.
            if not printed_ms - 0.002 <= ms <= printed_ms + MAX_DELAY:
                self.raise_parse_error(
                    f'the latency is {printed_ms:.3f} ms, but {ms:.3f} ms '
                    'elapsed between the two lines'
                )
            size = int(work[7] or self.size)
            if size > self.size:
                self.raise_parse_error(f'the message has {size} B; the maximum is '
                                       f'{self.size} B')
            if work[6] and size:
                # Latencies are whole microseconds; 0 may be any fraction.
                maximum = size * 8e-6 / printed_ms if printed_ms else math.inf
                minimum = size * 8e-6 / max(ms, printed_ms + 1e-3)
                if not minimum * 0.99 - 0.006 <= float(work[6]) <= (
                        maximum * 1.001 + 0.006):
                    self.raise_parse_error(f'{size} B in {latency} us do not give '
                                           f'{work[6]} Gb/s')

    def read_client_span(self, at: float, work: re.Match[str]) -> None:
        kind, task, index, _, part, what = work.groups()
        if kind == 'reduce':
            row = f'reduce({task}/{index})'
        else:
            row = f'{kind}({index}/{task}/{part})'
        if what == 'start':
            self.begin_span(row, at)
        else:
            self.end_span(row, kind, at)

    def read_plugin_request(self, at: float, words: str) -> None:
        """Read a line of NCCL's plugin."""
        match = _REQUEST.fullmatch(words)
        if not match:
            self.raise_parse_error(DAMAGED)
            return
        name, step = match[1], match[3] or match[4]
        row = self.numbers.setdefault(name, f'req({len(self.numbers)})')
        at = self.ms_since_first_span(at)
        steps = ('allreduce start', 'allreduce requested', 'send done',
                 'recv done')
        times = self.requests.setdefault(name, [])
        due = steps[len(times)]
        if step != due:
            self.raise_parse_error(f'{row} has the line "{step}" where "{due}" must '
                                   'come next')
        if times and at < times[-1]:
            self.raise_parse_error(f'{row} has a time stamp before its previous one')
        times.append(at)
        if len(times) == 1:
            return
        self.log.spans.append(Span(
            row, step.removeprefix('allreduce '), times[-2], at, self.number))
        if step == 'recv done':
            start, requested, sent, done = times
            for kind, ms in (('e2e', done - start), ('req', requested - start),
                             ('send', sent - requested),
                             ('recv', done - sent)):
                self.taken.setdefault((kind, name), []).append(ms)
            times.clear()

    def begin_span(self, row: str, at: float) -> None:
        if row in self.open:
            self.raise_parse_error(
                f'{row} begins twice: a line was lost or doubled, or '
                'two programs traced into one log'
            )
        self.open[row] = at, self.number

    def end_span(self, row: str, kind: str, at: float) -> float:
        if row not in self.open:
            self.raise_parse_error(f'{row} ends, but no line begins it')
        start, _ = self.open.pop(row)
        if at < start:
            self.raise_parse_error(f'{row} ends before it begins')
        self.log.spans.append(Span(row, kind, start, at, self.number))
        self.taken.setdefault((kind, ''), []).append(at - start)
        return at - start

    # The whole log ------------------------------------------------------

    def assert_log_complete(self) -> None:
        """Refuse an incomplete log, after its last line."""
        if self.log.side == 'server':
            self.assert_equal_round_counts()
            return
        for row, times in self.requests.items():
            if times:
                self.raise_parse_error(f'{self.numbers[row]} has no end: the log was '
                                       'cut, or its client died')
        for row, (_, number) in self.open.items():
            self.raise_parse_error(f'{row} has no end: the log was cut, or its client '
                                   'died', number)
        traced = len(self.taken.get(('recv', ''), ()))
        if self.numbers:
            return
        if traced and not self.results and not any(
                'Avg bus bandwidth' in line for _, line in self.log.rest):
            self.raise_parse_error(
                'the log has no line with the result: the client did '
                'not finish'
            )
        if len(self.results) != len(self.log.bandwidths):
            self.raise_parse_error('a line of the result is missing')
        if len({*self.results}) > 1:
            self.raise_parse_error('the clients report different numbers of requests')
        ring = ('reduce', '') in self.taken
        due = math.prod(self.results[0]) if self.results else traced
        # Without a trace the log has only the result.
        if traced and traced != due and not ring:
            self.raise_parse_error(
                f'the log has {traced} of {due} requested parts: lines '
                'are missing'
            )

    def assert_equal_round_counts(self) -> None:
        """Refuse a log whose threads have different numbers of rounds, apart
        from the current round."""
        rounds: dict[str, int] = {}
        for span in self.log.spans:
            rounds[span.row] = rounds.get(span.row, 0) + 1
        of_jobs: dict[str, dict[str, int]] = {}
        for row, count in rounds.items():
            job = re.findall(r'\d+', row)[1]
            of_jobs.setdefault(job, {})[row] = count
        for rows in of_jobs.values():
            minimum, maximum = min(rows.values()), max(rows.values())
            if maximum - minimum > 2:
                odd = min(rows, key=lambda row: rows[row])
                self.raise_parse_error(f'{odd} has {minimum} spans, but others of its '
                                       f'job have {maximum}: lines are missing')

    def drop_warmup_samples(self) -> None:
        """Drop the samples that the original regards as the warm-up."""
        for (kind, _), v in self.taken.items():
            self.log.samples.setdefault(kind, []).extend(v[len(v) // 2:])


def find_first_panic(text: str) -> tuple[int, str] | None:
    """Line and place of the first panic in a text, or None."""
    for number, line in enumerate(text.split('\n'), 1):
        match = _PANIC.search(line)
        if match:
            return number, match[1].rstrip(':')
    return None
