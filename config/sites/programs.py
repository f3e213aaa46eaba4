"""What a program says of itself."""
from __future__ import annotations

import subprocess


def said_by(*command: str, limit: int = 60) -> str:
    """All that a command prints; nothing where it does not start or end.

    :param limit: seconds
    """
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, errors='replace',
                              stderr=subprocess.STDOUT, timeout=limit)
    except (OSError, subprocess.TimeoutExpired):
        return ''
    return done.stdout
