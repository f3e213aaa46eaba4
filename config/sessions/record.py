"""The record of a session that ReFrame writes: where it is, and who may begin one.

    perflogs/sessions/<session>.json   report of ReFrame, when the session has ended
    perflogs/sessions/<session>.log    log of ReFrame, as the session goes on

Only a session that runs test cases has a record.
"""
from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from reframe.core.logging import getlogger

from config import places

from . import clock, session_id

#: The option -r of ReFrame, also behind other options without a value.
_RUN = re.compile(r'--run|-[vqR]*r.*')
#: File descriptor of the locked log of this process.
_locked_logs: list[int] = []


class RecordError(Exception):
    """No session can begin; the message says why and what to do."""


def remove_first_log_file() -> None:
    """Remove the file in which ReFrame logs until it knows its configuration,
    and which it leaves in the folder of temporary files at each start."""
    logger: Any = getlogger().logger
    # None: something else than ReFrame's command line reads the configuration.
    for handler in list(logger.handlers) if logger else ():
        if isinstance(handler, logging.FileHandler) and re.fullmatch(
                r'rfm-.+\.log', Path(handler.baseFilename).name):
            logger.removeHandler(handler)
            handler.close()
            Path(handler.baseFilename).unlink(missing_ok=True)


def runs_test_cases() -> bool:
    """Whether this process is ReFrame's command line with the option --run."""
    return ('reframe.frontend.cli' in sys.modules
            and any(map(_RUN.fullmatch, sys.argv[1:])))


def session_file(suffix: str) -> Path:
    """A file of the record of this session: the report, .json, or the log, .log."""
    return (places.perflog_folder() / 'sessions'
            / f'{session_id.current_session_id()}{suffix}')


def begin_record() -> None:
    """Make the log of this session, and lock it until the process ends.

    A log without a lock and without a report is that of a session cut short.

    :raises RecordError: it cannot be written, or the clock is behind older records
    """
    log = session_file('.log')
    if why := clock.reason_clock_is_behind(places.perflog_folder()):
        raise RecordError(f'plumb: {why}')
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(log, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError as err:
        raise RecordError(
            f'plumb: cannot write to {log.parent} ({err.strerror}), so nothing was '
            'run; free space on the disk, or set PLUMBLINE_PERFLOGS to another folder'
        ) from None
    # A child process does not inherit this kind of lock. On a file system without
    # locks the session looks cut short until it ends.
    with contextlib.suppress(OSError):
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _locked_logs.append(handle)
