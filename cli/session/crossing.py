"""Lists in `-S CHECK.settings=...`: one test case per combination.

`-S CHECK.settings=db_nodes:4|8,client_nodes:4|16` means four test cases. ReFrame
cannot create test cases from -S. It can with -P, of which the values are the
combinations.
"""
from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from cli.setup.venv import SetupError

_SETTINGS = re.compile(r'(?P<check>\w+\.)?settings=(?P<pairs>.*\|.*)')
#: Options of ReFrame that are in the way of a list.
_PARAMETERS = ('-P', '--parameterize', '--param-values-delim')
#: Separates combinations; the options in one are separated by commas.
_SEPARATOR = ';'


def replace_settings_lists(words: Sequence[str]) -> list[str]:
    """The options of ReFrame, with -P for each -S whose settings have lists.

    >>> replace_settings_lists(['-S', 'C.settings=a:1|2,b:3'])
    ['-P', 'C.settings=a:1,b:3;a:2,b:3', '--param-values-delim=;']

    :raises SetupError: the check has no name, or -P is among the options
    """
    results, crossed = [], False
    for before, word in zip(['', *words], words, strict=False):
        attached = re.match(r'(-S|--setvar=)', word)
        text = word[attached.end():] if attached else word
        match = _SETTINGS.fullmatch(text) if (
            attached or before in ('-S', '--setvar')) else None
        if not match:
            results.append(word)
            continue
        if not match['check']:
            raise SetupError(f'{text}: a list needs the name of the check: '
                             f'CHECK.{text}')
        if _SEPARATOR in text:
            raise SetupError(f'{text}: a value must not contain {_SEPARATOR!r}')
        if not attached:
            results.pop()
        results += ['-P', f'{match["check"]}settings='
                    + _SEPARATOR.join(_combinations(match['pairs']))]
        crossed = True
    if not crossed:
        return results
    for word in words:
        if word.startswith(_PARAMETERS):
            raise SetupError(f'{word}: lists in settings become -P, which cannot be '
                             'combined with this option; write all combinations with '
                             '-P')
    return [*results, f'--param-values-delim={_SEPARATOR}']


def _combinations(pairs: str) -> list[str]:
    """All combinations of `a:1|2,b:3|4`, the last option changing first."""
    options = [pair.partition(':') for pair in pairs.split(',')]
    return [','.join(f'{name}:{value}' for (name, _, _), value in zip(
                options, values, strict=True))
            for values in itertools.product(*(
                values.split('|') for _, _, values in options))]
