"""Commands of the embedded server, of memcached and of their clients, as templates of a
plan of services (checks/services/plan.py)."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .jobs import Job
from .sizing import Client, Instance

#: Length of a key: a constant prefix and the index.
KEY_BYTES = 220
#: Constant prefix of every key, with arbitrary bytes.
PREFIX = ('the_associations_of_an_object_' * 8)[:KEY_BYTES - 1]

#: Sizes of values that a look-aside client stores, with their weights: the
#: published sizes after compression (docs/reference/families/taobench.md).
STORED = ((31, 52, 5), (53, 71, 5), (72, 110, 10), (111, 134, 5),
          (135, 156, 5), (157, 203, 10), (204, 243, 10), (244, 266, 25),
          (267, 267, 15), (268, 273, 9), (274, 521, 1))


class Phase(NamedTuple):
    """A phase of the clients."""
    name: str
    #: Unit: s.
    seconds: int
    seed: int
    #: Requests per key that end it early; 0: no limit.
    passes: int


def memcached_options(instance: Instance, connections: int, tls: bool) -> list[str]:
    """Options that both servers have."""
    return ['-l', '{address}', '-p', '{port}', '-m', str(instance.memory),
            '-t', str(instance.fast_threads), '-c', str(connections),
            *(['-Z', '-o', 'ssl_chain_cert={cert},ssl_key={key}'] if tls else [])]


def tao_server_options(job: Job, instance: Instance, interval: float) -> list[str]:
    """Options that memcached does not have.

    :param interval: time between two lines of statistics. Unit: s
    """
    return ['-o', ','.join(f'tao_{name}={value}' for name, value in {
        'slow_dispatchers': instance.dispatchers,
        'num_slow_threads': instance.slow_threads, 'max_slow_reqs': 1024,
        'worker_sleep_ns': 100, 'dispatcher_sleep_ns': 100, 'slow_sleep_ns': 100,
        'slow_path_sleep_us': 0, 'stats_sleep_ms': round(interval * 1000),
        'slow_use_semaphore': int(job.semaphore)}.items())]


def load_options(client: Client, phase: Phase, requests: int) -> list[str]:
    """Options of plumbload for a client.

    :param requests: number of requests that ends the phase early; 0: no limit
    """
    return ['--service', '{service}', '--name', 'client{index}', '--share',
            '{index}/{count}', '--protocol', 'binary', '--operation', 'get',
            '--threads', str(client.threads), '--connections',
            str(client.threads * client.connections), '--key-prefix', PREFIX,
            '--keys', str(client.keys), '--duration', str(phase.seconds), '--seed',
            str(phase.seed), *(['--requests', str(requests)] if requests else [])]


def look_aside_options(sizes: str, interval: float) -> Sequence[str]:
    """Options of plumbload for a server without values: it writes missed keys.

    :param sizes: file with the sizes of values
    :param interval: time between two rows of its series. Unit: s
    """
    # Each phase has other keys, but the same values.
    return ['--on-miss', 'set', '--value-size', f'@{sizes}', '--value-seed', '1',
            '--series', '{output}.csv', '--interval', f'{interval:g}']


#: Options of plumbload for tao_server, which creates the values; a full queue is a
#: miss.
LOOK_THROUGH_OPTIONS = ('--verify', 'none', '--on-miss', 'count')


def format_value_sizes() -> str:
    """Text of a file for plumbload's --value-size: each size of a range with
    its share of the weight."""
    return ''.join(f'{size} {weight / (last - first + 1):.6g}\n'
                   for first, last, weight in STORED
                   for size in range(first, last + 1))
