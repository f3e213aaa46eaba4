"""Raw samples of a measurement: files/<session>/<measurement>/samples-<test case>.csv.

The samples from which a metric is computed, for plots of all calls (boxes
of the calls of each rank, a timeline). A row is one call:

    rank       rank that made the call, from 0
    call       name of the call
    iteration  number of the call, from 0, among those of its rank and name
    start      seconds since the program began, on a clock that all ranks
               share; empty: unknown. With it the row is an event in time.
    seconds    duration of the call; 0: an event without a duration
    every      the file has every iteration (1), or every second, third, ...

A check passes the text on like other files:

    @property
    def attached(self) -> dict[str, str]:
        return {samples.file_name(self.test_case): samples.samples_as_csv(self.calls)}

There are two limits. A file has at most MAXIMUM rows: of more calls, it has
only every second, third, ... iteration of each rank and call. Only the newest
KEPT sessions of a test case keep their file (`remove_old_samples`, called when
a new file is written); all other records stay. postprocess/records/samples.py
reads the files.
"""
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

COLUMNS = ('rank', 'call', 'iteration', 'start', 'seconds', 'every')
#: Maximum number of rows of a file: about 4 MB.
MAXIMUM = 100_000
#: Sessions of a test case that keep their file.
KEPT = 5
#: Names of calls: without characters that CSV would have to quote.
CALL = re.compile(r'[A-Za-z_][\w.:/+-]{0,59}')


class Sample(NamedTuple):
    """One call."""
    rank: int
    call: str
    iteration: int
    seconds: float
    #: Seconds since the program began; None: unknown.
    start: float | None = None


def samples_as_csv(samples: Iterable[Sample]) -> str:
    """The text of the file, with at most MAXIMUM rows.

    :raises ValueError: there are more pairs of rank and call than rows
    """
    series: dict[tuple[int, str], dict[int, Sample]] = defaultdict(dict)
    number = 0
    for one in samples:
        series[one.rank, one.call][one.iteration] = one
        number += 1
    if len(series) > MAXIMUM:
        raise ValueError(
            f'there are {len(series)} pairs of rank and call, but at most '
            f'{MAXIMUM} are allowed; leave out some of the ranks')
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


def file_name(test_case: str) -> str:
    """Name of the file of a test case.

    :param test_case: its short id
    """
    return f'samples-{test_case}.csv'


def remove_old_samples(files: Path, test_case: str) -> None:
    """Remove the samples of a test case, except those of the newest KEPT sessions.

    :param files: the folder `files` of the perflogs
    :param test_case: its short id
    """
    by_session: dict[str, list[Path]] = defaultdict(list)
    for path in files.glob(f'*/*/{file_name(test_case)}'):
        by_session[path.parents[1].name].append(path)
    # Names of sessions begin with their time.
    for session in sorted(by_session)[:-KEPT]:
        for path in by_session[session]:
            path.unlink(missing_ok=True)
