"""Files that a measurement left beside its record: samples, series of servers.

They stand in `files/<session>/<measurement>/` of the folder of perflogs. They are
CSV with a header. A file with a bad row is refused as a whole, with the line.
"""
from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from config import regular

from .files import ATTACHED, SESSIONS, Faults, PerflogError

#: Name of a folder below perflogs. Another text could lead to other files.
_NAME = re.compile(r'\w[\w.-]*')


def attached_folder(record: Any) -> Path:
    """The folder with the files of the measurement of a record.

    :param record: a row of the table of records (itertuples)
    """
    return (perflog_folder_of_file(record.file) / ATTACHED / record.session
            / record.measurement)


def perflog_folder_of_file(file: str) -> Path:
    """The folder of perflogs that has the file of a record.

    :param file: report or log in sessions/, or rows in <system>/<partition>/
    """
    path = Path(file)
    depth = 1 if path.parent.name == SESSIONS else 2
    # A file of another suite may stand higher.
    return path.parents[min(depth, len(path.parents) - 1)]


def attached_file_path(record: Any, name: str) -> Path | None:
    """A file of the measurement of a record; None: it left no such file.

    :param record: a row of the table of records (itertuples)
    """
    if not all(_NAME.fullmatch(part) for part in (record.session, record.measurement)):
        return None
    file = attached_folder(record) / name
    try:
        return file if os.stat(file) else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:                     # it exists, but cannot be read
        return file


def read_attached_file(file: Path, columns: Sequence[str], kind: str,
                       parse: Callable[..., tuple], key: int, faults: Faults
                       ) -> pd.DataFrame:
    """The rows of a file; none of a damaged file, whose fault is added to a list.

    :param kind: what has such a header, for people
    :param parse: cells of a row, as arguments -> the row with its types;
        ValueError says what is wrong with it
    :param key: no two rows are alike in so many of their first columns
    """
    rows: dict[tuple, tuple] = {}
    text = ''
    try:
        text = regular.read_regular_file(file)
        reader = csv.reader(text.splitlines(keepends=True), strict=True)
        if next(reader, None) != list(columns):
            raise ValueError(f'the first line is not the header of {kind}')
        for cells in reader:
            if len(cells) != len(columns):
                raise ValueError(f'the line has {len(cells)} columns, not '
                                 f'{len(columns)}')
            row = parse(*cells)
            if row[:key] in rows:
                raise ValueError(', '.join(
                    f'{name} {cell}' for name, cell in
                    zip(columns[:key], cells[:key], strict=True)) + ' occurs twice')
            rows[row[:key]] = row
        if not rows or not text.endswith('\n'):
            raise ValueError('the file is cut off')
    except (OSError, ValueError, csv.Error) as err:
        faults.append(PerflogError(
            file, reader.line_num if text else 1, 'cannot be read '
            f'({getattr(err, "strerror", None) or err}); restore the file, or remove it'
            ))
        rows = {}
    return pd.DataFrame(list(rows.values()), columns=list(columns))


def parse_nonnegative_number(name: str, text: str) -> float:
    """A finite number that is not negative.

    :raises ValueError: it is none
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not text.isascii() or '_' in text:
        raise ValueError(f'{name} {text[:40]!r} is not a finite number')
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
