"""The original's server with its own client, on the services.

Its client sends a chunk to each server and receives the sum, one request after
the other, because its socket transport allows no more. It needs neither a GPU
nor NCCL, and does not check the sums. Servers and clients spin while they
wait.
"""
from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..core import metrics
from ..core.parsers import ParseError
from ..services.parser import Services
from ..services.plan import (
    Clients,
    Plan,
    Program,
    Server,
    Step,
    with_variables,
)
from . import parser, programs
from .evaluation import Evaluation
from .parser import Analysis

SHIM = Path(__file__).with_name('shim.py')

#: Relative difference between the printed bandwidth and that of the trace: the
#: former has two decimals, and its clock starts before the trace.
TOLERANCE = 0.1


@dataclass(frozen=True)
class Original(Evaluation):
    """A run of the original; `program` is the prefix of its installation."""

    def __post_init__(self) -> None:
        if self.setup.nsplit != 1:
            raise ValueError("settings: remove nsplit: the server's own "
                             'client sends one chunk to each server')

    @property
    def size(self) -> int:
        """Size of a request, a chunk to each server. Unit: B."""
        return self.setup.chunksize * self.setup.servers

    @property
    def requests(self) -> int:
        """Number of requests for the largest size, in all iterations."""
        return max(1, self.setup.sizes[-1] // self.size
                   ) * self.setup.iterations

    def call(self, number: int, variables: Mapping[str, str], action: str,
             *words: str) -> tuple[str, ...]:
        """The command of the script; only the first of a kind traces."""
        library = programs.path_of(self.program, programs.LIBRARY)
        level = 'INFO' if number else 'TRACE'
        return with_variables(
            {**variables, 'RUST_LOG': level}, sys.executable, str(SHIM),
            action, str(Path(library).parent), *words,
            programs.path_of(self.program, programs.SERVER),
            '--data-type', self.setup.data_type,
            '--count', str(self.setup.count))

    def server(self) -> Server:
        of, embedded = self.setup, super().server()
        return replace(
            embedded, program=programs.SERVER, config='', password=False,
            memory=2 * embedded.memory, commands=tuple(
                (*self.call(number, self.variables(number), 'serve',
                            '{address}', '{port}'),
                 '--nrank', str(of.clients), '--reduce-jobs', str(of.jobs),
                 '--reduce-threads', str(of.threads),
                 '--recv-threads', str(of.recvs),
                 '--send-threads', str(of.sends))
                for number in range(of.servers)))

    def plan(self) -> Plan:
        of = self.setup
        clients = Clients(self.client_nodes, of.clients // self.client_nodes,
                          unbound=True)
        return Plan(self.server(), (clients,), (Step('optcast', (Program(
            commands=tuple(
                (*self.call(rank, {}, 'ask', '{service}'),
                 '--try-count', str(self.requests), '--nreq', '1')
                for rank in range(of.clients))),), self.limit, gate=True),),
            sample=0.25)

    # What it left -----------------------------------------------------------

    def timed(self) -> dict[int, int]:
        return {self.size: self.requests}

    def values_planned(self) -> list[str]:
        return ['client_bandwidth', metrics.key('algbw', self.size),
                metrics.key('busbw', self.size),
                *(f'{side}_{name}_{one}' for side, names in (
                    ('client', ('send', 'recv')),
                    ('server', ('recv', 'reduce', 'send')))
                  for name in names for one in parser.STATISTICS)]

    def collect(self, stage: Path, run: str, services: Services) -> Path:
        folder = self.folder(stage, run, services)
        (folder / 'client.log').write_bytes(b''.join(
            (stage / f'{run}.optcast.{rank}.err').read_bytes()
            for rank in range(self.setup.clients)))
        (folder / 'server.log').write_bytes(
            (stage / f'{run}.server0.log').read_bytes())
        return folder

    def analyse(self, folder: Path) -> Analysis:
        result = parser.analyse(folder)
        if len(result.client.bandwidths) != self.setup.clients:
            raise ParseError(1, '', f'{len(result.client.bandwidths)} of '
                             f'{self.setup.clients} clients have finished',
                             'client.log')
        return result

    def more_values(self, analysis: Analysis) -> dict[str, float]:
        """algbw and busbw of the client that traced, from its time stamps,
        because it prints only two decimals."""
        spans, n = analysis.client.spans, self.setup.clients
        took = (max(span.end for span in spans)
                - min(span.start for span in spans))
        algbw = self.size * self.requests / took / 1e6
        # Gb/s of 2^30 bit.
        printed = analysis.client.bandwidths[0] * 2 ** 30 / 8e9
        if abs(algbw - printed) > TOLERANCE * printed + 0.001:
            raise ParseError(1, '', f'the trace gives {algbw:.4g} GB/s '
                             f'({self.requests} requests of {self.size} B in '
                             f'{took:.1f} ms), but the client printed '
                             f'{printed:.4g} GB/s', 'client.log')
        return {metrics.key('algbw', self.size): algbw,
                metrics.key('busbw', self.size): algbw * 2 * (n - 1) / n}

    def sentences(self, analysis: Analysis, values: dict[str, float]
                  ) -> list[str]:
        return analysis.sentences()
