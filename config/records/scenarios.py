"""Scenarios: the arrangements of a benchmark that are measured, and the modes
of each. A family has a frozen dataclass for them (checks/*/scenarios.py)."""
from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..sessions import modes

#: Each mode has all test cases of the modes before it.
MODES = tuple(mode for mode in modes.MODES if mode != modes.VETO)


def modes_starting_at(first: str) -> set[str]:
    """The modes that have a scenario: `first` and all after it."""
    return set(MODES[MODES.index(first):])


def non_default_fields(scenario: Any, *leave: str) -> list[str]:
    """`name=value` of each field whose value is not the default.

    :arg scenario: an instance of a dataclass
    :arg leave: fields to leave out
    """
    return [f'{one.name}={value}' for one in fields(scenario)
            if one.name not in leave
            and (value := getattr(scenario, one.name)) != one.default]
