"""CPUs of the processes of a job on a node, and the start of a client.

The option `roles` of a process has all servers and clients of its node that are bound
to CPUs, `server=2x4,client=1x8`: two servers with four CPUs each, and a client with
eight; `2x0` divides all CPUs of the node. Each process computes the same assignment
from it and takes its own part, so that no process has to know another.
"""
from __future__ import annotations

import os
from collections.abc import Mapping

from checks.machine import cpus

from . import Failed

#: Variables in which launchers pass a rank its number on its node. Slurm's
#: is last, because mpirun in a batch job passes on the variable of the script.
LOCAL_RANK = ('OMPI_COMM_WORLD_LOCAL_RANK', 'MPI_LOCALRANKID',
              'PALS_LOCAL_RANKID', 'SLURM_LOCALID')


def own_cpus(roles: str, role: str, slot: int) -> list[int]:
    """The CPUs of a process of this node; all, if its role is not among `roles`.

    :param slot: number of the process on the node; -1: its local rank
    :raises Failed: the node has no such process.
    """
    available = cpus.available_cpus()
    requests = [cpus.CpuRequest(name, *map(int, each.split('x'))) for name, each in
                (text.split('=') for text in roles.split(',') if text)]
    sets = cpus.assign_cpus(available, requests)
    if role not in sets:
        return [cpu.number for cpu in available]
    if slot < 0:
        slot = next((int(os.environ[name]) for name in LOCAL_RANK
                     if name in os.environ), -1)
        if slot < 0:
            raise Failed('the launcher does not number the processes of a node: '
                         f'none of {", ".join(LOCAL_RANK)} is set')
    if slot >= len(sets[role]):
        raise Failed(f'the launcher started more than {len(sets[role])} processes '
                     f'{role!r} on {host_name()}; check the options of the launcher in '
                     'the job script')
    return sets[role][slot]


def host_name() -> str:
    """The name of this node without its domain."""
    return os.uname().nodename.partition('.')[0]


def become_client(options: Mapping[str, str], command: list[str]) -> int:
    """Bind this process, report its CPUs, and become a client.

    :raises Failed: it has no CPUs here.
    """
    subset = own_cpus(options.get('roles', ''), options['role'],
                      int(options.get('slot', 0)))
    os.sched_setaffinity(0, subset)
    # In one call: other ranks write to this file, too.
    os.write(2, f'plumbline-client {host_name()} {options["role"]} '
             f'{",".join(map(str, subset))}\n'.encode())
    command = [word.replace('{cpus}', str(len(subset))).replace('{node}', host_name())
               for word in command]
    os.execvp(command[0], command)      # program.sh
