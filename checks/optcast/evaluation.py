"""Optcast's evaluation in one job: its plan, and the analysis of its files."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from config.records import metrics
from config.records.units import size_text

from ..core.parsers import ParseError
from ..services.parser import Services
from ..services.plan import (
    Clients,
    Plan,
    Program,
    Server,
    Step,
    command_with_environment,
)
from . import parser, settings, words
from .parser import Analysis


@dataclass(frozen=True)
class Evaluation:
    """A run of the embedded programs on the services."""
    setup: settings.Setup
    #: Path of the program.
    program: str
    #: Nodes of the clients, and of the servers; 0: servers share the nodes of
    #: the clients.
    client_nodes: int = 1
    server_nodes: int = 0
    #: CPUs of a node.
    cores: int = 1
    #: Timeout for a silent peer. Unit: s.
    timeout: int = 60
    #: Environments of the servers of a node, in order; empty: the job's.
    environments: tuple[dict[str, str], ...] = ()

    @property
    def step_time_limit(self) -> float:
        """Time limit of one step, for at least 20 MB/s. Unit: s."""
        of = self.setup
        moved = sum(of.sizes) * of.clients * (of.iterations + of.warmup + 1)
        return 30 + 4 * moved / 20e6

    def server_role(self) -> Server:
        """The role of the servers; a ring has one server for its start."""
        of = self.setup
        servers = of.servers if of.type == 'optcast' else 1
        each = servers // max(1, self.server_nodes)
        command = (
            self.program, '--address', '{address}', '--port', '{port}',
            '--nrank', str(of.clients), '--data-type', of.data_type,
            '--count', str(of.elements_per_message), '--reduce-jobs', str(of.jobs),
            '--reduce-threads', str(of.threads),
            '--recv-threads', str(of.recvs), '--send-threads', str(of.sends),
            '--timeout', str(self.timeout), *of.options)
        buffers = of.jobs * (of.clients + 1) * of.elements_per_message * 4 >> 20
        beside = not self.server_nodes
        return Server(
            'optcast', (), config='password {password}\n', dialect='tcp',
            commands=tuple(command_with_environment(
                self.server_environment(number), *command,
                *(('--trace', '-') if number == 0 else ()))
                for number in range(servers)),
            nodes=max(1, self.server_nodes), instances=each,
            cpus=max(1, self.cores // (2 * each if beside else each)),
            memory=64 + buffers, connections=of.clients + 64, beside=beside)

    def server_environment(self, number: int) -> Mapping[str, str]:
        """The environment variables of a server."""
        return self.environments[number % len(self.environments)
                                 ] if self.environments else {}

    def service_plan(self) -> Plan:
        """The plan: a ring first, then the servers unless the type is ring."""
        of = self.setup
        call = (self.program, '--client', '--nrank', str(of.clients),
                '--service', '{service}', '--rank', '{index}',
                '--data-type', of.data_type, '--chunksize',
                str(of.chunksize), '--size', ','.join(map(str, of.sizes)),
                '-n', str(of.iterations), '-w', str(of.warmup),
                '--timeout', str(self.timeout), *of.client_options)

        def make_step(name: str, *more: str) -> Step:
            return Step(name, (Program(commands=tuple(
                (*call, *more, *(('--trace', '{output}.trace') if rank == 0
                                 else ())) for rank in range(of.clients))),),
                self.step_time_limit, gate=True)

        ring = make_step('ring', '--ring')
        return self.plan_with_steps(*(
            (ring,) if of.type == 'ring'
            else (ring, make_step('optcast', '--nsplit', str(of.nsplit)))))

    def plan_with_steps(self, *steps: Step) -> Plan:
        """The plan with these steps of the clients."""
        clients = Clients(self.client_nodes, self.setup.clients // self.client_nodes,
                          unbound=True)
        return Plan(self.server_role(), (clients,), steps)

    # Analysis ---------------------------------------------------------------

    def timed_iterations_by_size(self) -> dict[int, int]:
        """Size of an all-reduce -> number of timed iterations."""
        return dict.fromkeys(self.setup.sizes, self.setup.iterations)

    def expected_metrics(self) -> list[str]:
        """Metrics that every run has."""
        of = self.setup
        classes = {'client': ('e2e', 'req', 'send', 'recv'),
                   'server': ('recv', 'reduce', 'send')}
        curves = ['busbw', 'algbw', 'ring_busbw', 'ring_ratio']
        if of.type == 'ring':
            classes, curves = {'client': ('send', 'recv', 'reduce')}, curves[
                :2]
        return ['busbw_average', *(metrics.metric_key(name, size)
                                   for name in curves for size in of.sizes),
                *(f'{side}_{name}_{one}' for side, names in classes.items()
                  for name in names for one in parser.STATISTICS)]

    def collect_run_logs(self, stage: Path, run: str, services: Services) -> Path:
        """Collect a folder like that of the original's run script: settings,
        config, logs of the first client and server, and ring.txt, the output
        of the ring of the same clients. The client's log is its trace and the
        table that it printed."""
        of = self.setup
        folder = self.make_log_folder(stage, run, services)
        client = f'{run}.{of.type}.0'
        made: dict[str, tuple[str, ...]] = {
            'client.log': (f'{client}.trace', f'{client}.out')}
        if of.type == 'optcast':
            made |= {'server.log': (f'{run}.server0.log',),
                     'ring.txt': (f'{run}.ring.0.out',)}
        for name, paths in made.items():
            (folder / name).write_bytes(b''.join(
                (stage / path).read_bytes() for path in paths))
        return folder

    def make_log_folder(self, stage: Path, run: str, services: Services) -> Path:
        """Make a folder with the settings and the config of a run."""
        folder = stage / f'{run}.logs'
        folder.mkdir(exist_ok=True)
        (folder / 'setting.yaml').write_text(yaml.safe_dump(
            self.setup.to_run_script_settings()))
        (folder / 'config.yaml').write_text(settings.format_config_yaml(
            [(server.node, server.address, server.port)
             for server in services.servers],
            list(services.client_nodes), self.environments))
        return folder

    def analyse_logs(self, folder: Path) -> Analysis:
        """Analyse the logs.

        :raises ParseError: a part is missing, or cannot be trusted
        """
        of, result = self.setup, parser.analyse_log_folder(folder)
        sizes = list(parser.busbw_by_size(result.table)) if result.table else []
        if not result.table or result.table.ranks != of.clients \
                or sizes != list(of.sizes):
            raise ParseError(1, '', f'the table has the sizes {sizes} and '
                             f'{result.table.ranks if result.table else 0} '
                             f'clients; requested: {list(of.sizes)} and '
                             f'{of.clients}', 'client.log')
        if of.type == 'optcast' and (
                not result.ring or list(parser.busbw_by_size(result.ring)) != sizes):
            raise ParseError(1, '', 'the table of the ring is incomplete',
                             'ring.txt')
        return result

    def compute_derived_values(self, analysis: Analysis) -> dict[str, float]:
        """Values in addition to those of the logs."""
        return (self.ring_bandwidths_and_ratios(analysis)
                if self.setup.type == 'optcast' else {})

    def ring_bandwidths_and_ratios(self, analysis: Analysis) -> dict[str, float]:
        """busbw of the ring of the same clients, and the ratio to it."""
        assert analysis.table and analysis.ring
        values, of_servers = {}, parser.busbw_by_size(analysis.table)
        for size, busbw in parser.busbw_by_size(analysis.ring).items():
            values[metrics.metric_key('ring_busbw', size)] = busbw
            values[metrics.metric_key('ring_ratio', size)] = of_servers[size] / busbw
        return values

    def summary_sentences(self, analysis: Analysis, values: dict[str, float]
                  ) -> list[str]:
        """Sentences on the bottleneck and on the comparison with the ring."""
        of, bottlenecks = self.setup, analysis.summary_sentences()
        if of.type == 'ring':
            return bottlenecks
        return [*bottlenecks, *(f'{size_text(size)}: ' + words.compare_bandwidths(
            values[metrics.metric_key('busbw', size)],
            values[metrics.metric_key('ring_busbw', size)], 'ring')
            for size in of.sizes),
            'on equal links the ratio to a ring is at most '
            f'{words.expected_optcast_to_ring_ratio(of.clients, of.servers):.3g} with '
            f'{of.clients} clients and {of.servers} servers']
