"""Which test cases became worse together, and what they have in common.

The mean z of the test cases of each group is a series of its own, whose spread and
autocorrelation hold what its members have in common. So a loss of 1 % that 25 test
cases share is found in a session or two. One rule decides between groups: the one that
explains most, n * mean(z)^2 of n test cases, is reported. The smallest group that has
all worse test cases explains most. These test cases are taken out, and the others
judged again. If a single metric explains more than each group, it stands alone.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from config.sites import topology

from ..results import RECENT
from . import detect
from .deviations import Deviations

#: Fewest test cases of a group, and the share of them that must be worse: with fewer, a
#: node with two slow of five test cases would be accused.
FEWEST_CASES, SHARE = 3, 0.6
#: Most nodes and switches that are looked at, and sessions of their jobs: limits of
#: memory on large machines.
MAX_NODES, NODE_SESSIONS = 64, 90
#: Smallest change of a group, a log: less is rounding that metrics have in common.
MINIMUM = 0.002
#: Kind of a group -> the columns that its test cases have in common, and its name; the
#: last of two groups of the same test cases is reported.
KINDS = {
    'system': (['system'], 'system {0}'),
    'family': (['system', 'family'], 'family {1} on {0}'),
    'program': (['system', 'program'], 'program {1} on {0}'),
    'stack': (['system', 'partition', 'environ'], 'environment {2} on {0}:{1}')}


@dataclass(frozen=True)
class Group:
    """Test cases that may regress together."""
    kind: str
    name: str
    #: Test cases x sessions: those that were part of it.
    there: np.ndarray


@dataclass(frozen=True)
class Worse:
    """A group that regressed."""
    group: Group
    #: Numbers of its test cases that regressed.
    cases: np.ndarray
    #: Number of the first and last session.
    start: int
    last: int
    #: The part of the deviations that it explains.
    gain: float


def find_worse_groups(now: Deviations,
                      switches: Mapping[str, Mapping[str, Sequence[str]]]
                      ) -> tuple[list[Worse], np.ndarray]:
    """The groups that regressed, and the metrics that regressed apart from them.

    Muted metrics, and their test cases, are in neither.

    :param switches: system -> node -> the switches above it
    """
    alarms = now.reported & (now.state == detect.WORSE)
    muted = np.isin(now.rows, list(now.muted))
    free = np.ones(now.cases, bool)
    free[now.of[alarms & muted]] = False
    explained = np.array([_deviation_explained_by_metric(now, row) if alarms[row]
                          else 0.0 for row in now.rows.tolist()])
    groups = [*_groups_of_columns(now), *_groups_of_nodes(now, switches)]
    chosen: list[Worse] = []
    alone: set[int] = set()
    while worse := _worse_groups(now, groups, free):
        best = max(worse, key=lambda one: one.gain)
        stronger = set(now.of[free[now.of] & (explained > best.gain)].tolist())
        if stronger:
            alone |= stronger
            free[list(stronger)] = False
        else:
            chosen.append(best)
            free[best.cases] = False
    return chosen, np.flatnonzero(alarms & ~muted & (
        free[now.of] | np.isin(now.of, list(alone))))


def _deviation_explained_by_metric(now: Deviations, row: int) -> float:
    """The part of the deviations that a single metric explains."""
    positions = slice(now.walk.start[row], now.hist.last_session_positions[row] + 1)
    z = now.z[row, now.hist.at[row, positions]]
    z = z[np.isfinite(z)]
    return float(z.mean() ** 2 * math.sqrt(len(z))) if len(z) else 0.0


def _groups_of_columns(now: Deviations) -> list[Group]:
    """The groups of KINDS, no two of them the same."""
    table = now.hist.metrics.drop_duplicates('of').sort_values('of')
    live = _is_reported(now)
    ran = np.isfinite(now.case_z)
    groups = []
    for kind, (columns, name) in KINDS.items():
        for keys, rows in table.groupby(columns, sort=False).indices.items():
            members = np.zeros(now.cases, bool)
            members[rows] = True
            if (members & live).sum() >= FEWEST_CASES:
                names = keys if isinstance(keys, tuple) else (keys,)
                groups.append(Group(kind, name.format(*names), members[:, None] & ran))
    return _without_duplicates(groups)


def _is_reported(now: Deviations) -> np.ndarray:
    """Whether each test case has a metric that may be reported."""
    return np.bincount(now.of, now.reported, now.cases) > 0


def _without_duplicates(groups: Sequence[Group]) -> list[Group]:
    """The groups without those that a later one repeats."""
    return list({group.there.tobytes(): group for group in groups}.values())


def _groups_of_nodes(now: Deviations,
                     switches: Mapping[str, Mapping[str, Sequence[str]]]
                     ) -> list[Group]:
    """A group for each of the nodes and switches whose test cases are the worst."""
    sessions = len(now.hist.sessions)
    ran = now.hist.ran
    ran = ran[(ran['day'] >= sessions - NODE_SESSIONS) & (ran['nodes'] != '')]
    if ran.empty:
        return []
    system = now.hist.metrics.drop_duplicates('of').set_index('of')['system']
    code, jobs = pd.factorize(ran['of'].map(system).str.cat(
        ran['nodes'].astype(str), sep=' '))
    places = [set(_nodes_and_switches(job, switches)) for job in jobs]
    of, session = ran['of'].to_numpy(), ran['day'].to_numpy()
    recent = (session >= sessions - RECENT) & _is_reported(now)[of]
    z_of_place: dict[tuple[str, str, str], list[float]] = {}
    for job, z in zip(code[recent], np.nan_to_num(now.case_z[of, session])[recent],
                      strict=True):
        for place in places[job]:
            z_of_place.setdefault(place, []).append(z)
    worst = sorted(z_of_place, key=lambda place: -sum(z_of_place[place]) / math.sqrt(
        len(z_of_place[place])))[:MAX_NODES]
    groups = []
    for kind, owner, name in worst:
        on_place = np.array([(kind, owner, name) in one for one in places])[code]
        there = np.zeros((now.cases, sessions), bool)
        there[of[on_place], session[on_place]] = True
        if there[:, -RECENT:].any(1).sum() >= FEWEST_CASES:
            groups.append(Group(kind, f'{kind} {name} of {owner}', there))
    return _without_duplicates(groups)


def _nodes_and_switches(job: str,
                        switches: Mapping[str, Mapping[str, Sequence[str]]]
                        ) -> Iterator[tuple[str, str, str]]:
    """(kind, system, name) of the nodes of a job, and of the switches above them.

    :param job: `SYSTEM NODES`
    """
    system, _, nodes = job.partition(' ')
    for name in topology.nodes_of_record(nodes):
        yield 'node', system, name
        for switch in switches.get(system, {}).get(name, ()):
            yield 'switch', system, switch


def _worse_groups(now: Deviations, groups: Sequence[Group], free: np.ndarray
                  ) -> list[Worse]:
    """The groups that are worse, of test cases that are not explained yet."""
    kept, series = [], []
    for group in groups:
        there = group.there & free[:, None] & np.isfinite(now.case_z)
        count = there.sum(0)
        if not count.any():
            continue
        usual = np.median(count[count > 0])
        sessions = np.flatnonzero(count >= (
            1 if group.kind in ('node', 'switch') else usual / 2))
        total = np.where(there, now.case_z, 0.0).sum(0)[sessions]
        kept.append((group, there, sessions))
        # The mean of few test cases is as wide as that of the usual number.
        series.append(total / np.sqrt(count[sessions] * usual))
    if not series:
        return []
    x = np.full((len(series), max(map(len, series))), np.nan)
    for row, values in enumerate(series):
        x[row, :len(values)] = values
    # Groups stand alone, but there are few of them.
    walk = detect.detect_level_changes(x, floor=0.02, caution=-detect.ALONE)
    worse = []
    for row, (group, there, sessions) in enumerate(kept):
        start: int | None = int(sessions[walk.start[row]])
        if walk.states[row, len(sessions) - 1] != detect.WORSE:
            start = _session_of_most_alarms(now, group, free)
        if start is not None and (one := _worse_test_cases(
                now, group, there, start, int(sessions[-1]))):
            worse.append(one)
    return worse


def _session_of_most_alarms(now: Deviations, group: Group, free: np.ndarray
                            ) -> int | None:
    """The session from which on most test cases of a group alarm by themselves."""
    members = group.there[:, -RECENT:].any(1) & free
    starts = now.first_alarm[members]
    starts = starts[starts >= 0]
    if len(starts) < max(FEWEST_CASES, SHARE * members.sum()):
        return None
    return int(np.median(starts))


def _worse_test_cases(now: Deviations, group: Group, there: np.ndarray, start: int,
                      last: int) -> Worse | None:
    """The test cases of a group that are worse since a session; None: they are too
    few, explain too little, or the change is too small."""
    part = there[:, start:last + 1]
    count = part.sum(1)
    mean = np.where(part, np.nan_to_num(now.case_z[:, start:last + 1]), 0.0
                    ).sum(1) / np.maximum(count, 1)
    members = np.flatnonzero(count > 0)
    level = float(mean[members].mean()) if len(members) else 0.0
    alarmed = members[now.first_alarm[members] >= 0]
    if len(members) < FEWEST_CASES or level <= 0 or (
            SHARE * (mean[alarmed] ** 2).sum() > len(members) * level ** 2):
        return None
    # Unless its sessions speak more for the old level than for the new.
    cases = members[count[members] * level * (mean[members] - level / 2) > -2.0]
    log = now.log[np.isin(now.of, cases) & now.named, start:last + 1]
    if not np.isfinite(log).any() or np.nanmean(log) < MINIMUM:
        return None
    return Worse(group, cases, start, last, len(members) * level ** 2 * math.sqrt(
        float(count[members].mean())))
