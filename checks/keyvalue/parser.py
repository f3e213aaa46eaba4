"""Parser of the output of any load generator of stores.

It recognises redis-benchmark, valkey-benchmark and memtier_benchmark (text or JSON).
"""
from __future__ import annotations

import re
from typing import Any

from ..core.parsers import Output, Record

_MEMTIER = re.compile(r'^\s*\{|\[RUN #|(?<!\S)[0-9]+ +Threads\r?$|ALL STATS\r?$|'
                      r'RUN(?: #[0-9]+)? RESULTS|AVERAGE RESULTS', re.MULTILINE)


def parse_log(text: str, options: Any = None) -> list[Output]:
    """The outputs in a text: each run is one.

    :param options: not used
    :raises ParseError: a part of the text cannot be trusted.
    """
    # Imported when needed: one output needs only one of them.
    if _MEMTIER.search(text):
        from ..loadgen import memtier
        return memtier.parse(text)
    from ..loadgen import resp_benchmark
    return [Output(resp_benchmark.parse(text))]


def parse(text: str) -> tuple[Record, ...]:
    """The records of all outputs in a text.

    :raises ParseError: a part of the text cannot be trusted.
    """
    return tuple(record for output in parse_log(text) for record in output.records)
