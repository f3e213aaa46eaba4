"""Checks of Optcast: all-reduce through reduction servers, and by a ring."""
from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import reframe as rfm
import reframe.core.runtime as rt
import reframe.utility.typecheck as typ
from reframe.core.builtins import (
    fixture,
    parameter,
    run_after,
    run_before,
    variable,
)

from config.records import metrics, samples

from ..core import guards, placement
from ..core.base import Programs
from ..core.options import split_options
from ..core.parsers import ParseError
from ..services.parser import Services
from ..services.plan import Plan
from ..services.service import ServiceBenchmark
from . import programs, settings, timeline
from .evaluation import Evaluation
from .original import NcclClients, RunScript
from .scenarios import ON_NCCL, ORIGINAL, SCALES, SCENARIOS, Scenario

#: build.sh OUT compiles the program.
BUILD = Path(__file__).resolve().parent / 'src' / 'build.sh'


class OptcastPrograms(Programs):
    """Server, client and ring, compiled on the system that runs them."""

    family = 'optcast'

    def build_commands(self) -> list[str]:
        cc = self.current_environ.cc or 'cc'
        return [f'CC={shlex.quote(cc)} {shlex.quote(str(BUILD))} optcast']


@rfm.simple_test
class OptcastAllReduce(ServiceBenchmark):
    """All-reduces of clients through reduction servers, or in a ring.

    Every result is compared bit for bit. With servers, the same clients first
    run a ring. So both values of `ring_ratio` are of the same minute and load.
    """

    family = program = 'optcast'
    programs = fixture(OptcastPrograms, scope='environment')

    SETTINGS: ClassVar[Mapping[str, Any]] = {
        'sizes': [], 'chunksize': '', 'iterations': 0, 'warmup': -1, 'clients': 0,
        'servers': 0, 'servers_each': 1, 'nsplit': 1, 'reduce_jobs': 2,
        'reduce_threads': 2, 'send_threads': 0, 'recv_threads': 0,
        'options': '', 'client_options': ''}
    SMALLEST: ClassVar[Mapping[str, float]] = {
        **ServiceBenchmark.SMALLEST, 'warmup': -1, 'nsplit': 1, 'reduce_jobs': 1,
        'reduce_threads': 1, 'timeout': 1}

    #: Options of the server that the check sets itself -> what to use instead.
    REFUSED: ClassVar[Mapping[str, str]] = {
        '--nrank': 'the setting clients', '--count': 'the setting chunksize',
        '--data-type': 'another test case', '--reduce-jobs': 'the setting reduce_jobs',
        '--reduce-threads': 'the setting reduce_threads',
        '--recv-threads': 'the setting recv_threads',
        '--send-threads': 'the setting send_threads',
        '--timeout': 'the setting timeout',
        '--address': 'the address of the job', '--port': 'the port of the job',
        '--trace': 'the log of the first server'}
    #: The same for options of the clients.
    REFUSED_OF_CLIENTS: ClassVar[Mapping[str, str]] = {
        '--nrank': 'the setting clients', '--data-type': 'another test case',
        '--chunksize': 'the setting chunksize', '--size': 'the setting sizes',
        '-n': 'the setting iterations', '-w': 'the setting warmup',
        '--timeout': 'the setting timeout', '--nsplit': 'the setting nsplit',
        '--trace': 'the log of the first client', '--ring': 'another test case'}

    #: All scenarios and their modes.
    SCENARIOS = SCENARIOS
    valid_prog_environs = ['+mpi']

    #: Type, data type, numbers of clients and servers, and their nodes.
    scenario = parameter(list(SCENARIOS), fmt=lambda scenario: str(scenario))

    #: Features that the partition must have, as in `valid_systems`.
    partition_features: tuple[str, ...] = ()

    #: Sizes of the all-reduces, such as 1M,16M; empty: those of the scale.
    sizes = variable(typ.List[str], value=[])

    #: Size of a message to all servers together, such as 512K; empty: that of the
    #: scale.
    chunksize = variable(str, value='')

    #: Timed iterations per size, and iterations before them. 0 and -1: those of the
    #: scale.
    iterations = variable(int, value=0)
    warmup = variable(int, value=-1)

    #: Numbers of clients and servers; 0: those of the scenario.
    clients = variable(int, value=0)
    servers = variable(int, value=0)

    #: Servers that share a chunk.
    nsplit = variable(int, value=1)

    #: Reduce jobs of a server, and its threads that add, send and receive. Those that
    #: send and receive must divide the clients; 0: 4, or one per client.
    reduce_jobs = variable(int, value=2)
    reduce_threads = variable(int, value=2)
    send_threads = variable(int, value=0)
    recv_threads = variable(int, value=0)

    #: More options for the servers; of OptcastOriginal and OptcastNccl for run.py.
    options = variable(str, value='')

    #: More options for the clients; of OptcastNccl for all_reduce_perf.
    client_options = variable(str, value='')

    #: Servers per node, each with its own InfiniBand NIC if the partition has
    #: them; 0: one per NIC. If this does not divide the servers, a node has the
    #: largest smaller number that does.
    servers_each = variable(int, value=1)

    #: Timeout for a silent peer. Unit: s.
    timeout = variable(int, value=60)

    @run_after('init')
    def set_requirements(self) -> None:
        self.descr = f'Optcast {self.effective_scenario}'
        nodes = max(1, self.effective_scenario.client_nodes + self.server_node_count)
        self.require_nodes(nodes, *self.partition_features)
        self.tags = {'full', 'optcast', *self.SCENARIOS[self.scenario]}
        self.spans: list[samples.Sample] = []

    @run_after('setup')
    def set_time_limit(self) -> None:
        self.time_limit = max(self.time_limit or 0, self.required_job_seconds())
        self.keep_files = [*self.keep_files, 'run.*.log', 'run.*.logs']

    def required_job_seconds(self) -> float:
        return self.repetitions * (2 * self.evaluation_to_run.step_time_limit + 60)

    @property
    def effective_scenario(self) -> Scenario:
        """The scenario, with the numbers of `clients` and `servers`."""
        return self.scenario.with_counts(self.clients, self.servers)

    @property
    def server_node_count(self) -> int:
        """Nodes that run only servers."""
        if not self.effective_scenario.server_node_count:
            return 0
        return settings.count_server_nodes(
            self.effective_scenario.servers, self.servers_each,
            [part.devices for part in rt.runtime().system.partitions])

    @property
    def setup_of_run(self) -> settings.Setup:
        """Sizes and threads of the run.

        :raises ValueError: the settings are inconsistent
        """
        layout = self.effective_scenario
        sizes, chunksize, iterations, warmup = SCALES[layout.scale]
        return settings.Setup(
            layout.type, layout.data_type, layout.clients, layout.servers,
            tuple(map(settings.parse_size, self.sizes or sizes)),
            settings.parse_size(self.chunksize or chunksize),
            self.iterations or iterations, warmup if self.warmup < 0 else self.warmup,
            self.nsplit, self.reduce_jobs, self.reduce_threads,
            self.send_threads, self.recv_threads,
            tuple(split_options(self.options, 'options', self.REFUSED)),
            tuple(split_options(self.client_options, 'client_options',
                                self.REFUSED_OF_CLIENTS)))

    @property
    def evaluation_to_run(self) -> Evaluation:
        """The evaluation that the job runs."""
        layout = self.effective_scenario
        return self.evaluation_of(
            self.setup_of_run, self.program_or_installation_path(),
            max(1, layout.client_nodes), self.server_node_count,
            self.current_partition.processor.num_cpus or 1, self.timeout,
            self.server_environments())

    def server_environments(self) -> tuple[dict[str, str], ...]:
        """Environment variables of the servers of a node, in order."""
        return settings.server_nic_environments(
            self.current_partition.devices,
            max(1, self.effective_scenario.servers // max(1, self.server_node_count)))

    evaluation_of: type[Evaluation] = Evaluation

    def program_or_installation_path(self) -> str:
        """Path of the program."""
        return f'{self.programs.stagedir}/optcast'

    def service_plan(self) -> Plan:
        return self.evaluation_to_run.service_plan()

    def required_metrics(self) -> list[str]:
        return ['ready_time', *self.evaluation_to_run.expected_metrics()]

    def min_repetition_seconds(self, values: dict[str, float]) -> float:
        return sum(
            count * size / values[metrics.metric_key('algbw', size)] * 1e-9
            for size, count in self.evaluation_to_run.timed_iterations_by_size().items()
        )

    def extract_service_values(self, services: Services, output: str,
                               run: guards.Run) -> dict[str, float]:
        evaluation, stage = self.evaluation_to_run, Path(self.stagedir)
        folder = evaluation.collect_run_logs(stage, run.name, services)
        try:
            result = evaluation.analyse_logs(folder)
            values = guards.values_by_metric(result.records, folder.name)
            values |= evaluation.compute_derived_values(result)
        except ParseError as err:
            guards.fail_test_case('table', f'{folder.name}: {err.file}:{err}')
        self.version = result.program_version
        self.spans = timeline.last_spans_as_samples((result.client, result.server))
        sentences = evaluation.summary_sentences(result, values)
        (folder / 'summary.txt').write_text('\n'.join(sentences) + '\n')
        for line in sentences:
            self.logger.info(line)
        return values

    @property
    def attached_files(self) -> dict[str, str]:
        """Spans of threads and requests at the end of the last repetition."""
        return {samples.file_name(self.test_case): samples.samples_as_csv(self.spans)
                } if self.spans else {}


@rfm.simple_test
class OptcastOriginal(OptcastAllReduce):
    """Optcast's own run.py, with the servers and the clients of their own program.

    Clients send a chunk to each server and receive the sums, which they do not
    check.
    """

    program = programs.SERVER
    valid_prog_environs = ['+optcast_server']
    scenario = parameter(list(ORIGINAL), fmt=lambda scenario: str(scenario))
    SCENARIOS = ORIGINAL
    evaluation_of: type[Evaluation] = RunScript

    REFUSED = {
        '--size': 'the setting sizes', '--nccl-test-options': 'client_options',
        **{f'--{name}': f'the setting {name}' for name in ('chunksize', 'nsplit')},
        '--num-jobs': 'the setting reduce_jobs',
        '--num-threads': 'the setting reduce_threads',
        '--num-sends': 'the setting send_threads',
        '--num-recvs': 'the setting recv_threads',
        '--nrank': 'the setting clients', '--nservers': 'the setting servers',
        **dict.fromkeys(('--type', '--data-type', '--no-gpu'), 'another test case'),
        **dict.fromkeys(('--config', '--log-dir', '--shared-dir', '--server',
                         '--client', '--reduction-servers'),
                        'the folder and the nodes of the job'),
        '--analyze': './plumb parse optcast', '-a': './plumb parse optcast'}
    REFUSED_OF_CLIENTS = {
        '-n': 'the setting iterations', '--iters': 'the setting iterations',
        '-w': 'the setting warmup', '--warmup_iters': 'the setting warmup',
        **dict.fromkeys(('-b', '-e', '-i', '-f', '--minbytes', '--maxbytes',
                         '--stepbytes', '--stepfactor'), 'the setting sizes'),
        **dict.fromkeys(('-d', '--datatype'), 'another test case'),
        **dict.fromkeys(('-t', '-g', '--nthreads', '--ngpus'), 'the setting clients'),
        **dict.fromkeys(('-c', '--check'), 'nothing: every result is checked'),
        **dict.fromkeys(('-o', '--op'), 'nothing: the servers only add'),
        **dict.fromkeys(('-C', '--report_cputime', '-h', '--help'),
                        'nothing: the table would have no bandwidths')}

    def required_metrics(self) -> list[str]:
        return self.evaluation_to_run.expected_metrics()

    def server_environments(self) -> tuple[dict[str, str], ...]:
        # run.py gives the servers no other variables than these.
        usual = {} if self.has_infiniband else {'NCCL_PLUGIN_P2P': 'socket'}
        transport = (self.required_transport() or {}).get('env') or usual
        return tuple({**transport, **nic}
                     for nic in super().server_environments() or ({},))

    @property
    def has_infiniband(self) -> bool:
        """Whether nodes of the partition have InfiniBand NICs."""
        return settings.count_infiniband_nics(self.current_partition.devices) > 0

    @run_before('run')
    def write_config(self) -> None:
        """Write config.yaml, in which the job replaces numbers by names of nodes."""
        evaluation = self.evaluation_to_run
        assert isinstance(evaluation, RunScript)
        Path(self.stagedir, 'config.yaml').write_text(evaluation.config_yaml())
        self.prerun_cmds = [
            *self.prerun_cmds, 'for number in "${!nodes[@]}"; do '
            'sed -i "s/@$number@/${nodes[number]}/" config.yaml; done']
        if not self.has_infiniband:
            self.env_vars.setdefault('NCCL_PLUGIN_P2P', 'socket')
        # A panic without a backtrace has its message on the last line.
        self.env_vars.setdefault('RUST_BACKTRACE', '0')

    def program_or_installation_path(self) -> str:
        """The prefix of the installation.

        :raises SanityError: it lacks a program
        """
        return self.prefix_with_files(self.program, programs.SERVER, programs.LIBRARY,
                                      programs.RUN_SCRIPT)

    def prefix_with_files(self, program: str, *files: str) -> str:
        """The prefix of a program's installation, which has these files.

        :raises SanityError: the environment has no prefix, or a file is missing
        """
        prefix = self.programs.required_prefix(program)
        for name in () if self.is_dry_run() else files:
            if not programs.find_installed_file(prefix, name):
                guards.fail_test_case('programs', f'{name} does not exist below '
                                      f'{prefix}')
        return prefix

    def required_transport(self) -> Mapping[str, Any] | None:
        """The transport of the plugin that the site requires."""
        return self.current_environ.extras.get('transport')

    def read_transport_log(self, run: guards.Run) -> str:
        """The log of the servers, in which the plugin names its transport."""
        return Path(self.stagedir, f'{run.name}.optcast.0.log', 'server.log').read_text(
            errors='replace')


@rfm.simple_test
class OptcastNccl(OptcastOriginal):
    """Optcast's own run.py with NCCL: all_reduce_perf on the GPUs of the client
    nodes, which checks every result.

    It first runs NCCL alone over the same NICs. So `ring_ratio` compares both in the
    same minute.
    """

    valid_prog_environs = ['+optcast_server +optcast_nccl']
    partition_features = ('+gpu_nvidia',)
    scenario = parameter(list(ON_NCCL), fmt=lambda scenario: str(scenario))
    SCENARIOS = ON_NCCL
    evaluation_of = NcclClients

    @property
    def evaluation_to_run(self) -> Evaluation:
        evaluation = super().evaluation_to_run
        assert isinstance(evaluation, NcclClients)
        return replace(evaluation, all_reduce=programs.find_installed_file(
            self.prefix_with_files(programs.ALL_REDUCE, programs.ALL_REDUCE),
            programs.ALL_REDUCE))

    @run_after('init')
    def require_gpus(self) -> None:
        """Leave partitions out whose nodes have fewer GPUs than ranks."""
        layout = self.effective_scenario
        enough = {part.fullname for part in rt.runtime().system.partitions
                  if placement.gpus_per_node(part) * max(1, layout.client_nodes)
                  >= layout.clients}
        self.valid_systems = [words for words in self.valid_systems
                              if words.split()[0] in enough]
