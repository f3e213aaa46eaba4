#!/usr/bin/env python3
"""Compares plumbload and tao_server with the programs that they stand for.

    bench/store_load.py cost --memtier PATH [--redis-server PATH]
        [--memcached PATH]
    bench/store_load.py tao --memcached PATH

The server runs on one CPU, the clients in turn on another. Each value is the
median over the rounds. The parts:

    cost  GETs of 240 B per second of client CPU, one thread, no pipeline;
          goal: at least 1.1 times those of memtier
    tao   GETs per second of server CPU of tao_server (its hit path)
          and of memcached; goal: at least 0.9 times those of memcached
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from common import (
    ROOT,
    Done,
    keep_server_running,
    measure_alternately,
    median_of_fields,
    median_ratio,
    option_parser,
    print_table_head,
    print_table_row,
    process_cpu_seconds,
    run,
    run_main_and_exit,
    unused_port,
)

from checks.loadgen import BUILD, plumbload

BUILD_TAO = ROOT / 'checks' / 'taobench' / 'src' / 'build.sh'
#: With four digits after it a key is as long as redis-benchmark's.
PREFIX = 'key:00000000'
CHEAPER, TAO = 1.1, 0.9
#: Without a request a slow path sleeps and looks 18 000 times per second and
#: thread, as the original does. These options leave the hit path alone.
QUIET = ('tao_slow_use_semaphore=1,tao_num_slow_threads=1,'
         'tao_dispatcher_sleep_ns=1000000000')


class Server(NamedTuple):
    """A server on the loopback: redis, memcached or tao."""
    kind: str
    port: int
    pid: int


class Load(NamedTuple):
    """What a client does."""
    connections: int = 50
    keys: int = 10000
    #: Unit: bytes.
    value_size: int = 240
    key_prefix: str = PREFIX


class Sample(NamedTuple):
    """One run of one client."""
    #: Requests per second.
    rate: float
    #: Requests per second of CPU of the client, and of the server.
    client: float
    server: float


# Servers and clients -------------------------------------------------------

@contextlib.contextmanager
def keep_store_server_running(args: argparse.Namespace, kind: str, load: Load | None
          ) -> Iterator[Server]:
    """A server that has the keys of a load; None: no keys."""
    port = unused_port()
    # A program that changes its user would outlive a bench that is killed.
    user = ['-u', 'root'] if os.geteuid() == 0 else []
    cached = ['-l', '127.0.0.1', '-p', port, '-t', 1, '-m', 256]
    command = {
        'redis': [args.redis_server, '--port', port, '--bind', '127.0.0.1',
                  '--save', '', '--dir', '/tmp'],
        'memcached': [args.memcached, *user, *cached, '-U', 0],
        'tao': [args.tao_server, *cached, '-o', QUIET]}[kind]
    with keep_server_running(command, port, args.server_cpu) as pid:
        server = Server(kind, port, pid)
        if load:
            run([*plumbload_command(args, server, load), '--operation', 'fill'], 'fill')
        yield server


def plumbload_command(args: argparse.Namespace, server: Server, load: Load
         ) -> list[object]:
    """The command line of plumbload up to its operation."""
    protocol = 'resp2' if server.kind == 'redis' else 'binary'
    return [args.plumbload, '--server', f'127.0.0.1:{server.port}',
            '--protocol', protocol, '--keys', load.keys, '--key-prefix',
            load.key_prefix, '--value-size', load.value_size]


def run_plumbload(args: argparse.Namespace, server: Server, load: Load
                  ) -> tuple[int, Done]:
    """Requests of plumbload, and its CPU and wall time."""
    done = run(
        [
            *plumbload_command(args, server, load),
            '--connections',
            load.connections,
            '--operation',
            'get',
            '--duration',
            args.seconds,
        ],
        'plumbload',
        args.client_cpu,
    )
    plumbload.parse(done.out)
    of_gets = json.loads(done.out)['kinds']['get']
    if of_gets.get('misses'):
        raise AssertionError('a GET found no value')
    return of_gets['count'], done


def run_memtier(args: argparse.Namespace, server: Server, load: Load
                ) -> tuple[int, Done]:
    """Requests of memtier, and its CPU and wall time."""
    protocol = 'redis' if server.kind == 'redis' else 'memcache_binary'
    with tempfile.NamedTemporaryFile() as result:
        done = run(
            [args.memtier, '-s', '127.0.0.1', '-p', server.port, '-P',
             protocol, '-t', 1, '-c', load.connections, '--key-prefix',
             load.key_prefix, '--key-minimum', 1, '--key-maximum',
             load.keys - 1, '-d', load.value_size, '--test-time',
             args.seconds, '--hide-histogram', '--json-out-file', result.name,
             '--ratio', '0:1', '--key-pattern', 'R:R'],
            'memtier', args.client_cpu)
        totals = json.loads(Path(result.name).read_text())['ALL STATS'][
            'Totals']
    if totals.get('Misses/sec'):
        raise AssertionError('a GET found no value')
    return totals['Count'], done


CLIENTS = {'plumbload': run_plumbload, 'memtier': run_memtier}


def measure_client(args: argparse.Namespace, client: str, server: Server, load: Load
            ) -> Sample:
    """One run of one client."""
    before = process_cpu_seconds(server.pid)
    requests, done = CLIENTS[client](args, server, load)
    return Sample(requests / done.wall, requests / done.cpu,
                  requests / (process_cpu_seconds(server.pid) - before))


def print_rates_and_return_ratios(what: str, samples_of: dict[str, list[Sample]],
                                  value: str
         ) -> dict[str, float]:
    """Prints a row per program; returns the ratio of the first to each."""
    first = [getattr(s, value) for s in next(iter(samples_of.values()))]
    ratios = {name: median_ratio(first, [getattr(s, value) for s in samples])
              for name, samples in samples_of.items()}
    for name, samples in samples_of.items():
        s = median_of_fields(samples)
        print_table_row(what, name, f'{s.rate:.0f}', f'{s.client:.0f}',
                        f'{s.server:.0f}', f'{ratios[name]:.3f}')
    return ratios


def print_column_titles(compared: str) -> None:
    print()
    print_table_head('what', 'program', 'requests/s', 'per client CPU s',
                     'per server CPU s', f'ratio: first / program, {compared}')


# Parts -----------------------------------------------------------------------

def compare_client_cost(args: argparse.Namespace) -> bool:
    print_column_titles('per client CPU s')
    good = True
    for kind in args.kinds:
        with keep_store_server_running(args, kind, Load()) as server:
            for connections in args.connections:
                load = Load(connections=connections)
                ratios = print_rates_and_return_ratios(
                    f'{kind}, {connections} connections',
                    measure_alternately(
                        args.rounds,
                        CLIENTS,
                        partial(
                            measure_client, args, server=server, load=load
                        ),
                    ),
                    'client',
                )
                good &= ratios['memtier'] >= CHEAPER
    return good


def compare_tao_server(args: argparse.Namespace) -> bool:
    print_column_titles('per server CPU s')
    good = True
    # TaoBench's keys have 219 constant bytes.
    for name, prefix in (('short keys', 'key:'), ('keys of 220 B', 219 * 'k')):
        load = Load(keys=10001, value_size=200, key_prefix=prefix)

        def measure_once(kind: str, load: Load = load) -> Sample:
            with keep_store_server_running(args, kind, load) as server:
                return measure_client(args, 'plumbload', server, load)

        ratios = print_rates_and_return_ratios(
            name,
            measure_alternately(args.rounds, ('tao', 'memcached'), measure_once),
            'server',
        )
        good &= ratios['memcached'] >= TAO
    return good


PARTS = {'cost': compare_client_cost, 'tao': compare_tao_server}


def main() -> bool:
    p = option_parser(__doc__)
    p.add_argument('part', choices=PARTS)
    p.add_argument('--redis-server', metavar='PATH')
    p.add_argument('--memcached', metavar='PATH')
    p.add_argument('--memtier', metavar='PATH')
    p.add_argument('--rounds', type=int, default=5)
    p.add_argument('--seconds', type=int, default=4)
    p.add_argument('--connections', type=int, nargs='+',
                   default=[16, 64, 200])
    p.add_argument('--server-cpu', type=int, default=0)
    p.add_argument('--client-cpu', type=int, default=1)
    args = p.parse_args()
    args.kinds = [kind for kind, path in (
        ('memcached', args.memcached), ('redis', args.redis_server)) if path]
    if args.part == 'cost' and not (args.kinds and args.memtier):
        p.error('cost needs --memtier, and --redis-server or --memcached')
    if args.part == 'tao' and not args.memcached:
        p.error('tao needs --memcached')
    with tempfile.TemporaryDirectory() as folder:
        args.plumbload = Path(folder) / 'plumbload'
        args.tao_server = Path(folder) / 'tao_server'
        run([BUILD, args.plumbload], 'building plumbload')
        if args.part == 'tao':
            run([BUILD_TAO, args.tao_server], 'building tao_server')
        good = PARTS[args.part](args)
    print(f'\n{args.part}: {"holds" if good else "DOES NOT HOLD"}')
    return good


if __name__ == '__main__':
    run_main_and_exit(main)
