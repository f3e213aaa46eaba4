"""Pairs of nodes: which are measured, and what they say of nodes and links.

The clusters are those of bench/locate.py; how often it is right is measured
there, here stands what must hold at all.
"""
from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from locate import (
    Cluster,
    cluster_with_slow_nodes,
    cluster_with_slow_switch,
    noisy_cluster,
)

from cli.nightly.locating import Search, result_lines


def names(result):
    return {(one.kind, one.name, one.verdict) for one in result.named}


def slow(*nodes):
    return {('node', node, 'slow') for node in nodes}


@pytest.mark.parametrize('size, bad, slowdown', [
    (3, ['n1'], 0.8), (4, ['n4'], 0.9), (9, ['n9'], 0.9),
    (64, ['n7', 'n8', 'n40'], 0.9)])
@pytest.mark.parametrize('seed', range(2))
def test_slow_nodes_are_named_with_their_evidence(size, bad, slowdown, seed):
    cluster = Cluster(size, seed, slow=dict.fromkeys(bad, slowdown))
    located = cluster.locate_bad_nodes()
    assert names(located) == slow(*bad)
    assert set(located.not_slower) == set(cluster.nodes) - set(bad)
    assert located.exit_code == 1
    for one in located.named:
        assert one.ratio == pytest.approx(slowdown, abs=0.05)
        assert one.jobs >= 4 and one.failed == 0
        assert one.t > one.limit > 2
    text = '\n'.join(result_lines(located))
    assert f'SLOW    node {bad[0]}: -' in text and ', threshold ' in text
    assert json.loads(located.json())['named'][0]['name'] in bad


def test_rounds_are_disjoint_and_little_is_spent_on_what_is_known():
    cluster = cluster_with_slow_nodes(512, 3, np.random.default_rng(0), seed=0)
    search, met = Search(cluster.nodes, 'higher'), set()
    while rounds := search.next_rounds():
        for pairs in rounds:
            busy = [node for pair in pairs for node in pair]
            assert len(busy) == len(set(busy))
            met.update(busy)
            for pair in pairs:
                search.add_measurement(pair, cluster.simulated_pair_metric(*pair))
    located = search.current_result()
    assert names(located) == slow(*cluster.slow) and met == set(cluster.nodes)
    assert located.jobs < 900 and located.rounds < 24


def test_where_less_is_better():
    cluster = Cluster(8, 1, slow={'n3': 0.8})
    search = Search(cluster.nodes, 'lower')
    while rounds := search.next_rounds():
        for pair in itertools.chain(*rounds):
            search.add_measurement(pair, 1000 / cluster.simulated_pair_metric(*pair))
    [one] = search.current_result('us').named
    assert one.name == 'n3' and one.ratio == pytest.approx(1.25, abs=0.08)


def test_nobody_is_accused_where_all_are_good():
    for size, seed in itertools.product((3, 4, 7, 16, 128), range(4)):
        located = Cluster(size, seed).locate_bad_nodes()
        assert names(located) == set() and located.exit_code == 0, (size, seed)
        assert ('No node, switch or uplink was found that is 10 % slower than the '
                'others.') in result_lines(located)


def test_one_odd_job_names_nobody():
    """Nor does it leave a node unclear."""
    cluster = Cluster(64, 5)
    search = Search(cluster.nodes, 'higher')
    odd: tuple[str, ...] = ()
    while rounds := search.next_rounds():
        odd = odd or rounds[0][0]
        for number, pair in enumerate(itertools.chain(*rounds), search.look):
            factor = 0.2 if pair == odd and number == 1 else 1
            search.add_measurement(
                pair, cluster.simulated_pair_metric(*pair) * factor)
    located = search.current_result()
    assert names(located) == set() and set(odd) <= set(located.not_slower)


def searches(number, make):
    """The results of so many clusters."""
    return [(cluster, cluster.locate_bad_nodes()) for cluster in (
        make(np.random.default_rng(seed), seed) for seed in range(number))]


def test_noisier_nodes_are_not_accused():
    """Three of 16 nodes have a noise of 20 %: 58 % of the searches accused."""
    for _, located in searches(20, lambda rng, seed: noisy_cluster(rng, seed=seed)):
        assert names(located) == set()


def test_nobody_is_accused_at_a_noise_of_10_percent():
    """10 % of the searches accused."""
    for _, located in searches(20, lambda rng, seed: Cluster(16, seed, 0.1)):
        assert names(located) == set()


@pytest.mark.parametrize('size, number', [(3, 1), (4, 2)])
@pytest.mark.parametrize('noise', [0.03, 0.1])
def test_slow_nodes_of_few_are_found_or_unclear(size, number, noise):
    """Most pairs are slow: 19 of 60 slow nodes were reported as good, and 70 of
    120."""
    for cluster, located in searches(20, lambda rng, seed: cluster_with_slow_nodes(
            size, number, rng, seed=seed, noise=noise)):
        assert names(located) <= slow(*cluster.slow)
        assert not set(located.not_slower) & set(cluster.slow)


@pytest.mark.parametrize('size', [3, 4])
def test_few_nodes_are_unclear_unless_one_is_slow(size):
    """All pairs are alike too where all nodes but one are slow."""
    located = Cluster(size, 1, slow=dict.fromkeys(
        [f'n{i}' for i in range(2, size + 1)], 0.8)).locate_bad_nodes()
    assert names(located) == set() and located.not_slower == []
    assert len(located.unclear) == size
    assert any('equal if all nodes but one' in note for note in located.notes)


@pytest.mark.parametrize('size', [3, 8])
def test_a_slow_link_accuses_none_of_its_nodes(size):
    """Each end has some of its jobs on it: of three nodes, half of them."""
    for seed in range(5):
        located = Cluster(size, seed, slow={('n1', 'n2'): 0.8}).locate_bad_nodes()
        assert names(located) == set()


def test_a_node_that_does_not_answer_fails_and_its_partners_do_not():
    cluster = Cluster(8, 2, dead=['n5'])
    located = cluster.locate_bad_nodes()
    assert names(located) == {('node', 'n5', 'fails')}
    [one] = located.named
    assert one.ratio is None and one.failed == one.jobs >= 4
    assert set(located.not_slower) == set(cluster.nodes) - {'n5'}
    assert 'FAILS   node n5: ' in '\n'.join(result_lines(located))


def test_a_switch_is_one_finding_and_its_nodes_are_unclear():
    cluster = cluster_with_slow_switch(4, 8, np.random.default_rng(3), seed=3)
    leaf = set(cluster.slow)
    located = cluster.locate_bad_nodes()
    assert names(located) == {('switch', *leaf, 'slow')}
    assert set(located.unclear) == {
        node for node, above in cluster.above.items() if above[0] in leaf}
    # Slower across switches is no fault.
    assert located.levels[1] == pytest.approx(85, rel=0.05)
    assert located.levels[0] == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize('size, leaf, factor', [(6, 2, 0.5), (8, 2, 0.8),
                                                (16, 4, 0.8), (8, 4, 0.5)])
def test_a_slow_switch_of_few(size, leaf, factor):
    """Most pairs go through it: they are not the level. Instead of a switch
    above two nodes its nodes are reported. Of two switches, all pairs across
    have both, so that only pairs inside them can tell."""
    for seed in range(2):
        located = Cluster(size, seed, noise=0.02, leaf=leaf,
                          slow={'leaf1': factor}).locate_bad_nodes()
        behind = {f'n{n}' for n in range(1, leaf + 1)}
        if size // leaf == 2:
            assert names(located) == {('switch', 'leaf1', 'slow')}
            continue
        assert set(located.not_slower) == set(Cluster(size, 0).nodes) - behind
        assert names(located) <= slow(*behind) if leaf == 2 else names(
            located) == {('switch', 'leaf1', 'slow')}
        assert located.levels[1] == pytest.approx(100, rel=0.03)


def test_an_uplink_is_seen_by_pairs_across_and_clears_its_nodes():
    cluster = Cluster(64, 1, leaf=8)
    search = Search(cluster.nodes, 'higher', above=cluster.above)
    while rounds := search.next_rounds():
        for a, b in itertools.chain(*rounds):
            leaves = {cluster.above[a][0], cluster.above[b][0]}
            search.add_measurement((a, b), cluster.simulated_pair_metric(a, b) * (
                0.8 if 'leaf2' in leaves and len(leaves) == 2 else 1))
    located = search.current_result()
    assert names(located) == {('uplink', 'leaf2', 'slow')}
    assert len(located.not_slower) == 64


def test_two_nodes_are_one_pair():
    located = Cluster(2, 0, slow={'n1': 0.5}).locate_bad_nodes()
    assert names(located) == set() and located.not_slower == []
    assert located.unclear == ['n1', 'n2']


def test_more_noise_than_can_be_seen_through_is_said():
    located = Cluster(4, 0, noise=0.3, slow={'n1': 0.9}).locate_bad_nodes()
    assert names(located) == set() and located.not_slower == []
    assert len(located.unclear) >= 4
    assert any(
        'too much to see a slowdown of 10 %' in note for note in located.notes
    )


def test_metrics_that_are_none_count_as_failed():
    search = Search(['a', 'b', 'c', 'd'], 'higher')
    while rounds := search.next_rounds():
        for at, pair in enumerate(itertools.chain(*rounds)):
            search.add_measurement(pair, (0.0, float('nan'))[at % 2]
                                   if 'a' in pair else 5.0)
    assert ('node', 'a', 'fails') in names(search.current_result())


def test_nothing_measured_says_nothing():
    search = Search(['a', 'b', 'c'], 'higher')
    assert search.current_result().notes == ['no pair was measured']
    assert search.next_rounds() and search.next_rounds() == []


@pytest.mark.parametrize('nodes, slowdown, words', [
    (['a', 'a'], 0.1, '; 1 given'),
    (['a', 'b'], 1.0, 'it must be from')])
def test_what_cannot_be_searched(nodes, slowdown, words):
    with pytest.raises(ValueError, match=words):
        Search(nodes, 'higher', slowdown=slowdown)
