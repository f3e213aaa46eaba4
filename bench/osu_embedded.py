#!/usr/bin/env python3
"""Compares the embedded OSU benchmarks with the real ones.

    OMB_PREFIX=/opt/omb-7.2 bench/osu_embedded.py [--rounds 10]

Builds checks/osu/src and compares it with the OSU Micro-Benchmarks 7.x below
$OMB_PREFIX. Three programs alternate: A, the real one; N, the embedded one; B,
the real one again. How far B is from A is how far two runs of one program
differ on this machine, and N is compared with that.

The value of a size is the best of the rounds: the smallest time, or the
largest bandwidth. Goal: the median of N/A over the sizes is 0.97 to 1.03, and
the share of sizes within 5 % of A is at most 10 points below that of B.
"""
from __future__ import annotations

import math
import os
import shlex
import shutil
import statistics
import tempfile
from pathlib import Path

from common import (
    MPI_ENV,
    ROOT,
    Missing,
    measure_alternately,
    option_parser,
    print_table_head,
    print_table_row,
    run,
    run_main_and_exit,
)

SOURCES = ROOT / 'checks' / 'osu' / 'src'
BENCHMARKS = ['latency', 'bw', 'bibw', 'allreduce', 'put_latency',
              'acc_latency', 'get_bw', 'mbw_mr', 'multi_lat']
#: Relative deviation that a size may have; the last digit of a time (us).
TOLERANCE, LAST_DIGIT = 0.05, 0.01
MEDIAN_MIN, MEDIAN_MAX = 0.97, 1.03
#: Seconds that one run may take.
LIMIT = 300.0
#: Percentage points that N may stay behind B.
SHARE_MARGIN = 10.0

#: Size -> value; a row without a size (a barrier's) has size 0.
Table = dict[int, float]


def real_programs(benchmarks: list[str]) -> dict[str, str]:
    """Benchmark -> path of the real program."""
    prefix = os.environ.get('OMB_PREFIX', '')
    programs = {path.name.removeprefix('osu_'): str(path)
                for path in sorted(Path(prefix or os.devnull).rglob('osu_*'))
                if path.is_file() and os.access(path, os.X_OK)}
    absent = [one for one in benchmarks if one not in programs]
    if absent:
        raise Missing(f'OMB_PREFIX={prefix}: no osu_{", osu_".join(absent)}; '
                      'set it to installed OSU Micro-Benchmarks 7.x')
    return programs


def parse_osu_output(text: str) -> Table:
    rows = {}
    for line in text.splitlines():
        try:
            values = [float(word) for word in line.split()]
        except ValueError:
            continue
        if values and all(map(math.isfinite, values)):
            rows[int(values[0]) if len(values) > 1 else 0] = values[
                len(values) > 1]
    return rows


def best_values(benchmark: str, tables: list[Table]) -> Table:
    """The best value of each size."""
    choose = max if 'bw' in benchmark else min
    return {size: choose(table[size] for table in tables) for size in tables[0]
            if all(size in table for table in tables)}


def percent_within_tolerance(benchmark: str, values: Table, reference: Table) -> float:
    """Percentage of the sizes that agree with the reference."""
    slack = 0 if 'bw' in benchmark else LAST_DIGIT
    return 100 * statistics.fmean(
        abs(values[size] - expected) <= max(TOLERANCE * expected, slack) + 1e-9
        for size, expected in reference.items())


def print_comparison_row(benchmark: str, a: Table, n: Table, b: Table) -> bool:
    """Prints a row of the table; returns whether the goal is met."""
    if not a or not a.keys() == n.keys() == b.keys():
        raise Missing(f'osu_{benchmark}: the programs printed other sizes: '
                      f'{sorted(a)} and {sorted(n)}')
    ratios = {size: n[size] / a[size] for size in a if a[size] > 0}
    median = statistics.median(ratios.values())
    same = statistics.median(b[size] / a[size] for size in ratios)
    of_n, of_b = (
        percent_within_tolerance(benchmark, n, a),
        percent_within_tolerance(benchmark, b, a),
    )
    worst = sorted(ratios, key=lambda size: -abs(ratios[size] - 1))[:3]
    good = (MEDIAN_MIN <= median <= MEDIAN_MAX
            and of_n >= of_b - SHARE_MARGIN)
    print_table_row(benchmark, f'{median:.3f}', f'{same:.3f}', f'{of_n:.0f} %',
                    f'{of_b:.0f} %', ', '.join(f'{size}: {ratios[size]:.2f}'
                                               for size in worst),
                    'pass' if good else 'FAIL')
    return good


def main() -> bool:
    p = option_parser(__doc__)
    p.add_argument('--benchmarks', type=lambda t: t.replace(',', ' ').split(),
                   default=BENCHMARKS,
                   help=f'names (default: {" ".join(BENCHMARKS)})')
    p.add_argument('--rounds', type=int, default=10,
                   help='runs of each program (default: 10; fewer show only '
                   'gross errors)')
    p.add_argument('--launch', default='-n 2 --bind-to core',
                   help='arguments of mpirun (default: %(default)s)')
    args = p.parse_args()
    real = real_programs(args.benchmarks)
    for name in ('mpirun', 'mpicc'):
        if not shutil.which(name):
            raise Missing(f'{name} is not on PATH')
    launch = ['mpirun', *shlex.split(args.launch)]
    good = True
    with tempfile.TemporaryDirectory(prefix='osu-bench-') as folder:
        ours = Path(folder, 'osu_embedded')
        run(['mpicc', '-O2', '-std=gnu11', '-pthread', '-o', ours,
             *sorted(SOURCES.glob('*.c')), '-lm'],
            'building osu_embedded', env=MPI_ENV)
        for benchmark in args.benchmarks:
            Path(folder, f'osu_{benchmark}').symlink_to(ours)
        print_table_head('benchmark', 'median N/A', 'median B/A', 'N within 5 %',
                         'B within 5 %', 'worst sizes (N/A)', 'result')
        for benchmark in args.benchmarks:
            programs = {'A': real[benchmark],
                        'N': f'{folder}/osu_{benchmark}',
                        'B': real[benchmark]}

            def run_benchmark_once(arm: str,
                                   programs: dict[str, str] = programs) -> Table:
                return parse_osu_output(run([*launch, programs[arm]],
                                            programs[arm], env=MPI_ENV,
                                            limit=LIMIT).out)

            tables = measure_alternately(args.rounds, programs, run_benchmark_once)
            good &= print_comparison_row(benchmark,
                                         *(best_values(benchmark, tables[arm])
                                           for arm in 'ANB'))
    return good


if __name__ == '__main__':
    run_main_and_exit(main)
