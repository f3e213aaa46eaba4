"""The metrics of a history, each compared with its own baseline."""
from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..results import RECENT
from . import detect
from .decisions import Decision, decision_target_names
from .sessions import UNNAMED, History


class Deviations:
    """How far each metric of a history is from its baseline.

    Arrays are over metrics, in the order of `History.metrics`, unless a comment says
    otherwise.
    """

    def __init__(self, hist: History, this_session: Collection[str], standing: bool,
                 decisions: Sequence[Decision], day: datetime.date) -> None:
        """
        :param this_session: the sessions that count as the newest one
        :param standing: also report what is still true of test cases that did not run
        :param day: of the newest session: decisions that ended before do not count
        """
        self.hist = hist
        metrics = hist.metrics
        self.of = metrics['of'].to_numpy(int)
        self.named = metrics['named'].to_numpy(bool)
        self.rows = np.arange(len(metrics))
        self.cases = int(self.of.max(initial=-1)) + 1
        last = hist.last_session_positions
        ran = hist.ran
        newest = metrics['system'].map(ran.groupby(ran['of'].map(
            dict(zip(metrics['of'], metrics['system'], strict=True))),
            observed=True)['day'].max()).to_numpy(int)
        last_session = hist.at[self.rows, last]
        #: Metrics of the newest session, and those that may be reported.
        self.live = (last_session == newest) & np.isin(
            self.of, ran['of'][ran['session'].isin(this_session)])
        self.reported = last_session > newest - RECENT if standing else self.live
        #: Metric -> the decision that mutes it.
        self.muted: dict[int, Decision] = {}
        self.walk = detect.detect_level_changes(
            hist.x, first=self._apply_decisions(decisions, day),
            pool=_pool_number_of_each_metric(metrics), floor=hist.floor,
            minimum=hist.minimum, runs=hist.runs, within=hist.within,
            caution=np.where(self.named, 0.0, UNNAMED))
        state = self.walk.states[self.rows, last] if len(metrics) else np.empty(0, int)
        #: Worse, but by a change of a kind that passed by itself before.
        self.may_pass = (state == detect.WORSE) & ~self._is_worse_beyond_chance()
        #: NORMAL, WORSE or BETTER after the last session.
        self.state = np.where(self.may_pass, detect.NORMAL, state)
        #: In the newest session, with enough sessions to be judged.
        self.enough = self.live & (self.walk.sessions >= detect.FEWEST) & (
            last >= detect.FEWEST)
        usable = (hist.at >= 0) & self.walk.usable & (
            self.walk.sessions >= detect.FEWEST)[:, None]
        #: Metrics x sessions: distance from the baseline in spreads, and as a log. NaN:
        #: not measured, or no part of the present baseline or level.
        self.z = self.by_session(
            np.clip(self.walk.z, -detect.CLIP, detect.CLIP), usable, np.nan)
        self.log = self.by_session(hist.x - self.walk.centre[:, None], usable, np.nan)
        #: Test cases x sessions: the mean z of judged metrics.
        self.case_z = self._mean_per_test_case(self.z)
        #: First session of the alarms of each test case, also of those that may pass
        #: by themselves; -1: none.
        self.first_alarm = np.full(self.cases, -1)
        alarms = np.flatnonzero(self.reported & (state == detect.WORSE))
        starts = hist.at[alarms, self.walk.start[alarms]]
        for row, start in sorted(zip(alarms, starts, strict=True),
                                 key=lambda pair: -pair[1]):
            self.first_alarm[self.of[row]] = start

    def _apply_decisions(self, decisions: Sequence[Decision], day: datetime.date
                         ) -> np.ndarray:
        """Position at which each baseline begins; notes muted metrics."""
        first = np.zeros(len(self.rows), int)
        rows_of_name: dict[str, list[int]] = {}
        if decisions:
            for row, metric in enumerate(self.hist.metrics[[
                    'test_case', 'metric', 'point']].itertuples(
                        index=False, name=None)):
                for name in decision_target_names(*metric):
                    rows_of_name.setdefault(name, []).append(row)
        for one in decisions:
            if one.until is not None and one.until < day:
                continue
            since = np.searchsorted(self.hist.sessions, np.datetime64(one.since, 'D'))
            for row in {row for name in one.metrics
                        for row in rows_of_name.get(name, ())}:
                if one.kind == 'muted':
                    self.muted[row] = one
                    continue
                at = self.hist.at[row][self.hist.at[row] >= 0]
                first[row] = max(first[row], int(np.searchsorted(at, since)))
        return first

    def _is_worse_beyond_chance(self) -> np.ndarray:
        """Whether each metric is still worse after its last session, by a change that
        does not pass by itself in the history of its system."""
        there = self.hist.at >= 0
        measured = self.by_session(there, there, False)
        worse = self.by_session(self.walk.states == detect.WORSE, there, False)
        strengths = self.by_session(self.walk.strengths, there, 0.0)
        result = np.zeros(len(self.rows), bool)
        for rows in self.hist.metrics.groupby('system', sort=False).indices.values():
            # Sessions of other systems do not count.
            part = np.ix_(rows, np.flatnonzero(measured[rows].any(0)))
            result[rows] = detect.control_false_discoveries(
                worse[part], strengths[part], measured[part])[:, -1]
        return result

    def by_session(self, values: np.ndarray, chosen: np.ndarray, other: Any
                   ) -> np.ndarray:
        """Metrics x sessions, from arrays of metrics x their own positions.

        :param chosen: which values are taken
        :param other: the value of all other sessions
        """
        result = np.full((len(self.rows), len(self.hist.sessions)), other)
        row, place = np.nonzero(chosen)
        result[row, self.hist.at[row, place]] = values[row, place]
        return result

    @functools.cached_property
    def log_of_all_sessions(self) -> np.ndarray:
        """`log`, also of what is no part of the present baseline."""
        return self.by_session(self.hist.x - self.walk.centre[:, None],
                               self.hist.at >= 0, np.nan)

    def _mean_per_test_case(self, values: np.ndarray) -> np.ndarray:
        """Test cases x sessions: the mean over judged metrics."""
        total = np.zeros((self.cases, values.shape[1]))
        count = np.zeros_like(total)
        np.add.at(total, self.of[self.named], np.nan_to_num(values[self.named]))
        np.add.at(count, self.of[self.named], np.isfinite(values[self.named]))
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def value_of_level(self, row: int, level: float) -> float:
        """The value of a metric, in its own unit and direction, of a level of its
        series."""
        sign = float(self.hist.worse_direction_sign()[row])
        return math.exp(min(sign * level, 700.0))


def _pool_number_of_each_metric(metrics: pd.DataFrame) -> np.ndarray:
    """Number of the metrics that each is judged together with: those of a
    metric on a system; where these are few, all others of the system."""
    size = metrics.groupby(['system', 'metric'])['of'].transform('size')
    name = metrics['metric'].where(size >= detect.FEWEST_SERIES, '')
    return pd.factorize(metrics['system'] + ' ' + name)[0]
