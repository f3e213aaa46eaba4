"""The verdict on a session, from records; verdict.py describes the rules."""
from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from config import places
from config.sessions import judged

from .. import results
from . import changes, describing, detect, grouping, power
from .decisions import Decision
from .deviations import Deviations
from .finding import Baseline, Case, Failure, Regression, Verdict
from .sessions import History, metric_histories, session_dates


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
    muted = describing.muted_regressions(now)
    described = describing.regressions_with_own_ids([
        *muted, *(describing.regression_of_group(now, one) for one in groups),
        *describing.regressions_of_metrics(now, alone)])
    regressions = sorted(described[len(muted):], key=describing.regression_sort_key)
    improved = describing.regressions_of_metrics(now, np.flatnonzero(
        now.live & (now.state == detect.BETTER) & now.named), better=True)
    compared = complete['result'].isin(['pass', 'xpass', 'xfail']) | complete[
        'result'].eq('fail') & complete['guard'].eq('')
    return Verdict(
        session=label, regressions=regressions, failures=_failed_test_cases(newest),
        improved=sorted(improved, key=describing.regression_sort_key),
        muted=described[:len(muted)],
        changed=changes.environment_changes(hist, this_session),
        not_enough=_test_cases_with_few_sessions(now), rerun=_test_cases_to_rerun(now),
        judged=int(now.enough.sum()),
        cases=has_run['test_case'][has_run['session'].isin(this_session)].nunique(),
        power=power.power_of_test_cases(hist, now.walk, now.enough),
        baselines=_baselines(now), compared=complete['test_case'][compared].nunique(),
        results=_results_with_regressions(newest, regressions))


def select_session(records: pd.DataFrame, session: str | None
           ) -> tuple[str, pd.DataFrame, set[str]]:
    """A session: its name, the records up to it, and its sessions.

    :raises ValueError: there is no such session, or several
    """
    dates = session_dates(records)
    if session is None:
        newest: dict[str, np.datetime64] = {}
        runs = records[['system', 'session']].drop_duplicates().astype(str)
        for system, run in runs.itertuples(index=False):
            newest[system] = max(newest.get(system, dates[run]), dates[run])
        this_session = {run for system, run in runs.itertuples(index=False)
                        if dates[run] == newest[system]}
        last = max(newest.values())
        new = [run for run in this_session if dates[run] == last]
        return new[0] if len(new) == 1 else str(last), records, this_session
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


def _failed_test_cases(newest: pd.DataFrame) -> list[Failure]:
    """One for each test case and copy that failed, by its most telling record.

    :param newest: results.newest_records of the records
    """
    records = newest[newest['result'].isin(results.FAILED)]
    # Metrics before what a guard says beside them.
    records = records.assign(rank=records['result'].map(results.FAILED.index),
                             kept=records['metric'] == 'completed')
    records = records.sort_values(['rank', 'kept', 'metric', 'point']).drop_duplicates(
        ['test_case', 'copy']).sort_values(results.LISTED)
    return [_failure_of_record(row) for row in records.itertuples()]


def _results_with_regressions(newest: pd.DataFrame, regressions: list[Regression]
             ) -> list[results.Result]:
    """The result of each test case, with its regressions."""
    part: dict[str, list[str]] = {}
    for line in regressions:
        for one in line.members:
            ids = part.setdefault(one.test_case, [])
            if line.id not in ids:
                ids.append(line.id)
    return [dataclasses.replace(one, regressions=part.get(one.test_case, []))
            for one in results.results_of_newest_records(newest)]


def _failure_of_record(row: Any) -> Failure:
    site = places.site_option(str(row.system))
    if row.result == 'xpass':
        todo = 'remove $xfail from the reference file'
    elif row.result == 'flaky':
        todo = ('nothing now: the test case passed when it was measured '
                'again; check its nodes if this repeats')
    elif row.result == 'missing':
        todo = ('find out why it was not selected: site, environment or check; to '
                f'measure it: ./plumb run{site} {row.test_case}; if it was removed on '
                f'purpose: ./plumb verdict retire {row.test_case}{site} --reason TEXT')
    elif row.guard == results.OPEN:
        todo = (f'measure it on these nodes: ./plumb run{site} {row.test_case}; if the '
                f'problem is known: ./plumb verdict mute {row.test_case}{site} --until '
                'DATE --reason TEXT; if a node left the site: ./plumb verdict retire '
                f'NODE{site} --reason TEXT')
    elif results.is_cut_short(row.result, row.guard):
        todo = ('run the test case again: the session ended before the test '
                'case did')
    elif row.guard == 'reference':
        todo = f'make a reference: {places.CALIBRATE}{site}'
    elif row.guard:
        todo = 'see the output of the test case'
    else:
        todo = ('run the test case again, and check what changed; after an '
                f'intended change: {places.CALIBRATE}{site} --new-level')
    kept = row.metric != 'completed'
    return Failure(
        **results.place_fields(row), result=row.result, guard=row.guard,
        metric=row.metric if kept else '',
        point=judged.point_with_unit(row.point) if kept else '',
        value=_finite_or_none(row.value) if kept else None,
        reference=_finite_or_none(row.reference) if kept else None,
        unit=row.unit if kept else '', session=row.session,
        time=f'{row.time:%Y-%m-%dT%H:%M:%SZ}', todo=todo, copy=str(row.copy),
        reason=str(row.reason) if row.guard else '', note=str(row.note),
        nodes=str(row.nodes))


def _test_case_with_reason(row: Any, why: str, **more: Any) -> Case:
    return Case(**results.place_fields(row), why=why, **more)


def _finite_or_none(value: Any) -> float | None:
    return float(value) if pd.notna(value) and math.isfinite(value) else None


def _baselines(now: Deviations) -> list[Baseline]:
    """The baselines of judged metrics, and of what is worse."""
    rows = np.flatnonzero(now.enough & (now.named | (now.state != detect.NORMAL)))
    return [Baseline(
        **results.place_fields(metric), metric=str(metric.metric),
        point=str(metric.point),
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


def _test_cases_with_few_sessions(now: Deviations) -> list[Case]:
    """Test cases of the newest session whose judged metrics have too few sessions."""
    sessions = now.hist.last_session_positions + 1
    enough = detect.FEWEST + 3
    row_of_case: dict[int, int] = {}
    for row in np.flatnonzero(now.live & (sessions <= enough) & now.named).tolist():
        row_of_case.setdefault(int(now.of[row]), row)
    return [_test_case_with_reason(now.hist.metrics.iloc[row],
                                   f'{sessions[row]} sessions, needs '
                                   f'{enough + 1 - sessions[row]} more',
                                   sessions=int(sessions[row]),
                                   needs=int(enough + 1 - sessions[row]))
            for row in row_of_case.values()]


def _test_cases_to_rerun(now: Deviations) -> list[Case]:
    """Test cases to measure again: a judged metric was worse in the newest session
    without an alarm, or the change may pass by itself."""
    hist, last = now.hist, now.hist.last_session_positions
    few_runs = hist.runs[now.rows, last] < detect.RERUNS
    rows = np.flatnonzero(now.live & now.named & now.walk.suspect & few_runs
                          | now.reported & now.may_pass)
    times_as_bad = {row: _times_as_bad_in_newest_session(now, row)
                    for row in rows.tolist()}
    # Of several metrics of a test case the worst incident counts.
    row_of_case = {int(now.of[row]): row for row in sorted(
        times_as_bad, key=lambda row: times_as_bad[row] or 0)}
    return [_test_case_with_reason(
        hist.metrics.iloc[row], _reason_to_rerun(now, row),
        sessions=int(last[row]) + 1,
        needs=max(detect.RERUNS - int(hist.runs[row, last[row]]), 1),
        incident=times_as_bad[row]) for row in row_of_case.values()]


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
    return 1 + worse if now.hist.linear[row, 1] else math.exp(min(worse, 700.0))


def _session_date(label: str, hist: History) -> datetime.date:
    """The date of a session."""
    day = hist.session_of.get(label)
    return datetime.date.fromisoformat(label if day is None else str(day))
