"""Services: servers that a check starts inside its job (DESIGN, contract 3).

A check says in one block what it needs, `plan`; everything else (nodes and
CPUs, ports and addresses, passwords and certificates, readiness, watching,
the end) follows, see :mod:`checks.serving`.
"""
from __future__ import annotations

import contextlib
import functools
import shlex
import sys
from pathlib import Path

from reframe.core.builtins import run_after, run_before
from reframe.core.launchers.local import LocalLauncher

from ..lib import features, guards
from ..lib.base import Benchmark
from ..lib.parsers import ParseError
from ..spack import stack
from . import private
from .parser import Services, split
from .plan import Plan

SERVING = Path(__file__).resolve().parent

#: The plan of a job, in its stage directory.
PLAN = 'service.json'


@functools.cache
def without_dead_secrets() -> Path:
    """Where runs note their stage directories; what dead ones left there is
    gone."""
    registry = stack.work() / 'services'
    private.sweep(registry)
    return registry


class ServiceBenchmark(Benchmark, special=True):
    """Clients that load servers which live as long as the job.

    After a run `services` says what was started where, and what the servers
    counted around every step.
    """

    def plan(self) -> Plan:
        """What this case starts: servers, clients, and their steps."""
        raise NotImplementedError

    def figures_served(self, services: Services, said: str,
                       run: guards.Run) -> dict[str, float]:
        """Figures of a run: from the servers, and what the clients said."""
        raise NotImplementedError

    @run_after('setup')
    def take_nodes(self) -> None:
        plan = self.plan()
        self.num_nodes = self.num_tasks = plan.nodes
        self.num_tasks_per_node = 1
        have = self.current_partition.processor.num_cpus or plan.cpus()
        self.num_cpus_per_task = min(plan.cpus(), have)

    @run_before('run')
    def conduct_from_the_batch_script(self) -> None:
        extras = self.current_partition.extras
        self.plan().at(extras.get('service_interface', ''),
                       extras.get('scratch', '')).write(
            Path(self.stagedir, PLAN))
        # Without such a note only this case's next run finds what is left.
        with contextlib.suppress(OSError):
            private.remember(without_dead_secrets(), Path(self.stagedir))
        if self.num_nodes == 1:
            # The script is on the node already, and needs no MPI.
            self.job.launcher = LocalLauncher()
        self.executable = shlex.quote(sys.executable)
        self.executable_opts = [shlex.quote(str(SERVING)), 'agent', PLAN]

    def launcher_kind(self) -> str:
        # One agent a node, free to place what it starts; on one node the
        # script starts it.
        alone = features.nodes_asked(self.valid_systems) == 1
        return '' if alone else 'launcher_spread'

    def before_launcher(self) -> list[str]:
        return [shlex.quote(sys.executable), shlex.quote(str(SERVING)),
                'conduct', PLAN, '--']

    def figures_of(self, run: guards.Run) -> dict[str, float]:
        try:
            services, said = split(run.out)
            figures = self.figures_served(services, said, run)
            figures['ready_time'] = max(
                server.ready_ms for server in services.servers)
        except ParseError as err:
            guards.refuse('table', f'{run.name}.out:{err}')
        except OSError as err:
            guards.refuse('table', f'{run.name}: {err.filename} is missing: '
                          f'{err.strerror}')
        if services.shared:
            self.unfit_for('servers and clients shared their CPUs')
        return figures
