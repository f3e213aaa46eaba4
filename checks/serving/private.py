"""Folders that belong to one process and end with it: secrets, data.

A folder of secrets lies beside the plan, where the agents of all nodes find
it. It is made by us alone, and who reads it looks whose it is first: what
somebody else prepared is neither filled nor believed.

Whoever is killed at once leaves its folder. So each has a file that its owner
keeps locked, with a note of where that is, and touches while it lives. The
next run removes a folder of which it is certain that nobody lives in it:

- the same kernel, and the lock can be had;
- a job of the same Slurm, and Slurm does not know it as pending or running;
- not touched for an hour (STALE): more than clocks of nodes differ by.

Elsewhere a lock tells nothing: on some shared file systems each node has
locks of its own.
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

#: The file that the owner of a folder keeps locked.
LOCK = '.plumbline-owner'

#: Files and folders of ours are called so beside the plan.
SUFFIX = '.private'

#: What the conductor tells its agents, in a folder of secrets.
TOLD = 'conductor'

#: How often an owner touches its lock, and after how long without that it is
#: dead, wherever it was. Unit: seconds.
TOUCH, STALE = 60.0, 3600.0

#: How long Slurm may take to say what became of a job. Unit: seconds.
ASK = 10.0


class NotPrivate(Exception):
    """A folder or file that others have made or can read; one line."""


def boot() -> str:
    """Which boot of which kernel this is; empty: it does not say."""
    try:
        return Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    except OSError:
        return ''


def _note() -> str:
    return json.dumps({
        'host': socket.gethostname(), 'boot': boot(), 'pid': os.getpid(),
        'job': os.environ.get('SLURM_JOB_ID', ''),
        'cluster': os.environ.get('SLURM_CLUSTER_NAME', '')})


def safe_parents(folder: Path) -> None:
    """No stranger can put another folder into the place of one in here.

    :raises NotPrivate: one above it is for all to write, without a sticky
        bit. (Groups may write: whom a site puts into one trust each other.)
    """
    for above in (folder, *folder.parents):
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise NotPrivate(f'{above} can be written by everybody (mode '
                             f'{stat.S_IMODE(mode):o}): secrets beneath it '
                             f'would not be safe; chmod o-w {above}')


def is_ours(folder: Path) -> None:
    """A real folder of ours that nobody else can enter.

    :raises NotPrivate: it is another. :raises OSError: there is none.
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


class Owned:
    """A folder of ours, locked and touched as long as we live."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Closed, and with that unlocked, when this process ends.
        self._lock = os.open(folder / LOCK, os.O_CREAT | os.O_EXCL
                             | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._lock, _note().encode())
        self._next = time.monotonic() + TOUCH

    def touch(self) -> None:
        """Says that we live, when it is time to."""
        if time.monotonic() > self._next:
            self._next = time.monotonic() + TOUCH
            now = time.time()
            with contextlib.suppress(OSError):
                os.utime(self._lock, (now, now))

    def remove(self) -> None:
        """The folder, and what is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Secrets(Owned):
    """A new folder of secrets; that of a dead run makes way.

    :raises NotPrivate: the place is not safe, or somebody is there.
    :raises OSError: the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        try:
            safe_parents(folder.parent)
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
                # A file system may have ideas of its own.
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
        """A file that nobody else can read, whole or not at all.

        :raises OSError: it cannot be written.
        """
        path, draft = self.folder / name, self.folder / f'{name}.part'
        draft.unlink(missing_ok=True)
        with open(draft, 'x', opener=lambda file, flags: os.open(
                file, flags | os.O_NOFOLLOW, 0o600)) as stream:
            stream.write(text)
        draft.rename(path)
        return path


def read(folder: Path, name: str = TOLD) -> str:
    """A file of a folder of secrets.

    :raises NotPrivate: others made it, or could. :raises OSError: none.
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
    """A folder of secrets, where it is ours."""
    with contextlib.suppress(NotPrivate, OSError):
        is_ours(folder)
        shutil.rmtree(folder, ignore_errors=True)


# Who is dead ---------------------------------------------------------------

def is_dead(folder: Path) -> bool:
    """Whether nobody lives in a folder of ours, for certain."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW
                       | os.O_NONBLOCK)
    except FileNotFoundError:
        # Killed in the moment between the folder and its lock.
        return _age(folder) > STALE
    except OSError:
        return False
    try:
        # Written by the owner, or in this moment.
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
                # This file system has no locks.
        return slurm_ended(note) or _age(folder / LOCK) > STALE
    except ValueError:
        return _age(folder / LOCK) > STALE
    finally:
        os.close(lock)


def _age(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def slurm_ended(note: dict[str, str]) -> bool:
    """Whether Slurm says that the job of a note is over."""
    job, cluster = note.get('job', ''), note.get('cluster', '')
    if not job.isdigit() or not shutil.which('squeue'):
        return False
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if cluster != _cluster():
            return False
        done = subprocess.run(
            ['squeue', '--noheader', '--format=%T', f'--jobs={job}'],
            text=True, capture_output=True, timeout=ASK,
            stdin=subprocess.DEVNULL)
        # Forgotten, or remembered as over. That Slurm does not answer says
        # nothing of the job.
        return ('Invalid job id' in done.stderr if done.returncode else
                set(done.stdout.split()) <= {
                    'BOOT_FAIL', 'CANCELLED', 'COMPLETED', 'DEADLINE',
                    'FAILED', 'NODE_FAIL', 'OUT_OF_MEMORY', 'PREEMPTED',
                    'TIMEOUT'})
    return False


def _cluster() -> str:
    """The name of the Slurm that squeue asks here."""
    done = subprocess.run(['scontrol', 'show', 'config'], text=True,
                          capture_output=True, timeout=ASK,
                          stdin=subprocess.DEVNULL)
    for line in done.stdout.splitlines():
        name, _, value = line.partition('=')
        if name.strip() == 'ClusterName':
            return value.strip()
    return '?'


def remove_dead(folder: Path) -> bool:
    """Removes a folder of ours in which nobody lives; whether it did."""
    try:
        is_ours(folder)
        if is_dead(folder):
            shutil.rmtree(folder)
            return True
    except (NotPrivate, OSError):
        pass
    return False


# Where dead runs may have left their secrets ---------------------------------

def remember(registry: Path, stage: Path) -> None:
    """Notes that a run will keep secrets in this stage directory."""
    registry.mkdir(mode=0o700, parents=True, exist_ok=True)
    # One entry a stage directory, however often it is used.
    name = hashlib.sha256(os.fsencode(stage.absolute())).hexdigest()[:32]
    with contextlib.suppress(FileExistsError):
        (registry / name).symlink_to(stage.absolute())


def sweep(registry: Path) -> list[Path]:
    """Removes the secrets of dead runs in all noted stage directories."""
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
