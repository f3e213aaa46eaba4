"""Scenarios of Optcast: type, numbers of clients and servers, nodes, sizes."""
from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

#: Bytes of an element; only the embedded server has bf16.
DATA_TYPES = {'f32': 4, 'f16': 2, 'bf16': 2}
#: Threads of a server that send, and that receive; threads that add: the defaults of
#: test/run.py.
COPY_THREADS, REDUCE_THREADS = 4, 2
#: Setting of the checks -> option of the run script.
RUN_SCRIPT = {'sizes': 'size', 'chunksize': 'chunksize', 'clients': 'nrank',
              'servers': 'nservers'}
_UNITS = {'': 1, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}


def largest_divisor(number: int, maximum: int) -> int:
    """The largest divisor of a number that is at most `maximum`: processes per node,
    so that all nodes have the same number."""
    return max(count for count in range(1, maximum + 1) if number % count == 0)


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
        return (f'{self.type} {self.data_type}, {self.clients} clients by '
                f'{self.servers} servers, {where}, {self.scale}')


#: Scenario -> modes besides full.
SCENARIOS: dict[Scenario, tuple[str, ...]] = {
    Scenario('optcast', 'f32', 2, 1, 0, 'small'): ('smoke', 'quick', 'nightly'),
    **{Scenario('optcast', kind, 2, 2, 0, 'small'): ('nightly',)
       for kind in ('f16', 'bf16')},
    # As many servers as clients, or fewer: then a ring should be faster.
    **{Scenario('optcast', 'f32', clients, servers, clients, 'small'):
       ('nightly',) if clients == servers else ()
       for clients, servers in ((2, 1), (2, 2), (4, 1), (4, 2), (4, 4))},
    **{Scenario('optcast', kind, 4, 4, 4, 'original'): () for kind in (
        'f32', 'f16')},
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


@dataclass(frozen=True)
class Setup:
    """Checked settings of a run; sizes in B, count in elements."""
    type: str
    data_type: str
    clients: int
    servers: int
    sizes: tuple[int, ...]
    chunksize: int
    iterations: int
    warmup: int

    def __post_init__(self) -> None:
        """Check the numbers.

        :raises ValueError: one is invalid; the message names it
        """
        if self.clients < 2:
            raise ValueError('clients: an all-reduce needs at least two')
        each = DATA_TYPES[self.data_type]
        if self.chunksize % each:
            raise ValueError(f'chunksize {self.chunksize} is not a multiple of '
                             f'{each} B, one element')
        if any(size % each for size in self.sizes) \
                or sorted(set(self.sizes)) != list(self.sizes):
            raise ValueError('sizes: each size must exceed the one before it and be a '
                             f'multiple of {each} B, one element')

    @property
    def elements_per_message(self) -> int:
        """Elements of a message to a server."""
        return self.chunksize // DATA_TYPES[self.data_type]

    @property
    def copy_threads(self) -> int:
        """Threads of a server that send, and that receive: if their number does not
        divide the clients, a server hangs."""
        return self.clients if self.clients % COPY_THREADS else COPY_THREADS

    def to_run_script_settings(self) -> dict[str, Any]:
        """Options of the run script, and contents of its setting.yaml."""
        return {**{option: getattr(self, name) for name, option in RUN_SCRIPT.items()},
                'type': self.type, 'data_type': self.data_type,
                'num_sends': self.copy_threads, 'num_recvs': self.copy_threads,
                'size': ','.join(map(str, self.sizes)),
                'nccl_test_options': f'-c 1 -n {self.iterations} -w {self.warmup}'}


def parse_size(text: str | int) -> int:
    """A size such as `512K` in B.

    :raises ValueError: the text is not a size
    """
    match = re.fullmatch(r'([1-9]\d{0,11})([KMG]?)', str(text))
    if not match:
        raise ValueError(f'{text!r} is not a size: write 512K, 64M or 1G')
    return int(match[1]) * _UNITS[match[2]]


def count_infiniband_nics(devices: Iterable[Any]) -> int:
    """Number of InfiniBand NICs of a node.

    :param devices: ReFrame's devices of a partition
    """
    return sum(device.num_devices or 1 for device in devices
               if (device.type, device.arch) == ('nic', 'infiniband'))


def count_server_nodes(servers: int, each: int,
                       partitions: Iterable[Iterable[Any]]) -> int:
    """Number of nodes for the servers.

    :param each: servers per node; 0: one per NIC
    :param partitions: devices of the partitions that may run the servers
    """
    maximum = each or max([1, *map(count_infiniband_nics, partitions)])
    return servers // largest_divisor(servers, maximum)


def server_nic_environments(devices: Iterable[Any], each: int
                            ) -> tuple[dict[str, str], ...]:
    """Environments of the servers of a node, with one NIC each (NCCL_IB_HCA).
    Empty without InfiniBand, or with fewer NICs than servers.

    NICs have the kernel's numbers, from mlx5_0.

    :param devices: ReFrame's devices of a partition
    """
    if count_infiniband_nics(devices) < each:
        return ()
    return tuple({'NCCL_IB_HCA': f'=mlx5_{number}:1'} for number in range(each))
