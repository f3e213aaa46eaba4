"""The cases of Optcast: what all-reduces, how many, and where."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    """One case; `client_nodes` 0: clients and servers on one node."""
    type: str
    data_type: str
    clients: int
    servers: int
    client_nodes: int
    #: small: up to 16 MiB, for every machine; original: 512 MiB; requests:
    #: of the original's own client, 64 MiB.
    scale: str

    @property
    def server_nodes(self) -> int:
        """Nodes of the servers alone; a ring only meets at one."""
        return self.servers if self.client_nodes and self.type == 'optcast' \
            else 0

    @property
    def nodes(self) -> int:
        return max(1, self.client_nodes + self.server_nodes)

    def __str__(self) -> str:
        where = (f'{self.client_nodes} nodes' if self.client_nodes
                 else 'one node')
        servers = f' by {self.servers} servers' * (self.type == 'optcast')
        return (f'{self.type} {self.data_type}, {self.clients} clients'
                f'{servers}, {where}, {self.scale}')


#: Cases and the modes that they belong to, besides full.
SCENARIOS: dict[Scenario, tuple[str, ...]] = {
    Scenario('optcast', 'f32', 2, 1, 0, 'small'): ('quick', 'nightly'),
    Scenario('ring', 'f32', 2, 1, 0, 'small'): ('quick', 'nightly'),
    **{Scenario('optcast', kind, 2, 2, 0, 'small'): ('nightly',)
       for kind in ('f16', 'bf16')},
    **{Scenario('ring', kind, 2, 1, 0, 'small'): () for kind in (
        'f16', 'bf16')},
    # As many servers as clients, and fewer: then a ring should win.
    **{Scenario('optcast', 'f32', clients, servers, clients, 'small'):
       ('nightly',) if clients == servers else ()
       for clients, servers in ((2, 1), (2, 2), (4, 1), (4, 2), (4, 4))},
    **{Scenario('ring', 'f32', clients, 1, clients, 'small'): ('nightly',)
       for clients in (2, 4)},
    **{Scenario('optcast', kind, 4, 4, 4, 'original'): () for kind in (
        'f32', 'f16')},
    Scenario('ring', 'f32', 4, 1, 4, 'original'): (),
}

#: Likewise, of the original's programs. They spin on all cores that they get,
#: and few nodes have enough: no case for every night.
ORIGINAL: dict[Scenario, tuple[str, ...]] = {
    **{Scenario('optcast', 'f32', clients, servers, nodes, 'requests'): ()
       for clients, servers, nodes in (
           (2, 1, 0), (2, 2, 2), (4, 2, 4), (4, 4, 4))},
    Scenario('optcast', 'f16', 2, 1, 0, 'requests'): ()}

#: Settings of a scale.
SCALES: dict[str, dict[str, str | int]] = {
    'small': {'size': '1M,4M,16M', 'chunksize': '128K',
              'nccl_test_options': '-c 1 -n 5 -w 2'},
    'original': {'nccl_test_options': '-c 1 -n 5 -w 1'},
    'requests': {'size': '64M', 'nccl_test_options': '-c 1 -n 1 -w 1'}}
