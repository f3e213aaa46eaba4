"""The Slurm jobs of a session, found by their working directory.

ReFrame does not know a job if a signal interrupts `sbatch`, and cancels none if
it is killed. Each job runs in a stage folder of its session, so
squeue finds it without ReFrame. Only these jobs are cancelled.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

#: Schedulers of ReFrame whose jobs squeue lists.
SLURM = ('slurm', 'squeue')
#: Schedulers of ReFrame with PBS' commands.
PBS = ('pbs', 'pbspro')
#: Seconds for Slurm to answer, and for cancelled jobs to be gone.
ANSWER_TIMEOUT, GONE_TIMEOUT = 60, 120
#: Job and working directory: the last, because it may have any letter in it.
SQUEUE = ['squeue', '--noheader', '--format=%A|%Z']


def can_list_jobs(system: Mapping[str, Any]) -> bool:
    """Whether jobs of a system are found by squeue on this machine.

    :param system: of the site's configuration
    """
    return (any(part['scheduler'] in SLURM for part in system['partitions'])
            and shutil.which('squeue') is not None)


def jobs_in_folders(text: str, folders: Iterable[Path]) -> list[str]:
    """Numbers of the jobs that run in one of some folders, or below it.

    :param text: output of SQUEUE
    """
    real = [os.path.realpath(folder) for folder in folders]
    jobs = []
    for line in text.splitlines():
        number, _, folder = line.strip().partition('|')
        where = os.path.realpath(folder) if folder else ''
        if any(where == one or where.startswith(f'{one}/') for one in real):
            jobs.append(number)
    return list(dict.fromkeys(jobs))


def query_jobs_in_folders(folders: Iterable[Path]) -> list[str]:
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
        while left := query_jobs_in_folders(folders):
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


def _slurm_output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True,
                          stdin=subprocess.DEVNULL, timeout=ANSWER_TIMEOUT).stdout
