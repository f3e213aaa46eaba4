"""Which test cases run in a session, and in which order.

The runner calls this module when it has all test cases of a session.
cli/session/ordering.py passes it their times and last sessions, which it reads
from the perflogs.

**Order**: first the test case with the longest total time of itself and of
those that wait for it. ReFrame's asynchronous policy submits in this order, as
far as `max_jobs` of the partition allows. On equal machines this takes at most
4/3 of the shortest possible time (Graham, Bounds on Multiprocessing Timing
Anomalies, 1969).

**Budget**: a nightly session measures as many test cases of a partition as its
budget (node-hours per session) allows. It begins with those that were not
measured for the longest time, so that the others come first in later sessions.
`sessions_until_all_ran` is the number of sessions that measure all of them.
"""
from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

#: Variable with a file of the times and last sessions of the test cases.
KNOWN = 'PLUMBLINE_KNOWN_CASES'

#: Extra of a partition: node-hours that a nightly session may use.
BUDGET = 'nightly_budget'

#: Difference of equal sums of hours by rounding. Unit: node-hours.
ROUNDING = 1e-9

#: Partition, environment and ReFrame's hash of a case.
Key = tuple[str, str, str]

T = TypeVar('T')


class Case(NamedTuple):
    """The cost of a test case."""
    key: Key
    #: Nodes of its job.
    nodes: int
    #: Seconds that the job is expected to take.
    seconds: float

    @property
    def node_hours(self) -> float:
        """Node-hours."""
        return self.nodes * self.seconds / 3600


def select_within_budget(cases: Iterable[Case], budget: float, last: Mapping[Key, str]
           ) -> tuple[list[Case], list[Case]]:
    """The test cases of this session, and those left to later sessions.

    The test case that was not measured for the longest time comes first; of
    several, the most expensive. Each one that still fits is selected. So a
    session measures at least the beginning of the queue, up to the first test
    case that does not fit, which is the first of the next session: see
    `sessions_until_all_ran`. One that needs more than the whole budget is never
    selected.

    :param budget: node-hours
    :param last: test case -> its last session, by names that sort by time;
        without an entry it was never measured
    """
    now: list[Case] = []
    left: list[Case] = []
    free = budget
    for case in sorted(cases, key=lambda c: (last.get(c.key, ''), -c.node_hours,
                                             c.key)):
        if case.node_hours <= free + ROUNDING:
            now.append(case)
            free -= case.node_hours
        else:
            left.append(case)
    return now, left


def sessions_until_all_ran(cases: Iterable[Case], budget: float) -> int:
    """Maximum number of sessions that measure each test case once, without
    those that need more than the budget.

    With H node-hours in all and B per session it is 1 if H <= B. Else it is
    ceil(2 H / B), or the number of test cases if that is less, because each
    session measures the first of the queue.

    Proof: take a test case that is measured in session m. In each of the m - 1
    sessions before, the beginning of the queue and the test case after it need
    more than B together, and a measured test case moves behind the one in
    question. So these sums exceed (m - 1) B, and have each test case at most
    twice. New test cases, which were never measured, may come before it.
    """
    hours = [case.node_hours for case in cases
             if case.node_hours <= budget + ROUNDING]
    if sum(hours) <= budget + ROUNDING:
        return 1
    return min(len(hours), math.ceil(2 * sum(hours) / budget))


def sort_longest_first(cases: Sequence[T], seconds: Callable[[T], float],
                       needs: Callable[[T], Iterable[T]]) -> list[T]:
    """The test cases by their time and that of those which wait for them, the
    longest first.

    A test case stays after those that it needs. Equal ones keep their order.

    :param cases: each after those that it needs
    """
    own = {case: seconds(case) for case in cases}
    path = dict(own)
    for case in reversed(cases):
        for need in needs(case):
            if need in path:            # else it is of an earlier session
                path[need] = max(path[need], own[need] + path[case])
    return sorted(cases, key=lambda case: -path[case])


def max_job_seconds(check: Any) -> float:
    """The maximum time of the job of a test case. Unit: s."""
    try:
        own = check.required_job_seconds()
    except (AttributeError, ValueError):
        own = 0.0               # known only in a job
    return max(check.time_limit or 0, own)


@dataclass(frozen=True)
class Known:
    """Times and last sessions of test cases, from earlier sessions."""
    #: Test case -> seconds of one repetition.
    once: Mapping[Key, float] = field(default_factory=dict)
    #: Test case -> its last session.
    last: Mapping[Key, str] = field(default_factory=dict)
    #: Whether the budgets of the site apply to this session.
    budgets: bool = False

    def expected_seconds(self, key: Key, repetitions: int, limit: float
                ) -> tuple[float, bool]:
        """Expected seconds of a test case without queues and builds, and
        whether it was measured before; if not, they are its time limit.

        :param limit: its time limit. Unit: s
        """
        once = self.once.get(key)
        return (limit, False) if once is None else (once * repetitions, True)

    def write_json(self, path: Path) -> None:
        """Write a file for `read_from_environment`."""
        path.write_text(json.dumps({'budgets': self.budgets, 'cases': [
            [*key, self.once.get(key), self.last.get(key)]
            for key in sorted({*self.once, *self.last})]}))

    @classmethod
    def read_from_environment(cls) -> Known:
        """Read the file of $PLUMBLINE_KNOWN_CASES; empty without the variable.

        :raises ValueError: the file cannot be read, or has other contents
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
                f'{KNOWN}={path} is not a file with the times of test cases '
                f'({type(err).__name__}: {err}); unset {KNOWN}, which only '
                './plumb run sets') from None
