#!/usr/bin/env python3
"""Compares embedded programs with the originals: memtier_benchmark, tao_server.

    bench/store_load.py cost --memtier PATH [--redis-server PATH]
        [--memcached PATH]
    bench/store_load.py tao --memcached PATH

The server runs on the first CPU, the clients in turn on the last. Each value is the
median over the rounds. The parts:

    cost  GETs of 240 B per second of client CPU, one thread, no pipeline;
          goal: at least 1.1 times those of the original
    tao   GETs per second of server CPU of tao_server (its hit path)
          and of memcached; goal: at least 0.9 times those of memcached
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from common import (
    CLIENT_CPU,
    ROOT,
    keep_server_running,
    measure_alternately,
    median_ratio,
    option_parser,
    print_table_head,
    print_table_row,
    process_cpu_seconds,
    run,
    run_main_and_exit,
    unused_port,
)

from checks.loadgen import BUILD, memtier

BUILD_TAO = ROOT / 'checks' / 'taobench' / 'src' / 'build.sh'
#: With four digits after it a key is as long as redis-benchmark's.
PREFIX = 'key:00000000'
CHEAPER, TAO = 1.1, 0.9
#: Without a request a slow path sleeps and looks 18 000 times per second and
#: thread, as the original does. With these options one thread does it 4 000 times.
QUIET = ('tao_slow_use_semaphore=1,tao_num_slow_threads=1,tao_slow_dispatchers=1,'
         'tao_smart_nanosleep=1')
#: Options of a load that leaves all keys in a server: tao_server makes the values.
FILL = {'tao': ['--ratio', '0:1', '--requests', 10000]}


class Server(NamedTuple):
    """A server on the loopback: redis, memcached or tao."""
    kind: str
    port: int
    pid: int


class Load(NamedTuple):
    """What the clients request."""
    keys: int = 10000
    #: Unit: bytes.
    value_size: int = 240
    key_prefix: str = PREFIX


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
    with keep_server_running(command, port) as pid:
        server = Server(kind, port, pid)
        if load:
            run([*load_command(args.embedded, server, load, 10), *FILL.get(kind, [
                '--ratio', '1:0', '--key-pattern', 'P:P', '--requests', 'allkeys'])],
                'fill')
        yield server


def load_command(program: str, server: Server, load: Load, connections: int
                 ) -> list[object]:
    """The command line of either program up to its kind of requests."""
    protocol = 'redis' if server.kind == 'redis' else 'memcache_binary'
    return [program, '--server', '127.0.0.1', '--port', server.port, '--protocol',
            protocol, '--threads', 1, '--clients', connections, '--key-prefix',
            load.key_prefix, '--key-maximum', load.keys - 1,
            '--data-size', load.value_size, '--hide-histogram']


def run_load(args: argparse.Namespace, program: str, server: Server, load: Load,
             connections: int) -> tuple[int, float]:
    """GETs of either program, and its CPU time; the embedded one compares bytes."""
    checked = ['--verify', 'bytes', '--on-miss', 'fail']
    with tempfile.NamedTemporaryFile() as result:
        done = run(
            [*load_command(program, server, load, connections), '--ratio', '0:1',
             '--test-time', args.seconds, '--json-out-file', result.name,
             *(checked if program == args.embedded and server.kind != 'tao' else [])],
            'memtier_benchmark', CLIENT_CPU)
        text = Path(result.name).read_text()
    memtier.parse(text)
    totals = json.loads(text)['ALL STATS']['Totals']
    if totals['Misses/sec']:
        raise AssertionError('a GET found no value')
    return totals['Count'], done.cpu


def print_rates_and_return_ratio(what: str, samples_of: Mapping[str, list[float]]
                                 ) -> float:
    """Prints the medians of two programs; returns the first divided by the second."""
    ours, theirs = samples_of.values()
    ratio = median_ratio(ours, theirs)
    print_table_row(what, f'{statistics.median(ours):.0f}',
                    f'{statistics.median(theirs):.0f}', f'{ratio:.3f}')
    return ratio


# Parts -----------------------------------------------------------------------

def compare_client_cost(args: argparse.Namespace) -> bool:
    print_table_head('server', 'embedded: requests per client CPU s', 'original',
                     'ratio')
    good, load = True, Load()
    for kind in args.kinds:
        with keep_store_server_running(args, kind, load) as server:
            for connections in (16, 64, 200):
                def measure_once(client: str, server: Server = server,
                                 connections: int = connections) -> float:
                    requests, cpu = run_load(args, client, server, load, connections)
                    return requests / cpu

                good &= print_rates_and_return_ratio(
                    f'{kind}, {connections} connections', measure_alternately(
                        args.rounds, (args.embedded, args.memtier), measure_once
                        )) >= CHEAPER
    return good


def compare_tao_server(args: argparse.Namespace) -> bool:
    print_table_head('keys', 'tao_server: requests per server CPU s', 'memcached',
                     'ratio')
    good = True
    # TaoBench's keys have 219 constant bytes.
    for name, prefix in (('short', 'key:'), ('220 B', 219 * 'k')):
        load = Load(keys=10001, value_size=200, key_prefix=prefix)

        def measure_once(kind: str, load: Load = load) -> float:
            with keep_store_server_running(args, kind, load) as server:
                before = process_cpu_seconds(server.pid)
                requests, _ = run_load(args, args.embedded, server, load, 50)
                return requests / (process_cpu_seconds(server.pid) - before)

        good &= print_rates_and_return_ratio(name, measure_alternately(
            args.rounds, ('tao', 'memcached'), measure_once)) >= TAO
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
    args = p.parse_args()
    args.kinds = [kind for kind, path in (
        ('memcached', args.memcached), ('redis', args.redis_server)) if path]
    if args.part == 'cost' and not (args.kinds and args.memtier):
        p.error('cost needs --memtier, and --redis-server or --memcached')
    if args.part == 'tao' and not args.memcached:
        p.error('tao needs --memcached')
    with tempfile.TemporaryDirectory() as folder:
        args.embedded = f'{folder}/embedded/memtier_benchmark'
        args.tao_server = Path(folder) / 'tao_server'
        run([BUILD, args.embedded], 'building memtier_benchmark')
        if args.part == 'tao':
            run([BUILD_TAO, args.tao_server], 'building tao_server')
        good = PARTS[args.part](args)
    print(f'\n{args.part}: {"holds" if good else "DOES NOT HOLD"}')
    return good


if __name__ == '__main__':
    run_main_and_exit(main)
