"""Modes smoke and veto: few test cases of each partition.

A family gives the tag `smoke` to short test cases on one and on two nodes, and
the tag `veto` to a short one that uses all CPUs or GPUs of a node. A tag of
ReFrame belongs to a check, and not to a partition or environment, so the
runner selects among them here. The variable `selection` of the checks has the
mode (config/sessions/modes.py).
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

#: Modes, which are also the tags of the test cases among which they select.
SMOKE, VETO = 'smoke', 'veto'


def select_smoke_test_cases(cases: Iterable[Any]) -> list[Any]:
    """The test cases of mode smoke: one per family and partition.

    It is the one with the most nodes; of several, the one in the first
    environment of the partition, and then the first of its check as declared:
    the check's first store, for example.

    :param cases: test cases of ReFrame, without fixtures
    """
    selected: dict[tuple[str, str], Any] = {}
    for case in sorted(_with_tag(cases, SMOKE), key=lambda case: (
            -case.check.node_count_before_setup, *_order_as_declared(case))):
        selected.setdefault((case.check.family, case.partition.fullname), case)
    return [*selected.values()]


def select_veto_test_cases(cases: Iterable[Any]) -> list[Any]:
    """The test cases of mode veto: one per partition, on each node for which
    ReFrame's `--distribute` has made a copy of it.

    It is the one with the most GPUs per node; of several, the first one as in
    mode smoke.

    :param cases: test cases of ReFrame, without fixtures
    """
    first: dict[str, Any] = {}
    candidates = _with_tag(cases, VETO)
    for case in sorted(candidates, key=lambda case: (
            -(case.check.num_gpus_per_node or 0), *_order_as_declared(case))):
        first.setdefault(case.partition.fullname, case)
    return [case for case in candidates
            if _without_node(case) == _without_node(first[case.partition.fullname])]


#: Mode -> the function that selects its test cases.
SELECTIONS: dict[str, Callable[[Iterable[Any]], list[Any]]] = {
    SMOKE: select_smoke_test_cases, VETO: select_veto_test_cases}


def _with_tag(cases: Iterable[Any], tag: str) -> list[Any]:
    return [case for case in cases if tag in case.check.tags]


def _order_as_declared(case: Any) -> tuple[int, str, int]:
    environs = [environ.name for environ in case.partition.environs]
    return (environs.index(case.environ.name),
            case.check.display_name.partition(' ')[0], case.check.variant_num)


def _without_node(case: Any) -> tuple[str, str, str]:
    """What the copies of a test case on several nodes have in common."""
    return (case.environ.name, case.check.display_name.partition(' ')[0],
            case.check.params)
