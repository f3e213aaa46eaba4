"""Names of features and extras, and the errors of a wrong name.

A name that is not among them would never match, and the check would silently never
run. So an unknown name is an error that suggests the nearest name. Features of a
family are in its family.yaml. docs/reference/site-files.md has the meanings.
"""
from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from config.commandline import SetupError
from config.families import SOURCES, families
from config.sites.fabrics import NcclSetting

from ..machine import cpus

#: Features of a partition.
PARTITION_FEATURES = ('gpu_nvidia', 'gpu_amd')

#: Features of an environment that belong to no family.
ENVIRON_FEATURES = ('mpi', 'mpi_cuda', 'mpi_rocm')

#: Extras of a partition.
PARTITION_EXTRAS = (
    'max_nodes', 'node_counts', 'launcher_pin', 'gpu_cores', 'launcher_socket_pin',
    'launcher_free', 'launcher_oversubscribe', 'launcher_step', 'service_interface',
    'scratch', 'gpus_only_if_used', 'node_memory', 'oversubscribe_env',
    'others_cpu_limit', 'max_pending', 'allocation', 'nic_bandwidth',
    'one_nic_bandwidth', 'gpu_link_bandwidth', 'gpu_bandwidth')

#: Extras of an environment.
ENVIRON_EXTRAS = (
    'mpi_library', 'programs', 'stack', 'wheel', 'transport', 'nccl_settings')

#: Keys of an environment for the programs of a family.
ORIGIN = ('source', 'prefix', 'version', 'spec')

#: Required and optional keys of an environment's transport.
TRANSPORT = ('name', 'env', 'evidence')
PUBLISHED = ('source', 'date')


#: The fault of a partition without a description of its nodes. A guess of one
#: core would turn every layout into one rank per node.
NO_PROCESSOR = ("has no 'processor' with num_cpus and num_cpus_per_core: "
                'write the values that lscpu prints on a node')


class GlossaryError(SetupError, ValueError):
    """A feature or extra that is not in the glossary."""


@functools.cache
def environ_features(pattern: bool = False) -> tuple[str, ...]:
    """Features of an environment.

    :param pattern: patterns of those that name one program of an installation
    """
    own = tuple(name for family in families().values()
                for name, feature in family.features.items()
                if feature.pattern == pattern)
    return own if pattern else ENVIRON_FEATURES + own


def _refuse_unknown_names(names: Iterable[str], known: Collection[str], where: str,
                          patterns: Iterable[str] = ()) -> None:
    for name in names:
        if name in known or any(re.fullmatch(p, name) for p in patterns):
            continue
        near = difflib.get_close_matches(name, known, 1, 0.5)
        hint = f'did you mean {near[0]!r}?' if near else (
            'see the glossary in docs/reference/site-files.md')
        raise GlossaryError(f'{where}: unknown name {name!r}; {hint}')


def check_site_features(configuration: Mapping[str, Any], where: str) -> None:
    """Refuse a site's configuration that uses a name not in the glossary.

    :raises GlossaryError: with the file, the partition or environment, the
        wrong name and the nearest right one.
    """
    for system in configuration.get('systems', ()):
        for part in system.get('partitions', ()):
            label = f"{where}: partition {system['name']}:{part['name']}"
            _refuse_unknown_names(part.get('features', ()), PARTITION_FEATURES, label)
            extras = part.get('extras', {})
            _refuse_unknown_names(extras, PARTITION_EXTRAS, label)
            _check_node_counts(extras, label)
            fault = 'gpu_cores' in extras and cpus.describe_gpu_cores_fault(
                extras['gpu_cores'], sum(device.get('num_devices', 1) for device in
                                         part.get('devices', ())
                                         if device['type'] == 'gpu'))
            if fault:
                raise GlossaryError(f'{label}: gpu_cores: {fault}')
            processor = part.get('processor', {})
            if not {'num_cpus', 'num_cpus_per_core'} <= set(processor):
                raise GlossaryError(f'{label} {NO_PROCESSOR}')
    for env in configuration.get('environments', ()):
        label = f"{where}: environment {env['name']}"
        _refuse_unknown_names(env.get('features', ()), environ_features(),
                              label, environ_features(pattern=True))
        _refuse_unknown_names(env.get('extras', ()), ENVIRON_EXTRAS, label)
        _check_environment_extras(env, label)


def _check_node_counts(extras: Mapping[str, Any], where: str) -> None:
    most = extras.get('max_nodes', 1)
    if type(most) is not int or most < 1:
        raise GlossaryError(f'{where}: max_nodes is {most!r}; write a whole '
                            'number above 0')
    counts = extras.get('node_counts', [])
    for count in counts if isinstance(counts, list) else [counts]:
        if type(count) is not int or not 1 <= count <= most:
            raise GlossaryError(f'{where}: node_counts has {count!r}; write '
                                f'whole numbers from 1 to max_nodes, {most}')


def _check_environment_extras(env: Mapping[str, Any], where: str) -> None:
    """Check the keys of `programs` and `transport` of an environment."""
    extras = env.get('extras', {})
    offered = extras.get('programs', {})
    if not isinstance(offered, Mapping):
        raise GlossaryError(f'{where}: programs: expected a mapping, family '
                            '-> {source: ...}')
    _refuse_unknown_names(offered, families(), f'{where}: programs')
    for family, origin in offered.items():
        label = f'{where}: programs: {family}'
        if not isinstance(origin, Mapping) or 'source' not in origin:
            raise GlossaryError(f'{label}: expected a mapping with the key '
                                '`source`')
        _refuse_unknown_names(origin, ORIGIN, label)
        _refuse_unknown_names([origin['source']], SOURCES, f'{label}: source')
        allowed = families()[family].sources
        if origin['source'] not in allowed:
            raise GlossaryError(
                f"{label}: source {origin['source']!r} is not possible; "
                f'possible: {", ".join(allowed)} '
                f'(checks/{family}/family.yaml)')
        if origin['source'] == 'spack' and 'stack' not in extras:
            raise GlossaryError(f'{label}: source is spack: add the extra `stack`, '
                                'the name of a folder of spack-envs/')
    for feature in env.get('features', ()):
        for family in families().values():
            if feature in family.features and family.name not in offered:
                raise GlossaryError(f'{where}: feature {feature!r}: add the '
                                    f'family {family.name!r} to the extra `programs` '
                                    'of this environment')
    if 'transport' in extras:
        _refuse_unknown_names(extras['transport'], TRANSPORT + PUBLISHED,
                              f'{where}: transport')
        missing = set(TRANSPORT) - set(extras['transport'])
        if missing:
            raise GlossaryError(f'{where}: transport: {sorted(missing)[0]} '
                                'is missing')
    if not all(isinstance(one, NcclSetting) for one in extras.get('nccl_settings', ())):
        raise GlossaryError(f'{where}: nccl_settings: expected a list of NcclSetting')


def check_feature_names(systems: Iterable[str], environs: Iterable[str],
                        where: str) -> None:
    """Refuse a check that requires a feature not in the glossary.

    :arg systems: ``valid_systems`` of the check, e.g. ``['+gpu_nvidia']``.
    :arg environs: ``valid_prog_environs`` of the check.
    :raises GlossaryError: with the wrong name and the nearest right one.
    """
    def feature_names_in_specs(specs: Iterable[str]) -> list[str]:
        return [word[1:] for spec in specs for word in spec.split()
                if word[0] in '+-']

    _refuse_unknown_names(feature_names_in_specs(systems), PARTITION_FEATURES, where)
    _refuse_unknown_names(feature_names_in_specs(environs), environ_features(),
                          where, environ_features(pattern=True))


def max_nodes(partition: Any) -> int:
    """Nodes that one job of a partition may have."""
    return int(partition.extras.get('max_nodes', 1))


def node_counts(partition: Any, only: Collection[int] = ()) -> list[int]:
    """Numbers of nodes on which collectives run in a partition.

    :arg only: select among them; empty: all.
    """
    most = max_nodes(partition)
    powers = [2 ** n for n in range(most.bit_length())]
    counts = {*powers[:2], *partition.extras.get('node_counts', [*powers, most])}
    return sorted(counts & {*only} if only else counts)
