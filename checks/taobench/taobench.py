"""Checks of TaoBench: a caching server under the load of a social graph.

The embedded server and memcached follow the sizing rules of DCPerf's scripts
(sizing.py). DCPerf's own programs are started by its own scripts (dcperf.py).
"""
from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import reframe as rfm
from reframe.core.builtins import (
    fixture,
    parameter,
    run_after,
    variable,
)

from ..core import base, guards
from ..core.parsers import ParseError
from ..loadgen import BUILD, EMBEDDED, memtier
from ..machine import builds
from ..services.parser import Services
from ..services.plan import Clients, Plan, Program, Server, Step
from ..services.service import ServiceBenchmark
from . import commands, results, sizing, validity
from . import parser as tao
from .commands import Phase
from .scenarios import (
    INTERVAL,
    PAUSE,
    PROGRAMS,
    Scenario,
    modes_of_scenario,
    scenarios_of_program,
)

HERE = Path(__file__).resolve().parent

#: Additional time of a phase before its clients are killed. Unit: s.
PHASE_MARGIN = 30


class TaoPrograms(base.Programs):
    """The embedded server and load generator, or the original's."""

    family = 'taobench'

    def build_commands(self) -> list[str]:
        cc = f'CC={self.current_environ.cc or "cc"}'
        return [builds.copy_or_build_command(
                    self, out.split('/')[0], f'{cc} {shlex.quote(str(script))} {out}')
                for script, out in (
                    (HERE / 'src' / 'build.sh', 'tao_server'),
                    (BUILD, EMBEDDED))]


class TaoBenchmark(ServiceBenchmark, special=True):
    """A job of TaoBench: how long it runs, and whether its run is valid."""

    family = 'taobench'
    SETTINGS: ClassVar[Mapping[str, Any]] = {
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
    #: 0: as the job has it. Unit: GB.
    memory = variable(float, value=0.0)

    #: Length of the warm-up, and of the test. 0: as the job has it. Unit: s.
    warmup_time = variable(int, value=0)
    test_time = variable(int, value=0)

    #: Time between two lines of a server's statistics. 0: 1 at the small scale, else
    #: 5. Unit: s.
    interval = variable(float, value=0.0)

    #: More options for the server: -S TaoBench.options='-o tao_smart_nanosleep=1'
    options = variable(str, value='')

    #: More options for each client.
    client_options = variable(str, value='')

    @run_after('init')
    def set_requirements(self) -> None:
        self.program = self.scenario.program
        self.descr = f'TaoBench {self.scenario}'
        self.require_nodes(self.scenario.node_count)
        self.valid_prog_environs = [f'+{PROGRAMS[self.program]}']
        self.set_mode_tags(modes_of_scenario(self.scenario))
        if instead := self.scenario.dcperf_job.deprecated:
            self.descr += f' (deprecated: use {instead})'
        if self.scenario.scale == 'original':
            # A run takes half an hour and already has many data points.
            self.repetitions = 1

    @run_after('setup')
    def set_time_limit(self) -> None:
        if (self.current_partition.processor.num_cpus_per_core or 1) > 1:
            # Servers use whole cores: with a site's --hint=nomultithread the
            # job would request more CPUs than exist.
            self.use_multithreading = True
        self.time_limit = max(self.time_limit or 0, self.required_job_seconds())
        self.keep_files = [*self.keep_files, 'run.*.log', 'run.*.csv', 'run.*.txt']

    def required_job_seconds(self) -> float:
        plan = self.service_plan()
        return self.repetitions * (120 + sum(step.limit for step in plan.steps))

    # Sizes ---------------------------------------------------------------

    @property
    def server_machine(self) -> sizing.Machine:
        """The server's machine, with the CPUs that the site declares.

        :raises ValueError: the job needs its memory, which the site does not declare
        """
        processor = self.current_partition.processor
        memory = self.current_partition.extras.get('node_memory', 0)
        if not (memory or self.sizes.memory or self.scenario.dcperf_job.memory):
            raise ValueError(
                f'{self.scenario.job}: the memory of a node is not known: set '
                'node_memory (GB) in the partition of the site, or '
                f'-S {type(self).variant_name()}.memory=GB')
        return sizing.Machine(processor.num_cpus or 1, memory,
                              processor.num_cpus_per_core or 1)

    @property
    def sizes(self) -> sizing.Sizes:
        """Sizes of this scenario, with the settings."""
        usual = self.scenario.sizes(self.current_partition.processor.num_cpus or 1)
        return replace(usual, **{
            name: getattr(self, name) for name in vars(usual)
            if name in self.SETTINGS and getattr(self, name)})

    @property
    def sized_plan(self) -> sizing.Plan:
        """Servers, clients and times by the sizing rules."""
        machine = self.server_machine
        return sizing.plan_job(self.scenario.dcperf_job, machine, self.sizes,
                               [machine.cpus] * (self.scenario.client_nodes or 2))

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
                          phases: results.Phases, nodes: set[str], limited: list[str]
                          ) -> dict[str, float]:
        """The values of a repetition; note each broken rule.

        :param logs: log of each server; None: it has no valid statistics
        :param starts: start of each server. Unit: s since 1970
        :param phases: name -> begin and end of the warm-up and of the test
        :param nodes: nodes of the servers
        :param limited: clients that could not send requests faster
        """
        window = tao.counted_window_seconds(expected.test_time)
        rows = [tao.summarise_log(log, window, expected.interval) if log else None
                for log in logs]
        busy = {node: results.Busy(Path(
            self.stagedir, f'{run.name}.cpu.{node}.csv').read_text()) for node in nodes}
        cpu = next(iter(busy.values())).cpu_use_between(*phases['test'])
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

    @property
    def is_cpu_use_checked(self) -> bool:
        """Whether the CPU use is checked: the guide's limits require separate
        machines and the original's load."""
        return (self.scenario.scale == 'original'
                and not self.scenario.dcperf_job.is_standalone)

    def add_low_values_note(self) -> None:
        """Also note a network that the guide does not recommend."""
        super().add_low_values_note()
        if self.has_network_rule and not self.is_dry_run():
            self.no_reference = '; '.join(filter(None, (
                self.no_reference, validity.network_note(*self.network))))

    @property
    def has_network_rule(self) -> bool:
        """Whether the guide's rule for the network applies: the original's load
        from other machines."""
        return self.scenario.scale == 'original' and self.scenario.client_nodes > 0

    #: CPUs of the servers' machine, its interface, and the speed in Mb/s.
    network = (0, '', 0)

    def check_network(self, cpus: int, interface: str, speed: int) -> None:
        """Check the speed of the servers' interface.

        :param cpus: of the servers' machine
        :param speed: 0: unknown. Unit: Mb/s
        """
        self.network = cpus, interface, speed
        fault = validity.network_fault(*self.network)
        if self.has_network_rule and fault:
            guards.fail_test_case('network', fault)

    #: Files of the run: path -> text.
    files: dict[str, str] = {}

    @property
    def attached_files(self) -> dict[str, str]:
        return self.files


class SizedTaoBenchmark(TaoBenchmark, special=True):
    """A server that the suite starts, with the embedded memtier_benchmark as its
    client."""

    SETTINGS = {**TaoBenchmark.SETTINGS, 'servers': 0, 'connections': 0, 'keys': 0}
    REFUSED = {'-m': 'the setting memory', '-t': 'another job, or fewer CPUs',
               '-p': 'the free port that the job selects', '-l': 'the address of the '
               'job', '-c': 'the setting connections'}
    REFUSED_OF_CLIENTS = {
        '--test-time': 'the settings warmup_time and test_time',
        '--requests': 'the setting test_time', '--key-maximum': 'the setting keys',
        '--clients': 'the setting connections',
        '--series': 'the setting interval', '--interval': 'the setting interval',
        '--service': 'the servers of the job'}

    #: Number of servers; 0: one per 72 CPUs.
    servers = variable(int, value=0)

    #: Connections of each thread of a client; 0: as the job has it.
    connections = variable(int, value=0)

    #: Keys of each server; 0: so many that the hit ratio is as in the original.
    keys = variable(int, value=0)

    def server_words(self, instance: sizing.Instance, connections: int) -> list[str]:
        """The command of a server."""
        raise NotImplementedError

    def client_words(self) -> list[str]:
        """Options of the load generator that depend on the server."""
        raise NotImplementedError

    def service_plan(self) -> Plan:
        sized, (server_options, client_options) = self.sized_plan, self.option_words()
        count = max(1, self.scenario.client_nodes)
        connections = 64 + max(sized.connections_to_server(index)
                               for index in range(len(sized.instances)))
        server = Server(
            self.program, (), commands=tuple(
                (*self.server_words(one, connections), *server_options)
                for one in sized.instances),
            dialect='memcached', instances=len(sized.instances),
            cpus=max(one.cpus for one in sized.instances), divided=True,
            memory=sized.instances[0].memory, password=False)
        clients = Clients(
            nodes=count, instances=-(-len(sized.clients) // count), unbound=True,
            one_server=True, apart=self.scenario.client_nodes > 0)
        # If the user sets the time of the warm-up, it must not end early.
        passes = 0 if self.warmup_time else self.scenario.warmup_requests_per_key

        def step(phase: Phase, rest: float) -> Step:
            return Step(phase.name, (Program(commands=tuple(
                (f'{self.programs.stagedir}/{EMBEDDED}', *commands.load_options(
                    one, phase, phase.passes * sized.key_count_of_client(one)),
                 *self.client_words(), *client_options) for one in sized.clients)),),
                phase.seconds + PHASE_MARGIN, gate=True, rest=rest)

        return Plan(
            server, (clients,),
            (step(Phase('warmup', sized.warmup_time, 1, passes), 0),
             step(Phase('test', sized.test_time, 2, 0), PAUSE[self.scenario.scale])),
            sample=max(self.statistics_interval, 0.25))

    def required_metrics(self) -> list[str]:
        return [*super().required_metrics(), 'server_cpu', 'ready_time']

    def extract_service_values(self, services: Services, output: str,
                               run: guards.Run) -> dict[str, float]:
        sized = self.sized_plan
        seen = memtier.read_run(output, len(sized.clients))
        first, test = services.servers[0], services.steps['test']
        self.version = first.version
        self.check_network(self.server_machine.cpus, first.interface, first.link)
        phases = {name: (step.at, step.at + step.seconds)
                  for name, step in services.steps.items()}
        expected = validity.Expected(
            len(sized.instances),
            # Enough requests end the warm-up before its time, and clients need time to
            # start.
            min(sized.warmup_time, services.steps['warmup'].seconds), sized.test_time,
            self.statistics_interval, phases['test'][0] - phases['warmup'][1],
            self.scenario.dcperf_job.semaphore,
            [sized.connections_to_server(index)
             for index in range(len(sized.instances))])
        values = self.check_and_combine(
            run, expected, self.read_server_logs(services, run),
            self.server_start_times(services), phases,
            {server.node for server in services.servers},
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
        rows: list[tao.Log | None] = []
        for server in services.servers:
            path = Path(self.stagedir, f'{run.name}.server{server.index}.log')
            try:
                rows += tao.parse_server_logs(path.read_text(errors='replace'),
                                              split_at_restarts=False)
            except (OSError, ParseError) as err:
                self.logger.warning(f'{path}: {err}')
                rows.append(None)
        return rows

    def server_start_times(self, services: Services) -> list[float]:
        """Start time of each server. Unit: s since 1970."""
        return [server.at for server in services.servers]


@rfm.simple_test
class TaoBench(SizedTaoBenchmark):
    """A job of TaoBench with the embedded server."""

    #: Job, program, scale and place of the clients.
    scenario = parameter(scenarios_of_program('tao_server'),
                         fmt=lambda scenario: str(scenario))

    programs = fixture(TaoPrograms, scope='environment')

    def server_words(self, instance: sizing.Instance, connections: int) -> list[str]:
        return [f'{self.programs.stagedir}/tao_server',
                *commands.memcached_options(instance, connections),
                *commands.tao_server_options(self.scenario.dcperf_job, instance,
                                             self.statistics_interval)]

    def client_words(self) -> list[str]:
        # The server creates the values; a full queue is a miss.
        return []


class TaoStorePrograms(TaoPrograms):
    """An installed memcached, and the embedded load generator."""

    def build_commands(self) -> list[str]:
        return []

    def tool_build_commands(self) -> list[str]:
        return super().build_commands()[1:]


@rfm.simple_test
class TaoLookAside(SizedTaoBenchmark):
    """The same load on memcached without patches; clients SET missed keys."""

    #: Job, program, scale and place of the clients.
    scenario = parameter(scenarios_of_program('memcached'),
                         fmt=lambda scenario: str(scenario))

    programs = fixture(TaoStorePrograms, scope='environment')

    def server_words(self, instance: sizing.Instance, connections: int) -> list[str]:
        prefix = self.programs.program_origin(self.program).get('prefix', '/usr')
        return [f'{prefix}/bin/memcached', '-u', 'root', '-U', '0',
                *commands.memcached_options(instance, connections)]

    def client_words(self) -> list[str]:
        return [*commands.look_aside_options(commands.format_value_sizes(),
                                             self.statistics_interval)]

    def read_server_logs(self, services: Services, run: guards.Run
             ) -> list[tao.Log | None]:
        interval, steps = self.statistics_interval, services.steps

        def counts(phase: str, server: int) -> list[tuple[float, float]]:
            return results.counts_from_client_rows(
                [Path(self.stagedir, f'{run.name}.{phase}.{number}.csv').read_text()
                 for number, one in enumerate(self.sized_plan.clients)
                 if one.server == server], interval)

        rows: list[tao.Log | None] = []
        for server in services.servers:
            warmup = counts('warmup', server.index)
            rest = round((steps['test'].at - steps['warmup'].at) / interval)
            rows.append(results.log_from_counts(
                [*warmup, *[(0.0, 0.0)] * (rest - len(warmup)),
                 *counts('test', server.index)], interval))
        return rows

    def server_start_times(self, services: Services) -> list[float]:
        return [services.steps['warmup'].at] * len(services.servers)
