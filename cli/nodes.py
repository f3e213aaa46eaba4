"""The nodes of a site's partitions: which can be had, which are due, and how
jobs are kept to some of them.

Slurm chooses the nodes of a job. A night does not: what it leaves to Slurm is
measured on the nodes that are free, always the same ones on a quiet cluster.
So the night measures on the nodes that were not measured for longest, besides
(`due`). Jobs are kept to nodes by excluding all others: `--nodelist` would
make also a job of one node, such as a build, take all of them.

ReFrame's own flexible allocation (`num_tasks = 0`) is not used: a test gets
another number of ranks then each night, so that its figures have no history,
and it fails where a node is down.
"""
from __future__ import annotations

import argparse
import math
import re
import shlex
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cli.partitions import SLURM
from config import topology

if TYPE_CHECKING:
    import pandas as pd

#: Node, partition (`*`: the default one), state, and why it is out.
SINFO = ['sinfo', '--Node', '--noheader', '--format=%N|%P|%T|%E']
#: Seconds for sinfo to answer.
LIMIT = 60
#: States of nodes that take jobs, at once or later. Only what stands here is
#: trusted: a state that is new is one that somebody looks at.
TAKES = ('idle', 'mixed', 'allocated', 'completing', 'planned', 'powering_up',
         'powered_down', 'powering_down')
#: Signs behind a state: the node does not answer, or is to be rebooted, or is
#: kept for maintenance. Others (`~`, `#`, `!`, `%`, `-`) tell of power saving
#: and plans.
OUT = re.compile(r'[*$@^]')


@dataclass(frozen=True)
class Node:
    """A node, as sinfo tells of it."""
    name: str
    state: str
    #: Why it is out, in its administrator's words; '': nobody said.
    reason: str = ''

    @property
    def base(self) -> str:
        """The state without signs."""
        return re.sub(r'\W+$', '', self.state).lower()

    @property
    def usable(self) -> bool:
        """Whether it takes jobs, at once or later."""
        return self.base in TAKES and not OUT.search(self.state)

    @property
    def idle(self) -> bool:
        """Whether a job for it would start at once."""
        return self.usable and self.base in ('idle', 'powered_down')

    def __str__(self) -> str:
        return (f'{self.name} ({self.state}'
                f'{": " + self.reason if self.reason else ""})')


@dataclass(frozen=True)
class Pool:
    """The nodes that jobs of some partitions of a site can get."""
    #: Partition of Slurm, '' for its default one.
    name: str
    nodes: Mapping[str, Node] = field(default_factory=dict)
    #: Those that the site keeps its jobs from.
    excluded: frozenset[str] = frozenset()

    @property
    def usable(self) -> frozenset[str]:
        return frozenset(n.name for n in self.nodes.values() if n.usable)

    @property
    def idle(self) -> frozenset[str]:
        return frozenset(n.name for n in self.nodes.values() if n.idle)

    @property
    def out(self) -> list[Node]:
        """Those that are left out: drained, down and the like."""
        return [n for n in self.nodes.values() if not n.usable]


def of_sinfo(text: str) -> dict[str, dict[str, Node]]:
    """Partition of Slurm -> its nodes; '' is the default one.

    >>> of_sinfo('n1|batch*|idle|none\\n')['']['n1'].idle
    True
    """
    found: dict[str, dict[str, Node]] = {}
    for line in text.splitlines():
        cells = line.strip().split('|', 3)
        if len(cells) != 4:
            continue
        name, partition, state, reason = cells
        node = Node(name, state, '' if reason == 'none' else reason)
        for key in {partition.rstrip('*'), ''} if partition.endswith('*') \
                else {partition}:
            found.setdefault(key, {})[name] = node
    return found


def place_of(access: Sequence[str]) -> tuple[str, set[str]] | None:
    """Partition of Slurm that options of sbatch name, '' for the default
    one, and nodes that they exclude.

    None where they choose among the nodes by other means, too.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('-p', '--partition', default='')
    parser.add_argument('-x', '--exclude', default='')
    for short, long in (('-w', '--nodelist'), ('-C', '--constraint'),
                        ('-F', '--nodefile'), ('-M', '--clusters')):
        parser.add_argument(short, long, dest='chooses')
    parser.add_argument('--reservation', dest='chooses')
    found, _ = parser.parse_known_args(
        [word for text in access for word in shlex.split(text)])
    if found.chooses or ',' in found.partition:
        return None
    return found.partition, set(topology.expand(found.exclude))


def ask(system: Mapping[str, Any]) -> tuple[dict[str, Pool], str]:
    """The pools of a site's partitions, and why there are none of some.

    :param system: of the site's configuration
    :returns: partition of the site -> pool, those of a pool have the same one
    """
    places = {part['name']: place_of(part.get('access', ()))
              for part in system['partitions'] if part['scheduler'] in SLURM}
    if not places:
        return {}, ''
    free = {name: place for name, place in places.items() if place}
    why = ', '.join(sorted(set(places) - set(free)))
    why = why and f'nodes of {why} are chosen by the site (access)'
    if not free:
        return {}, why
    try:
        done = subprocess.run(SINFO, capture_output=True, text=True,
                              check=True, timeout=LIMIT)
    except (OSError, subprocess.SubprocessError) as err:
        said = getattr(err, 'stderr', '') or str(err)
        return {}, f'no node was chosen: sinfo: {" ".join(said.split())}'
    return pools(free, of_sinfo(done.stdout)), why


def pools(places: Mapping[str, tuple[str, set[str]]],
          told: Mapping[str, Mapping[str, Node]]) -> dict[str, Pool]:
    """Partition of the site -> its pool.

    :param places: partition of the site -> what `place_of` says
    :param told: what `of_sinfo` says
    """
    made: dict[tuple[str, frozenset[str]], Pool] = {}
    found = {}
    for name, (partition, without) in places.items():
        key = partition, frozenset(without)
        if key not in made:
            made[key] = Pool(partition, {
                node: about for node, about in
                told.get(partition, {}).items() if node not in without},
                frozenset(without))
        if made[key].nodes:
            found[name] = made[key]
    return found


def last_measured(frame: pd.DataFrame, system: str) -> dict[str, float]:
    """Node -> when a case was last measured on it that no guard refused.

    The perflogs are the only record of it: nothing else can be lost or be
    out of step with them. Unit: seconds since 1970.

    :param frame: as perflogs.read gives it
    """
    mine = frame[(frame['system'] == system) & (frame['guard'] == '')]
    found: dict[str, float] = {}
    for (nodes, binding), when in mine.groupby(
            ['nodes', 'binding'], observed=True)['time'].max().items():
        for node in names(str(nodes), str(binding)):
            found[node] = max(found.get(node, 0.0), when.timestamp())
    return found


def names(nodes: str, binding: str = '') -> list[str]:
    """Nodes of a record: what the scheduler says, separated by blanks; where
    it says nothing (squeue), what the ranks said.

    >>> names('', 'n1:0,1 n2:0,1')
    ['n1', 'n2']
    """
    return topology.of_record(nodes) or [
        word.partition(':')[0] for word in binding.split()]


def due(pool: Pool, seen: Mapping[str, float], nights: int) -> list[str]:
    """The nodes to be measured tonight: of N that take jobs the N / `nights`
    (rounded up) that were measured longest ago.

    So a node that is free every night waits `nights` nights at the most. One
    that is busy is left alone: its turn is the first night when it is free.

    :param seen: `last_measured`
    """
    number = math.ceil(len(pool.usable) / nights)
    return sorted(pool.idle, key=lambda n: (seen.get(n, 0.0), n))[:number]


def late(pool: Pool, seen: Mapping[str, float], since: float) -> list[str]:
    """Nodes that take jobs and were not measured since then."""
    return sorted(n for n in pool.usable if seen.get(n, 0.0) < since)


def groups(lacking: Collection[str], pool: Pool, width: int
           ) -> list[frozenset[str]]:
    """Sets of `width` free nodes that have all of `lacking` among them; the
    last one is filled up. Empty: so many are not free."""
    rest = sorted(lacking)
    spare = sorted(pool.idle - set(rest))
    missing = -len(rest) % width
    if not rest or missing > len(spare):
        return []
    rest += spare[:missing]
    return [frozenset(rest[at:at + width])
            for at in range(0, len(rest), width)]


def only(wanted: Collection[str], some: Iterable[Pool]) -> list[str]:
    """Options of ReFrame that keep jobs to some nodes of pools."""
    return _exclude({n for pool in some for n in (*pool.nodes, *pool.excluded)
                     } - set(wanted))


def without(unwanted: Collection[str], some: Iterable[Pool]) -> list[str]:
    """Options of ReFrame that keep jobs from some nodes of pools."""
    return _exclude({n for pool in some for n in pool.excluded}
                    | set(unwanted))


def _exclude(unwanted: Collection[str]) -> list[str]:
    # The last --exclude counts: it has what the site excludes, too.
    if not unwanted:
        return []
    from reframe.utility import nodelist_abbrev
    return ['-J', f'exclude={nodelist_abbrev(sorted(unwanted))}']
