"""The two sides of `./plumb compare`: their records, and which test cases match.

A side is selected by sessions, dates, or values of columns, parameters and settings.
`match_sides` finds the columns that name a test case on both sides. The columns in
which the sides differ are what is compared. If a side has several values of such a
column within one test case, each value is a part of its own: they are never mixed.
"""
from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from config.families import parameters_by_name

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

#: What is compared, as on the command line; and the records of each side.
Names = tuple[str, str]
Sides = list[pd.DataFrame]


class Matched(NamedTuple):
    """Two sides whose test cases have the same texts in the columns `keys`."""
    names: Names
    sides: Sides
    keys: list[str]
    #: Parameters and settings that are compared, and words that stand for each other.
    compared: set[str]
    alike: dict[str, str]
    #: The sides with all parameters, and without those that only one side has.
    masked: Sides
    reduced: Sides

    @property
    def hint(self) -> str:
        """What to select if no metric matches; '': nothing helps."""
        return _hint_of_mixed_parameters(self.names, self.masked, self.reduced,
                                         self.keys)

    def without_compared(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Records without what is compared, so that their `keys` are those of both
        sides."""
        return _without_compared_parameters(frame, self.compared, self.alike)


def match_sides(names: Names, sides: Sides) -> Matched | list[tuple[Names, Sides]]:
    """The matched sides; or, if a side has several values of a column in which the
    sides differ, a pair of sides for each value.

    :raises ValueError: both sides have several values
    """
    compared = _compared_parameters(names, sides)
    masked = [_without_compared_parameters(side, compared, {}) for side in sides]
    keys, alike = _matching_columns_and_compared_words(*masked)
    masked = [_without_compared_parameters(side, compared, alike) for side in masked]
    reduced = _without_parameters_of_one_side(masked)
    if mixed := _values_of_mixed_sides(sides, reduced, keys, compared):
        return _parts_of_mixed_side(names, sides, *mixed)
    return Matched(names, _with_distinct_words(_with_whole_parameters_where_mixed(
        masked, reduced, keys), keys), keys, compared, alike, masked, reduced)


def _parts_of_mixed_side(names: Names, sides: Sides, column: str,
                         values: list[list[str]]) -> list[tuple[Names, Sides]]:
    """A pair of sides for each value of a column of the side that has several.

    :param values: of each side; [] of a side with one value for each metric
    :raises ValueError: both sides have several
    """
    if all(values):
        raise ValueError('; '.join(
            f'{name} has ' + ' and '.join(f'{column}={value}' for value in of_side)
            for name, of_side in zip(names, values, strict=True))
            + ': select one value for each side, such as '
            f'{names[0]},{column}={values[0][0]} and '
            f'{names[1]},{column}={values[1][0]}')
    (name_a, name_b), (a, b) = names, sides
    if values[0]:
        texts = texts_of_name(a, column)
        return [((f'{name_a},{column}={value}', name_b), [a[texts == value], b])
                for value in values[0]]
    texts = texts_of_name(b, column)
    return [((name_a, f'{name_b},{column}={value}'), [a, b[texts == value]])
            for value in values[1]]


def texts_of_name(frame: pd.DataFrame, name: str) -> pd.Series:
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


def selection_mask(frame: pd.DataFrame, text: str, dates: dict) -> np.ndarray:
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
        return (texts_of_name(frame, name) == value).to_numpy()
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
    raise ValueError(f'{text}: neither a session nor a date, and not a value of '
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


def _compared_parameters(names: Names, sides: Sides
                         ) -> set[str]:
    """The parameters and settings that the sides name and have no value of in common.
    They are what is compared."""
    compared: set[str] = set()
    both = pd.concat(side[[*FIELDS, 'params', 'settings']].astype(str)
                     for side in sides)
    for term in ','.join(names).split(','):
        name, equals, _ = term.strip().partition('=')
        if equals and name not in sides[0]:
            texts = texts_of_name(both, name)
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
            name: texts_of_name(side, name) for name in compared
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
                         + ', '.join(several) + ': select one value of each, such as '
                         + ','.join([names[number], *(
                             f'{name}={value}' for name, value in several.items())]))
    return ''.join(hints)
