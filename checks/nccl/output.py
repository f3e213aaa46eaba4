"""What a run of nccl-tests or rccl-tests says, and whether it holds together.

The same for all forms in which it is written: text and JSON (parser.py), and
what rccl-tests write into a file (rccl.py).
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .programs import OPERATIONS, PROGRAMS, TYPES, Program

#: No table has as many rows.
MAX_ROWS = 100_000


class Printed(NamedTuple):
    """A number as it was printed, and half of its last digit."""
    value: float
    half: float

    @property
    def minimum(self) -> float:
        return self.value - self.half

    @property
    def maximum(self) -> float:
        return self.value + self.half


@dataclass(frozen=True)
class Half:
    """A row's figures out of place, or in place."""
    #: us; None: -C printed the CPU's time instead.
    time: Printed | None
    #: GB/s
    algbw: Printed
    busbw: Printed
    #: Whether the program checked the data.
    checked: bool


@dataclass(frozen=True)
class Row:
    """A row of the table."""
    line: int
    size: int
    count: int
    type: str
    redop: str
    root: int | None
    out_of_place: Half | None
    in_place: Half | None
    #: One line each of -I, from the JSON alone: us.
    iterations: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def halves(self) -> Iterator[tuple[str, Half]]:
        """What each half's metrics end with, and it."""
        for suffix, half in (('', self.out_of_place),
                             ('_in_place', self.in_place)):
            if half is not None:
                yield suffix, half


@dataclass
class Output:
    """What a whole run says of itself."""
    #: Name as in `programs.PROGRAMS`; '': it does not say (before 2.17).
    program: str = ''
    version: str = ''
    #: NCCL's version as a number, 22809; 0: not told.
    library: int = 0
    #: Threads of a process, and GPUs of a thread.
    threads: int = 1
    gpus: int = 1
    #: Least and largest size asked for, in B; how one follows on another.
    minimum: int = 0
    maximum: int = 0
    step: int = 1
    by_factor: bool = True
    #: Iterations that check data; 0: none did.
    checks: int = 1
    #: Ranks of the communicator that was measured, and the hosts of all.
    ranks: int = 0
    hosts: tuple[str, ...] = ()
    #: (host, pid, device) of all ranks.
    places: tuple[tuple[str, int, int], ...] = ()
    rows: list[Row] = field(default_factory=list)
    #: None: the format has none (rccl-tests -x).
    average: Printed | None = Printed(0.0, 0.0)
    #: Line of the average, from 1.
    end: int = 1
    #: Column names of the table; empty: JSON.
    columns: tuple[str, ...] = ()
    #: Lines with warnings of NCCL and with its last error.
    warnings: list[tuple[int, str]] = field(default_factory=list)

    @property
    def sizes(self) -> list[int]:
        """The sizes asked for, in B."""
        results: list[int] = []
        size = self.minimum
        while size <= self.maximum and len(results) <= MAX_ROWS:
            results.append(size)
            size = size * self.step if self.by_factor else size + self.step
            if self.step < (2 if self.by_factor else 1) or size == 0:
                break
        return results

    @property
    def largest(self) -> int:
        """The largest size of a row, in B."""
        return max(row.size for row in self.rows)

    @property
    def types(self) -> set[str]:
        """The data types of the rows."""
        return {row.type for row in self.rows}


def exactly(value: Any) -> Printed:
    """A number with six decimals."""
    if isinstance(value, bool) or not isinstance(value, int | float) \
            or not math.isfinite(value) or value < 0:
        raise ValueError(f'{value!r} is no number')
    return Printed(float(value), 0.5e-6)


class Judge:
    """Whether the rows hold together; the same for text and JSON."""

    def __init__(self, out: Output, refuse: Any) -> None:
        self.out, self.refuse = out, refuse

    def judge(self) -> None:
        out = self.out
        if not out.checks:
            self.refuse('no data was checked (-c 0): "Out of bounds values : '
                        '0 OK" says nothing then', out.rows[0].line)
        for row in out.rows:
            if row.type not in TYPES:
                self.refuse(f'unknown data type {row.type!r}', row.line)
            if not any(half.checked for _, half in row.halves):
                self.refuse('no data of this row was checked (N/A)', row.line)
        self.sizes()
        self.order()
        kinds = ([PROGRAMS[out.program]] if out.program
                 else self.kinds_by_columns())
        faults = [self.fault(kind) for kind in kinds]
        if all(faults):
            # Where no program is named the one that fits most rows tells.
            line, reason = max(fault for fault in faults if fault)
            self.refuse(reason, line)
        self.kind = kinds[[bool(fault) for fault in faults].index(False)]
        self.mean()

    def kinds_by_columns(self) -> list[Program]:
        """Ways to count that an output before 2.17 may have."""
        kinds = [Program(bus, split=split) for split in (False, True)
                 for bus in ('2(n-1)/n', '(n-1)/n', '1')]
        # all_gather and reduce_scatter before June 2020, and hypercube.
        return [*kinds, Program('1', split=True, received=True)]

    def sizes(self) -> None:
        """All sizes asked for are there, in their order."""
        request = self.out.sizes
        rows = self.out.rows
        if not request or len(request) > MAX_ROWS:
            self.refuse('the sizes asked for (minBytes, maxBytes, step) make '
                        'no table', rows[0].line)
        if len(rows) % len(request):
            self.refuse(
                f'{len(rows)} rows, and {len(request)} sizes from '
                f'{self.out.minimum} to {self.out.maximum} B were asked '
                'for: lines were lost or doubled',
                rows[-1].line,
            )
        for number, row in enumerate(rows):
            expected = request[number % len(request)]
            if row.size not in self.rounded(expected, row):
                self.refuse(f'size {row.size} where {expected} B were asked '
                            'for: rows lost or damaged'
                            + (' (or NCCL_TESTS_ALLTOALLV_SPREAD is neither '
                               '0 nor 1: what it moves is not told then)'
                               if 'alltoallv' in self.out.program else ''),
                            row.line)

    def rounded(self, request: int, row: Row) -> set[int]:
        """Sizes that a row may have for one that was asked for, by its
        count: whole, or a part for each rank, rounded down."""
        width, ranks = TYPES[row.type], self.out.ranks
        whole = request // width
        result = {whole * width} if row.count == whole else set()
        part = whole // ranks
        parts = {part, part & ~(16 // width - 1), part // 4 * 4}
        if whole < ranks * ranks // 2:
            parts.add(0)                # alltoallv of rccl-tests
        if row.count in parts:
            result.add(row.count * ranks * width)
            if self.out.program in ('alltoallv_perf', ''):
                result.add(self.weighted(row.count * ranks * width, width))
        return result

    def weighted(self, total: int, width: int) -> int:
        """alltoallv of nccl-tests sends more to ranks that are far."""
        ranks = self.out.ranks
        if ranks == 1:
            return total & ~15
        distances = ranks * (ranks - 1) // 2
        return sum((int(far * total / distances) & ~15) // width
                   for far in range(ranks)) * width

    def order(self) -> None:
        """Types, reductions and roots follow as the program runs them."""
        request, rows = len(self.out.sizes), self.out.rows
        blocks = [rows[at:at + request] for at in range(0, len(rows), request)]
        for one, other in itertools.pairwise(blocks):
            if [replace(row, line=0) for row in one] == [
                    replace(row, line=0) for row in other]:
                self.refuse('the same rows twice, to the last digit: lines '
                            'were doubled', other[0].line)
        keys = []
        for block in blocks:
            result = {(row.type, row.redop, row.root) for row in block}
            if len(result) > 1:
                self.refuse('type, reduction or root changes between two '
                            'sizes: rows lost or damaged', block[0].line)
            keys.append(result.pop())
        runs = [len(list(run)) for _, run in itertools.groupby(keys)]
        if len(set(runs)) > 1:
            self.refuse('one cycle (-N) has fewer rows: lines were lost',
                        rows[-1].line)
        distinct = list(dict.fromkeys(keys))
        if len(distinct) != len(runs):
            self.refuse('the same type, reduction and root come twice',
                        rows[-1].line)
        roots = list(dict.fromkeys(key[2] for key in keys))
        if len(roots) > 1 and roots != list(range(self.out.ranks)):
            self.refuse('some roots are missing: lines were lost',
                        rows[-1].line)
        counts = [len({key[place] for key in keys}) for place in range(3)]
        if len(distinct) != math.prod(counts) and not self.short(distinct):
            self.refuse('some of type, reduction and root are missing: lines '
                        'were lost', rows[-1].line)

    def short(self, keys: list[tuple[str, str, int | None]]) -> bool:
        """Integers have no average and other things: types may have fewer
        reductions, but each has those before its last one."""
        for _, group in itertools.groupby(keys, lambda key: key[0]):
            names = list(dict.fromkeys(key[1] for key in group))
            if names != list(OPERATIONS[:len(names)]):
                return False
        return True

    def fault(self, kind: Program) -> tuple[int, str] | None:
        """The first row that does not suit a way to count."""
        ranks = self.out.ranks
        for row in self.out.rows:
            width = TYPES[row.type]
            whole = row.count * width * (ranks if kind.split else 1)
            if row.size not in (whole, self.weighted(whole, width)
                                if kind.split else whole):
                return row.line, (f'{row.count} elements of {row.type} are '
                                  f'not {row.size} B')
            for suffix, half in row.halves:
                output = self.disagrees(kind, row.size, half)
                if output:
                    where = 'in place' if suffix else 'out of place'
                    return row.line, f'{output} ({where})'
        return None

    def disagrees(self, kind: Program, size: int, half: Half) -> str:
        """Why the three figures cannot be of one run; empty: they can."""
        if half.algbw.value < 0:
            return 'a bandwidth is negative'
        minimum, maximum = half.algbw.minimum, half.algbw.maximum
        if half.time is not None:
            if half.time.value <= 0:
                return f'time is {half.time.value:g}'
            # 1 B in 1 us is 1e-3 GB/s.
            moved = size * kind.moved(self.out.ranks) / 1e3
            low = moved / half.time.maximum
            high = (moved / half.time.minimum if half.time.minimum > 0
                    else math.inf)
            if low > maximum * (1 + 1e-9) or high < minimum * (1 - 1e-9):
                return (f'algbw {half.algbw.value:g} GB/s is not '
                        f'{size} B in {half.time.value:g} us')
            minimum, maximum = max(minimum, low), min(maximum, high)
        factor = kind.factor(self.out.ranks)
        if (factor * minimum > half.busbw.maximum * (1 + 1e-9) + 1e-12
                or factor * maximum < half.busbw.minimum * (1 - 1e-9) - 1e-12):
            return (f'busbw {half.busbw.value:g} GB/s is not {factor:g} '
                    f'times algbw {half.algbw.value:g}')
        return ''

    def mean(self) -> None:
        """The average is that of all rows."""
        assert self.out.average
        messages = [
            half.busbw for row in self.out.rows for _, half in row.halves
        ]
        minimum = sum(one.minimum for one in messages) / len(messages)
        maximum = sum(one.maximum for one in messages) / len(messages)
        if not (minimum - self.out.average.half <= self.out.average.value
                <= maximum + self.out.average.half):
            self.refuse(
                f'the average {self.out.average.value:g} GB/s is not that of '
                f'the rows, {(minimum + maximum) / 2:.2f}: lines lost or '
                'damaged',
                self.out.end,
            )
