"""The cost of test cases together, in node-hours without builds and queues."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from . import ordering

#: Variable with a file. If it is set, a session writes the cost of its test
#: cases to the file, and ends before any of them begins.
COST_FILE = 'PLUMBLINE_COST_FILE'


@dataclass(frozen=True)
class Cost:
    """The cost of a mode or session. Unit: node-hours."""
    cases: int
    checks: int
    #: Test cases that were measured before, and their hours.
    seen: int
    by_times: float
    #: Maximum of the others, from their time limits.
    by_limits: float

    def __str__(self) -> str:
        text = (f'{self.cases} test cases ({self.checks} checks), '
                f'{node_hours_text(self.by_times + self.by_limits)} node-hours')
        if not self.cases:
            return text
        if not self.seen:
            return f'{text} at most, by their time limits'
        if self.seen == self.cases:
            return f'{text}, by earlier times'
        return (f'{text}: {node_hours_text(self.by_times)} by earlier times '
                f'({self.seen} test cases), {node_hours_text(self.by_limits)} at most '
                f'by time limits ({self.cases - self.seen})')


def node_hours_text(number: float) -> str:
    """Hours with two digits, or all digits before the point."""
    return f'{number:.2g}' if number < 10 else f'{number:.0f}'


def total_cost(costs: Iterable[tuple[ordering.Case, bool]]) -> Cost:
    """The cost of several test cases together.

    :param costs: the cost of each, and whether it is from earlier times; else
        it is from its time limit
    """
    costs = list(costs)
    seen = [case.node_hours for case, was_seen in costs if was_seen]
    limits = [case.node_hours for case, was_seen in costs if not was_seen]
    return Cost(len(costs), len({case.key[2] for case, _ in costs}), len(seen),
                sum(seen), sum(limits))
