"""Which test cases became worse together, and what they have in common.

The mean z of the test cases of each group is a series of its own, whose spread and
autocorrelation hold what its members have in common. So a loss of 1 % that 25 test
cases share is found in a session or two. One rule decides between groups: the one that
explains most, n * mean(z)^2 of n test cases, is reported. The smallest group that has
all worse test cases explains most. These test cases are taken out, and the others
judged again.
"""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from config.sites import topology

from ..results import RECENT
from . import detect
from .decisions import Decision
from .deviations import Deviations

#: Share of the test cases of a group that must be worse: with a smaller one, a node
#: with two slow of five test cases would be accused.
SHARE = 0.6
#: Most nodes and switches that are looked at: a limit of memory on large machines.
MAX_NODES = 64
#: Kind of a group -> the columns that its test cases have in common, and its name; the
#: last of two groups of the same test cases is reported.
KINDS = {
    'system': (['system'], 'system {0}'),
    'family': (['system', 'family'], 'family {1} on {0}'),
    'program': (['system', 'program'], 'program {1} on {0}'),
    'stack': (['system', 'partition', 'environ'], 'environment {2} on {0}:{1}')}


@dataclass(frozen=True, eq=False)
class Group:
    """Test cases that may regress together."""
    kind: str
    name: str
    #: Test cases x sessions: those that were part of it.
    there: np.ndarray
    #: The node, if it is the group of a node.
    node: str = ''


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
    #: The decision that mutes it.
    muted: Decision | None = None


def find_worse_groups(now: Deviations,
                      switches: Mapping[str, Mapping[str, Sequence[str]]]
                      ) -> tuple[list[Worse], np.ndarray]:
    """The groups that regressed, muted ones, too, and the metrics that regressed apart
    from them.

    Muted metrics, and their test cases, are in neither. What is worse in a muted group
    may be worse elsewhere, too.

    :param switches: system -> node -> the switches above it
    """
    alarms = now.reported & (now.state == detect.WORSE)
    muted = np.isin(now.rows, list(now.muted))
    free = np.ones(now.cases, bool)
    free[now.of[alarms & muted]] = False
    # The last of several groups of the same test cases.
    groups = list({group.there.tobytes(): group for group in (
        *_groups_of_columns(now), *_groups_of_nodes(now, switches))}.values())
    chosen: list[Worse] = []
    counts = np.isfinite(now.case_z)
    while worse := [*_worse_groups(now, groups, counts & free[:, None])]:
        best = max(worse, key=lambda one: one.gain)
        muted_by = now.mute_of_group([*map(int, best.cases)], best.group.node)
        chosen.append(replace(best, muted=muted_by))
        groups.remove(best.group)
        if muted_by:
            counts[best.cases] &= ~best.group.there[best.cases]
        else:
            free[best.cases] = False
    return chosen, np.flatnonzero(alarms & ~muted & free[now.of])


def _groups_of_columns(now: Deviations) -> Iterator[Group]:
    """The groups of KINDS."""
    table = now.hist.metrics.drop_duplicates('of').sort_values('of')
    live = np.bincount(now.of, now.reported, now.cases) > 0
    for kind, (columns, name) in KINDS.items():
        for keys, rows in table.groupby(columns, sort=False).indices.items():
            if live[rows].sum() >= detect.FEW:
                there = np.zeros(now.case_z.shape, bool)
                there[rows] = np.isfinite(now.case_z[rows])
                names = keys if isinstance(keys, tuple) else (keys,)
                yield Group(kind, name.format(*names), there)


def _groups_of_nodes(now: Deviations,
                     switches: Mapping[str, Mapping[str, Sequence[str]]]
                     ) -> Iterator[Group]:
    """A group for each of the nodes and switches whose test cases are the worst."""
    live = np.bincount(now.of, now.reported, now.cases) > 0
    ran = now.hist.ran[now.hist.ran['nodes'] != '']
    of, session = ran['of'].to_numpy(), ran['day'].to_numpy()
    system = now.hist.metrics.drop_duplicates('of').set_index('of')['system']
    rows_of_place: dict[tuple[str, str, str], list[np.ndarray]] = defaultdict(list)
    for (owner, nodes), rows in ran.groupby(
            [ran['of'].map(system), ran['nodes'].astype(str)]).indices.items():
        names = topology.nodes_of_record(nodes)
        above = switches.get(owner, {})
        for kind, places in (('node', {*names}), ('switch', {
                one for name in names for one in above.get(name, ())})):
            for name in places:
                rows_of_place[owner, kind, name].append(rows)
    z = np.where((session >= len(now.hist.sessions) - RECENT) & live[of],
                 np.nan_to_num(now.case_z[of, session]), 0.0)
    groups = [(place, np.concatenate(rows)) for place, rows in rows_of_place.items()]
    groups.sort(key=lambda one: -float(z[one[1]].sum()) / math.sqrt(
        max(int(np.count_nonzero(z[one[1]])), 1)))
    for (owner, kind, name), rows in groups[:MAX_NODES]:
        there = np.zeros(now.case_z.shape, bool)
        there[of[rows], session[rows]] = True
        if there[:, -RECENT:].any(1).sum() >= detect.FEW:
            yield Group(kind, f'{kind} {name} of {owner}', there,
                        name if kind == 'node' else '')


def _worse_groups(now: Deviations, groups: Sequence[Group], counts: np.ndarray
                  ) -> Iterator[Worse]:
    """The groups that are worse.

    :param counts: test cases x sessions: what was measured and is not explained yet
    """
    parts = [(group, group.there & counts) for group in groups]
    x = np.array([_mean_z_of_sessions(now, *part) for part in parts]).reshape(
        len(parts), now.case_z.shape[1])
    # Groups stand alone, but there are few of them.
    walk = detect.detect_level_changes(x, caution=-detect.ALONE)
    for row, (group, there) in enumerate(parts):
        last = int(np.flatnonzero(np.isfinite(x[row])).max(initial=0))
        if walk.states[row, last] == detect.WORSE and (one := _worse_test_cases(
                now, group, there, int(walk.start[row]), last)):
            yield one


def _mean_z_of_sessions(now: Deviations, group: Group, there: np.ndarray) -> np.ndarray:
    """The mean z of a group in each session; NaN: too few of its test cases ran. The
    mean of few test cases is as wide as that of the usual number."""
    count = there.sum(0)
    usual = float(np.median(count[count > 0])) if count.any() else 1.0
    fewest = 1 if group.kind in ('node', 'switch') else max(usual / 2, 1)
    return np.where(count >= fewest, np.where(there, now.case_z, 0.0).sum(0) / np.sqrt(
        np.maximum(count, 1) * usual), np.nan)


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
    alarmed = members[now.has_alarm[members]]
    if len(members) < detect.FEW or level <= 0 or (
            SHARE * (mean[alarmed] ** 2).sum() > len(members) * level ** 2):
        return None
    # Unless the old level is far more likely.
    cases = members[count[members] * level * (level / 2 - mean[members])
                    < detect.RECOVERED]
    log = now.log[np.isin(now.of, cases) & now.named, start:last + 1]
    if not np.isfinite(log).any() or np.nanmean(log) < detect.MINIMUM:
        return None
    return Worse(group, cases, start, last, len(members) * level ** 2 * math.sqrt(
        float(count[members].mean())))
