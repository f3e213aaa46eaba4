"""Optcast's own run script, test/run.py: it starts the servers and their clients.

Its clients are those of the server's own program, which send chunks to each server and
do not check the sums, or NCCL with the plugin: all_reduce_perf of nccl-tests, which
checks every result. The job runs the script on its first node; the script starts the
processes with `mpirun`.
"""
from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from config.records import metrics

from ..core.parsers import ParseError
from ..services.parser import Services
from ..services.plan import Clients, Plan, Program, Server, Step
from . import logs, parser, programs, settings
from .evaluation import Evaluation
from .parser import Analysis

#: The script that runs run.py in a folder of its own.
RUN = Path(__file__).with_name('original.sh')

#: First port of the servers of a node.
PORT = 18080

#: Relative difference between the printed bandwidth and that of the trace: the
#: former has two decimals, and its clock starts before the trace.
TOLERANCE = 0.1

#: run.py ends the clients after 40 s, then the servers. Unit: s.
LIMIT = 120


@dataclass(frozen=True)
class RunScript(Evaluation):
    """A run of run.py; `program` is the prefix of the installation."""

    #: Path of all_reduce_perf, which another package of a stack may have.
    all_reduce: str = ''

    #: Steps: name -> options of run.py.
    STEPS: ClassVar[dict[str, tuple[str, ...]]] = {
        'optcast': ('--type', 'optcast', '--no-gpu')}

    def __post_init__(self) -> None:
        if len(self.setup.sizes) > 1:
            raise ValueError('sizes: run.py measures one size')
        if '--no-gpu' in self.STEPS['optcast'] and self.setup.nsplit != 1:
            raise ValueError("nsplit: the server's own client sends one chunk to each "
                             'server: set it to 1')

    #: Threads of a client that poll without sleep.
    SPINNING_OF_CLIENT: ClassVar[int] = 1

    @property
    def spinning_threads(self) -> int:
        """Threads of all servers and clients of a node that poll without sleep."""
        of, nodes = self.setup, max(1, self.server_nodes)
        servers = of.servers // nodes * (of.threads + of.recvs + of.sends)
        clients = of.clients // self.client_nodes * self.SPINNING_OF_CLIENT
        return max(servers, clients) if self.server_nodes else servers + clients

    def service_plan(self) -> Plan:
        """One program on the first of the nodes: it starts the others by itself."""
        nodes = self.client_nodes + self.server_nodes
        return Plan(
            Server(programs.SERVER, (), instances=0),
            (Clients(nodes, unbound=True, spinning=self.spinning_threads),),
            tuple(Step(name, (Program(
                (str(RUN), self.program, sys.executable, '{output}.log',
                 self.all_reduce, *options, *self.run_script_options()),
                alone=True),), LIMIT)
                for name, options in self.STEPS.items()))

    def run_script_options(self) -> list[str]:
        """Options of run.py that all steps have."""
        of = self.setup
        tests = ['-c', '1', '-n', str(of.iterations), '-w', str(of.warmup)]
        return ['--size', str(of.sizes[0]), '--chunksize', str(of.chunksize),
                '--data-type', of.data_type, '--nrank', str(of.clients),
                '--nservers', str(of.servers), '--nsplit', str(of.nsplit),
                '--num-jobs', str(of.jobs), '--num-threads', str(of.threads),
                '--num-sends', str(of.sends), '--num-recvs', str(of.recvs),
                '--nccl-test-options', ' '.join([*tests, *of.client_options]),
                '--verbose', *of.options]

    def config_yaml(self) -> str:
        """The config of run.py, with @0@ for the name of the first node, and so on."""
        of = self.setup
        each = of.servers // max(1, self.server_nodes)
        first = self.server_nodes
        return settings.format_config_yaml(
            [(f'@{number // each}@', '', PORT + number % each)
             for number in range(of.servers)],
            [f'@{first + number * self.client_nodes // of.clients}@'
             for number in range(of.clients)], self.environments)

    # What it left -----------------------------------------------------------

    @property
    def request_size(self) -> int:
        """Size of a request, a chunk to each server. Unit: B."""
        return self.setup.chunksize * self.setup.servers

    def timed_iterations_by_size(self) -> dict[int, int]:
        # run.py has the number of requests fixed.
        return {}

    def expected_metrics(self) -> list[str]:
        size = self.request_size
        return ['client_bandwidth', metrics.metric_key('algbw', size),
                metrics.metric_key('busbw', size),
                *(f'{side}_{name}_{one}' for side, names in (
                    ('client', ('send', 'recv')),
                    ('server', ('recv', 'reduce', 'send')))
                  for name in names for one in parser.STATISTICS)]

    def collect_run_logs(self, stage: Path, run: str, services: Services) -> Path:
        """The folder of logs that run.py wrote."""
        folder = stage / f'{run}.logs'
        shutil.copytree(stage / f'{run}.optcast.0.log', folder, dirs_exist_ok=True)
        return folder

    def analyse_logs(self, folder: Path) -> Analysis:
        result = parser.analyse_log_folder(folder)
        if len(result.client.bandwidths) != self.setup.clients:
            raise ParseError(1, '', f'{len(result.client.bandwidths)} of '
                             f'{self.setup.clients} clients have finished',
                             'client.log')
        return result

    def compute_derived_values(self, analysis: Analysis) -> dict[str, float]:
        """algbw and busbw of the client that traced, from its time stamps,
        because it prints only two decimals."""
        spans, n, size = analysis.client.spans, self.setup.clients, self.request_size
        # A request has a span of each kind per server.
        count = sum(span.kind == 'send' for span in spans) / self.setup.servers
        took = max(span.end for span in spans) - min(span.start for span in spans)
        algbw = size * count / took / 1e6
        # Gb/s of 2^30 bit.
        printed = analysis.client.bandwidths[0] * 2 ** 30 / 8e9
        if abs(algbw - printed) > TOLERANCE * printed + 0.001:
            raise ParseError(1, '', f'the trace gives {algbw:.4g} GB/s ({count:g} '
                             f'requests of {size} B in {took:.1f} ms), but the client '
                             f'printed {printed:.4g} GB/s', 'client.log')
        return {metrics.metric_key('algbw', size): algbw,
                metrics.metric_key('busbw', size): algbw * 2 * (n - 1) / n}

    def summary_sentences(self, analysis: Analysis, values: dict[str, float]
                          ) -> list[str]:
        return analysis.summary_sentences()


@dataclass(frozen=True)
class NcclClients(RunScript):
    """The servers with NCCL as their client: first NCCL alone over the same NICs, then
    NCCL with the servers."""

    STEPS = {'ring': ('--type', 'nccl'), 'optcast': ('--type', 'optcast')}
    # The proxy of NCCL, and the thread that waits for the GPU.
    SPINNING_OF_CLIENT = 2

    timed_iterations_by_size = Evaluation.timed_iterations_by_size
    expected_metrics = Evaluation.expected_metrics
    analyse_logs = Evaluation.analyse_logs
    compute_derived_values = Evaluation.compute_derived_values
    summary_sentences = Evaluation.summary_sentences

    def collect_run_logs(self, stage: Path, run: str, services: Services) -> Path:
        """The folder of logs with the servers, and ring.txt, the table without."""
        folder = super().collect_run_logs(stage, run, services)
        alone = logs.parse_client_log(
            (stage / f'{run}.ring.0.log' / 'client.log').read_text(errors='replace'))
        (folder / 'ring.txt').write_text(
            ''.join(f'{line}\n' for _, line in alone.rest))
        return folder
