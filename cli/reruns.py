"""Which failures are measured again, where, and when one is believed.

A failure is measured once more on the nodes that it was on, and once on
others. If it is gone both times it is `unstable`: it happened, so it is no
pass, but nothing says that it would happen again. Otherwise it is believed,
and where it came back says what to look at: on other nodes too, then it is
not the nodes.

What is beyond a reference was measured four times in its session already
(config/judged.py): it is not measured on the same nodes again.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: Partition, environment, hash: a case of a plan.
Key = tuple[str, str, str]

#: With more failures than these, and more than PART of the cases, it is no
#: chance: they are believed as they are, and the night has an end.
MOST, PART = 10, 0.25
#: More sessions than these would be a night of their own.
MOST_SESSIONS = 24

SAME, OTHER, ANY = 'the same nodes', 'other nodes', 'any nodes'


@dataclass
class Trial:
    """How a case ended in a session, and in those that followed."""
    key: Key
    name: str
    result: str
    #: Why it failed, in a line.
    why: str = ''
    guard: str = ''
    family: str = ''
    #: Of its job, or of the jobs of its tries; empty: not known, or none.
    nodes: frozenset[str] = frozenset()
    #: Nodes of one job.
    width: int = 1
    #: How often its session measured it.
    tries: int = 1
    #: Where it was measured again, and how that ended.
    again: list[tuple[str, Trial]] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a rerun may tell more: not of a known fault that is gone.
        """
        return self.result == 'fail'

    @property
    def verdict(self) -> str:
        """`result`, or unstable: a failure that was gone in all reruns, and
        not only because it was looked for elsewhere."""
        gone = not any(trial.failed for _, trial in self.again)
        there = any(where != OTHER for where, _ in self.again)
        return 'unstable' if self.failed and gone and there else self.result

    @property
    def story(self) -> str:
        """What the reruns say, in words."""
        said = [f'{"failed again" if trial.failed else "good"} on {where}'
                + (f' ({" ".join(sorted(trial.nodes))})' if trial.nodes
                   else '')
                for where, trial in self.again]
        if self.tries > 1:
            said.insert(0, f'in each of {self.tries} tries')
        return ', '.join(said)

    @property
    def suspects(self) -> frozenset[str]:
        """Nodes that a believed failure points at: it came back there, or
        was not looked at there again, and was gone elsewhere."""
        ended = {where: trial.failed for where, trial in self.again}
        blamed = (self.verdict == 'fail' and ended.get(OTHER) is False
                  and ended.get(SAME, True))
        return self.nodes if blamed else frozenset()


class Again(NamedTuple):
    """A session in which failures are measured again."""
    #: SAME, OTHER or ANY.
    where: str
    #: SAME: nothing but these nodes. OTHER: none of them.
    nodes: frozenset[str]
    of: list[Trial]


def too_many(failed: int, cases: int) -> bool:
    """Whether so many failed that no chance did it."""
    return failed > MOST and failed > PART * cases


def plan(failed: Sequence[Trial], pools: Mapping[str, Collection[str]]
         ) -> list[Again]:
    """The sessions that measure failures again.

    :param pools: partition of the site -> nodes that take its jobs; of
        others nobody knows the nodes, or there is one only
    """
    same: dict[frozenset[str], list[Trial]] = {}
    other: dict[frozenset[str], list[Trial]] = {}
    anywhere = []
    for trial in failed:
        pool = frozenset(pools.get(trial.key[0], ()))
        if not trial.nodes or not pool:
            anywhere += [trial] * (trial.tries == 1)
            continue
        # A node that is down by now can be compared with others alone.
        if trial.tries == 1 and trial.nodes <= pool:
            same.setdefault(trial.nodes, []).append(trial)
        if len(pool - trial.nodes) >= trial.width:
            other.setdefault(trial.nodes, []).append(trial)
    return [*(Again(SAME, nodes, of) for nodes, of in same.items()),
            *_elsewhere(other, pools),
            *([Again(ANY, frozenset(), anywhere)] if anywhere else [])]


def _elsewhere(other: Mapping[frozenset[str], list[Trial]],
               pools: Mapping[str, Collection[str]]) -> list[Again]:
    """One session away from all their nodes, where enough are left; else one
    away from the nodes of each."""
    trials = [trial for of in other.values() for trial in of]
    union = frozenset(n for nodes in other for n in nodes)
    if trials and all(len(set(pools[trial.key[0]]) - union)
                      >= trial.width for trial in trials):
        return [Again(OTHER, union, trials)]
    return [Again(OTHER, nodes, of) for nodes, of in other.items()]


def plan_suspects(suspects: Sequence[tuple[Trial, int]],
                  pools: Mapping[str, Collection[str]]) -> list[Again]:
    """The sessions that say whether what was worse tonight stays so.

    On the same nodes, on others, and then wherever, until there are enough.

    :param suspects: with the number of runs that each needs
        (postprocess/judging.py)
    """
    found = plan([trial for trial, _ in suspects], pools)
    has = {id(trial): 0 for trial, _ in suspects}
    for one in found:
        for trial in one.of:
            has[id(trial)] += 1
    left = [(trial, needs - has[id(trial)]) for trial, needs in suspects]
    for number in range(max((more for _, more in left), default=0)):
        found.append(Again(ANY, frozenset(), [
            trial for trial, more in left if more > number]))
    return found
