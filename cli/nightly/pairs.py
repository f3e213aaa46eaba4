"""How long a job of `plumb locate` takes, and options that bound it in time.

OMB ends after a number of messages, not after a time. With its defaults osu_bw sends
12 GB: one second at 100 Gbit/s, and more than a quarter of an hour at 100 Mbit/s. So
on slow links a first, short job measures the link, and the number of messages or
their size follows from it.
"""
from __future__ import annotations

import math
from collections.abc import Collection, Sequence

#: Seconds that the messages of a bounded job take.
JOB_SECONDS = 10.0
#: A test case that took longer in earlier sessions is bounded. Unit: s.
BOUNDED_ABOVE = 30.0
#: osu_bw: messages in flight, and its default iterations and warm-up for large ones.
WINDOW, DEFAULT_ITERATIONS, DEFAULT_WARMUP = 64, 20, 2
#: osu_bw of a bounded or a first job: iterations and warm-up.
ITERATIONS, WARMUP = 12, 2
#: Sizes of messages in a first job of osu_bw, and of a bounded one: smallest and
#: largest maximum. Unit: bytes.
FIRST_SIZE, SMALLEST, LARGEST = 65536, 4096, 4194304
#: osu_latency: only sizes that are judged (1 B to 1024 B), its default iterations,
#: and those of a first job.
LATENCY_SIZE, LATENCY_ITERATIONS, FIRST_LATENCY_ITERATIONS = 1024, 10_000, 100
#: Fewest iterations of a bounded osu_latency.
FEWEST_ITERATIONS = 20


def set_options(check: str, size: int, iterations: int, warmup: int) -> list[str]:
    """Options of ReFrame for a check of two ranks of OMB.

    :param size: of the largest messages; unit: bytes
    """
    return [f'-S{check}.max_size={size}',
            f'-S{check}.iterations={iterations}', f'-S{check}.warmup={warmup}']


def first_job_options(check: str, metric: str) -> list[str]:
    """Options of a short job that measures the link."""
    if metric == 'latency':
        return set_options(check, LATENCY_SIZE, FIRST_LATENCY_ITERATIONS, 10)
    return set_options(check, FIRST_SIZE, ITERATIONS, WARMUP)


def message_seconds(metric: str, value: float, size: int, iterations: int) -> float:
    """Seconds of the messages of all sizes up to `size`.

    :param value: bandwidth in MB/s, or latency in us
    :param iterations: with the warm-up
    """
    if metric == 'latency':
        return 2e-6 * value * iterations * (size.bit_length() + 1)
    return 2 * size * WINDOW * iterations / (1e6 * value)


def bounded_job_options(check: str, metric: str, value: float
                        ) -> tuple[list[str], float]:
    """Options with which a job takes about JOB_SECONDS at most, and the seconds that
    its messages take; no options: the test case is short enough as it is.

    :param value: of a first job: bandwidth in MB/s, or latency in us
    """
    if metric == 'latency':
        size = LATENCY_SIZE
        iterations = min(LATENCY_ITERATIONS, max(FEWEST_ITERATIONS, int(
            JOB_SECONDS / message_seconds(metric, value, size, 1))))
        seconds = message_seconds(metric, value, size, iterations)
        return set_options(check, size, iterations, max(iterations // 10, 2)), seconds
    seconds = message_seconds(metric, value, LARGEST,
                              DEFAULT_ITERATIONS + DEFAULT_WARMUP)
    if seconds <= BOUNDED_ABOVE:
        return [], seconds
    most = JOB_SECONDS / message_seconds(metric, value, 1, ITERATIONS + WARMUP)
    size = min(max(2 ** int(math.log2(max(most, 1))), SMALLEST), LARGEST)
    return (set_options(check, size, ITERATIONS, WARMUP),
            message_seconds(metric, value, size, ITERATIONS + WARMUP))


def has_own_settings(options: Collection[str]) -> bool:
    """Whether a person set sizes or options of the program, which are kept."""
    return any('max_size=' in word or '.options=' in word for word in options)


def rounds_seconds(rounds: Sequence[Sequence[object]], parallel: int, job: float,
                   overhead: float) -> float:
    """Seconds of rounds of jobs, of which `parallel` run at a time.

    :param job: seconds of a job
    :param overhead: seconds of a session besides its jobs
    """
    return overhead + sum(math.ceil(len(pairs) / parallel) * job for pairs in rounds)
