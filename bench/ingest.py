#!/usr/bin/env python3
"""What does it cost to read perflogs?

    .plumbline/venv/bin/python bench/ingest.py --excalibur PATH --python PY
    .plumbline/venv/bin/python bench/ingest.py --sizes 1e7 --ours
    .plumbline/venv/bin/python bench/ingest.py --kill 50

PATH is the folder post-processing/ of a clone of excalibur-tests, PY a Python
with pandas and polars; what is not there is left out. Each row is a process
of its own: CPU seconds (user and system) with start-up and imports, and its
largest memory. The perflogs are made first (bench/ingest_data.py), in --dir.
--kill: a process that writes a store is killed so many times at a random
moment (SIGKILL); the next reader must find all records, each once.
"""
from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ingest_data

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ('display_name', 'system', 'partition', 'environ',
          'job_completion_time', 'latency_value', 'latency_unit')
#: What a row runs: {files} is a folder.
_STORE = ('import sys; sys.path.insert(0, {root!r}); from pathlib import '
          'Path; from postprocess import store; ')
_READ = _STORE + 'from postprocess import perflogs; '
OURS = {
    'ours, text': _READ + 'store.WORTH = 1 << 60; '
    'n = len(perflogs.read({files!r}))',
    'ours, writing the store': _STORE + 'store.using(Path({files!r}), print, '
    'lambda s: sum(p["records"] for p in s.manifest["parts"].values()))',
    'ours, the table from the store': _READ + 'n = len(perflogs.read('
    '{files!r}))'}
_GLOB = 'import glob; f = sorted(glob.glob({files!r} + "/**/*.*", ' \
        'recursive=True)); '
PLAIN = {
    'pandas': _GLOB + 'import pandas as pd; n = len(pd.concat(pd.read_csv('
    'x, sep={sep!r}) for x in f))',
    'polars': _GLOB + 'import polars as pl; n = pl.concat([pl.read_csv(x, '
    'separator={sep!r}, quote_char={quote!r}, infer_schema_length=10000)'
    ' for x in f], how="vertical_relaxed").height'}
EXCALIBUR = ('import sys; sys.path.insert(0, {excalibur!r}); '
             'from perflog_handler import PerflogHandler; '
             'n = len(PerflogHandler({files!r}).get_df())')
HISTORY = ('import sys; sys.path.insert(0, {root!r}); '
           'from postprocess import history; sys.exit(history.main({words!r}'
           ' + ["--perflogs", {files!r}]))')


def cost(python: str, code: str) -> tuple[float, float, int] | None:
    """CPU seconds, wall seconds and MiB of a process; None: it failed."""
    begin = time.monotonic()
    child = subprocess.Popen([python, '-c', code],
                             stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    if status:
        return None
    return (used.ru_utime + used.ru_stime, time.monotonic() - begin,
            used.ru_maxrss >> 10)


def row(size: int, files: str, name: str,
        got: tuple[float, float, int] | None) -> None:
    print(f'| {size:.0e} | {files} | {name} | ' + (
        f'{got[0]:.2f} | {got[1]:.2f} | {got[2]} |' if got
        else 'failed | | |'), flush=True)


def sizes(args: argparse.Namespace) -> None:
    print('| records | files | what | CPU (s) | wall (s) | MiB |\n'
          '|---|---|---|---|---|---|')
    row(0, '-', 'an empty Python', cost(sys.executable, 'pass'))
    row(0, '-', 'import pandas', cost(sys.executable, 'import pandas'))
    for size in (int(float(s)) for s in args.sizes):
        if not args.ours:
            theirs(args, size)
        ours(args, size)


def theirs(args: argparse.Namespace, size: int) -> None:
    """excalibur-tests' own files, read by all."""
    folder = args.dir / f'theirs-{size}'
    if not folder.exists():
        ingest_data.theirs(folder, size)
    shutil.rmtree(folder / '.store', ignore_errors=True)
    given = {'root': str(ROOT), 'files': str(folder), 'sep': '|',
             'quote': None, 'excalibur': str(args.excalibur)}
    if args.excalibur and size <= 1_000_000:
        row(size, 'theirs', 'excalibur-tests', cost(
            args.python, EXCALIBUR.format(**given)))
    for name, code in PLAIN.items():
        row(size, 'theirs', name, cost(args.python, code.format(**given)))
    for name, code in OURS.items():
        row(size, 'theirs', name, cost(sys.executable, code.format(**given)))


def ours(args: argparse.Namespace, size: int) -> None:
    """Our own files."""
    folder = args.dir / f'ours-{size}'
    if not folder.exists():
        ingest_data.ours(folder, size)
    shutil.rmtree(folder / '.store', ignore_errors=True)
    given = {'root': str(ROOT), 'files': str(folder), 'sep': ',',
             'quote': '"'}
    if size <= 1_000_000:
        for name, code in PLAIN.items():
            row(size, 'ours', name, cost(args.python, code.format(**given)))
    for name, code in OURS.items():
        if size <= 1_000_000 or name != 'ours, text':
            row(size, 'ours', name, cost(sys.executable,
                                         code.format(**given)))
    nights = size // ingest_data.NIGHT + random.randrange(1000, 9000)
    ingest_data.ours(folder, ingest_data.NIGHT, nights)
    row(size, 'ours', 'ours, an appended night', cost(
        sys.executable, OURS['ours, writing the store'].format(**given)))
    for words in (['latency', 'Bench02 program=osu_02 size=3 '],
                  ['latency']):
        row(size, 'ours', 'history ' + ' '.join(words), cost(
            sys.executable, HISTORY.format(words=words, **given)))


def kill(args: argparse.Namespace) -> int:
    """Rounds with a killed writer; 1 where a record was lost or doubled."""
    wrong = landed = 0
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(dir=args.dir) as place:
        folder = Path(place)
        count = ingest_data.ours(folder, 30_000)
        code = (_STORE + 'store.FULL = 5000; store.read(Path({files!r}), '
                'print)').format(root=str(ROOT), files=str(folder))
        begin = time.monotonic()
        subprocess.run([sys.executable, '-c', code], check=True)
        whole = time.monotonic() - begin
        for turn in range(args.kill):
            if turn % 2:                # a new store; else one that grows
                shutil.rmtree(folder / '.store', ignore_errors=True)
            else:
                count += ingest_data.ours(folder, 10_000, 100 + turn)
            child = subprocess.Popen([sys.executable, '-c', code])
            time.sleep(rng.uniform(0.2, 1) * whole)
            landed += child.poll() is None
            child.send_signal(signal.SIGKILL)
            child.wait()
            done = subprocess.run(
                [sys.executable, '-c', code.replace(
                    'store.read(', 'parts = store.read(') + '\nprint(sum(len('
                 'p.line) for p in parts), len({{(f, l) for p in parts for f,'
                 ' l in zip([p.texts["file"][c] for c in p.heads["file"][p.'
                 'head]], p.line.tolist())}}))'.replace('{{', '{').replace(
                     '}}', '}')], capture_output=True, text=True)
            if done.stdout.split() != [str(count)] * 2:
                wrong += 1
                print(f'round {turn}: {done.stdout.strip()} of {count} '
                      f'{done.stderr[-300:]}')
    print(f'{args.kill} rounds, {landed} killed before they ended: {wrong} '
          'with a record lost or doubled')
    return 1 if wrong else 0


def main() -> int:
    cmd = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.
        RawDescriptionHelpFormatter)
    cmd.add_argument('--sizes', nargs='+', default=['1e4', '1e5', '1e6'])
    cmd.add_argument('--ours', action='store_true',
                     help='only our own files')
    cmd.add_argument('--excalibur', type=Path)
    cmd.add_argument('--python', default=sys.executable)
    cmd.add_argument('--dir', type=Path, default=ROOT / '.plumbline/ingest')
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
