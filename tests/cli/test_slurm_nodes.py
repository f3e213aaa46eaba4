"""The nodes of Slurm, as commands on sites and nightly sessions read them."""
from __future__ import annotations

import os
import re

import pytest
from conftest import ROOT

from cli.setup.venv import SetupError
from cli.site import nodes
from cli.site.nodes import Pool

SINFO = (ROOT / 'tests' / 'data' / 'sinfo-nodes.txt').read_text()


def test_what_sinfo_says_of_nodes():
    message = nodes.nodes_by_partition(nodes.parse_sinfo(SINFO))
    assert set(message) == {'', 'batch', 'gpu'}
    assert message[''] == message['batch']
    pool = Pool('batch', message['batch'])
    assert pool.usable_nodes == {'n1', 'n2', 'n5', 'n9'}
    assert pool.idle_nodes == {'n1', 'n9'}
    assert [str(node) for node in pool.unusable_nodes] == [
        'n3 (drained: disk | of n3)', 'n4 (down*: Not responding)',
        'n6 (idle*)', 'n7 (maint)', 'n8 (new_state_of_slurm)']


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


def test_partitions_of_the_site_share_a_pool(monkeypatch, tmp_path):
    sinfo_says(monkeypatch, tmp_path, SINFO)
    pools, why = nodes.find_node_pools(SYSTEM)
    assert set(pools) == {'cpu', 'same', 'most'} and pools['cpu'] == pools['same']
    assert pools['most'].usable_nodes == {'n5', 'n9'}
    assert why == 'nodes of any, picked are chosen by the site (access)'


def test_a_partition_that_slurm_has_not_is_told(monkeypatch, tmp_path):
    sinfo_says(monkeypatch, tmp_path, SINFO)
    one = {'name': 'old', 'scheduler': 'slurm', 'access': ['-p', 'gone']}
    assert nodes.find_node_pools({'partitions': [one]}) == (
        {}, 'the nodes of old cannot be listed: Slurm has no partition gone; '
        'it has batch, gpu')
    sinfo_says(monkeypatch, tmp_path, SINFO.replace('*|n', '|n'))
    assert nodes.find_node_pools({'partitions': [{**one, 'access': []}]})[
        1
    ].endswith('Slurm has no default partition; it has batch, gpu')


@pytest.mark.parametrize('text, code, err, words', [
    ('', 1, 'slurm_load_partitions: Unable\nto contact',
     'sinfo: slurm_load_partitions: Unable to contact'),
    ('n1 idle\n', 0, '', 'sinfo reports no node in any partition: n1 idle'),
])
def test_what_is_no_answer_of_sinfo(monkeypatch, tmp_path, text, code, err,
                                    words):
    """A night goes on without choosing nodes, and says so; who needs the
    nodes gets the same words as an error."""
    sinfo_says(monkeypatch, tmp_path, text, code, err)
    assert nodes.find_node_pools(SYSTEM) == (
        {}, f'the nodes cannot be listed: {words}')
    with pytest.raises(SetupError, match=f'^{re.escape(words)}$'):
        nodes.query_nodes_of_access_options([], 'cpu')
    assert nodes.find_node_pools({'partitions': SYSTEM['partitions'][-1:]}) == (
        {},
        '',
    )


def test_a_sinfo_that_hangs_or_is_not_there(monkeypatch, tmp_path):
    sinfo_says(monkeypatch, tmp_path, '')
    (tmp_path / 'bin' / 'sinfo').write_text('#!/bin/sh\nexec sleep 60\n')
    monkeypatch.setattr(nodes, 'LIMIT', 0.2)
    assert nodes.find_node_pools(SYSTEM)[1] == (
        'the nodes cannot be listed: sinfo: no answer in 0.2 s'
    )
    monkeypatch.setenv('PATH', str(tmp_path))
    assert nodes.find_node_pools(SYSTEM)[1] == (
        'the nodes cannot be listed: sinfo: No such '
        'file or directory: run this on a '
        'node where jobs are submitted')
