"""The arrangements of ranks and database that are measured, and their modes.

The original combines all values of its lists. Here each test case is a
database and an arrangement; the sizes of tensors are the points of its curve.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from config.records.scenarios import modes_starting_at, non_default_fields

from ..stores.aimodule import NETWORKS

#: Sizes of a tensor in the last version of the original. Unit: bytes.
SIZES = (1024, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1024000,
         2048000, 4096000)

#: Sizes of a tensor in a short test case.
FEW = (1024, 65536, 1024000)

#: Databases: a store -> the feature of an environment that has it and an MPI.
DATABASES = {'redis': 'tensor_redis', 'valkey': 'tensor_valkey',
             'keydb': 'tensor_keydb'}

#: The network with the layers of ResNet-50 and random weights, in TorchScript.
RESNET50 = 'resnet50.pt'

#: Feature of an environment whose client is SmartRedis' library.
LIBRARY = 'smartredis'

#: Feature of an environment whose servers load RedisAI instead of the embedded module.
REDISAI = 'redisai'


@dataclass(frozen=True)
class Scenario:
    """One arrangement; the names are the original's."""

    db: str
    #: standard: one database on separate nodes; colocated: a database on each
    #: node of clients, for the clients there, over a Unix socket.
    deployment: str = 'standard'
    #: Servers of the database; more than one form a cluster.
    db_nodes: int = 1
    #: CPUs of each server, and its threads for input and output.
    db_cpus: int = 1
    #: Nodes of the clients; 0: clients and database share one node.
    client_nodes: int = 0
    clients_per_node: int = 4
    iterations: int = 100
    #: Threads of the consumer (aggregation).
    client_threads: int = 1
    #: Tensors of a dataset (aggregation).
    tensors_per_dataset: int = 1
    #: few or all sizes of tensors.
    sizes: str = 'few'
    #: Threads of each device of the module, and their network: a stack of matrix
    #: products (NETWORKS), or TorchScript, which needs a libtorch: ResNet-50 with
    #: random weights (RESNET50), or the file of a model.
    db_tpq: int = 1
    network: str = ''
    batch_size: int = 1
    #: CPU, or GPU, which only RedisAI uses.
    device: str = 'CPU'

    @property
    def uses_torchscript(self) -> bool:
        """Whether model and script are TorchScript."""
        return self.network not in ('', *NETWORKS)

    @property
    def rank_count(self) -> int:
        """Total number of clients (of an aggregation: producers)."""
        return max(1, self.client_nodes) * self.clients_per_node

    def node_count(self, consumers: int = 0) -> int:
        """Nodes of the job.

        :arg consumers: nodes of a consumer, if nodes have roles.
        """
        if not self.client_nodes:
            return 1
        if self.deployment == 'colocated':
            return self.client_nodes
        return self.db_nodes + self.client_nodes + consumers

    @property
    def environments(self) -> list[str]:
        """Environments that can run it, as in `valid_prog_environs`."""
        words = [f'+{DATABASES[self.db]}']
        if self.device == 'GPU':
            words.append(f'+{REDISAI}')
        elif self.network in NETWORKS:
            words.append(f'-{REDISAI}')
        if self.device == 'GPU' and self.network in NETWORKS:
            return []                   # no module runs them there
        # The build with libtorch makes ResNet-50 for RedisAI, too.
        runs = (['+libtorch'] if self.network == RESNET50 else
                ['+libtorch', f'+{REDISAI}'] if self.uses_torchscript else [''])
        return [' '.join([*words, one]).strip() for one in runs]

    def __str__(self) -> str:
        """The database, and all other fields with unusual values."""
        return ' '.join([self.db, *non_default_fields(self, 'db')])


#: Kind -> mode -> arrangements that this mode adds. An arrangement with one
#: client can also run on two CPUs; with the original's number of iterations it
#: would take only 15 ms, and its values would vary. Mode full has the
#: original's numbers: 48 clients per node, 4 to 16 databases, 4 to 512 nodes.
ARRANGEMENTS: dict[str, dict[str, tuple[dict[str, Any], ...]]] = {
    'throughput': {
        'quick': ({},),
        'smoke': ({'clients_per_node': 1, 'iterations': 1000},
                  {'clients_per_node': 1, 'iterations': 1000, 'client_nodes': 1}),
        'nightly': (
            # One client per node, so that two cores per node are enough.
            {'clients_per_node': 1, 'client_nodes': 1, 'db_nodes': 3},
            {'clients_per_node': 1, 'client_nodes': 3},
            {'sizes': 'all'}, {'db_nodes': 3}, {'deployment': 'colocated'},
            {'client_nodes': 2}, {'client_nodes': 1, 'db_nodes': 3},
            {'client_nodes': 2, 'deployment': 'colocated'},
            {'db_nodes': 5}, {'db_nodes': 16},
            {'db_cpus': 4}),
        'full': tuple({'db_nodes': db, 'client_nodes': nodes, 'db_cpus': 2,
                       'clients_per_node': 48, 'sizes': 'all'}
                      for db in (3, 4, 5, 8, 16)
                      for nodes in (4, 16, 64, 128, 256, 512)
                      if nodes <= 32 * db),
    },
    'inference': {
        'quick': ({'network': 'small', 'iterations': 20},
                  {'network': 'small', 'clients_per_node': 1}),
        'nightly': (
            {'network': 'small', 'deployment': 'colocated'},
            {'network': 'small', 'batch_size': 4, 'db_tpq': 2},
            {'network': 'small', 'client_nodes': 2},
            {'network': 'small', 'db_nodes': 3},
            {'network': 'small', 'db_nodes': 5},
            {'network': 'small', 'db_nodes': 16},
            {'network': 'small', 'db_cpus': 2, 'db_tpq': 2},
            # 8 GFLOP per image take seconds on a CPU.
            {'network': 'resnet50', 'iterations': 5, 'db_cpus': 4,
             'db_tpq': 4},
            {'network': RESNET50, 'iterations': 20, 'db_cpus': 4,
             'db_tpq': 4}),
        # At most eight nodes of ranks per database: with more nodes the images
        # take longer than the limit of a step.
        'full': tuple({'network': 'small', 'db_nodes': db,
                       'client_nodes': nodes, 'clients_per_node': 18,
                       'db_cpus': 8, 'db_tpq': 8, 'batch_size': 1000}
                      for db in (3, 4, 5, 8, 16) for nodes in (4, 16, 64, 128)
                      if nodes <= 8 * db),
    },
    'aggregation': {
        'quick': ({'tensors_per_dataset': 4, 'iterations': 20},
                  {'tensors_per_dataset': 4, 'clients_per_node': 1}),
        'nightly': (
            {'tensors_per_dataset': 4, 'sizes': 'all'},
            *({'tensors_per_dataset': 4, 'client_threads': 4, 'db_nodes': db}
              for db in (3, 5, 16)),
            {'tensors_per_dataset': 4, 'deployment': 'colocated'},
            {'tensors_per_dataset': 1}, {'tensors_per_dataset': 2},
            {'tensors_per_dataset': 4, 'client_nodes': 2}),
        'full': tuple({'db_nodes': db, 'client_nodes': nodes, 'db_cpus': 36,
                       'clients_per_node': 32, 'tensors_per_dataset': 4,
                       'client_threads': 32, 'sizes': 'all'}
                      for db in (3, 5, 16)
                      for nodes in (4, 16, 64, 128, 256, 512)
                      if nodes <= 32 * db),
    },
}


def scenarios_with_first_mode(kind: str) -> Iterator[tuple[Scenario, str]]:
    """Every arrangement of a kind, and its first mode."""
    for db in DATABASES:
        for mode, arrangements in ARRANGEMENTS[kind].items():
            for arrangement in arrangements:
                yield Scenario(db, **arrangement), mode


def modes_of_scenario(kind: str, scenario: Scenario) -> set[str]:
    """The modes of an arrangement."""
    return modes_starting_at(
        dict(scenarios_with_first_mode(kind)).get(scenario, 'full'))
