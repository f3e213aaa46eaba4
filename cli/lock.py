"""One measurement at a time on a machine.

A lock of the kernel (flock): it ends with its last holder, however that
ended. It is one a user and machine, not one a checkout, since two runs
disturb each other wherever they were started. ReFrame inherits it, so that
it is held as long as anything measures.
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
from collections.abc import Iterator
from pathlib import Path

from cli.setup import SetupError, say


def place() -> Path:
    """The file of the lock: $PLUMBLINE_LOCK, or one in /tmp.

    Not $TMPDIR or $XDG_RUNTIME_DIR: these differ between a user's sessions.
    """
    return Path(os.environ.get('PLUMBLINE_LOCK')
                or f'/tmp/plumbline-{os.geteuid()}.lock')


@contextlib.contextmanager
def held(path: Path, wait: bool = True) -> Iterator[int]:
    """Holds the lock; a descriptor to pass on.

    :param wait: False: refuse where another one holds it
    :raises SetupError: another one holds it, or the file cannot be trusted
    """
    handle = _open(path)
    try:
        _take(handle, path, wait)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({
            'pid': os.getpid(), 'user': _user(os.getuid()),
            'since': time.strftime('%Y-%m-%d %H:%M:%S'),
            'command': shlex.join(['plumb', *sys.argv[1:]])}).encode(), 0)
        yield handle
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    """The file, if it is a plain one and ours: /tmp is everybody's."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                         | os.O_CLOEXEC, 0o600)
    except OSError as err:
        raise SetupError(f'cannot lock {path}: {err.strerror}; remove what '
                         'is there, or set PLUMBLINE_LOCK to another file'
                         ) from None
    about = os.fstat(handle)
    if (not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid()
            or about.st_nlink != 1):
        os.close(handle)
        raise SetupError(f'cannot lock {path}: it is not a plain file of '
                         f'{_user(os.geteuid())}; have it removed, or set '
                         'PLUMBLINE_LOCK to another file')
    return handle


def _take(handle: int, path: Path, wait: bool) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        other = holder(handle)
    if not wait:
        raise SetupError(f'this machine is measured by {other}; without '
                         '--no-wait this run would wait for it')
    say(f'waiting for {other} ({path}; --no-wait: do not)')
    start = time.monotonic()
    fcntl.flock(handle, fcntl.LOCK_EX)
    say(f'waited {time.monotonic() - start:.0f} s')


def holder(handle: int) -> str:
    """Who holds the lock, in words."""
    try:
        told = json.loads(os.pread(handle, 4096, 0))
        return (f'pid {told["pid"]} of {told["user"]} since '
                f'{told["since"]}: {told["command"]}')
    except (ValueError, KeyError, TypeError):
        return 'another run'


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
