"""The Slurm jobs of a session, found by their working directory.

ReFrame does not know a job if a signal interrupts `sbatch`, and cancels none if
it is killed. Each job runs in a stage folder of its session, so
squeue finds it without ReFrame. Only these jobs are cancelled.
"""
from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

#: Schedulers of ReFrame whose jobs squeue lists.
SLURM = ('slurm', 'squeue')
#: Schedulers of ReFrame with PBS' commands.
PBS = ('pbs', 'pbspro')
#: Seconds until the first report of jobs that wait. Each report doubles it, up
#: to the maximum.
FIRST_REPORT, MAX_REPORT_INTERVAL = 60.0, 3600.0
#: Seconds for Slurm to answer, and for cancelled jobs to be gone.
ANSWER_TIMEOUT, GONE_TIMEOUT = 60, 120
#: Job, state, reason why it does not run, and working directory: the last,
#: because it may have any letter in it.
SQUEUE = ['squeue', '--noheader', '--format=%A|%T|%r|%Z']


class Job(NamedTuple):
    """A job that waits or runs."""
    number: str
    #: As PENDING, RUNNING or COMPLETING.
    state: str
    #: Why it waits, as Slurm gives it.
    reason: str


def can_list_jobs(system: Mapping[str, Any]) -> bool:
    """Whether jobs of a system are found by squeue on this machine.

    :param system: of the site's configuration
    """
    return (any(part['scheduler'] in SLURM for part in system['partitions'])
            and shutil.which('squeue') is not None)


def jobs_in_folders(text: str, folders: Iterable[Path]) -> list[Job]:
    """Jobs that run in one of some folders, or below it.

    :param text: output of SQUEUE
    """
    real = [os.path.realpath(folder) for folder in folders]
    jobs = {}
    for line in text.splitlines():
        number, state, reason, folder = (line.strip().split('|', 3) + [''] * 3)[:4]
        where = os.path.realpath(folder) if folder else ''
        if any(where == one or where.startswith(f'{one}/') for one in real):
            jobs[number] = Job(number, state, reason)
    return list(jobs.values())


def query_jobs_in_folders(folders: Iterable[Path]) -> list[Job]:
    """The jobs of this user in some folders, now.

    :raises OSError: there is no squeue
    :raises subprocess.SubprocessError: it fails, or does not answer
    """
    return jobs_in_folders(
        _slurm_output([*SQUEUE, f'--user={os.geteuid()}']), folders)


def cancel_jobs_in_folders(folders: Iterable[Path], who: str,
                           note: Callable[[str], None]) -> None:
    """Cancel the jobs in some folders, and wait until they are gone.

    :param who: what left them, for the notes
    :param note: is called with a line on what was cancelled, or why not
    """
    folders = list(folders)
    deadline = time.monotonic() + GONE_TIMEOUT
    cancelled: set[str] = set()
    try:
        while left := [job.number for job in query_jobs_in_folders(folders)]:
            if more := [number for number in left if number not in cancelled]:
                note(f'cancelled Slurm jobs that {who} left: {" ".join(more)}')
                _slurm_output(['scancel', *more])
                cancelled.update(more)
            elif time.monotonic() > deadline:
                note(f'jobs that do not end: {" ".join(left)}; see squeue')
                return
            time.sleep(0.5)
    except (OSError, subprocess.SubprocessError) as err:
        reason = getattr(err, 'stderr', '') or str(err)
        note(f'cannot list or cancel the Slurm jobs that {who} left: '
             f'{" ".join(reason.split())}; find them with squeue --me, and end them '
             'with scancel')


class PendingReports:
    """Reports of the jobs in a folder that wait: in a minute, then less and less
    often."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self.folder, self.note = folder, note
        self.began = time.monotonic()
        self.interval = FIRST_REPORT
        self.due = self.began + self.interval

    def report_if_due(self) -> None:
        """Report the jobs that wait, if the time has come."""
        now = time.monotonic()
        if now < self.due:
            return
        # Slurm that does not answer is not reported: jobs go on without it.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            text = pending_jobs_text(query_jobs_in_folders([self.folder]))
            if text:
                self.note(f'{round((now - self.began) / 60)} min: {text}')
        self.interval = min(2 * self.interval, MAX_REPORT_INTERVAL)
        self.due = now + self.interval


def pending_jobs_text(jobs: Iterable[Job]) -> str:
    """How many jobs wait, by Slurm's reasons; '' if none waits.

    >>> pending_jobs_text([Job('1', 'PENDING', 'Resources'),
    ...                    Job('2', 'RUNNING', 'None')])
    '1 job waits (Resources)'
    """
    reasons = Counter(job.reason for job in jobs if job.state == 'PENDING')
    number = reasons.total()
    if not number:
        return ''
    if len(reasons) > 1:
        why = ', '.join(f'{count}: {reason}' for reason, count
                        in reasons.most_common())
    else:
        why = next(iter(reasons))
    return f'{number} job{"s wait" if number > 1 else " waits"} ({why})'


def _slurm_output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True,
                          stdin=subprocess.DEVNULL, timeout=ANSWER_TIMEOUT).stdout
