"""Records CPU usage of a node while servers run."""
from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

#: Columns of the file: seconds since 1970, then ticks since boot, summed over
#: the CPUs; system includes interrupts, steal is time taken by a hypervisor.
COLUMNS = ('at', 'user', 'system', 'idle', 'steal')


def cpu_ticks(text: str, cpus: Iterable[int]) -> tuple[int, int, int, int]:
    """User, system, idle, steal of these CPUs in a text of /proc/stat."""
    expected = {f'cpu{number}' for number in cpus}
    results = [0, 0, 0, 0]
    # proc_stat(5); user and nice include the guests' ticks.
    to = (0, 0, 1, 2, 2, 1, 1, 3)
    for line in text.splitlines():
        name, *cells = line.split()
        if name in expected:
            for place, cell in zip(to, cells, strict=False):
                results[place] += int(cell)
    return results[0], results[1], results[2], results[3]


class Usage:
    """A CSV file with one row for every `interval` seconds."""

    def __init__(self, path: Path, cpus: Iterable[int], interval: float
                 ) -> None:
        self.path, self.cpus, self.interval = path, list(cpus), interval
        self.next = 0.0
        path.write_text(','.join(COLUMNS) + '\n')

    def note(self) -> None:
        """Writes a row if one is due."""
        now = time.time()
        if now >= self.next:
            self.next = max(self.next + self.interval, now)
            text = Path('/proc/stat').read_text()
            with self.path.open('a') as file:
                print(f'{now:.3f}', *cpu_ticks(text, self.cpus), sep=',',
                      file=file)
