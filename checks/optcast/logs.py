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
that is doubled or cut, or a client that panicked.
"""
from __future__ import annotations

import datetime
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from ..core import text as saved
from ..core.parsers import ParseError

_RUST = re.compile(
    r'\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{6})\d{3}Z '
    r'(?:TRACE|DEBUG|INFO|WARN|ERROR) +[\w:]+\] (.*)')
_NCCL = re.compile(r':\d+ \[\d+\] (\d+\.\d+) \w+:\d+ NCCL TRACE (req\(.*)')
_SERVER = re.compile(
    r'rank\((\d+)\)/job\((\d+)\) (recv|send|reduce|convert) '
    r'(?:(start|requested|barrier|wait recv)|latency: (\d+)us(?:, \d+\.\d\dGbps)?)')
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
        v = [*samples]
        return cls(name, len(v), statistics.fmean(v), statistics.pstdev(v),
                   statistics.median_high(v), min(v), max(v))


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


def begin_of_log(text: str) -> datetime.datetime | None:
    """The time of the first line with one; None: no line has a time, as in NCCL's."""
    match = _RUST.search(text)
    return datetime.datetime.fromisoformat(match[1]).replace(
        tzinfo=datetime.timezone.utc) if match else None


def refuse_panics(text: str, side: str = '', first: int = 1) -> None:
    """:raises ParseError: a line of the text reports that a thread panicked"""
    if panicked := _PANIC.search(text):
        of = f' of the {side}' * bool(side)
        raise ParseError(first + text.count('\n', 0, panicked.start()), panicked[0],
                         f'a thread{of} panicked at {panicked[1].rstrip(":")}')


class _Reader:
    """Reads one log, line by line."""

    def __init__(self, side: str, text: str) -> None:
        self.log, self.text = Log(side), text
        #: Row -> times of the steps of its current work so far, in ms.
        self.rows: dict[str, list[float]] = {}
        #: Samples in the order of their end, class and request -> ms.
        self.taken: dict[tuple[str, str], list[float]] = {}
        self.first: float | None = None
        #: A server's clients have left.
        self.over = False
        #: Requests of NCCL's plugin -> their numbers.
        self.requests: dict[str, int] = {}
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
                self.refuse(f'the line has {len(line)} characters, more than any '
                            'line of Optcast: the log is damaged')
            if not self.over:
                refuse_panics(line, self.log.side, number)
            if rust := _RUST.search(line):
                self.read_rust_line(rust)
            elif nccl := _NCCL.search(line):
                self.read_plugin_request(float(nccl[1]), nccl[2])
            elif _OF_A_SPAN.search(line) or '[20' in line:
                self.refuse(DAMAGED)
            else:
                if not self.over:
                    saved.refuse_failed_run([line], number, saved.CRASHES)
                self.log.rest.append((number, line))
        if self.log.side == 'client':
            self.require_finished_client()
        # The original regards the first half of the samples as the warm-up.
        for (kind, _), v in self.taken.items():
            self.log.samples.setdefault(kind, []).extend(v[len(v) // 2:])
        return self.log

    def refuse(self, reason: str) -> NoReturn:
        raise ParseError(self.number, self.line, reason)

    # Lines --------------------------------------------------------------

    def read_rust_line(self, match: re.Match[str]) -> None:
        """Read a line of the server, or of its own client."""
        words = match[3]
        try:
            seconds = datetime.datetime.fromisoformat(match[1] + '+00:00').timestamp()
        except ValueError:
            self.refuse('the time stamp is not a valid time')
        # Microseconds, as the original's clock has them: differences of
        # large floats would have other last digits.
        at = seconds * 1e3 + int(match[2]) / 1e3
        if self.log.side == 'server' and _OVER.search(words):
            self.over = True
        if result := RESULT.fullmatch(words):
            if result[3]:
                self.log.bandwidths.append(float(result[3]))
            else:
                self.results.append((int(result[1]), int(result[2])))
        elif server := _SERVER.fullmatch(words):
            self.read_server_span(at, server)
        elif client := _CLIENT.fullmatch(words):
            kind, task, index, part, what = client.groups()
            numbers = (task, index) if kind == 'reduce' else (index, part)
            self.step(f'{kind}({"/".join(map(str, numbers))})', kind, what, at,
                      ('start', 'done'))
        elif _OF_A_SPAN.search(words):
            self.refuse(DAMAGED)

    def read_server_span(self, at: float, work: re.Match[str]) -> None:
        thread, job, kind, what, latency = work.groups()
        row = (f'{kind}({thread})/({job})' if kind == 'reduce'
               else f'{kind}({thread}/{job})')
        begin = 'requested' if kind in ('recv', 'send') else 'start'
        if what == 'barrier':
            # Of the embedded server: a barrier of clients between two sizes.
            self.rows.pop(row, None)
        elif what == begin:
            self.step(row, kind, what, at, (begin, 'latency'))
        elif latency:
            self.step(row, kind, 'latency', at, (begin, 'latency'))

    def read_plugin_request(self, at: float, words: str) -> None:
        """Read a line of NCCL's plugin."""
        match = _REQUEST.fullmatch(words)
        if not match:
            self.refuse(DAMAGED)
        number = self.requests.setdefault(match[1], len(self.requests))
        self.step(f'req({number})', 'req', match[2], at, _STEPS)

    def step(self, row: str, kind: str, what: str, at: float, steps: Sequence[str]
             ) -> None:
        """Add a step of the work of a row; the last one ends a span, or those of a
        request.

        :param at: unit: ms
        """
        if self.first is None:
            self.first = at
        times = self.rows.setdefault(row, [])
        if what != steps[len(times)]:
            self.refuse(f'{row} has the line "{what}" where "{steps[len(times)]}" must '
                        'come next: a line was lost or doubled, or two programs traced '
                        'into one log')
        times.append(at - self.first)
        if times != sorted(times):
            self.refuse(f'{row} has a time stamp before its previous one')
        if len(times) > 1:
            self.log.spans.append(Span(
                row, kind if len(steps) == 2 else what.removeprefix('allreduce '),
                times[-2], times[-1]))
        if len(times) == len(steps):
            samples = {kind: times[-1] - times[0]}
            if len(steps) > 2:
                samples = {'e2e': times[-1] - times[0], **{
                    name: times[end] - times[end - 1]
                    for end, name in enumerate(('req', 'send', 'recv'), 1)}}
            for name, ms in samples.items():
                self.taken.setdefault((name, row if len(steps) > 2 else ''),
                                      []).append(ms)
            del self.rows[row]

    # The whole log ------------------------------------------------------

    def require_finished_client(self) -> None:
        """Refuse the log of a client that did not end its requests."""
        for row in self.rows:
            self.refuse(f'{row} has no end: the log was cut, or its client died')
        traced = len(self.taken.get(('recv', ''), ()))
        # Of the server's own client.
        alone = traced and ('reduce', '') not in self.taken
        if alone and not self.results:
            self.refuse('the log has no line with the result: the client did not '
                        'finish')
        if len(self.results) != len(self.log.bandwidths):
            self.refuse('a line of the result is missing')
        if len({*self.results}) > 1:
            self.refuse('the clients report different numbers of requests')
        if alone and traced != math.prod(self.results[0]):
            self.refuse(f'the log has {traced} of {math.prod(self.results[0])} '
                        'requested parts: lines are missing')
