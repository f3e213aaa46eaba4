"""Perflogs as parts: what `perflogs.read` and the store are made from.

Of the suite's own format (config/perflog.yaml) and of ReFrame's
(postprocess/formats.py), plain or compressed (.gz, .zst). A file is read in
pieces of whole lines, from its beginning or from where reading stopped. What
is damaged is reported with file and line, and costs no other record.
"""
from __future__ import annotations

import contextlib
import csv
import functools
import gc
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from config import regular

from . import cells, formats, packed, plans, records, tree, vocabulary
from .records import REPAIR, Part

_FIRST = (
    'schema', 'time', 'run', 'commit', 'reframe', 'system', 'partition',
    'environ', 'family', 'check', 'params', 'case', 'job', 'nodes',
    'num_nodes', 'num_tasks', 'tasks_per_node', 'source', 'program',
    'version', 'stack', 'spec', 'emulated', 'speed', 'repeat', 'metric',
    'point', 'value', 'unit', 'better', 'reference', 'lower', 'upper',
    'result', 'guard')
#: Columns of schemas that are no longer written, for files that still are.
OLD_SCHEMAS: dict[int, tuple[str, ...]] = {
    1: _FIRST, 2: (*_FIRST[:14], 'machine', 'binding', *_FIRST[14:])}

#: Bytes of a file that are read at once, and that a line may have.
PIECE, LONGEST = 8 << 20, 16 << 20
#: Bytes of lines of others from which on polars reads them faster than they
#: are split: of a piece, and of all so far where it is not imported yet.
FOREIGN_LEAST, WORTH_IMPORT = 1 << 16, 4 << 20


class PerflogError(Exception):
    """A fault of a perflog: `FILE:LINE: reason; what to do`."""

    def __init__(self, file: os.PathLike | str, line: int,
                 reason: str) -> None:
        super().__init__(f'{file}:{line}: {reason}')
        self.file, self.line, self.reason = str(file), line, reason


def schemas() -> dict[int, tuple[str, ...]]:
    """Every schema that can be read: number -> names of its columns."""
    number, columns = vocabulary.schema()
    return OLD_SCHEMAS | {number: columns}


def missing(parts: list[Part], files: list[Path], report: Callable
             ) -> Iterator[Part]:
    """A record for each case that an ended session has none of."""
    read = [plan for file in files if (plan := plans.read(file, report))]
    if not read:
        return
    there = {key for part in parts for key in zip(*(
        part.text(name) for name in ('run', 'partition', 'environ', 'case')),
        strict=True)}
    for plan in read:
        rows = [(line, plan.row(case)) for line, case in
                enumerate(plan.cases, 2) if plan.key(case) not in there]
        if rows:
            yield records.from_rows(
                tuple(rows[0][1]), [list(row.values()) for _, row in rows],
                [line for line, _ in rows], str(plan.file), records.OURS,
                functools.partial(report, plan.file))


def parts(paths: Iterable[os.PathLike | str], report: Callable
          ) -> list[Part]:
    """All good records of perflogs, and of the cases that are missing.

    :param report: called with file, line and reason of each fault
    """
    found: list[Part] = []
    planned = []
    for file in tree.files(paths, report):
        if plans.is_plan(file):
            # Before the records: a session may end between the two.
            planned.append((file, plans.lives(file)))
            continue
        found += Reading(file, report).parts()
    ended = [file for file, lives in planned if not lives]
    return found + list(missing(found, ended, report))


class Reading:
    """One file, read from where reading stopped before."""

    def __init__(self, file: Path, report: Callable, offset: int = 0,
                 line: int = 1) -> None:
        self.file = file
        self._report = functools.partial(report, file)
        #: Bytes of whole lines that were read, and number of the next line.
        self.offset, self.line = offset, line

    def parts(self) -> Iterator[Part]:
        """The good records from here on."""
        try:
            with packed.opened(self.file) as handle:
                yield from self._parts(handle)
        except OSError as err:
            self._report(1, f'cannot be read ({err.strerror or err}); check '
                         'the path and its permissions')
        except packed.Damaged as err:
            self._report(self.line, f'what is compressed is damaged ({err}); '
                         'restore the file')

    def _parts(self, handle: Any) -> Iterator[Part]:
        header = handle.readline(LONGEST)
        if not header:
            return self._report(1, 'the file is empty; remove it')
        parse = self._parser(header)
        if parse is None:
            return
        begin = 0 if parse.headless else len(header)
        if self.offset < begin or not self.offset:
            self.offset, self.line = begin, 1 + (not parse.headless)
        if self.offset != len(header):
            handle.seek(self.offset)
        for data in self._pieces(handle, parse.piece):
            part, lines = parse(data, self.line)
            self.offset += len(data)
            self.line += lines
            yield part

    def _pieces(self, handle: Any, size: int) -> Iterator[bytes]:
        """Whole lines; what is no line is reported."""
        rest, none = b'', True
        while piece := handle.read(size):
            piece = rest + piece
            whole = piece.rfind(b'\n') + 1
            rest = piece[whole:]
            if whole:
                none = False
                yield piece[:whole]
            if len(rest) > LONGEST:
                return self._report(self.line, f'a line of more than '
                                    f'{LONGEST >> 20} MiB: no perflog; '
                                    'remove the file')
        if rest:
            self._report(self.line, 'the last line is cut off; remove it, '
                         'or restore the file')
        elif none and self.line == 2:
            self._report(1, 'no record after the header; remove the file')

    def _parser(self, header: bytes) -> _Parser | None:
        """What reads the lines after this one; None: it was reported why
        none does."""
        name = tree.OURS.fullmatch(tree.plain(self.file.name))
        if name:
            columns = schemas().get(int(name[1]))
            if not columns:
                known = ', '.join(map(str, schemas()))
                return self._report(
                    1, f'schema {name[1]} is not known (known: {known}); '
                    'read it with a newer checkout of the suite')
            if not header.endswith(b'\n') or _cells(
                    header[:-1]) != list(columns):
                return self._report(1, f'not the header of schema {name[1]} '
                                    '(config/perflog.yaml); restore the file')
            return _Ours(self.file, name[1], columns, self._report)
        if header.lstrip().startswith(b'{'):
            return _Json(self.file, self._report)
        try:
            text = header.decode().rstrip('\r\n')
            between = formats.delimiter(text)
            return _Foreign(self.file, formats.Layout(text.split(between)),
                            between, self._report)
        except ValueError as err:
            return self._report(
                1, f'not the name of a perflog (<check>.v<schema>.csv), and '
                f"none of ReFrame's: {_why(err)}; move the file elsewhere")


def _why(err: ValueError) -> str:
    return 'it is not text' if isinstance(err, UnicodeError) else str(err)


class _Parser:
    """Whole lines of a file -> the good records in them."""
    #: The first line is a record.
    headless = False
    #: Bytes that are read at once.
    piece = PIECE

    def __init__(self, file: Path, report: Callable) -> None:
        self.file, self.report = file, report

    def __call__(self, data: bytes, first: int) -> tuple[Part, int]:
        """The records, and how many lines there are.

        :param first: number of the first line
        """
        raise NotImplementedError


class _Ours(_Parser):
    """CSV of the suite."""

    def __init__(self, file: Path, schema: str, columns: tuple[str, ...],
                 report: Callable) -> None:
        super().__init__(file, report)
        self.schema, self.columns = schema, columns

    def __call__(self, data: bytes, first: int) -> tuple[Part, int]:
        with contextlib.suppress(UnicodeDecodeError), _uncollected():
            part = records.quick(data, self.columns, self.schema,
                                 str(self.file), first)
            if part is not None:
                return part, len(part.line)
        rows, numbers = _rows(data, first, len(self.columns), self.report)
        # Every schema has its number in the first column.
        kept = [n for n, row in enumerate(rows) if row[0] == self.schema]
        if len(kept) < len(rows):
            bad = next(n for n, row in enumerate(rows)
                       if row[0] != self.schema)
            self.report(numbers[bad], f'a record of another schema than '
                        f'{self.schema} ({len(rows) - len(kept)} of them); '
                        f'{REPAIR}')
        return records.from_rows(
            self.columns, [rows[n] for n in kept], [numbers[n] for n in kept],
            str(self.file), records.OURS, self.report), data.count(b'\n')


class _Foreign(_Parser):
    """Lines of ReFrame's file handler."""
    #: polars begins each piece anew; of what is larger (32 MiB) the C library
    #: takes each time new memory, which costs more than to read it.
    piece = 30 << 20
    #: Bytes of all files that were split line by line.
    split = 0

    def __init__(self, file: Path, layout: formats.Layout, between: str,
                 report: Callable) -> None:
        super().__init__(file, report)
        self.layout, self.between = layout, between

    def __call__(self, data: bytes, first: int) -> tuple[Part, int]:
        with _uncollected():
            columns: cells.Table | cells.Rows
            try:
                columns, numbers = self._quick(data, first)
                lines = columns.size
            except ValueError:
                columns, numbers = self._good(data, first)
                lines = data.count(b'\n')
            return self.layout.part(columns, numbers, str(self.file),
                                    self.report), lines

    def _quick(self, data: bytes, first: int
               ) -> tuple[cells.Table, Sequence[int]]:
        """All lines at once.

        :raises ValueError: they are to be read one by one
        """
        between = self.between.encode()
        if (len(data) < FOREIGN_LEAST or len(between) > 1
                or _Foreign.split + len(data) < WORTH_IMPORT
                and 'polars' not in sys.modules or b'\0' in data
                or not data.isascii() and '\ufffd' in data.decode()):
            raise ValueError
        columns = cells.Table(data, between, len(self.layout.columns),
                              self.layout.asked, self.layout.values)
        return columns, range(first, first + columns.size)

    def _good(self, data: bytes, first: int
              ) -> tuple[cells.Rows, Sequence[int]]:
        """The lines that are well; the others are reported."""
        _Foreign.split += len(data)
        rows, numbers = [], []
        for number, line in enumerate(data[:-1].split(b'\n'), first):
            text = line.decode(errors='replace')
            row = text.split(self.between)
            if '\ufffd' in text or '\0' in text:
                self.report(number, f'not text; {REPAIR}')
            elif len(row) != len(self.layout.columns):
                self.report(number, f'{len(row)} columns, not '
                            f'{len(self.layout.columns)}; {REPAIR}')
            else:
                rows.append(row)
                numbers.append(number)
        return cells.Rows(rows), numbers


class _Json(_Parser):
    """JSON lines."""
    headless = True

    def __call__(self, data: bytes, first: int) -> tuple[Part, int]:
        tables: dict[tuple[str, ...], tuple[list, list]] = {}
        for number, line in enumerate(data[:-1].split(b'\n'), first):
            try:
                for row in formats.json_rows(line.decode()):
                    rows, numbers = tables.setdefault(tuple(row), ([], []))
                    rows.append(list(row.values()))
                    numbers.append(number)
            except ValueError as err:
                self.report(number, f'not a record of JSON lines ({_why(err)}'
                            f'); {REPAIR}')
        found = []
        for names, (rows, numbers) in tables.items():
            try:
                layout = formats.Layout(names)
            except ValueError as err:
                self.report(numbers[0], f"not ReFrame's: {err}; {REPAIR}")
                continue
            layout.format = formats.JSON_LINES
            found.append(layout.part(cells.Rows(rows), numbers,
                                     str(self.file), self.report))
        return records.joined(found), data.count(b'\n')


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's search for cycles: a third of the time where lists are
    made by the thousand, none of which is in a cycle."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def table(file: Path, columns: Sequence[str], kind: str, report: Callable
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
    return _rows(whole, 2, len(columns), say) if whole else ([], [])


def _rows(data: bytes, first: int, columns: int, report: Callable
          ) -> tuple[list[list[str]], Sequence[int]]:
    """Well-formed rows of whole lines, and their numbers."""
    lines = data[:-1].split(b'\n')
    rows = _quick(data, len(lines), columns)
    if rows is not None:
        return rows, range(first, first + len(lines))
    rows, numbers = [], []
    for number, line in enumerate(lines, first):
        cells = _cells(line)
        if cells is None:
            report(number, f'not a line of CSV; {REPAIR}')
        elif len(cells) != columns:
            report(number, f'{len(cells)} columns, not {columns}; {REPAIR}')
        else:
            rows.append(cells)
            numbers.append(number)
    return rows, numbers


def _quick(data: bytes, lines: int, columns: int) -> list[list[str]] | None:
    """All rows at once; None if any is not well."""
    try:
        text = data.decode()
        rows = list(csv.reader(io.StringIO(text, newline=''), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    # A quote gone astray joins lines: then there are fewer rows.
    if len(rows) != lines or '\0' in text or any(
            len(row) != columns for row in rows):
        return None
    return rows


def _cells(line: bytes) -> list[str] | None:
    """Cells of one line; None if it is not CSV."""
    if b'\0' in line:
        return None
    try:
        rows = list(csv.reader([line.decode().removesuffix('\r')],
                               strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    return rows[0] if len(rows) == 1 else []


