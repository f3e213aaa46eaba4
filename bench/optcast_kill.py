#!/usr/bin/env python3
"""Kills a random server or client of the embedded Optcast, at a random time.

    bench/optcast_kill.py [--rounds 50] [--seed 16]

All others must end by themselves within the time, with one line that starts
with `optcast: ` and names who is gone. Exit status 1 where one does not.
"""
from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.optcast.test_programs import SOURCES, Run  # noqa: E402


def fault(program: Path, draw: random.Random) -> str:
    """One round; what went wrong, empty: nothing."""
    ring = draw.random() < 0.3
    with tempfile.TemporaryDirectory() as folder:
        job = Run(program, folder, 3, 1 if ring else 2, ring=ring,
                  more=('-n', '1000000'), timeout=3)
        try:
            job.serve().ask('1M')
            time.sleep(draw.uniform(0, 0.6))
            victims = [*job.clients, *job.servers]
            victim = draw.randrange(len(victims))
            victims[victim].send_signal(draw.choice(
                [signal.SIGKILL, signal.SIGTERM]))
            for number, one in enumerate(job.clients):
                code = one.wait(30)
                said = Path(folder, f'client{number}.err').read_text()
                if number != victim and (code != 1 or said.count('\n') != 1
                                         or not said.startswith('optcast: ')):
                    return f'client {number} ended with {code}: {said!r}'
        except subprocess.TimeoutExpired:
            return 'a client did not end'
        finally:
            job.stop()
    return ''


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    args.add_argument('--rounds', type=int, default=50)
    args.add_argument('--seed', type=int, default=16)
    asked = args.parse_args()
    draw = random.Random(asked.seed)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, 'optcast')
        subprocess.run(['cc', '-O2', '-std=gnu11', '-pthread', '-o', program,
                        *SOURCES], check=True)
        for number in range(asked.rounds):
            why = fault(program, draw)
            if why:
                bad += 1
                print(f'round {number}: {why}')
    print(f'{asked.rounds} rounds, {bad} bad')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
