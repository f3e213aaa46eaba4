"""Reports of the nodes of a job: interference, leftover processes, facts."""
from __future__ import annotations

import hashlib
import json
import math
import pwd
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..core.guards import Run, fail_test_case

#: Maximum interference: CPU time of other programs as a share of the test
#: case's CPUs; a partition's `others_cpu_limit` overrides it.
MAX_OTHERS = 0.05

#: Length of the samples in which the kernel counts CPU time. Unit: seconds.
SAMPLE = 0.01

#: Maximum difference between two clocks of a job. Unit: seconds.
MAX_CLOCK = 2.0

#: Name of the node on which the suite runs, in messages.
HERE = 'the node of the suite'


#: Lines of program.sh and of others.c. A launcher may prefix such a line, and a
#: program's unfinished line may precede it.
END = (r'plumbline-end (\S+) (\d+)' + r' (\d+)m([\d.,]+)s' * 4
       + r' ([\d.]+) (\d+) (\d+)' * 2)
OTHERS = r'plumbline-others (\S+) (\{[^{}]*\})'
LEFT = r'plumbline-left (\S+) (\d+) (\d+) (.*)'


class End(NamedTuple):
    """The end of a rank, or of a program that a rank started on its node."""
    #: Exit code, as a shell reports it.
    code: int
    #: CPU time of the program and of program.sh. Unit: seconds.
    own: float
    #: Time of the day, busy and stolen time of the node, when it began and when it
    #: ended. Unit: seconds.
    begin: tuple[float, ...]
    end: tuple[float, ...]

    @classmethod
    def read(cls, words: Sequence[str]) -> End:
        """The parts of a line that END matches."""
        times = zip(words[1:9:2], words[2:9:2], strict=True)
        return cls(int(words[0]), sum(60 * int(minutes) + float(rest.replace(',', '.'))
                                      for minutes, rest in times),
                   *((float(at), int(busy) * SAMPLE, int(steal) * SAMPLE)
                     for at, busy, steal in (words[9:12], words[12:])))


class Others(NamedTuple):
    """CPU time on one node, as others.c reports it. Unit: seconds."""
    cpus: int
    running: float
    kernel: float
    seen: float
    busiest: list[tuple[str, int, int, float]]


@dataclass(frozen=True)
class Node:
    """CPU time on one node, from the start of its first rank to the end of
    its last rank. Unit: seconds."""
    host: str
    ranks: int
    cpus: int
    wall: float
    busy: float
    steal: float
    #: Of the ranks, of all processes that they started, and of the launcher.
    own: float
    #: Of the kernel's own threads.
    kernel: float
    #: Of all other visible processes that still ran at the end.
    seen: float
    #: Name, user, process and seconds of the busiest of them.
    busiest: tuple[tuple[str, str, int, float], ...]

    @property
    def cpu_seconds_of_other_programs(self) -> float:
        """A lower limit of the CPU time that other programs used.

        It is the node's busy time without interrupts (the job's own messages
        cause some), minus the job's time. So it includes processes that ended
        or are invisible (containers). The kernel counts in samples; their
        standard error (`chance`) is subtracted. Steal time is part of the
        job's times, but not of the node's busy time.
        """
        job = self.own * (self.busy / (self.busy + self.steal)
                          if self.steal else 1.0)
        chance = math.sqrt(self.busy * SAMPLE)
        return max(self.seen, self.busy - job - self.kernel - chance, 0.0)

    def share_of_cpu_time(self, seconds: float, cpus_per_rank: int) -> float:
        """A CPU time as a share of the CPUs of the test case on this node."""
        used = self.ranks * max(1, cpus_per_rank)
        if self.cpus:
            used = min(self.cpus, used)
        return seconds / max(self.wall, SAMPLE) / used

    def describe_interference(self, share: float) -> str:
        """The CPU time of other programs on this node, in one line."""
        unseen = self.cpu_seconds_of_other_programs - self.seen
        programs = [f'{name} ({user}, process {pid}) {seconds:.2f} s'
                    for name, user, pid, seconds in self.busiest]
        if unseen > SAMPLE and unseen > 0.1 * self.cpu_seconds_of_other_programs:
            programs.append('processes that have ended or are not visible '
                            f'{unseen:.2f} s')
        return (f'other programs used {self.cpu_seconds_of_other_programs:.2f} s of '
                f'CPU time on {self.host} during the job, {share:.0%} of the CPUs of '
                f'this test case: {", ".join(programs)}')


def read_node_reports(run: Run, accept: Iterable[int] = (0,),
                      submitted: float | None = None) -> list[Node]:
    """Check the reports of all ranks and return the nodes.

    :param accept: exit codes of the program that count as success.
    :param submitted: time of the job's submission, by the clock of this node;
        None: unknown. Unit: seconds since 1970.
    :raises SanityError: a report is missing or damaged, a rank failed, or a clock
        is wrong.
    """
    ends = defaultdict(list)
    for host, *words in re.findall(END, run.err):
        ends[host].append(End.read(words))
    ranks = Counter(re.findall(r'plumbline-rank (\S+)', run.err))
    silent = [f'{count - len(ends[host])} of {count} on {host}'
              for host, count in sorted(ranks.items()) if len(ends[host]) < count]
    if silent:
        fail_test_case('observer', f'{run.name}.err: ranks did not report their end: '
                       f'{", ".join(silent)}; they were killed before they could '
                       'end; read the log of the scheduler')
    check_rank_exit_codes(run, ends, accept)
    check_clocks(run, {host: (min(end.begin[0] for end in ends[host]),
                              max(end.end[0] for end in ends[host]))
                       for host in ranks}, submitted)
    others = defaultdict(list)
    for host, text in re.findall(OTHERS, run.err):
        try:
            others[host].append(Others(**json.loads(text)))
        except (TypeError, ValueError):
            fail_test_case('observer', f'{run.name}.err: the report of the observer '
                           f'on {host} is damaged: {text[:80]!r}')
    if missing := sorted(ranks.keys() - others.keys()):
        fail_test_case('observer', f'{run.name}.err: the program that measures '
                       f'interference on each node sent no report from '
                       f'{" ".join(missing)}; read the lines around plumbline-end')
    return [_make_node(host, ranks[host], ends[host], others[host])
            for host in sorted(ranks)]


def check_rank_exit_codes(run: Run, ends: Mapping[str, list[End]],
                          accept: Iterable[int]) -> None:
    """Check that no rank failed while its launcher reported success."""
    codes = {host: end.code for host, ended in sorted(ends.items())
             for end in ended if end.code not in (0, *accept)}
    if codes:
        message = ', '.join(f'{code} on {host}' for host, code in
                            [*codes.items()][:3])
        fail_test_case(
            'exit_code',
            f'{run.name}: the program ended with exit code '
            f'{message}, its launcher with {run.rc}: something around the '
            'program (a wrapper, a pipe, `|| true`) hides exit '
            'codes',
        )


def check_clocks(run: Run, spans: Mapping[str, tuple[float, float]],
                 submitted: float | None, now: float | None = None) -> None:
    """Check that the clocks of the nodes and of this node agree.

    The ranks of a job run at the same time, between the submission of the job
    and now. If two clocks contradict this, the clock with which the fewest
    others agree is wrong, by the difference between the begins.

    :param spans: host -> begin of its first and end of its last rank, by its
        own clock. Unit: seconds since 1970.
    """
    span_of = dict(spans)
    if submitted is not None:
        span_of[HERE] = (submitted, time.time() if now is None else now)

    def are_clocks_apart(one: str, other: str) -> bool:
        (a, b), (c, d) = span_of[one], span_of[other]
        return max(a - d, c - b) > MAX_CLOCK

    against = {one: [other for other in span_of if are_clocks_apart(one, other)]
               for one in span_of}
    maximum = max(map(len, against.values()), default=0)
    if not maximum:
        return
    odd = sorted(one for one in span_of if len(against[one]) == maximum)
    # In doubt it is another node, not this one.
    odd = [one for one in odd if one != HERE] or odd
    one, other = odd[0], against[odd[0]][0]

    def clock_lead_seconds(host: str) -> float:
        """Seconds by which a clock is ahead of this node's, at least."""
        (begin, end), (before, after) = span_of[host], span_of[HERE]
        return end - after if end > after else begin - before

    off = (clock_lead_seconds(one) if other == HERE else -clock_lead_seconds(other)
           if one == HERE
           else span_of[one][0] - span_of[other][0])
    whose = (f'the clock of {one}' if len(odd) == 1 else
             f'one of the clocks of {", ".join(odd)}')
    fail_test_case('clock', f'{run.name}: {whose} is wrong: {one} is '
                   f'{abs(off):.0f} s {"ahead of" if off > 0 else "behind"} {other}; '
                   'correct it (chronyc tracking), because times of logs, files and '
                   'tickets are wrong as well')


def _make_node(host: str, ranks: int, ends: list[End], others: list[Others]) -> Node:
    first, last = min(end.begin for end in ends), max(end.end for end in ends)
    wall, busy, steal = (b - a for a, b in zip(first, last, strict=True))
    most = max(others, key=lambda one: one.seen)
    # Programs that ranks start within the job add CPU time, but no CPUs.
    return Node(host, ranks, most.cpus, wall, busy, steal,
                sum(end.own for end in ends) + max(one.running for one in others),
                max(one.kernel for one in others), most.seen,
                tuple((name, user_name(uid), pid, seconds)
                      for name, uid, pid, seconds in most.busiest))


def user_name(uid: int) -> str:
    """The name of a user; `user UID` if this machine has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f'user {uid}'


def interference_metrics(nodes: Iterable[Node], cpus_per_rank: int) -> dict[str, float]:
    """The metrics others_cpu and steal_cpu, of the worst node."""
    nodes = list(nodes)
    return {
        name: max(
            node.share_of_cpu_time(getattr(node, of), cpus_per_rank)
            for node in nodes
        )
        for name, of in (
            ('others_cpu', 'cpu_seconds_of_other_programs'),
            ('steal_cpu', 'steal'),
        )
        if nodes
    }


def describe_worst_interference(runs: Iterable[list[Node]], cpus_per_rank: int,
                                extras: Mapping[str, Any]) -> str:
    """Interference above the limit on the worst node, in words.

    Empty if it is below the limit on all nodes.
    """
    limit = extras.get('others_cpu_limit', MAX_OTHERS)
    share, node = max(
        ((node.share_of_cpu_time(node.cpu_seconds_of_other_programs, cpus_per_rank),
          node)
         for nodes in runs for node in nodes),
        key=lambda pair: pair[0], default=(0.0, None))
    return node.describe_interference(share) if node and share > limit else ''


def check_leftover_processes(stage: Path, runs: Iterable[Run]) -> None:
    """Check that no process outlived the program.

    :raises SanityError: program.sh found one.
    """
    texts = {f'{run.name}.err': run.err for run in runs}
    validated = stage / 'validate.err'
    if validated.exists():
        texts[validated.name] = validated.read_text(errors='replace')
    for name, text in texts.items():
        leftovers = [f'{program} ({user_name(int(uid))}, process {pid} on {host})'
                     for host, pid, uid, program in re.findall(LEFT, text)]
        if leftovers:
            fail_test_case(
                'leftover',
                f'{name}: {len(leftovers)} process'
                f'{"es" * (len(leftovers) > 1)} still ran 5 s after the '
                f'program had ended: {", ".join(leftovers[:3])}; they were '
                'killed. A program must wait for the processes that it starts',
            )


def read_node_facts_files(
    folder: Path, hosts: Iterable[str]
) -> tuple[str, dict[str, str]]:
    """Facts of a job's nodes, from the files that facts.sh wrote.

    :returns: the names of the files of facts, one per node (`-`: unknown), or
        a single name if all nodes are alike; and the text of each file by its
        name. A name is a hash of the content, so like nodes share it.
    """
    names, files = [], {}
    known = {path.name: path for path in sorted(folder.glob('*'))
             if path.name[0] != '.'}
    for host in hosts:
        try:
            facts = parse_facts(known[_full_name(host, known)].read_text(
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


def _full_name(host: str, known: Iterable[str]) -> str:
    """A host as the nodes name it; '': none or several of them can be it.

    A scheduler may use short names while nodes use full ones, or the reverse.
    """
    names = [*known]
    if host in names:
        return host
    alike = [name for name in names if host.startswith(f'{name}.')
             or name.startswith(f'{host}.')]
    return alike[0] if len(alike) == 1 else ''


def parse_facts(text: str) -> dict[str, str | list[str]]:
    """Facts of a node by name; a repeated name has a list of values."""
    facts = defaultdict(list)
    for line in text.splitlines():
        name, tab, value = line.partition('\t')
        if tab:
            facts[name].append(value)
    return {name: values[0] if len(values) == 1 else sorted(values)
            for name, values in facts.items()}
