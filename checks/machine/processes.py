"""Processes of this machine (/proc)."""
from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

#: Loaded here, because a child cannot load it safely between fork and exec.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def set_parent_death_signal(number: int) -> None:
    """Let the kernel send this process a signal when its parent dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Let this process become the parent of descendants whose parent has ended."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def read_proc_stat(pid: int) -> list[str]:
    """State, parent and more of a process; empty: it does not exist."""
    try:
        # The name before the last ")" may contain anything.
        return Path('/proc', str(pid), 'stat').read_text().rpartition(
            ')')[2].split()
    except OSError:
        return []


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
