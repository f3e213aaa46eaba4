"""Why test cases failed or are inconclusive, in one line each.

`<system>/sessions/<run>.reasons` has a line of JSON for each of them
(config/sessions/runner.py writes it):
{partition, environ, test case, guard, reason}.
Perflogs have no free text, so the file stands beside the plan of the session.
If a line is missing, only the name of the guard is known.
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
#: Guards of a test case that was not started or did not end -> why; '':
#: ReFrame gives the reason.
NOT_RUN = {
    plans.MISSING: 'planned, but the session ended before it ran',
    'cancelled': 'cancelled: the session ended while it ran',
    'build': 'not run: a build that it needs failed',
    'dependency': 'not run: a test case that it depends on failed',
    'skipped': '',
}
#: Further guards of a test case whose job did not begin.
NOT_BEGUN = ('setup', 'submit', 'pending')
#: Guards of a test case that did not run because another one failed, whose cause
#: is its reason.
OF_ANOTHER = ('build', 'dependency')
#: Guards of a test case whose session ended before it did.
CUT_SHORT = (plans.MISSING, 'cancelled')
CLOCK = 'the clock was wrong in the session'
NO_REFERENCE = 'no reference, and the site requires one for every test case'


def reason_of_result(row: Any) -> str:
    """Why a test case failed, or is inconclusive, in a session; '': unknown.

    :param row: a row of the table of perflogs (itertuples)
    """
    text = _read_reasons_of_session(str(row.file), str(row.run)).get(
        (str(row.partition), str(row.environ), str(row.case)), '')
    return failure_reason_text(str(row.guard), text)


def is_cut_short(result: str, guard: str) -> bool:
    """Whether a test case did not run because its session ended before it did."""
    return result == 'not_run' and guard in CUT_SHORT


def failure_reason_text(guard: str, text: str) -> str:
    """Why a test case failed: what the guard means, or ReFrame's text."""
    if guard == clock.GUARD:            # whatever its session said
        return CLOCK
    if guard in OF_ANOTHER and text:
        return f'{NOT_RUN[guard]}: {text}'
    return (NOT_RUN.get(guard) or text
            or (NO_REFERENCE if guard == 'reference' else ''))


@functools.lru_cache(maxsize=4096)
def _read_reasons_of_session(
    file: str, run: str
) -> dict[tuple[str, str, str], str]:
    """Reasons of a run, found from one of its records' files."""
    reasons: dict[tuple[str, str, str], str] = {}
    for folder in list(Path(file).parents)[:3]:
        path = folder.joinpath(plans.FOLDER, run + SUFFIX)
        with contextlib.suppress(OSError, UnicodeDecodeError):
            for line in regular.read_regular_file(path).splitlines():
                # A session that was killed leaves half a line.
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    entry = json.loads(line)
                    reasons[
                        entry['partition'], entry['environ'], entry['case']
                    ] = str(entry['reason'])
            break
    return reasons
