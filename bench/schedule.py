#!/usr/bin/env python3
"""Longest first on a large cluster, replayed; needs a checkout that is set up.

    bench/schedule.py                       alps' mode nightly on 512 nodes
    bench/schedule.py --site lumi --mode full --nodes 128 --seeds 3

A site's real cases (nodes, time limits, families: cli/cases.py) on a cluster
that exists in this process alone: Slurm's queue, first come first served with
EASY backfill, which goes by time limits; ReFrame in front of it, which has
`max_jobs` jobs there at a time and looks every ten seconds for what has ended.

The times are drawn, with fixed seeds: a job of a limit of 15 minutes or less
takes 90 s (log-normal, sigma 0.8), one with a longer limit half of it, for it
has room for a second attempt; what is built for a family in an environment 60
s (sigma 0.5) on one node. Tonight differs from what the perflogs know by 10 %
(sigma), and every twentieth case has not run yet: it is ordered by its limit.

Prints Markdown: makespans in minutes, and over the least that is possible,
which is the longest of: the longest case behind its build, node-hours over
nodes, and with `max_jobs` the hours of all jobs over it. Then nights under a
budget: until each case has had its turn, and the bound (config/ordering.py).
"""
from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from config import ordering  # noqa: E402

#: Seconds between two looks of ReFrame (poll_rate_min).
POLL = 10.0
#: Jobs that backfill looks at (Slurm's bf_max_job_test).
DEPTH = 500
#: Slurm's time limit of a build, and of a case with no more than that.
BUILD_LIMIT, SHORT = 3600.0, 900.0
MAX_JOBS = (8, 32, 128, 0)


@dataclass(frozen=True, eq=False)
class Job:
    """A case, or a build."""
    nodes: int
    #: What it takes tonight, what is expected of it, and its limit. Unit: s.
    seconds: float
    expected: float
    limit: float
    #: Builds that must have ended.
    needs: tuple[Job, ...] = ()


def makespan(jobs: Sequence[Job], nodes: int, max_jobs: int = 0,
             poll: float = POLL) -> float:
    """Seconds until all have ended.

    :param jobs: in the order in which ReFrame submits them
    :param max_jobs: in Slurm at a time; 0: all
    """
    waiting, queue = list(jobs), []
    running: list[tuple[float, int, Job]] = []      # end, number, job
    starts: dict[Job, float] = {}
    ended: list[Job] = []                           # not noticed yet
    done: set[Job] = set()
    free, now, look, count = nodes, 0.0, 0.0, 0
    while waiting or queue or running:
        if now >= look:                             # ReFrame looks
            done.update(ended)
            ended.clear()
            room = (max_jobs or len(jobs)) - len(queue) - len(running)
            ready = [job for job in waiting
                     if done.issuperset(job.needs)][:max(room, 0)]
            queue += ready
            gone = set(ready)
            waiting = [job for job in waiting if job not in gone]
            look = now + poll
        for job in eligible(queue, running, starts, free, now):
            queue.remove(job)
            free -= job.nodes
            starts[job] = now
            count += 1
            heapq.heappush(running, (now + job.seconds, count, job))
        now = min([look] * bool(waiting) + [one[0] for one in running[:1]])
        while running and running[0][0] <= now:
            *_, job = heapq.heappop(running)
            free += job.nodes
            ended.append(job)
    return now


def eligible(queue: Sequence[Job], running: Iterable[tuple[float, int, Job]],
             starts: dict[Job, float], free: int, now: float) -> list[Job]:
    """Jobs that start now: the first ones while there is room, and then those
    that do not delay the first that has to wait."""
    chosen: list[Job] = []
    for job in queue:
        if job.nodes > free:
            break
        free -= job.nodes
        chosen.append(job)
    at = len(chosen)
    if at == len(queue):
        return chosen
    # When the first that waits has room, by the limits, and what is over.
    there, shadow = free, now
    for end, size in sorted(
            [(starts[one] + one.limit, one.nodes) for *_, one in running]
            + [(now + one.limit, one.nodes) for one in chosen]):
        if there >= queue[at].nodes:
            break
        there, shadow = there + size, end
    over = there - queue[at].nodes
    for job in queue[at + 1:at + 1 + DEPTH]:
        in_time = now + job.limit <= shadow
        if job.nodes <= free and (in_time or job.nodes <= over):
            free -= job.nodes
            over -= 0 if in_time else job.nodes
            chosen.append(job)
    return chosen


def least(jobs: Iterable[Job], nodes: int, max_jobs: int = 0) -> float:
    """No schedule takes less. Unit: s."""
    jobs = list(jobs)
    return max(
        max(job.seconds + max((need.seconds for need in job.needs), default=0)
            for job in jobs),
        sum(job.nodes * job.seconds for job in jobs) / nodes,
        sum(job.seconds for job in jobs) / max_jobs if max_jobs else 0)


def night(cases: Iterable[dict[str, Any]], seed: int) -> list[Job]:
    """The jobs of a night in ReFrame's own order, builds before their first
    case."""
    draw = random.Random(seed)
    builds: dict[tuple[str, str], Job] = {}
    jobs = []
    for case in cases:
        place = case['where'], case['family']
        if place not in builds:
            builds[place] = Job(1, 60 * draw.lognormvariate(0, 0.5), 0.0,
                                BUILD_LIMIT)
            jobs.append(builds[place])
        limit = case['limit']
        usual = min(limit, 90 * draw.lognormvariate(0, 0.8)
                    if limit <= SHORT else limit / 2)
        jobs.append(Job(
            case['nodes'], min(limit, usual * draw.lognormvariate(0, 0.1)),
            limit if draw.random() < 0.05 else usual, limit,
            (builds[place],)))
    return jobs


def longest_first(jobs: Sequence[Job]) -> list[Job]:
    """As config/session.py hands them to ReFrame."""
    return ordering.longest_first(jobs, lambda job: job.expected,
                                  lambda job: job.needs)


def nights_taken(cases: Sequence[ordering.Case], budget: float
                 ) -> tuple[int, float]:
    """Nights until each case has run that had never run before; what the
    nights used of the budget, in the mean."""
    last: dict[ordering.Key, str] = {}
    used = []
    for number in range(1, 10_000):
        now, _ = ordering.select(cases, budget, last)
        used.append(sum(case.hours for case in now) / budget)
        last |= {case.key: f'{number:05}' for case in now}
        if all(case.key in last or case.hours > budget for case in cases):
            return number, statistics.fmean(used)
    return 0, 0.0


def main() -> int:
    cmd = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    cmd.add_argument('--site', default='alps')
    cmd.add_argument('--mode', default='nightly')
    cmd.add_argument('--nodes', type=int, default=512)
    cmd.add_argument('--seeds', type=int, default=5)
    args = cmd.parse_args()
    from cli.commands import site_folder
    from cli.sites import ask_reframe
    answer = ask_reframe(site_folder(args.site))
    if 'error' in answer:
        print(answer['error'], file=sys.stderr)
        return 2
    # All partitions as one, of so many nodes.
    cases = [case for case in answer['cases'] if args.mode in case['modes']]
    if not cases or max(case['nodes'] for case in cases) > args.nodes:
        print(f'no case of mode {args.mode}, or one of more nodes than '
              f'{args.nodes}', file=sys.stderr)
        return 2
    made = [night(cases, seed) for seed in range(args.seeds)]
    hours = statistics.median(sum(job.nodes * job.seconds for job in jobs)
                              for jobs in made) / 3600
    print(f'{args.site}, mode {args.mode}: {len(cases)} cases and '
          f'{len(made[0]) - len(cases)} builds, {hours:.1f} node-hours, on '
          f'{args.nodes} nodes; median of {args.seeds} nights\n')
    print("| max_jobs | least | ReFrame's order | over the least | longest "
          'first | over the least | over path and area alone |\n'
          '|---|---|---|---|---|---|---|')
    for jobs_at_once in MAX_JOBS:
        rows = []
        for jobs in made:
            low = least(jobs, args.nodes, jobs_at_once)
            own = makespan(jobs, args.nodes, jobs_at_once)
            ours = makespan(longest_first(jobs), args.nodes, jobs_at_once)
            rows.append((low / 60, own / 60, own / low, ours / 60, ours / low,
                         ours / least(jobs, args.nodes)))
        row = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f'| {jobs_at_once or "all"} | {row[0]:.1f} min | {row[1]:.1f} '
              f'min | {row[2]:.2f} | {row[3]:.1f} min | {row[4]:.2f} | '
              f'{row[5]:.2f} |')
    costs = [ordering.Case(('', '', str(number)), job.nodes, job.seconds)
             for number, job in enumerate(made[0]) if job.needs]
    every = sum(case.hours for case in costs)
    print('\n| budget a night | nights until each has run | bound | area | '
          'of the budget used |\n|---|---|---|---|---|')
    for part in (1, 2, 5, 20):
        budget = every / part
        took, used = nights_taken(costs, budget)
        print(f'| {budget:.1f} node-hours (1/{part}) | {took} | '
              f'{ordering.nights(costs, budget)} | '
              f'{math.ceil(every / budget - 1e-9)} | {used:.1%} |')
    return 0


if __name__ == '__main__':
    sys.exit(main())
