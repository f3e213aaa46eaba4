"""Parser of the output of a job with services.

Lines of the record are followed by the standard output of the clients of the last
step (services.sh):

    # service server JSON               what node.py printed of a server
    # service client STEP NODE ROLE CPUS
                                        the CPUs of a client
    # service step JSON                 begin and end of a step, and the counters
                                        of all servers before and after it
"""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from config.console import count_with_noun

from ..core.parsers import ParseError
from .ask import Counters
from .plan import Plan

#: Beginnings of the lines of the record.
SERVER, CLIENT, STEP = '# service server ', '# service client ', '# service step '


@dataclass(frozen=True)
class Server:
    """One server that was started.

    `ready_ms`: from its start to its first answer, in ms. `at`: its start, in
    s since 1970.
    """
    index: int
    node: str
    address: str
    port: int
    cpus: tuple[int, ...]
    program: str
    version: str
    ready_ms: float
    at: float


class Process(NamedTuple):
    """A server or a client, and the CPUs that it may use."""
    node: str
    role: str
    cpus: Sequence[int]


@dataclass(frozen=True)
class Step:
    """A step of the clients: duration in s, begin in s since 1970, and the
    counters of all servers before and after it."""
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
    #: Servers and clients on nodes with fewer CPUs than they need; '': there are
    #: enough.
    shared: str
    steps: Mapping[str, Step]
    #: Node of each client.
    client_nodes: tuple[str, ...] = ()


def split_service_record(text: str, plan: Plan | None = None) -> tuple[Services, str]:
    """The record of a run's services, and the output of its clients.

    :param plan: of the run; None: it has servers, and CPUs are not compared with needs
    :raises ParseError: the record is missing or damaged.
    """
    servers: list[Server] = []
    clients: dict[str, list[Process]] = {}
    steps: dict[str, Step] = {}
    rest = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            if line.startswith(SERVER):
                data = json.loads(line.removeprefix(SERVER))
                own = {name: data[name] for name in Server.__annotations__}
                servers.append(Server(**{**own, 'cpus': tuple(own['cpus'])}))
            elif line.startswith(CLIENT):
                step, node, role, cpus = line.removeprefix(CLIENT).split()
                clients.setdefault(step, []).append(
                    Process(node, role, [*map(int, cpus.split(','))]))
            elif line.startswith(STEP):
                data = json.loads(line.removeprefix(STEP))
                began, ended = float(data['began']), float(data['ended'])
                steps[data['name']] = Step(
                    round(ended - began, 3), began, _sum_counters(data['before']),
                    _sum_counters(data['after']))
            else:
                rest.append(line)
        except (ValueError, KeyError, TypeError) as err:
            raise ParseError(number, line, 'the record of the services is damaged: '
                             f'{err!r}') from None
    if not steps or not servers and (plan is None or plan.server.instances):
        raise ParseError(len(text.splitlines()), '', f'no line begins with {SERVER!r} '
                         f'or {STEP!r}: the job script ended early')
    servers.sort(key=lambda server: server.index)
    # Some steps have only a part of the clients.
    most = max((clients.get(step, []) for step in steps), key=len)
    return Services(
        tuple(servers), shared_cpus_text(
            [*(Process(one.node, 'server', one.cpus) for one in servers), *most],
            {role.name: role.required_cpus for role in plan.roles} if plan else {}),
        steps, tuple(client.node for client in most)), ''.join(rest)


def shared_cpus_text(processes: Sequence[Process], required: Mapping[str, int]) -> str:
    """Which servers and clients had too few CPUs, on which nodes; '': none had.

    :param required: role -> CPUs that one of its processes needs
    """
    nodes_by_text: dict[str, list[str]] = {}
    for node in dict.fromkeys(one.node for one in processes):
        here = [one for one in processes if one.node == node]
        number = len({cpu for one in here for cpu in one.cpus})
        needed = sum(required.get(one.role, 0) for one in here)
        if needed <= number:
            continue
        servers = sum(one.role == 'server' for one in here)
        who = ' and '.join(
            count_with_noun(count, what) for count, what in
            ((servers, 'server'), (len(here) - servers, 'client')) if count)
        nodes_by_text.setdefault(
            f'{who} {"shared" if len(here) > 1 else "had"} '
            f'{count_with_noun(number, "CPU")} instead of {needed}', []).append(node)
    return ', '.join(f'{text} on {" ".join(nodes)}'
                     for text, nodes in nodes_by_text.items())


def _sum_counters(servers: list[Mapping[str, Any]]) -> Counters:
    return Counters(**{name: sum(one[name] for one in servers)
                       for name in Counters._fields if name not in ('name', 'version')})
