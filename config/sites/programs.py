"""Output of programs, such as their versions."""
from __future__ import annotations

import subprocess


def command_output(*command: str, timeout_seconds: int = 60) -> str:
    """The output of a command; empty if it does not start, or does not end.

    :param timeout_seconds: seconds
    """
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, errors='replace',
                              stderr=subprocess.STDOUT, timeout=timeout_seconds)
    except (OSError, subprocess.TimeoutExpired):
        return ''
    return done.stdout
