"""Events that a process waits for, and processes of this machine (/proc)."""
from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
from pathlib import Path

#: Signals on which a process stops what it started and exits.
TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

#: Loaded here, because a child cannot load it safely between fork and exec.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def set_parent_death_signal(number: int) -> None:
    """Let the kernel send this process a signal when its parent dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of orphans among the descendants, instead of init."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def note_launcher(pid: int) -> None:
    """Note the pid of a launcher for remove_session_folders.sh."""
    path = os.environ.get('PLUMBLINE_LAUNCHERS')
    if path:
        # On a full disk only the folder of a killed launcher is left.
        with contextlib.suppress(OSError), open(path, 'a') as file:
            file.write(f'{pid}\n')


class Events:
    """A selector that signals wake, too."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        #: The last termination signal; 0: none came.
        self.signal = 0
        self._wakeup, self._written_by_signals = os.pipe()
        for end in (self._wakeup, self._written_by_signals):
            os.set_blocking(end, False)
        self.selector.register(self._wakeup, selectors.EVENT_READ)

    def watch_signals(self) -> None:
        """Let signals end a wait, and record termination signals."""
        signal.set_wakeup_fd(self._written_by_signals)

        def record_signal(number: int, frame: object) -> None:
            self.signal = number

        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in TERMINATION_SIGNALS:
            signal.signal(number, record_signal)

    def wait(self, seconds: float) -> None:
        """Wait for an event, at most so many seconds."""
        self.selector.select(seconds)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wakeup, 512):
                pass


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
