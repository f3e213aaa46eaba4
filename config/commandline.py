"""Parsers of all commands: help texts, and suggestions for unknown options."""
from __future__ import annotations

import argparse
import difflib
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

#: Columns of a help text, at most.
WIDTH = 100

#: Exit codes of commands that report the state of a session, and of commands that
#: answer questions about records; docs/reference/results.md has the table of all.
STATE_CODES = """\
Exit codes: 0 good, or nothing was compared; 1 something failed, became worse
(regressed) or was cut short, too little was compared (degraded), or the perflogs are
damaged; 2 wrong usage or unreadable input; 3 nothing was compared, with
--require-compared.
"""
ANSWER_CODES = """\
Exit codes: 0 good; 1 the perflogs are damaged, with a list on stderr; 2 wrong usage,
unreadable input, or no matching records.
"""
#: Help of --site in commands that measure for a site, or read its references.
SITE_HELP = ('the site: the name of a folder in site-configs/, or a path (default: '
             'PLUMBLINE_SITE, otherwise local, which is this machine)')


class SetupError(Exception):
    """A command cannot go on; the message says why and what to do."""


def suggest_nearest_word(word: str, words: Iterable[str], cutoff: float = 0.6) -> str:
    """A suggestion of the most similar word; empty if none is similar."""
    similar = difflib.get_close_matches(word, words, 1, cutoff)
    return f'did you mean {similar[0]}? ' if similar else ''


def is_duration(text: object) -> bool:
    """Whether a text is a time above zero as ReFrame reads it.

    >>> [is_duration(text) for text in ('1h30m', '90s', '90', '', '0m', None)]
    [True, True, False, False, False, False]
    """
    return bool(re.fullmatch(r'(?=.*[1-9])(\d+d)?(\d+h)?(\d+m)?(\d+s)?', str(text)))


def add_require_compared_option(group: Any) -> None:
    """Add the option that refuses a session in which nothing was compared."""
    group.add_argument(
        '--require-compared', action='store_true',
        help='exit with 3 if nothing was compared: no test case has a reference, and '
             'too few sessions exist for a comparison with the history')


def wrap_help_text(text: str, width: int) -> str:
    """A text with lines of this width; indented lines, which are commands, stay.

    >>> print(wrap_help_text('One\\nline.\\n- an\\n  item\\n\\n  $ a', 60))
    One line.
    - an item
    <BLANKLINE>
      $ a
    """
    blocks: list[str] = []
    for line in text.splitlines():
        before = blocks[-1] if blocks else ''
        is_item = before.startswith('- ')
        if (before.strip() and line.strip() and not before.startswith(' ')
                and not line.startswith('- ') and line.startswith(' ') == is_item):
            blocks[-1] = f'{before} {line.strip()}'
        else:
            blocks.append(line)
    return '\n'.join(block if block.startswith(' ') else textwrap.fill(
        block, width, subsequent_indent='  ' * block.startswith('- '),
        break_on_hyphens=False, break_long_words=False) for block in blocks)


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help texts that fit the terminal, and are WIDTH columns wide at most."""

    def __init__(self, prog: str, **more: Any) -> None:
        columns = shutil.get_terminal_size().columns - 2
        super().__init__(prog, max_help_position=28,
                         width=min(columns, WIDTH), **more)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return wrap_help_text(text, width)


class Parser(argparse.ArgumentParser):
    """A parser whose options are never abbreviated, because an option that
    it does not know may be one of ReFrame."""

    def __init__(self, *, text: str = '', example: str = '', **more: Any
                 ) -> None:
        """
        :param text: a sentence, shown above the options; after an empty line
            the rest, shown below them
        :param example: a command line, shown below the sentence
        """
        head, _, rest = text.strip().partition('\n\n')
        parts = [head, f'Example:\n  {example}' if example else '']
        super().__init__(
            allow_abbrev=False, description='\n\n'.join(filter(None, parts)),
            epilog=rest.strip(),
            formatter_class=Formatter, **more)
        self.set_defaults(parser=self)

    def long_options(self) -> list[str]:
        """The long options of this parser."""
        return [word for action in self._actions
                for word in action.option_strings if word.startswith('--')]

    def parse_args(self, args: Sequence[str] | None = None,  # type: ignore[override]
                   namespace: Any = None) -> argparse.Namespace:
        """Parse the words of a command line, by default those of this process; an
        unknown one ends the process with exit code 2."""
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            known.parser.refuse_unknown_word(unknown[0])
        return known

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one line; for a wrong choice with the nearest word.
        """
        match = re.search(r"invalid choice: (\S+) \(choose from (.*)\)$", message)
        if match:
            word, *choices = re.findall(r"[^\s',]+", f'{match[1]} {match[2]}')
            message = (f'unknown argument {word}: {suggest_nearest_word(word, choices)}'
                       f'the choice is {", ".join(choices)}')
        self.exit(2, f'{self.prog}: error: {message}\n')

    def refuse_unknown_word(self, word: str) -> NoReturn:
        """End with exit code 2 because of an unknown argument."""
        similar = suggest_nearest_word(word.partition('=')[0], self.long_options())
        self.error(f'unknown argument {word}: {similar}{self.prog} --help '
                   'lists the options')
