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
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from config import console
from config.commandline import ANSWER_CODES, Parser
from config.families import parameters_by_name
from config.records.units import change_text, point_text, value_text
from config.sessions import judged

from . import options
from .names import short_name
from .records import read
from .references.progress import median_per_session, usable_records
from .regressions import detect
from .regressions.sessions import session_dates

#: What a word without `=` may be a value of, the first that has it.
FIELDS = ('system', 'environ', 'program', 'stack', 'partition', 'version',
          'source', 'family', 'spec', 'commit', 'suite')
#: Columns by which A and B are matched, if both have a value in common.
MATCHED = ['system', 'partition', 'environ', 'source', 'check', 'params', 'settings',
           'program']
#: What else distinguishes runs of a test case. Sides are matched by it where one has
#: several, and both have a value in common.
DISTINCT = ['num_nodes', 'num_tasks', 'version']
#: Name of a thing -> column or parameters that have it, where no record has that name.
ALIASES = {'environment': ('environ',), 'mpi': ('stack',), 'store': ('db',)}
#: Value of a setting that a test case does not have.
DEFAULT = 'default'
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

If one side has several environments, versions or numbers of nodes of a test case, and
the other side does not name its own, each one is compared separately.

--across NAME compares each value of a column, parameter or setting with A, or without A
with the value that comes first in the alphabet: `--across store`, `--across network
ib0`, `--across environment`, `--across mpi`, `--across version`. A test case without a
setting that others have is `default`: `--across pin default off`.

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
    cmd.add_argument('a', metavar='A', nargs='?', help='the records to compare with')
    cmd.add_argument('b', metavar='B', nargs='?', help='the records that are compared')
    options.add_saved_results_option(options.add_record_options(cmd))
    comparison = cmd.add_argument_group('comparison')
    comparison.add_argument(
        '--across', metavar='NAME', help='compare all values of a column, parameter or '
        'setting, such as store, environment, mpi, version or pin; A and B are values '
        'of it')
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
    texts = _texts_of_name(frame, name)
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


def _texts_of_name(frame: pd.DataFrame, name: str) -> pd.Series:
    """The text that each record has in a column, or of a parameter or setting; '' if
    none. A test case without a setting that others have is DEFAULT.

    :raises ValueError: no record has such a column, parameter or setting
    """
    names = [other for other in (name, *ALIASES.get(name, ())) if other in frame]
    if names:
        return frame[names[0]].astype(str).replace({'<NA>': '', 'nan': ''})
    names = [name, *ALIASES.get(name, ())]
    texts = pd.Series('', frame.index)
    of_settings = frame['settings'].astype(str)
    for column in (frame['params'].astype(str), of_settings):
        values = {text: next(filter(None, map(parameters_by_name(text).get, names)), '')
                  for text in column.unique()}
        texts = texts.where(texts != '', column.map(values))
        if column is of_settings and any(values.values()):
            texts = texts.replace({'': DEFAULT})
    if not texts.any():
        raise ValueError(f'the records have no column, parameter or setting {name!r} '
                         '(`plumb sql "SELECT DISTINCT params, settings FROM results"` '
                         'lists them)')
    return texts


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
    sides = [frame[_selection_mask(frame, text, dates)] for text in (a, b)]
    for text, side in zip((a, b), sides, strict=True):
        if side.empty:
            raise ValueError(f'{text}: no records')
    sides = [usable_records(side, include_reference_failures=True)[0] for side in sides]
    sides = [side[side['metric'] != 'completed'] for side in sides]
    for text, side in zip((a, b), sides, strict=True):
        if side.empty:
            raise ValueError(f'{text}: all measurements failed or are inconclusive')
    return _compare_sides(frame, (a, b), sides, minimum, report)


def _compare_sides(frame: pd.DataFrame, names: tuple[str, str],
                   sides: list[pd.DataFrame], minimum: float,
                   report: Callable[[str], Any]) -> list[Row]:
    """The rows of two sides, those that tell most first. If a side has several values
    of a column in which the sides differ, within one test case, each value is compared:
    they are never mixed.

    :param names: what is compared, as on the command line
    :param sides: the records of each
    :raises ValueError: nothing matches, or both sides have several values
    """
    compared = _compared_parameters(names, sides)
    masked = [_without_compared_parameters(side, compared, {}) for side in sides]
    keys, alike = _matching_columns_and_compared_words(*masked)
    masked = [_without_compared_parameters(side, compared, alike) for side in masked]
    reduced = _without_parameters_of_one_side(masked)
    mixed = _values_of_mixed_sides(sides, reduced, keys, compared)
    if mixed:
        column, values = mixed
        if all(values):
            raise ValueError('; '.join(
                f'{name} has ' + ' and '.join(f'{column}={value}' for value in of_side)
                for name, of_side in zip(names, values, strict=True))
                + f': give one of each, such as {names[0]},{column}={values[0][0]} '
                f'and {names[1]},{column}={values[1][0]}')
        number = int(bool(values[1]))
        rows: list[Row] = []
        left_out = []
        for value in values[number]:
            one, of_one = list(names), list(sides)
            one[number] += f',{column}={value}'
            of_one[number] = sides[number][
                _texts_of_name(sides[number], column) == value]
            try:
                rows += _compare_sides(frame, (one[0], one[1]), of_one, minimum, report)
            except ValueError as err:
                left_out.append(str(err))
        if not rows:
            raise ValueError(left_out[0])
        for reason in left_out:
            report(reason)
        return rows
    sides = _with_whole_parameters_where_mixed(masked, reduced, keys)
    sides = _with_distinct_words(sides, keys)
    values_of = [_values_per_session(side, keys) for side in sides]
    if not values_of[0].index.intersection(values_of[1].index).size:
        raise ValueError(f'{names[0]} and {names[1]} have no metric of a test case in '
                         'common' + _hint_of_mixed_parameters(names, masked, reduced,
                                                              keys))
    spreads = _spread_per_metric(frame, keys, compared, alike)
    rows = [row for key, rows_a in values_of[0].groupby(level=0)
            if (row := _compare_metric(key, rows_a, values_of[1], spreads))]
    rows += _compare_curves(values_of[0], values_of[1], keys, spreads)
    # A saved result has other sizes and fewer metrics than a check.
    if 'check' in keys:
        rows += _missing_rows(values_of[0], values_of[1])
    return sorted((dataclasses.replace(row, side_a=names[0], side_b=names[1])
                   for row in _apply_holm_correction(rows, minimum)), key=_sort_key)


def _selection_mask(
    frame: pd.DataFrame, text: str, dates: dict
) -> np.ndarray:
    """Which records one side is.

    :raises ValueError: nothing is called so
    """
    chosen = np.ones(len(frame), bool)
    for part in text.split(','):
        chosen &= _selection_term_mask(frame, part.strip(), dates)
    return chosen


def _selection_term_mask(frame: pd.DataFrame, text: str, dates: dict) -> np.ndarray:
    name, equals, value = text.partition('=')
    if equals:
        return (_texts_of_name(frame, name) == value).to_numpy()
    if ':' in text:
        first, _, last = text.partition(':')
        first, last = (end.replace('-', '') if re.match(
            r'\d{4}-\d\d', end) else end for end in (first, last))
        # A session's name begins with its date, in one piece.
        names = {run: run if run[:8].isdecimal() else
                 str(day).replace('-', '') for run, day in dates.items()}
        runs = [run for run, name in names.items() if name >= first and (
            not last or name <= last or name.startswith(last))]
        return frame['session'].isin(runs).to_numpy()
    runs = [run for run, day in dates.items()
            if run.startswith(text) or str(day).startswith(text)]
    if runs and text[:4].isdecimal():
        return frame['session'].isin(runs).to_numpy()
    for name in FIELDS:
        matching = (frame[name].astype(str) == text).to_numpy()
        if matching.any():
            return matching
    raise ValueError(f'{text}: not the name of a session, date, '
                     f'{", ".join(FIELDS[:-1])} or {FIELDS[-1]}')


def _matching_columns_and_compared_words(a: pd.DataFrame, b: pd.DataFrame
          ) -> tuple[list[str], dict[str, str]]:
    """The columns that match a test case, and words that stand for each other
    in its parameters: those that no value of A shares with B say what is
    compared."""
    keys: list[str] = []
    alike: dict[str, str] = {}
    for name in MATCHED:
        values_a, values_b = (set(map(str, side[name])) for side in (a, b))
        if values_a & values_b or name == 'params':
            keys.append(name)
        else:
            alike |= dict.fromkeys(values_a | values_b, '*')
    return keys, alike


def _compared_parameters(names: tuple[str, str], sides: list[pd.DataFrame]
                         ) -> set[str]:
    """The parameters and settings that the sides name and have no value of in common.
    They are what is compared."""
    compared: set[str] = set()
    both = pd.concat(side[[*FIELDS, 'params', 'settings']].astype(str)
                     for side in sides)
    for term in ','.join(names).split(','):
        name, equals, _ = term.strip().partition('=')
        if equals and name not in sides[0]:
            texts = _texts_of_name(both, name)
            if not {*texts[:len(sides[0])]} & {*texts[len(sides[0]):]}:
                compared |= {name, *ALIASES.get(name, ())}
    return compared


def _without_compared_parameters(side: pd.DataFrame, compared: set[str],
                                 alike: dict[str, str]) -> pd.DataFrame:
    """A side whose parameters and settings do not have the values that are compared."""
    def masked_parameters(text: str) -> str:
        words = (word.rpartition('=') for word in text.split(' '))
        return ' '.join(f'{name}{sep}' + (
            '*' if name in compared else alike.get(value, value))
            for name, sep, value in words)

    def other_settings(text: str) -> str:
        return ' '.join(word for word in text.split(' ')
                        if word.partition('=')[0] not in compared)

    params, settings = side['params'].astype(str), side['settings'].astype(str)
    return side.assign(
        params=params.map({text: masked_parameters(text) for text in params.unique()}),
        settings=settings.map({text: other_settings(text)
                               for text in settings.unique()}))


def _without_parameters_of_one_side(sides: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """The sides without the parameters that only one of them has: saved results name
    fewer parameters, or others, than a check does. The others are in the order of A."""
    names = [dict.fromkeys(name for text in side['params'].unique()
                           for name in parameters_by_name(text)) for side in sides]
    common = [name for name in names[0] if name in names[1]]

    def common_words(text: str) -> str:
        values = parameters_by_name(text)
        return ' '.join(f'{name}={values[name]}' for name in common if name in values)

    return [side.assign(params=side['params'].map({
        text: common_words(text) for text in side['params'].unique()}))
        for side in sides]


def _values_of_mixed_sides(sides: list[pd.DataFrame], reduced: list[pd.DataFrame],
                           keys: list[str], compared: set[str]
                           ) -> tuple[str, list[list[str]]] | None:
    """A column or parameter in which the sides differ, and of which a side has several
    values within a metric that both have; and its values of each side, [] of a side
    with one value for each metric. None: there is none."""
    names = [name for name in MATCHED if name not in keys and name != 'params']
    # A history of one environment with several versions is one test case.
    others = DISTINCT if 'environ' not in keys else DISTINCT[:2]
    metric = [*keys, 'metric', 'point']
    tables = []
    for side, fewer in zip(sides, reduced, strict=True):
        table = fewer[[*metric, *names, *others]].assign(**{
            name: _texts_of_name(side, name) for name in compared
            if _has_name(side, name)})
        tables.append(table.drop_duplicates().astype(str).set_index(metric))
    common = tables[0].index.intersection(tables[1].index)
    tables = [table[table.index.isin(common)] for table in tables]
    for name in [*names, *sorted(compared), *others]:
        if name in others and set(tables[0][name]) & set(tables[1][name]):
            continue            # _with_distinct_words matches it
        values = [
            sorted(set(table[name])) if name in table and (
                table.groupby(level=[*range(len(metric))])[name].nunique() > 1
            ).any() else [] for table in tables]
        if any(values):
            return name, values
    return None


def _has_name(side: pd.DataFrame, name: str) -> bool:
    return any(name in parameters_by_name(text) for column in ('params', 'settings')
               for text in side[column].astype(str).unique())


def _with_whole_parameters_where_mixed(
        masked: list[pd.DataFrame], reduced: list[pd.DataFrame], keys: list[str]
        ) -> list[pd.DataFrame]:
    """The reduced sides. Test cases that would become equal keep all of their
    parameters, so that they are never mixed."""
    sides = []
    for whole, fewer in zip(masked, reduced, strict=True):
        count = fewer.assign(whole=whole['params']).groupby(
            _test_case_columns(keys), observed=True)['whole'].transform('nunique')
        sides.append(fewer.assign(params=fewer['params'].where(
            count == 1, whole['params'])))
    return sides


def _test_case_columns(keys: list[str]) -> list[str]:
    return keys if 'settings' in keys else [*keys, 'settings']


def _with_distinct_words(sides: list[pd.DataFrame], keys: list[str]
                         ) -> list[pd.DataFrame]:
    """The sides with the number of nodes, for example, as a parameter of the test
    cases of which a side has several numbers, so that equal numbers are compared."""
    for name in DISTINCT if 'environ' not in keys else DISTINCT[:2]:
        several = set()
        for side in sides:
            count = side.groupby(keys, observed=True)[name].transform('nunique')
            several |= set(pd.MultiIndex.from_frame(side.loc[count > 1, keys]))
        if several:
            sides = [side.assign(params=side['params'].where(
                ~pd.MultiIndex.from_frame(side[keys]).isin(several),
                side['params'] + f' {name}=' + side[name].astype(str)))
                for side in sides]
    return sides


def _hint_of_mixed_parameters(
        names: tuple[str, str], masked: list[pd.DataFrame],
        reduced: list[pd.DataFrame], keys: list[str]) -> str:
    """The parameters that only one side has, with several values: what to select; ''
    if there is none."""
    hints = []
    for number, (whole, fewer) in enumerate(zip(masked, reduced, strict=True)):
        texts = fewer.assign(whole=whole['params'])
        metric = [*keys, 'metric', 'point']
        other = pd.MultiIndex.from_frame(reduced[1 - number][metric].astype(str))
        texts = texts[pd.MultiIndex.from_frame(
            fewer[metric].astype(str)).isin(other)]
        values: dict[str, set[str]] = {}
        for text in texts['whole'].unique():
            for name, value in parameters_by_name(text).items():
                values.setdefault(name, set()).add(value)
        left = set().union(*map(parameters_by_name, texts['params'].unique()))
        several = {name: min(of_name) for name, of_name in values.items()
                   if len(of_name) > 1 and name not in left}
        if several:
            hints.append(f'; {names[number]} has several values of '
                         + ', '.join(several) + ': give one of each, such as '
                         + ','.join([names[number], *(
                             f'{name}={value}' for name, value in several.items())]))
    return ''.join(hints)


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


def _spread_per_metric(frame: pd.DataFrame, keys: list[str], compared: set[str],
                       alike: dict[str, str]) -> dict[Any, tuple[float, float]]:
    """Metric -> spread and degrees of freedom of all its runs."""
    good = usable_records(frame, include_reference_failures=True)[0]
    good = good[good['metric'] != 'completed']
    # A test case is one only with all that names it.
    table = median_per_session(good.assign(params=good['params']), MATCHED)
    table = table[table['value'] > 0]
    table['point'] = table['point'].map(judged.point_with_unit)
    masked = _without_compared_parameters(table, compared, alike)
    spreads: dict[Any, tuple[float, float]] = {}
    for _, group in table.groupby([*MATCHED, 'metric', 'point'], observed=True,
                                  sort=False):
        if len(group) < detect.FEWEST:
            continue
        spread, free = detect.spread_between_sessions(
            np.log(group['value'].to_numpy()))
        first = masked.loc[group.index[0]]
        key = tuple(str(first[name]) for name in (*keys, 'metric', 'point'))
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
