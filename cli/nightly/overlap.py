"""One night at a time: who holds its lock, and what dead nightly sessions have
left.

The lock is one of the kernel, as the machine's (config/sessions/lock.py): it
ends with the process that holds it. Beside it stands who that is, since when,
and on which host. Everything that a night starts has the lock's path in its
environment (MARK), and its jobs run in the stage folders that its sessions
name (process.py): so what a night that was killed has left is found by what it
is, whatever became of its parents.
"""
from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from checks.services import processes
from cli.session import process as session
from cli.setup.venv import WORK, SetupError
from config.sessions import lock

#: Variable of all processes of a night: the path of its lock.
MARK = 'PLUMBLINE_NIGHTLY_SESSION'
#: Seconds that a night has after SIGTERM: to cancel its jobs, to end what
#: they left, and to write what it knows.
STOP_TIMEOUT = session.CANCEL_TIMEOUT + session.END_TIMEOUT + 55
#: Seconds for Slurm to answer, and for cancelled jobs to be gone.
ANSWER_TIMEOUT, GONE_TIMEOUT = 60, 120


def place(site: str) -> Path:
    """The file of the lock of a site's nights."""
    return WORK / 'nightly' / f'{site}.lock'


@contextlib.contextmanager
def hold_lock(path: Path, hours: float, note: Callable[[str], None],
          began: float) -> Iterator[None]:
    """Holds the lock of a site's nightly sessions, for this one.

    :param hours: a night that is older than that hangs, and is ended
    :param note: is told what was done about an older night
    :param began: when this night began; seconds since 1970
    :raises SetupError: another night runs, or the lock cannot be had
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock.held(
                    path, limit=0, host=socket.gethostname(), began=began,
                    started=started(os.getpid())))
                break
            except lock.LockError as err:
                if err.holder is None:
                    raise SetupError(str(err)) from None
                _end_hanging_session(path, err.holder, hours, note)
        yield


def started(pid: int) -> str:
    """When a process started, in ticks since the machine's start: with its
    pid it is one process for ever. '' where it is gone."""
    return next(iter(processes.stat_of(pid)[19:20]), '')


def _end_hanging_session(path: Path, holder: dict[str, Any], hours: float,
              note: Callable[[str], None]) -> None:
    """Ends a night that hangs.

    :raises SetupError: it does not, or cannot be ended from here
    """
    if not holder:
        if _changes(path, holder):
            return
        raise SetupError(f'{path} is held, and its holder does not say who '
                         f'it is; see `fuser {path}`')
    age = time.time() - float(holder.get('began', time.time()))
    who = f'{lock.holder(holder)}, for {age / 3600:.1f} h'
    host = holder.get('host', '')
    if age < 3600 * hours:
        raise SetupError(f'another night of this site runs: {who}. It is '
                         f'left alone until it is {hours:g} h old (--hours)')
    if host != socket.gethostname():
        raise SetupError(f"last night's still runs on {host}, and can be "
                         f'ended there alone: {who}; kill -9 '
                         f'{holder.get("pid")} on {host}')
    pid = int(holder.get('pid', 0))
    if pid and started(pid) == holder.get('started', '?'):
        note(f"last night's hung, and was ended: {who}")
        if end([pid], [(signal.SIGTERM, STOP_TIMEOUT),
                       (signal.SIGKILL, session.END_TIMEOUT)]):
            raise SetupError(f"last night's cannot be ended, not even with "
                             f'kill -9: {who}; a file system may hang')
    elif not _changes(path, holder):
        # Held, but not by who wrote that: by what has inherited it.
        raise SetupError(f'{path} is held by a process that is not the one '
                         f'it names ({who}); see `fuser {path}`, and end it')


def _changes(path: Path, holder: dict[str, Any]) -> bool:
    """Whether another holder's name appears: it takes the lock first, and
    writes its name then."""
    for _ in range(20):
        time.sleep(0.1)
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if lock.read_holder(handle) != holder:
                return True
        finally:
            os.close(handle)
    return False


def end(pids: Iterable[int], asks: Sequence[tuple[int, float]]
        ) -> list[int]:
    """Ends processes, ever more firmly.

    :param asks: (signal, seconds that they have then); 0: none, wait only
    :returns: those that still run
    """
    left = {pid: started(pid) for pid in pids}
    for number, seconds in asks:
        deadline = time.monotonic() + seconds
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        while left := {pid: when for pid, when in left.items()
                       if when and started(pid) == when
                       and processes.is_alive(pid)}:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
    return sorted(left)


def marked_pids(path: Path) -> set[int]:
    """Processes of this machine that a night with this lock has started."""
    mark = f'{MARK}={path}'.encode()
    pids = set()
    for about in Path('/proc').glob('[0-9]*/environ'):
        # Another user's cannot be read.
        with contextlib.suppress(OSError):
            if mark in about.read_bytes().split(b'\0'):
                pids.add(int(about.parent.name))
    return pids - {os.getpid()}


def end_leftovers(path: Path, note: Callable[[str], None]) -> None:
    """Ends the processes that dead nightly sessions have left; the lock is
    held."""
    left = {pid for pid in marked_pids(path) if processes.is_alive(pid)}
    if left:
        note('a night that was killed had left processes, ended now: '
             f'{len(left)}')
        # ReFrame was told when its parent died, and cancels its jobs; more
        # signals would disturb it there.
        stay = end(left, [(0, session.CANCEL_TIMEOUT),
                          (signal.SIGTERM, session.END_TIMEOUT),
                          (signal.SIGKILL, session.END_TIMEOUT)])
        if stay:
            note(f'still running: pid {" ".join(map(str, stay))}')


def jobs_of(text: str, stages: Iterable[Path]) -> list[str]:
    """Jobs that run in one of some folders.

    :param text: of `squeue --format=%A|%Z`: job and its working directory
    """
    folders = [os.path.realpath(stage) for stage in stages]
    jobs = []
    for line in text.splitlines():
        job, _, folder = line.strip().partition('|')
        where = os.path.realpath(folder) if folder else ''
        if any(where == one or where.startswith(f'{one}/')
               for one in folders):
            jobs.append(job)
    return list(dict.fromkeys(jobs))


def cancel_orphans(site: str, note: Callable[[str], None]) -> None:
    """Cancels the Slurm jobs that dead nightly sessions of a site have
    left."""
    stages = [one.stage for one in session.ended_nightly_sessions(site)]
    try:
        left = _jobs(stages)
        if not left:
            return
        note('a night that was killed had left jobs of Slurm, cancelled '
             f'now: {" ".join(left)}')
        _slurm_output(['scancel', *left])
        deadline = time.monotonic() + GONE_TIMEOUT
        while left := _jobs(stages):
            if time.monotonic() > deadline:
                note(f'jobs that do not end: {" ".join(left)}; see squeue')
                return
            time.sleep(0.5)
    except (OSError, subprocess.SubprocessError) as err:
        reason = getattr(err, 'stderr', '') or str(err)
        note('whether killed sessions have left jobs could not be asked: '
             f'{" ".join(reason.split())}')


def _jobs(stages: list[Path]) -> list[str]:
    return jobs_of(_slurm_output(['squeue', '--noheader', '--format=%A|%Z',
                           f'--user={os.geteuid()}']), stages)


def _slurm_output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True,
                          check=True, timeout=ANSWER_TIMEOUT).stdout
