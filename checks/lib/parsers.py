"""Parsers: text of a program in, frozen records out, or a ParseError.

A parser is a module with `parse(text) -> tuple[Record, ...]`.  It gives
figures only for a text that can be trusted from the first line to the last.
A family names its parsers in its family.yaml.  A parser that leaves lines
out has `remarks(text)`, which says of what could be parsed what they are.
"""
from __future__ import annotations

import csv
import difflib
import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

from config import families

#: Columns of the tidy CSV.
COLUMNS = ('file', 'program', 'version', 'size', 'metric', 'value', 'unit')


class ParseError(Exception):
    """A text cannot be parsed: line number (from 1), its text, reason."""

    def __init__(self, line: int, text: str, reason: str):
        super().__init__(line, text, reason)
        self.line = line
        self.text = text
        self.reason = reason

    def __str__(self) -> str:
        return f'{self.line}: {self.reason}'


class Record(NamedTuple):
    """One figure, as the program printed it."""
    program: str
    version: str
    #: Message size in bytes; None where the program has none.
    size: int | None
    metric: str
    value: float
    unit: str
    #: Line of the text it comes from, from 1.
    line: int


@dataclass(frozen=True)
class Remark:
    """A remark on some lines (from 1) that a reader should know."""
    first: int
    last: int
    reason: str
    #: Whether the figures must not be used.
    serious: bool = False

    def __str__(self) -> str:
        lines = (f'{self.first}' if self.first == self.last
                 else f'{self.first}-{self.last}')
        return f'{lines}: {self.reason}'


def parser_of(word: str) -> Any:
    """The module of a family's parser, by its word in family.yaml."""
    return importlib.import_module(families.parsers()[word])


def parse_files(family: str, files: Iterable[str], out: TextIO,
                err: TextIO) -> int:
    """Files of one family as tidy CSV; `-` is standard input.

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
