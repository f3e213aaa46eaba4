"""Scenarios of Optcast: type, numbers of clients and servers, and nodes."""
from __future__ import annotations

from dataclasses import dataclass, replace

from .settings import largest_divisor


@dataclass(frozen=True)
class Scenario:
    """One scenario; `client_nodes` 0: clients and servers share one node."""
    type: str
    data_type: str
    clients: int
    servers: int
    client_nodes: int
    #: small: up to 16 MiB, for every machine; original: 512 MiB; requests:
    #: 64 MiB, for the original's own client.
    scale: str

    @property
    def server_node_count(self) -> int:
        """Nodes that run only servers; a ring has none."""
        return self.servers if self.client_nodes and self.type == 'optcast' \
            else 0

    @property
    def node_count(self) -> int:
        return max(1, self.client_nodes + self.server_node_count)

    def with_counts(self, clients: int, servers: int) -> Scenario:
        """The scenario with other numbers of clients and servers; 0: its own.

        A node has as many clients as before or, if this does not divide them, the
        largest smaller number that does.
        """
        clients = clients or self.clients
        each = largest_divisor(clients, self.clients // max(1, self.client_nodes))
        return replace(self, clients=clients, servers=servers or self.servers,
                       client_nodes=clients // each if self.client_nodes else 0)

    def __str__(self) -> str:
        where = (f'{self.client_nodes} nodes' if self.client_nodes
                 else 'one node')
        servers = f' by {self.servers} servers' * (self.type == 'optcast')
        return (f'{self.type} {self.data_type}, {self.clients} clients'
                f'{servers}, {where}, {self.scale}')


#: Scenario -> modes besides full.
SCENARIOS: dict[Scenario, tuple[str, ...]] = {
    Scenario('optcast', 'f32', 2, 1, 0, 'small'): ('smoke', 'quick', 'nightly'),
    Scenario('ring', 'f32', 2, 1, 0, 'small'): ('quick', 'nightly'),
    **{Scenario('optcast', kind, 2, 2, 0, 'small'): ('nightly',)
       for kind in ('f16', 'bf16')},
    **{Scenario('ring', kind, 2, 1, 0, 'small'): () for kind in (
        'f16', 'bf16')},
    # As many servers as clients, or fewer: then a ring should be faster.
    **{Scenario('optcast', 'f32', clients, servers, clients, 'small'):
       ('nightly',) if clients == servers else ()
       for clients, servers in ((2, 1), (2, 2), (4, 1), (4, 2), (4, 4))},
    Scenario('ring', 'f32', 2, 1, 2, 'small'): ('smoke', 'quick', 'nightly'),
    Scenario('ring', 'f32', 4, 1, 4, 'small'): ('nightly',),
    **{Scenario('optcast', kind, 4, 4, 4, 'original'): () for kind in (
        'f32', 'f16')},
    Scenario('ring', 'f32', 4, 1, 4, 'original'): (),
}

#: Scenario of the original's programs -> modes besides full. None is nightly,
#: because they spin on all their cores and few nodes have enough.
ORIGINAL: dict[Scenario, tuple[str, ...]] = {
    **{Scenario('optcast', 'f32', clients, servers, nodes, 'requests'): ()
       for clients, servers, nodes in (
           (2, 1, 0), (2, 2, 2), (4, 2, 4), (4, 4, 4))},
    Scenario('optcast', 'f16', 2, 1, 0, 'requests'): ()}

#: Scenarios of the original's servers with NCCL -> modes besides full. The
#: published values are of four GPUs and four servers, two per node.
ON_NCCL: dict[Scenario, tuple[str, ...]] = {
    Scenario('optcast', 'f32', 2, 2, 2, 'original'): ('nightly',),
    **{Scenario('optcast', 'f32', 4, servers, 2, 'original'): ()
       for servers in (2, 4)},
    Scenario('optcast', 'f16', 2, 2, 2, 'original'): ()}

#: Scale -> sizes, chunksize, iterations and warm-up iterations.
SCALES: dict[str, tuple[tuple[str, ...], str, int, int]] = {
    'small': (('1M', '4M', '16M'), '128K', 5, 2),
    'original': (('512M',), '512K', 5, 1),
    # run.py has fixed numbers for the client of the server's own program.
    'requests': (('64M',), '512K', 1, 0)}
