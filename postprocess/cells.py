"""Cells of whole lines, found all at once.

To split a million lines one by one costs more than all else that is done with
them. A column is its distinct texts and a code a line. Of the suite's own
lines numpy finds the separators, since most of a line is that of the one
before: no cell is made of what does not change. Lines of others are read by
polars. What is not well is not looked into: the caller reads it line by line
then, and tells what is wrong.
"""
from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import polars as pl

#: Distinct texts, and of each line a code into them (int32).
Coded = tuple[Sequence[str], np.ndarray]
#: So many texts of a column stay in polars.
MANY = 1000

#: Longest cells (bytes) that are compared as numbers of eight bytes each; to
#: make objects of longer ones costs less.
SHORT = 64
#: Of a number of eight bytes, as many of the first as count.
_FIRST = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
#: Odd, without a pattern: what several numbers are made one with.
_MIX = np.uint64(0x9e3779b97f4a7c15)
_DIGITS = b'0123456789.eE+-'


def numbers() -> collections.defaultdict:
    """Distinct key -> its number, in order of appearance."""
    return collections.defaultdict(itertools.count().__next__)


def coded(cells: Sequence) -> tuple[list, np.ndarray]:
    """Distinct cells, and a code for each."""
    found, [codes] = merged([cells])
    return found, codes


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


class Many(Sequence[str]):
    """Many texts, as polars has them: as objects of Python, of which there are
    none before they are asked for, they cost more than all else."""

    def __init__(self, series: pl.Series) -> None:
        self.series = series

    @functools.cached_property
    def _texts(self) -> list[str]:
        return self.series.to_list()

    def __len__(self) -> int:
        return len(self.series)

    def __getitem__(self, at: Any) -> Any:
        return self._texts[at]


def whole(texts: Sequence[str]) -> str:
    """Texts, one after the other."""
    return (texts.series.str.join('').item() if isinstance(texts, Many)
            else ''.join(texts))


def even(texts: Sequence[str], size: int) -> str | None:
    """The same, of texts that have so many letters of ASCII each; None:
    they have not."""
    same = ((texts.series.str.len_bytes() == size).all() if isinstance(
        texts, Many) else set(map(len, texts)) == {size})
    found = whole(texts) if same else None
    return found if found and found.isascii() else None


def distinct(texts: Sequence[str]) -> int:
    """How many texts differ."""
    return (texts.series.n_unique() if isinstance(texts, Many)
            else len(set(texts)))


def merged(columns: Sequence[Sequence]) -> tuple[list, list[np.ndarray]]:
    """The distinct cells of several columns, and codes for each column."""
    if any(isinstance(texts, Many) for texts in columns):
        import polars as pl
        codes = _codes(pl.concat([
            texts.series if isinstance(texts, Many)
            else pl.Series(texts, dtype=pl.String) for texts in columns]))
        return codes[0].to_list(), np.split(codes[1], np.cumsum(
            [len(texts) for texts in columns])[:-1])
    known = numbers()
    found = [np.fromiter(map(known.__getitem__, texts), np.int32, len(texts))
             for texts in columns]
    return list(known), found


def _filled(cells: pl.Series) -> bool:
    """Whether no cell is empty."""
    return not cells.null_count() and (cells.dtype.is_numeric()
                                       or bool((cells != '').all()))


def _codes(cells: pl.Series) -> tuple[pl.Series, np.ndarray]:
    """Distinct cells, and a code for each."""
    import polars as pl
    found = cells.unique(maintain_order=True)
    if len(found) == len(cells):
        return found, np.arange(len(cells), dtype=np.int32)
    return found, cells.cast(pl.Enum(found)).to_physical().to_numpy().astype(
        np.int32)


class Lines:
    """Whole lines of text, and where their separators are."""

    def __init__(self, data: bytes, separator: bytes) -> None:
        """
        :param separator: one byte between cells
        """
        self.data = data
        self.bytes = np.frombuffer(data, np.uint8)
        # Of each place, eight bytes as a number.
        self._eights = np.ndarray(
            len(data) + SHORT, '<u8', data + bytes(SHORT + 8), strides=(1,))
        # A number ends in zeros where a cell ends.
        self._zeros = b'\0' in data
        found = self.bytes == separator[0]
        found |= self.bytes == ord('\n')
        #: Places of all separators, and which of them end a line.
        self.ends = np.flatnonzero(found)
        self.last = np.flatnonzero(self.bytes[self.ends] == ord('\n'))

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
        numbers = self._numbers(begin, end)
        if numbers is None:
            found, codes = coded(self._sliced(begin, end))
            return _texts(found), codes
        if all((number == number[0]).all() for number in numbers):
            return ([self.data[begin[0]:end[0]].decode()],
                    np.zeros(len(begin), np.int32))
        key = numbers[0].copy()
        for number in numbers[1:]:
            key *= _MIX
            key ^= key >> np.uint64(29)
            key ^= number
        _, first, codes = np.unique(key, return_index=True,
                                    return_inverse=True)
        if len(numbers) > 1 and any(
                (number[first][codes] != number).any() for number in numbers):
            # Two cells have one key.
            found, codes = coded(self._sliced(begin, end))
            return _texts(found), codes
        if len(first) == len(key):
            return _texts(_cut(numbers)), np.arange(len(key), dtype=np.int32)
        order = np.argsort(first)
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order))
        first = first[order]
        return (_texts(_cut([number[first] for number in numbers])),
                places[codes])

    def floats(self, begin: np.ndarray, end: np.ndarray
               ) -> np.ndarray | None:
        """The same, as finite numbers; None: not all are."""
        numbers = self._numbers(begin, end)
        cells = self._sliced(begin, end) if numbers is None else _cut(numbers)
        return floats(cells, b''.join(cells))

    def _numbers(self, begin: np.ndarray, end: np.ndarray
                 ) -> list[np.ndarray] | None:
        """What stands between two places of each line, as numbers of eight
        bytes; None: it cannot, or should not."""
        sizes = end - begin
        longest = int(sizes.max())
        if longest > SHORT or self._zeros:
            return None
        same = longest == sizes.min()
        found = []
        for at in range(0, max(longest, 1), 8):
            number = self._eights[begin + at if at else begin]
            if not same:
                number &= _FIRST[np.clip(sizes - at, 0, 8)]
            elif longest < at + 8:
                number &= _FIRST[longest - at]
            found.append(number)
        return found

    def _sliced(self, begin: np.ndarray, end: np.ndarray) -> list[bytes]:
        return [self.data[a:b] for a, b in zip(
            begin.tolist(), end.tolist(), strict=True)]


def _cut(numbers: Sequence[np.ndarray]) -> list[bytes]:
    """Cells of numbers of eight bytes each, without the zeros at the end."""
    return np.stack(numbers, axis=1).view(
        f'S{8 * len(numbers)}').ravel().tolist()


def _texts(cells: list[bytes]) -> list[str]:
    """
    :raises UnicodeDecodeError: they are none
    """
    return b'\n'.join(cells).decode().split('\n')


class Table:
    """Columns of lines that have as many cells each, without quotes."""

    def __init__(self, data: bytes, separator: bytes, columns: int,
                 asked: Collection[int], figures: Collection[int]) -> None:
        """
        :param asked: columns of which `column` or `numbers` will be asked
        :param figures: those of which `numbers` will be
        :raises ValueError: a line has another number of cells, or it is not
            text
        """
        import polars as pl
        wrong: Exception = ValueError('lines of several lengths')
        last = columns - 1
        # polars takes a line for whole that has too few cells: then the last
        # one is empty. Of one that has too many it tells only where it reads
        # all columns, so else all separators are counted, too.
        ways = [(all, sorted({*asked, *figures, last})), (any, range(columns))]
        if separator + b'\n' in data[:1 << 16]:
            del ways[0]                 # it is empty anyhow, as a rule
        for (need, chosen), types in itertools.product(
                ways, (dict.fromkeys(figures, pl.Float64), {})):
            try:
                table = pl.read_csv(
                    data, has_header=False, separator=separator.decode(),
                    quote_char=None, empty_string_is_null=False,
                    # To look whether it is empty copies it.
                    raise_if_empty=False, columns=[*chosen], schema={
                        str(at): types.get(at, pl.String)
                        for at in range(columns)})
            except pl.exceptions.PolarsError as err:
                wrong = err
                continue
            self.size = len(table)
            self._columns = dict(zip(chosen, table.get_columns(),
                                     strict=True))
            checks = (lambda: _filled(self._columns[last]),
                      lambda: np.count_nonzero(
                          np.frombuffer(data, np.uint8) == separator[0]
                          ) == self.size * last)
            # It has words for what is not finite.
            if need(check() for check in checks) and all(
                    self._columns[at].is_finite().all() for at in types):
                return
        raise ValueError(str(wrong))

    def column(self, at: int) -> Coded:
        """A column."""
        cells = self._columns[at]
        if (cells == cells[0]).all():
            return [cells[0]], np.zeros(self.size, np.int32)
        found, codes = _codes(cells)
        return (found.to_list() if len(found) < MANY else Many(found)), codes

    def numbers(self, at: int) -> np.ndarray | None:
        """A column of finite numbers, NaN where a cell is empty; None: not
        all are."""
        cells = self._columns[at]
        return cells.to_numpy() if cells.dtype.is_float() else None


class Rows:
    """The same columns, of rows of texts."""

    def __init__(self, rows: Sequence[Sequence[str]]) -> None:
        self._columns = list(zip(*rows, strict=True))
        self.size = len(rows)

    def column(self, at: int) -> Coded:
        """A column."""
        return coded(self._columns[at])

    def numbers(self, at: int) -> np.ndarray | None:
        """A column of finite numbers; None: not all are."""
        given = [cell.encode(errors='replace') for cell in self._columns[at]]
        return floats(given, b''.join(given))
