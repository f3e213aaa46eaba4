"""Which test cases run in a session, and which of them first.

Pure but for `Known.from_environment`. The runner asks it where all cases of a
session are known; cli/session/ordering.py tells it what the perflogs know of
them.

**First** is what has the longest way to go: its own time, and that of what
waits for it. ReFrame's asynchronous policy submits in the order that it is
given, as far as `max_jobs` of the partition lets it. On equal machines this
order takes at most 4/3 of the shortest possible time (Graham, Bounds on
Multiprocessing Timing Anomalies, 1969).

**Tonight** is what the budget of a partition (node-hours a night) has room
for, in the order of who has not run for longest; what is left over has waited
longer tomorrow. `nights` is the number within which each case has its turn.
"""
from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

#: Variable with the file that tells a session what is known of its cases.
KNOWN = 'PLUMBLINE_KNOWN_CASES'

#: Extra of a partition: node-hours that a night may take of it.
BUDGET = 'nightly_budget'

#: Sums of hours that are equal but for rounding. Unit: node-hours.
ROUNDING = 1e-9

#: Partition, environment and ReFrame's hash of a case.
Key = tuple[str, str, str]

T = TypeVar('T')


class Case(NamedTuple):
    """What a case is to a budget."""
    key: Key
    #: Nodes of its job.
    nodes: int
    #: Seconds that the job is expected to take.
    seconds: float

    @property
    def hours(self) -> float:
        """Node-hours."""
        return self.nodes * self.seconds / 3600


def select(cases: Iterable[Case], budget: float, last: Mapping[Key, str]
           ) -> tuple[list[Case], list[Case]]:
    """The cases that run in this session, and those that are left to other
    nights.

    Who has not run for longest comes first, of several the one that costs
    most; all that still fits is taken. So a night takes at least the
    beginning of the line, up to the first case that does not fit, and that
    one is first tomorrow: see `nights`. A case that needs more than the whole
    budget is left in any case.

    :param budget: node-hours
    :param last: case -> the session that it ran in last, by names that sort
        as their times do; who is not there never ran
    """
    now: list[Case] = []
    left: list[Case] = []
    free = budget
    for case in sorted(cases, key=lambda c: (last.get(c.key, ''), -c.hours,
                                             c.key)):
        if case.hours <= free + ROUNDING:
            now.append(case)
            free -= case.hours
        else:
            left.append(case)
    return now, left


def nightly_sessions(cases: Iterable[Case], budget: float) -> int:
    """Nights in which each case that fits the budget runs once, at the most.

    With H node-hours in all and B a night: 1 if H <= B, else at most
    ceil(2 H / B), and no more than there are cases. For until a case has its
    turn, each night's beginning of the line and the case after it need more
    than B together, and a case that ran is behind it: over m - 1 sessions
    without it these sums exceed (m - 1) B, and no case is in them more than
    twice. And each night takes the first of the line. Cases that appear on
    the way, and so have never run, may come before it.
    """
    hours = [case.hours for case in cases
             if case.hours <= budget + ROUNDING]
    if sum(hours) <= budget + ROUNDING:
        return 1
    return min(len(hours), math.ceil(2 * sum(hours) / budget))


def longest_first(cases: Sequence[T], seconds: Callable[[T], float],
                  needs: Callable[[T], Iterable[T]]) -> list[T]:
    """The cases in the order of their time and that of all that waits for
    them, the longest first.

    What a case needs stays before it. Cases that are equal in this keep their
    order.

    :param cases: each after what it needs
    """
    own = {case: seconds(case) for case in cases}
    path = dict(own)
    for case in reversed(cases):
        for need in needs(case):
            if need in path:            # else of a session before
                path[need] = max(path[need], own[need] + path[case])
    return sorted(cases, key=lambda case: -path[case])


def limit_of(check: Any) -> float:
    """Seconds that the job of a case takes at the most."""
    try:
        own = check.seconds_needed()
    except (AttributeError, ValueError):
        own = 0.0               # known in a job alone
    return max(check.time_limit or 0, own)


@dataclass(frozen=True)
class Known:
    """What earlier sessions tell of the cases."""
    #: Case -> seconds of one run of its program.
    once: Mapping[Key, float] = field(default_factory=dict)
    #: Case -> the session in which it ran last.
    last: Mapping[Key, str] = field(default_factory=dict)
    #: The budgets of the site hold for this session.
    budgets: bool = False

    def seconds(self, key: Key, repetitions: int, limit: float
                ) -> tuple[float, bool]:
        """Seconds that a case is expected to take, without queues and
        builds; and whether it was seen: else it is the limit.

        :param limit: its time limit. Unit: s
        """
        once = self.once.get(key)
        return (limit, False) if once is None else (once * repetitions, True)

    def write(self, path: Path) -> None:
        """For `handed`."""
        path.write_text(json.dumps({'budgets': self.budgets, 'cases': [
            [*key, self.once.get(key), self.last.get(key)]
            for key in sorted({*self.once, *self.last})]}))

    @classmethod
    def from_environment(cls) -> Known:
        """What $PLUMBLINE_KNOWN_CASES tells; nothing without it.

        :raises ValueError: it is no such file.
        """
        path = os.environ.get(KNOWN)
        if not path:
            return cls()
        try:
            data = json.loads(Path(path).read_text())
            rows = [((str(partition), str(environ), str(code)), once, run)
                    for partition, environ, code, once, run in data['cases']]
            return cls({key: float(once) for key, once, _ in rows
                        if once is not None},
                       {key: str(run) for key, _, run in rows if run},
                       bool(data['budgets']))
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise ValueError(
                f'{KNOWN}={path}: not what is known of cases '
                f'({type(err).__name__}: {err}); ./plumb run sets it, unset '
                'it elsewhere') from None
