"""Checks of TaoBench: a caching server under the load of a social graph."""
from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

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

from ..core import base, guards
from ..core.parsers import ParseError
from ..loadgen import BUILD, memtier, plumbload
from ..machine import builds
from ..services.parser import Services
from ..services.plan import Clients, Plan, Program, Server, Step
from ..services.service import ServiceBenchmark, has_partition_with_nodes
from . import calls, jobs, report, results, sizing, validity
from . import parser as tao
from .scenarios import PROGRAMS, Scenario, modes_of_scenario, scenarios_with_first_mode

HERE = Path(__file__).resolve().parent


def runnable_scenarios(*names: str) -> list[Scenario]:
    """Scenarios of these programs that some environment and partition of this
    system can run."""
    parts = rt.runtime().system.partitions
    features = {f for part in parts for env in part.environs
                for f in env.features}
    return [
        scenario
        for scenario, _ in scenarios_with_first_mode()
        if scenario.program in names
        and PROGRAMS[scenario.program] in features
        and has_partition_with_nodes('taobench', scenario.node_count)
    ]


class TaoPrograms(base.Programs):
    """The embedded server and load generator, or the original's."""

    family = 'taobench'

    def build_commands(self) -> list[str]:
        cc = f'CC={self.current_environ.cc or "cc"}'
        return [builds.copy_or_build_command(
                    self, out, f'{cc} {shlex.quote(str(script))} {out}')
                for script, out in (
                    (HERE / 'src' / 'build.sh', 'tao_server'),
                    (BUILD, 'plumbload'))]


class TaoBenchmark(ServiceBenchmark, special=True):
    """A job of TaoBench, sized by the original's rules."""

    family = 'taobench'
    SETTINGS = {'settings': {}, 'client_settings': {}, 'rule': 'code'}

    #: Job, program, scale and place of the clients; each check makes it a
    #: parameter.
    scenario: Scenario

    #: Parameters of the job (of the role server, where it has roles) under
    #: the original's names: -S TaoBench.settings=memsize:1,test_time:60
    settings = variable(typ.Dict[str, str], value={}, loggable=False)

    #: Parameters of the clients under the original's names.
    client_settings = variable(typ.Dict[str, str], value={})

    #: Rule for the number of data points and for the default of the warm-up:
    #: the original's code, or its guide.
    rule = variable(typ.Str[r'code|guide'], value='code')

    @run_after('init')
    def set_requirements(self) -> None:
        self.program = self.scenario.program
        self.descr = f'TaoBench {self.scenario}'
        self.require_nodes(self.scenario.node_count)
        self.valid_prog_environs = [f'+{PROGRAMS[self.program]}']
        self.set_mode_tags(modes_of_scenario(self.scenario))
        instead = jobs.find_job(self.scenario.job).deprecated
        if instead:
            self.descr += f' (deprecated: use {instead})'
        if self.scenario.scale == 'original':
            # A run takes half an hour and already has many data points.
            self.repetitions = 1

    @run_after('setup')
    def set_time_limit(self) -> None:
        instead = jobs.find_job(self.scenario.job).deprecated
        if instead:
            self.logger.info(
                f'{self.scenario.job} is deprecated: use {instead}'
            )
        if (self.current_partition.processor.num_cpus_per_core or 1) > 1:
            # Servers use whole cores: with a site's --hint=nomultithread the
            # job would request more CPUs than exist.
            self.use_multithreading = True
        self.time_limit = max(self.time_limit or 0, self.required_job_seconds())

    def required_job_seconds(self) -> float:
        return self.repetitions * (self.process_plan.kill_after + 120)

    @run_before('run')
    def add_machine_description_command(self) -> None:
        self.prerun_cmds = [
            *self.prerun_cmds, f'{shlex.quote(sys.executable)} '
            f'{shlex.quote(str(HERE / "machine.py"))} >machine.json']
        self.keep_files = [*self.keep_files, 'machine.json', 'run.*.log',
                           'run.*.csv', 'run.*.txt']

    # The plan ------------------------------------------------------------

    @property
    def is_tls_enabled(self) -> bool:
        """Whether connections are encrypted, which the programs must support.
        """
        return (bool({'tao_tls', 'store_tls'}
                     & set(self.current_environ.features))
                or self.program == 'tao_bench_server')

    @property
    def server_machine(self) -> sizing.Machine:
        """The server's machine, with the CPUs that the site declares."""
        processor = self.current_partition.processor
        return sizing.Machine(processor.num_cpus or 1,
                              self.current_partition.extras.get('node_memory', 0),
                              processor.num_cpus_per_core or 1)

    @property
    def non_default_parameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters of the job and of the clients that are not defaults."""
        job, clients = self.scenario.non_default_parameters(self.server_machine.cpus)
        plain = {} if self.is_tls_enabled else {'disable_tls': 1}
        both = {'warmup_time', 'test_time', 'server_port_number',
                'disable_tls'} & set(self.client_settings)
        if both:
            raise ValueError(f'client_settings: {", ".join(sorted(both))} '
                             'must be the same for servers and clients: set '
                             'it in settings')
        if int({**self.settings, **self.client_settings}.get('sanity', 0)):
            raise ValueError('settings: remove sanity (iperf3, ping): the '
                             'checks of MPI measure the network')
        return ({**job, **plain, **self.settings},
                {**clients, **self.client_settings})

    @property
    def process_plan(self) -> sizing.Plan:
        job, clients = self.non_default_parameters
        of = jobs.find_job(self.scenario.job)
        machine = self.server_machine
        if '' in of.roles and not (machine.memory or job.get('memsize')):
            raise ValueError(
                f'{of.name}: the memory of a node is not known: set '
                'node_memory (GB) in the partition of the site, or '
                f'-S {type(self).variant_name()}.settings=memsize:GB')
        cpus = [machine.cpus] * self.scenario.client_nodes
        return sizing.plan_job_processes(of, machine, job, clients, cpus, '{host}',
                                         self.rule)

    @property
    def program_folder(self) -> str:
        """Folder of the programs."""
        return self.programs.program_origin(self.program).get(
            'prefix', self.programs.stagedir)

    def service_plan(self) -> Plan:
        sized, (given, clients_given) = self.process_plan, self.non_default_parameters
        first = sized.instances[0]
        connections = max(sized.connections_to_server(one.index) + 64
                          for one in sized.instances)
        server = Server(
            self.program,
            (),
            commands=tuple(
                calls.server_command_template(
                    self.program,
                    one,
                    self.program_folder,
                    connections,
                    self.library_path,
                )
                for one in sized.instances
            ),
            dialect='memcached_binary',
            instances=len(sized.instances),
            cpus=max(one.cpus for one in sized.instances),
            divided=True,
            bind_memory=(
                'must' if sized.settings.get('bind_mem') else 'never'
            ),
            memory=first.memory,
            connections=connections,
            password=False,
            tls=bool(first.options.keys() & {'Z'}),
            beside=not self.scenario.client_nodes,
            # By default free ports, because two runs may share a machine.
            port=first.port
            if any(
                int(given.get(name, 0))
                for name in ('port_number', 'port_number_start')
            )
            else 0,
        )
        count = max(1, self.scenario.client_nodes)
        clients = Clients(
            count, -(-len(sized.clients) // count), len(sized.clients),
            unbound=True, one_server=True, connections=max(
                one.threads * one.connections for one in sized.clients))
        interval = self.statistics_interval

        # If the user sets the time of the warm-up, it must not end early.
        passes = (
            0
            if 'warmup_time' in self.settings
            else self.scenario.warmup_requests_per_key
        )

        def make_step(name: str, seconds: int, seed: int, rest: float,
                      passes: int = 0) -> Step:
            limit = seconds + sizing.PHASE_MARGIN
            return Step(
                name,
                (
                    Program(
                        commands=tuple(
                            calls.client_command_template(
                                self.program,
                                one,
                                self.client_install_prefix,
                                seconds,
                                interval,
                                seed,
                                f'{self.stagedir}/sizes.txt',
                                passes * sized.key_count_of_client(one),
                            )
                            for one in sized.clients
                        )
                    ),
                ),
                limit,
                gate=self.program != 'tao_bench_server',
                rest=rest,
            )

        return Plan(
            server, (clients,),
            (make_step('warmup', sized.warmup_time, 1, 0.0, passes),
             make_step('test', sized.test_time, 2, self.pause_before_test_seconds)),
            hostname=str({**given, **clients_given}.get(
                'server_hostname', '')),
            interface=str(given.get('interface_name', '')),
            link=sizing.min_link_speed(self.server_machine.cpus)
            if self.has_network_rule else 0,
            sample=max(interval, 0.25))

    @property
    def client_install_prefix(self) -> str:
        """Folder of the clients' program."""
        return self.program_folder

    @property
    def has_network_rule(self) -> bool:
        """Whether the guide's rule for the network applies: the original's load
        from other machines."""
        return self.scenario.scale == 'original' and self.scenario.client_nodes > 0

    @property
    def library_path(self) -> str:
        """LD_LIBRARY_PATH of the original's server, which would load the
        system's OpenSSL otherwise on some systems."""
        built = Path(self.program_folder, 'build-deps', 'lib')
        return str(built) if built.is_dir() else ''

    @property
    def statistics_interval(self) -> float:
        """Time between two lines of statistics. Unit: s."""
        return float(self.process_plan.settings['stats_interval']) / 1e3

    @property
    def pause_before_test_seconds(self) -> float:
        """Time between warm-up and test. Unit: s."""
        return float(self.process_plan.clients[0].arguments['wait_after_warmup'])

    # Results --------------------------------------------------------------

    def required_metrics(self) -> list[str]:
        return [*tao.UNITS, 'spawned_instances', 'successful_instances',
                'cpu_total', 'cpu_user', 'server_cpu', 'ready_time']

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

    def extract_service_values(self, services: Services, output: str,
                               run: guards.Run) -> dict[str, float]:
        sized, interval = self.process_plan, self.statistics_interval
        self.version = services.servers[0].version
        self.network = (self.server_machine.cpus, services.servers[0].interface,
                        services.servers[0].link)
        phases = {name: (step.at, step.at + step.seconds)
                  for name, step in services.steps.items()}
        # Enough requests end the warm-up before its time, and clients need time to
        # start.
        expected = replace(
            self.validity_requirements,
            warmup_time=min(sized.warmup_time, services.steps['warmup'].seconds),
            rest=phases['test'][0] - phases['warmup'][1])
        rows = [
            tao.summarise_log(
                log, tao.counted_window_seconds(sized.test_time), interval
            )
            if log
            else None
            for log in self.read_server_logs(services, run)
        ]
        busy = {node: results.Busy(Path(
            self.stagedir, f'{run.name}.cpu.{node}.csv').read_text())
            for node in {server.node for server in services.servers}}
        cpu = next(iter(busy.values())).cpu_use_between(*phases['test'])
        client, limited = self.read_client_values(output, run)
        reasons = validity.find_invalidity_reasons(
            rows, expected, cpu if self.is_cpu_use_checked else None,
            limited if self.is_cpu_use_checked else ())
        if reasons:
            which = f'{run.name}: ' * (self.repetitions > 1)
            self.invalid = '; '.join(filter(None, [
                self.invalid, *(f'{which}{one}' for one in reasons)]))
        combined = tao.combine_summaries(rows)
        self.attach_report(run, services, rows, busy, phases, combined, client)
        test = services.steps['test']
        return {**{name: float(value) for name, value in combined.items()
                   if not isinstance(value, str)},
                'server_cpu': test.counter_increase('cpu') * 1e6
                / max(1, test.counter_increase('commands')),
                **({'cpu_total': cpu.total, 'cpu_user': cpu.user}
                   if cpu else {}), **client}

    def add_low_values_note(self) -> None:
        """Also note a network that the guide does not recommend."""
        super().add_low_values_note()
        if self.has_network_rule and not self.is_dry_run():
            self.no_reference = '; '.join(filter(None, (
                self.no_reference, validity.network_note(*self.network))))

    @property
    def is_cpu_use_checked(self) -> bool:
        """Whether the CPU use is checked: the guide's limits require separate
        machines and the original's load."""
        return (self.scenario.scale == 'original'
                and self.scenario.job != 'standalone')

    @property
    def validity_requirements(self) -> validity.Expected:
        sized = self.process_plan
        return validity.Expected(
            len(sized.instances),
            sized.warmup_time,
            sized.test_time,
            self.statistics_interval,
            self.pause_before_test_seconds,
            'v2' in sized.job.name,
            self.rule,
            connections=[
                sized.connections_to_server(one.index)
                for one in sized.instances
            ],
        )

    def read_client_values(self, output: str, run: guards.Run
                       ) -> tuple[dict[str, float], list[str]]:
        """Latencies that the clients measured, and names of clients that were
        the limit. Set `clients`, the values of each client."""
        self.clients: list[dict[str, float | str]] = []
        if self.program == 'tao_bench_server':
            self.clients = [report.client_metrics(memtier.parse(Path(
                self.stagedir, f'{run.name}.test.{number}.out').read_text()))
                for number in range(len(self.process_plan.clients))]
            return {}, []
        seen = plumbload.read_run(output)
        self.clients = [{'role': 'client', 'qps': rate}
                        for rate in seen.rates.values()]
        return ({record.metric: record.value for record in seen.records
                 if record.metric in ('latency', 'latency_p50',
                                      'latency_p99')},
                [name for name, by in seen.limited.items()
                 if by == 'client'])

    def attach_report(self, run: guards.Run, services: Services,
                      summary: list[tao.Summary | None], busy: dict[str, results.Busy],
                      phases: results.Phases, combined: dict[str, Any],
                      client: dict[str, float]) -> None:
        """Attach the original's report, and the points over time."""
        sized, expected = self.process_plan, self.validity_requirements
        job = sized.job
        single = '' not in job.roles
        servers, clients = self.non_default_parameters
        unexposed = jobs.find_unexposed_arguments(
            job, 'server' if single else '', servers
        ) + [
            f'client.{name}'
            for name in jobs.find_unexposed_arguments(
                job if single else jobs.find_job('custom'), 'client', clients
            )
        ]
        metrics = (report.server_metrics(summary[0]) if single and summary[0]
                   else combined)
        document = report.build_report(
            job, self.describe_server_machine(services),
            ['run', job.name, '-i', json.dumps(servers)], metrics,
            f'{self.hashcode}-{run.name}', int(phases['warmup'][0]),
            {'program': self.program, 'source': self.source})
        own = {
            'clients.json': json.dumps(self.clients, indent=1) + '\n',
            'series.csv': results.format_points_over_time(
                summary, self.server_start_times(services), expected.interval, busy,
                phases)}
        self.files = {
            **self.files,
            **report.text_of_report_files(
                document,
                [one.log if one else None for one in summary],
                run.repetition,
                self.read_output_logs(services, run),
            ),
            'rule.txt': f'{expected.points_per_server} data points per server in '
            f'{tao.counted_window_seconds(sized.test_time):g} s, one every '
            f'{expected.interval:g} s, by the {expected.rule} of the '
            "original\nparameters that the original's job does not accept: "
            f'{", ".join(unexposed) or "none"}\n'
            f'{validity.describe_network(*self.network)}\n'
            f'{self.nic_setup_commands_text(sized)}',
            **(
                {
                    f'iter_{run.repetition}/{name}': text
                    for name, text in own.items()
                }
                if self.repetitions > 1
                else {}
            ),
            # Keep the first invalid repetition, or else the last one.
            **({} if 'invalid.txt' in self.files else own),
        }
        if self.invalid:
            self.files['invalid.txt'] = self.invalid.replace('; ', '\n')

    def read_output_logs(self, services: Services, run: guards.Run) -> dict[str, str]:
        """The output of each server and client under the original's names."""
        def read(*names: str) -> str:
            return report.drop_overwritten_text(''.join(
                Path(self.stagedir, f'{run.name}.{name}').read_text(errors='replace')
                for name in names))

        return {
            **{report.server_log_name(server.index, server.at):
               read(f'server{server.index}.log') for server in services.servers},
            **{f'client_{number}.log': read(*(
                f'{phase}.{number}.{kind}' for phase in ('warmup', 'test')
                for kind in ('out', 'err')))
               for number, _ in enumerate(self.process_plan.clients)}}

    def describe_server_machine(self, services: Services) -> list[dict[str, Any]]:
        """Description of the servers' machine, for the report."""
        seen = json.loads(Path(self.stagedir, 'machine.json').read_text())
        node = services.servers[0].node
        if seen['machine']['hostname'].partition('.')[0] \
                != node.partition('.')[0]:
            self.logger.warning(f'the report does not describe {node}, '
                                'because the batch script ran on another node')
            return []
        return [seen]

    def nic_setup_commands_text(self, sized: sizing.Plan) -> str:
        """The original's commands (for root) for the network card."""
        commands = [shlex.join(command) for one in sized.instances
                    for command in sizing.nic_setup_commands(
                        one, sized.settings, '.')]
        if not commands or not self.is_cpu_use_checked:
            return ''
        return '\n'.join(['commands that were not run, because they need root '
                          'and change the machine:', *commands, ''])

    def server_start_times(self, services: Services) -> list[float]:
        """Start time of each server. Unit: s since 1970."""
        return [server.at for server in services.servers]

    #: Files of the run: path -> text.
    files: dict[str, str] = {}

    #: CPUs of the servers' machine, its interface, and the speed in Mb/s.
    network = (0, '', 0)

    @property
    def attached_files(self) -> dict[str, str]:
        return self.files


class TaoBench(TaoBenchmark):
    """A job of TaoBench with the original's programs or the embedded ones."""

    #: Job, program, scale and place of the clients.
    scenario = parameter(runnable_scenarios('tao_server', 'tao_bench_server'),
                         fmt=lambda scenario: str(scenario))

    programs = fixture(TaoPrograms, scope='environment')


class TaoStorePrograms(TaoPrograms):
    """An installed memcached, and the embedded load generator."""

    def build_commands(self) -> list[str]:
        return []

    def tool_build_commands(self) -> list[str]:
        return super().build_commands()[1:]


class TaoLookAside(TaoBenchmark):
    """The same load on memcached without patches; clients SET missed keys."""

    #: Job, program, scale and place of the clients.
    scenario = parameter(
        runnable_scenarios('memcached'), fmt=lambda scenario: str(scenario)
    )

    programs = fixture(TaoStorePrograms, scope='environment')

    @property
    def program_folder(self) -> str:
        return self.programs.program_origin(self.program).get('prefix', '/usr')

    @property
    def client_install_prefix(self) -> str:
        return self.programs.stagedir

    @run_before('run')
    def write_value_sizes(self) -> None:
        Path(self.stagedir, 'sizes.txt').write_text(calls.format_value_sizes())

    def read_server_logs(self, services: Services, run: guards.Run
             ) -> list[tao.Log | None]:
        rows: list[tao.Log | None] = []
        for server in services.servers:
            warmup, test = (results.log_from_client_rows([
                Path(self.stagedir, f'{run.name}.{phase}.{number}.csv'
                     ).read_text()
                for number, one in enumerate(self.process_plan.clients)
                if one.server == server.index], self.statistics_interval)
                for phase in ('warmup', 'test'))
            steps = services.steps
            rest = round((steps['test'].at - steps['warmup'].at)
                         / self.statistics_interval) - len(warmup.points)
            rows.append(
                results.concatenate_logs(
                    [warmup, results.make_zero_request_log(rest), test]
                )
            )
        return rows

    def server_start_times(self, services: Services) -> list[float]:
        return [services.steps['warmup'].at] * len(services.servers)


for check in (TaoBench, TaoLookAside):
    # ReFrame refuses a parameter without values.
    if check.num_variants:
        rfm.simple_test(check)
