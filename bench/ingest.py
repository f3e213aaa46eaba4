#!/usr/bin/env python3
"""What does it cost to read perflogs?

    .plumbline/venv/bin/python bench/ingest.py --excalibur PATH
    .plumbline/venv/bin/python bench/ingest.py --sizes 1e7 --ours
    .plumbline/venv/bin/python bench/ingest.py --kill 50

PATH is the folder post-processing/ of a clone of excalibur-tests; without it
its rows are left out. Each row is a process of its own: CPU seconds (user and
system) with start-up and imports, and its largest memory; medians of --rounds
in which the rows take turns. The perflogs are made first
(bench/ingest_data.py), in --dir. --python runs what is not ours, where it is
not to be the pandas and polars of the suite's own venv.
--kill: a process that writes a store is killed so many times at a random
moment (SIGKILL); the next reader must find all records, each once.
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
from typing import NamedTuple

import ingest_data

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ['display_name', 'system', 'partition', 'environ',
          'job_completion_time', 'latency_value', 'latency_unit']
#: What a row runs: {files} is a folder.
_STORE = ('import sys; sys.path.insert(0, {root!r}); from pathlib import '
          'Path; from postprocess import store; ')
_READ = _STORE + 'from postprocess import perflogs; '
WRITING = ('writing the store', _STORE + 'store.using(Path({files!r}), print,'
           ' lambda s: sum(p["records"] for p in s.manifest["parts"].values()'
           '))')
TEXT = {
    'text to columns': _STORE + 'from postprocess import ingest; '
    'n = ingest.parts([{files!r}], print)',
    'text to the table': _READ + 'from postprocess import ingest; '
    'n = len(perflogs.frame(ingest.parts([{files!r}], print)))'}
STORED = ('the table from the store', _READ + 'n = len(perflogs.read('
          '{files!r}))')
_GLOB = 'import glob; f = sorted(glob.glob({files!r} + "/**/*.*", ' \
        'recursive=True)); '
_POLARS = _GLOB + 'import polars as pl; n = pl.concat([pl.read_csv(x, ' \
    'separator={sep!r}, quote_char={quote!r}, infer_schema_length=10000' \
    '%s) for x in f], how="vertical_relaxed").height'
PLAIN = {
    'pandas': _GLOB + 'import pandas as pd; n = len(pd.concat(pd.read_csv('
    'x, sep={sep!r}) for x in f))',
    'polars': _POLARS % ''}
FEW = {'polars, seven columns of them': _POLARS % f', columns={NEEDED}'}
EXCALIBUR = ('import sys; sys.path.insert(0, {excalibur!r}); '
             'from perflog_handler import PerflogHandler; '
             'n = len(PerflogHandler({files!r}).get_df())')
#: Largest size for what keeps all text in memory, and for excalibur-tests.
MOST = 1_000_000


class Row(NamedTuple):
    """What is measured."""
    name: str
    command: list[str]
    #: Called before each round.
    before: Callable[[], object] = lambda: None


def cost(command: list[str]) -> tuple[float, float, int] | None:
    """CPU seconds, wall seconds and MiB of a process and those it waited
    for; None: it failed."""
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    if status:
        return None
    return (used.ru_utime + used.ru_stime, time.monotonic() - begin,
            used.ru_maxrss >> 10)


def measure(rows: list[Row], size: int, files: str, rounds: int) -> None:
    """Runs rows in turns, and prints their medians."""
    found: dict[str, list[tuple[float, float, int]]] = {}
    for _ in range(rounds):
        for row in rows:
            row.before()
            if got := cost(row.command):
                found.setdefault(row.name, []).append(got)
    for row in rows:
        got = found.get(row.name, [])
        cells = '{:.2f} | {:.2f} | {:.0f} |'.format(
            *map(statistics.median, zip(*got, strict=True))
        ) if len(got) == rounds else 'failed | | |'
        print(f'| {size:.0e} | {files} | {row.name} | {cells}', flush=True)


def sizes(args: argparse.Namespace) -> None:
    print('| records | files | what | CPU (s) | wall (s) | MiB |\n'
          '|---|---|---|---|---|---|')
    measure([Row(name, [sys.executable, '-c', code]) for name, code in (
        ('an empty Python', 'pass'), ('import numpy', 'import numpy'),
        ('import polars', 'import polars'),
        ('import pandas', 'import pandas'))], 0, '-', args.rounds)
    for size in (int(float(s)) for s in args.sizes):
        if not args.ours:
            theirs(args, size)
        ours(args, size)


def code_rows(codes: dict[str, str], python: str, given: dict,
              owner: str = '') -> list[Row]:
    return [Row(owner + name, [python, '-c', code.format(**given)])
            for name, code in codes.items()]


def theirs(args: argparse.Namespace, size: int) -> None:
    """excalibur-tests' own files, read by all."""
    folder = args.dir / f'theirs-{size}'
    if not folder.exists():
        ingest_data.theirs(folder, size)
    given = {'root': str(ROOT), 'files': str(folder), 'sep': '|',
             'quote': None, 'excalibur': str(args.excalibur)}
    rows = []
    if size <= MOST:
        if args.excalibur:
            rows += code_rows({'excalibur-tests': EXCALIBUR}, args.python,
                              given)
        rows += code_rows(PLAIN | FEW, args.python, given)
        rows += code_rows(TEXT, sys.executable, given, 'ours, ')
    measure([*rows, *stored(folder, given, size)], size, 'theirs',
            args.rounds)
    shutil.rmtree(folder / '.store', ignore_errors=True)


def stored(folder: Path, given: dict, size: int) -> list[Row]:
    """Writing the store, and reading it."""
    name, code = WRITING
    return [Row(f'ours, {name}', [sys.executable, '-c', code.format(**given)],
                lambda: shutil.rmtree(folder / '.store', ignore_errors=True)),
            *code_rows(dict([STORED]), sys.executable, given, 'ours, ')]


def ours(args: argparse.Namespace, size: int) -> None:
    """Our own files."""
    folder = args.dir / f'ours-{size}'
    if not folder.exists():
        ingest_data.ours(folder, size)
    given = {'root': str(ROOT), 'files': str(folder), 'sep': ',',
             'quote': '"'}
    rows = []
    if size <= MOST:
        rows += code_rows(PLAIN, args.python, given)
        rows += code_rows(TEXT, sys.executable, given, 'ours, ')
    measure([*rows, *stored(folder, given, size)], size, 'ours', args.rounds)
    nights = iter(range(size // ingest_data.NIGHT + random.randrange(
        1000, 9000), 1 << 30))
    measure([
        Row('ours, an appended night',
            [sys.executable, '-c', WRITING[1].format(**given)],
            lambda: ingest_data.ours(folder, ingest_data.NIGHT,
                                     next(nights))),
        *(Row('plumb history ' + ' '.join(words), [
            str(ROOT / 'plumb'), 'history', *words, '--perflogs',
            str(folder)]) for words in (
                ['latency', 'Bench02 program=osu_02 size=3 '], ['latency']))],
            size, 'ours', args.nights)


#: Records of a folder, and distinct places of these.
_COUNTS = '''
print(sum(len(p.line) for p in parts), len({
    (f, l) for p in parts for f, l in zip([
        p.texts["file"][c] for c in p.heads["file"][p.head]],
        p.line.tolist())}))
'''


def kill(args: argparse.Namespace) -> int:
    """Rounds with a killed writer; 1 where a record was lost or doubled."""
    wrong = landed = 0
    rng = random.Random(args.seed)
    took = [0.0, 0.0]
    with tempfile.TemporaryDirectory(dir=args.dir) as place:
        folder = Path(place)
        count = ingest_data.ours(folder, 30_000)
        form = (_STORE + 'store.FULL, store.SMALL = 5000, {{small}}; parts = '
                'store.read(Path({files!r}), print)').format(
                    root=str(ROOT), files=str(folder))
        subprocess.run([sys.executable, '-c', form.format(small=0)],
                       check=True)
        for turn in range(-2, args.kill):
            # Parquet, or what stands for it where a part is small.
            code = form.format(small=(0, 250_000)[turn // 2 % 2])
            new = turn % 2              # a new store; else one that grows
            if new:
                shutil.rmtree(folder / '.store', ignore_errors=True)
            else:
                count += ingest_data.ours(folder, 10_000, 1000 + turn)
            begin = time.monotonic()
            child = subprocess.Popen([sys.executable, '-c', code])
            if turn >= 0:
                time.sleep(rng.uniform(0.2, 1) * took[new])
                landed += child.poll() is None
                child.send_signal(signal.SIGKILL)
            child.wait()
            if turn < 0:                # how long it takes undisturbed
                took[new] = time.monotonic() - begin
            done = subprocess.run(
                [sys.executable, '-c', code + _COUNTS], capture_output=True,
                text=True)
            if done.stdout.split() != [str(count)] * 2:
                wrong += 1
                print(f'round {turn}: {done.stdout.strip()} of {count} '
                      f'{done.stderr[-300:]}', flush=True)
    print(f'{args.kill} rounds, {landed} killed before they ended: {wrong} '
          'with a record lost or doubled')
    return 1 if wrong else 0


def main() -> int:
    cmd = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.
        RawDescriptionHelpFormatter)
    cmd.add_argument('--sizes', nargs='+', default=['1e4', '1e5', '1e6'],
                     metavar='N')
    cmd.add_argument('--ours', action='store_true',
                     help='only our own files')
    cmd.add_argument('--excalibur', type=Path)
    cmd.add_argument('--python', default=sys.executable)
    cmd.add_argument('--dir', type=Path, default=ROOT / '.plumbline/ingest')
    cmd.add_argument('--rounds', type=int, default=3)
    cmd.add_argument('--nights', type=int, default=9,
                     help='nights that are appended (default: 9, of which '
                          'one joins the small parts of the others)')
    cmd.add_argument('--kill', type=int, metavar='ROUNDS')
    cmd.add_argument('--seed', type=int, default=1)
    args = cmd.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    if args.kill:
        return kill(args)
    sizes(args)
    return 0


if __name__ == '__main__':
    sys.exit(main())
