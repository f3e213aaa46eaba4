"""Options of a measured program that a user adds: `-S CHECK.options='...'`."""
from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

#: What a message says of an option that no setting replaces.
SET_BY_CHECK = 'the check sets it'


def split_options(text: str, setting: str, refused: Mapping[str, str],
                  flags: str = '') -> list[str]:
    """The words of options, by the rules of the shell, for the program as they are.

    :param setting: name of the setting that has the text, for messages
    :param refused: options that decide whether a run is complete, such as
        '-m --size' -> what to use instead; -m8, --size=8, --SIZE and the beginning of
        a long option are refused, too
    :param flags: letters of the program's options without a value, which may stand
        before another option in a word: with V, -Vm8 is -V -m8
    :raises ValueError: the quotes do not match, or an option is refused
    """
    try:
        words = shlex.split(text)
    except ValueError as err:
        raise ValueError(f'{setting}: {text!r}: {err}') from None
    for word in words:
        name = word.partition('=')[0]
        if name.startswith('--'):       # some programs have them in any case
            name = name.lower()
        # Of -Vm8, -m8 is judged.
        short = re.sub(f'^-[{flags}]+(?=.)', '-', word) if flags else word
        for option, instead in (
                (option, instead) for options, instead in refused.items()
                for option in options.split()):
            if (name == option or len(option) == 2 and short.startswith(option)
                    or name.startswith('--') and len(name) > 2
                    and option.startswith(name)):
                raise ValueError(f'{setting}: remove {word}: {instead}')
    return words


def option_value(words: Sequence[str], short: str, long: str = '', default: str = ''
                 ) -> str:
    """The value of an option in the words of a command line; the last one counts.

    :param short: such as -n, which a value may follow at once: -n5
    :param long: such as --iters, which may be abbreviated
    :returns: the default if the option is not given
    """
    for number in range(len(words) - 1, -1, -1):
        name, equals, value = words[number].partition('=')
        after = ''.join(words[number + 1:number + 2])
        if words[number] == short:
            return after
        if words[number].startswith(short):
            return words[number][len(short):]
        if long and name.startswith('--') and len(name) > 2 and long.startswith(name):
            return value if equals else after
    return default
