"""A test case of the page, and its names."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import results
from ..perflogs import reasons
from .grid import FAILED, LETTERS, WORSE


class Case(NamedTuple):
    """A test case as the page shows it."""
    number: int
    #: Its newest record; if it is flaky, the one that failed.
    row: Any
    name: str
    #: Its address in every page: `case=HASH@SYSTEM:PARTITION+ENVIRONMENT`.
    address: str
    #: Letters of all sessions.
    cells: str
    #: Its newest result: one of results.ORDER.
    result: str
    #: Why it failed, or is inconclusive, if that is known.
    reason: str
    #: Part of a regression, even if its newest session is inconclusive.
    worse: bool = False

    @property
    def is_cut_short(self) -> bool:
        """Whether its newest session ended before the test case did."""
        return reasons.is_cut_short(self.result, self.row.guard)

    @property
    def last_completed_result(self) -> str:
        """Its newest result but those of sessions that were cut short; '': none."""
        if not self.is_cut_short:
            return self.result
        letters = self.cells.rstrip('-.n')[-1:].replace(WORSE, 'p')
        return results.ORDER[LETTERS.index(letters)] if letters else ''

    @property
    def newest_result_letter(self) -> str:
        """The letter of its newest result."""
        letter = self.cells.rstrip('-.')[-1:]
        return (
            WORSE if self.worse and letter not in FAILED else letter
        )


def place_text(row: Any) -> str:
    return f'{row.system}:{row.partition} {row.environ}'


def addresses_of_test_cases(rows: Sequence[Any]) -> list[str]:
    """Addresses of test cases in the page, by their newest records; those of two
    sources or programs have the same hash."""
    addresses: list[str] = []
    for row in rows:
        address = f'case={row.case}@{row.system}:{row.partition}+{row.environ}'
        for more in ('', f'+{row.source}', f'+{row.source}+{row.program}',
                     f'+{row.source}+{row.program}+{len(addresses)}'):
            if address + more not in addresses:
                addresses.append(address + more)
                break
    return addresses


def reframe_name(row: Any) -> str:
    """A test case as ReFrame lists it."""
    return ' '.join([row.check, *(f'%{word}' for word in str(row.params).split()),
                     f'/{row.case} @{row.system}:{row.partition}+{row.environ}'])
