"""Locks of the suite, and the one that a measurement holds on its machine.

A lock is one of the kernel (flock) on a file that only its user can open: who
can read the data beside it cannot hold it. It ends with its last holder,
however that ended. Its file names the holder, and each wait has a limit.

The machine's lock is one per user and machine, because two sessions disturb
each other wherever they were started. `plumb run` takes it and ReFrame
inherits it, so that it is held as long as anything measures; plain ReFrame
takes it itself.
"""
from __future__ import annotations

import contextlib
import fcntl
import functools
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

ROOT = Path(__file__).resolve().parents[2]

#: Variable with the descriptor of the lock that a parent holds for us.
HELD = 'PLUMBLINE_LOCK_HELD'

#: Longest wait for the machine's lock: sessions may queue for a night. Unit:
#: seconds.
LIMIT = 24 * 3600.0

#: First and longest pause between two attempts. Unit: seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0


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
    """The file of the machine's lock.

    $PLUMBLINE_LOCK, else one in the user's folder of this machine, else one
    with the machine's name in the work folder. Nobody else can put a file
    there, as in /tmp.
    """
    if given := os.environ.get('PLUMBLINE_LOCK'):
        return Path(given)
    for folder in (os.environ.get('XDG_RUNTIME_DIR'),
                   f'/run/user/{os.geteuid()}'):
        if folder and _is_private(Path(folder)):
            return Path(folder, 'plumbline.lock')
    work = os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline'
    return Path(work, 'locks', f'{os.uname().nodename}.lock').absolute()


def _is_private(folder: Path) -> bool:
    """Whether only this user can put files into a folder."""
    try:
        about = folder.stat()
    except OSError:
        return False
    return (stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
            and not about.st_mode & 0o022 and os.access(folder, os.W_OK))


@contextlib.contextmanager
def held(path: Path, limit: float = LIMIT, program: str = 'plumb',
         busy: str = 'this machine is measured by', shared: bool = False,
         **facts: Any) -> Iterator[int]:
    """Holds the lock; a descriptor to pass on, with its number in HELD.

    :param limit: longest wait for another holder; 0: refuse at once. Unit:
        seconds
    :param program: whose arguments this process has
    :param busy: what another holder does, in front of its name
    :param shared: other users hold it too, if their group may write to its
        folder
    :param facts: more that others are to know of this holder
    :raises LockError: another one holds it, or the file cannot be trusted
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise LockError(f'cannot lock {path}: {err.strerror}; make its '
                        'folder one that you can write to') from None
    handle = opened(path, shared)
    try:
        if _is_inherited(handle):
            yield handle
            return
        _take(handle, path, limit, busy)
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


def opened(path: Path, shared: bool = False) -> int:
    """Descriptor of a lock's file, which nobody else can open.

    :param shared: others can, if their group may write to its folder
    :raises LockError: it is a link, or another user's file
    """
    advice = 'remove what is there'
    try:
        # Who may write to the folder may replace the file in any case.
        group = 0o060 if shared and path.parent.stat().st_mode & 0o020 else 0
        # Not blocking: else the open waits where a FIFO is.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                         | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as err:
        raise LockError(f'cannot lock {path}: {err.strerror}; {advice}'
                        ) from None
    about = os.fstat(handle)
    own = about.st_uid == os.geteuid()
    if (not stat.S_ISREG(about.st_mode) or about.st_nlink != 1
            or not (own or group)):
        os.close(handle)
        raise LockError(f'cannot lock {path}: it is not a plain file of '
                        f'{_user(os.geteuid())}; {advice}')
    if own and stat.S_IMODE(about.st_mode) != 0o600 | group:
        with contextlib.suppress(OSError):
            os.fchmod(handle, 0o600 | group)
    return handle


def _take(handle: int, path: Path, limit: float, busy: str) -> None:
    """Waits for the lock, at most `limit` seconds.

    :raises LockError: another one holds it, or the file system has no locks
    """
    start, pause, waits = time.monotonic(), _FIRST_PAUSE, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            content = read_holder(handle)
            other = holder(content)
        except OSError as err:
            raise LockError(f'cannot lock {path}: {err.strerror}; its file '
                            'system needs locks (flock)') from None
        if not limit:
            raise LockError(f'{busy} {other}; without --no-wait this run '
                            'would wait for it', content)
        if time.monotonic() - start > limit:
            raise LockError(f'{busy} {other}; waited {limit:g} s for {path}; '
                            'wait until it ends, or end it', content)
        # A short wait is not worth a line.
        if not waits and pause >= _LONGEST_PAUSE:
            waits = True
            _say(f'waiting for {other} ({path}), at most {limit:g} s')
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    if waits:
        _say(f'waited {time.monotonic() - start:.0f} s')


def read_holder(handle: int) -> dict[str, Any]:
    """What the holder of the lock wrote of itself; empty: nothing yet."""
    try:
        content = json.loads(os.pread(handle, 1 << 16, 0).partition(b'\n')[0])
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def holder(content: Mapping[str, Any]) -> str:
    """Who holds the lock, in words."""
    try:
        return (f'pid {content["pid"]} of {content["user"]} since '
                f'{content["since"]}: {content["command"]}')
    except KeyError:
        return 'another run'


def _say(text: str) -> None:
    print(f'plumb: {text}', file=sys.stderr, flush=True)


@functools.cache
def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
