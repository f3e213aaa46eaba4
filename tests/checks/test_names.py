"""Names are the field's, and comments are plain present-day English.

The contract covers the folders below; it cannot judge a sentence, but it
keeps out names and words that were removed because readers stumbled.
"""
from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

#: Folders whose names and comments are checked.
FOLDERS = ('bench', 'checks', 'cli', 'config', 'postprocess', 'site-configs',
           'spack-envs', 'tests')

#: Names that say nothing to a reader who meets them.
NAMES = re.compile(
    r'\b(SECOND_THOUGHTS|HEARSAY|MANNERS|PATIENCE|MUCH|ENDINGS|COME_AGAIN|'
    r'GRACE|KINDLY|FIRMLY|Once|strangers|welcome|attend|attended|hearsay|'
    r'think_again|nameless|ask_slowly|unharmed|strike|obey|lacking)\b')

#: Archaic words.
WORDS = re.compile(r'\b(whom|whoever|whatsoever|deaf|beneath|goodbye|'
                   r'good-bye|strangers?|hearsay|by and by|reckons?|'
                   r'bur(y|ies))\b', re.I)

#: Endings of constants that are times.
TIMES = ('_TIMEOUT', '_INTERVAL', '_PAUSE', '_AFTER')


def sources(*suffixes: str) -> Iterator[Path]:
    for name in FOLDERS:
        place = ROOT / name
        for path in [place] if place.is_file() else sorted(
                place.rglob('*')):
            if path.suffix in suffixes:
                yield path


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each comment, and of each docstring."""
    text = path.read_text()
    if path.suffix != '.py':
        for matches in re.finditer(r'/\*.*?\*/', text, re.S):
            yield text.count('\n', 0, matches.start()) + 1, matches.group()
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield getattr(node, 'lineno', 1), ast.get_docstring(node) or ''


def place_of(path: Path, line: int, what: str) -> str:
    return f'{path.relative_to(ROOT)}:{line}: {what}'


def test_names_are_the_fields():
    results = [place_of(path, number, name.group())
             for path in sources('.py', '.c', '.h')
             for number, line in enumerate(
                 path.read_text().splitlines(), 1)
             # A call or a definition; words in prose are the next test's.
             for name in re.finditer(r'(?<=def )\w+|(?<=class )\w+|\w+(?= =)|'
                                     r'\w+(?=\()', line)
             if NAMES.fullmatch(name.group())]
    assert results == []


def test_comments_have_no_archaic_words():
    results = [place_of(path, number, word.group())
             for path in sources('.py', '.c', '.h')
             # Most files have none anywhere, and need not be parsed.
             if WORDS.search(path.read_text())
             for number, text in comments(path)
             for word in [WORDS.search(text)] if word]
    assert results == []


def test_times_say_what_they_are():
    """In checks/services a constant in seconds is a timeout, or the like."""
    results = []
    for path in sorted((ROOT / 'checks' / 'services').glob('*.py')):
        text = path.read_text()
        for match in re.finditer(
                r'((?:^#:.*\n)+)^([A-Z_, ]+) = \d+\.\d', text, re.M):
            comment, names = match.groups()
            if 'seconds' in comment:
                results += [
                    place_of(path, text.count('\n', 0, match.end()) + 1, name)
                    for name in names.split(', ')
                    if not name.endswith(TIMES)
                ]
    assert results == []
