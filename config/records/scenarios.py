"""Points: the arrangements of a benchmark that are measured, and in which
modes. A family has a frozen dataclass for its own (checks/*/scenarios.py)."""
from __future__ import annotations

from dataclasses import fields
from typing import Any

#: Each has all cases of those before it.
MODES = ('quick', 'nightly', 'full')


def modes_from(first: str) -> set[str]:
    """The modes that have a point, by the first of them."""
    return set(MODES[MODES.index(first):])


def unusual(scenario: Any, *leave: str) -> list[str]:
    """`name=value` of each field that has not its default.

    :arg point: an instance of a dataclass.
    :arg leave: fields that are said elsewhere.
    """
    return [f'{one.name}={value}' for one in fields(scenario)
            if one.name not in leave
            and (value := getattr(scenario, one.name)) != one.default]
