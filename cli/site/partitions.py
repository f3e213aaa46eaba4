"""Wrong values of a partition that the scheduler accepts.

Test cases would then disturb each other, or ranks would be placed on CPUs that do not
exist.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from config.commandline import is_duration
from config.sessions.slurm_jobs import SLURM


def partition_faults(path: str, system: Mapping[str, Any]) -> Iterator[str]:
    """Faults of the partitions of a system, each with what to write instead.

    :param path: the site's file, as the messages name it
    """
    for part in system['partitions']:
        where = f'{path}: partition {system["name"]}:{part["name"]}'
        limit = part.get('extras', {}).get('max_pending')
        if limit is not None and not is_duration(limit):
            yield (f'{where}: max_pending is {limit!r}; write a time such as '
                   "'30m' or '2h'")
        for fault in processor_contradictions(part.get('processor', {})):
            yield f'{where}: processor: {fault}'
        for fault in node_sharing_faults(part):
            yield f'{where}: {fault}'
    here = [part['name'] for part in system['partitions']
            if part['scheduler'] == 'local']
    if len(here) > 1:
        yield (f'{path}: partitions {" and ".join(here)} have the scheduler '
               'local. They are the same machine, so test cases of both '
               'would disturb each other; make them one partition')


def partitions_without_gpu_cores(system: Mapping[str, Any]) -> list[str]:
    """Partitions whose ranks may run far from their GPUs."""
    return [part['name'] for part in system['partitions']
            if {'gpu_nvidia', 'gpu_amd'} & {*part.get('features', ())}
            and not {'gpu_cores', 'launcher_free'} & {*part.get('extras', {})}]


def node_sharing_faults(part: Mapping[str, Any]) -> Iterator[str]:
    """Faults by which two test cases could run on one node at the same time.

    ReFrame runs up to `max_jobs` (default: 8) jobs of a partition at once. For
    schedulers other than Slurm, options for exclusive nodes are not checked.
    """
    if part['scheduler'] == 'local' and part.get('max_jobs') != 1:
        number = part.get('max_jobs', "8, ReFrame's default")
        yield (f'max_jobs is {number}, so test cases would disturb each other '
               "on this machine; write 'max_jobs': 1")
    # A site sets it so high if jobs share nodes on purpose.
    shared = part.get('extras', {}).get('others_cpu_limit', 0) >= 1
    # With a value (user, mcs) it admits other jobs of the same user.
    if part['scheduler'] in SLURM and not shared and not any(
            text.startswith('--exclus') and '=' not in text
            for text in part.get('access', ())):
        yield ("access has no --exclusive, so two test cases could disturb "
               "each other on one node; add '--exclusive', or, if jobs share "
               "nodes on purpose, add others_cpu_limit (1 or more) to the "
               "extras")


def processor_contradictions(processor: Mapping[str, Any]) -> Iterator[str]:
    """Numbers that contradict each other (ReFrame's `processor`)."""
    cpus, a_core, a_socket, sockets = (processor.get(name) for name in (
        'num_cpus', 'num_cpus_per_core', 'num_cpus_per_socket',
        'num_sockets'))
    if cpus and a_core and cpus % a_core:
        yield (f'num_cpus is {cpus}, which is not a multiple of '
               f'num_cpus_per_core ({a_core}); correct one of them')
    if cpus and a_socket and sockets and cpus != a_socket * sockets:
        yield (f'num_cpus is {cpus}, but num_sockets x num_cpus_per_socket '
               f'is {sockets} x {a_socket} = {sockets * a_socket}; correct '
               'one of them')
