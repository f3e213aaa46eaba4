"""Checks of SmartRedis: tensors of a simulation in an in-memory store."""
from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

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

from config.records import metrics, samples
from config.sessions import selection

from ..core import base, guards, placement
from ..core.options import SET_BY_CHECK, split_options
from ..core.parsers import ParseError
from ..machine import builds
from ..services.parser import Services
from ..services.plan import Clients, Plan, Program, Server, Step
from ..services.service import ServiceBenchmark, has_partition_with_nodes
from ..stores import aimodule
from ..stores.servers import Needs, make_server_role
from . import parser
from .folders import FUNCTIONS, ONCE, Session, metrics_of_function, read_session
from .scenarios import (
    DATABASES,
    FEW,
    LIBRARY,
    REDISAI,
    RESNET50,
    SIZES,
    Scenario,
    modes_of_scenario,
    scenarios_with_first_mode,
)

SRC = Path(__file__).resolve().parent / 'src'

#: What the AI module writes into the log of its server.
MODULE = re.compile(
    r'embedded AI module, (?:stand-in|libtorch [\d.]+)|RedisAI version \d+')


#: Options of tensorload that the check sets itself -> what to use instead.
REFUSED = {
    '--bytes': 'use the setting tensor_bytes',
    '--iterations': 'use the setting iterations',
    '--folder': SET_BY_CHECK, '--service': SET_BY_CHECK,
    '--plain': 'tensors are those of the AI module',
    **dict.fromkeys(('--model', '--script', '--side', '--classes'),
                    'use the setting network'),
    '--colocated': 'use the setting deployment',
    '--batch-size': 'use the setting batch_size', '--device': 'use the setting device',
    '--tensors': 'use the setting tensors_per_dataset',
    '--producers': 'use the setting clients_per_node',
    '--client-threads': 'use the setting client_threads'}


def runnable_scenarios(kind: str, consumers: int = 0) -> list[Scenario]:
    """The arrangements of a kind for whose database and nodes this system has an
    environment and a partition. A setting may change the other fields."""
    return [scenario for scenario, _ in scenarios_with_first_mode(kind)
            if has_environment(f'+{DATABASES[scenario.db]}')
            and has_partition_with_nodes(
                'smartredis', scenario.node_count(consumers) - scenario.db_nodes,
                scenario.db_nodes)]


def has_environment(*specs: str) -> bool:
    """Whether this system has an environment for an entry of `valid_prog_environs`."""
    return any(selection.offers(part, *specs)
               for part in rt.runtime().system.partitions)


@dataclass(frozen=True)
class Loop:
    """A mode of tensorload, for one size of tensors."""
    mode: str
    ranks: int
    #: Values that all ranks read and compare.
    verified: int
    #: Options of this mode.
    options: tuple[str, ...] = ()
    #: Role of the ranks.
    role: str = 'client'


def arrangement(kind: Any) -> Any:
    """A setting for the field of Scenario that has its name; null: as the test case
    has it."""
    return variable(kind, type(None), value=None)


class TensorPrograms(base.Programs):
    """tensorload and the AI module, built with the environment's MPI.

    The client of tensorload is SmartRedis' library if the environment has it. A
    RedisAI of the environment is linked as redisai.so, with its backends beside it.
    """

    family = 'smartredis'

    def build_commands(self) -> list[str]:
        return []

    def library_prefix(self) -> str:
        """The prefix of SmartRedis' library; empty: there is none."""
        if LIBRARY not in self.current_environ.features:
            return ''
        # The library and its own libraries are together in a stack's view.
        if record := self.stack_record:
            return record['view']
        return self.program_origin().get('prefix', '/usr')

    def tool_build_commands(self) -> list[str]:
        cc = self.current_environ.cc or 'mpicc'
        with_torch = 'libtorch' in self.current_environ.features
        library = self.library_prefix()
        with_library = (f'CXX={self.current_environ.cxx or "c++"} '
                        f'SMARTREDIS_PREFIX={shlex.quote(library)} '
                        if library else '')
        return [
            builds.copy_or_build_command(
                self, 'tensorload', f'CC={cc} {with_library}'
                f'{shlex.quote(str(SRC / "build.sh"))} tensorload'),
            builds.copy_or_build_command(
                self, 'ai.so', aimodule.module_build_command('ai.so', cc)),
            *(['TORCH_PREFIX="$LIBTORCH" '
               + aimodule.module_build_command('ai_torch.so', cc, 'resnet50.pt')]
              if with_torch else []),
            *([redisai_link_command(self.stack_record)]
              if REDISAI in self.current_environ.features else [])]


def redisai_link_command(stack_record: Mapping[str, Any] | None) -> str:
    """A command of the shell that links RedisAI and its backends.

    It is the file of the variable REDISAI, which the environment or a module sets,
    otherwise the one below the view of the stack.
    """
    default = (f'$(find -L {shlex.quote(stack_record["view"])} -name redisai.so -print '
               '-quit)' if stack_record else '')
    return (f'REDISAI=${{REDISAI:-{default}}}; if [ ! -f "$REDISAI" ]; then echo '
            '"error: REDISAI is not the path of redisai.so: $REDISAI" >&2; false; else '
            'ln -sfn "$REDISAI" redisai.so && ln -sfn "${REDISAI%/*}/backends" '
            'backends; fi')


class TensorBenchmark(ServiceBenchmark, special=True):
    """Ranks of an MPI program that put tensors into a database and read
    tensors from it."""

    family = 'smartredis'
    SETTINGS: ClassVar[Mapping[str, Any]] = {
        **ServiceBenchmark.SETTINGS, 'tensor_bytes': [], **dict.fromkeys((
            'deployment', 'iterations', 'clients_per_node', 'client_nodes', 'db_nodes',
            'db_cpus')),
        'net_type': 'uds', 'pin': 'on', 'net_ifname': '', 'options': ''}
    REFUSED = REFUSED
    SMALLEST = {**ServiceBenchmark.SMALLEST, 'tensor_bytes': 4, **dict.fromkeys((
        'iterations', 'clients_per_node', 'db_nodes', 'db_cpus', 'db_tpq', 'batch_size',
        'client_threads', 'tensors_per_dataset'), 1)}
    program = 'tensorload'

    has_mpi_steps = True
    #: Kind of the check: throughput, inference or aggregation.
    kind: ClassVar[str]
    #: Nodes of the consumer.
    consumers: ClassVar[int] = 0

    #: The arrangement; a check makes it a parameter.
    scenario: Scenario

    programs = fixture(TensorPrograms, scope='environment')

    #: Sizes of a tensor; empty: those of the arrangement. Unit: bytes.
    tensor_bytes = variable(typ.List[int], value=[])

    deployment = arrangement(typ.Str[r'standard|colocated'])
    iterations = arrangement(int)
    clients_per_node = arrangement(int)
    client_nodes = arrangement(int)
    db_nodes = arrangement(int)
    db_cpus = arrangement(int)

    #: Transport to a colocated database.
    net_type = variable(typ.Str[r'uds|tcp'], value='uds')

    #: Whether servers and clients are bound to CPUs. The original binds none.
    pin = variable(typ.Str[r'on|off'], value='on')

    #: Interface on which the servers listen; empty: the site's.
    net_ifname = variable(str, value='')

    #: More options for tensorload.
    options = variable(str, value='')

    #: Time limit for one size of tensors. Unit: s.
    step_limit = variable(float, value=120.0)

    def alternative_environments(self) -> list[str]:
        return [f'+{feature}' for feature in DATABASES.values()]

    # ReFrame sets the values of -P after the other hooks.
    @run_after('init', always_last=True)
    def set_requirements(self) -> None:
        """Apply the settings to the scenario and set its nodes, environments and modes,
        or leave it out, with the reason, if it cannot run."""
        #: The times of each call of each rank.
        self.calls: list[samples.Sample] = []
        modes = modes_of_scenario(self.kind, self.scenario)
        changed = self.changed_fields()
        self.scenario = replace(self.scenario, **changed)
        self.descr = f'SmartRedis {self.kind}: {self.scenario}'
        servers = self.scenario.db_nodes
        self.require_client_and_server_nodes(
            self.scenario.node_count(self.consumers) - servers, servers,
            *['+gpu_nvidia'] * (self.scenario.device == 'GPU'
                                and not self.server_access))
        self.valid_prog_environs = self.scenario.environments
        if ((changed or self.net_type != 'uds' or self.server_access)
                and (cause := self.cause_left_out())):
            print(f'{type(self).__name__}: left out, because {cause}: {self.scenario}',
                  file=sys.stderr)
            self.valid_systems = []
        # With one client the check runs on any machine, and so does what a person
        # changed, although the result may be inconclusive.
        anywhere = changed or self.scenario.clients_per_node == 1
        self.set_mode_tags(modes, 1 if anywhere else self.cpus_needed_per_node())

    def changed_fields(self) -> dict[str, Any]:
        """Fields of the arrangement that settings change.

        :raises ValueError: a size of tensors occurs twice
        """
        if len(set(self.tensor_sizes)) < len(self.tensor_sizes):
            raise ValueError('tensor_bytes: a size occurs twice')
        return {name: getattr(self, name) for name in self.SETTINGS
                if name in vars(self.scenario) and getattr(self, name) is not None}

    def cause_left_out(self) -> str:
        """Why the arrangement that settings changed cannot run; empty: it can."""
        scenario, here = self.scenario, self.scenario.environments
        fitting = any(selection.partition_has(part, spec) for spec in self.valid_systems
                      for part in rt.runtime().system.partitions)
        return next((cause for cause, excluded in (
            ('net_type=tcp needs deployment=colocated',
             self.net_type == 'tcp' and not self.is_colocated),
            ('server_access needs client_nodes, and deployment=standard',
             self.server_access and not self.has_separate_clients),
            ('deployment=colocated needs db_nodes=1',
             self.is_colocated and scenario.db_nodes > 1),
            ('deployment=colocated needs client_nodes=0 for a consumer',
             self.is_colocated and scenario.client_nodes and self.consumers),
            (f'no partition has {self.required_nodes} nodes'
             + ' with NVIDIA GPUs' * (scenario.device == 'GPU'), not fitting),
            (f'no environment has {" or ".join(here) or "a module for this device"}',
             not (here and has_environment(*here)))) if excluded), '')

    @run_after('setup')
    def let_waiting_ranks_yield(self) -> None:
        """Set the variables of `oversubscribe_env`, with which waiting ranks yield
        their CPU, if a node has fewer CPUs than the plan needs."""
        part = self.current_partition
        if self.service_plan().required_cpus_per_node() > (part.processor.num_cpus
                                                           or 1):
            self.env_vars.update(
                placement.launcher_extra(part, 'oversubscribe_env') or {})

    def cpus_needed_per_node(self) -> int:
        """CPUs that all programs on the node with the most ranks need."""
        scenario = self.scenario
        if scenario.client_nodes and not self.is_colocated:
            return max(scenario.clients_per_node, scenario.db_cpus)
        # A colocated node has one of the servers.
        return (scenario.clients_per_node + scenario.db_nodes * scenario.db_cpus
                + self.consumers * scenario.client_threads)

    # The plan ------------------------------------------------------------

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        """Sizes of a tensor, of whole floats as the original sends it. Unit: bytes."""
        return tuple(size // 4 * 4 for size in self.tensor_bytes) or (
            SIZES if self.scenario.sizes == 'all' else FEW)

    @property
    def client_name(self) -> str:
        """The client of the database that tensorload is built with."""
        return LIBRARY if LIBRARY in self.current_environ.features else 'embedded'

    @property
    def is_colocated(self) -> bool:
        """Whether each node of clients has a server of its own, for the clients there.
        """
        return self.scenario.deployment == 'colocated'

    def tensors_per_rank(self) -> int:
        """Number of tensors that a rank has in the database at once."""
        return 1

    def connections_per_server(self) -> int:
        """Maximum number of connections of all clients to a server."""
        return (self.scenario.clients_per_node if self.is_colocated
                else self.scenario.rank_count)

    @property
    def has_separate_clients(self) -> bool:
        """Whether the clients run on other nodes than the database."""
        return self.scenario.client_nodes > 0 and not self.is_colocated

    def database_server_role(self) -> Server:
        """The server role."""
        scenario = self.scenario
        prefix = self.programs.program_origin(scenario.db).get('prefix', '/usr')
        data = scenario.rank_count * self.tensors_per_rank() * max(self.tensor_sizes)
        apart = self.has_separate_clients
        nodes = (max(1, scenario.client_nodes) if self.is_colocated
                 else scenario.db_nodes if apart else 1)
        return make_server_role(
            scenario.db, prefix,
            Needs(scenario.db_cpus,
                  # Sent and kept, and room for copies.
                  memory=96 + (3 * (data + self.model_bytes()) >> 20),
                  connections=2 * self.connections_per_server() + 16,
                  cluster=scenario.db_nodes > 1, socket=self.uses_unix_socket,
                  # SmartRedis cannot send a password.
                  open=self.client_name == LIBRARY and not self.uses_unix_socket,
                  modules=self.database_module_load_lines()),
            nodes=nodes, unbound=self.pin == 'off',
            spinning=scenario.db_cpus,
            instances=1 if apart or self.is_colocated else scenario.db_nodes)

    def model_bytes(self) -> int:
        """Maximum size of the model. Unit: bytes."""
        return 0

    def database_module_load_lines(self) -> tuple[str, ...]:
        """Lines of the servers' configuration that load the module."""
        name = ('redisai.so' if REDISAI in self.current_environ.features else
                'ai_torch.so' if self.scenario.uses_torchscript else 'ai.so')
        return (aimodule.module_load_line(f'"{self.programs.stagedir}/{name}"',
                                          **self.module_threads()),)

    def module_threads(self) -> dict[str, int]:
        """Threads of the module: arguments of `module_load_line`."""
        return {}

    @property
    def uses_unix_socket(self) -> bool:
        """Whether the clients use a Unix socket."""
        return self.is_colocated and self.net_type == 'uds'

    def tensorload_command(self, loop: Loop, size: int) -> tuple[str, ...]:
        """The command of tensorload."""
        return (f'{self.programs.stagedir}/tensorload', loop.mode, '--service',
                '{own_service}' if self.is_colocated else '{service}',
                '--bytes', str(size), '--iterations',
                str(self.scenario.iterations), '--folder', '{output}.ranks',
                *(['--colocated'] if self.is_colocated else []),
                *loop.options, *split_options(self.options, 'options', self.REFUSED))

    def client_roles(self) -> tuple[Clients, ...]:
        """Roles of the client processes and the CPUs that they need."""
        scenario = self.scenario
        return (Clients(nodes=max(1, scenario.client_nodes),
                        instances=scenario.clients_per_node, spinning=1,
                        apart=self.has_separate_clients, unbound=self.pin == 'off'),)

    def loops(self) -> tuple[Loop, ...]:
        """What runs at the same time for each size of tensors."""
        raise NotImplementedError

    def service_plan(self) -> Plan:
        return Plan(
            self.database_server_role(), self.client_roles(), tuple(
                Step(f'size{size}', tuple(
                    Program(self.tensorload_command(loop, size), loop.role, mpi=True)
                    for loop in self.loops()), self.step_limit)
                for size in self.tensor_sizes),
            interface=self.net_ifname)

    # Values --------------------------------------------------------------

    def read_program_results(self, name: str) -> tuple[parser.Run, Session]:
        """Output and times of a program."""
        file = f'{name}.out'
        text = Path(self.stagedir, file).read_text(errors='replace')
        try:
            out = parser.parse_run(text)
            file = f'{name}.ranks'
            return out, read_session(Path(self.stagedir, file))
        except ParseError as err:
            guards.fail_test_case('table', f'{Path(file, err.file)}:{err}')

    def check_output_counts(self, out: parser.Run, session: Session, loop: Loop,
                            where: str) -> None:
        """Refuse other numbers of ranks, iterations or values than planned."""
        if out.client != self.client_name:
            guards.fail_test_case('client', f'{where}: tensorload used the client '
                                  f'{out.client} instead of {self.client_name}')
        ranks = loop.ranks
        if (out.mode, out.ranks, len(session.calls), out.iterations, out.bytes) != (
                loop.mode, ranks, ranks, self.scenario.iterations, session.size):
            guards.fail_test_case(
                'ranks', f'{where}: {len(session.calls)} of {out.ranks} ranks of '
                f'{out.mode} wrote the times of {out.iterations} iterations with '
                f'{out.bytes} B; requested: {ranks} ranks, {self.scenario.iterations} '
                f'iterations with {session.size} B')
        for function in FUNCTIONS[out.mode]:
            times = session.calls[0].get(function, ())
            if len(times) != (1 if function in ONCE else out.iterations):
                guards.fail_test_case(
                    'table', f'{where}: rank_0_timing.csv of {out.mode} has '
                    f'{len(times)} calls of {function} in {out.iterations} iterations')
        if not all(session.loop_times):
            guards.fail_test_case('table', f'{where}: loop_time of a rank of '
                                  f'{out.mode} is 0')
        if out.verified != loop.verified:
            guards.fail_test_case('verify', f'{where}: {out.mode} compared '
                                  f'{out.verified} of {loop.verified} values')

    def call_count(self) -> int:
        """Iterations of all ranks."""
        return self.scenario.rank_count * self.scenario.iterations

    def min_command_count(self) -> int:
        """Minimum number of commands for one size of tensors."""
        raise NotImplementedError

    def extract_service_values(self, services: Services, output: str,
                               run: guards.Run) -> dict[str, float]:
        self.version = ', '.join(filter(None, [
            services.servers[0].version, self.served_module(run)]))
        self.calls = []
        values: dict[str, float] = {}
        for size in self.tensor_sizes:
            served = services.steps[f'size{size}'].counter_increase('commands')
            if served < self.min_command_count():
                guards.fail_test_case('calls', f'{run.name}: {size} B: '
                                      f'{self.scenario.db} counted only {served:g} of '
                                      f'at least {self.min_command_count()} commands')
            evicted = services.steps[f'size{size}'].counter_increase('evicted')
            if evicted:
                guards.fail_test_case('evicted', f'{run.name}: {size} B: '
                                      f'{self.scenario.db} evicted {evicted:g} keys, '
                                      'because its memory limit is below the data')
            name = f'{run.name}.size{size}'
            for number, loop in enumerate(self.loops()):
                out, session = self.read_program_results(f'{name}.{number}')
                self.check_output_counts(out, session, loop, name)
                values |= self.values_of_session(session)
                # Ranks of a second program continue the numbers of the first.
                self.calls += session.call_samples(number * self.scenario.rank_count)
        grown = [services.steps[f'size{size}'] for size in self.tensor_sizes]
        values['server_cpu'] = sum(
            step.counter_increase('cpu') for step in grown) / max(
            1, sum(step.counter_increase('commands') for step in grown)) * 1e6
        return values

    def served_module(self, run: guards.Run) -> str:
        """The AI module that served, from the log of the first server."""
        log = Path(self.stagedir, f'{run.name}.server0.log')
        if not (served := MODULE.search(log.read_text(errors='replace'))):
            guards.fail_test_case('client', f'{log.name} names no AI module')
        if (REDISAI in self.current_environ.features) != served[0].startswith('Redis'):
            guards.fail_test_case('client', f'{log.name}: {served[0]} served, but '
                                  f'{self.database_module_load_lines()[0]} was planned')
        return served[0]

    def values_of_session(self, session: Session) -> dict[str, float]:
        """Metrics of the times of a program."""
        return {metrics.metric_key(r.metric, r.size): r.value
                for r in session.records()}

    @property
    def attached_files(self) -> dict[str, str]:
        """Times of each call of each rank, unless the run ended before any."""
        return {samples.file_name(self.test_case): samples.samples_as_csv(self.calls)
                } if self.calls else {}

    #: Metrics of a size beside those of the functions.
    more_metrics: ClassVar[tuple[str, ...]]

    def required_metrics(self) -> list[str]:
        names = dict.fromkeys([
            *(metric for loop in self.loops() for function in FUNCTIONS[loop.mode]
              for metric in metrics_of_function(function)), *self.more_metrics])
        return [*(metrics.metric_key(name, size) for size in self.tensor_sizes
                  for name in names),
                'server_cpu', 'ready_time']

    def min_repetition_seconds(self, values: dict[str, float]) -> float:
        return sum(values[metrics.metric_key('loop_time', size)]
                   for size in self.tensor_sizes)


class SmartRedisThroughput(TensorBenchmark):
    """Each rank puts a tensor under its own key and unpacks it, in a loop."""

    kind = 'throughput'
    more_metrics = ('bandwidth', 'one_way_bandwidth')
    scenario = parameter(runnable_scenarios('throughput'), fmt=Scenario.__str__)

    def loops(self) -> tuple[Loop, ...]:
        return (Loop('throughput', self.scenario.rank_count, self.call_count()),)

    def min_command_count(self) -> int:
        return 2 * self.call_count()


class SmartRedisInference(TensorBenchmark):
    """A model in the database classifies an image of each rank: put,
    pre-process, run, read."""

    kind = 'inference'
    more_metrics = ('inference_rate',)
    SETTINGS = {**TensorBenchmark.SETTINGS, 'inter_op_threads': 1,
                'intra_op_threads': 1, **dict.fromkeys((
                    'network', 'db_tpq', 'batch_size', 'device'))}
    scenario = parameter(runnable_scenarios('inference'), fmt=Scenario.__str__)

    network = arrangement(str)
    db_tpq = arrangement(int)
    batch_size = arrangement(int)
    device = arrangement(typ.Str[r'CPU|GPU'])

    #: Operations that a thread of a device runs at once, and threads that share the
    #: work of an operation.
    inter_op_threads = variable(int, value=1)
    intra_op_threads = variable(int, value=1)

    def module_threads(self) -> dict[str, int]:
        return {'threads': self.scenario.db_tpq, 'inter': self.inter_op_threads,
                'intra': self.intra_op_threads}

    def changed_fields(self) -> dict[str, Any]:
        changed = super().changed_fields()
        if Path(changed.get('network', '')).suffix and changed['network'] != RESNET50:
            # ReFrame changes to the stage directory later.
            changed['network'] = str(Path(changed['network']).resolve())
        return changed

    def cause_left_out(self) -> str:
        names = (*aimodule.NETWORKS, RESNET50)
        if self.scenario.network not in names and not Path(
                self.scenario.network).is_file():
            return f'network is neither a file nor one of {", ".join(names)}'
        return super().cause_left_out()

    @run_after('setup')
    def refuse_shared_work_without_libtorch(self) -> None:
        """Refuse more than one thread per run if the model does not run in libtorch.

        :raises ValueError: inter_op_threads or intra_op_threads is larger than 1
        """
        if (max(self.inter_op_threads, self.intra_op_threads) > 1
                and not self.scenario.uses_torchscript):
            raise ValueError(
                'inter_op_threads, intra_op_threads: only libtorch divides the work of '
                'a run; set network=resnet50.pt, or set db_tpq')

    @run_before('run')
    def write_model(self) -> None:
        """Write the pre-processing script and, without TorchScript, the model into the
        stage directory."""
        torch = self.scenario.uses_torchscript
        Path(self.stagedir, 'script.txt').write_text(
            aimodule.TORCHSCRIPT if torch else aimodule.SCRIPT)
        if not torch:
            Path(self.stagedir, 'network').write_bytes(
                aimodule.model_blob(self.scenario.network))

    @property
    def model_path(self) -> str:
        """File of the model that the first rank stores."""
        if not self.scenario.uses_torchscript:
            return f'{self.stagedir}/network'
        return str(Path(self.programs.stagedir, self.scenario.network))

    def model_bytes(self) -> int:
        if not self.scenario.uses_torchscript:
            return 0
        # ResNet-50 has 102 MB.
        return (102_000_000 if self.scenario.network == RESNET50 else
                Path(self.scenario.network).stat().st_size)

    @property
    def side_and_classes(self) -> tuple[int, int]:
        """Pixels of an image's side, and classes; a model has those of ResNet-50, as
        in the original."""
        return aimodule.NETWORKS.get(self.scenario.network, (224, 1000))

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        side, _ = self.side_and_classes
        return (3 * side * side * 4,)

    def tensors_per_rank(self) -> int:
        # The image, its results, and the image of the next rank in the queue.
        return 4

    def call_count(self) -> int:
        # The first inference of a rank is not measured.
        return super().call_count() + self.scenario.rank_count

    def loops(self) -> tuple[Loop, ...]:
        scenario = self.scenario
        side, classes = self.side_and_classes
        return (Loop('inference', scenario.rank_count, self.call_count(), (
            '--model', self.model_path, '--script', f'{self.stagedir}/script.txt',
            '--side', str(side), '--classes', str(classes),
            '--batch-size', str(scenario.batch_size), '--device', scenario.device)),)

    def min_command_count(self) -> int:
        return 4 * self.call_count()

    def values_of_session(self, session: Session) -> dict[str, float]:
        # Not in records(): the original writes 99 of the 101 calls in its loop.
        rate = sum(self.scenario.iterations / loop for loop in session.loop_times)
        return {**super().values_of_session(session),
                metrics.metric_key('inference_rate', session.size): rate}


class SmartRedisAggregation(TensorBenchmark):
    """Ranks of a producer append datasets to a list; at the same time a
    consumer reads them."""

    kind = 'aggregation'
    more_metrics = ('bandwidth',)
    SETTINGS = {**TensorBenchmark.SETTINGS, **dict.fromkeys((
        'client_threads', 'tensors_per_dataset'))}
    consumers = 1
    scenario = parameter(runnable_scenarios('aggregation', 1), fmt=Scenario.__str__)

    client_threads = arrangement(int)
    tensors_per_dataset = arrangement(int)

    def tensors_per_rank(self) -> int:
        return self.scenario.tensors_per_dataset

    def connections_per_server(self) -> int:
        return self.scenario.rank_count + self.scenario.client_threads

    def client_roles(self) -> tuple[Clients, ...]:
        """Roles of producers and of the consumer, which has `client_threads` CPUs."""
        scenario, unbound = self.scenario, self.pin == 'off'
        return (
            Clients(nodes=max(1, scenario.client_nodes),
                    instances=scenario.clients_per_node, unbound=unbound, spinning=1,
                    name='producer', apart=self.has_separate_clients),
            Clients(cpus=scenario.client_threads, spinning=scenario.client_threads,
                    unbound=unbound, name='consumer',
                    apart=bool(scenario.client_nodes)))

    def loops(self) -> tuple[Loop, ...]:
        scenario = self.scenario
        both = ('--tensors', str(scenario.tensors_per_dataset))
        return (Loop('producer', scenario.rank_count, 0, both, 'producer'),
                Loop('consumer', 1, self.call_count(), (
                    *both, '--producers', str(scenario.rank_count),
                    '--client-threads', str(scenario.client_threads)), 'consumer'))

    def min_command_count(self) -> int:
        # Per dataset: append to the list, read its hash, read its tensors.
        return self.call_count() * (2 + self.tensors_per_rank())

    def values_of_session(self, session: Session) -> dict[str, float]:
        values = super().values_of_session(session)
        if session.kind == 'consumer':
            (loop,) = session.loop_times
            moved = (self.scenario.rank_count * self.tensors_per_rank()
                     * (session.size or 0) * self.scenario.iterations)
            values[metrics.metric_key('bandwidth', session.size)] = moved / loop / 1e6
        return values


for check in (SmartRedisThroughput, SmartRedisInference,
              SmartRedisAggregation):
    # ReFrame refuses a parameter without values.
    if check.num_variants:
        rfm.simple_test(check)
