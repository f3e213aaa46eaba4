#!/usr/bin/env python3
"""Measures the cost of reading perflogs.

    .plumbline/venv/bin/python bench/ingest.py --records 1e6

Each row is a process of its own: CPU seconds (user and system) with start-up
and imports, and its largest memory; medians of --rounds. The perflogs are made
first.
"""
from __future__ import annotations

import datetime
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from common import (
    ROOT,
    Missing,
    option_parser,
    print_table_head,
    print_table_row,
    run_main_and_exit,
)

from config.records.writing import Measurement, Session, Value, write_sessions

#: Seconds of CPU at most, of 1e6 records.
GOALS = {'cache is made': 6.0, 'table from the cache': 6.0,
         'one new session': 1.0, 'count of the records': 0.5,
         'history of a test case': 0.5, 'history of a metric': 0.5}
MAX_MIB = 2048
#: Opens the record of a folder, and counts its values.
OPEN = '''
import sys; sys.path.insert(0, {root!r})
from postprocess.records import cache
with cache.open_records_database([{folder!r}], []) as con:
    print(*con.execute('SELECT {what}').fetchone())
'''
TABLE = '''
import sys; sys.path.insert(0, {root!r})
from postprocess import records
records.read({folder!r})
'''
#: A session is 80 test cases of 20 checks, a curve of 25 points each: 2 000 records,
#: of which only time and values are others each session.
CHECKS, CASES, POINTS = 20, 4, 25
SESSION = CHECKS * CASES * POINTS
START = datetime.datetime(2020, 1, 1, 1, tzinfo=datetime.timezone.utc)
#: Metric of a check, and which side of a reference is good; by the number of the check.
METRICS = (('latency', {'upper': 0.1}), ('bandwidth', {'lower': -0.1}))
#: What else ReFrame writes about a test case: about 2 kB.
FURTHER = ', '.join(f'"field_{n}": {["a text of a field"] * 4}'.replace("'", '"')
                    for n in range(20))


def made_session(number: int, checks: int) -> Session:
    """A nightly session.

    :arg number: of the session, from 0
    """
    rng = random.Random(number)
    start = START + datetime.timedelta(days=number)
    session = Session(f'{start:%Y%m%dT%H%M%SZ}-{number:06x}', start,
                      options='--mode=nightly')
    for check in range(checks):
        metric, limits = METRICS[check % 2]
        for case in range(CASES):
            drift = rng.gauss(1, 0.01)
            session.measurements.append(Measurement(
                start + datetime.timedelta(minutes=case), {
                    'suite': '0.1.0', 'commit': '0123456789ab', 'reframe': '4.10.4',
                    'system': 'alpha', 'partition': 'cpu', 'environ': 'openmpi',
                    'family': 'osu', 'check': f'Bench{check:02}', 'mode': 'nightly',
                    'params': f'program=osu_{check:02} size={case} '
                              'placement=inter_node',
                    'job': f'{number * 1000 + check * CASES + case}',
                    'nodes': f'n[{case}-{case + 1}]', 'machine': '0a1b2c3d4e5f',
                    'binding': f'n{case}:0,1 n{case + 1}:0,1', 'num_nodes': 2,
                    'num_tasks': 4, 'tasks_per_node': 2, 'source': 'spack',
                    'program': f'osu_{check:02}', 'version': '7.5',
                    'stack': 'openmpi 5.0.6', 'spec': f'abcdef{check:02}'},
                [Value(metric, (2 + case + 1.5 ** point) * drift, 2 ** point,
                       reference=2 + case + 1.5 ** point, **limits)
                 for point in range(POINTS)]))
    return session


def write_perflogs(folder: Path, records: int, first: int = 0) -> int:
    """Writes perflogs, or adds sessions to them.

    :arg first: number of the first nightly session
    :returns: the number of records that were written
    """
    sessions = max(1, round(records / SESSION))
    checks = CHECKS if records >= SESSION else max(1, records // (CASES * POINTS))
    count = write_sessions(folder, [made_session(number, checks) for number in
                                    range(first, first + sessions)])
    for path in sorted((folder / 'sessions').glob('*.json'))[-sessions:]:
        path.write_text(path.read_text().replace(
            '"fixture": false', f'"fixture": false, {FURTHER}'))
    return count


def python_command(template: str, perflogs: Path, **given: object) -> list[str]:
    """A command that runs Python code, a template that names the perflogs."""
    return [sys.executable, '-c', template.format(**{
        'root': str(ROOT), 'folder': str(perflogs),
        'what': '1', **given})]


def run_and_measure_command(command: list[str]) -> tuple[float, int]:
    """CPU seconds and MiB of a process and those that it waited for."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    if status:
        raise Missing(f'{command[:3]} failed')
    return used.ru_utime + used.ru_stime, used.ru_maxrss >> 10


def measure_read_cost(folder: Path, records: int, rounds: int) -> bool:
    """Prints medians; returns whether they are within the goals."""
    write_perflogs(folder, records)
    session = iter(range(records // SESSION, 1 << 30))

    def remove_cache() -> None:
        shutil.rmtree(folder / '.store', ignore_errors=True)

    def append_session_records() -> None:
        write_perflogs(folder, SESSION, next(session))

    plumb = [str(ROOT / 'plumb'), 'history', 'latency']
    case = 'Bench02 program=osu_02 size=3 '
    rows: dict[str, tuple[list[str], Callable[[], object]]] = {
        'cache is made': (python_command(OPEN, folder), remove_cache),
        'table from the cache': (python_command(TABLE, folder), int),
        'one new session': (python_command(OPEN, folder), append_session_records),
        'count of the records': (python_command(
            OPEN, folder, what='count(*) FROM results'), int),
        'history of a test case': ([*plumb, case, '--csv', '-', '--perflogs',
                                    str(folder)], int),
        # What people see ends with the verdict, which compares all test cases.
        'history and verdict': ([*plumb, case, '--perflogs', str(folder)], int),
        'history of a metric': ([*plumb, '--perflogs', str(folder)], int)}
    good = True
    for name, (command, before) in rows.items():
        times = []
        for _ in range(rounds):
            before()
            times.append(run_and_measure_command(command))
        cpu, size = map(statistics.median, zip(*times, strict=True))
        print_table_row(f'{records:.0e}', name, f'{cpu:.2f}', f'{size:.0f}')
        good = good and size <= MAX_MIB and (
            records != 1_000_000 or cpu <= GOALS.get(name, cpu))
    return good


def main() -> bool:
    cmd = option_parser(__doc__)
    cmd.add_argument('--records', type=float, default=1e6)
    cmd.add_argument('--rounds', type=int, default=3)
    args = cmd.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print_table_head('records', 'what', 'CPU (s)', 'MiB')
        return measure_read_cost(Path(place), int(args.records), args.rounds)


if __name__ == '__main__':
    run_main_and_exit(main)
