"""Writes the perflogs of the made-up cluster, as real sessions write them.

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
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cli.demo.cluster import Cluster, Event, TestCase, read_cluster
from config.families import all_metrics
from config.records.columns import MADE_UP
from config.records.writing import Measurement, Session, Value, write_sessions
from config.sessions import judged
from config.sites import topology
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
    #: Options on the command line.
    options: str = '--mode=nightly'


def write_perflogs(folder: Path, seed: int | None = None) -> int:
    """Writes the perflogs of all sessions; returns the number of records.

    :param folder: an empty folder
    :param seed: of the noise; None: that of the cluster
    :raises OSError: it cannot be written
    """
    cluster = read_cluster()
    count = 0
    for system in cluster.nodes:
        rng = random.Random(f'{cluster.seed if seed is None else seed} {system}')
        sessions = []
        for run in runs_of_site(cluster, system, rng):
            machine, text = facts_of_nodes(cluster, system, run.session)
            facts = folder / system / 'machines' / f'{machine}.json'
            facts.parent.mkdir(parents=True, exist_ok=True)
            facts.write_text(text)
            time, level = run.start, math.exp(rng.gauss(0, SESSION_NOISE))
            session = Session(run.name, run.start, options=run.options)
            for job in run.jobs:
                time += datetime.timedelta(seconds=rng.randrange(20, 60))
                session.measurements.append(
                    measurement(system, machine, job, time, rng, level))
            sessions.append(session)
        count += write_sessions(folder, sessions)
    return count


def runs_of_site(cluster: Cluster, system: str, rng: random.Random) -> Iterator[Run]:
    """The sessions of ReFrame of each nightly session: what a flaky node failed is
    measured again on the same nodes."""
    for session in range(cluster.sessions):
        start = datetime.datetime.combine(
            cluster.date_of_session(session), datetime.time(1, rng.randrange(10)),
            datetime.timezone.utc)
        name = f'{rng.getrandbits(24):06x}'
        jobs = jobs_of_session(cluster, system, session, rng)
        yield Run(f'{start:{TIME}}-{name}', start, session, jobs)
        again = [job._replace(events=[]) for job in jobs
                 if job.refusal and job.refusal.is_flaky]
        start += datetime.timedelta(hours=1)
        if again:
            yield Run(f'{start:{TIME}}-{name}01', start, session, again,
                      '-n ' + ' -n '.join(job.case.check for job in again))


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


def measurement(system: str, machine: str, job: Job, time: datetime.datetime,
                rng: random.Random, level: float) -> Measurement:
    """The measurement of a job.

    :param machine: name of the facts of its nodes
    :param level: how many times as slow all of the session is
    """
    case = job.case
    made = Measurement(time, {
        'suite': VERSION, 'commit': MADE_UP, 'reframe': MADE_UP, 'system': system,
        'partition': case.partition, 'environ': case.environ, 'family': case.family,
        'check': case.check, 'params': case.params, 'mode': 'nightly',
        'nodes': topology.record_of_nodes(job.nodes), 'machine': machine,
        'num_nodes': case.num_nodes, 'num_tasks': case.num_nodes * case.tasks_per_node,
        'tasks_per_node': case.tasks_per_node, 'source': MADE_UP,
        'program': case.program, 'version': case.version, 'stack': case.stack})
    if job.refusal:
        made.result, made.fail_phase = 'fail', 'sanity'
        made.fail_reason = f'sanity error: {job.refusal.reason}'
    else:
        made.values = list(values_of_job(job, rng, level))
        if any(value.result == 'fail' for value in made.values):
            made.result, made.fail_phase = 'fail', 'performance'
            made.fail_reason = 'performance error: failed to meet reference(s)'
    return made


def values_of_job(job: Job, rng: random.Random, level: float) -> Iterator[Value]:
    """The values of a job, compared with its true values as references."""
    family, slowdown = job.case.family, math.prod(e.slowdown for e in job.events)
    names = judged.judged_metric_keys(
        family, [(name, size or None) for name, size in job.case.values])
    for (name, size), reference in job.case.values.items():
        ratio = level * math.exp(rng.gauss(0, NOISE)) * (
            1 if name in USAGE else slowdown)
        limit, side = max(TOLERANCE, judged.max_tolerance(family, name) / 4), 'upper'
        if all_metrics()[name]['better'] == 'higher':
            ratio, limit, side = 1 / ratio, -limit, 'lower'
        is_out = (ratio - 1) / limit > 1
        value = Value(name, float(f'{reference * ratio:.5g}'), size or None,
                      reference=float(f'{reference:.5g}'))
        if value.name in names:
            value = value._replace(
                lower=limit if side == 'lower' else None,
                upper=limit if side == 'upper' else None,
                result='fail' if is_out else 'pass')
        yield value
