"""Accepted tolerances become narrower as sessions of more days accumulate.

A nightly session calls `narrow_accepted_tolerances`. No person needs to accept a change
that only makes references stricter: the limit of each changed metric is within the
accepted one. Whatever is wider, or new, needs `./plumb references accept`.

Each change picks the metrics whose variance came out small by chance. So the first one
needs ENOUGH_DAYS (spread.py), later ones twice as many days as the one before, and a
tolerance keeps RESERVE above what the sessions show (measured by bench/references.py).
"""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from config.references import (
    better_direction,
    iterate_reference_entries,
    tolerances_worse_and_better,
)
from config.sessions.judged import split_metric_key

from ..files import git_commit_hint, write_files_atomically
from . import editing, proposal
from .acceptance import Refused, metrics_set_by_hand
from .spread import ENOUGH_DAYS, FLOORS, round_up_to_hundredth

#: Factor by which a tolerance is wider than the sessions show.
RESERVE = 1.1


def narrow_accepted_tolerances(frame: pd.DataFrame, system: str, folder: Path
                               ) -> list[str]:
    """Narrows the tolerances of the accepted files; lines on what was done.

    :param frame: all records, as perflogs.read gives them
    :param folder: the reference files of the site
    :raises ValueError: a reference file is broken
    """
    try:
        proposed, _ = proposal.propose_references(
            proposal.select_records(frame, system))
    except Refused:
        return []
    lines, made = [], {}
    for family, document in proposed.items():
        path = folder / f'{family}.yaml'
        accepted = editing.read_editable_yaml(path)
        entries = dict(iterate_reference_entries(accepted))
        narrowed, wider = 0, 0
        for keys, entry in iterate_reference_entries(document):
            before = entries.get(keys)
            if before and _has_enough_days(before, entry):
                changes, too_narrow = _changes_of_entry(before, entry)
                _write_changes(before, entry, changes)
                narrowed += len(changes)
                wider += too_narrow
        if narrowed:
            made[path.name] = editing.dump_yaml(accepted)
            lines.append(f'{path}: {_tolerance_count(narrowed)} narrowed within the '
                         f'accepted limits{git_commit_hint(path)}')
        if wider:
            lines.append(f'{path}: {_tolerance_count(wider)} should be wider, by later '
                         'sessions; look at them with ./plumb references propose')
    write_files_atomically(folder, made)
    return lines


def _has_enough_days(before: Mapping, entry: Mapping) -> bool:
    """Whether a proposed entry is of enough more days than the accepted one."""
    days = (before.get('$from') or {}).get('days')
    return days is not None and entry['$from']['days'] >= max(ENOUGH_DAYS, 2 * days)


def _changes_of_entry(before: Mapping, entry: Mapping
                      ) -> tuple[dict[str, tuple[float, float]], int]:
    """Metric -> centre and narrower tolerance; and how many should be wider."""
    changes, wider = {}, 0
    for metric, line in before.items():
        if (metric.startswith('$') or metric in metrics_set_by_hand(before)
                or metric not in entry):
            continue
        old, _ = tolerances_worse_and_better(metric, line)
        seen, _ = tolerances_worse_and_better(metric, entry[metric])
        if old is None or seen is None:
            continue
        new = refined_tolerance(
            metric, (line[0], abs(old)), (entry[metric][0], abs(seen)))
        if new is not None:
            changes[metric] = entry[metric][0], new
        wider += abs(seen) > abs(old)
    return changes, wider


def refined_tolerance(metric: str, accepted: tuple[float, float],
                      seen: tuple[float, float]) -> float | None:
    """The tolerance that replaces the accepted one; None: it stays.

    :param metric: like `latency@8B`
    :param accepted: centre and tolerance (a fraction) of the accepted reference
    :param seen: the same from all sessions
    """
    base, _ = split_metric_key(metric)
    tolerance = seen[1] if seen[1] <= FLOORS.get(base, FLOORS['']) \
        else round_up_to_hundredth(RESERVE * seen[1])
    sign = 1 if better_direction(metric) == 'lower' else -1
    within = sign * (accepted[0] * (1 + sign * accepted[1])
                     - seen[0] * (1 + sign * tolerance)) >= 0
    return tolerance if within and tolerance < accepted[1] else None


def _write_changes(before: Any, entry: Mapping,
                   changes: Mapping[str, tuple[float, float]]) -> None:
    """Writes new centres and tolerances, and what they were made of."""
    for metric, (centre, tolerance) in changes.items():
        before[metric] = editing.reference_yaml_entry(metric, centre, tolerance)
        before['$from']['tolerances'][metric] = editing.flow_style_list(
            [editing.round_to_six_digits(centre), tolerance])
    if changes:
        for name in ('runs', 'days', 'last'):
            before['$from'][name] = entry['$from'][name]


def _tolerance_count(number: int) -> str:
    return f'{number} tolerance{"s" * (number > 1)}'
