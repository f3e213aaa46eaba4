"""Accepted tolerances become narrower as sessions of more days accumulate.

A nightly session calls `narrow_accepted_tolerances`. No person needs to accept a change
that only makes references stricter: the centre of each metric stays, and its limit is
within the accepted one. So a slow drift is never accepted without a person. Whatever is
wider, or new, needs `./plumb references accept`.

`worst_ratio` is relative to the accepted curves. So what the sessions show of it is
multiplied by how much worse than accepted the centre of the worst point is.

Each change picks the metrics whose variance came out small by chance. So the first one
needs ENOUGH_DAYS (spread.py), later ones twice as many days as the one before, and a
tolerance keeps RESERVE above what the sessions show (measured by bench/references.py).
"""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from config.console import count_with_noun
from config.places import site_option
from config.references import (
    better_direction,
    iterate_reference_entries,
    tolerances_worse_and_better,
)
from config.sessions.judged import (
    judged_metric_names,
    split_metric_key,
    worsening_of_metric,
)

from ..files import git_commit_hint, write_files_atomically
from . import editing, proposal
from .acceptance import Refused, metrics_set_by_hand
from .spread import ENOUGH_DAYS, FLOORS, round_up_to_hundredth

#: Factor by which a tolerance is wider than the sessions show.
RESERVE = 1.1


def narrow_accepted_tolerances(frame: pd.DataFrame, system: str, folder: Path
                               ) -> list[str]:
    """Narrows the tolerances of the accepted files; lines on what was done.

    :param frame: all records, as records.read gives them
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
                changes, too_narrow = _changes_of_entry(family, before, entry)
                _write_changes(before, entry, changes)
                narrowed += len(changes)
                wider += too_narrow
        if narrowed:
            made[path.name] = editing.dump_yaml(accepted)
            lines.append(f'{path}: {count_with_noun(narrowed, "tolerance")} narrowed '
                         f'within the accepted limits{git_commit_hint(path)}')
        if wider:
            lines.append(f'{path}: {count_with_noun(wider, "tolerance")} should be '
                         'wider, by later sessions; look at them with ./plumb '
                         f'references propose{site_option(system)}')
    write_files_atomically(folder, made)
    return lines


def _has_enough_days(before: Mapping, entry: Mapping) -> bool:
    """Whether a proposed entry is of enough more days than the accepted one."""
    days = (before.get('$from') or {}).get('days')
    return days is not None and entry['$from']['days'] >= max(ENOUGH_DAYS, 2 * days)


def _changes_of_entry(family: str, before: Mapping, entry: Mapping
                      ) -> tuple[dict[str, float], int]:
    """Metric -> narrower tolerance; and how many should be wider."""
    changes, wider = {}, 0
    for metric, line in before.items():
        if (metric.startswith('$') or metric in metrics_set_by_hand(before)
                or metric not in entry):
            continue
        old, _ = tolerances_worse_and_better(metric, line)
        seen, _ = tolerances_worse_and_better(metric, entry[metric])
        if old is None or seen is None:
            continue
        centre = _ratio_of_worst_point(family, before, entry) \
            if metric == 'worst_ratio' else entry[metric][0]
        new = refined_tolerance(metric, (line[0], abs(old)), (centre, abs(seen)))
        if new is not None:
            changes[metric] = new
        wider += abs(seen) > abs(old)
    return changes, wider


def _ratio_of_worst_point(family: str, before: Mapping, entry: Mapping) -> float:
    """How many times as bad as accepted the worst point of the curves is."""
    names = judged_metric_names(family)
    return max((
        worsening_of_metric(family, base, better_direction(metric), entry[metric][0],
                            before[metric][0])
        for metric in before.keys() & entry.keys() if '@' in metric
        for base, _ in [split_metric_key(metric)] if base in names), default=1.0)


def refined_tolerance(metric: str, accepted: tuple[float, float],
                      seen: tuple[float, float]) -> float | None:
    """The tolerance about the accepted centre that replaces the accepted one; None: it
    stays.

    :param metric: like `latency@8B`
    :param accepted: centre and tolerance (a fraction) of the accepted reference
    :param seen: the same from all sessions
    """
    base, _ = split_metric_key(metric)
    floor = FLOORS.get(base, FLOORS[''])
    sign = 1 if better_direction(metric) == 'lower' else -1
    limit = seen[0] * (1 + sign * (
        seen[1] if seen[1] <= floor else RESERVE * seen[1]))
    tolerance = max(floor, round_up_to_hundredth(sign * (limit / accepted[0] - 1)))
    return tolerance if tolerance < accepted[1] else None


def _write_changes(before: Any, entry: Mapping,
                   changes: Mapping[str, float]) -> None:
    """Writes new tolerances, and what they were made of."""
    for metric, tolerance in changes.items():
        centre = before[metric][0]
        before[metric] = editing.reference_yaml_entry(metric, centre, tolerance)
        before['$from']['tolerances'][metric] = editing.flow_style_list(
            [editing.round_to_six_digits(centre), tolerance])
    if changes:
        for name in ('runs', 'days', 'last'):
            before['$from'][name] = entry['$from'][name]
