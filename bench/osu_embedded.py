#!/usr/bin/env python3
"""Do the embedded OSU benchmarks report what the real ones do?

Compares checks/osu/src with an installed OSU Micro-Benchmarks 7.x (found
under $OMB_PREFIX). Three arms run in rotating order: A, the real program; N,
the embedded one; B, the real program again. B against A says how far two runs
of the SAME binary agree on this machine, and N is judged by that.

Small virtual machines change speed while one looks: their CPUs share a core
of the host or they do not, which moves small messages several times over. A
cache line is bounced between two CPUs before and after each run (the
sentinel); a run during which the speed class changed is dropped, and only
runs of the same class are compared.
"""
import argparse
import json
import math
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OSU_SRC = ROOT / 'checks' / 'osu' / 'src'
SENTINEL_SRC = ROOT / 'checks' / 'lib' / 'src' / 'sentinel.c'

BENCHMARKS = ['latency', 'bw', 'bibw', 'allreduce', 'put_latency',
              'acc_latency', 'get_bw', 'mbw_mr', 'multi_lat']
# Two spinning receiver threads on one of two cores measure the scheduler.
ARGUMENTS = {'latency_mt': ['-t', '1:1']}
ARMS = 'ANB'

LAST_DIGIT = 0.01           # us; what the programs print is not finer
MEDIAN_LOW, MEDIAN_HIGH = 0.97, 1.03
SHARE_MARGIN = 10.0         # percentage points N may stay behind B
CLASSES = ('fast', 'slow')


class Setup(Exception):
    """Something needed is not there; exit 2."""


def higher_is_better(benchmark):
    return 'bw' in benchmark


# --- building and running --------------------------------------------------

def mpi_environment():
    env = dict(os.environ)
    if os.geteuid() == 0:       # Open MPI refuses root without these two
        env['OMPI_ALLOW_RUN_AS_ROOT'] = '1'
        env['OMPI_ALLOW_RUN_AS_ROOT_CONFIRM'] = '1'
    return env


def find_real(benchmarks):
    prefix = os.environ.get('OMB_PREFIX')
    if not prefix:
        raise Setup('OMB_PREFIX is not set: point it at an installed OSU '
                    'Micro-Benchmarks 7.x')
    if not Path(prefix).is_dir():
        raise Setup(f'OMB_PREFIX={prefix}: no such directory')
    found = {}
    for path in sorted(Path(prefix).rglob('osu_*')):
        if path.is_file() and os.access(path, os.X_OK):
            found.setdefault(path.name[len('osu_'):], str(path))
    missing = [b for b in benchmarks if b not in found]
    if missing:
        raise Setup(f'OMB_PREFIX={prefix}: no osu_{", osu_".join(missing)}')
    return {b: found[b] for b in benchmarks}


def command(args, what):
    try:
        subprocess.run(args, check=True, env=mpi_environment())
    except (OSError, subprocess.CalledProcessError) as err:
        raise Setup(f'{what}: {err}') from err


def build(out, mpicc):
    flags = ['-O2', '-std=gnu11', '-pthread']
    embedded, sentinel = out / 'osu_embedded', out / 'sentinel'
    command([mpicc, *flags, '-o', str(embedded),
             *map(str, sorted(OSU_SRC.glob('*.c'))), '-lm'],
            'building osu_embedded')
    command(['cc', *flags, '-o', str(sentinel), str(SENTINEL_SRC)],
            'building the sentinel')
    command([str(embedded), '--links', str(out)], 'making the links')
    return sentinel


def read_sentinel(sentinel):
    """Nanoseconds of a cache line's round trip; None if it cannot tell."""
    try:
        out = subprocess.run([str(sentinel)], capture_output=True, text=True,
                             timeout=10).stdout
        value = float(out.split()[1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return None if math.isnan(value) else value


def numbers(line):
    try:
        return [float(word) for word in line.split()]
    except ValueError:
        return []


def read_table(text):
    """{size: value}; a row without a size (a barrier's) counts as size 0."""
    rows = {}
    for line in text.splitlines():
        values = numbers(line)
        if not values or not all(map(math.isfinite, values)):
            continue
        if line[0].isdigit() and len(values) > 1:
            rows[int(values[0])] = values[1]
        else:
            rows[0] = values[0]
    return rows


def run_one(launch, program, extra, sentinel, timeout):
    before = read_sentinel(sentinel)
    begin = time.monotonic()
    try:
        done = subprocess.run([*launch, program, *extra], text=True,
                              capture_output=True, timeout=timeout,
                              env=mpi_environment())
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, err = None, '', f'stopped after {timeout} s'
    except OSError as problem:
        raise Setup(f'{launch[0]}: {problem}') from problem
    wall = time.monotonic() - begin
    title = next((line for line in out.splitlines()
                  if line.startswith('# OSU')), '')
    return {'before_ns': before, 'after_ns': read_sentinel(sentinel),
            'wall_s': round(wall, 2), 'exit': code, 'title': title,
            'table': read_table(out),
            'stderr': err[-500:] if code != 0 else ''}


def save(path, data):
    if not path:
        return
    new = Path(f'{path}.new')
    new.write_text(json.dumps(data, indent=1) + '\n')
    new.replace(path)


def measure(args, data):
    real = find_real(args.benchmarks)
    for program in (args.mpirun, args.mpicc, 'cc'):
        if not shutil.which(program):
            raise Setup(f'no {program} found')
    launch = [args.mpirun, *shlex.split(args.launch)]
    settings = {'launch': args.launch, 'args': args.args}
    if data.setdefault('settings', settings) != settings:
        raise Setup(f'{args.json} holds samples taken with other settings: '
                    f'{data["settings"]}')
    done = {(r['round'], r['benchmark'], r['arm']) for r in data['runs']}

    with tempfile.TemporaryDirectory(prefix='osu-bench-') as scratch:
        out = Path(args.build_dir or scratch).resolve()
        out.mkdir(parents=True, exist_ok=True)
        sentinel = build(out, args.mpicc)
        for number in range(args.rounds):
            turn = number % len(ARMS)
            for benchmark in args.benchmarks:
                extra = ARGUMENTS.get(benchmark, []) + shlex.split(args.args)
                for arm in ARMS[turn:] + ARMS[:turn]:
                    if (number, benchmark, arm) in done:
                        continue
                    program = (str(out / f'osu_{benchmark}') if arm == 'N'
                               else real[benchmark])
                    run = run_one(launch, program, extra, sentinel,
                                  args.timeout)
                    run |= {'round': number, 'benchmark': benchmark,
                            'arm': arm}
                    data['runs'].append(run)
                    save(args.json, data)
                print(f'round {number + 1}/{args.rounds}: {benchmark}',
                      file=sys.stderr, flush=True)


# --- analysis --------------------------------------------------------------

def speed_class(run, boundary):
    """The class during the whole run, or None if it changed or is unknown."""
    ns = run['before_ns'], run['after_ns']
    if None in ns:
        return None
    slow = [value >= boundary for value in ns]
    return CLASSES[slow[0]] if slow[0] == slow[1] else None


def usable(run, rows):
    # osu_latency_mt 7.2 ends with status 1 after a complete table.
    tolerated = run['arm'] != 'N' and run['benchmark'] == 'latency_mt'
    return (run['exit'] == 0 or tolerated) and len(run['table']) == rows


def best_per_size(runs, best):
    tables = [{int(s): v for s, v in r['table'].items()} for r in runs]
    return {size: best(t[size] for t in tables) for size in tables[0]}


def average_over_classes(arms, groups, benchmark, least):
    """Best per size in each class, averaged over the classes.

    The best of many runs beats the best of few, so each arm counts with as
    many runs of a class as the arm that has fewest of them.
    """
    best = max if higher_is_better(benchmark) else min
    per_class, used = [], {}
    for name in CLASSES:
        fewest = min(len(groups[arm][name]) for arm in arms)
        if fewest < least:
            continue
        used[name] = fewest
        per_class.append({arm: best_per_size(groups[arm][name][:fewest],
                                             best) for arm in arms})
    if not per_class:
        return None, used
    values = {arm: {size: statistics.fmean(c[arm][size] for c in per_class)
                    for size in per_class[0][arm]} for arm in arms}
    return values, used


def compare(values, reference, bound, benchmark):
    slack = 0 if higher_is_better(benchmark) else LAST_DIGIT
    sizes = [s for s in sorted(reference) if reference[s] > 0]
    ratios = {s: values[s] / reference[s] for s in sizes}
    within = [s for s in sizes if abs(values[s] - reference[s])
              <= max(bound * reference[s], slack) + 1e-9]
    return {'ratios': ratios, 'median': statistics.median(ratios.values()),
            'share': 100.0 * len(within) / len(sizes),
            'outside': [s for s in sizes if s not in within]}


def analyse_one(benchmark, runs, args):
    rows = max((len(r['table']) for r in runs), default=0)
    groups = {arm: {name: [] for name in CLASSES} for arm in ARMS}
    dropped = {'speed changed or unknown': 0, 'run failed': 0}
    for run in sorted(runs, key=lambda r: r['round']):
        name = speed_class(run, args.boundary)
        if not rows or not usable(run, rows):
            dropped['run failed'] += 1
        elif name is None:
            dropped['speed changed or unknown'] += 1
        else:
            groups[run['arm']][name].append(run)
    result = {
        'kept': {name: {arm: len(groups[arm][name]) for arm in ARMS}
                 for name in CLASSES},
        'dropped': dropped, 'verdict': 'no verdict',
    }
    values, used = average_over_classes(ARMS, groups, benchmark,
                                        args.least)
    result['used'] = used
    if values is None:
        return result
    new = compare(values['N'], values['A'], args.bound, benchmark)
    same = compare(values['B'], values['A'], args.bound, benchmark)
    good = (MEDIAN_LOW <= new['median'] <= MEDIAN_HIGH
            and new['share'] >= same['share'] - SHARE_MARGIN)
    worst = sorted(new['ratios'],
                   key=lambda s: -abs(math.log(new['ratios'][s] or 1e-9)))
    result |= {'values': values, 'N/A': new, 'B/A': same,
               'worst': worst[:args.worst],
               'verdict': 'pass' if good else 'FAIL'}
    return result


def analyse(data, args):
    result = {}
    for benchmark in dict.fromkeys(r['benchmark'] for r in data['runs']):
        if args.benchmarks and benchmark not in args.benchmarks:
            continue
        result[benchmark] = analyse_one(
            benchmark, [r for r in data['runs']
                        if r['benchmark'] == benchmark], args)
    return result


def table(results, bound):
    percent = f'{bound * 100:g} %'
    lines = [
        f'| benchmark | median N/A | median B/A | N within {percent} '
        f'| B within {percent} | kept A/N/B (fast; slow) | worst sizes (N/A) '
        '| verdict |', '|---|---|---|---|---|---|---|---|']
    for benchmark, r in results.items():
        kept = '; '.join('/'.join(str(r['kept'][name][arm]) for arm in ARMS)
                         for name in CLASSES)
        if 'N/A' in r:
            new, same = r['N/A'], r['B/A']
            figures = [f'{new["median"]:.3f}', f'{same["median"]:.3f}',
                       f'{new["share"]:.0f} %', f'{same["share"]:.0f} %']
            worst = ', '.join(f'{s}: {new["ratios"][s]:.2f}'
                              for s in r['worst'])
        else:
            figures, worst = ['–'] * 4, '–'
        lines.append('| ' + ' | '.join([benchmark, *figures, kept, worst,
                                        r['verdict']]) + ' |')
    return '\n'.join(lines)


# --- command line ----------------------------------------------------------

def parse_arguments():
    p = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog='Exit status: 0 all pass, 1 some do not, 2 cannot run.')
    p.add_argument('--benchmarks', type=lambda t: t.replace(',', ' ').split(),
                   help=f'names (default: {" ".join(BENCHMARKS)})')
    p.add_argument('--rounds', type=int, default=10,
                   help='runs per arm (default: 10; fewer show only gross '
                        'errors)')
    p.add_argument('--mpirun', default='mpirun')
    p.add_argument('--mpicc', default='mpicc')
    p.add_argument('--launch', default='-n 2 --bind-to core',
                   help='arguments of mpirun (default: %(default)s)')
    p.add_argument('--args', default='',
                   help='further arguments of every benchmark')
    p.add_argument('--json', metavar='FILE',
                   help='keep raw samples and results; a run interrupted '
                        'goes on where it was when given the same file')
    p.add_argument('--analyse', metavar='FILE',
                   help='measure nothing, judge the samples in FILE')
    p.add_argument('--boundary', type=float, default=300.0,
                   help='ns between the two speed classes (default: 300)')
    p.add_argument('--bound', type=float, default=0.05,
                   help='deviation a size may have (default: 0.05)')
    p.add_argument('--least', type=int, default=2,
                   help='kept runs per arm for a class to count (default: 2)')
    p.add_argument('--worst', type=int, default=3,
                   help='how many of the worst sizes to show (default: 3)')
    p.add_argument('--timeout', type=float, default=300.0,
                   help='seconds a single run may take (default: 300)')
    p.add_argument('--build-dir', help='keep the built programs here')
    args = p.parse_args()
    if args.rounds < 1 or args.least < 1:
        p.error('--rounds and --least take numbers from 1')
    return args


def load(path):
    try:
        data = json.loads(Path(path).read_text())
        data['runs'][:0]
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise Setup(f'{path}: not a file of samples ({err})') from err
    return data


def main():
    args = parse_arguments()
    try:
        if args.analyse:
            data = load(args.analyse)
        else:
            args.benchmarks = args.benchmarks or BENCHMARKS
            data = {'runs': []}
            if args.json and Path(args.json).exists():
                data = load(args.json)
            measure(args, data)
    except Setup as problem:
        print(f'osu_embedded.py: {problem}', file=sys.stderr)
        return 2
    results = analyse(data, args)
    save(args.json, data | {'results': results})
    print(table(results, args.bound))
    verdicts = [r['verdict'] for r in results.values()]
    return 0 if verdicts and set(verdicts) == {'pass'} else 1


if __name__ == '__main__':
    sys.exit(main())
