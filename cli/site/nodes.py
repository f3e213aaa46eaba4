"""Nodes and partitions of a scheduler, and those in the output of sinfo."""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from config.sessions.modes import LONGEST_HOURS

#: Partition (`*`: the default one), node, state, CPUs, sockets, cores of a
#: socket, threads of a core, GRES, nodes of a job, and why the node is out:
#: last, for it may have any letter in it. Also of hidden partitions, and not of other
#: clusters of a federation.
SINFO = ['sinfo', '--all', '--local', '--Node', '--noheader',
         '--format=%P|%N|%T|%c|%X|%Y|%Z|%G|%s|%E']
#: States of nodes that take jobs, at once or later. A node in any other state,
#: also an unknown one, is left out and reported.
TAKES = ('idle', 'mixed', 'allocated', 'completing', 'planned', 'powering_up',
         'powered_down', 'powering_down')
#: Signs behind a state: the node does not answer, or is to be rebooted, or is
#: kept for maintenance. Others (`~`, `#`, `!`, `%`, `-`) stand for power saving and
#: plans.
OUT = re.compile(r'[*$@^]')
#: Name of a login node, or of a partition of login nodes.
LOGIN = re.compile(r'(?<![a-z])(login|uan|front-?end)(?![a-z])', re.I)
#: Key of `scontrol show partition` -> its value in a partition that takes jobs of all
#: users. Another one is the reason why a new site does not use it.
USUAL_RULES = {'State': 'UP', 'RootOnly': 'NO', 'Hidden': 'NO', 'ReqResv': 'NO'}


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
    #: Why the scheduler takes no job for it from a user; '': it does.
    closed: str = ''
    #: Those who alone may use it: `groups a,b`; '': everybody.
    only_for: str = ''
    #: Slurm's accounts that alone may use it; '': all.
    accounts: str = ''
    #: Longest time of a job, as ReFrame writes it; '': long enough for each mode.
    time_limit: str = ''

    @property
    def is_limited(self) -> bool:
        """Whether this user may not be allowed to use it."""
        return bool(self.only_for or self.accounts)

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


def add_slurm_rules(part: Partition, rules: Mapping[str, str], groups: Sequence[str]
                    ) -> None:
    """Add to a partition who may use it.

    :param rules: its pairs of `scontrol show partition`
    :param groups: of this user; empty: unknown
    """
    def is_limited(key: str) -> bool:
        return rules.get(key, 'ALL') not in ('ALL', '')

    if is_limited('AllowGroups'):
        part.only_for = f'groups {rules["AllowGroups"]}'
    if is_limited('AllowAccounts'):
        part.accounts = rules['AllowAccounts']
    part.time_limit = short_time_limit(rules.get('MaxTime', ''))
    others = is_limited('AllowGroups') and groups and not (
        {*rules['AllowGroups'].split(',')} & {*groups})
    part.closed = ', '.join(
        f'{key}={rules[key]}' for key, usual in USUAL_RULES.items()
        if key in rules and rules[key] != usual) or (
            f'you are in none of the groups {rules["AllowGroups"]}' if others else '')


def short_time_limit(text: str) -> str:
    """The longest time of a job, as ReFrame writes it; '': long enough for each mode.

    :param text: as Slurm or PBS prints it

    >>> [short_time_limit(text) for text in ('00:30:00', '1-00:00:00', 'UNLIMITED', '')]
    ['30m', '', '', '']
    """
    if not (match := re.fullmatch(r'(?:(\d+)-)?(\d+):(\d+):(\d+)', text)):
        return ''
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    minutes += 60 * (24 * days + hours)
    return '' if minutes >= 60 * LONGEST_HOURS else (
        f'{minutes}m' * bool(minutes) + f'{seconds}s' * bool(seconds))


def default_partitions(parts: list[Partition]
                       ) -> tuple[list[Partition], dict[str, str]]:
    """The partitions that a new site has if none is selected, and why not others.

    Left out are partitions that take no jobs, partitions of login nodes, partitions
    without jobs of one node, which most checks need, and partitions whose nodes are all
    in others (debug, preempt): they would measure the same nodes again.

    :returns: partitions, and the name of each other one -> the reason
    """
    reasons = {part.name: reason for part in parts
               if (reason := _reason_to_leave_out(part))}
    left = ([part for part in parts if part.name not in reasons]
            or [part for part in parts if part.nodes and not part.closed]
            or [part for part in parts if part.nodes])
    places: dict[str, str] = {}
    chosen = []
    # First those that everybody may use, and those whose nodes are alike.
    for part in sorted(left, key=lambda part: (
            part.is_limited, len(part.node_kinds) > 1, -part.max_nodes_per_job,
            not part.default)):
        names = {node.name for node in part.nodes}
        if names <= places.keys():
            others = ', '.join(dict.fromkeys(places[node.name] for node in part.nodes))
            reasons[part.name] = f'all nodes are also in {others}'
        else:
            reasons.pop(part.name, None)
            places |= {name: part.name for name in names - places.keys()}
            chosen.append(part)
    return [part for part in parts if part in chosen], reasons


def _reason_to_leave_out(part: Partition) -> str:
    """Why a partition is not measured on its own account; '': it can be."""
    if part.closed or not part.nodes:
        return part.closed or 'no nodes'
    if LOGIN.search(part.name) or all(LOGIN.search(n.name) for n in part.nodes):
        return 'login nodes'
    if not any(node.is_usable for node in part.nodes):
        states = ', '.join(sorted({node.state for node in part.nodes}))
        return f'none of {len(part.nodes)} nodes takes jobs ({states})'
    return f'a job has at least {part.smallest} nodes' * (part.smallest > 1)


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


def _slurm_number(text: str) -> int:
    """A number as Slurm prints it: a multiple of 1024 is `1K`.

    :raises ValueError: it is not a number
    """
    return int(text[:-1]) * 1024 if text.endswith('K') else int(text)


def parse_sinfo(text: str) -> list[Partition]:
    """Partitions from SINFO: a line for each node of each. Lines of another
    form are skipped: a warning, or an older recording without the reason.

    >>> parse_sinfo('batch*|n1|idle|2|1|2|1|(null)|1-4|none')[0].nodes[0].is_idle
    True
    """
    parts: dict[str, Partition] = {}
    for line in text.splitlines():
        if parts and line.startswith('CLUSTER: '):
            break                       # another cluster of a federation
        cells = line.strip().split('|', 9)
        if len(cells) < 9:
            continue
        name, node, state, *numbers, gres, jobs = cells[:9]
        try:
            cpus, sockets, cores, threads = map(_slurm_number, numbers)
            # One number is both.
            smallest, _, largest = jobs.rpartition('-')
            limits = (None if largest == 'infinite' else _slurm_number(largest),
                      _slurm_number(smallest or largest.replace('infinite', '1')))
        except ValueError:
            continue
        part = parts.setdefault(name.rstrip('*'), Partition(
            name.rstrip('*'), name.endswith('*'), limits[0], [], limits[1]))
        reason = ''.join(cells[9:])
        part.nodes.append(Node(
            node, state, '' if reason == 'none' else reason, cpus, sockets,
            cores, threads, '' if gres == '(null)' else gres))
    return list(parts.values())
