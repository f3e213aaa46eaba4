"""The nodes of Slurm's partitions, and of those of a site. Only this module calls
sinfo (`query_sinfo`).
"""
from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cli.setup.venv import SetupError
from config.sessions.slurm_jobs import SLURM
from config.sites import topology

#: Partition (`*`: the default one), node, state, CPUs, sockets, cores of a
#: socket, threads of a core, GRES, nodes of a job, and why the node is out:
#: last, for it may have any letter in it.
SINFO = ['sinfo', '--Node', '--noheader',
         '--format=%P|%N|%T|%c|%X|%Y|%Z|%G|%s|%E']
#: Seconds for sinfo to answer.
LIMIT = 60
#: States of nodes that take jobs, at once or later. A node in any other state,
#: also an unknown one, is left out and reported.
TAKES = ('idle', 'mixed', 'allocated', 'completing', 'planned', 'powering_up',
         'powered_down', 'powering_down')
#: Signs behind a state: the node does not answer, or is to be rebooted, or is
#: kept for maintenance. Others (`~`, `#`, `!`, `%`, `-`) stand for power saving and
#: plans.
OUT = re.compile(r'[*$@^]')
#: Options of sbatch that leave a job some nodes of a partition only, and
#: which ones is not known here.
CHOOSES = (('-w', '--nodelist'), ('-C', '--constraint'), ('-F', '--nodefile'),
           ('-M', '--clusters'), (None, '--reservation'))


@dataclass(frozen=True)
class Node:
    """A node, as sinfo reports it."""
    name: str
    state: str
    #: Why it is out, in its administrator's words; '': no reason given.
    reason: str = ''
    cpus: int = 1
    sockets: int = 1
    #: Of a socket.
    cores: int = 1
    #: Of a core.
    threads: int = 1
    gres: str = ''

    @property
    def base_state(self) -> str:
        """The state without signs."""
        return re.sub(r'\W+$', '', self.state).lower()

    @property
    def is_usable(self) -> bool:
        """Whether it takes jobs, at once or later."""
        return self.base_state in TAKES and not OUT.search(self.state)

    @property
    def is_idle(self) -> bool:
        """Whether a job for it would start at once."""
        return self.is_usable and self.base_state in ('idle', 'powered_down')

    @property
    def gpu_models(self) -> dict[str, int]:
        """Model of GPUs ('': unknown) -> how many."""
        return gpu_models_of_gres(self.gres)

    @property
    def hardware_kind(self) -> tuple[int, int, int, int, frozenset[tuple[str, int]]]:
        """What makes two nodes alike."""
        return (self.cpus, self.sockets, self.cores, self.threads,
                frozenset((model.lower(), number)
                          for model, number in self.gpu_models.items()))

    def __str__(self) -> str:
        return (f'{self.name} ({self.state}'
                f'{": " + self.reason if self.reason else ""})')


@dataclass
class Partition:
    """A partition of Slurm, or a queue of PBS."""
    name: str
    default: bool
    #: Most nodes of a job; None or 0: no limit.
    largest: int | None
    nodes: list[Node]
    #: Fewest nodes of a job.
    smallest: int = 1

    @property
    def usable_nodes(self) -> list[Node]:
        """Those that take jobs; all, if none does now."""
        return [node for node in self.nodes if node.is_usable] or self.nodes

    @property
    def node_kinds(self) -> list[tuple[tuple, int]]:
        """Kinds of usable nodes and how many there are, the most common first."""
        return Counter(node.hardware_kind for node in self.usable_nodes).most_common()

    @property
    def node_of_most_common_kind(self) -> Node:
        """A node of the most common kind."""
        kind, _ = self.node_kinds[0]
        return next(n for n in self.usable_nodes if n.hardware_kind == kind)

    @property
    def max_nodes_per_job(self) -> int:
        """Nodes of the largest job that can run."""
        _, usable = self.node_kinds[0]
        if not any(node.is_usable for node in self.nodes):
            usable = 1
        return min(usable, self.largest or usable)


@dataclass(frozen=True)
class Pool:
    """The nodes that jobs of some partitions of a site can get."""
    #: Partition of Slurm, '' for its default one.
    name: str
    nodes: Mapping[str, Node] = field(default_factory=dict)
    #: Those that the site keeps its jobs from.
    excluded: frozenset[str] = frozenset()

    @property
    def usable_nodes(self) -> frozenset[str]:
        return frozenset(n.name for n in self.nodes.values() if n.is_usable)

    @property
    def idle_nodes(self) -> frozenset[str]:
        return frozenset(n.name for n in self.nodes.values() if n.is_idle)

    @property
    def unusable_nodes(self) -> list[Node]:
        """Those that are left out: drained, down and the like."""
        return [n for n in self.nodes.values() if not n.is_usable]


def gpu_models_of_gres(gres: str) -> dict[str, int]:
    """The GPUs of a GRES: model ('': unknown) -> how many.

    >>> gpu_models_of_gres('gpu:H100:8(S:0-1),nvme:1,shard:16')
    {'H100': 8}
    """
    models: Counter[str] = Counter()
    for item in re.sub(r'\([^)]*\)', '', gres).split(','):
        kind, *words = item.replace(':no_consume', '').split(':')
        if kind == 'gpu' and words and words[-1].isdigit() and int(words[-1]):
            models['+'.join(words[:-1])] += int(words[-1])
    return dict(models)


def parse_sinfo(text: str) -> list[Partition]:
    """Partitions from SINFO: a line for each node of each. Lines of another
    form are skipped: a warning, or an older recording without the reason.

    >>> parse_sinfo('batch*|n1|idle|2|1|2|1|(null)|1-4|none')[0].nodes[0].is_idle
    True
    """
    parts: dict[str, Partition] = {}
    for line in text.splitlines():
        cells = line.strip().split('|', 9)
        if len(cells) < 9:
            continue
        name, node, state, *numbers, gres, jobs = cells[:9]
        try:
            cpus, sockets, cores, threads = map(int, numbers)
        except ValueError:
            continue
        smallest, _, largest = jobs.rpartition('-')
        part = parts.setdefault(name.rstrip('*'), Partition(
            name.rstrip('*'), name.endswith('*'),
            int(largest) if largest.isdigit() else None, [],
            int(smallest) if smallest.isdigit() else 1))
        reason = ''.join(cells[9:])
        part.nodes.append(Node(
            node, state, '' if reason == 'none' else reason, cpus, sockets,
            cores, threads, '' if gres == '(null)' else gres))
    return list(parts.values())


def ask_scheduler(command: Sequence[str]) -> tuple[str, str]:
    """What a command of the scheduler prints, and its errors in one line.

    :raises SetupError: it fails, or does not answer
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise SetupError(f'{command[0]}: no answer in {LIMIT} s') from None
    except OSError as err:
        raise SetupError(f'{command[0]}: {err.strerror}: run this on a node where '
                         'jobs are submitted') from None
    errors = ' '.join(done.stderr.split())
    if done.returncode:
        raise SetupError(f'{command[0]}: {errors or f"exit code {done.returncode}"}')
    return done.stdout, errors


def query_sinfo() -> list[Partition]:
    """The partitions that sinfo reports now.

    :raises SetupError: sinfo fails, or reports no node
    """
    output, errors = ask_scheduler(SINFO)
    known_partitions = parse_sinfo(output)
    if not known_partitions:
        raise SetupError('sinfo reports no node in any partition: '
                         + (errors or output.strip()[:80] or 'no output'))
    return known_partitions


def nodes_by_partition(
    slurm_partitions: Iterable[Partition],
) -> dict[str, dict[str, Node]]:
    """Partition of Slurm -> its nodes; '' is the default one."""
    every = {}
    for part in slurm_partitions:
        every[part.name] = {node.name: node for node in part.nodes}
        if part.default:
            every[''] = every[part.name]
    return every


class Access(NamedTuple):
    """The options of sbatch that choose the nodes of a job."""
    #: Partitions of Slurm; '': its default one.
    partitions: tuple[str, ...]
    excluded: frozenset[str]
    #: Options that choose among the nodes by other means.
    chooses: tuple[str, ...]


def parse_access(access: Iterable[str]) -> Access:
    """The options on nodes in the access of a partition of a site."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('-p', '--partition', default='')
    parser.add_argument('-x', '--exclude', default='')
    for names in CHOOSES:
        parser.add_argument(*filter(None, names))
    values, _ = parser.parse_known_args(
        [word for text in access for word in shlex.split(text)])
    chosen = [f'{long}={value}' for _, long in CHOOSES
              if (value := getattr(values, long[2:]))]
    return Access(tuple(values.partition.split(',')),
                  frozenset(topology.expand_host_list(values.exclude)), tuple(chosen))


def nodes_of_access(place: Access, there: Mapping[str, Mapping[str, Node]]
                    ) -> dict[str, Node]:
    """The nodes of the partitions of Slurm that options name, less those that they
    exclude.

    :param there: what `nodes_by_partition` says
    """
    return {name: node for one in place.partitions
            for name, node in there.get(one, {}).items()
            if name not in place.excluded}


def find_node_pools(system: Mapping[str, Any]) -> tuple[dict[str, Pool], str]:
    """The nodes of a site's partitions of Slurm, and why those of some are unknown.

    :param system: of the site's configuration
    :returns: partition of the site -> its nodes
    """
    places = {part['name']: parse_access(part.get('access', ()))
              for part in system['partitions'] if part['scheduler'] in SLURM}
    free = {name: place for name, place in places.items()
            if not place.chooses and len(place.partitions) == 1}
    why = [f'nodes of {", ".join(sorted(set(places) - set(free)))} are '
           'chosen by the site (access)'] * (len(free) < len(places))
    pools = {}
    try:
        known = nodes_by_partition(query_sinfo()) if free else {}
    except SetupError as err:
        return {}, f'the nodes cannot be listed: {err}'
    for name, place in free.items():
        pools[name] = Pool(place.partitions[0], nodes_of_access(place, known),
                           place.excluded)
        if not pools[name].nodes:
            del pools[name]
            why.append(f'the nodes of {name} cannot be listed: '
                       + _missing_partition_message(place.partitions, known))
    return pools, '; '.join(why)


def _missing_partition_message(
    names_given: Iterable[str], there: Mapping[str, Any]
) -> str:
    names = ', '.join(filter(None, names_given))
    return ('Slurm has no ' + (f'partition {names}' if names else
                               'default partition')
            + f'; it has {", ".join(filter(None, there))}')


def query_nodes_of_access_options(access: Iterable[str], name: str
              ) -> tuple[dict[str, Node], Access]:
    """The nodes of the partitions of Slurm that options of sbatch name, less
    those that they exclude.

    :param name: of the partition of the site, for the error
    :raises SetupError: Slurm cannot be asked, or has no such partition
    """
    place, there = parse_access(access), nodes_by_partition(query_sinfo())
    if not any(map(there.get, place.partitions)):
        raise SetupError(f'access of {name}: '
                         + _missing_partition_message(place.partitions, there))
    return nodes_of_access(place, there), place
