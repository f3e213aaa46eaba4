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

#: Requests of a client of the server's own program, which run.py has fixed.
REQUESTS = 1000

#: run.py ends the clients after 40 s, then the servers. Unit: s.
LIMIT = 120


@dataclass(frozen=True)
class RunScript(Evaluation):
    """A run of run.py; `program` is the prefix of the installation."""

    #: Steps: name -> options of run.py.
    STEPS: ClassVar[dict[str, tuple[str, ...]]] = {
        'optcast': ('--type', 'optcast', '--no-gpu')}

    def __post_init__(self) -> None:
        if len(self.setup.sizes) > 1:
            raise ValueError('sizes: run.py measures one size')
        if '--no-gpu' in self.STEPS['optcast'] and self.setup.nsplit != 1:
            raise ValueError("nsplit: the server's own client sends one chunk to each "
                             'server: set it to 1')

    def service_plan(self) -> Plan:
        """One program on the first of the nodes: it starts the others by itself."""
        nodes = self.client_nodes + self.server_nodes
        return Plan(
            Server(programs.SERVER, (), instances=0), (Clients(nodes, unbound=True),),
            tuple(Step(name, (Program(
                (str(RUN), self.program, sys.executable, '{output}.log', *options,
                 *self.run_script_options()), alone=True),), LIMIT)
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

    def timed_iterations_by_size(self) -> dict[int, int]:
        return {self.setup.chunksize * self.setup.servers: REQUESTS}

    def expected_metrics(self) -> list[str]:
        [size] = self.timed_iterations_by_size()
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
        """algbw and busbw, from the bandwidth that the first client printed."""
        [size], n = self.timed_iterations_by_size(), self.setup.clients
        # Gb/s of 2^30 bit.
        algbw = analysis.client.bandwidths[0] * 2 ** 30 / 8e9
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
