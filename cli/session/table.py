"""The table of `plumb run`: one row per test case and copy.

Results come from the records alone (postprocess/results.py, as for the page).
"""
from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from config import console
from config.families import families
from config.places import CALIBRATE
from config.records import units
from config.sessions import judged
from postprocess import results
from postprocess.names import short_name
from postprocess.records.folders import folders_of_measurements, log_of_failure
from postprocess.references.progress import (
    missing_reference_text,
    progress_by_test_case,
    progress_of_test_cases,
)

#: Part of a note of a check without a reference that people get in other words.
LACKS = re.compile(rf'(no reference[^;]*): {re.escape(CALIBRATE)}[^;]*')
#: Metrics in a row, at most, if none has a tolerance.
MAXIMUM = 3

#: Name of a metric, and message size in B; None: of the whole measurement.
MetricKey = tuple[str, int | None]


class Row(NamedTuple):
    """A row of the table."""
    #: The short name (postprocess/names.py), and the copy.
    name: str
    #: One of results.ORDER.
    result: str
    #: Why it failed, or its values.
    text: str
    #: What else the reader should know.
    note: str = ''
    #: Whether it waits for a reference.
    waits: bool = False
    #: Short ID, which `plumb run` takes.
    test_case: str = ''
    #: How often it was measured in this session.
    measurements: int = 1
    #: If it failed: the log with the reason; '': it was removed.
    log: str = ''
    #: Whether it is inconclusive for reasons that may vanish.
    transient: bool = False
    #: What could not be checked, separated by `; `.
    not_checked: str = ''

    @property
    def details(self) -> list[str]:
        """What the terminal shows below the name."""
        texts = [self.text, self.note and f'({self.note})']
        if self.result in results.FAILED:
            texts += [self.log and f'log {self.log}']
        return [text for text in texts if text]


def rows_of_session(frame: pd.DataFrame, session: str, folder: str) -> list[Row]:
    """The rows of a session.

    :param frame: records: of this session, and of those before it
    :param folder: perflogs
    """
    report = str(Path(folder, 'sessions', f'{session}.json'))
    folders = folders_of_measurements([report])
    # Reads all records; only for test cases that wait for a reference.
    of_session = frame[frame['session'] == session]
    progress_of = functools.cache(lambda: progress_by_test_case(
        of_session, progress_of_test_cases(frame)))
    rows = []
    for one in results.results_of_session(frame, session).values():
        name = short_name(one.check, one.params, one.settings, one.test_case,
                          one.source) + f' {one.copy}' * bool(one.copy)
        records = of_session[(of_session['test_case'] == one.test_case)
                             & (of_session['copy'] == one.copy)]
        last = records.iloc[-1]
        transient = bool(last['transient'])
        if one.is_failed:
            text = one.why
            if one.result == 'flaky':
                text += ' (and passed when measured again)'
            elif text and one.measurements > 1 and one.has_run and not one.note:
                text += f' (in each of {one.measurements} measurements)'
            rows.append(Row(
                name, one.result, text, one.note, False, one.test_case,
                one.measurements, _short_path(
                    log_of_failure(folders, one.measurement, report)),
                transient, str(last['not_checked'])))
            continue
        note = str(last['no_reference'])
        lacks = LACKS.search(note)
        if lacks:
            note = note.replace(lacks[0], missing_reference_text(
                progress_of().get(one.test_case), one.system,
                '' if lacks[1] == 'no reference yet' else lacks[1]))
        rows.append(Row(
            name, one.result, value_text(one.family, records),
            '; '.join(filter(None, [note, one.note])),
            bool(lacks) and one.result == 'no_reference', one.test_case,
            one.measurements, transient=transient,
            not_checked=str(last['not_checked'])))
    return rows


def not_checked_lines(rows: Iterable[Row]) -> list[str]:
    """A line per thing that could not be checked, with the number of test cases."""
    counts = Counter(text for row in rows for text in row.not_checked.split('; ')
                     if text)
    return [f'not checked in {console.count_with_noun(number, "test case")}: {text}'
            for text, number in counts.most_common()]


def _short_path(path: str) -> str:
    """A path relative to the working directory, if it is below it."""
    near = os.path.relpath(path) if path else ''
    return path if near.startswith('..') else near


def value_text(family: str, records: pd.DataFrame) -> str:
    """The values that the row of a test case shows: those with a tolerance, else the
    headline of its family.

    :param records: of one measurement
    """
    records = records[(records['metric'] != 'completed') & records['value'].notna()]
    # Repetition 0, if it exists, is the median over all repetitions.
    repetition = records.groupby(['metric', 'point'], dropna=False, observed=True
                                 )['repetition']
    records = records[records['repetition'] == repetition.transform('min')]
    values = {(str(row.metric), judged.point_in_bytes(row.point)): row
              for row in records.itertuples()}
    shown = [key for key, row in values.items()
             if not pd.isna(row.lower) or not pd.isna(row.upper)]
    if not shown and family in families():
        shown = _headline(families()[family].headline, values)
    return ', '.join(_metric_text(*key, values[key])
                     for key in shown or [*values][:1])


def _headline(rules: Iterable[Mapping[str, Any]], values: Collection[MetricKey]
              ) -> list[MetricKey]:
    """The metrics that rules of family.yaml name, with their sizes."""
    headline: list[MetricKey] = []
    for rule in rules:
        key = judged.key_of_rule(rule, values)
        if key and key not in headline and not (headline and rule.get('alone')):
            headline.append(key)
    return headline[:MAXIMUM]


def _metric_text(metric: str, size: int | None, row: Any) -> str:
    unit = str(row.unit)
    text = f'{metric} {units.value_text(row.value, unit)}'
    if size is not None:
        text += f' at {units.size_text(size)}'
    if row.reference and not pd.isna(row.reference):
        text += f' (reference {units.value_text(row.reference, unit)})'
    return text
