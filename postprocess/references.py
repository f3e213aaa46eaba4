"""`./plumb references propose`: references from the history in perflogs.

One YAML file a family, in the form that ReFrame reads, for a person to read,
accept and commit. The rules:

- The centre is the median over runs of the median within each run.
- The spread is a robust sigma over runs, over the centre: the larger of
  1.4826 MAD and IQR / 1.349 (the first is 0 as soon as half of the runs
  print the same two digits).
- A judged figure (config/judged.yaml) may be worse than its centre by
  max(floor, two of the last digits printed, reach * spread), rounded up to
  0.01; better is never a fault. All other figures are written down open.
  `reach` is Student's t for a one-sided prediction of one more run: one
  false alarm in a thousand, so that few runs give wide bounds and many
  narrow ones.
- `worst_ratio` stands for the whole curve. Each run has its worst ratio
  against the proposed curve; the bound is max(floor, their median - 1 +
  reach * sigma, the largest of them * 1.1 - 1), so every run used passes it.
- Failed, guarded, xfailed and emulated runs, and runs while the machine
  changed speed (`mixed`), are never used. Program source and speed class are
  part of the key, so figures of two sources or speeds never meet.
"""
from __future__ import annotations

import argparse
import datetime
import math
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from config.judged import judged, key, resolution, table, worse_by

from . import perflogs
from .files import write_all

INDEX = ['partition', 'environ', 'source', 'speed', 'params']
#: Families in which another version is another program: a store's figures
#: are those of its version, and no regression of the cluster.
VERSIONED = {'keyvalue'}
#: A median over fewer runs says nothing about the spread.
FEWEST_RUNS = 3
#: Smallest thresholds; '' is any metric without its own.
FLOORS = {'': 0.05, 'worst_ratio': 0.3}
#: Quantile 0.999 of Student's t by degrees of freedom.
STUDENT = {2: 22.33, 3: 10.21, 4: 7.17, 5: 5.89, 6: 5.21, 7: 4.79, 8: 4.50,
           9: 4.30, 11: 4.02, 14: 3.79, 19: 3.58, 29: 3.40, 59: 3.23}

EXAMPLES = """\
examples:
  ./plumb references propose --site alpha
      all runs of system alpha; writes site-configs/alpha/references/*.yaml
  ./plumb references propose --site alpha --last 5 --dry-run
      prints what the five newest runs give
  ./plumb references propose --site alpha --runs 20261101T030000Z: \\
      --tolerance 0.1 --tolerance init_time=0.3 --force
      runs since then, wider thresholds, replaces the accepted files

exit codes: 0 written, 1 refused (too few runs, a file exists), 2 usage or
unreadable perflogs
"""


class Refused(Exception):
    """Nothing to propose; the message says what is missing."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog='plumb references', description='References from perflogs.')
    cmd = top.add_subparsers(dest='command', required=True).add_parser(
        'propose', help='propose references from the runs in perflogs',
        description='Proposes references from the runs in perflogs, one file '
        'a family, for a person to read and accept.', epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    cmd.add_argument('--site', required=True, metavar='NAME',
                     help='folder in site-configs/ that gets the files')
    cmd.add_argument('--system', metavar='NAME',
                     help='system in the perflogs (default: the site)')
    cmd.add_argument('--perflogs', default='perflogs', metavar='DIR',
                     help='where the perflogs are (default: perflogs)')
    cmd.add_argument('--output', metavar='DIR', help='where the files go; - '
                     'prints (default: site-configs/NAME/references)')
    cmd.add_argument('--family', action='append', metavar='NAME',
                     help='only this family (may be given again)')
    cmd.add_argument('--min-runs', type=int, default=FEWEST_RUNS, metavar='N',
                     help='runs that an entry needs (default and least: 3)')
    which = cmd.add_mutually_exclusive_group()
    which.add_argument('--runs', metavar='FIRST:LAST',
                       help='from this run to that one: identifiers or '
                       'unique beginnings; either may be left out')
    which.add_argument('--last', type=_positive, metavar='N',
                       help='the newest N runs')
    which.add_argument('--first', type=_positive, metavar='N',
                       help='the oldest N runs')
    cmd.add_argument('--tolerance', action='append', default=[],
                     type=_tolerance, metavar='[METRIC=]X',
                     help='least threshold, as a fraction (default: 0.05, '
                     'worst_ratio=0.3; may be given again)')
    cmd.add_argument('--force', action='store_true',
                     help='replace files that exist')
    cmd.add_argument('--dry-run', action='store_true',
                     help='print the files, write nothing')
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code (usage errors exit with 2)."""
    top = parser()
    args = top.parse_args(argv)
    if args.min_runs < FEWEST_RUNS:
        top.error(f'--min-runs is {args.min_runs}; the least is '
                  f'{FEWEST_RUNS}')
    floors = FLOORS | dict(args.tolerance)
    system = args.system or args.site
    printed = args.dry_run or args.output == '-'
    folder = Path(args.output or f'site-configs/{args.site}/references')
    try:
        frame = perflogs.read(args.perflogs)
        frame = select(frame, system, args.family, args.runs, args.first,
                       args.last)
        files, notes = propose(frame, args.min_runs, floors)
        if printed:
            for name, text in files.items():
                print(f'# {name}\n{text}', end='')
        else:
            there = [str(folder / n) for n in files if (folder / n).exists()]
            if there and not args.force:
                raise Refused(f"{', '.join(there)}: already there, and "
                              'people accept references; look at the new '
                              'ones with --dry-run, replace with --force')
            write_all(folder, {n: t.encode() for n, t in files.items()})
    except Refused as err:
        print(f'plumb references: {err}', file=sys.stderr)
        return 1
    except (perflogs.PerflogError, OSError, ValueError) as err:
        print(f'plumb references: {err}', file=sys.stderr)
        return 2
    for note in notes:
        print(f'plumb references: {note}', file=sys.stderr)
    for name in {} if printed else files:
        print(f'{folder / name}: proposed; read it, then commit it')
    return 0


def select(frame: pd.DataFrame, system: str,
           families: list[str] | None = None, runs: str | None = None,
           first: int | None = None, last: int | None = None
           ) -> pd.DataFrame:
    """The records of a system, its families and a stretch of its runs.

    :param runs: 'FIRST:LAST', identifiers or unique beginnings, inclusive
    :raises ValueError: no such system, family or run
    """
    frame = _only(frame, 'system', [system])
    frame = _only(frame, 'family', families or [])
    order = list(dict.fromkeys(frame.sort_values('time')['run']))
    if runs is not None:
        start, colon, end = runs.partition(':')
        if not colon:
            end = start
        order = order[_position(order, start) if start else 0:
                      _position(order, end) + 1 if end else None]
        if not order:
            raise ValueError(f'--runs {runs}: the last is before the first')
    elif first:
        order = order[:first]
    elif last:
        order = order[-last:]
    return frame[frame['run'].isin(order)]


def propose(frame: pd.DataFrame, min_runs: int = FEWEST_RUNS,
            floors: dict[str, float] | None = None
            ) -> tuple[dict[str, str], list[str]]:
    """References from records.

    :param frame: as perflogs.read gives it
    :param floors: metric -> least threshold, a fraction; '': any other
    :returns: {file name: YAML}, and lines on what was left out
    :raises Refused: no entry has enough runs
    """
    floors = FLOORS | (floors or {})
    usable, notes = _usable(frame)
    entries: list[dict] = []
    missing: Counter[tuple] = Counter()
    clashes: list[str] = []
    usable = usable.assign(edition=usable['version'].astype(str).where(
        usable['family'].isin(VERSIONED), ''))
    for names, case in usable.groupby(
            ['family', 'check', *INDEX, 'system', 'edition'], observed=True):
        (family, check, partition, environ, source, speed, params, system,
         edition) = names
        runs = case['run'].nunique()
        shapes = case[['program', 'num_nodes', 'num_tasks']].drop_duplicates()
        if len(shapes) > 1:
            clashes.append(f'{check} {params}: skipped, its records have '
                           'several programs or numbers of ranks')
        elif runs < min_runs:
            missing[family, speed, runs] += 1
        else:
            entries.append({
                'family': family, 'check': check, 'records': case,
                'keys': [_full(system, partition), environ, source,
                         *([edition] if family in VERSIONED else []), speed,
                         params]})
    for (family, speed, runs), count in sorted(missing.items()):
        more = min_runs - runs
        notes.append(
            f'{min_runs} runs needed, {runs} found for {count} '
            f"case{'s' * (count > 1)} of {family} at speed {speed}: run "
            f"`./plumb run` {more} more time{'s' * (more > 1)}")
    notes += clashes
    if not entries:
        raise Refused('; '.join(notes) or 'no records')
    files = {}
    for family in sorted({e['family'] for e in entries}):
        mine = [e for e in entries if e['family'] == family]
        files[f'{family}.yaml'] = _file(family, mine, min_runs, floors)
    return files, notes


def _only(frame: pd.DataFrame, column: str,
          wanted: list[str]) -> pd.DataFrame:
    """Records with one of these values; all must occur. []: all records."""
    known = sorted(frame[column].unique())
    for name in wanted:
        if name not in known:
            raise ValueError(f'no records of {column} {name!r} (there: '
                             f"{', '.join(known) or 'none'})")
    return frame[frame[column].isin(wanted)] if wanted else frame


def _position(runs: list[str], name: str) -> int:
    found = [n for n, run in enumerate(runs) if run.startswith(name)]
    if name in runs:
        found = [runs.index(name)]
    if len(found) != 1:
        some = f'{len(found)} runs begin' if found else 'no run begins'
        raise ValueError(f'--runs: {some} with {name!r}; from {runs[0]} to '
                         f'{runs[-1]} there are {len(runs)}')
    return found[0]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number above 0')
    return int(text)


def _tolerance(text: str) -> tuple[str, float]:
    """'METRIC=X' or 'X' -> (metric or '', fraction)."""
    metric, _, number = text.rpartition('=')
    if metric and metric not in perflogs.metrics():
        raise argparse.ArgumentTypeError(
            f'{metric!r} is not in config/metrics.yaml')
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f'{number!r} is not a fraction '
                                         'above 0, like 0.05')
    return metric, value


def _usable(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The records that may become references, and what was left out.

    One bad record keeps all records of its case and run out.
    """
    notes = []
    # A case without a reference failed, but its figures are sound: they are
    # what the reference is made from.
    frame = frame[frame['guard'] != 'reference']
    case = [frame[c] for c in [*perflogs.CASE, 'speed', 'run']]
    good = pd.Series(True, index=frame.index)
    for bad, why in (
            (frame['emulated'], 'emulated'),
            (frame['speed'] == 'mixed', 'at mixed speed'),
            (frame['guard'] != '', 'refused by a guard'),
            (frame['result'] == 'unfit', 'did not measure the program (its '
             'client or shared CPUs limited it)'),
            (frame['result'].isin(['fail', 'xfail']), 'failed')):
        out = bad.groupby(case, observed=True).transform('any') & good
        if out.any():
            runs = frame[out].groupby([*perflogs.CASE, 'speed', 'run'],
                                      observed=True).ngroups
            notes.append(f"{runs} run{'s' * (runs > 1)} of a case left out: "
                         f'{why}')
            good &= ~out
    return perflogs.judged_records(frame[good]), notes


def _full(system: str, partition: str) -> str:
    """What ReFrame's $partition is: system:partition."""
    return f'{system}:{partition}'


def _exact(text: str) -> str:
    """A key that ReFrame matches with this text (it takes keys as regular
    expressions when none is equal)."""
    return re.sub(r'[][*+?(){}|^$\\]', r'\\\g<0>', text)


def _quoted(text: str) -> str:
    """A YAML string, quoted only where needed."""
    if re.fullmatch(r'[A-Za-z_][\w.@/-]*', text) and text.lower() not in (
            'y', 'n', 'yes', 'no', 'on', 'off', 'true', 'false', 'null'):
        return text
    return "'" + text.replace("'", "''") + "'"


def _number(value: float) -> str:
    """Six digits, as YAML 1.1 reads a float."""
    return np.format_float_positional(float(f'{value:.6g}'), trim='0')


def _up(value: float) -> float:
    """Rounded up to 0.01."""
    return math.ceil(value * 100 - 1e-9) / 100


def _sigma(values: pd.Series | np.ndarray) -> float:
    """Robust standard deviation, from the median deviation and quartiles."""
    middle = float(np.median(np.abs(values - np.median(values))))
    low, high = np.percentile(values, [25, 75])
    return max(1.4826 * middle, float(high - low) / 1.349)


def _reach(runs: int) -> float:
    """Sigmas within which one more run lies in 999 of 1000 cases.

    t(0.999, runs - 1) * sqrt(1 + 1 / runs), a one-sided prediction bound.
    """
    free = max(d for d in STUDENT if d <= max(runs - 1, 2))
    return STUDENT[free] * math.sqrt(1 + 1 / runs)


def _file(family: str, entries: list[dict], min_runs: int,
          floors: dict[str, float]) -> str:
    """The reference file of a family."""
    used = pd.concat([e['records'] for e in entries])

    def values(*columns: str) -> str:
        texts = used[list(columns)].drop_duplicates().astype(str)
        return ', '.join(sorted({' '.join(filter(None, row))
                                 for row in texts.itertuples(index=False)}))

    runs = used.sort_values('time')['run'].unique()
    lines = [
        f'# References of family {family}: [centre, lower, upper, unit], '
        'thresholds are fractions.',
        '# Proposed by `./plumb references propose` on '
        f'{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d} from '
        f'{len(runs)} runs,',
        f'# {runs[0]} to {runs[-1]}.',
        f"# suite: {values('commit')}; ReFrame: {values('reframe')}",
        f"# programs: {values('program', 'version', 'spec')}",
        f"# stacks: {values('stack')}",
        f"# nodes: {values('nodes')}",
        '# Below, n is the number of runs, spread the robust sigma over '
        'runs (largest judged figure).']
    checks: dict[str, dict] = {}
    for entry in sorted(entries, key=lambda e: (e['check'], *e['keys'])):
        place = checks.setdefault(entry['check'], {})
        for name in entry['keys'][:-1]:
            place = place.setdefault(name, {})
        place[entry['keys'][-1]] = _entry(family, entry['records'], min_runs,
                                          floors)
    for check, levels in checks.items():
        version = 'version, ' * (family in VERSIONED)
        lines += [f'{_quoted(check)}:', '  $index: [$partition, $environ, '
                  f'source, {version}speed, params]']
        lines += _nested(levels, 1)
    return '\n'.join(lines) + '\n'


def _nested(levels: dict, depth: int) -> list[str]:
    """YAML lines of nested keys; a leaf is (comment, lines)."""
    lines = []
    for name, below in levels.items():
        start = f"{'  ' * depth}{_quoted(_exact(name))}:"
        if isinstance(below, dict):
            lines += [start, *_nested(below, depth + 1)]
        else:
            comment, figures = below
            lines += [f'{start}   # {comment}',
                      *('  ' * (depth + 1) + line for line in figures)]
    return lines


def _entry(family: str, records: pd.DataFrame, min_runs: int,
           floors: dict[str, float]) -> tuple[str, list[str]]:
    """(provenance, lines of figures) of a case.

    A figure with fewer than `min_runs` runs is left out, and counted.
    """
    records = records[~records['metric'].isin(['worst_ratio', 'completed'])]
    runs = records.assign(size=records['size'].astype(float)).groupby(
        ['metric', 'size', 'run'], observed=True, dropna=False, sort=False)[
            'value'].median().unstack('run')
    few = runs.count(axis=1) < min_runs
    runs = runs[~few]
    points = [(metric, None if math.isnan(size) else int(size))
              for metric, size in runs.index]
    centre = runs.median(axis=1)
    to_judge = judged(family, [*points, ('worst_ratio', None)])
    lines, spreads, wide, outside = [], [0.0], [], set()
    for (metric, size), values, middle in zip(
            points, runs.to_numpy(), centre, strict=True):
        row = perflogs.metrics()[metric]
        name, bound = key(metric, size), None
        if name in to_judge and row['better'] != 'none' and middle > 0:
            seen = values[~np.isnan(values)]
            spread = _sigma(seen) / middle
            spreads.append(spread)
            bound = _up(max(floors.get(metric, floors['']),
                            2 * resolution(family, metric) / middle,
                            _reach(len(seen)) * spread))
            if row['better'] == 'higher':
                bound = min(bound, 0.99)   # ReFrame takes no more than 1
            if bound >= 0.5:
                wide.append(name)
            worse = (seen / middle - 1) * (
                1 if row['better'] == 'lower' else -1)
            outside |= set(runs.columns[~np.isnan(values)][worse > bound])
        lines.append(_line(name, middle, bound, row))
    worst = _worst(family, runs, centre)
    if 'worst_ratio' in to_judge and len(worst):
        bound = _up(max(floors['worst_ratio'], np.median(worst) - 1
                        + _reach(len(worst)) * _sigma(worst),
                        worst.max() * 1.1 - 1))
        lines.append(_line('worst_ratio', 1.0, bound,
                           perflogs.metrics()['worst_ratio']))
    first, last = records['time'].min(), records['time'].max()
    comment = (f'n={runs.shape[1]} runs, spread {max(spreads):.1%}, '
               f'{first:%Y-%m-%d}..{last:%Y-%m-%d}').replace('%', ' %')
    if outside:
        comment += f', {len(outside)} of the runs outside'
    if few.any():
        comment += f', {few.sum()} figures of too few runs left out'
    if wide:
        comment += f", noisy: {' '.join(wide)}"
    return comment, lines


def _worst(family: str, runs: pd.DataFrame,
           centre: pd.Series) -> np.ndarray:
    """Each run's worst ratio against the centre curves (1 = as good).

    The curves are those of the metrics that config/judged.yaml names.
    """
    names = {rule['metric'] for rule in table()[family]}
    metric = runs.index.get_level_values('metric').astype(str)
    size = runs.index.get_level_values('size')
    curve = metric.isin(names) & size.notna() & (centre > 0).to_numpy()
    better = [perflogs.metrics()[m]['better'] for m in metric[curve]]
    return np.array([
        max(ratios) for run in runs.columns
        if (ratios := [worse_by(family, *row) for row in zip(
            metric[curve], better, runs.loc[curve, run], centre[curve],
            strict=True) if not math.isnan(row[2])])])


def _line(name: str, centre: float, bound: float | None,
          row: dict[str, str]) -> str:
    """`name: [centre, lower, upper, unit]`; open without a bound."""
    limits = ['null', 'null']
    if bound is not None:
        lower = row['better'] == 'higher'
        limits[not lower] = f"{'-' * lower}{bound:.2f}"
    return (f"{_quoted(name)}: [{_number(centre)}, {', '.join(limits)}, "
            f"{_quoted(row['unit'])}]")


if __name__ == '__main__':
    sys.exit(main())
