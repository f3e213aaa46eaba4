"""Plans of sessions: files beside the perflogs with the planned test cases.

config/sessions/runner.py writes `<system>/sessions/<run>.json` before the
first test case runs: the session, and the columns of each test case that are
known by then. A planned test case without a record was lost with a killed
session.
"""
from __future__ import annotations

import contextlib
import fcntl
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from config import regular

FOLDER = 'sessions'
NAME = re.compile(r'\d{8}T\d{6}Z-[0-9a-f]+\.json')
#: The guard of a test case without a record.
MISSING = 'missing'
#: Columns that a plan has of each test case, besides the name that people
#: read.
COLUMNS = ('partition', 'environ', 'family', 'check', 'params', 'case',
           'program', 'emulated', 'source', 'version', 'stack')
HEAD = ('run', 'time', 'system', 'suite', 'commit', 'reframe')
#: What makes a test case: all its records of one run belong together.
CASE = ('family', 'system', 'partition', 'environ', 'source', 'check',
        'params', 'program')


class Left(NamedTuple):
    """A test case that the budget of its partition left to other sessions."""
    #: Columns, and its name.
    case: dict[str, str]
    #: What it needs, and what its partition has a session. Unit: node-hours.
    hours: float
    budget: float
    #: Sessions within which it has its turn; 0: never, it needs too much.
    nightly_sessions: int
    #: What the hours are by: its `time`, or its time `limit`.
    by: str
    #: The session in which it ran last; empty: it never did.
    last: str

    @property
    def test_case_and_place(self) -> str:
        """The test case and its place, for people."""
        return (f'{self.case["name"]} @{self.case["partition"]}+'
                f'{self.case["environ"]}')

    def __str__(self) -> str:
        """The test case, what it needs, when it ran last."""
        when = (f'last ran {self.last[:4]}-{self.last[4:6]}-{self.last[6:8]} '
                f'{self.last[9:11]}:{self.last[11:13]}' if self.last
                else 'never ran')
        return f'{self.test_case_and_place}: {when}, needs {self.hours:.3g} node-hours'


class Plan(NamedTuple):
    """The test cases that a session planned."""
    file: Path
    #: Columns that all its test cases have in common.
    head: dict[str, str]
    #: Columns, name, and `veto`: '1' if mode veto has the test case, or ''.
    cases: list[dict[str, str]]
    #: What it did not mean to run, for want of node-hours.
    left: list[Left] = []

    @property
    def session_name(self) -> str:
        return self.head['run']

    def session_and_test_case_key(
        self, case: dict[str, str]
    ) -> tuple[str, str, str, str]:
        """The identity of a test case of a session."""
        return self.session_name, case['partition'], case['environ'], case['case']

    def missing_record_row(self, case: dict[str, str]) -> dict[str, str]:
        """The record that a test case without any counts as."""
        return {**self.head, **{name: case[name] for name in COLUMNS},
                'speed': '-', 'repetition': '0', 'metric': 'completed',
                'value': '0.0', 'unit': '1', 'better': 'higher',
                'reference': '1.0', 'lower': '0.0', 'result': 'fail',
                'guard': MISSING}


def is_plan(path: Path) -> bool:
    """Whether a file is a plan, by its name and place."""
    return path.parent.name == FOLDER and bool(NAME.fullmatch(path.name))


def is_session_running(path: Path) -> bool:
    """Whether the session of a plan still runs: it holds a lock on it."""
    try:
        with regular.open_regular_file(path) as handle:
            fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:                 # a file system without locks
        return False
    return False


#: Sessions that left test cases out on purpose -> which ones, by CASE, and the
#: sessions within which each has its turn (0: never); None: it is not said.
Partial = Mapping[str, Mapping[tuple[str, ...], int] | None]


def existing_test_cases(newest_first: Iterable[Plan]
                        ) -> Iterator[tuple[Plan, list[dict[str, str]]]]:
    """Each plan with its test cases, without those that no longer exist.

    If a check or a parameter is renamed, plans of earlier sessions have the old test
    cases, which will never run again. A test case no longer exists if no later plan
    has it, and one has at least as many of its family and partition: a session of a
    smaller mode does not hide what a larger one did not run.
    """
    later: dict[tuple[str, ...], set[tuple[str, str]]] = {}
    most: Counter[tuple[str, ...]] = Counter()
    for plan in newest_first:
        groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
        for case in plan.cases:
            groups.setdefault((plan.head['system'], case['family'], case['partition']),
                              []).append(case)
        existing = []
        for group, cases in groups.items():
            known = later.setdefault(group, set())
            existing += [case for case in cases if most[group] < len(cases)
                         or (case['environ'], case['case']) in known]
            known |= {(case['environ'], case['case']) for case in cases}
            most[group] = max(most[group], len(cases))
        yield plan, existing


def partial_sessions(folders: Iterable[Path | str]
            ) -> dict[str, dict[tuple[str, ...], int] | None]:
    """Sessions that left test cases out on purpose: what the budget of a
    session left to others, or what needs no more runs (rounds of `plumb
    references calibrate`), of which no list is kept.

    :param folders: perflogs, or those of one system
    """
    sessions: dict[str, dict[tuple[str, ...], int] | None] = {}
    for folder in map(Path, folders):
        for path in {*folder.glob(f'*/{FOLDER}/*.json'),
                     *folder.glob(f'{FOLDER}/*.json')}:
            with contextlib.suppress(OSError, UnicodeDecodeError), \
                    regular.open_regular_file(path) as handle:
                # The first line is the head, all else are test cases.
                head = handle.readline().decode() if is_plan(path) else ''
                if '"partial": true' in head:
                    sessions[path.stem] = _postponed_test_cases(head)
    return sessions


def _postponed_test_cases(head: str) -> dict[tuple[str, ...], int] | None:
    """The test cases that a session left to others, by the head of its
    plan."""
    try:
        data = json.loads(head.rstrip().removesuffix(', "cases": [') + '}')
        return {tuple(str({'system': data['system'], **row}[name])
                      for name in CASE): int(row['nightly_sessions'])
                for row in data['left']}
    except (ValueError, KeyError, TypeError):   # no list, or a damaged one
        return None


def newest_budget_plans(folders: Iterable[Path | str]) -> list[Plan]:
    """The newest plan of each system that was made under a budget.

    :param folders: perflogs, or those of one system
    """
    newest: dict[Path, Path] = {}
    for folder in map(Path, folders):
        for path in {*folder.glob(f'*/{FOLDER}/*.json'),
                     *folder.glob(f'{FOLDER}/*.json')}:
            before = newest.get(path.parent)
            if not is_plan(path) or before and before.name > path.name:
                continue
            with contextlib.suppress(OSError, UnicodeDecodeError), \
                    regular.open_regular_file(path) as handle:
                if b'"left": [' in handle.readline():
                    newest[path.parent] = path
    # What is damaged is told where its records are read.
    plans_ = (read_plan(path, lambda *_: None) for path in newest.values())
    return [plan for plan in plans_ if plan]


def read_plan(path: Path, report: Callable[[Path, int, str], None]
         ) -> Plan | None:
    """A plan; what is damaged is reported, with file and line."""
    try:
        data: dict[str, Any] = json.loads(regular.read_regular_file(path))
        if data['plan'] != 1:
            report(path, 1, f"the format of the plan is {data['plan']!r}, not "
                   '1; read it with a newer checkout of the suite')
            return None
        cases = [{name: str(case[name]) for name in (*COLUMNS, 'name')}
                 | {'veto': str(case.get('veto', ''))} for case in data['cases']]
        head = {name: str(data[name]) for name in HEAD}
        left = [
            Left(
                {name: str(row[name]) for name in (*COLUMNS, 'name')},
                float(row['hours']),
                float(row['budget']),
                int(row['nightly_sessions']),
                str(row['by']),
                str(row['last']),
            )
            for row in data.get('left', ())
        ]
        return Plan(path, head, cases, left)
    except OSError as err:
        report(path, 1, f'cannot be read ({err.strerror}); check the path '
               'and its permissions')
    except (ValueError, KeyError, TypeError) as err:
        report(path, 1, f'not the plan of a session ({type(err).__name__}: '
               f'{err}); restore the file, or remove it')
    return None
