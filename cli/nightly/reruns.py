"""Which failures a nightly session measures again, and on which nodes.

A failure is measured once more on the nodes that it was on, and once on
others. If it does not fail again it is `flaky` (postprocess/results.py). If it
fails only on its original nodes, the report lists these nodes.

A failure that its session has measured again already (--max-retries) is not
measured on the same nodes again.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from postprocess.results import Result

#: More failures than these, and more than PART of the test cases, are not
#: chance: none is measured again, so that the nightly session ends.
MAXIMUM, PART = 10, 0.25
#: More sessions than these would take as long as a nightly session.
MAX_SESSIONS = 24

SAME, OTHER, ANY = 'the same nodes', 'other nodes', 'any nodes'


class Again(NamedTuple):
    """A session in which failures are measured again."""
    #: SAME, OTHER or ANY.
    where: str
    #: SAME: nothing but these nodes. OTHER: none of them.
    nodes: frozenset[str]
    of: list[Result]


def compare_nodes_of_results(one: Result, other: Result) -> str:
    """On which nodes a session measured a test case, compared with another.
    """
    if not one.nodes or not other.nodes:
        return ANY
    return SAME if one.nodes & other.nodes else OTHER


def has_too_many_failures(failed: int, cases: int) -> bool:
    """Whether too many failed for chance to be the cause."""
    return failed > MAXIMUM and failed > PART * cases


def plan_reruns(failed: Sequence[Result], pools: Mapping[str, Collection[str]]
         ) -> list[Again]:
    """The sessions that measure failures again.

    :param failed: results of single sessions
    :param pools: partition of the site -> nodes that take its jobs; without
        partitions whose nodes are unknown, or that have one node
    """
    same: dict[frozenset[str], list[Result]] = {}
    other: dict[frozenset[str], list[Result]] = {}
    anywhere = []
    for one in failed:
        pool = frozenset(pools.get(one.partition, ()))
        if not one.nodes or not pool:
            anywhere += [one] * (one.measurements == 1)
            continue
        # A node that is down now can only be compared with others.
        if one.measurements == 1 and one.nodes <= pool:
            same.setdefault(one.nodes, []).append(one)
        # An open one was measured on other nodes in this nightly session.
        if not one.is_open and len(pool - one.nodes) >= one.width:
            other.setdefault(one.nodes, []).append(one)
    return [*(Again(SAME, nodes, of) for nodes, of in same.items()),
            *_reruns_on_other_nodes(other, pools),
            *([Again(ANY, frozenset(), anywhere)] if anywhere else [])]


def _reruns_on_other_nodes(results_by_nodes: Mapping[frozenset[str], list[Result]],
                           pools: Mapping[str, Collection[str]]) -> list[Again]:
    """One session away from all their nodes, where enough are left; else one
    away from the nodes of each."""
    every = [one for of in results_by_nodes.values() for one in of]
    union = frozenset(n for nodes in results_by_nodes for n in nodes)
    if every and all(len(set(pools[one.partition]) - union) >= one.width
                     for one in every):
        return [Again(OTHER, union, every)]
    return [Again(OTHER, nodes, of) for nodes, of in results_by_nodes.items()]


def plan_suspected_regression_reruns(suspects: Sequence[tuple[Result, int]],
                                     pools: Mapping[str, Collection[str]]
                                     ) -> list[Again]:
    """Sessions that show whether test cases that were worse once stay so.

    On the same nodes, on others, then on any, until they are enough.

    :param suspects: with the number of measurements that each needs
        (postprocess/regressions/judging.py)
    """
    sessions = plan_reruns([one for one, _ in suspects], pools)
    has = Counter(one.test_case for session in sessions for one in session.of)
    left = [(one, needs - has[one.test_case]) for one, needs in suspects]
    for number in range(max((more for _, more in left), default=0)):
        sessions.append(Again(ANY, frozenset(), [
            one for one, more in left if more > number]))
    return sessions
