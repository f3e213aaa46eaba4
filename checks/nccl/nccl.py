"""Checks of NCCL and RCCL: collectives of GPUs, on a node and between
nodes."""
from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import reframe as rfm
import reframe.core.runtime as rt
from reframe.core.builtins import (
    fixture,
    parameter,
    run_after,
    run_before,
    variable,
)

from config.families import record_needed_node_count
from config.records import metrics
from config.sessions.modes import SMOKE, VETO

from ..core import features, guards, placement
from ..core.base import Benchmark, Programs
from ..machine import cpus
from ..machine.gpus import format_gpus, group_by_host
from . import log, parser, physics, programs

#: Networks; if a node has one of them, NCCL must not use TCP.
FAST = {'infiniband', 'slingshot', 'efa'}


#: Name of a variable of the checks -> option of the programs and default
#: value, in the order of the command line.
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
    """Placement of the ranks, one GPU each."""
    #: GPUs of each node.
    gpus: int
    nodes: int

    @property
    def rank_count(self) -> int:
        """GPUs in all."""
        return self.gpus * self.nodes


def partitions_with_gpus() -> list[Any]:
    """Partitions of this system with GPUs."""
    return [part for part in rt.runtime().system.partitions
            if placement.gpus_per_node(part)]


def runnable_layouts(nodes: Collection[int] = (), full: bool = False
                     ) -> list[Layout]:
    """Layouts that some partition of this system can run: 1, 2, 4, ... and
    all GPUs of one node, and all GPUs of several nodes.

    :arg nodes: only these numbers of nodes; default: all of the partition.
    :arg full: all GPUs also on one node.
    """
    result = set()
    record_needed_node_count('nccl', 2)
    for part in partitions_with_gpus():
        maximum = placement.gpus_per_node(part)
        some = [maximum] if full else [
            maximum, *(2 ** n for n in range(10) if 2 ** n < maximum)]
        result |= {Layout(gpus, count) for count in features.node_counts(part)
                   if not nodes or count in nodes
                   for gpus in (some if count == 1 else [maximum])}
    return sorted(result, key=lambda layout: (layout.nodes, layout.gpus))


def runnable_programs() -> list[str]:
    """Programs for any number of ranks in the environments of this system."""
    here = {feature for part in rt.runtime().system.partitions
            for env in part.environs for feature in env.features}
    return [name for name in programs.PROGRAMS if name != 'hypercube_perf'
            and (name not in programs.SINCE or name in here)]


def format_layout(layout: Layout) -> str:
    return f'{layout.nodes}x{layout.gpus}'


def register_if_available(check: Any) -> Any:
    """Register a check if it has a test case on this system; to ReFrame, a
    parameter without values is an error."""
    return rfm.simple_test(check) if check.num_variants else check


class NcclPrograms(Programs):
    """Programs of an environment: nccl-tests, rccl-tests, or (source
    `embedded`) the stand-in, which measures nothing."""

    family = 'nccl'
    sourcesdir = 'src'

    def build_commands(self) -> list[str]:
        names = ' '.join(programs.PROGRAMS)
        return [f'{self.current_environ.cc} -O2 -std=gnu11 -o standin '
                'standin.c -lm',
                f'for name in {names}; do ln -sf standin $name || exit 1; '
                'done']

    def installed_programs(self) -> dict[str, str]:
        """Name -> path of the programs; empty if they are on PATH only."""
        origin = self.program_origin('')
        if origin['source'] == 'embedded':
            return {name: f'{self.stagedir}/{name}'
                    for name in programs.PROGRAMS}
        if 'prefix' not in origin:
            return {}
        return programs.find_installed_programs(origin['prefix'])

    def program_path(self, program: str) -> str:
        """Full path of a program, or its name if it must be on PATH.

        :raises SanityError: the installation lacks it.
        """
        paths = self.installed_programs()
        if paths and program not in paths:
            guards.fail_test_case(
                'programs',
                f'{program} does not exist in '
                f'{self.program_origin("").get("prefix")}; programs that '
                f'exist: {", ".join(paths)}',
            )
        if not paths and 'prefix' in self.program_origin(''):
            guards.fail_test_case(
                'programs',
                'no program of nccl-tests exists in '
                f'{self.program_origin("")["prefix"]} or in its folder '
                'bin: correct `prefix` of the environment',
            )
        return paths.get(program, program)

    def unknown_programs(self) -> str:
        """Programs of the installation that are not in family.yaml."""
        return ', '.join(sorted(set(self.installed_programs())
                                - set(programs.PROGRAMS)))


class NcclBenchmark(Benchmark, special=True):
    """One program of nccl-tests or rccl-tests, with its whole table as
    records.

    A variable that is set makes another test case, except iterations,
    warmup and data_checks.
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

    #: Rank that sends or receives the data (-r).
    root = variable(int, value=DEFAULTS['root'])

    #: 1: wait and barrier after each iteration; 2, 3: since 2.19 (-z).
    blocking = variable(int, value=DEFAULTS['blocking'])

    #: Launches of a graph of all iterations (-G); 0: no graph.
    graph_launches = variable(int, value=DEFAULTS['graph_launches'])

    #: Threads of a rank (-t), each with gpus_per_thread GPUs (-g); 0: one
    #: rank per node.
    threads_per_rank = variable(int, value=DEFAULTS['threads_per_rank'])
    gpus_per_thread = variable(int, value=DEFAULTS['gpus_per_thread'])

    #: Threads initialise at the same time (-p).
    parallel_init = variable(int, value=DEFAULTS['parallel_init'])

    #: 1: buffers are registered, 2: symmetric memory, NCCL 2.27 (-R).
    local_register = variable(int, value=DEFAULTS['local_register'])

    #: Policy of cooperative thread arrays, NCCL 2.27 (-x); -1: none.
    cta_policy = variable(int, value=DEFAULTS['cta_policy'])

    #: The programs' own kernels on device memory (-D), NCCL 2.28.
    device_implementation = variable(
        int, value=DEFAULTS['device_implementation'])

    #: Memory of the buffers, rccl-tests (-Y): coarse, fine, host, managed.
    memory_type = variable(str, value=DEFAULTS['memory_type'])

    #: Time that is printed (-a): 0: of rank 0, 1: mean of all ranks, 2:
    #: smallest, 3: largest.
    average = variable(int, value=DEFAULTS['average'])

    #: NICs that NCCL may use (NCCL_IB_HCA), e.g. '=mlx5_0,mlx5_3'.
    nics = variable(str, value='')

    #: More options for the program; makes another test case.
    options = variable(str, value='')

    programs = fixture(NcclPrograms, scope='environment')

    valid_systems = ['+gpu_nvidia', '+gpu_amd']
    valid_prog_environs = ['+nccl_tests', '+rccl_tests']
    time_limit = '15m'

    #: File of NCCL's log, one per process.
    LOG = 'nccl.%h.%p.log'

    #: Always on the command line, whatever the program's default.
    STATED = ('iterations', 'warmup', 'data_checks', 'datatype',
              'threads_per_rank', 'gpus_per_thread')
    SETTINGS: ClassVar[dict[str, Any]] = {
        'min_size': 8, 'max_size': 1 << 30, 'nics': '', 'options': '',
        **{name: default for name, default in DEFAULTS.items()
           if name not in ('iterations', 'warmup', 'data_checks')}}

    @run_after('init')
    def set_requirements(self) -> None:
        self.require_nodes(self.layout.nodes, only_collective_counts=True)
        # A feature cannot exclude partitions with fewer GPUs.
        self.valid_systems = [
            part.fullname for part in partitions_with_gpus()
            if placement.gpus_per_node(part) >= self.layout.gpus
            and part.fullname in self.valid_systems
            and {*self.gpu_vendor_features()} & set(part.features)]
        if self.program in programs.SINCE:
            self.valid_prog_environs = [
                f'+{tests} +{self.program}'
                for tests in ('nccl_tests', 'rccl_tests')]
        self.tags = {'full', self.family, *self.additional_modes()}
        self.num_gpus_per_node = self.layout.gpus
        self.descr = f'{self.program} on {self.layout.rank_count} GPUs'

    def is_in_mode(self, mode: str, partition: Any, environ: Any) -> bool:
        # Nodes of another partition may have fewer GPUs.
        return super().is_in_mode(mode, partition, environ) and (
            mode not in (SMOKE, VETO)
            or self.layout.gpus == placement.gpus_per_node(partition))

    @run_after('setup')
    def lay_out_ranks(self) -> None:
        self.num_nodes = self.layout.nodes
        self.num_tasks_per_node = self.layout.gpus // self.gpus_per_rank()
        self.num_tasks = self.layout.nodes * self.num_tasks_per_node
        # NCCL moves data to and from the network with its own threads:
        # the cores of a node are divided among its ranks.
        near = self.cpus_near_gpus()
        self.threads = (len(cpus.parse_cpu_list(near[0])) if near else
                        max(1, self.current_partition.processor.num_cores
                            // self.num_tasks_per_node))
        self.num_cpus_per_task = self.threads

    @run_after('setup')
    def set_emulated_flag(self) -> None:
        self.emulated = self.source == 'embedded'

    @run_before('run')
    def set_program_command(self) -> None:
        self.executable = shlex.quote(self.programs.program_path(self.program))
        self.executable_opts = self.arguments()
        self.env_vars.update({
            'NCCL_DEBUG': 'INFO', 'NCCL_DEBUG_SUBSYS': log.SUBSYSTEMS,
            'NCCL_DEBUG_FILE': self.LOG, **self.site_variables(),
            **self.environment_variables()})

    @run_before('sanity')
    def remove_user_variables_from_json(self) -> None:
        """Remove the user's environment variables from the JSON of -J."""
        for path in Path(self.stagedir).glob('*.json*'):
            try:
                path.write_text(parser.strip_environment_from_json(path.read_text()))
            except ValueError:
                path.unlink()

    # Properties that subclasses set --------------------------------------

    def gpu_vendor_features(self) -> tuple[str, ...]:
        """Features of the partitions that the test case can run on."""
        return 'gpu_nvidia', 'gpu_amd'

    def additional_modes(self) -> set[str]:
        """Modes of the test case, besides full."""
        return set()

    def environment_variables(self) -> dict[str, str]:
        """Environment variables that the test case sets."""
        return {'NCCL_IB_HCA': self.nics} if self.nics else {}

    def nccl_choice_and_channel_pattern(self) -> tuple[str, str] | None:
        """Name of the choice made for NCCL, and a pattern of the channels
        that show it; None without a choice."""
        return None

    # Common to all checks ------------------------------------------------

    def site_variables(self) -> dict[str, str]:
        """Environment variables of the site for this program and layout."""
        return {name: value
                for setting in self.current_environ.extras.get('nccl_settings', ())
                if setting.applies_to(self.program, self.layout.nodes,
                                      self.layout.gpus)
                for name, value in setting.env.items()}

    def gpus_per_rank(self) -> int:
        """GPUs of one process; see the base class."""
        threads = self.threads_per_rank or self.layout.gpus
        return threads * (self.gpus_per_thread
                          or self.layout.gpus // threads)

    def option_value(self, name: str) -> Any:
        """Value of a variable on the command line."""
        value = getattr(self, name)
        if name == 'threads_per_rank':
            return value or self.layout.gpus
        if name == 'gpus_per_thread':
            return value or self.layout.gpus // (self.threads_per_rank
                                                 or self.layout.gpus)
        return value

    def changed_options(self) -> dict[str, Any]:
        """Variables of OPTIONS that differ from their defaults."""
        return {name: getattr(self, name) for name in OPTIONS
                if getattr(self, name) != DEFAULTS[name]}

    def arguments(self) -> list[str]:
        """The program's options."""
        words = ['-b', str(self.min_size), '-e', str(self.max_size),
                 '-f', '2']
        changed = self.changed_options()
        for name, (flag, _) in OPTIONS.items():
            if name in self.STATED or name in changed:
                words += [flag, str(self.option_value(name))]
        return [*words, *self.options.split()]

    def always_printed_message_sizes(self) -> list[int]:
        """Sizes whose rows every version prints: divisible by the ranks."""
        kind, ranks = programs.PROGRAMS[self.program], self.layout.rank_count
        if self.program == 'alltoallv_perf' or kind.split and (
                ranks & ranks - 1):
            return []
        minimum = max(self.min_size, 16 * ranks if kind.split else 1)
        return [self.min_size << n for n in range(64)
                if minimum <= self.min_size << n <= self.max_size]

    def required_metrics(self) -> list[str]:
        expected = ('time', 'algbw', 'busbw')[:3 if self.layout.rank_count > 1
                                              else 2]
        return [
            'wrong',
            *(
                metrics.metric_key(name, size)
                for size in self.always_printed_message_sizes()
                for name in expected
            ),
        ]

    def parse_values(self, run: guards.Run) -> dict[str, float]:
        out = self.parse_run_output(run)
        self.check_requested_table(run, out)
        self.version = out.version or self.version
        self.record_gpus(out)
        values = guards.values_by_metric(
            parser.records_of_output(out), f'{run.name}.out'
        )
        maximum = physics.busbw_limit(self.program, self.layout.nodes,
                                      self.layout.gpus, self.partition_bandwidths())
        if maximum:
            for metric, value in list(values.items()):
                name, size = metrics.split_metric_key(metric)
                if name == 'busbw':
                    values[metrics.metric_key('busbw_limit', size)] = maximum[0]
                if re.match('busbw(_in_place)?$', name) and value > maximum[0]:
                    guards.fail_test_case(
                        'limits',
                        f'{metric} = {value:g} GB/s exceeds the physical '
                        f'limit of {maximum[0]:g} GB/s, because {maximum[1]}',
                    )
        return values

    def record_gpus(self, out: parser.Output) -> None:
        """Record the PCI addresses of the GPUs; a stand-in has none."""
        self.gpus = '' if self.emulated else format_gpus(group_by_host(out.addresses))

    def min_repetition_seconds(self, values: dict[str, float]) -> float:
        """Seconds of the timed iterations, each with all calls of its
        group."""
        calls = self.iterations * self.aggregated
        return sum(value * calls / 1e6 for metric, value in values.items()
                   if re.match('time(_in_place)?@', metric))

    def partition_bandwidths(self) -> dict[str, Any]:
        """Bandwidths of the partition's devices; empty for a stand-in."""
        return {} if self.emulated else self.current_partition.extras

    def parse_run_output(self, run: guards.Run) -> parser.Output:
        """The parsed output of a repetition."""
        return guards.parse_output(parser.read_output, run.out, f'{run.name}.out')

    def check_requested_table(self, run: guards.Run, out: parser.Output) -> None:
        """Refuse a table or a transport that was not requested."""
        name = f'{run.name}.out'
        reduces = programs.PROGRAMS[self.program].reduces
        for what, actual, requested in (
                ('program', out.program or self.program, self.program),
                ('ranks', out.ranks, self.layout.rank_count),
                ('nodes', len(out.hosts), self.layout.nodes),
                ('smallest size', out.minimum, self.min_size),
                ('largest size', out.maximum, self.max_size),
                ('data type', ','.join(sorted(out.data_types)), self.datatype),
                ('reduction', ','.join(sorted({
                    row.redop for row in out.rows})) if reduces else '',
                 self.operation if reduces else '')):
            if actual != requested:
                guards.fail_test_case('table', f'{name}: the {what} in the table: '
                                      f'{actual}; requested: {requested}')
        self.check_nccl_transport(run)

    def read_transport_log(self, run: guards.Run) -> str:
        """NCCL's logs, which are in files of their own, and stderr."""
        return '\n'.join(self.read_nccl_logs()) + run.err

    def read_nccl_logs(self) -> list[str]:
        """NCCL's log of each process of each repetition."""
        return [path.read_text(errors='replace') for path in
                sorted(Path(self.stagedir).glob('nccl.*.log'))]

    def check_nccl_transport(self, run: guards.Run) -> None:
        """Refuse a transport in NCCL's log that is not the requested one."""
        logs = self.read_nccl_logs()
        if len(logs) < self.num_tasks * self.repetitions:
            guards.fail_test_case('transport', f'{run.name}: {len(logs)} of '
                                  f'{self.num_tasks * self.repetitions} processes '
                                  'left a log of NCCL (NCCL_DEBUG_FILE): does '
                                  '/etc/nccl.conf set NCCL_DEBUG?')
        nccl = log.summarise_logs(logs)
        choice = self.nccl_choice_and_channel_pattern()
        if choice and not any(re.search(choice[1], channel)
                              for channel in nccl.channels):
            guards.fail_test_case(
                'transport',
                f'{run.name}: {choice[0]} was '
                'requested, but no channel of NCCL uses it; channels '
                f'in the log: {", ".join(nccl.channels) or "none"}',
            )
        for name in ('P2P', 'SHM'):
            if (self.environment_variables().get(f'NCCL_{name}_DISABLE') == '1'
                    and name in nccl.channels):
                guards.fail_test_case(
                    'transport',
                    f'{run.name}: NCCL_{name}_DISABLE is set, but '
                    f'{nccl.channels[name]} channels of NCCL use {name}',
                )
        nics = {device.arch for device in
                self.current_partition.select_devices('nic')}
        if nics & FAST and any('Socket' in channel
                               for channel in nccl.channels):
            guards.fail_test_case('transport', f'{run.name}: NCCL used TCP '
                                  '(NET/Socket), although the node has '
                                  f'{", ".join(sorted(nics))}: is the network plugin '
                                  "in LD_LIBRARY_PATH? (see the environment's "
                                  '`transport`)')

    def expected_busbw_values(self) -> list[tuple[float, str]]:
        """Expected busbw of such hardware, and the source of each value."""
        if self.emulated:
            return []
        arrangement = self.program, self.layout.nodes, self.layout.gpus
        ring = physics.expected_ring_busbw(*arrangement, self.current_partition.extras)
        published = physics.find_published_busbw_row(
            *arrangement, {device.model for device in
                           self.current_partition.devices})
        return [*([(ring, 'that the links and NICs carry')] if ring else []),
                *([(published['busbw'], 'published for such nodes '
                    f"({published['source']}, {published['date']})")]
                  if published else [])]

    @property
    def attached_files(self) -> dict[str, str]:
        """Summary of NCCL's logs."""
        return {'nccl.txt': log.summarise_logs(self.read_nccl_logs()).format_summary()}

    def add_low_values_note(self) -> None:
        """Note a busbw far below the hardware's, variables that NCCL did not
        report, and programs that family.yaml lacks."""
        super().add_low_values_note()
        if self.is_dry_run():
            return
        notes = [self.no_reference]
        sizes = [size for name, size in map(metrics.split_metric_key, self.values)
                 if name == 'busbw' and size and size >= 1 << 28]
        if sizes:
            metric = metrics.metric_key('busbw', max(sizes))
            notes += [f'{metric} = {self.values[metric]:g} GB/s is below half '
                      f'of the {expected:g} GB/s {source}'
                      for expected, source in self.expected_busbw_values()
                      if self.values[metric] < expected / 2]
        requested = {
            **(self.current_environ.extras.get('transport') or {}).get(
                'env', {}), **self.site_variables(), **self.environment_variables()}
        unreported = [
            name
            for name in requested
            if name.startswith('NCCL_')
            and name not in log.summarise_logs(self.read_nccl_logs()).variables
        ]
        if unreported:
            notes.append(f'NCCL did not report {", ".join(unreported)}: is '
                         'the name misspelt, or unknown to this version?')
        if self.program == 'all_reduce_perf' and self.programs.unknown_programs():
            notes.append('family.yaml lacks these programs of the '
                         'installation: ' + self.programs.unknown_programs())
        self.no_reference = '; '.join(filter(None, notes))


@register_if_available
class NcclCollective(NcclBenchmark):
    """A collective over the whole range of sizes, on 1 to all GPUs of a node
    and on all GPUs of several nodes."""

    #: Program of nccl-tests or rccl-tests.
    program = parameter(runnable_programs())

    layout = parameter(runnable_layouts(), fmt=format_layout)

    def additional_modes(self) -> set[str]:
        full = self.layout in runnable_layouts(full=True)
        if not full or self.layout.nodes > 2:
            return set()
        return {'nightly', *{'all_reduce_perf': ('smoke', 'quick'),
                             'sendrecv_perf': ('quick',)}.get(self.program, ()),
                *(['veto'] if self.program == 'all_reduce_perf'
                  and self.layout.nodes == 1 else [])}


@register_if_available
class NcclHypercube(NcclBenchmark):
    """An all-gather along the edges of a hypercube: for 2, 4, 8, ... ranks.

    For other numbers the program prints no row and ends with 0.
    """

    program = parameter(['hypercube_perf'])
    layout = parameter([layout for layout in runnable_layouts()
                        if layout.rank_count > 1
                        and not layout.rank_count & layout.rank_count - 1],
                       fmt=format_layout)


@register_if_available
class NcclLarge(NcclBenchmark):
    """All-reduce of 1 to 16 GiB, the sizes by which operators judge links.

    Three buffers of 16 GiB must fit into the GPU's memory; set max_size if it
    is smaller.
    """

    program = parameter(['all_reduce_perf'])
    layout = parameter(runnable_layouts((1, 2), full=True), fmt=format_layout)
    min_size = 1 << 30
    max_size = 1 << 34
    SETTINGS = {**NcclBenchmark.SETTINGS, 'min_size': 1 << 30, 'max_size': 1 << 34}


def tested_option_settings() -> list[str]:
    """Options and values that NcclOptions tests, as OPTION=VALUE."""
    wide = {'threads_per_rank': ['0'], 'gpus_per_thread': ['0'],
            'parallel_init': ['1']}
    values: dict[str, list[str]] = {
        'datatype': ['int8', 'half', 'bfloat16', 'double'],
        'operation': ['prod', 'min', 'max', 'avg'],
        'blocking': ['1'], 'graph_launches': ['1'], 'aggregated': ['8'],
        'local_register': ['1', '2'], 'average': ['0', '2', '3'], **wide}
    parts = partitions_with_gpus()
    if any('gpu_nvidia' in part.features for part in parts):
        values |= {'cta_policy': ['1'], 'device_implementation': ['1']}
    if any('gpu_amd' in part.features for part in parts):
        values |= {'memory_type': ['fine']}
    return [f'{option}={value}' for option, some_values in values.items()
            for value in some_values]


@register_if_available
class NcclOptions(NcclBenchmark):
    """All-reduce with one option that differs from its default."""

    program = parameter(['all_reduce_perf'])
    layout = parameter(runnable_layouts((1, 2), full=True), fmt=format_layout)

    #: The tested option is a parameter already.
    SETTINGS = {name: NcclBenchmark.SETTINGS[name]
                for name in ('min_size', 'max_size', 'nics', 'options')}

    #: Name of a variable of the checks, and its value.
    setting = parameter(tested_option_settings() if partitions_with_gpus() else [])

    @run_after('init')
    def set_tested_option(self) -> None:
        name, _, value = self.setting.partition('=')
        setattr(self, name, type(DEFAULTS[name])(value))
        if name == 'parallel_init':     # of the threads of one process
            self.threads_per_rank = 0
        if name == 'device_implementation':
            self.local_register = 2     # it needs symmetric memory

    def gpu_vendor_features(self) -> tuple[str, ...]:
        return {'cta_policy': ('gpu_nvidia',),
                'device_implementation': ('gpu_nvidia',),
                'memory_type': ('gpu_amd',)}.get(
                    self.setting.partition('=')[0], super().gpu_vendor_features())


#: Name -> environment variables, pattern that a channel must match, and
#: requirements on hardware and number of nodes.
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
    # As in evaluations of reduction servers: all bytes go through the NICs,
    # also those between GPUs of a node.
    'net=all': ({'NCCL_P2P_DISABLE': '1', 'NCCL_SHM_DISABLE': '1'}, 'NET',
                'nodes'),
    'net=all+sharp': ({'NCCL_P2P_DISABLE': '1', 'NCCL_SHM_DISABLE': '1',
                       'NCCL_COLLNET_ENABLE': '1'}, 'COLLNET',
                      'infiniband nodes'),
}


def supported_nccl_choices() -> list[str]:
    """Choices that the hardware of some partition of this system supports."""
    result = set()
    record_needed_node_count('nccl', 2)
    for part in partitions_with_gpus():
        archs = {device.arch for device in part.devices}
        links = part.extras.get('gpu_bandwidth')
        if archs & {'sm_90', 'sm_100'} and links and (
                links == part.extras.get('gpu_link_bandwidth')):
            result.add('switch')
        result |= archs & FAST
    return [name for name, (_, _, needs) in CHOICES.items()
            if not set(needs.split()) & {'switch', 'infiniband'} - result]


def full_node_layouts() -> list[Layout]:
    """Layouts with all GPUs of one node and of two, if more than one GPU."""
    return [layout for layout in runnable_layouts((1, 2), full=True)
            if layout.gpus > 1]


@register_if_available
class NcclChoice(NcclBenchmark):
    """All-reduce on one node with an algorithm or protocol that environment
    variables choose for NCCL."""

    program = parameter(['all_reduce_perf'])
    layout = parameter([layout for layout in full_node_layouts()
                        if layout.nodes == 1], fmt=format_layout)

    #: Name of a choice in CHOICES.
    choice = parameter([name for name in supported_nccl_choices()
                        if 'nodes' not in CHOICES[name][2].split()]
                       if partitions_with_gpus() else [])

    def gpu_vendor_features(self) -> tuple[str, ...]:
        if re.search('switch|infiniband', CHOICES[self.choice][2]):
            return ('gpu_nvidia',)
        return super().gpu_vendor_features()

    def environment_variables(self) -> dict[str, str]:
        return {**super().environment_variables(), **CHOICES[self.choice][0]}

    def nccl_choice_and_channel_pattern(self) -> tuple[str, str] | None:
        _, pattern, _ = CHOICES[self.choice]
        return (self.choice, pattern) if pattern else None


@register_if_available
class NcclNetwork(NcclChoice):
    """All-reduce on two nodes with a chosen algorithm, protocol, rail, NIC or
    SHARP."""

    layout = parameter([layout for layout in full_node_layouts()
                        if layout.nodes == 2], fmt=format_layout)
    choice = parameter([name for name in supported_nccl_choices()
                        if 'one_node' not in CHOICES[name][2].split()]
                       if partitions_with_gpus() else [])
