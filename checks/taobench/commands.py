"""Commands of the embedded server, of memcached and of their clients, as templates of a
plan of services (checks/services/plan.py)."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .sizing import Client, Instance, Job

#: Length of a key: a constant prefix and the index.
KEY_BYTES = 220
#: Constant prefix of every key, with arbitrary bytes.
PREFIX = ('the_associations_of_an_object_' * 8)[:KEY_BYTES - 1]

#: Sizes of values that a look-aside client stores, with their weights: those of
#: DCPerf's leader_sizes.json after compression with LZ4.
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


def memcached_options(instance: Instance, connections: int) -> list[str]:
    """Options that both servers have."""
    return ['-l', '{address}', '-p', '{port}', '-m', str(instance.memory),
            '-t', str(instance.fast_threads), '-c', str(connections)]


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
    """Options of the embedded memtier_benchmark for a client.

    :param requests: number of requests that ends the phase early; 0: no limit
    """
    each = -(-requests // (client.threads * client.connections))
    # Each client and each phase has other keys.
    return ['--service', '{service}', '--seed', f'{phase.seed}{{index}}',
            '--protocol', 'memcache_binary', '--ratio', '0:1',
            '--threads', str(client.threads), '--clients', str(client.connections),
            '--key-prefix', PREFIX, '--key-maximum', str(client.keys - 1),
            '--test-time', str(phase.seconds),
            *(['--requests', str(each)] if requests else []),
            '--out-file', '/dev/null', '--json-out-file', '/proc/self/fd/1']


def look_aside_options(sizes: str, interval: float) -> Sequence[str]:
    """Options of the load generator for a server without values: it writes missed keys.

    :param sizes: sizes of values with their weights
    :param interval: time between two rows of its series. Unit: s
    """
    # Each phase has other keys, but the same values.
    return ['--on-miss', 'set', '--data-size-list', sizes, '--verify', 'bytes',
            '--series', '{output}.csv', '--interval', f'{interval:g}']


def format_value_sizes() -> str:
    """Sizes for --data-size-list: each size of a range with its share of the weight."""
    return ','.join(f'{size}:{weight / (last - first + 1):.6g}'
                    for first, last, weight in STORED
                    for size in range(first, last + 1))
