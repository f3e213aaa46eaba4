"""The made-up cluster of cluster.yaml, as data."""
from __future__ import annotations

import datetime
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

from config import strict
from config.families import all_metrics
from config.sites.topology import nodes_of_record


class TestCase(NamedTuple):
    """A test case, with the names that the real check gives it."""
    family: str
    check: str
    params: str
    partition: str
    environ: str
    program: str
    version: str
    stack: str
    num_nodes: int
    tasks_per_node: int
    #: (metric, point in B; 0: none) -> the value if nothing goes wrong.
    values: dict[tuple[str, int], float]


class Event(NamedTuple):
    """Something that goes wrong on a site, in some of its sessions."""
    name: str
    system: str
    #: Numbers of the sessions, from 0.
    sessions: list[int]
    lasts: bool
    #: Affected are jobs of at least so many nodes on this node, and of this family;
    #: '': any.
    node: str = ''
    min_nodes: int = 1
    family: str = ''
    #: How many times as slow they are.
    slowdown: float = 1.0
    kernel: str = ''
    #: The guard that refuses their values, and why; '': none does.
    guard: str = ''
    reason: str = ''
    #: Whether they pass when the nightly session measures them again.
    is_flaky: bool = False


class Cluster(NamedTuple):
    """The cluster, and what goes wrong in it."""
    first: datetime.date
    sessions: int
    seed: int
    #: Site -> partition -> nodes.
    nodes: dict[str, dict[str, list[str]]]
    facts: dict[str, str]
    events: list[Event]
    #: Site -> its test cases, in the order in which they run.
    test_cases: dict[str, list[TestCase]]

    def date_of_session(self, session: int) -> datetime.date:
        """The date of a nightly session, by its number."""
        return self.first + datetime.timedelta(days=session)


@functools.cache
def read_cluster() -> Cluster:
    """The cluster of cluster.yaml."""
    data = strict.load_trusted_yaml(Path(__file__).with_name('cluster.yaml'))
    number = data['sessions']['number']
    nodes = {system: {partition: nodes_of_record(text)
                      for partition, text in site['nodes'].items()}
             for system, site in data['sites'].items()}
    events = []
    for row in data['events']:
        first, *rest = row['sessions']
        lasts = rest == ['..']
        events.append(Event(**{**row, 'lasts': lasts, 'sessions': (
            list(range(first, number)) if lasts else row['sessions'])}))
    return Cluster(
        data['sessions']['first'], number, data['sessions']['seed'], nodes,
        data['facts'], events, {
            system: [case for family, rows in data['families'].items()
                     if rows['columns']['partition'] in nodes[system]
                     for case in test_cases_of_family(family, rows, site['network'])]
            for system, site in data['sites'].items()})


def test_cases_of_family(family: str, rows: dict[str, Any], network: float
                         ) -> list[TestCase]:
    """The test cases of a family on a site.

    :param network: how many times as slow jobs of several nodes are
    """
    made = []
    for check, num_nodes, ranks, latency, bandwidth, params in rows['test_cases']:
        [program] = re.findall(r'(?:program|store)=(\S+)', params)
        times = {size: (latency + size / bandwidth) * (network if num_nodes > 1 else 1)
                 for size in rows['sizes']}
        scale = rows['metrics'].get(program) or rows['metrics']['other']
        seconds = len(times) + num_nodes / 2
        made.append(TestCase(
            family=family, check=check, params=params, program=program,
            num_nodes=num_nodes, tasks_per_node=ranks,
            **{'environ': program, **rows['columns']},
            values={(metric, size): factor * (
                size / time if all_metrics()[metric]['better'] == 'higher' else time)
                for metric, factor in scale.items() for size, time in times.items()} | {
                    ('wall_time', 0): seconds,
                    ('user_time', 0): 0.8 * seconds * ranks,
                    ('system_time', 0): 0.1 * seconds * ranks}))
    return made
