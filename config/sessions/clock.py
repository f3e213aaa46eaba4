"""Whether a clock can be right: the one of this machine, those of sessions.

The newest session of a test case decides how it stands, so a clock that leaps
could hide a failure. No session begins while the clock is behind what was
written before (`behind`). The records of a session whose clock was wrong are
refused when they are read (postprocess/perflogs/clock.py).
"""
from __future__ import annotations

import datetime
from pathlib import Path

#: What the clocks of a cluster and of its file servers may differ by.
TOLERANCE = datetime.timedelta(minutes=5)


def now() -> datetime.datetime:
    """The time of this machine, UTC."""
    return datetime.datetime.now(datetime.timezone.utc)


def written(path: Path) -> datetime.datetime:
    """The modification time of a file, UTC.

    :raises OSError: the file is not there
    """
    return datetime.datetime.fromtimestamp(path.stat().st_mtime,
                                           datetime.timezone.utc)


def latest(path: Path) -> datetime.datetime:
    """The latest time that records of a file can have."""
    return min(now(), written(path)) if path.exists() else now()


def began(run: str) -> datetime.datetime | None:
    """When a session began, by its identifier; None: it does not say."""
    try:
        return datetime.datetime.strptime(
            run[:16], '%Y%m%dT%H%M%SZ').replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        return None


def shown(time: datetime.datetime) -> str:
    """A time, for people."""
    return f'{time:%Y-%m-%d %H:%M} UTC'


def behind(folder: Path) -> str:
    """Why no session can begin: the clock is behind the perflogs of a system.

    :param folder: perflogs of one system
    :returns: a line that says what is later than now; '': nothing is
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
            return (f'{path}: {what} at {shown(time)}, and it is '
                    f'{shown(now())} now. Set the clock; if it is right, '
                    'remove the session (perflogs/README.md, "Remove a '
                    'session")')
    return ''
