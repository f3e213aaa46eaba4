"""Services: servers that a check starts inside its job (DESIGN, contract 3).

A check describes in `plan` what it needs. Nodes and CPUs, ports and addresses,
passwords and certificates, readiness, supervision and shutdown follow from
that, see :mod:`checks.services`.
"""
from __future__ import annotations

import contextlib
import functools
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import reframe.core.runtime as rt
from reframe.core.builtins import run_after, run_before
from reframe.core.launchers.local import LocalLauncher

from config import places
from config.sites import launch

from ..core import features, guards
from ..core.base import Benchmark
from ..core.parsers import ParseError
from . import private
from .parser import Services, split
from .plan import Plan
from .wire import HEARTBEAT_TIMEOUT

SERVING = Path(__file__).resolve().parent

#: The plan of a job, in its stage directory.
PLAN = 'service.json'


@functools.cache
def stage_registry() -> Path:
    """Folder in which runs register their stage directories; secrets of dead
    runs are removed first."""
    registry = places.work() / 'services'
    private.remove_dead_runs(registry)
    return registry


def max_cpus() -> int:
    """CPUs of the largest node of this system."""
    return max((part.processor.num_cpus or 1 << 20
                for part in rt.runtime().system.partitions), default=0)


def nodes_feature(nodes: int) -> str:
    """The feature of partitions with at least so many nodes."""
    return f'nodes_{1 << (nodes - 1).bit_length()}'


class ServiceBenchmark(Benchmark, special=True):
    """A benchmark whose clients ask servers inside its own job."""

    #: CPUs of one node that a case needs and no node has: it is in mode full
    #: alone. 0: it has all of its modes.
    unavailable_cpus = 0

    def set_modes(self, modes: Iterable[str], cpus: int = 1) -> None:
        """Tags the case with its modes.

        :param cpus: of one node, for servers and clients to have CPUs of
            their own. On a system without such a node nothing of the case
            could be judged, so that it is in mode full alone.
        """
        if cpus > max_cpus():
            modes, self.unavailable_cpus = ['full'], cpus
        self.tags = {*modes, self.family}

    def plan(self) -> Plan:
        """What this case starts: servers, clients, and their steps."""
        raise NotImplementedError

    def values_of_services(self, services: Services, output: str,
                       run: guards.Run) -> dict[str, float]:
        """Figures of a run: from the servers, and what the clients said."""
        raise NotImplementedError

    def transport(self) -> None:
        """What is measured goes between clients and servers, not through
        MPI, which has nothing to tell of its transport."""

    @run_after('setup')
    def set_nodes_and_cpus(self) -> None:
        plan = self.plan()
        self.num_nodes = self.num_tasks = plan.nodes
        self.num_tasks_per_node = 1
        have = self.current_partition.processor.num_cpus or plan.cpus()
        self.num_cpus_per_task = min(plan.cpus(), have)

    @run_before('run')
    def run_under_conductor(self) -> None:
        extras = self.current_partition.extras
        self.plan().at(extras.get('service_interface', ''),
                       extras.get('scratch', ''), self.step_launcher(),
                       f'{self.programs.stagedir}/observe',
                       extras.get('service_heartbeat_timeout',
                                  HEARTBEAT_TIMEOUT)).write(
            Path(self.stagedir, PLAN))
        # Unregistered, only this case's next run would find what is left.
        with contextlib.suppress(OSError):
            private.register_stage(stage_registry(), Path(self.stagedir))
        if self.num_nodes == 1:
            # The batch script is on the node already: no launcher needed.
            self.job.launcher = LocalLauncher()
        self.executable = shlex.quote(sys.executable)
        self.executable_opts = [shlex.quote(str(SERVING)), 'agent', PLAN]

    def step_launcher(self) -> list[str]:
        """What starts the ranks of an MPI program; empty: it is unknown."""
        return launch.step(
            self.current_partition.launcher_type.registered_name,
            self.current_environ.extras.get('mpi_library', ''),
            self.num_nodes)

    def launcher_kind(self) -> str:
        # One unbound agent a node; on one node the script starts it.
        one_node = features.requested_nodes(self.valid_systems) == 1
        return '' if one_node else 'launcher_spread'

    def before_launcher(self) -> list[str]:
        return [shlex.quote(sys.executable), shlex.quote(str(SERVING)),
                'conduct', PLAN, '--']

    def values_of(self, run: guards.Run) -> dict[str, float]:
        try:
            services, output = split(run.out)
            values = self.values_of_services(services, output, run)
            values['ready_time'] = max(
                server.ready_ms for server in services.servers)
        except ParseError as err:
            guards.refuse('table', f'{run.name}.out:{err}')
        except OSError as err:
            guards.refuse('table', f'{run.name}: {err.filename} is missing: '
                          f'{err.strerror}')
        if services.shared:
            self.add_inconclusive('servers and clients shared their CPUs')
        return values
