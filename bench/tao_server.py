#!/usr/bin/env python3
"""Does the hit path of tao_server cost what memcached's does?

    bench/tao_server.py --memcached PATH

tao_server and memcached in turn on one CPU, one fast thread each, plumbload
on another CPU: binary GETs of keys that are all there.  Each figure is the
median of the rounds.  What counts is how many of them a second of the
server's CPU answers; ours must reach 0.9 of memcached's.

A slow path without requests sleeps and looks 18 000 times a second and
thread, as in the original.  To have the hit path alone, its threads wait on
semaphores here and the one dispatcher looks once a second.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
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
LOAD = ROOT / 'checks' / 'load' / 'src' / 'build.sh'
SERVER = ROOT / 'checks' / 'taobench' / 'src' / 'build.sh'
KEYS, SIZE, LEAST = 10001, 200, 0.9
#: TaoBench's keys have 219 constant bytes.
PREFIXES = {'short': 'key:', '220 B': 219 * 'k'}
QUIET = ('tao_slow_use_semaphore=1,tao_num_slow_threads=1,'
         'tao_dispatcher_sleep_ns=1000000000')


class Setup(Exception):
    """Something needed is not there; exit 2."""


class Sample(NamedTuple):
    """One run against one server."""
    rate: float
    #: GETs for a second of CPU of the server.
    server: float
    #: Share of a core that the server used meanwhile.
    busy: float


def run(command: list[object], what: str) -> str:
    done = subprocess.run([str(c) for c in command], text=True,
                          capture_output=True)
    if done.returncode:
        raise Setup(f'{what} ended with {done.returncode}: '
                    f'{done.stderr[-300:]}')
    return done.stdout


def cpu_of(pid: int) -> float:
    """Of all its threads; unit: seconds, to the nanosecond."""
    return sum(int(path.read_text().split()[0]) for path in
               Path(f'/proc/{pid}/task').glob('*/schedstat')) / 1e9


@contextlib.contextmanager
def served(args: argparse.Namespace, kind: str) -> Iterator[tuple[int, int]]:
    """Port and process of a pinned server on the loopback."""
    with socket.create_server(('127.0.0.1', 0)) as listener:
        port = listener.getsockname()[1]
    command: list[object] = ['-l', '127.0.0.1', '-p', port, '-t', 1, '-m',
                             256]
    if os.geteuid() == 0:
        # Another user's would outlive a bench that is killed.
        command += ['-u', 'root']
    command = ([args.tao_server, *command, '-o', QUIET] if kind == 'tao'
               else [args.memcached, *command, '-U', 0])
    with subprocess.Popen(
            ['taskset', '-c', str(args.server_cpu), *map(str, command)],
            stdout=subprocess.DEVNULL,
            preexec_fn=ending.with_bench) as process:
        try:
            for _ in range(100):
                with contextlib.suppress(OSError):
                    socket.create_connection(('127.0.0.1', port)).close()
                    break
                time.sleep(0.05)
            yield port, process.pid
        finally:
            process.terminate()


def measure(args: argparse.Namespace, kind: str, prefix: str) -> Sample:
    with served(args, kind) as (port, pid):
        load: list[object] = [
            'taskset', '-c', args.client_cpu, args.plumbload, '--server',
            f'127.0.0.1:{port}', '--protocol', 'binary', '--keys', KEYS,
            '--value-size', SIZE, '--key-prefix', prefix]
        run([*load, '--operation', 'fill'], 'fill')
        before = cpu_of(pid)
        begin = time.monotonic()
        out = run([*load, '--connections', args.connections, '--duration',
                   args.seconds], 'plumbload')
        spent, wall = cpu_of(pid) - before, time.monotonic() - begin
    document = json.loads(out)
    gets = document['kinds']['get']
    if gets['misses']:
        raise Setup('keys are missing')
    return Sample(document['rate']['achieved'], gets['count'] / spent,
                  spent / wall)


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter,
        epilog='Exit status: 0 it does, 1 it does not, 2 cannot run.')
    p.add_argument('--memcached', metavar='PATH', required=True)
    p.add_argument('--rounds', type=int, default=7)
    p.add_argument('--seconds', type=int, default=3)
    p.add_argument('--connections', type=int, default=50)
    p.add_argument('--server-cpu', type=int, default=0)
    p.add_argument('--client-cpu', type=int, default=1)
    args = p.parse_args()
    ending.in_order()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        args.plumbload = Path(folder) / 'plumbload'
        args.tao_server = Path(folder) / 'tao_server'
        try:
            # The user that the server switches to must reach it.
            os.chmod(folder, 0o755)
            run([LOAD, args.plumbload], 'building plumbload')
            run([SERVER, args.tao_server], 'building tao_server')
            print('| keys | server | rate 1/s | per server CPU s '
                  '| server CPU | ours / it |\n|---|---|---|---|---|---|')
            for name, prefix in PREFIXES.items():
                samples: dict[str, list[Sample]] = {'tao': [],
                                                    'memcached': []}
                for turn in range(args.rounds):
                    for kind in sorted(samples, reverse=turn % 2 == 0):
                        samples[kind].append(measure(args, kind, prefix))
                found = {kind: Sample(*map(statistics.median,
                                           zip(*rows, strict=True)))
                         for kind, rows in samples.items()}
                for kind, one in found.items():
                    ratio = found['tao'].server / one.server
                    good &= ratio >= LEAST
                    print(f'| {name} | {kind} | {one.rate:.0f} '
                          f'| {one.server:.0f} | {100 * one.busy:.0f} % '
                          f'| {ratio:.3f} |', flush=True)
        except (Setup, OSError) as problem:
            print(f'tao_server.py: {problem}', file=sys.stderr)
            return 2
    print(f'\nhit path: {"holds" if good else "DOES NOT HOLD"}')
    return 0 if good else 1


if __name__ == '__main__':
    sys.exit(main())
