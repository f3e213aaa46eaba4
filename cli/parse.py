"""`plumb parse`: saved output of a family's programs as tidy CSV."""
from __future__ import annotations

import csv
import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from checks.lib.parsers import ParseError, Record, parser_of
from config import families

#: Columns of the tidy CSV.
COLUMNS = ('file', 'program', 'version', 'size', 'metric', 'value', 'unit')


def parse_files(family: str, files: Iterable[str], out: TextIO,
                err: TextIO) -> int:
    """Files of one family as tidy CSV; `-` is standard input. Of a family
    whose parser has `parse_folder` also folders of results.

    :returns: 0, or 1 where a file cannot be trusted (it gives no row, or
        says on `err` what is wrong with them), or 2 where one cannot be read
        or the family is unknown.
    """
    known = families.parsers()
    if family not in known:
        near = difflib.get_close_matches(family, known, 1)
        hint = f'; did you mean {near[0]}?' if near else ''
        print(f'unknown family {family!r}: there are '
              f'{", ".join(sorted(known))}{hint}', file=err)
        return 2
    parser = parser_of(family)
    rows = csv.writer(out, lineterminator='\n')
    rows.writerow(COLUMNS)
    code = 0
    for file in files:
        if Path(file).is_dir() and hasattr(parser, 'parse_folder'):
            code = max(code, _parse_folder(parser, file, rows, err))
            continue
        try:
            text = _read(file)
            records = parser.parse(text)
            remarks = list(getattr(parser, 'remarks', lambda _: ())(text))
        except ParseError as error:
            print(f'{file}:{error}', file=err)
            code = max(code, 1)
        except (OSError, ValueError) as error:
            print(f'{file}: {getattr(error, "strerror", None) or error}',
                  file=err)
            code = 2
        else:
            rows.writerows(_row(file, record) for record in records)
            for remark in remarks:
                print(f'{file}:{remark}', file=err)
                code = max(code, int(remark.serious))
    return code


def _parse_folder(parser: Any, folder: str, rows: Any, err: TextIO) -> int:
    """A folder of results, where a family's parser reads those."""
    try:
        for path, records in parser.parse_folder(Path(folder)):
            rows.writerows(_row(str(path), record) for record in records)
    except (ParseError, OSError) as error:
        why = error.reason if isinstance(error, ParseError) else error.strerror
        print(f'{folder}: {why}', file=err)
        return 1 if isinstance(error, ParseError) else 2
    return 0


def _row(file: str, record: Record) -> list[object]:
    """A record as a row of the CSV; a size of None is an empty field."""
    *before, value, unit, _ = record
    return [file, *before, repr(value).removesuffix('.0'), unit]


def _read(file: str) -> str:
    """The text of a file, line ends as they are."""
    if file == '-':
        data = sys.stdin.buffer.read()
    else:
        with open(file, 'rb') as stream:
            data = stream.read()
    if b'\0' in data:
        raise ValueError('a binary file, not the text of a program')
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f'not UTF-8 at byte {error.start}: not the text '
                         'of a program') from None
