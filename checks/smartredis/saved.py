"""Files that are made of result folders of SmartSim-Scaling.

A table has the statistics of all sessions. `write_perflogs` writes perflogs with
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

import datetime
import hashlib
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from config.records import samples, writing
from config.records.columns import SAVED
from config.records.tables import write_csv

from ..core.parsers import Record
from .folders import PROGRAM, Session

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
        names = [*attributes, *columns]
        write_csv(out, names, ([row.get(name, '') for name in names] for row in rows))


class Part(NamedTuple):
    """What the perflogs have of a session."""
    run: str
    time: datetime.datetime
    columns: dict[str, Any]
    records: tuple[Record, ...]
    calls: list[samples.Sample]


def part_of_session(session: Session) -> Part:
    """What the perflogs have of a session: not all of its calls."""
    time = run_time(session)
    folder = str(session.path.parent.resolve())
    return Part(f'{time:%Y%m%dT%H%M%SZ}-'
                f'{hashlib.sha256(folder.encode()).hexdigest()[:6]}', time, {
        'partition': SAVED, 'environ': SAVED, 'source': SAVED, 'family': 'smartredis',
        'check': _CHECKS[session.kind], 'params': session_parameters(session),
        'program': PROGRAM, 'version': session.version,
        'num_nodes': session.num_nodes, 'num_tasks': len(session.calls),
    }, session.records(), _thinned(session.call_samples()))


def write_perflogs(parts: Iterable[Part], folder: Path, system: str) -> None:
    """Write records and raw samples of sessions to a new folder.

    :param system: name of the system in the records
    :raises ValueError: the folder has files
    :raises OSError: a file cannot be written
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f'--perflogs: {folder} is not empty; name a new folder')
    cases: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        cases[str(part[:3])].append(part)
    runs: dict[str, writing.Session] = {}
    calls: list[tuple[writing.Measurement, list[samples.Sample]]] = []
    for _, equal in sorted(cases.items()):
        values: dict[tuple, list[float]] = defaultdict(list)
        for record in [record for part in equal for record in part.records]:
            values[record.metric, record.unit, record.size].append(record.value)
        run, time, columns = equal[0][:3]
        measurement = writing.Measurement(
            time, {'system': system, **columns}, writing.values_of_repetitions(
                (*key, repeated) for key, repeated in values.items()))
        runs.setdefault(run, writing.Session(run, time)).measurements.append(
            measurement)
        # Equal sessions have the same ranks and calls: iterations are counted on.
        calls.append((measurement, [
            call._replace(iteration=call.iteration + number * 10**9)
            for number, part in enumerate(equal) for call in part.calls]))
    writing.write_sessions(folder, runs.values())
    for one, of_test_case in calls:
        path = (folder / 'files' / one.columns['session'] / one.columns['measurement']
                / samples.file_name(one.columns['test_case']))
        path.parent.mkdir(parents=True)
        path.write_text(samples.samples_as_csv(of_test_case))


def _thinned(calls: list[samples.Sample]) -> list[samples.Sample]:
    """At most MAX_CALLS calls of each function, evenly in the order of their
    durations, with the shortest and the longest."""
    by_call: dict[str, list[samples.Sample]] = defaultdict(list)
    for one in calls:
        by_call[one.call].append(one)
    thinned = []
    for each in by_call.values():
        if len(each) > MAX_CALLS:
            each = sorted(each, key=lambda one: one.seconds)
            each = [each[round(n * (len(each) - 1) / (MAX_CALLS - 1))]
                    for n in range(MAX_CALLS)]
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


def run_time(session: Session) -> datetime.datetime:
    """Time of the run of the driver that a session is part of.

    It is in the name of the folder, or the day is in run.cfg; otherwise it is
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
    return time.replace(tzinfo=datetime.timezone.utc)
