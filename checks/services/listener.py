"""The port on which agents connect and authenticate themselves.

Other users on the node can connect, too, any number of times. So the number
of unauthenticated peers is limited, each has one deadline for its whole
handshake, and no more bytes are read than a handshake has. If there are too
many, the oldest peer of the address with the most connections is dropped. So
a flood displaces mostly itself, and a dropped agent connects again.
"""
from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections import Counter

from .wire import (
    CONDUCTOR,
    HANDSHAKE_TIMEOUT,
    AuthenticationError,
    Channel,
    Handshake,
)

#: Maximum number of peers that have not finished their handshake.
MAX_UNAUTHENTICATED = 64

#: Pause of accept() after the system ran out of descriptors. Unit: seconds.
ACCEPT_PAUSE = 0.2

#: errno of accept(2) for too many files or too little memory.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Peer:
    """A connection that is not authenticated yet, at either end."""

    def __init__(self, sock: socket.socket, address: str,
                 handshake: Handshake) -> None:
        sock.setblocking(False)
        self.sock, self.address, self.handshake = sock, address, handshake
        self.deadline = time.monotonic() + HANDSHAKE_TIMEOUT
        self.got = b''

    def continue_handshake(self) -> bool:
        """Continue the handshake; return whether it is complete.

        :raises OSError: the peer has closed the connection, or is too late.
        :raises AuthenticationError: as :meth:`Handshake.answer_to_peer`.
        """
        while self.handshake.wants:
            try:
                data = self.sock.recv(self.handshake.wants - len(self.got))
            except BlockingIOError:
                if time.monotonic() > self.deadline:
                    raise TimeoutError('the handshake did not end in '
                                       f'{HANDSHAKE_TIMEOUT:g} s') from None
                return False
            if not data:
                raise ConnectionResetError('closed the connection')
            self.got += data
            if len(self.got) == self.handshake.wants:
                # These few bytes fit into any socket's buffer.
                self.sock.send(self.handshake.answer_to_peer(self.got))
                self.got = b''
        return True


class Listener:
    """A listening socket and its unauthenticated peers."""

    def __init__(self, address: str, secret: bytes, run: str,
                 selector: selectors.BaseSelector) -> None:
        self.sock = socket.create_server((address, 0), backlog=1024)
        self.sock.setblocking(False)
        self.where: tuple[str, int] = self.sock.getsockname()[:2]
        self.secret, self.run, self.selector = secret, run, selector
        self.peers: list[Peer] = []
        self.paused_until = 0.0
        #: A spare descriptor, closed to accept (and drop) a connection when
        #: no other is free.
        self.reserve = os.open(os.devnull, os.O_RDONLY)
        self.watch_for_connections(True)

    def watch_for_connections(self, on: bool) -> None:
        """Let new connections wake the selector, or not."""
        if on != (self.sock in self.selector.get_map()):
            if on:
                self.selector.register(self.sock, selectors.EVENT_READ)
            else:
                self.selector.unregister(self.sock)

    def accept_authenticated_channels(self) -> list[Channel]:
        """Continue all handshakes; return channels of completed ones."""
        now = time.monotonic()
        if now >= self.paused_until:
            self.watch_for_connections(True)
            # Limited: a flood must not starve the other connections.
            for _ in range(MAX_UNAUTHENTICATED):
                if not self.accept_connection():
                    break
        results = []
        for peer in list(self.peers):
            try:
                if peer.continue_handshake():
                    self.peers.remove(peer)
                    self.selector.unregister(peer.sock)
                    results.append(Channel(peer.sock, *peer.handshake.keys))
            except (OSError, AuthenticationError):
                self.drop_peer(peer)
        return results

    def accept_connection(self) -> bool:
        """Accept one connection.

        False: no connection waits, or no descriptor is free.
        """
        try:
            sock, address = self.sock.accept()
        except BlockingIOError:
            return False
        except OSError as err:
            if err.errno not in EXHAUSTED:
                return True             # the peer has closed it already
            self.free_descriptor_and_pause_accept()
            return False
        if len(self.peers) >= MAX_UNAUTHENTICATED:
            self.drop_peer(self.select_peer_to_drop())
        self.peers.append(Peer(sock, address[0], Handshake(
            CONDUCTOR, self.secret, self.run)))
        self.selector.register(sock, selectors.EVENT_READ)
        return True

    def select_peer_to_drop(self) -> Peer:
        """The oldest peer of the address with the most peers."""
        by_address = Counter(peer.address for peer in self.peers)
        maximum = max(by_address.values())
        return next(peer for peer in self.peers
                    if by_address[peer.address] == maximum)

    def free_descriptor_and_pause_accept(self) -> None:
        """Free a descriptor and pause accept() for a moment."""
        if self.peers:
            self.drop_peer(self.select_peer_to_drop())
        else:
            os.close(self.reserve)
            with contextlib.suppress(OSError):
                self.sock.accept()[0].close()
            self.reserve = os.open(os.devnull, os.O_RDONLY)
        self.watch_for_connections(False)
        self.paused_until = time.monotonic() + ACCEPT_PAUSE

    def drop_peer(self, peer: Peer) -> None:
        self.peers.remove(peer)
        self.selector.unregister(peer.sock)
        peer.sock.close()

    def close(self) -> None:
        """Drop all unauthenticated peers and stop listening."""
        for peer in list(self.peers):
            self.drop_peer(peer)
        self.watch_for_connections(False)
        self.sock.close()
        os.close(self.reserve)
