"""Reports of the nodes of a run: others' CPU time, leftovers, facts."""
from __future__ import annotations

import hashlib
import json
import math
import pwd
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.guards import Run, refuse

#: Largest share of a case's CPUs that other programs may use for its figures
#: to count; overridden by a partition's `others_cpu_limit`.
MAX_OTHERS = 0.05

#: The kernel counts the CPU time of a machine in samples of this length.
#: Unit: seconds.
SAMPLE = 0.01

#: Two clocks of a job may differ by so much. Unit: seconds.
MAX_CLOCK = 2.0

#: Name of the node where the suite itself runs, in messages.
HERE = 'the node of the suite'


@dataclass(frozen=True)
class Node:
    """CPU time on one node between its first rank's start and its last
    rank's end. Unit: seconds."""
    host: str
    ranks: int
    cpus: int
    wall: float
    busy: float
    steal: float
    #: Of the ranks, of all that they started, and of the launcher.
    own: float
    #: Of the kernel's own threads.
    kernel: float
    #: Of all other processes that are visible and still ran at the end.
    seen: float
    #: Name, user, process and seconds of the busiest of them.
    busiest: tuple[tuple[str, str, int, float], ...]

    @property
    def others(self) -> float:
        """A lower bound of the CPU time that other programs used.

        The machine's busy time without interrupts (some are caused by the
        job's own messages), minus the job's: so processes that ended or are
        invisible (containers) count, too. The kernel counts in samples; the
        standard error of that (`chance`) is subtracted. Steal time counts as
        the job's in its own times, but not in the machine's busy time.
        """
        job = self.own * (self.busy / (self.busy + self.steal)
                          if self.steal else 1.0)
        chance = math.sqrt(self.busy * SAMPLE)
        return max(self.seen, self.busy - job - self.kernel - chance, 0.0)

    def share(self, seconds: float, cpus_per_rank: int) -> float:
        """A CPU time as a share of the CPUs that the case uses here."""
        used = self.ranks * max(1, cpus_per_rank)
        if self.cpus:
            used = min(self.cpus, used)
        return seconds / max(self.wall, SAMPLE) / used

    def describe_interference(self, share: float) -> str:
        """What others did, in one line."""
        unseen = self.others - self.seen
        who = [f'{name} ({user}, process {pid}) {seconds:.2f} s'
               for name, user, pid, seconds in self.busiest]
        if unseen > SAMPLE and unseen > 0.1 * self.others:
            who.append('processes that ended meanwhile or cannot be seen '
                       f'from there {unseen:.2f} s')
        return (f'other programs used {self.others:.2f} s of CPU on '
                f'{self.host} during the run, {share:.0%} of the CPUs of '
                f'this case: {", ".join(who)}')


def read_nodes(run: Run, accept: Iterable[int] = (0,),
             submitted: float | None = None) -> list[Node]:
    """The nodes of a run, from the reports of all their ranks.

    :param accept: exit codes of the program that count as success
    :param submitted: when the job was, by the clock of this node; None: not
        known. Unit: seconds since 1970.
    """
    lines = defaultdict(list)
    for host, text in _observer_lines('node', run.err):
        try:
            lines[host].append(json.loads(text))
        except ValueError:
            refuse('observer', f'{run.name}.err: cannot read what was seen '
                   f'on {host}: {text[:80]!r}')
    silent = set(re.findall(r'plumbline-rank (\S+)', run.err)) - set(lines)
    if silent:
        refuse('observer', f'{run.name}.err: nothing was told of '
               f'{", ".join(sorted(silent))} after the program: the ranks '
               'there were killed before they could end')
    try:
        check_exit_codes(run, lines, accept)
        check_clocks(run, {host: (min(rank['clock'][0] for rank in ranks),
                                  max(rank['clock'][1] for rank in ranks))
                           for host, ranks in lines.items()
                           if all('clock' in rank for rank in ranks)},
                     submitted)
        return [_node(host, ranks) for host, ranks in sorted(lines.items())]
    except (KeyError, TypeError, ValueError) as err:
        refuse('observer', f'{run.name}.err: a line plumbline-node is '
               f'damaged: {type(err).__name__}: {err}')


def check_exit_codes(run: Run, lines: Mapping[str, list[dict[str, Any]]],
                     accept: Iterable[int]) -> None:
    """Every rank ended as its launcher says that the program did."""
    codes = {host: rank['rc'] for host, ranks in sorted(lines.items())
             for rank in ranks if rank.get('rc', 0) not in (0, *accept)}
    if codes:
        message = ', '.join(f'{code} on {host}' for host, code in
                         [*codes.items()][:3])
        refuse(
            'exit_code',
            f'{run.name}: the program ended with exit code '
            f'{message}, its launcher with {run.rc}: what stands around them '
            '(a wrapper of the launcher, a pipe, `|| true`) swallows exit '
            'codes',
        )


def check_clocks(run: Run, spans: Mapping[str, tuple[float, float]],
                 submitted: float | None, now: float | None = None) -> None:
    """The nodes' clocks, and this node's, tell the same time of day.

    The ranks of a run live at the same time, between the submission of their
    job and now. Where two clocks say otherwise, the one that the fewest agree
    with is wrong: by what it began earlier or later than the others.

    :param spans: host -> begin of its first and end of its last rank, by its
        own clock
    """
    known = dict(spans)
    if submitted is not None:
        known[HERE] = (submitted, time.time() if now is None else now)

    def apart(one: str, other: str) -> bool:
        (a, b), (c, d) = known[one], known[other]
        return max(a - d, c - b) > MAX_CLOCK

    against = {one: [other for other in known if apart(one, other)]
               for one in known}
    maximum = max(map(len, against.values()), default=0)
    if not maximum:
        return
    odd = sorted(one for one in known if len(against[one]) == maximum)
    # A node rather than this one, where nobody knows better.
    odd = [one for one in odd if one != HERE] or odd
    one, other = odd[0], against[odd[0]][0]

    def ahead(host: str) -> float:
        """Of this node, at the least."""
        (begin, end), (before, after) = known[host], known[HERE]
        return end - after if end > after else begin - before

    off = (ahead(one) if other == HERE else -ahead(other) if one == HERE
           else known[one][0] - known[other][0])
    whose = (f'the clock of {one}' if len(odd) == 1 else
             f'one of the clocks of {", ".join(odd)}')
    refuse('clock', f'{run.name}: {whose} is wrong: {one} is '
           f'{abs(off):.0f} s {"ahead of" if off > 0 else "behind"} {other}; '
           'set it (chronyc tracking), for times of logs, files and tickets '
           'are not to be trusted')


def _observer_lines(what: str, text: str) -> list[tuple[str, str]]:
    """Host and JSON of the observers' lines. A launcher may prefix them, and
    a program's unfinished line may precede them."""
    return re.findall(rf'plumbline-{what} (\S+) (\{{[^{{}}]*\}})', text)


def _node(host: str, ranks: list[dict[str, Any]]) -> Node:
    first = min(rank['begin'] for rank in ranks)
    last = max(rank['end'] for rank in ranks)
    wall, busy, _, steal = (b - a for a, b in zip(first, last, strict=True))
    scans = [rank for rank in ranks if rank['scanned']]

    results: list[list[Any]] = max(
        scans, key=lambda scan: scan['seen'], default={'busiest': []}
    )['busiest']

    def maximum(name: str) -> float:
        return max((scan[name] for scan in scans), default=0.0)

    # What ranks started within the job adds is time, not CPUs to use.
    return Node(host, sum('within' not in rank for rank in ranks),
                max(rank['cpus'] for rank in ranks), wall, busy, steal,
                sum(rank['own'] for rank in ranks) + maximum('launcher'),
                maximum('kernel'), maximum('seen'),
                tuple((name, user(uid), pid, seconds)
                      for name, uid, pid, seconds in results))


def user(uid: int) -> str:
    """The name of a user, if this machine knows it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f'user {uid}'


def values(nodes: Iterable[Node], cpus_per_rank: int) -> dict[str, float]:
    """Shares of others' CPU time and of steal time, of the worst node."""
    nodes = list(nodes)
    return {name: max(node.share(getattr(node, of), cpus_per_rank)
                      for node in nodes)
            for name, of in (('others_cpu', 'others'), ('steal_cpu', 'steal'))
            if nodes}


def disturbed(runs: Iterable[list[Node]], cpus_per_rank: int,
              extras: Mapping[str, Any]) -> str:
    """Other programs above the limit on the worst node; empty: none."""
    limit = extras.get('others_cpu_limit', MAX_OTHERS)
    share, node = max(
        ((node.share(node.others, cpus_per_rank), node)
         for nodes in runs for node in nodes),
        key=lambda one: one[0], default=(0.0, None))
    return node.describe_interference(share) if node and share > limit else ''


def check_leftovers(stage: Path, runs: Iterable[Run]) -> None:
    """The observers found no process that outlived the program."""
    texts = {f'{run.name}.err': run.err for run in runs}
    validated = stage / 'validate.err'
    if validated.exists():
        texts[validated.name] = validated.read_text(errors='replace')
    for name, text in texts.items():
        result = _observer_lines('left', text)
        if result:
            messages = []
            for host, line in result[:3]:
                one = json.loads(line)
                messages.append(f'{one["name"]} ({user(one["uid"])}, process '
                            f'{one["pid"]} on {host})')
            refuse(
                'leftover',
                f'{name}: {len(result)} process'
                f'{"es" * (len(result) > 1)} still ran 5 s after the '
                f'program had ended: {", ".join(messages)}; they were ended. '
                'A program must wait for what it starts',
            )


def node_facts_files(
    folder: Path, hosts: Iterable[str]
) -> tuple[str, dict[str, str]]:
    """Facts of a job's nodes, from the files that facts.sh wrote.

    :returns: the name of a file of facts for each node, `-` where nothing is
        known, one alone where all are alike; and the files, name -> text.
        The name is of the content: nodes of one kind have the same.
    """
    names, files = [], {}
    # A scheduler may use short host names, and nodes their long ones.
    known = {path.name.partition('.')[0]: path for path in folder.glob('*')
             if path.name[0] != '.'}
    for host in hosts:
        try:
            facts = parse_facts(known[host.partition('.')[0]].read_text(
                errors='replace'))
        except (OSError, KeyError):
            names.append('-')
            continue
        text = json.dumps(facts, indent=1, sort_keys=True,
                          ensure_ascii=False) + '\n'
        names.append(hashlib.sha256(text.encode()).hexdigest()[:12])
        files[names[-1]] = text
    if not files:
        return '', {}
    return ' '.join(names if len(set(names)) > 1 else names[:1]), files


def parse_facts(text: str) -> dict[str, str | list[str]]:
    """Facts of a node; a name that may come more than once has a list."""
    facts = defaultdict(list)
    for line in text.splitlines():
        name, tab, value = line.partition('\t')
        if tab:
            facts[name].append(value)
    return {name: values[0] if len(values) == 1 else sorted(values)
            for name, values in facts.items()}
