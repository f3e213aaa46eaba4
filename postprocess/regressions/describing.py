"""Regressions as data: what, where, since when, how much, what changed, what to do."""
from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from config import places

from .. import results
from . import changes, detect
from .deviations import Deviations
from .finding import Member, Regression
from .grouping import Worse

#: A spell at the new level before: first and last date, number of sessions.
Spell = tuple[str, str, int]


class _Size(NamedTuple):
    """How large a change is; the fields are those of Regression."""
    before: float | None = None
    now: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def regressions_of_metrics(now: Deviations, rows: Collection[int],
                           better: bool = False) -> list[Regression]:
    """A regression for each metric of a test case.

    Metrics that no family.yaml names are part of that of the first judged metric of
    their test case.

    :param rows: numbers of metrics
    :param better: they improved
    """
    names = now.hist.metrics['metric'].tolist()
    groups: dict[tuple[int, str], list[int]] = {}
    main: dict[int, str] = {}
    for row in sorted(rows, key=lambda row: not now.named[row]):
        case = int(now.of[row])
        main.setdefault(case, names[row])
        name = names[row] if now.named[row] else main[case]
        groups.setdefault((case, name), []).append(int(row))
    return [_regression_of_metric(now, group, better) for group in groups.values()]


def muted_regressions(now: Deviations) -> list[Regression]:
    """A regression for each muted metric that is worse."""
    return [dataclasses.replace(_regression_of_metric(now, [row]), reason=mute.reason,
                                until=str(mute.until))
            for row, mute in sorted(now.muted.items())
            if now.reported[row] and now.state[row] == detect.WORSE]


def _regression_of_metric(now: Deviations, rows: list[int], better: bool = False
                          ) -> Regression:
    """The regression of the first of several metrics of a test case."""
    hist, walk, row = now.hist, now.walk, rows[0]
    start, last = int(walk.start[row]), int(hist.last_session_positions[row])
    centre = float(walk.centre[row])
    change = detect.compare_with_baseline(
        hist.x[row, start:last + 1], centre, float(walk.spread[row]),
        float(walk.phi[row]), int(walk.sessions[row]), float(walk.df[row]))
    before, after, *ends = [now.value_of_level(row, centre + size) for size in (
        0.0, change.size, change.low, change.high)]
    size = _Size(before, after)
    if before:
        low, high = sorted(end / before for end in ends)
        size = _Size(before, after, after / before, low, high)
    spells = [] if better else _earlier_spells(
        now, hist.x[row, :start], hist.at[row, :start], centre, change)
    regression = _regression(now, 'metric', '', rows, int(hist.at[row, start]),
                             last - start + 1, size, spells)
    return dataclasses.replace(regression, todo='') if better else regression


def regression_of_group(now: Deviations, worse: Worse) -> Regression:
    """The regression of a group."""
    metrics, group, start = now.hist.metrics, worse.group, worse.start
    recent = np.where(np.isfinite(now.z), now.z, 0.0)[:, start:worse.last + 1].sum(1)
    rows: list[int] = []
    for case in worse.cases:
        of_case = np.flatnonzero((now.of == case) & (recent > 0)).tolist()
        chosen = [row for row in of_case if now.state[row] == detect.WORSE] or [
            row for row in of_case if now.named[row]] or of_case
        rows += sorted(chosen, key=lambda row: not now.named[row])
    # Of a node or switch, only the sessions in which a test case ran there. What is
    # no logarithm has no ratio.
    is_log = (now.hist.linear[rows, 1] == 0)[:, None]
    there = group.there[now.of[rows]]
    mean, at = _mean_per_session(np.where(there & is_log, now.log[rows], np.nan))
    better = set(metrics['better'].iloc[rows])
    size, spells = _Size(), []
    if (at < start).any() and (at >= start).any():
        centre, change = detect.compare_levels(mean[at < start], mean[at >= start])
        sign = -1.0 if better == {'higher'} else 1.0
        ratio, *ends = (math.exp(sign * part) for part in change)
        size = _Size(ratio=ratio, low=min(ends), high=max(ends))
        # Changes that are over are no part of the baseline.
        counts = is_log & (there | (group.kind not in ('node', 'switch')))
        spells = _earlier_spells(now, *_mean_per_session(np.where(
            counts, now.log_of_all_sessions[rows], np.nan)[:, :start]), centre, change)
    sessions = (there & np.isfinite(now.log[rows]))[:, start:].any(0).sum()
    return _regression(now, group.kind, group.name, rows, start, int(sessions), size,
                       spells, group.there,
                       int(group.there[:, start:worse.last + 1].any(1).sum()))


def _mean_per_session(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means over metrics, and the sessions that have one.

    :param values: metrics x sessions
    """
    count = np.isfinite(values).sum(0)
    at = np.flatnonzero(count)
    return np.nansum(values, 0)[at] / count[at], at


def _earlier_spells(now: Deviations, x: np.ndarray, at: np.ndarray, centre: float,
                    change: detect.Change) -> list[Spell]:
    """The spells at a new level before.

    :param x: a series before the change
    :param at: numbers of its sessions
    """
    days = now.hist.sessions
    return [(str(days[at[first]]), str(days[at[last]]), last - first + 1)
            for first, last in detect.earlier_spells(x, centre, change.size)]


def _regression(now: Deviations, kind: str, name: str, rows: list[int], start: int,
                sessions: int, size: _Size, spells: list[Spell],
                there: np.ndarray | None = None, cases_that_ran: int = 0
                ) -> Regression:
    """A regression.

    :param start: number of its first session
    :param there: test cases x sessions that count; None: all
    """
    series = now.hist.metrics.iloc[rows]
    known = {column: series[column].unique() for column in series}
    common = {column: str(values[0]) if len(values) == 1 else ''
              for column, values in known.items()}
    place = {column: common[column] for column in (
        'system', 'partition', 'environ', 'family', 'check', 'params', 'settings')}
    single, first = kind == 'metric', series.iloc[0]
    case = common['test_case'] if len(known['of']) == 1 else ''
    metric = str(first['metric']) if single else common['metric']
    point = str(first['point']) if single else common['point']
    ident = _short_hash('|'.join([
        kind, name, *place.values(), case, metric, point,
        *([common[column] for column in ('program', 'source', 'edition')]
          if single else [])]))
    ran = now.hist.ran
    ran = ran[ran['of'].isin(known['of'])]
    since = ran[ran['day'] >= start]
    cause = '; '.join(changes.environment_differences(
        ran[ran['day'] < start].groupby('of').tail(changes.BEFORE),
        since.groupby('of').head(2)))
    cases = list(map(str, known['test_case']))
    return Regression(
        id=ident, kind=kind, group=name, **place, test_case=case, cases=cases,
        metric=metric, metrics=list(map(str, known['metric'])), point=point,
        unit=str(first['unit']) if single else common['unit'], better=common['better'],
        since=str(now.hist.sessions[start]),
        since_session=next(iter(since['session'][since['day'] == start]), ''),
        sessions=sessions, before=size.before, now=size.now, ratio=size.ratio,
        low=size.low, high=size.high, cause=cause,
        todo=_advice_text(kind, ident, cause, cases, place['system']),
        members=[Member(
            **results.place_fields(metric_), metric=str(metric_.metric),
            point=str(metric_.point), ratio=_ratio_to_centre(
                now, row, start, True if there is None else there[now.of[row]]))
            for row, metric_ in zip(rows, series.itertuples(), strict=True)],
        ran=cases_that_ran, nodes=_nodes_if_always_same(now, since['nodes']),
        earlier=spells)


def _short_hash(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()[:8]


def _ratio_to_centre(now: Deviations, row: int, start: int, there: np.ndarray | bool
                     ) -> float | None:
    """Level of a metric since a session over its centre.

    :param there: the sessions that count, of all
    """
    log = np.where(there, now.log[row], np.nan)[start:]
    if not np.isfinite(log).any() or now.hist.linear[row, 1]:
        return None
    return math.exp(float(now.hist.worse_direction_sign()[row] * np.nanmean(log)))


def _nodes_if_always_same(now: Deviations, nodes: pd.Series) -> str:
    """The nodes of jobs, if always the same of several."""
    known = nodes.unique()
    return (str(known[0]) if len(known) == 1
            and now.hist.ran['nodes'].nunique() > 1 else '')


def _advice_text(kind: str, ident: str, cause: str, cases: Sequence[str], system: str
                 ) -> str:
    """The advice for people."""
    site = places.site_option(system)
    known = (f'if the problem is known: ./plumb verdict mute {ident}{site} --until '
             'DATE --reason TEXT; if the change was intended: ./plumb verdict accept '
             f'{ident}{site} --reason TEXT')
    if cause:
        return f'check whether the cause is {cause.split(";")[0]}; {known}'
    if kind in ('node', 'switch'):
        return (f'before you drain the {kind}, measure it against others: '
                f'./plumb locate{site}; {known}')
    return ('run the test cases again, if possible on other nodes: '
            f'./plumb run{site} {" ".join(cases[:3])}; {known}')


def regressions_with_own_ids(regressions: Sequence[Regression]) -> list[Regression]:
    """The same regressions; what is left of a group may be worse since another
    session, and gets an ID of its own."""
    ids: set[str] = set()
    result = []
    for one in regressions:
        ident = one.id
        while ident in ids:
            ident = _short_hash(ident)
        ids.add(ident)
        result.append(dataclasses.replace(
            one, id=ident, todo=one.todo.replace(one.id, ident)))
    return result


def regression_sort_key(one: Regression) -> tuple:
    """Newest regressions first, of these the ones with most test cases, then the
    largest change."""
    size = -abs(math.log(one.ratio)) if one.ratio and one.ratio > 0 else -math.inf
    return -int(one.since.replace('-', '')), -len(one.cases), size, one.id
