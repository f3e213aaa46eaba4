"""NAME: the requests per second of one client to a server in its job."""
from __future__ import annotations

import reframe as rfm
from reframe.core.builtins import fixture, parameter, run_after

from ..core import guards
from ..core.program import EmbeddedPrograms
from ..services.parser import Services
from ..services.plan import (
    Clients,
    Plan,
    Program,
    Server,
    Step,
)
from ..services.service import ServiceBenchmark
from .parser import parse


class NamePrograms(EmbeddedPrograms):
    """Server and client of src/*.c, compiled on the machine that runs them."""

    family = 'NAME'


@rfm.simple_test
class Name(ServiceBenchmark):
    """Round trips of one client to a server that runs as long as the job."""

    family = program = 'NAME'
    programs = fixture(NamePrograms, scope='environment')
    valid_systems = ['*']
    valid_prog_environs = ['+mpi']

    #: How long the client sends requests. Unit: s.
    seconds = parameter([2])

    @run_after('init')
    def add_mode_tags(self) -> None:
        self.tags = {'full', 'nightly', 'quick', 'smoke', self.family}

    def service_plan(self) -> Plan:
        program = f'{self.programs.stagedir}/{self.family}'
        return Plan(
            Server('NAME', (program, 'serve', '{address}', '{port}'),
                   dialect='tcp', password=False),
            (Clients(),),
            (Step('measure', (Program((program, 'ask', '{host}', '{port}',
                                       str(self.seconds))),),
                  limit=self.seconds + 30),))

    def required_metrics(self) -> list[str]:
        return ['NAME_rate', 'ready_time']

    def extract_service_values(self, services: Services, output: str,
                               run: guards.Run) -> dict[str, float]:
        records = parse(output)
        self.version = records[0].version
        return guards.values_by_metric(records, f'{run.name}.out')
