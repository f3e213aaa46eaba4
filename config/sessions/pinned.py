"""A case on nodes that it is given: several jobs of it, round after round.

A check states needs, never places; what looks for a slow node must choose
them (`plumb locate`). It restricts a session to a case and names the nodes of
its jobs in the file $PLUMBLINE_PINNED, JSON::

    {"rounds": [[["n1", "n2"], ["n3", "n4"]], [["n1", "n3"]]],
     "parallel": 2}

Each list of nodes is a job. Those of a round run at the same time, as many as
`parallel` says; a round begins when the one before it has ended. ReFrame's
own --distribute gives each job one node.
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

#: What a case's name says of its nodes and its round.
_SUFFIX = ' %nodes={nodes} %round={number}'
_IN_NAME = re.compile(r' %nodes=(\S+) %round=(\d+)$')


def nodes_of(name: str) -> tuple[str, ...]:
    """The nodes that a case was given, by its name in the session's plan.

    >>> nodes_of('Check %size=1 %nodes=n1+n2 %round=3')
    ('n1', 'n2')
    >>> nodes_of('Check %size=1')
    ()
    """
    match = _IN_NAME.search(name)
    return tuple(match[1].split('+')) if match else ()


def placed(cases: list[Any], measures: Callable[[Any], bool]) -> list[Any]:
    """The cases of a session, each that measures once for each of its jobs.

    Without the variable, the same. What was built for a case serves them all.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return cases
    request = json.loads(Path(path).read_text())
    placed_cases = []
    for case in cases:
        if not measures(case.check):
            placed_cases.append(case)
            continue
        case.partition._max_jobs = request['parallel']
        copies = [_on(case, nodes, number)
                for number, jobs in enumerate(request['rounds'], 1)
                for nodes in jobs]
        for needed in case.deps:
            # Of this count depends when ReFrame removes what was built.
            needed.in_degree += len(copies) - 1
        placed_cases += copies
    # A round of all cases before the next one of any.
    return sorted(placed_cases, key=_round)


def _on(case: Any, nodes: list[str], number: int) -> Any:
    """A copy of a case, with a name and a hash of its own."""
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


def _round(case: Any) -> int:
    """0: of no round, such as what is built."""
    return getattr(case.check, 'pinned', (0,))[0]


def rounds(cases: list[Any]) -> Iterator[list[Any]]:
    """The cases that may run at the same time, in order; what is built, and
    cases that are not pinned, with those of the first round."""
    for _, cases_of_round in groupby(cases, lambda case: max(_round(case), 1)):
        yield list(cases_of_round)


def pin(check: Any) -> None:
    """Gives the job of a case, once it is set up, its nodes."""
    nodes = getattr(check, 'pinned', (0, ()))[1]
    if nodes:
        check.job.pin_nodes = list(nodes)
