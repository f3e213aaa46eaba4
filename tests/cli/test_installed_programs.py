"""Whether the programs of an environment are installed, as a site reports it."""
from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

from checks.spack import stack
from cli.site import programs

FOLDER = ROOT / 'site-configs' / 'quarry'


def line(scheduler: str, **environment) -> str:
    one, = programs.environment_lines(FOLDER, {
        'systems': [{'partitions': [{'scheduler': scheduler, 'environs': ['env']}]}],
        'environments': [{'name': 'env', **environment},
                         {'name': 'of-no-partition'}]})
    return one


def prefix(folder: Path) -> dict:
    return {'extras': {'programs': {'osu': {'source': 'system',
                                            'prefix': str(folder)}}}}


def compiler(name: str) -> dict:
    return {'cc': name, 'extras': {'programs': {'osu': {'source': 'embedded'}}}}


def test_a_prefix_and_a_compiler(tmp_path):
    assert line('local', **prefix(tmp_path)) == 'env: installed'
    assert line('local', **prefix(tmp_path / 'no')) == (
        f'env: not installed: {tmp_path}/no')
    assert line('local', **compiler('sh')).startswith('env: installed (/')
    assert line('local', **compiler('no-cc')) == (
        'env: not installed: no-cc (not in PATH)')


@pytest.mark.parametrize('environment, reason', [
    ({'extras': {'stack': 'mpi-host'}}, 'this machine is not of the site'),
    (prefix(Path('/no')), 'this machine is not of the site (/no)'),
    ({**compiler('sh'), 'modules': ['openmpi/5']}, 'jobs load openmpi/5'),
])
def test_a_cluster_that_is_elsewhere(monkeypatch, environment, reason):
    monkeypatch.setattr(programs.shutil, 'which', lambda *_, **__: None)
    assert line('slurm', **environment).startswith(f'env: cannot know here: {reason}')


def test_a_stack(monkeypatch):
    assert line('local', extras={'stack': 'mpi-host'}) == (
        'env: not installed: the stack mpi-host')
    monkeypatch.setattr(stack, 'installed_stack_record', lambda *_: {'view': '/view'})
    assert line('local', extras={'stack': 'mpi-host'}) == 'env: installed (/view)'
