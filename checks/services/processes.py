"""Processes of this machine, read from /proc."""
from __future__ import annotations

import contextlib
import os
from pathlib import Path


def read_proc_stat(pid: int) -> list[str]:
    """State, parent and more of a process; empty: it does not exist."""
    try:
        # The name before the last ")" may contain anything.
        return Path('/proc', str(pid), 'stat').read_text().rpartition(
            ')')[2].split()
    except OSError:
        return []


def parent_pid(pid: int) -> int:
    """The parent of a process; 0: the process does not exist."""
    return int((read_proc_stat(pid) or '?0')[1])


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return read_proc_stat(pid)[:1] not in ([], ['Z'], ['X'])


def reap_and_list_descendants() -> set[int]:
    """All running descendants of this process; reaps its ended children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    children: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
        stat = read_proc_stat(pid)
        if stat and stat[0] != 'Z':
            children.setdefault(int(stat[1]), []).append(pid)
    result: set[int] = set()
    below = [os.getpid()]
    while below:
        more = children.get(below.pop(), [])
        result.update(more)
        below += more
    return result
