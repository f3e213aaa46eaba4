"""Check of Optcast: all-reduce through reduction servers."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import reframe as rfm
import reframe.core.runtime as rt
import reframe.utility.typecheck as typ
import yaml
from reframe.core.builtins import fixture, parameter, run_after, variable

from config.records import metrics, samples

from ..core import guards
from ..core.base import Programs
from ..core.options import SET_BY_CHECK
from ..core.parsers import ParseError
from ..machine import builds
from ..services.parser import Services
from ..services.plan import Clients, Plan, Program, Server, Step
from ..services.service import ServiceBenchmark
from . import parser, scenarios
from .logs import last_spans_as_samples
from .scenarios import SCALES, SCENARIOS, Scenario, parse_size

#: build.sh OUT compiles the program.
BUILD = Path(__file__).resolve().parent / 'src' / 'build.sh'


class OptcastPrograms(Programs):
    """Server, client and ring, compiled on the system that runs them."""

    family = 'optcast'

    def build_commands(self) -> list[str]:
        return [builds.build_script_command(self, BUILD, 'optcast')]


@rfm.simple_test
class OptcastAllReduce(ServiceBenchmark):
    """All-reduces of clients through reduction servers.

    Every result is compared bit for bit. The same clients first run a ring. So both
    values of `ring_ratio` are of the same minute and load.
    """

    family = program = 'optcast'
    programs = fixture(OptcastPrograms, scope='environment')

    SETTINGS: ClassVar[Mapping[str, Any]] = {
        **ServiceBenchmark.SETTINGS,
        'sizes': [], 'chunksize': '', 'iterations': 0, 'warmup': -1, 'clients': 0,
        'servers': 0, 'servers_each': 1, 'options': '', 'client_options': ''}
    SMALLEST: ClassVar[Mapping[str, float]] = {
        **ServiceBenchmark.SMALLEST, 'warmup': -1}

    #: Options of servers and clients that the check sets itself -> what to use instead.
    REFUSED: ClassVar[Mapping[str, str]] = {
        '--nrank': 'use the setting clients', '--data-type': 'select another test case',
        '--ring': 'select another test case', '--size': 'use the setting sizes',
        '--chunksize --count': 'use the setting chunksize',
        '-n': 'use the setting iterations', '-w': 'use the setting warmup',
        '--address': SET_BY_CHECK, '--port': SET_BY_CHECK,
        '--trace': 'the first server and client write it',
        '--nsplit': 'use the check OptcastNccl'}
    #: The same for options of the clients.
    REFUSED_OF_CLIENTS: ClassVar[Mapping[str, str]] = REFUSED

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

    #: More options for the servers; of OptcastOriginal and OptcastNccl for run.py.
    options = variable(str, value='')

    #: More options for the clients; of OptcastNccl for all_reduce_perf.
    client_options = variable(str, value='')

    #: Servers per node, each with its own InfiniBand NIC if the partition has
    #: them; 0: one per NIC. If this does not divide the servers, a node has the
    #: largest smaller number that does.
    servers_each = variable(int, value=1)

    @run_after('init')
    def set_requirements(self) -> None:
        """Set nodes and modes of the scenario, the files to keep, and a time limit for
        two steps per repetition."""
        self.descr = f'Optcast {self.effective_scenario}'
        self.require_client_and_server_nodes(self.client_nodes, self.server_nodes,
                                             *self.partition_features)
        self.tags = {'full', 'optcast', *self.SCENARIOS[self.scenario]}
        self.spans: list[samples.Sample] = []
        self.keep_files = [*self.keep_files, 'run.*.log', 'run.*.logs']
        # Settings that contradict each other are refused in the setup.
        with contextlib.suppress(ValueError):
            self.time_limit = max(self.time_limit or 0, self.repetitions * (
                2 * self.step_time_limit + 60))

    # Sizes ------------------------------------------------------------------

    @property
    def effective_scenario(self) -> Scenario:
        """The scenario, with the numbers of `clients` and `servers`."""
        return self.scenario.with_counts(self.clients, self.servers)

    @property
    def client_nodes(self) -> int:
        """Nodes that run clients."""
        return max(1, self.effective_scenario.client_nodes)

    @property
    def server_nodes(self) -> int:
        """Nodes that run only servers; 0: servers share the nodes of the clients."""
        if not self.effective_scenario.client_nodes:
            return 0
        return scenarios.count_server_nodes(
            self.effective_scenario.servers, self.servers_each,
            [part.devices for part in rt.runtime().system.partitions])

    @property
    def servers_of_node(self) -> int:
        """Servers of a node that has some."""
        return max(1, self.effective_scenario.servers // max(1, self.server_nodes))

    @property
    def run_setup(self) -> scenarios.Setup:
        """Sizes and threads of the run.

        :raises ValueError: the settings are inconsistent
        """
        layout = self.effective_scenario
        sizes, chunksize, iterations, warmup = SCALES[layout.scale]
        return scenarios.Setup(
            layout.type, layout.data_type, layout.clients, layout.servers,
            tuple(map(parse_size, self.sizes or sizes)),
            parse_size(self.chunksize or chunksize),
            self.iterations or iterations, warmup if self.warmup < 0 else self.warmup)

    @property
    def step_time_limit(self) -> float:
        """Time limit of one step, for at least 20 MB/s. Unit: s."""
        of = self.run_setup
        moved = sum(of.sizes) * of.clients * (of.iterations + of.warmup + 1)
        return 30 + 4 * moved / 20e6

    # Launch -----------------------------------------------------------------

    def service_plan(self) -> Plan:
        """A ring of the clients first, then the servers."""
        of = self.run_setup
        clients = Clients(nodes=self.client_nodes,
                          instances=of.clients // self.client_nodes,
                          unbound=True, apart=self.server_nodes > 0)
        return Plan(self.server_role(), (clients,), (
            self.client_step('ring', '--ring'), self.client_step('optcast')))

    def server_role(self) -> Server:
        """The role of the servers."""
        of, cores = self.run_setup, self.current_partition.processor.num_cpus or 1
        each, beside = self.servers_of_node, not self.server_nodes
        command = (
            f'{self.programs.stagedir}/optcast',
            '--address', '{address}', '--port', '{port}',
            '--nrank', str(of.clients), '--data-type', of.data_type,
            '--count', str(of.elements_per_message), '--send-threads',
            str(of.copy_threads), '--recv-threads', str(of.copy_threads),
            *self.option_words()[0])
        return Server(
            'optcast', (), config='password {password}\n', dialect='tcp',
            commands=((*command, '--trace', '-'),
                      *[command] * (each * max(1, self.server_nodes) - 1)),
            nodes=max(1, self.server_nodes), instances=each,
            cpus=max(1, cores // (2 * each if beside else each)))

    def client_step(self, name: str, *options: str) -> Step:
        """A step in which all clients measure all sizes; the first one traces, unless
        it is of a ring."""
        of = self.run_setup
        command = (
            f'{self.programs.stagedir}/optcast', '--client', '--nrank', str(of.clients),
            '--service', '{service}', '--rank', '{index}',
            '--data-type', of.data_type, '--chunksize', str(of.chunksize),
            '--size', ','.join(map(str, of.sizes)), '-n', str(of.iterations),
            '-w', str(of.warmup), *self.option_words()[1], *options)
        trace = () if '--ring' in options else ('--trace', '{output}.trace')
        return Step(name, (Program(commands=(
            (*command, *trace), *[command] * (of.clients - 1))),),
            self.step_time_limit, gate=True)

    # Results ----------------------------------------------------------------

    def required_metrics(self) -> list[str]:
        return ['ready_time', *self.expected_metrics()]

    def expected_metrics(self) -> Iterator[str]:
        """Metrics of the logs and of the tables."""
        of = self.run_setup
        for name in ('busbw', 'algbw', 'ring_busbw', 'ring_ratio'):
            yield from (metrics.metric_key(name, size) for size in of.sizes)
        yield 'busbw_average'
        yield from metrics_of_spans('client', 'e2e', 'req', 'send', 'recv')
        yield from metrics_of_spans('server', 'recv', 'reduce', 'send')

    def min_repetition_seconds(self, values: dict[str, float]) -> float:
        of = self.run_setup
        return sum(of.iterations * size / values[metrics.metric_key('algbw', size)]
                   * 1e-9 for size in of.sizes)

    def extract_service_values(self, services: Services, output: str,
                               run: guards.Run) -> dict[str, float]:
        folder = Path(self.stagedir, f'{run.name}.logs')
        folder.mkdir(exist_ok=True)
        (folder / 'setting.yaml').write_text(yaml.safe_dump(
            self.run_setup.to_run_script_settings()))
        for name, parts in self.log_files(run.name).items():
            (folder / name).write_bytes(b''.join(
                Path(self.stagedir, part).read_bytes() for part in parts))
        try:
            result = parser.analyse_log_folder(folder)
            values = {**guards.values_by_metric(result.output.records, folder.name),
                      **self.derived_values(result)}
        except ParseError as err:
            guards.fail_test_case('table', f'{folder.name}: {err.file}:{err}')
        self.version = result.program_version
        self.spans = last_spans_as_samples(result.logs)
        return values

    def log_files(self, run: str) -> dict[str, list[str]]:
        """Files of a folder like that of the original's run script, and their parts in
        the stage directory: the logs of the first client and server, and ring.txt, the
        output of the ring of the same clients."""
        client = f'{run}.optcast.0'
        return {'client.log': [f'{client}.trace', f'{client}.out'],
                'server.log': [f'{run}.server0.log'], 'ring.txt': [f'{run}.ring.0.out']}

    def derived_values(self, result: parser.Analysis) -> dict[str, float]:
        """busbw of the ring of the same clients, and the ratio to it.

        :raises ParseError: a table lacks a size or a client
        """
        of, tables = self.run_setup, []
        for name, table in (('client.log', result.table), ('ring.txt', result.ring)):
            busbw = parser.busbw_by_size(table) if table else {}
            if not table or table.ranks != of.clients or list(busbw) != list(of.sizes):
                raise ParseError(1, '', f'the table has the sizes {list(busbw)} and '
                                 f'{table.ranks if table else 0} clients; requested: '
                                 f'{list(of.sizes)} and {of.clients}', name)
            tables.append(busbw)
        servers, ring = tables
        return {**{metrics.metric_key('ring_busbw', size): ring[size] for size in ring},
                **{metrics.metric_key('ring_ratio', size): servers[size] / ring[size]
                   for size in ring}}

    @property
    def attached_files(self) -> dict[str, str]:
        """Spans of threads and requests at the end of the last repetition."""
        return {samples.file_name(self.test_case): samples.samples_as_csv(self.spans)
                } if self.spans else {}


def metrics_of_spans(side: str, *kinds: str) -> list[str]:
    """Metrics of the statistics of these kinds of spans."""
    return [f'{side}_{kind}_{one}' for kind in kinds for one in parser.STATISTICS]
