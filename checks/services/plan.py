"""The plan of a job's servers and clients: written by a check, read on nodes.

A plan contains no secret: the conductor creates secrets when the job runs.
Texts marked *template* may contain, in braces, values that are known only
then:

    server  {address} {port} {bus_port} {data} {password} {cpus} {memory}
            {index} {ca} {cert} {key} {user}
    client  {service} (file that names servers, password and gate) {host}
            (or socket) {port} {index} {count} {cpus} {connections} {output}
            (name of its files, without an ending) {ca} {cert} {key}

Ranks of an MPI program all get the same command: `{index}` is 0 there, and
`{count}` the number of ranks.
"""
from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .wire import HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT


class PlanError(ValueError):
    """A plan that cannot be executed."""


@dataclass(frozen=True)
class Server:
    """A role: servers that run while the clients do."""

    #: Name of the program, for messages.
    program: str
    #: The command; templates.
    command: tuple[str, ...]
    #: Text for its standard input, which no other user can read; template.
    config: str = ''
    #: Files made in the data folder, name -> text; templates.
    files: Mapping[str, str] = field(default_factory=dict)
    #: Protocol of readiness and counters: a key of ask.DIALECTS.
    dialect: str = 'resp'
    #: Nodes that it runs on.
    nodes: int = 1
    #: Instances on each of them.
    instances: int = 1
    #: CPUs of an instance.
    cpus: int = 1
    #: Threads of an instance that serve connections; its own report must
    #: match; 0: not checked.
    threads: int = 0
    #: Memory of an instance. Unit: MiB.
    memory: int = 256
    #: Instances divide all CPUs of the node, core by core; `required_cpus_per_node`
    #: is the size of the largest part.
    divided: bool = False
    #: Bind an instance's memory to the NUMA nodes of its CPUs: never, may (if
    #: numactl is installed), must.
    bind_memory: str = 'may'
    #: On the clients' nodes, on other CPUs; else on separate nodes.
    beside: bool = True
    #: First port; 0: any free port.
    port: int = 0
    #: Listens on the Unix socket {data}/socket and on no port: for clients
    #: that accept a password only on their command line, which all can read.
    socket: bool = False
    #: Clients need a password.
    password: bool = True
    #: User of the password; empty: the store's default user.
    user: str = ''
    #: Encrypts its connections; certificates are made for the run.
    tls: bool = False
    #: The instances form a Redis cluster.
    cluster: bool = False
    #: Persistence while it serves: off, rdb (snapshots), aof (append-only
    #: file).
    persistence: str = 'off'
    #: Connections that it must accept.
    connections: int = 100
    #: Maximum time until its first answer. Unit: seconds.
    ready_limit: float = 30
    #: Instead of the command: one for each instance.
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Clients:
    """A role: clients of the servers, the same number on each of its nodes."""

    nodes: int = 1
    #: Clients on each node.
    instances: int = 1
    #: Clients in all, distributed over the nodes round-robin; 0: `instances`
    #: on every node.
    total: int = 0
    #: CPUs of a client.
    cpus: int = 1
    #: Not bound to CPUs.
    unbound: bool = False
    #: Each client uses one server (assigned round-robin), else all of them.
    one_server: bool = False
    #: Connections of one client.
    connections: int = 1
    #: Name of the role, for programs and messages.
    name: str = 'client'
    #: On separate nodes, after those of the roles before it; else on the
    #: nodes of the role before it, on other CPUs.
    apart: bool = False


@dataclass(frozen=True)
class Program:
    """The program that the clients of one role run in a step."""

    #: The command; templates.
    command: tuple[str, ...] = ()
    #: The role whose clients run it.
    role: str = 'client'
    #: The clients are the ranks of one MPI program: the launcher starts all
    #: of them; else each agent starts its own.
    mpi: bool = False
    #: Only the first client runs it.
    alone: bool = False
    #: Instead of the command: one for each client.
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Step:
    """Programs that run at once; the servers keep running."""

    name: str
    programs: tuple[Program, ...]
    #: Time limit. Unit: seconds.
    limit: float
    #: Clients report when they are ready, and start together. Ranks of an MPI
    #: program do that by themselves.
    gate: bool = False
    #: A verification: its output is not part of the result.
    check: bool = False
    #: Idle time before the step. Unit: seconds.
    rest: float = 0


@dataclass(frozen=True)
class Outside:
    """Clients that users start on machines outside the job."""

    #: Instructions for them; {host} and {pem} (the text of the certificate to
    #: trust) are replaced, other braces stay.
    words: str
    #: Connections of each client, and the number of its machine, from 0;
    #: servers are assigned to clients round-robin.
    connections: tuple[int, ...]
    machines: tuple[int, ...]
    #: Names of the phases and their duration in seconds.
    phases: tuple[tuple[str, float], ...]
    #: Time for all clients to connect. Unit: seconds.
    limit: float
    #: Time for clients to finish after the last phase. Unit: seconds.
    linger: float = 0


@dataclass(frozen=True)
class Plan:
    """Servers, clients and steps of one job."""

    server: Server
    clients: tuple[Clients, ...]
    steps: tuple[Step, ...]
    #: Instead of the steps.
    outside: Outside | None = None
    #: Host name by which clients reach the server; empty: its address.
    hostname: str = ''
    #: Slowest acceptable interface. Unit: Mb/s.
    link: float = 0
    #: Interface whose address servers bind to; empty: loopback on one node,
    #: on several the address that the nodes reach each other by.
    interface: str = ''
    #: Folder on the nodes for the servers' data; empty: TMPDIR or /tmp.
    scratch: str = ''
    #: Time for the launcher to start all agents. Unit: seconds.
    start_limit: float = 120
    #: Time without a message after which a node counts as lost. Unit:
    #: seconds.
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT
    #: Interval at which CPU usage of the servers' nodes is recorded; 0: not
    #: recorded. Unit: seconds.
    sample: float = 0
    #: Starts the ranks of an MPI program; templates as in
    #: config/sites/launch.py.
    launcher: tuple[str, ...] = ()
    #: Program that counts the CPU time of a rank (observe.c); empty: none.
    observer: str = ''

    def node_numbers_by_role(self) -> dict[str, range]:
        """The node numbers of each role, in the order of the node names."""
        result = {'server': range(self.server.nodes)}
        first = 0 if self.server.beside else self.server.nodes
        last = self.server.nodes
        for role in self.clients:
            if role.apart:
                first = last
            result[role.name] = range(first, first + role.nodes)
            last = max(last, first + role.nodes)
        return result

    @property
    def node_count(self) -> int:
        """Nodes of the job."""
        return max(where.stop for where in self.node_numbers_by_role().values())

    def required_cpus_per_node(self) -> int:
        """CPUs needed on the node with the most servers and clients."""
        layout, maximum = self.node_numbers_by_role(), 1
        # Role, whether its processes are unbound, and their CPUs.
        wants = [('server', False, self.server.instances * self.server.cpus),
                 *((role.name, role.unbound, role.instances * role.cpus)
                   for role in self.clients)]
        for node in range(self.node_count):
            for free in (False, True):
                maximum = max(maximum, sum(
                    count for role, unbound, count in wants
                    if unbound is free and node in layout[role]))
        return maximum

    def with_site_values(
        self,
        interface: str,
        scratch: str,
        launcher: Iterable[str] = (),
        observer: str = '',
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
    ) -> Plan:
        """The same plan with the values of a site and a build.

        :arg interface: network interface of the servers.
        :arg scratch: folder for the servers' data.
        :arg launcher: words that start the ranks of MPI programs.
        :arg observer: program that counts the CPU time of these ranks.
        :arg heartbeat_timeout: in seconds.
        :raises PlanError: the timeout is not a valid number.
        """
        if (not isinstance(heartbeat_timeout, int | float)
                or not 2 * HEARTBEAT_INTERVAL <= heartbeat_timeout < math.inf):
            raise PlanError(
                f'service_heartbeat_timeout is {heartbeat_timeout!r}; it must '
                f'be a number of seconds, at least {2 * HEARTBEAT_INTERVAL:g}:'
                " correct the extras of the partition in the site's system.py")
        return replace(self, interface=self.interface or interface,
                       scratch=scratch, launcher=tuple(launcher),
                       observer=observer, heartbeat_timeout=heartbeat_timeout)

    def find_client_role(self, name: str) -> Clients:
        """The client role of this name.

        :raises PlanError: no role has this name.
        """
        for role in self.clients:
            if role.name == name:
                return role
        raise PlanError(f'the plan has no client role {name!r}, only '
                        f'{", ".join(role.name for role in self.clients)}')

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan.

        :raises PlanError: the file is missing or damaged.
        """
        try:
            return cls.from_json_data(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, KeyError,
                AttributeError) as err:
            raise PlanError(f'{path}: cannot read the plan: {err}') from None

    @classmethod
    def from_json_data(cls, data: Mapping[str, Any]) -> Plan:
        """The plan of a JSON document."""
        def dataclass_from_json(kind: type, entry: Mapping[str, Any]) -> Any:
            return kind(**{key: _convert_lists_to_tuples(value)
                           for key, value in entry.items()})

        return cls(**{**data,
                      'server': dataclass_from_json(Server, data['server']),
                      'clients': tuple(dataclass_from_json(Clients, role)
                                       for role in data['clients']),
                      'launcher': tuple(data.get('launcher', ())),
                      'steps': tuple(dataclass_from_json(Step, {
                          **step, 'programs': tuple(
                              dataclass_from_json(Program, program)
                              for program in step['programs'])})
                          for step in data['steps']),
                      'outside': data.get('outside') and dataclass_from_json(
                          Outside, data['outside'])})


def _convert_lists_to_tuples(value: Any) -> Any:
    """Convert lists of JSON to tuples."""
    return (
        tuple(map(_convert_lists_to_tuples, value))
        if isinstance(value, list | tuple)
        else value
    )


def command_with_environment(variables: Mapping[str, str], *command: str
                   ) -> tuple[str, ...]:
    """A command that runs with some environment variables.

    `env` takes a program whose path has `=` for one more variable, so that
    the program is an argument of a shell, which replaces itself by it.
    """
    return ('env', *(f'{name}={value}' for name, value in variables.items()),
            'sh', '-c', 'exec "$@"', 'sh', *command) if variables else command


def fill_template(template: str, values: Mapping[str, Any]) -> str:
    """Fill the values into a template.

    :raises PlanError: it contains an unknown value.
    """
    try:
        return template.format_map(values)
    except (KeyError, ValueError, IndexError) as err:
        raise PlanError(f'{template!r} contains the unknown value {err}; '
                        f'known values: {", ".join(sorted(values))}'
                        ) from None
