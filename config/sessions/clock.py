"""Checks of the clock of this machine, and of the times of sessions.

The newest session of a test case decides its result, so a wrong clock could
hide a failure. No session begins while the clock is behind the existing
records (`reason_clock_is_behind`). Values of a session with a wrong clock are
refused when they are read (postprocess/records/sessions.py).
"""
from __future__ import annotations

import datetime
from pathlib import Path

#: Allowed difference between the clocks of a cluster and its file servers.
TOLERANCE = datetime.timedelta(minutes=5)


def current_utc_time() -> datetime.datetime:
    """The time of this machine, UTC."""
    return datetime.datetime.now(datetime.timezone.utc)


def modification_time(path: Path) -> datetime.datetime:
    """The modification time of a file, UTC.

    :raises OSError: the file does not exist
    """
    return datetime.datetime.fromtimestamp(path.stat().st_mtime,
                                           datetime.timezone.utc)


def max_possible_record_time(path: Path) -> datetime.datetime:
    """The latest time that records of a file can have."""
    return (
        min(current_utc_time(), modification_time(path))
        if path.exists()
        else current_utc_time()
    )


def session_start_time(run: str) -> datetime.datetime | None:
    """The start of a session from its identifier; None: it has no time."""
    try:
        return datetime.datetime.strptime(
            run[:16], '%Y%m%dT%H%M%SZ').replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        return None


def readable_time(time: datetime.datetime) -> str:
    """A time as text."""
    return f'{time:%Y-%m-%d %H:%M} UTC'


def reason_clock_is_behind(folder: Path) -> str:
    """Why no session can begin: the clock is behind the perflogs.

    :param folder: perflogs
    :returns: a message with the file that is later than now; '': no such file
    """
    sessions = folder / 'sessions'
    begun = [(time, log) for log in sessions.glob('*.log')
             if (time := session_start_time(log.name))]
    # The folder was modified when the newest report was written.
    modified = [(modification_time(path), path) for path in (
        sessions, *folder.glob('*/*/*.log*')) if path.exists()]
    for what, times in ('began', begun), ('modified', modified):
        time, path = max(times, default=(current_utc_time(), folder))
        if time > current_utc_time() + TOLERANCE:
            return (
                f'{path}: {what} at {readable_time(time)}, but the clock of this '
                f'machine shows {readable_time(current_utc_time())}. '
                'Set the clock; if it is right, remove the session '
                '(docs/reference/perflogs.md, "Remove sessions")'
            )
    return ''
