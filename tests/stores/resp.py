"""A RESP client that sends and receives bytes, and servers with the module."""
from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import LIMIT, until


class Error(Exception):
    """The server answered with an error."""


class Client:
    """One connection; requests may be sent before answers are read."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(('127.0.0.1', port), LIMIT)
        self.stream = self.socket.makefile('rb')

    def send(self, *words: object) -> None:
        """A word is bytes, or what str() makes of it."""
        out = [b'*%d\r\n' % len(words)]
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            out.append(b'$%d\r\n%s\r\n' % (len(data), data))
        self.socket.sendall(b''.join(out))

    def receive(self) -> Any:
        """:raises Error: it is one. :raises ConnectionError: no answer."""
        answer = self._answer()
        if isinstance(answer, Error):
            raise answer
        return answer

    def _answer(self) -> Any:
        line = self.stream.readline()
        if not line.endswith(b'\r\n'):
            raise ConnectionError('the server is gone')
        kind, rest = line[:1], line[1:-2]
        if kind == b'-':
            return Error(rest.decode(errors='replace'))
        if kind == b'+':
            return rest.decode()
        if kind == b':':
            return int(rest)
        if int(rest) < 0:
            return None
        if kind == b'$':
            return self.stream.read(int(rest) + 2)[:-2]
        return [self._answer() for _ in range(int(rest))]

    def __call__(self, *words: object) -> Any:
        self.send(*words)
        return self.receive()

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


@contextlib.contextmanager
def serving(server: Path, port: int, folder: Path, *options: object,
            environment: dict[str, str] | None = None
            ) -> Iterator[subprocess.Popen]:
    """A server until the end of the block; its log is folder/log."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / 'log', 'ab') as log:
        process = subprocess.Popen(
            [server, '--port', str(port), '--bind', '127.0.0.1', '--dir',
             folder, *map(str, options)], stdout=log, stderr=log,
            env=environment)
    try:
        def is_ready() -> bool:
            assert process.poll() is None, (folder / 'log').read_text()
            with contextlib.suppress(OSError, Error):
                client = Client(port)
                client('PING')
                client.close()
                return True
            return False

        until(is_ready)
        yield process
    finally:
        process.terminate()
        process.wait(LIMIT)
