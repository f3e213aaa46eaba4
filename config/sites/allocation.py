"""An allocation of Slurm or PBS in which a whole session runs, without more jobs."""
from __future__ import annotations

import os
import re
import runpy
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import places
from ..commandline import SetupError
from . import topology

#: Partitions of Slurm, or queues of PBS, in the options for a job.
_QUEUES = re.compile(r'(?:^| )(?:-p|-q|--partition|--queue)[ =]?([^ ]+)')


def allocated_nodes() -> list[str]:
    """Names of the nodes of the allocation of this process, the first one first.

    :raises SetupError: there is no allocation, or this is not its first node
    """
    if listed := os.environ.get('SLURM_JOB_NODELIST'):
        names = topology.expand_host_list(listed)
    elif file := os.environ.get('PBS_NODEFILE'):
        names = [*dict.fromkeys(Path(file).read_text().split())]
    else:
        raise SetupError('--inside: this process has no allocation of Slurm or PBS; '
                         'run the command in a job script (sbatch, qsub)')
    here = socket.gethostname()
    if here.partition('.')[0] != names[0].partition('.')[0]:
        there = (f'srun --overlap --cpu-bind=none --pty -N1 -n1 -w {names[0]} ./plumb '
                 'run --inside ...' if listed else 'in a job script (qsub)')
        raise SetupError(f'--inside: this is {here}, but the first node of the '
                         f'allocation is {names[0]}; run the command there: {there}')
    return names


def site_configuration_inside() -> dict[str, Any]:
    """The configuration of the site, with the partitions that the allocation is of.

    Their scheduler is local, and their launcher stays.

    :raises SetupError: as `allocated_nodes`, or no partition fits
    """
    nodes = allocated_nodes()
    folder = places.site_folder_of_name(places.default_site())
    configuration = runpy.run_path(f'{folder}/{places.SYSTEM}')['site_configuration']
    system = configuration['systems'][0]
    system['partitions'] = partitions_of_allocation(system['partitions'])
    for part in system['partitions']:
        part.update(scheduler='local', access=[], max_jobs=1, extras={
            **part.get('extras', {}), 'max_nodes': len(nodes), 'allocation': nodes})
    return configuration


def partitions_of_allocation(partitions: Sequence[dict[str, Any]]
                             ) -> list[dict[str, Any]]:
    """The partitions of a site whose `access` names the partition of Slurm, or the
    queue of PBS, of the allocation; if there is none, those that name none.

    :raises SetupError: all name another one
    """
    # PBS_O_QUEUE is that of qsub, which may route the job to another one.
    queues = {os.environ[name] for name in (
        'SLURM_JOB_PARTITION', 'PBS_QUEUE', 'PBS_O_QUEUE') if os.environ.get(name)}
    named = [(_QUEUES.findall(' '.join(part.get('access', []))), part)
             for part in partitions]
    fitting = [part for names, part in named if not queues
               or not queues.isdisjoint(','.join(names).split(','))] or [
        part for names, part in named if not names]
    if not fitting:
        raise SetupError(f'--inside: no partition of the site has '
                         f'{" or ".join(sorted(queues))}, the partition or queue of '
                         'the allocation, in its access')
    return fitting


def narrowed_variables(names: Sequence[str], ranks_per_node: int, folder: Path
                       ) -> dict[str, str]:
    """Variables from which launchers read their nodes, for a part of the allocation.

    :param names: names of the nodes, the first ones of the allocation
    :param folder: for the lists of nodes of PBS and Open MPI
    """
    nodes, ranks = len(names), len(names) * ranks_per_node
    if not os.environ.get('SLURM_JOB_NODELIST'):
        # With support for PBS, Open MPI reads a file with the name of the job beside
        # PBS_NODEFILE. Without, as in packages of Debian, it needs a hostfile.
        file = folder / os.environ.get('PBS_JOBID', 'nodefile')
        hostfile = folder / 'hostfile'
        file.write_text(''.join(f'{name}\n' * ranks_per_node for name in names))
        hostfile.write_text(''.join(f'{name} slots={ranks_per_node}\n'
                                    for name in names))
        return {'PBS_NODEFILE': str(file),
                'OMPI_MCA_orte_default_hostfile': str(hostfile),
                'PRTE_MCA_prte_default_hostfile': str(hostfile)}
    return {**dict.fromkeys(('SLURM_NODELIST', 'SLURM_JOB_NODELIST'), ','.join(names)),
            **dict.fromkeys(('SLURM_NNODES', 'SLURM_JOB_NUM_NODES'), str(nodes)),
            **dict.fromkeys(('SLURM_NTASKS', 'SLURM_NPROCS'), str(ranks)),
            'SLURM_NTASKS_PER_NODE': str(ranks_per_node),
            # Slurm's 2(x3), which the shell would need in quotes.
            'SLURM_TASKS_PER_NODE': ','.join([str(ranks_per_node)] * nodes)}
