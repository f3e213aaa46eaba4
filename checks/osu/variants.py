"""What the checks vary: programs, placements, memory and layouts of a system."""
from __future__ import annotations

from collections.abc import Iterable

import reframe.core.runtime as rt

from config.families import record_needed_node_count

from ..core import features
from . import programs, sockets


def runnable_programs(expected: Iterable[str] | None = None) -> list[str]:
    """Programs that some environment of this system has, in order.

    Programs are features of the environments, so no test case is declared
    that no environment can run.

    :arg expected: programs to choose from; None: all collectives.
    """
    here = {f for part in rt.runtime().system.partitions
            for env in part.environs for f in env.features}
    if expected is None:
        return sorted(f for f in here if programs.COLLECTIVE.fullmatch(f))
    return [name for name in expected if name in here]


def available_placements() -> list[str]:
    """Placements: on one node, and on two nodes if the system has them."""
    record_needed_node_count('osu', 2)
    two = any(features.max_nodes(part) >= 2
              for part in rt.runtime().system.partitions)
    return ['intra_node', *['inter_node'] * two]


def available_pairs() -> list[str]:
    """The same for a pair of ranks: also on two sockets of a node."""
    two = any(map(sockets.has_pairs_of_sockets, rt.runtime().system.partitions))
    return [*available_placements(), *['inter_socket'] * two]


def available_buffer_memory_kinds() -> list[str]:
    """Kinds of memory for messages on this system."""
    here = {f for part in rt.runtime().system.partitions
            for f in part.features}
    return ['host', *(name for name, feature in
                      (('cuda', 'gpu_nvidia'), ('rocm', 'gpu_amd'))
                      if feature in here)]


def runnable_layouts() -> list[tuple[int, str]]:
    """(nodes, ranks per node): all cores, and one rank on several nodes."""
    counts = {n for part in rt.runtime().system.partitions
              for n in features.node_counts(part)}
    return [(n, ranks) for n in sorted(counts)
            for ranks in ('one', 'full') if (n, ranks) != (1, 'one')]


def pair_layouts() -> list[tuple[int, str]]:
    """Layouts of programs that measure pairs: an even number of nodes, or one.

    OMB pairs a rank of the first half with one of the second half. It hangs
    with an odd number of ranks.
    """
    return [(1, 'one'), *(layout for layout in runnable_layouts()
                          if layout[0] == 1 or layout[0] % 2 == 0)]


def format_layout(layout: tuple[int, str]) -> str:
    """Nodes x ranks of a node, as names have it: 2xfull."""
    return f'{layout[0]}x{layout[1]}'
