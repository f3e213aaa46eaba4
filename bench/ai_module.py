#!/usr/bin/env python3
"""What does a tensor cost more than a string of the same bytes?

    bench/ai_module.py [--server PATH] [--rounds N] [--sizes B,B,..]

Starts one server with the module (checks/stores/src/ai) on the loopback and
sends it, with redis-benchmark (7.0 or later: -x), AI.TENSORSET and SET, then
`AI.TENSORGET key META BLOB` and GET, of the same bytes: a round has all four,
in turn, in an order that alternates. For each size it prints the median over
the rounds of the ratio of the rates in a round (tensor over string: 1 is as
fast), and of the ratio of the server's CPU seconds for a request (string over
tensor), which other work on the machine disturbs less. Goals: 0.95 from 1 MiB
on, 0.85 below. Exit status 0: met, 1: not, 2: something needed is missing.
"""
from __future__ import annotations

import argparse
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ending

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from checks.stores import aimodule  # noqa: E402

SIZES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
LARGE, GOAL_LARGE, GOAL_SMALL = 1 << 20, 0.95, 0.85
#: Bytes of a run at most, and requests at least and at most.
VOLUME, FEWEST, MOST = 128 << 20, 50, 5_000


def cpu_of(pid: int) -> float:
    """CPU seconds of all threads."""
    return sum(int(path.read_text().split()[0]) for path in
               Path(f'/proc/{pid}/task').glob('*/schedstat')) / 1e9


def measured(port: int, pid: int, words: list[str], payload: Path | None,
             requests: int) -> tuple[float, float]:
    """Requests for a second, and for a second of the server's CPU."""
    command = ['redis-benchmark', '-p', str(port), '-c', '4', '--csv', '-n',
               str(requests), *(['-x'] if payload else []), *words]
    before = cpu_of(pid)
    with open(payload or '/dev/null', 'rb') as stdin:
        done = subprocess.run(command, stdin=stdin, text=True,
                              capture_output=True)
    spent = cpu_of(pid) - before
    lines = done.stdout.strip().splitlines()
    if done.returncode or len(lines) < 2 or 'ERR' in done.stderr:
        raise SystemExit(f'{command}: {done.stdout}{done.stderr}')
    # The name of the test may have commas and bytes of the payload.
    rate = float(lines[-1].rsplit('","', 7)[1])
    return rate, requests / spent


def compare(port: int, pid: int, size: int, payload: Path, rounds: int
            ) -> dict[str, tuple[float, float]]:
    """set and get -> median ratios of rates and of CPU."""
    requests = max(FEWEST, min(MOST, VOLUME // size))
    pairs = {
        'set': ((['AI.TENSORSET', 'tensor', 'UINT8', str(size), 'BLOB'],
                 payload), (['SET', 'string'], payload)),
        'get': ((['AI.TENSORGET', 'tensor', 'META', 'BLOB'], None),
                (['GET', 'string'], None)),
    }
    found: dict[str, list[tuple[float, float]]] = {'set': [], 'get': []}
    for number in range(rounds):
        for what, (tensor, string) in pairs.items():
            both = [(tensor, 0), (string, 1)]
            got = [(0., 0.)] * 2
            for (words, stdin), place in (both if number % 2
                                          else reversed(both)):
                got[place] = measured(port, pid, words, stdin, requests)
            found[what].append((got[0][0] / got[1][0],
                                got[0][1] / got[1][1]))
    return {what: (statistics.median(r for r, _ in ratios),
                   statistics.median(c for _, c in ratios))
            for what, ratios in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--server', default='redis-server')
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--sizes', default=','.join(map(str, SIZES)))
    args = parser.parse_args()
    ending.in_order()
    for program in (args.server, 'redis-benchmark', 'cc'):
        if not shutil.which(program):
            print(f'ai_module.py: no {program}', file=sys.stderr)
            return 2
    met = True
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder, 'ai.so')
        subprocess.run(aimodule.build_command(str(module)), shell=True,
                       check=True)
        with socket.socket() as sock:
            sock.bind(('127.0.0.1', 0))
            port = sock.getsockname()[1]
        server = subprocess.Popen(
            [args.server, '--port', str(port), '--bind', '127.0.0.1',
             '--save', '', '--dir', folder, '--loadmodule', module],
            stdout=subprocess.DEVNULL, preexec_fn=ending.with_bench)
        try:
            time.sleep(1)
            print('bytes     set: rate   CPU  get: rate   CPU')
            for size in map(int, args.sizes.split(',')):
                payload = Path(folder, 'payload')
                payload.write_bytes(bytes(97 + i % 26 for i in range(251))
                                    * (size // 251 + 1))
                with open(payload, 'r+b') as stream:
                    stream.truncate(size)
                ratios = compare(port, server.pid, size, payload,
                                 args.rounds)
                print(f'{size:8}' + ''.join(
                    f'       {rate:.3f} {cpu:.3f}'
                    for rate, cpu in ratios.values()), flush=True)
                goal = GOAL_LARGE if size >= LARGE else GOAL_SMALL
                met &= all(rate >= goal for rate, _ in ratios.values())
        finally:
            server.terminate()
            server.wait(20)
    return 0 if met else 1


if __name__ == '__main__':
    sys.exit(main())
