"""Optcast: all-reduce through reduction servers, and the ring to beat."""
from __future__ import annotations

import platform
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import reframe as rfm
import reframe.core.runtime as rt
import reframe.utility.typecheck as typ
from reframe.core.builtins import fixture, parameter, run_after, variable

from config.records import samples

from ..core import guards, metrics
from ..core.base import Programs
from ..core.parsers import ParseError
from ..services.parser import Services
from ..services.plan import Plan
from ..services.service import ServiceBenchmark, nodes_feature
from . import programs, settings, timeline
from .evaluation import Evaluation
from .original import Original
from .scenarios import ORIGINAL, SCALES, SCENARIOS, Scenario
from .settings import Config

#: build.sh OUT compiles the program.
BUILD = Path(__file__).resolve().parent / 'src' / 'build.sh'


class OptcastPrograms(Programs):
    """Server, client and ring, compiled where they run."""

    family = 'optcast'

    def build_commands(self) -> list[str]:
        cc = self.current_environ.cc or 'cc'
        return [f'CC={shlex.quote(cc)} {shlex.quote(str(BUILD))} optcast']


@rfm.simple_test
class OptcastAllReduce(ServiceBenchmark):
    """All-reduces of clients through reduction servers, or in a ring.

    Every result is compared bit for bit. With servers, the same clients first
    do it in a ring: `ring_ratio` is the gain, with the load of that minute in
    both.
    """

    family = program = 'optcast'
    programs = fixture(OptcastPrograms, scope='environment')

    #: All cases and their modes.
    SCENARIOS = SCENARIOS
    valid_prog_environs = ['+mpi']

    #: What all-reduces, with how many clients and servers, and where.
    scenario = parameter(list(SCENARIOS), fmt=lambda scenario: str(scenario))

    #: Options of the original's run script under their own names (with _ for
    #: -): -S OptcastAllReduce.settings=chunksize:2M,num_jobs:4
    settings = variable(typ.Dict[str, str], value={})

    #: Servers of a node, each with an InfiniBand NIC of its own where the
    #: partition has them; 0: one a NIC. A config says it itself.
    servers_each = variable(int, value=1)

    #: For a peer that says nothing. Unit: s.
    timeout = variable(int, value=60)

    @run_after('init')
    def set_requirements(self) -> None:
        self.descr = f'Optcast {self.scenario}'
        nodes = max(1, self.layout.client_nodes + self.server_nodes)
        self.valid_systems = [f'+{nodes_feature(nodes)}']
        self.tags = {'full', 'nccl', 'optcast', *self.SCENARIOS[self.scenario]}
        self.spans: list[samples.Sample] = []

    @run_after('setup')
    def set_time_limit(self) -> None:
        self.time_limit = max(self.time_limit or 0, self.seconds_needed())
        self.keep_files = [*self.keep_files, 'run.*.log', 'run.*.logs']

    def seconds_needed(self) -> float:
        return self.repetitions * (2 * self.evaluation.limit + 60)

    @property
    def config(self) -> Config | None:
        """Of the file in the original's format that the settings name."""
        path = self.settings.get('config')
        return settings.read_config(Path(path)) if path else None

    @property
    def layout(self) -> Scenario:
        """The case's numbers, or those of the config."""
        config = self.config
        if not config:
            return self.scenario
        one = config.server_nodes == config.client_nodes == 1
        return replace(
            self.scenario, clients=config.client_nodes * config.clients_each,
            servers=config.server_nodes * config.servers_each,
            client_nodes=0 if one else config.client_nodes)

    @property
    def server_nodes(self) -> int:
        """Nodes of the servers alone."""
        if not self.layout.server_nodes:
            return 0
        return (self.config.server_nodes if self.config else
                settings.server_nodes(
                    self.layout.servers, self.servers_each,
                    [part.devices for part in
                     rt.runtime().system.partitions]))

    @property
    def evaluation(self) -> Evaluation:
        """What is run.

        :raises ValueError: settings that do not fit together
        """
        layout, config = self.layout, self.config
        found = settings.setup(
            {**SCALES[layout.scale], 'type': layout.type,
             'data_type': layout.data_type, **self.settings},
            layout.clients, layout.servers, **self.limits())
        if (found.clients, found.servers, found.type, found.data_type) != (
                layout.clients, layout.servers, layout.type,
                layout.data_type):
            raise ValueError('nrank, nservers, type and data_type are '
                             'parameters of the case: select another one, or '
                             'give a config')
        return self.evaluation_of(
            replace(found, port=config.port if config else 0),
            self.installed(), max(1, layout.client_nodes), self.server_nodes,
            self.current_partition.processor.num_cpus or 1,
            self.timeout, config.environments if config else
            settings.nic_each(self.current_partition.devices, max(
                1, layout.servers // max(1, self.server_nodes))))

    evaluation_of: type[Evaluation] = Evaluation

    def limits(self) -> dict[str, bool]:
        """What the programs cannot do, see settings.setup."""
        return {}

    def installed(self) -> str:
        """The program."""
        return f'{self.programs.stagedir}/optcast'

    def plan(self) -> Plan:
        return self.evaluation.plan()

    def more_params(self) -> dict[str, Any]:
        each = self.servers_each
        return {**self.settings,
                **({'servers_each': str(each)} if each != 1 else {})}

    def planned_values(self) -> list[str]:
        return ['ready_time', *self.evaluation.values_planned()]

    def claimed_seconds(self, values: dict[str, float]) -> float:
        return sum(count * size / values[metrics.key('algbw', size)] * 1e-9
                   for size, count in self.evaluation.timed().items())

    def values_of_services(self, services: Services, said: str,
                       run: guards.Run) -> dict[str, float]:
        evaluation, stage = self.evaluation, Path(self.stagedir)
        folder = evaluation.collect(stage, run.name, services)
        try:
            found = evaluation.analyse(folder)
            values = guards.values_by_metric(found.records, folder.name)
            values |= evaluation.beside(found)
        except ParseError as err:
            guards.refuse('table', f'{folder.name}: {err.file}:{err}')
        self.version = found.version
        self.spans = timeline.kept((found.client, found.server))
        sentences = evaluation.sentences(found, values)
        (folder / 'summary.txt').write_text('\n'.join(sentences) + '\n')
        for line in sentences:
            self.logger.info(line)
        if self.settings.get('xlim'):
            found.draw(folder, timeline.window(self.settings['xlim']))
        return values

    @property
    def attached(self) -> dict[str, str]:
        """What threads and requests did at the end of the last run."""
        return {samples.FILE: samples.text(self.spans)} if self.spans else {}


@rfm.simple_test
class OptcastOriginal(OptcastAllReduce):
    """The original's servers with their own clients, over TCP: chunks go to
    each server and their sums come back. The sums are not compared."""

    program = programs.SERVER
    valid_prog_environs = ['+optcast_server']
    scenario = parameter(list(ORIGINAL), fmt=lambda scenario: str(scenario))
    SCENARIOS = ORIGINAL
    evaluation_of = Original

    def limits(self) -> dict[str, bool]:
        return {'bf16': False,
                'x86_original': platform.machine() == 'x86_64'}

    def installed(self) -> str:
        """The prefix of the installation.

        :raises Refused: it lacks the server, or the plugin
        """
        prefix = str(self.programs.origin(self.program).get('prefix', ''))
        for name in (programs.SERVER, programs.LIBRARY):
            if not programs.found(prefix, name):
                guards.refuse('programs', f'there is no {name} below '
                              f'{prefix or "a prefix, which is not told"}')
        return prefix
