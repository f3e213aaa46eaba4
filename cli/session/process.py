"""A session of ReFrame: places of its own, and an end that leaves nothing.

Two sessions share no stage folder and no report. A session's folder is
$PLUMBLINE_WORK/sessions/SESSION, with the identifier that its records have; its
stage and output are folders of the same name where the site keeps them.

A file in the folder names the other folders, and the kind of the session. Of each
kind only the newest sessions are kept.
"""
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from checks.machine import processes
from cli.setup.venv import WORK, print_progress
from config import console
from config.sessions import session_id, slurm_jobs
from config.sessions.progress import Progress

#: Sessions of each kind (those that measure, and others) that are kept;
#: older ones are removed when one begins.
KEPT = 5
#: Seconds that ReFrame has to cancel its jobs after a signal, and that what
#: is left of them has to end.
CANCEL_TIMEOUT, END_TIMEOUT = 30.0, 5.0
#: Signals within so many seconds are one: `timeout`, sudo and the first process
#: of a container forward a signal that the process group got, too.
SAME_SIGNAL_SECONDS = 2.0
#: File in the folder of a session: its kind, its first session and other folders.
ABOUT = 'session.json'
#: Kinds of sessions: those that measure, and dry runs and listings.
RUN, IDLE = 'run', 'idle'
#: Seconds between two lines of progress that are not on a terminal.
REPORT_SECONDS = 60.0
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class NightlySession(NamedTuple):
    """What sessions of one night have in common."""
    #: Name of the site's folder.
    site: str
    #: Identifier of its first session.
    first: str


def nightly_kind(site: str) -> str:
    """The kind of the sessions of a site's nightly sessions."""
    return f'nightly {site}'


class Session(NamedTuple):
    """Where a session keeps what is its own."""
    folder: Path
    stage: Path
    output: Path
    #: The first session of its nightly session, or itself.
    first: str
    #: File descriptor that is held as long as the session lives; -1: it has ended.
    lock: int = -1

    @property
    def output_path(self) -> Path:
        """File with all that ReFrame printed."""
        return self.folder / 'reframe.out'

    @property
    def reframe_variables(self) -> dict[str, str]:
        """Variables that ReFrame needs for the session."""
        return {'RFM_STAGE_DIR': str(self.stage),
                'RFM_OUTPUT_DIR': str(self.output),
                session_id.VARIABLE: self.folder.name}


@contextlib.contextmanager
def create_session_folders(
    system: Mapping[str, Any], nightly_session: NightlySession | None = None,
    runs_jobs: bool = True
) -> Iterator[Session]:
    """A session's folders; those of old ones are removed, but `plumb nightly` removes
    its own (`remove_old_sessions`).

    :param system: of the site's configuration: stagedir and outputdir
    :param nightly_session: that it belongs to; None: it stands alone
    :param runs_jobs: whether jobs run; False: a dry run or a listing
    """
    if nightly_session:
        kind, first = nightly_kind(nightly_session.site), nightly_session.first
    else:
        kind, first = RUN if runs_jobs else IDLE, session_id.new_session_id()
        remove_old_sessions(kind, KEPT - 1)
    name = first if not (WORK / 'sessions' / first).exists() else \
        session_id.new_session_id(first)
    folder = WORK / 'sessions' / name
    stage, output = (
        Path(os.environ.get(variable) or system.get(key) or WORK / default, name)
        for variable, key, default in (('RFM_STAGE_DIR', 'stagedir', 'stage'),
                                       ('RFM_OUTPUT_DIR', 'outputdir', 'output')))
    folder.mkdir(parents=True)
    # Before anything can be in the folders that it names.
    (folder / ABOUT).write_text(json.dumps({
        'kind': kind, 'first': first, 'stage': str(stage.absolute()),
        'output': str(output.absolute())}))
    last = folder.parent / f'last.{os.getpid()}'
    last.symlink_to(name)
    last.replace(folder.parent / 'last')
    # No other user can open it, who could hold it after the session's end.
    lock = os.open(folder / 'lock', os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(lock, 'w'):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Session(folder, stage, output, first, lock)


def ended_sessions(kind: str) -> Iterator[Session]:
    """The sessions of a kind of which nothing runs any more, the oldest first."""
    for about in sorted((WORK / 'sessions').glob(f'[0-9]*/{ABOUT}')):
        # What is cut off was written before anything ran.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(about.read_text())
            if content['kind'] == kind and not _is_session_running(
                    about.parent / 'lock'):
                yield Session(about.parent, Path(content['stage']),
                              Path(content['output']), str(content['first']))


def _is_session_running(path: Path) -> bool:
    """Whether somebody holds a session's lock."""
    try:
        with open(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def remove_old_sessions(kind: str, keep: int) -> None:
    """Remove the folders of all but the newest sessions of a kind that have ended.

    Only those that the file ABOUT names, and that are called as the session is:
    nothing that somebody else has put beside them.

    :param keep: number of sessions, or of nightly sessions, that are left
    """
    ended = [*ended_sessions(kind)]
    old = sorted({one.first for one in ended})[:-keep or None]
    for one in ended:
        if one.first in old:
            # Its own folder last: while it exists, the session is found again.
            for path in (one.stage, one.output, one.folder):
                if path.name == one.folder.name:
                    shutil.rmtree(path, ignore_errors=True)


class SessionProgress:
    """The progress of a session, from the file with ReFrame's output: one line on a
    terminal; else a line every REPORT_SECONDS, if something has changed, and one when
    a retry begins."""

    def __init__(self, output: Path, echo: bool) -> None:
        """:param echo: print ReFrame's output instead of the progress"""
        self.output, self.echo = open(output, errors='replace'), echo
        self.progress = Progress()
        self.line = console.StatusLine()
        self.begin = self.last_report = time.monotonic()
        #: Test cases and builds that had ended, and retry, when last printed.
        self.last_printed = 0, 0
        #: Beginning of a line of which ReFrame has not yet printed the end.
        self.unfinished = ''

    def __enter__(self) -> SessionProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.read_output()
        self.line.close()
        self.output.close()

    def read_output(self) -> None:
        """Read what ReFrame has printed since the last call."""
        text = self.output.read()
        if self.echo:
            print(text, end='', flush=True)
        *lines, self.unfinished = (self.unfinished + text).split('\n')
        for line in lines:
            self.progress.read_line(line)

    def report_if_due(self) -> None:
        """Show the progress."""
        self.read_output()
        if self.echo:
            return
        now = time.monotonic()
        text = self.progress.text(now - self.begin)
        state = self.progress.ended, self.progress.retry
        if self.line.is_live:
            self.line.update(text)
        elif self.progress.retry > self.last_printed[1] or (
                now - self.last_report >= REPORT_SECONDS
                and state != self.last_printed):
            print_progress(text)
            self.last_report, self.last_printed = now, state


class Ended(NamedTuple):
    """A session of ReFrame that is over."""
    #: Its identifier.
    session: str
    #: Exit code of ReFrame; negative: the signal that killed it.
    code: int
    #: Name of the signal that asked the session to end, or ''.
    ended_by: str
    #: Whether a test case or build began.
    has_begun: bool
    #: File with what ReFrame printed.
    output: Path


class ReceivedSignals:
    """The signals that ask a session to end, from the first one on."""

    def __init__(self) -> None:
        self.name = ''
        self._times: list[float] = []

    def record_signal(self, number: int, frame: object) -> None:
        """Handle a signal."""
        self.name = self.name or signal.Signals(number).name
        self._times.append(time.monotonic())

    def are_urgent(self) -> bool:
        """Whether one came that is no repetition of the first."""
        return bool(self._times) and (
            self._times[-1] - self._times[0] >= SAME_SIGNAL_SECONDS)

    def wait_for_repetitions(self) -> None:
        """Wait until no signal can be a repetition of the last one."""
        while self._times and (left := self._times[-1] + SAME_SIGNAL_SECONDS
                               - time.monotonic()) > 0:
            time.sleep(left)


def run_reframe(session: Session, command: Sequence[str], variables: Mapping[str, str],
                locks: Sequence[int] = (), *, measures: bool = True, echo: bool = False,
                has_slurm_jobs: bool = False) -> Ended:
    """Run ReFrame to its end, also if a signal asks for it.

    ReFrame cancels its jobs at the first signal; what is left of it and its
    jobs on this machine is ended, at once after a second one.

    :param measures: write its output to a file, and print the progress; False: it
        prints a listing or a dry run
    :param echo: print the output instead of the progress
    :param has_slurm_jobs: cancel them if ReFrame was killed or ended by a signal
    """
    # What loses its parent becomes a child of this process and is found.
    processes.adopt_orphans()

    def start_own_process_group() -> None:
        # Else ^C would reach it twice; and nobody else can end it when this
        # process is killed.
        os.setpgid(0, 0)
        processes.set_parent_death_signal(signal.SIGTERM)

    received = ReceivedSignals()
    before = {number: signal.signal(number, received.record_signal)
              for number in _SIGNALS}
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(
                open(session.output_path, 'wb')) if measures else None
            process = subprocess.Popen(
                command, env={**os.environ, **variables, **session.reframe_variables},
                pass_fds=[*locks, session.lock], stdout=file, stderr=file,
                preexec_fn=start_own_process_group)
            shown = stack.enter_context(SessionProgress(
                session.output_path, echo)) if measures else None
            code = _wait_for_process(process, received, shown)
        if received.name or code < 0:
            # Also an sbatch that ReFrame no longer waits for.
            if left := _end_descendants(received):
                print_progress(f'still running: pid {", ".join(map(str, left))}')
            if has_slurm_jobs:
                slurm_jobs.cancel_jobs_in_folders(
                    [session.stage], 'ReFrame', print_progress)
        received.wait_for_repetitions()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Ended(session.folder.name, code, received.name,
                 shown is not None and shown.progress.has_begun, session.output_path)


def _wait_for_process(process: subprocess.Popen[bytes], received: ReceivedSignals,
                      shown: SessionProgress | None) -> int:
    """Wait until a process ends, and end it if signals ask for it.

    :param shown: reports the progress
    """
    deadline = 0.0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(0.2)
        if not received.name:
            if shown:
                shown.report_if_due()
        elif not deadline:
            deadline = time.monotonic() + CANCEL_TIMEOUT
            print_progress(f'{received.name}: cancelling the jobs; a second signal '
                           'kills them at once')
            # ReFrame cancels its jobs at each of these signals; at SIGTERM
            # it does so without a traceback.
            process.terminate()
        elif received.are_urgent() or time.monotonic() > deadline:
            print_progress('ReFrame is killed; it may not have cancelled all jobs')
            process.kill()
            return process.wait()


def _end_descendants(received: ReceivedSignals) -> set[int]:
    """End the processes below this one with SIGTERM, then SIGKILL; return those that
    still run."""
    left: set[int] = set()
    for number in signal.SIGTERM, signal.SIGKILL:
        deadline = time.monotonic() + END_TIMEOUT
        signalled: set[int] = set()
        while left := processes.reap_and_list_descendants():
            for pid in left - signalled:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            signalled |= left
            if time.monotonic() > deadline or (
                    number == signal.SIGTERM and received.are_urgent()):
                break
            time.sleep(0.05)
    return left
