"""What the figures say: is Optcast ahead, and what holds it back."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from .logs import Stats

#: What each class of a server's threads waits for when it is the slowest.
WHY = {
    'recv': 'servers wait for data: their links, of too few servers, or the '
            'clients, which send too little at once, set the pace',
    'reduce': 'adding up sets the pace: more --num-threads or --num-jobs, '
              'faster cores or more servers',
    'send': 'results leave slowly: the links to the clients, or clients that '
            'do not take them, set the pace',
    'convert': 'converting numbers sets the pace: f32 needs none'}


#: Below this share of the time a class of threads sets no pace.
IDLE = 0.25


def expected_ratio(clients: int, servers: int) -> float:
    """busbw of reduction servers over that of a ring where all links are
    equal: a client sends its data once and a ring 2(n-1)/n times, and m
    servers take at most m links' worth of what n clients send."""
    return min(1, servers / clients) * 2 * (clients - 1) / clients


def bottleneck(server: Sequence[Stats], threads: Mapping[str, int],
               elapsed: float = 0.0) -> tuple[str, str]:
    """The class of a server's threads with the most to do, and a sentence;
    no class where all of them had little to do.

    :param threads: class -> how many of them (recv, reduce, send)
    :param elapsed: how long the samples took together, in ms; 0: unknown
    """
    busy = {one.name: one.avg * one.len / max(1, threads.get(one.name, 1))
            for one in server if one.len}
    if not busy:
        return '', 'no statistics of a server: nothing to tell'
    name = max(busy, key=lambda kind: busy[kind])
    times = ', '.join(f'{kind} {ms:.0f}' for kind, ms in busy.items())
    if busy[name] < IDLE * elapsed:
        return '', (f'no class of threads holds it back (ms of {elapsed:.0f} '
                    f'that one thread was at it: {times}): the server had '
                    'time; clients, their links or shared CPUs set the pace')
    return name, (f'the {name} threads hold it back (ms that one thread was '
                  f'at it: {times}): {WHY.get(name, "")}')


def client_share(client: Sequence[Stats]) -> str:
    """Where a request spends its time, by the client's stats; '': unknown."""
    by = {one.name: one.avg for one in client}
    if not {'e2e', 'req', 'send', 'recv'} <= set(by) or not by['e2e']:
        return ''
    return 'of a request the client spends ' + ', '.join(
        f'{by[kind] / by["e2e"]:.0%} in {kind}'
        for kind in ('req', 'send', 'recv'))


def ahead(optcast: float, other: float, name: str) -> str:
    """Whether Optcast is ahead of another all-reduce, and by how much; both
    busbw in GB/s."""
    share = optcast / other - 1
    how = (f'ahead by {share:.0%}' if share > 0.005 else
           f'behind by {-share:.0%}' if share < -0.005 else 'level')
    return (f'Optcast: {optcast:.4g} GB/s, {name}: {other:.4g} GB/s: '
            f'Optcast is {how}')
