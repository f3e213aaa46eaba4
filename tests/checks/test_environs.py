"""checks/core/environs.py: what is the same on every site is written once."""
from __future__ import annotations

import ast

import pytest
from conftest import ROOT

from checks.core import environs
from checks.osu import programs
from checks.spack import stack


@pytest.mark.parametrize('path', sorted(ROOT.glob('site-configs/*/system.py')),
                         ids=lambda path: path.parent.name)
def test_no_site_writes_an_environment_of_a_stack_out(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Dict):
            keys = {k.value for k in node.keys if isinstance(k, ast.Constant)}
            assert 'stack' not in keys, f'line {node.lineno}: of_stack(...)'
            assert 'taobench' not in keys or 'source' not in ast.dump(node) \
                or 'prefix' in ast.dump(node), \
                f'line {node.lineno}: embedded(...)'


def test_the_environment_of_a_stack():
    assert environs.stack_environment('mine', 'mpi-host', mpi='openmpi 5.0.x',
                                      env_vars=[['A', '1']]) == {
        'name': 'mine', 'cc': 'mpicc', 'cxx': 'mpicxx', 'env_vars': [['A', '1']],
        'features': ['mpi', 'osu', *programs.OMB7],
        'extras': {'stack': 'mpi-host', 'mpi_library': 'openmpi 5.0.x',
                   'programs': {'osu': {'source': 'spack'}}}}
    stores = environs.stack_environment('stores', 'keyvalue')
    assert 'cc' not in stores and 'transport' not in stores['extras']
    # tensorload is built with the MPI of the stack, and other programs are not.
    tensors = environs.stack_environment('tensors', 'smartredis')
    assert tensors['cc'] == 'mpicc' and 'osu' not in tensors['extras']['programs']
    # A stack that is an MPI alone: the programs are ours.
    ours = environs.stack_environment('ours', 'mpi', transport={'name': 'TCP'})
    assert set(programs.EMBEDDED) <= set(ours['features'])
    assert ours['extras']['transport'] == {'name': 'TCP'}


@pytest.mark.parametrize('name', stack.stack_names())
def test_every_stack_can_be_an_environment(name):
    # Also of a family that has no folder here yet.
    assert environs.stack_environment('any', name)['extras']['stack'] == name


def test_an_mpi_brings_the_programs_that_are_built_with_it():
    assert environs.mpi_environment('gnu', 'openmpi 5.0.3', modules=['openmpi/5']) == {
        'name': 'gnu', 'cc': 'mpicc', 'cxx': '', 'ftn': '',
        'modules': ['openmpi/5'],
        'features': ['mpi', 'osu', *programs.EMBEDDED],
        'extras': {'mpi_library': 'openmpi 5.0.3',
                   'programs': {'osu': {'source': 'embedded'}}}}


def test_an_embedded_environment_needs_a_compiler_alone():
    assert environs.embedded_program_environment('tao', 'taobench', 'cc') == {
        'name': 'tao', 'cc': 'cc', 'cxx': '', 'ftn': '',
        'features': ['tao_server'],
        'extras': {'programs': {'taobench': {'source': 'embedded'}}}}
