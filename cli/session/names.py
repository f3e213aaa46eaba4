"""Names of test cases in the form in which ReFrame's -n takes them.

ReFrame removes the blanks from a name before it searches it for the pattern of
-n, so that a pattern with a blank never matches.
"""
from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence

from config.places import ROOT

#: Most names that are suggested.
MAXIMUM = 3


def name_without_blanks(display_name: str) -> str:
    """A name as -n takes it.

    >>> name_without_blanks('StoreServes %scenario=redis get')
    'StoreServes%scenario=redisget'
    """
    return display_name.replace(' ', '')


def misspelt_name(patterns: Iterable[str]) -> str:
    """Why a pattern of -n cannot select a test case, with the nearest checks and
    programs; '' if none is misspelt. Only files of the checks are read, so it is
    known before anything is installed.
    """
    # Others may be regular expressions, or several parts of a name.
    plain = [one for one in patterns if re.fullmatch(r'(?=\D)\w{4,}', one)]
    if not plain:
        return ''
    text = '\n'.join(path.read_text('utf-8') for suffix in ('*.py', 'family.yaml')
                     for path in ROOT.glob(f'checks/*/{suffix}'))
    words = {*re.findall(r'\b[a-z]\w{2,}', text)}
    # Checks, and programs with their descriptions.
    known = {*re.findall(r"^(?:class |  (?=\w+: '))(\w+)", text, re.M)}
    for pattern in plain:
        if pattern not in text and not _is_composed(pattern, words):
            near = difflib.get_close_matches(pattern, sorted(known), MAXIMUM, 0.75)
            return f'-n {pattern}: no such test case; ' + (
                f'the nearest: {_quoted_text(near)}' if near else
                './plumb run -l lists the test cases')
    return ''


def _is_composed(name: str, words: Collection[str]) -> bool:
    """Whether a name consists of words and numbers, where the last word may be cut
    off: values of parameters, such as redisget or osu_iallreduce."""
    name = name.lstrip('0123456789')
    return any(word.startswith(name) or name.startswith(word)
               and _is_composed(name[len(word):], words) for word in words)


def suggest_names(patterns: Iterable[str], names: Iterable[str]) -> str:
    """Why patterns of -n selected no test case, with the nearest names; '' if none
    is near.

    :param names: of all test cases, whatever their tags
    """
    names = sorted({*map(name_without_blanks, names)})
    # Checks and values of parameters, such as osu_latency.
    words = sorted({part.rpartition('=')[2] for name in names
                    for part in name.split('%')})
    texts = []
    for pattern in patterns:
        name = name_without_blanks(pattern)
        exact = [one for one in names if name in one]
        if exact and name == pattern:
            texts.append(f'-n {pattern}: the other filters (mode, -t) leave out '
                         + _quoted_text(exact))
            continue
        similar = exact or difflib.get_close_matches(
            name, names if '%' in name else words, MAXIMUM)
        if similar:
            texts.append(f'-n {pattern}: no such test case; the nearest: '
                         + _quoted_text(similar))
    return '; '.join(texts)


def _quoted_text(names: Sequence[str]) -> str:
    rest = len(names) - MAXIMUM
    return ', '.join(f"-n '{name}'" for name in names[:MAXIMUM]) + (
        f' and {rest} more' if rest > 0 else '')
