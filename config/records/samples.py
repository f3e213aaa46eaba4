"""Raw samples of a run, written beside its perflogs: samples.csv.

What a metric is made from, for values that show all of it (a violin of the
calls of each rank, a timeline of a run). A row is one call:

    rank       who made it, from 0
    call       its name
    iteration  its number, from 0, among those of the same rank and call
    start      seconds since the run began, on the clock of all ranks; empty:
               not known. With it the row is an event on the time axis.
    seconds    how long it took; 0: an event without a length
    every      the file has each iteration (1), or each second, third, ...

A check hands the text on as it does other files:

    @property
    def attached(self) -> dict[str, str]:
        return {samples.FILE: samples.text(self.calls)}

Two limits: a file has MOST rows, of longer runs every second, third, ...
iteration of each rank and call; and of each case the newest KEPT runs keep
their file (`prune`, called as a new one is written). Nothing else of a run is
removed. postprocess/perflogs/samples.py reads them.
"""
from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

FILE = 'samples.csv'
COLUMNS = ('rank', 'call', 'iteration', 'start', 'seconds', 'every')
#: Rows of a file, some 4 MB.
MAXIMUM = 100_000
#: Runs of a case that keep their file.
KEPT = 5
#: Names of calls: no separator of CSV, nothing that has to be quoted.
CALL = re.compile(r'[A-Za-z_][\w.:/+-]{0,59}')
#: Folders of cases that ended: <run>-<environ>-<case>.
_FOLDER = re.compile(r'(\d{8}T\d{6}Z-[0-9a-f]+)-(.+)')


class Sample(NamedTuple):
    """One call."""
    rank: int
    call: str
    iteration: int
    seconds: float
    #: Seconds since the run began; None: not known.
    start: float | None = None


def text(samples: Iterable[Sample]) -> str:
    """The file's text, at most MOST rows of it.

    :raises ValueError: a sample that no reader would take, or more ranks and
        calls than rows
    """
    series: dict[tuple[int, str], dict[int, Sample]] = defaultdict(dict)
    number = 0
    for one in samples:
        _check(one)
        values = series[one.rank, one.call]
        if one.iteration in values:
            raise ValueError(f'{one}: that iteration is there already')
        values[one.iteration] = one
        number += 1
    if len(series) > MAXIMUM:
        raise ValueError(
            f'{len(series)} ranks and calls, the most is {MAXIMUM};'
            ' leave out some of the ranks'
        )
    every = max(-(-number // MAXIMUM), 1)
    while (
        sum(-(-len(values) // every) for values in series.values()) > MAXIMUM
    ):
        every += 1
    lines = [','.join(COLUMNS)]
    for (rank, call), values in sorted(series.items()):
        for iteration in sorted(values)[::every]:
            one = values[iteration]
            start = '' if one.start is None else f'{one.start:.9g}'
            lines.append(f'{rank},{call},{iteration},{start},'
                         f'{one.seconds:.9g},{every}')
    return '\n'.join(lines) + '\n'


def _check(one: Sample) -> None:
    if one.rank < 0 or one.iteration < 0:
        raise ValueError(f'{one}: rank and iteration are 0 or more')
    if not CALL.fullmatch(one.call):
        raise ValueError(f'{one}: a call is named like {CALL.pattern}')
    for seconds in (one.seconds, one.start or 0.0):
        if not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f'{one}: {seconds} is no time')


def prune(folder: Path) -> None:
    """Removes the samples of all but the newest KEPT runs of a case.

    :param folder: of one of its runs, <run>-<environ>-<case>
    """
    name = _FOLDER.fullmatch(folder.name)
    if not name:
        return
    # Names of runs begin with their time.
    runs = sorted(path for path in folder.parent.glob(f'*/{FILE}')
                  if (other := _FOLDER.fullmatch(path.parent.name))
                  and other[2] == name[2])
    for path in runs[:-KEPT]:
        path.unlink(missing_ok=True)
