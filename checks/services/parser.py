"""Parser of the conductor's output.

It is one line `# service {...}` (checks/services/conduct.py), then the
standard output of the last step's clients.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from config.console import count_with_noun

from ..core.parsers import ParseError

MARK = '# service '


@dataclass(frozen=True)
class Server:
    """One server that was started.

    `ready_ms`: from its start to its first answer, in ms. `at`: its start, in
    s since 1970. `link`: speed of the interface with its address, in Mb/s; 0: the
    kernel does not report it.
    """
    index: int
    node: str
    address: str
    port: int
    interface: str
    link: int
    cpus: tuple[int, ...]
    program: str
    version: str
    ready_ms: float
    at: float


@dataclass(frozen=True)
class Counters:
    """Sums over all servers; the fields are those of services/ask.py."""
    cpu: float
    memory: int
    commands: int
    keys: int
    misses: int
    evicted: int
    connections: int


@dataclass(frozen=True)
class Step:
    """A step of the clients: duration in s, begin in s since 1970, and the
    counters before and after it."""
    seconds: float
    at: float
    before: Counters
    after: Counters

    def counter_increase(self, counter: str) -> float:
        """The growth of a counter during the step."""
        return getattr(self.after, counter) - getattr(self.before, counter)


@dataclass(frozen=True)
class Services:
    """Servers and clients of one run."""
    servers: tuple[Server, ...]
    clients: int
    #: Servers and clients that shared CPUs because a node has too few; '': none
    #: did.
    shared: str
    steps: Mapping[str, Step]
    #: Node of each client.
    client_nodes: tuple[str, ...] = ()


def split_conductor_output(text: str) -> tuple[Services, str]:
    """The record of a run's services, and the output of its clients.

    :raises ParseError: the record is missing or damaged.
    """
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if line.startswith(MARK):
            rest = ''.join(lines[:number - 1] + lines[number:])
            try:
                return _services_from_json(json.loads(line.removeprefix(MARK))), rest
            except (ValueError, KeyError, TypeError) as err:
                raise ParseError(number, line, 'the record of the services '
                                 f'is damaged: {err!r}') from None
    raise ParseError(len(lines), '', f'no line begins with {MARK!r}: the '
                     'conductor of the servers ended early')


def _services_from_json(data: Mapping[str, Any]) -> Services:
    return Services(
        tuple(Server(**{**one, 'cpus': tuple(one['cpus'])})
              for one in data['servers']),
        len(data['clients']), shared_cpus_text(
            data['servers'], data['clients'],
            [node for node, by in data['placed'].items() if by == 'shared']),
        {name: Step(step['seconds'], step['at'], _sum_counters(step['before']),
                    _sum_counters(step['after']))
         for name, step in data['steps'].items()},
        tuple(one['node'] for one in data['clients']))


def shared_cpus_text(servers: Sequence[Mapping[str, Any]],
                     clients: Sequence[Mapping[str, Any]],
                     crowded: Iterable[str]) -> str:
    """Which servers and clients shared CPUs, on which nodes; '': none did.

    :param servers: each with `node` and `cpus`
    :param clients: the same
    :param crowded: nodes with fewer CPUs than their processes need
    """
    nodes_by_text: dict[str, list[str]] = {}
    for node in crowded:
        here = [[one for one in processes if one['node'] == node]
                for processes in (servers, clients)]
        who = ' and '.join(count_with_noun(len(processes), what) for processes, what
                           in zip(here, ('server', 'client'), strict=True)
                           if processes)
        processes = here[0] + here[1]
        number = len({cpu for one in processes for cpu in one['cpus']})
        verb = 'shared' if len(processes) > 1 else 'had'
        nodes_by_text.setdefault(
            f'{who} {verb} {count_with_noun(number, "CPU")}', []).append(node)
    return ', '.join(f'{text} of {" ".join(nodes)}'
                     for text, nodes in nodes_by_text.items())


def _sum_counters(servers: list[Mapping[str, Any]]) -> Counters:
    return Counters(**{name: sum(one[name] for one in servers)
                       for name in Counters.__annotations__})
