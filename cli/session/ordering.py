"""What the perflogs know of the test cases, for their order and the budgets.

`config/sessions/ordering.py` has the rules. `hold_ordering_data_file`
writes a file with what a session of ReFrame needs of the perflogs. The session's
plan lists the test cases that it leaves to other sessions, and
`describe_postponed_test_cases` prints them.
"""
from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from config.console import count_with_noun
from config.places import site_option
from config.sessions.ordering import KNOWN, Key, Known

if TYPE_CHECKING:
    import pandas as pd

    from postprocess.perflogs.plans import Left, Plan

#: The mode for which the budgets of a site hold.
NIGHTLY = 'nightly'

#: Columns of `Key`.
KEY = ['partition', 'environ', 'case']

#: Guards of cases that a session meant to run and never came to.
NEVER_BEGUN = ('cancelled', 'missing')

#: Lines on what is left, at the most.
MAXIMUM = 5


def read_records(perflogs: Path, system: str) -> pd.DataFrame | None:
    """The records of a system; None: there are none.

    All perflogs are read, as the page does, and not the system's folder: a
    folder that is read has a cache (cache.py), and one is enough.
    """
    from postprocess.perflogs import read
    if not (perflogs / system).is_dir():
        return None
    # A broken line is describe_left by the page; here it is only one time
    # less.
    frame, _ = read(perflogs, on_error='collect')
    return frame[frame['system'] == system].reset_index(drop=True)


def wall_time_by_test_case(frame: pd.DataFrame, aggregate: str = 'median'
                           ) -> dict[Key, float]:
    """Case -> the median wall time of one run of its program, or another aggregate
    (of pandas) of the times of all runs. Unit: s."""
    times: dict[Key, float] = frame[frame['metric'] == 'wall_time'].groupby(
        KEY, observed=True)['value'].agg(aggregate).to_dict()
    return times


def read_wall_times(perflogs: Path, system: str) -> dict[Key, float]:
    """The same, of all records of a system, without reading all else."""
    from postprocess.perflogs import cache
    if not (perflogs / system).is_dir():
        return {}
    with cache.open_records_database([perflogs], lambda *_: None,
                                     include_missing_records=False) as con:
        return {tuple(key): value for *key, value in con.execute(
            'SELECT partition, environ, "case", median(value) FROM records '
            "WHERE metric = 'wall_time' AND system = ? GROUP BY ALL",
            [system]).fetchall()}


def last_session_by_test_case(frame: pd.DataFrame) -> dict[Key, str]:
    """Case -> the newest session that ran it; one that failed has run.

    :param frame: as perflogs.read gives it, sorted by time
    """
    ran = frame[~frame['guard'].isin(NEVER_BEGUN)].drop_duplicates(KEY, keep='last')
    sessions: dict[Key, str] = ran.set_index(KEY)['run'].astype(str).to_dict()
    return sessions


def ordering_data_from_records(frame: pd.DataFrame | None, mode: str) -> Known:
    """What the records of a system tell a session; in mode nightly it keeps
    the site's budgets."""
    return (
        Known(budgets=mode == NIGHTLY)
        if frame is None
        else Known(
            wall_time_by_test_case(frame),
            last_session_by_test_case(frame),
            mode == NIGHTLY,
        )
    )


@contextlib.contextmanager
def hold_ordering_data_file(known: Known) -> Iterator[dict[str, str]]:
    """Variables of a session that orders its cases by what is known of them.
    """
    with tempfile.NamedTemporaryFile('w', suffix='.json') as file:
        known.write_json(Path(file.name))
        yield {KNOWN: file.name}


def describe_postponed_test_cases(plan: Plan) -> tuple[list[str], bool]:
    """Lines on what a session left to other sessions; whether there is a case
    that can never run, for it needs more than a session has."""
    lines: list[str] = []
    turns = [one for one in plan.left if one.nightly_sessions]
    for name in dict.fromkeys(one.case['partition'] for one in turns):
        rows = [one for one in turns if one.case['partition'] == name]
        lines.append(
            f'Left to later sessions: {count_with_noun(len(rows), "test case")} of '
            f'{name} with '
            f'{sum(one.hours for one in rows):.3g} node-hours (budget per '
            f'session: {rows[0].budget:g}); all run within '
            f'{rows[0].nightly_sessions} sessions')
        # Who has waited longest first.
        rows.sort(key=lambda one: one.last)
        lines += [f'  {one}' for one in rows[:MAXIMUM]]
        lines += [f'  and {len(rows) - MAXIMUM} more'] * (len(rows) > MAXIMUM)
    never = [one for one in plan.left if not one.nightly_sessions]
    return lines + [describe_budget_excess(one, plan.head['system'])
                    for one in never], bool(never)


def describe_budget_excess(one: Left, site: str) -> str:
    """What to do about a case that needs more than a session has."""
    how = ('raise nightly_budget in system.py, or exclude the test case with '
           '-x'
           if one.by == 'time' else
           'this is its time limit, because it has not run yet; run it once '
           f'(./plumb run{site_option(site)} -n /{one.case["case"]}), or raise '
           'nightly_budget in system.py')
    return (f'error: {one.test_case_and_place} needs {one.hours:.3g} node-hours, but '
            f'{one.case["partition"]} has {one.budget:g} per session: it '
            f'never runs in mode {NIGHTLY}; {how}')
