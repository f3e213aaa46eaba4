"""The base class of checks that start servers inside their job.

A check describes servers and clients in `service_plan`. Nodes and CPUs, ports and
addresses, passwords, readiness and shutdown follow from it, see :mod:`.script`.
"""
from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import reframe.core.runtime as rt
from reframe.core.builtins import run_after, run_before, variable
from reframe.core.launchers.local import LocalLauncher

from config import families
from config.sites import launch

from ..core import features, guards, placement
from ..core.base import SRC, Benchmark
from ..core.options import split_options
from ..core.parsers import ParseError
from .parser import Services, split_service_record
from .plan import Plan
from .script import Launching, job_script_lines
from .server import remove_if_unlocked

#: Folders of secrets in the stage directories (services.sh).
SECRETS = 'secrets.private.*'

#: Age of a folder of secrets of another node from which its job has ended. Unit: s.
MAX_JOB_SECONDS = 2 * 24 * 3600


@functools.cache
def remove_secrets_of_dead_runs(stage_prefix: str) -> None:
    """Remove secrets of dead runs from the stage directories of all sessions.

    It is cached, so a process searches them once.

    :arg stage_prefix: folder of the stage directories of this session.
    """
    # A session of `plumb run` has a folder of stage directories beside those of
    # others. ReFrame's folders: system, partition, environment, test case.
    for folder in Path(stage_prefix).parent.glob(f'*/*/*/*/*/{SECRETS}'):
        remove_if_unlocked(str(folder), MAX_JOB_SECONDS)


def cpus_of_largest_node() -> int:
    """CPUs of the largest node of this system."""
    return max((part.processor.num_cpus or 1 << 20
                for part in rt.runtime().system.partitions), default=0)


def has_partition_with_nodes(family: str, clients: int, servers: int) -> bool:
    """Whether some partition of this system allows jobs of so many nodes.

    The setting `server_access` is not known when the test cases are made, so where it
    is possible the nodes of clients are enough.

    :param servers: nodes that have only servers
    """
    families.record_needed_node_count(family, clients + servers)
    return any(features.max_nodes(part) >= clients + (
        0 if allows_server_access(part) else servers)
               for part in rt.runtime().system.partitions)


def allows_server_access(partition: Any) -> bool:
    """Whether the servers of a job can have nodes of another type.

    ReFrame's squeue does not find the parts of such a job, and only srun starts
    programs in both.
    """
    return (partition.scheduler.registered_name == 'slurm'
            and partition.launcher_type.registered_name == 'srun')


class ServiceBenchmark(Benchmark, special=True):
    """A benchmark with servers and clients inside its own job.

    Setup: `service_plan` gives nodes and CPUs. Run: the plan becomes a part of the
    job script. Sanity: `extract_service_values` turns the
    record of the services and the clients' output into values.
    """

    #: Whether a step has MPI programs, which the launcher starts inside the job.
    has_mpi_steps: ClassVar[bool] = False

    SETTINGS: ClassVar[Mapping[str, Any]] = {'server_access': ''}

    #: How servers get nodes of another type than the clients, under Slurm: the name of
    #: another partition of the site, options of Slurm, or both. Empty: all nodes are
    #: of the same type.
    server_access = variable(str, value='')

    #: CPUs of one node that a test case needs and no node has: it is only in
    #: mode full. 0: it has all of its modes.
    unavailable_cpus = 0

    #: Settings of a check whose servers and clients take options.
    options: str
    client_options: str

    def set_mode_tags(self, modes: Iterable[str], required_cpus: int = 1) -> None:
        """Tag the test case with its modes.

        :param required_cpus: CPUs that servers and clients need on one node. On a
            system without such a node the test case is only in mode full,
            because its values could not be compared.
        """
        if required_cpus > cpus_of_largest_node():
            modes, self.unavailable_cpus = ['full'], required_cpus
        self.tags = {*modes, self.family}

    def require_client_and_server_nodes(self, clients: int, servers: int,
                                        *wanted: str) -> None:
        """Run only in partitions whose jobs may have so many nodes.

        :param servers: nodes that have only servers; with `server_access` they are
            not of the partition
        :param wanted: features of the partition, as in `valid_systems`
        """
        self.require_nodes(clients + (0 if self.server_access else servers), *wanted)

    def option_words(self) -> tuple[list[str], list[str]]:
        """Words of the options of servers and of clients that the user adds.

        :raises ValueError: an option is refused
        """
        return (split_options(self.options, 'options', self.REFUSED, self.FLAGS),
                split_options(self.client_options, 'client_options',
                              self.REFUSED_OF_CLIENTS))

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
        """Request the nodes of the plan with one task each, and the CPUs that its roles
        need per node, at most those that a node has."""
        plan = self.service_plan()
        self.num_nodes = self.num_tasks = plan.node_count
        self.num_tasks_per_node = 1
        needed = plan.required_cpus_per_node(
            plan.client_nodes if self.server_access else None)
        have = self.current_partition.processor.num_cpus or needed
        self.num_cpus_per_task = min(needed, have)

    def check_launcher(self) -> None:
        """Check that a launcher can start the steps of the job, on several nodes or
        with MPI.

        :raises PlacementError: the suite does not know how
        """
        super().check_launcher()
        needed = self.has_mpi_steps or self.num_nodes > 1
        if needed and not self.step_launcher(self.has_mpi_steps):
            raise placement.PlacementError(
                f'partition {self.current_partition.fullname}: the suite does not '
                'know how its launcher starts a program inside a job; add the '
                'launcher or the MPI to STEP in config/sites/launch.py')

    @run_after('setup', always_last=True)
    def check_server_access(self) -> None:
        """Refuse nodes of two types where they are not possible."""
        if not self.server_access:
            return
        part = self.current_partition
        if not allows_server_access(part):
            raise ValueError(
                f'server_access: partition {part.fullname} has the scheduler '
                f'{part.scheduler.registered_name} and the launcher '
                f'{part.launcher_type.registered_name}; nodes of two types need slurm '
                'and srun')
        if not self.service_plan().has_separate_servers:
            raise ValueError('server_access: this test case has no nodes for servers '
                             'alone; select one whose clients have their own nodes')
        if self.pinned_nodes or '.nid' in type(self).raw_params:    # --distribute
            raise ValueError('server_access: a job with nodes of two types cannot '
                             'be bound to named nodes; omit --distribute, or '
                             'server_access')
        self.server_access_options()

    def server_access_options(self) -> list[str]:
        """Scheduler options of the servers' nodes.

        :raises ValueError: the site has no such partition
        """
        name, *options = shlex.split(self.server_access)
        if name.startswith('-'):
            return [name, *options]
        partitions = {part.name: part for part in rt.runtime().system.partitions}
        if name not in partitions:
            raise ValueError(f'server_access: the site has no partition {name}, only '
                             f'{", ".join(partitions)}; options begin with a hyphen')
        return [*partitions[name].access, *options]

    # Last: options that are added later would be those of the second part.
    @run_before('run', always_last=True)
    def request_separate_server_nodes(self) -> None:
        """Make the servers' nodes the second part of a heterogeneous job."""
        if not self.server_access:
            return
        plan = self.service_plan()
        clients, servers = len(plan.client_nodes), plan.server.nodes
        # ReFrame has written the number of all nodes, and appends the options of -J.
        self.job.options += [
            f'--ntasks={clients}', f'--nodes={clients}', *self.job.cli_options,
            '#SBATCH hetjob', *(f'#SBATCH {option}' for option in (
                f'--ntasks={servers}', f'--nodes={servers}', '--ntasks-per-node=1',
                '--cpus-per-task='
                + str(plan.required_cpus_per_node(range(plan.server.nodes))),
                *self.server_access_options()))]

    @run_before('run')
    def add_services_to_job_script(self) -> None:
        """Let the job script start the servers and run the steps of the plan."""
        # Otherwise only this test case's next run would find leftover secrets.
        remove_secrets_of_dead_runs(rt.runtime().stage_prefix)
        plan = self.service_plan()
        if self.server_access:
            # The second part of the job, see request_separate_server_nodes.
            plan = replace(plan, server=replace(plan.server, het_group=1))
        self.prerun_cmds = [*self.prerun_cmds,
                            *job_script_lines(plan, self.launching())]
        # The script itself starts launchers.
        self.job.launcher = LocalLauncher()
        self.executable = 'run_and_stop'

    def launching(self) -> Launching:
        """How processes are started inside the job."""
        part, extras = self.current_partition, self.current_partition.extras
        words = extras.get('launcher_step') or self.step_launcher()
        return Launching(
            # On one node the script is on the node already: no launcher is needed.
            words if self.num_nodes > 1 else [],
            self.step_launcher(mpi=True),
            not part.launcher_type.registered_name.startswith('srun'),
            extras.get('service_interface', ''), extras.get('scratch', ''),
            self.programs.stagedir, ' '.join(self.words_before_program()))

    def step_launcher(self, mpi: bool = False) -> list[str]:
        """Words that start processes, or ranks of an MPI program; empty: unknown."""
        return launch.step_launch_command(*self.launcher_and_mpi(), self.num_nodes, mpi)

    def launcher_and_mpi(self) -> tuple[str, str]:
        """Launcher of the partition, and the MPI whose launcher it may be."""
        part = self.current_partition
        return (part.launcher_type.registered_name,
                self.current_environ.extras.get('mpi_library')
                or placement.mpi_of_partition(part))

    def unproven_launcher(self) -> str:
        """The launcher, if no server has run on one of its kind yet; else empty."""
        if self.current_partition.extras.get('launcher_step'):
            return ''
        return launch.UNPROVEN.get(launch.step_key(*self.launcher_and_mpi()), '')

    def put_under_measurement(self, options: list[str]) -> None:
        """Measure in the shell of the job script, which has the function."""
        self.job.launcher.modifier = '.'
        self.job.launcher.modifier_options = [
            shlex.quote(str(SRC / 'measure.sh')), *options, '--']

    def cpus_per_rank(self) -> int:
        """CPUs of all servers and clients on a node, which are one task of the job."""
        return self.num_cpus_per_task or 1

    def partition_launcher_extra_name(self) -> str:
        """Empty, because each server and client binds itself."""
        return ''

    def unvalidated_data(self) -> str:
        """Data of the measurement that nothing compares, as `validation: ...`;
        empty: every answer is compared."""
        return ''

    def parse_values(self, run: guards.Run) -> dict[str, float]:
        """Values of a repetition, with `ready_time`, the ms that the slowest server
        needed to accept requests."""
        self.unchecked.append(self.unvalidated_data())
        if killed := re.findall('^plumbline-killed (.*)', run.err, re.M):
            self.unchecked.append(
                f'shutdown: server {" ".join(killed)} of {run.name} did not end on '
                'SIGTERM and was killed')
        try:
            plan = self.service_plan()
            services, output = split_service_record(run.out, plan)
            values = self.extract_service_values(services, output, run)
            if services.servers:
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
