#!/usr/bin/env python3
"""What the suite itself costs; needs a checkout that is set up.

    bench/overhead.py list    `reframe -l` of the suite against a trivial one
                              with as many checks: ratio of CPU time; exit
                              code 1 if it is above three
    bench/overhead.py run     100 trivial local cases under the suite's
                              settings: CPU seconds
    bench/overhead.py quick   `plumb run`: wall time minus the programs' own,
                              per case
    bench/overhead.py service a store that is started, asked twice for nothing
                              and stopped: wall time, and the store's own part
    bench/overhead.py observe a program that does nothing, with the observers
                              of the nodes before it and without: CPU time

Alternates the two sides and gives medians; the ratio is what counts, for
absolute times differ between machines.
"""
from __future__ import annotations

import argparse
import csv
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from checks.serving.parser import split  # noqa: E402
from checks.serving.plan import Clients, Plan, Program, Step  # noqa: E402
from checks.stores.servers import Needs, server  # noqa: E402

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


def environment() -> dict[str, str]:
    done = subprocess.run([ROOT / 'plumb', 'env'], text=True, check=True,
                          stdout=subprocess.PIPE)
    shell = subprocess.run(
        ['bash', '-c', f'{done.stdout}\nenv -0'], text=True, check=True,
        stdout=subprocess.PIPE)
    return dict(x.split('=', 1) for x in shell.stdout.split('\0') if x)


def cpu(command: list[str], env: dict[str, str]) -> tuple[float, str]:
    """CPU seconds of a command and its children, and its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f'{shlex.join(command)} failed:\n{done.stdout[-2000:]}')
    return (after.ru_utime - before.ru_utime + after.ru_stime
            - before.ru_stime), done.stdout


def trivial(folder: str, cases: int) -> str:
    path = Path(folder) / 'trivial.py'
    path.write_text(TRIVIAL.format(cases=cases))
    return str(path)


def bench_list(rounds: int) -> None:
    env = environment()
    _, text = cpu(['reframe', '-l'], env)
    cases = sum(ln.startswith('- ') for ln in text.splitlines())
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = trivial(folder, cases)
        for _ in range(rounds):
            ours.append(cpu(['reframe', '-l'], env)[0])
            theirs.append(cpu(['reframe', '-l', '-c', path], env)[0])
    ratio = statistics.median(
        a / b for a, b in zip(ours, theirs, strict=True))
    print(f'{cases} checks, {rounds} rounds: suite '
          f'{statistics.median(ours):.2f} CPU s, trivial '
          f'{statistics.median(theirs):.2f} CPU s, ratio (median of pairs) '
          f'{ratio:.2f}')
    if ratio > MAX_LIST_RATIO:
        sys.exit(f'the ratio must not exceed {MAX_LIST_RATIO:g}')


def bench_run(rounds: int) -> None:
    env = environment()
    with tempfile.TemporaryDirectory() as folder:
        env |= {'RFM_PREFIX': folder, 'PLUMBLINE_PERFLOGS': f'{folder}/p'}
        command = ['reframe', '-r', '-c', trivial(folder, 100),
                   f'--stage={folder}/s', f'--output={folder}/o']
        times = [cpu(command, env)[0] for _ in range(rounds)]
    print(f'100 trivial cases, {rounds} rounds: '
          f'{statistics.median(times):.2f} CPU s')


def bench_quick(rounds: int) -> None:
    rows = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, 'PLUMBLINE_PERFLOGS': folder}
            start = time.monotonic()
            subprocess.run([ROOT / 'plumb', 'run', '--bringup'], env=env,
                           check=True, stdout=subprocess.DEVNULL)
            wall = time.monotonic() - start
            cases, own = set(), 0.0
            for path in Path(folder).rglob('*.v?.csv'):
                with open(path, newline='') as handle:
                    for r in csv.DictReader(handle):
                        cases.add((r['environ'], r['case']))
                        if r['metric'] == 'wall_time':
                            own += float(r['value'])
        rows.append((wall, own, len(cases)))
        print(f'{len(cases)} cases: {wall:.0f} s, programs {own:.0f} s, '
              f'overhead {(wall - own) / len(cases):.2f} s a case')
    print('median overhead '
          f'{statistics.median((w - o) / n for w, o, n in rows):.2f} s a case'
          ' (builds, sentinels, validation runs and the page included)')


def bench_service(rounds: int) -> None:
    work = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline')
    plan = Plan(
        server('valkey', str(work / 'stores'), Needs(memory=64)), (Clients(),),
        (Step('fill', (Program(('true',)),), 10.0),
         Step('measure', (Program(('true',)),), 10.0)))
    serving = ROOT / 'checks' / 'serving'
    walls, stores = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            plan.write(Path(folder, 'service.json'))
            start = time.monotonic()
            done = subprocess.run(
                [sys.executable, serving, 'conduct', 'service.json', '--',
                 sys.executable, serving, 'agent', 'service.json'],
                cwd=folder, check=True, text=True, stdout=subprocess.PIPE)
            walls.append(time.monotonic() - start)
        stores.append(split(done.stdout)[0].servers[0].ready_ms / 1e3)
    print(f'{rounds} rounds: {statistics.median(walls):.2f} s a service '
          f'(median; {min(walls):.2f} to {max(walls):.2f}), of it '
          f'{statistics.median(stores):.2f} s the start of the store')


def bench_observe(rounds: int) -> None:
    src = ROOT / 'checks' / 'lib' / 'src'
    with tempfile.TemporaryDirectory() as folder:
        observe = f'{folder}/observe'
        subprocess.run(['cc', '-O2', '-std=gnu11', src / 'observe.c', '-o',
                        observe], check=True)
        measure, rank = str(src / 'measure.sh'), str(src / 'rank.sh')
        os.chdir(folder)
        pairs = [(cpu([measure, '--observe', observe, '--', rank, observe,
                       '--', 'true'], dict(os.environ))[0],
                  cpu([measure, '--', rank, 'true'], dict(os.environ))[0])
                 for _ in range(rounds * 10)]
    print(f'{len(pairs)} rounds, {sum(map(str.isdigit, os.listdir("/proc")))}'
          ' processes on the machine: '
          f'{1e3 * statistics.median(a for a, _ in pairs):.1f} CPU ms with '
          'observers, '
          f'{1e3 * statistics.median(b for _, b in pairs):.1f} without, '
          f'{1e3 * statistics.median(a - b for a, b in pairs):.1f} more '
          '(median of pairs)')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=['list', 'run', 'quick',
                                         'service', 'observe'])
    parser.add_argument('--rounds', type=int, default=5)
    args = parser.parse_args()
    {'list': bench_list, 'run': bench_run, 'quick': bench_quick,
     'service': bench_service,
     'observe': bench_observe}[args.what](args.rounds)


if __name__ == '__main__':
    main()
