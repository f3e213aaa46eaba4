"""Authenticated messages between conductor and agents, over a socket.

The socket never blocks. Both ends have the secret of the run. In the
handshake each end proves this without revealing anything else:

    agent      MAGIC, nonce A
    conductor  nonce C, HMAC(secret, 'proof conductor', run, A, C)
    agent      HMAC(secret, 'proof agent', run, A, C)

The role in each proof prevents reflection, the nonces prevent replay. Secret
and nonces give two keys, one for each direction. Afterwards each message is a
frame: length (4 bytes), HMAC(key, number of the frame, length, message),
message (JSON). A frame that was changed, repeated, dropped, reordered or
forged ends the connection. Messages are not encrypted: they contain no secret
(see :func:`derive_secret`).
"""
from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import signal
import socket
import struct
import threading
import time
from typing import Any

#: Maximum length of a message. Unit: bytes.
MAX_MESSAGE = 1 << 20

#: Interval of the heartbeats of a side. Unit: seconds.
HEARTBEAT_INTERVAL = 1.0

#: Time without a message after which a peer counts as lost; a site can set
#: another timeout. A loaded machine was seen to need more than 10 s. Unit:
#: seconds.
HEARTBEAT_TIMEOUT = 30.0

#: Deadline of a whole handshake. Unit: seconds.
HANDSHAKE_TIMEOUT = 10.0

MAGIC = b'plumbline connection 2\n'
NONCE = MAC = 32
_HEAD = struct.Struct('!I')

CONDUCTOR, AGENT = 'conductor', 'agent'


class AuthenticationError(Exception):
    """The peer does not have the run's secret; one line."""


def compute_hmac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over parts, each with its length before it."""
    return hmac.new(key, b''.join(struct.pack('!Q', len(part)) + part
                                  for part in parts),
                    hashlib.sha256).digest()


def derive_secret(secret: bytes, purpose: str) -> str:
    """A secret that both sides derive from the secret of the run.

    So it need not be sent. It has 48 hexadecimal digits.
    """
    return compute_hmac(secret, b'derived', purpose.encode()).hex()[:48]


class Handshake:
    """One side of a handshake, without I/O.

    The peer's next message has exactly `wants` bytes; 0: the handshake is
    complete, and `keys` are for our messages and for the peer's.
    """

    def __init__(self, role: str, secret: bytes, run: str) -> None:
        self.role, self.secret, self.run = role, secret, run.encode()
        self.nonce = secrets.token_bytes(NONCE)
        self.nonces: tuple[bytes, bytes] = (b'', b'')
        self.keys = (b'', b'')
        self.wants = NONCE + MAC if role == AGENT else len(MAGIC) + NONCE

    def opening_message(self) -> bytes:
        """The first bytes to send."""
        return MAGIC + self.nonce if self.role == AGENT else b''

    def answer_to_peer(self, data: bytes) -> bytes:
        """The bytes to send after the peer's message.

        :raises AuthenticationError: the peer does not have the secret.
        """
        if self.role == AGENT:
            self.nonces = (self.nonce, data[:NONCE])
            self._verify_proof(CONDUCTOR, data[NONCE:])
            self._derive_channel_keys()
            return self._compute_proof(AGENT)
        if not self.nonces[0]:
            if not data.startswith(MAGIC):
                raise AuthenticationError('is not an agent of this version')
            self.nonces = (data[len(MAGIC):], self.nonce)
            self.wants = MAC
            return self.nonce + self._compute_proof(CONDUCTOR)
        self._verify_proof(AGENT, data)
        self._derive_channel_keys()
        return b''

    def _compute_proof(self, role: str) -> bytes:
        return self._compute_mac('proof', role)

    def _compute_mac(self, purpose: str, role: str) -> bytes:
        return compute_hmac(self.secret, MAGIC, purpose.encode(), role.encode(),
                            self.run, *self.nonces)

    def _verify_proof(self, role: str, proof: bytes) -> None:
        if not hmac.compare_digest(proof, self._compute_proof(role)):
            raise AuthenticationError("does not know the run's secret")

    def _derive_channel_keys(self) -> None:
        other = AGENT if self.role == CONDUCTOR else CONDUCTOR
        self.keys = self._compute_mac('key', self.role), self._compute_mac('key', other)
        self.wants = 0


class Channel:
    """One end of a connection, after the handshake.

    `fault` is the reason why no more messages are read; empty: none.
    """

    def __init__(self, sock: socket.socket, ours: bytes, theirs: bytes
                 ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fault = ''
        self._ours, self._theirs = ours, theirs
        self._sent, self._received = 0, 0
        now = time.monotonic()
        #: Times (monotonic seconds) of the last whole message received, and
        #: of the last bytes that the socket took.
        self._heard, self._taken = now, now
        self._in = b''
        self._out = b''
        #: Lock for sending, because heartbeats come from another thread.
        self._lock = threading.Lock()

    def receive_messages(self) -> list[dict[str, Any]] | None:
        """Whole messages received.

        None: the connection is closed, or a frame was not authentic (see
        `fault`).
        """
        if self.fault:
            return None
        closed, before = True, len(self._in)
        try:
            while data := self.sock.recv(65536):
                self._in += data
        except BlockingIOError:
            closed = False
        except OSError:
            pass
        if closed:
            # The last messages are returned before the end is reported.
            self.fault = 'closed the connection'
            if len(self._in) == before:
                return None
        results = []
        while len(self._in) >= _HEAD.size:
            size, = _HEAD.unpack_from(self._in)
            if size > MAX_MESSAGE:
                self.fault = f'sent a message of {size} bytes'
                return None
            end = _HEAD.size + MAC + size
            if len(self._in) < end:
                break
            proof, text = (self._in[_HEAD.size:end - size],
                           self._in[end - size:end])
            if not hmac.compare_digest(
                    proof, self._frame_mac(self._theirs, self._received, text)):
                self.fault = ('sent a message that somebody else changed, '
                              'repeated or forged')
                return None
            self._received += 1
            self._in = self._in[end:]
            results.append(json.loads(text))
        if results:
            self._heard = time.monotonic()
        return results

    @staticmethod
    def _frame_mac(key: bytes, number: int, text: bytes) -> bytes:
        return compute_hmac(key, struct.pack('!Q', number), text)

    def send(self, **message: Any) -> None:
        """Send a JSON object.

        `flush` sends the bytes that the socket does not accept now.
        """
        text = json.dumps(message).encode()
        with self._lock:
            if not self._out:
                self._taken = time.monotonic()
            self._out += (_HEAD.pack(len(text))
                          + self._frame_mac(self._ours, self._sent, text) + text)
            self._sent += 1
            self._send_pending_bytes()

    def flush(self) -> None:
        """Send pending bytes; `receive_messages` detects a broken socket."""
        with self._lock:
            self._send_pending_bytes()

    def _send_pending_bytes(self) -> None:
        try:
            while self._out:
                self._out = self._out[self.sock.send(self._out):]
                self._taken = time.monotonic()
        except OSError:
            pass

    def peer_silence_seconds(self) -> float:
        """Seconds since the peer last sent a message or took our bytes."""
        now = time.monotonic()
        return max(now - self._heard, now - self._taken if self._out else 0)


class Heartbeat:
    """The heartbeats of channels, sent by a separate thread.

    The main thread may wait for a server or a file system for longer than a
    peer waits for a message.
    """

    def __init__(self) -> None:
        self._channels: tuple[Channel, ...] = ()
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    def add_channel(self, channel: Channel) -> None:
        """Send heartbeats on a channel until it is closed."""
        self._channels = (*(one for one in self._channels
                            if one.sock.fileno() >= 0), channel)

    def _send_heartbeats(self) -> None:
        # Signals are for the main thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            for channel in self._channels:
                if channel.sock.fileno() >= 0:
                    channel.send(type='beat')
            time.sleep(HEARTBEAT_INTERVAL)
