"""A rank of an MPI program that a step of the clients starts.

The launcher starts `services rank FILE -- PROGRAM ...` for each rank, bound to
no CPU: a server of the suite may run on the same node, and only the conductor
knows on which CPUs. The rank binds itself to the CPUs that the conductor
assigned, reports them in a line on standard error, and becomes the program.

    plumbline-client HOST CPUS                 e.g. plumbline-client n2 0,4
"""
from __future__ import annotations

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

from .processes import set_parent_death_signal

if TYPE_CHECKING:
    from .agent import Process

#: Variables in which launchers pass a rank its number on its node. Slurm's
#: is last, because mpirun in a batch job passes on the variable of the script.
LOCAL_RANK = ('OMPI_COMM_WORLD_LOCAL_RANK', 'MPI_LOCALRANKID',
              'PALS_LOCAL_RANKID', 'FLUX_TASK_LOCAL_ID', 'SLURM_LOCALID')

#: Beginnings of the suite's own lines.
OURS = ('plumbline-', '+ ')


def local_rank(environ: Mapping[str, str]) -> int:
    """The number of this rank on its node.

    :raises ValueError: the launcher is unknown.
    """
    for name in LOCAL_RANK:
        if name in environ:
            return int(environ[name])
    raise ValueError('the launcher does not pass the number of the rank on '
                     f'its node: none of {", ".join(LOCAL_RANK)} is set')


def main(file: str, command: list[str]) -> int:
    """Bind this process and become the program.

    :returns: 1 if that is not possible, after one line on standard error.
    """
    # Ranks end with their launcher's daemon on the node, whatever kills it.
    set_parent_death_signal(signal.SIGKILL)
    host = socket.gethostname().partition('.')[0]
    try:
        sets = json.loads(Path(file).read_text())
        subset = sets[host][local_rank(os.environ)]
        os.sched_setaffinity(0, subset)
        # The kernel reduces a set that is only partly allowed, without error.
        if os.sched_getaffinity(0) != set(subset):
            raise ValueError(f'it must run on the CPUs {subset}, but may use '
                             f'only {sorted(os.sched_getaffinity(0))}')
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        # In one call: other ranks write to this file, too.
        os.write(2, f'plumbline-client {host} '
                 f'{",".join(map(str, subset))}\n'.encode())
        os.execvp(command[0], command)
    except (KeyError, IndexError):
        why = (f'the launcher started too many ranks on {host}; the plan has '
               + ', '.join(f'{len(s)} on {h}' for h, s in sets.items()))
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

    def read_log(self) -> str:
        return self.process.log.read_text(errors='replace')

    def first_error_lines(self, lines: int = 2) -> str:
        """The first lines of its standard error, from the rank that failed.

        Later lines are those of the launcher about the other ranks.
        """
        return ' | '.join([
            line.strip() for line in self.read_log().splitlines()
            if line.strip(' -=*') and not line.startswith(OURS)][:lines])

    def describe_wrong_rank_placement(self) -> str:
        """The difference between the ranks and the plan; empty: none."""
        reported = Counter(re.findall(r'plumbline-client (\S+) (\S+)',
                                      self.read_log()))
        planned = Counter((host, ','.join(map(str, group)))
                          for host, sets in self.sets.items() for group in sets)
        if reported == planned:
            return ''
        return (f'{sum((planned & reported).values())} of '
                f'{sum(planned.values())} ranks started where the plan placed '
                'them; check that the launcher belongs to the MPI of the '
                'program')


def read_observer_lines(log: Path) -> list[str]:
    """Lines of the observers of an MPI program's ranks."""
    return re.findall(r'plumbline-(?:node|left) \S+ \{[^{}]*\}',
                      log.read_text(errors='replace'))
