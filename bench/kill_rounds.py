#!/usr/bin/env python3
"""Kills parts of a job at random moments, and checks that all is cleaned up.

    P=.plumbline/venv/bin/python          # ./plumb env --site devcluster
    $P bench/kill_rounds.py service --rounds 10
    sudo $P bench/kill_rounds.py impostor --rounds 50

service   a job with a store on its first node and clients on three others, on
          a cluster in a box (tests/cluster) with Slurm or with sshd; --family selects
          TaoBench's servers instead, or MPI ranks of SmartRedis as clients.
          Processes, ports, mounts and files are counted afterwards on every node.
          The job must end in time, with one line that names the cause.
impostor  a job with a store on one node. User `nobody` listens on the port of the
          store and answers as one (tests/impostor.py). It must not get the
          password, and nothing of it may be measured.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from common import (
    ROOT,
    Missing,
    option_parser,
    print_table_head,
    print_table_row,
    run_main_and_exit,
)

sys.path.insert(0, str(ROOT / 'tests' / 'cluster'))

import rounds as services
from cluster import WORK, Cluster, ClusterError

from tests import impostor


@contextlib.contextmanager
def keep_cluster_running(folder: Path, ssh: bool) -> Iterator[Cluster]:
    """A cluster whose nodes see the folder.

    :raises Missing: the cluster cannot be started
    """
    cluster = Cluster(folder / 'box')
    try:
        cluster.up(share=[folder], ssh=ssh)
    except ClusterError as err:
        raise Missing(str(err)) from None
    try:
        yield cluster
    finally:
        cluster.down()


def require_folders(*names: str) -> None:
    """:raises Missing: set-up has not made one of these folders"""
    for name in names:
        if not (WORK / name).exists():
            raise Missing(f'{WORK / name} does not exist; ./plumb env '
                          '--site devcluster makes it')


# Jobs with services ----------------------------------------------------------

def print_service_table(rounds: list[services.Round]) -> None:
    """A row for each victim and launcher."""
    def median_and_max_text(seconds: list[float]) -> str:
        return f'{statistics.median(seconds):.1f}, {max(seconds):.1f}'

    print_table_head('victim', 'launcher', 'rounds', 'ended after (s)',
                     'clean after (s)', 'data folders', 'faults')
    groups: dict[tuple[str, str], list[services.Round]] = {}
    for entry in rounds:
        groups.setdefault((entry.victim, entry.launcher), []).append(entry)
    for titles, group in sorted(groups.items()):
        print_table_row(*titles, len(group),
                        median_and_max_text([r.ended for r in group]),
                        median_and_max_text([r.clean for r in group]),
                        sum(bool(r.data) for r in group),
                        sum(bool(r.faults) for r in group))


def run_service_kill_benchmark(args: argparse.Namespace) -> bool:
    launchers = args.launcher or list(services.LAUNCHERS)
    require_folders('stores', *(services.MPI[name][0] for name in launchers
                                if name in services.MPI))
    args.dir.mkdir(parents=True, exist_ok=True)
    (services.build_ranks if args.family in services.OF_RANKS
     else services.build)(args.dir)
    rounds: list[services.Round] = []
    good = True
    for ssh in (False, True):
        names = [name for name in launchers if (name in services.SSH) == ssh]
        if names:
            with keep_cluster_running(args.dir, ssh) as cluster:
                good &= run_service_kill_rounds(args, cluster, names, rounds)
    print_service_table(rounds)
    return good


def run_service_kill_rounds(args: argparse.Namespace, cluster: Cluster,
                            launchers: list[str], all_rounds: list[services.Round]
                            ) -> bool:
    """The rounds on one cluster, each victim in turn; appended to all_rounds.

    :returns: whether nothing was left or wrong.
    """
    rng = random.Random(args.seed)
    plan_of = services.PLANS[args.family]
    # Only an MPI program has a launcher of its own.
    victims = args.victim or [
        victim for victim in services.VICTIMS
        if victim != 'ranks' or args.family in services.OF_RANKS]
    lasts, bad = {}, []

    def run_without_kill() -> None:
        for launcher in launchers:
            lasts[launcher], verdict = services.undisturbed(
                cluster, launcher, plan_of(args.load, args.dir, launcher),
                args.dir / 'undisturbed')
            print(f'undisturbed, {launcher}: {lasts[launcher]:.1f} s '
                  f'{verdict}', flush=True)
            if verdict:
                bad.append(f'undisturbed, {launcher}: {verdict}')

    run_without_kill()
    before = services.seen(cluster)
    pairs = [(launcher, victim) for victim in victims for launcher in launchers
             if victim not in services.WITHOUT.get(launcher, ())]
    # All pairs once, then all again: a campaign that is cut short has all of them.
    ends = time.monotonic() + args.minutes * 60 if args.minutes else float('inf')
    counts = dict.fromkeys(pairs, 0)
    rounds: list[services.Round] = []
    while (left := [pair for pair in pairs if counts[pair] < args.rounds]
           ) and time.monotonic() < ends:
        launcher, victim = min(left, key=lambda pair: counts[pair])
        # Only a job that lasts reaches its time limit.
        seconds = 120 if victim == 'timeout' else args.load
        entry = services.play(cluster, launcher, victim,
                              plan_of(seconds, args.dir, launcher),
                              args.dir / f'round-{launcher}-{len(rounds)}',
                              rng.uniform(0, lasts[launcher]), rng)
        if not entry.killed and not entry.faults:
            continue                    # too late: the victim had ended
        counts[launcher, victim] += 1
        rounds.append(entry)
        print(
            f'{len(rounds)} {launcher} {victim} {entry.killed!r} '
            f'at {entry.at:.1f} ended {entry.ended:.1f} '
            f'clean {entry.clean:.1f} {entry.state}: '
            f'{entry.verdict or "passed"}',
            *entry.data,
            *entry.faults,
            sep='\n    ',
            flush=True,
        )
    # Its servers remove data of killed ones.
    run_without_kill()
    bad += [f'left in the end: {node}: {entry}'
            for node, all_of_it in services.seen(cluster).items()
            for entry in all_of_it - before[node]
            if not any(path in entry for path in services.FOREIGN)]
    print(*bad, sep='\n')
    all_rounds += rounds
    return not bad and not any(r.faults for r in rounds)


# Impostors -------------------------------------------------------------------

def run_impostor_attacks(args: argparse.Namespace) -> bool:
    if os.geteuid():
        raise Missing('only root can switch to another user')
    require_folders('stores')
    rng = random.Random(args.seed)
    attacks = args.attack or list(impostor.ATTACKS)
    args.dir.mkdir(parents=True, exist_ok=True)
    services.build(args.dir)
    rounds: list[impostor.Round] = []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix='plumbimpostor') as folder:
            entry = impostor.play(
                Path(folder), attacks[number % len(attacks)],
                services.load(2, args.dir, 'none'), rng
            )
        rounds.append(entry)
        print(f'{number} {entry.attack}: {entry.outcome}', *entry.left, flush=True)
    print_table_head('attack', 'rounds', 'had the port', 'got a connection',
                     'got the password', 'measured', 'left')
    for attack in attacks:
        group = [r for r in rounds if r.attack == attack]
        print_table_row(attack, len(group), *(
            sum(bool(getattr(r, name)) for r in group)
            for name in ('taken', 'met', 'password', 'measured', 'left')))
    # The password of a store that was killed is of no use.
    return not any(r.measured or r.left or r.password and r.attack != 'successor'
                   for r in rounds)


# The command -----------------------------------------------------------------

def main() -> bool:
    parser = option_parser(__doc__)
    parts = parser.add_subparsers(required=True, metavar='PART')
    options = {}
    for name, play in (('service', run_service_kill_benchmark),
                       ('impostor', run_impostor_attacks)):
        options[name] = subparser = parts.add_parser(name)
        subparser.set_defaults(play=play)
        subparser.add_argument('--rounds', type=int, default=10,
                               help='service: of each launcher and victim')
        subparser.add_argument('--seed', type=int, default=1)
        subparser.add_argument('--dir', type=lambda path: Path(path).absolute(),
                               default=WORK / f'kill-{name}',
                               help='folder of the rounds')
    subparser = options['service']
    subparser.add_argument('--minutes', type=float, default=0, metavar='M',
                           help='longest time on each cluster (default: no limit)')
    subparser.add_argument('--family', choices=list(services.PLANS),
                           default='keyvalue')
    subparser.add_argument('--launcher', choices=list(services.LAUNCHERS),
                           action='append', help='default: all, in turn')
    subparser.add_argument('--victim', choices=list(services.VICTIMS),
                           action='append', help='default: all, in turn')
    subparser.add_argument(
        '--load',
        type=float,
        default=3,
        metavar='S',
        help='seconds of the workload of the clients (default: 3)',
    )
    subparser = options['impostor']
    subparser.add_argument('--attack', choices=list(impostor.ATTACKS),
                           action='append', help='default: all, in turn')
    args = parser.parse_args()
    try:
        return args.play(args)
    except ClusterError as err:
        print(f'kill_rounds: {err}', file=sys.stderr)
        return False


if __name__ == '__main__':
    run_main_and_exit(main)
