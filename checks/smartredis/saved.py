"""Files that are made of result folders of SmartSim-Scaling.

A table has the statistics of all sessions. SessionRecords are perflogs with
raw samples (config/records/writing.py, config/records/samples.py), so that all
commands that read perflogs read these sessions, too:

- All sessions of one run of the original's driver are one session.
- Sessions that differ only in their size of tensors are one test case, and the
  sizes are its points. Equal sessions are repetitions.
- Parameters have the names of the driver's options, which are those of the
  checks.
- Of a function with more than MAX_CALLS calls, the samples have MAX_CALLS of
  them, evenly in the order of their durations, with the shortest and the
  longest. So their distribution is that of all calls.
"""
from __future__ import annotations

import csv
import datetime
import hashlib
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from config.records import samples, writing
from config.records.columns import SAVED

from ..core.parsers import Record
from .folders import Session

#: Samples of a function in a session.
MAX_CALLS = 1500
#: Attribute of run.cfg -> option of the driver.
OPTIONS = {'client_per_node': 'clients_per_node', 'database_nodes': 'db_nodes',
           'database_cpus': 'db_cpus', 'database_threads_per_queue': 'db_tpq',
           'database_port': 'db_port', 'database_hosts': 'db_hosts',
           't_per_dataset': 'tensors_per_dataset', 'custom_pinning': 'pin_db_cpus'}
#: Attributes that are no parameters, because they are in columns of their own.
_OTHERS = ('name', 'path', 'date', 'smartsim_version', 'smartredis_version',
           'tensor_bytes', 'db', 'colocated')
_CHECKS = {'throughput': 'SmartRedisThroughput', 'inference': 'SmartRedisInference',
           'producer': 'SmartRedisAggregation', 'consumer': 'SmartRedisAggregation'}
_RUN = re.compile(r'(\d{4}-\d\d-\d\d)-(\d\d:\d\d:\d\d)$')


def statistics_rows(session: Session, folder: Path) -> list[dict[str, Any]]:
    """A row per rank and function, with all attributes of run.cfg. Unit: seconds.

    :param folder: the result folder; sessions are named relative to it
    """
    own = {'session': str(session.path.relative_to(folder)), **session.attributes}
    return [{**own, 'rank': rank, 'function': function, 'calls': len(times),
             'mean': statistics.fmean(times), 'min': min(times), 'max': max(times),
             'median': statistics.median(times),
             'std': statistics.stdev(times) if len(times) > 1 else ''}
            for rank, functions in session.calls.items()
            for function, times in functions.items()]


def write_statistics(rows: list[dict[str, Any]], file: Path) -> None:
    """Write rows as CSV; an attribute that a session lacks is empty.

    :raises OSError: the file cannot be written
    """
    columns = ('rank', 'function', 'calls', 'mean', 'min', 'max', 'median', 'std')
    attributes = dict.fromkeys(
        ['session', *(name for row in rows for name in row if name not in columns)])
    with open(file, 'w', encoding='utf-8', newline='') as out:
        writer = csv.DictWriter(out, [*attributes, *columns], restval='',
                                lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)


class SessionRecords:
    """Records and raw samples of sessions, as perflogs."""

    def __init__(self) -> None:
        #: Run, check and parameters -> sessions: records, and samples.
        self.cases: dict[tuple, list[tuple[tuple[Record, ...], list[samples.Sample]]]]
        self.cases = defaultdict(list)

    def add(self, session: Session) -> None:
        """Adds a session."""
        key = (_run_time_and_id(session), _CHECKS[session.kind],
               session_parameters(session))
        self.cases[key].append(
            (session.records(), _thinned(session.call_samples(), MAX_CALLS)))

    def write(self, folder: Path, system: str) -> None:
        """Writes all perflogs to a new folder.

        :param system: name of the system in the records
        :raises ValueError: the folder has files
        :raises OSError: a file cannot be written
        """
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f'--perflogs: {folder} is not empty; name a new folder')
        saved: dict[str, writing.Session] = {}
        calls: list[tuple[writing.Measurement, list[samples.Sample]]] = []
        for ((time, run), check, params), sessions in sorted(self.cases.items()):
            session = saved.setdefault(run, writing.Session(run, time))
            values: dict[tuple, list[float]] = defaultdict(list)
            for record in [one for records, _ in sessions for one in records]:
                values[record.program, record.version, record.metric, record.unit,
                       record.size].append(record.value)
            programs = dict.fromkeys(key[:2] for key in values)
            for program, version in programs:
                # Each program is a test case.
                of_program = f'program={program} {params}' if len(
                    programs) > 1 else params
                one = writing.Measurement(time, {
                    'system': system, 'partition': SAVED, 'environ': SAVED,
                    'family': 'smartredis', 'check': check, 'params': of_program,
                    'program': program, 'version': version, 'source': SAVED,
                }, writing.values_of_repetitions(
                    (metric, unit, size, repeated)
                    for (*place, metric, unit, size), repeated in values.items()
                    if place == [program, version]))
                session.measurements.append(one)
                calls.append((one, _samples_of_test_case(sessions)))
        writing.write_sessions(folder, saved.values())
        for one, of_test_case in calls:
            path = (folder / 'files' / one.columns['session']
                    / one.columns['measurement']
                    / samples.file_name(one.columns['test_case']))
            path.parent.mkdir(parents=True)
            path.write_text(samples.samples_as_csv(of_test_case))


def _samples_of_test_case(sessions: list) -> list[samples.Sample]:
    """The samples of all sessions of a test case, as many as a file may have.

    Equal sessions have the same ranks and calls, so the iterations of the later
    ones are counted on.
    """
    every = [one._replace(iteration=one.iteration + number * 10**9)
             for number, (_, calls) in enumerate(sessions) for one in calls]
    functions = len({one.call for one in every})
    return _thinned(every, min(MAX_CALLS, samples.MAXIMUM // max(functions, 1)))


def _thinned(calls: list[samples.Sample], count: int) -> list[samples.Sample]:
    """At most so many calls of each function, evenly in the order of their durations,
    with the shortest and the longest."""
    by_call: dict[str, list[samples.Sample]] = defaultdict(list)
    for one in calls:
        by_call[one.call].append(one)
    thinned = []
    for each in by_call.values():
        if len(each) > count:
            each = sorted(each, key=lambda one: one.seconds)
            each = [each[round(n * (len(each) - 1) / (count - 1))]
                    for n in range(count)]
        thinned += each
    return thinned


def session_parameters(session: Session) -> str:
    """All that distinguishes the test case, as `name=value name=value`."""
    own = {'db': session.attributes.get('db', '').removesuffix('-server'),
           'deployment': {'1': 'colocated', '0': 'standard'}.get(
               session.attributes.get('colocated', ''), ''),
           **{OPTIONS.get(name, name): value
              for name, value in session.attributes.items() if name not in _OTHERS}}
    return ' '.join(f'{name}={re.sub(r"[^!-~]+", "_", value)}'
                    for name, value in own.items() if value)


def _run_time_and_id(session: Session) -> tuple[datetime.datetime, str]:
    """Time and identifier of the run of the driver that a session is part of.

    The time is in the name of the folder, or the day is in run.cfg; otherwise it is
    that at which the folder was written. Its zone is unknown, and UTC is assumed.
    """
    folder = session.path.parent
    name = _RUN.search(folder.name)
    day = session.attributes.get('date', '')
    try:
        time = datetime.datetime.fromisoformat(f'{name[1]}T{name[2]}' if name else day)
    except ValueError:
        time = datetime.datetime.fromtimestamp(
            int(folder.stat().st_mtime), datetime.timezone.utc)
    unique = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:6]
    return (time.replace(tzinfo=datetime.timezone.utc),
            f'{time:%Y%m%dT%H%M%SZ}-{unique}')
