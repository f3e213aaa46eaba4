"""The interface of parsers: from a program's output to frozen records.

A parser is a module with `parse(text) -> tuple[Record, ...]`. It returns
records only if every line of the text is sound; else it raises a ParseError.
A family lists its parsers in its family.yaml. A parser that skips lines has
`remarks(text)`, which describes these lines of a parsed text. A parser that
reads folders has `parse_folder(path, options) -> ([(file or folder, its
records or a ParseError), ...], text for people)`, and `add_options(parser)`.
"""
from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, NamedTuple

from config import families


class ParseError(Exception):
    """A text cannot be parsed: line number (from 1), its text, the reason,
    and the file if a folder was read."""

    def __init__(self, line: int, text: str, reason: str, file: str = ''):
        super().__init__(line, text, reason, file)
        self.file = file
        self.line = line
        self.text = text
        self.reason = reason

    def __str__(self) -> str:
        return f'{self.line}: {self.reason}'


class Record(NamedTuple):
    """One value, as the program printed it."""
    program: str
    version: str
    #: Message size in bytes; None if the program has none.
    size: int | None
    metric: str
    value: float
    unit: str
    #: Line of the text, from 1.
    line: int


@dataclass(frozen=True)
class Remark:
    """A remark on some lines (from 1) of a parsed text."""
    first: int
    last: int
    reason: str
    #: Whether the values must not be used.
    serious: bool = False

    def __str__(self) -> str:
        lines = (f'{self.first}' if self.first == self.last
                 else f'{self.first}-{self.last}')
        return f'{lines}: {self.reason}'


def load_parser_module(parser_name: str) -> Any:
    """The module of a family's parser, by its name in family.yaml.

    It is imported relative to this package: ReFrame loads checks/ under
    another name, and a ParseError of another copy of this module would not be
    caught.
    """
    return importlib.import_module(
        families.parser_modules()[parser_name].removeprefix('checks'),
        (__package__ or '').rpartition('.')[0])
