"""The check of the embedded programs: settings, a run, and its records."""
from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from checks.optcast import scenarios
from checks.optcast.scenarios import Scenario
from tests.conftest import of_family


def setup(clients=4, servers=2, type='optcast', data_type='f32', sizes=(512 << 20,),
          chunksize=512 << 10, **more):
    return scenarios.Setup(type, data_type, clients, servers, sizes, chunksize, 5, 1,
                          **more)


@pytest.mark.parametrize('given, why', [
    ({'chunksize': 10}, 'chunksize 10 is not a multiple of 4 B'),
    ({'clients': 1}, 'an all-reduce needs at least two'),
    ({'sizes': (4 << 20, 4 << 20)}, 'each size must exceed the one before it'),
    ({'sizes': (1000001,)}, 'be a multiple of 4 B')])
def test_settings_that_are_refused(given, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        setup(**given)


def test_sizes_and_defaults():
    assert (scenarios.parse_size('512K'), scenarios.parse_size(8)) == (512 << 10, 8)
    with pytest.raises(ValueError, match="'1T' is not a size"):
        scenarios.parse_size('1T')
    of = setup()
    assert (of.elements_per_message, of.copy_threads) == (131072, 4)
    # 4 threads would wait for ever for a part of 2 clients each.
    assert setup(2, 2).copy_threads == 2


@pytest.mark.parametrize('scenario, clients, servers, expected', [
    (Scenario('optcast', 'f32', 2, 1, 0, 'small'), 5, 3, (5, 3, 0)),
    (Scenario('optcast', 'f32', 2, 1, 2, 'small'), 3, 7, (3, 7, 3)),
    (Scenario('optcast', 'f32', 4, 4, 2, 'small'), 8, 0, (8, 4, 4)),
    (Scenario('optcast', 'f32', 4, 4, 2, 'small'), 3, 0, (3, 4, 3))])
def test_other_numbers_of_clients_and_servers(scenario, clients, servers, expected):
    of = scenario.with_counts(clients, servers)
    assert (of.clients, of.servers, of.client_nodes) == expected


def test_several_servers_a_node_with_a_nic_each():
    """As many as the partition has NICs; all nodes have the same number."""
    def nics(count, kind='infiniband'):
        return [SimpleNamespace(type='nic', arch=kind, num_devices=count)]
    nodes = scenarios.count_server_nodes
    assert nodes(4, 1, [nics(8)]) == 4 and nodes(4, 2, []) == 2
    assert nodes(4, 0, [nics(4, 'slingshot'), nics(2)]) == 2
    assert nodes(3, 0, [nics(2)]) == 3 and nodes(4, 3, []) == 2
    assert scenarios.server_nic_environments(nics(2), 2) == (
        {'NCCL_IB_HCA': '=mlx5_0:1'}, {'NCCL_IB_HCA': '=mlx5_1:1'})
    assert scenarios.server_nic_environments(nics(2), 3) == ()


def test_servers_on_one_node(suite):
    """Metrics of both and the spans are reported."""
    done = suite.reframe(
        *of_family('optcast'), '-r', '-Sbringup=1', '-n', 'OptcastAllReduce', '-E',
        'scenario.client_nodes == 0 and scenario.data_type == "bf16"', *(
            f'-SOptcastAllReduce.{setting}' for setting in (
                'sizes=64K,256K', 'chunksize=16K', 'iterations=2',
                'options=--reduce-jobs 3 --reduce-threads 1')))
    assert 'PASSED  ] Ran 2/2' in done.stdout, done.stdout
    assert {row['point'] for row in suite.records
            if row['metric'] == 'ring_ratio' and float(row['value']) > 0} == {
        '65536 B', '262144 B'}
    calls = [path.read_text() for path in suite.tmp.rglob('samples-*.csv')]
    assert any('server:reduce' in text for text in calls)
    # The original's script takes times from the second or third word of a line.
    kept = [*suite.tmp.rglob('output/**/run.1.logs/*.log')]
    assert {path.name for path in kept} == {'client.log', 'server.log'}
    for path in kept:
        spans = re.findall('.* TRACE .*', path.read_text())
        assert spans and all(re.match(r'\S+ \[(20|0\] \d)', line) for line in spans)
