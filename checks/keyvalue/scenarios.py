"""The scenarios that are measured, and their modes.

The combination of all axes would be tens of thousands of test cases. So each
axis varies alone, from one base scenario, and the modes differ in the number
of values.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from config.records.scenarios import modes_starting_at, non_default_fields


@dataclass(frozen=True)
class Scenario:
    """One workload on one arrangement of a store."""

    store: str
    #: get, set, mixed (ten gets per set), mset (ten keys), lpush, xadd,
    #: connect (open a connection, send password and ping, close it).
    operation: str = 'get'
    #: Size of a value. Unit: bytes.
    payload: int = 64
    #: Requests in flight on each connection.
    pipeline: int = 1
    #: Connections of all clients.
    connections: int = 50
    #: Threads of the server that serve connections.
    threads: int = 1
    #: off, aof, rdb.
    persistence: str = 'off'
    #: Servers; more than one form a cluster.
    shards: int = 1
    #: Nodes of the clients besides the servers' node; 0: all on one node.
    client_nodes: int = 0
    #: Load generator: plumbload (the embedded memtier_benchmark), benchmark (the
    #: store's own), memtier (the original).
    generator: str = 'plumbload'

    def __str__(self) -> str:
        """The store, the operation, and all other fields with unusual values.
        """
        return ' '.join([self.store, self.operation,
                         *non_default_fields(self, 'store', 'operation')])


#: Axis -> first mode -> values; later modes contain them, too.
AXES: dict[str, dict[str, tuple]] = {
    'operation': {'quick': ('set', 'connect'),
                  'nightly': ('mixed', 'mset', 'lpush', 'xadd')},
    'payload': {'nightly': (1024, 65536, 1 << 20),
                'full': (16, 256, 4096, 16384, 262144)},
    'pipeline': {'quick': (16,), 'nightly': (128,), 'full': (4, 64)},
    'connections': {'nightly': (1, 1000), 'full': (16, 200)},
    'threads': {'nightly': (4,), 'full': (2, 8)},
    'shards': {'nightly': (3,)},
    'client_nodes': {'smoke': (1,), 'full': (3,)},
}

#: Scenarios that differ from the base scenario in more than one field.
OTHERS: dict[str, tuple[dict[str, Any], ...]] = {
    'nightly': ({'operation': 'set', 'persistence': 'aof'},
                {'operation': 'set', 'persistence': 'rdb'},
                # Servers alone on their node: two shards run on two cores.
                {'shards': 2, 'client_nodes': 1}),
    'full': (*({'operation': 'set', 'payload': size}
               for size in (1024, 65536, 1 << 20)),
             {'operation': 'set', 'shards': 3},
             {'operation': 'mixed', 'payload': 1024, 'connections': 200,
              'client_nodes': 3},
             {'shards': 2, 'client_nodes': 3}),
}

#: Scenarios of the other load generators.
COMPARED: dict[str, tuple[dict[str, Any], ...]] = {
    'nightly': ({}, {'operation': 'set'}),
    'full': ({'pipeline': 16}, {'payload': 1024}),
}

#: Other load generators -> feature of an environment that has them.
GENERATORS = {'benchmark': 'store_bench', 'memtier': 'memtier'}


def store_scenarios_with_first_mode(store: str) -> Iterator[tuple[Scenario, str]]:
    """Every scenario of a store, and its first mode."""
    yield Scenario(store), 'smoke'
    for axis, modes in AXES.items():
        for mode, values in modes.items():
            for value in values:
                yield Scenario(store, **{axis: value}), mode
    for mode, scenarios in OTHERS.items():
        for scenario in scenarios:
            yield Scenario(store, **scenario), mode
    for mode, scenarios in COMPARED.items():
        for scenario in scenarios:
            for generator in GENERATORS:
                yield Scenario(store, **scenario, generator=generator), mode


def modes_of(scenario: Scenario) -> set[str]:
    """The modes of a scenario; an unknown one belongs only to full. The base
    scenario is also in mode veto, for partitions without MPI and GPUs."""
    return modes_starting_at(
        dict(store_scenarios_with_first_mode(scenario.store)).get(scenario, 'full')
    ) | ({'veto'} if scenario == Scenario(scenario.store) else set())
