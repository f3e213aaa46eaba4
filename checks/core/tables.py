"""The reader of a program's output with a table: title, header, rows, end.

A family's reader has what is its own: patterns of its lines, columns, and checks of its
values. What all of them do is here.
"""
from __future__ import annotations

import re
from typing import ClassVar, NoReturn

from .parsers import ParseError
from .text import foreign_cause, strip_prefixes

#: No line of the programs, of their libraries or of a launcher is as long.
LONGEST = 4096
#: More sizes than any table has.
MAX_SIZES = 100_000


class TableReader:
    """Reads the text of one output, line by line. Each refusal names its line, and for
    damage the probable cause.

    A family's reader defines both patterns, `read_line`, and `check_end`.
    """

    #: Beginning of an output, anywhere in a line: what stands before it is the prefix
    #: of a launcher or a page.
    TITLE: ClassVar[re.Pattern[str]]
    #: A row, whole or in part, which is no prefix but damage.
    NO_PREFIX: ClassVar[re.Pattern[str]]

    def __init__(self, text: str) -> None:
        #: The lines as they are in the text.
        self.text = [line.removesuffix('\r') for line in text.split('\n')]
        bare = [line.rstrip(' \t') for line in self.text]
        #: The lines without prefixes and without blanks at their end.
        self.lines = strip_prefixes(bare, self.TITLE, self.NO_PREFIX)
        #: The prefix of each line.
        self.prefixes = [line.removesuffix(rest) for line, rest in
                         zip(bare, self.lines, strict=True)]
        #: The line that is read, from 1.
        self.number = 1

    def refuse(self, reason: str, line: int = 0) -> NoReturn:
        """Refuse the text.

        :arg line: the line to name; 0: the one that is read
        """
        line = line or self.number
        raise ParseError(line, self.text[line - 1], reason)

    def refuse_damage(self, reason: str) -> NoReturn:
        """Refuse the line that is read, with the probable cause: words of another
        program in it, or in a line beside it."""
        self.refuse(reason + foreign_cause([
            *self.lines[self.number - 1:self.number + 1],
            *self.lines[max(self.number - 2, 0):self.number - 1]]))

    def read_lines(self) -> None:
        """Read the lines that are not blank, then check that nothing is missing."""
        for number, line in enumerate(self.lines, 1):
            self.number = number
            if len(line) > LONGEST:
                self.refuse(f'the line has {len(line)} characters')
            if line:
                self.read_line(line)
        self.check_end()

    def read_line(self, line: str) -> None:
        """Read a line that is not blank."""
        raise NotImplementedError

    def check_end(self) -> None:
        """Refuse a text that lacks a part, after its last line."""
        raise NotImplementedError

    def read_number(self, name: str, word: str, pattern: re.Pattern[str], kind: str
                    ) -> float:
        """The value of a field.

        :arg pattern: how the program prints a finite number
        :arg kind: the same in words
        """
        if pattern.fullmatch(word):
            return float(word)
        nan = re.fullmatch(r'[-+]?(?:nan|inf\w*)', word, re.IGNORECASE)
        self.refuse(f'{name} is {word}' if nan else
                    f'{name} is {word!r}, which is not {kind}')


def sizes_between(minimum: int, maximum: int, step: int = 2, by_factor: bool = True
                  ) -> list[int]:
    """Sizes from the smallest to the largest one; empty if they do not grow."""
    if step < 1 + by_factor or by_factor and not minimum:
        return [minimum] if minimum == maximum else []
    results: list[int] = []
    size = minimum
    while size <= maximum and len(results) <= MAX_SIZES:
        results.append(size)
        size = size * step if by_factor else size + step
    return results
