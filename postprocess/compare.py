"""`./plumb compare A B`: two sessions, sites, stacks or programs.

A and B are matched by test case and metric, without the columns in which they
differ. A session has one value of a metric, the median of its repetitions.
From the logs of these values:

    ratio = exp(mean(B) - mean(A)),  interval: Welch's t at 95 %

(Biometrika 34, 1947). Mean and spread are those of the verdict
(`detect.estimate_noise`), with its floor. A side with fewer than OWN runs takes its
spread from all runs of its metric that the perflogs have, so that two sessions can be
compared. A difference that is smaller than the verdict's (`detect.MINIMUM`), or of one
digit that the program prints, is never certain: the interval is wider by a digit on
both sides, and the test has one digit less. A metric
that is 0 in most sessions of a side has no logarithm: 0 is worse or better than any
other value. A curve is one metric more: the mean of its logs over the sizes that
both have, a value a run. The p of all metrics of a comparison are corrected
together (Holm, Scand. J. Stat. 6, 1979). A metric is better or worse where
that is below 5 %, the same where the interval lies within --min-change, and
where
it can say neither it says how many runs are missing, for each side.
"""
from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from config import console
from config.commandline import ANSWER_CODES, Parser
from config.records.units import change_text, point_text, value_text
from config.sessions import judged

from . import options
from .matching import (
    MATCHED,
    Matched,
    Names,
    Sides,
    match_sides,
    selection_mask,
    texts_of_name,
)
from .names import short_name
from .records import read
from .references.progress import median_per_session, usable_records
from .regressions import detect
from .regressions.sessions import session_dates

#: Runs of a side from which on its own spread counts.
OWN = 5
#: Sizes that make a curve.
CURVE = 3
LEVEL, SURE = 1.96, 0.05
#: Outcomes of a comparison; `other`: it differs, and no side is better; `missing`: one
#: side of a common test case has no value.
OUTCOMES = ('worse', 'missing', 'better', 'other', 'same', 'undecided')
#: Outcomes of metrics that differ.
DIFFERENT = ('worse', 'missing', 'better', 'other')
#: Outcome -> how a sentence calls it.
WORDS = {'other': 'different', 'undecided': 'too noisy to say',
         'missing': 'missing on one side'}

HELP = """\
Compares two sessions, sites, software stacks or programs.

A and B are each a session or a date, a range of them (FIRST:LAST), or a value
of a column of the records. The name of the column may be added, and several
conditions are separated by commas:
  2026-11-20 2026-11-21          two dates
  :2026-11-19 2026-11-20:        before a date and since then
  alpha beta                     two sites in one folder of perflogs
  environ=openmpi environ=mpich  two environments
  network=ib0 network=eth0       two values of a parameter
  before after --from before.csv after.csv   saved results (`plumb parse`)

If one side has several environments, versions or numbers of nodes, and the other side
names none, each of them is compared with the other side separately.

--across NAME compares A with each other value of a column, parameter or setting. If A
is not given, it is the first value in alphabetical order: `--across store`, `--across
network ib0`, `--across environment`, `--across mpi`, `--across version`. If a test case
does not have the setting, its value is `default`: `--across pin default off`.

""" + ANSWER_CODES


@dataclass(frozen=True)
class Row:
    """A metric of both sides; a text in which the sides differ is ''."""
    #: What is compared, as on the command line.
    side_a: str
    side_b: str
    system: str
    partition: str
    environ: str
    check: str
    params: str
    settings: str
    program: str
    source: str
    metric: str
    #: '8 B', '' or 'curve'.
    point: str
    unit: str
    better: str
    #: Geometric means, and runs; a curve's are those of its means. None: missing.
    a: float | None
    b: float | None
    runs_a: int
    runs_b: int
    #: B / A, with an interval of 95 %; None: too few sessions for one, or one side is
    #: 0 or missing. The ratio is judged.INFINITE if A is 0.
    ratio: float | None
    low: float | None
    high: float | None
    #: After the correction; None: too few sessions.
    p: float | None
    #: One of OUTCOMES.
    outcome: str


def parser() -> Parser:
    """The command line."""
    cmd = Parser(prog='plumb compare', text=HELP,
                 example='./plumb compare redis valkey --csv stores.csv')
    cmd.add_argument('a', metavar='A', nargs='?', help='the baseline: a session, date, '
                     'range, or value of a column')
    cmd.add_argument('b', metavar='B', nargs='?', help='the records that are compared '
                     'with A')
    options.add_saved_results_option(options.add_record_options(cmd))
    comparison = cmd.add_argument_group('comparison')
    comparison.add_argument(
        '--across', metavar='NAME', help='compare the values of a column, parameter or '
        'setting, such as store, environment, mpi, version or pin (default: each value '
        'with the first; A and B select two of the values)')
    comparison.add_argument(
        '--min-change', type=float, default=0.05, metavar='X',
        help='the smallest difference that matters, as a fraction (default: '
             '0.05)')
    output = cmd.add_argument_group('output')
    output.add_argument('--all', action='store_true', help='also list the metrics '
                        'that are the same, and those too noisy to say')
    output.add_argument('--all-points', action='store_true',
                        help='print one row for each point of a curve '
                        '(default: one row for each curve)')
    options.add_answer_options(output)
    return cmd


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (usage errors exit with 2)."""
    cmd = parser()
    args = cmd.parse_args(argv)
    if not 0 < args.min_change < 1:
        cmd.error(f'--min-change is {args.min_change}; it is between 0 and 1')
    if not args.across and (args.a is None or args.b is None):
        cmd.error('give A and B, or --across NAME')
    try:
        with options.folders_of_records(args, 'compare') as folders:
            frame, faults = read(folders, on_error='collect')
        options.print_faults('compare', faults)
        frame = options.records_of_site(frame, args.site)
        pairs = (pairs_across(frame, args.across, args.a, args.b) if args.across
                 else [(args.a, args.b)])
        rows: dict[tuple[str, str], list[Row]] = {}
        left_out: list[str] = []
        for a, b in pairs:
            try:
                for row in compare_metrics(frame, a, b, args.min_change,
                                           left_out.append):
                    rows.setdefault((row.side_a, row.side_b), []).append(row)
            except ValueError as err:
                left_out.append(str(err))
        if not rows:
            raise ValueError(left_out[0])
        for reason in left_out:
            print(f'plumb compare: left out: {reason}', file=sys.stderr)
        if args.csv or args.json:
            options.write_rows(args, [*Row.__dataclass_fields__],
                               [dataclasses.astuple(row) for of_pair in rows.values()
                                for row in of_pair])
    except (OSError, ValueError) as err:
        print(f'plumb compare: {err}', file=sys.stderr)
        return 2
    if '-' not in (args.csv, args.json):
        for (a, b), of_pair in rows.items():
            print_table(of_pair, a, b, args.all_points, args.all)
    return 1 if faults else 0


def pairs_across(frame: pd.DataFrame, name: str, a: str | None, b: str | None
                 ) -> list[tuple[str, str]]:
    """What --across compares: all values of a column or parameter with one of them.

    :param a: value to compare with; None: the first one
    :param b: value that is compared; None: all others
    :raises ValueError: no such column or parameter, or no two values
    """
    texts = texts_of_name(frame, name)
    values = sorted(set(texts) - {''})
    for value in filter(None, (a, b)):
        if value not in values:
            raise ValueError(f'no record has {name}={value}; the values are '
                             + (', '.join(values) or 'none'))
    base = a or (values[0] if values else '')
    others = [b] if b else [value for value in values if value != base]
    if not others:
        raise ValueError(f'{name} has no two values to compare: '
                         + (', '.join(values) or 'none'))
    return [(f'{name}={base}', f'{name}={other}') for other in others]


def compare_metrics(frame: pd.DataFrame, a: str, b: str, minimum: float = 0.05,
                    report: Callable[[str], Any] = print) -> list[Row]:
    """B against A, the metrics that tell most first.

    :param frame: as records.read gives it
    :param a, b: what is compared, as on the command line
    :param report: called with one line for each part of a side that is left out
    :raises ValueError: nothing is chosen, or nothing of it matches
    """
    if frame.empty:
        raise ValueError('no records')
    dates = session_dates(frame)
    sides = [frame[selection_mask(frame, text, dates)] for text in (a, b)]
    for text, side in zip((a, b), sides, strict=True):
        if side.empty:
            raise ValueError(f'{text}: no records')
    sides = [usable_records(side, include_reference_failures=True)[0] for side in sides]
    sides = [side[side['metric'] != 'completed'] for side in sides]
    for text, side in zip((a, b), sides, strict=True):
        if side.empty:
            raise ValueError(f'{text}: all measurements failed or are inconclusive')
    # Rows of other suites have no family.
    families = [sorted(map(str, set(side['family'].unique()) - {''})) for side in sides]
    if all(families) and not set(families[0]) & set(families[1]):
        raise ValueError(f'{a} has test cases of {", ".join(families[0])}, and {b} of '
                         f'{", ".join(families[1])}: they have no family in common')
    return _compare_sides(frame, (a, b), sides, minimum, report)


def _compare_sides(frame: pd.DataFrame, names: Names, sides: Sides, minimum: float,
                   report: Callable[[str], Any]) -> list[Row]:
    """The rows of two sides, those that tell most first.

    :raises ValueError: nothing matches, or both sides have several values
    """
    matched = match_sides(names, sides)
    if isinstance(matched, list):
        rows, left_out = [], []
        for part, sides_of_part in matched:
            try:
                rows += _compare_sides(frame, part, sides_of_part, minimum, report)
            except ValueError as err:
                left_out.append(str(err))
        if not rows:
            raise ValueError(left_out[0])
        for reason in left_out:
            report(reason)
        return rows
    keys = matched.keys
    a, b = (_values_per_session(side, keys) for side in matched.sides)
    if not a.index.intersection(b.index).size:
        raise ValueError(f'{names[0]} and {names[1]} have no metric of a test case in '
                         f'common{matched.hint}')
    spreads = _spread_per_metric(frame, matched)
    rows = [row for key, rows_a in a.groupby(level=0)
            if (row := _compare_metric(key, rows_a, b, spreads))]
    rows += _compare_curves(a, b, keys, spreads)
    # A saved result has other sizes and fewer metrics than a check.
    if 'check' in keys:
        rows += _missing_rows(a, b)
    return sorted((dataclasses.replace(row, side_a=names[0], side_b=names[1])
                   for row in _apply_holm_correction(rows, minimum)), key=_sort_key)


def _values_per_session(side: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """A value a run of every metric, and of every curve: an index of keys,
    with columns run, value, and texts for people."""
    side = side.assign(better=side['better'].astype(str))
    table = median_per_session(side, [*keys, 'family', 'unit', 'better'])
    table = table[table['value'] >= 0]
    table['point'] = table['point'].map(judged.point_with_unit)
    positive = table['value'].where(table['value'] > 0)
    table['log'] = np.log(positive)
    table['digit'] = [
        math.log1p(judged.relative_resolution(family, metric, value))
        for family, metric, value in zip(
            table['family'].astype(str), table['metric'].astype(str), positive,
            strict=True)]
    return table.set_index(pd.MultiIndex.from_frame(
        table[[*keys, 'metric', 'point']].astype(str)).to_flat_index())


def _spread_per_metric(frame: pd.DataFrame, matched: Matched
                       ) -> dict[Any, tuple[float, float]]:
    """Metric -> spread and degrees of freedom of all its runs."""
    good = usable_records(frame, include_reference_failures=True)[0]
    good = good[good['metric'] != 'completed']
    table = median_per_session(good, MATCHED)
    table = table[table['value'] > 0]
    table['point'] = table['point'].map(judged.point_with_unit)
    masked = matched.without_compared(table)
    spreads: dict[Any, tuple[float, float]] = {}
    for _, group in table.groupby([*MATCHED, 'metric', 'point'], observed=True,
                                  sort=False):
        if len(group) < detect.FEWEST:
            continue
        spread, free = detect.spread_between_sessions(
            np.log(group['value'].to_numpy()))
        first = masked.loc[group.index[0]]
        key = tuple(str(first[name]) for name in (*matched.keys, 'metric', 'point'))
        old = spreads.get(key, (0.0, 0.0))
        spreads[key] = max(old, (spread, free))
    return spreads


def _compare_metric(key: tuple, a: pd.DataFrame, others: pd.DataFrame,
                    spreads: dict[Any, tuple[float, float]]) -> Row | None:
    """A metric of both sides; None where B lacks it."""
    try:
        b = others.loc[[key]]
    except KeyError:
        return None
    first, point = a.iloc[0], str(a['point'].iloc[0])
    if not a['value'].median() or not b['value'].median():
        return _compare_with_zero(first, point, a['value'], b['value'])
    a, b = a[a['value'] > 0], b[b['value'] > 0]
    return _compare_logarithms(
        first, point, a['log'].to_numpy(), b['log'].to_numpy(),
        max(a['digit'].median(), b['digit'].median()), spreads.get(key))


def _compare_with_zero(first: Any, point: str, a: pd.Series, b: pd.Series) -> Row:
    """A row of a metric that is 0 in most sessions of a side: no logarithm, and no
    doubt."""
    middle_a, middle_b = float(a.median()), float(b.median())
    worse = judged.worsening_ratio(
        first['better'], middle_b, middle_a,
        judged.printed_resolution(first['family'], first['metric']))
    outcome = 'same' if worse == 1 else (
        'other' if first['better'] not in ('lower', 'higher')
        else 'worse' if worse > 1 else 'better')
    return Row(**_texts_of_row(first), point=point, a=middle_a, b=middle_b,
               runs_a=len(a), runs_b=len(b),
               ratio=1.0 if middle_a == middle_b else
               middle_b / middle_a if middle_a else judged.INFINITE,
               low=None, high=None, p=None, outcome=outcome)


def _compare_curves(a: pd.DataFrame, b: pd.DataFrame, keys: list[str],
                    spreads: dict[Any, tuple[float, float]]) -> list[Row]:
    """A row for each curve of at least CURVE sizes that both sides have."""
    rows = []
    sized = [side[(side['point'] != '') & (side['value'] > 0)] for side in (a, b)]
    by = [*keys, 'metric']
    others = dict(iter(sized[1].groupby(by, observed=True, sort=False)))
    for key, curve_a in sized[0].groupby(by, observed=True, sort=False):
        curve_b = others.get(key)
        if curve_b is None:
            continue
        points = set(curve_a['point']) & set(curve_b['point'])
        if len(points) < CURVE:
            continue
        sides = [side[side['point'].isin(points)] for side in (curve_a, curve_b)]
        logs = [side.groupby('session', sort=False)['log'].agg(['mean', 'size'])
                for side in sides]
        # A run that lacks a size has another mean.
        whole = [side.loc[side['size'] == len(points), 'mean'].to_numpy()
                 for side in logs]
        if not all(map(len, whole)):
            continue
        names = tuple(map(str, key))
        # The sizes of a run go up and down together: as wide as one of them.
        known = [spreads[names + (point,)] for point in points
                 if names + (point,) in spreads]
        rows.append(_compare_logarithms(
            curve_a.iloc[0], 'curve', whole[0], whole[1],
            max(side['digit'].mean() for side in sides),
            (float(np.median([s for s, _ in known])), known[0][1])
            if known else None))
    return rows


def _missing_rows(a: pd.DataFrame, b: pd.DataFrame) -> list[Row]:
    """A row for each metric that one side of a common test case lacks."""
    common = {key[:-2] for key in a.index} & {key[:-2] for key in b.index}
    rows = []
    for side, other in ((a, b), (b, a)):
        for key, values in side[~side.index.isin(other.index)].groupby(level=0):
            if key[:-2] in common:
                first, middle = values.iloc[0], float(values['value'].median())
                is_a = side is a
                rows.append(Row(
                    **_texts_of_row(first), point=str(first['point']),
                    a=middle if is_a else None, b=None if is_a else middle,
                    runs_a=len(values) * is_a, runs_b=len(values) * (not is_a),
                    ratio=None, low=None, high=None, p=None, outcome='missing'))
    return rows


def _texts_of_row(first: Any) -> dict[str, Any]:
    """The texts of a row; '' for those in which the sides differ."""
    return {'side_a': '', 'side_b': ''} | {
        name: str(first[name]) if name in first else '' for name in (
        'system', 'partition', 'environ', 'check', 'params', 'settings', 'program',
        'source', 'metric', 'unit', 'better')}


def _compare_logarithms(first: Any, point: str, a: np.ndarray, b: np.ndarray,
                        digit: float, known: tuple[float, float] | None) -> Row:
    """A row from the logs of both sides' runs; its p is not corrected yet.

    :param digit: the last digit printed, in the unit of the logs
    """
    # As the verdict takes them: smaller ones are rounding.
    smallest = max(detect.MINIMUM, digit)
    floor = smallest / math.sqrt(12)
    centres, variances, free = [], [], []
    for logs in (a, b):
        [centre], [spread], _ = detect.estimate_noise(logs[None], floor=floor)
        centres.append(float(centre) if len(logs) >= OWN else float(logs.mean()))
        if len(logs) >= OWN or known is None and len(logs) >= 2:
            variances.append(float(spread) ** 2 / len(logs))
            free.append(len(logs) - 1.0)
        elif known is not None:
            variances.append(max(known[0], floor) ** 2 / len(logs))
            free.append(known[1])
    size = centres[1] - centres[0]
    base = Row(**_texts_of_row(first), point=point, a=math.exp(centres[0]),
               b=math.exp(centres[1]), runs_a=len(a), runs_b=len(b),
               ratio=math.exp(size), low=None, high=None, p=None,
               outcome='undecided')
    if len(variances) < 2:
        return base
    both = sum(variances)
    beyond = max(abs(size) - 1.001 * digit, 0.0) if abs(size) > smallest else 0.0
    df = both ** 2 / sum(v ** 2 / f for v, f in zip(variances, free,
                                                    strict=True))
    error = math.sqrt(both)
    wide = float(detect.student_t_quantile(df, LEVEL)) * error + digit
    t = beyond / error
    # Wallace's normal deviate of Student's t (Ann. Math. Stat. 30, 1959).
    normal = (8 * df + 1) / (8 * df + 3) * math.sqrt(
        df * math.log1p(t * t / df))
    return dataclasses.replace(
        base, low=math.exp(size - wide), high=math.exp(size + wide),
        p=math.erfc(normal / math.sqrt(2)))


def _apply_holm_correction(rows: list[Row], minimum: float) -> list[Row]:
    """With Holm's p, and what each row says."""
    tested = sorted((row for row in rows if row.p is not None),
                    key=lambda row: row.p or 0.0)
    corrected = [row for row in rows if row.p is None]
    reached = 0.0
    for n, row in enumerate(tested):
        reached = max(reached, min((row.p or 0.0) * (len(tested) - n), 1.0))
        low, high = row.low or 0.0, row.high or math.inf
        if reached < SURE:
            up = {'higher': 'better', 'lower': 'worse'}.get(row.better,
                                                            'other')
            down = {'better': 'worse', 'worse': 'better'}.get(up, up)
            row = dataclasses.replace(
                row, outcome=up if (row.ratio or 0) > 1 else down)
        elif low >= 1 - minimum and high <= 1 + minimum:
            row = dataclasses.replace(row, outcome='same')
        corrected.append(dataclasses.replace(row, p=reached))
    return corrected


def _sort_key(row: Row) -> tuple:
    ratio = 1.0 if row.ratio is None else max(row.ratio, 1 / judged.INFINITE)
    return (OUTCOMES.index(row.outcome), -abs(math.log(ratio)), row.check,
            row.params, row.settings, row.metric, row.point)


def print_table(rows: list[Row], a: str, b: str, every_point: bool = False,
                every_row: bool = False) -> None:
    """Print the table for people, what matters last; and how many metrics have each
    outcome.

    :param every_point: one row for each point of a curve
    :param every_row: also what is the same, or undecided
    """
    count = {outcome: sum(row.outcome == outcome for row in rows)
             for outcome in OUTCOMES}
    curves = {(row.check, row.params, row.settings, row.environ, row.metric)
              for row in rows if row.point == 'curve' and (
                  every_row or row.outcome in DIFFERENT)}
    shown = [row for row in rows[::-1] if (every_row or row.outcome in DIFFERENT) and (
        every_point or row.point in ('', 'curve') or not (row.a and row.b) or (
            row.check, row.params, row.settings, row.environ, row.metric)
            not in curves)]
    cells = []
    for row in shown:
        low = '' if row.low is None or row.high is None else (
            f'{change_text(row.low)} to {change_text(row.high)}')
        cells.append((
            row.outcome, '' if row.ratio is None else change_text(row.ratio), low,
            *('' if value is None else value_text(value, row.unit)
              for value in (row.a, row.b)), f'{row.runs_a}, {row.runs_b}',
            ' '.join(filter(None, [
                row.metric, point_text(row.point), short_name(
                    row.check or row.program, row.params, row.settings, '',
                    row.source), row.environ]))))
    console.print_table(cells, ('', 'change', '95 % interval', 'A', 'B', 'sessions',
                                'metric'), right=(1, 3, 4), below=True)
    counts = ', '.join(f'{count[outcome]} {WORDS.get(outcome, outcome)}'
                       for outcome in reversed(OUTCOMES) if count[outcome])
    folded = not every_row and any(row.outcome not in DIFFERENT for row in rows)
    console.print_lines([
        f'{b} compared with {a}: '
        + console.count_with_noun(len(rows) - count['missing'], 'metric')
        + f' in common: {counts}' + ' (--all lists them)' * folded])
