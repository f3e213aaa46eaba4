#!/usr/bin/env python3
"""Compares tensorload with redis-benchmark, at the same payload.

    bench/tensorload.py [--rounds 5] [--smartredis PREFIX] [--python PYTHON]

One server, pinned to the first CPU; one client with one connection, pinned to
the last. Each round runs, alternately: `redis-benchmark -t set,get -P 1`, the
driver with SET and GET, the driver with the module's AI.TENSORSET and
AI.TENSORGET, with --smartredis the driver with SmartRedis' library in C++, and
with --python SmartRedis' client in Python. The table has bytes per second (sets
and gets together) over redis-benchmark's of the same round: median, min and max
of the rounds.
"""
from __future__ import annotations

import csv
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from common import (
    CLIENT_CPU,
    MPI_ENV,
    ROOT,
    Missing,
    keep_server_running,
    measure_alternately,
    option_parser,
    print_table_head,
    print_table_row,
    run,
    run_main_and_exit,
)

from checks.smartredis.folders import read_session
from checks.stores import aimodule

SIZES = (1024, 8192, 65536, 1048576, 4194304)


def run_client(*command: object) -> str:
    """Output of a client, on the CPU of the clients."""
    return run(command, str(command[0]), CLIENT_CPU, MPI_ENV).out


def call_count(size: int) -> int:
    """Calls of a run: of 200 MB, 50 to 5000."""
    return max(50, min(5000, 200_000_000 // size))


def redis_benchmark_throughput(socket: Path, size: int, count: int) -> float:
    """Bytes a second of as many sets as gets, by redis-benchmark."""
    rows = csv.DictReader(run_client(
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


def python_client_throughput(python: str, socket: Path, size: int, count: int) -> float:
    return float(run_client('env', f'SSDB=unix://{socket}',
                            'SR_DB_TYPE=Standalone', 'SR_LOG_LEVEL=QUIET', python,
                            '-c', LOOP, size, count).split()[-1])


def tensorload_throughput(folder: Path, size: int, count: int,
                          options: Iterable[object] = (),
                          program: str = 'tensorload') -> float:
    ranks = folder / 'ranks'
    run_client(folder / program, 'throughput', '--service', folder / 'service',
               '--bytes', size, '--iterations', count, '--folder', ranks, *options)
    (loop,) = read_session(ranks).loop_times
    return 2 * size * count / loop / 1e6


def main() -> bool:
    parser = option_parser(__doc__)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--smartredis', metavar='PREFIX',
                        help='has include/client.h and libsmartredis')
    parser.add_argument('--python', default='',
                        help='one that has the package smartredis')
    args = parser.parse_args()
    for way, option in (("SmartRedis' library", 'smartredis'),
                        ("SmartRedis' client in Python", 'python')):
        if not getattr(args, option):
            print(f'{way} is not measured: set --{option}')
    if args.smartredis and not Path(args.smartredis, 'include/client.h').is_file():
        raise Missing(f'--smartredis {args.smartredis}: no include/client.h in it')
    if not all(map(shutil.which, ('redis-server', 'redis-benchmark',
                                  'redis-cli', 'mpicc'))):
        raise Missing('redis-server, redis-benchmark, redis-cli and mpicc '
                      'must be on PATH')
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        socket = folder / 'socket'
        build = ROOT / 'checks/smartredis/src/build.sh'
        run([build, folder / 'tensorload'], 'building tensorload')
        if args.smartredis:
            run([build, folder / 'with-library'], "building with SmartRedis' library",
                env={**os.environ, 'SMARTREDIS_PREFIX': args.smartredis})
        run(['sh', '-c', aimodule.module_build_command(f'{folder}/ai.so')],
            'building the module')
        (folder / 'service').write_text(f'server unix:{socket}\n')
        with keep_server_running(['redis-server', '--port', 0, '--unixsocket', socket,
                                  '--save', '', '--dir', folder, '--loadmodule',
                                  *aimodule.module_load_line(f'{folder}/ai.so').split()],
                                 socket):
            print_throughput_table(folder, socket, args.rounds,
                                   bool(args.smartredis), args.python)
    return True


def print_throughput_table(
    folder: Path, socket: Path, rounds: int, library: bool, python: str
) -> None:
    ways: dict[str, Callable[[int, int], float]] = {
        'redis-benchmark': partial(redis_benchmark_throughput, socket),
        'SET/GET': partial(tensorload_throughput, folder, options=['--plain']),
        'AI.TENSOR': partial(tensorload_throughput, folder)}
    if library:
        ways["SmartRedis' library"] = partial(tensorload_throughput, folder,
                                              program='with-library')
    if python:
        ways['in Python'] = partial(python_client_throughput, python, socket)
    print_table_head('bytes', *ways)
    for size in SIZES:
        def measure_once(way: str, size: int = size) -> float:
            # Strings and tensors have the same keys.
            run_client('redis-cli', '-s', socket, 'flushall')
            return ways[way](size, call_count(size))

        base, *others = measure_alternately(rounds, ways, measure_once).values()
        ratios = [[one / other for one, other in zip(samples, base, strict=True)]
                  for samples in others]
        print_table_row(size, f'{statistics.median(base):.0f} MB/s', *(
            f'{statistics.median(r):.2f} ({min(r):.2f} to {max(r):.2f})'
            for r in ratios))


if __name__ == '__main__':
    run_main_and_exit(main)
