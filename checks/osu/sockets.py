"""Pairs of ranks on one socket of a node, and on two."""
from __future__ import annotations

from typing import Any

from ..core import guards, placement


def has_pairs_of_sockets(part: Any) -> bool:
    """Whether a partition has nodes of several sockets, and binds ranks."""
    return ((part.processor.num_sockets or 1) > 1
            and 'launcher_free' not in part.extras)


def check_sockets_of_pair(run: guards.Run, expected: int) -> None:
    """Check that two ranks of a node ran on one socket, or on two.

    :param expected: number of sockets
    """
    for host, ranks in placement.parse_rank_lines(run.err).items():
        sockets = frozenset().union(*(rank.sockets for rank in ranks))
        if not all(rank.sockets for rank in ranks):
            guards.fail_test_case(
                'binding', f'{run.name}: {host}: a rank could not read its socket '
                '(physical_package_id below /sys/devices/system/cpu)')
        if len(sockets) != expected:
            extra = 'launcher_pin' if expected == 1 else 'launcher_socket_pin'
            guards.fail_test_case(
                'binding', f'{run.name}: {host}: the pair of ranks must be on '
                f'{expected} socket{"s" * (expected > 1)}, but was on '
                f'{",".join(map(str, sorted(sockets)))}; correct {extra}')
