"""Names of test cases in the form in which ReFrame's -n takes them.

ReFrame removes the blanks from a name before it searches it for the pattern of
-n, so that a pattern with a blank never matches.
"""
from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

#: Most names that are suggested.
MAXIMUM = 3


def name_without_blanks(display_name: str) -> str:
    """A name as -n takes it.

    >>> name_without_blanks('StoreServes %scenario=redis get')
    'StoreServes%scenario=redisget'
    """
    return display_name.replace(' ', '')


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
