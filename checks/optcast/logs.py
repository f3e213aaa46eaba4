"""Reader of the logs of Optcast's clients and servers: spans of each thread.

The formats are those of osrg/optcast of April 2024 (reduction_server/src,
nccl_plugin/src, test/run.py). A launcher may put a tag before a line:

    [2026-11-21T00:22:33.668980153Z TRACE MODULE] WORDS          (Rust)
    HOST:PID:TID [0] 1234.567890 FUNCTION:LINE NCCL TRACE WORDS  (NCCL, ms)

A piece of work has lines for its steps, and a span is the time between two steps:

    server  rank(T)/job(J) recv requested ... recv latency (send likewise),
            reduce start ... reduce latency;   T is the thread
    client  send : idx: I, j: J start ... done (recv likewise; the server's
            own client), reduce: task_id: T, idx: I, i: N, start ... (ring)
    client  req(0x..)/idx(I) allreduce start, allreduce requested, send done,
            recv done (NCCL under the plugin)

A log gives no values if a step does not follow the one before it, if a client lacks the
end of a piece of work, or if a client panicked.
"""
from __future__ import annotations

import datetime
import itertools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from config.records.samples import Sample

from ..core import text as saved
from ..core.parsers import ParseError

_RUST = re.compile(
    r'\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{6})\d{3}Z '
    r'(?:TRACE|DEBUG|INFO|WARN|ERROR) +[\w:]+\] (.*)')
_NCCL = re.compile(r':\d+ \[\d+\] (\d+\.\d+) \w+:\d+ (NCCL TRACE req\(.*)')
_SERVER = re.compile(
    r'rank\((\d+)\)/job\((\d+)\) (recv|send|reduce|convert) '
    r'(start|requested|barrier|wait recv|latency(?=: \d+us))'
    r'(?:(?<=latency): \d+us(?:, \d+\.\d\dGbps)?)?')
_CLIENT = re.compile(
    r'(send|recv|reduce) {0,2}: (?:task_id: (\d+), )?idx: (\d+)'
    r'(?:, i: \d+)?(?:, j: (\d+))?,? (start|done)(?:, count: \d+)?')
_REQUEST = re.compile(
    r'NCCL TRACE req\((0x[0-9a-f]+)\)/idx\(\d+\) (allreduce start|send done|recv done|'
    r'allreduce requested)(?: size: \d+, csize: \d+, nsplit: \d+)?')
#: Steps of a request of NCCL.
_REQUEST_STEPS = ('allreduce start', 'allreduce requested', 'send done', 'recv done')
#: The two lines with the result of the server's own client.
RESULT = re.compile(
    r'(?:type: (?:agg|ring), .*?nsplit: (\d+), nreq: \d+, .*?'
    r'try_count: (\d+)|size: \d+\.\d\dMB, bandwidth: (\d+\.\d\d)Gbps) #')
_PANIC = re.compile(r"thread '[^']*'(?: \(\d+\))? panicked at (.*)")
#: Parts of a line of a step, complete or damaged.
_OF_A_STEP = re.compile(
    r'rank\(|/job\(|(?:recv|send|reduce) latency|\ballreduce (?:start|req)|'
    r'idx: ?\d+, |task_id: \d+,|req\(0x|NCCL TRACE req\(')
#: A server ends its threads, in any way, when its clients have left; often a
#: thread that waits for data notices first. A client that left too early has
#: no result.
_OVER = re.compile('handle_connection: exiting|'
                   'Connection closed by remote peer')

#: Longer than any line; some expressions need time quadratic in the length.
LONGEST = 10_000

#: Number of spans per log that are kept with the records, the last ones.
KEPT = 1000


class Span(NamedTuple):
    """A piece of work: row in the timeline, kind (the colour), start and end
    in ms since the first line of a step."""
    row: str
    kind: str
    start: float
    end: float


class Stats(NamedTuple):
    """Statistics of the samples of one class of threads, in ms."""
    name: str
    len: int
    avg: float
    sd: float
    median: float
    min: float
    max: float

    @classmethod
    def from_samples(cls, name: str, v: list[float]) -> Stats:
        """Compute statistics like the original: standard deviation of a
        population; upper median for an even number."""
        return cls(name, len(v), statistics.fmean(v), statistics.pstdev(v),
                   statistics.median_high(v), min(v), max(v))


@dataclass
class Log:
    """One log."""
    side: str
    spans: list[Span] = field(default_factory=list)
    #: Durations in the order of their end, by class (such as recv) and, of requests of
    #: NCCL, by request. Unit: ms.
    samples: dict[tuple[str, str], list[float]] = field(
        default_factory=lambda: defaultdict(list))
    #: Of the server's own client: Gb/s (of 2^30 bit) of each client.
    bandwidths: list[float] = field(default_factory=list)
    #: Other lines with their numbers, such as the table of nccl-tests.
    rest: list[tuple[int, str]] = field(default_factory=list)

    @property
    def statistics(self) -> list[Stats]:
        """Statistics of each class. Like the original, they drop the first half of the
        samples, of requests that of each request, as the warm-up."""
        counted: dict[str, list[float]] = defaultdict(list)
        for (name, _), v in self.samples.items():
            counted[name] += v[len(v) // 2:]
        return [Stats.from_samples(name, v) for name, v in counted.items()]


def read_log(side: str, text: str) -> Log:
    """The log of a reduction server or of clients; only one of them may trace.

    :param side: server or client
    :raises ParseError: it cannot be trusted
    """
    return _Reader(side).read(text)


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


def last_spans_as_samples(logs: Iterable[Log]) -> list[Sample]:
    """The last KEPT spans of each log as raw samples, for the timelines of the page.

    The call is such as `server:recv`, the rank is the number of the row (`recv(2/0)`
    before `recv(10/0)`), and times are in s since the first kept span.
    """
    samples = []
    for log in logs:
        last = sorted(log.spans, key=lambda span: span.end)[-KEPT:]
        rows = sorted({span.row for span in last}, key=lambda row: [
            int(part) if part.isdigit() else part for part in re.split(r'(\d+)', row)])
        first = min((span.start for span in last), default=0.0)
        samples += [Sample(rows.index(span.row), f'{log.side}:{span.kind}', number,
                           (span.end - span.start) / 1e3, (span.start - first) / 1e3)
                    for number, span in enumerate(last)]
    return samples


def _step_of(words: str) -> tuple[str, str, str, tuple[str, ...]] | None:
    """The row and kind of the work that a line is about, its step, and all steps of
    such work; None: the line is about no work."""
    if match := _SERVER.fullmatch(words):
        thread, job, kind, step = match.groups()
        row = f'({thread})/({job})' if kind == 'reduce' else f'({thread}/{job})'
        begin = 'requested' if kind in ('recv', 'send') else 'start'
        return kind + row, kind, step, (begin, 'latency')
    if match := _CLIENT.fullmatch(words):
        kind, task, index, part, step = match.groups()
        numbers = f'{task}/{index}' if kind == 'reduce' else f'{index}/{part}'
        return f'{kind}({numbers})', kind, step, ('start', 'done')
    if match := _REQUEST.fullmatch(words):
        return match[1], 'req', match[2], _REQUEST_STEPS
    return None


class _Reader:
    """Reads one log, line by line; `refuse` names the current line."""

    def __init__(self, side: str) -> None:
        self.log = Log(side)
        #: Row -> times of the steps of its current work so far, in ms.
        self.begun: dict[str, list[float]] = {}
        #: Time of the first step.
        self.first: float | None = None
        #: A server's clients have left.
        self.over = False
        #: Requests of NCCL's plugin -> their rows.
        self.requests: dict[str, str] = {}
        #: Printed results: (parts of a request, requests).
        self.results: list[tuple[int, int]] = []

    def read(self, text: str) -> Log:
        """Read the whole log.

        :raises ParseError: the first line that cannot be trusted
        """
        for self.number, line in enumerate(text.split('\n'), 1):
            self.line = line.rstrip('\r')
            self.read_line(self.line)
        if self.log.side == 'client':
            self.require_whole_client()
        return self.log

    def refuse(self, reason: str) -> NoReturn:
        raise ParseError(self.number, self.line, reason)

    def read_line(self, line: str) -> None:
        if len(line) > LONGEST:
            self.refuse(f'the line has {len(line)} characters, more than any '
                        'line of Optcast: the log is damaged')
        rust, nccl = _RUST.search(line), _NCCL.search(line)
        at, words = math.nan, line
        if rust:
            at, words = self.time_of(rust), rust[3]
        elif nccl:
            at, words = float(nccl[1]), nccl[2]
        if self.log.side == 'server' and rust and _OVER.search(words):
            self.over = True
        if not self.over:
            refuse_panics(line, self.log.side, self.number)
        if rust and (result := RESULT.fullmatch(words)):
            if result[3]:
                self.log.bandwidths.append(float(result[3]))
            else:
                self.results.append((int(result[1]), int(result[2])))
        elif (rust or nccl) and (step := _step_of(words)):
            self.read_step(*step, at)
        elif _OF_A_STEP.search(words) or not rust and '[20' in line:
            self.refuse('the line of the trace is damaged')
        elif not rust:
            if not self.over:
                saved.refuse_failed_run([line], self.number, saved.CRASHES)
            self.log.rest.append((self.number, line))

    def time_of(self, rust: re.Match[str]) -> float:
        """The time of a line since 1970. Unit: ms."""
        try:
            seconds = datetime.datetime.fromisoformat(rust[1] + '+00:00').timestamp()
        except ValueError:
            self.refuse('the time stamp is not a valid time')
        # Microseconds, as the original's clock has them: differences of
        # large floats would have other last digits.
        return seconds * 1e3 + int(rust[2]) / 1e3

    def read_step(self, row: str, kind: str, step: str, steps: tuple[str, ...],
                  at: float) -> None:
        """Add a step to the work of its row; the last one adds the samples.

        :param at: unit: ms
        """
        if step not in steps:
            if step == 'barrier':   # of the embedded server, between two sizes
                self.begun.pop(row, None)
            return
        if kind == 'req':
            row = self.requests.setdefault(row, f'req({len(self.requests)})')
        if self.first is None:
            self.first = at
        times = self.begun.setdefault(row, [])
        if step != steps[len(times)]:
            self.refuse(f'{row} has the line "{step}" where "{steps[len(times)]}" must '
                        'come next: a line was lost or doubled, or two programs traced '
                        'into one log')
        times.append(at - self.first)
        if times != sorted(times):
            self.refuse(f'{row} has a time stamp before its previous one')
        if len(times) > 1:
            self.log.spans.append(Span(
                row, kind if kind != 'req' else
                step.removeprefix('allreduce ').replace(' ', '_'), *times[-2:]))
        if len(times) == len(steps):
            del self.begun[row]
            whole = times[-1] - times[0]
            if kind != 'req':
                self.log.samples[kind, ''].append(whole)
                return
            parts = (end - begin for begin, end in itertools.pairwise(times))
            for part, ms in zip(('e2e', 'req', 'send', 'recv'), (whole, *parts),
                                strict=True):
                self.log.samples[part, row].append(ms)

    def require_whole_client(self) -> None:
        """Refuse the log of clients that did not end, or of which lines are missing.

        :raises ParseError: with the last line
        """
        for row in self.begun:
            self.refuse(f'{row} has no end: the log was cut, or its client died')
        traced = len(self.log.samples.get(('recv', ''), ()))
        # Of the server's own client, and not of its ring.
        alone = traced and ('reduce', '') not in self.log.samples
        requested, count = {*self.results}, len(self.log.bandwidths)
        if (len(self.results) != count or len(requested) > 1
                or alone and [math.prod(one) for one in requested] != [traced]):
            parts = [str(math.prod(one)) for one in self.results]
            self.refuse(f'the clients printed {count} bandwidths of '
                        f'{" and ".join(parts) or "no"} parts of requests'
                        + f', and the trace has {traced}' * bool(alone)
                        + ': a client did not finish, or lines are missing')
