"""Output for readers that leave (`| head`) or lack a character such as µ."""
from __future__ import annotations

import io
import os
import signal
import sys
from typing import NoReturn


class Pipe(io.TextIOWrapper):
    """A stream that ends the command if its reader has left.

    SystemExit lets the command remove its temporary files, and is no OSError
    that a command would report.
    """

    mode = 'w'                          # which open() sets

    def write(self, text: str) -> int:
        """Write a text; end the command if its reader has left."""
        try:
            return super().write(text)
        except BrokenPipeError:
            exit_like_sigpipe()

    def flush(self) -> None:
        """Write what is buffered; end the command if its reader has left."""
        try:
            super().flush()
        except BrokenPipeError:
            exit_like_sigpipe()


def exit_like_sigpipe() -> NoReturn:
    """Ends the command like a program that SIGPIPE ends."""
    # Python flushes its streams once more at the end.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    raise SystemExit(128 + signal.SIGPIPE)


def replace_standard_streams() -> None:
    """Makes stdout and stderr of this process such streams."""
    for name in ('stdout', 'stderr'):
        stream = getattr(sys, name)
        if stream is not None:              # it was closed
            stream.flush()
            setattr(sys, name, Pipe(
                stream.buffer, encoding=stream.encoding,
                errors='replace' if stream.errors == 'strict'
                else stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through))
