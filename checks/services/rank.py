"""A rank of an MPI program that a step of the clients starts.

The launcher starts `services rank FILE -- PROGRAM ...` for each rank, bound to
no CPU: a server of the suite may run on the same node, and only the conductor
knows on which CPUs. The rank binds itself to its own of those, says so in a
line on standard error, and becomes the program.

    plumbline-client HOST CPUS                 e.g. plumbline-client n2 0,4
"""
from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent import Process

#: Variables in which launchers tell a rank its number on its node. Slurm's
#: comes last: mpirun in a batch job passes on that of the script.
LOCAL_RANK = ('OMPI_COMM_WORLD_LOCAL_RANK', 'MPI_LOCALRANKID',
              'PALS_LOCAL_RANKID', 'FLUX_TASK_LOCAL_ID', 'SLURM_LOCALID')

_PR_SET_PDEATHSIG = 1

#: Beginnings of lines that are the suite's own.
OURS = ('plumbline-', '+ ')


def local_rank(environ: Mapping[str, str]) -> int:
    """The number of this rank on its node.

    :raises ValueError: no known launcher has started it.
    """
    for name in LOCAL_RANK:
        if name in environ:
            return int(environ[name])
    raise ValueError('the launcher does not tell the rank\'s number on its '
                     f'node: none of {", ".join(LOCAL_RANK)} is set')


def main(file: str, command: list[str]) -> int:
    """Becomes the program; returns 1 where it cannot, after one line."""
    # Ranks end with their launcher's daemon on the node, whatever kills it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    host = socket.gethostname().partition('.')[0]
    try:
        sets = json.loads(Path(file).read_text())
        subset = sets[host][local_rank(os.environ)]
        os.sched_setaffinity(0, subset)
        # A set that is only in part allowed is cut down without an error.
        if os.sched_getaffinity(0) != set(subset):
            raise ValueError(f'CPUs {subset} were meant for it, it may run on '
                             f'{sorted(os.sched_getaffinity(0))}')
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        # In one piece: other ranks write there too.
        os.write(2, f'plumbline-client {host} '
                 f'{",".join(map(str, subset))}\n'.encode())
        os.execvp(command[0], command)
    except (KeyError, IndexError):
        why = (f'the launcher started a rank too many on {host}: expected '
               'are ' + ', '.join(f'{len(s)} on {h}'
                                  for h, s in sets.items()))
    except (OSError, ValueError) as err:
        why = f'a rank on {host} cannot be started: {err}'
    print(why, file=sys.stderr)
    return 1


@dataclass
class Launched:
    """An MPI program, from the conductor's side."""
    process: Process
    #: Node -> CPU sets of its ranks.
    sets: Mapping[str, list[list[int]]]

    def text(self) -> str:
        return self.process.log.read_text(errors='replace')

    def error_output(self, lines: int = 2) -> str:
        """The first words on its standard error: of the rank that failed.
        Launchers speak after that, about the others."""
        return ' | '.join([
            line.strip() for line in self.text().splitlines()
            if line.strip(' -=*') and not line.startswith(OURS)][:lines])

    def rank_fault(self) -> str:
        """What is wrong with the ranks that reported; empty: nothing."""
        output = Counter(re.findall(r'plumbline-client (\S+) (\S+)',
                                  self.text()))
        want = Counter((host, ','.join(map(str, group)))
                       for host, sets in self.sets.items() for group in sets)
        if output == want:
            return ''
        return (f'{sum(want.values())} ranks asked for, '
                f'{sum((want & output).values())} started where they should; '
                'does the launcher belong to the MPI of the program?')


def observer_lines(log: Path) -> list[str]:
    """Lines of the observers of an MPI program's ranks."""
    return re.findall(r'plumbline-(?:node|left) \S+ \{[^{}]*\}',
                      log.read_text(errors='replace'))
