#!/usr/bin/env python3
"""How far tensorload stays behind redis-benchmark, at the same payload.

    bench/tensorload.py [--rounds 5] [--python PYTHON]

One server, pinned to the first CPU; one client with one connection, pinned to
the last. Each round runs, in turn: `redis-benchmark -t set,get -P 1`, the
driver with SET and GET, the driver with the module's AI.TENSORSET and
AI.TENSORGET, and with --python SmartRedis' own client in Python. The table has
bytes per second (sets and gets together) over redis-benchmark's of the same
round: median, min and max of the rounds.
"""
from __future__ import annotations

import argparse
import csv
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import ending

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from checks.smartredis import parser as tensorload  # noqa: E402
from checks.stores import aimodule  # noqa: E402

SIZES = (1024, 8192, 65536, 1048576, 4194304)
CPUS = sorted(os.sched_getaffinity(0))
MPI = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}


def pinned(cpu: int, *command: object) -> list[str]:
    return ['taskset', '-c', str(cpu), *map(str, command)]


def said(*command: object) -> str:
    done = subprocess.run(pinned(CPUS[-1], *command), text=True,
                          capture_output=True, env={**os.environ, **MPI})
    if done.returncode:
        sys.exit(done.stderr.strip().splitlines()[-1])
    return done.stdout


#: MB of a run, about.
VOLUME = 200.0


def iterations(size: int, volume: float) -> int:
    """Calls of a run: of `volume` MB, 50 to 5000."""
    return max(50, min(5000, int(volume * 1e6 // size)))


def benchmark(socket: Path, size: int, count: int) -> float:
    """Bytes a second of as many sets as gets, by redis-benchmark."""
    rows = csv.DictReader(said(
        'redis-benchmark', '-s', socket, '-t', 'set,get', '-c', 1, '-d', size,
        '-n', count, '--csv').splitlines())
    seconds = sum(1 / float(row['rps']) for row in rows)
    return 2 * size / seconds / 1e6


#: The loop of tensorload (throughput.c), in Python; prints MB/s.
LOOP = '''
import sys, time
import numpy as np
from smartredis import Client, ConfigOptions
size, count = map(int, sys.argv[1:])
client = Client(ConfigOptions.create_from_environment(''), 'loop')
array, loop = np.arange(size // 4, dtype='float32'), 0
for number in range(count):
    array[::1024] = array[-1] = number
    begin = time.monotonic()
    client.put_tensor('throughput_rank_0', array)
    result = client.get_tensor('throughput_rank_0')
    loop += time.monotonic() - begin
    assert (result == array).all()
print(2 * size * count / loop / 1e6)
'''


def in_python(python: str, socket: Path, size: int, count: int) -> float:
    return float(said('env', f'SSDB=unix://{socket}',
                      'SR_DB_TYPE=Standalone', 'SR_LOG_LEVEL=QUIET', python,
                      '-c', LOOP, size, count).split()[-1])


def driver(folder: Path, size: int, count: int,
           options: Iterable[object] = ()) -> float:
    (run,) = tensorload.read(said(
        folder / 'tensorload', 'throughput', '--service', folder / 'service',
        '--bytes', size, '--iterations', count, *options))
    return run.moved


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--python', default='',
                        help='one that has the package smartredis')
    parser.add_argument('--sizes', default=','.join(map(str, SIZES)))
    parser.add_argument('--volume', type=float, default=VOLUME,
                        help='MB of a run (200)')
    args = parser.parse_args()
    ending.in_order()
    if not all(map(shutil.which, ('redis-server', 'redis-benchmark',
                                  'redis-cli', 'mpicc'))):
        sys.exit('redis-server, redis-benchmark, redis-cli and mpicc must be '
                 'on PATH')
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        socket = folder / 'socket'
        subprocess.run([ROOT / 'checks/smartredis/src/build.sh',
                        folder / 'tensorload'], check=True)
        subprocess.run(aimodule.build_command(f'{folder}/ai.so'), shell=True,
                       check=True)
        (folder / 'service').write_text(f'server unix:{socket}\n')
        server = subprocess.Popen(pinned(
            CPUS[0], 'redis-server', '--port', 0, '--unixsocket', socket,
            '--save', '', '--dir', folder, '--loadmodule',
            *aimodule.load_line(f'{folder}/ai.so').split()),
            stdout=subprocess.DEVNULL, preexec_fn=ending.with_bench)
        try:
            while not socket.exists():
                time.sleep(0.05)
            report(folder, socket, [int(size) for size in
                                    args.sizes.split(',')],
                   args.rounds, args.volume, args.python)
        finally:
            server.terminate()
            server.wait()


def report(folder: Path, socket: Path, sizes: list[int], rounds: int,
           volume: float, python: str) -> None:
    ways: dict[str, Callable[[int, int], float]] = {
        'SET/GET': partial(driver, folder, options=['--plain']),
        'AI.TENSOR': partial(driver, folder)}
    if python:
        ways['in Python'] = partial(in_python, python, socket)
    print(f'{"bytes":>8} {"benchmark":>12}  '
          + '  '.join(f'{way:>22}' for way in ways), flush=True)
    for size in sizes:
        found: dict[str, list[float]] = {way: [] for way in ways}
        base, count = [], iterations(size, volume)
        for _ in range(rounds):
            base.append(benchmark(socket, size, count))
            for way, measured in ways.items():
                # Strings and tensors have the same keys.
                said('redis-cli', '-s', socket, 'flushall')
                found[way].append(measured(size, count) / base[-1])
        print(f'{size:>8} {statistics.median(base):>7.0f} MB/s  ' + '  '.join(
            f'{statistics.median(r):>6.2f} ({min(r):.2f} to {max(r):.2f})'
            .rjust(22) for r in found.values()), flush=True)


if __name__ == '__main__':
    main()
