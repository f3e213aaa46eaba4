"""Folders that belong to one process and end with it: secrets, data.

A folder of secrets lies beside the plan, where the agents of all nodes find
it. The conductor creates it, and owner and mode are checked before it is
written or read: a folder that another user prepared is refused.

A process that is killed with SIGKILL leaves its folder. So each folder has a
lock file that its owner keeps locked and touches regularly; the file says
where the owner runs. The next run removes a folder whose owner is certainly
dead:

- same kernel, and the lock is free;
- a job of the same Slurm, which is neither pending nor running;
- lock file not touched for STALE_AFTER, more than clocks of nodes differ by.

From another node the lock proves nothing: on some shared file systems locks
are local to each node.
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

#: Name of the lock file in such a folder.
LOCK = '.plumbline-owner'

#: Ending of the folder of secrets beside the plan.
SUFFIX = '.private'

#: File in the folder of secrets: where and how agents connect.
RENDEZVOUS = 'conductor'

#: How often an owner touches its lock file, and the age at which the owner
#: counts as dead on any node. Unit: seconds.
TOUCH_INTERVAL, STALE_AFTER = 60.0, 3600.0

#: For an answer of squeue or scontrol. Unit: seconds.
SLURM_TIMEOUT = 10.0


class NotPrivate(Exception):
    """A folder or file that another user made or can read; one line."""


def boot() -> str:
    """The kernel's id of this boot; empty: unknown."""
    try:
        return Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    except OSError:
        return ''


def _owner_note() -> str:
    return json.dumps({
        'host': socket.gethostname(), 'boot': boot(), 'pid': os.getpid(),
        'job': os.environ.get('SLURM_JOB_ID', ''),
        'cluster': os.environ.get('SLURM_CLUSTER_NAME', '')})


def check_parents(folder: Path) -> None:
    """Checks that no other user can replace a folder in this one.

    :raises NotPrivate: this folder or one above it is world-writable without
        a sticky bit. (Group-writable is accepted: members trust each other.)
    """
    for above in (folder, *folder.parents):
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise NotPrivate(f'{above} can be written by everybody (mode '
                             f'{stat.S_IMODE(mode):o}): secrets beneath it '
                             f'would not be safe; chmod o-w {above}')


def is_ours(folder: Path) -> None:
    """Checks that it is a real folder of this user with mode 700.

    :raises NotPrivate: it is not. :raises OSError: there is none.
    """
    status = folder.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        raise NotPrivate(f'{folder} is no folder: somebody else put it '
                         'there; remove it')
    if status.st_uid != os.geteuid() or mode & 0o077:
        raise NotPrivate(f'{folder} belongs to user {status.st_uid} with '
                         f'mode {mode:o}, wanted was user {os.geteuid()} with '
                         'mode 700: somebody else made it; remove it')


class OwnedFolder:
    """A folder of this process, locked and touched while it lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The kernel closes and unlocks it when this process ends.
        self._lock = os.open(folder / LOCK, os.O_CREAT | os.O_EXCL
                             | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._lock, _owner_note().encode())
        self._next = time.monotonic() + TOUCH_INTERVAL

    def touch(self) -> None:
        """Touches the lock file if that is due."""
        if time.monotonic() > self._next:
            self._next = time.monotonic() + TOUCH_INTERVAL
            now = time.time()
            with contextlib.suppress(OSError):
                os.utime(self._lock, (now, now))

    def remove(self) -> None:
        """Removes the folder with all its files."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Secrets(OwnedFolder):
    """A new folder of secrets; that of a dead run is removed first.

    :raises NotPrivate: the place is not safe, or a live run's folder exists.
    :raises OSError: the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        try:
            check_parents(folder.parent)
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                is_ours(folder)
                if not remove_dead(folder):
                    raise NotPrivate(
                        f'{folder} exists, and its run may be alive: two '
                        'runs in one stage directory? Wait for the other, or '
                        'remove it') from None
                os.mkdir(folder, 0o700)
            try:
                # Some file systems do not keep the mode asked for.
                is_ours(folder)
                super().__init__(folder)
            except (OSError, NotPrivate):
                shutil.rmtree(folder, ignore_errors=True)
                raise
        except OSError as err:
            if err.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise NotPrivate(f'{folder}: {err.strerror}: no folder for the '
                             'secrets of the run') from None

    def file(self, name: str, text: str) -> Path:
        """Writes a file with mode 600; readers see it whole or not at all.

        :raises OSError: it cannot be written.
        """
        path, draft = self.folder / name, self.folder / f'{name}.part'
        draft.unlink(missing_ok=True)
        with open(draft, 'x', opener=lambda file, flags: os.open(
                file, flags | os.O_NOFOLLOW, 0o600)) as stream:
            stream.write(text)
        draft.rename(path)
        return path


def read(folder: Path, name: str = RENDEZVOUS) -> str:
    """Reads a file of a folder of secrets.

    :raises NotPrivate: another user made it, or can write it.
    :raises OSError: there is none.
    """
    is_ours(folder)
    with open(folder / name, opener=lambda file, flags: os.open(
            file, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as stream:
        status = os.fstat(stream.fileno())
        if (not stat.S_ISREG(status.st_mode)
                or status.st_uid != os.geteuid() or status.st_mode & 0o077):
            raise NotPrivate(f'{folder / name} is not a file that only user '
                             f'{os.geteuid()} can read: somebody else made it')
        return stream.read()


def remove(folder: Path) -> None:
    """Removes a folder of secrets, if it is this user's."""
    with contextlib.suppress(NotPrivate, OSError):
        is_ours(folder)
        shutil.rmtree(folder, ignore_errors=True)


# Dead owners ---------------------------------------------------------------

def is_dead(folder: Path) -> bool:
    """Whether the owner of a folder is dead for certain."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW
                       | os.O_NONBLOCK)
    except FileNotFoundError:
        # Killed between mkdir and the creation of the lock file.
        return _age(folder) > STALE_AFTER
    except OSError:
        return False
    try:
        # Empty while the owner is about to write it.
        note = json.loads(os.read(lock, 4096) or b'{}')
        if not isinstance(note, dict):
            note = {}
        if note.get('boot') and note['boot'] == boot():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError as err:
                if err.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    return False
                # Another error: this file system has no locks.
        return slurm_job_ended(note) or _age(folder / LOCK) > STALE_AFTER
    except ValueError:
        return _age(folder / LOCK) > STALE_AFTER
    finally:
        os.close(lock)


def _age(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def slurm_job_ended(note: dict[str, str]) -> bool:
    """Whether Slurm says that the job of a note is over."""
    job, cluster = note.get('job', ''), note.get('cluster', '')
    if not job.isdigit() or not shutil.which('squeue'):
        return False
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if cluster != _cluster():
            return False
        done = subprocess.run(
            ['squeue', '--noheader', '--format=%T', f'--jobs={job}'],
            text=True, capture_output=True, timeout=SLURM_TIMEOUT,
            stdin=subprocess.DEVNULL)
        # Unknown to Slurm, or in a final state. Another error of squeue
        # tells nothing about the job.
        return ('Invalid job id' in done.stderr if done.returncode else
                set(done.stdout.split()) <= {
                    'BOOT_FAIL', 'CANCELLED', 'COMPLETED', 'DEADLINE',
                    'FAILED', 'NODE_FAIL', 'OUT_OF_MEMORY', 'PREEMPTED',
                    'TIMEOUT'})
    return False


def _cluster() -> str:
    """The name of this machine's Slurm cluster."""
    done = subprocess.run(['scontrol', 'show', 'config'], text=True,
                          capture_output=True, timeout=SLURM_TIMEOUT,
                          stdin=subprocess.DEVNULL)
    for line in done.stdout.splitlines():
        name, _, value = line.partition('=')
        if name.strip() == 'ClusterName':
            return value.strip()
    return '?'


def remove_dead(folder: Path) -> bool:
    """Removes a folder of this user whose owner is dead; whether it did."""
    try:
        is_ours(folder)
        if is_dead(folder):
            shutil.rmtree(folder)
            return True
    except (NotPrivate, OSError):
        pass
    return False


# Registry of stage directories -----------------------------------------------

def register_stage(registry: Path, stage: Path) -> None:
    """Registers a stage directory in which a run will keep secrets."""
    registry.mkdir(mode=0o700, parents=True, exist_ok=True)
    # One entry a stage directory, however often it is used.
    name = hashlib.sha256(os.fsencode(stage.absolute())).hexdigest()[:32]
    with contextlib.suppress(FileExistsError):
        (registry / name).symlink_to(stage.absolute())


def remove_dead_runs(registry: Path) -> list[Path]:
    """Removes secrets of dead runs from all registered stage directories."""
    removed = []
    for entry in _entries(registry):
        with contextlib.suppress(OSError):
            stage = Path(os.readlink(entry))
            if not stage.is_dir():
                entry.unlink()
                continue
            removed += [folder for folder in stage.glob(f'*{SUFFIX}')
                        if remove_dead(folder)]
    return removed


def _entries(registry: Path) -> Iterable[Path]:
    try:
        return sorted(registry.iterdir())
    except OSError:
        return []
