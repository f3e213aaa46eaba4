"""Parser of the output of any load generator of stores.

It recognises redis-benchmark, valkey-benchmark, memtier_benchmark (text or
JSON) and the embedded plumbload.
"""
from __future__ import annotations

import re

from ..core.parsers import Record

_PLUMBLOAD = re.compile(r'"program"\s*:\s*"plumbload"')
_MEMTIER = re.compile(r'^(?:\s*\{|\[RUN #|[0-9]+ +Threads$|ALL STATS$|'
                      r'[A-Z #0-9]+ RESULTS)', re.MULTILINE)


def parse(text: str) -> tuple[Record, ...]:
    """The records of one output.

    :raises ParseError: a part of the text cannot be trusted.
    """
    # Imported when needed: one output needs only one of them.
    if _PLUMBLOAD.search(text):
        from ..loadgen.plumbload import parse as parse_one
    elif _MEMTIER.search(text):
        from ..loadgen.memtier import parse as parse_one
    else:
        from ..loadgen.resp_benchmark import parse as parse_one
    return parse_one(text)
