"""The cluster in a box: its nodes, links and ends."""
from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from cluster import SWITCH, ClusterError
from conftest import ROOT, until

from config.sites import topology

pytestmark = pytest.mark.cluster


def left_over(folder: Path) -> list[str]:
    """Processes, mounts and interfaces that speak of a cluster's folder."""
    results = []
    for entry in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if str(folder) in (entry / 'mountinfo').read_text():
                results.append(f'{entry.name} '
                               + (entry / 'comm').read_text().strip())
            elif str(folder).encode() in (entry / 'cmdline').read_bytes():
                results.append(entry.name)
    results += [line for line in Path('/proc/mounts').read_text().splitlines()
                if str(folder) in line]
    return results


def interfaces() -> set[str]:
    return {line.split(':')[0].strip() for line in
            Path('/proc/net/dev').read_text().splitlines()[2:]}


def test_a_site_made_here_has_the_switches_of_slurm(own, suite, tmp_path):
    """`scontrol show topology` of a real Slurm with leaf switches."""
    env = {k: v for k, v in os.environ.items() if k != 'SPACK_ROOT'}
    folder = tmp_path / 'boxed'
    done = own(nodes=3, switch=2).exec(
        ROOT / 'plumb', 'site', 'new', 'boxed', '--path', folder, '--yes',
        '--access=--qos=normal', env={**env, **suite.variables})
    assert done.returncode == 0, done.stdout + done.stderr
    assert topology.load_switches(folder / 'topology.yaml') == {
        'leaf1': topology.Switch(('n1', 'n2'), ()),
        'leaf2': topology.Switch(('n3',), ()),
        'top': topology.Switch((), ('leaf1', 'leaf2'))}
    assert '3 nodes on 2 leaf switches, 3 switches in all' in done.stdout
    text = (folder / 'system.py').read_text()
    assert "'--partition=batch', '--exclusive', '--qos=normal'" in text
    # Without accounting, nothing of it is enforced.
    assert 'accounting' not in done.stdout


def test_every_node_is_a_machine_of_its_own(cluster):
    names = cluster.ask('srun', '-N4', 'hostname').split()
    assert sorted(names) == cluster.nodes
    cluster.ask('sh', '-c', 'echo mine >/tmp/a; echo mine >/dev/shm/b',
                node='n1')
    # An Open MPI job of an earlier test that was killed may have left files.
    assert {'/dev/shm/b', '/tmp/a'} <= {*cluster.files('n1')}
    assert not {'/dev/shm/b', '/tmp/a'} & {*cluster.files('n2')}
    cluster.ask('rm', '/tmp/a', '/dev/shm/b', node='n1')
    assert cluster.ask('getent', 'hosts', 'n3').split() == [
        cluster.address('n3'), 'n3']
    # Slurm's process of the step ends a moment after srun.
    until(lambda: cluster.processes('n1') == [] and cluster.ports('n1') == set())
    # Nothing of it is seen, or can be reached, from outside.
    assert not interfaces() & {'br0', *cluster.nodes}
    assert cluster.ask('cat', 'tests/conftest.py', node='n2') == (
        ROOT / 'tests' / 'conftest.py').read_text()


def test_a_dead_node_is_gone_and_comes_back(cluster):
    job = cluster.submit('#!/bin/sh\ntouch /tmp/mine; sleep 1000\n', '-wn2')
    until(lambda: '/tmp/mine' in cluster.files('n2'))
    subset = {p.pid for p in cluster.processes('n2')}
    assert subset
    cluster.kill('n2')
    assert not any(Path(f'/proc/{pid}').exists() for pid in subset)
    with pytest.raises(ClusterError, match='n2 is dead; boot it'):
        cluster.ports('n2')
    assert 'n2@' not in cluster.ask('ip', '-br', 'link', node=SWITCH)
    assert cluster.wait(job)['JobState'] == 'NODE_FAIL'
    cluster.boot('n2')
    assert (cluster.processes('n2'), cluster.files('n2')) == ([], [])
    assert cluster.ask('srun', '-wn2', 'hostname') == 'n2\n'
    with pytest.raises(ClusterError, match='alive already'):
        cluster.boot('n2')


def test_clusters_side_by_side_leave_nothing(own, tmp_path):
    before = interfaces()
    one, two = own('one'), own('two')
    with pytest.raises(ClusterError, match='is there already'):
        one.up()
    assert one.ask('srun', '-N2', 'hostname').split()
    job = two.submit('#!/bin/sh\nsleep 1000\n', '-N2')
    until(lambda: two.job(job)['JobState'] == 'RUNNING')
    two.delay('n1', '1ms')
    assert left_over(one.folder) and left_over(two.folder)
    two.down()
    assert not left_over(two.folder) and not two.folder.exists()
    one.wait_idle(['n1', 'n2'])
    one.down()
    one.down()
    assert not left_over(one.folder) and list(tmp_path.iterdir()) == []
    assert interfaces() == before
