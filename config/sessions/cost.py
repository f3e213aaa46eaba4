"""The maximum cost of test cases together, from their time limits."""
from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from config.console import count_with_noun

#: A test case in the list of `reframe --list=C`, without what it depends on.
_LISTED = re.compile(r'^- (.+) /[0-9a-f]+ @\S+$', re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """The maximum cost of a mode or session, without builds and queues."""
    #: Jobs without builds; each test case has one.
    jobs: int
    node_hours: float
    #: Time of the jobs, one after another. Unit: s.
    seconds: float = 0.0

    @property
    def hours_text(self) -> str:
        """The node-hours, with two digits or all digits before the point."""
        hours = self.node_hours
        return (f'at most {f"{hours:.2g}" if hours < 10 else f"{hours:.0f}"} '
                'node-hours')

    @property
    def minutes_text(self) -> str:
        """The time of the jobs, one after another."""
        return f'at most {self.seconds / 60:.0f} min of test time'

    def __str__(self) -> str:
        return f'{count_with_noun(self.jobs, "job")}, {self.hours_text}'


def total_cost(jobs: Iterable[tuple[int, float]]) -> Cost:
    """The cost of several jobs together.

    :param jobs: nodes and time limit (in seconds) of each
    """
    jobs = list(jobs)
    return Cost(len(jobs), sum(nodes * seconds for nodes, seconds in jobs) / 3600,
                sum(seconds for _, seconds in jobs))


def cost_of_session(reframe: Sequence[str], variables: Mapping[str, str]
                    ) -> Cost | None:
    """The cost of the test cases that ReFrame selects; None: none, or it fails.

    `--describe` has each check once, `--list=C` all its partitions and environments.

    :param reframe: command with options that select test cases
    :param variables: of its environment
    """
    started = [subprocess.Popen([*reframe, action], env=variables, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL)
               for action in ('--describe', '--list=C')]
    described, listed = (process.communicate()[0] for process in started)
    if any(process.returncode for process in started):
        return None
    number = Counter(_LISTED.findall(listed))
    jobs = [(check['required_nodes'], check['time_limit'] or 0.0)
            for check in json.loads(described[described.index('['):])
            for _ in range(number[check['display_name']])]
    return total_cost(jobs) if jobs else None
