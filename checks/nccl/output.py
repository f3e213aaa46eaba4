"""The output of a run of nccl-tests or rccl-tests, and its consistency checks.

They are the same for text (table.py) and JSON (json_file.py).
"""
from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NoReturn

from ..core.tables import MAX_SIZES
from .programs import PROGRAMS, TYPES, Program

#: Ways to count bytes in an output before 2.17, which does not name its program. The
#: last one is also that of all_gather and reduce_scatter before June 2020.
_ANY_PROGRAM = [Program(bus, split=split) for split in (False, True)
                for bus in ('2(n-1)/n', '(n-1)/n', '1')] + [
                    Program('1', split=True, received=True)]


class Printed(NamedTuple):
    """A printed number, and half a unit of its last digit."""
    value: float
    half: float

    @property
    def low(self) -> float:
        """The smallest number that is printed so."""
        return self.value - self.half

    @property
    def high(self) -> float:
        """The largest number that is printed so."""
        return self.value + self.half


@dataclass(frozen=True)
class Half:
    """The values of a row, out of place or in place."""
    #: us; None: -C printed the CPU's time instead.
    time: Printed | None
    #: GB/s
    algbw: Printed
    busbw: Printed
    #: Whether the program checked the data.
    checked: bool
    #: Statistics of single iterations (-I), only from JSON: us.
    iterations: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row of the table."""
    line: int
    size: int
    #: Elements of a rank.
    count: int
    type: str
    redop: str
    root: int | None
    out_of_place: Half | None
    in_place: Half | None

    @property
    def halves_with_metric_suffix(self) -> Iterator[tuple[str, Half]]:
        """The suffix of the metrics of each half, and the half."""
        for suffix, half in (('', self.out_of_place),
                             ('_in_place', self.in_place)):
            if half is not None:
                yield suffix, half


@dataclass
class Output:
    """The output of a whole run."""
    #: Name as in `programs.PROGRAMS`; '': not printed (before 2.17).
    program: str = ''
    version: str = ''
    #: Threads of a process, and GPUs of a thread.
    threads: int = 1
    gpus: int = 1
    #: Options that change what a time is -> value, as the output prints them.
    options: dict[str, str] = field(default_factory=dict)
    #: Smallest and largest requested size, in B.
    minimum: int = 0
    maximum: int = 0
    #: All requested sizes, in B; empty: not printed, so the rows may have any sizes
    #: between the smallest and the largest one.
    request: Sequence[int] = ()
    #: Ranks of the communicator that was measured, and the hosts of all.
    ranks: int = 0
    hosts: tuple[str, ...] = ()
    #: (host, PCI address of the GPU) of all ranks; empty: JSON.
    addresses: tuple[tuple[str, str], ...] = ()
    rows: list[Row] = field(default_factory=list)
    #: Mean of all busbw.
    average: Printed = Printed(0.0, 0.0)
    #: Line of the average, from 1.
    end: int = 1
    #: Column names of the table; empty: JSON.
    columns: tuple[str, ...] = ()
    #: Time at which the run began, as its host had it; only in JSON.
    time: datetime.datetime | None = None


def check_output(out: Output, refuse: Callable[[str, int], NoReturn]) -> None:
    """Refuse rows that are incomplete, unchecked, or contradict each other.

    :param refuse: raises a ParseError, from a reason and a line
    """
    for row in out.rows:
        if row.type not in TYPES:
            refuse(f'the data type {row.type!r} is unknown', row.line)
        if not any(half.checked for _, half in row.halves_with_metric_suffix):
            refuse('the data of this row was not checked (N/A, -c 0)', row.line)
    _check_sizes(out, refuse)
    kinds = [PROGRAMS[out.program]] if out.program else _ANY_PROGRAM
    faults = [contradiction(out, kind) for kind in kinds]
    if all(faults):
        # Without a program's name, report what fits most rows.
        line, reason = max(fault for fault in faults if fault)
        refuse(reason, line)
    busbws = [half.busbw for row in out.rows
              for _, half in row.halves_with_metric_suffix]
    low = sum(busbw.low for busbw in busbws) / len(busbws)
    high = sum(busbw.high for busbw in busbws) / len(busbws)
    if low > out.average.high or high < out.average.low:
        refuse(f'the average {out.average.value:g} GB/s is not the mean of the rows, '
               f'{(low + high) / 2:.2f}: lines were lost or damaged', out.end)


def _check_sizes(out: Output, refuse: Callable[[str, int], NoReturn]) -> None:
    """Refuse rows that are not the requested sizes in their order, once for each
    cycle, type, reduction and root."""
    rows = out.rows
    request = out.request or list(dict.fromkeys(
        [out.minimum, *(row.size for row in rows[1:-1]), out.maximum]))
    if len(request) > MAX_SIZES or len(rows) % len(request):
        refuse(f'the table has {len(rows)} rows for {len(request)} requested sizes '
               f'({out.minimum} to {out.maximum} B): lines were lost or doubled',
               rows[-1].line)
    for row, expected in zip(rows, itertools.cycle(request), strict=False):
        # Rounded down to elements; or, for the part of each rank, to 16 B, and again
        # for what alltoallv sends to each rank, or to 0 B.
        width = TYPES[row.type]
        split = row.count * width < row.size
        loss = 32 * out.ranks if split else width
        if abs(expected - row.size) >= loss and (row.size or row.count):
            refuse(f'the row has {row.size} B where {expected} B were requested: rows '
                   'were lost or damaged', row.line)
    before: list[Row] = []
    for at in range(0, len(rows), len(request)):
        block = [replace(row, line=0) for row in rows[at:at + len(request)]]
        if len({(row.type, row.redop, row.root, row.out_of_place is None,
                 row.in_place is None) for row in block}) > 1:
            refuse('type, reduction, root or columns change between two sizes: rows '
                   'were lost or damaged', rows[at].line)
        if block == before:
            refuse('the same rows occur twice, to the last digit: lines were doubled',
                   rows[at].line)
        before = block


def contradiction(out: Output, kind: Program) -> tuple[int, str] | None:
    """Line and reason of the first row that contradicts a way to count bytes."""
    for row in out.rows:
        width = TYPES[row.type]
        whole = row.count * width * (out.ranks if kind.split else 1)
        if row.size != whole and not (
                kind.split and row.size == _alltoallv_size(whole, width, out.ranks)):
            return row.line, f'{row.count} elements of {row.type} are not {row.size} B'
        for suffix, half in row.halves_with_metric_suffix:
            if reason := _mismatch(kind, out.ranks, row.size, half):
                return row.line, (f'{reason} ('
                                  f'{"in place" if suffix else "out of place"})')
    return None


def _alltoallv_size(total: int, width: int, ranks: int) -> int:
    """Size of alltoallv of nccl-tests, which sends more to far ranks."""
    if ranks == 1:
        return total & ~15
    distances = ranks * (ranks - 1) // 2
    return sum((int(far * total / distances) & ~15) // width
               for far in range(ranks)) * width


def _mismatch(kind: Program, ranks: int, size: int, half: Half) -> str:
    """Why time, algbw and busbw contradict each other; '': they agree."""
    low, high = half.algbw.low, half.algbw.high
    if half.time is not None:
        if half.time.value <= 0:
            return f'time is {half.time.value:g}'
        # 1 B in 1 us is 1e-3 GB/s.
        moved = size * kind.algbw_to_size_byte_ratio(ranks) / 1e3
        slow = moved / half.time.high
        fast = moved / half.time.low if half.time.low > 0 else math.inf
        if slow > high * (1 + 1e-9) or fast < low * (1 - 1e-9):
            return (f'algbw {half.algbw.value:g} GB/s does not match {size} B in '
                    f'{half.time.value:g} us')
        low, high = max(low, slow), min(high, fast)
    factor = kind.busbw_factor(ranks)
    if (factor * low > half.busbw.high * (1 + 1e-9) + 1e-12
            or factor * high < half.busbw.low * (1 - 1e-9) - 1e-12):
        return (f'busbw {half.busbw.value:g} GB/s is not {factor:g} times algbw '
                f'{half.algbw.value:g}')
    return ''
