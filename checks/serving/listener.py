"""Where agents come in: nobody is heard who has not proved who he is.

Others on the node can connect, too, as often as they like. So the number of
peers whose handshake is not over is bounded, each has one deadline for all
of it, and nothing is read but the bytes that a handshake has. Of too many
the oldest goes, and of the address that has most of them: who floods crowds
out himself first, and an agent that was crowded out comes again.
"""
from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections import Counter

from .wire import CONDUCTOR, HANDSHAKE, Channel, Handshake, Impostor

#: Peers whose handshake is not over, at most.
UNKNOWN = 64

#: So long nobody is let in when the system has no more files. Unit: seconds.
BACK_OFF = 0.2

#: What accept(2) says when there are too many files or too little memory.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Peer:
    """Somebody who has connected."""

    def __init__(self, sock: socket.socket, address: str,
                 handshake: Handshake) -> None:
        sock.setblocking(False)
        self.sock, self.address, self.handshake = sock, address, handshake
        self.deadline = time.monotonic() + HANDSHAKE
        self.got = b''

    def proceed(self) -> bool:
        """Hears and answers; whether the handshake is over.

        :raises OSError: gone, or too late. :raises Impostor: a stranger.
        """
        while self.handshake.wants:
            try:
                data = self.sock.recv(self.handshake.wants - len(self.got))
            except BlockingIOError:
                if time.monotonic() > self.deadline:
                    raise TimeoutError from None
                return False
            if not data:
                raise ConnectionResetError
            self.got += data
            if len(self.got) == self.handshake.wants:
                # Less than any socket takes at once.
                self.sock.send(self.handshake.answer(self.got))
                self.got = b''
        return True


class Listener:
    """A port, and those who have not yet proved that they are agents."""

    def __init__(self, address: str, secret: bytes, run: str,
                 selector: selectors.BaseSelector) -> None:
        self.sock = socket.create_server((address, 0), backlog=1024)
        self.sock.setblocking(False)
        self.where: tuple[str, int] = self.sock.getsockname()[:2]
        self.secret, self.run, self.selector = secret, run, selector
        self.peers: list[Peer] = []
        self.shut_until = 0.0
        #: Given up for a moment where accept finds no free descriptor.
        self.reserve = os.open(os.devnull, os.O_RDONLY)
        self.watch(True)

    def watch(self, on: bool) -> None:
        """Whether new connections wake us."""
        if on != (self.sock in self.selector.get_map()):
            if on:
                self.selector.register(self.sock, selectors.EVENT_READ)
            else:
                self.selector.unregister(self.sock)

    def attend(self) -> list[Channel]:
        """Those who have proved just now that they are agents."""
        now = time.monotonic()
        if now >= self.shut_until:
            self.watch(True)
            # A flood must not keep us from what else there is to do.
            for _ in range(UNKNOWN):
                if not self.accept():
                    break
        found = []
        for peer in list(self.peers):
            try:
                if peer.proceed():
                    self.peers.remove(peer)
                    self.selector.unregister(peer.sock)
                    found.append(Channel(peer.sock, *peer.handshake.keys))
            except (OSError, Impostor):
                self.drop(peer)
        return found

    def accept(self) -> bool:
        """Lets one in; false: there is none, or no room for it."""
        try:
            sock, address = self.sock.accept()
        except BlockingIOError:
            return False
        except OSError as err:
            if err.errno not in EXHAUSTED:
                return True             # it went before we looked
            self.make_room()
            return False
        if len(self.peers) >= UNKNOWN:
            self.drop(self.oldest())
        self.peers.append(Peer(sock, address[0], Handshake(
            CONDUCTOR, self.secret, self.run)))
        self.selector.register(sock, selectors.EVENT_READ)
        return True

    def oldest(self) -> Peer:
        """Of the address that has most of them."""
        crowd = Counter(peer.address for peer in self.peers)
        most = max(crowd.values())
        return next(peer for peer in self.peers
                    if crowd[peer.address] == most)

    def make_room(self) -> None:
        """No descriptor is free: the first who waits goes, all wait a
        while."""
        if self.peers:
            self.drop(self.oldest())
        else:
            os.close(self.reserve)
            with contextlib.suppress(OSError):
                self.sock.accept()[0].close()
            self.reserve = os.open(os.devnull, os.O_RDONLY)
        self.watch(False)
        self.shut_until = time.monotonic() + BACK_OFF

    def drop(self, peer: Peer) -> None:
        self.peers.remove(peer)
        self.selector.unregister(peer.sock)
        peer.sock.close()

    def close(self) -> None:
        """Nobody else is waited for."""
        for peer in list(self.peers):
            self.drop(peer)
        self.watch(False)
        self.sock.close()
        os.close(self.reserve)
