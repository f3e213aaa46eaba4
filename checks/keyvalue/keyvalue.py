"""Checks of in-memory stores under a load of clients."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import reframe as rfm
import reframe.core.runtime as rt
from reframe.core.builtins import (
    fixture,
    parameter,
    run_after,
    variable,
)

from config.families import printed_name
from config.records import metrics
from config.sessions import selection

from ..core import base, guards
from ..core.options import SET_BY_CHECK, split_options
from ..loadgen import BUILD, EMBEDDED
from ..loadgen import RESERVED as RESERVED_OF_MEMTIER
from ..loadgen.memtier import PROGRAM, read_run
from ..machine import builds
from ..nccl import programs as gpu_collectives
from ..services.parser import Services
from ..services.plan import Clients, Plan, Program, Server, Step
from ..services.service import (
    ServiceBenchmark,
    cpus_of_largest_node,
    has_partition_with_nodes,
)
from ..stores.servers import (
    MEMCACHED_FLAGS,
    REDIS_LIKE,
    RESERVED,
    RESERVED_OF_MEMCACHED,
    RESP,
    STORES,
    Needs,
    make_server_role,
)
from .parser import parse
from .scenarios import GENERATORS, Scenario, modes_of, store_scenarios_with_first_mode

#: Operations that make the store grow: they run for a number of requests, not
#: for a time.
GROWING = ('lpush', 'xadd')

#: Operation -> options of memtier_benchmark.
OPERATIONS = {
    'get': ('--ratio', '0:1'),
    'set': ('--ratio', '1:0'),
    'mixed': ('--ratio', '1:10'),
    'mset': ('--command', f'MSET{" __key__ __data__" * 10}'),
    'lpush': ('--command', 'LPUSH __key__ __data__'),
    'xadd': ('--command', 'XADD __key__ * v __data__'),
    'connect': ('--ratio', '0:1', '--reconnect-interval', '1'),
}

#: Options of memtier_benchmark that set each key once.
FILL = ('--ratio', '1:0', '--key-pattern', 'P:P', '--requests', 'allkeys')

#: Options of memtier_benchmark: JSON on standard output, and no text. (A container may
#: lack /dev/stdout.)
JSON = ('--out-file', '/dev/null', '--json-out-file', '/proc/self/fd/1',
        '--print-percentiles', '50,90,99,99.9,99.99,100')

#: Options of memtier_benchmark that decide what is measured, and what replaces them;
#: the same of redis-benchmark and its descendants.
REFUSED_OF_MEMTIER = {
    '-t --threads -c --clients --ratio --command --pipeline -d --data-size '
    '--data-size-list --data-size-range --data-offset --data-import '
    '--reconnect-interval': 'select another scenario',
    '-n --requests': 'use the settings duration and requests',
    '--test-time --warmup-time': 'use the settings duration and warmup',
    '--rate-limiting': 'use the setting rate of StoreServes',
    '--key-maximum': SET_BY_CHECK, **RESERVED_OF_MEMTIER}
REFUSED_OF_REDIS_BENCHMARK = {
    '-t -c -d -P': 'select another scenario', '-n': 'use the setting requests',
    '-s -h -p -a -u -r -q -l -x -I --csv --user --cluster --dbnum --precision '
    '--version --help': SET_BY_CHECK}

#: Values in flight on each connection while the store is filled. Unit: bytes.
FILL_AT_ONCE = 2048

#: Store -> whether it cannot run a scenario: memcached has no lists and no
#: persistence, and only stores like Redis form a cluster.
WITHOUT = {
    'memcached': lambda scenario: (
        scenario.operation in ('mset', *GROWING)
        or scenario.persistence != 'off'
        or scenario.shards > 1
    ),
    'dragonfly': lambda scenario: (
        scenario.shards > 1 or scenario.persistence != 'off'
    ),
}


def available_environment_features() -> set[str]:
    """Features of the environments of this system."""
    return {f for part in rt.runtime().system.partitions
            for env in part.environs for f in env.features}


def threads_and_clients(connections: int, cpus: int) -> tuple[int, int]:
    """Threads of a load generator, and connections of each of them.

    All threads have the same number of connections, as in memtier_benchmark: at
    most 2 % more in all than there should be.
    """
    threads = max(count for count in range(1, cpus + 1)
                  if -(-connections // count) * count <= 1.02 * connections)
    return threads, -(-connections // threads)


def runnable_scenarios(*generators: str) -> list[Scenario]:
    """Scenarios of these load generators that some store, environment and
    partition of this system can run."""
    features = available_environment_features()
    cores = cpus_of_largest_node()
    return [
        scenario
        for store in STORES
        if store in features
        for scenario, _ in store_scenarios_with_first_mode(store)
        if scenario.generator in generators
        and GENERATORS.get(scenario.generator, store) in features
        and not WITHOUT.get(store, lambda scenario: False)(scenario)
        and scenario.threads < max(2, cores)
        and (scenario.generator != 'benchmark' or store in REDIS_LIKE)
        and has_partition_with_nodes('keyvalue', scenario.client_nodes, 1)
    ]


class StorePrograms(base.Programs):
    """The stores of an environment, and the embedded load generator."""

    family = 'keyvalue'

    def tool_build_commands(self) -> list[str]:
        return [builds.build_script_command(self, BUILD, EMBEDDED)]


class StoreBenchmark(ServiceBenchmark, special=True):
    """A store that runs during the job, under a load of clients on the same
    node or on others."""

    family = 'keyvalue'
    SETTINGS: ClassVar[Mapping[str, Any]] = {
        **ServiceBenchmark.SETTINGS, 'options': '', 'client_options': ''}
    REFUSED: ClassVar[Mapping[str, str]] = {**RESERVED, **RESERVED_OF_MEMCACHED}
    FLAGS = MEMCACHED_FLAGS
    SMALLEST = {**ServiceBenchmark.SMALLEST, 'requests': 20, 'duration': 0.1,
                'ready_limit': 0.1}

    #: The store and its load; each check makes it a parameter.
    scenario: Scenario

    programs = fixture(StorePrograms, scope='environment')

    #: Memory of a server for its data. Unit: MiB; 0: the memory that the data
    #: need.
    memory = variable(int, value=0)

    #: More options of the server, by the rules of the shell.
    options = variable(str, value='')

    #: More options of the load generator during the measurement.
    client_options = variable(str, value='')

    #: Number of requests of lpush and xadd, and of redis-benchmark.
    requests = variable(int, value=200_000)

    #: Time limit for the first answer of a store. Unit: s.
    ready_limit = variable(float, value=30.0)

    #: Measured time, and the time before it. Unit: s.
    duration = variable(float, value=3.0)
    warmup = variable(float, value=0.5)

    @run_after('init')
    def set_requirements(self) -> None:
        """Set program, nodes, environments and modes of the scenario, with only mode
        full if its servers and clients need more CPUs than the largest node has."""
        scenario = self.scenario
        self.program = scenario.store
        self.require_client_and_server_nodes(scenario.client_nodes, 1)
        self.valid_prog_environs = [
            f'+{scenario.store}{self.additional_environment_features()}'
        ]
        cpus = scenario.threads * scenario.shards
        if not scenario.client_nodes:
            # Connections cost clients more than the store: with only as many
            # CPUs as the servers, the clients would be the limit.
            cpus += 2 * cpus if scenario.operation == 'connect' else 1
        self.set_mode_tags(modes_of(scenario), cpus)

    def alternative_environments(self) -> list[str]:
        return [f'+{store}' for store in STORES]

    def is_first_in_veto(self, partition: Any) -> bool:
        return not (gpu_collectives.are_offered(partition)
                    or selection.offers(partition, '+osu_allreduce'))

    def additional_environment_features(self) -> str:
        """Features of the environment besides the store."""
        other = GENERATORS.get(self.scenario.generator)
        return f' +{other}' if other else ''

    @property
    def key_count(self) -> int:
        """Number of keys: more than a CPU cache holds, but not too many."""
        return max(64, min(100_000, (256 << 20) // self.scenario.payload))

    @property
    def store_prefix(self) -> str:
        """Prefix of the store's installation; by default the system's."""
        return self.programs.program_origin(self.scenario.store).get('prefix', '/usr')

    def store_server_role(self, socket: bool = False) -> Server:
        """The server role."""
        scenario = self.scenario
        count = self.key_count + (
            self.requests if scenario.operation in GROWING else 0
        )
        # Twice the data, because the store adds memory to each of them.
        room = 2 * count * (scenario.payload + 256) // scenario.shards >> 20
        return make_server_role(
            scenario.store,
            self.store_prefix,
            Needs(
                scenario.threads,
                self.memory or 128 + room,
                scenario.connections,
                scenario.persistence,
                scenario.shards > 1,
                socket,
                options=tuple(self.option_words()[0]),
            ),
            nodes=1,
            instances=scenario.shards,
            ready_limit=self.ready_limit,
        )

    @property
    def ends_after_request_count(self) -> bool:
        """Whether the load ends after `requests`, not after `duration`."""
        return self.scenario.operation in GROWING

    def min_repetition_seconds(self, values: dict[str, float]) -> float:
        if not self.ends_after_request_count:
            return self.duration
        return self.requests / values[metrics.metric_key('operations',
                                                         self.scenario.payload)]

    @property
    def connections_of_client(self) -> int:
        """Connections of one client."""
        return -(-self.scenario.connections // max(1, self.scenario.client_nodes))

    def client_role(self) -> Clients:
        """The client role: one client per node, on the remaining CPUs."""
        scenario = self.scenario
        cores = self.current_partition.processor.num_cpus or 4
        taken = (
            0 if scenario.client_nodes else scenario.threads * scenario.shards
        )
        return Clients(nodes=max(1, scenario.client_nodes),
                       cpus=max(1, min(2 * scenario.threads * scenario.shards,
                                       cores - taken)),
                       apart=scenario.client_nodes > 0)

    def embedded_command(self, connections: int, cpus: int, *options: str
                         ) -> tuple[str, ...]:
        """A command of the embedded load generator, which checks what it reads."""
        threads, clients = threads_and_clients(connections, cpus)
        return (f'{self.programs.stagedir}/{EMBEDDED}', '--service', '{service}',
                '--protocol',
                'redis' if self.scenario.store in RESP else 'memcache_binary',
                '--threads', str(threads), '--clients', str(clients), *options)

    def extract_service_values(self, services: Services, output: str,
                               run: guards.Run) -> dict[str, float]:
        self.version = services.servers[0].version
        filled, measured = (services.steps[s] for s in ('fill', 'measure'))
        if filled.after.keys != self.key_count:
            guards.fail_test_case(
                'fill',
                f'{run.name}: {self.key_count} keys were set, '
                f'but {self.scenario.store} holds '
                f'{filled.after.keys}',
            )
        if measured.counter_increase('evicted'):
            guards.fail_test_case(
                'evicted',
                f'{run.name}: {self.scenario.store} evicted '
                f'{measured.counter_increase("evicted"):g} keys, because its memory is '
                'smaller than the data: set more MiB with '
                f'-S {type(self).variant_name()}.memory=N',
            )
        served = max(1, measured.counter_increase('commands'))
        return {'evictions': measured.counter_increase('evicted'),
                'server_cpu': measured.counter_increase('cpu') / served * 1e6}


class StoreServes(StoreBenchmark):
    """A store under the embedded memtier_benchmark."""

    SETTINGS = {**StoreBenchmark.SETTINGS, 'rate': 0}
    REFUSED_OF_CLIENTS = REFUSED_OF_MEMTIER

    #: The store and its load.
    scenario = parameter(
        runnable_scenarios('plumbload'), fmt=lambda scenario: str(scenario)
    )

    #: Requests per second of all clients together; 0: as fast as possible. A
    #: rate gives the latencies that users of a busy store see.
    rate = variable(int, value=0)

    @run_after('init')
    def set_description(self) -> None:
        """Describe the test case by its scenario and the embedded load generator."""
        self.descr = f'{self.scenario} under {printed_name(PROGRAM, "embedded")}'

    def service_plan(self) -> Plan:
        payload = self.scenario.payload
        clients = self.client_role()
        command = self.embedded_command(
            self.connections_of_client, clients.cpus, '--data-size', str(payload),
            '--verify', 'bytes')
        keys = ('--key-prefix', 'key:', '--key-maximum', str(self.key_count - 1))
        # Not measured: as fast as possible, with one connection or many.
        fill = (*FILL, '--pipeline', str(max(1, FILL_AT_ONCE // payload)))
        return Plan(self.store_server_role(), (clients,), (
            Step('fill', (Program(commands=((*command, *keys, *fill),)),), limit=120),
            Step('measure', (Program((
                *command, *self.load_options(clients), *JSON,
                *self.option_words()[1])),),
                 limit=self.duration + self.warmup + 60, gate=True)))

    def load_options(self, clients: Clients) -> list[str]:
        """Options of the measured load."""
        scenario = self.scenario
        threads, each = threads_and_clients(self.connections_of_client, clients.cpus)
        connections = clients.nodes * threads * each
        options = [*OPERATIONS[scenario.operation], '--pipeline',
                   str(scenario.pipeline), '--seed', '{index}']
        if '--ratio' in options and scenario.operation != 'set':
            options += ['--on-miss', 'fail']
        if self.rate:
            options += ['--rate-limiting', f'{self.rate / connections:g}']
        # Lists and streams are not strings: they have separate keys, and few
        # of them, so that they grow.
        if self.ends_after_request_count:
            return [*options, '--requests', str(-(-self.requests // connections)),
                    '--key-prefix', f'{scenario.operation}:', '--key-maximum', '99']
        return [*options, '--test-time', str(self.duration), '--warmup-time',
                str(self.warmup), '--key-prefix', 'key:', '--key-maximum',
                str(self.key_count - 1)]

    def required_metrics(self) -> list[str]:
        names = (('connection_rate',) if self.scenario.operation == 'connect'
                 else ('operations', 'bandwidth', 'latency', 'latency_p50',
                       'latency_p99', 'latency_p999'))
        return [*(metrics.metric_key(name, self.scenario.payload) for name in names),
                'server_cpu', 'ready_time', 'memory_ratio', 'evictions']

    def extract_service_values(self, services: Services, output: str,
                               run: guards.Run) -> dict[str, float]:
        filled = services.steps['fill']
        measured = read_run(output, max(1, self.scenario.client_nodes))
        if 'client' in measured.limited:
            self.inconclusive_reasons.append(
                'limited by the load generator, not by the store: give the '
                'clients more CPUs or nodes')
        values = {record.metric: record.value for record in measured.records
                  if record.metric not in ('hit_operations', 'miss_operations')}
        if self.scenario.operation == 'connect':
            values = {'connection_rate': values['operations'], **{
                name: value for name, value in values.items()
                if name.startswith(('latency', 'client'))}}
        return {**{metrics.metric_key(name, self.scenario.payload): value
                   for name, value in values.items()},
                **super().extract_service_values(services, output, run),
                'memory_ratio': filled.counter_increase('memory')
                / (self.key_count * self.scenario.payload)}


class StoreGenerators(StoreBenchmark):
    """A store under other load generators, to compare with published values.

    They accept a password only on their command line, where every user of the
    node can read it. So the store listens on a socket in a private folder.
    """

    #: The store, its load, and the load generator.
    scenario = parameter(
        runnable_scenarios(*GENERATORS), fmt=lambda scenario: str(scenario)
    )

    @run_after('init')
    def set_description(self) -> None:
        """Select the load generator, memtier_benchmark or the store's own benchmark,
        and describe the test case by it."""
        self.program = (PROGRAM if self.scenario.generator == 'memtier'
                        else f'{self.scenario.store}-benchmark')
        self.descr = f'{self.scenario} under {self.program}'

    def option_words(self) -> tuple[list[str], list[str]]:
        refused = (REFUSED_OF_MEMTIER if self.program == PROGRAM else
                   REFUSED_OF_REDIS_BENCHMARK)
        return super().option_words()[0], split_options(
            self.client_options, 'client_options', refused)

    @property
    def ends_after_request_count(self) -> bool:
        return self.program != PROGRAM

    @property
    def key_count(self) -> int:
        # Keys are random: with twenty sets per key, each key is set.
        return min(1000, max(1, self.requests // 20))

    def service_plan(self) -> Plan:
        """The plan: the embedded load generator sets the keys before the
        measurement and checks them afterwards, because the other does not check
        values."""
        scenario, sets = self.scenario, self.scenario.operation == 'set'
        clients = self.client_role()
        command, names = ((self.memtier_command(), ()) if self.program == PROGRAM else (
            self.redis_benchmark_command(),
            ('--key-prefix', 'key:', '--key-digits', '12')))
        check = self.embedded_command(
            scenario.connections, clients.cpus, *names, '--key-maximum',
            str(self.key_count - 1), '--pipeline', str(scenario.pipeline))
        # Overwritten values have another length, because the bytes that the
        # load generator writes are not known.
        fill = (*FILL, '--verify', 'bytes', '--data-size', str(scenario.payload + sets))
        verify = ('--ratio', '0:1', '--on-miss', 'fail', '--data-size',
                  str(scenario.payload), '--verify', 'length' if sets else 'bytes',
                  '--requests', str(-(-10 * self.key_count // scenario.connections)))
        return Plan(self.store_server_role(socket=True), (clients,), (
            Step('fill', (Program(commands=((*check, *fill),)),), limit=120),
            Step('measure', (Program(commands=((*command, *self.option_words()[1]),)),),
                 limit=120),
            Step('verify', (Program(commands=((*check, *verify),)),), limit=120,
                 check=True)))

    def redis_benchmark_command(self) -> tuple[str, ...]:
        """Command of redis-benchmark and its descendants."""
        scenario = self.scenario
        return (f'{self.store_prefix}/bin/{self.program}', '-s', '{host}', '--csv',
                '-d', str(scenario.payload), '-r', str(self.key_count), '-c',
                str(scenario.connections), '-P', str(scenario.pipeline),
                '-t', scenario.operation, '-n', str(self.requests))

    @property
    def whole_seconds(self) -> int:
        """The measured time of memtier_benchmark, which has no parts of a second."""
        return max(1, round(self.duration))

    def memtier_command(self) -> tuple[str, ...]:
        """Command of memtier_benchmark; its keys begin at 0.

        With one common seed, its connections use the same sequence of keys and
        leave some keys out. With memcached's binary protocol it counts only
        the bytes of the request of a GET.
        """
        scenario = self.scenario
        return (
            PROGRAM, *OPERATIONS[scenario.operation], '--distinct-client-seed',
            '--unix-socket', '{host}', '--protocol',
            'redis' if scenario.store in RESP else 'memcache_text',
            '--threads', '1', '--clients', str(scenario.connections),
            '--pipeline', str(scenario.pipeline), '--data-size', str(scenario.payload),
            '--key-maximum', str(self.key_count - 1),
            '--test-time', str(self.whole_seconds), *JSON)

    def required_metrics(self) -> list[str]:
        return [*(metrics.metric_key(name, self.scenario.payload) for name in (
            'operations', 'latency', 'latency_p50', 'latency_p99')),
            'server_cpu', 'ready_time', 'evictions']

    def extract_service_values(self, services: Services, output: str,
                               run: guards.Run) -> dict[str, float]:
        measured = services.steps['measure']
        if measured.counter_increase('misses'):
            guards.fail_test_case(
                'misses',
                f'{run.name}: {self.scenario.store} had '
                f'{measured.counter_increase("misses"):g} misses, although all '
                'keys were set before',
            )
        operation = f'operation={self.scenario.operation}'
        records = [r for r in parse(output) if operation in r.params.split()]
        if not records:
            guards.fail_test_case('values', f'{run.name}: {self.program} printed no '
                                  f'values of {self.scenario.operation}')
        self.check_hits_and_bytes({r.metric: r.value for r in records}, run)
        requests = (self.requests if self.ends_after_request_count else
                    records[0].value * (self.whole_seconds - 1))
        if measured.counter_increase('commands') < requests:
            guards.fail_test_case('calls', f'{run.name}: {self.program} reports '
                                  f'{requests:g} requests, but '
                                  f'{self.scenario.store} counted only '
                                  f'{measured.counter_increase("commands"):g}')
        return {**{metrics.metric_key(r.metric, self.scenario.payload): r.value
                   for r in records},
                **super().extract_service_values(services, output, run)}

    def unvalidated_data(self) -> str:
        return (f'validation: {self.program} does not compare values; after the '
                'measurement the suite compares '
                + ('the lengths' if self.scenario.operation == 'set' else 'all bytes')
                + ' of the values')

    def check_hits_and_bytes(self, values: dict[str, float], run: guards.Run
                      ) -> None:
        """Refuse misses and missing bytes that the load generator reports."""
        if values.get('hit_ratio', 1) < 1:
            guards.fail_test_case('misses', f'{run.name}: {self.program} found only '
                                  f'{values["hit_ratio"]:.4%} of the keys that were '
                                  f'set: the store lost keys')
        each = values.get('bandwidth', 1e9) * 1e6 / values['operations']
        if each < self.scenario.payload:
            guards.fail_test_case('values', f'{run.name}: {self.program} transferred '
                                  f'{each:.0f} B per request, less than a value '
                                  f'({self.scenario.payload} B): does '
                                  f'{self.scenario.store} answer without values?')


for check in (StoreServes, StoreGenerators):
    # ReFrame refuses a parameter without values.
    if check.num_variants:
        rfm.simple_test(check)
