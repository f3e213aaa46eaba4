"""Checks of Optcast: all-reduce through reduction servers, and by a ring."""
from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import reframe as rfm
import reframe.core.runtime as rt
import reframe.utility.typecheck as typ
from reframe.core.builtins import fixture, parameter, run_after, variable

from config.records import metrics, samples

from ..core import guards, placement
from ..core.base import Programs
from ..core.parsers import ParseError
from ..services.parser import Services
from ..services.plan import Plan
from ..services.service import ServiceBenchmark
from . import nccl_options, programs, settings, timeline
from .evaluation import Evaluation
from .original import NcclClients, Original
from .scenarios import ON_NCCL, ORIGINAL, SCALES, SCENARIOS, Scenario
from .settings import Config

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

    SETTINGS = {'settings': {}, 'servers_each': 1}
    #: All scenarios and their modes.
    SCENARIOS = SCENARIOS
    valid_prog_environs = ['+mpi']

    #: Type, data type, numbers of clients and servers, and their nodes.
    scenario = parameter(list(SCENARIOS), fmt=lambda scenario: str(scenario))

    #: Features that the partition must have, as in `valid_systems`.
    partition_features: tuple[str, ...] = ()

    #: Options of the original's run script under their own names (with _ for
    #: -): -S OptcastAllReduce.settings=chunksize:2M,num_jobs:4
    settings = variable(typ.Dict[str, str], value={}, loggable=False)

    #: Servers per node, each with its own InfiniBand NIC if the partition has
    #: them; 0: one per NIC. If this does not divide the servers, a node has the
    #: largest smaller number that does. A config overrides it.
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
    def config_file_contents(self) -> Config | None:
        """Contents of the config.yaml that the settings name, or None."""
        path = self.settings.get('config')
        return settings.read_config(Path(path), *self.requested_counts
                                    ) if path else None

    @property
    def requested_counts(self) -> tuple[int, int]:
        """`nrank` and `nservers` of the settings; 0: not set."""
        nrank, nservers = (settings.parse_number(name, self.settings.get(name, 0))
                           for name in ('nrank', 'nservers'))
        return nrank, nservers

    @property
    def effective_scenario(self) -> Scenario:
        """The scenario, with the numbers of the config, or of `nrank` and
        `nservers`."""
        config = self.config_file_contents
        if not config:
            return self.scenario.with_counts(*self.requested_counts)
        one = config.server_nodes == config.client_nodes == 1
        return replace(
            self.scenario, clients=config.client_nodes * config.clients_each,
            servers=config.server_nodes * config.servers_each,
            client_nodes=0 if one else config.client_nodes)

    @property
    def server_node_count(self) -> int:
        """Nodes that run only servers."""
        if not self.effective_scenario.server_node_count:
            return 0
        return (self.config_file_contents.server_nodes if self.config_file_contents else
                settings.count_server_nodes(
                    self.effective_scenario.servers, self.servers_each,
                    [part.devices for part in
                     rt.runtime().system.partitions]))

    @property
    def evaluation_to_run(self) -> Evaluation:
        """The evaluation that the job runs.

        :raises ValueError: the settings are inconsistent
        """
        layout, config = self.effective_scenario, self.config_file_contents
        result = settings.parse_settings(
            {**SCALES[layout.scale], 'type': layout.type,
             'data_type': layout.data_type, **self.settings},
            layout.clients, layout.servers, **self.supported_settings())
        if (result.type, result.data_type) != (layout.type, layout.data_type):
            raise ValueError('settings: type and data_type are parameters of the '
                             'test case: select another test case')
        return self.evaluation_of(
            replace(result, port=config.port if config else 0),
            self.program_or_installation_path(),
            max(1, layout.client_nodes),
            self.server_node_count,
            self.current_partition.processor.num_cpus or 1,
            self.timeout,
            config.environments
            if config
            else settings.server_nic_environments(
                self.current_partition.devices,
                max(1, layout.servers // max(1, self.server_node_count)),
            ),
        )

    evaluation_of: type[Evaluation] = Evaluation

    def supported_settings(self) -> dict[str, Any]:
        """Settings that the programs support, for settings.parse_settings."""
        return {}

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
        if self.settings.get('xlim'):
            result.draw_plots(folder, timeline.parse_time_window(self.settings['xlim']))
        return values

    @property
    def attached_files(self) -> dict[str, str]:
        """Spans of threads and requests at the end of the last repetition."""
        return {samples.file_name(self.test_case): samples.samples_as_csv(self.spans)
                } if self.spans else {}


@rfm.simple_test
class OptcastOriginal(OptcastAllReduce):
    """The original's servers with their own clients, over TCP.

    Clients send a chunk to each server and receive the sums, which they do not
    check.
    """

    program = programs.SERVER
    valid_prog_environs = ['+optcast_server']
    scenario = parameter(list(ORIGINAL), fmt=lambda scenario: str(scenario))
    SCENARIOS = ORIGINAL
    evaluation_of: type[Evaluation] = Original

    #: Options of nccl-tests that the client has.
    client_options = nccl_options.OWN

    def supported_settings(self) -> dict[str, Any]:
        return {'bf16': False, 'client_options': self.client_options,
                'x86_original': platform.machine() == 'x86_64'}

    def program_or_installation_path(self) -> str:
        """The prefix of the installation.

        :raises SanityError: it lacks the server or the plugin
        """
        return self.prefix_with_files(self.program, programs.SERVER, programs.LIBRARY)

    def prefix_with_files(self, program: str, *files: str) -> str:
        """The prefix of a program's installation, which has these files.

        :raises SanityError: the environment has no prefix, or a file is missing
        """
        prefix = str(self.programs.program_origin(program).get('prefix', ''))
        if not prefix:
            guards.fail_test_case('programs', 'the environment '
                                  f'{self.current_environ.name} has no prefix for '
                                  f'{program}')
        for name in files:
            if not programs.find_installed_file(prefix, name):
                guards.fail_test_case('programs', f'{name} does not exist below '
                                      f'{prefix}')
        return prefix

    def required_transport(self) -> Mapping[str, Any] | None:
        """The transport of the plugin that the site requires."""
        return self.current_environ.extras.get('transport')

    def read_transport_log(self, run: guards.Run) -> str:
        """The logs of all servers, in which the plugin names its transport."""
        return '\n'.join(path.read_text(errors='replace') for path in sorted(
            Path(self.stagedir).glob(f'{run.name}.server*.log')))


@rfm.simple_test
class OptcastNccl(OptcastOriginal):
    """The original's servers with NCCL as their client: all_reduce_perf on the
    GPUs of the client nodes, which checks every result.

    The same ranks first run NCCL alone over the same NICs. So `ring_ratio`
    compares both in the same minute.
    """

    valid_prog_environs = ['+optcast_server +optcast_nccl']
    partition_features = ('+gpu_nvidia',)
    scenario = parameter(list(ON_NCCL), fmt=lambda scenario: str(scenario))
    SCENARIOS = ON_NCCL
    evaluation_of = NcclClients
    client_options = nccl_options.NCCL
    has_mpi_steps = True

    @run_after('init')
    def require_gpus(self) -> None:
        """Leave partitions out whose nodes have fewer GPUs than ranks."""
        layout = self.effective_scenario
        enough = {part.fullname for part in rt.runtime().system.partitions
                  if placement.gpus_per_node(part) * max(1, layout.client_nodes)
                  >= layout.clients}
        self.valid_systems = [words for words in self.valid_systems
                              if words.split()[0] in enough]

    @property
    def evaluation_to_run(self) -> Evaluation:
        evaluation = super().evaluation_to_run
        assert isinstance(evaluation, NcclClients)
        return replace(evaluation, all_reduce=programs.find_installed_file(
            self.prefix_with_files(programs.ALL_REDUCE, programs.ALL_REDUCE),
            programs.ALL_REDUCE))
