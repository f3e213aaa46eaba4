"""The verdict on a session, from records; verdict.py describes the rules."""
from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from config import places
from config.console import count_with_noun
from config.records.units import point_text, value_text
from config.sessions import judged
from config.sites import topology

from .. import results
from ..references.level import FEWEST_METRICS, Level, session_levels
from . import changes, detect, grouping, power
from .decisions import Decision
from .describing import Describer, regression_sort_key
from .deviations import Deviations
from .events import (
    Baseline,
    Event,
    Member,
    Verdict,
    cut_short_events,
    shortened_lines,
    test_case_text,
    uncompared_event,
)
from .sessions import History, metric_histories, session_dates

#: Kind of a failure -> why test cases failed together, and what to do.
FAILURES = {
    'xpass': ('have no known fault any more', 'remove $xfail from the reference file'),
    'flaky': ('failed, and passed when they were measured again, guard {guard}',
              'nothing now: the test case passed when it was measured again; check '
              'its nodes if this repeats'),
    'missing': ('missing: earlier sessions of this mode had them',
                'find out why it was not selected: site, environment or check; to '
                'measure it: {run}; if it was removed on purpose: ./plumb verdict '
                'retire {id}{site} --reason TEXT'),
    'open': ('failed before, and have not passed on the same nodes since',
             'measure it on these nodes: {run}; if the problem is known: ./plumb '
             'verdict mute {id}{site} --until DATE --reason TEXT; if a node left the '
             'site: ./plumb verdict retire NODE{site} --reason TEXT'),
    'no reference': ('failed, guard {guard}',
                     f'make a reference: {places.CALIBRATE}{{site}}'),
    'guard': ('failed, guard {guard}', 'see the output of the test case'),
    'value': ('out of tolerance, {metric}',
              'run the test case again, and check what changed; after an intended '
              f'change: {places.CALIBRATE}{{site}} --new-level')}


def judge_session(records: pd.DataFrame, session: str | None = None, *,
                  decisions: Sequence[Decision] = (),
                  switches: Mapping[str, Mapping[str, Sequence[str]]] = {}
          ) -> Verdict:
    """The verdict of a session.

    :param records: as records.read and debts.add_debts give them
    :param session: a session, or a date (YYYY-MM-DD), or the unique beginning
        of one; later records are not looked at. None: the newest session of
        each system in which a test case ran, and what is still true of test
        cases that did not run then: what `plumb report` shows
    :param decisions: regressions that people accepted or muted
    :param switches: system -> node -> the switches above it
    :raises ValueError: no records, or no such session
    """
    if records.empty:
        raise ValueError('no records')
    has_run = records[~records['result'].isin(['missing', 'not_run'])]
    label, frame, this_session = select_session(
        has_run if session is None and len(has_run) else records, session)
    frame = records if session is None else frame
    frame_now = frame if session is None else frame[frame['session'].isin(this_session)]
    newest = results.newest_records(frame_now)
    complete = results.newest_records(has_run) if session is None and len(
        has_run) < len(records) else newest
    hist = metric_histories(frame)
    now = Deviations(hist, this_session, session is None, decisions,
                     _session_date(label, hist))
    groups, alone = grouping.find_worse_groups(now, switches)
    describer = Describer(now)
    muted = describer.muted_metrics()
    regressions = sorted([*map(describer.group, groups),
                          *describer.metrics('regression', alone)],
                         key=regression_sort_key)
    outcomes = _results_with_regressions(newest, regressions)
    cases = has_run['test_case'][has_run['session'].isin(this_session)].nunique()
    rerun = _test_cases_to_rerun(now)
    compared = complete['result'].isin(['pass', 'xpass', 'xfail']) | complete[
        'result'].eq('fail') & complete['guard'].eq('')
    return Verdict(
        session=label,
        events=[
            *regressions, *muted,
            *sorted(describer.metrics('improvement', np.flatnonzero(
                now.live & (now.state == detect.BETTER) & now.named)),
                key=regression_sort_key),
            *map(_level_event, session_levels(frame, this_session) if session
                 else _newest_levels(frame)),
            *_failures(newest),
            *(uncompared_event(one) for one in outcomes if one.uncompared),
            *cut_short_events(outcomes),
            *changes.environment_changes(hist, this_session),
            *_incident(rerun, cases), *rerun, *_test_cases_with_few_sessions(now)],
        results=outcomes, cases=cases,
        compared=complete['test_case'][compared].nunique(),
        judged=int(now.enough.sum()),
        power=power.power_of_test_cases(hist, now.walk, now.enough),
        baselines=_baselines(now))


def select_session(records: pd.DataFrame, session: str | None
           ) -> tuple[str, pd.DataFrame, set[str]]:
    """A session: its name, the records up to it, and its sessions.

    :raises ValueError: there is no such session, or several
    """
    dates = session_dates(records)
    if session is None:
        runs = records[['system', 'session']].drop_duplicates().astype(str)
        runs['date'] = runs['session'].map(dates)
        newest = runs[runs['date'] == runs.groupby('system')['date'].transform('max')]
        new = newest[newest['date'] == newest['date'].max()]
        return (new['session'].iloc[0] if new['session'].nunique() == 1
                else f'{new["date"].iloc[0]:%Y-%m-%d}', records, {*newest['session']})
    chosen = {run for run in dates if run == session} or {
        run for run, day in dates.items() if str(day) == session} or {
        run for run in dates if run.startswith(session)}
    if not chosen:
        raise ValueError(f'no session or date begins with {session!r}; the '
                         'newest session is '
                         f'{max(dates, key=lambda r: dates[r])}')
    if len({dates[run] for run in chosen}) > 1:
        raise ValueError(f'{len(chosen)} sessions on several dates begin with '
                         f'{session!r}; give more characters')
    first = records.groupby('session', observed=True)['time'].min()
    until, day = max(first[run] for run in chosen), dates[next(iter(chosen))]
    before = {run for run in dates if dates[run] < day
              or dates[run] == day and first[run] <= until}
    label = next(iter(chosen)) if len(chosen) == 1 else str(day)
    return label, records[records['session'].isin(list(before))], chosen


def _newest_levels(frame: pd.DataFrame) -> list[Level]:
    """The level of each system in its newest session that has one.

    A session has a level if FEWEST_METRICS metrics with a tolerance ran to their end.
    As for regressions, the newest RECENT sessions of the system are looked at.

    :param frame: as records.read gives it
    """
    levels = []
    ended = frame[~frame['result'].isin(['missing', 'not_run'])]
    for _, of_system in ended.groupby('system', observed=True):
        dates = of_system['session'].astype(str).map(session_dates(of_system))
        # A session without references needs no closer look.
        numbers = dates[of_system['reference'] > 0].value_counts()
        for date in sorted(dates.unique(), reverse=True)[:results.RECENT]:
            if numbers.get(date, 0) >= FEWEST_METRICS and (level := session_levels(
                    of_system[dates <= date],
                    {*of_system['session'][dates == date]})):
                levels += level
                break
    return levels


def _level_event(level: Level) -> Event:
    """The level of all metrics of a system; `no_reference`: it is not judged."""
    result = ('no_reference' if level.tolerance is None
              else 'fail' if level.is_failed else 'pass')
    return Event('level', level.text, system=level.system, result=result,
                 ratio=1 + level.worse, evidence=level.todo * level.is_failed)


def _failures(newest: pd.DataFrame) -> list[Event]:
    """An event for the test cases and copies of a system that failed for one reason,
    each by its most telling record.

    :param newest: results.newest_records of the records
    """
    records = newest[newest['result'].isin(results.FAILED)]
    # Metrics before what a guard says beside them.
    records = records.assign(rank=records['result'].map(results.FAILED.index),
                             kept=records['metric'] == 'completed')
    records = records.sort_values(['rank', 'kept', 'metric', 'point']).drop_duplicates(
        ['test_case', 'copy']).sort_values(results.LISTED)
    groups: dict[tuple[str, ...], list[Any]] = {}
    for row in records.itertuples():
        if not results.is_cut_short(row.result, row.guard):
            key = row.system, row.result, row.guard, '' if row.guard else row.metric
            groups.setdefault(tuple(map(str, key)), []).append(row)
    events = [_event_of_failures(rows) for rows in groups.values()]
    return sorted(events, key=lambda one: (one.kind, -len(one.members)))


def _event_of_failures(rows: Sequence[Any]) -> Event:
    """An event for test cases of a system that failed for one reason."""
    members = [_member_of_failure(row) for row in rows]
    first, kind = rows[0], _kind_of_failure(rows[0])
    common, todo = FAILURES[kind]
    ran_on = {frozenset(topology.nodes_of_record(str(row.nodes))) for row in rows}
    shared = topology.fold_host_list(frozenset.intersection(*ran_on)) \
        if len(ran_on) > 1 and frozenset.intersection(*ran_on) else ''
    cases = [*dict.fromkeys(one.test_case for one in members)]
    title, evidence = members[0].text, []
    if len(members) > 1:
        families = {one.family for one in members}
        what = count_with_noun(len(members), f'{families.pop()} test case'
                               if len(families) == 1 else 'test case')
        title = (f'{shared} of ' * bool(shared) + f'{first.system}: {what} '
                 + common.format(guard=first.guard, metric=first.metric))
        evidence = shortened_lines([one.text for one in members])
    site = places.site_option(str(first.system))
    return Event(
        'missing' if kind == 'missing' else 'failure', title, cases, str(first.system),
        evidence=evidence, members=members, result=str(first.result),
        todo=todo.format(site=site, run=f'./plumb run{site} {" ".join(cases[:3])}',
                         id=cases[0] if len(cases) == 1 else 'ID'),
        nodes=shared or str(first.nodes) * (len(ran_on) == 1))


def _kind_of_failure(row: Any) -> str:
    """One of FAILURES, of a record."""
    if row.result in ('xpass', 'flaky', 'missing'):
        return str(row.result)
    return ('open' if row.guard == results.OPEN else
            'no reference' if row.guard == 'reference' else
            'guard' if row.guard else 'value')


def _member_of_failure(row: Any) -> Member:
    member = Member(
        **results.place_fields(row), copy=str(row.copy), guard=str(row.guard),
        session=str(row.session), nodes=str(row.nodes), date=f'{row.time:%Y-%m-%d}')
    if row.metric != 'completed':
        member = dataclasses.replace(member, metric=str(row.metric),
                                     point=judged.point_with_unit(row.point))
    is_told = _kind_of_failure(row) in ('missing', 'open')
    why = _reason_of_failure(row, member)
    return dataclasses.replace(
        member, why=why, text=f'{test_case_text(member, member.copy)}: {why}'
        + f' [ran on {row.nodes}]' * bool(row.nodes and not is_told))


def _reason_of_failure(row: Any, member: Member) -> str:
    if row.result == 'xpass':
        return 'the known fault is fixed'
    if row.guard:
        reason = str(row.reason)
        # A message usually begins with the name of its guard.
        return reason if _kind_of_failure(row) in ('missing', 'open') or (
            reason.startswith(f'{row.guard}:')) else ': '.join(
                filter(None, [row.guard, reason]))
    if not member.metric or not np.isfinite(row.value):
        return 'the test case did not complete'
    at = f' at {point_text(member.point)}' if member.point else ''
    return (f'{member.metric}{at}: {value_text(row.value, row.unit)}, '
            + ('beyond a limit' if pd.isna(row.reference)
               else f'reference {value_text(row.reference, row.unit)}')
            + f'; {row.note}' * bool(row.note))


def _results_with_regressions(newest: pd.DataFrame, regressions: Sequence[Event]
                              ) -> list[results.Result]:
    """The result of each test case, with its regressions."""
    return [dataclasses.replace(one, regressions=[
        line.id for line in regressions if one.test_case in line.cases])
            for one in results.results_of_newest_records(newest)]


def _baselines(now: Deviations) -> list[Baseline]:
    """The baselines of judged metrics, and of what is worse."""
    rows = np.flatnonzero(now.enough & (now.named | (now.state != detect.NORMAL)))
    return [Baseline(
        str(metric.test_case), str(metric.metric), str(metric.point),
        value=now.value_of_level(row, float(now.walk.centre[row])),
        changes=[str(now.hist.sessions[now.hist.at[row, turn]])
                 for turn in _change_positions(now, row)])
        for row, metric in zip(
            rows.tolist(), now.hist.metrics.iloc[rows].itertuples(), strict=True)]


def _change_positions(now: Deviations, row: int) -> list[int]:
    """Positions from which on a metric was worse or better, or no longer was."""
    last = int(now.hist.last_session_positions[row])
    states = now.walk.states[row, :last + 1]
    turns: list[int] = (np.flatnonzero(np.diff(states)) + 1).tolist()
    if turns and states[last] != detect.NORMAL:
        # Found later than it began.
        turns[-1] = int(now.walk.start[row])
    return turns


def _test_cases_with_few_sessions(now: Deviations) -> list[Event]:
    """Test cases of the newest session whose judged metrics have too few sessions."""
    sessions = now.hist.last_session_positions + 1
    enough = detect.FEWEST + 3
    row_of_case: dict[int, int] = {}
    for row in np.flatnonzero(now.live & (sessions <= enough) & now.named).tolist():
        row_of_case.setdefault(int(now.of[row]), row)
    return [_event_of_metric(
        now, 'few sessions', row, f'{sessions[row]} sessions, needs '
        f'{enough + 1 - sessions[row]} more', needs=int(enough + 1 - sessions[row]))
            for row in row_of_case.values()]


def _event_of_metric(now: Deviations, kind: str, row: int, why: str, **more: Any
                     ) -> Event:
    """An event of the test case of a metric."""
    metric = now.hist.metrics.iloc[row]
    member = Member(**results.place_fields(metric), metric=str(metric.metric))
    return Event(kind, f'{test_case_text(member)}: {why}', [member.test_case],
                 member.system, members=[member], **more)


def _test_cases_to_rerun(now: Deviations) -> list[Event]:
    """Test cases to measure again: a judged metric was worse in the newest session
    without an alarm, or the change may pass by itself. `ratio` is how many times as bad
    the newest session was, if noise does not explain it."""
    hist, last = now.hist, now.hist.last_session_positions
    few_runs = hist.runs[now.rows, last] < detect.RERUNS
    rows = np.flatnonzero(now.live & now.named & now.walk.suspect & few_runs
                          | now.reported & now.may_pass)
    times_as_bad = {row: _times_as_bad_in_newest_session(now, row)
                    for row in rows.tolist()}
    # Of several metrics of a test case the worst incident counts.
    row_of_case = {int(now.of[row]): row for row in sorted(
        times_as_bad, key=lambda row: times_as_bad[row] or 0)}
    return [_event_of_metric(
        now, 'rerun', row, _reason_to_rerun(now, row),
        needs=max(detect.RERUNS - int(hist.runs[row, last[row]]), 1),
        ratio=times_as_bad[row]) for row in row_of_case.values()]


def _incident(rerun: Sequence[Event], cases: int) -> Iterator[Event]:
    """The event of all test cases that were far outside in the newest session alone.

    :param cases: test cases that ran
    """
    far = sorted((one for one in rerun if one.ratio), key=lambda one: -(one.ratio or 0))
    if far:
        yield Event(
            'incident', f'Incident: {count_with_noun(len(far), "test case")} of '
            f'{cases} {"was" if len(far) == 1 else "were"} worse in this session alone '
            'than noise explains, up to '
            f'{far[0].ratio:.3g} times as bad ({test_case_text(far[0].members[0])}); '
            'measure again to decide whether it is a regression',
            [name for one in far for name in one.cases], ratio=far[0].ratio)


def _reason_to_rerun(now: Deviations, row: int) -> str:
    metric = now.hist.metrics['metric'].iat[row]
    if not now.may_pass[row]:
        return f'{metric} was worse in the newest session; run it again'
    since = now.hist.sessions[now.hist.at[row, now.walk.start[row]]]
    return (f'{metric} is worse since {since}, as metrics of this system were '
            f'before for less than {detect.BRIEF} sessions; run it again')


def _times_as_bad_in_newest_session(now: Deviations, row: int) -> float | None:
    """How many times as bad a metric was in its newest session; None if noise
    explains it."""
    if not now.walk.incident[row]:
        return None
    worse = float(now.hist.x[row, now.hist.last_session_positions[row]]
                  - now.walk.centre[row])
    return math.exp(min(worse, 700.0))


def _session_date(label: str, hist: History) -> datetime.date:
    """The date of a session."""
    day = hist.session_of.get(label)
    return datetime.date.fromisoformat(label if day is None else str(day))
