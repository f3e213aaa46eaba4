#!/usr/bin/env python3
"""Kills parts of jobs with services: is all cleaned up, the cause named?

    P=.plumbline/venv/bin/python          # ./plumb env --site devcluster
    $P bench/kill_rounds.py --rounds 100

Starts a cluster in a box (tests/cluster) and plays rounds: a job with a store
on its first node and clients on three others, in which something is killed at
a random time. --family: TaoBench's servers instead of the store, or MPI ranks
of SmartRedis' throughput, inference or aggregation instead of the clients.
Afterwards processes, listening ports, mounts and files are counted on every
node, and the job must have ended in time with one line that names the cause.
Prints a Markdown table.

Exit status: 0 all is well, 1 something was left, late or not reported, 2
something needed is missing.
"""
from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests' / 'cluster')]

from cluster import WORK, Cluster, ClusterError  # noqa: E402
from rounds import (  # noqa: E402
    FOREIGN,
    LAUNCHERS,
    MPI,
    OF_RANKS,
    PLANS,
    VICTIMS,
    Round,
    build,
    build_ranks,
    play,
    seen,
    undisturbed,
)


def table(rounds: list[Round]) -> list[str]:
    """A row for each victim and launcher."""
    rows = ['| victim | launcher | rounds | at (s) | ended (s) | clean (s) '
            '| told by the run | by the job | passed | data | faults |',
            '|---|---|---|---|---|---|---|---|---|---|---|']
    for victim in VICTIMS:
        for launcher in LAUNCHERS:
            some = [r for r in rounds
                    if (r.victim, r.launcher) == (victim, launcher)]
            if not some:
                continue
            ended, clean = ([getattr(r, name) for r in some]
                            for name in ('ended', 'clean'))
            told = sum(bool(r.lines) for r in some)
            passed = sum(not r.verdict for r in some)
            rows.append(
                f'| {victim} | {launcher} | {len(some)} '
                f'| {min(r.at for r in some):.1f} to '
                f'{max(r.at for r in some):.1f} '
                f'| {statistics.median(ended):.1f}, {max(ended):.1f} '
                f'| {statistics.median(clean):.1f}, {max(clean):.1f} '
                f'| {told} | {len(some) - told - passed} | {passed} '
                f'| {sum(bool(r.data) for r in some)} '
                f'| {sum(bool(r.faults) for r in some)} |')
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--family', choices=list(PLANS), default='keyvalue')
    parser.add_argument('--rounds', type=int, default=100)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--launcher', choices=[*LAUNCHERS, 'both'],
                        default='both')
    parser.add_argument('--victim', choices=list(VICTIMS), action='append')
    parser.add_argument('--load', type=float, default=3, metavar='S',
                        help='how long the clients ask (default: 3)')
    parser.add_argument('--dir', type=Path, default=WORK / 'kill-rounds',
                        help='folder of cluster and jobs')
    args = parser.parse_args()
    for need in ('stores', *(mpi for mpi, _ in MPI.values())):
        if not (WORK / need).exists():
            print(f'kill_rounds: no {WORK / need}; ./plumb env --site '
                  'devcluster makes it', file=sys.stderr)
            return 2
    # SIGTERM is handled like Ctrl-C: the cluster is stopped first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cluster = Cluster(args.dir / 'box')
    args.dir.mkdir(parents=True, exist_ok=True)
    try:
        cluster.up(share=[args.dir])
    except ClusterError as err:
        print(f'kill_rounds: {err}', file=sys.stderr)
        return 2
    try:
        (build_ranks if args.family in OF_RANKS else build)(args.dir)
        return rounds_of(args, cluster)
    except ClusterError as err:
        print(f'kill_rounds: {err}', file=sys.stderr)
        return 1
    finally:
        cluster.down()


def rounds_of(args: argparse.Namespace, cluster: Cluster) -> int:
    chance = random.Random(args.seed)
    launchers = list(LAUNCHERS) if args.launcher == 'both' \
        else [args.launcher]
    plans = {launcher: PLANS[args.family](args.load, args.dir, launcher)
             for launcher in launchers}
    # Only an MPI program has a launcher of its own.
    victims = args.victim or [victim for victim in VICTIMS if victim != 'ranks'
                              or args.family in OF_RANKS]
    lasts, bad = {}, []
    for launcher, plan in plans.items():
        lasts[launcher], verdict = undisturbed(cluster, launcher, plan,
                                               args.dir / 'undisturbed')
        bad += [f'undisturbed, {launcher}: {verdict}'] if verdict else []
        print(f'undisturbed, {launcher}: {lasts[launcher]:.1f} s {verdict}')
    before = seen(cluster)
    rounds: list[Round] = []
    while len(rounds) < args.rounds:
        number = len(rounds)
        launcher = launchers[number % len(launchers)]
        victim = victims[number // len(launchers) % len(victims)]
        one = play(cluster, launcher, victim, plans[launcher],
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
    for launcher, plan in plans.items():
        _, verdict = undisturbed(cluster, launcher, plan,
                                 args.dir / 'undisturbed')
        bad += [f'undisturbed, {launcher}: {verdict}'] if verdict else []
    bad += [f'left in the end: {node}: {one}'
            for node, all_of_it in seen(cluster).items()
            for one in all_of_it - before[node]
            if not any(path in one for path in FOREIGN)]
    print(*table(rounds), *bad, sep='\n')
    return 1 if bad or any(r.faults for r in rounds) else 0


if __name__ == '__main__':
    sys.exit(main())
