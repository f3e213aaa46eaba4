"""Cells of whole lines, found all at once.

To split a million lines one by one costs more than all else that is done with
them. Here numpy finds the separators of some MiB of text; a column is its
distinct texts and a code a line, and of a column that nobody asks for, or that
does not change, no cell is ever made. What is not well is not looked into: the
caller reads it line by line then, and tells what is wrong.
"""
from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence

import numpy as np

#: Distinct texts, and of each line a code into them (int32).
Coded = tuple[list[str], np.ndarray]

#: Longest cells (bytes) of which single bytes are compared and copied; to make
#: objects of longer ones costs less.
SHORT = 32
_DIGITS = b'0123456789.eE+-'


def numbers() -> collections.defaultdict:
    """Distinct key -> its number, in order of appearance."""
    return collections.defaultdict(itertools.count().__next__)


def coded(cells: Sequence) -> tuple[list, np.ndarray]:
    """Distinct cells, and a code for each."""
    known = numbers()
    codes = np.fromiter(map(known.__getitem__, cells), np.int32, len(cells))
    return list(known), codes


def floats(cells: Sequence[bytes], whole: bytes) -> np.ndarray | None:
    """Finite numbers in ASCII digits; None: not all cells are.

    :param whole: all cells, joined
    """
    # float() takes more than digits: nan, 1_0, spaces.
    if whole.translate(None, _DIGITS):
        return None
    try:
        found = np.fromiter(map(float, cells), float, len(cells))
    except ValueError:
        return None
    return None if np.isinf(found).any() else found


def optional(cells: Sequence[str]) -> np.ndarray | None:
    """The same of texts, NaN where one is empty."""
    given = [cell.encode(errors='replace') or b'0' for cell in cells]
    found = floats(given, b''.join(given))
    if found is not None:
        found[[not cell for cell in cells]] = np.nan
    return found


class Lines:
    """Whole lines of text, and where their separators are."""

    def __init__(self, data: bytes, separator: bytes) -> None:
        """
        :param separator: one byte between cells
        """
        self.data = data
        self._bytes = np.frombuffer(data, np.uint8)
        found = self._bytes == separator[0]
        found |= self._bytes == ord('\n')
        #: Places of all separators, and which of them end a line.
        self.ends = np.flatnonzero(found)
        self.last = np.flatnonzero(self._bytes[self.ends] == ord('\n'))

    def __len__(self) -> int:
        return len(self.last)

    def begins(self) -> np.ndarray:
        """Where each line begins."""
        found = np.zeros(len(self), np.int64)
        found[1:] = self.ends[self.last[:-1]] + 1
        return found

    def coded(self, begin: np.ndarray, end: np.ndarray) -> Coded:
        """What stands between two places of each line.

        :raises UnicodeDecodeError: it is not text
        """
        if self._constant(begin, end):
            return ([self.data[begin[0]:end[0]].decode()],
                    np.zeros(len(begin), np.int32))
        if (end - begin).sum() <= SHORT * len(begin):
            return coded(self._joined(begin, end).decode().split('\n')[:-1])
        found, codes = coded([self.data[a:b] for a, b in zip(
            begin.tolist(), end.tolist(), strict=True)])
        return b'\n'.join(found).decode().split('\n'), codes

    def floats(self, begin: np.ndarray, end: np.ndarray
               ) -> np.ndarray | None:
        """The same, as finite numbers; None: not all are."""
        whole = self._joined(begin, end)
        return floats(whole.split(b'\n')[:-1], whole.replace(b'\n', b''))

    def _joined(self, begin: np.ndarray, end: np.ndarray) -> bytes:
        """The same, a line each: to copy it at once and split that is
        faster than to slice cells that are short."""
        sizes = end - begin + 1
        last = np.cumsum(sizes)
        found = self._bytes[np.arange(last[-1]) + np.repeat(
            begin - (last - sizes), sizes)]
        found[last - 1] = ord('\n')
        return found.tobytes()

    def _constant(self, begin: np.ndarray, end: np.ndarray) -> bool:
        """Whether it is the same in all lines; False: perhaps."""
        first = self.data[begin[0]:end[0]]
        return (len(first) <= SHORT
                and first == self.data[begin[-1]:end[-1]]
                and not (end - begin != len(first)).any()
                and all(not (self._bytes[begin + at] != byte).any()
                        for at, byte in enumerate(first)))


class Grid:
    """Columns of lines that have as many cells each, without quotes."""

    def __init__(self, data: bytes, separator: bytes, columns: int) -> None:
        """
        :raises ValueError: a line has another number of cells
        """
        self._lines = Lines(data, separator)
        self.size = len(self._lines)
        whole = self.size * columns
        if len(self._lines.ends) != whole or not np.array_equal(
                self._lines.last, np.arange(columns - 1, whole, columns)):
            raise ValueError('lines of several lengths')
        self._ends = self._lines.ends.reshape(-1, columns)

    def _between(self, at: int) -> tuple[np.ndarray, np.ndarray]:
        return (self._ends[:, at - 1] + 1 if at else self._lines.begins(),
                self._ends[:, at])

    def coded(self, at: int) -> Coded:
        """A column."""
        return self._lines.coded(*self._between(at))

    def floats(self, at: int) -> np.ndarray | None:
        """A column of finite numbers; None: not all are."""
        return self._lines.floats(*self._between(at))


class Rows:
    """The same columns, of rows of texts."""

    def __init__(self, rows: Sequence[Sequence[str]]) -> None:
        self._columns = list(zip(*rows, strict=True))
        self.size = len(rows)

    def coded(self, at: int) -> Coded:
        """A column."""
        return coded(self._columns[at])

    def floats(self, at: int) -> np.ndarray | None:
        """A column of finite numbers; None: not all are."""
        given = [cell.encode(errors='replace') for cell in self._columns[at]]
        return floats(given, b''.join(given))
