"""Parser of the output of any load generator of stores.

It recognises redis-benchmark, valkey-benchmark and memtier_benchmark (text or JSON),
also if a text has outputs of several of them.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..core import text as saved
from ..core.parsers import Output, Record
from ..loadgen import memtier, resp_benchmark

Parse = Callable[[str], list[Output]]
#: Parser -> beginnings of its outputs and of their command lines.
_KINDS = ((memtier.parse, (memtier.DOCUMENT, memtier.PROGRESS, memtier.BEGIN,
                          memtier.CALL)),
          (resp_benchmark.parse, (resp_benchmark.BEGIN, resp_benchmark.CALL)))


def parse_log(text: str, options: Any = None) -> list[Output]:
    """The outputs in a text: each run is one.

    :param options: not used
    :raises ParseError: a part of the text cannot be trusted.
    """
    return [output for parse_part, part in _parts(text) for output in parse_part(part)]


def _parts(text: str) -> Iterator[tuple[Parse, str]]:
    """The parts of a text with outputs of one kind each, and their parsers."""
    marks = sorted(((match.start(), kind) for kind, (_, patterns) in enumerate(_KINDS)
                    for pattern in patterns for match in pattern.finditer(text)))
    if not marks:
        marks = [(0, 0 if text.lstrip().startswith('{') else 1)]
    changes = [mark for before, mark in zip([(0, -1), *marks], marks, strict=False)
               if before[1] != mark[1]]
    parts = saved.split_at(text, [place for place, _ in changes])
    for part, (_, kind) in zip(parts, changes, strict=True):
        yield _KINDS[kind][0], part


def parse(text: str) -> tuple[Record, ...]:
    """The records of all outputs in a text.

    :raises ParseError: a part of the text cannot be trusted.
    """
    return tuple(record for output in parse_log(text) for record in output.records)
