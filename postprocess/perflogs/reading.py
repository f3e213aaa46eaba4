"""Perflog files as whole lines that DuckDB can read.

A file is read from its beginning, or from the place where reading stopped.
Its whole lines are copied to temporary files, so that a session may go on
writing, and a compressed file (.gz) is read in the same way. Python reports
what is wrong with a file as a whole. If DuckDB refuses lines, they are split
here one by one (`sift`): each damaged line is reported with its number and
costs no other record.
"""
from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import itertools
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb

from config import regular

from . import formats, plans
from .formats import REPAIR, Layout

#: The suite's own perflogs, with the number of their schema.
OURS = re.compile(r'.+\.v(\d+)\.(?:[\d-]+\.)?csv(\.h\d+)?')
#: What ReFrame's file handler writes.
FOREIGN = re.compile(r'.+\.(log|csv)(\.h\d+)?')
#: Folder of what a test case attached to its records:
#: <run>-<environ>-<case>.
ATTACHED = re.compile(r'\d{8}T\d{6}Z-[0-9a-f]+-.+-\w+')
#: Bytes of a file that are read at once; no line has as many.
BLOCK = 16 << 20
#: Bytes that any file may unpack to, and how many times its size beyond that.
#: A few KiB can unpack to terabytes, and a perflog to 20 times its size.
FREE, FACTOR = 64 << 20, 200

#: Called with file, line and reason of a fault.
Report = Callable[[Any, int, str], None]


class PerflogError(Exception):
    """A fault of a perflog: `FILE:LINE: reason; what to do`."""

    def __init__(self, file: os.PathLike | str, line: int,
                 reason: str) -> None:
        super().__init__(f'{file}:{line}: {reason}')
        self.file, self.line, self.reason = str(file), line, reason


class Damaged(Exception):
    """A compressed file cannot be read further."""


def packed(file: Path) -> bool:
    """Whether a file is compressed; it is named after the plain one."""
    return file.suffix == '.gz'


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
                    and (FOREIGN.fullmatch(name := n.removesuffix('.gz'))
                         or planned and plans.NAME.fullmatch(n))
                    # While a file is being compressed, the plain one counts.
                    and (name == n or name not in present))
    # Plans first: what is recorded later is not missing.
    yield from sorted(found, key=lambda p: (not plans.is_plan(p), p))


@contextlib.contextmanager
def opened(file: Path) -> Iterator[Any]:
    """The bytes of a file, unpacked.

    :raises OSError: it cannot be read, or is not a regular file
    :raises Damaged: what is compressed is damaged
    """
    with regular.opened(file) as handle:
        try:
            yield gzip.GzipFile(fileobj=handle) if packed(file) else handle
        except (gzip.BadGzipFile, zlib.error, EOFError) as err:
            raise Damaged(err) from None


@dataclasses.dataclass
class Lines:
    """Whole lines of a perflog that follow each other, in a temporary file.
    """
    staged: Path
    layout: Layout
    file: Path
    #: Number of the first line, and how many there are.
    first: int
    count: int
    #: Number of the perflog in the cache.
    origin: int
    report: Report
    sifted: bool = False

    def sift(self) -> None:
        """Reports the lines that are not well-formed, once, and writes a
        torn row in place of each."""
        if self.sifted:
            return
        self.sifted = True
        self.staged.write_bytes(self.layout.joined(
            row or ['-'] for _, row in rows(
                self.staged.read_bytes(), self.first, self.layout.split,
                functools.partial(self.report, self.file))))


_names = itertools.count()


def staged(place: Path, data: bytes) -> Path:
    """A new temporary file with these bytes."""
    file = place / f'{next(_names)}.csv'
    file.write_bytes(data)
    return file


def rows(data: bytes, first: int, cells: Callable[[bytes], list[str]],
         report: Callable[[int, str], None]
         ) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each line; no cells: it is not well-formed.

    :param data: whole lines
    :param first: number of the first one
    :param cells: the cells of a line; ValueError: why it has none
    """
    for number, line in enumerate(data[:-1].split(b'\n'), first):
        try:
            yield number, cells(line)
        except ValueError as err:
            report(number, f'{err}; {REPAIR}')
            yield number, []


def copy(con: duckdb.DuckDBPyConnection, layout: Layout,
         lines: Sequence[Lines], target: str) -> None:
    """Reads lines as typed records. Bad records stay among them, with their
    fault.

    :param target: SQL, with QUERY in it, that takes the records
    :raises duckdb.Error: a line is not well-formed
    """
    # Not as parameters: the client imports pandas for those.
    con.execute('CREATE OR REPLACE TEMP TABLE places AS SELECT origin, '
                'unnest(range(first, first + count)) AS line FROM '
                + formats.sql_rows(('origin', 'first', 'count'), (
                    (one.origin, one.first, one.count) for one in lines)))
    con.execute(target.replace('QUERY', layout.query(
        [one.staged for one in lines])))


def faults(con: duckdb.DuckDBPyConnection, records: str,
           lines: Sequence[Lines]) -> None:
    """Reports the faults of typed records, each reason once per file.

    :param records: SQL of a table of them
    """
    found = con.execute(
        f'SELECT origin, fault, min(line), count(*) FROM {records} WHERE '
        f"fault <> '{formats.TORN}' GROUP BY ALL ORDER BY 1, 3, 2").fetchall()
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
    layout, lines = formats.ours(), []
    schema = {'schema': str(formats.schema()[0])}
    with tempfile.TemporaryDirectory(prefix='plumbline-') as place:
        for number, file in enumerate(files, 1):
            plan = plans.read(file, report)
            if not plan or not plan.cases:
                continue
            # Line 1 of a plan is its head.
            lines.append(Lines(staged(Path(place), layout.joined(
                [row.get(name, '') for name in layout.columns]
                for row in (schema | plan.row(case) for case in plan.cases))),
                layout, file, 2, len(plan.cases), -number, report))
        if not lines:
            return
        formats.prepare(con)
        copy(con, layout, lines, 'INSERT INTO absent SELECT planned.* FROM '
             '(QUERY) AS planned ANTI JOIN (SELECT DISTINCT run, partition, '
             'environ, "case" FROM records) '
             'USING (run, partition, environ, "case")')
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
            with opened(self.file) as handle:
                yield from self._lines(handle)
        except OSError as err:
            self._report(1, f'cannot be read ({err.strerror or err}); check '
                         'the path and its permissions')
        except Damaged as err:
            self._report(self.line, f'what is compressed is damaged ({err}); '
                         'restore the file')

    def _lines(self, handle: Any) -> Iterator[Lines]:
        header = handle.readline(BLOCK)
        if not header:
            self._report(1, 'the file is empty; remove it')
            return
        layout = self._layout(header)
        if layout is None:
            return
        if not self.offset:
            self.offset, self.line = len(header), 2
        handle.seek(self.offset)
        maximum = FREE + FACTOR * self.file.stat().st_size
        rest = b''
        while block := handle.read(BLOCK):
            block = rest + block
            whole = block[:block.rfind(b'\n') + 1]
            rest = block[len(whole):]
            if self.offset + len(block) > maximum:
                raise Damaged(f'it unpacks to more than {maximum >> 20} MiB: '
                              'not a perflog')
            if whole:
                yield self._whole(whole, layout)
            elif len(rest) > BLOCK:
                self._report(self.line, f'a line of more than {BLOCK >> 20} '
                             'MiB: no perflog; remove the file')
                return
        if rest:
            self._report(self.line, 'the last line is cut off; remove it, '
                         'or restore the file')
        elif self.line == 2:
            self._report(1, 'no record after the header; remove the file')

    def _whole(self, data: bytes, layout: Layout) -> Lines:
        found = Lines(staged(self.place, data), layout, self.file, self.line,
                      data.count(b'\n'), self.origin, self._given)
        self.offset += len(data)
        self.line += found.count
        # DuckDB accepts NUL and a carriage return in a cell.
        if b'\0' in data or b'\r' in data:
            found.sift()
        return found

    def _layout(self, header: bytes) -> Layout | None:
        """What the columns after this header are; None: the reason why they
        are not known was reported."""
        name = OURS.fullmatch(self.file.name.removesuffix('.gz'))
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
    if not whole:
        if not rest:
            say(1, 'no record after the header; remove the file')
        return [], []
    good = [(row, number) for number, row in rows(
        whole, 2, functools.partial(formats.csv_row, columns=len(columns)),
        say) if row]
    return [row for row, _ in good], [number for _, number in good]
