"""The metrics of a history, each compared with its own baseline."""
from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from config.sites import topology

from ..results import RECENT
from . import detect
from .decisions import REGRESSION, Decision, decision_target_names
from .sessions import UNNAMED, History


class Deviations:
    """How far each metric of a history is from its baseline.

    Arrays are over metrics, in the order of `History.metrics`, unless a comment says
    otherwise.
    """

    def __init__(self, hist: History, this_session: Collection[str],
                 decisions: Sequence[Decision]) -> None:
        """
        :param this_session: the sessions that count as the newest one
        :param decisions: those that ended before the newest session do not count
        """
        self.hist = hist
        metrics = hist.metrics
        self.of = metrics['of'].to_numpy(int)
        self.named = metrics['named'].to_numpy(bool)
        self.rows = np.arange(len(metrics))
        self.cases = int(self.of.max(initial=-1)) + 1
        last = hist.last
        ran = hist.ran.astype({'system': str})
        newest = metrics['system'].map(ran.groupby('system')['day'].max()).to_numpy(int)
        #: Metrics of the newest session, and those that may be reported: of one of
        #: the newest RECENT sessions.
        self.live = (last == newest) & np.isin(
            self.of, ran['of'][ran['session'].isin(this_session)])
        self.reported = last > newest - RECENT
        first, self._mutes = self._apply_decisions(decisions)
        self.walk = detect.detect_level_changes(
            hist.x, first=first, pool=_pool_number_of_each_metric(metrics),
            minimum=hist.minimum, runs=hist.runs, within=hist.within,
            caution=np.where(self.named, 0.0, UNNAMED))
        #: Metric -> the decision that mutes it, on the nodes on which it is worse.
        self.muted = {row: one for one, rows in self._mutes for row in rows
                      if self._is_muted(row, one)}
        state = self.walk.states[self.rows, last]
        #: Worse, but by a change of a kind that passed by itself before.
        self.may_pass = (state == detect.WORSE) & ~self._is_worse_beyond_chance()
        #: NORMAL, WORSE or BETTER after the last session.
        self.state = np.where(self.may_pass, detect.NORMAL, state)
        #: In the newest session, with enough sessions to be judged.
        self.enough = self.live & (self.walk.baseline.sessions >= detect.FEWEST) & (
            np.isfinite(hist.x).sum(1) > detect.FEWEST)
        usable = self.walk.usable & (
            self.walk.baseline.sessions >= detect.FEWEST)[:, None]
        #: Metrics x sessions: distance from the baseline in spreads, and as a log. NaN:
        #: not measured, or no part of the present baseline or level.
        self.z = np.where(usable, np.clip(self.walk.z, -detect.CLIP, detect.CLIP),
                          np.nan)
        #: `log` of all sessions, also of what is no part of the present baseline.
        self.log_of_all_sessions = hist.x - self.walk.baseline.centre[:, None]
        self.log = np.where(usable, self.log_of_all_sessions, np.nan)
        #: Test cases x sessions: the mean z of judged metrics.
        self.case_z = self._mean_per_test_case(self.z)
        #: Whether each test case has an alarm, also one that may pass by itself.
        self.has_alarm = np.bincount(
            self.of, self.reported & (state == detect.WORSE), self.cases) > 0

    def _apply_decisions(self, decisions: Sequence[Decision]
                         ) -> tuple[np.ndarray, list[tuple[Decision, set[int]]]]:
        """Position at which each baseline begins; and the decisions that mute, each
        with the metrics that it mutes, or values of them."""
        first = np.zeros(len(self.rows), int)
        mutes: list[tuple[Decision, set[int]]] = []
        rows_of_name: dict[str, list[int]] = {}
        if decisions:
            for row, metric in enumerate(self.hist.metrics[[
                    'test_case', 'metric', 'point']].itertuples(
                        index=False, name=None)):
                for name in decision_target_names(*metric):
                    rows_of_name.setdefault(name, []).append(row)
        for one in decisions:
            if one.until is not None and np.datetime64(
                    one.until, 'D') < self.hist.sessions[-1]:
                continue
            since = int(np.searchsorted(self.hist.sessions, np.datetime64(
                one.since, 'D')))
            rows = {row for name in one.metrics for row in rows_of_name.get(name, ())}
            if one.kind == 'muted':
                mutes.append((one, rows))
                continue
            for row in rows:
                first[row] = max(first[row], since)
        return first, mutes

    def _is_muted(self, row: int, one: Decision) -> bool:
        """Whether a decision about a metric mutes its regression: on the nodes of the
        last session in which it was worse."""
        worse = np.flatnonzero(self.walk.z[row] > detect.WORSE_SESSION)
        jobs = self.hist.ran[(self.hist.ran['of'] == self.of[row])
                             & (self.hist.ran['day'] == worse.max(initial=-1))]
        nodes = {name for text in jobs['nodes'].astype(str)
                 for name in topology.nodes_of_record(text)}
        # A value out of tolerance has a regression, too. Without failures: a mute of
        # a regression on all nodes.
        return not one.failures or any(
            one.hides(guard, nodes) for guard in (REGRESSION, ''))

    def mute_of_group(self, cases: Collection[int], node: str) -> Decision | None:
        """The decision that mutes more than half of the test cases of a group; None:
        none does.

        :param node: the node that the group is of; '': no node
        """
        return next((one for one, rows in self._mutes if one.hides(REGRESSION, [node])
                     and 2 * len({*cases} & {*self.of[[*rows]].tolist()}) > len(cases)
                     ), None)

    def _is_worse_beyond_chance(self) -> np.ndarray:
        """Whether each metric is still worse after its last session, by a change that
        does not pass by itself in the history of its system."""
        measured = np.isfinite(self.hist.x)
        worse = self.walk.states == detect.WORSE
        result = np.zeros(len(self.rows), bool)
        for rows in self.hist.metrics.groupby('system', sort=False).indices.values():
            # Sessions of other systems do not count.
            part = np.ix_(rows, np.flatnonzero(measured[rows].any(0)))
            result[rows] = detect.control_false_discoveries(
                worse[part], self.walk.strengths[part], measured[part])[:, -1]
        return result

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
