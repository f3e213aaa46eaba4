"""Figures of a part of the store by metric, night and case: `lookup.bin`.

What `plumb history` needs of a part, as it stands in memory: texts, and
columns in which it searches and cuts. The file is mapped, so that nothing is
read but what is asked for, and the standard library is enough: to import numpy
and polars takes longer than the answer should.

A file of columns (postprocess/columns.py):

    run      of each run, oldest first, its first head; and the number of all
    what     of each head its case, in order within a run
    time     of each head the number of its time
    source   of each head the number of its file
    times    of each time where it begins in `text`; and its end
    text     times, one after the other
    head     of each figure its head, in order within a metric
    kind     of each figure the number of its kind
    value    of each figure
"""
from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from . import columns

FILE = 'lookup.bin'


class Texts(TypedDict):
    """The texts of a lookup."""
    #: Oldest first.
    runs: list[str]
    #: Columns of each case, of each kind.
    cases: list[list[str]]
    kinds: list[list[str]]
    #: Of each source its text.
    sources: list[str]
    #: Of each metric where its figures begin and end.
    metrics: dict[str, list[int]]


def write(file: Path, texts: Texts, times: Iterable[str],
          given: Mapping[str, Any]) -> None:
    """Writes the lookup of a part.

    :param times: of each number of a time, its text
    :param given: all columns but `times` and `text`
    """
    cut = [text.encode() for text in times]
    begins = array('q', [0])
    for text in cut:
        begins.append(begins[-1] + len(text))
    columns.write(file, texts, {
        **given, 'times': begins, 'text': b''.join(cut)})


class Lookup:
    """The lookup of a part.

    :raises ValueError, LookupError, TypeError: it is damaged
    """

    def __init__(self, file: Path) -> None:
        texts, self._columns = columns.read(file)
        self.runs: list[str] = texts['runs']
        self.cases: list[list[str]] = texts['cases']
        self.kinds: list[tuple[str, ...]] = list(map(tuple, texts['kinds']))
        self.metrics: dict[str, list[int]] = texts['metrics']
        self._sources: list[str] = texts['sources']
        #: Ranges of cases that are asked for.
        self._ranges: list[tuple[int, int]] = []
        #: Of each source whether it counts; None: all do.
        self._live: list[bool] | None = None

    def choose(self, good: Iterable[bool], live: Iterable[str]) -> None:
        """Asks for cases.

        :param good: of each case, whether it is asked for
        :param live: texts of sources that count
        """
        self._ranges = []
        begin = None
        for at, wanted in enumerate([*good, False]):
            if wanted and begin is None:
                begin = at
            elif not wanted and begin is not None:
                self._ranges.append((begin, at))
                begin = None
        known = set(live)
        self._live = [text in known for text in self._sources]
        if all(self._live):
            self._live = None

    def figures(self, metric: str, run: int
                ) -> Iterator[tuple[int, Sequence[int], Sequence[float]]]:
        """Of each head of a run with cases that are asked for: its number,
        and kinds and values of its figures of a metric."""
        heads, kinds, values, what, source, runs = (
            self._columns[name] for name in (
                'head', 'kind', 'value', 'what', 'source', 'run'))
        first, last = runs[run:run + 2]
        begin, end = self.metrics[metric]
        begin = bisect_left(heads, first, begin, end)
        for low, high in self._ranges:
            # Heads of the run with these cases, and their figures.
            low = bisect_left(what, low, first, last)
            high = bisect_left(what, high, low, last)
            if low == high:
                continue
            at = bisect_left(heads, low, begin, end)
            stop = bisect_left(heads, high, at, end)
            while at < stop:
                head = heads[at]
                after = bisect_left(heads, head + 1, at, stop)
                if self._live is None or self._live[source[head]]:
                    yield (head, kinds[at:after].tolist(),
                           values[at:after].tolist())
                at = after

    def case(self, head: int) -> int:
        """The number of the case of a head."""
        return self._columns['what'][head]

    def time(self, head: int) -> str:
        """When a head ended."""
        number = self._columns['time'][head]
        begin, end = self._columns['times'][number:number + 2]
        return self._columns['text'][begin:end].tobytes().decode()
