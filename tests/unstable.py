"""Tests that failed beside the others are run again, alone.

A test of thousands that fails now and then, because the machine was busy,
would block everybody. It is told by name, so that somebody fixes it.
"""
from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: More failures than these are not for want of luck.
MAXIMUM = 3
#: Signals that end the tests.
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
#: `si_code` of a signal that the terminal sent (asm-generic/siginfo.h).
SI_KERNEL = 0x80


def run(together: Sequence[str], alone: Sequence[str],
        outcomes: Path | None = None, **more: Any) -> int:
    """Runs the tests, and what failed of them again; 0: good, else 1.

    :param together: pytest's command line for all tests
    :param alone: the one for a few, by their ids, one after the other
    :param outcomes: file for how each test ended at last; None: none
    :param more: for subprocess.Popen: cwd, env
    """
    with tempfile.TemporaryDirectory(prefix='plumbline-tests') as folder:
        path = Path(folder, 'outcomes.json')
        option = f'--outcomes={path}'
        code = call([*together, option], **more)
        first = _outcomes(path)
        if outcomes:
            outcomes.write_text(json.dumps(first))
        failed = {name: how for name, how in first.items()
                  if how in ('failed', 'crashed')}
        # 1: all have run; a worker that died took others along.
        if (code != 1 or not failed or len(failed) > MAXIMUM
                or 'crashed' in failed.values()):
            return 1 if code else 0
        print(f'\n{len(failed)} failed: again, alone, one after the other',
              flush=True)
        path.unlink()
        code = call([*alone, option, *failed], **more)
        if code or _outcomes(path) != dict.fromkeys(failed, 'passed'):
            return 1
    if outcomes:
        outcomes.write_text(json.dumps(first | dict.fromkeys(failed, 'passed')))
    print(''.join(f'\nunstable: failed beside the others, passed alone: {one}'
                  for one in failed), flush=True)
    return 0


def call(command: Sequence[str], **more: Any) -> int:
    """Runs pytest to its end, also where a signal asks for it.

    pytest takes SIGINT for the end and stops what its tests have started. A
    signal that was sent to this process alone is passed on; ^C reaches both
    from the terminal, and a second one would disturb pytest while it stops.

    :param more: for subprocess.Popen: cwd, env
    :returns: its exit code
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK,
                                    {*ENDING, signal.SIGCHLD})
    try:
        with subprocess.Popen(command, preexec_fn=_accept, **more) as process:
            while process.poll() is None:
                # Another thread may take the signal that pytest has ended.
                came = signal.sigtimedwait({*ENDING, signal.SIGCHLD}, 0.5)
                if came and came.si_signo in ENDING and not (
                        came.si_signo == signal.SIGINT
                        and came.si_code == SI_KERNEL):
                    process.send_signal(signal.SIGINT)
            return process.returncode
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _accept() -> None:
    """Has a new process end by a signal: what a shell started in the
    background ignores SIGINT, and with it all that it starts."""
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*ENDING, signal.SIGCHLD})


def _outcomes(path: Path) -> dict[str, str]:
    """Id of a test -> how it ended; empty where pytest did not get so far."""
    try:
        result: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return result
