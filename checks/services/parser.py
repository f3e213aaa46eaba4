"""Parser of the output of a job with services.

Lines of the record are followed by the standard output of the clients of the last
step (services.sh):

    # service server JSON               what node.py printed of a server
    # service client STEP NODE ROLE CPUS PLACED
                                        the CPUs of a client; PLACED: what no two
                                        processes of the node share
    # service step JSON                 begin and end of a step, and the counters
                                        of all servers before and after it
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from config.console import count_with_noun

from ..core.parsers import ParseError

#: Beginnings of the lines of the record.
SERVER, CLIENT, STEP = '# service server ', '# service client ', '# service step '


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
    #: Servers and clients on nodes with fewer CPUs than they need; '': there are
    #: enough.
    shared: str
    steps: Mapping[str, Step]
    #: Node of each client.
    client_nodes: tuple[str, ...] = ()


def split_service_record(text: str, spinning: Mapping[str, int] = {},
                         with_servers: bool = True) -> tuple[Services, str]:
    """The record of a run's services, and the output of its clients.

    :param spinning: role -> threads of one of its processes that poll without sleep
    :param with_servers: whether the job has servers
    :raises ParseError: the record is missing or damaged.
    """
    records: dict[str, list[Any]] = {SERVER: [], CLIENT: [], STEP: []}
    rest = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        kind = next((kind for kind in records if line.startswith(kind)), '')
        if not kind:
            rest.append(line)
            continue
        try:
            records[kind].append(_check_record_line(kind, line.removeprefix(kind)))
        except (ValueError, KeyError, TypeError) as err:
            raise ParseError(number, line, 'the record of the services is damaged: '
                             f'{err!r}') from None
    if not records[STEP] or (with_servers and not records[SERVER]):
        raise ParseError(len(text.splitlines()), '', f'no line begins with {SERVER!r} '
                         f'or {STEP!r}: the job script ended early')
    return _make_services(records[SERVER], records[CLIENT], records[STEP],
                          spinning), ''.join(rest)


def _check_record_line(kind: str, text: str) -> Any:
    """One line of the record, with its parts in their types.

    :raises ValueError, KeyError, TypeError: it is damaged
    """
    if kind == CLIENT:
        step, node, role, cpus, placed_by = text.split()
        return step, {'node': node, 'role': role, 'placed_by': placed_by,
                      'cpus': [*map(int, cpus.split(','))]}
    data = json.loads(text)
    if kind == SERVER:
        own = {name: data[name] for name in Server.__annotations__}
        return Server(**{**own, 'cpus': tuple(own['cpus'])}), data['placed_by']
    began, ended = float(data['began']), float(data['ended'])
    return data['name'], Step(round(ended - began, 3), began,
                              _sum_counters(data['before']),
                              _sum_counters(data['after']))


def _make_services(servers: Sequence[tuple[Server, str]],
                   clients: Sequence[tuple[str, Mapping[str, Any]]],
                   steps: Sequence[tuple[str, Step]], spinning: Mapping[str, int]
                   ) -> Services:
    # Some steps have only a part of the clients.
    by_step = [[client for name, client in clients if name == step]
               for step, _ in steps]
    most = max(by_step, key=len)
    placed = {**{server.node: placed_by for server, placed_by in servers},
              **{client['node']: client['placed_by'] for client in most}}
    return Services(
        tuple(server for server, _ in sorted(
            servers, key=lambda pair: pair[0].index)),
        len(most), shared_cpus_text(
            [{'node': server.node, 'cpus': server.cpus} for server, _ in servers], most,
            [node for node, by in placed.items() if by == 'shared'], spinning),
        dict(steps), tuple(client['node'] for client in most))


def shared_cpus_text(servers: Sequence[Mapping[str, Any]],
                     clients: Sequence[Mapping[str, Any]],
                     crowded: Iterable[str], spinning: Mapping[str, int] = {}) -> str:
    """Which servers and clients had too few CPUs, on which nodes; '': none had.

    :param servers: each with `node` and `cpus`
    :param clients: the same, and `role`
    :param crowded: nodes with fewer CPUs than their processes request
    :param spinning: role -> threads of one of its processes that poll without sleep
    """
    nodes_by_text: dict[str, list[str]] = {}
    for node in dict.fromkeys(one['node'] for one in (*servers, *clients)):
        here = [[one for one in processes if one['node'] == node]
                for processes in (servers, clients)]
        who = ' and '.join(count_with_noun(len(processes), what) for processes, what
                           in zip(here, ('server', 'client'), strict=True)
                           if processes)
        processes = here[0] + here[1]
        number = len({cpu for one in processes for cpu in one['cpus']})
        threads = sum(spinning.get(one.get('role', 'server'), 0) for one in processes)
        if threads <= number and node not in crowded:
            continue
        verb = 'shared' if len(processes) > 1 else 'had'
        what = f' with {threads} threads that spin' if threads > number else ''
        nodes_by_text.setdefault(
            f'{who}{what} {verb} {count_with_noun(number, "CPU")}', []).append(node)
    return ', '.join(f'{text} of {" ".join(nodes)}'
                     for text, nodes in nodes_by_text.items())


def _sum_counters(servers: list[Mapping[str, Any]]) -> Counters:
    return Counters(**{name: sum(one[name] for one in servers)
                       for name in Counters.__annotations__})
