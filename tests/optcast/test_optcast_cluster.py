"""The check on the cluster in a box: clients and servers on nodes of their
own, under both launchers."""
from __future__ import annotations

import pytest
from conftest import of_family
from rounds import left, seen

#: Two sizes, and few all-reduces: all nodes share one machine.
QUICK = [f'-SOptcastAllReduce.{setting}' for setting in (
    'sizes=64K,256K', 'chunksize=16K', 'iterations=3', 'warmup=1')]


def ran(suite, cluster, partition, case):
    """Records of a case, by metric and point; nothing of it is left."""
    before = seen(cluster)
    text, _ = suite.on(
        cluster, '-r', '-Sbringup=1', f'--system=devcluster:{partition}',
        *of_family('optcast'), '-n', 'OptcastAllReduce', '-E',
        case, *QUICK).communicate()
    assert 'Ran 2/2 test case(s)' in text and 'PASSED' in text, text
    assert left(cluster, before, suite.tmp) == []
    return {(r['metric'], r['point']): r for r in suite.records}


@pytest.mark.cluster
@pytest.mark.parametrize('partition', ['slurm-srun', 'squeue-mpirun'])
def test_two_clients_and_two_servers_on_four_nodes(suite, cluster,
                                                   partition):
    result = ran(suite, cluster, partition,
                "scenario.type == 'optcast' and scenario.client_nodes == 2 "
                'and scenario.servers == 2')
    assert {r['num_nodes'] for r in result.values()} == {'4'}
    for size in ('65536 B', '262144 B'):
        ratio, busbw, ring = (float(result[name, size]['value']) for name in (
            'ring_ratio', 'busbw', 'ring_busbw'))
        assert ratio == pytest.approx(busbw / ring, rel=1e-3)
    # What threads did is kept for the page.
    [calls] = (suite.tmp / 'perflogs').rglob('samples-*.csv')
    assert 'server:reduce' in calls.read_text()


@pytest.mark.cluster
def test_a_ring_on_four_nodes(suite, cluster):
    result = ran(suite, cluster, 'slurm-srun',
                "scenario.type == 'ring' and scenario.clients == 4 "
                "and scenario.scale == 'small'")
    assert {r['num_nodes'] for r in result.values()} == {'4'}
    assert float(result['busbw', '262144 B']['value']) > 0
    assert ('ring_ratio', '262144 B') not in result
