"""What is to be started: written by a check, read on the nodes.

A plan holds no secret: the conductor makes those when the job runs. Texts
marked *template* may name, in braces, what is known only then:

    server  {address} {port} {bus_port} {data} {password} {cpus} {memory}
            {index} {ca} {cert} {key} {user}
    client  {service} (file that names servers, password and gate) {host}
            (or socket) {port} {index} {count} {cpus} {connections} {output}
            (name of its files, without an ending) {ca} {cert} {key}
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any


class PlanError(ValueError):
    """A plan that cannot be carried out."""


@dataclass(frozen=True)
class Server:
    """A role: servers that run while the clients do."""

    #: Name of the program, for messages.
    program: str
    #: The command; templates.
    command: tuple[str, ...]
    #: Given on standard input, where no other user can read it; template.
    config: str = ''
    #: Files made in the data folder, name -> text; templates.
    files: Mapping[str, str] = field(default_factory=dict)
    #: How it is asked whether it is ready: resp, memcached, tcp.
    dialect: str = 'resp'
    #: Nodes that it runs on.
    nodes: int = 1
    #: Instances on each of them.
    instances: int = 1
    #: CPUs of an instance.
    cpus: int = 1
    #: Memory of an instance. Unit: MiB.
    memory: int = 256
    #: All CPUs of its node, cores one after the other, are divided between
    #: its instances; `cpus` is what the largest part has.
    divided: bool = False
    #: An instance has its memory on the NUMA nodes of its CPUs: never, may
    #: (where numactl is there), must.
    bind_memory: str = 'may'
    #: On the clients' nodes, on other CPUs; else on nodes of its own.
    beside: bool = True
    #: First port; 0: free ones are taken.
    port: int = 0
    #: Listens on the socket {data}/socket and on no port: for clients that
    #: take a password only on their command line, where all can read it.
    socket: bool = False
    #: Needs a password from who wants something.
    password: bool = True
    #: Encrypts its connections; certificates are made for the run.
    tls: bool = False
    #: The instances form a Redis cluster.
    cluster: bool = False
    #: What it writes into its data folder while it serves: off, rdb
    #: (snapshots), aof (append-only file).
    persistence: str = 'off'
    #: Connections that it must be able to take.
    connections: int = 100
    #: How long it may take to answer. Unit: seconds.
    ready_limit: float = 30
    #: Instead of the command: one for each instance.
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Clients:
    """A role: programs that ask the servers, the same on every node."""

    nodes: int = 1
    #: Clients on each node.
    instances: int = 1
    #: So many in all, dealt to the nodes in turn; 0: every instance.
    total: int = 0
    #: CPUs of a client.
    cpus: int = 1
    #: Bound to no CPU: it has its node for itself, or shares it knowingly.
    unbound: bool = False
    #: Asks one of the servers, which are dealt to the clients in turn; else
    #: every client asks all.
    one_server: bool = False
    #: Connections of one client.
    connections: int = 1


@dataclass(frozen=True)
class Step:
    """One command, run by all clients at once; the servers live on."""

    name: str
    #: The command; templates.
    command: tuple[str, ...]
    #: How long it may take. Unit: seconds.
    limit: float
    #: Clients say when they are ready, and begin together.
    gate: bool = False
    #: Run by one client alone.
    alone: bool = False
    #: Looks whether all is as it should be: what it says is no result.
    check: bool = False
    #: Nobody does anything before it for so long. Unit: seconds.
    rest: float = 0
    #: Instead of the command: one for each client.
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Outside:
    """Clients that people start, on machines outside the job."""

    #: What they are to read; {host} and {pem} (the text of the certificate
    #: to believe) are put in, other braces stay.
    words: str
    #: Connections of each client, and the number of its machine, from 0; the
    #: servers are dealt to the clients in turn.
    connections: tuple[int, ...]
    machines: tuple[int, ...]
    #: What the clients do, and for how long: names and seconds.
    phases: tuple[tuple[str, float], ...]
    #: How long they may take to come. Unit: seconds.
    limit: float
    #: How long after the last phase they may stay. Unit: seconds.
    linger: float = 0


@dataclass(frozen=True)
class Plan:
    """All that one job starts."""

    server: Server
    clients: Clients
    steps: tuple[Step, ...]
    #: Instead of the steps.
    outside: Outside | None = None
    #: Name that the clients know the server's node by; empty: its address.
    hostname: str = ''
    #: The least that the interface must do. Unit: Mb/s.
    link: float = 0
    #: Interface whose address servers bind to; empty: loopback on one node,
    #: on several the address that the nodes reach each other by.
    interface: str = ''
    #: Folder on the nodes for the servers' data; empty: TMPDIR or /tmp.
    scratch: str = ''
    #: How long the launcher may take to start all agents. Unit: seconds.
    start_limit: float = 120
    #: Silence after which a node counts as lost. Unit: seconds.
    silence: float = 10
    #: How often the CPU of the servers' nodes is noted; 0: not at all.
    #: Unit: seconds.
    sample: float = 0

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        if self.outside:
            return self.server.nodes
        if self.server.beside:
            return max(self.server.nodes, self.clients.nodes)
        return self.server.nodes + self.clients.nodes

    def cpus(self) -> int:
        """CPUs that the fullest node needs."""
        servers = self.server.instances * self.server.cpus
        clients = self.clients.instances * self.clients.cpus
        if self.outside:
            return servers
        return (servers + clients
                if self.server.beside and not self.clients.unbound
                else max(servers, clients))

    def at(self, interface: str, scratch: str) -> Plan:
        """The same plan, in a place."""
        return replace(self, interface=self.interface or interface,
                       scratch=scratch)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> Plan:
        """:raises PlanError: there is none, or it is damaged."""
        try:
            return cls.of(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, KeyError,
                AttributeError) as err:
            raise PlanError(f'{path}: no plan: {err}') from None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Plan:
        """From its JSON form."""
        def listed(kind: type, entry: Mapping[str, Any]) -> Any:
            return kind(**{key: _frozen(value)
                           for key, value in entry.items()})

        return cls(**{**data,
                      'server': listed(Server, data['server']),
                      'clients': listed(Clients, data['clients']),
                      'steps': tuple(listed(Step, step)
                                     for step in data['steps']),
                      'outside': data.get('outside') and listed(
                          Outside, data['outside'])})


def _frozen(value: Any) -> Any:
    """Lists of JSON as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def filled(template: str, values: Mapping[str, Any]) -> str:
    """A template with its names replaced.

    :raises PlanError: it names what nobody knows.
    """
    try:
        return template.format_map(values)
    except (KeyError, ValueError, IndexError) as err:
        raise PlanError(f'{template!r} names an unknown {err}; known: '
                        f'{", ".join(sorted(values))}') from None
