#!/usr/bin/env python3
"""Measures the cost of the suite itself, in a checkout that is set up.

    bench/overhead.py list    `reframe -l` of the suite, compared with a
                              trivial one with as many checks: ratio of CPU
                              time; exit code 1 if it is above three
    bench/overhead.py quick   `plumb run`: wall time minus the programs' own,
                              per test case
    bench/overhead.py service a store that is started, asked twice for nothing
                              and stopped: wall time, and the store's own part
    bench/overhead.py observe a program that does nothing, with rank.sh and the
                              observer of the node and without: CPU time

The two sides alternate, and the script prints medians. Only ratios are
comparable, because absolute times differ between machines.
"""
from __future__ import annotations

import csv
import os
import shlex
import statistics
import tempfile
from pathlib import Path

from common import (
    ROOT,
    measure_alternately,
    median_ratio,
    option_parser,
    run,
    run_main_and_exit,
    variables_from_plumb_env,
)

from checks.services.parser import split_service_record
from checks.services.plan import Clients, Plan, Program, Step
from checks.services.script import Launching, job_script_lines
from checks.stores.servers import Needs, make_server_role

TRIVIAL = '''
import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, sanity_function

@rfm.simple_test
class Trivial(rfm.RunOnlyRegressionTest):
    number = parameter(range({cases}))
    valid_systems = ['*']
    valid_prog_environs = ['*']
    executable = 'true'

    @sanity_function
    def passes(self):
        return sn.assert_true(True)
'''

#: `reframe -l` of the suite may take so many times the CPU of a trivial one.
MAX_LIST_RATIO = 3.0


def measure_list_overhead(rounds: int) -> bool:
    env = variables_from_plumb_env()
    text = run(['reframe', '-l'], 'reframe -l', env=env).out
    cases = sum(ln.startswith('- ') for ln in text.splitlines())
    with tempfile.TemporaryDirectory() as folder:
        trivial = Path(folder) / 'trivial.py'
        trivial.write_text(TRIVIAL.format(cases=cases))
        options = {'suite': [], 'trivial': ['-c', trivial]}
        seconds = measure_alternately(rounds, options, lambda name: run(
            ['reframe', '-l', *options[name]], 'reframe -l', env=env).cpu)
    factor = median_ratio(seconds['suite'], seconds['trivial'])
    print(f'{cases} checks, {rounds} rounds: suite '
          f'{statistics.median(seconds["suite"]):.2f} CPU s, trivial '
          f'{statistics.median(seconds["trivial"]):.2f} CPU s, ratio (median '
          f'of pairs) {factor:.2f}; at most {MAX_LIST_RATIO:g}')
    return factor <= MAX_LIST_RATIO


def measure_run_overhead(rounds: int) -> bool:
    rows = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, 'PLUMBLINE_PERFLOGS': folder}
            wall = run([ROOT / 'plumb', 'run', '--bringup'],
                       'plumb run --bringup', env=env).wall
            cases, own = set(), 0.0
            for path in Path(folder).rglob('*.v?.csv'):
                with open(path, newline='') as handle:
                    for r in csv.DictReader(handle):
                        cases.add((r['environ'], r['case']))
                        if r['metric'] == 'wall_time':
                            own += float(r['value'])
        rows.append((wall, own, len(cases)))
        print(f'{len(cases)} test cases: {wall:.0f} s, programs {own:.0f} s, '
              f'overhead {(wall - own) / len(cases):.2f} s per test case')
    print('median overhead '
          f'{statistics.median((w - o) / n for w, o, n in rows):.2f} s per '
          'test case (with builds, validation runs and the '
          'page)')
    return True


#: Scripts around the programs of a job.
SRC = ROOT / 'checks' / 'core' / 'src'


def build_observer(folder: str) -> list[str]:
    """Build the observer of nodes; the words in front of the program of a rank."""
    run(['cc', '-O2', '-std=gnu11', *SRC.glob('*.c'), '-o', f'{folder}/observe'],
        'building the observer')
    Path(folder, 'facts').mkdir()
    return [str(SRC / 'rank.sh'), folder, '', 'mpirun']


def measure_service_overhead(rounds: int) -> bool:
    work = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline')
    plan = Plan(
        make_server_role('valkey', str(work / 'stores'), Needs(memory=64)),
        (Clients(),),
        (
            Step('fill', (Program(('true',)),), 10.0),
            Step('measure', (Program(('true',)),), 10.0),
        ),
    )
    walls, cpus, stores = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            lines = job_script_lines(plan, Launching(
                [], [], True, programs=folder,
                rank=shlex.join(build_observer(folder))))
            measure = shlex.quote(str(SRC / 'measure.sh'))
            script = '\n'.join([*lines, f'. {measure} --repetitions 1 -- run_and_stop'])
            done = run(['env', '-C', folder, 'bash', '-c', script], 'a service')
        walls.append(done.wall)
        cpus.append(done.cpu)
        stores.append(split_service_record(done.out)[0].servers[0].ready_ms / 1e3)
    print(f'CPU time: {statistics.median(cpus):.2f} s')
    print(f'{rounds} rounds: {statistics.median(walls):.2f} s per service '
          f'(median; {min(walls):.2f} to {max(walls):.2f}), of which '
          f'{statistics.median(stores):.2f} s for the start of the store')
    return True


def measure_observer_overhead(rounds: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        rank, measure = build_observer(folder), str(SRC / 'measure.sh')
        os.chdir(folder)
        commands = {'with': [measure, '--', *rank, 'true'],
                    'without': [measure, '--', 'true']}
        ms = measure_alternately(rounds * 10, commands, lambda name: 1e3 * run(
            commands[name], 'measure.sh').cpu)
    more = [a - b for a, b in zip(ms['with'], ms['without'], strict=True)]
    print(f'{len(more)} rounds, {sum(map(str.isdigit, os.listdir("/proc")))}'
          ' processes on the machine: '
          f'{statistics.median(ms["with"]):.1f} CPU ms with rank.sh, '
          f'{statistics.median(ms["without"]):.1f} without, '
          f'{statistics.median(more):.1f} more (median of pairs)')
    return True


PARTS = {
    'list': measure_list_overhead,
    'quick': measure_run_overhead,
    'service': measure_service_overhead,
    'observe': measure_observer_overhead,
}


def main() -> bool:
    parser = option_parser(__doc__)
    parser.add_argument('what', choices=PARTS)
    parser.add_argument('--rounds', type=int, default=5)
    args = parser.parse_args()
    return PARTS[args.what](args.rounds)


if __name__ == '__main__':
    run_main_and_exit(main)
