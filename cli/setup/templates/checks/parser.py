"""Output of NAME."""
from __future__ import annotations

import re

from ..core.parsers import ParseError, Record

OUTPUT = re.compile(r'# NAME (\d+\.\d+)\ncopy (\d+\.\d) MB/s\n')


def parse(text: str) -> tuple[Record, ...]:
    """The value of one run.

    :raises ParseError: the text is not the whole output of NAME
    """
    match = OUTPUT.fullmatch(text)
    if not match:
        raise ParseError(1, text[:60], 'this is not the output of NAME')
    return (Record('NAME', match[1], None, 'NAME_bandwidth',
                   float(match[2]), 'MB/s', 2),)
