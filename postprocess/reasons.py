"""Why cases failed, in one line each: beside the plans of sessions.

`<system>/sessions/<run>.reasons` has a line of JSON for each case that failed
(config/session.py writes it): {partition, environ, case, guard, reason}, the
line that the table of `plumb run` shows. Perflogs have no free text, so it
stands beside them; where it is missing, a guard's name says what is known.
"""
from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import Any

from config import regular

from . import clock, plans

SUFFIX = '.reasons'
#: What a guard without words of its own means.
MEANS = {
    plans.MISSING: 'planned, and the session ended before it had a record',
    clock.GUARD: 'the clock was wrong in its session',
    'cancelled': 'cancelled: the session ended before it did',
    'build': 'not run: what it needs could not be built',
    'dependency': 'not run: what it depends on failed',
    'reference': 'no reference, and the site asks for one of every case',
}


def of(row: Any) -> str:
    """Why the case of a record failed in that run; '': nobody says.

    :param row: a row of the table of perflogs (itertuples)
    """
    if row.guard == clock.GUARD:        # whatever its session said
        return MEANS[clock.GUARD]
    told = _told(str(row.file), str(row.run)).get(
        (str(row.partition), str(row.environ), str(row.case)))
    return told or MEANS.get(str(row.guard), '')


@functools.lru_cache(maxsize=4096)
def _told(file: str, run: str) -> dict[tuple[str, str, str], str]:
    """Reasons of a run, found from one of its records' files."""
    found: dict[tuple[str, str, str], str] = {}
    for folder in list(Path(file).parents)[:3]:
        path = folder.joinpath(plans.FOLDER, run + SUFFIX)
        with contextlib.suppress(OSError, UnicodeDecodeError):
            for line in regular.text(path).splitlines():
                # A session that was killed leaves half a line.
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    one = json.loads(line)
                    found[one['partition'], one['environ'], one['case']] = \
                        str(one['reason'])
            break
    return found
