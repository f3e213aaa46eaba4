"""Checks of NCCL and RCCL: collectives of GPUs, on a node and between
nodes."""
from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import reframe as rfm
from reframe.core.builtins import fixture, parameter, run_after, run_before, variable

from config.records import metrics
from config.sessions.modes import SMOKE, VETO

from ..core import guards, placement
from ..core.base import Benchmark, Programs
from ..core.options import option_value, split_options
from ..core.tables import sizes_between
from ..machine import cpus
from ..machine.gpus import format_gpus, group_by_host
from . import json_file, log, parser, physics, programs
from .output import Output
from .programs import Program
from .variants import (
    CHOICES,
    Choice,
    Layout,
    format_layout,
    full_node_layouts,
    partitions_with_gpus,
    runnable_layouts,
    runnable_programs,
    supported_choices,
    supports_choice,
)

#: Networks; if a node has one of them, NCCL must not use TCP.
FAST = {'infiniband', 'slingshot', 'efa'}


class NcclPrograms(Programs):
    """Programs of an environment: nccl-tests, rccl-tests, or (source
    `embedded`) the stand-in, which measures nothing."""

    family = 'nccl'
    sourcesdir = 'src'

    def build_commands(self) -> list[str]:
        return [f'{self.current_environ.cc} -O2 -std=gnu11 -o standin standin.c -lm',
                f'for name in {" ".join(programs.PROGRAMS)}; do '
                'ln -sf standin $name || exit 1; done']

    def find_installed_programs(self, prefix: str) -> dict[str, str]:
        return programs.find_installed_programs(prefix)


class NcclBenchmark(Benchmark, special=True):
    """One program of nccl-tests or rccl-tests, with its whole table as
    records."""

    family = 'nccl'
    SETTINGS: ClassVar[Mapping[str, Any]] = {
        'min_size': 8, 'max_size': 1 << 30, 'options': ''}
    SMALLEST: ClassVar[Mapping[str, float]] = {
        **Benchmark.SMALLEST, 'min_size': 1, 'max_size': 1, 'iterations': 1}

    # Program and settings -------------------------------------------------

    #: Name of the program; its row in programs.py says how it counts bytes.
    program: str

    #: Nodes, and GPUs of each.
    layout: Layout

    #: Smallest and largest size (-b, -e). Unit: bytes. Default: 8 B to 1 GiB; the
    #: GPU must hold three buffers of the largest.
    min_size = variable(int, value=8)
    max_size = variable(int, value=1 << 30)

    #: Timed iterations of a size (-n), and untimed ones before them (-w).
    #: Another value is the same test case.
    iterations = variable(int, value=20)
    warmup = variable(int, value=5)

    #: More options, by the rules of the shell; the program gets them as they are.
    options = variable(str, value='')

    #: Options that decide whether a table is complete -> what to use instead.
    REFUSED: ClassVar[Mapping[str, str]] = {
        '-b --minbytes': 'use the setting min_size',
        '-e --maxbytes': 'use the setting max_size',
        '-i --stepbytes -f --stepfactor':
            'use the settings min_size and max_size, sizes double',
        '-n --iters': 'use the setting iterations',
        '-w --warmup_iters': 'use the setting warmup',
        '-N --run_cycles': 'use the setting repetitions',
        '-c --check': 'data are always checked',
        '-t --nthreads -g --ngpus': 'each rank has one GPU'}

    programs = fixture(NcclPrograms, scope='environment')

    valid_systems = ['+gpu_nvidia', '+gpu_amd']
    valid_prog_environs = ['+nccl_tests', '+rccl_tests']
    time_limit = '15m'

    @property
    def row(self) -> Program:
        """What belongs to the program."""
        return programs.PROGRAMS[self.program]

    # What a check may define ----------------------------------------------

    #: What environment variables choose for NCCL.
    chosen = Choice({})

    def additional_modes(self) -> set[str]:
        """Modes of the test case, besides full."""
        return set()

    # Where it runs --------------------------------------------------------

    @run_after('init')
    def set_requirements(self) -> None:
        """Run where the GPUs and the program are; set tags and description."""
        self.require_nodes(self.layout.nodes, only_collective_counts=True)
        # A feature cannot exclude partitions with fewer GPUs.
        self.valid_systems = [
            part.fullname for part in partitions_with_gpus()
            if placement.gpus_per_node(part) >= self.layout.gpus
            and part.fullname in self.valid_systems
            and {'gpu_nvidia', 'gpu_amd'} & {*part.features}]
        if self.row.is_optional:
            self.valid_prog_environs = [
                f'{tests} +{self.program}' for tests in self.valid_prog_environs]
        self.tags = {'full', self.family, *self.additional_modes()}
        self.num_gpus_per_node = self.layout.gpus
        self.descr = f'{self.program} on {self.layout.rank_count} GPUs'

    def is_in_mode(self, mode: str, partition: Any, environ: Any) -> bool:
        # Nodes of another partition may have fewer GPUs.
        return super().is_in_mode(mode, partition, environ) and (
            mode not in (SMOKE, VETO)
            or self.layout.gpus == placement.gpus_per_node(partition))

    # Launch ---------------------------------------------------------------

    def gpus_per_rank(self) -> int:
        return 1

    @run_after('setup')
    def lay_out_ranks(self) -> None:
        """Set ranks and cores.

        :raises ValueError: settings do not fit together; the message names them
        """
        if self.max_size < self.min_size:
            raise ValueError(f'max_size {self.max_size} is below min_size '
                             f'{self.min_size}')
        self.arguments()                # refuses options before a job is submitted
        self.num_nodes = self.layout.nodes
        self.num_tasks_per_node = self.layout.gpus
        self.num_tasks = self.layout.rank_count
        # NCCL moves data to and from the network with its own threads:
        # the cores of a node are divided among its ranks.
        near = self.cpus_near_gpus()
        self.threads = (len(cpus.parse_cpu_list(near[0])) if near else
                        max(1, self.current_partition.processor.num_cores
                            // self.num_tasks_per_node))
        self.num_cpus_per_task = self.threads

    @run_after('setup')
    def set_emulated_flag(self) -> None:
        """The stand-in measures no GPUs."""
        self.emulated = self.source == 'embedded'

    def arguments(self) -> list[str]:
        """The program's options.

        :raises ValueError: `options` has an option that is reserved
        """
        more = split_options(self.options, 'options', self.REFUSED)
        return ['-b', str(self.min_size), '-e', str(self.max_size), '-f', '2',
                '-n', str(self.iterations), '-w', str(self.warmup), '-c', '1',
                *([] if option_value(more, '-d', '--datatype') else ['-d', 'float']),
                '-t', '1', '-g', '1', *more]

    def environment_variables(self) -> dict[str, str]:
        """Environment variables of the site for this program and layout, and those
        of the test case."""
        site = {name: value
                for setting in self.current_environ.extras.get('nccl_settings', ())
                if setting.applies_to(self.program, self.layout.nodes,
                                      self.layout.gpus)
                for name, value in setting.env.items()}
        return {**self.interface_variable(), **site, **self.chosen.env}

    def interface_variable(self) -> dict[str, str]:
        """The interface over which processes find each other, from the partition's
        `service_interface`, unless `transport` of the environment has one."""
        name = self.current_partition.extras.get('service_interface')
        transport = self.current_environ.extras.get('transport', {}).get('env', {})
        if not name or self.layout.nodes == 1 or 'NCCL_SOCKET_IFNAME' in transport:
            return {}
        return {'NCCL_SOCKET_IFNAME': f'={name}'}       # exactly this name

    @run_before('run')
    def set_program_command(self) -> None:
        """Set command and environment variables, with a log for each process."""
        self.executable = shlex.quote(self.programs.program_path(self.program))
        self.executable_opts = [*map(shlex.quote, self.arguments())]
        # NCCL's log is one file per process.
        self.env_vars.update({
            'NCCL_DEBUG': 'INFO', 'NCCL_DEBUG_SUBSYS': log.SUBSYSTEMS,
            'NCCL_DEBUG_FILE': 'nccl.%h.%p.log', **self.environment_variables()})

    @run_before('sanity')
    def remove_user_variables_from_json(self) -> None:
        """Remove the user's environment variables from the JSON of -J."""
        for path in Path(self.stagedir).glob('*.json*'):
            try:
                path.write_text(json_file.strip_environment_from_json(path.read_text()))
            except ValueError:
                path.unlink()

    # What passes ----------------------------------------------------------

    def parse_values(self, run: guards.Run) -> dict[str, float]:
        out = guards.parse_output(parser.read_output, run.out, f'{run.name}.out')
        self.check_requested_table(run, out)
        self.check_nccl_transport(run)
        values = guards.values_by_metric(parser.records_of_output(out),
                                         f'{run.name}.out')
        self.version = out.version or self.version
        self.record_gpus(out)
        return values | self.busbw_limits(values)

    def check_requested_table(self, run: guards.Run, out: Output) -> None:
        """Refuse a table that was not requested."""
        words = self.arguments()
        rows = [('program', out.program or self.program, self.program),
                ('ranks', out.ranks, self.layout.rank_count),
                ('nodes', len(out.hosts), self.layout.nodes),
                ('smallest size', out.minimum, self.min_size),
                ('largest size', out.maximum, self.max_size),
                ('data type', ','.join(sorted({row.type for row in out.rows})),
                 option_value(words, '-d', '--datatype'))]
        if self.row.reduces:
            rows.append(('reduction', ','.join(sorted({row.redop for row in out.rows})),
                         option_value(words, '-o', '--op', 'sum')))
        for what, actual, requested in rows:
            if actual != requested:
                guards.fail_test_case('table', f'{run.name}.out: the {what} in the '
                                      f'table: {actual}; requested: {requested}')

    def check_nccl_transport(self, run: guards.Run) -> None:
        """Refuse a transport in NCCL's log that is not the requested one."""
        logs, expected = self.read_nccl_logs(), self.num_tasks * self.repetitions
        channels, env = log.count_channels(logs), self.environment_variables()
        disabled = [name for name in ('P2P', 'SHM')
                    if env.get(f'NCCL_{name}_DISABLE') == '1' and name in channels]
        fast = FAST & {nic.arch for nic in self.current_partition.select_devices('nic')}
        for refused, reason in (
                (len(logs) < expected, f'{len(logs)} of {expected} processes left a '
                 'log of NCCL (NCCL_DEBUG_FILE): does /etc/nccl.conf set NCCL_DEBUG?'),
                (self.chosen.channel and not any(
                    re.search(self.chosen.channel, name) for name in channels),
                 f'{getattr(self, "choice", "")} was requested, but no channel of NCCL '
                 f'uses it; channels in the log: {", ".join(channels) or "none"}'),
                *((True, f'NCCL_{name}_DISABLE is set, but {channels[name]} channels '
                   f'of NCCL use {name}') for name in disabled),
                (fast and any('Socket' in name for name in channels),
                 'NCCL used TCP (NET/Socket), although the node has '
                 f'{", ".join(sorted(fast))}: is the network plugin in '
                 "LD_LIBRARY_PATH? (see the environment's `transport`)")):
            if refused:
                guards.fail_test_case('transport', f'{run.name}: {reason}')

    def read_nccl_logs(self) -> list[str]:
        """NCCL's log of each process of each repetition."""
        return [path.read_text(errors='replace') for path in
                sorted(Path(self.stagedir).glob('nccl.*.log'))]

    def read_transport_log(self, run: guards.Run) -> str:
        """NCCL's logs, which are in files of their own, and both outputs."""
        return '\n'.join([*self.read_nccl_logs(), run.out, run.err])

    def busbw_limits(self, values: dict[str, float]) -> dict[str, float]:
        """The limit of busbw of links and NICs, at each size; empty: not known.

        :raises SanityError: a value exceeds it
        """
        maximum = physics.busbw_limit(self.program, self.layout.nodes,
                                      self.layout.gpus, self.partition_bandwidths())
        if not maximum:
            return {}
        for metric, value in values.items():
            if re.match('busbw(_in_place)?@', metric) and value > maximum[0]:
                guards.fail_test_case(
                    'limits', f'{metric} = {value:g} GB/s exceeds the physical limit '
                    f'of {maximum[0]:g} GB/s, because {maximum[1]}')
        return {metrics.metric_key('busbw_limit', size): maximum[0]
                for name, size in map(metrics.split_metric_key, values)
                if name == 'busbw'}

    def partition_bandwidths(self) -> dict[str, Any]:
        """Bandwidths of the partition's devices; empty for a stand-in."""
        return {} if self.emulated else self.current_partition.extras

    def min_repetition_seconds(self, values: dict[str, float]) -> float:
        """Seconds of the timed iterations, each with all calls of its
        group."""
        aggregated = option_value(self.arguments(), '-m', '--agg_iters', '1')
        calls = self.iterations * (int(aggregated) if aggregated.isdecimal() else 1)
        return sum(value * calls / 1e6 for metric, value in values.items()
                   if re.match('time(_in_place)?@', metric))

    # What is measured -----------------------------------------------------

    def required_metrics(self) -> list[str]:
        names = ['time', 'algbw', *['busbw'] * (self.layout.rank_count > 1)]
        return ['wrong', *(metrics.metric_key(name, size)
                           for size in self.always_printed_message_sizes()
                           for name in names)]

    def always_printed_message_sizes(self) -> list[int]:
        """Sizes whose rows every version prints: divisible by the ranks."""
        row, ranks = self.row, self.layout.rank_count
        if row.unequal or row.split and ranks & ranks - 1:
            return []
        minimum = max(self.min_size, 16 * ranks if row.split else 1)
        return [size for size in sizes_between(self.min_size, self.max_size)
                if size >= minimum]

    def record_gpus(self, out: Output) -> None:
        """Record the PCI addresses of the GPUs; a stand-in has none."""
        by_host = {} if self.emulated else group_by_host(out.addresses)
        self.gpus = format_gpus(by_host)
        # NCCL_MULTI_RANK_GPU_ENABLE (NCCL 2.30.3)
        self.inconclusive_reasons += [
            f'{count} ranks of {host} shared the GPU {address}'
            for host, addresses in by_host.items()
            for address, count in Counter(addresses).items() if count > 1]


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
        return {'nightly', *self.row.modes,
                *self.row.one_node_modes * (self.layout.nodes == 1)}


class NcclChosen(NcclBenchmark, special=True):
    """All-reduce with what environment variables choose for NCCL."""

    program = parameter(['all_reduce_perf'])

    #: Name of a choice in variants.CHOICES.
    choice: str

    @property
    def chosen(self) -> Choice:             # type: ignore[override]
        """The environment variables of `choice`, and what shows their effect."""
        return CHOICES[self.choice]

    @run_after('init')
    def leave_out_partitions_without_the_choice(self) -> None:
        """Run only in partitions whose GPUs and network have the choice."""
        self.valid_systems = [part.fullname for part in partitions_with_gpus()
                              if part.fullname in self.valid_systems
                              and supports_choice(part, self.chosen)]

    @run_after('init')
    def require_plugin(self) -> None:
        """Leave environments out whose NCCL has no plugin for SHARP."""
        if self.chosen.needs == 'sharp':
            self.valid_prog_environs = [f'{words} +sharp'
                                        for words in self.valid_prog_environs]


class NcclChoice(NcclChosen):
    """All-reduce on one node with an algorithm or protocol."""

    layout = parameter(full_node_layouts(1), fmt=format_layout)
    choice = parameter(supported_choices(1))


class NcclNetwork(NcclChosen):
    """All-reduce on two nodes with an algorithm, protocol, rail, NIC or SHARP."""

    layout = parameter(full_node_layouts(2), fmt=format_layout)
    choice = parameter(supported_choices(2))


for check in (NcclCollective, NcclChoice, NcclNetwork):
    # ReFrame refuses a parameter without values.
    if check.num_variants:
        rfm.simple_test(check)
