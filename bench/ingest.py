#!/usr/bin/env python3
"""What does it cost to read perflogs?

    .plumbline/venv/bin/python bench/ingest.py --records 1e6
    .plumbline/venv/bin/python bench/ingest.py --kill 50

Each row is a process of its own: CPU seconds (user and system) with start-up
and imports, and its largest memory; medians of --rounds. The perflogs are made
first (bench/ingest_data.py). --kill: a process that writes the cache is killed
so many times at a random moment (SIGKILL); the next reader must find all
records, each once. Exit status 0: within the goals; 1: not.
"""
from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ingest_data

ROOT = Path(__file__).resolve().parent.parent
#: Seconds of CPU at most, of 1e6 records.
GOALS = {'cache is made': 6.0, 'table from the cache': 6.0,
         'appended night': 1.0, 'history of a test case': 0.5,
         'history of a metric': 0.5}
MOST_MIB = 2048
#: Opens the cache of a folder, and counts its records and their places.
OPEN = '''
import sys; sys.path.insert(0, {root!r})
from postprocess.perflogs import cache
cache.WORTH, cache.FULL, cache.SMALL = 0, {full}, {small}
with cache.opened([{folder!r}], print) as con:
    print(*con.execute('SELECT count(*), count(DISTINCT (file, line)) '
                       'FROM {what}').fetchone())
'''
TABLE = '''
import sys; sys.path.insert(0, {root!r})
from postprocess import perflogs
perflogs.read({folder!r})
'''


def code(text: str, folder: Path, **given: object) -> list[str]:
    """A command that runs Python."""
    return [sys.executable, '-c', text.format(**{
        'root': str(ROOT), 'folder': str(folder), 'full': 256 << 20,
        'small': 250_000, 'what': '(FROM records LIMIT 1)', **given})]


def cost(command: list[str]) -> tuple[float, int]:
    """CPU seconds and MiB of a process and those that it waited for."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    if status:
        sys.exit(f'bench/ingest.py: {command[:3]} failed')
    return used.ru_utime + used.ru_stime, used.ru_maxrss >> 10


def measure(folder: Path, records: int, rounds: int) -> bool:
    """Prints medians; returns whether they are within the goals."""
    ingest_data.ours(folder, records)
    night = iter(range(records // ingest_data.NIGHT, 1 << 30))

    def forget() -> None:
        shutil.rmtree(folder / '.store', ignore_errors=True)

    def grow() -> None:
        ingest_data.ours(folder, ingest_data.NIGHT, next(night))

    plumb = [str(ROOT / 'plumb'), 'history', 'latency']
    rows: dict[str, tuple[list[str], Callable[[], object]]] = {
        'cache is made': (code(OPEN, folder), forget),
        'table from the cache': (code(TABLE, folder), int),
        'appended night': (code(OPEN, folder), grow),
        'history of a test case': ([
            *plumb, 'Bench02 program=osu_02 size=3 ', '--perflogs',
            str(folder)], int),
        'history of a metric': ([*plumb, '--perflogs', str(folder)], int)}
    good = True
    for name, (command, before) in rows.items():
        found = []
        for _ in range(rounds):
            before()
            found.append(cost(command))
        cpu, size = map(statistics.median, zip(*found, strict=True))
        print(f'| {records:.0e} | {name} | {cpu:.2f} | {size:.0f} |',
              flush=True)
        good = good and size <= MOST_MIB and (
            records != 1_000_000 or cpu <= GOALS[name])
    return good


def kill(folder: Path, rounds: int, seed: int) -> bool:
    """Rounds with a killed writer; False where a record was lost or doubled.
    """
    rng, wrong, landed = random.Random(seed), 0, 0
    took = [0.0, 0.0]
    count = ingest_data.ours(folder, 30_000)
    for turn in range(-2, rounds):
        # Several parts; and those of a month are joined, in every other two.
        command = code(OPEN, folder, full=5 << 20,
                       small=(0, 250_000)[turn // 2 % 2], what='records')
        new = turn % 2                  # a new cache; else one that grows
        if new:
            shutil.rmtree(folder / '.store', ignore_errors=True)
        else:
            count += ingest_data.ours(folder, 10_000, 1000 + turn)
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


def main() -> int:
    cmd = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.
        RawDescriptionHelpFormatter)
    cmd.add_argument('--records', type=float, default=1e6)
    cmd.add_argument('--rounds', type=int, default=3)
    cmd.add_argument('--kill', type=int, metavar='ROUNDS')
    cmd.add_argument('--seed', type=int, default=1)
    args = cmd.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if args.kill:
            return 0 if kill(Path(place), args.kill, args.seed) else 1
        print('| records | what | CPU (s) | MiB |\n|---|---|---|---|')
        return 0 if measure(Path(place), int(args.records),
                            args.rounds) else 1


if __name__ == '__main__':
    sys.exit(main())
