"""Mode smoke: one test case per family and partition.

A family gives the tag `smoke` to short test cases on one and on two nodes. A
tag of ReFrame belongs to a check, and not to a partition or environment, so
the runner selects among them here.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Tag of the test cases among which mode smoke selects.
TAG = 'smoke'


def select_smoke_test_cases(cases: Iterable[Any]) -> list[Any]:
    """The test cases of mode smoke: one per family and partition.

    It is the one with the most nodes; of several, the one in the first
    environment of the partition, and then the first by name.

    :param cases: test cases of ReFrame, without fixtures
    """
    selected: dict[tuple[str, str], Any] = {}
    candidates = [case for case in cases if TAG in case.check.tags]
    for case in sorted(candidates, key=_preference):
        selected.setdefault((case.check.family, case.partition.fullname), case)
    return [*selected.values()]


def _preference(case: Any) -> tuple[int, int, str]:
    """What `select_smoke_test_cases` prefers comes first."""
    environs = [environ.name for environ in case.partition.environs]
    return (-case.check.node_count_before_setup, environs.index(case.environ.name),
            case.check.display_name)
