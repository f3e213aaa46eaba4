"""The lifeline: JSON objects, one a line, over a socket that never blocks."""
from __future__ import annotations

import json
import socket
import time
from typing import Any

#: A line may be this long. Unit: bytes. More is no friend of ours.
LONGEST = 1 << 20

#: Both sides say something at least so often. Unit: seconds.
BEAT = 1.0


class Channel:
    """One end of a lifeline.

    `lines` of text come in and go out; `heard` is when the other end was
    last heard of (monotonic seconds).
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.heard = time.monotonic()
        self.sent = 0.0
        self._in = b''
        self._out = b''

    def lines(self) -> list[str] | None:
        """Whole lines that have come; None: the other end is gone."""
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._in += data
        if not data or len(self._in) > LONGEST:
            return None
        self.heard = time.monotonic()
        *whole, self._in = self._in.split(b'\n')
        return [line.decode(errors='replace') for line in whole]

    def text(self, line: str) -> None:
        """Sends a line; what the socket does not take waits for `flush`."""
        self._out += line.encode() + b'\n'
        self.flush()

    def say(self, **message: Any) -> None:
        """Sends an object."""
        self.text(json.dumps(message))

    def beat(self) -> None:
        """Sends a sign of life when it is time for one."""
        if time.monotonic() - self.sent > BEAT:
            self.sent = time.monotonic()
            self.say(say='beat')
        else:
            self.flush()

    def flush(self) -> None:
        """Sends what waits; a broken socket is found when it is read."""
        try:
            while self._out:
                self._out = self._out[self.sock.send(self._out):]
        except OSError:
            pass

    def silent(self) -> float:
        """Seconds since the other end was heard of."""
        return time.monotonic() - self.heard
