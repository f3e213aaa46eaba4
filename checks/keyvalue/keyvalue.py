"""In-memory stores: what a server gives to clients on its own node."""
from __future__ import annotations

import shlex
from typing import Any

import reframe as rfm
import reframe.core.runtime as rt
from reframe.core.builtins import (
    fixture,
    parameter,
    run_after,
    run_before,
    variable,
)
from reframe.core.launchers.local import LocalLauncher

from ..lib import guards, metrics
from ..lib.base import Benchmark, Programs
from ..lib.parsers import ParseError
from ..lib.parsers.resp_benchmark import parse

#: Stores that speak RESP and bring a load generator.
RESP = ('redis', 'valkey')


def offered() -> list[str]:
    """Stores that some environment of this system has."""
    here = {f for part in rt.runtime().system.partitions
            for env in part.environs for f in env.features}
    return [store for store in RESP if store in here]


class StorePrograms(Programs):
    """The stores of an environment."""

    family = 'keyvalue'


class StoreBundled(Benchmark):
    """A store under the load generator that comes with it, on one node.

    Over a unix socket: the figure is the server's and the client's share of
    the CPUs, without a network.
    """

    family = 'keyvalue'

    #: The store.
    program = parameter(offered())

    #: What is asked of it.
    operation = parameter(['get', 'set'])

    #: Size of a value. Unit: bytes.
    payload = variable(int, value=64)

    #: Connections at once.
    connections = variable(int, value=50)

    #: Operations in all.
    requests = variable(int, value=200_000)

    programs = fixture(StorePrograms, scope='environment')
    sourcesdir = 'src'

    @run_after('init')
    def ask_for_what_it_needs(self) -> None:
        self.valid_systems = ['+nodes_1']
        self.valid_prog_environs = [f'+{self.program}']
        self.tags = {'quick', 'nightly', 'full', 'bringup', self.family}
        self.descr = f'{self.program} under its own load generator'

    @run_after('setup')
    def one_task(self) -> None:
        self.num_tasks = self.num_tasks_per_node = 1

    @run_before('run')
    def start_without_a_launcher(self) -> None:
        # The script is a server and its clients, to be spread over the
        # CPUs of the job: not one rank on one core.
        self.job.launcher = LocalLauncher()
        # Without a prefix: the system's own.
        prefix = self.programs.origin(self.program).get('prefix', '/usr')
        self.executable = './bundled.sh'
        self.executable_opts = [
            self.program, shlex.quote(f'{prefix}/bin'), self.operation,
            str(self.payload), str(self.connections), str(self.requests)]

    def more_params(self) -> dict[str, Any]:
        return {'connections': self.connections, 'payload': self.payload}

    def planned_figures(self) -> list[str]:
        return [metrics.key(name, self.payload) for name in (
            'operations', 'latency', 'latency_p50', 'latency_p99')]

    def figures_of(self, run: guards.Run) -> dict[str, float]:
        try:
            records = parse(run.out)
        except ParseError as err:
            guards.refuse('table', f'{run.name}.out:{err}')
        self.version = records[0].version
        counts = {r.metric: r.value for r in records if r.unit == '1'}
        self.assert_served(run, counts)
        return {metrics.key(r.metric, self.payload): r.value
                for r in records if r.metric not in counts}

    def assert_served(self, run: guards.Run, counts: dict[str, float]
                      ) -> None:
        """The store did all that the client says it was given."""
        if counts.get('calls') != self.requests:
            guards.refuse('calls', f'{run.name}.out: {self.requests} '
                          f'{self.operation}s asked for, the store served '
                          f'{counts.get("calls", 0):g}')
        if counts['misses'] or counts['evicted']:
            guards.refuse('misses', f'{run.name}.out: {counts["misses"]:g} '
                          f'keys not found, {counts["evicted"]:g} evicted: '
                          'the store has too little memory')


if offered():
    rfm.simple_test(StoreBundled)
