"""Reference files from perflogs, as `plumb references calibrate` writes them.

- The centre is the median over sessions of the median within each session.
- A judged metric (family.yaml) may be worse than its centre by its tolerance
  (spread.py). Better is never a fault. All other metrics are written open.
- A metric whose tolerance would be wider than its max tolerance is written open, too:
  it could find nothing. If a derived metric is judged instead, that metric has the
  tolerance (progress.py). `plumb references status` lists such metrics.
- `worst_ratio` stands for the whole curve: the worst ratio of all points to the curve
  of the reference.
- Failed, refused, emulated and made-up measurements are never used. The source of a
  program is part of the key, so that values of two sources never meet.
- An entry that a person set (`$from` with a reason) is kept, and so is every entry of
  a test case that was not measured. Comments and the order of a file are kept.

`git diff` is the review, and `git commit` accepts. For files that git does not track
the difference is printed.
"""
from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from ruamel.yaml.comments import CommentedMap

from config import references as grammar
from config.console import count_with_noun
from config.records.columns import MADE_UP
from config.regular import write_files_atomically
from config.sessions.judged import metric_key

from ..files import is_tracked_by_git
from . import editing
from .progress import (
    KEYS,
    Metrics,
    add_edition_column,
    date_of_each_record,
    families_with_separate_versions,
    judgements_of_curves,
    median_per_session,
    usable_records,
)
from .spread import FEWEST_RUNS


class MeasuredEntry(NamedTuple):
    """An entry of a reference file, from records."""
    family: str
    check: str
    #: Names of the levels (`$index`), and their values without escaping.
    levels: list[str]
    keys: list[str]
    #: metric -> [value, lower, upper, unit].
    values: CommentedMap
    source: str
    date: str


def write_references(frame: pd.DataFrame, folder: Path, new_level: bool = False
                     ) -> bool:
    """Write the references that records of a system give, and print what changed.

    :param frame: records of a system, as records.read gives them
    :param folder: folder of the reference files
    :param new_level: also use sessions that only their reference failed
    :returns: whether there is any
    :raises ValueError: a file is broken
    """
    entries, notes = measured_entries(frame, new_level)
    texts: dict[str, bytes] = {}
    for family in dict.fromkeys(entry.family for entry in entries):
        path = folder / f'{family}.yaml'
        of_family = [entry for entry in entries if entry.family == family]
        document = editing.read_editable_yaml(path)
        if not document:
            document.yaml_set_start_comment(
                f'References of family {family}: [centre, lower, upper, unit]; '
                'tolerances are fractions of the centre.\nWritten by `./plumb '
                'references calibrate`. It keeps an entry whose $from has a reason.')
        notes += put_entries(document, grammar.read(path), of_family)
        texts[path.name] = editing.dump_yaml(document)
    lines = [line for name, text in texts.items()
             for line in difference_lines(folder / name, text.decode())]
    write_files_atomically(folder, texts)
    print(*lines, sep='\n', end='\n' * bool(lines))
    sys.stdout.flush()
    for note in notes if entries else [*notes, 'no reference was written']:
        print(f'plumb references: {note}', file=sys.stderr)
    return bool(entries)


def put_entries(document: CommentedMap, before: grammar.File,
                entries: list[MeasuredEntry]) -> list[str]:
    """Put entries into a file; return notes on those that were kept.

    :param document: the file, for editing
    :param before: the same file, as it is read
    :raises ReferenceError_: a check class of the file has another `$index`
    """
    notes = []
    for entry in entries:
        by_hand = [one for one in before.matching_entries(entry.check, entry.keys)
                   if one.is_set_by_hand]
        if by_hand:
            notes.append(f'{before.path}:{by_hand[0].line}: kept, because a person set '
                         f'it: {by_hand[0].source["reason"]}')
            continue
        place = document.setdefault(
            editing.quote_yaml_string(entry.check),
            CommentedMap({'$index': editing.flow_style_list(entry.levels)}))
        if [*place['$index']] != entry.levels:
            raise grammar.ReferenceError_(
                f'{before.path}: {entry.check}: $index must be '
                f'[{", ".join(entry.levels)}]; correct it, or remove the check')
        *levels, last = (editing.quote_yaml_string(_escape_reframe_key(key))
                         for key in entry.keys)
        for key in levels:
            place = place.setdefault(key, CommentedMap())
        place[last] = entry.values
        if grammar.FROM not in document:
            document.insert(0, grammar.FROM, CommentedMap())
        document[grammar.FROM].setdefault(entry.check, CommentedMap())[
            editing.quote_yaml_string(grammar.source_key([*levels, last]))
        ] = editing.flow_style_mapping({
            'source': editing.quote_yaml_string(entry.source),
            'date': editing.quote_yaml_string(entry.date)})
    return notes


def difference_lines(path: Path, text: str) -> list[str]:
    """What a new text changes in a file: one line if git shows the rest."""
    try:
        before = path.read_text()
    except FileNotFoundError:
        return [f'{path}: new file']
    if before == text:
        return [f'{path}: no change']
    if is_tracked_by_git(path):
        return [f'{path}: changed; git diff shows how, and git commit accepts it']
    return [*difflib.unified_diff(before.splitlines(), text.splitlines(),
                                  f'{path} (before)', str(path), lineterm='', n=1)]


def measured_entries(frame: pd.DataFrame, new_level: bool = False
                     ) -> tuple[list[MeasuredEntry], list[str]]:
    """Entries from records, in the order of files; and notes on what was left out.

    :param frame: as records.read gives it
    :param new_level: also use sessions that only their reference failed
    """
    made_up = frame['source'] == MADE_UP
    good, notes = usable_records(frame[~made_up], new_level)
    if made_up.any():
        notes.append(f"{frame['session'][made_up].nunique()} sessions left out: made "
                     'up by `./plumb demo`')
    entries, too_few = [], 0
    for case_key, case in add_edition_column(good).groupby(KEYS, observed=True):
        (family, check, system, partition, environ, source, edition,
         params, settings, _) = case_key
        if len(case[['program', 'num_nodes', 'num_tasks']].drop_duplicates()) > 1:
            notes.append(f'{check} {params} {settings}: left out, because its '
                         'records have several programs or numbers of ranks')
        elif case['session'].nunique() < FEWEST_RUNS:
            too_few += 1
        else:
            versions = {'version': edition} \
                if family in families_with_separate_versions() else {}
            levels = {'$partition': f'{system}:{partition}', '$environ': environ,
                      'source': source, **versions, 'params': params,
                      'settings': settings}
            entries.append(MeasuredEntry(
                family, check, [*levels], [*levels.values()],
                _measured_values(family, case), _source_text(case),
                f"{case['time'].max():%Y-%m-%d}"))
    if too_few:
        notes.append(f'{count_with_noun(too_few, "test case")} left out: fewer than '
                     f'{FEWEST_RUNS} sound sessions')
    return sorted(entries, key=lambda entry: entry[:4]), notes


def _source_text(records: pd.DataFrame) -> str:
    """The sessions and the program of an entry."""
    days = {*date_of_each_record(records)}
    program, version, spec, nodes, commit = (
        ', '.join(sorted({*map(str, records[name])} - {''}))
        for name in ('program', 'version', 'spec', 'nodes', 'commit'))
    return '; '.join(filter(None, [
        f'{grammar.MEASURED}: '
        f'{count_with_noun(records["session"].nunique(), "session")} on '
        f'{count_with_noun(len(days), "day")}',
        ' '.join(filter(None, [program, version, spec])), f'nodes {nodes}',
        f'suite {commit}' if commit else '']))


def _measured_values(family: str, records: pd.DataFrame) -> CommentedMap:
    """metric -> [value, lower, upper, unit] of a test case. A metric with too few
    sessions is left out."""
    metrics: dict[tuple[str, int | None], dict[str, float]] = {}
    for metric, size, run, value in median_per_session(
            records[~records['metric'].isin(['worst_ratio', 'completed'])],
            []).itertuples(index=False):
        point = None if math.isnan(size) else int(size)
        metrics.setdefault((metric, point), {})[run] = value
    return reference_values(
        family, {point: runs for point, runs in metrics.items()
                 if len(runs) >= FEWEST_RUNS},
        dict(zip(records['session'], date_of_each_record(records), strict=True)))


def reference_values(family: str, metrics: Metrics, days: Mapping[str, str] = {}
                     ) -> CommentedMap:
    """metric -> [value, lower, upper, unit] of a test case; a judged metric has a
    tolerance if it is no wider than its max tolerance.

    :param days: the day of each session; empty: all are of one day
    """
    tolerances = {
        judgement.metric: editing.limit_tolerance_for_reframe(
            judgement.metric, judgement.tolerance)
        for judgement in judgements_of_curves(family, metrics, days)
        if judgement.is_narrow_enough}
    values = CommentedMap()
    for (metric, size), runs in metrics.items():
        name = metric_key(metric, size)
        values[name] = editing.reference_yaml_entry(
            name, float(np.median([*runs.values()])), tolerances.get(name))
    if 'worst_ratio' in tolerances:
        values['worst_ratio'] = editing.reference_yaml_entry(
            'worst_ratio', 1.0, tolerances['worst_ratio'])
    return values


def _escape_reframe_key(text: str) -> str:
    """A key that ReFrame matches with this text (it takes keys as regular
    expressions when none is equal)."""
    return re.sub(r'[][*+?(){}|^$\\]', r'\\\g<0>', text)
