"""Folders of test cases that sessions left on this machine."""
from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from config import regular
from config.places import work_folder

#: Session, partition, environment, hash of the test case.
Key = tuple[str, str, str, str]


def folders_of_test_cases(sessions: Iterable[str]) -> dict[Key, dict[str, str]]:
    """Test case -> its folders and its log: {stage, output, log}.

    From the report that ReFrame wrote of each session, as long as the session's
    folder exists on this machine. ReFrame removes the stage folder of a test case
    that passed. Paths that no longer exist are left out.
    """
    folders = {}
    for session in sorted(set(sessions)):
        path = work_folder() / 'sessions' / session / 'report.json'
        try:
            report = json.loads(regular.read_regular_file(path))
            test_cases = [dict(case) for run in report['runs']
                          for case in run['testcases']]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        for case in test_cases:
            paths = {name: Path(str(case.get(key) or ''))
                     for name, key in (('stage', 'stagedir'), ('output', 'outputdir'))}
            existing = {name: str(path) for name, path in paths.items()
                     if path.is_absolute() and path.is_dir()}
            log = Path(next(iter(existing.values()), ''), str(case.get('job_stdout')))
            if existing and log.is_file():
                existing['log'] = str(log)
            folders[session, str(case.get('partition')), str(case.get('environ')),
                    str(case.get('hashcode'))] = existing
    return folders
