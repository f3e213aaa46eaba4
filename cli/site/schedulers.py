"""Whether the schedulers of a site answer, and which nodes they have, for
`./plumb doctor`. Slurm and PBS are asked; of others only the command that submits
jobs is known."""
from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from cli.setup.venv import SetupError
from cli.site import nodes, pbs
from config.console import shortened_list_text
from config.sessions.slurm_jobs import PBS, SLURM

#: Commands whose output pbs.parse_partitions reads.
PBS_COMMANDS = (('pbsnodes', '-a', '-F', 'json'), ('qstat', '-Qf', '-F', 'json'))


class SchedulerAnswer(NamedTuple):
    """What a scheduler reports of a partition of the site."""
    #: The nodes, in words; '': why is set.
    text: str
    #: Why no job can start; '': jobs can.
    why: str = ''
    #: The error of the scheduler's command, which all its partitions share; '': none.
    error: str = ''
    #: Number of nodes of the partition, in whatever state; 0: it does not exist.
    nodes: int = 0


def query_partitions(system: Mapping[str, Any]) -> dict[str, SchedulerAnswer]:
    """Partition of the site -> answer; without partitions of other schedulers."""
    answers = {}
    known: dict[bool, list[nodes.Partition] | SetupError] = {}
    for part in system['partitions']:
        is_slurm = part['scheduler'] in SLURM
        if not is_slurm and part['scheduler'] not in PBS:
            continue
        if is_slurm not in known:
            try:
                known[is_slurm] = nodes.query_sinfo() if is_slurm else _query_pbs()
            except SetupError as err:
                known[is_slurm] = err
        answer = known[is_slurm]
        answers[part['name']] = (
            SchedulerAnswer('', 'the scheduler does not answer', str(answer))
            if isinstance(answer, SetupError) else
            describe_nodes(part['name'], *_nodes_of_partition(part, answer, is_slurm)))
    return answers


def _query_pbs() -> list[nodes.Partition]:
    """The queues of PBS now.

    :raises SetupError: a command fails, or does not answer
    """
    return pbs.parse_partitions(*(
        nodes.ask_scheduler(command)[0] for command in PBS_COMMANDS))


def _nodes_of_partition(part: Mapping[str, Any], known: list[nodes.Partition],
                        is_slurm: bool) -> tuple[dict[str, nodes.Node], str]:
    """The nodes that the access options of a partition leave, and the names of the
    scheduler's partitions; '': its default one."""
    access = list(map(str, part.get('access', ())))
    if is_slurm:
        place = nodes.parse_access(access)
        return nodes.nodes_of_access(place, nodes.nodes_by_partition(known)), ','.join(
            place.partitions)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('-q', default='')
    queue = parser.parse_known_args(
        [word for text in access for word in shlex.split(text)])[0].q
    return {node.name: node for one in known if queue in ('', one.name)
            for node in one.nodes}, queue


def describe_nodes(name: str, nodes_by_name: Mapping[str, nodes.Node], where: str
                   ) -> SchedulerAnswer:
    """The nodes of a partition of the site, in words.

    :param where: the scheduler's partition or queue; '': its default one
    """
    if not nodes_by_name:
        return SchedulerAnswer(
            '', f'the scheduler has no partition {where or "(default)"}, which '
            f'partition {name} uses; correct access in system.py')
    pool = nodes.Pool(where, nodes_by_name)
    out = shortened_list_text(list(map(str, pool.unusable_nodes)))
    if not pool.usable_nodes:
        return SchedulerAnswer('', f'no node of partition {name} takes jobs: {out}',
                               nodes=len(nodes_by_name))
    return SchedulerAnswer(
        f'{len(pool.usable_nodes)} of {len(nodes_by_name)} nodes take jobs '
        f'({len(pool.idle_nodes)} idle)' + (f'; left out: {out}' if out else ''),
        nodes=len(nodes_by_name))
