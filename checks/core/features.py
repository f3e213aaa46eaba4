"""The glossary of features and extras, and the errors of a wrong name.

One table: what a site may offer and what a check may ask for. A name that is
not in it would never match and the check would silently never run, so an
unknown name anywhere is an error that suggests the nearest one. What a family
offers stands in its family.yaml. The table in ``site-configs/README.md`` is
printed by ``python -m checks.core.features``.
"""
from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from config.families import SOURCES, families

#: Number of nodes that the suite's node counts may reach.
NODE_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)

#: Features of a partition: name -> meaning.
PARTITION_FEATURES: dict[str, str] = {
    'gpu_nvidia': 'NVIDIA GPUs on every node',
    'gpu_amd': 'AMD GPUs on every node',
    'speed_probe': 'the machine changes speed under a benchmark: take a '
                      'speed probe before and after each program',
    **{f'nodes_{n}': f'jobs of {n} node{"s" * (n > 1)} can run'
       for n in NODE_COUNTS},
}

#: Features of an environment that are of no one family: name -> meaning.
ENVIRON_FEATURES: dict[str, str] = {
    'mpi': 'an MPI compiler wrapper and a launcher',
    'mpi_cuda': 'an MPI that takes CUDA buffers',
    'mpi_rocm': 'an MPI that takes ROCm buffers',
}

#: Extras of a partition: name -> meaning, with the unit.
PARTITION_EXTRAS: dict[str, str] = {
    'launcher_pin': 'launcher options that bind each rank to as many cores '
    'of its own as it has threads; `{cpus}` is their number '
    '(list; config/sites/launch.py has those of each '
    'launcher; '
    'where it binds by itself: empty)',
    'launcher_free': 'instead of launcher_pin: launcher options that bind '
    'no rank, where the CPUs are shared anyway (list)',
    'launcher_oversubscribe': 'options for more ranks than cores (list)',
    'launcher_spread': 'launcher options that start one process a node, '
    'bound to no core: an agent that starts servers '
    '(list)',
    'service_interface': 'network interface that servers inside a job bind '
    'to; without it loopback on one node, on several '
    'the address that the nodes reach each other by',
    'service_heartbeat_timeout': 'seconds without a heartbeat until a node of '
    'a service counts as lost; without it 30',
    'scratch': "folder on a node's own disk for the data of servers inside a "
    'job; without it TMPDIR or /tmp',
    'node_memory': 'memory of a node, in GB of 2^30 B',
    'oversubscribe_env': 'environment variables for more ranks than cores '
    '(mapping)',
    'speed_boundary_ns': 'speed probe: round trip in ns that parts the speed '
    'classes fast and slow',
    'speed_bands_ns': 'speed probe: {fast: [min, max], slow: [min, max]}, '
    'the readings in ns that are of a class; a run with '
    'one that is of neither is inconclusive. Without it '
    'every reading is of a class',
    'others_cpu_limit': 'share of the CPUs that a case uses on a node above '
    'which CPU time of other programs there makes it '
    'inconclusive; without it 0.05',
    'nightly_budget': 'node-hours that mode nightly may take of the partition '
    'in a night; without it all its cases run every night',
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
    'programs': 'family -> {source, prefix, version}: where the '
                "family's programs come from; with source spack, from the "
                "environment's stack",
    'stack': 'the folder under spack-envs/ with the software of this '
             'environment',
    'wheel': 'lock files of config/python/, with blanks between: what is '
             'installed from each into a folder of that name in '
             '$PLUMBLINE_WORK',
    'transport': '{name, env, evidence}: the transport that must be used, '
                 'the variables that make the library tell, and the regular '
                 'expression that its words must match',
}

#: What an environment may say of a family's programs.
ORIGIN = ('source', 'prefix', 'version', 'spec')

#: What an environment must say of its transport, and what it may.
TRANSPORT = ('name', 'env', 'evidence')
PUBLISHED = ('source', 'date')


#: What is wrong with a partition whose nodes nobody described. With a guess
#: of one core every layout would become one of one rank a node.
NO_PROCESSOR = ("has no 'processor' with num_cpus and num_cpus_per_core: "
                'write what lscpu tells on a node')


class GlossaryError(ValueError):
    """A feature or extra that is not in the glossary."""


@functools.cache
def environ_features() -> dict[str, str]:
    """Features of an environment: name -> meaning."""
    return ENVIRON_FEATURES | {
        name: feature.means for family in families().values()
        for name, feature in family.features.items() if not feature.pattern}


@functools.cache
def program_features() -> dict[str, str]:
    """Features that name one program of an installation: pattern -> meaning.
    """
    return {name: feature.means for family in families().values()
            for name, feature in family.features.items() if feature.pattern}


def _check(names: Iterable[str], known: Collection[str], where: str,
           patterns: Mapping[str, str] = {}) -> None:
    for name in names:
        if name in known or any(re.fullmatch(p, name) for p in patterns):
            continue
        near = difflib.get_close_matches(name, known, 1, 0.5)
        hint = f'did you mean {near[0]!r}?' if near else (
            'see the glossary in site-configs/README.md')
        raise GlossaryError(f'{where}: unknown name {name!r}; {hint}')


def check_site(configuration: Mapping[str, Any], where: str) -> None:
    """Refuses a site's configuration that uses a name not in the glossary.

    :raises GlossaryError: with the file, the partition or environment, the
        wrong name and the nearest right one.
    """
    for system in configuration.get('systems', ()):
        for part in system.get('partitions', ()):
            label = f"{where}: partition {system['name']}:{part['name']}"
            _check(part.get('features', ()), PARTITION_FEATURES, label)
            extras = part.get('extras', {})
            _check(extras, PARTITION_EXTRAS, label)
            _check(extras.get('speed_bands_ns', ()), ('fast', 'slow'),
                   f'{label}: speed_bands_ns')
            budget = extras.get('nightly_budget', 1)
            if type(budget) not in (int, float) or not 0 < budget < math.inf:
                raise GlossaryError(f'{label}: nightly_budget is {budget!r}; '
                                    'write a number of node-hours above 0')
            processor = part.get('processor', {})
            if not {'num_cpus', 'num_cpus_per_core'} <= set(processor):
                raise GlossaryError(f'{label} {NO_PROCESSOR}')
    for env in configuration.get('environments', ()):
        label = f"{where}: environment {env['name']}"
        _check(env.get('features', ()), environ_features(), label,
               program_features())
        _check(env.get('extras', ()), ENVIRON_EXTRAS, label)
        _check_extras(env, label)


def _check_extras(env: Mapping[str, Any], where: str) -> None:
    """Where the programs come from, and the transport: whole and known."""
    extras = env.get('extras', {})
    offered = extras.get('programs', {})
    if not isinstance(offered, Mapping):
        raise GlossaryError(f'{where}: programs: expected family -> source')
    _check(offered, families(), f'{where}: programs')
    for family, origin in offered.items():
        label = f'{where}: programs: {family}'
        if not isinstance(origin, Mapping) or 'source' not in origin:
            raise GlossaryError(f'{label}: expected a source')
        _check(origin, ORIGIN, label)
        _check([origin['source']], SOURCES, f'{label}: source')
        allowed = families()[family].sources
        if origin['source'] not in allowed:
            raise GlossaryError(
                f"{label}: source {origin['source']!r}: they come from "
                f'{", ".join(allowed)} (checks/{family}/family.yaml)')
        if origin['source'] == 'spack' and 'stack' not in extras:
            raise GlossaryError(f'{label}: source is spack, and no stack is '
                                'named')
    for feature in env.get('features', ()):
        for family in families().values():
            if feature in family.features and family.name not in offered:
                raise GlossaryError(f'{where}: feature {feature!r} needs '
                                    f'programs: {family.name}')
    if 'transport' in extras:
        _check(extras['transport'], TRANSPORT + PUBLISHED,
               f'{where}: transport')
        missing = set(TRANSPORT) - set(extras['transport'])
        if missing:
            raise GlossaryError(f'{where}: transport: {sorted(missing)[0]} '
                                'is missing')


def check_feature_names(systems: Iterable[str], environs: Iterable[str],
                where: str) -> None:
    """Refuses a check that asks for a feature not in the glossary.

    :arg systems: ``valid_systems`` of the check, e.g. ``['+gpu_nvidia']``.
    :arg environs: ``valid_prog_environs`` of the check.
    """
    def asked(specs: Iterable[str]) -> list[str]:
        return [word[1:] for spec in specs for word in spec.split()
                if word[0] in '+-']

    _check(asked(systems), PARTITION_FEATURES, where)
    _check(asked(environs), environ_features(), where, program_features())


def node_features(nodes: int) -> list[str]:
    """The features ``nodes_N`` of a partition with that many nodes."""
    return [f'nodes_{n}' for n in NODE_COUNTS if n <= nodes]


def requested_nodes(systems: Iterable[str]) -> int:
    """Nodes that a check asks for with a feature `nodes_N`; else 1."""
    return max((int(n) for spec in systems
                for n in re.findall(r'\+nodes_(\d+)', spec)), default=1)


def markdown() -> str:
    """The glossary as a table for the docs."""
    rows = ['| name | of | meaning |', '|---|---|---|']
    for kind, table in (
            ('partition, feature', PARTITION_FEATURES),
            ('environment, feature', environ_features()),
            ('environment, feature (pattern)', program_features()),
            ('partition, extra', PARTITION_EXTRAS),
            ('environment, extra', ENVIRON_EXTRAS)):
        rows += [f'| `{name}` | {kind} | {means} |'
                 for name, means in table.items()]
    return '\n'.join(rows)


if __name__ == '__main__':
    print(markdown())
