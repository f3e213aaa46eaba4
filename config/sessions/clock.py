"""Checks of the clock of this machine, and of the times of sessions.

The newest session of a test case decides its result, so a wrong clock could
hide a failure. No session begins while the clock is behind the existing
records (`behind`). Records of a session with a wrong clock are refused when
they are read (postprocess/perflogs/clock.py).
"""
from __future__ import annotations

import datetime
from pathlib import Path

#: Allowed difference between the clocks of a cluster and its file servers.
TOLERANCE = datetime.timedelta(minutes=5)


def now() -> datetime.datetime:
    """The time of this machine, UTC."""
    return datetime.datetime.now(datetime.timezone.utc)


def written(path: Path) -> datetime.datetime:
    """The modification time of a file, UTC.

    :raises OSError: the file does not exist
    """
    return datetime.datetime.fromtimestamp(path.stat().st_mtime,
                                           datetime.timezone.utc)


def latest(path: Path) -> datetime.datetime:
    """The latest time that records of a file can have."""
    return min(now(), written(path)) if path.exists() else now()


def began(run: str) -> datetime.datetime | None:
    """The start of a session from its identifier; None: it has no time."""
    try:
        return datetime.datetime.strptime(
            run[:16], '%Y%m%dT%H%M%SZ').replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        return None


def shown(time: datetime.datetime) -> str:
    """A time as text."""
    return f'{time:%Y-%m-%d %H:%M} UTC'


def behind(folder: Path) -> str:
    """Why no session can begin: the clock is behind the perflogs of a system.

    :param folder: perflogs of one system
    :returns: a message with the file that is later than now; '': no such file
    """
    sessions = folder / 'sessions'
    begun = [(time, plan) for plan in sessions.glob('*.json')
             if (time := began(plan.name))]
    # The folder of plans was modified when the newest one was written.
    modified = [(written(path), path) for path in (
        sessions, *folder.glob('*/*.csv')) if path.exists()]
    for what, times in ('began', begun), ('modified', modified):
        time, path = max(times, default=(now(), folder))
        if time > now() + TOLERANCE:
            return (f'{path}: {what} at {shown(time)}, but the clock of this '
                    f'machine shows {shown(now())}. Set the clock; if it is '
                    'right, remove the session (perflogs/README.md, "Remove '
                    'a session")')
    return ''
