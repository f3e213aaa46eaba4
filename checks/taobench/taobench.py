"""Checks of TaoBench: a caching server under the load of a social graph.

The embedded server and memcached run at a small scale, with the sizing rules of
DCPerf's scripts (sizing.py). DCPerf's own programs are started by its own scripts
(dcperf.py).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import reframe as rfm
import reframe.core.runtime as rt
from reframe.core.builtins import fixture, parameter, run_after, variable

from ..core import base, guards
from ..core.parsers import ParseError
from ..loadgen import BUILD, EMBEDDED, memtier
from ..loadgen import RESERVED as RESERVED_OF_MEMTIER
from ..machine import builds
from ..services.parser import Services
from ..services.plan import Clients, Plan, Program, Server, Step
from ..services.service import ServiceBenchmark
from ..stores.servers import MEMCACHED_FLAGS, RESERVED_OF_MEMCACHED
from . import parser as tao
from . import results, sizing, validity
from .scenarios import (
    INTERVAL,
    PAUSE,
    PROGRAMS,
    WARM_UP_PASSES,
    Scenario,
    modes_of_scenario,
    scenarios_of_program,
)

HERE = Path(__file__).resolve().parent

#: Additional time of a phase before its clients are killed. Unit: s.
PHASE_MARGIN = 30

#: Length of a key: a constant prefix and the index.
KEY_BYTES = 220
#: Constant prefix of every key, with arbitrary bytes.
PREFIX = ('the_associations_of_an_object_' * 8)[:KEY_BYTES - 1]

#: Sizes of values that a look-aside client stores, with their weights: those of
#: DCPerf's leader_sizes.json after compression with LZ4.
STORED = ((31, 52, 5), (53, 71, 5), (72, 110, 10), (111, 134, 5),
          (135, 156, 5), (157, 203, 10), (204, 243, 10), (244, 266, 25),
          (267, 267, 15), (268, 273, 9), (274, 521, 1))


class TaoPrograms(base.Programs):
    """The embedded server or an installed one, and the embedded load generator."""

    family = 'taobench'

    def build_commands(self) -> list[str]:
        return [builds.build_script_command(self, HERE / 'src' / 'build.sh',
                                            'tao_server')]

    def tool_build_commands(self) -> list[str]:
        return [builds.build_script_command(self, BUILD, EMBEDDED)]


class TaoBenchmark(ServiceBenchmark, special=True):
    """A job of TaoBench: how long it runs, and whether its run is valid.

    DCPerf's scripts choose sizes and times, start clients and servers, and print the
    result, so that the check of DCPerf's server (dcperf.py) only runs them; a machine
    without DCPerf has no such scripts, and needs another way to start a server and its
    clients. If a check started DCPerf's server in that way, its sizes and clients would
    be ours, and its score would no longer be DCPerf's.
    """

    family = 'taobench'
    programs = fixture(TaoPrograms, scope='environment')
    SETTINGS: ClassVar[Mapping[str, Any]] = {
        **ServiceBenchmark.SETTINGS,
        'memory': 0.0, 'warmup_time': 0, 'test_time': 0, 'interval': 0.0,
        'options': '', 'client_options': ''}

    #: Options of the server -> the setting that replaces them.
    REFUSED: ClassVar[Mapping[str, str]] = {}
    #: The same for options of a client.
    REFUSED_OF_CLIENTS: ClassVar[Mapping[str, str]] = {}

    #: Job, program, scale and place of the clients; each check makes it a
    #: parameter.
    scenario: Scenario

    #: Memory of the servers' machine, of which the caches have three quarters.
    #: 0: the value of DCPerf's job. Unit: GB.
    memory = variable(float, value=0.0)

    #: Length of the warm-up, and of the test. 0: the value of DCPerf's job. Unit: s.
    warmup_time = variable(int, value=0)
    test_time = variable(int, value=0)

    #: Time between two lines of a server's statistics. 0: 1 at the small scale, else
    #: 5. Unit: s.
    interval = variable(float, value=0.0)

    #: More options for the server: -S TaoBench.options='-o tao_smart_nanosleep=1'
    options = variable(str, value='')

    #: More options for each client.
    client_options = variable(str, value='')

    #: Time of a repetition besides warm-up and test. Unit: s.
    MARGIN: ClassVar[int] = 120 + 2 * PHASE_MARGIN

    @run_after('init')
    def set_requirements(self) -> None:
        """Set program, nodes, environment and modes of the scenario, and a time limit
        for all repetitions in the partition where they take longest."""
        self.program = self.scenario.program
        self.descr = f'TaoBench {self.scenario}'
        self.require_client_and_server_nodes(self.scenario.client_nodes, 1)
        self.valid_prog_environs = [f'+{PROGRAMS[self.program]}']
        self.set_mode_tags(modes_of_scenario(self.scenario))
        if instead := self.scenario.dcperf_job.deprecated:
            self.descr += f' (deprecated: use {instead})'
        if self.scenario.scale == 'original':
            # A run takes half an hour and already has many data points.
            self.repetitions = 1
        longest = max(sum(self.phase_seconds(machine_of_partition(part)))
                      for part in rt.runtime().system.partitions)
        self.time_limit = max(self.time_limit or 0,
                              self.repetitions * (longest + self.MARGIN))
        self.keep_files = [*self.keep_files, 'run.*.log', 'run.*.csv', 'run.*.txt']

    @run_after('setup')
    def use_whole_cores(self) -> None:
        """Request all hardware threads of each core, if cores have several."""
        if (self.current_partition.processor.num_cpus_per_core or 1) > 1:
            # Servers use whole cores: with a site's --hint=nomultithread the
            # job would request more CPUs than exist.
            self.use_multithreading = True

    # Sizes ---------------------------------------------------------------

    def sizes_on(self, machine: sizing.Machine) -> sizing.Sizes:
        """Sizes of this scenario, with the settings."""
        usual = self.scenario.sizes(machine.cpus)
        return replace(usual, **{
            name: getattr(self, name) for name in vars(usual)
            if name in self.SETTINGS and getattr(self, name)})

    def phase_seconds(self, machine: sizing.Machine) -> tuple[int, int]:
        """Lengths of warm-up and test. Unit: s."""
        return sizing.phase_seconds(self.scenario.dcperf_job, machine,
                                    self.sizes_on(machine))

    @property
    def server_machine(self) -> sizing.Machine:
        """The server's machine, with the CPUs that the site declares.

        :raises ValueError: the job needs its memory, which the site does not declare
        """
        machine = machine_of_partition(self.current_partition)
        if not (machine.memory or self.sizes_on(machine).memory
                or self.scenario.dcperf_job.memory):
            raise ValueError(
                f'{self.scenario.job}: the memory of a node is not known: set '
                'node_memory (GB) in the partition of the site, or '
                f'-S {type(self).variant_name()}.memory=GB')
        return machine

    @property
    def statistics_interval(self) -> float:
        """Time between two lines of statistics. Unit: s."""
        return self.interval or INTERVAL[self.scenario.scale]

    # Validity --------------------------------------------------------------

    def required_metrics(self) -> list[str]:
        return [*tao.UNITS, 'spawned_instances', 'successful_instances',
                'cpu_total', 'cpu_user']

    def check_and_combine(self, run: guards.Run, expected: validity.Expected,
                          logs: list[tao.Log | None], starts: list[float],
                          phases: results.Phases, node: str,
                          limited: Sequence[str] = ()) -> dict[str, float]:
        """The values of a repetition; note each broken rule.

        :param logs: log of each server; None: it has no valid statistics
        :param starts: start of each server. Unit: s since 1970
        :param phases: name -> begin and end of the warm-up and of the test
        :param node: of the servers
        :param limited: clients that could not send requests faster
        """
        window = tao.counted_window_seconds(expected.test_time)
        rows = [tao.summarise_log(log, window, expected.interval) if log else None
                for log in logs]
        busy = results.Busy(Path(
            self.stagedir, f'{run.name}.cpu.{node}.csv').read_text(), node)
        cpu = busy.cpu_use_between(*phases['test'])
        reasons = list(validity.find_invalidity_reasons(
            rows, expected, cpu if self.is_cpu_use_checked else None,
            limited if self.is_cpu_use_checked else ()))
        series = results.format_points_over_time(rows, starts, expected.interval, busy,
                                                 phases)
        if not self.invalid:    # keep the first invalid repetition, or the last one
            self.files = {'series.csv': series}
        if reasons:
            which = f'{run.name}: ' * (self.repetitions > 1)
            self.invalid = '; '.join(filter(None, [
                self.invalid, *(f'{which}{one}' for one in reasons)]))
            self.files['invalid.txt'] = self.invalid.replace('; ', '\n') + '\n'
        return {**{name: float(value) for name, value in
                   tao.combine_summaries(rows).items()},
                **({'cpu_total': cpu.total, 'cpu_user': cpu.user} if cpu else {})}

    def read_log(self, name: str) -> tao.Log | None:
        """The log of a server in the stage directory; None: it has no valid
        statistics."""
        try:
            return tao.parse_server_logs(Path(self.stagedir, name).read_text(
                errors='replace'))[-1]
        except (OSError, ParseError) as err:
            self.logger.warning(f'{name}: {err}')
            return None

    @property
    def is_cpu_use_checked(self) -> bool:
        """Whether the CPU use is checked: the guide's limits require separate
        machines and the original's load."""
        return (self.scenario.scale == 'original'
                and not self.scenario.dcperf_job.is_standalone)

    #: Files of the run: path -> text.
    files: dict[str, str] = {}

    @property
    def attached_files(self) -> dict[str, str]:
        return self.files


class SizedTaoBenchmark(TaoBenchmark, special=True):
    """A server that the suite starts, with the embedded memtier_benchmark as its
    client."""

    SETTINGS = {**TaoBenchmark.SETTINGS, 'servers': 0, 'connections': 0, 'keys': 0}
    REFUSED = {'-t --threads': 'select another job, or fewer CPUs',
               '-c --conn-limit': 'use the setting connections',
               **RESERVED_OF_MEMCACHED}
    FLAGS = MEMCACHED_FLAGS
    REFUSED_OF_CLIENTS = {
        '--test-time --warmup-time': 'use the settings warmup_time and test_time',
        '-n --requests': 'use the setting test_time',
        '--key-maximum': 'use the setting keys',
        '-c --clients': 'use the setting connections', **RESERVED_OF_MEMTIER}

    #: Number of servers; 0: one per 72 CPUs.
    servers = variable(int, value=0)

    #: Connections of each thread of a client; 0: the value of DCPerf's job.
    connections = variable(int, value=0)

    #: Keys of each server; 0: so many that the hit ratio is as in the original.
    keys = variable(int, value=0)

    def server_words(self, options: Sequence[str]) -> list[str]:
        """The command of a server.

        :param options: those of memcached, which all servers have
        """
        raise NotImplementedError

    def client_words(self) -> list[str]:
        """Options of the load generator that depend on the server."""
        return []

    @property
    def sized_plan(self) -> sizing.Plan:
        """Servers, clients and times by the sizing rules."""
        machine = machine_of_partition(self.current_partition)
        return sizing.plan_job(machine, self.sizes_on(machine),
                               self.scenario.client_nodes or 2)

    def service_plan(self) -> Plan:
        sized, server_options = self.sized_plan, self.option_words()[0]
        count = max(1, self.scenario.client_nodes)
        # The first server has the most clients.
        connections = 64 + sized.connections_to_server(0)
        server = Server(
            self.program, (*self.server_words((
                '-l', '{address}', '-p', '{port}', '-m', str(sized.memory), '-t',
                str(sized.fast_threads), '-c', str(connections))), *server_options),
            dialect='memcached', instances=sized.servers, cpus=sized.cpus,
            password=False)
        clients = Clients(
            nodes=count, instances=-(-sized.clients // count), unbound=True,
            one_server=True, apart=self.scenario.client_nodes > 0)
        # If the user sets the time of the warm-up, it must not end early.
        passes = 0 if self.warmup_time else WARM_UP_PASSES
        return Plan(server, (clients,), (
            self.client_step('warmup', 1, sized.warmup_time, passes),
            self.client_step('test', 2, sized.test_time, 0,
                             PAUSE[self.scenario.scale])),
            sample=max(self.statistics_interval, 0.25))

    def client_step(self, name: str, seed: int, seconds: int, passes: int,
                    rest: float = 0) -> Step:
        """A phase of all clients. Each client and each phase has other keys.

        :param passes: requests per key that end it early; 0: no limit
        :param rest: pause before it. Unit: s
        """
        sized = self.sized_plan
        connections = sized.client_threads * sized.connections

        def command(client: int) -> tuple[str, ...]:
            requests = -(-passes * sized.key_count_of_client(client) // connections)
            return (
                f'{self.programs.stagedir}/{EMBEDDED}', '--service', '{service}',
                '--seed', f'{seed}{{index}}', '--protocol', 'memcache_binary',
                '--ratio', '0:1', '--threads', str(sized.client_threads),
                '--clients', str(sized.connections), '--key-prefix', PREFIX,
                '--key-maximum', str(sized.keys - 1), '--test-time', str(seconds),
                *(['--requests', str(requests)] if requests else []),
                '--out-file', '/dev/null', '--json-out-file', '/proc/self/fd/1',
                *self.client_words(), *self.option_words()[1])

        return Step(
            name, (Program(commands=tuple(map(command, range(sized.clients)))),),
            seconds + PHASE_MARGIN, gate=True, rest=rest)

    def required_metrics(self) -> list[str]:
        return [*super().required_metrics(), 'server_cpu', 'ready_time']

    def extract_service_values(self, services: Services, output: str,
                               run: guards.Run) -> dict[str, float]:
        sized = self.sized_plan
        seen = memtier.read_run(output, sized.clients)
        first, test = services.servers[0], services.steps['test']
        self.version = first.version
        phases = {name: (step.at, step.at + step.seconds)
                  for name, step in services.steps.items()}
        expected = validity.Expected(
            sized.servers,
            # Enough requests end the warm-up before its time, and clients need time to
            # start.
            min(sized.warmup_time, services.steps['warmup'].seconds), sized.test_time,
            self.statistics_interval, phases['test'][0] - phases['warmup'][1],
            self.scenario.job, [sized.connections_to_server(index)
                                for index in range(sized.servers)])
        values = self.check_and_combine(
            run, expected, self.read_server_logs(services, run),
            self.server_start_times(services), phases,
            first.node,
            [f'client{index}' for index, by in enumerate(seen.limited)
             if by == 'client'])
        return {**values, **{record.metric: record.value for record in seen.records
                             if record.metric in ('latency', 'latency_p50',
                                                  'latency_p99')},
                'server_cpu': test.counter_increase('cpu') * 1e6
                / max(1, test.counter_increase('commands'))}

    def read_server_logs(self, services: Services, run: guards.Run
                         ) -> list[tao.Log | None]:
        """The log of each server; None: it has no valid statistics."""
        return [self.read_log(f'{run.name}.server{server.index}.log')
                for server in services.servers]

    def server_start_times(self, services: Services) -> list[float]:
        """Start time of each server. Unit: s since 1970."""
        return [server.at for server in services.servers]


@rfm.simple_test
class TaoBench(SizedTaoBenchmark):
    """A job of TaoBench with the embedded server."""

    #: Job, program, scale and place of the clients.
    scenario = parameter(scenarios_of_program('tao_server'),
                         fmt=lambda scenario: str(scenario))

    def server_words(self, options: Sequence[str]) -> list[str]:
        # The server creates the values; a full queue is a miss.
        sized = self.sized_plan
        return [f'{self.programs.stagedir}/tao_server', *options, '-o', ','.join(
            f'tao_{name}={value}' for name, value in {
                'slow_dispatchers': sized.dispatchers,
                'num_slow_threads': sized.slow_threads, 'max_slow_reqs': 1024,
                'worker_sleep_ns': 100, 'dispatcher_sleep_ns': 100,
                'slow_sleep_ns': 100, 'slow_path_sleep_us': 0,
                'stats_sleep_ms': round(self.statistics_interval * 1000),
            }.items())]


@rfm.simple_test
class TaoLookAside(SizedTaoBenchmark):
    """The same load on memcached without patches; clients SET missed keys."""

    #: Job, program, scale and place of the clients.
    scenario = parameter(scenarios_of_program('memcached'),
                         fmt=lambda scenario: str(scenario))

    def server_words(self, options: Sequence[str]) -> list[str]:
        prefix = self.programs.program_origin(self.program).get('prefix', '/usr')
        return [f'{prefix}/bin/memcached', '-u', 'root', '-U', '0', *options]

    def client_words(self) -> list[str]:
        # Each phase has other keys, but the same values.
        return ['--on-miss', 'set', '--data-size-list', format_value_sizes(),
                '--verify', 'bytes']

    @property
    def statistics_interval(self) -> float:
        """The load generator counts its requests in each second."""
        if self.interval not in (0, 1):
            raise ValueError('interval: memcached prints no statistics, and the load '
                             'generator counts whole seconds: set it to 1')
        return 1

    def read_server_logs(self, services: Services, run: guards.Run
                         ) -> list[tao.Log | None]:
        sized, steps = self.sized_plan, services.steps
        return [results.log_of_clients(
            {steps[phase].at - steps['warmup'].at: [
                Path(self.stagedir, f'{run.name}.{phase}.{client}.out').read_text()
                for client in sized.clients_of_server(server.index)]
             for phase in ('warmup', 'test')}) for server in services.servers]

    def server_start_times(self, services: Services) -> list[float]:
        return [services.steps['warmup'].at] * len(services.servers)


def machine_of_partition(partition: Any) -> sizing.Machine:
    """The machines of a partition, with the CPUs and memory that the site declares."""
    processor = partition.processor
    return sizing.Machine(processor.num_cpus or 1,
                          partition.extras.get('node_memory', 0),
                          processor.num_cpus_per_core or 1)


def format_value_sizes() -> str:
    """Sizes for --data-size-list: each size of a range with its share of the weight."""
    return ','.join(f'{size}:{weight / (last - first + 1):.6g}'
                    for first, last, weight in STORED
                    for size in range(first, last + 1))
