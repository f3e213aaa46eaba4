#!/usr/bin/env python3
"""Is plumbload cheap, does it agree with others, and does it see a stall?

    bench/store_load.py --redis-server PATH [--memcached PATH]
        [--memtier PATH] [--redis-benchmark PATH]

The server runs on one CPU, the clients in turn on another; each figure is
the median of the rounds.  The parts:

    cost       requests of 240 B GETs for a second of client CPU, one thread,
               no pipeline; ours must be 1.1 times memtier's or better
    agreement  the rate that a slow server allows: it stands still ten of
               eleven milliseconds (SIGSTOP), with 800 requests under way, so
               that no client can be the slower one; within 3 %
    stall      the server is stopped for 100 ms (SIGSTOP): the p99 of an open
               loop shows it, that of a closed loop does not
    work       requests for a second of the server's CPU where it has work to
               do for each, so that batches save it little: scripts of 50 us
               and of 1 ms; within 3 %
    values     the same with GETs of 64 KiB: each as fast as it can, and ours
               at the rate of each other, within 3 %; and why they differ:
               reads, writes and sleeps for a request
    latency    medians of an open loop at a low rate, on one connection: of
               GETs, and of scripts of 1 ms and 5 ms; counted from the sending
               as memtier does within 3 %, and from when each was due
    verify     what the comparison of every byte costs: requests per client
               CPU second, with it and with that of lengths only
"""
from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import ending

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from checks.load import BUILD, plumbload  # noqa: E402

#: With four digits after it a key is as long as redis-benchmark's.
PREFIX = 'key:00000000'
CHEAPER, ALIKE, BUSY, STALL = 1.1, 0.03, 0.9, 0.1
#: A slowed server runs and is stopped in turn, for so many seconds each.
RUNS, STANDS = 0.001, 0.01
#: Work of a length that its argument says.
SCRIPT = ('local n = 0 for i = 1, tonumber(ARGV[1]) do n = n + i % 7 end '
          'return n')


class Setup(Exception):
    """Something needed is not there; exit 2."""


class Server(NamedTuple):
    kind: str
    port: int
    pid: int


class Load(NamedTuple):
    """What a client does."""
    operation: str = 'get'
    connections: int = 50
    pipeline: int = 1
    keys: int = 10000
    #: Of a value. Unit: bytes.
    size: int = 240
    #: Instead of an operation: words, the answer is an integer.
    command: tuple[str, ...] = ()
    #: Requests a second; 0: as many as are answered.
    rate: int = 0
    #: Options of plumbload alone.
    more: tuple[str, ...] = ()


BASE = Load()


class Sample(NamedTuple):
    """One run of one client."""
    rate: float
    #: Requests for a second of CPU of the client, and of the server.
    client: float
    server: float
    #: Share of a core that the server used while the client ran.
    busy: float
    #: Median. Unit: us.
    latency: float
    #: Of the server, for a request: calls of read and of write (not send),
    #: and times that it slept.
    reads: float
    writes: float
    sleeps: float
    #: Of the client, likewise: times that it slept.
    waits: float


def run(command: list[object], what: str
        ) -> tuple[str, float, float, int]:
    """Its output, CPU and wall seconds from its start to its end, and how
    often it slept."""
    begin = time.monotonic()
    with subprocess.Popen([str(c) for c in command], text=True,
                          stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        # Nobody writes much: the pipes hold it until the end.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begin
        assert process.stdout and process.stderr
        out, err = process.stdout.read(), process.stderr.read()
    if process.returncode:
        raise Setup(f'{what} ended with {process.returncode}: {err[-300:]}')
    return out, usage.ru_utime + usage.ru_stime, wall, usage.ru_nvcsw


def cpu_of(pid: int) -> float:
    """CPU seconds of all its threads, to the nanosecond."""
    return sum(int(path.read_text().split()[0]) for path in
               Path(f'/proc/{pid}/task').glob('*/schedstat')) / 1e9


def counts_of(pid: int) -> list[int]:
    """Calls of read and write, and sleeps, of all its threads."""
    found = [0, 0, 0]
    for task in Path(f'/proc/{pid}/task').iterdir():
        for place, (file, name) in enumerate((
                ('io', 'syscr'), ('io', 'syscw'),
                ('status', 'voluntary_ctxt_switches'))):
            lines = (line.split(':') for line in
                     (task / file).read_text().splitlines())
            found[place] += int({key: value for key, value in lines}[name])
    return found


#: Tool -> its samples, one a round.
Found = dict[str, list[Sample]]


@contextlib.contextmanager
def served(args: argparse.Namespace, kind: str, load: Load = BASE
           ) -> Iterator[Server]:
    """A pinned store on a free port of the loopback, full of our keys."""
    with socket.create_server(('127.0.0.1', 0)) as listener:
        port = listener.getsockname()[1]
    # A program that changes its user would outlive a bench that is killed.
    user = ['-u', 'root'] if os.geteuid() == 0 else []
    command = (
        [args.redis_server, '--port', port, '--bind', '127.0.0.1', '--save',
         ''] if kind == 'redis' else
        [args.memcached, *user, '-l', '127.0.0.1', '-p', port, '-U', 0, '-t',
         1])
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
            ['taskset', '-c', str(args.server_cpu), *map(str, command)],
            cwd=folder, stdout=subprocess.DEVNULL,
            preexec_fn=ending.with_bench) as process:
        try:
            for _ in range(100):
                with contextlib.suppress(OSError):
                    socket.create_connection(('127.0.0.1', port)).close()
                    break
                time.sleep(0.05)
            server = Server(kind, port, process.pid)
            fill(args, server, load)
            yield server
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


def fill(args: argparse.Namespace, server: Server, load: Load) -> None:
    if server.kind == 'redis' and args.redis_benchmark:
        # Twenty sets for each key leave none out.
        run([args.redis_benchmark, '-p', server.port, '-t', 'set', '-d',
             load.size, '-r', load.keys, '-n', 20 * load.keys, '-P', 16,
             '-q'], 'fill')
    # Ours last: it verifies every byte, so its values must be there.
    run([args.plumbload, *ours(server, load._replace(more=())),
         '--operation', 'fill'], 'fill')


def ours(server: Server, load: Load) -> list[object]:
    protocol = 'resp2' if server.kind == 'redis' else 'binary'
    return ['--server', f'127.0.0.1:{server.port}', '--protocol', protocol,
            '--keys', load.keys, '--key-prefix', PREFIX, '--value-size',
            load.size, *load.more]


def measure(args: argparse.Namespace, tool: str, server: Server, load: Load,
            guess: float) -> Sample:
    """`guess`: requests a second, for the tool that wants a number."""
    pinned: list[object] = ['taskset', '-c', args.client_cpu]
    before, counts = cpu_of(server.pid), counts_of(server.pid)
    kind = 'command' if load.command else load.operation
    with tempfile.TemporaryDirectory() as folder:
        if tool == 'plumbload':
            out, cpu, wall, slept = run(
                [*pinned, args.plumbload, *ours(server, load),
                 '--connections', load.connections, '--pipeline',
                 load.pipeline, '--operation', kind, '--duration',
                 args.seconds,
                 *(['--command', ' '.join(load.command), '--answer',
                    'integer'] if load.command else []),
                 *(['--rate', load.rate] if load.rate else [])], tool)
            document = json.loads(out)
            count = document['kinds'][kind]['count']
            rate = document['rate']['achieved']
            median = {r.metric: r.value for r in plumbload.parse(out)}[
                'latency_p50']
        elif tool == 'memtier':
            protocol = 'redis' if server.kind == 'redis' \
                else 'memcache_binary'
            result = Path(folder) / 'json'
            _, cpu, wall, slept = run(
                [*pinned, args.memtier, '-s', '127.0.0.1', '-p', server.port,
                 '-P', protocol, '-t', 1, '-c', load.connections,
                 '--pipeline', load.pipeline, '--key-prefix', PREFIX,
                 '--key-minimum', 1, '--key-maximum', load.keys - 1, '-d',
                 load.size, '--test-time', args.seconds, '--hide-histogram',
                 '--json-out-file', result,
                 *(['--command', ' '.join(load.command)] if load.command
                   else ['--ratio', '0:1', '--key-pattern', 'R:R']),
                 *(['--rate-limiting', load.rate // load.connections]
                   if load.rate else [])], tool)
            stats = json.loads(result.read_text())['ALL STATS']
            totals = stats['Totals']
            count, rate = totals['Count'], totals['Ops/sec']
            median = 1e3 * next(
                row for name, row in stats.items() if name != 'Totals'
                and isinstance(row, dict) and row.get('Count')
            )['Percentile Latencies']['p50.00']
            if totals.get('Misses/sec'):
                raise Setup('keys are missing')
        else:
            count = int(guess * args.seconds)
            out, cpu, wall, slept = run(
                [*pinned, args.redis_benchmark, '-p', server.port,
                 *([] if load.command else ['-t', kind]), '-d', load.size,
                 '-r', load.keys, '-n', count, '-c', load.connections, '-P',
                 load.pipeline, '--csv', *load.command], tool)
            row = [*csv.DictReader(out.splitlines())][0]
            rate, median = float(row['rps']), 1e3 * float(
                row['p50_latency_ms'])
    spent = cpu_of(server.pid) - before
    return Sample(rate, count / cpu, count / spent, spent / wall, median, *(
        (after - before) / count for before, after in zip(
            counts, counts_of(server.pid), strict=True)), slept / count)


def compare(args: argparse.Namespace, server: Server, load: Load
            ) -> Found:
    """The samples of every tool, taken in turn."""
    tools = ['plumbload']
    tools += ['memtier'] if args.memtier else []
    tools += (['redis-benchmark'] if args.redis_benchmark
              and server.kind == 'redis' and not load.rate else [])
    samples: dict[str, list[Sample]] = {tool: [] for tool in tools}
    for turn in range(args.rounds):
        first = turn % len(tools)
        for tool in tools[first:] + tools[:first]:
            seen = [s.rate for s in samples['plumbload']]
            samples[tool].append(measure(
                args, tool, server, load, seen[-1] if seen else 20000))
    return samples


def middle(samples: list[Sample]) -> Sample:
    return Sample(*map(statistics.median, zip(*samples, strict=True)))


def ratio_to(found: Found, tool: str, value: str) -> float:
    """Ours over its, in the middle of the rounds: the machine's speed, which
    changes between them, is the same for both."""
    return statistics.median(
        getattr(mine, value) / getattr(its, value) for mine, its in zip(
            found['plumbload'], found[tool], strict=True))


def show(what: str, connections: int, found: Found, value: str
         ) -> dict[str, float]:
    """A row for each tool; ours over each other's, of that value."""
    ratios = {}
    for tool, samples in found.items():
        sample = middle(samples)
        ratios[tool] = ratio = ratio_to(found, tool, value)
        print(f'| {what} | {connections} | {tool} '
              f'| {sample.rate:.0f} | {sample.client:.0f} '
              f'| {sample.server:.0f} | {100 * sample.busy:.0f} % '
              f'| {ratio:.3f} |', flush=True)
    return ratios


HEAD = '''
| server | connections | client | rate 1/s | per client CPU s \
| per server CPU s | server CPU | ours / it, {} |
|---|---|---|---|---|---|---|---|'''


def cost(args: argparse.Namespace) -> bool:
    print(HEAD.format('per client CPU s'))
    good = True
    for kind in args.kinds:
        with served(args, kind) as server:
            for connections in args.connections:
                found = compare(args, server, Load(connections=connections))
                ratios = show(server.kind, connections, found, 'client')
                good &= ratios.get('memtier', CHEAPER) >= CHEAPER
    return good


@contextlib.contextmanager
def slowed(args: argparse.Namespace, server: Server) -> Iterator[None]:
    """The server runs for one millisecond of eleven.

    By a process on the server's own CPU, so that no client is disturbed.
    """
    code = (f'import os, time\nwhile True:\n os.kill({server.pid}, 19)\n '
            f'time.sleep({STANDS})\n os.kill({server.pid}, 18)\n '
            f'time.sleep({RUNS})')
    with subprocess.Popen(['taskset', '-c', str(args.server_cpu),
                           sys.executable, '-c', code],
                          preexec_fn=ending.with_bench) as governor:
        try:
            yield
        finally:
            governor.kill()
            os.kill(server.pid, signal.SIGCONT)


def agreement(args: argparse.Namespace) -> bool:
    print(HEAD.format('rate'))
    good = True
    for kind in args.kinds:
        with served(args, kind) as server, slowed(args, server):
            found = compare(args, server, Load(connections=200, pipeline=4))
            ratios = show(server.kind, 200, found, 'rate')
        busy = [middle(samples).busy for samples in found.values()]
        if min(busy) < BUSY * max(busy):
            print(f'\nThe server was busy {100 * min(busy):.0f} to '
                  f'{100 * max(busy):.0f} % of the time: a client was the '
                  'slower one, and its rate is not the server\'s.')
            good = False
        good &= all(abs(r - 1) <= ALIKE for r in ratios.values())
    return good


def stalled(args: argparse.Namespace, server: Server, *more: object
            ) -> dict[str, float]:
    """The latencies of a load during which the server once stands still."""
    with subprocess.Popen(
            [str(a) for a in (
                'taskset', '-c', args.client_cpu, args.plumbload,
                *ours(server, BASE), '--connections', 50, '--duration', 5,
                '--warmup', 0.5, *more)],
            text=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL) as client:
        time.sleep(2.5)
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(STALL)
        os.kill(server.pid, signal.SIGCONT)
        out = client.communicate()[0]
    return {r.metric: r.value / 1e3 for r in plumbload.parse(out)
            if r.metric.startswith('latency')}


def stall(args: argparse.Namespace) -> bool:
    print('\n| loop | p50 ms | p99 ms | p99.9 ms | max ms |\n'
          '|---|---|---|---|---|')
    p99 = {}
    with served(args, args.kinds[0]) as server:
        for loop, more in (('closed', []), ('open', ['--rate', 5000])):
            rows = [stalled(args, server, *more) for _ in range(args.rounds)]
            row = [statistics.median(r[name] for r in rows) for name in (
                'latency_p50', 'latency_p99', 'latency_p999', 'latency_max')]
            p99[loop] = row[1]
            print(f'| {loop} | ' + ' | '.join(f'{v:.2f}' for v in row)
                  + ' |', flush=True)
    # One request in fifty was due while the server was stopped.
    return p99['open'] > 1e3 * STALL / 4 > p99['closed']


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
            # The round trip is in it: what is asked of it is no precise time.
            count = round(count * us / (cpu_of(server.pid) - before) * 200e-6)
    return 'EVALSHA', sha, '0', str(count)


def work(args: argparse.Namespace) -> bool:
    print(HEAD.format('per server CPU s'))
    good = True
    for us in (50, 1000):
        with served(args, 'redis') as server:
            load = Load(command=script(server, us))
            found = compare(args, server, load)
        ratios = show(f'redis, script of {us} us', load.connections, found,
                      'server')
        good &= all(abs(r - 1) <= ALIKE for r in ratios.values())
    return good


def at_its_rate(args: argparse.Namespace, server: Server, load: Load,
                tool: str) -> Found:
    """A tool as fast as it asks on one connection, and ours at that rate.

    What the server spends on a request depends on how long it waited for it.
    Given a rate, memtier sends in bursts; left alone, at even intervals.
    """
    found: Found = {'plumbload': [], tool: []}
    rate = 10_000.0
    for _ in range(args.rounds):
        its = measure(args, tool, server, load, rate)
        rate = its.rate
        found[tool].append(its)
        found['plumbload'].append(measure(
            args, 'plumbload', server, load._replace(rate=round(rate)), 0))
    return found


def values(args: argparse.Namespace) -> bool:
    print('\n| server | connections | client | rate 1/s | per server CPU s '
          '| server CPU | reads | writes | sleeps | client sleeps '
          '| ours / it |\n|---|---|---|---|---|---|---|---|---|---|---|')
    good = True
    for kind in args.kinds:
        for connections in (1, 16):
            load = Load(connections=connections, keys=50, size=1 << 16)
            with served(args, kind, load) as server:
                runs = [compare(args, server, load)]
                if connections == 1:
                    runs += [at_its_rate(args, server, load, tool)
                             for tool in runs[0] if tool != 'plumbload']
            for found in runs:
                for tool, samples in found.items():
                    s, ratio = middle(samples), ratio_to(
                        found, tool, 'server')
                    print(f'| {kind} | {connections} | {tool} | {s.rate:.0f} '
                          f'| {s.server:.0f} | {100 * s.busy:.0f} % '
                          f'| {s.reads:.2f} | {s.writes:.2f} '
                          f'| {s.sleeps:.2f} | {s.waits:.2f} | {ratio:.3f} |',
                          flush=True)
                    good &= found is runs[0] or abs(ratio - 1) <= ALIKE
    return good


def latency(args: argparse.Namespace) -> bool:
    print('\n| load | rate 1/s | since | client | p50 us | ours / it |\n'
          '|---|---|---|---|---|---|')
    good = True
    with served(args, 'redis') as server:
        for name, rate, us in (('GET of 240 B', 1000, 0),
                               ('script of 1 ms', 200, 1000),
                               ('script of 5 ms', 50, 5000)):
            command = script(server, us) if us else ()
            for since in ('sent', 'due'):
                found = compare(args, server, Load(
                    connections=1, rate=rate, command=command,
                    more=('--since', since)))
                for tool, samples in found.items():
                    ratio = ratio_to(found, tool, 'latency')
                    print(f'| {name} | {rate} | {since} | {tool} '
                          f'| {middle(samples).latency:.0f} | {ratio:.3f} |',
                          flush=True)
                    good &= since == 'due' or abs(ratio - 1) <= ALIKE
    return good


def verify(args: argparse.Namespace) -> bool:
    print('\n| server | values | connections | compared | per client CPU s '
          '| ratio |\n|---|---|---|---|---|---|')
    for kind in args.kinds:
        for size, keys in ((64, 100000), (240, 10000), (1 << 16, 500)):
            load = Load(size=size, keys=keys)
            seen: dict[str, list[float]] = {'length': [], 'bytes': []}
            with served(args, kind, load) as server:
                for turn in range(args.rounds):
                    for how in sorted(seen, reverse=bool(turn % 2)):
                        seen[how].append(measure(
                            args, 'plumbload', server, load._replace(
                                more=('--verify', how)), 0).client)
            ratio = statistics.median(b / n for n, b in zip(
                seen['length'], seen['bytes'], strict=True))
            for how, values in seen.items():
                print(f'| {kind} | {size} B | {load.connections} | {how} '
                      f'| {statistics.median(values):.0f} '
                      f'| {ratio if how == "bytes" else 1:.3f} |',
                      flush=True)
    return True


PARTS = {'cost': cost, 'agreement': agreement, 'stall': stall, 'work': work,
         'values': values, 'latency': latency, 'verify': verify}


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter,
        epilog='Exit status: 0 all hold, 1 some do not, 2 cannot run.')
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
    ending.in_order()
    if not set(args.parts) <= set(PARTS):
        p.error(f'parts are {", ".join(PARTS)}')
    args.kinds = [kind for kind, path in (
        ('memcached', args.memcached), ('redis', args.redis_server)) if path]
    if not args.kinds:
        p.error('give --redis-server or --memcached')
    with tempfile.TemporaryDirectory() as folder:
        args.plumbload = Path(folder) / 'plumbload'
        try:
            run([BUILD, args.plumbload], 'building plumbload')
            verdicts = {part: PARTS[part](args)
                        for part in args.parts or PARTS}
        except (Setup, OSError) as problem:
            print(f'store_load.py: {problem}', file=sys.stderr)
            return 2
    print()
    for part, good in verdicts.items():
        print(f'{part}: {"holds" if good else "DOES NOT HOLD"}')
    return 0 if all(verdicts.values()) else 1


if __name__ == '__main__':
    sys.exit(main())
