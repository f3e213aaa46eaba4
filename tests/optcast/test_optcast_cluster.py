"""The check on the cluster in a box: clients and servers on nodes of their own."""
from __future__ import annotations

import pytest
from conftest import of_family
from rounds import left, seen

#: Two sizes, and few all-reduces: all nodes share one machine.
QUICK = [f'-SOptcastAllReduce.{setting}' for setting in (
    'sizes=64K,256K', 'chunksize=16K', 'iterations=3', 'warmup=1')]


@pytest.mark.cluster
def test_servers_on_four_nodes(suite, cluster):
    before = seen(cluster)
    text, _ = suite.on(
        cluster, '-r', '-Sbringup=1', '--system=devcluster:squeue-mpirun',
        *of_family('optcast'), '-n', 'OptcastAllReduce', '-E',
        "scenario.client_nodes == 2 and scenario.servers == 2", *QUICK).communicate()
    assert 'Ran 2/2 test case(s)' in text and 'PASSED' in text, text
    assert left(cluster, before, suite.tmp) == []
    assert {r['num_nodes'] for r in suite.records} == {'4'}
    servers = {(row['metric'], row['point']): float(row['value'])
               for row in suite.records}
    for size in ('65536 B', '262144 B'):
        assert servers['ring_ratio', size] == pytest.approx(
            servers['busbw', size] / servers['ring_busbw', size], rel=1e-3)
    # What threads did is kept for the page.
    files = [path.read_text() for path in
             (suite.tmp / 'perflogs').rglob('samples-*.csv')]
    assert any('server:reduce' in text for text in files)
