"""Regressions as events: where, what, since when, how large, what changed, what to do.
"""
from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from config import places
from config.console import count_with_noun
from config.families import all_metrics, printed_name
from config.records.units import change_text, point_text, value_text

from .. import results
from . import changes, detect
from .decisions import Decision
from .deviations import Deviations
from .events import Event, Member, test_case_text
from .grouping import Worse

#: A spell at the new level before: first and last date, number of sessions.
Spell = tuple[str, str, int]


class Describer:
    """Describes the regressions of a session, each with an ID of its own."""

    def __init__(self, now: Deviations) -> None:
        self.now = now
        self._ids: set[str] = set()

    def muted_metrics(self) -> list[Event]:
        """An event for each muted metric that is worse."""
        now = self.now
        return [self._metric('muted', [row], decision)
                for row, decision in sorted(now.muted.items())
                if now.reported[row] and now.state[row] == detect.WORSE]

    def metrics(self, kind: str, rows: Collection[int]) -> list[Event]:
        """An event for each metric of a test case.

        Metrics that no family.yaml names are part of that of the first judged metric
        of their test case.

        :param kind: of events.KINDS
        :param rows: numbers of metrics
        """
        now = self.now
        names = now.hist.metrics['metric'].tolist()
        groups: dict[tuple[int, str], list[int]] = {}
        main: dict[int, str] = {}
        for row in sorted(rows, key=lambda row: not now.named[row]):
            case = int(now.of[row])
            main.setdefault(case, names[row])
            name = names[row] if now.named[row] else main[case]
            groups.setdefault((case, name), []).append(int(row))
        return [self._metric(kind, group) for group in groups.values()]

    def _metric(self, kind: str, rows: list[int], muted: Decision | None = None
                ) -> Event:
        """The event of the first of several metrics of a test case."""
        now, row = self.now, rows[0]
        hist, walk = now.hist, now.walk
        start, last = int(walk.start[row]), int(hist.last_session_positions[row])
        centre = float(walk.centre[row])
        change = detect.compare_with_baseline(
            hist.x[row, start:last + 1], centre, float(walk.spread[row]),
            float(walk.phi[row]), int(walk.sessions[row]), float(walk.df[row]))
        before, after, *ends = [now.value_of_level(row, centre + size) for size in (
            0.0, change.size, change.low, change.high)]
        low, high = sorted(end / before for end in ends)
        size = {'before': before, 'now': after, 'ratio': after / before, 'low': low,
                'high': high}
        spells = [] if kind == 'improvement' else _earlier_spells(
            now, hist.x[row, :start], hist.at[row, :start], centre, change)
        return self._event(kind, 'metric', '', rows, int(hist.at[row, start]),
                           last - start + 1, size, spells, muted=muted)

    def group(self, worse: Worse) -> Event:
        """The event of a group."""
        now, group, start = self.now, worse.group, worse.start
        recent = np.where(np.isfinite(now.z), now.z, 0.0)[:, start:worse.last + 1
                                                          ].sum(1)
        rows: list[int] = []
        for case in worse.cases:
            of_case = np.flatnonzero((now.of == case) & (recent > 0)).tolist()
            chosen = [row for row in of_case if now.state[row] == detect.WORSE] or [
                row for row in of_case if now.named[row]] or of_case
            rows += sorted(chosen, key=lambda row: not now.named[row])
        # Of a node or switch, only the sessions in which a test case ran there.
        there = group.there[now.of[rows]]
        mean, at = _mean_per_session(np.where(there, now.log[rows], np.nan))
        size: dict[str, Any] = {}
        spells: list[Spell] = []
        if (at < start).any() and (at >= start).any():
            centre, change = detect.compare_levels(mean[at < start], mean[at >= start])
            sign = -1.0 if set(now.hist.metrics['better'].iloc[rows]) == {
                'higher'} else 1.0
            ratio, *ends = (math.exp(sign * part) for part in change)
            size = {'ratio': ratio, 'low': min(ends), 'high': max(ends)}
            # Changes that are over are no part of the baseline.
            counts = there | (group.kind not in ('node', 'switch'))
            spells = _earlier_spells(now, *_mean_per_session(np.where(
                counts, now.log_of_all_sessions[rows], np.nan)[:, :start]), centre,
                change)
        sessions = (there & np.isfinite(now.log[rows]))[:, start:].any(0).sum()
        return self._event(
            'regression', group.kind, group.name, rows, start, int(sessions), size,
            spells, group.there, int(group.there[:, start:worse.last + 1].any(1).sum()))

    def _event(self, kind: str, scope: str, group: str, rows: list[int], start: int,
               sessions: int, size: Mapping[str, Any], earlier: list[Spell],
               there: np.ndarray | None = None, ran: int = 0,
               muted: Decision | None = None) -> Event:
        """An event.

        :param start: number of its first session
        :param there: test cases x sessions that count; None: all
        :param ran: test cases of the group that ran since then
        :param muted: the decision that mutes it
        """
        now = self.now
        series = now.hist.metrics.iloc[rows]
        common = {column: str(series[column].iloc[0]) for column in series
                  if series[column].nunique() == 1}
        first, cases = series.iloc[0], [*map(str, series['test_case'].unique())]
        metric, point, unit = (
            str(first[name]) if scope == 'metric' else common.get(name, '')
            for name in ('metric', 'point', 'unit'))
        names = ['system', 'partition', 'environ', 'family', 'check', 'params',
                 'settings', 'of']
        ident = self._own_id('|'.join([
            scope, group, *(common.get(name, '') for name in names[:-1]),
            cases[0] if 'of' in common else '', metric, point,
            *([common.get(name, '') for name in ('program', 'source', 'edition')]
              if scope == 'metric' else [])]))
        jobs = now.hist.ran[now.hist.ran['of'].isin(series['of'])]
        since = jobs[jobs['day'] >= start]
        cause = '; '.join(changes.environment_differences(
            jobs[jobs['day'] < start].groupby('of').tail(changes.BEFORE),
            since.groupby('of').head(2)))
        members = [Member(
            **results.place_fields(one), metric=str(one.metric), point=str(one.point),
            ratio=_ratio_to_centre(
                now, row, start, True if there is None else there[now.of[row]]))
            for row, one in zip(rows, series.itertuples(), strict=True)]
        system = common.get('system', '')
        what = metric or ', '.join(map(str, series['metric'].unique()))
        where = test_case_text(members[0]) if scope == 'metric' else _group_text(
            scope, group, common)
        return Event(
            kind, ' '.join(filter(None, [
                where + f' ({len(cases)} of {count_with_noun(ran, "test case")})'
                * bool(ran) + ':', what + f' at {point_text(point)}' * bool(point),
                _size_text(size, unit, common.get('better', '')), f'[{ident}]'])),
            cases, system, str(now.hist.sessions[start]), sessions,
            evidence=[*_earlier_lines(earlier),
                      *([f'muted until {muted.until}: {muted.reason}']
                        if muted else []),
                      *[f'changed in the same session: {cause}'] * bool(cause),
                      *_median_and_range_lines(members)],
            todo='' if kind != 'regression' else _advice_text(
                scope, ident, cause, cases, system),
            id=ident, scope=scope, group=group,
            since_session=next(iter(since['session'][since['day'] == start]), ''),
            **size, cause=cause, earlier=earlier, members=members,
            nodes=_nodes_if_always_same(now, since['nodes']))

    def _own_id(self, text: str) -> str:
        """An ID. What is left of a group may be worse since another session, and gets
        one of its own."""
        while True:
            text = hashlib.sha1(text.encode()).hexdigest()[:8]
            if text not in self._ids:
                self._ids.add(text)
                return text


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


def _median_and_range_lines(members: Sequence[Member]) -> list[str]:
    """The median change of the test cases of a group, and the smallest and largest."""
    worst = {one.test_case: one for one in sorted(
        members, key=lambda one: one.times_as_bad)}.values()
    ratios = sorted(one.ratio for one in worst if one.ratio)
    if len(worst) < 2 or not ratios:
        return []
    sides = {all_metrics().get(one.metric, {}).get('better') for one in worst}
    if len(sides) > 1:
        ratios = sorted(one.times_as_bad for one in worst)
    return [f'test cases: median {change_text(statistics.median(ratios))}, '
            f'from {change_text(ratios[0])} to {change_text(ratios[-1])}'
            + ' (+ is worse)' * (len(sides) > 1)]


def _earlier_lines(earlier: Sequence[Spell]) -> list[str]:
    """When and how often a regression was at its new level before."""
    if not earlier:
        return []
    first, last, number = earlier[-1]
    return [f'at this level before: {count_with_noun(len(earlier), "spell")}, '
            f'the last from {first} to {last} ({count_with_noun(number, "session")})']


def _group_text(scope: str, group: str, common: Mapping[str, str]) -> str:
    """The name of a group; that of a program says if it is embedded."""
    if scope != 'program':
        return group
    program = common['program']
    return group.replace(program, printed_name(program, common.get('source', '')), 1)


def _size_text(size: Mapping[str, Any], unit: str, better: str) -> str:
    """The size of a change: `+5.0 % (+4.1 to +5.9 %)`."""
    values = '' if 'before' not in size else (
        f'{value_text(size["before"], unit)} -> {value_text(size["now"], unit)}')
    if 'ratio' not in size:
        return values
    ratio, low, high = size['ratio'], size['low'], size['high']
    if not 0.5 <= ratio <= 2:
        text = (f'{ratio:.3g} x' + ('' if better else ' as bad')
                + f' ({low:.3g} to {high:.3g})')
    elif better:
        text = '{:+.1f} % ({:+.1f} to {:+.1f} %)'.format(
            *(100 * (part - 1) for part in (ratio, low, high)))
    else:  # of metrics of which some are better if higher, others if lower
        sign = 1 if ratio >= 1 else -1
        part, *ends = (100 * sign * (part - 1) for part in (ratio, low, high))
        text = (f'{part:.1f} % {"worse" if sign > 0 else "better"} '
                f'({min(ends):.1f} to {max(ends):.1f} %)')
    return text + f', {values}' * bool(values)


def _ratio_to_centre(now: Deviations, row: int, start: int, there: np.ndarray | bool
                     ) -> float | None:
    """Level of a metric since a session over its centre.

    :param there: the sessions that count, of all
    """
    log = np.where(there, now.log[row], np.nan)[start:]
    if not np.isfinite(log).any():
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


def regression_sort_key(one: Event) -> tuple:
    """Newest regressions first, of these the ones with most test cases, then the
    largest change."""
    size = -abs(math.log(one.ratio)) if one.ratio and one.ratio > 0 else -math.inf
    return -int(one.since.replace('-', '')), -len(one.cases), size, one.id
