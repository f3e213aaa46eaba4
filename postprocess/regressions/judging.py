"""The verdict on a session, from records; verdict.py describes the rules."""
from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from config import places
from config.sessions import judged
from config.sites import topology

from .. import results
from ..results import RECENT
from . import changes, detect, power
from .decisions import Decision, decision_target_names
from .finding import (
    Baseline,
    Case,
    Failure,
    Member,
    Regression,
    Verdict,
)
from .sessions import UNNAMED, History, metric_histories, session_dates

#: Fewest test cases of a group, and share of them that alarm where the group
#: has no history of its own.
FEWEST_CASES, SHARE = 3, 0.6
#: Part of what its worst test cases explain alone that a group must explain.
EXPLAINS = 0.6
#: Further quantile of groups of one test case, of which there are many.
OF_CASE = 0.5
#: Groups stand alone, but there are few of them.
OF_GROUP = -detect.ALONE
#: Most lines that are looked for in groups, and nodes that are looked at.
MAX_GROUPS, MAX_NODES = 20, 64
#: Sessions of a job's nodes that are looked at.
NODE_SESSIONS = 90
#: Smallest change of a group, a log.
MINIMUM = 0.002


@dataclass
class Group:
    """Test cases that may regress together."""
    kind: str
    name: str
    system: str
    #: Test cases x sessions: which test cases were part of it on which
    #: session.
    there: np.ndarray
    #: Means over judged metrics alone, or over all of them.
    named: bool = True


@dataclass
class Candidate:
    """A group, or a metric, that may have regressed."""
    group: Group
    #: Numbers of the test cases that regressed.
    cases: np.ndarray
    #: Number of the first and last session.
    start: int
    last: int
    gain: float


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
    judging = _Judging(metric_histories(frame), this_session, session is None,
                       decisions, switches, label)
    regressions, muted = judging.find_regressions()
    compared = complete['result'].isin(['pass', 'xpass', 'xfail']) | complete[
        'result'].eq('fail') & complete['guard'].eq('')
    return Verdict(
        session=label, regressions=regressions, failures=_failed_test_cases(newest),
        improved=judging.find_improvements(), muted=muted,
        changed=changes.environment_changes(judging.hist, this_session),
        not_enough=judging.test_cases_with_few_sessions(),
        rerun=judging.test_cases_to_rerun(),
        judged=int(judging.enough.sum()),
        cases=has_run['test_case'][has_run['session'].isin(this_session)].nunique(),
        power=power.power_of_test_cases(judging.hist, judging.walk, judging.enough),
        baselines=judging.baselines(),
        compared=complete['test_case'][compared].nunique(),
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


class _Judging:
    """The history up to a session, and its verdict."""

    def __init__(self, hist: History, this_session: set[str], standing: bool,
                 decisions: Sequence[Decision],
                 switches: Mapping[str, Mapping[str, Sequence[str]]],
                 label: str) -> None:
        """
        :param standing: also what is still true of test cases that did not run
        :param label: of the session
        """
        self.hist, self.this_session, self.switches = (
            hist,
            this_session,
            switches,
        )
        metrics = hist.metrics
        self.of = metrics['of'].to_numpy(int)
        self.rows = np.arange(len(metrics))
        ran = hist.ran
        now = ran['session'].isin(this_session)
        self.ran = set(ran['of'][now])
        newest = ran.groupby(ran['of'].map(
            dict(zip(metrics['of'], metrics['system'], strict=True))),
            observed=True)['day'].max()
        self.newest = metrics['system'].map(newest).to_numpy(int)
        last = hist.at[self.rows, hist.last_session_positions]
        #: Metrics of the newest session; and those of which something is told.
        self.live = (last == self.newest) & np.isin(self.of, list(self.ran))
        self.reported = last > self.newest - RECENT if standing else self.live
        self.day = _session_date(label, hist)
        self.decisions = [one for one in decisions
                          if one.until is None or one.until >= self.day]
        #: Of the lines that were made.
        self.ids: set[str] = set()
        #: Metric -> the decision that mutes it.
        self.muted: dict[int, Decision] = {}
        self.walk = detect.detect_level_changes(
            hist.x,
            first=self._find_baseline_starts_and_mutes(),
            pool=_pool_number_of_each_metric(metrics),
            floor=hist.floor,
            minimum=hist.minimum,
            runs=hist.runs,
            within=hist.within,
            caution=np.where(metrics['named'], 0.0, UNNAMED),
        )
        self.state = self.walk.states[self.rows, hist.last_session_positions] \
            if len(metrics) else np.empty(0, int)
        #: Worse, but by a change of a kind that passed by itself before.
        self.may_pass = (self.state == detect.WORSE) & ~self._is_worse_beyond_chance()
        self.state = np.where(self.may_pass, detect.NORMAL, self.state)
        self.enough = self.live & (self.walk.sessions >= detect.FEWEST) & (
            hist.last_session_positions >= detect.FEWEST)
        self._compute_deviation_tables()

    def _find_baseline_starts_and_mutes(self) -> np.ndarray:
        """Position at which each baseline begins; notes muted metrics."""
        first = np.zeros(len(self.rows), int)
        every: dict[str, list[int]] = {}
        if self.decisions:
            for row, metric in enumerate(self.hist.metrics[[
                    'test_case', 'metric', 'point']].itertuples(
                        index=False, name=None)):
                for name in decision_target_names(*metric):
                    every.setdefault(name, []).append(row)
        for one in self.decisions:
            since = np.searchsorted(self.hist.sessions, np.datetime64(
                one.since, 'D'))
            for row in {row for name in one.metrics
                        for row in every.get(name, ())}:
                if one.kind == 'muted':
                    self.muted[row] = one
                    continue
                at = self.hist.at[row][self.hist.at[row] >= 0]
                first[row] = max(first[row], int(np.searchsorted(at, since)))
        return first

    def _is_worse_beyond_chance(self) -> np.ndarray:
        """Whether each metric is still worse after its last session, and that is no
        change that the history of its system shows to pass by itself."""
        there = self.hist.at >= 0
        measured = self._by_session(there, there, False)
        worse = self._by_session(self.walk.states == detect.WORSE, there, False)
        strengths = self._by_session(self.walk.strengths, there, 0.0)
        reported = np.zeros(len(self.rows), bool)
        for rows in self.hist.metrics.groupby('system', sort=False).indices.values():
            # Sessions of other systems do not count.
            part = np.ix_(rows, np.flatnonzero(measured[rows].any(0)))
            reported[rows] = detect.control_false_discoveries(
                worse[part], strengths[part], measured[part])[:, -1]
        return reported

    def _compute_deviation_tables(self) -> None:
        """Metrics and test cases over sessions: z, and logs against the
        centre."""
        hist, walk = self.hist, self.walk
        good = (hist.at >= 0) & walk.usable
        good &= (walk.sessions >= detect.FEWEST)[:, None]
        self.z = self._by_session(
            np.clip(walk.z, -detect.CLIP, detect.CLIP), good, np.nan)
        self.log = self._by_session(hist.x - walk.centre[:, None], good, np.nan)
        named = self.hist.metrics['named'].to_numpy(bool)
        self.cases = int(self.of.max(initial=-1)) + 1
        self.case_z = self._mean_per_test_case(self.z, named)
        self.case_all = self._mean_per_test_case(self.z, np.ones(len(named), bool))
        self.case_log = self._mean_per_test_case(self.log, named)
        self.head = np.zeros(self.cases, int)  # a metric of each test case
        self.head[self.of[::-1]] = self.rows[::-1]

    def _by_session(self, values: np.ndarray, chosen: np.ndarray, other: Any
                    ) -> np.ndarray:
        """Metrics over sessions, from arrays of metrics over their own positions.

        :param chosen: which values are taken
        :param other: the value of all other sessions
        """
        result = np.full((len(self.rows), len(self.hist.sessions)), other)
        row, place = np.nonzero(chosen)
        result[row, self.hist.at[row, place]] = values[row, place]
        return result

    def _mean_per_test_case(self, values: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Test cases x sessions: the mean over some of their metrics."""
        total = np.zeros((self.cases, values.shape[1]))
        count = np.zeros_like(total)
        chosen = values[which]
        np.add.at(total, self.of[which], np.nan_to_num(chosen))
        np.add.at(count, self.of[which], np.isfinite(chosen))
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    @functools.cached_property
    def _log_of_all_sessions(self) -> np.ndarray:
        """Metrics x sessions: logs against the centre, also of what is no part of the
        present baseline."""
        return self._by_session(self.hist.x - self.walk.centre[:, None],
                                self.hist.at >= 0, np.nan)

    # Groups -----------------------------------------------------------

    @functools.cached_property
    def candidate_groups(self) -> list[Group]:
        """All that may be worse together, no two of them the same."""
        table = self.hist.metrics.iloc[self.head]
        live = np.zeros(self.cases, bool)
        live[self.of[self.reported]] = True
        ran = np.isfinite(self.case_all)
        groups: list[Group] = []
        for kind, columns, name in (
                ('system', ['system'], 'system {0}'),
                ('family', ['system', 'family'], 'family {1} on {0}'),
                ('program', ['system', 'program'], 'program {1} on {0}'),
                ('check', ['system', 'partition', 'check'],
                 'check {2} on {0}:{1}'),
                ('stack', ['system', 'partition', 'environ'],
                 'environment {2} on {0}:{1}'),
                ('partition', ['system', 'partition'],
                 'partition {0}:{1}')):
            for keys, rows in table.groupby(columns, sort=False).indices \
                    .items():
                keys = keys if isinstance(keys, tuple) else (keys,)
                members = np.zeros(self.cases, bool)
                members[rows] = True
                if (members & live).sum() >= FEWEST_CASES:
                    groups.append(Group(kind, name.format(*keys), keys[0],
                                        members[:, None] & ran))
        groups = _drop_duplicate_groups(groups) + list(
            self._node_and_switch_groups(live)
        )
        every = [Group(g.kind, g.name, g.system, g.there, False)
                 for g in groups]
        several = (
            np.bincount(self.of, self.reported, self.cases) >= FEWEST_CASES
        )
        for case in np.flatnonzero(live & several):
            members = np.zeros(self.cases, bool)
            members[case] = True
            every.append(Group('case', '', str(table['system'].iloc[case]),
                               members[:, None] & ran, False))
        return groups + every

    def _node_and_switch_groups(self, live: np.ndarray) -> Iterator[Group]:
        """A group for each node and switch that something looks worse on."""
        ran = self.hist.ran
        ran = ran[(ran['day'] >= len(self.hist.sessions) - NODE_SESSIONS)
                  & (ran['nodes'] != '')]
        if ran.empty:
            return
        system = self.hist.metrics['system'].to_numpy(object)[self.head][
            ran['of'].to_numpy()]
        where = pd.Series(system, index=ran.index).str.cat(
            ran['nodes'].astype(str), sep=' ')
        code, texts = pd.factorize(where)
        places = [_job_nodes_and_switches(text, self.switches)
                  for text in texts]
        of, session = ran['of'].to_numpy(), ran['day'].to_numpy()
        recent = (session >= len(self.hist.sessions) - RECENT) & live[of]
        worse = np.nan_to_num(self.case_all[of, session])
        score: dict[tuple[str, str, str], list[float]] = {}
        for n, value in zip(code[recent], worse[recent], strict=True):
            for place in places[n]:
                score.setdefault(place, []).append(value)
        likely = sorted(score, key=lambda p: -sum(score[p]) / math.sqrt(
            len(score[p])))[:MAX_NODES]
        groups = []
        for kind, owner, name in likely:
            on_part = np.array([(kind, owner, name) in p for p in places])[
                code
            ]
            there = np.zeros((self.cases, len(self.hist.sessions)), bool)
            there[of[on_part], session[on_part]] = True
            if there[:, -RECENT:].any(1).sum() >= FEWEST_CASES:
                groups.append(Group(kind, f'{kind} {name} of {owner}', owner,
                                    there))
        yield from _drop_duplicate_groups(groups)

    def _find_worse_groups(self, free: np.ndarray) -> list[Candidate]:
        """Groups of test cases, less those already told, that are worse."""
        series, kept = [], []
        for group in self.candidate_groups:
            there = group.there & free[:, None]
            table = self.case_z if group.named else self.case_all
            there = there & np.isfinite(table)
            count = there.sum(0)
            if not count.any():
                continue
            usual = np.median(count[count > 0])
            enough = np.flatnonzero(count >= (
                1 if group.kind in ('node', 'switch') else usual / 2))
            total = np.where(there, table, 0.0).sum(0)[enough]
            # Few test cases tell less: as wide as those of the usual number.
            mean = total / np.sqrt(count[enough] * usual)
            series.append((enough, mean))
            kept.append((group, there))
        if not series:
            return []
        x = np.full((len(series), max(len(s) for s, _ in series)), np.nan)
        for row, (_, mean) in enumerate(series):
            x[row, :len(mean)] = mean
        walk = detect.detect_level_changes(x, floor=0.02, caution=np.array(
            [OF_CASE if g.kind == 'case' else OF_GROUP for g, _ in kept]))
        candidates = []
        for row, ((enough, _), (group, there)) in enumerate(
                zip(series, kept, strict=True)):
            last = int(enough[-1])
            state = walk.states[row, len(enough) - 1]
            start = int(enough[walk.start[row]])
            if state != detect.WORSE:
                alarmed = self._common_alarm_session(group, free)
                if alarmed is None:
                    continue
                start = alarmed
            candidate = self._worse_test_cases_of_group(group, there, start, last)
            if candidate is not None:
                candidates.append(candidate)
        return candidates

    @functools.cached_property
    def _first_alarm_per_test_case(self) -> np.ndarray:
        """First session of the alarms of each case's metrics, also of those that
        may pass by themselves; -1: none."""
        first_alarm = np.full(self.cases, -1)
        for row in np.flatnonzero(
            self.reported & ((self.state == detect.WORSE) | self.may_pass)
        ):
            start = self.hist.at[row, self.walk.start[row]]
            old = first_alarm[self.of[row]]
            first_alarm[self.of[row]] = start if old < 0 else min(old, start)
        return first_alarm

    def _common_alarm_session(self, group: Group, free: np.ndarray) -> int | None:
        """The session from which on most test cases of a group alarm by
        themselves."""
        if group.kind == 'case' or not group.named:
            return None
        members = group.there[:, -RECENT:].any(1) & free
        starts = self._first_alarm_per_test_case[members]
        starts = starts[starts >= 0]
        if len(starts) < FEWEST_CASES or len(starts) < SHARE * members.sum():
            return None
        return int(np.median(starts))

    def _worse_test_cases_of_group(
        self, group: Group, there: np.ndarray, start: int, last: int
    ) -> Candidate | None:
        """Which test cases of a group are worse since a session, and how much
        that explains."""
        table = self.case_z if group.named else self.case_all
        part = there[:, start:last + 1]
        count = part.sum(1)
        mean = np.where(part, np.nan_to_num(table[:, start:last + 1]),
                        0.0).sum(1) / np.maximum(count, 1)
        members = np.flatnonzero(count > 0)
        if group.kind != 'case' and len(members) < FEWEST_CASES:
            return None
        level = float(mean[members].mean())
        if level <= 0:
            return None
        alarmed = members[self._first_alarm_per_test_case[members] >= 0]
        if (mean[alarmed] ** 2).sum() * EXPLAINS > len(members) * level ** 2:
            return None                     # a few of them explain more
        # Unless its sessions speak more for the old level than for the new.
        held = members[
            count[members] * level * (mean[members] - level / 2) > -2.0
        ]
        gain = len(members) * level * abs(level) * math.sqrt(
            float(count[members].mean()))
        if not len(held):
            return None
        return Candidate(group, held, start, last, gain)

    # Lines ------------------------------------------------------------

    def find_regressions(self) -> tuple[list[Regression], list[Regression]]:
        """Regressions that are not muted, and those that are."""
        free = np.ones(self.cases, bool)
        alarms = self.reported & (self.state == detect.WORSE)
        known = np.isin(self.rows, list(self.muted))
        free[self.of[alarms & known]] = False
        lines = [self._make_metric_regression([row], self.muted[int(row)])
                 for row in np.flatnonzero(alarms & known).tolist()]
        groups: list[Candidate] = []
        single: set[int] = set()
        while len(groups) + len(single) < MAX_GROUPS and len(self.rows):
            candidates = [
                candidate for candidate in self._find_worse_groups(free)
                if candidate.group.kind != 'case'
                or not (self._first_alarm_per_test_case[candidate.cases] >= 0).any()]
            if not candidates:
                break
            best = max(candidates, key=lambda candidate: candidate.gain)
            left = np.flatnonzero(alarms & free[self.of]).tolist()
            explained = {row: self._deviation_explained_by_metric(row) for row in left}
            row = max(explained, key=lambda row: explained[row], default=-1)
            if explained.get(row, 0.0) > best.gain:
                # A single metric explains more: it is reported by itself, and the
                # groups are judged again without its test case.
                single.add(int(self.of[row]))
                free[self.of[row]] = False
                continue
            free[best.cases] = False
            if self._is_change_large_enough(best):
                groups.append(best)
        of_groups = [*map(self._make_group_regression, groups)]
        singles = alarms & ~known & (free[self.of] | np.isin(
            self.of, list(single)))
        lone = [self._make_metric_regression(list(rows)) for rows in
                self._group_rows_by_metric(np.flatnonzero(singles))]
        return sorted(of_groups + lone, key=_regression_sort_key), lines

    def find_improvements(self) -> list[Regression]:
        rows = np.flatnonzero(self.live & (self.state == detect.BETTER)
                              & self.hist.metrics['named'].to_numpy(bool))
        return sorted(
            (
                self._make_metric_regression(list(group), better=True)
                for group in self._group_rows_by_metric(rows)
            ),
            key=_regression_sort_key,
        )

    def _group_rows_by_metric(self, rows: np.ndarray) -> list[list[int]]:
        """Metrics of one test case and metric; and with the first judged one
        of a test case those that nobody names to be judged."""
        metrics = self.hist.metrics
        rows_of_metric: dict[tuple[int, str], list[int]] = {}
        named = metrics['named'].to_numpy(bool)
        main: dict[int, str] = {}
        for row in sorted(rows, key=lambda r: not named[r]):
            case, metric = int(self.of[row]), str(metrics['metric'].iat[row])
            if not named[row] and case in main:
                metric = main[case]
            main.setdefault(case, metric)
            rows_of_metric.setdefault((case, metric), []).append(int(row))
        return list(rows_of_metric.values())

    def _deviation_explained_by_metric(self, row: int) -> float:
        """The part of the deviations that a single metric explains."""
        at = self.hist.at[row]
        z = self.z[
            row,
            at[
                self.walk.start[row] : self.hist.last_session_positions[row]
                + 1
            ],
        ]
        z = z[np.isfinite(z)]
        return float(z.mean() ** 2 * math.sqrt(len(z))) if len(z) else 0.0

    def _is_change_large_enough(self, candidate: Candidate) -> bool:
        """Whether a group's change is large enough to be reported."""
        log = self.case_log[
            candidate.cases, candidate.start : candidate.last + 1
        ]
        return bool(np.isfinite(log).any() and np.nanmean(log) >= MINIMUM)

    def _make_metric_regression(self, rows: list[int], mute: Decision | None = None,
                                better: bool = False) -> Regression:
        """The line of one or several metrics of a test case."""
        hist, walk, row = self.hist, self.walk, rows[0]
        start, last = int(walk.start[row]), int(hist.last_session_positions[row])
        change = detect.compare_with_baseline(
            hist.x[row, start:last + 1], float(walk.centre[row]),
            float(walk.spread[row]), float(walk.phi[row]),
            int(walk.sessions[row]), float(walk.df[row]))
        first = hist.metrics.iloc[row]
        before, now, ratio, low, high = self._values_before_and_after(row, change)
        earlier = [] if better else self._earlier_spells(
            hist.x[row, :start], hist.at[row, :start], float(walk.centre[row]), change)
        return self._make_regression(
            'metric', '', rows, int(hist.at[row, start]), last - start + 1,
            ratio, low, high, before, now, mute,
            str(first['better']), better, earlier=earlier)

    def _earlier_spells(self, x: np.ndarray, at: np.ndarray, centre: float,
                        change: detect.Change) -> list[tuple[str, str, int]]:
        """First and last date, and sessions, of the spells at a new level before.

        :param x: a series before the change
        :param at: numbers of its sessions
        """
        return [(str(self.hist.sessions[at[first]]), str(self.hist.sessions[at[last]]),
                 last - first + 1)
                for first, last in detect.earlier_spells(x, centre, change.size)]

    def _values_before_and_after(self, row: int, change: detect.Change) -> tuple[
            float | None, float | None, float | None, float | None,
            float | None]:
        """(before, now, ratio, low, high) in the metric's own direction."""
        centre = float(self.walk.centre[row])
        at = [self._value_of_level(row, centre + size)
              for size in (0.0, change.size, change.low, change.high)]
        if not at[0]:
            return at[0], at[1], None, None, None
        ratio, *ends = (value / at[0] for value in at[1:])
        return at[0], at[1], ratio, min(ends), max(ends)

    def _value_of_level(self, row: int, level: float) -> float:
        """The value of a metric, in its own unit and direction, of a level of its
        series."""
        sign = float(self.hist.worse_direction_sign()[row])
        middle, scale = map(float, self.hist.linear[row])
        return middle + sign * scale * level if scale else math.exp(
            min(sign * level, 700.0))

    def baselines(self) -> list[Baseline]:
        """The baselines of judged metrics, and of what is worse."""
        hist = self.hist
        rows = np.flatnonzero(self.enough & (
            hist.metrics['named'].to_numpy(bool) | (self.state != detect.NORMAL)))
        return [Baseline(
            **results.place_fields(metric), metric=str(metric.metric),
            point=str(metric.point),
            value=self._value_of_level(row, float(self.walk.centre[row])),
            changes=[str(hist.sessions[hist.at[row, turn]])
                     for turn in self._change_positions(row)])
            for row, metric in zip(rows.tolist(), hist.metrics.iloc[rows].itertuples(),
                                   strict=True)]

    def _change_positions(self, row: int) -> list[int]:
        """Positions from which on a metric was worse or better, or no longer was."""
        last = int(self.hist.last_session_positions[row])
        states = self.walk.states[row, :last + 1]
        turns: list[int] = (np.flatnonzero(np.diff(states)) + 1).tolist()
        if turns and states[last] != detect.NORMAL:
            # Found later than it began.
            turns[-1] = int(self.walk.start[row])
        return turns

    def _make_group_regression(self, candidate: Candidate) -> Regression:
        """The line of a group."""
        metrics = self.hist.metrics
        members: list[int] = []
        named = metrics['named'].to_numpy(bool)
        recent = self.z[:, candidate.start:candidate.last + 1]
        seen = np.isfinite(recent).sum(1)
        level = np.nansum(np.where(np.isfinite(recent), recent, 0.0),
                          axis=1) / np.maximum(seen, 1)
        for case in candidate.cases:
            of_case = np.flatnonzero((self.of == case) & (seen > 0)).tolist()
            worse = [r for r in of_case if self.state[r] == detect.WORSE] or [
                r for r in of_case if named[r] and level[r] > 0] or [
                r for r in of_case if level[r] > 0]
            members += sorted(worse, key=lambda r: not named[r])
        # Of a node or switch, only the sessions in which a test case ran there. What is
        # no logarithm has no ratio.
        is_log = self.hist.linear[members, 1] == 0
        counts = candidate.group.there[self.of[members]] & is_log[:, None]
        mean, at = _mean_per_session(np.where(counts, self.log[members], np.nan))
        old, new = mean[at < candidate.start], mean[at >= candidate.start]
        better = set(metrics['better'].iloc[members])
        ratios: list[float] = []
        earlier: list[tuple[str, str, int]] = []
        if len(old) and len(new):
            held = np.ones((1, len(old)), bool)
            stats = detect._baseline_stats(old[None], held, None)
            centre = float(stats.centre[0])
            change = detect.compare_with_baseline(
                new, centre, max(float(stats.spread[0]), 1e-5), float(stats.phi[0]),
                len(old), float(stats.df[0]))
            sign = -1.0 if better == {'higher'} else 1.0
            ratios = [math.exp(sign * size)
                      for size in (change.size, change.low, change.high)]
            # Changes that are over are no part of the baseline.
            if candidate.group.kind not in ('node', 'switch'):
                counts = is_log[:, None]
            logs = np.where(counts, self._log_of_all_sessions[members], np.nan)
            earlier = self._earlier_spells(
                *_mean_per_session(logs[:, :candidate.start]), centre, change)
        there = candidate.group.there[:, candidate.start:candidate.last + 1]
        return self._make_regression(
            candidate.group.kind,
            candidate.group.name,
            members,
            candidate.start,
            int((candidate.group.there[self.of[members]] & np.isfinite(
                self.log[members]))[:, candidate.start:].any(0).sum()),
            ratios[0] if ratios else None,
            min(ratios[1:], default=None),
            max(ratios[1:], default=None),
            None,
            None,
            None,
            next(iter(better)) if len(better) == 1 else '',
            group_size=0 if candidate.group.kind == 'case' else int(there.any(1).sum()),
            there=candidate.group.there,
            earlier=earlier,
        )

    def _make_regression(self, kind: str, name: str, rows: list[int], start: int,
                         count: int, ratio: float | None, low: float | None,
                         high: float | None, before: float | None, now: float | None,
                         mute: Decision | None, better: str, improved: bool = False,
                         group_size: int = 0, there: np.ndarray | None = None,
                         earlier: Sequence[tuple[str, str, int]] = ()) -> Regression:
        series = self.hist.metrics.iloc[rows]

        def common_value(column: str) -> str:
            known = series[column].unique()
            return str(known[0]) if len(known) == 1 else ''

        single = kind in ('metric', 'case')
        since = self.hist.sessions[start]
        place = {c: common_value(c) for c in ('system', 'partition', 'environ',
                                              'family', 'check', 'params',
                                              'settings')}
        case = common_value('test_case') if series['of'].nunique() == 1 else ''
        metrics = list(dict.fromkeys(series['metric']))
        metric = metrics[0] if single or len(metrics) == 1 else ''
        point = str(series['point'].iloc[0]) if single \
            else common_value('point')
        cases = list(dict.fromkeys(series['test_case']))
        key = [kind, name, *place.values(), case, metric, point] + [
            common_value(c) for c in ('program', 'source', 'edition')] * single
        ident = _short_hash('|'.join(key))
        # What is left of a group may be worse since another session.
        while ident in self.ids:
            ident = _short_hash(ident)
        self.ids.add(ident)
        ofs = list(dict.fromkeys(series['of']))
        cause = self._environment_changes_text(ofs, start)
        ran = self.hist.ran
        ran = ran[ran['of'].isin(ofs) & (ran['day'] >= start)]
        first = ran['session'][ran['day'] == start]
        members = [
            Member(**results.place_fields(r), metric=str(r.metric),
                   point=str(r.point), ratio=self._ratio_to_centre(
                       row, start, True if there is None else there[self.of[row]]))
            for row, r in zip(rows, series.itertuples(), strict=True)]
        return Regression(
            id=ident, kind=kind, group=name, **place, test_case=case, cases=cases,
            metric=metric, metrics=metrics, point=point,
            unit=common_value('unit') or str(series['unit'].iloc[0]) * single,
            better=better, since=str(since), since_session=str(
                first.iloc[0]) if len(first) else '', sessions=count,
            before=before, now=now, ratio=ratio, low=low, high=high,
            cause=cause,
            todo='' if improved else _advice_text(kind, name, ident, cause, cases,
                                                  place['system']),
            members=members, ran=group_size,
            nodes=self._nodes_if_always_same(ran['nodes']), earlier=[*earlier],
            reason=mute.reason if mute else '',
            until=str(mute.until) if mute else '')

    def _ratio_to_centre(self, row: int, start: int, there: np.ndarray | bool
                         ) -> float | None:
        """Level of a metric since a session over its centre.

        :param there: the sessions that count, of all
        """
        log = np.where(there, self.log[row], np.nan)[start:]
        log = log[np.isfinite(log)]
        if not len(log) or self.hist.linear[row, 1]:
            return None
        return math.exp(
            float(self.hist.worse_direction_sign()[row]) * float(np.mean(log))
        )

    def _nodes_if_always_same(self, nodes: pd.Series) -> str:
        """The nodes of jobs, if always the same of several."""
        known = nodes.unique()
        return (str(known[0]) if len(known) == 1
                and self.hist.ran['nodes'].nunique() > 1 else '')

    def _environment_changes_text(self, cases: list[int], start: int) -> str:
        """The changes of the environment in the first session of a change."""
        ran = self.hist.ran
        ran = ran[ran['of'].isin(cases)]
        return '; '.join(changes.environment_differences(
            ran[ran['day'] < start].groupby('of').tail(changes.BEFORE),
            ran[ran['day'] >= start].groupby('of').head(2)))

    def test_cases_with_few_sessions(self) -> list[Case]:
        """Test cases of the newest session whose judged metrics have too few
        sessions."""
        sessions = self.hist.last_session_positions + 1
        enough = detect.FEWEST + 3
        too_few = self.live & (sessions <= enough) \
            & self.hist.metrics['named'].to_numpy(bool)
        row_of_case: dict[int, int] = {}
        for row in np.flatnonzero(too_few).tolist():
            row_of_case.setdefault(int(self.of[row]), row)
        return [_test_case_with_reason(self.hist.metrics.iloc[row],
                                       f'{sessions[row]} sessions, needs '
                                       f'{enough + 1 - sessions[row]} more',
                                       sessions=int(sessions[row]),
                                       needs=int(enough + 1 - sessions[row]))
                for row in row_of_case.values()]

    def test_cases_to_rerun(self) -> list[Case]:
        """Test cases to measure again: a judged metric was worse in the newest
        session without an alarm, or the change may pass by itself."""
        hist, last = self.hist, self.hist.last_session_positions
        few_runs = hist.runs[self.rows, last] < detect.RERUNS
        named = hist.metrics['named'].to_numpy(bool)
        rows = np.flatnonzero(self.live & named & self.walk.suspect & few_runs
                              | self.reported & self.may_pass)
        times_as_bad = {row: self._times_as_bad_in_newest_session(row)
                        for row in rows.tolist()}
        # Of several metrics of a test case the worst incident counts.
        row_of_case = {int(self.of[row]): row for row in sorted(
            times_as_bad, key=lambda row: times_as_bad[row] or 0)}
        return [
            _test_case_with_reason(
                hist.metrics.iloc[row], self._reason_to_rerun(row),
                sessions=int(last[row]) + 1,
                needs=max(detect.RERUNS - int(hist.runs[row, last[row]]), 1),
                incident=times_as_bad[row],
            )
            for row in row_of_case.values()
        ]

    def _reason_to_rerun(self, row: int) -> str:
        metric = self.hist.metrics['metric'].iat[row]
        if not self.may_pass[row]:
            return f'{metric} was worse in the newest session; run it again'
        since = self.hist.sessions[self.hist.at[row, self.walk.start[row]]]
        return (f'{metric} is worse since {since}, as metrics of this system were '
                f'before for less than {detect.BRIEF} sessions; run it again')

    def _times_as_bad_in_newest_session(self, row: int) -> float | None:
        """How many times as bad a metric was in its newest session; None if noise
        explains it."""
        if not self.walk.incident[row]:
            return None
        worse = float(self.hist.x[row, self.hist.last_session_positions[row]]
                      - self.walk.centre[row])
        return 1 + worse if self.hist.linear[row, 1] else math.exp(min(worse, 700.0))


def _mean_per_session(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means over metrics, and the sessions that have one.

    :param values: metrics x sessions
    """
    count = np.isfinite(values).sum(0)
    at = np.flatnonzero(count)
    return np.nansum(values, 0)[at] / count[at], at


def _short_hash(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()[:8]


def _session_date(label: str, hist: History) -> datetime.date:
    """The date of a session."""
    day = hist.session_of.get(label)
    return datetime.date.fromisoformat(label if day is None else str(day))


def _pool_number_of_each_metric(metrics: pd.DataFrame) -> np.ndarray:
    """Number of the metrics that each is judged together with: those of a
    metric on a system; where these are few, all others of the system."""
    size = metrics.groupby(['system', 'metric'])['of'].transform('size')
    name = metrics['metric'].where(size >= detect.FEWEST_SERIES, '')
    return pd.factorize(metrics['system'] + ' ' + name)[0]


def _drop_duplicate_groups(groups: list[Group]) -> list[Group]:
    """The groups without duplicates; the last one, which is the most specific,
    stays."""
    by_members = {group.there.tobytes(): group for group in groups}
    return list(by_members.values())


def _job_nodes_and_switches(
    text: str, switches: Mapping[str, Mapping[str, Sequence[str]]]
) -> set[tuple[str, str, str]]:
    """(kind, system, name) of the nodes of a job, and the switches above.

    :param text: 'SYSTEM NODES'
    """
    system, _, nodes = text.partition(' ')
    above = switches.get(system, {})
    names = topology.nodes_of_record(nodes)
    return {('node', system, name) for name in names} | {
        ('switch', system, switch) for name in names
        for switch in above.get(name, ())}


def _advice_text(kind: str, name: str, ident: str, cause: str, cases: list[str],
                 system: str) -> str:
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
    again = ' '.join(cases[:3])
    return ('run the test cases again, if possible on other nodes: '
            f'./plumb run{site} {again}; {known}')


def _regression_sort_key(line: Regression) -> tuple:
    """Newest lines first, of these the ones with most test cases, then the largest
    change."""
    size = -abs(math.log(line.ratio)) if line.ratio and line.ratio > 0 else -math.inf
    return -int(line.since.replace('-', '')), -len(line.cases), size, line.id
