#!/usr/bin/env python3
"""Are reduction servers as far ahead of a ring as equal links allow?

    bench/reduction_servers.py [--rate 200mbit] [--sizes 1M,4M,16M,64M]
                               [--rounds 1] [--figures DIR]

As root: a cluster in a box (tests/cluster) of 8 nodes whose links all have
the same rate, 4 clients and 1, 2, 4 servers, each on a node of its own, and a
ring of the same clients. What counts is busbw of the servers over that of the
ring, against min(1, m/n) 2(n-1)/n for n clients and m servers: 0.375, 0.75
and 1.5. Exit status 0 where every ratio at 4 MiB and above reaches --least
(0.9) of that, 1 where one does not, with the class of threads that holds it
back; 2 something needed is missing.
"""
from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ending

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from checks.optcast import parser, settings, sweep, table, words  # noqa: E402

BOX = ROOT / 'tests' / 'cluster' / 'box'
CLIENTS = 4
PORT = 12016


class Setup(Exception):
    """Something needed is not there; exit 2."""


class Box:
    """Eight nodes, all links with the same rate."""

    def __init__(self, folder: Path, rate: str, chunk: str, jobs: int,
                 nreq: int) -> None:
        self.folder, self.where, self.chunk = folder, folder / 'box', chunk
        self.jobs, self.nreq = jobs, nreq
        self.box('up', '-n', '8', '--cpus', '1', '--share', str(folder))
        for number in range(1, 9):
            self.box('rate', f'n{number}', rate)
        self.address = {
            line.split()[0]: line.split()[1]
            for line in self.box('status').splitlines()
            if line.startswith('n')}

    def box(self, *words: str) -> str:
        done = subprocess.run([BOX, '--dir', self.where, *words], text=True,
                              capture_output=True)
        if done.returncode:
            raise Setup(f'box {words[0]}: {done.stderr.strip()}')
        return done.stdout

    def start(self, node: str, name: str, words: list[str], stdin: str = ''
              ) -> subprocess.Popen[str]:
        """A program on a node; its output in NAME.out and NAME.err."""
        with open(f'{name}.out', 'w') as out, open(f'{name}.err',
                                                   'w') as err:
            one = subprocess.Popen(
                [BOX, '--dir', self.where, 'exec', node, '--',
                 str(self.folder / 'optcast'), *words],
                stdin=subprocess.PIPE, stdout=out, stderr=err, text=True,
                preexec_fn=ending.with_bench)
        assert one.stdin
        one.stdin.write(stdin)
        one.stdin.close()
        return one

    def measure(self, kind: str, servers: int, sizes: str, n: int, w: int
                ) -> parser.Analysis:
        """One run; its logs in a folder of its own."""
        of = settings.setup(
            {'type': kind, 'chunksize': self.chunk, 'size': sizes,
             'num_jobs': self.jobs,
             'nccl_test_options': f'-n {n} -w {w}'}, CLIENTS, servers)
        logs = Path(tempfile.mkdtemp(prefix=f'{kind}{servers}.',
                                     dir=self.folder))
        secret = f'password {secrets.token_hex(16)}\n'
        nodes = [f'n{5 + number}' for number in range(servers)]
        (logs / 'service').write_text(''.join(
            f'server {self.address[node]} {PORT}\n' for node in nodes)
            + secret)
        (logs / 'service').chmod(0o600)
        common = ['--nrank', str(CLIENTS), '--timeout', '120']
        up = [self.start(node, f'{logs}/server{number}', [
            *common, '--address', self.address[node], '--port', str(PORT),
            '--count', str(of.count), '--reduce-jobs', str(of.jobs),
            *(['--trace', f'{logs}/server.log'] if not number else [])],
            secret) for number, node in enumerate(nodes)]
        more = ['--ring'] if kind == 'ring' else []
        clients = [self.start(f'n{1 + rank}', f'{logs}/client{rank}', [
            '--client', '--rank', str(rank), *common, *more, '--service',
            f'{logs}/service', '--chunksize', str(of.chunksize), '--size',
            sizes, '-n', str(n), '-w', str(w), '--nreq',
            str(self.nreq * servers), '--host', f'n{1 + rank}',
            *(['--trace', f'{logs}/client.log'] if not rank else [])])
            for rank in range(CLIENTS)]
        try:
            codes = [one.wait(600) for one in clients]
            if any(codes):
                raise Setup(f'{logs}: clients ended with {codes}')
        finally:
            for node in nodes:
                subprocess.run([BOX, '--dir', self.where, 'exec', node, '--',
                                'sh', '-c', 'kill $(pidof optcast)'],
                               capture_output=True)
            for one in (*up, *clients):
                one.wait(30)
        (logs / 'settings.yaml').write_text(yaml.safe_dump(of.as_settings()))
        return parser.analyse(logs)

    def down(self) -> None:
        self.box('down')


def curve(runs: list[parser.Analysis]) -> dict[int, float]:
    """Size in B -> busbw in GB/s, the median over the runs."""
    rows: dict[int, list[float]] = {}
    for run in runs:
        assert isinstance(run.table, table.Table)
        for row in run.table.rows:
            rows.setdefault(row.size, []).append(row.busbw)
    return {size: statistics.median(found) for size, found in rows.items()}


def measure_all(box: Box, sizes: list[str], rounds: int,
                numbers: list[int]
                ) -> dict[int, list[parser.Analysis]]:
    """Servers (0: ring) -> runs; ring and servers in turn."""
    small = [one for one in sizes if settings.size(one) < 8 << 20]
    large = [one for one in sizes if one not in small]
    found: dict[int, list[parser.Analysis]] = {}
    for _ in range(rounds):
        for servers in (0, *numbers):
            for some, n, w in ((small, 5, 1), (large, 1, 1)):
                if some:
                    found.setdefault(servers, []).append(box.measure(
                        'optcast' if servers else 'ring', servers or 1,
                        ','.join(some), n, w))
    return found


def main() -> int:
    args = argparse.ArgumentParser(
        description=__doc__.partition('\n')[0],
        formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument('--rate', default='200mbit')
    args.add_argument('--sizes', default='1M,4M,16M,64M')
    args.add_argument('--chunksize', default='64K')
    args.add_argument('--num-jobs', type=int, default=2)
    args.add_argument('--nreq', type=int, default=4, help='chunks under way '
                      'for each server')
    args.add_argument('--servers', default='1,2,4')
    args.add_argument('--rounds', type=int, default=1)
    args.add_argument('--least', type=float, default=0.9)
    args.add_argument('--figures', type=Path)
    asked = args.parse_args()
    ending.in_order()
    # The box goes down on SIGTERM, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix='plumbline-servers.'))
    box = None
    began, load = time.monotonic(), os.getloadavg()[0]
    try:
        build = subprocess.run(
            [ROOT / 'checks/optcast/src/build.sh', folder / 'optcast'],
            capture_output=True, text=True)
        if build.returncode:
            raise Setup(f'the program cannot be built: {build.stderr}')
        box = Box(folder, asked.rate, asked.chunksize, asked.num_jobs,
                  asked.nreq)
        ticks = os.times()
        runs = measure_all(box, asked.sizes.split(','), asked.rounds,
                           [int(n) for n in asked.servers.split(',')])
        used = os.times()
        code = tell(runs, asked.least)
        busy = sum(used[:4]) - sum(ticks[:4])
        print(f'\nlinks {asked.rate}, chunks {asked.chunksize}, load '
              f'{load:.1f} before and {os.getloadavg()[0]:.1f} after, '
              f'{time.monotonic() - began:.0f} s; CPU of the programs and '
              f'their starters {busy:.0f} s')
        if asked.figures:
            draw(runs, asked.figures)
        return code
    except (Setup, OSError) as err:
        print(f'reduction_servers.py: {err}', file=sys.stderr)
        return 2
    finally:
        if box:
            box.down()
            shutil.rmtree(folder, ignore_errors=True)


def draw(runs: dict[int, list[parser.Analysis]], folder: Path) -> None:
    """The sweep against the model, and the timelines of each."""
    names = {servers: f'{servers} server{"s" * (servers > 1)}'
             if servers else 'ring' for servers in runs}
    curves = {names[servers]: curve(of) for servers, of in runs.items()}
    sweep.draw(curves, f'{CLIENTS} clients, equal links', folder, 'sweep', {
        names[servers]: {
            size: busbw * words.expected_ratio(CLIENTS, servers)
            for size, busbw in curves['ring'].items()}
        for servers in runs if servers})
    for servers, of in runs.items():
        of[-1].draw(folder / names[servers].replace(' ', ''), None)


def tell(runs: dict[int, list[parser.Analysis]], least: float) -> int:
    """The table; 1 where a ratio falls short."""
    ring, short = curve(runs[0]), []
    numbers = [number for number in runs if number]
    print('| size | ring busbw, MB/s | ' + ' | '.join(
        f'{m} server{"s" * (m > 1)}: MB/s, ratio (of {limit:g})'
        for m in numbers
        for limit in [words.expected_ratio(CLIENTS, m)]) + ' |')
    print('|---' * (2 + len(numbers)) + '|')
    for size in sorted(ring):
        cells = []
        for servers in numbers:
            busbw = curve(runs[servers])[size]
            ratio = busbw / ring[size]
            limit = words.expected_ratio(CLIENTS, servers)
            cells.append(f'{busbw * 1e3:.2f}, {ratio:.3f} '
                         f'({ratio / limit:.0%})')
            if ratio < least * limit and size >= 4 << 20:
                short.append((size, servers, ratio / limit))
        print(f'| {size >> 20} MiB | {ring[size] * 1e3:.2f} | '
              + ' | '.join(cells) + ' |')
    for size, servers, share in short:
        print(f'{size >> 20} MiB, {servers} servers: {share:.0%} of the '
              'model: ' + runs[servers][-1].bottleneck()[1])
    for servers in numbers:
        last = runs[servers][-1]
        print(f'\n{servers} servers: {"; ".join(last.sentences())}')
        print(last.text().partition('client stats:')[2])
    return 1 if short else 0


if __name__ == '__main__':
    sys.exit(main())
