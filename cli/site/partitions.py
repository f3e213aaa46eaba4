"""Wrong values of a partition that otherwise only a job reveals.

ReFrame's schema accepts any text in `access` and any numbers in `processor`.
The first job would then fail in the scheduler, or place ranks on CPUs that do
not exist.
"""
from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from config.commandline import is_duration
from config.sessions.slurm_jobs import SLURM

#: Long options of sbatch, as its manual has them (Slurm 25.05).
SBATCH = '''
    account acctg-freq array batch bb bbf begin chdir cluster-constraint
    clusters comment constraint container container-id contiguous core-spec
    cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline
    delay-boot dependency distribution error exclude exclusive export
    export-file extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus
    gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint hold
    ignore-pbs input job-name kill-on-invalid-dep licenses mail-type mail-user
    mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice
    no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core
    ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output
    overcommit oversubscribe parsable partition power prefer priority profile
    propagate qos quiet reboot requeue reservation resv-ports segment signal
    sockets-per-node spread-job stepmgr switches test-only thread-spec
    threads-per-core time time-min tmp tres-bind tres-per-task uid
    use-min-nodes usage verbose version wait wait-all-nodes wckey wrap
    '''


def partition_faults(path: str, system: Mapping[str, Any]) -> Iterator[str]:
    """Faults of the partitions of a system, each with what to write instead.

    :param path: the site's file, as the messages name it
    """
    for part in system['partitions']:
        where = f'{path}: partition {system["name"]}:{part["name"]}'
        if part['scheduler'] in SLURM:
            for fault in unknown_sbatch_options(part.get('access', ())):
                yield f'{where}: access: {fault}'
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


def unknown_sbatch_options(access: Iterable[str]) -> Iterator[str]:
    """Long options that sbatch does not have; short ones are not checked."""
    options = SBATCH.split()
    for text in access:
        name = text.partition('=')[0]
        # sbatch accepts any unique abbreviation.
        if name.startswith('--') and not any(
                known.startswith(name[2:]) for known in options):
            near = difflib.get_close_matches(name[2:], options, 1)
            yield (f'{text!r}: sbatch has no {name}'
                   + (f', did you mean --{near[0]}?' if near else
                      '; see its manual, sbatch(1)'))


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
