#!/usr/bin/env python3
"""Measures how often `plumb locate` is right, and with how many jobs.

    .plumbline/venv/bin/python bench/locate.py [--seeds N] [--seed S]

Simulated clusters: a metric of 100 for a good pair, times a noise (normal, of
the logarithm), times 0.9 if a node of the pair is slow. The noise of a node is
3 %, 10 %, or unequal: from 2 to 15 %, different for each node. A pair has the
root mean square of the noise of its two nodes.

Columns: slow parts that were found, that were unclear, and that were reported
as not slower; searches that accused a good part; jobs and
rounds, as median (max). A round is one time slot: its jobs run at the same time.

Goals: at most 1 % of the searches of a noise accuse a good part, and at most
2 % of the slow nodes and switches are reported as not slower.
"""
from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from common import option_parser, print_table_head, print_table_row, run_main_and_exit

from cli.nightly.locating import Located, Search

LEVEL = 100.0


@dataclass
class Cluster:
    """Nodes n1 to nN, and what is wrong with them."""
    size: int
    seed: int
    #: Of all nodes, or of each.
    noise: float | Mapping[str, float] = 0.03
    #: Share of the jobs with five times the noise, to the worse alone.
    tail: float = 0.0
    #: Node, link (a pair of nodes) or switch -> factor of its pairs' metric.
    slow: Mapping[object, float] = field(default_factory=dict)
    dead: Collection[str] = ()
    #: Nodes a leaf switch; 0: no tree is known.
    leaf: int = 0
    #: Factor of a pair that crosses leaf switches.
    across: float = 1.0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.nodes = [f'n{i}' for i in range(1, self.size + 1)]
        self.above = {node: [f'leaf{i // self.leaf + 1}', 'top']
                      for i, node in enumerate(self.nodes)
                      } if self.leaf else {}

    def noise_of_pair(self, a: str, b: str) -> float:
        """The standard deviation of the logarithm of a pair's metric."""
        if isinstance(self.noise, float):
            return self.noise
        return math.sqrt((self.noise[a] ** 2 + self.noise[b] ** 2) / 2)

    def simulated_pair_metric(self, a: str, b: str) -> float | None:
        """What a job on the pair gives; None: it fails."""
        drawn, wild = self.rng.standard_normal(), self.rng.random()
        if a in self.dead or b in self.dead:
            return None
        parts: set[object] = {a, b, (a, b), (b, a)}
        value = LEVEL
        if self.leaf:
            leaves = {self.above[a][0], self.above[b][0]}
            parts |= leaves
            value *= self.across if len(leaves) == 2 else 1
        # As bandwidth has it: the slowest part sets the pace.
        value *= min((self.slow[part] for part in parts & set(self.slow)),
                     default=1)
        off = self.noise_of_pair(a, b) * drawn
        if wild < self.tail:
            off = -5 * abs(off)
        return value * math.exp(off)

    def locate_bad_nodes(self) -> Located:
        """A whole search on it."""
        search = Search(self.nodes, 'higher', above=self.above)
        while rounds := search.next_rounds():
            for pairs in rounds:
                for pair in pairs:
                    search.add_measurement(pair, self.simulated_pair_metric(*pair))
        return search.current_result()


@dataclass
class Tally:
    """What came of some searches."""
    searches: int = 0
    #: Slow parts, and what was reported of them.
    slow: int = 0
    correct: int = 0
    unclear: int = 0
    missed: int = 0
    #: Searches that accused a good part.
    accusing: int = 0
    jobs: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def add_search(self, cluster: Cluster) -> None:
        """Searches the slow parts of a cluster, and counts the result."""
        located = cluster.locate_bad_nodes()
        slow = {*map(str, cluster.slow), *cluster.dead}
        named = {one.name for one in located.named}
        unclear = {name.rpartition(' ')[2] for name in located.unclear} - named
        self.searches += 1
        self.slow += len(slow)
        self.correct += len(slow & named)
        self.unclear += len(slow & unclear)
        self.missed += len(slow - named - unclear)
        self.accusing += bool(named - slow)
        self.jobs.append(located.jobs)
        self.rounds.append(located.rounds)

    def print_row(self, *titles: str) -> None:
        """Prints a row of the table."""
        def median_and_max_text(numbers: list[int]) -> str:
            return f'{statistics.median(numbers):g} ({max(numbers)})'

        print_table_row(
            *titles, f'{self.correct}/{self.slow}', self.unclear, self.missed,
            self.accusing, median_and_max_text(self.jobs),
            median_and_max_text(self.rounds))


def cluster_with_slow_nodes(size: int, number: int, rng: np.random.Generator,
                            **more: Any) -> Cluster:
    """A cluster with so many nodes that are 10 % slower."""
    slow = [f'n{i}' for i in rng.choice(np.arange(1, size + 1), number, False)]
    return Cluster(size, slow=dict.fromkeys(slow, 0.9), **more)


def cluster_with_slow_switch(switches: int, nodes: int, rng: np.random.Generator,
                             **more: Any) -> Cluster:
    """A leaf switch of several, with so many nodes each, is 20 % slower."""
    return Cluster(switches * nodes, leaf=nodes, across=0.85,
                   slow={f'leaf{rng.integers(1, switches + 1)}': 0.8}, **more)


def cluster_with_dead_node(rng: np.random.Generator, **more: Any) -> Cluster:
    """One of 64 nodes does not answer."""
    return Cluster(64, dead=[f'n{rng.integers(1, 65)}'], **more)


def noisy_cluster(rng: np.random.Generator, **more: Any) -> Cluster:
    """Three of 16 nodes have a noise of 20 %, and are not slower."""
    noisy = rng.choice(np.arange(1, 17), 3, False)
    noise = {f'n{i}': 0.2 if i in noisy else 0.03 for i in range(1, 17)}
    return Cluster(16, **{**more, 'noise': noise})


def unequal_noise(size: int, rng: np.random.Generator) -> dict[str, float]:
    """A noise of 2 to 15 % for each node, uniform in its logarithm."""
    return {f'n{i}': math.exp(rng.uniform(math.log(0.02), math.log(0.15)))
            for i in range(1, size + 1)}


CLUSTERS: dict[str, tuple[int, Callable[..., Cluster]]] = {
    '0 of 16': (16, partial(cluster_with_slow_nodes, 16, 0)),
    '1 of 16': (16, partial(cluster_with_slow_nodes, 16, 1)),
    '3 of 16': (16, partial(cluster_with_slow_nodes, 16, 3)),
    '0 of 3': (3, partial(cluster_with_slow_nodes, 3, 0)),
    '1 of 3': (3, partial(cluster_with_slow_nodes, 3, 1)),
    '2 of 4': (4, partial(cluster_with_slow_nodes, 4, 2)),
    '3 of 8': (8, partial(cluster_with_slow_nodes, 8, 3)),
    'switch of 4, 20 %': (32, partial(cluster_with_slow_switch, 4, 8)),
    'switch of 2, 20 %': (8, partial(cluster_with_slow_switch, 2, 4)),
    '3 of 16 noisy': (16, noisy_cluster),
}
#: Measured with a noise of 3 % only, in fewer searches.
LARGE_CLUSTERS: dict[str, Callable[..., Cluster]] = {
    '0 of 512': partial(cluster_with_slow_nodes, 512, 0),
    '3 of 512': partial(cluster_with_slow_nodes, 512, 3),
    '1 of 64 does not answer': cluster_with_dead_node,
}


def main() -> bool:
    words = option_parser(__doc__)
    words.add_argument('--seeds', type=int, default=200,
                       help='searches per row (default: 200)')
    words.add_argument('--seed', type=int, default=1,
                       help='of the random numbers (default: 1)')
    words.add_argument('--only', default='', metavar='TEXT',
                       help='rows whose title contains TEXT')
    args = words.parse_args()
    print_table_head('slow', 'noise', 'found', 'unclear', 'not slower',
                     'accusing searches', 'jobs', 'rounds')
    good = True
    for noise in ('3 %', '10 %', 'unequal'):
        rows = []
        for at, (title, (size, make)) in enumerate(CLUSTERS.items()):
            if args.only not in title or title.endswith('noisy') and noise != '3 %':
                continue
            row = Tally()
            for number in range(args.seeds):
                rng = np.random.default_rng([args.seed, at, number])
                row.add_search(make(
                    rng, seed=int(rng.integers(1 << 32)),
                    noise=unequal_noise(size, rng) if noise == 'unequal'
                    else float(noise[:-2]) / 100))
            row.print_row(title, noise)
            rows.append((title, row))
        good &= (sum(row.accusing for _, row in rows)
                 <= 0.01 * sum(row.searches for _, row in rows))
        good &= (sum(row.missed for _, row in rows)
                 <= 0.02 * sum(row.slow for _, row in rows))
    for title, make in LARGE_CLUSTERS.items():
        if args.only in title:
            row = Tally()
            for number in range(max(args.seeds // 4, 1)):
                rng = np.random.default_rng([args.seed, number])
                row.add_search(make(rng, seed=int(rng.integers(1 << 32))))
            row.print_row(title, '3 %')
    return good


if __name__ == '__main__':
    run_main_and_exit(main)
