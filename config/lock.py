"""One measurement at a time on a machine.

A lock of the kernel (flock): it ends with its last holder, however that
ended. It is one a user and machine, not one a checkout, since two runs
disturb each other wherever they were started. `plumb run` takes it and
ReFrame inherits it, so that it is held as long as anything measures; plain
ReFrame takes it itself.
"""
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import shlex
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: Variable with the descriptor of the lock that a parent holds for us.
HELD = 'PLUMBLINE_LOCK_HELD'


class LockError(Exception):
    """The lock cannot be had; the message says why and what to do.

    `holder` is what its holder said of itself (pid, user, since, command and
    more, see `held`), {} before it did; None: no process holds it, the file
    is no lock.
    """

    def __init__(self, message: str,
                 holder: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.holder = holder


def place() -> Path:
    """The file of the lock: $PLUMBLINE_LOCK, or one in /tmp.

    Not $TMPDIR or $XDG_RUNTIME_DIR: these differ between a user's sessions.
    """
    return Path(os.environ.get('PLUMBLINE_LOCK')
                or f'/tmp/plumbline-{os.geteuid()}.lock')


@contextlib.contextmanager
def held(path: Path, wait: bool = True, program: str = 'plumb',
         **facts: Any) -> Iterator[int]:
    """Holds the lock; a descriptor to pass on, with its number in HELD.

    :param wait: False: refuse where another one holds it
    :param program: whose arguments this process has
    :param facts: more that others are to know of this holder
    :raises LockError: another one holds it, or the file cannot be trusted
    """
    handle = _open(path)
    try:
        if _is_inherited(handle):
            yield handle
            return
        _take(handle, path, wait)
        text = json.dumps({
            'pid': os.getpid(), 'user': _user(os.getuid()),
            'since': time.strftime('%Y-%m-%d %H:%M:%S'),
            'command': shlex.join([program, *sys.argv[1:]]), **facts}
            ).encode()
        # What is left of a longer name is behind the line's end, so that a
        # reader always finds one.
        os.pwrite(handle, text + b'\n', 0)
        os.ftruncate(handle, len(text) + 1)
        yield handle
    finally:
        os.close(handle)


def _is_inherited(handle: int) -> bool:
    """Whether a parent holds the lock: waiting for it would be a deadlock.
    """
    try:
        number = int(os.environ[HELD])
        if not os.path.sameopenfile(number, handle):
            return False
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except (KeyError, ValueError, OSError):
        return False


def _open(path: Path) -> int:
    """Opens the file; refuses another user's, or a link (/tmp is shared)."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                         | os.O_CLOEXEC, 0o600)
    except OSError as err:
        raise LockError(f'cannot lock {path}: {err.strerror}; remove what '
                         'is there, or set PLUMBLINE_LOCK to another file'
                         ) from None
    about = os.fstat(handle)
    if (not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid()
            or about.st_nlink != 1):
        os.close(handle)
        raise LockError(f'cannot lock {path}: it is not a plain file of '
                         f'{_user(os.geteuid())}; have it removed, or set '
                         'PLUMBLINE_LOCK to another file')
    return handle


def _take(handle: int, path: Path, wait: bool) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        told = said_by_holder(handle)
        other = holder(told)
    if not wait:
        raise LockError(f'this machine is measured by {other}; without '
                        '--no-wait this run would wait for it', told)
    _say(f'waiting for {other} ({path}; plumb run --no-wait does not)')
    start = time.monotonic()
    fcntl.flock(handle, fcntl.LOCK_EX)
    _say(f'waited {time.monotonic() - start:.0f} s')


def said_by_holder(handle: int) -> dict[str, Any]:
    """What the holder of the lock wrote of itself; empty: nothing yet."""
    try:
        told = json.loads(os.pread(handle, 4096, 0).partition(b'\n')[0])
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def holder(told: Mapping[str, Any]) -> str:
    """Who holds the lock, in words."""
    try:
        return (f'pid {told["pid"]} of {told["user"]} since '
                f'{told["since"]}: {told["command"]}')
    except KeyError:
        return 'another run'


def _say(text: str) -> None:
    print(f'plumb: {text}', file=sys.stderr, flush=True)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
