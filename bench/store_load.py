#!/usr/bin/env python3
"""Compares plumbload and tao_server with the programs that they stand for.

    bench/store_load.py --redis-server PATH [--memcached PATH]
        [--memtier PATH] [--redis-benchmark PATH]
    bench/store_load.py tao --memcached PATH

The server runs on one CPU, the clients in turn on another. Each value is the
median over the rounds. The parts:

    cost     GETs of 240 B per second of client CPU, one thread, no pipeline;
             goal: at least 1.1 times those of memtier
    work     requests per second of server CPU, if each request runs a script
             of 50 us or 1 ms; goal: within 3 % of each other client
    latency  medians of an open loop with a low rate on one connection: GETs,
             and scripts of 1 ms and 5 ms; goal: within 3 % of memtier, if
             latencies count from the sending as memtier's do
    tao      GETs per second of server CPU of tao_server (its hit path)
             and of memcached; goal: at least 0.9 times those of memcached
"""
from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from common import (
    EXIT_CODES,
    ROOT,
    alternate,
    cpu_of,
    exit_with,
    free_port,
    head,
    medians,
    ratio,
    row,
    run,
    served,
)

sys.path.insert(0, str(ROOT))
from checks.loadgen import BUILD, plumbload

BUILD_TAO = ROOT / 'checks' / 'taobench' / 'src' / 'build.sh'
#: With four digits after it a key is as long as redis-benchmark's.
PREFIX = 'key:00000000'
CHEAPER, ALIKE, TAO = 1.1, 0.03, 0.9
#: A script whose argument sets its duration.
SCRIPT = ('local n = 0 for i = 1, tonumber(ARGV[1]) do n = n + i % 7 end '
          'return n')
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
    #: Words in place of a GET; the server answers with an integer.
    command: tuple[str, ...] = ()
    #: Requests per second; 0: as many as are answered.
    rate: int = 0
    #: Options that only plumbload has.
    more: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One run of one client."""
    rate: float
    #: Requests per second of CPU of the client, and of the server.
    client: float
    server: float
    #: Share of a CPU that the server used.
    busy: float
    #: Median. Unit: us.
    latency: float


class Counts(NamedTuple):
    """What a client reports: requests, requests per second, median (us)."""
    requests: int
    rate: float
    median: float


# Servers and clients -------------------------------------------------------

@contextlib.contextmanager
def store(args: argparse.Namespace, kind: str, load: Load | None
          ) -> Iterator[Server]:
    """A server that has the keys of a load; None: no keys."""
    port = free_port()
    # A program that changes its user would outlive a bench that is killed.
    user = ['-u', 'root'] if os.geteuid() == 0 else []
    cached = [*user, '-l', '127.0.0.1', '-p', port, '-t', 1, '-m', 256]
    command = {
        'redis': [args.redis_server, '--port', port, '--bind', '127.0.0.1',
                  '--save', '', '--dir', '/tmp'],
        'memcached': [args.memcached, *cached, '-U', 0],
        'tao': [args.tao_server, *cached, '-o', QUIET]}[kind]
    with served(command, port, args.server_cpu) as pid:
        server = Server(kind, port, pid)
        if load:
            run([*ours(args, server, load), '--operation', 'fill'], 'fill')
        yield server


def ours(args: argparse.Namespace, server: Server, load: Load
         ) -> list[object]:
    """The command line of plumbload up to its operation."""
    protocol = 'resp2' if server.kind == 'redis' else 'binary'
    return [args.plumbload, '--server', f'127.0.0.1:{server.port}',
            '--protocol', protocol, '--keys', load.keys, '--key-prefix',
            load.key_prefix, '--value-size', load.value_size]


def run_plumbload(args: argparse.Namespace, server: Server, load: Load
                  ) -> tuple[list[object], str]:
    kind = 'command' if load.command else 'get'
    return [*ours(args, server, load), *load.more,
            '--connections', load.connections, '--operation', kind,
            '--duration', args.seconds,
            *(['--command', ' '.join(load.command), '--answer', 'integer']
              if load.command else []),
            *(['--rate', load.rate] if load.rate else [])], kind


def counts_of_plumbload(out: str, kind: str) -> Counts:
    document = json.loads(out)
    if document['kinds'][kind].get('misses'):
        raise AssertionError('a GET found no value')
    metrics = {r.metric: r.value for r in plumbload.parse(out)}
    return Counts(document['kinds'][kind]['count'],
                  document['rate']['achieved'], metrics['latency_p50'])


def run_memtier(args: argparse.Namespace, server: Server, load: Load,
                result: Path) -> list[object]:
    protocol = 'redis' if server.kind == 'redis' else 'memcache_binary'
    return [args.memtier, '-s', '127.0.0.1', '-p', server.port, '-P',
            protocol, '-t', 1, '-c', load.connections, '--key-prefix',
            load.key_prefix, '--key-minimum', 1, '--key-maximum',
            load.keys - 1, '-d', load.value_size, '--test-time',
            args.seconds, '--hide-histogram', '--json-out-file', result,
            *(['--command', ' '.join(load.command)] if load.command
              else ['--ratio', '0:1', '--key-pattern', 'R:R']),
            *(['--rate-limiting', load.rate // load.connections]
              if load.rate else [])]


def counts_of_memtier(result: Path) -> Counts:
    stats = json.loads(result.read_text())['ALL STATS']
    totals = stats.pop('Totals')
    if totals.get('Misses/sec'):
        raise AssertionError('a GET found no value')
    its = next(one for one in stats.values()
               if isinstance(one, dict) and one.get('Count'))
    return Counts(totals['Count'], totals['Ops/sec'],
                  1e3 * its['Percentile Latencies']['p50.00'])


def run_redis_benchmark(args: argparse.Namespace, server: Server, load: Load,
                        count: int) -> list[object]:
    return [args.redis_benchmark, '-p', server.port,
            *([] if load.command else ['-t', 'get']), '-d', load.value_size,
            '-r', load.keys, '-n', count, '-c', load.connections, '--csv',
            *load.command]


def measure(args: argparse.Namespace, tool: str, server: Server, load: Load,
            guess: float = 20000) -> Sample:
    """One run of one client.

    :arg guess: requests per second, for the tool that needs a number
    """
    before = cpu_of(server.pid)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / 'json'
        if tool == 'plumbload':
            command, kind = run_plumbload(args, server, load)
            done = run(command, tool, args.client_cpu)
            found = counts_of_plumbload(done.out, kind)
        elif tool == 'memtier':
            done = run(run_memtier(args, server, load, result), tool,
                       args.client_cpu)
            found = counts_of_memtier(result)
        else:
            count = int(guess * args.seconds)
            done = run(run_redis_benchmark(args, server, load, count), tool,
                       args.client_cpu)
            its = next(csv.DictReader(done.out.splitlines()))
            found = Counts(count, float(its['rps']),
                           1e3 * float(its['p50_latency_ms']))
    spent = cpu_of(server.pid) - before
    return Sample(found.rate, found.requests / done.cpu,
                  found.requests / spent, spent / done.wall, found.median)


def compare(args: argparse.Namespace, server: Server, load: Load
            ) -> dict[str, list[Sample]]:
    """Tool -> samples, one per round."""
    tools = ['plumbload']
    tools += ['memtier'] if args.memtier else []
    tools += (['redis-benchmark'] if args.redis_benchmark
              and server.kind == 'redis' and not load.rate else [])
    guess = [20000.0]

    def once(tool: str) -> Sample:
        sample = measure(args, tool, server, load, guess[-1])
        guess.append(sample.rate)
        return sample

    return alternate(args.rounds, tools, once)


def show(what: str, found: dict[str, list[Sample]], value: str
         ) -> dict[str, float]:
    """Prints a row per program; returns the ratio of the first to each."""
    first = [getattr(s, value) for s in next(iter(found.values()))]
    ratios = {name: ratio(first, [getattr(s, value) for s in samples])
              for name, samples in found.items()}
    for name, samples in found.items():
        s = medians(samples)
        row(what, name, f'{s.rate:.0f}', f'{s.client:.0f}',
            f'{s.server:.0f}', f'{100 * s.busy:.0f} %', f'{s.latency:.0f}',
            f'{ratios[name]:.3f}')
    return ratios


def columns(compared: str) -> None:
    print()
    head('what', 'program', 'requests/s', 'per client CPU s',
         'per server CPU s', 'server CPU', 'p50 us',
         f'ratio: first / program, {compared}')


def alike(ratios: dict[str, float]) -> bool:
    return all(abs(one - 1) <= ALIKE for one in ratios.values())


# Parts -----------------------------------------------------------------------

def cost(args: argparse.Namespace) -> bool:
    columns('per client CPU s')
    good = True
    for kind in args.kinds:
        with store(args, kind, Load()) as server:
            for connections in args.connections:
                ratios = show(f'{kind}, {connections} connections', compare(
                    args, server, Load(connections=connections)), 'client')
                good &= ratios['memtier'] >= CHEAPER
    return good


def script(server: Server, us: float) -> tuple[str, ...]:
    """A command that takes the server so long."""
    def ask(*words: object) -> bytes:
        sock.sendall(b'*%d\r\n' % len(words) + b''.join(
            b'$%d\r\n%s\r\n' % (len(w), w)
            for w in (str(word).encode() for word in words)))
        return sock.recv(4096)

    with socket.create_connection(('127.0.0.1', server.port), 10) as sock:
        sha = ask('SCRIPT', 'LOAD', SCRIPT).split()[1].decode()
        count = 1000
        for _ in range(4):
            before = cpu_of(server.pid)
            for _ in range(200):
                ask('EVALSHA', sha, 0, count)
            # The time includes the round trip: the duration is approximate.
            count = round(count * us / (cpu_of(server.pid) - before) * 200e-6)
    return 'EVALSHA', sha, '0', str(count)


def work(args: argparse.Namespace) -> bool:
    columns('per server CPU s')
    good = True
    for us in (50, 1000):
        with store(args, 'redis', Load()) as server:
            good &= alike(show(f'script of {us} us', compare(
                args, server, Load(command=script(server, us))), 'server'))
    return good


def latency(args: argparse.Namespace) -> bool:
    columns('p50')
    good = True
    with store(args, 'redis', Load()) as server:
        for name, rate, us in (('GET of 240 B', 1000, 0),
                               ('script of 1 ms', 200, 1000),
                               ('script of 5 ms', 50, 5000)):
            command = script(server, us) if us else ()
            for since in ('sent', 'due'):
                ratios = show(f'{name}, {rate}/s, since {since}', compare(
                    args, server, Load(connections=1, rate=rate,
                                       command=command,
                                       more=('--since', since))), 'latency')
                good &= since == 'due' or alike(ratios)
    return good


def tao(args: argparse.Namespace) -> bool:
    columns('per server CPU s')
    good = True
    # TaoBench's keys have 219 constant bytes.
    for name, prefix in (('short keys', 'key:'), ('keys of 220 B', 219 * 'k')):
        load = Load(keys=10001, value_size=200, key_prefix=prefix)

        def once(kind: str, load: Load = load) -> Sample:
            with store(args, kind, load) as server:
                return measure(args, 'plumbload', server, load)

        ratios = show(name, alternate(args.rounds, ('tao', 'memcached'),
                                      once), 'server')
        good &= ratios['memcached'] >= TAO
    return good


PARTS = {'cost': cost, 'work': work, 'latency': latency, 'tao': tao}
#: Part -> programs without which it shows nothing.
NEEDS = {'cost': ('memtier',), 'work': ('redis_server', 'memtier'),
         'latency': ('redis_server', 'memtier'), 'tao': ('memcached',)}


def main() -> bool:
    p = argparse.ArgumentParser(
        description=__doc__, epilog=EXIT_CODES,
        formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument('parts', nargs='*', metavar='PART',
                   help=f'{", ".join(PARTS)} (default: all)')
    p.add_argument('--redis-server', metavar='PATH')
    p.add_argument('--memcached', metavar='PATH')
    p.add_argument('--memtier', metavar='PATH')
    p.add_argument('--redis-benchmark', metavar='PATH')
    p.add_argument('--rounds', type=int, default=5)
    p.add_argument('--seconds', type=int, default=4)
    p.add_argument('--connections', type=int, nargs='+',
                   default=[16, 64, 200])
    p.add_argument('--server-cpu', type=int, default=0)
    p.add_argument('--client-cpu', type=int, default=1)
    args = p.parse_args()
    if not set(args.parts) <= set(PARTS):
        p.error(f'parts are {", ".join(PARTS)}')
    args.kinds = [kind for kind, path in (
        ('memcached', args.memcached), ('redis', args.redis_server)) if path]
    if not args.kinds:
        p.error('give --redis-server or --memcached')
    absent = {part: [f'--{name.replace("_", "-")}' for name in names
                     if not getattr(args, name)]
              for part, names in NEEDS.items()}
    for part in args.parts:
        if absent[part]:
            p.error(f'{part} needs {" and ".join(absent[part])}')
    parts = args.parts or [part for part in PARTS if not absent[part]]
    if not parts:
        p.error('each part needs --memtier or --memcached')
    with tempfile.TemporaryDirectory() as folder:
        args.plumbload = Path(folder) / 'plumbload'
        args.tao_server = Path(folder) / 'tao_server'
        run([BUILD, args.plumbload], 'building plumbload')
        if 'tao' in parts:
            run([BUILD_TAO, args.tao_server], 'building tao_server')
        met = {part: PARTS[part](args) for part in parts}
    print()
    for part, good in met.items():
        print(f'{part}: {"holds" if good else "DOES NOT HOLD"}')
    return all(met.values())


if __name__ == '__main__':
    exit_with(main)
