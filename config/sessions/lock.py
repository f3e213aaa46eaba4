"""Locks of the suite, among them the lock of a machine that is measured.

A lock is a kernel lock (flock) on a file that only its user can open, so that
other users, who can read the data beside it, cannot hold it. The kernel
releases it when the last process that holds it ends in any way. The file names
the holder, and each wait has a limit.

A machine has one lock per user, because two sessions on it disturb each other.
`plumb run` takes it and ReFrame inherits it, so that it is held as long as
either runs. Plain ReFrame takes it itself.
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

from config.commandline import SetupError

ROOT = Path(__file__).resolve().parents[2]

#: Variable with the file descriptor of a lock that a parent process holds.
HELD = 'PLUMBLINE_LOCK_HELD'

#: Longest wait for the machine's lock: several sessions may queue. Unit:
#: seconds.
LIMIT = 24 * 3600.0

#: The lock that `hold_machine_lock_until_exit` took; never left.
_until_exit = contextlib.ExitStack()

#: First and longest pause between two attempts. Unit: seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0


class LockError(SetupError):
    """The lock cannot be taken; the message says why and what to do."""


def machine_lock_path() -> Path:
    """The file of the machine's lock.

    $PLUMBLINE_LOCK, else a file in the user's runtime folder, else a file with
    the machine's name in the work folder. Unlike in /tmp, other users cannot
    create files there.
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


@functools.cache
def hold_machine_lock_until_exit() -> None:
    """Hold the machine's lock as long as this process, which is ReFrame, runs.

    :raises SystemExit: another session holds it for longer than the limit
    """
    try:
        _until_exit.enter_context(
            hold_file_lock(machine_lock_path(), program='reframe'))
    except LockError as err:
        raise SystemExit(f'plumb: {err}') from None


@contextlib.contextmanager
def hold_file_lock(path: Path, limit: float = LIMIT, program: str = 'plumb',
                   busy: str = 'this machine is measured by',
                   advice: str = 'without --no-wait this run would wait for it',
                   shared: bool = False, **facts: Any) -> Iterator[int]:
    """Hold a lock; yields its file descriptor, for child processes and HELD.

    :param limit: longest wait for another holder; 0: refuse at once. Unit:
        seconds
    :param program: name of this program, for the command in the lock's file
    :param busy: beginning of the message; the name of the holder follows
    :param advice: what to do if another process holds it and `limit` is 0
    :param shared: other users may hold it, too, if their group may write to
        its folder
    :param facts: further facts about this holder for the lock's file
    :raises LockError: another process holds it, or the file is not safe to use
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise LockError(f'cannot lock {path}: {err.strerror}; give yourself '
                        'write permission for its folder') from None
    handle = open_lock_file(path, shared)
    try:
        if _is_held_by_parent(handle):
            yield handle
            return
        _wait_for_lock(handle, path, limit, busy, advice)
        text = json.dumps({
            'pid': os.getpid(), 'user': _user_name(os.getuid()),
            'since': time.strftime('%Y-%m-%d %H:%M:%S'),
            'command': shlex.join([program, *sys.argv[1:]]), **facts}
            ).encode()
        # First the new line, then the cut: a reader always finds a complete
        # line, whatever a longer line before has left behind it.
        os.pwrite(handle, text + b'\n', 0)
        os.ftruncate(handle, len(text) + 1)
        yield handle
    finally:
        os.close(handle)


def _is_held_by_parent(handle: int) -> bool:
    """Whether a parent process holds the lock: to wait would be a deadlock."""
    try:
        number = int(os.environ[HELD])
        if not os.path.sameopenfile(number, handle):
            return False
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except (KeyError, ValueError, OSError):
        return False


def open_lock_file(path: Path, shared: bool = False) -> int:
    """Open the file of a lock, so that no other user can open it.

    :param shared: others can, if their group may write to its folder
    :returns: a file descriptor
    :raises LockError: it is a link, or another user's file
    """
    advice = 'remove this file'
    try:
        # A user who may write to the folder could replace the file anyway.
        group = 0o060 if shared and path.parent.stat().st_mode & 0o020 else 0
        # Not blocking: the open of a FIFO would wait.
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
                        f'{_user_name(os.geteuid())}; {advice}')
    if own and stat.S_IMODE(about.st_mode) != 0o600 | group:
        with contextlib.suppress(OSError):
            os.fchmod(handle, 0o600 | group)
    return handle


def _wait_for_lock(handle: int, path: Path, limit: float, busy: str, advice: str
                   ) -> None:
    """Wait for the lock, at most `limit` seconds.

    :raises LockError: another process holds it, or the file system does not
        support locks
    """
    start, pause, waits = time.monotonic(), _FIRST_PAUSE, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            other = holder_text(read_holder(handle))
        except OSError as err:
            raise LockError(f'cannot lock {path}: {err.strerror}; use a file '
                            'system that supports locks (flock)') from None
        if not limit:
            raise LockError(f'{busy} {other}; {advice}')
        if time.monotonic() - start > limit:
            raise LockError(f'{busy} {other}; waited {limit:g} s for {path}; '
                            'wait until it ends, or end it')
        # A short wait is not worth a line.
        if not waits and pause >= _LONGEST_PAUSE:
            waits = True
            _print_progress(f'waiting for {other} ({path}), at most {limit:g} s')
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    if waits:
        _print_progress(f'waited {time.monotonic() - start:.0f} s')


def read_holder(handle: int) -> dict[str, Any]:
    """The facts that the holder of the lock wrote; empty: none yet."""
    try:
        content = json.loads(os.pread(handle, 1 << 16, 0).partition(b'\n')[0])
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def holder_text(content: Mapping[str, Any]) -> str:
    """The holder of the lock, as text."""
    try:
        return (f'pid {content["pid"]} of {content["user"]} since '
                f'{content["since"]}: {content["command"]}')
    except KeyError:
        return 'another run'


def _print_progress(text: str) -> None:
    print(f'plumb: {text}', file=sys.stderr, flush=True)


@functools.cache
def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
