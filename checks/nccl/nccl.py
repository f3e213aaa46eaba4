"""NCCL and RCCL: what GPUs give to each other, on a node and between nodes."""
from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reframe as rfm
import reframe.core.runtime as rt
from reframe.core.builtins import (
    fixture,
    parameter,
    run_after,
    run_before,
    variable,
)

from ..core import guards, metrics
from ..core.base import Benchmark, Programs
from . import log, parser, physics, programs

#: Nodes of the cases between nodes.
NODES = (2, 4, 8, 16, 32, 64)

#: Networks beside which TCP is a fault.
FAST = {'infiniband', 'slingshot', 'efa'}


#: Option of the programs -> its letter and its value, as the suite has it;
#: in the order of the command line. Each is a variable of the checks.
OPTIONS: dict[str, tuple[str, Any]] = {
    'iterations': ('-n', 20), 'warmup': ('-w', 5), 'aggregated': ('-m', 1),
    'data_checks': ('-c', 1), 'datatype': ('-d', 'float'),
    'operation': ('-o', 'sum'), 'root': ('-r', 0), 'blocking': ('-z', 0),
    'graph_launches': ('-G', 0), 'threads_per_rank': ('-t', 1),
    'gpus_per_thread': ('-g', 1), 'parallel_init': ('-p', 0),
    'local_register': ('-R', 0), 'cta_policy': ('-x', -1),
    'device_implementation': ('-D', 0), 'memory_type': ('-Y', ''),
    'average': ('-a', 1)}
DEFAULTS: dict[str, Any] = {
    name: value for name, (_, value) in OPTIONS.items()}


@dataclass(frozen=True)
class Layout:
    """Where the ranks are: a GPU each."""
    #: GPUs of each node.
    gpus: int
    nodes: int

    @property
    def ranks(self) -> int:
        """GPUs in all."""
        return self.gpus * self.nodes


def gpus_of(part: Any) -> int:
    """GPUs of a node of a partition; 0: it has none, or does not say."""
    if not {'gpu_nvidia', 'gpu_amd'} & set(part.features):
        return 0
    return sum(device.num_devices or 1
               for device in part.select_devices('gpu'))


def partitions() -> list[Any]:
    """Partitions of this system with GPUs."""
    return [part for part in rt.runtime().system.partitions if gpus_of(part)]


def layouts(nodes: Iterable[int] = (1, *NODES), full: bool = False
            ) -> list[Layout]:
    """Layouts that some partition here can run: on one node 1, 2, 4, ...
    and all GPUs, on several all of each.

    :arg full: all GPUs of a node, on one node, too.
    """
    found = set()
    for part in partitions():
        maximum = gpus_of(part)
        some = [maximum] if full else [
            maximum, *(2 ** n for n in range(10) if 2 ** n < maximum)]
        found |= {Layout(gpus, count) for count in nodes
                  for gpus in (some if count == 1 else [maximum])
                  if f'nodes_{count}' in part.features}
    return sorted(found, key=lambda one: (one.nodes, one.gpus))


def offered() -> list[str]:
    """Programs for any number of ranks that an environment here has."""
    here = {feature for part in rt.runtime().system.partitions
            for env in part.environs for feature in env.features}
    return [name for name in programs.PROGRAMS if name != 'hypercube_perf'
            and (name not in programs.SINCE or name in here)]


def as_layout(layout: Layout) -> str:
    return f'{layout.nodes}x{layout.gpus}'


def where_there_are_gpus(check: Any) -> Any:
    """Registers a check that has a case here: a parameter without values
    would be an error."""
    return rfm.simple_test(check) if check.num_variants else check


class NcclPrograms(Programs):
    """The programs of an environment: nccl-tests or rccl-tests, or where it
    says `embedded` the stand-in, which measures nothing."""

    family = 'nccl'
    sourcesdir = 'src'

    def build_commands(self) -> list[str]:
        names = ' '.join(programs.PROGRAMS)
        return [f'{self.current_environ.cc} -O2 -std=gnu11 -o standin '
                'standin.c -lm',
                f'for name in {names}; do ln -sf standin $name || exit 1; '
                'done']

    def installed(self) -> dict[str, str]:
        """Programs by their names; empty: they are on PATH, unseen."""
        origin = self.origin('')
        if origin['source'] == 'embedded':
            return {name: f'{self.stagedir}/{name}'
                    for name in programs.PROGRAMS}
        if 'prefix' not in origin:
            return {}
        return programs.installed(origin['prefix'])

    def path(self, program: str) -> str:
        """Full path of a program; only its name where PATH must have it.

        :raises Refused: the installation lacks it.
        """
        here = self.installed()
        if here and program not in here:
            guards.refuse('programs', f'there is no {program} in '
                          f"{self.origin('').get('prefix')}, only "
                          f'{", ".join(here)}')
        if not here and 'prefix' in self.origin(''):
            guards.refuse('programs', 'there is no program of nccl-tests in '
                          f"{self.origin('')['prefix']} or its bin")
        return here.get(program, program)

    def unknown(self) -> str:
        """Programs of the installation that the family does not know."""
        return ', '.join(sorted(set(self.installed())
                                - set(programs.PROGRAMS)))


class NcclBenchmark(Benchmark, special=True):
    """One program of nccl-tests or rccl-tests, its whole table recorded.

    A variable that is set makes another case, unless it says how often or
    how long.
    """

    family = 'nccl'

    #: Nodes, and GPUs of each.
    layout: Layout

    #: Smallest and largest size. Unit: bytes. Default: 8 B to 1 GiB; the GPU
    #: must hold three buffers of the largest.
    min_size = variable(int, value=8)
    max_size = variable(int, value=1 << 30)

    #: Timed iterations of a size (-n), and untimed ones before them (-w).
    iterations = variable(int, value=DEFAULTS['iterations'])
    warmup = variable(int, value=DEFAULTS['warmup'])

    #: Calls of one iteration, as one group (-m).
    aggregated = variable(int, value=DEFAULTS['aggregated'])

    #: Iterations that check the data (-c).
    data_checks = variable(int, value=DEFAULTS['data_checks'])

    #: Data type (-d): int8, half, bfloat16, float, double, ...
    datatype = variable(str, value=DEFAULTS['datatype'])

    #: Reduction (-o): sum, prod, min, max, avg, mulsum.
    operation = variable(str, value=DEFAULTS['operation'])

    #: Rank that has or gets the data (-r).
    root = variable(int, value=DEFAULTS['root'])

    #: 1: wait and barrier after each iteration; 2, 3: since 2.19 (-z).
    blocking = variable(int, value=DEFAULTS['blocking'])

    #: Launches of a graph of all iterations (-G); 0: no graph.
    graph_launches = variable(int, value=DEFAULTS['graph_launches'])

    #: Threads of a rank (-t), each with gpus_per_thread GPUs (-g); 0: as
    #: many as make one rank a node.
    threads_per_rank = variable(int, value=DEFAULTS['threads_per_rank'])
    gpus_per_thread = variable(int, value=DEFAULTS['gpus_per_thread'])

    #: Threads initialise at the same time (-p).
    parallel_init = variable(int, value=DEFAULTS['parallel_init'])

    #: 1: buffers are registered, 2: symmetric memory, NCCL 2.27 (-R).
    local_register = variable(int, value=DEFAULTS['local_register'])

    #: Policy of cooperative thread arrays, NCCL 2.27 (-x); -1: none.
    cta_policy = variable(int, value=DEFAULTS['cta_policy'])

    #: Kernels of the programs' own on device memory (-D), NCCL 2.28.
    device_implementation = variable(
        int, value=DEFAULTS['device_implementation'])

    #: Memory of the buffers, rccl-tests (-Y): coarse, fine, host, managed.
    memory_type = variable(str, value=DEFAULTS['memory_type'])

    #: How the ranks' times become one (-a): 0: of rank 0, 1: mean, 2: least,
    #: 3: most.
    average = variable(int, value=DEFAULTS['average'])

    #: Which NICs NCCL may take (NCCL_IB_HCA), e.g. '=mlx5_0,mlx5_3'.
    nics = variable(str, value='')

    #: More options for the program; makes another case.
    options = variable(str, value='')

    programs = fixture(NcclPrograms, scope='environment')

    valid_systems = ['+gpu_nvidia', '+gpu_amd']
    valid_prog_environs = ['+nccl_tests', '+rccl_tests']
    time_limit = '15m'

    #: Where each process of a run leaves NCCL's words.
    LOG = 'nccl.%h.%p.log'

    #: Always on the command line, whatever the program's default.
    STATED = ('iterations', 'warmup', 'data_checks', 'datatype',
              'threads_per_rank', 'gpus_per_thread')
    #: Sizes, unless they are set.
    RANGE = (8, 1 << 30)
    #: A case stays the same whatever these are.
    FREE = ('iterations', 'warmup', 'data_checks')

    @run_after('init')
    def set_requirements(self) -> None:
        fits = [part for part in partitions()
                if gpus_of(part) >= self.layout.gpus]
        if len(fits) == len(partitions()):
            self.valid_systems = [f'+{gpu} +nodes_{self.layout.nodes}'
                                  for gpu in self.vendors()]
        else:
            # Partitions with fewer GPUs: a feature cannot tell them apart.
            self.valid_systems = [
                part.fullname for part in fits
                if f'nodes_{self.layout.nodes}' in part.features
                and {*self.vendors()} & set(part.features)]
        if self.program in programs.SINCE:
            self.valid_prog_environs = [
                f'+{tests} +{self.program}'
                for tests in ('nccl_tests', 'rccl_tests')]
        self.tags = {'full', self.family, *self.modes()}
        self.descr = f'{self.program} on {self.layout.ranks} GPUs'

    @run_after('setup')
    def lay_out_ranks(self) -> None:
        self.num_nodes = self.layout.nodes
        self.num_gpus_per_node = self.layout.gpus
        self.num_tasks_per_node = self.layout.gpus // self.gpus_of_a_rank()
        self.num_tasks = self.layout.nodes * self.num_tasks_per_node
        # NCCL moves data to and from the network by threads of its own:
        # the cores of a node are shared out among its ranks.
        self.threads = max(1, self.current_partition.processor.num_cores
                           // self.num_tasks_per_node)
        self.num_cpus_per_task = self.threads

    @run_after('setup')
    def mark_what_measures_nothing(self) -> None:
        self.emulated = self.source == 'embedded'

    @run_before('run')
    def call_the_program(self) -> None:
        self.executable = shlex.quote(self.programs.path(self.program))
        self.executable_opts = self.arguments()
        self.env_vars.update({
            'NCCL_DEBUG': 'INFO', 'NCCL_DEBUG_SUBSYS': log.SUBSYSTEMS,
            'NCCL_DEBUG_FILE': self.LOG, **self.environment()})

    @run_before('sanity')
    def strip_environments(self) -> None:
        """What -J wrote holds all variables of the user's environment."""
        for path in Path(self.stagedir).glob('*.json*'):
            try:
                path.write_text(parser.without_environment(path.read_text()))
            except ValueError:
                path.unlink()

    # What a kind of case says of itself ----------------------------------

    def vendors(self) -> tuple[str, ...]:
        """Features of the partitions that the case can run on."""
        return 'gpu_nvidia', 'gpu_amd'

    def modes(self) -> set[str]:
        """Modes of the case, besides full."""
        return set()

    def environment(self) -> dict[str, str]:
        """Variables of the environment that the case sets."""
        return {'NCCL_IB_HCA': self.nics} if self.nics else {}

    def evidence(self) -> tuple[str, str] | None:
        """What was asked of NCCL, and a pattern of the channels that show
        it; None: nothing."""
        return None

    # What all share ------------------------------------------------------

    def gpus_of_a_rank(self) -> int:
        """GPUs of one process."""
        threads = self.threads_per_rank or self.layout.gpus
        return threads * (self.gpus_per_thread
                          or self.layout.gpus // threads)

    def value(self, name: str) -> Any:
        """A variable as the command line has it."""
        value = getattr(self, name)
        if name == 'threads_per_rank':
            return value or self.layout.gpus
        if name == 'gpus_per_thread':
            return value or self.layout.gpus // (self.threads_per_rank
                                                 or self.layout.gpus)
        return value

    def changed(self) -> dict[str, Any]:
        """Variables with options that are not at their defaults."""
        return {name: getattr(self, name) for name in OPTIONS
                if getattr(self, name) != DEFAULTS[name]}

    def arguments(self) -> list[str]:
        """The program's options."""
        words = ['-b', str(self.min_size), '-e', str(self.max_size),
                 '-f', '2']
        changed = self.changed()
        for name, (flag, _) in OPTIONS.items():
            if name in self.STATED or name in changed:
                words += [flag, str(self.value(name))]
        return [*words, *self.options.split()]

    def more_params(self) -> dict[str, Any]:
        more = {name: value for name, value in self.changed().items()
                if name not in self.FREE}
        minimum, maximum = self.RANGE
        if (self.min_size, self.max_size) != (minimum, maximum):
            more['sizes'] = f'{self.min_size}-{self.max_size}'
        more |= {name: getattr(self, name) for name in ('nics', 'options')
                 if getattr(self, name)}
        return more

    def sizes(self) -> list[int]:
        """Sizes whose rows every version has: whole for all ranks."""
        kind, ranks = programs.PROGRAMS[self.program], self.layout.ranks
        if self.program == 'alltoallv_perf' or kind.split and (
                ranks & ranks - 1):
            return []
        minimum = max(self.min_size, 16 * ranks if kind.split else 1)
        return [self.min_size << n for n in range(64)
                if minimum <= self.min_size << n <= self.max_size]

    def planned_values(self) -> list[str]:
        wanted = ('time', 'algbw', 'busbw')[:3 if self.layout.ranks > 1
                                            else 2]
        return ['wrong', *(metrics.key(name, size) for size in self.sizes()
                           for name in wanted)]

    def values_of(self, run: guards.Run) -> dict[str, float]:
        out = self.output(run)
        self.assert_whole(run, out)
        self.version = out.version or self.version
        values = guards.values_by_metric(
            parser.records(out), f'{run.name}.out'
        )
        maximum = physics.limit(self.program, self.layout.nodes,
                             self.layout.gpus, self.site_extras())
        if maximum:
            for metric, value in list(values.items()):
                name, size = metrics.split(metric)
                if name == 'busbw':
                    values[metrics.key('busbw_limit', size)] = maximum[0]
                if re.match('busbw(_in_place)?$', name) and value > maximum[0]:
                    guards.refuse(
                        'limits',
                        f'too good to be true: {metric} '
                        f'= {value:g} GB/s is beyond {maximum[0]:g}: '
                        f'{maximum[1]}',
                    )
        return values

    def claimed_seconds(self, values: dict[str, float]) -> float:
        """Timed iterations alone, each with all calls of its group."""
        calls = self.iterations * self.aggregated
        return sum(value * calls / 1e6 for metric, value in values.items()
                   if re.match('time(_in_place)?@', metric))

    def site_extras(self) -> dict[str, Any]:
        """What the partition says of its devices; nothing for a stand-in."""
        return {} if self.emulated else self.current_partition.extras

    def output(self, run: guards.Run) -> parser.Output:
        """The parsed output of a repetition."""
        return guards.parse_output(parser.read, run.out, f'{run.name}.out')

    def assert_whole(self, run: guards.Run, out: parser.Output) -> None:
        """Refuses a table or a transport that was not asked for."""
        name = f'{run.name}.out'
        reduces = programs.PROGRAMS[self.program].reduces
        for what, has, asked in (
                ('program', out.program or self.program, self.program),
                ('ranks', out.ranks, self.layout.ranks),
                ('nodes', len(out.hosts), self.layout.nodes),
                ('smallest size', out.minimum, self.min_size),
                ('largest size', out.maximum, self.max_size),
                ('data type', ','.join(sorted(out.types)), self.datatype),
                ('reduction', ','.join(sorted({
                    row.redop for row in out.rows})) if reduces else '',
                 self.operation if reduces else '')):
            if has != asked:
                guards.refuse('table', f'{name}: {what}: {has}, asked for '
                              f'was {asked}')
        self.assert_transport(run)

    def transport_log(self, run: guards.Run) -> str:
        """NCCL's words, which are in files of their own."""
        return '\n'.join(self.logs()) + run.err

    def logs(self) -> list[str]:
        """NCCL's words, of each process of each run."""
        return [path.read_text(errors='replace') for path in
                sorted(Path(self.stagedir).glob('nccl.*.log'))]

    def assert_transport(self, run: guards.Run) -> None:
        """NCCL went the way that was meant, by its own words."""
        logs = self.logs()
        if len(logs) < self.num_tasks * self.repetitions:
            guards.refuse('transport', f'{run.name}: {len(logs)} processes '
                          'left a log of NCCL (NCCL_DEBUG_FILE), '
                          f'{self.num_tasks * self.repetitions} were started: '
                          'is NCCL_DEBUG set elsewhere (/etc/nccl.conf)?')
        told = log.told(logs)
        asked = self.evidence()
        if asked and not any(re.search(asked[1], one)
                             for one in told.channels):
            guards.refuse('transport', f'{run.name}: {asked[0]} was asked '
                          'for, and no channel of NCCL went that way, but '
                          f'{", ".join(told.channels) or "unknown ones"}')
        for name in ('P2P', 'SHM'):
            if (self.environment().get(f'NCCL_{name}_DISABLE') == '1'
                    and name in told.channels):
                guards.refuse('transport', f'{run.name}: NCCL_{name}_DISABLE '
                              f'was set, and {told.channels[name]} channels '
                              f'of NCCL went via {name}')
        nics = {device.arch for device in
                self.current_partition.select_devices('nic')}
        if nics & FAST and any('Socket' in one for one in told.channels):
            guards.refuse('transport', f'{run.name}: NCCL went over TCP '
                          '(NET/Socket) beside '
                          f'{", ".join(sorted(nics))}: is the network '
                          "plugin in LD_LIBRARY_PATH? The environment's "
                          '`transport` says what it must take')

    def known_bounds(self) -> list[tuple[float, str]]:
        """busbw that such hardware has, and who says so."""
        if self.emulated:
            return []
        case = self.program, self.layout.nodes, self.layout.gpus
        ring = physics.expected(*case, self.current_partition.extras)
        has = physics.others(*case, {device.model for device in
                                     self.current_partition.devices})
        return [*([(ring, 'the links and NICs carry')] if ring else []),
                *([(has['busbw'], f"others have ({has['source']}, "
                    f"{has['date']})")] if has else [])]

    @property
    def attached(self) -> dict[str, str]:
        """NCCL's own words in short."""
        return {'nccl.txt': log.told(self.logs()).summary()}

    def note_low_values(self) -> None:
        """Notes a large message far below the hardware, variables that NCCL
        did not speak of, and programs that nobody knows."""
        super().note_low_values()
        if self.is_dry_run():
            return
        notes = [self.no_reference]
        sizes = [size for name, size in map(metrics.split, self.values)
                 if name == 'busbw' and size and size >= 1 << 28]
        if sizes:
            metric = metrics.key('busbw', max(sizes))
            notes += [f'{metric} = {self.values[metric]:g} is below half of '
                      f'{bound:g}, which {who}' for bound, who in
                      self.known_bounds() if self.values[metric] < bound / 2]
        asked = {**(self.current_environ.extras.get('transport') or {}).get(
            'env', {}), **self.environment()}
        silent = [name for name in asked if name.startswith('NCCL_')
                  and name not in log.told(self.logs()).variables]
        if silent:
            notes.append(f'NCCL did not speak of {", ".join(silent)}: '
                         'misspelt, or not of this version?')
        if self.program == 'all_reduce_perf' and self.programs.unknown():
            notes.append('programs that family.yaml does not know: '
                         + self.programs.unknown())
        self.no_reference = '; '.join(filter(None, notes))


@where_there_are_gpus
class NcclCollective(NcclBenchmark):
    """A collective over the whole range of sizes, on 1 to all GPUs of a node
    and on all of several nodes."""

    #: Program of nccl-tests or rccl-tests.
    program = parameter(offered())

    layout = parameter(layouts(), fmt=as_layout)

    def modes(self) -> set[str]:
        full = self.layout in layouts(full=True)
        if not full or self.layout.nodes > 2:
            return set()
        daily = self.program in ('all_reduce_perf', 'sendrecv_perf')
        return {'nightly', *(('quick', 'bringup') if daily else ())}


@where_there_are_gpus
class NcclHypercube(NcclBenchmark):
    """An all-gather along the edges of a hypercube: for 2, 4, 8, ... ranks.

    For other numbers the program prints no row and ends with 0.
    """

    program = parameter(['hypercube_perf'])
    layout = parameter([one for one in layouts()
                        if one.ranks > 1 and not one.ranks & one.ranks - 1],
                       fmt=as_layout)


@where_there_are_gpus
class NcclLarge(NcclBenchmark):
    """All-reduce of 1 to 16 GiB, the size that operators judge links by.

    Three buffers of 16 GiB must fit: with less memory set max_size.
    """

    program = parameter(['all_reduce_perf'])
    layout = parameter(layouts((1, 2), full=True), fmt=as_layout)
    min_size = 1 << 30
    max_size = 1 << 34
    RANGE = (1 << 30, 1 << 34)

    def more_params(self) -> dict[str, Any]:
        return {'sizes': 'large', **super().more_params()}


def settings() -> list[str]:
    """Options and values that an operator turns: OPTION=VALUE."""
    wide = {'threads_per_rank': ['0'], 'gpus_per_thread': ['0'],
            'parallel_init': ['1']}
    values: dict[str, list[str]] = {
        'datatype': ['int8', 'half', 'bfloat16', 'double'],
        'operation': ['prod', 'min', 'max', 'avg'],
        'blocking': ['1'], 'graph_launches': ['1'], 'aggregated': ['8'],
        'local_register': ['1', '2'], 'average': ['0', '2', '3'], **wide}
    some = partitions()
    if any('gpu_nvidia' in part.features for part in some):
        values |= {'cta_policy': ['1'], 'device_implementation': ['1']}
    if any('gpu_amd' in part.features for part in some):
        values |= {'memory_type': ['fine']}
    return [f'{option}={value}' for option, some_values in values.items()
            for value in some_values]


@where_there_are_gpus
class NcclOptions(NcclBenchmark):
    """All-reduce with one option away from its default."""

    program = parameter(['all_reduce_perf'])
    layout = parameter(layouts((1, 2), full=True), fmt=as_layout)

    #: The option, under the name of the variable, and its value.
    setting = parameter(settings() if partitions() else [])

    @run_after('init')
    def turn_the_option(self) -> None:
        name, _, value = self.setting.partition('=')
        setattr(self, name, type(DEFAULTS[name])(value))
        if name == 'parallel_init':     # of the threads of one process
            self.threads_per_rank = 0
        if name == 'device_implementation':
            self.local_register = 2     # it needs symmetric memory

    def vendors(self) -> tuple[str, ...]:
        return {'cta_policy': ('gpu_nvidia',),
                'device_implementation': ('gpu_nvidia',),
                'memory_type': ('gpu_amd',)}.get(
                    self.setting.partition('=')[0], super().vendors())

    def more_params(self) -> dict[str, Any]:
        # The setting is a parameter already.
        return {name: value for name, value in super().more_params().items()
                if name in ('sizes', 'nics', 'options')}


#: Name -> variables, what the channels must show (a pattern), and where it
#: can be had: nodes, hardware.
CHOICES: dict[str, tuple[dict[str, str], str, str]] = {
    'algo=Ring': ({'NCCL_ALGO': 'Ring'}, '', ''),
    'algo=Tree': ({'NCCL_ALGO': 'Tree'}, '', ''),
    'algo=NVLS': ({'NCCL_ALGO': 'NVLS', 'NCCL_NVLS_ENABLE': '1'}, '',
                  'switch one_node'),
    'algo=NVLSTree': ({'NCCL_ALGO': 'NVLSTree', 'NCCL_NVLS_ENABLE': '1'},
                      '', 'switch nodes'),
    'nvls=off': ({'NCCL_NVLS_ENABLE': '0'}, '', 'switch'),
    'proto=LL': ({'NCCL_PROTO': 'LL'}, '', ''),
    'proto=LL128': ({'NCCL_PROTO': 'LL128'}, '', ''),
    'proto=Simple': ({'NCCL_PROTO': 'Simple'}, '', ''),
    'cross_nic=0': ({'NCCL_CROSS_NIC': '0'}, 'NET', 'nodes'),
    'cross_nic=1': ({'NCCL_CROSS_NIC': '1'}, 'NET', 'nodes'),
    'cross_nic=2': ({'NCCL_CROSS_NIC': '2'}, 'NET', 'nodes'),
    'p2p=off': ({'NCCL_P2P_DISABLE': '1'}, 'SHM|NET', ''),
    'sharp=on': ({'NCCL_COLLNET_ENABLE': '1'}, 'COLLNET',
                 'infiniband nodes'),
    # As evaluations of reduction servers call it: all bytes go through the
    # NICs, those between GPUs of a node, too.
    'net=all': ({'NCCL_P2P_DISABLE': '1', 'NCCL_SHM_DISABLE': '1'}, 'NET',
                'nodes'),
    'net=all+sharp': ({'NCCL_P2P_DISABLE': '1', 'NCCL_SHM_DISABLE': '1',
                       'NCCL_COLLNET_ENABLE': '1'}, 'COLLNET',
                      'infiniband nodes'),
}


def choices() -> list[str]:
    """Choices that the hardware of some partition here knows."""
    found = set()
    for part in partitions():
        archs = {device.arch for device in part.devices}
        links = part.extras.get('gpu_bandwidth')
        if archs & {'sm_90', 'sm_100'} and links and (
                links == part.extras.get('gpu_link_bandwidth')):
            found.add('switch')
        found |= archs & FAST
    return [name for name, (_, _, needs) in CHOICES.items()
            if not set(needs.split()) & {'switch', 'infiniband'} - found]


def choice_layouts() -> list[Layout]:
    """One node and two, all GPUs, where these are more than one."""
    return [one for one in layouts((1, 2), full=True) if one.gpus > 1]


@where_there_are_gpus
class NcclChoice(NcclBenchmark):
    """All-reduce on one node by an algorithm or protocol that NCCL would
    not have taken by itself."""

    program = parameter(['all_reduce_perf'])
    layout = parameter([one for one in choice_layouts() if one.nodes == 1],
                       fmt=as_layout)

    #: What NCCL is told by variables of its environment: CHOICES.
    choice = parameter([name for name in choices()
                        if 'nodes' not in CHOICES[name][2].split()]
                       if partitions() else [])

    def vendors(self) -> tuple[str, ...]:
        if re.search('switch|infiniband', CHOICES[self.choice][2]):
            return ('gpu_nvidia',)
        return super().vendors()

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **CHOICES[self.choice][0]}

    def evidence(self) -> tuple[str, str] | None:
        _, pattern, _ = CHOICES[self.choice]
        return (self.choice, pattern) if pattern else None


@where_there_are_gpus
class NcclNetwork(NcclChoice):
    """The same on two nodes, with rails, NICs and SHARP."""

    layout = parameter([one for one in choice_layouts() if one.nodes == 2],
                       fmt=as_layout)
    choice = parameter([name for name in choices()
                        if 'one_node' not in CHOICES[name][2].split()]
                       if partitions() else [])
