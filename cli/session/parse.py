"""`plumb parse`: saved output of a family's programs as tidy CSV."""
from __future__ import annotations

import argparse
import csv
import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from checks.core.parsers import ParseError, Record, load_parser_module
from config import families

#: Columns of the tidy CSV.
COLUMNS = ('file', 'program', 'version', 'size', 'metric', 'value', 'unit')


def add_family_options(parser: argparse.ArgumentParser, family: str) -> None:
    """Options of a family's own; an unknown family has none."""
    if family in families.parser_modules():
        add = getattr(load_parser_module(family), 'add_options', None)
        if add:
            add(parser)


def convert_output_to_csv(family: str, files: Iterable[str], out: TextIO,
                          err: TextIO, options: argparse.Namespace | None = None
                ) -> int:
    """Files of one family as tidy CSV; `-` is standard input. Where its
    parser reads folders, a file may be one.

    :param options: the family's own (`add_family_options`)
    :returns: 0, or 1 where a file cannot be trusted (it gives no row, or
        says on `err` what is wrong with them), or 2 where one cannot be read
        or the family is unknown.
    """
    known = families.parser_modules()
    if family not in known:
        near = difflib.get_close_matches(family, known, 1)
        hint = f'; did you mean {near[0]}?' if near else ''
        print(f'unknown family {family!r}: there are '
              f'{", ".join(sorted(known))}{hint}', file=err)
        return 2
    parser = load_parser_module(family)
    rows = csv.writer(out, lineterminator='\n')
    read_folder = getattr(parser, 'parse_folder', None)
    rows.writerow(COLUMNS)
    code = 0
    for file in files:
        try:
            if read_folder and Path(file).is_dir():
                records_of, warning = read_folder(Path(file), options)
                remarks = []
            else:
                text, warning = _read_text(file), ''
                records_of = [(file, parser.parse(text))]
                remarks = list(getattr(parser, 'remarks',
                                       lambda _: ())(text))
        except ParseError as error:
            where = f'{file}/{error.file}' if error.file else file
            print(f'{where}:{error}', file=err)
            code = max(code, 1)
        except (OSError, ValueError) as error:
            print(f'{file}: {getattr(error, "strerror", None) or error}',
                  file=err)
            code = 2
        else:
            for path, records in records_of:
                if isinstance(records, ParseError):
                    where = (f'{path}/{records.file}:{records.line}' if records.file
                             else path)
                    print(f'{where}: {records.reason}', file=err)
                    code = max(code, 1)
                else:
                    rows.writerows(_csv_row(str(path), record) for record in records)
            if warning:
                print(warning, file=err)
            for remark in remarks:
                print(f'{file}:{remark}', file=err)
                code = max(code, int(remark.serious))
    return code


def _csv_row(file: str, record: Record) -> list[object]:
    """A record as a row of the CSV; a size of None is an empty field."""
    *before, value, unit, _ = record
    return [file, *before, repr(value).removesuffix('.0'), unit]


def _read_text(file: str) -> str:
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
