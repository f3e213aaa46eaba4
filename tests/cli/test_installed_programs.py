"""Whether the programs of an environment are installed, as a site reports it."""
from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

from checks.spack import stack
from cli.site import programs

FOLDER = ROOT / 'site-configs' / 'quarry'


def line(scheduler: str, **environment) -> str:
    (name, state), = programs.environment_states(FOLDER, {
        'systems': [{'partitions': [{'name': 'a', 'scheduler': scheduler,
                                     'environs': ['env']}]}],
        'environments': [{'name': 'env', **environment},
                         {'name': 'of-no-partition'}]}).items()
    return f'{name}: {state}'


def prefix(folder: Path) -> dict:
    return {'extras': {'programs': {'osu': {'source': 'system',
                                            'prefix': str(folder)}}}}


def compiler(name: str) -> dict:
    return {'cc': name, 'extras': {'programs': {'osu': {'source': 'embedded'}}}}


def test_a_prefix_and_a_compiler(tmp_path):
    assert line('local', **prefix(tmp_path)) == 'env: installed'
    assert line('local', **prefix(tmp_path / 'no')) == (
        f'env: not installed: osu: folder {tmp_path}/no does not exist')
    assert line('local', **compiler('sh')).startswith('env: installed (/')
    assert line('local', **compiler('no-cc')) == (
        'env: not installed: it builds its programs with no-cc, which is not found: '
        'load a module, or add it to PATH')


@pytest.mark.parametrize('environment', [
    {'extras': {'stack': 'mpi-host'}}, prefix(Path('/')),
    {**compiler('sh'), 'modules': ['openmpi/5']}])
def test_a_cluster_that_is_elsewhere(tmp_path, monkeypatch, environment):
    """Also if Slurm is installed and does not answer, or knows no such partition."""
    (tmp_path / 'sbatch').touch(0o755)
    monkeypatch.setenv('PATH', str(tmp_path))
    for output in ('exit 1', 'echo "other|n1|idle|2|1|2|1|(null)|1-4|none"'):
        (tmp_path / 'sinfo').write_text(f'#!/bin/sh\n{output}\n')
        (tmp_path / 'sinfo').chmod(0o755)
        assert line('slurm', **environment) == (
            'env: unknown: this machine does not belong to the site')


def test_modules(monkeypatch):
    monkeypatch.setenv('LMOD_CMD', '/lmod')
    assert line('local', **compiler('no-cc'), modules=['openmpi/5']) == (
        'env: unknown: its programs come from modules that jobs load (openmpi/5)')


def test_a_stack(monkeypatch):
    assert line('local', extras={'stack': 'mpi-host'}).startswith(
        'env: not installed: the stack mpi-host is not installed for the site quarry')
    monkeypatch.setattr(stack, 'installed_stack_record', lambda *_: {'view': '/view'})
    assert line('local', extras={'stack': 'mpi-host'}) == 'env: installed (/view)'


def test_states_are_counted():
    states = [programs.State('installed'), programs.State('unknown', 'x')]
    assert programs.count_states(states * 2) == (
        '2 installed, 2 unknown')
    assert programs.count_states([]) == ''
