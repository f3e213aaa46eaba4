"""Clients that users start on machines outside the job."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from .plan import Outside

#: Peers of each server: address -> connections.
Peers = Sequence[Mapping[str, int]]


def describe_missing_connections(
    outside: Outside, names: Sequence[str], peers: Peers
) -> str:
    """The missing connections, in words; empty: none."""
    late = []
    for server, name in enumerate(names):
        subset = [(machine, count) for client, (machine, count) in enumerate(
            zip(outside.machines, outside.connections, strict=True))
            if client % len(names) == server]
        expected = sum(count for _, count in subset)
        there = peers[server]
        # 1 % may be missing: clients reconnect.
        if sum(there.values()) < 0.99 * expected:
            names_of_clients = ', '.join(
                f'client {machine + 1}' for machine, _ in subset)
            seen = ', '.join(f'{count} from {address}'
                             for address, count in sorted(there.items()))
            late.append(f'server {name} has {seen or "none"} of {expected} '
                        f'connections of {names_of_clients}')
    return '; '.join(late)
