"""What the checks vary: numbers of GPUs and nodes, and choices that environment
variables make for NCCL."""
from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import reframe.core.runtime as rt

from config import places
from config.families import record_needed_node_count

from ..core import features, hardware, placement
from . import programs


def partitions_with_gpus() -> list[Any]:
    """Partitions of this system with GPUs."""
    return [part for part in rt.runtime().system.partitions
            if placement.gpus_per_node(part)]


def runnable_programs() -> list[str]:
    """Programs for any number of ranks in the environments of this system."""
    here = {feature for part in rt.runtime().system.partitions
            for env in part.environs for feature in env.features}
    return [name for name, row in programs.PROGRAMS.items()
            if row.any_ranks and (not row.is_optional or name in here)]


@dataclass(frozen=True)
class Layout:
    """Placement of the ranks, one GPU each."""
    #: GPUs of each node.
    gpus: int
    nodes: int

    @property
    def rank_count(self) -> int:
        """GPUs in all."""
        return self.gpus * self.nodes


def format_layout(layout: Layout) -> str:
    """Nodes x GPUs of a node, as names have it."""
    return f'{layout.nodes}x{layout.gpus}'


def runnable_layouts(nodes: Collection[int] = (), full: bool = False
                     ) -> list[Layout]:
    """Layouts that some partition of this system can run: 1, 2, 4, ... and
    all GPUs of one node, and all GPUs of several nodes.

    :arg nodes: only these numbers of nodes; default: all of the partition.
    :arg full: all GPUs also on one node.
    """
    result = set()
    record_needed_node_count('nccl', 2)
    for part in partitions_with_gpus():
        maximum = placement.gpus_per_node(part)
        some = [maximum] if full else [
            maximum, *(2 ** n for n in range(10) if 2 ** n < maximum)]
        result |= {Layout(gpus, count) for count in features.node_counts(part)
                   if not nodes or count in nodes
                   for gpus in (some if count == 1 else [maximum])}
    return sorted(result, key=lambda layout: (layout.nodes, layout.gpus))


def full_node_layouts(nodes: int) -> list[Layout]:
    """Layouts with all GPUs of so many nodes, if they have more than one GPU."""
    return [layout for layout in runnable_layouts((nodes,), full=True)
            if layout.gpus > 1]


@dataclass(frozen=True)
class Choice:
    """An algorithm, protocol or network that environment variables choose for NCCL."""
    env: Mapping[str, str]
    #: Pattern of the channels in NCCL's log that show it; '': the log does not.
    channel: str = ''
    #: What it needs: 'nvls' (config/hardware.yaml), or a feature of the environment
    #: that only a site can declare: 'sharp', 'll128'; '': nothing.
    needs: str = ''
    #: Nodes on which it is measured.
    nodes: tuple[int, ...] = (1, 2)


_NO_P2P = {'NCCL_P2P_DISABLE': '1'}
_NET = {**_NO_P2P, 'NCCL_SHM_DISABLE': '1'}
_SHARP = {'NCCL_COLLNET_ENABLE': '1'}
_NVLS = {'NCCL_NVLS_ENABLE': '1'}

#: Value of the parameter `choice` -> the choice.
CHOICES: dict[str, Choice] = {
    'algo=Ring': Choice({'NCCL_ALGO': 'Ring'}),
    'algo=Tree': Choice({'NCCL_ALGO': 'Tree'}),
    'algo=NVLS': Choice({'NCCL_ALGO': 'NVLS', **_NVLS}, needs='nvls', nodes=(1,)),
    'algo=NVLSTree': Choice({'NCCL_ALGO': 'NVLSTree', **_NVLS}, needs='nvls',
                            nodes=(2,)),
    'nvls=off': Choice({'NCCL_NVLS_ENABLE': '0'}, needs='nvls'),
    'proto=LL': Choice({'NCCL_PROTO': 'LL'}),
    # RCCL of MI250X switches LL128 off, unless its build supports it.
    'proto=LL128': Choice({'NCCL_PROTO': 'LL128'}, needs='ll128'),
    'proto=Simple': Choice({'NCCL_PROTO': 'Simple'}),
    **{f'cross_nic={number}': Choice({'NCCL_CROSS_NIC': number}, 'NET', nodes=(2,))
       for number in '012'},
    'p2p=off': Choice(_NO_P2P, 'SHM|NET'),
    'sharp=on': Choice(_SHARP, 'COLLNET', 'sharp', (2,)),
    # As in evaluations of reduction servers: all bytes go through the NICs,
    # also those between GPUs of a node.
    'net=all': Choice(_NET, 'NET', nodes=(2,)),
    'net=all+sharp': Choice({**_NET, **_SHARP}, 'COLLNET', 'sharp', (2,)),
}


def supports_choice(partition: Any, choice: Choice) -> bool:
    """Whether the GPUs of a partition, or one of its environments, have what a choice
    needs."""
    if choice.needs == 'nvls':
        try:
            models = hardware.models_by_name(places.current_site_folder())
        except hardware.HardwareError:  # `plumb site check` reports it with its file
            models = hardware.models_by_name()
        return any(models.get(device.info.get('model'), {}).get('nvls')
                   for device in partition.devices)
    if choice.needs == 'll128' and 'gfx90a' not in {
            device.arch for device in partition.devices}:
        return True
    return not choice.needs or any(choice.needs in environ.features
                                   for environ in partition.environs)


def supported_choices(nodes: int) -> list[str]:
    """Choices on so many nodes that some partition of this system supports."""
    return [name for name, choice in CHOICES.items() if nodes in choice.nodes
            and any(supports_choice(part, choice) for part in partitions_with_gpus())]
