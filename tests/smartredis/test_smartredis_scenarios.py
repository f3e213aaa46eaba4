"""The arrangements of the test cases."""
from __future__ import annotations

import pytest

from checks.smartredis.scenarios import (
    ARRANGEMENTS,
    Scenario,
    modes_of_scenario,
    scenarios_with_first_mode,
)


def test_nodes_of_an_arrangement():
    assert (
        Scenario('redis').node_count()
        == Scenario('redis', db_nodes=3).node_count(1)
        == 1
    )
    assert Scenario('redis', db_nodes=3, client_nodes=2).node_count() == 5
    assert Scenario('redis', db_nodes=3, client_nodes=2).node_count(1) == 6
    assert Scenario('redis', 'colocated', client_nodes=2).node_count() == 2


@pytest.mark.parametrize('kind', ARRANGEMENTS)
def test_arrangements_and_their_modes(kind):
    results = list(scenarios_with_first_mode(kind))
    assert len(set(results)) == len(results)
    quick = [scenario for scenario, mode in results
             if mode in ('smoke', 'quick') and scenario.db == 'redis'
             and scenario.node_count() == 1]
    assert [scenario.rank_count for scenario in quick] == [4, 1]
    assert modes_of_scenario(kind, quick[0]) == {'quick', 'nightly', 'full'}
    assert modes_of_scenario(kind, Scenario('redis', clients_per_node=7)) == {'full'}
    assert any(scenario.db_nodes == 3 for scenario, _ in results)
    # One database, one for each node, and clusters.
    assert {scenario.deployment for scenario, _ in results} == {
        'standard', 'colocated'}
    for mode in ('nightly', 'full'):
        assert {scenario.db_nodes for scenario, first in results
                if first == mode} >= {3, 5, 16}
    # Never a database colocated with nothing, nor a cluster of such.
    assert all(scenario.deployment == 'standard' or scenario.db_nodes == 1
               for scenario, _ in results)
