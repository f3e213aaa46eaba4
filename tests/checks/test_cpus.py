"""CPUs of a node, and those that its servers and clients get."""
from __future__ import annotations

import pytest

from checks.machine import cpus


def two_sockets(threads=1):
    """2 NUMA nodes of 2 cores with so many threads each."""
    return sorted(cpus.Cpu(core // 2, core // 2, core % 2, core + 4 * thread)
                  for core in range(4) for thread in range(threads))


@pytest.mark.parametrize('machine, wants, sets', [
    (two_sockets(), [('server', 1, 1), ('client', 1, 3)],
     {'server': [[0]], 'client': [[1, 2, 3]]}),
    (two_sockets(), [('server', 1, 1), ('client', 1, 2)],
     {'server': [[0]], 'client': [[2, 3]]}),
    (two_sockets(2), [('server', 2, 1), ('client', 1, 4)],
     {'server': [[0, 4], [1, 5]], 'client': [[2, 3, 6, 7]]}),
    (two_sockets(2), [('server', 4, 1), ('client', 4, 1)],
     {'server': [[0], [4], [1], [5]], 'client': [[2], [6], [3], [7]]}),
    (two_sockets(), [('server', 4, 1), ('client', 1, 1)],
     {'server': [[0, 1, 2, 3]] * 4, 'client': [[0, 1, 2, 3]]}),
])
def test_placement(machine, wants, sets):
    assert cpus.assign_cpus(machine, [cpus.CpuRequest(*want) for want in wants]) == sets


def test_topology_is_read_from_the_kernel(tmp_path):
    for number, (core, package) in enumerate([(0, 0), (0, 0), (0, 1)]):
        folder = tmp_path / 'cpu' / f'cpu{number}' / 'topology'
        folder.mkdir(parents=True)
        (folder / 'core_id').write_text(f'{core}\n')
        (folder / 'physical_package_id').write_text(f'{package}\n')
    (tmp_path / 'node').mkdir()
    (tmp_path / 'node' / 'online').write_text('0-1\n')
    for number, text in enumerate(['0-1', '2']):
        folder = tmp_path / 'node' / f'node{number}'
        folder.mkdir(parents=True)
        (folder / 'cpulist').write_text(f'{text}\n')
    result = cpus.available_cpus(str(tmp_path), [0, 1, 2])
    assert result == [(0, 0, 0, 0), (0, 0, 0, 1), (1, 1, 0, 2)]
