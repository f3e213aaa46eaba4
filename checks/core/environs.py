"""Environments that many sites share.

A site calls these functions and adds its own keys::

    'environments': [
        environs.stack_environment('openmpi', 'mpi-host', mpi='openmpi 5.0.x',
                          transport=_UCX),
        environs.stack_environment('stores', 'keyvalue'),
        environs.mpi_environment('cray', 'cray-mpich 8.1.29', cc='cc'),
        environs.embedded_program_environment('tao', 'taobench')],

The features of an environment with a stack are in the stack's stack.yaml. The
programs that a family has from a source are in the family's own folder
(`program_features_of_family` of checks/<family>/programs.py).
"""
from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from config.families import families as all_families

from ..spack import stack as stacks


def program_features_of_family(family: str, source: str) -> tuple[str, ...]:
    """Features that stand for single programs of a family.

    :arg source: origin of the programs: spack, module, system, embedded.
    :returns: nothing if the family has no such features.
    """
    if not (stacks.ROOT / 'checks' / family / 'programs.py').is_file():
        return ()
    module = importlib.import_module(f'checks.{family}.programs')
    return tuple(module.program_features(source))


def stack_environment(name: str, stack: str, *, mpi: str = '',
                      transport: dict[str, Any] | None = None,
                      nccl_settings: Iterable[Any] = (), **more: Any) -> dict[str, Any]:
    """The environment of a stack that Spack installs.

    :arg name: name of the environment in records and references.
    :arg stack: folder under spack-envs/.
    :arg mpi: name and version of the MPI, for the records.
    :arg transport: see `transport` in docs/reference/site-files.md.
    :arg nccl_settings: see `nccl_settings` there.
    :arg more: keys of ReFrame's environment: cc, modules, env_vars, ...
    :raises NoStack: the stack does not exist.
    """
    families = stacks.families_of_stack(stack)
    features = list(stacks.read_stack_yaml(stack)['features'])
    for family, origin in families.items():
        features += program_features_of_family(family, origin['source'])
    if stacks.has_mpi(stack):
        more = {'cc': 'mpicc', 'cxx': 'mpicxx', **more}
    extras: dict[str, Any] = {'stack': stack, 'programs': families}
    if mpi:
        extras['mpi_library'] = mpi
    if transport:
        extras['transport'] = transport
    if nccl_settings:
        extras['nccl_settings'] = list(nccl_settings)
    return {'name': name, **more, 'features': features, 'extras': extras}


def mpi_environment(name: str, library: str, *, cc: str = 'mpicc', **more: Any
           ) -> dict[str, Any]:
    """The environment of an installed MPI.

    The suite builds the programs of every family that needs only an MPI
    (`built_with: mpi` of a feature in its family.yaml).

    :arg name: name of the environment in records and references.
    :arg library: name and version of the MPI, for the records.
    :arg cc: its compiler wrapper.
    :arg more: keys of ReFrame's environment: modules, env_vars, ...
    """
    features, programs = ['mpi'], {}
    for family in all_families().values():
        built = [feature for feature, row in family.features.items()
                 if row.built_with == 'mpi']
        if built:
            features += [*built, *program_features_of_family(family.name, 'embedded')]
            programs[family.name] = {'source': 'embedded'}
    return {'name': name, 'cc': cc, 'cxx': '', 'ftn': '', **more,
            'features': features,
            'extras': {'mpi_library': library, 'programs': programs}}


def embedded_program_environment(name: str, family: str, cc: str = 'gcc',
                                 **more: Any) -> dict[str, Any]:
    """The environment of programs that the suite builds where they run.

    :arg name: name of the environment in records and references.
    :arg family: folder under checks/; its programs need only a C compiler.
    :arg cc: the compiler.
    """
    return {'name': name, 'cc': cc, 'cxx': '', 'ftn': '', **more,
            'features': [*program_features_of_family(family, 'embedded')],
            'extras': {'programs': {family: {'source': 'embedded'}}}}
