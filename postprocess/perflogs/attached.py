"""Files that a test case left beside its perflog, read strictly.

Their folder is <family>/<run>-<environ>-<case>/. As in perflogs, a damaged
place is reported with file and line. A missing file is not a fault.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from .. import perflogs
from . import reading
from .formats import Layout

Faults = list[perflogs.PerflogError]


def attached_file_path(record: Any, name: str) -> Path | None:
    """Such a file of the run of a record; None: there is none.

    :param record: a row of the table (itertuples)
    """
    run = f'{record.run}-{record.environ}-{record.case}'
    file = Path(record.file).parent / record.family / run / name
    return file if perflogs.ATTACHED.fullmatch(run) and _file_exists(file) else None


def read_attached_file(file: Path, columns: Sequence[str], kind: str,
                       parse: Callable[..., tuple], key: int, faults: Faults
         ) -> pd.DataFrame:
    """The good rows of a file; its faults are added to a list.

    :param kind: what has such a header, for people
    :param parse: cells of a row, as arguments -> the row with its types;
        ValueError says what is wrong with it
    :param key: no two rows are alike in so many of their first columns
    """
    def layout_of_header(_: Path, header: bytes, report: reading.Fault
               ) -> Layout | None:
        if reading.is_header_of_columns(header, columns):
            return Layout('', tuple(columns))
        report(1, f'the first line is not the header of {kind}; restore the '
               'file')
        return None

    source = reading.Source([])
    rows: dict[tuple, tuple] = {}
    refused: dict[str, list[int]] = {}
    for form, block in reading.read_blocks_of_new_lines(file, source, layout_of_header):
        for line, cells in reading.split_into_rows(block, source.line, form.split_line,
                                                   source.add_fault):
            if not cells:
                continue
            try:
                row = parse(*cells)
                if row[:key] in rows:
                    raise ValueError(', '.join(
                        f'{name} {cell}' for name, cell in
                        zip(columns[:key], cells[:key], strict=True))
                        + ' occurs twice')
                rows[row[:key]] = row
            except ValueError as err:
                refused.setdefault(str(err), []).append(line)
    for reason, lines in refused.items():
        more = f' (and {len(lines) - 1} more)' if len(lines) > 1 else ''
        source.add_fault(lines[0], f'{reason}; {perflogs.REPAIR}{more}')
    faults += [perflogs.PerflogError(file, *fault)
               for fault in source.faults]
    return pd.DataFrame(list(rows.values()), columns=list(columns))


def parse_nonnegative_number(name: str, text: str) -> float:
    """A finite number that is not negative.

    :raises ValueError: it is none
    """
    try:
        value = perflogs.parse_finite_number(text)
    except ValueError as err:
        raise ValueError(f'{name} {text[:40]!r} {err}') from None
    if value < 0:
        raise ValueError(f'{name} {text[:40]!r} is less than 0')
    return value


def parse_nonnegative_integer(name: str, text: str) -> int:
    """A whole number that is not negative.

    :raises ValueError: it is none
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ValueError(f'{name} {text[:40]!r} is not a whole number')
    return int(text)


def _file_exists(file: Path) -> bool:
    """Whether a file exists, even if it is unreadable."""
    try:
        return bool(os.stat(file))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
