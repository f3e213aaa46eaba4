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

from .. import results

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
#: Dates on the axis, and sessions from one to the next.
_MAX_DATES, _MIN_STEP = 5, 4
#: Bad rows of a family that are not folded, and good rows beside bad ones.
_MAX_BAD, _MAX_GOOD = 12, 3


class Row(NamedTuple):
    """A row of the grid."""
    #: Its test case; None: the row of a family.
    number: int | None
    name: str
    place: str
    #: Address in the page; '': the row of a family.
    address: str
    #: The letter of its newest result.
    ended: str
    #: What a screen reader reads: name, place and result.
    label: str
    #: (letter, outline) of its cells, for an SVG that is one cell high.
    paths: list[tuple[str, str]]
    family: str

    @property
    def is_bad(self) -> bool:
        """Whether the test case failed or regressed."""
        return self.ended in BAD


class FamilyRows(NamedTuple):
    """The rows of a family."""
    #: Of the whole family: in each session the worst result.
    row: Row
    #: (title, rows): rows with a title are folded.
    parts: list[tuple[str, list[Row]]]


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


def result_text(cells: str, ended: str) -> str:
    """The newest result of a test case, and for how many sessions it has been so.

    >>> result_text('pp.w.w', 'w'), result_text('p', 'p')
    ('regressed, 2 sessions in a row', 'passed')
    """
    count = sessions_in_a_row(cells, ended)
    return WORDS.get(ended, '') + (
        f', {count} sessions in a row' if count > 1 and ended in BAD else '')


def sessions_in_a_row(cells: str, ended: str) -> int:
    """The number of newest sessions with this result."""
    return cells[len(cells.rstrip(ended + '.')):].count(ended)


def rows_by_family(rows: Sequence[Row], cells: dict[int, str]) -> list[FamilyRows]:
    """The rows of each family; families with bad test cases first.

    :param rows: of all test cases, sorted
    :param cells: test case -> letters of all its sessions
    """
    families: dict[str, list[Row]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    grouped = []
    for family, of_family in families.items():
        bad = [row for row in of_family if row.is_bad]
        good = [row for row in of_family if not row.is_bad]
        counts = Counter(row.ended for row in of_family)
        text = ', '.join(f'{counts[letter]} {WORDS[letter]}' for letter in WORDS
                         if counts[letter])
        letters = _worst_letters([cells[row.number] for row in of_family
                                  if row.number is not None])
        ended = min(counts, key=_WORST_FIRST.find)
        more = bad[_MAX_BAD:]
        parts = [('', bad[:_MAX_BAD]), (f'{len(more)} more of these', more), (
            f'{len(good)} other test cases' if bad and len(good) > _MAX_GOOD else '',
            good)]
        grouped.append(FamilyRows(
            Row(None, family, text, '', ended, f'{family}: {text}',
                cell_outlines(letters), family),
            [part for part in parts if part[1]]))
    return sorted(grouped, key=lambda one: not one.row.is_bad)


def _worst_letters(rows: Sequence[str]) -> str:
    """The worst letter of each session."""
    return ''.join(min(column, key=_WORST_FIRST.find)
                   for column in zip(*rows, strict=True))


def session_ranges(sessions: Sequence[str]) -> list[dict[str, Any]]:
    """The ranges of newest sessions that the reader may choose: {count, text,
    is_chosen, dates}, `dates` for the axis as (percent from the left, date).

    :param sessions: names of all sessions, `2026-11-06 03:00`, the oldest first
    """
    total = len(sessions)
    counts = [*(count for count in RANGES if count < total), total]
    chosen = counts[-2] if len(counts) > 1 and counts[-2] == RANGES[-1] else total
    return [{'count': count, 'is_chosen': count == chosen,
             'text': f'newest {count}' if count < total else f'all {total}',
             'dates': _axis_dates(sessions[total - count:])} for count in counts]


def _axis_dates(sessions: Sequence[str]) -> list[tuple[float, str]]:
    """(percent from the left, date) of the ends of some sessions, the newest one
    included."""
    step = max(-(-len(sessions) // _MAX_DATES), _MIN_STEP)
    return [(round(100 * (at + 1) / len(sessions), 2), sessions[at][:10])
            for at in range((len(sessions) - 1) % step, len(sessions), step)]
