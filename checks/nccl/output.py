"""The output of a run of nccl-tests or rccl-tests, and its consistency checks.

They are the same for all formats: text and JSON (parser.py), and the file of
rccl-tests (rccl.py).
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .programs import OPERATIONS, PROGRAMS, TYPES, Program

#: More rows than any table has.
MAX_ROWS = 100_000


class Printed(NamedTuple):
    """A printed number, and half a unit of its last digit."""
    value: float
    half: float

    @property
    def minimum_before_rounding(self) -> float:
        return self.value - self.half

    @property
    def maximum_before_rounding(self) -> float:
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
    #: Half -> statistics of single iterations (-I), only from JSON: us.
    iterations: dict[str, dict[str, float]] = field(default_factory=dict)

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
    #: NCCL's version as a number, 22809; 0: not printed.
    library: int = 0
    #: Threads of a process, and GPUs of a thread.
    threads: int = 1
    gpus: int = 1
    #: Smallest and largest requested size, in B, and the step between sizes.
    #: None: not printed. The rows then have any sizes, of which `minimum` is the
    #: first and `maximum` the last.
    minimum: int = 0
    maximum: int = 0
    step: int | None = 1
    by_factor: bool = True
    #: Iterations that check data; 0: none.
    checks: int = 1
    #: Ranks of the communicator that was measured, and the hosts of all.
    ranks: int = 0
    hosts: tuple[str, ...] = ()
    #: (host, pid, device) of all ranks.
    places: tuple[tuple[str, int, int], ...] = ()
    #: (host, PCI address of the GPU) of all ranks; empty: JSON.
    addresses: tuple[tuple[str, str], ...] = ()
    rows: list[Row] = field(default_factory=list)
    #: None: the format has no average (rccl-tests -x).
    average: Printed | None = Printed(0.0, 0.0)
    #: Line of the average, from 1.
    end: int = 1
    #: What a launcher puts before each line of a rank, such as `[1,0]<stdout>:`.
    rank_tag: str = ''
    #: Column names of the table; empty: JSON.
    columns: tuple[str, ...] = ()
    #: Lines with warnings of NCCL and with its last error.
    warnings: list[tuple[int, str]] = field(default_factory=list)

    @property
    def requested_sizes(self) -> list[int]:
        """The requested sizes, in B."""
        if self.step is None:
            between = (row.size for row in self.rows[1:-1])
            return list(dict.fromkeys([self.minimum, *between, self.maximum]))
        results: list[int] = []
        size = self.minimum
        while size <= self.maximum and len(results) <= MAX_ROWS:
            results.append(size)
            size = size * self.step if self.by_factor else size + self.step
            if self.step < (2 if self.by_factor else 1) or size == 0:
                break
        return results

    @property
    def data_types(self) -> set[str]:
        """The data types of the rows."""
        return {row.type for row in self.rows}


def parse_six_decimal_number(value: Any) -> Printed:
    """A number that was printed with six decimals.

    :raises ValueError: the value is not a finite number of at least 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) \
            or not math.isfinite(value) or value < 0:
        raise ValueError(f'{value!r} is not a number')
    return Printed(float(value), 0.5e-6)


class Judge:
    """Consistency checks of the rows, for text and JSON alike."""

    def __init__(self, out: Output, refuse: Any) -> None:
        self.out, self.refuse = out, refuse

    def check_all_rows(self) -> None:
        out = self.out
        if not out.checks:
            self.refuse('the program checked no data (-c 0), so its line "Out '
                        'of bounds values : 0 OK" proves nothing',
                        out.rows[0].line)
        for row in out.rows:
            if row.type not in TYPES:
                self.refuse(f'the data type {row.type!r} is unknown', row.line)
            if not any(half.checked for _, half in row.halves_with_metric_suffix):
                self.refuse('the data of this row was not checked (N/A)',
                            row.line)
        self.check_row_sizes()
        self.check_row_order()
        kinds = ([PROGRAMS[out.program]] if out.program
                 else self.candidate_byte_counting_rules())
        faults = [self.find_first_inconsistent_row(kind) for kind in kinds]
        if all(faults):
            # Without a program's name, report what fits most rows.
            line, reason = max(fault for fault in faults if fault)
            self.refuse(reason, line)
        self.check_average()

    def candidate_byte_counting_rules(self) -> list[Program]:
        """Ways to count bytes that an output before 2.17 may use."""
        kinds = [Program(bus, split=split) for split in (False, True)
                 for bus in ('2(n-1)/n', '(n-1)/n', '1')]
        # all_gather and reduce_scatter before June 2020, and hypercube.
        return [*kinds, Program('1', split=True, received=True)]

    def check_row_sizes(self) -> None:
        """Refuse rows that are not the requested sizes in their order."""
        request = self.out.requested_sizes
        rows = self.out.rows
        if not request or len(request) > MAX_ROWS:
            self.refuse('minBytes, maxBytes and step do not give a valid list '
                        'of sizes', rows[0].line)
        if len(rows) % len(request):
            self.refuse(
                f'the table has {len(rows)} rows for {len(request)} requested '
                f'sizes ({self.out.minimum} to {self.out.maximum} B): lines '
                'were lost or doubled',
                rows[-1].line,
            )
        for number, row in enumerate(rows):
            expected = request[number % len(request)]
            if row.size not in self.possible_row_sizes(expected, row):
                self.refuse(f'the row has {row.size} B where {expected} B '
                            'were requested: rows were lost or damaged'
                            + (' (or NCCL_TESTS_ALLTOALLV_SPREAD is neither 0 '
                               'nor 1, which is not supported)'
                               if 'alltoallv' in self.out.program else ''),
                            row.line)

    def possible_row_sizes(self, request: int, row: Row) -> set[int]:
        """Sizes that a row may have for a requested size, by its count:
        whole, or a part for each rank, rounded down."""
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
                result.add(self.alltoallv_size(row.count * ranks * width, width))
        return result

    def alltoallv_size(self, total: int, width: int) -> int:
        """Size of alltoallv of nccl-tests, which sends more to far ranks."""
        ranks = self.out.ranks
        if ranks == 1:
            return total & ~15
        distances = ranks * (ranks - 1) // 2
        return sum((int(far * total / distances) & ~15) // width
                   for far in range(ranks)) * width

    def check_row_order(self) -> None:
        """Refuse types, reductions and roots in an impossible order."""
        request, rows = len(self.out.requested_sizes), self.out.rows
        blocks = [rows[at:at + request] for at in range(0, len(rows), request)]
        for one, other in itertools.pairwise(blocks):
            if [replace(row, line=0) for row in one] == [
                    replace(row, line=0) for row in other]:
                self.refuse('the same rows occur twice, to the last digit: '
                            'lines were doubled', other[0].line)
        keys = []
        for block in blocks:
            block_keys = {(row.type, row.redop, row.root) for row in block}
            if len(block_keys) > 1:
                self.refuse('the type, reduction or root changes between two '
                            'sizes: rows were lost or damaged', block[0].line)
            keys.append(block_keys.pop())
        runs = [len(list(run)) for _, run in itertools.groupby(keys)]
        if len(set(runs)) > 1:
            self.refuse('one cycle (-N) has fewer rows than the others: lines '
                        'were lost', rows[-1].line)
        distinct = list(dict.fromkeys(keys))
        if len(distinct) != len(runs):
            self.refuse('the same type, reduction and root occur twice',
                        rows[-1].line)
        roots = list(dict.fromkeys(key[2] for key in keys))
        if len(roots) > 1 and roots != list(range(self.out.ranks)):
            self.refuse('some roots are missing: lines were lost',
                        rows[-1].line)
        counts = [len({key[place] for key in keys}) for place in range(3)]
        if len(distinct) != math.prod(
            counts
        ) and not self.each_type_has_first_reductions(distinct):
            self.refuse('some combinations of type, reduction and root are '
                        'missing: lines were lost', rows[-1].line)

    def each_type_has_first_reductions(
            self, keys: list[tuple[str, str, int | None]]) -> bool:
        """Whether each type has the first reductions of OPERATIONS; integers
        lack some, such as the average."""
        for _, group in itertools.groupby(keys, lambda key: key[0]):
            names = list(dict.fromkeys(key[1] for key in group))
            if names != list(OPERATIONS[:len(names)]):
                return False
        return True

    def find_first_inconsistent_row(self, kind: Program) -> tuple[int, str] | None:
        """Line and reason of the first row that contradicts a way to count
        bytes."""
        ranks = self.out.ranks
        for row in self.out.rows:
            width = TYPES[row.type]
            whole = row.count * width * (ranks if kind.split else 1)
            if row.size not in (whole, self.alltoallv_size(whole, width)
                                if kind.split else whole):
                return row.line, (f'{row.count} elements of {row.type} are '
                                  f'not {row.size} B')
            for suffix, half in row.halves_with_metric_suffix:
                reason = self.describe_time_bandwidth_mismatch(kind, row.size, half)
                if reason:
                    where = 'in place' if suffix else 'out of place'
                    return row.line, f'{reason} ({where})'
        return None

    def describe_time_bandwidth_mismatch(self, kind: Program, size: int,
                                         half: Half) -> str:
        """Why time, algbw and busbw contradict each other; '': they agree."""
        if half.algbw.value < 0:
            return 'algbw is negative'
        minimum, maximum = (
            half.algbw.minimum_before_rounding,
            half.algbw.maximum_before_rounding,
        )
        if half.time is not None:
            if half.time.value <= 0:
                return f'time is {half.time.value:g}'
            # 1 B in 1 us is 1e-3 GB/s.
            moved = size * kind.algbw_to_size_byte_ratio(self.out.ranks) / 1e3
            low = moved / half.time.maximum_before_rounding
            high = (
                moved / half.time.minimum_before_rounding
                if half.time.minimum_before_rounding > 0
                else math.inf
            )
            if low > maximum * (1 + 1e-9) or high < minimum * (1 - 1e-9):
                return (f'algbw {half.algbw.value:g} GB/s does not match '
                        f'{size} B in {half.time.value:g} us')
            minimum, maximum = max(minimum, low), min(maximum, high)
        factor = kind.busbw_factor(self.out.ranks)
        if (
            factor * minimum
            > half.busbw.maximum_before_rounding * (1 + 1e-9) + 1e-12
            or factor * maximum
            < half.busbw.minimum_before_rounding * (1 - 1e-9) - 1e-12
        ):
            return (f'busbw {half.busbw.value:g} GB/s is not {factor:g} '
                    f'times algbw {half.algbw.value:g}')
        return ''

    def check_average(self) -> None:
        """Refuse an average that is not the mean of all rows."""
        assert self.out.average
        busbws = [
            half.busbw for row in self.out.rows for _,
            half in row.halves_with_metric_suffix
        ]
        minimum = sum(busbw.minimum_before_rounding for busbw in busbws) / len(busbws)
        maximum = sum(busbw.maximum_before_rounding for busbw in busbws) / len(busbws)
        if not (minimum - self.out.average.half <= self.out.average.value
                <= maximum + self.out.average.half):
            self.refuse(
                f'the average {self.out.average.value:g} GB/s is not the mean '
                f'of the rows, {(minimum + maximum) / 2:.2f}: lines were lost '
                'or damaged',
                self.out.end,
            )
