"""Folders and logs of measurements, as far as they exist on this machine."""
from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from config import regular

#: Measurement -> its folders and its log: {stage, output, log}.
Folders = dict[str, dict[str, str]]


def folders_of_measurements(files: Iterable[str]) -> Folders:
    """Measurement -> its folders and its log: {stage, output, log}.

    ReFrame removes the stage folder of a test case that passed. Paths that do not exist
    on this machine are left out.

    :param files: reports of ReFrame; other files are left out
    """
    folders = {}
    for file in sorted(name for name in set(files) if name.endswith('.json')):
        try:
            report = json.loads(regular.read_regular_file(Path(file)))
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
            folders[str(case.get('measurement'))] = existing
    return folders


def log_of_failure(folders: Folders, measurement: str, file: str) -> str:
    """The log of a measurement that failed: of its job, or if that does not exist,
    ReFrame's log of its session, which has the failure. '': neither is on this machine.

    :param folders: `folders_of_measurements` of `file`
    """
    if log := folders.get(measurement, {}).get('log'):
        return log
    of_session = Path(file).with_suffix('.log')
    return str(of_session) if measurement in folders and of_session.is_file() else ''
