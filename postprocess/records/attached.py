"""Files that a measurement left beside its record: samples, series of servers.

They stand in `files/<session>/<measurement>/` of the folder of perflogs. They are
CSV with a header, and each bad row is reported with its line.
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

from .files import ATTACHED, REPAIR, SESSIONS, PerflogError

Faults = list[PerflogError]
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
    """The good rows of a file; its faults are added to a list.

    :param kind: what has such a header, for people
    :param parse: cells of a row, as arguments -> the row with its types;
        ValueError says what is wrong with it
    :param key: no two rows are alike in so many of their first columns
    """
    rows: dict[tuple, tuple] = {}
    refused: dict[str, list[int]] = {}
    try:
        lines = regular.read_regular_file(file).split('\n')
    except (OSError, UnicodeDecodeError) as err:
        why = getattr(err, 'strerror', None) or err
        faults.append(PerflogError(file, 1, f'cannot be read ({why}); check the path '
                                   'and its permissions'))
        lines = []
    *whole, last = lines or ['']
    if last and whole:
        faults.append(PerflogError(file, len(lines), f'the last line is cut off; '
                                   f'{REPAIR}'))
    elif len(whole) == 1 and _cells(whole[0]) == list(columns):
        faults.append(PerflogError(file, 1, 'the file has no record after the '
                                   'header; remove it'))
    if lines == ['']:
        faults.append(PerflogError(file, 1, 'the file is empty; remove it'))
    elif lines and (not whole or _cells(whole[0]) != list(columns)):
        faults.append(PerflogError(file, 1, f'the first line is not the header of '
                                   f'{kind}; restore the file'))
        whole = []
    for number, line in enumerate(whole[1:], 2):
        try:
            cells = _cells(line)
            if len(cells) != len(columns):
                raise ValueError(f'the line has {len(cells)} columns, not '
                                 f'{len(columns)}')
            row = parse(*cells)
            if row[:key] in rows:
                raise ValueError(', '.join(
                    f'{name} {cell}' for name, cell in
                    zip(columns[:key], cells[:key], strict=True)) + ' occurs twice')
            rows[row[:key]] = row
        except ValueError as err:
            refused.setdefault(str(err), []).append(number)
    for reason, numbers in refused.items():
        more = f' (and {len(numbers) - 1} more)' if len(numbers) > 1 else ''
        faults.append(PerflogError(file, numbers[0], f'{reason}; {REPAIR}{more}'))
    return pd.DataFrame(list(rows.values()), columns=list(columns))


def _cells(line: str) -> list[str]:
    """The cells of a line of CSV.

    :raises ValueError: it is none
    """
    try:
        [row] = csv.reader([line], strict=True)
    except (ValueError, csv.Error):
        row = ['\0']
    if any('\0' in cell for cell in row):
        raise ValueError('not a line of CSV')
    return row


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
