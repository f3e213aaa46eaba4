#!/usr/bin/env python3
"""Compares reduction servers with a ring on links of equal rate.

    bench/reduction_servers.py [--rate 200mbit] [--sizes 1M,4M,16M,64M]
                               [--rounds 1]

As root, on a cluster in a box (tests/cluster) of 8 nodes whose links all have
the same rate: 4 clients and 1, 2, 4 servers, each on a node of its own, and a
ring of the same clients. The ratio is busbw of the servers over busbw of the
ring. The model is min(1, m/n) 2(n-1)/n for n clients and m servers: 0.375,
0.75 and 1.5. Goal: every ratio at 4 MiB and above reaches --minimum (0.9) of
the model; the others are listed.
"""
from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import (
    ROOT,
    Missing,
    option_parser,
    print_table_head,
    print_table_row,
    run,
    run_main_and_exit,
    set_parent_death_signal,
)

sys.path.insert(0, str(ROOT / 'tests' / 'cluster'))

import yaml
from cluster import Cluster, ClusterError

from checks.optcast import parser, scenarios

BUILD = ROOT / 'checks' / 'optcast' / 'src' / 'build.sh'
CLIENTS = 4
PORT = 12016


class Box:
    """Eight nodes, all links with the same rate.

    :arg args: the options of the command
    """

    def __init__(self, folder: Path, cluster: Cluster,
                 args: argparse.Namespace) -> None:
        self.folder, self.cluster, self.args = folder, cluster, args
        cluster.up(nodes=8, cpus=1, share=[folder])
        for node in cluster.nodes:
            cluster.rate(node, args.rate)

    def start_program(self, node: str, name: str, options: list[str], stdin: str = ''
              ) -> subprocess.Popen[str]:
        """A program on a node; its output in NAME.out and NAME.err."""
        with open(f'{name}.out', 'w') as out, open(f'{name}.err',
                                                   'w') as err:
            process = self.cluster.box(
                'exec', node, '--', str(self.folder / 'optcast'), *options,
                stdin=subprocess.PIPE, stdout=out, stderr=err,
                preexec_fn=set_parent_death_signal)
        assert process.stdin
        process.stdin.write(stdin)
        process.stdin.close()
        return process

    def run_allreduce(self, kind: str, servers: int, sizes: str, iterations: int,
                      warmup_iterations: int
                ) -> parser.Analysis:
        """One run; its logs in a folder of its own."""
        of = scenarios.Setup(
            kind, 'f32', CLIENTS, servers,
            tuple(map(scenarios.parse_size, sizes.split(','))),
            scenarios.parse_size(self.args.chunksize), iterations, warmup_iterations)
        logs = Path(tempfile.mkdtemp(prefix=f'{kind}{servers}.',
                                     dir=self.folder))
        secret = f'password {secrets.token_hex(16)}\n'
        nodes = [f'n{5 + number}' for number in range(servers)]
        (logs / 'service').write_text(''.join(
            f'server {self.cluster.address(node)} {PORT}\n' for node in nodes)
            + secret)
        (logs / 'service').chmod(0o600)
        common = ['--nrank', str(CLIENTS), '--timeout', '120']
        up = [self.start_program(node, f'{logs}/server{number}', [
            *common, '--address', self.cluster.address(node),
            '--port', str(PORT), '--count', str(of.elements_per_message),
            '--reduce-jobs', str(self.args.num_jobs),
            *(['--trace', f'{logs}/server.log'] if not number else [])],
            secret) for number, node in enumerate(nodes)]
        more = ['--ring'] if kind == 'ring' else []
        clients = [self.start_program(f'n{1 + rank}', f'{logs}/client{rank}', [
            '--client', '--rank', str(rank), *common, *more, '--service',
            f'{logs}/service', '--chunksize', str(of.chunksize), '--size',
            sizes, '-n', str(iterations), '-w', str(warmup_iterations),
            *(['--trace', f'{logs}/client.trace'] if not rank else [])])
            for rank in range(CLIENTS)]
        try:
            codes = [process.wait(600) for process in clients]
            if any(codes):
                raise Missing(f'{logs}: clients ended with {codes}')
        finally:
            for node in nodes:
                self.cluster.exec('sh', '-c', 'kill $(pidof optcast)',
                                  node=node)
            for process in (*up, *clients):
                process.wait(30)
        (logs / 'client.log').write_text(''.join(
            (logs / name).read_text() for name in ('client.trace', 'client0.out')))
        (logs / 'setting.yaml').write_text(yaml.safe_dump(of.to_run_script_settings()))
        return parser.analyse_log_folder(logs)


def busbw_by_size(runs: list[parser.Analysis]) -> dict[int, float]:
    """Size in B -> busbw in GB/s, the median over the runs."""
    rows: dict[int, list[float]] = {}
    for analysis in runs:
        assert analysis.table
        for size, busbw in parser.busbw_by_size(analysis.table).items():
            rows.setdefault(size, []).append(busbw)
    return {
        size: statistics.median(analyses) for size, analyses in rows.items()
    }


def measure_servers_and_ring(box: Box, sizes: list[str], rounds: int,
                             server_counts: list[int]
                ) -> dict[int, list[parser.Analysis]]:
    """Servers (0: ring) -> runs; ring and servers in turn."""
    small = [one for one in sizes if scenarios.parse_size(one) < 8 << 20]
    large = [one for one in sizes if one not in small]
    analyses: dict[int, list[parser.Analysis]] = {}
    for _ in range(rounds):
        for servers in (0, *server_counts):
            for of_size, n, w in ((small, 5, 1), (large, 1, 1)):
                if of_size:
                    analyses.setdefault(servers, []).append(box.run_allreduce(
                        'optcast' if servers else 'ring', servers or 1,
                        ','.join(of_size), n, w))
    return analyses


def main() -> bool:
    options = option_parser(__doc__)
    options.add_argument('--rate', default='200mbit')
    options.add_argument('--sizes', default='1M,4M,16M,64M')
    options.add_argument('--chunksize', default='64K')
    options.add_argument('--num-jobs', type=int, default=2)
    options.add_argument('--servers', default='1,2,4')
    options.add_argument('--rounds', type=int, default=1)
    options.add_argument('--minimum', type=float, default=0.9)
    args = options.parse_args()
    began, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix='plumbline-servers.') as folder:
        cluster = Cluster(Path(folder, 'box'))
        try:
            run([BUILD, f'{folder}/optcast'], 'building optcast')
            runs = measure_servers_and_ring(Box(Path(folder), cluster, args),
                                            args.sizes.split(','), args.rounds,
                                            [int(n) for n in args.servers.split(',')])
        except ClusterError as err:
            raise Missing(str(err)) from None
        finally:
            cluster.down()
        good = print_ratio_table(runs, args.minimum)
        print(f'\nlinks {args.rate}, chunks {args.chunksize}, load '
              f'{load:.1f} before and {os.getloadavg()[0]:.1f} after, '
              f'{time.monotonic() - began:.0f} s')
    return good


def print_ratio_table(runs: dict[int, list[parser.Analysis]], minimum: float) -> bool:
    """Prints the table; returns whether every ratio reaches the model."""
    ring, short = busbw_by_size(runs[0]), []
    limits = {number: min(1, number / CLIENTS) * 2 * (CLIENTS - 1) / CLIENTS
              for number in runs if number}
    print_table_head('size', 'ring busbw, MB/s', *(
        f'{m} server{"s" * (m > 1)}: MB/s, ratio (of {limit:g})'
        for m, limit in limits.items()))
    for size in sorted(ring):
        cells = []
        for servers, limit in limits.items():
            busbw = busbw_by_size(runs[servers])[size]
            ratio = busbw / ring[size]
            cells.append(f'{busbw * 1e3:.2f}, {ratio:.3f} '
                         f'({ratio / limit:.0%})')
            if ratio < minimum * limit and size >= 4 << 20:
                short.append((size, servers, ratio / limit))
        print_table_row(f'{size >> 20} MiB', f'{ring[size] * 1e3:.2f}', *cells)
    for size, servers, share in short:
        print(f'{size >> 20} MiB, {servers} servers: {share:.0%} of the model')
    return not short


if __name__ == '__main__':
    run_main_and_exit(main)
