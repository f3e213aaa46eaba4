"""Regressions as events: where, what, since when, how large, what changed, what to do.
"""
from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from config.console import count_with_noun
from config.families import printed_name
from config.records.units import point_text, value_text

from .. import results
from ..printed import PrintedCommands
from . import changes, detect
from .decisions import Decision
from .deviations import Deviations
from .events import Event, Member, test_case_text
from .grouping import Worse
from .sessions import History

#: A spell at the new level before: first and last date, number of sessions.
Spell = tuple[str, str, int]


def describe_changes(now: Deviations, groups: Sequence[Worse], alone: Collection[int],
                     commands: PrintedCommands
                     ) -> tuple[list[Event], list[Event], list[Event]]:
    """The events of regressions, of muted regressions, and of improvements.

    :param groups: the groups that regressed
    :param alone: metrics that regressed apart from them
    """
    muted = [row for row in sorted(now.muted)
             if now.reported[row] and now.state[row] == detect.WORSE]
    better = np.flatnonzero(now.live & (now.state == detect.BETTER) & now.named)
    worse = [*(_describe_group(now, one) for one in groups if not one.muted),
             *_describe_metrics(now, 'regression', alone)]
    return (sorted((dataclasses.replace(one, todo=_advice_text(one, commands))
                    for one in worse), key=_sort_key),
            [*(_describe_group(now, one) for one in groups if one.muted),
             *(_describe_metric(now, 'muted', [row]) for row in muted)],
            sorted(_describe_metrics(now, 'improvement', better), key=_sort_key))


def _describe_metrics(now: Deviations, kind: str, rows: Collection[int]
                      ) -> Iterator[Event]:
    """An event for each metric of a test case.

    Metrics that no family.yaml names are part of that of the first judged metric of
    their test case.
    """
    names = now.hist.metrics['metric'].tolist()
    groups: dict[tuple[int, str], list[int]] = {}
    main: dict[int, str] = {}
    for row in sorted(map(int, rows), key=lambda row: not now.named[row]):
        case = int(now.of[row])
        name = names[row] if now.named[row] else main.get(case, names[row])
        main.setdefault(case, name)
        groups.setdefault((case, name), []).append(row)
    return (_describe_metric(now, kind, group) for group in groups.values())


def _describe_metric(now: Deviations, kind: str, rows: list[int]) -> Event:
    """The event of the first of several metrics of a test case."""
    row, hist, walk = rows[0], now.hist, now.walk
    usual, start = walk.baseline.of_series(row), int(walk.start[row])
    centre = float(usual.centre)
    before = 0.0 if hist.is_zero(row, slice(start)) else now.value_of_level(row, centre)
    since, _ = _mean_per_session(hist.x[[row], start:])
    change = detect.compare_with_baseline(since, usual)
    after = 0.0 if hist.is_zero(row, slice(start, None)) else now.value_of_level(
        row, centre + change.size)
    return _complete_event(now, Event(
        kind, '', scope='metric', sessions=len(since), before=before, now=after,
        earlier=[] if kind == 'improvement' else
        _earlier_spells(now, hist.x[[row], :start], centre, change)),
        rows, start, np.ones(now.case_z.shape, bool), change)


def _describe_group(now: Deviations, worse: Worse) -> Event:
    group, start = worse.group, worse.start
    recent = np.nansum(now.z[:, start:worse.last + 1], 1)
    rows: list[int] = []
    for case in worse.cases:
        of_case = np.flatnonzero((now.of == case) & (recent > 0)).tolist()
        chosen = [row for row in of_case if now.state[row] == detect.WORSE] or [
            row for row in of_case if now.named[row]] or of_case
        rows += sorted(chosen, key=lambda row: not now.named[row])
    # Of a node or switch, only the sessions in which a test case ran there.
    there = group.there[now.of[rows]]
    mean, at = _mean_per_session(np.where(there, now.log[rows], np.nan))
    change, spells = None, []
    if (at < start).any() and (at >= start).any():
        centre, change = detect.compare_levels(mean[at < start], mean[at >= start])
        # Changes that are over are no part of the baseline.
        counts = there | (group.kind not in ('node', 'switch'))
        spells = _earlier_spells(now, np.where(
            counts, now.log_of_all_sessions[rows], np.nan)[:, :start], centre, change)
    return _complete_event(
        now, Event('muted' if worse.muted else 'regression', '', scope=group.kind,
                   group=group.name, sessions=int((at >= start).sum()), earlier=spells),
        rows, start, group.there, change,
        int(group.there[:, start:worse.last + 1].any(1).sum()), worse.muted)


def _complete_event(now: Deviations, event: Event, rows: list[int], start: int,
                    there: np.ndarray, distance: detect.Change | None, ran: int = 0,
                    muted: Decision | None = None) -> Event:
    """An event with all that follows from its metrics.

    :param event: its kind, scope, group, number of sessions, levels and earlier spells
    :param rows: numbers of its metrics
    :param start: number of its first session
    :param there: test cases x sessions: those that count
    :param distance: of the new level from the baseline; None: unknown
    :param ran: test cases of the group that ran since then; 0: no group
    :param muted: the decision that mutes the group
    """
    scope, group = event.scope, event.group
    series = now.hist.metrics.iloc[rows]
    common = {column: str(series[column].iloc[0]) for column in series
              if series[column].nunique() == 1 or scope == 'metric'}
    cases, better = [*map(str, series['test_case'].unique())], common.get('better', '')
    metric, point, unit, system = (common.get(name, '') for name in (
        'metric', 'point', 'unit', 'system'))
    ident = hashlib.sha1('|'.join([
        scope, group, *(common.get(name, '') for name in (
            'system', 'partition', 'environ', 'family', 'check', 'params', 'settings')),
        cases[0] if 'of' in common else '', metric, point,
        *([common[name] for name in ('program', 'source', 'edition')]
          if scope == 'metric' else []),
        *[common['node']] * bool(common.get('node'))]).encode()).hexdigest()[:8]
    jobs = now.hist.ran[now.hist.ran['of'].isin(series['of'])]
    since = jobs[jobs['day'] >= start]
    cause = '; '.join(changes.environment_differences(
        jobs[jobs['day'] < start].groupby('of').tail(changes.BEFORE),
        since.groupby('of').head(2)))
    log = np.where(there[now.of[rows]], now.log[rows], np.nan)[:, start:]
    signs = now.hist.worse_direction_sign()[rows]
    members = [Member(
        **results.place_fields(one), metric=str(one.metric), point=str(one.point),
        ratio=_ratio_of_metric(
            now.hist, row, start, there[now.of[row]],
            math.exp(sign * np.nanmean(of_metric))
            if np.isfinite(of_metric).any() else None))
        for row, one, sign, of_metric in zip(
            rows, series.itertuples(), signs, log, strict=True)]
    ratios = [math.exp((-1 if better == 'higher' else 1) * min(part, 700.0))
              for part in distance or ()]
    if 0 in (event.before, event.now):
        ratios = [0.0] if event.before else []
    nodes, muted = since['nodes'].unique(), muted or now.muted.get(rows[0])
    where = (test_case_text(members[0]) if scope == 'metric' else
             f'{_group_text(scope, group, common)} ({len(cases)} of '
             f'{count_with_noun(ran, "test case")})')
    event = dataclasses.replace(
        event, cases=cases, system=system, since=str(now.hist.sessions[start]),
        evidence=[*_earlier_lines(event.earlier),
                  *[f'muted until {muted.until}: {muted.reason}'
                    for muted in [muted] if muted],
                  *[f'changed in the same session: {cause}'] * bool(cause)],
        id=ident, since_session=next(iter(since['session'][since['day'] == start]), ''),
        ratio=next(iter(ratios), None),
        low=min(ratios[1:], default=None), high=max(ratios[1:], default=None),
        cause=cause, members=members,
        nodes=str(nodes[0]) if len(nodes) == 1
        and now.hist.ran['nodes'].nunique() > 1 else '')
    what = metric or ', '.join(map(str, series['metric'].unique()))
    return dataclasses.replace(event, title=' '.join(filter(None, [
        f'{where}:', what + f' at {point_text(point)}' * bool(point),
        _size_text(event, unit, better), f'[{ident}]'])))


def _ratio_of_metric(hist: History, row: int, start: int, there: np.ndarray,
                     ratio: float | None) -> float | None:
    """The ratio of a metric since a change; 0: it is 0 since. None: it was 0 before, or
    is unknown.

    :param there: the sessions that count
    :param ratio: of the logs, which have no 0
    """
    since, before = there.copy(), there.copy()
    since[:start], before[start:] = False, False
    return None if hist.is_zero(row, before) else \
        0.0 if hist.is_zero(row, since) else ratio


def _mean_per_session(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means over metrics, and the sessions that have one.

    :param values: metrics x sessions
    """
    count = np.isfinite(values).sum(0)
    at = np.flatnonzero(count)
    return np.nansum(values, 0)[at] / count[at], at


def _earlier_spells(now: Deviations, values: np.ndarray, centre: float,
                    change: detect.Change) -> list[Spell]:
    """The spells at a new level before.

    :param values: metrics x sessions before the change
    """
    x, at = _mean_per_session(values)
    days = now.hist.sessions
    return [(str(days[at[first]]), str(days[at[last]]), last - first + 1)
            for first, last in detect.earlier_spells(x, centre, change.size)]


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


def _size_text(event: Event, unit: str, better: str) -> str:
    """The size of a change: `+5.0 % (+4.1 to +5.9 %), 10 µs -> 10.5 µs`. A level of 0
    has no size."""
    values = ' -> '.join(value_text(one, unit) for one in (event.before, event.now)
                         if one is not None)
    if not (event.ratio and event.low and event.high):
        return values
    sizes = event.ratio, event.low, event.high
    if not 0.5 <= event.ratio <= 2:
        text = '{:.3g} x{} ({:.3g} to {:.3g})'.format(
            sizes[0], '' if better else ' as bad', *sizes[1:])
    elif better:
        text = '{:+.1f} % ({:+.1f} to {:+.1f} %)'.format(
            *(100 * (part - 1) for part in sizes))
    else:  # of metrics of which some are better if higher, others if lower
        sign = 1 if event.ratio >= 1 else -1
        part, *ends = (100 * sign * (part - 1) for part in sizes)
        text = (f'{part:.1f} % {"worse" if sign > 0 else "better"} '
                f'({min(ends):.1f} to {max(ends):.1f} %)')
    return text + f', {values}' * bool(values)


def _advice_text(one: Event, commands: PrintedCommands) -> str:
    """The advice for people about a regression."""
    again = ''
    if one.cause:
        again = f'check whether the cause is {one.cause.split(";")[0]}'
    elif one.scope in ('node', 'switch'):
        if locate := commands.measure('locate', one.system):
            again = (f'before you drain the {one.scope}, measure it against others: '
                     f'{locate}')
    elif run := commands.measure('run', one.system, ' '.join(one.cases[:3])):
        again = f'run the test cases again, if possible on other nodes: {run}'
    mute, accept = (commands.decide(action, one.id, one.system)
                    for action in ('mute', 'accept'))
    return '; '.join([*filter(None, [again]), f'if the problem is known: {mute}',
                      f'if the change was intended: {accept}'])


def _sort_key(one: Event) -> tuple:
    """Newest regressions first, of these the ones with most test cases, then the
    largest change."""
    size = -abs(math.log(one.ratio)) if one.ratio and one.ratio > 0 else -math.inf
    return -int(one.since.replace('-', '')), -len(one.cases), size, one.id
