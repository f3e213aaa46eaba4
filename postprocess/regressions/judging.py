"""The verdict on a session, from records; verdict.py describes the rules."""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from config.console import count_with_noun
from config.places import SITES, default_site, site_folder_of_name
from config.records.columns import MADE_UP
from config.sessions.judged import INFINITE
from config.sites import topology

from .. import results
from ..printed import PrintedCommands
from . import changes, describing, detect, grouping
from .decisions import Decision
from .deviations import Deviations
from .events import Baseline, Event, Member, Verdict, test_case_text
from .failures import failure_events
from .inconclusive import inconclusive_events
from .sessions import metric_histories, session_dates


def judge_session(records: pd.DataFrame, session: str | None = None, *,
                  decisions: Sequence[Decision] = (),
                  sessions: pd.DataFrame | None = None, damaged: int = 0,
                  site: str = '', perflogs: str = '') -> Verdict:
    """The verdict on the newest session of each system, and what is still true of test
    cases that did not run in it.

    :param records: as records.read and debts.add_debts give them
    :param session: judge as after this session or date, see `records_until_session`
    :param decisions: regressions that people accepted or muted
    :param sessions: as records.sessions gives them; None: none was cut short
    :param damaged: damaged places of the perflogs
    :param site: name or path of the site; '': as of commands without --site
    :param perflogs: folder of the records; '': that of commands without --perflogs
    :raises ValueError: no records, or no such session
    """
    if records.empty:
        raise ValueError('no records')
    if session is not None:
        records = records_until_session(records, session)
        if sessions is not None:
            sessions = sessions[sessions['started'] <= records['time'].max()]
    has_run = records[~records['result'].isin(['missing', 'not_run'])]
    label, newest = newest_sessions(has_run if len(has_run) else records)
    hist = metric_histories(records)
    now = Deviations(hist, newest, decisions)
    switches = {system: _read_switches_by_node(system, site)
                for system in map(str, records['system'].unique())}
    commands = PrintedCommands(perflogs, frozenset(map(
        str, records.loc[records['source'] == MADE_UP, 'system'].unique())), site)
    regressions, muted, improvements = describing.describe_changes(
        now, *grouping.find_worse_groups(now, switches), commands)
    worse = {name: [one.id for one in regressions if name in one.cases]
             for one in regressions for name in one.cases}
    of_newest = results.newest_records(records)
    outcomes = [dataclasses.replace(one, regressions=worse.get(one.test_case, []),
                                    is_earlier=one.session not in newest)
                for one in results.results_of_newest_records(of_newest)]
    # Also if a later session has them as not_run.
    of_session = has_run[has_run['session'].isin(newest)]
    cases = of_session['test_case'].nunique()
    rerun = _test_cases_to_rerun(now)
    return Verdict(
        session=label,
        events=[
            *regressions, *muted, *improvements,
            *failure_events(outcomes, commands), *inconclusive_events(outcomes),
            *changes.environment_changes(hist, newest),
            *_incident(rerun, cases), *rerun, *_test_cases_with_few_sessions(now)],
        results=outcomes, cases=cases, again=results.count_measured_again(
            of_newest[of_newest['session'].isin(newest)]),
        compared=results.compared_test_cases(
            results.newest_results_of_test_cases(of_session)),
        judged=int(now.enough.sum()), baselines=_baselines(now), damaged=damaged,
        commands=commands,
        ended_early=sessions is not None and _is_cut_short(sessions, records))


def _read_switches_by_node(system: str, site: str) -> dict[str, list[str]]:
    """Node -> the switches above it, by the site's topology.yaml."""
    folder = site_folder_of_name(site or default_site()).resolve()
    return topology.switches_above_nodes(
        folder if folder.name == system else SITES / system)


def newest_sessions(records: pd.DataFrame) -> tuple[str, set[str]]:
    """The name of the newest session, or its date if there are several; and the newest
    sessions of each system: those of its newest date."""
    runs = records[['system', 'session']].drop_duplicates().astype(str)
    runs['date'] = runs['session'].map(session_dates(records))
    newest = runs[runs['date'] == runs.groupby('system')['date'].transform('max')]
    names = newest['session'][newest['date'] == newest['date'].max()].unique()
    return (names[0] if len(names) == 1 else f'{newest["date"].max():%Y-%m-%d}',
            {*newest['session']})


def records_until_session(records: pd.DataFrame, session: str) -> pd.DataFrame:
    """The records up to a session, of its systems.

    :param session: a session, or a date (YYYY-MM-DD), or the beginning of one
    :raises ValueError: there is no such session, or there are several
    """
    dates = session_dates(records)
    chosen = {run for run in dates if run == session} or {
        run for run, day in dates.items() if str(day) == session} or {
        run for run in dates if run.startswith(session)}
    days = {dates[run] for run in chosen}
    if not chosen:
        raise ValueError(f'no session or date begins with {session!r}; the newest '
                         f'session is {max(dates, key=lambda run: dates[run])}')
    if len(days) > 1:
        raise ValueError(f'{len(chosen)} sessions on several dates begin with '
                         f'{session!r}; give more characters')
    first = records.groupby('session', observed=True)['time'].min()
    until = max((dates[run], first[run]) for run in chosen)
    systems = records['system'][records['session'].isin(chosen)].unique()
    return records[records['system'].isin(systems) & records['session'].isin(
        [run for run in dates if (dates[run], first[run]) <= until])]


def _is_cut_short(sessions: pd.DataFrame, records: pd.DataFrame) -> bool:
    """Whether a session of the newest date of a system was cut short: the last one,
    or one with a choice of test cases whose command no later one ran to its end.

    The others owe each test case (debts.py).
    """
    ended = sessions[~sessions['running']
                     & sessions['system'].isin(records['system'].unique())]
    dates = ended['started'].dt.date
    for _, of_date in ended[dates == dates.groupby(ended['system']).transform(
            'max')].groupby('system', observed=True):
        last_of_command = of_date.drop_duplicates('command', keep='last')
        if of_date['cut_short'].iloc[-1] or last_of_command['cut_short'][
                ~last_of_command['selected_all']].any():
            return True
    return False


def _baselines(now: Deviations) -> list[Baseline]:
    """The baselines of judged metrics, and of what is worse."""
    hist, walk = now.hist, now.walk
    rows = np.flatnonzero(now.enough & (now.named | (now.state != detect.NORMAL)))
    in_3, in_6 = (hist.share_of_value(rows, np.maximum(
        detect.smallest_detectable_change(walk, rows, window), hist.minimum[rows]))
        for window in (3, 6))
    return [Baseline(
        **results.place_fields(metric), metric=str(metric.metric),
        point=str(metric.point),
        value=now.value_of_level(row, walk.baseline.centre[row]),
        changes=[str(hist.sessions[turn]) for turn in _changes(now, row)],
        in_3_sessions=float(in_3[number]) if now.named[row] else None,
        in_6_sessions=float(in_6[number]) if now.named[row] else None)
        for number, (row, metric) in enumerate(zip(
            rows.tolist(), hist.metrics.iloc[rows].itertuples(), strict=True))]


def _changes(now: Deviations, row: int) -> list[int]:
    """Sessions from which on a metric was worse or better, or no longer was."""
    measured = np.flatnonzero(np.isfinite(now.hist.x[row]))
    states = now.walk.states[row, measured]
    turns: list[int] = measured[np.flatnonzero(np.diff(states)) + 1].tolist()
    if turns and states[-1] != detect.NORMAL:
        # Found later than it began.
        turns[-1] = int(now.walk.start[row])
    return turns


def _event_of_metric(now: Deviations, kind: str, row: int, why: str,
                     ratio: float | None = None) -> Event:
    """An event of the test case of a metric."""
    metric = now.hist.metrics.iloc[row]
    member = Member(**results.place_fields(metric), metric=str(metric.metric))
    return Event(kind, f'{test_case_text(member)}: {why}', [member.test_case],
                 member.system, members=[member], ratio=ratio)


def _test_cases_with_few_sessions(now: Deviations) -> list[Event]:
    """Test cases of the newest session whose judged metrics have too few sessions."""
    sessions, enough = np.isfinite(now.hist.x).sum(1), detect.FEWEST_JUDGED
    row_of_case = {int(now.of[row]): row for row in np.flatnonzero(
        now.live & (sessions < enough) & now.named)[::-1].tolist()}
    return [_event_of_metric(
        now, 'few sessions', row,
        f'{sessions[row]} sessions, needs {enough - sessions[row]} more')
        for row in sorted(row_of_case.values())]


def _test_cases_to_rerun(now: Deviations) -> list[Event]:
    """Test cases to measure again: a judged metric was worse in the newest session
    without an alarm, or the change may pass by itself. `ratio` is how many times as bad
    the newest session was, if noise does not explain it."""
    hist, last = now.hist, now.hist.last
    few_runs = hist.runs[now.rows, last] < detect.RERUNS
    rows = np.flatnonzero(now.live & now.named & now.walk.suspect & few_runs
                          | now.reported & now.may_pass)
    worse = np.where(now.walk.incident,
                     now.log_of_all_sessions[now.rows, last], 0.0)
    # Of several metrics of a test case the worst incident counts.
    row_of_case = {int(now.of[row]): row for row in sorted(
        rows.tolist(), key=lambda row: float(worse[row]))}
    return [_event_of_metric(now, 'rerun', row, _reason_to_rerun(now, row),
                             INFINITE if worse[row] and hist.is_zero(
                                 row, slice(last[row], None)) else
                             math.exp(min(worse[row], 700.0)) if worse[row] else None)
            for row in row_of_case.values()]


def _incident(rerun: Sequence[Event], cases: int) -> Iterator[Event]:
    """The event of all test cases that were far outside in the newest session alone.

    :param cases: test cases that ran
    """
    far = sorted((one for one in rerun if one.ratio), key=lambda one: -(one.ratio or 0))
    if far:
        yield Event(
            'incident', f'Incident: {count_with_noun(len(far), "test case")} of '
            f'{cases} {"was" if len(far) == 1 else "were"} worse than noise in this '
            'session only, ' + (
                'down to 0' if far[0].ratio == INFINITE else
                f'up to {far[0].ratio:.3g} times as bad')
            + f' ({test_case_text(far[0].members[0])}); measure again to decide '
            'whether it is a regression',
            [name for one in far for name in one.cases], ratio=far[0].ratio)


def _reason_to_rerun(now: Deviations, row: int) -> str:
    metric = now.hist.metrics['metric'].iat[row]
    if not now.may_pass[row]:
        return f'{metric} was worse in the newest session; run the test case again'
    since = now.hist.sessions[now.walk.start[row]]
    return (f'{metric} is worse since {since}, but similar changes on this system '
            f'disappeared within {detect.BRIEF} sessions; run the test case again')
