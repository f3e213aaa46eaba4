"""Folders that belong to one process and end with it: secrets, data.

The folder of secrets is beside the plan, where the agents of all nodes find
it. The conductor creates it. Its owner and mode are checked before it is
written or read: a folder that another user prepared is refused.

A process that is killed with SIGKILL leaves its folder. So each folder has a
lock file that its owner keeps locked and touches regularly; the file contains
the boot id of the owner's kernel. The next run removes a folder whose owner is
certainly dead:

- it is the same kernel, and the lock is free;
- the lock file was not touched for STALE_AFTER, which is more than the clocks
  of nodes differ by.

From another node the lock proves nothing: on some shared file systems locks
are local to each node.
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import time
from pathlib import Path

#: Name of the lock file in such a folder.
LOCK = '.plumbline-owner'

#: Ending of the folder of secrets beside the plan.
SUFFIX = '.private'

#: File in the folder of secrets that contains how agents connect.
RENDEZVOUS = 'conductor'

#: Interval at which an owner touches its lock file, and the age of the file
#: at which the owner counts as dead on any node. Unit: seconds.
TOUCH_INTERVAL, STALE_AFTER = 60.0, 3600.0


class NotPrivate(Exception):
    """A folder or file that another user made or can read; one line."""


def read_boot_id() -> str:
    """The kernel's id of this boot; empty: unknown."""
    try:
        return Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    except OSError:
        return ''


def check_parent_permissions(folder: Path) -> None:
    """Check that no other user can replace a folder in this one.

    :raises NotPrivate: this folder or one above it is world-writable without
        a sticky bit. (Group-writable is accepted: members trust each other.)
    """
    for above in (folder, *folder.parents):
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise NotPrivate(f'all users can write to {above} (mode '
                             f'{stat.S_IMODE(mode):o}), so secrets below it '
                             f'would not be safe: chmod o-w {above}')


def check_folder_is_private(folder: Path) -> None:
    """Check that it is a real folder of this user with mode 700.

    :raises NotPrivate: it is not.
    :raises OSError: it does not exist.
    """
    status = folder.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        raise NotPrivate(f'{folder} is not a folder: another user created '
                         'it; remove it')
    if status.st_uid != os.geteuid() or mode & 0o077:
        raise NotPrivate(f'{folder} belongs to user {status.st_uid} with '
                         f'mode {mode:o}, not to user {os.geteuid()} with '
                         'mode 700: another user created it; remove it')


class OwnedFolder:
    """A folder of this process, locked and touched while the process runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The kernel closes and unlocks it when this process ends.
        self._lock = os.open(folder / LOCK, os.O_CREAT | os.O_EXCL
                             | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._lock, read_boot_id().encode())
        self._next = time.monotonic() + TOUCH_INTERVAL

    def touch_lock_file(self) -> None:
        """Touch the lock file if that is due."""
        if time.monotonic() > self._next:
            self._next = time.monotonic() + TOUCH_INTERVAL
            now = time.time()
            with contextlib.suppress(OSError):
                os.utime(self._lock, (now, now))

    def remove(self) -> None:
        """Remove the folder with all its files."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Secrets(OwnedFolder):
    """A new folder of secrets; the folder of a dead run is removed first.

    :raises NotPrivate: the place is not safe, or the folder of another run
        exists.
    :raises OSError: the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        try:
            check_parent_permissions(folder.parent)
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                check_folder_is_private(folder)
                if not remove_if_owner_dead(folder):
                    raise NotPrivate(
                        f'{folder} exists, so another run may be active in '
                        'this stage directory: wait for its end, or remove '
                        'the folder') from None
                os.mkdir(folder, 0o700)
            try:
                # Some file systems do not keep the requested mode.
                check_folder_is_private(folder)
                super().__init__(folder)
            except (OSError, NotPrivate):
                shutil.rmtree(folder, ignore_errors=True)
                raise
        except OSError as err:
            if err.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise NotPrivate('cannot create the folder for the secrets of the '
                             f'run, {folder}: {err.strerror}') from None

    def write_file(self, name: str, text: str) -> Path:
        """Write a file with mode 600; readers see it whole or not at all.

        :raises OSError: it cannot be written.
        """
        path, draft = self.folder / name, self.folder / f'{name}.part'
        draft.unlink(missing_ok=True)
        with open(draft, 'x', opener=lambda file, flags: os.open(
                file, flags | os.O_NOFOLLOW, 0o600)) as stream:
            stream.write(text)
        draft.rename(path)
        return path


def read_secret_file(folder: Path, name: str = RENDEZVOUS) -> str:
    """Read a file of a folder of secrets.

    :raises NotPrivate: another user created it, or can write it.
    :raises OSError: it does not exist.
    """
    check_folder_is_private(folder)
    with open(folder / name, opener=lambda file, flags: os.open(
            file, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as stream:
        status = os.fstat(stream.fileno())
        if (not stat.S_ISREG(status.st_mode)
                or status.st_uid != os.geteuid() or status.st_mode & 0o077):
            raise NotPrivate(f'{folder / name} is not a file that only user '
                             f'{os.geteuid()} can read: another user created '
                             'it; remove it')
        return stream.read()


def remove_secret_folder(folder: Path) -> None:
    """Remove a folder of secrets, if it belongs to this user."""
    with contextlib.suppress(NotPrivate, OSError):
        check_folder_is_private(folder)
        shutil.rmtree(folder, ignore_errors=True)


# Dead owners ---------------------------------------------------------------

def is_owner_dead(folder: Path) -> bool:
    """Whether the owner of a folder is certainly dead."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW
                       | os.O_NONBLOCK)
    except FileNotFoundError:
        # Killed between mkdir and the creation of the lock file.
        return _file_age(folder) > STALE_AFTER
    except OSError:
        return False
    try:
        # Empty while the owner is about to write it.
        boot = os.read(lock, 4096).decode(errors='replace')
        if boot and boot == read_boot_id():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError as err:
                if err.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    return False
                # Another error: this file system has no locks.
        return _file_age(folder / LOCK) > STALE_AFTER
    finally:
        os.close(lock)


def _file_age(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def remove_if_owner_dead(folder: Path) -> bool:
    """Remove a folder of this user if its owner is dead.

    :returns: whether it was removed.
    """
    try:
        check_folder_is_private(folder)
        if is_owner_dead(folder):
            shutil.rmtree(folder)
            return True
    except (NotPrivate, OSError):
        pass
    return False
