#!/usr/bin/env python3
"""Measures how well `plumb locate` finds bad nodes, and with how many jobs.

    .plumbline/venv/bin/python bench/locate.py [--seeds N] [--nodes 512]

Simulated clusters: a metric of 100 for a good pair, times a noise of 3 %
(normal, of the logarithm), times 0.9 where a node of the pair is bad. For 0 to
5 bad nodes, over all seeds: bad nodes that were named, that stayed unclear
and that were missed (reported as good); good nodes that were accused; jobs and
rounds (a round is one time slot: its jobs run at the same time), each with
the median and the largest. Beside them log2 of the number of answers, the
least number of jobs that answer yes or no with groups of any size and no
noise; and n / 2, the least number of pairs that sees each node once.

Then harder ones: noise with a heavy tail, a slow link, a slow switch, a node
that does not answer. bench/README.md has the goals.
"""
from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from common import option_parser, print_table_head, print_table_row, run_main_and_exit

from postprocess.regressions.locating import Located, Search

LEVEL = 100.0


@dataclass
class Cluster:
    """Nodes n1 to nN, and what is wrong with them."""
    size: int
    seed: int
    noise: float = 0.03
    #: Share of the jobs with five times the noise, to the worse alone.
    tail: float = 0.0
    #: Node, link (a pair of nodes) or switch -> factor of its pairs' metric.
    slow: Mapping[object, float] = field(default_factory=dict)
    dead: Collection[str] = ()
    #: Nodes a leaf switch; 0: no tree is known.
    leaf: int = 0
    #: Factor of a pair that crosses leaf switches.
    across: float = 1.0
    #: All pairs first.
    every: bool = False

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.nodes = [f'n{i}' for i in range(1, self.size + 1)]
        self.above = {node: [f'leaf{i // self.leaf + 1}', 'top']
                      for i, node in enumerate(self.nodes)
                      } if self.leaf else {}

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
        off = self.noise * drawn
        if wild < self.tail:
            off = -5 * abs(off)
        return value * math.exp(off)

    def locate_bad_nodes(self) -> Located:
        """A whole search on it."""
        search_ = Search(self.nodes, 'higher', above=self.above,
                         every=self.every)
        while rounds := search_.next_rounds():
            for pairs in rounds:
                for pair in pairs:
                    search_.add_measurement(pair, self.simulated_pair_metric(*pair))
        return search_.current_result()


@dataclass
class Tally:
    """What came of some searches."""
    right: int = 0
    unclear: int = 0
    missed: int = 0
    accused: int = 0
    bad: int = 0
    jobs: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    whole: int = 0
    seconds: float = 0.0

    def add_search_result(self, located: Located, bad: Collection[str]) -> None:
        """:param bad: names of the parts that are slow or dead"""
        named = {one.name for one in located.named}
        self.bad += len(bad)
        self.right += len(named & set(bad))
        self.accused += len(named - set(bad))
        unclear = {one.name for one in located.unclear}
        self.unclear += len(unclear & set(bad))
        self.missed += len(set(bad) - named - unclear)
        self.jobs.append(located.jobs)
        self.rounds.append(located.rounds)
        self.whole += named == set(bad)

    def print_row(self, title: str, limit: str) -> None:
        """Prints a row of the table."""
        searches = len(self.jobs)

        def median_and_max_text(numbers: list[int]) -> str:
            return f'{statistics.median(numbers):g} ({max(numbers)})'

        print_table_row(
            title,
            searches,
            f'{self.right}/{self.bad}',
            self.unclear,
            self.missed,
            self.accused,
            f'{100 * self.whole / searches:.1f} %',
            median_and_max_text(self.jobs),
            median_and_max_text(self.rounds),
            limit,
            f'{1000 * self.seconds / searches:.0f}',
        )


def simulate_searches(seeds: int, make: Callable[[int], tuple[Cluster, set[str]]]
          ) -> Tally:
    result = Tally()
    for seed in range(seeds):
        cluster, bad = make(seed)
        began = time.process_time()
        located = cluster.locate_bad_nodes()
        result.seconds += time.process_time() - began
        result.add_search_result(located, bad)
    return result


def cluster_maker_with_bad_nodes(size: int, number: int, tail: float = 0.0
             ) -> Callable[[int], tuple[Cluster, set[str]]]:
    """Clusters with so many bad nodes, which differ from seed to seed."""
    def make_cluster(seed: int) -> tuple[Cluster, set[str]]:
        rng = np.random.default_rng([seed, size, number])
        bad = {f'n{i}' for i in rng.choice(
            np.arange(1, size + 1), number, replace=False)}
        return Cluster(size, seed, tail=tail,
                       slow=dict.fromkeys(bad, 0.9)), bad
    return make_cluster


def cluster_with_slow_link(seed: int) -> tuple[Cluster, set[str]]:
    """Of eight nodes, all pairs of which are measured."""
    a, b = sorted(np.random.default_rng(seed).choice(range(1, 9), 2, False))
    pair = f'n{a}', f'n{b}'
    return (Cluster(8, seed, slow={pair: 0.8}, every=True),
            {' - '.join(pair)})


def cluster_with_slow_switch(seed: int) -> tuple[Cluster, set[str]]:
    leaf = f'leaf{seed % 8 + 1}'
    return Cluster(128, seed, leaf=16, across=0.85, slow={leaf: 0.9}), {leaf}


def cluster_with_dead_node(seed: int) -> tuple[Cluster, set[str]]:
    node = f'n{seed % 64 + 1}'
    return Cluster(64, seed, dead=[node]), {node}


def main() -> bool:
    words = option_parser(__doc__)
    words.add_argument('--seeds', type=int, default=100)
    words.add_argument('--nodes', type=int, default=512)
    args = words.parse_args()
    print_table_head('bad', 'searches', 'named', 'unclear', 'missed', 'accused',
                     'all right', 'jobs', 'rounds', 'log2 of the answers', 'ms of CPU')
    good = True
    for number in range(6):
        result = simulate_searches(
            args.seeds, cluster_maker_with_bad_nodes(args.nodes, number)
        )
        bits = math.log2(math.comb(args.nodes, number))
        result.print_row(f'{number} of {args.nodes}', f'{bits:.1f}')
        good &= result.right >= 0.97 * result.bad
        good &= result.accused <= 0.02 * args.seeds
    for title, make in (
        (
            f'2 of {args.nodes}, 2 % of the jobs 5 times as noisy',
            cluster_maker_with_bad_nodes(args.nodes, 2, 0.02),
        ),
        ('1 of 8', cluster_maker_with_bad_nodes(8, 1)),
        ('2 of 16', cluster_maker_with_bad_nodes(16, 2)),
        ('a link of 8 nodes, 20 %', cluster_with_slow_link),
        ('a leaf switch of 8 with 16 nodes each', cluster_with_slow_switch),
        ('1 of 64 does not answer', cluster_with_dead_node),
    ):
        simulate_searches(args.seeds, make).print_row(title, '-')
    return good


if __name__ == '__main__':
    run_main_and_exit(main)
