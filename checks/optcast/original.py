"""The original's server on the services, with its own client or with NCCL.

Its own client sends a chunk to each server and receives the sum, one request
after the other, because its socket transport allows no more. It needs neither
a GPU nor NCCL, and does not check the sums. Servers and clients spin while
they wait.

NCCL as the client loads the plugin: all_reduce_perf of nccl-tests sends each
chunk to `nsplit` of the servers, and checks every result.
"""
from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from config.records import metrics

from ..core.parsers import ParseError
from ..services.parser import Services
from ..services.plan import (
    Plan,
    Program,
    Server,
    Step,
    command_with_environment,
)
from . import nccl_options, parser, programs
from .evaluation import Evaluation
from .parser import Analysis

SHIM = Path(__file__).with_name('shim.py')

#: Relative difference between the printed bandwidth and that of the trace: the
#: former has two decimals, and its clock starts before the trace.
TOLERANCE = 0.1


@dataclass(frozen=True)
class OriginalServers(Evaluation):
    """A run of the original; `program` is the prefix of its installation."""

    def shim_command(self, number: int, variables: Mapping[str, str], action: str,
                     *words: str) -> tuple[str, ...]:
        """The command of the script; only the first of a kind traces."""
        level = 'INFO' if number else 'TRACE'
        return command_with_environment(
            {**variables, 'RUST_LOG': level}, sys.executable, str(SHIM),
            action, self.plugin_folder(), *words,
            programs.find_installed_file(self.program, programs.SERVER),
            '--data-type', self.setup.data_type,
            '--count', str(self.setup.elements_per_message))

    def plugin_folder(self) -> str:
        """The folder of the plugin."""
        return str(Path(programs.find_installed_file(
            self.program, programs.LIBRARY)).parent)

    def server_role(self) -> Server:
        of, embedded = self.setup, super().server_role()
        spinning = of.threads + of.recvs + of.sends
        return replace(
            embedded, program=programs.SERVER, config='', password=False,
            cpus=max(embedded.cpus, spinning), spinning=spinning,
            memory=2 * embedded.memory, commands=tuple(
                (*self.shim_command(number, self.server_environment(number), 'serve',
                                    '{address}', '{port}'),
                 '--nrank', str(of.clients), '--reduce-jobs', str(of.jobs),
                 '--reduce-threads', str(of.threads),
                 '--recv-threads', str(of.recvs),
                 '--send-threads', str(of.sends))
                for number in range(of.servers)))


@dataclass(frozen=True)
class Original(OriginalServers):
    """The servers with their own clients."""
    spinning_client_threads: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.setup.nsplit != 1:
            raise ValueError("settings: remove nsplit: the server's own "
                             'client sends one chunk to each server')
        if len(self.setup.sizes) > 1:
            raise ValueError("settings: size: the server's own client has one size")

    @property
    def request_size(self) -> int:
        """Size of a request, a chunk to each server. Unit: B."""
        return self.setup.chunksize * self.setup.servers

    @property
    def request_count(self) -> int:
        """Number of requests for the largest size, in all iterations."""
        return max(1, self.setup.sizes[-1] // self.request_size
                   ) * self.setup.options.iterations

    def service_plan(self) -> Plan:
        return self.plan_with_steps(Step('optcast', (Program(commands=tuple(
            (*self.shim_command(rank, {}, 'ask', '{service}'),
             '--try-count', str(self.request_count), '--nreq', '1')
            for rank in range(self.setup.clients))),),
            self.step_time_limit, gate=True))

    # What it left -----------------------------------------------------------

    def timed_iterations_by_size(self) -> dict[int, int]:
        return {self.request_size: self.request_count}

    def expected_metrics(self) -> list[str]:
        return ['client_bandwidth', metrics.metric_key('algbw', self.request_size),
                metrics.metric_key('busbw', self.request_size),
                *(f'{side}_{name}_{one}' for side, names in (
                    ('client', ('send', 'recv')),
                    ('server', ('recv', 'reduce', 'send')))
                  for name in names for one in parser.STATISTICS)]

    def collect_run_logs(self, stage: Path, run: str, services: Services) -> Path:
        folder = self.make_log_folder(stage, run, services)
        (folder / 'client.log').write_bytes(b''.join(
            (stage / f'{run}.optcast.{rank}.err').read_bytes()
            for rank in range(self.setup.clients)))
        (folder / 'server.log').write_bytes(
            (stage / f'{run}.server0.log').read_bytes())
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
        spans, n = analysis.client.spans, self.setup.clients
        took = (max(span.end for span in spans)
                - min(span.start for span in spans))
        algbw = self.request_size * self.request_count / took / 1e6
        # Gb/s of 2^30 bit.
        printed = analysis.client.bandwidths[0] * 2 ** 30 / 8e9
        if abs(algbw - printed) > TOLERANCE * printed + 0.001:
            raise ParseError(
                1,
                '',
                f'the trace gives {algbw:.4g} GB/s '
                f'({self.request_count} requests of {self.request_size} B in '
                f'{took:.1f} ms), but the client printed '
                f'{printed:.4g} GB/s',
                'client.log',
            )
        return {metrics.metric_key('algbw', self.request_size): algbw,
                metrics.metric_key('busbw', self.request_size): algbw * 2 * (n - 1) / n}

    def summary_sentences(self, analysis: Analysis, values: dict[str, float]
                  ) -> list[str]:
        return analysis.summary_sentences()


@dataclass(frozen=True)
class NcclClients(OriginalServers):
    """The servers with NCCL as their client, as run.py evaluates them: first
    NCCL alone over the same NICs, then NCCL with the servers."""
    #: The proxy of NCCL, and the thread that waits for the GPU.
    spinning_client_threads: ClassVar[int] = 2
    #: Path of all_reduce_perf.
    all_reduce: str = ''

    def __post_init__(self) -> None:
        nccl_options.words_of_sizes(self.setup.sizes)

    def service_plan(self) -> Plan:
        of = self.setup
        program = (self.all_reduce, '-d', {'f32': 'float', 'f16': 'half'}[of.data_type],
                   *nccl_options.words_of_sizes(of.sizes),
                   '-c', str(of.options.checks), '-n', str(of.options.iterations),
                   '-w', str(of.options.warmup), *of.options.words)
        # All data pass the NIC, also those between GPUs of one node.
        alone = {'NCCL_P2P_DISABLE': '1', 'NCCL_SHM_DISABLE': '1'}
        served = {**alone, 'NCCL_COLLNET_ENABLE': '1', 'NCCL_BUFFSIZE': str(64 << 20),
                  # run.py sets half of its option.
                  'NCCL_COLLNET_CHUNKSIZE': str(of.chunksize // 2),
                  'OPTCAST_SPLIT': str(of.nsplit)}

        def step(name: str, variables: Mapping[str, str], *words: str) -> Step:
            return Step(name, (Program(command_with_environment(
                variables, *words, *program), mpi=True),), self.step_time_limit)

        return self.plan_with_steps(
            step('ring', alone),
            step('optcast', served, sys.executable, str(SHIM), 'nccl',
                 self.plugin_folder(), '{service}', '{output}.trace'))
