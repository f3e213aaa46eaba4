"""Perflog files as whole lines that DuckDB can read.

A file is read from its beginning, or from the place where reading stopped.
Its whole lines are copied to a temporary file, so that a session may go on
writing, and a compressed file needs no other way. Python reports what is
wrong with a file as a whole. Lines that DuckDB refuses are split here one by
one (`sift`), so that each damaged line is reported with its number and costs
no other record.
"""
from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import io
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb

from config import regular

from . import formats, packed, plans
from .formats import REPAIR, Layout

#: The suite's own perflogs, with the number of their schema.
OURS = re.compile(r'.+\.v(\d+)\.(?:[\d-]+\.)?csv(\.h\d+)?')
#: What ReFrame's own handlers write; a compressed file is named after the
#: plain one.
FOREIGN = re.compile(r'.+\.(log|csv|jsonl|ndjson)(\.h\d+)?')
PACKED = ('.gz', '.zst')
#: Folder of what a test case attached to its records:
#: <run>-<environ>-<case>.
ATTACHED = re.compile(r'\d{8}T\d{6}Z-[0-9a-f]+-.+-\w+')
#: Bytes of a file that are read at once, and that a line may have.
PIECE, LONGEST = 1 << 20, 16 << 20
#: Bytes of one temporary file.
STAGED = 64 << 20

#: Called with file, line and reason of a fault.
Report = Callable[[Any, int, str], None]


class PerflogError(Exception):
    """A fault of a perflog: `FILE:LINE: reason; what to do`."""

    def __init__(self, file: os.PathLike | str, line: int,
                 reason: str) -> None:
        super().__init__(f'{file}:{line}: {reason}')
        self.file, self.line, self.reason = str(file), line, reason


def plain(name: str) -> str:
    """A file's name without the suffix of its compression."""
    for suffix in PACKED:
        name = name.removesuffix(suffix)
    return name


def files(paths: Iterable, report: Report) -> Iterator[Path]:
    """Every perflog and plan once, plans first, in the order of its path.

    :param report: called with file, line and reason of what cannot be searched
    """
    found: set[Path] = set()

    def unreadable(err: OSError) -> None:
        report(err.filename, 1, f'cannot be read ({err.strerror}); '
               'check the path and its permissions')

    for path in map(Path, paths):
        if not path.exists():
            report(path, 1, 'does not exist; run `./plumb run` first, or '
                   'give another path')
        elif not path.is_dir():
            found.add(path)
        else:
            for folder, below, names in os.walk(path, onerror=unreadable):
                below[:] = [n for n in below if not n.startswith('.')
                            and not ATTACHED.fullmatch(n)]
                present = set(names)
                planned = os.path.basename(folder) == plans.FOLDER
                found.update(
                    Path(folder, n) for n in names if not n.startswith('.')
                    and (FOREIGN.fullmatch(name := plain(n))
                         or planned and plans.NAME.fullmatch(n))
                    # While a file is being compressed, the plain one counts.
                    and (name == n or name not in present))
    # Plans first: what is recorded later is not missing.
    yield from sorted(found, key=lambda p: (not plans.is_plan(p), p))


@dataclasses.dataclass(frozen=True, eq=False)
class Lines:
    """Whole lines of a perflog in a temporary file."""
    staged: Path
    layout: Layout
    file: Path
    #: Line number of each row in the perflog.
    numbers: Sequence[int]
    #: Number of the perflog in the cache.
    origin: int
    report: Report
    #: Each line was split by Python, and written again as CSV.
    sifted: bool = False


_names = itertools.count()


def _stage(place: Path, data: bytes) -> Path:
    staged = place / f'{next(_names)}.csv'
    staged.write_bytes(data)
    return staged


def _staged_rows(place: Path, rows: Iterable[Sequence[str]]) -> Path:
    out = io.StringIO()
    csv.writer(out, lineterminator='\n', quoting=csv.QUOTE_ALL
               ).writerows(rows)
    return _stage(place, out.getvalue().encode())


def of_rows(place: Path, layout: Layout, file: Path,
            rows: Sequence[Sequence[str]], numbers: Sequence[int],
            origin: int, report: Report) -> Lines:
    """Rows of cells as staged lines."""
    return Lines(_staged_rows(place, rows), layout.as_csv(), file,
                 numbers, origin, report, sifted=True)


def sift(lines: Lines) -> Lines | None:
    """The lines that are well-formed; the others are reported."""
    rows, numbers = split(lines.staged.read_bytes(), lines.numbers,
                          lines.layout.split, functools.partial(
                              lines.report, lines.file))
    return of_rows(lines.staged.parent, lines.layout, lines.file, rows,
                   numbers, lines.origin, lines.report) if rows else None


def split(data: bytes, numbers: Iterable[int],
          cells: Callable[[bytes], list[str]],
          report: Callable[[int, str], None]
          ) -> tuple[list[list[str]], list[int]]:
    """Well-formed rows of whole lines, and their numbers.

    :param cells: the cells of a line; ValueError: why it has none
    """
    rows, kept = [], []
    for number, line in zip(numbers, data[:-1].split(b'\n'), strict=True):
        try:
            rows.append(cells(line))
            kept.append(number)
        except ValueError as err:
            report(number, f'{err}; {REPAIR}')
    return rows, kept


def copy(con: duckdb.DuckDBPyConnection, layout: Layout,
         lines: Sequence[Lines], target: str) -> None:
    """Reads lines as typed records, and reports those with a fault.

    Bad records stay among them, with their fault.

    :param target: SQL, with QUERY in it, that fills `records`
    :raises duckdb.Error: a line is not well-formed
    """
    # Not as parameters: the client imports pandas for those.
    con.execute('CREATE OR REPLACE TEMP TABLE places AS SELECT origin, '
                'unnest(range(begin, "end")) AS line FROM '
                + formats.sql_rows(('origin', 'begin', '"end"'), (
                    (one.origin, *run) for one in lines
                    for run in _runs(one.numbers))))
    folders = {one.origin: (one.file, one.file.absolute().parent)
               for one in lines}
    con.execute('CREATE OR REPLACE TEMP TABLE origins AS FROM '
                + formats.sql_rows(
                    ('origin', 'own_system', 'own_partition', 'own_check'),
                    ((origin, folder.parent.name, folder.name,
                      file.name.partition('.')[0])
                     for origin, (file, folder) in folders.items())))
    con.execute(target.replace('QUERY', layout.query(
        [one.staged for one in lines])))


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Begin and end of what follows on each other."""
    if isinstance(numbers, range):
        yield numbers.start, numbers.stop
        return
    for _, run in itertools.groupby(
            enumerate(numbers), lambda pair: pair[1] - pair[0]):
        first, *more = [number for _, number in run]
        yield first, first + len(more) + 1


def faults(con: duckdb.DuckDBPyConnection, records: str,
           lines: Sequence[Lines]) -> None:
    """Reports the faults of typed records, each reason once per file.

    :param records: SQL of a table of them
    """
    found = con.execute(
        f'SELECT origin, fault, min(line), count(*) FROM {records} WHERE '
        'fault IS NOT NULL GROUP BY ALL ORDER BY 1, 3, 2').fetchall()
    files = {one.origin: one for one in lines}
    for origin, fault, line, count in found:
        one = files[origin]
        one.report(one.file, line, f'{formats.reason(fault)}; {REPAIR}'
                   + f' (and {count - 1} more)' * (count > 1))


def missing(con: duckdb.DuckDBPyConnection, files: Iterable[Path],
            report: Report) -> None:
    """Adds a record for each test case that an ended session has none of.

    :param con: of cache.opened
    :param files: plans of the sessions
    """
    found = [plan for file in files if (plan := plans.read(file, report))]
    present = {*con.execute(
        'SELECT DISTINCT run, partition, environ, "case" FROM records '
        f'WHERE run IN {formats.sql_words([plan.run for plan in found])}'
        ).fetchall()} if found else set()
    layout, lines = formats.ours(''), []
    with tempfile.TemporaryDirectory(prefix='plumbline-') as place:
        for number, plan in enumerate(found, 1):
            rows = [(line, plan.row(case)) for line, case in
                    enumerate(plan.cases, 2) if plan.key(case) not in present]
            if rows:
                lines.append(of_rows(Path(place), layout, plan.file, [
                    [row.get(name, '') for name in layout.columns]
                    for _, row in rows], [line for line, _ in rows],
                    -number, report))
        if lines:
            formats.prepare(con)
            copy(con, layout, lines, 'INSERT INTO absent QUERY')
            faults(con, 'absent', lines)
            con.execute('INSERT INTO sources FROM ' + formats.sql_rows(
                ('origin', 'file', 'format'),
                ((one.origin, one.file, layout.form) for one in lines)))


class Reading:
    """One file, read from the place where reading stopped before."""

    def __init__(self, file: Path, report: Report, place: Path, origin: int,
                 offset: int = 0, line: int = 1) -> None:
        """
        :param place: folder of the temporary files
        :param origin: number of the file in the cache
        """
        self.file, self.place, self.origin = file, place, origin
        self._given = report
        self._report = functools.partial(report, file)
        #: Bytes of whole lines that were read, and number of the next line.
        self.offset, self.line = offset, line

    def lines(self) -> Iterator[Lines]:
        """The whole lines from here on."""
        try:
            with packed.opened(self.file) as handle:
                yield from self._lines(handle)
        except OSError as err:
            self._report(1, f'cannot be read ({err.strerror or err}); check '
                         'the path and its permissions')
        except packed.Damaged as err:
            self._report(self.line, f'what is compressed is damaged ({err}); '
                         'restore the file')

    def _lines(self, handle: Any) -> Iterator[Lines]:
        header = handle.readline(LONGEST)
        if not header:
            self._report(1, 'the file is empty; remove it')
            return
        json = not OURS.fullmatch(plain(self.file.name)) \
            and header.lstrip().startswith(b'{')
        layout = None if json else self._layout(header)
        if not json and layout is None:
            return
        begin = 0 if json else len(header)
        if self.offset < begin or not self.offset:
            self.offset, self.line = begin, 1 + (not json)
        if self.offset != len(header):
            handle.seek(self.offset)
        if layout is None:
            for data in self._pieces(handle):
                yield from self._json(data, self._took(data))
            return
        for staged, numbers, odd in self._staged(handle):
            found: Lines | None = Lines(staged, layout, self.file, numbers,
                                        self.origin, self._given)
            # DuckDB accepts NUL and a carriage return in a cell.
            if odd and found:
                found = sift(found)
            if found:
                yield found

    def _took(self, data: bytes) -> range:
        """Counts whole lines as read; returns their numbers."""
        first = self.line
        self.offset += len(data)
        self.line += data.count(b'\n')
        return range(first, self.line)

    def _staged(self, handle: Any) -> Iterator[tuple[Path, range, bool]]:
        """Temporary files of whole lines, the numbers of these, and whether
        they have bytes that no text has."""
        pieces, more = self._pieces(handle), True
        while more:
            staged = self.place / f'{next(_names)}.csv'
            first, odd, more = self.line, False, False
            with open(staged, 'wb') as out:
                for data in pieces:
                    out.write(data)
                    self._took(data)
                    odd = odd or b'\0' in data or b'\r' in data
                    if out.tell() >= STAGED:
                        more = True
                        break
            if self.line > first:
                yield staged, range(first, self.line), odd

    def _pieces(self, handle: Any) -> Iterator[bytes]:
        """Whole lines; what is no line is reported."""
        rest, none = b'', True
        while piece := handle.read(PIECE):
            piece = rest + piece
            whole = piece.rfind(b'\n') + 1
            rest = piece[whole:]
            if whole:
                none = False
                yield piece[:whole]
            if len(rest) > LONGEST:
                self._report(self.line, f'a line of more than '
                             f'{LONGEST >> 20} MiB: no perflog; '
                             'remove the file')
                return
        if rest:
            self._report(self.line, 'the last line is cut off; remove it, '
                         'or restore the file')
        elif none and self.line == 2:
            self._report(1, 'no record after the header; remove the file')

    def _layout(self, header: bytes) -> Layout | None:
        """What the columns after this header are; None: the reason why they
        are not known was reported."""
        name = OURS.fullmatch(plain(self.file.name))
        if name:
            number, columns = formats.schema()
            if int(name[1]) != number:
                self._report(
                    1, f'schema {name[1]} is not known (known: {number}); '
                    'read it with the checkout of the suite that wrote it')
                return None
            if not header.endswith(b'\n') or _cells(
                    header[:-1]) != list(columns):
                self._report(1, f'not the header of schema {name[1]} '
                             '(config/perflog.yaml); restore the file')
                return None
            return formats.ours()
        try:
            return formats.foreign(header.decode().rstrip('\r\n'))
        except ValueError as err:
            self._report(
                1, f'not the name of a perflog (<check>.v<schema>.csv), and '
                f"none of ReFrame's: {_why(err)}; move the file elsewhere")
        return None

    def _json(self, data: bytes, numbers: Sequence[int]) -> Iterator[Lines]:
        """Rows of JSON lines, those with the same keys together."""
        tables: dict[tuple[str, ...], tuple[list, list]] = {}
        for number, line in zip(numbers, data[:-1].split(b'\n'),
                                strict=True):
            try:
                for row in formats.json_rows(line.decode()):
                    rows, kept = tables.setdefault(tuple(row), ([], []))
                    rows.append(list(row.values()))
                    kept.append(number)
            except ValueError as err:
                self._report(number, 'not a record of JSON lines '
                             f'({_why(err)}); {REPAIR}')
        for names, (rows, kept) in tables.items():
            try:
                layout = formats.of_names(names, formats.JSON_LINES)
            except ValueError as err:
                self._report(kept[0], f"not ReFrame's: {err}; {REPAIR}")
                continue
            yield of_rows(self.place, layout, self.file, rows, kept,
                          self.origin, self._given)


def _why(err: ValueError) -> str:
    return 'it is not text' if isinstance(err, UnicodeError) else str(err)


def _cells(line: bytes) -> list[str]:
    """Cells of a line of CSV; [] if it is none."""
    with contextlib.suppress(ValueError):
        return formats.csv_cells(line)
    return []


def table(file: Path, columns: Sequence[str], kind: str, report: Report
          ) -> tuple[list[list[str]], Sequence[int]]:
    """Well-formed rows of a file with a header, and their line numbers.

    :param kind: what has such a header, for people
    :param report: called with file, line and reason of each fault
    """
    say = functools.partial(report, file)
    try:
        with regular.opened(file) as handle:
            data = handle.read()
    except OSError as err:
        say(1, f'cannot be read ({err.strerror}); check the path and its '
            'permissions')
        return [], []
    header, newline, rest = data.partition(b'\n')
    whole = rest[:rest.rfind(b'\n') + 1]
    if not data:
        say(1, 'the file is empty; remove it')
        return [], []
    if not newline or _cells(header) != list(columns):
        say(1, f'not the header of {kind}; restore the file')
        return [], []
    if len(whole) < len(rest):
        say(2 + whole.count(b'\n'), 'the last line is cut off; remove it, '
            'or restore the file')
    elif not whole:
        say(1, 'no record after the header; remove the file')
    return split(whole, range(2, 2 + whole.count(b'\n')), functools.partial(
        formats.csv_row, columns=len(columns)), say) if whole else ([], [])
