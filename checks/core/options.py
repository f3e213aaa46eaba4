"""Options of a measured program that a user adds: `-S CHECK.options='...'`.

They are passed to the program as they are. Options that decide whether a run is
complete are refused with the name of the setting that has the same effect.
"""
from __future__ import annotations

import shlex
from collections.abc import Mapping


def split_options(text: str, setting: str, refused: Mapping[str, str]) -> list[str]:
    """The words of options, by the rules of the shell.

    :param setting: name of the setting that has the text, for messages
    :param refused: option -> what to use instead; it also refuses -m8, --size=8 and a
        beginning of a long option, which many programs accept
    :raises ValueError: the quotes do not match, or an option is refused
    """
    try:
        words = shlex.split(text)
    except ValueError as err:
        raise ValueError(f'{setting}: {text!r}: {err}') from None
    for word in words:
        name = word.partition('=')[0]
        for option, instead in refused.items():
            if (name == option or
                    (word.startswith(option) and not option.startswith('--')
                     and len(option) == 2) or
                    (name.startswith('--') and len(name) > 4
                     and option.startswith(name))):
                raise ValueError(f'{setting}: remove {word}: use {instead}')
    return words
