"""Clients that users start on machines outside the job."""
from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .plan import Outside

#: Peers of each server: index of the server -> address -> connections.
Peers = Mapping[int, Mapping[str, int]]


def count_connections_by_address(
    ports: Iterable[int], text: str
) -> dict[int, Counter[str]]:
    """Connections to these ports, by address.

    :arg text: contents of /proc/net/tcp.
    """
    result: dict[int, Counter[str]] = {port: Counter() for port in ports}
    for line in text.splitlines()[1:]:
        cells = line.split()
        port = int(cells[1].rpartition(':')[2], 16)
        # 01: established; addresses are hexadecimal, the last byte first.
        if cells[3] == '01' and port in result:
            raw = bytes.fromhex(cells[2].partition(':')[0])
            result[port]['.'.join(map(str, reversed(raw)))] += 1
    return result


def find_listening_user(port: int, tables: Iterable[str] = (
        '/proc/net/tcp', '/proc/net/tcp6')) -> int | None:
    """The id of the user who listens on a port; None: no user, or unknown."""
    for table in tables:
        # Listening sockets come first; thousands of others may follow.
        with contextlib.suppress(OSError), open(table) as lines:
            for cells in map(str.split, lines):
                if (cells[3] == '0A'
                        and int(cells[1].rpartition(':')[2], 16) == port):
                    return int(cells[7])
    return None


def count_local_connections(ports: Iterable[int]) -> dict[int, Counter[str]]:
    """Connections to these ports of this machine, by address."""
    return count_connections_by_address(ports, Path('/proc/net/tcp').read_text())


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
        there = peers.get(server, {})
        # 1 % may be missing: clients reconnect.
        if sum(there.values()) < 0.99 * expected:
            names_of_clients = ', '.join(
                f'client {machine + 1}' for machine, _ in subset)
            seen = ', '.join(f'{count} from {address}'
                             for address, count in sorted(there.items()))
            late.append(f'server {name} has {seen or "none"} of {expected} '
                        f'connections of {names_of_clients}')
    return '; '.join(late)
