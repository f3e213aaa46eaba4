#!/usr/bin/env python3
"""Kills parts of a run at random moments: is all cleaned up afterwards?

    P=.plumbline/venv/bin/python          # ./plumb env --site devcluster
    $P bench/kill_rounds.py service --rounds 100
    $P bench/kill_rounds.py nightly --rounds 50 [--cluster]
    $P bench/kill_rounds.py optcast --rounds 50
    sudo $P bench/kill_rounds.py impostor --rounds 50

service   a job with a store on its first node and clients on three others, on
          a cluster in a box (tests/cluster); --family selects TaoBench's
          servers instead, or MPI ranks of SmartRedis as clients. Processes,
          ports, mounts and files are counted afterwards on every node. The job
          must end in time, with one line that names the cause.
nightly   nightly sessions of one short test case, on the site local or under
          Slurm on a cluster in a box. plumb is killed, or plumb and ReFrame at
          once, so that nothing cancels the jobs. Every fifth session is not
          killed. It must end with 0, with all records of before, and leave no
          process, no job and no folder of a session that is not kept.
optcast   a server or a client of the embedded Optcast. All others must end by
          themselves, with one line that names the lost one.
impostor  batch script and conductor of a run, before its agents connect. User
          `nobody` takes the port and poses as conductor (tests/impostor.py).
          No agent may execute its command.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import EXIT_CODES, ROOT, Missing, exit_with, head, row, run

sys.path.insert(0, str(ROOT / 'tests' / 'cluster'))
sys.path.insert(0, str(ROOT))

import rounds as services
from cluster import WORK, Cluster, ClusterError

from postprocess import perflogs
from tests import impostor


@contextlib.contextmanager
def box(folder: Path) -> Iterator[Cluster]:
    """A cluster whose nodes see the folder.

    :raises Missing: the cluster cannot be started
    """
    cluster = Cluster(folder / 'box')
    try:
        cluster.up(share=[folder])
    except ClusterError as err:
        raise Missing(str(err)) from None
    try:
        yield cluster
    finally:
        cluster.down()


def need(*names: str) -> None:
    """:raises Missing: set-up has not made one of these folders"""
    for name in names:
        if not (WORK / name).exists():
            raise Missing(f'{WORK / name} does not exist; ./plumb env '
                          '--site devcluster makes it')


# Jobs with services ----------------------------------------------------------

def service_table(rounds: list[services.Round]) -> None:
    """A row for each victim and launcher."""
    head('victim', 'launcher', 'rounds', 'killed at (s)', 'ended after (s)',
         'clean after (s)', 'cause named by the run', 'by the job', 'passed',
         'data', 'faults')
    for victim in services.VICTIMS:
        for launcher in services.LAUNCHERS:
            some = [r for r in rounds
                    if (r.victim, r.launcher) == (victim, launcher)]
            if not some:
                continue
            ended, clean = ([getattr(r, name) for r in some]
                            for name in ('ended', 'clean'))
            named = sum(bool(r.lines) for r in some)
            passed = sum(not r.verdict for r in some)
            row(victim, launcher, len(some),
                f'{min(r.at for r in some):.1f} to '
                f'{max(r.at for r in some):.1f}',
                f'{statistics.median(ended):.1f}, {max(ended):.1f}',
                f'{statistics.median(clean):.1f}, {max(clean):.1f}',
                named, len(some) - named - passed, passed,
                sum(bool(r.data) for r in some),
                sum(bool(r.faults) for r in some))


def service(args: argparse.Namespace) -> bool:
    need('stores', *(mpi for mpi, _ in services.MPI.values()))
    args.dir.mkdir(parents=True, exist_ok=True)
    with box(args.dir) as cluster:
        (services.build_ranks if args.family in services.OF_RANKS
         else services.build)(args.dir)
        return service_rounds(args, cluster)


def service_rounds(args: argparse.Namespace, cluster: Cluster) -> bool:
    chance = random.Random(args.seed)
    launchers = args.launcher or list(services.LAUNCHERS)
    plans = {launcher: services.PLANS[args.family](args.load, args.dir,
                                                   launcher)
             for launcher in launchers}
    # Only an MPI program has a launcher of its own.
    victims = args.victim or [
        victim for victim in services.VICTIMS
        if victim != 'ranks' or args.family in services.OF_RANKS]
    lasts, bad = {}, []

    def undisturbed() -> None:
        for launcher, plan in plans.items():
            lasts[launcher], verdict = services.undisturbed(
                cluster, launcher, plan, args.dir / 'undisturbed')
            print(f'undisturbed, {launcher}: {lasts[launcher]:.1f} s '
                  f'{verdict}', flush=True)
            if verdict:
                bad.append(f'undisturbed, {launcher}: {verdict}')

    undisturbed()
    before = services.seen(cluster)
    rounds: list[services.Round] = []
    while len(rounds) < args.rounds:
        number = len(rounds)
        launcher = launchers[number % len(launchers)]
        victim = victims[number // len(launchers) % len(victims)]
        one = services.play(cluster, launcher, victim, plans[launcher],
                            args.dir / f'round{number}',
                            chance.uniform(0, lasts[launcher]), chance)
        if not one.killed and not one.faults:
            continue                    # too late: the victim had ended
        rounds.append(one)
        print(f'{number} {launcher} {victim} {one.killed!r} at {one.at:.1f} '
              f'ended {one.ended:.1f} clean {one.clean:.1f} {one.state}: '
              f'{one.verdict or "passed"}', *one.data, *one.faults,
              sep='\n    ', flush=True)
    # Starts agents on all nodes, which remove data of killed agents.
    undisturbed()
    bad += [f'left in the end: {node}: {one}'
            for node, all_of_it in services.seen(cluster).items()
            for one in all_of_it - before[node]
            if not any(path in one for path in services.FOREIGN)]
    service_table(rounds)
    print(*bad, sep='\n')
    return not bad and not any(r.faults for r in rounds)


# Nightly sessions ------------------------------------------------------------

#: Nightly sessions that are kept; kills per session that is not killed.
KEEP, PEACE = 3, 5
VICTIMS = ('plumb', 'plumb and reframe')
CASE = ['-c', str(ROOT / 'checks' / 'osu'), '-n', 'OsuStartup', '-E',
        'program == "osu_hello"']


@dataclass
class Nights:
    """Nightly sessions in a work folder of their own."""
    folder: Path
    cluster: Cluster | None
    #: What was lost or left.
    faults: list[str] = field(default_factory=list)

    def start(self, log: Path) -> subprocess.Popen[Any]:
        command = [str(ROOT / 'plumb'), 'nightly', '--mode', 'quick',
                   '--keep', str(KEEP)]
        how: dict[str, Any] = {
            'env': {**os.environ,
                    'PLUMBLINE_WORK': str(self.folder / 'work'),
                    'PLUMBLINE_PERFLOGS': str(self.folder / 'perflogs'),
                    'PLUMBLINE_REPORT': str(self.folder / 'report'),
                    'RFM_REFERENCE_PREFIX': str(self.folder / 'references'),
                    'PLUMBLINE_LOCK': str(self.folder / 'lock'),
                    'PLUMBLINE_OTHERS_LIMIT': '1e6',
                    'PLUMBLINE_AGAIN_AFTER': 'never'},
            'stdout': open(log, 'w'), 'stderr': subprocess.STDOUT}
        if self.cluster is None:
            return subprocess.Popen([*command, '--', *CASE], **how)
        return self.cluster.box(
            'exec', '--', *command, '--site', 'devcluster', '--bringup', '--',
            '--system=devcluster:slurm-srun', *CASE, **how)

    def processes(self) -> dict[int, str]:
        """Processes of these sessions: pid -> command line."""
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

    def kill(self, victim: str) -> str:
        """Kills all processes of a kind at once; what was killed."""
        kinds = [' nightly '] + ['/reframe '] * ('reframe' in victim)
        found = {pid: text for pid, text in self.processes().items()
                 if any(kind in text for kind in kinds)}
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return '+'.join(sorted('reframe' if '/reframe ' in text else 'plumb'
                               for text in found.values()))

    def records(self) -> set[str]:
        """The whole lines of all perflogs."""
        return {f'{path.name}: {line}' for path in
                (self.folder / 'perflogs').rglob('*.csv')
                for line in path.read_text().splitlines(keepends=True)
                if line.endswith('\n')}

    def in_peace(self, log: Path) -> float:
        """A session that is not killed: its duration (s)."""
        began = time.monotonic()
        code = self.start(log).wait(600)
        took = time.monotonic() - began
        found = []
        if code:
            found.append(f'exit code {code}: '
                         + ' / '.join(log.read_text().splitlines()[-3:]))
        with contextlib.suppress(FileNotFoundError):
            try:
                perflogs.read(self.folder / 'perflogs')
            except perflogs.PerflogError as err:
                found.append(str(err))
        found += [f'left: {one[:200]}' for one in self.processes().values()]
        if self.cluster and (jobs := self.cluster.ask(
                'squeue', '--noheader').strip()):
            found.append(f'jobs: {jobs}')
        work = self.folder / 'work'
        kept = {path.name for path in (work / 'sessions').glob('2*')}
        for name in ('stage', 'output'):
            lost = {path.name for path in (work / name).glob('2*')} - kept
            found += [f'{name}/{one} belongs to no session' for one in lost]
        # The sessions of one night share the digits of the first one.
        many = len({name.partition('-')[2][:6] for name in kept})
        if many > KEEP:
            found.append(f'{many} nightly sessions are kept')
        self.faults += [f'{log.name}: {one}' for one in found]
        return took


def nightly(args: argparse.Namespace) -> bool:
    need('venv')
    for name in ('venv', 'mpi', 'mpich', 'stores', 'bin'):
        path = args.dir / 'work' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if (WORK / name).exists() and not path.exists():
            path.symlink_to(WORK / name)
    if not args.cluster:
        return nights(Nights(args.dir, None), args)
    with box(args.dir) as cluster:
        return nights(Nights(args.dir, cluster), args)


def nights(site: Nights, args: argparse.Namespace) -> bool:
    chance = random.Random(args.seed)
    # The first one sets up.
    for name in ('first', 'second'):
        lasts = site.in_peace(site.folder / f'{name}.log')
    print(f'undisturbed: {lasts:.1f} s', *site.faults, sep='\n', flush=True)
    killed: Counter[str] = Counter()
    number = 0
    while number < args.rounds:
        before = site.records()
        victim = VICTIMS[number % len(VICTIMS)]
        job = site.start(site.folder / f'night{number + 1}.log')
        at = chance.uniform(0, lasts)
        time.sleep(at)
        names = site.kill(victim)
        job.wait(60)
        if not names:
            lasts = max(lasts - 5, 5)
            continue                    # too late: the session had ended
        number += 1
        killed[names] += 1
        lost = before - site.records()
        if lost:
            site.faults.append(f'round {number}: {len(lost)} records lost')
        print(f'{number} {victim} at {at:.1f} s: {names}', flush=True)
        if number % PEACE == 0 or number == args.rounds:
            # A busy machine is not as fast in each round.
            lasts = site.in_peace(site.folder / f'peace{number}.log')
            print(f'in peace: {lasts:.1f} s; faults so far: '
                  f'{len(site.faults)}', flush=True)
    head('killed', 'nightly sessions')
    for names, many in sorted(killed.items()):
        row(names, many)
    print(f'records: {len(site.records())}', *site.faults, sep='\n')
    return not site.faults


# Optcast ---------------------------------------------------------------------

def optcast(args: argparse.Namespace) -> bool:
    from tests.optcast.test_programs import SOURCES
    chance, bad = random.Random(args.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, 'optcast')
        run(['cc', '-O2', '-std=gnu11', '-pthread', '-o', program,
             *SOURCES], 'building optcast')
        for number in range(args.rounds):
            fault = optcast_fault(program, chance)
            if fault:
                bad += 1
                print(f'round {number}: {fault}', flush=True)
    print(f'{args.rounds} rounds, {bad} bad')
    return not bad


def optcast_fault(program: Path, chance: random.Random) -> str:
    """What went wrong in one round; empty: nothing."""
    from tests.optcast.test_programs import Run
    ring = chance.random() < 0.3
    with tempfile.TemporaryDirectory() as folder:
        job = Run(program, folder, 3, 1 if ring else 2, ring=ring,
                  more=('-n', '1000000'), timeout=3)
        try:
            job.serve().ask('1M')
            time.sleep(chance.uniform(0, 0.6))
            victims = [*job.clients, *job.servers]
            victim = chance.randrange(len(victims))
            victims[victim].send_signal(chance.choice(
                [signal.SIGKILL, signal.SIGTERM]))
            for number, one in enumerate(job.clients):
                code = one.wait(30)
                text = Path(folder, f'client{number}.err').read_text()
                if number != victim and (code != 1 or text.count('\n') != 1
                                         or not text.startswith('optcast: ')):
                    return f'client {number} ended with {code}: {text!r}'
        except subprocess.TimeoutExpired:
            return 'a client did not end'
        finally:
            job.stop()
    return ''


# Impostors -------------------------------------------------------------------

def impostors(args: argparse.Namespace) -> bool:
    if os.geteuid():
        raise Missing('only root can switch to another user')
    chance = random.Random(args.seed)
    attacks = args.attack or list(impostor.ATTACKS)
    rounds: list[impostor.Round] = []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix='plumbimpostor') as folder:
            one = impostor.play(Path(folder), attacks[number % len(attacks)],
                                chance, args.serving.resolve())
        rounds.append(one)
        print(f'{number} {one.attack}: {"OBEYED" if one.obeyed else "no"}; '
              f'{one.said}', *one.left, flush=True)
    head('attack', 'rounds', 'had the port', 'met an agent', 'obeyed', 'left')
    for attack in attacks:
        some = [r for r in rounds if r.attack == attack]
        row(attack, len(some), sum(r.taken for r in some),
            sum(r.met for r in some), sum(r.obeyed for r in some),
            sum(bool(r.left) for r in some))
    return not any(one.obeyed or one.left for one in rounds)


# The command -----------------------------------------------------------------

def main() -> bool:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True, metavar='PART')
    options = {}
    for name, play in (('service', service), ('nightly', nightly),
                       ('optcast', optcast), ('impostor', impostors)):
        options[name] = one = parts.add_parser(name, epilog=EXIT_CODES)
        one.set_defaults(play=play)
        one.add_argument('--rounds', type=int, default=50)
        one.add_argument('--seed', type=int, default=1)
        if name in ('service', 'nightly'):
            one.add_argument('--dir', type=lambda path: Path(path).absolute(),
                             default=WORK / f'kill-{name}',
                             help='folder of the rounds')
    one = options['service']
    one.add_argument('--family', choices=list(services.PLANS),
                     default='keyvalue')
    one.add_argument('--launcher', choices=list(services.LAUNCHERS),
                     action='append', help='default: all, in turn')
    one.add_argument('--victim', choices=list(services.VICTIMS),
                     action='append', help='default: all, in turn')
    one.add_argument('--load', type=float, default=3, metavar='S',
                     help='how long the clients ask (default: 3)')
    options['nightly'].add_argument('--cluster', action='store_true')
    one = options['impostor']
    one.add_argument('--attack', choices=list(impostor.ATTACKS),
                     action='append', help='default: all, in turn')
    one.add_argument('--serving', type=Path, default=impostor.SERVING,
                     metavar='FOLDER', help='the code that is attacked')
    args = parser.parse_args()
    try:
        return args.play(args)
    except ClusterError as err:
        print(f'kill_rounds: {err}', file=sys.stderr)
        return False


if __name__ == '__main__':
    exit_with(main)
