"""Labels of test cases and of their series in plots.

The label of a series has the fields in which the test cases of a plot differ:
parameters first, then the place. If a plot would have too many series, they
are split over several plots.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from config.families import parameters_by_name, printed_name

#: What can tell two series of a program apart, most telling first; the
#: parameters of the test case come before these.
FIELDS = ('num_nodes', 'num_tasks', 'tasks_per_node', 'environ', 'partition',
          'system', 'source', 'version', 'stack', 'emulated')
#: Series of a program in a metric of their own, and of several programs.
MAX_SERIES, MAX_TOGETHER = 4, 6
#: Columns that name a test case; with `params` and `settings` they make one `kind`.
WHO = ('family', 'program', 'check')
#: What a choice (`where`, `by`, `panel`) may name besides parameters.
KNOWN = (*WHO, *FIELDS)

Names = tuple[str, ...]


def group_number_of_records(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """Records with the same texts in the columns have the same number, from
    0 in the order in which they appear."""
    key, size = np.zeros(len(frame), np.int64), 1
    for name in columns:
        column = frame[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            codes, many = column.cat.codes, len(column.cat.categories)
        else:
            codes, categories = pd.factorize(column)
            many = len(categories)
        if size * (many + 1) >= 1 << 62:
            key, there = pd.factorize(key)  # room for the next column
            size = len(there)
        key = key * (many + 1) + np.asarray(codes, np.int64) + 1
        size *= many + 1
    return pd.factorize(key)[0]


def mask_preferring_median_to_repetitions(frame: pd.DataFrame,
                                          metric: np.ndarray | None = None
           ) -> np.ndarray:
    """Whether each record counts for its run: all but single repetitions whose
    median (repetition 0) is there.

    :param metric: the number of each record's metric of one run, where known
    """
    if metric is None:
        metric = group_number_of_records(
            frame, ['test_case', 'copy', 'session', 'metric', 'point']
        )
    repetition = frame['repetition'].to_numpy(np.int64)
    minimum = np.full(metric.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(minimum, metric, repetition)
    return (repetition == 0) | (minimum[metric] > 0)


def parameter_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """The parameters and settings of each record: a column of text each, '' if unset.

    Same index as `frame`; read from `params` and `settings` ("name=value name=value").
    """
    texts = (frame['params'].astype(str) + ' ' + frame['settings'].astype(str)
             ).str.strip()
    known = {text: parameters_by_name(text) for text in texts.unique()}
    names = list(dict.fromkeys(n for p in known.values() for n in p))
    return pd.DataFrame(
        {n: texts.map({t: p.get(n, '') for t, p in known.items()})
         for n in names}, index=frame.index)


def assign_series_kinds(frame: pd.DataFrame, valid: np.ndarray
          ) -> tuple[np.ndarray, pd.DataFrame]:
    """The kind of each record: a number per record, and a table of the kinds.

    :param frame: as records.read gives it
    :param valid: records of runs that no guard refused; others are apart
    :returns: the numbers, and a table with a row for each: texts of WHO, the
        parameters, settings and FIELDS, all `params` and `settings`, and whether it
        is `valid`
    """
    number = group_number_of_records(frame, [*WHO, 'params', 'settings', *FIELDS])
    numbers = pd.factorize(2 * number + valid)[0]
    at = np.unique(numbers, return_index=True)[1]
    first = frame.iloc[at]
    # A parameter that is called like a column says the same.
    params = parameter_columns(first).drop(columns=[*KNOWN], errors='ignore')
    return numbers, pd.concat(
        [first[list(WHO)].astype(str), params,
         first[list(FIELDS)].astype(object).map(
             lambda value: '' if pd.isna(value) else str(value))],
        axis=1).assign(params=first['params'].astype(str),
                       settings=first['settings'].astype(str), valid=valid[at]
                       ).reset_index(drop=True)


def series_labels_and_panels(table: pd.DataFrame, by: Names = (), panel: Names = (),
                             maximum: int = 0) -> pd.DataFrame:
    """`label` and `panel` (what splits a metric) of each kind.

    :param table: some rows of what `assign_series_kinds` returns, to be told apart
    :param by: fields that series differ by, if they differ at all
    :param panel: fields that split a metric
    :param maximum: series in a plot, whatever they differ by; 0: as many as
        there are colours
    """
    by = tuple(name for name in by if name in table)
    panel = tuple(name for name in panel if name in table)
    fields = [*panel, *by, *(name for name in table if name not in (
        *panel, *by, *WHO, 'params', 'settings', 'valid'))]
    fields += [name for name in ('program', 'check') if name in table
               and name not in fields]
    rows = [tuple(row) for row in table[fields].itertuples(index=False)]
    cases = list(dict.fromkeys(rows))
    telling = list(_distinguishing_fields(cases, fields))
    split = [name for name in panel if name in telling]
    listed, maximum = (
        maximum > 0,
        maximum or (MAX_TOGETHER if by else MAX_SERIES),
    )
    while not listed and _max_series_per_panel(cases, fields, telling, split) > maximum:
        rest = [f for f in telling if f not in (*split, *by)]
        if not rest or len(telling) - len(split) < 2:
            break
        split.append(min(rest, key=lambda f: len(
            {case[fields.index(f)] for case in cases})))
    kept = [name for name in telling if name not in split]
    names = {case: (_test_case_label(kept, case, fields),
                    _test_case_label(split, case, fields)) for case in cases}
    _split_large_panels(names, maximum)
    return pd.DataFrame([names[row] for row in rows],
                        columns=['label', 'panel'], index=table.index)


def _distinguishing_fields(
    cases: list[tuple], fields: list[str]
) -> Iterator[str]:
    """The fields that tell the test cases apart, without those that follow
    from others before them."""
    group: list[tuple] = [()] * len(cases)
    for n, name in enumerate(fields):
        finer = [(*key, case[n]) for key, case in zip(group, cases,
                                                      strict=True)]
        if len(set(finer)) > len(set(group)):
            group = finer
            yield name


def _max_series_per_panel(cases: list[tuple], fields: list[str], telling: list[str],
                          split: list[str]) -> int:
    """The largest number of series in a metric when `split` splits them."""
    def values_of_fields(case: tuple, names: list[str]) -> tuple:
        return tuple(case[fields.index(name)] for name in names)

    distinct = {values_of_fields(case, telling): values_of_fields(case, split)
                for case in cases}
    return max(Counter(distinct.values()).values(), default=0)


def _split_large_panels(names: dict[tuple, tuple[str, str]], maximum: int) -> None:
    """Splits metrics of too many series by their number."""
    panels: dict[str, list[tuple]] = {}
    for case, (_, panel) in names.items():
        panels.setdefault(panel, []).append(case)
    for panel, cases in panels.items():
        parts = -(-len(cases) // maximum)
        if parts == 1:
            continue
        for n, case in enumerate(sorted(cases, key=lambda c: names[c][0])):
            names[case] = names[case][0], ', '.join(filter(None, [
                panel, f'{n * parts // len(cases) + 1} of {parts}']))


def _test_case_label(names: list[str], case: tuple, fields: list[str]) -> str:
    """The label of a test case: 'inter_node, 2 nodes'."""
    words = []
    for name in names:
        value = case[fields.index(name)]
        if name == 'program':
            value = printed_name(
                value, case[fields.index('source')] if 'source' in fields else '')
        if not value:  # not known before the test case ran, or not its own
            continue
        count = {'num_nodes': 'node', 'num_tasks': 'rank',
                 'tasks_per_node': 'per node'}.get(name)
        if name == 'emulated':
            words += ['EMULATED'] * (value == 'True')
        elif count and value.isdecimal():
            words.append(f"{value} {count}" + 's' * (
                value != '1' and name != 'tasks_per_node'))
        elif re.fullmatch(r'[\d.]*|True|False', value):
            words.append(f'{name} {value}')
        else:
            words.append(value)
    return ', '.join(words)
