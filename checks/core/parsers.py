"""Parsers: text of a program in, frozen records out, or a ParseError.

A parser is a module with `parse(text) -> tuple[Record, ...]`.  It gives
figures only for a text that can be trusted from the first line to the last.
A family names its parsers in its family.yaml.  A parser that leaves lines
out has `remarks(text)`, which says of what could be parsed what they are.
One that reads folders has `parse_folder(path, options) -> ([(file or folder,
its records), ...], text for people)`, and `add_options(parser)` for options
of its own.
"""
from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, NamedTuple

from config import families


class ParseError(Exception):
    """A text cannot be parsed: line number (from 1), its text, reason; the
    file, where a folder is read."""

    def __init__(self, line: int, text: str, reason: str, file: str = ''):
        super().__init__(line, text, reason, file)
        self.file = file
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
    """The module of a family's parser, by its word in family.yaml.

    Relative to this package: ReFrame loads checks/ under a name of its own,
    and an error of another copy of this module would not be recognised.
    """
    return importlib.import_module(
        families.parsers()[word].removeprefix('checks'),
        (__package__ or '').rpartition('.')[0])
