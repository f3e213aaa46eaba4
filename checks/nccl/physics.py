"""Physical limits of busbw by links and NICs.

The limit counts the bytes that must leave or enter a node or a GPU in any
algorithm, also in one that reduces inside a switch (NVLS, SHARP). An
all-reduce of S bytes sends S out of each node and GPU and receives S; a ring
sends up to twice as much. So all_reduce may have up to twice the busbw of the
ring, and measured values do exceed the ring's (H200: 482 GB/s over links of
450 GB/s).
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .programs import PROGRAMS


def busbw_limit(program: str, nodes: int, gpus: int, site: Mapping[str, Any]
                ) -> tuple[float, str] | None:
    """Maximum busbw in GB/s, and its reason; None: it is not known, for example
    because the site does not declare its bandwidths.

    :arg gpus: GPUs per node that take part.
    :arg site: extras of the partition, bandwidths in MB/s.
    """
    kind, ranks = PROGRAMS[program], nodes * gpus
    if nodes > 1 and 'nic_bandwidth' in site:
        bandwidth, parts, what = site['nic_bandwidth'], nodes, 'the NICs of a node'
    elif nodes == 1 and gpus > 1 and 'gpu_link_bandwidth' in site:
        # Without a switch a GPU has separate links to each of the other GPUs, and
        # uses those to the GPUs that take part.
        bandwidth, parts, what = min(
            site.get('gpu_bandwidth', float('inf')),
            site['gpu_link_bandwidth'] * (gpus - 1)), gpus, 'the links of a GPU'
    else:
        return None
    if kind.unequal:                    # depends on which ranks are near
        return None
    # Bytes that enter or leave one of the parts, nodes or GPUs, over those that algbw
    # counts.
    share = (parts - 1) / parts if kind.split else 1.0
    if kind.pairwise:                   # each rank of the part sends as much
        share *= ranks // parts
    share /= kind.algbw_to_size_byte_ratio(ranks)
    return (bandwidth / 1e3 / share * kind.busbw_factor(ranks),
            f'{what} carry {bandwidth / 1e3:g} GB/s in one direction')
