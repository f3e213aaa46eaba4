"""The base class of checks that start servers inside their job.

A check describes servers and clients in `service_plan`. Nodes and CPUs, ports and
addresses, passwords and certificates, readiness, supervision and shutdown
follow from it, see :mod:`checks.services`.
"""
from __future__ import annotations

import contextlib
import functools
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import reframe.core.runtime as rt
from reframe.core.builtins import run_after, run_before
from reframe.core.launchers.local import LocalLauncher

from config import families
from config.sites import launch

from ..core import features, guards, placement
from ..core.base import Benchmark
from ..core.parsers import ParseError
from . import private
from .parser import Services, split_conductor_output
from .plan import Plan
from .wire import HEARTBEAT_TIMEOUT

SERVING = Path(__file__).resolve().parent

#: The plan of a job, in its stage directory.
PLAN = 'service.json'

#: The folder of secrets beside it.
SECRETS = f'{PLAN}{private.SUFFIX}'


@functools.cache
def remove_secrets_of_dead_runs(stage_prefix: str) -> None:
    """Remove secrets of dead runs from the stage directories of all sessions.

    It is cached, so a process searches them once.

    :arg stage_prefix: folder of the stage directories of this session.
    """
    # A session of `plumb run` has a folder of stage directories beside those of
    # others. ReFrame's folders: system, partition, environment, test case.
    folders = Path(stage_prefix).parent.glob(f'*/*/*/*/*/{SECRETS}')
    with contextlib.suppress(OSError):
        for folder in folders:
            private.remove_if_owner_dead(folder)


def cpus_of_largest_node() -> int:
    """CPUs of the largest node of this system."""
    return max((part.processor.num_cpus or 1 << 20
                for part in rt.runtime().system.partitions), default=0)


def has_partition_with_nodes(family: str, count: int) -> bool:
    """Whether some partition of this system allows jobs of so many nodes."""
    families.record_needed_node_count(family, count)
    return any(features.max_nodes(part) >= count
               for part in rt.runtime().system.partitions)


class ServiceBenchmark(Benchmark, special=True):
    """A benchmark with servers and clients inside its own job.

    Setup: `service_plan` gives nodes and CPUs. Run: the plan is written and the
    conductor put before the launcher. Sanity: `extract_service_values` turns the
    record of the services and the clients' output into values.
    """

    #: Whether a step has MPI programs, which the launcher starts inside the job.
    has_mpi_steps: ClassVar[bool] = False

    #: CPUs of one node that a test case needs and no node has: it is only in
    #: mode full. 0: it has all of its modes.
    unavailable_cpus = 0

    def set_mode_tags(self, modes: Iterable[str], required_cpus: int = 1) -> None:
        """Tag the test case with its modes.

        :param required_cpus: CPUs that servers and clients need on one node. On a
            system without such a node the test case is only in mode full,
            because its values could not be compared.
        """
        if required_cpus > cpus_of_largest_node():
            modes, self.unavailable_cpus = ['full'], required_cpus
        self.tags = {*modes, self.family}

    def service_plan(self) -> Plan:
        """Servers, clients and steps of this test case."""
        raise NotImplementedError

    def extract_service_values(self, services: Services, output: str,
                               run: guards.Run) -> dict[str, float]:
        """Values of a repetition, from the servers and the clients' output.

        :arg services: record of servers and clients.
        :arg output: standard output of the last step's clients.
        """
        raise NotImplementedError

    def required_transport(self) -> Mapping[str, Any] | None:
        """None: clients and servers communicate without MPI."""
        return None

    @run_after('setup')
    def set_nodes_and_cpus(self) -> None:
        plan = self.service_plan()
        self.num_nodes = self.num_tasks = plan.node_count
        self.num_tasks_per_node = 1
        needed = plan.required_cpus_per_node()
        have = self.current_partition.processor.num_cpus or needed
        self.num_cpus_per_task = min(needed, have)

    def check_launcher(self) -> None:
        super().check_launcher()
        if self.has_mpi_steps and not self.mpi_launcher_command():
            raise placement.PlacementError(
                f'partition {self.current_partition.fullname}: the suite does not '
                'know how its launcher starts an MPI program inside a job; add the '
                'launcher or the MPI to STEP in config/sites/launch.py')

    @run_before('run')
    def write_plan_and_set_executable(self) -> None:
        extras = self.current_partition.extras
        plan, launcher = self.service_plan(), self.mpi_launcher_command()
        is_mpi = any(program.mpi for step in plan.steps for program in step.programs)
        if is_mpi != self.has_mpi_steps:
            raise TypeError(f'{type(self).__name__}: has_mpi_steps does not agree with '
                            f'the programs of its plan; set it to {is_mpi}')
        plan.with_site_values(
            extras.get('service_interface', ''),
            extras.get('scratch', ''),
            launcher,
            f'{self.programs.stagedir}/observe',
            extras.get('service_heartbeat_timeout', HEARTBEAT_TIMEOUT),
        ).write(Path(self.stagedir, PLAN))
        # Otherwise only this test case's next run would find leftover secrets.
        remove_secrets_of_dead_runs(rt.runtime().stage_prefix)
        if self.num_nodes == 1:
            # The batch script is on the node already: no launcher needed.
            self.job.launcher = LocalLauncher()
        self.executable = shlex.quote(sys.executable)
        self.executable_opts = [shlex.quote(str(SERVING)), 'agent', PLAN]

    def mpi_launcher_command(self) -> list[str]:
        """Words that start the ranks of an MPI program; empty: unknown."""
        return launch.step_launch_command(
            self.current_partition.launcher_type.registered_name,
            self.current_environ.extras.get('mpi_library', ''),
            self.num_nodes)

    def cpus_per_rank(self) -> int:
        return self.num_cpus_per_task or 1

    def partition_launcher_extra_name(self) -> str:
        # One unbound agent per node; on one node the script starts it.
        return '' if self.node_count_before_setup == 1 else 'launcher_spread'

    def command_before_launcher(self) -> list[str]:
        return [shlex.quote(sys.executable), shlex.quote(str(SERVING)),
                'conduct', PLAN, '--']

    def parse_values(self, run: guards.Run) -> dict[str, float]:
        try:
            services, output = split_conductor_output(run.out)
            values = self.extract_service_values(services, output, run)
            values['ready_time'] = max(
                server.ready_ms for server in services.servers)
        except ParseError as err:
            guards.fail_test_case('table', f'{run.name}.out:{err}')
        except OSError as err:
            guards.fail_test_case('table', f'{run.name}: {err.filename} is missing: '
                                  f'{err.strerror}')
        if services.shared:
            self.inconclusive_reasons.append(f'too few CPUs: {services.shared}')
        return values
