"""Output of any load generator of stores: finds out whose it is.

redis-benchmark and valkey-benchmark, memtier_benchmark (text or JSON), and
the suite's own plumbload.
"""
from __future__ import annotations

import re

from ..core.parsers import Record

_PLUMBLOAD = re.compile(r'"program"\s*:\s*"plumbload"')
_MEMTIER = re.compile(r'^(?:\s*\{|\[RUN #|[0-9]+ +Threads$|ALL STATS$|'
                      r'[A-Z #0-9]+ RESULTS)', re.MULTILINE)


def parse(text: str) -> tuple[Record, ...]:
    """The figures of one output.

    :raises ParseError: where any of it cannot be trusted.
    """
    # Imported when needed: one of them is enough for one output.
    if _PLUMBLOAD.search(text):
        from ..loadgen.plumbload import parse as parse_one
    elif _MEMTIER.search(text):
        from ..loadgen.memtier import parse as parse_one
    else:
        from ..loadgen.resp_benchmark import parse as parse_one
    return parse_one(text)
