"""The interface of parsers: from a program's output to frozen records.

A parser is a module with `parse(text) -> tuple[Record, ...]`. It returns
records only if every line of the text is sound; else it raises a ParseError.
A family lists its parsers in its family.yaml. A parser that reads saved logs has
`parse_log(text, options) -> [Output, ...]`, one that reads folders has
`parse_folder(path, options) -> ([(file or folder, its records, an Output or a
ParseError), ...], text for people)`, and `add_options(parser)`.
"""
from __future__ import annotations

import datetime
import importlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from config import families


class ParseError(Exception):
    """A text cannot be parsed: line (from 1), its text, reason, file of a folder."""

    def __init__(self, line: int, text: str, reason: str, file: str = ''):
        super().__init__(line, text, reason, file)
        self.line, self.text, self.reason, self.file = line, text, reason, file

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
    #: Parameters of the test case that differ within an output:
    #: name=value name=value.
    params: str = ''


class Output(NamedTuple):
    """One output in a saved log, and the context that the log gives."""
    records: tuple[Record, ...]
    #: Part of the file, such as '[2]'.
    log: str = ''
    num_nodes: int | None = None
    num_tasks: int | None = None
    #: Parameters of all its records: name=value name=value.
    params: str = ''
    #: Time at which the program ran, if the log has it.
    time: datetime.datetime | None = None


def parse_json(text: str, what: str, line: int = 1,
               parse_float: Callable[[str], Any] = float) -> Any:
    """A JSON document in which each key occurs once and each number is finite.

    :arg what: the document, for messages.
    :arg line: line of the parsed text in which the document begins.
    :raises ParseError: it is incomplete or damaged.
    """
    def dict_without_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise ValueError(f'the key {name!r} occurs twice')
        return dict(pairs)

    def refuse_nan_or_infinity(name: str) -> NoReturn:
        raise ValueError(f'{name} is not a number')

    try:
        return json.loads(text, object_pairs_hook=dict_without_duplicate_keys,
                          parse_constant=refuse_nan_or_infinity,
                          parse_float=parse_float)
    except json.JSONDecodeError as err:
        at, reason = err.lineno, f'incomplete: {err.msg}'
    except RecursionError:
        at, reason = 1, 'damaged: it is nested too deep'
    except ValueError as err:
        at, reason = 1, f'damaged: {err}'
    words = text.split('\n')[at - 1].removesuffix('\r')
    raise ParseError(line + at - 1, words[:200], f'{what} is {reason}')


def load_parser_module(parser_name: str) -> Any:
    """The module of a family's parser, by its name in family.yaml.

    It is imported relative to this package: ReFrame loads checks/ under
    another name, and a ParseError of another copy of this module would not be
    caught.
    """
    return importlib.import_module(
        families.parser_modules()[parser_name].removeprefix('checks'),
        (__package__ or '').rpartition('.')[0])
