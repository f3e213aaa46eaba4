"""The points of the space of loads that are measured, and in which mode.

All axes crossed would be tens of thousands of cases. What an operator asks
is how a store answers along one of them: so each axis is walked from one
point in the middle, and the modes differ in the length of the steps.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from config.records.scenarios import modes_from, unusual


@dataclass(frozen=True)
class Scenario:
    """One load on one arrangement of a store."""

    store: str
    #: get, set, mixed (ten gets a set), mset (ten keys), lpush, xadd,
    #: connect (a connection, the password, a ping, closed).
    operation: str = 'get'
    #: Size of a value. Unit: bytes.
    payload: int = 64
    #: Requests that a connection has under way.
    pipeline: int = 1
    #: Connections of all clients.
    connections: int = 50
    #: Threads of the server that serve connections.
    threads: int = 1
    tls: bool = False
    #: off, aof, rdb.
    persistence: str = 'off'
    #: Servers; more than one form a cluster.
    shards: int = 1
    #: Nodes of the clients, besides the servers'; 0: all on one node.
    client_nodes: int = 0
    #: Who makes the load: plumbload, benchmark (the store's own), memtier.
    generator: str = 'plumbload'

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return 1 + self.client_nodes

    def __str__(self) -> str:
        """The store, the operation, and what is not as usual."""
        return ' '.join([self.store, self.operation,
                         *unusual(self, 'store', 'operation')])


#: Axis -> values; a value stands in the first mode that has it, and in all
#: that come after.
AXES: dict[str, dict[str, tuple]] = {
    'operation': {'quick': ('set', 'connect'),
                  'nightly': ('mixed', 'mset', 'lpush', 'xadd')},
    'payload': {'nightly': (1024, 65536, 1 << 20),
                'full': (16, 256, 4096, 16384, 262144)},
    'pipeline': {'quick': (16,), 'nightly': (128,), 'full': (4, 64)},
    'connections': {'nightly': (1, 1000), 'full': (16, 200)},
    'threads': {'nightly': (4,), 'full': (2, 8)},
    'tls': {'nightly': (True,)},
    'shards': {'nightly': (3,)},
    'client_nodes': {'nightly': (1,), 'full': (3,)},
}

#: What is not the base point with one thing changed.
OTHERS: dict[str, tuple[dict[str, Any], ...]] = {
    'nightly': ({'operation': 'set', 'persistence': 'aof'},
                {'operation': 'set', 'persistence': 'rdb'}),
    'full': (*({'operation': 'set', 'payload': size}
               for size in (1024, 65536, 1 << 20)),
             {'operation': 'set', 'shards': 3},
             {'operation': 'set', 'tls': True},
             {'operation': 'connect', 'tls': True},
             {'operation': 'mixed', 'payload': 1024, 'tls': True},
             {'operation': 'mixed', 'payload': 1024, 'connections': 200,
              'client_nodes': 3}),
}

#: Under the generators of others: to compare, not for every question.
COMPARED: dict[str, tuple[dict[str, Any], ...]] = {
    'nightly': ({}, {'operation': 'set'}),
    'full': ({'pipeline': 16}, {'payload': 1024}),
}

#: Generators of others -> the feature of an environment that has them.
GENERATORS = {'benchmark': 'store_bench', 'memtier': 'memtier'}


def scenarios(store: str) -> Iterator[tuple[Scenario, str]]:
    """Every load of a store, and the first mode that it belongs to."""
    yield Scenario(store), 'quick'
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
    """The modes that a load belongs to; another point is only in full."""
    return modes_from(dict(scenarios(scenario.store)).get(scenario, 'full'))
