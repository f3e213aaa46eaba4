"""The nodes of Slurm, as commands on sites and nightly sessions read them."""
from __future__ import annotations

import os
import re

import pytest
from conftest import ROOT

from cli.setup.venv import SetupError
from cli.site import schedulers

SINFO = (ROOT / 'tests' / 'data' / 'sinfo-nodes.txt').read_text()


SYSTEM = {'name': 'alpha', 'partitions': [
    {'name': 'cpu', 'scheduler': 'slurm', 'access': ['-p batch']},
    {'name': 'same', 'scheduler': 'squeue', 'access': ['-p', 'batch']},
    {'name': 'most', 'scheduler': 'slurm',
     'access': ['--partition=batch', '-x', 'n[1-2]', '--account=x']},
    {'name': 'picked', 'scheduler': 'slurm', 'access': ['-p gpu', '-w g1']},
    {'name': 'any', 'scheduler': 'slurm', 'access': ['-p', 'gpu,batch']},
    {'name': 'here', 'scheduler': 'local'}]}


def sinfo_says(monkeypatch, tmp_path, text, code=0, err=''):
    program = tmp_path / 'bin' / 'sinfo'
    program.parent.mkdir(exist_ok=True)
    (tmp_path / 'output').write_text(text)
    program.write_text(f'#!/bin/sh\ncat {tmp_path}/output; '
                       f'echo "{err}" >&2; exit {code}\n')
    program.chmod(0o755)
    monkeypatch.setenv('PATH', str(program.parent), prepend=os.pathsep)


def test_nodes_of_the_partitions_of_a_site(monkeypatch, tmp_path):
    """Only Slurm is asked, and only nodes that take jobs count."""
    sinfo_says(monkeypatch, tmp_path, SINFO)
    pools, why = schedulers.find_node_pools(SYSTEM)
    assert set(pools) == {'cpu', 'same', 'most'} and pools['cpu'] == pools['same']
    assert pools['most'].usable_nodes == {'n5', 'n9'}
    assert pools['cpu'].usable_nodes == {'n1', 'n2', 'n5', 'n9'}
    assert pools['cpu'].idle_nodes == {'n1', 'n9'}
    assert [str(node) for node in pools['cpu'].unusable_nodes] == [
        'n3 (drained: disk | of n3)', 'n4 (down*: Not responding)',
        'n6 (idle*)', 'n7 (maint)', 'n8 (new_state_of_slurm)']
    assert why == (
        'the nodes that jobs of any, picked can get are not known, because access in '
        'system.py selects nodes')


@pytest.mark.parametrize('text, code, err, words', [
    (SINFO, 0, '', 'Slurm has no partition gone, which partition old uses; it has '
     'batch, gpu: correct access in system.py'),
    ('', 1, 'slurm_load_partitions: Unable\nto contact',
     'sinfo: slurm_load_partitions: Unable to contact'),
    ('n1 idle\n', 0, '', 'sinfo reports no node in any partition: n1 idle')])
def test_nodes_that_cannot_be_listed(monkeypatch, tmp_path, text, code, err, words):
    """A nightly session continues without choosing nodes, and prints the reason; for
    commands that need the nodes it is an error."""
    sinfo_says(monkeypatch, tmp_path, text, code, err)
    old = {'name': 'old', 'scheduler': 'slurm', 'access': ['-p', 'gone']}
    assert schedulers.find_node_pools({'partitions': [old]}) == (
        {}, f'the nodes cannot be listed: {words}')
    with pytest.raises(SetupError, match=f'^{re.escape(words)}$'):
        schedulers.query_pool(old)


def test_a_partition_without_a_default_one(monkeypatch, tmp_path):
    sinfo_says(monkeypatch, tmp_path, SINFO.replace('*|n', '|n'))
    with pytest.raises(SetupError, match='Slurm has no default partition, which'):
        schedulers.query_pool({'name': 'any', 'scheduler': 'slurm'})


def test_a_sinfo_that_hangs(monkeypatch, tmp_path):
    sinfo_says(monkeypatch, tmp_path, '')
    (tmp_path / 'bin' / 'sinfo').write_text('#!/bin/sh\nexec sleep 60\n')
    monkeypatch.setattr(schedulers, 'LIMIT', 0.2)
    assert schedulers.find_node_pools(SYSTEM)[1] == (
        'the nodes cannot be listed: sinfo: no answer in 0.2 s; try again, or check '
        'that the scheduler works')
