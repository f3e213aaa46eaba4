"""The nodes that the schedulers have for the partitions of a site. Slurm and PBS are
asked; of others only the command that submits jobs is known (programs.py)."""
from __future__ import annotations

import argparse
import functools
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.setup.venv import SetupError
from cli.site import pbs
from cli.site.nodes import SINFO, Node, Partition, parse_sinfo
from config.console import shortened_list_text
from config.sessions.slurm_jobs import PBS, SLURM
from config.sites import topology

#: Commands whose output pbs.parse_partitions reads.
PBS_COMMANDS = (('pbsnodes', '-a', '-F', 'json'), ('qstat', '-Qf', '-F', 'json'))
#: Seconds for a command to answer.
LIMIT = 60
#: Options of sbatch that leave a job some nodes of a partition only, and
#: which ones is not known here.
CHOOSES = (('-w', '--nodelist'), ('-C', '--constraint'), ('-F', '--nodefile'),
           ('-M', '--clusters'), (None, '--reservation'))


@dataclass(frozen=True)
class Pool:
    """The nodes that jobs of a partition of a site can get."""
    #: Partition of Slurm, or queue of PBS; '' for the default one.
    name: str
    nodes: Mapping[str, Node]
    #: Those that the site keeps its jobs from.
    excluded: frozenset[str] = frozenset()
    #: Options of the site that choose among the nodes by other means.
    chooses: tuple[str, ...] = ()

    @property
    def usable_nodes(self) -> frozenset[str]:
        """Names of the nodes that take jobs, at once or later."""
        return frozenset(n.name for n in self.nodes.values() if n.is_usable)

    @property
    def idle_nodes(self) -> frozenset[str]:
        """Names of the nodes on which a job would start at once."""
        return frozenset(n.name for n in self.nodes.values() if n.is_idle)

    @property
    def unusable_nodes(self) -> list[Node]:
        """Those that are left out: drained, down and the like."""
        return [n for n in self.nodes.values() if not n.is_usable]

    @property
    def left_out_text(self) -> str:
        """`; left out:` and the nodes that take no jobs; '': all take jobs."""
        out = shortened_list_text([*map(str, self.unusable_nodes)])
        return f'; left out: {out}' * bool(out)

    def __str__(self) -> str:
        """How many nodes take jobs, and which do not."""
        return (f'{len(self.usable_nodes)} of {len(self.nodes)} nodes take jobs '
                f'({len(self.idle_nodes)} idle){self.left_out_text}')


#: Partition of a site -> its nodes, or why they are unknown.
Pools = Mapping[str, Pool | SetupError]


def query_pools(partitions: Iterable[Mapping[str, Any]]
                ) -> dict[str, Pool | SetupError]:
    """The nodes of partitions of a site now; without those of other schedulers.

    :param partitions: of the site's configuration
    """
    @functools.cache
    def ask(is_slurm: bool) -> list[Partition] | SetupError:
        try:
            return _query_slurm() if is_slurm else pbs.parse_partitions(
                *(_run_command(command) for command in PBS_COMMANDS))
        except SetupError as err:
            return err

    pools: dict[str, Pool | SetupError] = {}
    for part in partitions:
        if part['scheduler'] in SLURM or part['scheduler'] in PBS:
            is_slurm = part['scheduler'] in SLURM
            known = ask(is_slurm)
            pools[part['name']] = known if isinstance(
                known, SetupError) else _pool_of_partition(part, known, is_slurm)
    return pools


def query_pool(partition: Mapping[str, Any]) -> Pool:
    """The nodes of one partition of a site now.

    :raises SetupError: Slurm cannot be asked, or has no such partition
    """
    [pool] = query_pools([partition]).values()
    if isinstance(pool, SetupError):
        raise pool
    return pool


def find_node_pools(system: Mapping[str, Any]) -> tuple[dict[str, Pool], str]:
    """The nodes of a site's partitions of Slurm that a session may choose from, and
    why those of some are unknown.

    :param system: of the site's configuration
    :returns: partition of the site -> its nodes
    """
    pools, chosen = {}, []
    faults: dict[str, None] = {}
    for name, pool in query_pools(part for part in system['partitions']
                                  if part['scheduler'] in SLURM).items():
        if isinstance(pool, SetupError):
            faults[str(pool)] = None
        elif pool.chooses or ',' in pool.name:
            chosen.append(name)
        else:
            pools[name] = pool
    return pools, '; '.join([
        *[f'the nodes that jobs of {", ".join(sorted(chosen))} can get are not known, '
          'because access in system.py selects nodes'] * bool(chosen),
        *(f'the nodes cannot be listed: {fault}' for fault in faults)])


def _run_command(command: Sequence[str]) -> str:
    """What a command of the scheduler prints.

    :raises SetupError: it fails, does not answer, or prints nothing
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise SetupError(f'{command[0]}: no answer in {LIMIT} s; try again, '
                         'or check that the scheduler works') from None
    except OSError as err:
        raise SetupError(f'{command[0]}: {err.strerror}: run this on a node where '
                         'jobs are submitted') from None
    errors = ' '.join(done.stderr.split())
    if done.returncode or not done.stdout.strip():
        raise SetupError(f'{command[0]}: ' + (
            errors or (f'exit code {done.returncode}' if done.returncode else
                       'no output')))
    return done.stdout


def _query_slurm() -> list[Partition]:
    """The partitions that sinfo reports now.

    :raises SetupError: sinfo fails, or reports no node
    """
    output = _run_command(SINFO)
    if known := parse_sinfo(output):
        return known
    raise SetupError(f'sinfo reports no node in any partition: {output.strip()[:80]}')


def _pool_of_partition(part: Mapping[str, Any], known: Sequence[Partition],
                       is_slurm: bool) -> Pool | SetupError:
    """The nodes that the access options of a partition of a site leave.

    :param known: the partitions or queues of its scheduler
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(*(('-p', '--partition') if is_slurm else ('-q',)), default='',
                        dest='partition')
    parser.add_argument('-x', '--exclude', default='')
    for names in CHOOSES:
        parser.add_argument(*filter(None, names))
    options, _ = parser.parse_known_args(
        [word for text in part.get('access', ()) for word in shlex.split(str(text))])
    excluded = frozenset(topology.expand_host_list(options.exclude))
    names = options.partition.split(',')
    nodes = {node.name: node for name in names for one in known
             if (one.name == name or not name and one.default)
             for node in one.nodes if node.name not in excluded}
    for one in known:
        if one.name in names and one.closed:
            return SetupError(f'queue {one.name}, which partition {part["name"]} uses, '
                              f'takes no jobs: {one.closed}')
    if not nodes:
        return SetupError(
            f'{"Slurm" if is_slurm else "PBS"} has no '
            + (f'partition {options.partition}' if options.partition else
               'default partition')
            + f', which partition {part["name"]} uses; it has '
            f'{", ".join(one.name for one in known)}: correct access in system.py')
    return Pool(options.partition, nodes, excluded, tuple(
        f'{long}={value}' for _, long in CHOOSES
        if (value := getattr(options, long[2:])) is not None))
