"""Pairs of nodes: which are measured, and what they say of nodes and links.

The clusters are those of bench/locate.py; how often it is right is measured
there, here stands what must hold at all.
"""
from __future__ import annotations

import itertools
import json

import pytest
from locate import (
    Cluster,
    cluster_maker_with_bad_nodes,
    cluster_with_slow_link,
    cluster_with_slow_switch,
)

from postprocess.regressions import locating
from postprocess.regressions.locating import Search, result_lines, round_robin_pairs


def names(result):
    return {(one.kind, one.name, one.verdict) for one in result.named}


def slow(*nodes):
    return {('node', node, 'slow') for node in nodes}


@pytest.mark.parametrize('number', range(2, 12))
def test_a_round_robin_has_each_pair_once_and_each_node_once_a_round(number):
    nodes = [f'n{i}' for i in range(number)]
    turns = round_robin_pairs(nodes)
    pairs = [frozenset(pair) for turn in turns for pair in turn]
    assert sorted(map(sorted, pairs)) == sorted(
        map(sorted, itertools.combinations(nodes, 2)))
    for turn in turns:
        met = [node for pair in turn for node in pair]
        assert len(met) == len(set(met)) == number - number % 2
    assert turns[0][0] == ('n0', 'n1')


@pytest.mark.parametrize('size, bad, slowdown', [
    (4, ['n2'], 0.8), (4, ['n4'], 0.9), (5, ['n5'], 0.8), (8, ['n6'], 0.8),
    (9, ['n9'], 0.9), (64, ['n7', 'n8', 'n40'], 0.9)])
@pytest.mark.parametrize('seed', range(3))
def test_slow_nodes_are_named_with_their_evidence(size, bad, slowdown, seed):
    cluster = Cluster(size, seed, slow=dict.fromkeys(bad, slowdown))
    located = cluster.locate_bad_nodes()
    assert names(located) == slow(*bad)
    assert set(located.good) == set(cluster.nodes) - set(bad)
    assert located.exit_code == 1
    for one in located.named:
        assert one.ratio == pytest.approx(slowdown, abs=0.05)
        assert one.pairs >= 2 and one.others >= 2 and one.failed == 0
        assert one.z > 3 and one.odds > 2
    text = '\n'.join(result_lines(located))
    assert f'SLOW    node {bad[0]}: -' in text and 'odds 10^' in text
    assert json.loads(located.json())['named'][0]['name'] in bad


def test_rounds_are_disjoint_and_little_is_spent_on_what_is_known():
    cluster, bad = cluster_maker_with_bad_nodes(512, 3)(0)
    search, met = Search(cluster.nodes, 'higher'), set()
    while rounds := search.next_rounds():
        for pairs in rounds:
            busy = [node for pair in pairs for node in pair]
            assert len(busy) == len(set(busy))
            met.update(busy)
            for pair in pairs:
                search.add_measurement(pair, cluster.simulated_pair_metric(*pair))
    located = search.current_result()
    assert names(located) == slow(*bad) and met == set(cluster.nodes)
    # The first round has 256: each node once.
    assert located.jobs < 450 and located.rounds < 16


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
        assert 'No part is slower than the others.' in [*result_lines(located)]


def test_one_odd_job_names_nobody(monkeypatch):
    """The cut of a pair's evidence is what sees to it."""
    def odd():
        cluster = Cluster(64, 5)
        search, odd = Search(cluster.nodes, 'higher'), 0.2
        while rounds := search.next_rounds():
            for pair in itertools.chain(*rounds):
                metric = cluster.simulated_pair_metric(*pair)
                if pair == ('n1', 'n2'):
                    metric, odd = metric * odd, 1.0
                search.add_measurement(pair, metric)
        return names(search.current_result())
    assert odd() == set()
    monkeypatch.setattr(locating, 'CLIP', 1000.0)
    assert odd() != set()


def test_a_node_that_does_not_answer_fails_and_its_partners_do_not():
    cluster = Cluster(8, 2, dead=['n5'])
    located = cluster.locate_bad_nodes()
    assert names(located) == {('node', 'n5', 'fails')}
    [one] = located.named
    assert one.value is None and one.failed == one.pairs >= 2
    assert set(located.good) == set(cluster.nodes) - {'n5'}
    assert 'FAILS   node n5: ' in '\n'.join(result_lines(located))


def test_both_nodes_of_a_pair():
    for seed in range(3):
        located = Cluster(32, seed, slow={'n1': 0.8, 'n2': 0.85}).locate_bad_nodes()
        assert names(located) == slow('n1', 'n2')


def test_a_link_between_two_good_nodes():
    for seed in range(3):
        cluster, [link] = (
            cluster_with_slow_link(seed)[0],
            cluster_with_slow_link(seed)[1],
        )
        located = cluster.locate_bad_nodes()
        assert names(located) == {('link', link, 'slow')}
        assert len(located.good) == 8
        assert located.notes == []
    few = Cluster(16, 0).locate_bad_nodes()
    assert any('of 120 were measured' in note for note in few.notes)


def test_a_switch_is_one_finding_and_its_nodes_are_unclear():
    cluster, leaf = cluster_with_slow_switch(3)
    located = cluster.locate_bad_nodes()
    assert names(located) == {('switch', *leaf, 'slow')}
    behind = {one.name for one in located.unclear}
    assert behind == {node for node, above in cluster.above.items()
                      if above[0] in leaf}
    assert 'no pair avoids this' in located.unclear[0].why
    # Slower across switches is no fault.
    assert located.levels[1] == pytest.approx(85, rel=0.05)
    assert located.levels[0] == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize('size, leaf, factor', [(6, 2, 0.5), (8, 2, 0.8),
                                                (16, 4, 0.8), (8, 4, 0.5)])
def test_a_slow_switch_of_few(size, leaf, factor):
    """Most pairs go through it: they are not the level. Two nodes behind it
    cannot be told from it, and one of two switches neither from the other."""
    for seed in range(2):
        located = Cluster(size, seed, noise=0.02, leaf=leaf,
                          slow={'leaf1': factor}).locate_bad_nodes()
        if size // leaf == 2:
            assert not located.named and not located.good
            assert any('faster than the level of good pairs' in note
                       for note in located.notes)
            continue
        behind = {f'n{n}' for n in range(1, leaf + 1)}
        assert set(located.good) == set(Cluster(size, 0).nodes) - behind
        reported = {one.name for one in (*located.named, *located.unclear)}
        assert {'leaf1', *behind} <= reported <= {'leaf1', *behind}
        assert names(located) == (set() if leaf == 2 else {
            ('switch', 'leaf1', 'slow')})
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
    assert len(located.good) == 64


def test_two_nodes_are_one_pair():
    located = Cluster(2, 0, slow={'n1': 0.5}).locate_bad_nodes()
    assert names(located) == set() and located.good == []
    assert {one.name for one in located.unclear} == {'n1', 'n2'}
    assert 'it cannot be compared' in '\n'.join(result_lines(located))


def test_all_slow_is_nothing_to_locate():
    cluster = Cluster(16, 3)
    search = Search(cluster.nodes, 'higher')
    while rounds := search.next_rounds():
        for pair in itertools.chain(*rounds):
            search.add_measurement(pair, cluster.simulated_pair_metric(*pair) * 0.8)
    located = search.current_result(expected=100.0)
    assert names(located) == set()
    assert any(note.startswith('all pairs are slow: ')
               for note in located.notes)
    assert not any('all pairs' in note for note in
                   search.current_result(expected=81.0).notes)


def test_more_noise_than_can_be_seen_through_is_said():
    located = Cluster(4, 0, noise=0.3, slow={'n1': 0.9}).locate_bad_nodes()
    assert names(located) == set() and located.good == []
    assert len(located.unclear) >= 4
    assert any(
        'too much to see a slowdown of 10 %' in note for note in located.notes
    )


def test_metrics_that_are_none_count_as_failed():
    search = Search(['a', 'b', 'c', 'd'], 'higher')
    for pairs in search.next_rounds():
        for pair in pairs:
            search.add_measurement(pair, 0.0 if 'a' in pair else float('nan')
                                   if pair == ('b', 'c') else 5.0)
    assert ('node', 'a', 'fails') in names(search.current_result())


def test_nothing_measured_says_nothing():
    search = Search(['a', 'b', 'c'], 'higher')
    assert search.current_result().notes == ['no pair was measured']
    assert search.next_rounds() and search.next_rounds() == []


@pytest.mark.parametrize('nodes, slowdown, words', [
    ([], 0.1, '; 0 given'), (['a'], 0.1, '; 1 given'),
    (['a', 'a'], 0.1, '; 1 given'), (['a', 'b'], 0.0, 'it must be from'),
    (['a', 'b'], 1.0, 'it must be from')])
def test_what_cannot_be_searched(nodes, slowdown, words):
    with pytest.raises(ValueError, match=words):
        Search(nodes, 'higher', slowdown=slowdown)
