"""Servers and clients of a job, as a check describes them.

:mod:`.script` turns a plan into a part of the job script. Commands and configuration
are templates, with values in braces that are known only when the job runs:

    server  {address} {port} {data}, and {password} in its configuration (all users of
            a node can read a command line)
    client  {service} (file that names servers, password and gate) {own_service} (that
            of the server on the client's node) {host} (or socket) {port} {index} (0 for
            the ranks of an MPI program) {output} (name of its files, without an ending)
"""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Role:
    """Processes of one kind, the same number on each of their nodes."""

    #: Nodes that they run on.
    nodes: int = 1
    #: Processes on each of them.
    instances: int = 1
    #: CPUs of a process.
    cpus: int = 1
    #: Not bound to CPUs.
    unbound: bool = False
    #: Threads of an unbound process that poll without sleep: each needs a CPU.
    spinning: int = 0
    #: Name of the role, for programs and messages.
    name: str = 'client'
    #: On separate nodes, after those of the roles before it; else on the nodes of the
    #: role before it, on other CPUs.
    apart: bool = False
    #: Group of a heterogeneous Slurm job that has their nodes (srun --het-group).
    het_group: int = 0

    @property
    def required_cpus(self) -> int:
        """CPUs without which a process is slower than it could be."""
        return self.spinning if self.unbound else self.cpus


@dataclass(frozen=True)
class Server(Role):
    """Servers that run while the clients do. Without instances, a program of the
    clients starts its own."""

    #: Name of the program, for messages.
    program: str
    command: tuple[str, ...]
    #: Text for its standard input, which no other user can read.
    config: str = ''
    #: Protocol of readiness and counters: a key of ask.COUNTERS.
    dialect: str = 'resp'
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
    name: str = field(default='server', kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Clients(Role):
    """Clients of the servers."""

    #: Each client uses one server (assigned round-robin), else all of them.
    one_server: bool = False


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

    @property
    def roles(self) -> tuple[Role, ...]:
        """All roles."""
        return self.server, *self.clients

    def node_numbers_by_role(self) -> dict[str, range]:
        """The node numbers of each role, in the order of the node names."""
        result, first, last = {}, 0, 0
        for role in self.roles:
            if role.apart:
                first = last
            result[role.name] = range(first, first + role.nodes)
            last = max(last, first + role.nodes)
        return result

    @property
    def node_count(self) -> int:
        """Nodes of the job."""
        return max(where.stop for where in self.node_numbers_by_role().values())

    @property
    def client_nodes(self) -> range:
        """Numbers of the nodes behind those of the servers."""
        return range(self.server.nodes, self.node_count)

    @property
    def has_separate_servers(self) -> bool:
        """Whether the servers have nodes of their own."""
        layout = self.node_numbers_by_role()
        return bool(self.server.instances) and all(
            layout[role.name].start in self.client_nodes for role in self.clients)

    def required_cpus_per_node(self, nodes: range | None = None) -> int:
        """CPUs needed on the node with the most servers and clients.

        :param nodes: numbers of the nodes; None: all
        """
        layout, sums = self.node_numbers_by_role(), Counter[tuple[int, bool]]()
        for role in self.roles:
            for node in set(layout[role.name]) & set(nodes or range(self.node_count)):
                # Bound processes need theirs besides the others'; unbound ones share.
                sums[node, role.unbound] += role.instances * max(role.cpus,
                                                                 role.spinning)
        return max(1, *sums.values())
