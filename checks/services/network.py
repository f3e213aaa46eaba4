"""Interfaces, addresses and TCP sockets of this machine."""
from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

#: State of a socket in /proc/net/tcp.
_LISTENS = '0A'

#: ioctl for the address of an interface, see netdevice(7).
_SIOCGIFADDR = 0x8915


def interface_addresses() -> dict[str, str]:
    """The IPv4 addresses of this machine, interface -> address."""
    result = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack(
                    '256s', name.encode()[:15]))
                result[name] = socket.inet_ntoa(answer[20:24])
    return result


def find_interface(address: str) -> str:
    """The interface with this IPv4 address; empty: none."""
    return next((name for name, has in interface_addresses().items()
                 if has == address), '')


def _listening_sockets(port: int) -> Iterator[list[str]]:
    """Fields of the sockets that listen on a port."""
    for table in ('/proc/net/tcp', '/proc/net/tcp6'):
        # Read line by line: listening sockets come first, and thousands of
        # others may follow.
        with contextlib.suppress(OSError), open(table) as lines:
            next(lines, None)
            for fields in map(str.split, lines):
                if (fields[3] == _LISTENS
                        and int(fields[1].rpartition(':')[2], 16) == port):
                    yield fields


def find_listening_user(port: int) -> int | None:
    """The id of the user who listens on a port; None: no user, or unknown."""
    return next((int(fields[7]) for fields in _listening_sockets(port)), None)


def find_listening_program(port: int) -> str:
    """The program that listens on a port, if this user may see it."""
    inodes = {fields[9] for fields in _listening_sockets(port)}
    for folder in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            for link in (folder / 'fd').iterdir():
                if os.readlink(link)[8:-1] in inodes:
                    name = (folder / 'comm').read_text().strip()
                    return f'{name}, process {folder.name}'
    return 'another program'
