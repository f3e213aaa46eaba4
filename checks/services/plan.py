"""Servers and clients of a job, as a check describes them.

:mod:`.script` turns a plan into a part of the job script. Commands and configuration
are templates, with values in braces that are known only when the job runs:

    server  {address} {port} {data}, and {password} in its configuration (all users of
            a node can read a command line)
    client  {service} (file that names servers, password and gate) {host}
            (or socket) {port} {index} (0 for the ranks of an MPI program) {output}
            (name of its files, without an ending)
"""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Server:
    """A role: servers that run while the clients do."""

    #: Name of the program, for messages.
    program: str
    command: tuple[str, ...]
    #: Text for its standard input, which no other user can read.
    config: str = ''
    #: Protocol of readiness and counters: a key of ask.COUNTERS.
    dialect: str = 'resp'
    #: Nodes that it runs on.
    nodes: int = 1
    #: Instances on each of them; 0: the job has no servers, because a program of its
    #: clients starts its own.
    instances: int = 1
    #: CPUs of an instance.
    cpus: int = 1
    #: Instances divide all CPUs of the node, core by core; `cpus` is the size of the
    #: largest part.
    divided: bool = False
    #: Not bound to CPUs.
    unbound: bool = False
    #: Memory of an instance. Unit: MiB.
    memory: int = 256
    #: First port; 0: any free port.
    port: int = 0
    #: Listens on the Unix socket {data}/socket and on no port: for clients
    #: that accept a password only on their command line, which all can read.
    socket: bool = False
    #: Clients need a password.
    password: bool = True
    #: User of the password; empty: the store's default user.
    user: str = ''
    #: The instances form a Redis cluster.
    cluster: bool = False
    #: Persistence while it serves: off, rdb (snapshots), aof (append-only
    #: file).
    persistence: str = 'off'
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
    #: CPUs of a client.
    cpus: int = 1
    #: Not bound to CPUs.
    unbound: bool = False
    #: Threads of an unbound client that poll without sleep: each needs a CPU.
    spinning: int = 0
    #: Each client uses one server (assigned round-robin), else all of them.
    one_server: bool = False
    #: Name of the role, for programs and messages.
    name: str = 'client'
    #: On separate nodes, after those of the servers and of the roles before it; else
    #: on the nodes of the role before it (of the servers), on other CPUs.
    apart: bool = False


@dataclass(frozen=True)
class Program:
    """The program that the clients of one role run in a step."""

    command: tuple[str, ...] = ()
    #: The role whose clients run it.
    role: str = 'client'
    #: The clients are the ranks of one MPI program: the launcher starts all
    #: of them; else each is started by itself.
    mpi: bool = False
    #: Instead of the command: one for each of the first clients, which are distributed
    #: over the nodes round-robin. The others run nothing.
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
class Plan:
    """Servers, clients and steps of one job."""

    server: Server
    clients: tuple[Clients, ...]
    steps: tuple[Step, ...]
    #: Interface whose address servers bind to; empty: loopback on one node,
    #: on several the address that the nodes reach each other by.
    interface: str = ''
    #: Interval at which CPU usage of the nodes is recorded; 0: not recorded. Unit:
    #: seconds.
    sample: float = 0

    def node_numbers_by_role(self) -> dict[str, range]:
        """The node numbers of each role, in the order of the node names."""
        result = {'server': range(self.server.nodes)}
        first, last = 0, self.server.nodes
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

    def required_cpus_by_role(self) -> dict[str, int]:
        """CPUs without which a process of a role is slower than it could be."""
        return {'server': (0 if self.server.divided or self.server.unbound
                           else self.server.cpus),
                **{role.name: role.spinning if role.unbound else role.cpus
                   for role in self.clients}}

    def required_cpus_per_node(self) -> int:
        """CPUs needed on the node with the most servers and clients."""
        layout, server = self.node_numbers_by_role(), self.server
        roles: dict[str, Server | Clients] = {
            'server': server, **{role.name: role for role in self.clients}}

        def needed(role: Server | Clients) -> int:
            spinning = role.spinning if isinstance(role, Clients) else 0
            return role.instances * (max(role.cpus, spinning) if role.unbound
                                     else role.cpus)
        # Bound processes need theirs besides the others'; unbound ones share.
        return max(1, *(sum(needed(role) for name, role in roles.items()
                            if node in layout[name] and role.unbound is unbound)
                        for node in range(self.node_count)
                        for unbound in (True, False)))
