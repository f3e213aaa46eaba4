#!/usr/bin/env python3
"""Measures the cost of reading perflogs.

    .plumbline/venv/bin/python bench/ingest.py --records 1e6
    .plumbline/venv/bin/python bench/ingest.py --kill 50

Each row is a process of its own: CPU seconds (user and system) with start-up
and imports, and its largest memory; medians of --rounds. The perflogs are made
first. --kill: a process that writes the cache is killed so many times at a
random moment (SIGKILL); the next reader must find all records, each once.
"""
from __future__ import annotations

import datetime
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from common import (
    ROOT,
    Missing,
    option_parser,
    print_table_head,
    print_table_row,
    run_main_and_exit,
)

from config.records.columns import schema_number_and_columns

#: Seconds of CPU at most, of 1e6 records.
GOALS = {'cache is made': 6.0, 'table from the cache': 6.0,
         'appended session': 1.0, 'history of a test case': 0.5,
         'history of a metric': 0.5}
MAX_MIB = 2048
#: Opens the cache of a folder, and counts its records and their places.
OPEN = '''
import sys; sys.path.insert(0, {root!r})
from postprocess.perflogs import cache
with cache.open_records_database([{folder!r}], print) as con:
    print(*con.execute('SELECT count(*), count(DISTINCT (file, line)) '
                       'FROM {what}').fetchone())
'''
TABLE = '''
import sys; sys.path.insert(0, {root!r})
from postprocess import perflogs
perflogs.read({folder!r})
'''
#: A session is 400 test cases of 20 checks, a curve of 25 points each: 10 000
#: records, of which only the time is another one each session.
CHECKS, CASES, POINTS = 20, 20, 25
SESSION = CHECKS * CASES * POINTS
START = datetime.datetime(2020, 1, 1, 1, tzinfo=datetime.timezone.utc)
#: Metric of a check, and its unit; by the number of the check.
METRICS = (('latency', 'us', 'lower'), ('bandwidth', 'MB/s', 'higher'))
#: Columns before `repetition` and from it on (config/perflog.yaml).
_HEAD = (
    '3,{time},{run},0.1.0,0123456789ab,4.10.4,alpha,cpu,openmpi,osu,'
    'Bench{check:02},program=osu_{check:02} size={case} placement='
    'inter_node,{hash},{job},{nodes},{machine},"{binding}",,2,4,2,spack,'
    'osu_{check:02},7.5,openmpi 5.0.6,abcdef{check:02},0,fast,')
_TAIL = '1,{metric},{point} B,{value!r},{unit},{better},{ref!r},-0.1,0.1,' \
        'pass,\n'


def generate_csv_records(session_number: int, check: int) -> Iterator[str]:
    """The records of one check in one nightly session, as CSV."""
    rng = random.Random(session_number * CHECKS + check)
    metric, unit, better = METRICS[check % 2]
    for case in range(CASES):
        when = START + datetime.timedelta(days=session_number, minutes=case)
        before = _HEAD.format(
            time=f'{when:%Y-%m-%dT%H:%M:%SZ}',
            run=f'{when:%Y%m%d}T010000Z-{session_number:06x}', check=check,
            case=case, hash=f'{check:04x}{case:04x}',
            job=session_number * 1000 + check * CASES + case,
            nodes=f'n{case} n{case + 1}', machine='0a1b2c3d4e5f',
            binding=f'n{case}:0,1 n{case + 1}:0,1')
        drift = rng.gauss(1, 0.01)
        for point in range(POINTS):
            value = (2 + case + 1.5 ** point) * drift
            yield before + _TAIL.format(
                metric=metric, point=2 ** point, value=value, unit=unit,
                better=better, ref=2 + case + 1.5 ** point)


def write_perflogs(folder: Path, records: int, first: int = 0) -> int:
    """Writes perflogs, or appends to them: a file for each check and month.

    :arg first: number of the first nightly session
    :returns: the number of records that were written
    """
    _, columns = schema_number_and_columns()
    place = folder / 'alpha' / 'cpu'
    place.mkdir(parents=True, exist_ok=True)
    sessions = max(1, round(records / SESSION))
    checks = CHECKS if records >= SESSION else max(
        1, records // (CASES * POINTS))
    for check in range(checks):
        for number in range(first, first + sessions):
            month = START + datetime.timedelta(days=number)
            path = place / f'Bench{check:02}.v3.{month:%Y-%m}.csv'
            with open(path, 'a', encoding='utf-8') as handle:
                if not handle.tell():
                    handle.write(','.join(columns) + '\n')
                handle.writelines(generate_csv_records(number, check))
            ended = (month + datetime.timedelta(hours=1)).timestamp()
            os.utime(path, (ended, ended))
    return sessions * checks * CASES * POINTS


def python_command(template: str, perflogs: Path, **given: object) -> list[str]:
    """A command that runs Python code, a template that names the perflogs."""
    return [sys.executable, '-c', template.format(**{
        'root': str(ROOT), 'folder': str(perflogs),
        'what': '(FROM records LIMIT 1)', **given})]


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
    rows: dict[str, tuple[list[str], Callable[[], object]]] = {
        'cache is made': (python_command(OPEN, folder), remove_cache),
        'table from the cache': (python_command(TABLE, folder), int),
        'appended session': (python_command(OPEN, folder), append_session_records),
        'history of a test case': ([
            *plumb, 'Bench02 program=osu_02 size=3 ', '--perflogs',
            str(folder)], int),
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
            records != 1_000_000 or cpu <= GOALS[name])
    return good


def kill_writers(folder: Path, rounds: int, seed: int) -> bool:
    """Rounds with a killed writer; False where a record was lost or doubled.
    """
    rng, wrong, landed = random.Random(seed), 0, 0
    took = [0.0, 0.0]
    count = write_perflogs(folder, 30_000)
    for turn in range(-2, rounds):
        command = python_command(OPEN, folder, what='records')
        new = turn % 2                  # a new cache; else one that grows
        if new:
            shutil.rmtree(folder / '.store', ignore_errors=True)
        else:
            count += write_perflogs(folder, 10_000, 1000 + turn)
        begin = time.monotonic()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        if turn >= 0:
            time.sleep(rng.uniform(0.2, 1) * took[new])
            landed += child.poll() is None
            child.send_signal(signal.SIGKILL)
        child.wait()
        if turn < 0:                    # how long it takes undisturbed
            took[new] = time.monotonic() - begin
        done = subprocess.run(command, capture_output=True, text=True)
        if done.stdout.split() != [str(count)] * 2:
            wrong += 1
            print(f'round {turn}: {done.stdout.strip()} of {count} '
                  f'{done.stderr[-300:]}', flush=True)
    print(f'{rounds} rounds, {landed} killed before they ended: {wrong} '
          'with a record lost or doubled')
    return not wrong


def main() -> bool:
    cmd = option_parser(__doc__)
    cmd.add_argument('--records', type=float, default=1e6)
    cmd.add_argument('--rounds', type=int, default=3)
    cmd.add_argument('--kill', type=int, metavar='ROUNDS')
    cmd.add_argument('--seed', type=int, default=1)
    args = cmd.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if args.kill:
            return kill_writers(Path(place), args.kill, args.seed)
        print_table_head('records', 'what', 'CPU (s)', 'MiB')
        return measure_read_cost(Path(place), int(args.records), args.rounds)


if __name__ == '__main__':
    run_main_and_exit(main)
