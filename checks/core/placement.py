"""Placement of ranks: required cores, launcher options, CPUs that were used.

Before a job: the launcher options that place the ranks. After it: the CPUs
that each rank reported (src/rank.sh).
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reframe.core.runtime as rt
from ClusterShell.RangeSet import RangeSet

from config import places
from config.sites import launch

from ..machine import cpus
from . import features

#: Extras of a partition that give each rank cores of its own.
PINNING = ('launcher_pin', 'gpu_cores', 'launcher_socket_pin')


class PlacementError(ValueError):
    """The partition does not define how its ranks are placed."""


def cores_per_node(part: Any) -> int:
    """Cores of a node.

    :raises PlacementError: the partition has no processor.
    """
    # ReFrame has no value if one of the two numbers is missing.
    if not part.processor.num_cores:
        raise PlacementError(
            f'{_partition_config_location(part)} {features.NO_PROCESSOR}')
    return int(part.processor.num_cores)


def gpus_per_node(part: Any) -> int:
    """GPUs per node of a partition; 0 if it has or declares none."""
    if not {'gpu_nvidia', 'gpu_amd'} & set(part.features):
        return 0
    return sum(device.num_devices or 1
               for device in part.select_devices('gpu'))


def _partition_config_location(part: Any) -> str:
    path = (places.current_site_folder() or Path()) / places.SYSTEM
    return f'{path}: partition {part.fullname}'


def describe_core_shortage(check: Any) -> str:
    """Why the threads of a node cannot have a core each; empty: they can."""
    ranks, threads = check.num_tasks_per_node or 1, check.threads
    have = cores_per_node(check.current_partition)
    return ('' if ranks * threads <= have
            else _core_shortage_message(ranks * threads, have))


def _core_shortage_message(threads: int, have: int) -> str:
    return f'{threads} threads shared {have} core{"" if have == 1 else "s"}'


def pinning_launcher_extra_name(part: Any) -> str:
    """The launcher extra for ranks with a core each.

    It is `launcher_free` if the site binds no ranks.
    """
    return ('launcher_free' if 'launcher_free' in part.extras
            else 'launcher_pin')


def launcher_extra(part: Any, extra: str) -> Any:
    """An extra of a partition, or its value for the launcher; None: unknown."""
    return launch.launcher_extra(
        extra, part.launcher_type.registered_name, mpi_of_partition(part), part.extras)


def mpi_of_partition(part: Any) -> str:
    """MPI of the first environment of a partition that has one; '' if none has.

    It is read from the site, because `part.environs` has only the environments that
    `-p` selected, and the launcher of the partition is the same with each of them.
    """
    option = rt.runtime().get_option
    extras = (option(f'environments/@{name}/extras') or {} for name in
              option(f'systems/0/partitions/@{part.name}/environs') or ())
    return next(filter(None, (one.get('mpi_library') for one in extras)), '')


def launcher_options(check: Any) -> list[str]:
    """Launcher options that place a check's ranks.

    :raises PlacementError: they are unknown, or threads would share a core.
    """
    part, extra = check.current_partition, check.partition_launcher_extra_name()
    if not extra:
        return []
    words: list[str] | None = launcher_extra(part, extra)
    launcher = part.launcher_type.registered_name
    if words is None:
        place = ('UNBOUND in config/sites/launch.py' if extra == 'gpu_cores' else
                 f"its extras: '{extra}': [...],")
        raise PlacementError(
            f'{_partition_config_location(part)} needs launcher options for {extra}, '
            f'and those of {launcher} with {mpi_of_partition(part) or "no MPI"} are '
            f'unknown; add them to {place}')
    if extra == 'launcher_pin' and check.gpus_per_rank():
        # The ranks must spread over the sockets, as the GPUs do.
        words = [word for word in words if not word.startswith('--distribution=')]
    if (extra in ('launcher_pin', 'launcher_socket_pin') and check.threads > 1
            and words and launcher not in launch.TOLD_CPUS
            and not any('{cpus}' in word or '{sockets}' in word for word in words)):
        raise PlacementError(
            f'{_partition_config_location(part)} has a {extra} without {{cpus}}: '
            'threads would share a core; write {cpus} for the cores of a rank')
    return launch.fill_in_numbers(words, check.num_tasks_per_node or 1, check.threads,
                                  part.processor)


# -------------------------------------------------- CPUs that ranks used

@dataclass(frozen=True)
class Rank:
    """A rank, as rank.sh reported it before it started the program."""
    host: str
    #: CPUs that it may run on, the first CPU of each of their cores, and the
    #: numbers of their sockets; empty: unknown.
    cpus: tuple[int, ...]
    cores: frozenset[int]
    sockets: frozenset[int]


def parse_rank_lines(output: str) -> dict[str, list[Rank]]:
    """The ranks of each host, from the lines of rank.sh on their stderr."""
    by_host: dict[str, list[Rank]] = {}
    for host, group, first, sockets in re.findall(
            r'plumbline-rank (\S+)(?: ([\d,-]+) ([\d,]+)(?: ([\d,]+))?)?', output):
        by_host.setdefault(host, []).append(
            Rank(host, tuple(cpus.parse_cpu_list(group)),
                 *(frozenset(cpus.parse_cpu_list(some)) for some in (first, sockets))))
    for there in by_host.values():
        there.sort(key=lambda rank: rank.cpus)
    return dict(sorted(by_host.items()))


def format_binding(ranks_by_host: Mapping[str, list[Rank]]) -> str:
    """The CPUs of the ranks of each node, `n1:0-3,8 n2:0-3,8`; empty: those of some
    rank are unknown."""
    if not all(rank.cpus for group in ranks_by_host.values() for rank in group):
        return ''
    return ' '.join(
        f'{host}:{format_cpus(cpu for rank in group for cpu in rank.cpus)}'
        for host, group in ranks_by_host.items())


def format_cpu_sets(sets: Iterable[Iterable[int]]) -> str:
    """CPUs of several ranks: `0-3 4-7`."""
    return ' '.join(map(format_cpus, sets))


def format_cpus(numbers: Iterable[int]) -> str:
    """CPUs as ranges: `0-3,8`."""
    return str(RangeSet(','.join(map(str, numbers)) or None))


def describe_core_sharing(ranks_by_host: Mapping[str, list[Rank]], threads: int) -> str:
    """Why the threads of some node had no core each; empty: each had one."""
    for group in ranks_by_host.values():
        have = frozenset().union(*(rank.cores for rank in group))
        if 0 < len(have) < threads * len(group):
            return _core_shortage_message(threads * len(group), len(have))
    return ''
