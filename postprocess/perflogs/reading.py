"""Perflog files as whole lines that DuckDB can read.

A file is read from its beginning, or from the place where reading stopped.
Its whole lines are copied to temporary files, so that a session may go on
writing, and a compressed file (.gz) is read in the same way. Python reports
what is wrong with a file as a whole. If DuckDB refuses lines, they are copied
again, and split one by one: each damaged line is reported with its number and
costs no other record.
"""
from __future__ import annotations

import contextlib
import dataclasses
import gzip
import itertools
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from config import regular
from config.records.columns import schema_number_and_columns

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
#: The same of a known file.
Fault = Callable[[int, str], None]


class PerflogError(Exception):
    """A fault of a perflog: `FILE:LINE: reason; what to do`."""

    def __init__(self, file: os.PathLike | str, line: int,
                 reason: str) -> None:
        super().__init__(f'{file}:{line}: {reason}')
        self.file, self.line, self.reason = str(file), line, reason


class Malformed(Exception):
    """A line is not well-formed."""


class Damaged(Exception):
    """A compressed file cannot be read further."""


def is_compressed(file: Path) -> bool:
    """Whether a file is compressed; it is named after the plain one."""
    return file.suffix == '.gz'


def find_perflog_files(paths: Iterable, report: Report) -> Iterator[Path]:
    """Every perflog and plan once, in the order of its path.

    :param report: called with file, line and reason of what cannot be searched
    """
    perflogs: set[Path] = set()

    def report_unreadable_folder(err: OSError) -> None:
        report(err.filename, 1, f'cannot be read ({err.strerror}); '
               'check the path and its permissions')

    for path in map(Path, paths):
        if not path.exists():
            report(path, 1, 'does not exist; run `./plumb run` first, or '
                   'give another path')
        elif not path.is_dir():
            perflogs.add(path)
        else:
            for folder, below, names in os.walk(path, onerror=report_unreadable_folder):
                below[:] = [n for n in below if not n.startswith('.')
                            and not ATTACHED.fullmatch(n)]
                present = set(names)
                planned = os.path.basename(folder) == plans.FOLDER
                perflogs.update(
                    Path(folder, n) for n in names if not n.startswith('.')
                    and (FOREIGN.fullmatch(name := n.removesuffix('.gz'))
                         or planned and plans.NAME.fullmatch(n))
                    # While a file is being compressed, the plain one counts.
                    and (name == n or name not in present))
    yield from sorted(perflogs)


@contextlib.contextmanager
def open_decompressed(file: Path) -> Iterator[Any]:
    """The bytes of a file, unpacked.

    :raises OSError: it cannot be read, or is not a regular file
    :raises Damaged: what is compressed is damaged
    """
    with regular.open_regular_file(file) as handle:
        try:
            yield gzip.GzipFile(fileobj=handle) if is_compressed(file) else handle
        except (gzip.BadGzipFile, zlib.error, EOFError) as err:
            raise Damaged(err) from None


@dataclasses.dataclass
class Source:
    """The place up to which a perflog was read."""
    #: Inode, size and time of change.
    stat: list[int]
    #: Bytes of whole lines that were read, and number of the next line.
    offset: int = 0
    line: int = 1
    #: Hash of the last bytes that were read.
    hash: str = ''
    #: Line and reason of what is wrong with the file, or its lines as text.
    faults: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def add_fault(self, line: int, reason: str) -> None:
        """Takes a fault down."""
        self.faults.append((line, reason))


class Lines(NamedTuple):
    """Consecutive whole lines of a perflog, in a temporary file.
    """
    text: Path
    layout: Layout
    #: Name of the perflog.
    name: str
    #: Number of the first line, and how many there are.
    first: int
    number: int


_names = itertools.count()


def copy_new_lines(file: Path, name: str, source: Source, temporary_folder: Path,
                   checked: bool
           ) -> list[Lines]:
    """The whole lines of a perflog beyond the place where reading stopped.

    :param temporary_folder: folder of the temporary files
    :param checked: whether each line is looked at. One that is not well-formed
        is reported then, and a torn row is in its place.
    :raises Malformed: not `checked`, and there is such a line
    """
    text, parts = temporary_folder / f'{next(_names)}.csv', []
    with open(text, 'wb') as out:
        for layout, lines in read_blocks_of_new_lines(file, source, _layout_of_header):
            parts.append((layout, source.line, lines.count(b'\n')))
            if checked:
                out.write(layout.encode_rows_as_lines(row or ['-'] for _,
                                                      row in split_into_rows(
                    lines, source.line, layout.split_line, source.add_fault)))
            # DuckDB accepts NUL and a carriage return in a cell.
            elif b'\0' in lines or b'\r' in lines:
                raise Malformed
            else:
                out.write(lines)
    return [Lines(text, layout, name, first, sum(n for *_, n in parts))
            for layout, first, _ in parts[:1]]


def read_blocks_of_new_lines(file: Path, source: Source, layout_of: Callable[
        [Path, bytes, Fault], Layout | None]
           ) -> Iterator[tuple[Layout, bytes]]:
    """The whole lines of a file beyond the place where reading stopped.

    :param source: its place moves on after each block; it gets the faults of
        the file as a whole
    :param layout_of: the columns after a header; None: they are not known,
        and why was reported
    """
    try:
        with open_decompressed(file) as handle:
            header = handle.readline(BLOCK)
            if not header:
                source.add_fault(1, 'the file is empty; remove it')
            elif layout := layout_of(file, header, source.add_fault):
                if not source.offset:
                    source.offset, source.line = len(header), 2
                for lines in _read_whole_lines(handle, file, source):
                    yield layout, lines
                    source.offset += len(lines)
                    source.line += lines.count(b'\n')
    except OSError as err:
        source.add_fault(source.line, f'cannot be read ({err.strerror or err}); '
                         'check the path and its permissions')
    except Damaged as err:
        source.add_fault(source.line, f'the compressed data are damaged ({err}); '
                         'restore the file')


def _read_whole_lines(handle: Any, file: Path, source: Source) -> Iterator[bytes]:
    handle.seek(source.offset)
    maximum = FREE + FACTOR * file.stat().st_size
    rest = b''
    while block := handle.read(BLOCK):
        block = rest + block
        whole = block[:block.rfind(b'\n') + 1]
        rest = block[len(whole):]
        if source.offset + len(block) > maximum:
            raise Damaged(
                f'more than {maximum >> 20} MiB when unpacked: it is not a '
                'perflog'
            )
        if whole:
            yield whole
        elif len(rest) > BLOCK:
            source.add_fault(source.line, f'a line has more than {BLOCK >> 20} '
                             'MiB: not a perflog; remove the file')
            return
    if rest:
        source.add_fault(source.line, 'the last line is cut off; remove it, or '
                         'restore the file')
    elif source.line == 2:
        source.offset, source.line = 0, 1
        source.add_fault(1, 'the file has no record after the header; remove '
                         'the file')


def split_into_rows(data: bytes, first: int, cells: Callable[[bytes], list[str]],
                    report: Fault) -> Iterator[tuple[int, list[str]]]:
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


def add_missing_records(con: duckdb.DuckDBPyConnection, files: Iterable[Path],
                        report: Report) -> None:
    """Adds a record for each test case that an ended session has none of.

    A damaged record is one, too. A test case that no longer exists gets none
    (`plans.existing_test_cases`).

    :param con: of cache.open_records_database
    :param files: plans of the sessions
    """
    layout = formats.plumbline_layout()
    lines: list[Lines] = []
    schema = {'schema': str(schema_number_and_columns()[0])}
    with tempfile.TemporaryDirectory(prefix='plumbline-') as place:
        for plan, cases in plans.existing_test_cases(
                filter(None, (plans.read_plan(file, report) for file in sorted(
                    files, key=lambda file: file.name, reverse=True)))):
            if not cases:
                continue
            text = Path(place, f'{len(lines)}.csv')
            text.write_bytes(
                layout.encode_rows_as_lines(
                    [row.get(name, '') for name in layout.columns]
                    for row in (
                        schema | plan.missing_record_row(case)
                        for case in cases
                    )
                )
            )
            # Line 1 of a plan is its head.
            lines.append(Lines(text, layout, str(plan.file), 2, len(cases)))
        with formats.define_sql_macros(con):
            for query in formats.typed_records_queries(lines):
                con.execute(
                    f'INSERT INTO absent SELECT planned.* FROM ({query}) AS '
                    'planned ANTI JOIN (SELECT DISTINCT run, partition, '
                    'environ, "case" FROM parts) '
                    'USING (run, partition, environ, "case")')


def _layout_of_header(file: Path, header: bytes, report: Fault) -> Layout | None:
    """The columns after this header; None: the reason why they
    are not known was reported."""
    ours = OURS.fullmatch(file.name.removesuffix('.gz'))
    if ours:
        number, columns = schema_number_and_columns()
        if int(ours[1]) != number:
            report(1, f'schema {ours[1]} is unknown (known: {number}); '
                   'read it with the checkout of the suite that wrote it')
            return None
        if not is_header_of_columns(header, columns):
            report(1, f'the first line is not the header of schema {ours[1]} '
                   '(config/perflog.yaml); restore the file')
            return None
        return formats.plumbline_layout()
    try:
        return formats.reframe_layout(header.decode().rstrip('\r\n'))
    except ValueError as err:
        report(1, 'neither a perflog of the suite (<check>.v<schema>.csv) nor '
               f"one of ReFrame: {_header_error_text(err)}; move the file elsewhere")
    return None


def _header_error_text(err: ValueError) -> str:
    return 'it is not text' if isinstance(err, UnicodeError) else str(err)


def is_header_of_columns(header: bytes, columns: Sequence[str]) -> bool:
    """Whether a line is the header of these columns."""
    with contextlib.suppress(ValueError):
        return header.endswith(b'\n') and formats.parse_csv_line(
            header[:-1]) == list(columns)
    return False
