#!/usr/bin/env python3
"""Kills nights at random moments: is the next one clean?

    P=.plumbline/venv/bin/python          # ./plumb env makes it
    $P bench/nightly_kill.py --rounds 50
    $P bench/nightly_kill.py --rounds 50 --cluster

Plays nights of one short case (`plumb nightly`), on the site local or, with
--cluster, under Slurm on a cluster in a box (tests/cluster). Each is killed
with SIGKILL at a random moment: plumb alone, or plumb and ReFrame at once, so
that nobody cancels a job. Every fifth night is left in peace, and must end
with 0 and find all clean: every record that was there before a kill is there
still, no line of the perflogs is damaged, no process and no job is left, no
lock holds, no folder but those of the nights that are kept.

Exit status: 0 all is well, 1 something was lost or left, 2 something needed
is missing.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests' / 'cluster')]

from cluster import WORK, Cluster, ClusterError  # noqa: E402

from postprocess import perflogs  # noqa: E402

KEEP, PEACE = 3, 5
VICTIMS = ('plumb', 'plumb and reframe')
CASE = ['-c', str(ROOT / 'checks' / 'osu'), '-n', 'OsuStartup', '-E',
        'program == "osu_hello"']


@dataclass
class Rounds:
    """A site on which nights are played."""
    folder: Path
    cluster: Cluster | None
    #: What was lost or left.
    faults: list[str] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, str]:
        return {'PLUMBLINE_WORK': str(self.folder / 'work'),
                'PLUMBLINE_PERFLOGS': str(self.folder / 'perflogs'),
                'PLUMBLINE_REPORT': str(self.folder / 'report'),
                'RFM_REFERENCE_PREFIX': str(self.folder / 'references'),
                'PLUMBLINE_LOCK': str(self.folder / 'lock'),
                'PLUMBLINE_OTHERS_LIMIT': '1e6',
                'PLUMBLINE_AGAIN_AFTER': 'never'}

    def start(self, log: Path) -> subprocess.Popen[Any]:
        command = [str(ROOT / 'plumb'), 'nightly', '--mode', 'quick',
                   '--keep', str(KEEP)]
        how: dict[str, Any] = {
            'env': {**os.environ, **self.variables}, 'stdout': open(log, 'w'),
            'stderr': subprocess.STDOUT}
        if self.cluster is None:
            return subprocess.Popen([*command, '--', *CASE], **how)
        return self.cluster.box(
            'exec', '--', *command, '--site', 'devcluster', '--bringup', '--',
            '--system=devcluster:slurm-srun', *CASE, **how)

    def mine(self) -> dict[int, str]:
        """Processes of this site's nights: pid -> command."""
        mark = f'PLUMBLINE_WORK={self.folder}/work'.encode()
        found = {}
        for path in Path('/proc').glob('[0-9]*/environ'):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b'\0'):
                    found[int(path.parent.name)] = (
                        path.parent / 'cmdline').read_bytes().replace(
                            b'\0', b' ').decode(errors='replace')
        return {pid: text for pid, text in found.items() if text
                and '/box ' not in text}

    def kill(self, victim: str) -> list[str]:
        """Kills all of a kind at once; what was killed."""
        kinds = [' nightly '] + ['/reframe '] * ('reframe' in victim)
        found = {pid: text for pid, text in self.mine().items()
                 if any(kind in text for kind in kinds)}
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return ['reframe' if '/reframe ' in text else 'plumb'
                for text in found.values()]

    def records(self) -> set[str]:
        """The whole lines of all perflogs."""
        return {f'{path.name}: {line}' for path in
                (self.folder / 'perflogs').rglob('*.csv')
                for line in path.read_text().splitlines(keepends=True)
                if line.endswith('\n')}

    def notes(self) -> Counter[str]:
        """What nights said that dead ones had left."""
        return Counter(
            line.partition(' had left ')[2].partition(',')[0]
            for log in self.folder.glob('*.log')
            for line in log.read_text().splitlines()
            if line.startswith('plumb: ') and ' had left ' in line)

    def in_peace(self, log: Path) -> float:
        """A night that nobody kills: how long it took. Unit: s."""
        began = time.monotonic()
        code = self.start(log).wait(600)
        took = time.monotonic() - began
        text = log.read_text()
        if code:
            self.faults.append(f'{log.name}: exit code {code}: '
                               + ' / '.join(text.splitlines()[-3:]))
        with contextlib.suppress(FileNotFoundError):
            try:
                perflogs.read(self.folder / 'perflogs')
            except perflogs.PerflogError as err:
                self.faults.append(f'{log.name}: {err}')
        left = [text for pid, text in self.mine().items()]
        self.faults += [f'{log.name}: left: {one[:200]}' for one in left]
        if self.cluster and (jobs := self.cluster.ask(
                'squeue', '--noheader').strip()):
            self.faults.append(f'{log.name}: jobs: {jobs}')
        work = self.folder / 'work'
        kept = {path.name for path in (work / 'sessions').glob('2*')}
        for name in ('stage', 'output'):
            lost = {path.name for path in (work / name).glob('2*')} - kept
            self.faults += [f'{log.name}: {name}/{one} is of no session'
                            for one in lost]
        # A night has several sessions, told by the digits of its first one.
        many = len({name.partition('-')[2][:6] for name in kept})
        if many > KEEP:
            self.faults.append(f'{log.name}: {many} nights are kept')
        return took


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--rounds', type=int, default=50)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--cluster', action='store_true')
    parser.add_argument('--dir', type=Path, default=WORK / 'nightly-kill')
    args = parser.parse_args()
    if not (WORK / 'venv').exists():
        print(f'nightly_kill: no {WORK / "venv"}; ./plumb env makes it',
              file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = args.dir.absolute()
    (folder / 'work').mkdir(parents=True, exist_ok=True)
    for name in ('venv', 'mpi', 'mpich', 'stores', 'bin'):
        path = folder / 'work' / name
        if (WORK / name).exists() and not path.exists():
            path.symlink_to(WORK / name)
    cluster = Cluster(folder / 'box') if args.cluster else None
    try:
        if cluster:
            cluster.up(share=[folder])
        return play(Rounds(folder, cluster), args)
    except ClusterError as err:
        print(f'nightly_kill: {err}', file=sys.stderr)
        return 2
    finally:
        if cluster:
            cluster.down()


def play(site: Rounds, args: argparse.Namespace) -> int:
    chance = random.Random(args.seed)
    # The first one sets up.
    for name in ('first', 'second'):
        lasts = site.in_peace(site.folder / f'{name}.log')
    print(f'undisturbed: {lasts:.1f} s', *site.faults, sep='\n', flush=True)
    killed: Counter[str] = Counter()
    number = 0
    while number < args.rounds:
        before = site.records()
        log = site.folder / f'night{number + 1}.log'
        victim = VICTIMS[number % len(VICTIMS)]
        job = site.start(log)
        at = chance.uniform(0, lasts)
        time.sleep(at)
        gone = site.kill(victim)
        job.wait(60)
        if not gone:
            lasts = max(lasts - 5, 5)
            continue                    # too late: it had ended
        number += 1
        killed[f'{victim}: {"+".join(sorted(gone))}'] += 1
        lost = before - site.records()
        if lost:
            site.faults.append(f'round {number}: {len(lost)} records lost')
        print(f'{number} {victim} at {at:.1f} s: {gone}', flush=True)
        if number % PEACE == 0 or number == args.rounds:
            # A busy machine is not as fast in each round.
            lasts = site.in_peace(site.folder / f'peace{number}.log')
            print(f'in peace: {lasts:.1f} s; faults so far: '
                  f'{len(site.faults)}', flush=True)
    print('\n| killed | nights |\n|---|---|',
          *(f'| {what} | {many} |' for what, many in sorted(killed.items())),
          f'records: {len(site.records())}',
          *(f'dead nights had left {what}: {many} times'
            for what, many in sorted(site.notes().items())),
          *site.faults, sep='\n')
    return 1 if site.faults else 0


if __name__ == '__main__':
    sys.exit(main())
