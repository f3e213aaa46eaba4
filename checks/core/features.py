"""The glossary of features and extras, and the errors of a wrong name.

It holds all features that a site may offer and a check may require. A name
that is not in it would never match, and the check would silently never run.
So an unknown name is an error that suggests the nearest name. Features of a
family are in its family.yaml. ``python -m checks.core.features`` prints the
table of ``docs/reference/site-files.md``.
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

#: Features of a partition: name -> meaning.
PARTITION_FEATURES: dict[str, str] = {
    'gpu_nvidia': 'NVIDIA GPUs on every node',
    'gpu_amd': 'AMD GPUs on every node',
}

#: Features of an environment that belong to no family: name -> meaning.
ENVIRON_FEATURES: dict[str, str] = {
    'mpi': 'an MPI compiler wrapper and a launcher',
    'mpi_cuda': 'an MPI that takes CUDA buffers',
    'mpi_rocm': 'an MPI that takes ROCm buffers',
}

#: Extras of a partition: name -> meaning, with the unit.
PARTITION_EXTRAS: dict[str, str] = {
    'max_nodes': 'nodes that one job may have; default: 1',
    'node_counts': 'numbers of nodes on which collectives run, in addition to 1 and 2 '
    '(list); default: 4, 8, ... and max_nodes',
    'launcher_pin': 'launcher options that bind each rank to one core per thread '
    '(list); `{cpus}` is the number of cores of a rank, `{ranks}` the number of ranks '
    'per node, `{sockets}` the first cores of each socket; default: PIN in '
    'config/sites/launch.py',
    'gpu_cores': 'instead of launcher_pin for ranks with GPUs: cores near each GPU '
    "(list: ['0-13', '14-27', ...])",
    'launcher_socket_pin': 'instead of launcher_pin for a pair of ranks on two '
    'sockets of a node (list); default: SOCKETS in config/sites/launch.py',
    'launcher_free': 'instead of launcher_pin: launcher options that bind no rank '
    '(list)',
    'launcher_oversubscribe': 'options for more ranks than cores (list); default: '
    'SHARE in config/sites/launch.py',
    'launcher_step': 'command that starts servers and clients inside a job of several '
    'nodes (list); {ranks}, {nodes}, {each} (processes per node), {names} (n2,n3) and '
    '{slots} (n2:4,n3:4) are filled in; default: STEP in config/sites/launch.py',
    'service_interface': 'network interface of servers inside a job, and over which '
    'processes of NCCL find each other; default: '
    'loopback on one node, else the address at which nodes reach each other',
    'scratch': "folder on a node's own disk for the data of servers inside a "
    'job; default: TMPDIR or /tmp',
    'gpus_only_if_used': 'True: a test case requests only the GPUs that it uses; '
    'default: all GPUs of its nodes',
    'node_memory': 'memory of a node, in GB of 2^30 B',
    'oversubscribe_env': 'environment variables for more ranks than cores '
    '(mapping); default: SHARE_ENV in config/sites/launch.py',
    'others_cpu_limit': 'share of the CPUs of a test case that other programs may use '
    'before it is inconclusive; default: 0.05',
    'max_pending': 'time that a job may wait in the queue, such as 30m; '
    'default: 1h',
    'allocation': 'nodes of the allocation of a session inside one (list); '
    '`plumb run --inside` sets it',
    'nic_bandwidth': 'all NICs of a node together, one way, in MB/s',
    'one_nic_bandwidth': 'one NIC, one way, in MB/s, if two ranks can fill it',
    'gpu_link_bandwidth': 'all links between two GPUs of a node, or of one '
    'GPU to the switch, one way, in MB/s',
    'gpu_bandwidth': 'all links of one GPU to others of its node together, '
    'one way, in MB/s',
}

#: Extras of an environment: name -> meaning.
ENVIRON_EXTRAS: dict[str, str] = {
    'mpi_library': 'name and version of the MPI, for the records',
    'programs': 'family -> {source, prefix, version}: the origin of the '
                "family's programs",
    'stack': 'the folder under spack-envs/ with the software of this '
             'environment',
    'wheel': 'lock files of config/python/, separated by blanks: each is '
             'installed into a folder of its name in $PLUMBLINE_WORK',
    'transport': '{name, env, evidence}: the transport that must be used',
    'nccl_settings': 'variables of NCCL or RCCL for some test cases, with their '
                     'sources (list of NcclSetting of config/sites/fabrics.py)',
}

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
def environ_feature_meanings() -> dict[str, str]:
    """Features of an environment: name -> meaning."""
    return ENVIRON_FEATURES | {
        name: feature.means for family in families().values()
        for name, feature in family.features.items() if not feature.pattern}


@functools.cache
def program_feature_patterns() -> dict[str, str]:
    """Patterns of features that name one program of an installation.

    :returns: pattern -> meaning.
    """
    return {name: feature.means for family in families().values()
            for name, feature in family.features.items() if feature.pattern}


def _refuse_unknown_names(names: Iterable[str], known: Collection[str], where: str,
                          patterns: Mapping[str, str] = {}) -> None:
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
        _refuse_unknown_names(env.get('features', ()), environ_feature_meanings(),
                              label, program_feature_patterns())
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
                                'source')
        _refuse_unknown_names(origin, ORIGIN, label)
        _refuse_unknown_names([origin['source']], SOURCES, f'{label}: source')
        allowed = families()[family].sources
        if origin['source'] not in allowed:
            raise GlossaryError(
                f"{label}: source {origin['source']!r} is not possible; "
                f'possible: {", ".join(allowed)} '
                f'(checks/{family}/family.yaml)')
        if origin['source'] == 'spack' and 'stack' not in extras:
            raise GlossaryError(f'{label}: source is spack, but the extras '
                                'have no stack; add it')
    for feature in env.get('features', ()):
        for family in families().values():
            if feature in family.features and family.name not in offered:
                raise GlossaryError(f'{where}: feature {feature!r} needs an '
                                    f'entry {family.name} in programs')
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
    _refuse_unknown_names(feature_names_in_specs(environs), environ_feature_meanings(),
                          where, program_feature_patterns())


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


def format_glossary_table() -> str:
    """The glossary as a table for the docs."""
    rows = ['| name | meaning |', '|---|---|']
    for title, table in (
            ('features of a partition', PARTITION_FEATURES),
            ('features of an environment',
             environ_feature_meanings() | program_feature_patterns()),
            ('extras of a partition', PARTITION_EXTRAS),
            ('extras of an environment', ENVIRON_EXTRAS)):
        rows += [f'| **{title}** | |', *(
            f'| `{name}` | {means} |' for name, means in table.items())]
    return '\n'.join(rows)


if __name__ == '__main__':
    print(format_glossary_table())
