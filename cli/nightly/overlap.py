"""The lock of nightly sessions, and the end of what killed ones left.

The lock is a lock of the kernel, as the machine's (config/sessions/lock.py):
it ends with the process that holds it. The file names this process, its start
and its host. All processes of a nightly session have the lock's path in their
environment (MARK), and its jobs run in the stage folders of its sessions
(process.py). So processes and jobs of a killed session are found without
their parents.
"""
from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from checks.services import processes
from cli.session import process as session
from cli.setup.venv import WORK, SetupError
from config.sessions import lock, slurm_jobs

#: Variable of all processes of a nightly session: the path of its lock.
MARK = 'PLUMBLINE_NIGHTLY_SESSION'
#: Seconds that a nightly session has after SIGTERM: to cancel its jobs, to end
#: what they left, and to write its summary.
STOP_TIMEOUT = session.CANCEL_TIMEOUT + session.END_TIMEOUT + 55


def lock_path(site: str) -> Path:
    """The lock file of a site's nightly sessions."""
    return WORK / 'nightly' / f'{site}.lock'


@contextlib.contextmanager
def hold_nightly_lock(path: Path, hours: float, note: Callable[[str], None],
                      began: float) -> Iterator[None]:
    """Hold the lock of a site's nightly sessions.

    :param hours: age from which a session counts as hanging, and is ended
    :param note: is called with a line on a session that was ended
    :param began: start of this session; seconds since 1970
    :raises SetupError: another session runs, or the lock cannot be taken
    """
    with contextlib.ExitStack() as stack:
        # A process that was killed closes its files a little later.
        for limit in 0, session.END_TIMEOUT:
            try:
                stack.enter_context(lock.hold_file_lock(
                    path, limit=limit, busy='another nightly session runs:',
                    host=socket.gethostname(), began=began,
                    started=process_start_ticks(os.getpid())))
                break
            except lock.LockError as err:
                if limit or err.holder is None:
                    raise SetupError(str(err)) from None
                _end_hanging_session(path, err.holder, hours, note)
        yield


def process_start_ticks(pid: int) -> str:
    """Start of a process in ticks since boot, which with the pid identifies
    it for ever; '' if it does not exist."""
    return next(iter(processes.read_proc_stat(pid)[19:20]), '')


def _end_hanging_session(path: Path, holder: dict[str, Any], hours: float,
                         note: Callable[[str], None]) -> None:
    """End a nightly session that hangs.

    :raises SetupError: it does not hang, or cannot be ended from here
    """
    if not holder:
        raise SetupError(f'{path} is locked by an unknown process; '
                         f'`fuser {path}` prints its pid')
    age = time.time() - float(holder.get('began', time.time()))
    who = f'{lock.holder_text(holder)}, for {age / 3600:.1f} h'
    host, pid = holder.get('host', ''), int(holder.get('pid', 0))
    if age < 3600 * hours:
        raise SetupError(f'another nightly session of this site runs: {who}. '
                         f'It is ended when it is {hours:g} h old (--hours)')
    if host != socket.gethostname():
        raise SetupError(f'the previous nightly session hangs on {host}: '
                         f'{who}; end it there: kill -9 {pid}')
    if not pid or process_start_ticks(pid) != holder.get('started', '?'):
        # The process that wrote its name is dead, and a child inherited the lock; or
        # a session that has just begun has not written its name yet.
        raise SetupError(f'{path} is locked by another process than it names '
                         f'({who}); find it with `fuser {path}`, and end it')
    note(f'the previous nightly session hung and was ended: {who}')
    if end_processes([pid], [(signal.SIGTERM, STOP_TIMEOUT),
                             (signal.SIGKILL, session.END_TIMEOUT)]):
        raise SetupError('the previous nightly session does not end, even with '
                         f'kill -9: {who}; a file system may hang')


def end_processes(pids: Iterable[int], signals: Sequence[tuple[int, float]]
                  ) -> set[int]:
    """End these processes, and no later ones with their numbers; return those that
    still run."""
    starts = {pid: process_start_ticks(pid) for pid in pids}
    return session.end_processes(lambda: {
        pid for pid, start in starts.items() if start
        and process_start_ticks(pid) == start and processes.is_alive(pid)}, signals)


def pids_of_nightly_session(path: Path) -> set[int]:
    """Processes of this machine that a nightly session with this lock started.
    """
    mark = f'{MARK}={path}'.encode()
    pids = set()
    for about in Path('/proc').glob('[0-9]*/environ'):
        # Another user's cannot be read.
        with contextlib.suppress(OSError):
            if mark in about.read_bytes().split(b'\0'):
                pids.add(int(about.parent.name))
    return pids - {os.getpid()}


def end_leftover_processes(path: Path, note: Callable[[str], None]) -> None:
    """End the processes that killed nightly sessions left; needs the lock."""
    left = {pid for pid in pids_of_nightly_session(path) if processes.is_alive(pid)}
    if left:
        note(f'ended {len(left)} processes that a killed nightly session left')
        # ReFrame got a signal when its parent died, and cancels its jobs;
        # more signals would disturb it.
        stay = end_processes(left, [(0, session.CANCEL_TIMEOUT),
                                    (signal.SIGTERM, session.END_TIMEOUT),
                                    (signal.SIGKILL, session.END_TIMEOUT)])
        if stay:
            note(f'processes that do not end: pid {" ".join(map(str, stay))}')


def cancel_orphaned_jobs(site: str, note: Callable[[str], None]) -> None:
    """Cancel the Slurm jobs that killed nightly sessions of a site left."""
    slurm_jobs.cancel_jobs_in_folders(
        [one.stage for one in session.ended_sessions(session.nightly_kind(site))],
        'a killed nightly session', note)
