"""Reader of the table of nccl-tests' all_reduce_perf in Optcast's output.

Rows may begin with `#` (the fork of Optcast's guide) or with a launcher's
tag. Old versions have no column `root`, and have `error` instead of `#wrong`.
The embedded client fills only the columns of out-of-place.

busbw = algbw * 2(n-1)/n for n ranks, algbw = size / time; both must hold to
the digits printed, and so must the average of all busbw.
"""
from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..core.parsers import ParseError

_RANK = re.compile(r'#\s+Rank\s+(\d+)\b.*')
_COLUMNS = re.compile(r'#\s+size\s+count\s+type\s+redop(?P<root>\s+root)?'
                      r'(?P<first>\s+time\s+algbw\s+busbw\s+(?:#wrong|error))'
                      r'(?P<second>\s+time\s+algbw\s+busbw\s+'
                      r'(?:#wrong|error))?\s*')
_ROW = re.compile(r'#?\s*(\d+)\s+(\d+)\s+(\w+)\s+(sum|prod|max|min|avg)\s+'
                  r'(.*)')
_NUMBER = re.compile(r'\d+(?:\.\d+)?(?:e[+-]\d+)?')
_BOUNDS = re.compile(r'# Out of bounds values : (\d+) (\w+)\s*')
_AVERAGE = re.compile(r'# Avg bus bandwidth\s*: (\S+)\s*')
#: B of an element.
TYPES = {'float': 4, 'half': 2, 'bfloat16': 2, 'double': 8, 'int8': 1,
         'uint8': 1, 'int32': 4, 'uint32': 4, 'int64': 8, 'uint64': 8}


@dataclass(frozen=True)
class Row:
    """One size in B: time in us, algbw and busbw in GB/s; in place or not."""
    size: int
    type: str
    in_place: bool
    time: float
    algbw: float
    busbw: float
    line: int


@dataclass(frozen=True)
class Table:
    """The whole table: rows, ranks, and the average of busbw."""
    rows: tuple[Row, ...]
    ranks: int
    average: float
    line: int

    @property
    def busbw_by_size(self) -> dict[int, float]:
        """busbw in GB/s by size in B, out of place."""
        return {row.size: row.busbw for row in self.rows if not row.in_place}


def read_table(lines: Iterable[tuple[int, str]]) -> Table | None:
    """The table in these lines (number, text), or None.

    :raises ParseError: it is incomplete, or its values contradict each other
    """
    ranks: set[int] = set()
    rows: list[Row] = []
    columns, bounds, average = None, None, None
    number, line = 1, ''
    for number, line in lines:
        def make_parse_error(reason: str, number: int = number, line: str = line
                  ) -> ParseError:
            return ParseError(number, line, reason)

        rank, row = _RANK.fullmatch(line), _ROW.fullmatch(line)
        checked, mean = _BOUNDS.fullmatch(line), _AVERAGE.fullmatch(line)
        if rank:
            if int(rank[1]) in ranks:
                raise make_parse_error(f'rank {rank[1]} is listed twice')
            ranks.add(int(rank[1]))
        elif _COLUMNS.fullmatch(line):
            if columns:
                raise make_parse_error('the text has a second table: were the ranks '
                                       'started without MPI?')
            columns = _COLUMNS.fullmatch(line)
        elif row and columns:
            if average:
                raise make_parse_error('the row is after the end of the table')
            try:
                rows += _parse_row(row, columns, ranks, number)
            except ValueError as err:
                raise make_parse_error(str(err)) from None
        elif checked:
            bounds = checked
            if (checked[1], checked[2]) != ('0', 'OK'):
                raise make_parse_error(f'the data arrived wrong: {checked[1]} wrong '
                                       'value(s)')
        elif mean:
            if average:
                raise make_parse_error('the average is printed twice')
            average = mean[1], number, line
        elif columns and not average and re.match(r'\s*#?\s*\d+\s+\d+\s',
                                                  line):
            raise make_parse_error('the row is damaged')
    if not columns and not average and not bounds and not ranks:
        return None
    if not (columns and rows and bounds and average and ranks):
        raise ParseError(number, line, 'the table is incomplete; it lacks '
                         + ', '.join(name for name, part in (
                             ('ranks', ranks), ('columns', columns),
                             ('rows', rows),
                             ('"Out of bounds values"', bounds),
                             ('the average', average)) if not part))
    if ranks != set(range(len(ranks))):
        raise ParseError(number, line, 'the line of a rank is missing')
    printed, number, line = average
    _check_average(printed, rows, number, line)
    if len({(row.size, row.in_place) for row in rows}) != len(rows):
        raise ParseError(number, line, 'the table has a row twice')
    return Table(tuple(rows), len(ranks), float(printed), number)


def _parse_row(row: re.Match[str], columns: re.Match[str], ranks: set[int],
               number: int) -> list[Row]:
    """The rows of one line: out of place, and in place if it has that.

    :raises ValueError: the values contradict each other
    """
    size, count, kind = int(row[1]), int(row[2]), row[3]
    if kind not in TYPES or count * TYPES[kind] != size:
        raise ValueError(f'{count} elements of {kind} are not {size} B')
    cells = row[5].split()
    if columns['root'] and not (cells and re.fullmatch(r'-?\d+',
                                                       cells.pop(0))):
        raise ValueError('the row is damaged')
    halves = 2 if columns['second'] else 1
    if len(cells) != 4 * halves:
        raise ValueError(f'the row has {len(cells)} cells instead of '
                         f'{4 * halves}')
    return [_parse_row_half(size, kind, bool(half), cells[4 * half:4 * half + 4],
                            len(ranks), number) for half in range(halves)]


def _parse_row_half(size: int, kind: str, in_place: bool, cells: list[str], n: int,
                    number: int) -> Row:
    wrong = cells[3]
    if wrong == 'N/A':
        raise ValueError('the results were not checked: run with -c 1')
    if not _NUMBER.fullmatch(wrong) or float(wrong):
        raise ValueError(f'the data arrived wrong: {wrong} wrong value(s)')
    if not all(_NUMBER.fullmatch(cell) for cell in cells[:3]):
        raise ValueError('a cell of the row is not a number')
    time, algbw, busbw = map(float, cells[:3])
    if not n or time <= 0:
        raise ValueError('the row has a time of 0, or no rank is listed above '
                         'the table')
    step = [0.51 * _printed_resolution(cell) for cell in cells[:3]]
    minimum, maximum = (size / 1e3 / (time + step[0]),
                        size / 1e3 / max(time - step[0], 1e-9))
    if not minimum - step[1] <= algbw <= maximum + step[1]:
        raise ValueError(f'{size} B in {cells[0]} us do not give {cells[1]} '
                         'GB/s')
    factor = 2 * (n - 1) / n
    if abs(busbw - algbw * factor) > step[2] + step[1] * factor:
        raise ValueError(f'busbw {cells[2]} is not {factor:.4g} times algbw '
                         f'{cells[1]} ({n} ranks)')
    return Row(size, kind, in_place, time, algbw, busbw, number)


def _printed_resolution(cell: str) -> float:
    """Value of one unit in the last digit of a printed number."""
    return 10.0 ** -len(cell.partition('.')[2])


def _check_average(cell: str, rows: list[Row], number: int, line: str
                   ) -> None:
    if not _NUMBER.fullmatch(cell):
        raise ParseError(number, line, 'the average is not a number')
    mean = sum(row.busbw for row in rows) / len(rows)
    if abs(float(cell) - mean) > 0.0051 + 1e-5 * mean:
        raise ParseError(number, line, f'the average is {cell} here, but '
                         f'{mean:.5g} by the rows')
