"""A record of a node's CPU usage while servers run."""
from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

#: Columns of the file: seconds since 1970, then ticks since boot, summed over
#: the CPUs; system includes interrupts, steal is time taken by a hypervisor.
COLUMNS = ('at', 'user', 'system', 'idle', 'steal')


def sum_cpu_ticks(text: str, cpus: Iterable[int]) -> tuple[int, int, int, int]:
    """User, system, idle and steal ticks of these CPUs.

    :arg text: contents of /proc/stat.
    """
    names = {f'cpu{number}' for number in cpus}
    ticks = [0, 0, 0, 0]
    # See proc_stat(5); user and nice include the guests' ticks.
    to = (0, 0, 1, 2, 2, 1, 1, 3)
    for line in text.splitlines():
        name, *cells = line.split()
        if name in names:
            for place, cell in zip(to, cells, strict=False):
                ticks[place] += int(cell)
    return ticks[0], ticks[1], ticks[2], ticks[3]


class Usage:
    """A CSV file with one row per interval (in seconds)."""

    def __init__(self, path: Path, cpus: Iterable[int], interval: float
                 ) -> None:
        self.path, self.cpus, self.interval = path, list(cpus), interval
        self.next = 0.0
        path.write_text(','.join(COLUMNS) + '\n')

    def write_row_if_due(self) -> None:
        """Write a row if one is due."""
        now = time.time()
        if now >= self.next:
            self.next = max(self.next + self.interval, now)
            text = Path('/proc/stat').read_text()
            with self.path.open('a') as file:
                print(f'{now:.3f}', *sum_cpu_ticks(text, self.cpus), sep=',',
                      file=file)
