"""Test cases that wait for a reference or a tolerance.

Their results are in postprocess/results.py.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from config.console import count_with_noun
from config.places import CALIBRATE, site_option
from config.sessions import judged

from . import naming
from .references.progress import MIXED, Progress, progress_of_test_cases
from .references.spread import FEWEST_RUNS
from .results import newest_records


def progress_by_test_case(records: pd.DataFrame, ahead: list[Progress]
                           ) -> dict[str, Progress]:
    """Test case -> its progress, with the source and version of these records."""
    known = {(p.test_case, p.source, p.edition): p for p in ahead}
    progress_of_case = {}
    for case, source, version in records[['test_case', 'source', 'version']].astype(
            str).drop_duplicates().itertuples(index=False):
        for edition in ('', version):
            if (case, source, edition) in known:
                progress_of_case[case] = known[case, source, edition]
    return progress_of_case


@dataclass
class Standing:
    """Test cases by what they have: a tolerance, a reference, or neither; in
    the newest session of each."""
    #: Test cases that a tolerance judged.
    judged: int = 0
    #: Test cases without a reference: a record of each, and what it waits for.
    waiting: list[tuple[Any, str]] = field(default_factory=list)
    #: Metrics that nothing judges in test cases with a reference: a record of
    #: the test case, the metric, and what it waits for.
    no_tolerance: list[tuple[Any, str, str]] = field(default_factory=list)


def summarize_reference_status(frame: pd.DataFrame, ahead: list[Progress] | None = None
             ) -> Standing:
    """Counts test cases with a tolerance, and lists what others lack.

    :param frame: as records.read gives it
    :param ahead: `progress_of_test_cases` of these records; None: it is computed
    """
    standing_, records = Standing(), newest_records(frame)
    far = progress_by_test_case(
        records, progress_of_test_cases(frame) if ahead is None else ahead
    )
    records = records[records['metric'] != 'completed']
    case = naming.group_number_of_records(records, ['test_case'])
    tolerances = records[['lower', 'upper']].notna().any(axis=1).to_numpy()
    inconclusive = records['result'].eq('inconclusive').to_numpy()
    order = np.argsort(case, kind='stable')
    for at in np.split(order, np.flatnonzero(np.diff(case[order])) + 1):
        if not len(at) or inconclusive[at].any():
            continue
        rows, has_tolerance = records.iloc[at], tolerances[at]
        first = next(rows[:1].itertuples())
        standing_.judged += bool(has_tolerance.any())
        without_tolerance = _metrics_without_tolerance(
            str(first.family), rows, has_tolerance
        )
        if not without_tolerance:
            continue
        if rows['reference'].notna().any():
            standing_.no_tolerance += [
                (first, metric, 'no tolerance') for metric in without_tolerance
            ]
        elif (
            not has_tolerance.any() and rows['result'].eq('no_reference').all()
        ):
            standing_.waiting.append(
                (first, missing_reference_text(
                    far.get(str(first.test_case)), str(first.system))))
    return standing_


def _metrics_without_tolerance(
    family: str, rows: pd.DataFrame, has_tolerance: np.ndarray
) -> list[str]:
    """Metrics of a test case that are to be judged, and that no tolerance
    judges, nor one of the metric that is judged instead."""
    if family not in judged.judged_rules_by_family():
        return []
    points = [(str(metric), judged.point_in_bytes(point)) for metric, point in zip(
        rows['metric'], rows['point'], strict=True)]
    there = {judged.metric_key(*point) for point, tolerance in zip(
        points, has_tolerance, strict=True) if tolerance}
    return sorted(metric for metric in judged.judged_metric_keys(family, points)
                  if not {metric,
                          judged.derived_replacement_metric(family, metric)} & there)


def missing_reference_text(case: Progress | None, site: str, lacks: str = '') -> str:
    """The text for people of a test case that waits for a reference.

    :param case: None: it has no sound session
    :param site: of the test case
    :param lacks: what is missing, where it is not simply a reference
    """
    if case and case.is_mixed:
        todo = MIXED
    elif case is None or case.missing_runs:
        todo = 'needs ' + count_with_noun(
            case.missing_runs if case else FEWEST_RUNS, 'more session')
    else:
        todo = f'enough sessions exist; run {CALIBRATE}{site_option(site)}'
    return f'{lacks or "no reference"}: {todo}'
