"""Physical limits of busbw by links and NICs, and published values of busbw
(nodes.yaml).

The limit counts the bytes that must leave or enter a node or a GPU in any
algorithm, also in one that reduces inside a switch (NVLS, SHARP). An
all-reduce of S bytes sends S out of each node and GPU and receives S; a ring
sends up to twice as much. So all_reduce may have up to twice the busbw of the
ring, and measured values do exceed the ring's (H200: 482 GB/s over links of
450 GB/s).
"""
from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from .programs import PROGRAMS

NODES = Path(__file__).with_name('nodes.yaml')


def crossing_to_algbw_byte_ratio(program: str, parts: int) -> float | None:
    """Ratio of the bytes that must enter or leave one of `parts` equal parts
    of the ranks to the bytes that algbw counts; None: not known.

    A part is a node or a GPU.
    """
    if program == 'alltoallv_perf':     # depends on which ranks are near
        return None
    if program in ('all_reduce_perf', 'broadcast_perf', 'reduce_perf',
                   'sendrecv_perf'):
        return 1.0
    return (parts - 1) / parts


def busbw_limit(program: str, nodes: int, gpus: int, site: Mapping[str, Any]
          ) -> tuple[float, str] | None:
    """Maximum busbw in GB/s, and its reason; None: the site does not declare
    its bandwidths.

    :arg gpus: GPUs per node that take part.
    :arg site: extras of the partition, bandwidths in MB/s.
    """
    kind, ranks = PROGRAMS[program], nodes * gpus
    results = []
    # Without a switch a GPU has separate links to each of the other GPUs, and
    # uses those to the GPUs that take part.
    if nodes == 1 and gpus > 1 and 'gpu_link_bandwidth' in site:
        links = min(site.get('gpu_bandwidth', float('inf')),
                    site['gpu_link_bandwidth'] * (gpus - 1))
        results.append((links, gpus, 1, 'the links of a GPU'))
    if nodes > 1 and 'nic_bandwidth' in site:
        results.append((site['nic_bandwidth'], nodes, gpus,
                        'the NICs of a node'))
    best = None
    for bandwidth, parts, ranks_of_part, what in results:
        share = crossing_to_algbw_byte_ratio(program, parts)
        if share is None:
            continue
        if program == 'alltoall_perf':  # each rank of the part sends as much
            share *= ranks_of_part
        if kind.received:               # algbw counts (n-1)/n of the size
            share /= kind.algbw_to_size_byte_ratio(ranks)
        maximum = bandwidth / 1e3 / share * kind.busbw_factor(ranks)
        if best is None or maximum < best[0]:
            best = maximum, (f'{what} carry {bandwidth / 1e3:g} GB/s in one '
                             'direction')
    return best


def expected_ring_busbw(program: str, nodes: int, gpus: int, site: Mapping[str, Any]
             ) -> float | None:
    """Maximum busbw of a ring over the same hardware, in GB/s.

    A value below half of it is noted. None: the program has another pattern,
    or the site does not declare its devices.
    """
    if program not in ('all_reduce_perf', 'all_gather_perf',
                       'reduce_scatter_perf'):
        return None
    if nodes > 1:
        if 'nic_bandwidth' not in site:
            return None
        rates = [site['nic_bandwidth'] / 1e3]
        if 'gpu_bandwidth' in site and gpus > 1:
            rates.append(site['gpu_bandwidth'] / 1e3)
        return min(rates)
    result = busbw_limit('all_gather_perf', nodes, gpus, site)
    return result[0] if result else None


@functools.cache
def published_busbw_rows() -> tuple[dict[str, Any], ...]:
    """The rows of nodes.yaml."""
    return tuple(yaml.safe_load(NODES.read_text()))


def find_published_busbw_row(program: str, nodes: int, gpus: int,
                             models: Collection[str]) -> dict[str, Any] | None:
    """The row of nodes.yaml for nodes with these GPUs and NICs, or None.

    :arg models: names of devices in config/hardware.yaml.
    """
    return next((row for row in published_busbw_rows() if (
        row['program'], row['nodes'], row['gpus']) == (program, nodes, gpus)
        and row['gpu'] in models and row.get('nic', row['gpu']) in models),
        None)


def expected_busbw_values(program: str, nodes: int, gpus: int, partition: Any
                          ) -> list[tuple[float, str]]:
    """Expected busbw of a partition in GB/s, and the source of each value."""
    ring = expected_ring_busbw(program, nodes, gpus, partition.extras)
    published = find_published_busbw_row(
        program, nodes, gpus, {device.model for device in partition.devices})
    return [*([(ring, 'that the links and NICs carry')] if ring else []),
            *([(published['busbw'], 'published for such nodes '
                f"({published['source']}, {published['date']})")]
              if published else [])]
