"""Writes the perflogs of the made-up cluster, by the code that real sessions use.

The noise comes from a generator with a fixed seed, so the records are the same each
time. Everything is labelled: the names of the sites begin with `made-up`, and each
record has the source MADE_UP, of which no reference can be made.
"""
from __future__ import annotations

import datetime
import hashlib
import json
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cli.demo.cluster import Cluster, Event, TestCase, read_cluster
from config.families import all_metrics
from config.records import perflog
from config.records.columns import MADE_UP, schema_number_and_columns
from config.sessions import judged
from config.sessions.runner import REASONS
from config.version import VERSION

#: Noise of a value, and of all values of a session; standard deviations of logs.
NOISE, SESSION_NOISE = 0.012, 0.003
#: Smallest tolerance of the references in the records, as a fraction.
TOLERANCE = 0.10
#: Metrics that no event changes.
USAGE = ('wall_time', 'user_time', 'system_time')
#: Form of the time at the beginning of a session's name.
TIME = '%Y%m%dT%H%M%SZ'


class Job(NamedTuple):
    """A measurement of a test case."""
    case: TestCase
    nodes: list[str]
    events: list[Event]

    @property
    def refusal(self) -> Event | None:
        """The event because of which a guard refuses its values."""
        return next((event for event in self.events if event.guard), None)


class Run(NamedTuple):
    """A session of ReFrame."""
    name: str
    start: datetime.datetime
    #: Number of its nightly session.
    session: int
    jobs: list[Job]


def write_perflogs(folder: Path, seed: int | None = None) -> int:
    """Writes the perflogs of all sessions; returns the number of records.

    :param folder: an empty folder
    :param seed: of the noise; None: that of the cluster
    :raises OSError: it cannot be written
    :raises LockError: another process writes there
    """
    cluster = read_cluster()
    schema, names = schema_number_and_columns()
    rows: defaultdict[Path, list[list[Any]]] = defaultdict(list)
    reasons: defaultdict[Path, str] = defaultdict(str)
    for system in cluster.nodes:
        rng = random.Random(f'{cluster.seed if seed is None else seed} {system}')
        for run in runs_of_site(cluster, system, rng):
            machine, text = facts_of_nodes(cluster, system, run.session)
            perflog.save_files_if_absent(folder / system / 'machines', {machine: text})
            time, level = run.start, math.exp(rng.gauss(0, SESSION_NOISE))
            for job in run.jobs:
                time += datetime.timedelta(seconds=rng.randrange(20, 60))
                common = common_columns(system, job) | {
                    'schema': schema, 'run': run.name, 'machine': machine,
                    'time': f'{time:%Y-%m-%dT%H:%M:%SZ}'}
                rows[folder / system / job.case.partition
                     / f'{job.case.check}.v{schema}.csv'] += [
                    [{**common, **value}.get(column) for column in names]
                    for value in value_columns(job, rng, level)]
                if job.refusal:
                    reasons[folder / system / 'sessions' / (run.name + REASONS)] += (
                        reason_line(common, job.refusal))
    for path, lines in rows.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        perflog.append_records(path, list(names), lines)
    for path, text in reasons.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return sum(map(len, rows.values()))


def runs_of_site(cluster: Cluster, system: str, rng: random.Random) -> Iterator[Run]:
    """The sessions of ReFrame of each nightly session: what a flaky node failed is
    measured again on the same nodes."""
    for session in range(cluster.sessions):
        start = datetime.datetime.combine(
            cluster.date_of_session(session), datetime.time(1, rng.randrange(10)))
        name = f'{rng.getrandbits(24):06x}'
        jobs = jobs_of_session(cluster, system, session, rng)
        yield Run(f'{start:{TIME}}-{name}', start, session, jobs)
        again = [job._replace(events=[]) for job in jobs
                 if job.refusal and job.refusal.is_flaky]
        start += datetime.timedelta(hours=1)
        if again:
            yield Run(f'{start:{TIME}}-{name}01', start, session, again)


def jobs_of_session(cluster: Cluster, system: str, session: int, rng: random.Random
                    ) -> list[Job]:
    """The jobs of a session of a site, each on any nodes."""
    jobs = []
    for case in cluster.test_cases[system]:
        nodes = sorted(rng.sample(cluster.nodes[system][case.partition],
                                  case.num_nodes))
        jobs.append(Job(case, nodes, [
            event for event in cluster.events
            if event.system == system and session in event.sessions
            and event.family in ('', case.family) and len(nodes) >= event.min_nodes
            and (not event.node or event.node in nodes)]))
    return jobs


def facts_of_nodes(cluster: Cluster, system: str, session: int) -> tuple[str, str]:
    """Name and text of the facts of a site's nodes in a session."""
    facts = dict(cluster.facts)
    for event in cluster.events:
        if event.kernel and event.system == system and session in event.sessions:
            facts['kernel'] = event.kernel
    text = json.dumps(facts, indent=1, sort_keys=True) + '\n'
    return hashlib.sha256(text.encode()).hexdigest()[:12], text


def common_columns(system: str, job: Job) -> dict[str, Any]:
    """The columns that all records of a job share, apart from its session."""
    case = job.case
    return {
        'suite': VERSION, 'commit': MADE_UP, 'reframe': MADE_UP, 'system': system,
        'partition': case.partition, 'environ': case.environ, 'family': case.family,
        'check': case.check, 'params': case.params,
        'case': hashlib.sha256(f'{case.check} {case.params}'.encode()).hexdigest()[:8],
        'nodes': ' '.join(job.nodes), 'num_nodes': case.num_nodes,
        'num_tasks': case.num_nodes * case.tasks_per_node,
        'tasks_per_node': case.tasks_per_node, 'source': MADE_UP,
        'program': case.program, 'version': case.version, 'stack': case.stack,
        'emulated': 0, 'speed': '-'}


def value_columns(job: Job, rng: random.Random, level: float
                  ) -> Iterator[dict[str, Any]]:
    """The columns of each record of a job, compared with its true value as reference.

    :param level: how many times as slow all of the session is
    """
    if job.refusal:
        yield {'repetition': 0, 'metric': 'completed', 'value': 0.0, 'unit': '1',
               'better': 'higher', 'reference': 1.0, 'lower': 0.0, 'result': 'fail',
               'guard': job.refusal.guard}
        return
    family, slowdown = job.case.family, math.prod(e.slowdown for e in job.events)
    names = judged.judged_metric_keys(
        family, [(name, size or None) for name, size in job.case.values])
    for (name, size), reference in job.case.values.items():
        row, key = all_metrics()[name], judged.metric_key(name, size or None)
        ratio = level * math.exp(rng.gauss(0, NOISE)) * (
            1 if name in USAGE else slowdown)
        limit, side = max(TOLERANCE, judged.max_tolerance(family, name) / 4), 'upper'
        if row['better'] == 'higher':
            ratio, limit, side = 1 / ratio, -limit, 'lower'
        is_out = (ratio - 1) / limit > 1
        yield {'repetition': 1, 'metric': name, 'point': f'{size} B' * bool(size),
               'value': float(f'{reference * ratio:.5g}'), 'unit': row['unit'],
               'better': row['better'], 'reference': float(f'{reference:.5g}'),
               **({side: limit, 'result': 'fail' if is_out else 'pass'}
                  if key in names else {'result': 'no_reference'})}


def reason_line(common: dict[str, Any], event: Event) -> str:
    """The line of a refused test case in the file of reasons of its session."""
    return json.dumps({name: common[name] for name in ('partition', 'environ', 'case')}
                      | {'guard': event.guard, 'reason': event.reason}) + '\n'
