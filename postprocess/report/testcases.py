"""A test case of the page, and its names."""
from __future__ import annotations

from typing import Any, NamedTuple

from .. import results
from .grid import FAILED, LETTERS, WORSE


class Case(NamedTuple):
    """A test case as the page shows it."""
    number: int
    #: Its newest record; if it is flaky, the one that failed.
    row: Any
    name: str
    #: Letters of all sessions.
    cells: str
    #: Its newest result: one of results.ORDER.
    result: str
    #: Why it failed, or is inconclusive, if that is known.
    reason: str
    #: Part of a regression, even if its newest session is inconclusive.
    worse: bool = False

    @property
    def address(self) -> str:
        """Its address in every page."""
        return f'case={self.row.test_case}'

    @property
    def is_cut_short(self) -> bool:
        """Whether its newest session ended before the test case did."""
        return results.is_cut_short(self.result, self.row.guard)

    @property
    def last_completed_result(self) -> str:
        """Its newest result but those of sessions that were cut short; '': none."""
        if not self.is_cut_short:
            return self.result
        letters = self.cells.rstrip('.n')[-1:].replace(WORSE, 'p')
        return results.ORDER[LETTERS.index(letters)] if letters else ''

    @property
    def newest_result_letter(self) -> str:
        """The letter of its newest result."""
        letter = self.cells.rstrip('.')[-1:]
        return (
            WORSE if self.worse and letter not in FAILED else letter
        )


def place_text(row: Any) -> str:
    return f'{row.system}:{row.partition} {row.environ}'


def reframe_name(row: Any) -> str:
    """A test case as ReFrame lists it."""
    return f'{row.name} @{row.system}:{row.partition}+{row.environ}'
