"""A test case on chosen nodes: several jobs of it, round after round.

A check never selects nodes, but `plumb locate`, which looks for a slow node,
must. It restricts a session to a test case, and names the nodes of its jobs in
the file $PLUMBLINE_PINNED, JSON::

    {"rounds": [[["n1", "n2"], ["n3", "n4"]], [["n1", "n3"]]],
     "parallel": 2}

Each list of nodes is a job. Up to `parallel` jobs of a round run at the same
time. A round begins after the end of the one before it. ReFrame's own
--distribute cannot do this, because it gives each job one node.
"""
from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

#: Variable with the file.
VARIABLE = 'PLUMBLINE_PINNED'

#: The part of a test case's name with its nodes and its round.
_SUFFIX = ' %nodes={nodes} %round={number}'
_IN_NAME = re.compile(r' %nodes=(\S+) %round=(\d+)$')


def pinned_nodes_of_test_case(name: str) -> tuple[str, ...]:
    """The chosen nodes of a test case, from its name in the session's plan.

    >>> pinned_nodes_of_test_case('Check %size=1 %nodes=n1+n2 %round=3')
    ('n1', 'n2')
    >>> pinned_nodes_of_test_case('Check %size=1')
    ()
    """
    match = _IN_NAME.search(name)
    return tuple(match[1].split('+')) if match else ()


def pin_test_cases(cases: list[Any], is_benchmark: Callable[[Any], bool]) -> list[Any]:
    """The test cases of a session, with one copy for each job of a benchmark.

    Without the variable, they are returned as they are. All copies use the
    same builds.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return cases
    request = json.loads(Path(path).read_text())
    placed_cases = []
    for case in cases:
        if not is_benchmark(case.check):
            placed_cases.append(case)
            continue
        case.partition._max_jobs = request['parallel']
        copies = [_copy_test_case_on_nodes(case, nodes, number)
                  for number, jobs in enumerate(request['rounds'], 1)
                  for nodes in jobs]
        for needed in case.deps:
            # ReFrame removes a build when this count is 0.
            needed.in_degree += len(copies) - 1
        placed_cases += copies
    # A round of all test cases before the next round of any.
    return sorted(placed_cases, key=_round_number)


def _copy_test_case_on_nodes(case: Any, nodes: list[str], number: int) -> Any:
    """A copy of a test case, with its own name and hash."""
    check = copy.deepcopy(case.check)
    suffix = _SUFFIX.format(nodes='+'.join(nodes), number=number)
    check._rfm_unique_name = case.check.unique_name + suffix.replace(
        ' %', '_')
    check._rfm_display_name = case.check.display_name + suffix
    for cached in ('_rfm_hashcode', '_rfm_name'):
        vars(check).pop(cached, None)
    check.pinned = (number, tuple(nodes))
    pinned_case = type(case)(check, case.partition, case.environ)
    pinned_case.deps.extend(case.deps)
    return pinned_case


def _round_number(case: Any) -> int:
    """The round of a test case; 0: none, for example a build."""
    return getattr(case.check, 'pinned', (0,))[0]


def group_by_round(cases: list[Any]) -> Iterator[list[Any]]:
    """The test cases that may run at the same time, in order. Builds, and test
    cases without chosen nodes, belong to the first round."""
    for _, cases_of_round in groupby(cases, lambda case: max(_round_number(case), 1)):
        yield list(cases_of_round)


def pin_job_to_nodes(check: Any) -> None:
    """Give the job of a test case, after its setup, the chosen nodes."""
    nodes = getattr(check, 'pinned', (0, ()))[1]
    if nodes:
        check.job.pin_nodes = list(nodes)
