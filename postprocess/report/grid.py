"""The grid of results: a row per test case, a cell per nightly session.

The rows of a family stand together. A family is folded if none of its test cases
failed or regressed. All sessions are drawn; the page shows the
newest ones first, and the reader chooses how many (`session_ranges`).
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from config.sessions.judged import IMPROVED

from .. import results
from ..names import natural_sort_key

#: Letters of cells: results.ORDER, NOT_EXPECTED; and of what did not fail and is
#: worse than it was.
LETTERS, WORSE = 'f-nkXxpir.', 'w'
#: Letters of results.FAILED.
FAILED = LETTERS[:len(results.FAILED)]
#: Letters that open a family, the worst first.
BAD = FAILED + WORSE
#: Letters, the worst first.
_WORST_FIRST = BAD + 'ixpr.'
#: Letter -> its word, in the order of the legend.
WORDS = {'f': 'failed', 'n': 'not run', 'k': 'flaky', 'w': 'regressed',
         '-': 'missing', 'X': 'known fault fixed', 'x': 'known fault',
         'i': 'inconclusive', 'p': 'passed', 'r': 'no reference'}
#: Letter -> top and bottom of the bars of its cell; neighbours are one bar. Results
#: differ by their shape, too, and not only by their colour.
_BARS = {'f': ((0, 1),), 'n': ((0, .3), (.7, 1)), 'i': ((.7, 1),),
         'p': ((.3, .8),), 'r': ((.45, .65),)}
#: Letter -> the outline of its cell, relative to its upper left corner: a triangle
#: that points down, two of four squares, a thin bar, half a square, a rhombus.
_OUTLINES = {'w': 'h1l-.5 1z', 'k': 'h.5v1h.5v-.5h-1z', '-': 'm.3 0h.4v1h-.4z',
             'X': 'v1h1z', 'x': 'm.5 .05l.5 .45l-.5 .45l-.5-.45z'}
#: Numbers of newest sessions that the reader may choose; the last one that is
#: smaller than the number of sessions is chosen first.
RANGES = (60, 180)
#: Bad rows of a family that are not folded, and good rows beside bad ones.
_MAX_BAD, _MAX_GOOD = 12, 3


class Case(NamedTuple):
    """A test case as the page shows it: a row of the grid."""
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
    def place(self) -> str:
        """System, partition and environment."""
        return place_text(self.row)

    @property
    def is_cut_short(self) -> bool:
        """Whether its newest session ended before the test case did."""
        return results.is_cut_short(self.result, self.row.guard)

    @property
    def is_improved(self) -> bool:
        """Whether its newest session has a value that is clearly better than its
        reference."""
        return IMPROVED in str(self.row.no_reference)

    @property
    def newest_result_letter(self) -> str:
        """The letter of its newest result."""
        letter = self.cells.rstrip('.')[-1:]
        return WORSE if self.worse and letter not in FAILED else letter

    @property
    def is_bad(self) -> bool:
        """Whether it failed or regressed."""
        return self.newest_result_letter in BAD

    @property
    def label(self) -> str:
        """What a screen reader reads: name, place, its newest result, and for how many
        sessions it has been so."""
        letter = self.newest_result_letter
        count = sessions_in_a_row(self.cells, letter)
        return f'{self.name}, {self.place}: {WORDS.get(letter, "")}' + (
            f', {count} sessions in a row' if count > 1 and letter in BAD else '')

    @property
    def paths(self) -> list[tuple[str, str]]:
        """(letter, outline) of its cells."""
        return cell_outlines(self.cells)


class FamilyRows(NamedTuple):
    """The rows of a family."""
    name: str
    #: How many test cases have each result.
    text: str
    #: Whether a test case failed or regressed.
    is_bad: bool
    #: (letter, outline) of the worst result of each session.
    paths: list[tuple[str, str]]
    #: (title, rows): rows with a title are folded.
    parts: list[tuple[str, list[Case]]]


def place_text(row: Any) -> str:
    """System, partition and environment of a record."""
    return f'{row.system}:{row.partition} {row.environ}'


def cell_outlines(cells: str) -> list[tuple[str, str]]:
    """(letter, outline) of the cells of a row, for an SVG that is one cell high.

    >>> cell_outlines('ppw')
    [('p', 'M0 0.3h2v0.5h-2z'), ('w', 'M2 0h1l-.5 1z')]
    """
    paths: dict[str, list[str]] = {}
    for match in re.finditer(r'(.)\1*', cells):
        letter, start, end = match[1], match.start(), match.end()
        for top, bottom in _BARS.get(letter, ()):
            paths.setdefault(letter, []).append(
                f'M{start} {top:g}h{end - start}v{bottom - top:.2g}h-{end - start}z')
        if letter in _OUTLINES:
            paths.setdefault(letter, []).extend(
                f'M{at} 0{_OUTLINES[letter]}' for at in range(start, end))
    return [(letter, ''.join(parts)) for letter, parts in paths.items()]


def legend(used: Iterable[str]) -> list[tuple[str, str, str]]:
    """(letter, word, outline) of each result that is used."""
    shown = set(used)
    return [(letter, word, cell_outlines(letter)[0][1])
            for letter, word in WORDS.items() if letter in shown]


def sessions_in_a_row(cells: str, ended: str) -> int:
    """The number of newest sessions with this result."""
    return cells[len(cells.rstrip(ended + '.')):].count(ended)


def rows_by_family(cases: Iterable[Case]) -> list[FamilyRows]:
    """The rows of each family, those that failed first; families with bad test cases
    first."""
    families: dict[str, list[Case]] = {}
    for case in sorted(cases, key=lambda case: (
            not case.is_bad, natural_sort_key(case.name), case.place)):
        families.setdefault(str(case.row.family), []).append(case)
    grouped = []
    for family, of_family in sorted(families.items()):
        bad = [case for case in of_family if case.is_bad]
        good = [case for case in of_family if not case.is_bad]
        counts = Counter(case.newest_result_letter for case in of_family)
        more = bad[_MAX_BAD:]
        parts = [('', bad[:_MAX_BAD]), (f'{len(more)} more of these', more), (
            f'{len(good)} other test cases' if bad and len(good) > _MAX_GOOD else '',
            good)]
        grouped.append(FamilyRows(
            family, ', '.join(f'{counts[letter]} {WORDS[letter]}' for letter in WORDS
                              if counts[letter]), bool(bad),
            cell_outlines(_worst_letters([case.cells for case in of_family])),
            [part for part in parts if part[1]]))
    return sorted(grouped, key=lambda one: not one.is_bad)


def _worst_letters(rows: Sequence[str]) -> str:
    """The worst letter of each session."""
    return ''.join(min(column, key=_WORST_FIRST.find)
                   for column in zip(*rows, strict=True))


def session_ranges(sessions: Sequence[str]) -> list[dict[str, Any]]:
    """The ranges of newest sessions that the reader may choose: {count, text,
    is_chosen, dates}, `dates` of the first and the last one.

    :param sessions: names of all sessions, `2026-11-06 03:00`, the oldest first
    """
    total = len(sessions)
    counts = [*(count for count in RANGES if count < total), total]
    chosen = counts[-2] if len(counts) > 1 and counts[-2] == RANGES[-1] else total
    return [{'count': count, 'is_chosen': count == chosen,
             'text': f'newest {count}' if count < total else f'all {total}',
             'dates': sorted({sessions[total - count], sessions[-1]})}
            for count in counts]
