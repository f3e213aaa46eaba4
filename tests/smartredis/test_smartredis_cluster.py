"""The checks on the cluster in a box: the database on nodes of its own."""
from __future__ import annotations

import os

import pytest
from conftest import of_family
from rounds import left, seen

from checks.services.parser import split_service_record


@pytest.mark.cluster
@pytest.mark.parametrize('name, arrangement, partition', [
    # Three shards and a node of clients.
    ('SmartRedisThroughput', 'scenario.db_nodes == 3 and scenario.client_nodes == 1',
     'slurm-srun'),
    # Two nodes of producers, one of the consumer.
    ('SmartRedisAggregation', 'scenario.client_nodes == 2', 'squeue-mpirun'),
    ('SmartRedisInference', 'scenario.client_nodes == 2', 'slurm-srun')])
def test_ranks_and_their_database(suite, cluster, name, arrangement, partition):
    before = seen(cluster)
    sizes = [f'-S{name}.tensor_bytes=1024,65536'] * ('Inference' not in name)
    text, _ = suite.on(
        cluster, '-r', '-Sbringup=1', f'--system=devcluster:{partition}',
        *of_family('smartredis'), '-n', name, '-E',
        f'{arrangement} and scenario.clients_per_node == 4'
        ' and scenario.db == "valkey"',
        f'-S{name}.iterations=10', *sizes).communicate()
    assert 'Ran 2/2 test case(s)' in text and 'PASSED' in text, text
    # Four ranks share the two CPUs of a node: recorded, and never judged.
    assert {(r['num_nodes'], r['result']) for r in suite.records} == {
        ('3' if 'Inference' in name else '4', 'inconclusive')}
    # With the library of SmartRedis, if this machine has it.
    assert {(r['program'], r['source']) for r in suite.records} == {
        ('tensorload', 'system' if os.environ.get('SMARTREDIS_PREFIX')
         else 'embedded')}
    assert left(cluster, before, suite.tmp) == []


@pytest.mark.cluster
@pytest.mark.parametrize('partition, name, settings', [
    ('slurm-srun', 'Throughput', ['net_type=tcp', 'tensor_bytes=1024']),
    ('squeue-mpirun', 'Inference', ['net_type=uds'])])
def test_colocated_databases_on_two_nodes(suite, cluster, partition, name, settings):
    """Over TCP; and with a model that each of them needs."""
    text, _ = suite.on(
        cluster, '-r', '-Sbringup=1', f'--system=devcluster:{partition}',
        *of_family('smartredis'), '-n', f'SmartRedis{name}', '-E',
        'scenario.deployment == "colocated" and scenario.db == "valkey"',
        *(f'-SSmartRedis{name}.{setting}' for setting in (
            'client_nodes=2', 'iterations=10', *settings))).communicate()
    assert '[  PASSED  ]' in text, text
    assert {r['num_nodes'] for r in suite.records} == {'2'}


@pytest.mark.cluster
def test_database_on_a_node_of_another_type(suite, cluster):
    """A heterogeneous job: node names, observers and facts of both parts."""
    before = seen(cluster)
    text, _ = suite.on(
        cluster, '-r', '-Sbringup=1', '--system=devcluster:slurm-srun',
        *of_family('smartredis'), '-n', 'SmartRedisThroughput', '-E',
        'scenario.client_nodes == 2 and scenario.clients_per_node == 4'
        ' and scenario.deployment == "standard" and scenario.db == "valkey"',
        '--keep-stage-files', *(f'-SSmartRedisThroughput.{setting}' for setting in (
            'server_access=--nodelist=n4', 'iterations=10', 'tensor_bytes=1024')),
    ).communicate()
    assert '[  PASSED  ]' in text, text
    assert {(r['num_nodes'], r['nodes']) for r in suite.records} == {
        ('3', 'n[1-2,4]')}
    [record] = suite.tmp.glob('work/stage/**/run.1.record')
    services, _ = split_service_record(record.read_text())
    assert [server.node for server in services.servers] == ['n4']
    assert {*services.client_nodes} == {'n1', 'n2'}
    assert left(cluster, before, suite.tmp) == []


@pytest.mark.cluster
def test_each_node_has_a_database_of_its_own(suite, cluster):
    """Colocated on one node and on two, beside one on a node of its own."""
    before = seen(cluster)
    text, _ = suite.on(
        cluster, '-r', '-Sbringup=1', '--system=devcluster:squeue-mpirun',
        *of_family('smartredis'), '-n', 'SmartRedisThroughput', '-E',
        '(scenario.deployment == "colocated" or scenario.client_nodes == 2)'
        ' and scenario.clients_per_node == 4 and scenario.db_nodes == 1'
        ' and scenario.db == "valkey"',
        '-SSmartRedisThroughput.iterations=10',
        '-SSmartRedisThroughput.tensor_bytes=1024').communicate()
    assert 'Ran 4/4 test case(s)' in text and 'PASSED' in text, text
    ran = {(r['num_nodes'], 'colocated' in r['params']) for r in suite.records}
    assert ran == {('1', True), ('2', True), ('3', False)}, text
    assert left(cluster, before, suite.tmp) == []
