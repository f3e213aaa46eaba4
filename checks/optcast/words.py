"""Sentences on a run: Optcast compared with a ring, and its bottleneck."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from config.records.units import value_text

from .logs import Stats

#: Class of a server's threads -> explanation if it is the slowest.
WHY = {
    'recv': 'the servers wait for data: there are too few servers and links, '
            'or the clients send too little at once',
    'reduce': 'the sums take most of the time: use more --num-threads or '
              '--num-jobs, faster cores, or more servers',
    'send': 'the results leave slowly: the links to the clients are slow, or '
            'the clients receive slowly',
    'convert': 'the conversion of numbers takes most of the time: f32 needs '
               'none'}


#: Below this share of the time, a class of threads is not the bottleneck.
IDLE = 0.25


def expected_optcast_to_ring_ratio(clients: int, servers: int) -> float:
    """Expected ratio of busbw with reduction servers to busbw of a ring.

    All links are equal. A client sends its data once, a ring 2(n-1)/n times,
    and the m links of the servers limit what n clients send.
    """
    return min(1, servers / clients) * 2 * (clients - 1) / clients


def find_and_describe_bottleneck(server: Sequence[Stats], threads: Mapping[str, int],
                                 elapsed: float = 0.0) -> tuple[str, str]:
    """The class of a server's threads that limits the run, and a sentence;
    the class is '' if no class of threads was busy enough.

    :param threads: class -> number of threads (recv, reduce, send)
    :param elapsed: time of all samples together, in ms; 0: unknown
    """
    busy = {stats.name: stats.avg * stats.len
            / max(1, threads.get(stats.name, 1))
            for stats in server if stats.len}
    if not busy:
        return '', 'the bottleneck is unknown: the server has no statistics'
    name = max(busy, key=lambda kind: busy[kind])
    times = ', '.join(f'{kind} {ms:.0f} ms' for kind, ms in busy.items())
    if busy[name] < IDLE * elapsed:
        return '', ('the server is not the bottleneck, but the clients, their '
                    'links or shared CPUs: its threads were busy for only a '
                    f'part of {elapsed:.0f} ms (each thread: {times})')
    return name, (f'the {name} threads of the server are the bottleneck '
                  f'(busy time of each thread: {times}): '
                  f'{WHY.get(name, "")}')


def describe_client_time_shares(client: Sequence[Stats]) -> str:
    """Shares of the parts of a request in its time on the client; '': unknown.
    """
    mean = {stats.name: stats.avg for stats in client}
    if not {'e2e', 'req', 'send', 'recv'} <= set(mean) or not mean['e2e']:
        return ''
    return 'a client spends the time of a request as follows: ' + ', '.join(
        f'{mean[kind] / mean["e2e"]:.0%} in {kind}'
        for kind in ('req', 'send', 'recv'))


def compare_bandwidths(optcast: float, other: float, name: str) -> str:
    """Sentence that compares Optcast with another all-reduce.

    :param optcast: busbw of Optcast in GB/s
    :param other: busbw of the other all-reduce in GB/s
    """
    share = optcast / other - 1
    how = (f'{share:.0%} faster' if share > 0.005 else
           f'{-share:.0%} slower' if share < -0.005 else 'equally fast')
    return (f'Optcast: {value_text(optcast, "GB/s")}, '
            f'{name}: {value_text(other, "GB/s")}: Optcast is {how}')
