"""Checks with the OSU micro-benchmarks: MPI between two and many ranks."""
from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import reframe as rfm
import reframe.core.runtime as rt
import reframe.utility.typecheck as typ
from reframe.core.builtins import fixture, parameter, run_after, run_before, variable

from config.records import metrics

from ..core import guards, placement
from ..core.base import Benchmark, Programs
from ..core.options import option_value, split_options
from ..core.parsers import Record
from ..core.tables import sizes_between
from ..nccl import programs as gpu_collectives
from . import programs, sockets
from .parser import parse, parse_setup
from .programs import Program
from .variants import (
    available_buffer_memory_kinds,
    available_pairs,
    available_placements,
    format_layout,
    pair_layouts,
    runnable_layouts,
    runnable_programs,
)

#: File of a build: words of the help of its programs.
WORDS = 'help_words.txt'


class OsuPrograms(Programs):
    """Programs of an environment: installed, or the embedded ones, built in
    the stage directory."""

    family = 'osu'
    sourcesdir = 'src'

    def build_commands(self) -> list[str]:
        return [f'{self.current_environ.cc} -O2 -std=gnu11 -pthread '
                '-o osu_embedded *.c -lm',
                f'for name in {" ".join(programs.EMBEDDED)}; do '
                'ln -sf osu_embedded $name || exit 1; done']

    def tool_build_commands(self) -> list[str]:
        # By the words of its help, because some need a launcher to print it.
        origin = self.program_origin()
        installed = (programs.find_installed_programs(origin['prefix'])
                     if 'prefix' in origin else {name: name for name in programs.OMB7})
        paths = [path for name, path in installed.items()
                 if name in self.current_environ.features]
        if origin['source'] == 'embedded' or not paths:
            return []
        return [f'for program in {shlex.join(paths)}; do '
                'path=$(command -v "$program") || continue; '
                'for word in validation mpi_int; do '
                'if grep -aq "$word" "$path"; then echo "${program##*/} $word"; fi; '
                f'done; done >{WORDS}']

    def help_words(self, program: str) -> set[str]:
        """Those words of a program's help that decide whether it can validate."""
        if self.program_origin()['source'] == 'embedded':
            return {'validation'}
        if self.is_dry_run():           # nothing is built
            return {'validation', 'mpi_int'}
        lines = Path(self.stagedir, WORDS).read_text(errors='replace').splitlines()
        return {line.split()[-1] for line in lines if line.split()[0] == program}

    def find_installed_programs(self, prefix: str) -> dict[str, str]:
        return programs.find_installed_programs(prefix)


class OsuBenchmark(Benchmark, special=True):
    """One program of OMB or an embedded one, with its whole table as
    records."""

    family = 'osu'
    SETTINGS = {'options': '', 'min_size': 0, 'max_size': 0, 'iterations': 0,
                'warmup': -1, 'full_output': False}

    # Program and settings -------------------------------------------------

    #: Name of the program; its row in programs.py says what it prints.
    program: str

    #: Memory of the messages; a parameter of checks that have a choice.
    buffers: str

    #: More options, by the rules of the shell; the program gets them as they are.
    options = variable(str, value='')

    #: Smallest and largest message (-m); sizes double. Unit: bytes. 0: the program's
    #: default.
    min_size = variable(int, value=0)
    max_size = variable(int, value=0)

    #: Timed iterations of each size (-i), and untimed ones before them (-x).
    #: Defaults: 0 and -1, the program's own.
    iterations = variable(int, value=0)
    warmup = variable(int, value=-1)

    #: Print more columns, such as the minimum and maximum over ranks (-f).
    full_output = variable(typ.Bool, value=False)

    #: Options that decide whether a table is complete -> what to use instead.
    REFUSED: ClassVar[Mapping[str, str]] = {
        '-m --message-size': 'use the settings min_size and max_size',
        '-i --iterations': 'use the setting iterations',
        '-x --warmup': 'use the setting warmup',
        '-c --validation': 'use the setting validates',
        '-f --full': 'use the setting full_output',
        '-d --accelerator': 'use the parameter buffers'}
    #: Options of OMB without a value: varied windows, sessions, in place, help.
    FLAGS = 'VIlvh'

    programs = fixture(OsuPrograms, scope='environment')

    valid_systems = ['*']
    valid_prog_environs = ['+osu']

    #: Size to which validation runs. Unit: bytes.
    VALIDATED = 65536

    @property
    def row(self) -> Program:
        """What belongs to the program."""
        row = programs.find_program(self.program)
        assert row is not None
        return row

    @property
    def memory(self) -> str:
        """Memory of the messages: host, cuda, rocm."""
        return getattr(self, 'buffers', 'host')

    # What each check defines ----------------------------------------------

    #: Nodes, and ranks per node; or where a pair of ranks runs.
    layout: tuple[int, str]
    placement: str

    def nodes_needed(self) -> int:
        """Nodes of the test case."""
        if hasattr(self, 'layout'):
            return self.layout[0]
        return 2 if self.placement == 'inter_node' else 1

    def ranks_per_node(self) -> int:
        """Ranks of a node."""
        return 2 // self.nodes_needed()

    def own_arguments(self) -> list[str]:
        """Options for the parameters of the check."""
        return []

    def is_in_default_modes(self) -> bool:
        """Whether the test case belongs to the modes nightly and quick."""
        return True

    def is_in_short_modes(self) -> bool:
        """Whether the test case belongs to the short modes of its program."""
        return True

    # Where it runs --------------------------------------------------------

    @run_after('init')
    def set_requirements(self) -> None:
        """Run where the nodes, GPUs and program are; set tags and description."""
        gpu = {'host': (), 'cuda': ('+gpu_nvidia',), 'rocm': ('+gpu_amd',)}[self.memory]
        self.require_nodes(self.nodes_needed(), *gpu,
                           only_collective_counts=hasattr(self, 'layout'))
        self.valid_prog_environs = [
            f'+{self.program}' + f' +mpi_{self.memory}' * bool(gpu)]
        self.tags = {'full', self.family}
        if self.is_in_default_modes():
            self.tags |= {'nightly'}
            if self.nodes_needed() <= 2 and not gpu:
                self.tags |= {'quick', *self.row.short_modes * self.is_in_short_modes()}
        self.descr = f'{self.program} with MPI'

    def is_first_in_veto(self, partition: Any) -> bool:
        # On GPUs it is all_reduce_perf.
        return not gpu_collectives.are_offered(partition)

    # Launch ---------------------------------------------------------------

    @run_after('setup')
    def lay_out_ranks(self) -> None:
        self.num_nodes = self.nodes_needed()
        self.num_tasks_per_node = self.ranks_per_node()
        self.num_tasks = self.num_nodes * self.num_tasks_per_node
        if self.memory != 'host':
            self.num_gpus_per_node = self.num_tasks_per_node
            self.env_vars['PLUMBLINE_GPUS'] = self.memory
        # OMB's default is one sender and two receivers. With more threads than
        # cores osu_latency_mt measures the kernel's scheduler: two receivers
        # that spun on one core took 0.18 to 1445 us for the same message.
        if self.row.group == 'threaded':
            fits = 2 * self.num_tasks_per_node <= self.cores_per_node()
            self.threads = 2 if fits else 1
        self.num_cpus_per_task = self.threads
        self.arguments()                # refuses options before a job is submitted

    def cores_per_node(self) -> int:
        """Cores of a node of the partition."""
        return placement.cores_per_node(self.current_partition)

    def gpus_per_rank(self) -> int:
        return int(self.memory != 'host')

    def ranks_per_full_node(self) -> int:
        """Ranks of a full node: its cores, or its GPUs."""
        if self.memory == 'host':
            return self.cores_per_node()
        return placement.gpus_per_node(self.current_partition) or 1

    def arguments(self) -> list[str]:
        """The program's options.

        :raises ValueError: `options` has an option that is reserved
        """
        args = [*self.own_arguments(),
                *split_options(self.options, 'options',
                               {**self.REFUSED, **dict(self.row.reserved)},
                               self.FLAGS)]
        if self.iterations:
            args += ['-i', str(self.iterations)]
        if self.warmup >= 0:
            args += ['-x', str(self.warmup)]
        if self.row.largest:
            first = f'{self.min_size}:' if self.min_size else ''
            args += ['-m', f'{first}{self.largest_message()}']
        if self.full_output:
            args.append('-f')
        if self.memory != 'host':
            args += ['-d', self.memory]
            if self.row.group in ('pt2pt', 'threaded'):
                # -d names the kind of device; without D D both ends would use
                # the host.
                args += ['D', 'D']
        return args

    def largest_message(self) -> int:
        """Largest message that is requested, in bytes; 0: the table has no sizes.

        By default it is the largest one that OMB's limit of memory permits, because
        some versions do not heed this limit.
        """
        sizes = programs.last_message_sizes(
            self.program, self.nodes_needed() * self.ranks_per_node(), self.max_size)
        return self.max_size or sizes[0] if sizes else 0

    @run_before('run')
    def set_program_command(self) -> None:
        """Set command, accepted exit codes and validation."""
        self.executable = shlex.quote(self.programs.program_path(self.program))
        self.executable_opts = [*map(shlex.quote, self.arguments())]
        if self.source != 'embedded':
            # The parser checks that the table is complete.
            self.accept = list(self.row.exit_codes)
        self.set_validation()

    def set_validation(self) -> None:
        """Validate the data in one more repetition, if the program can."""
        if not self.row.largest:
            return                      # it sends no data
        if not self.row.validates or self.memory != 'host':
            self.unchecked.append(
                'validation: the data in the memory of GPUs' if self.row.validates else
                'validation: the program has no option -c')
            return
        words = self.programs.help_words(self.program)
        if not self.validates:
            self.unchecked.append('validation: switched off with -S validates=0')
        elif 'validation' not in words:
            self.unchecked.append(f'validation: this {self.program} has no option -c')
        else:
            kind = self.row.validation_type
            self.validation = f'-c -i 10 -x 2 -m 1:{self.VALIDATED}' + (
                f' -T {kind}' if kind and kind in words else '')

    # What passes ----------------------------------------------------------

    def parse_values(self, run: guards.Run) -> dict[str, float]:
        records = self.parse_table(run.out, f'{run.name}.out')
        self.check_requested_table(run, records)
        if self.validation:
            self.refuse_failed_validation()
        self.version = records[0].version
        return guards.values_by_metric(records, f'{run.name}.out')

    def parse_table(self, text: str, name: str) -> tuple[Record, ...]:
        """Records of an output; refuse the output of another program."""
        records = guards.parse_output(parse, text, name)
        if records[0].program != self.program:
            guards.fail_test_case('table', f'{name}: this is the output of '
                                  f'{records[0].program}, not of {self.program}')
        return records

    def memory_limit(self) -> int:
        """OMB's limit of memory per process (-M), in bytes."""
        given = option_value(self.arguments(), '-M', '--mem-limit')
        return int(given) if given.isdecimal() else programs.MEMORY_LIMIT

    def check_requested_table(self, run: guards.Run, records: tuple[Record, ...]
                              ) -> None:
        """Refuse a table that ends earlier or later than requested, and an output of
        other ranks than requested."""
        if missing := programs.missing_part(
                records, self.num_tasks, self.largest_message(), self.memory_limit()):
            guard, line, reason = missing
            guards.fail_test_case(guard, f'{run.name}.out:{line}: {reason}')

    def refuse_failed_validation(self) -> None:
        """Refuse a failed validation.

        :raises SanityError: the validating run failed, or has no column Validation
        """
        code, out = (Path(f'validate.{end}').read_text(errors='replace')
                     for end in ('rc', 'out'))
        if code.strip() not in map(str, self.accept):
            guards.fail_test_case('validation', 'validate.out: the validation ended '
                                  f'with exit code {code.strip()}: data arrived wrong, '
                                  'or the program died')
        self.parse_table(out, 'validate.out')
        if ' Pass' not in out:
            guards.fail_test_case('validation', 'validate.out: the table has no '
                                  'column Validation')

    def min_repetition_seconds(self, values: dict[str, float]) -> float:
        window = option_value(self.arguments(), '-W', '--window-size')
        return programs.minimum_seconds(
            self.row, self.version, values, self.num_tasks, self.threads,
            self.iterations, int(window) if window.isdecimal() else programs.WINDOW)

    # What is measured -----------------------------------------------------

    def required_metrics(self) -> list[str]:
        names = (*self.row.metrics, *self.row.full_metrics * self.full_output)
        first = self.min_size or 1
        permitted = programs.last_message_sizes(
            self.program, self.num_tasks, self.largest_message(), first,
            self.memory_limit())
        if permitted is None:
            # With one row of sizes, its size depends on the version.
            return [] if self.row.has_sizes else list(names)
        # Below 8 B it depends on the version which sizes the table has.
        return [metrics.metric_key(name, size) for name in names
                for size in sizes_between(first, permitted[0]) if size >= 8]


class OsuPt2pt(OsuBenchmark):
    """Latency and bandwidth between two ranks, over the range of sizes."""

    #: Name of the program in OMB.
    program = parameter(runnable_programs(
        programs.programs_of_group('pt2pt', 'threaded')))

    #: intra_node: both ranks on one node, and if it has several sockets, on one
    #: of them; inter_socket: on two sockets of a node; inter_node: on two nodes.
    placement = parameter(available_pairs())

    #: Memory of the messages.
    buffers = parameter(available_buffer_memory_kinds())

    @run_after('init')
    def require_sockets(self) -> None:
        """Run pairs on two sockets only in partitions whose nodes have them."""
        if self.placement == 'inter_socket':
            # Where ranks have GPUs, the GPUs decide on the socket.
            names = [part.fullname for part in rt.runtime().system.partitions
                     if sockets.has_pairs_of_sockets(part) and self.memory == 'host']
            self.valid_systems = [name for name in self.valid_systems if name in names]

    def is_in_short_modes(self) -> bool:
        return self.placement != 'inter_socket'

    @property
    def link_metric(self) -> str:
        """Metric that describes the link between the two nodes, for `plumb
        locate`; '' if no single metric does."""
        link = self.placement == 'inter_node' and self.memory == 'host'
        return self.row.link_metric if link else ''

    def partition_launcher_extra_name(self) -> str:
        extra = super().partition_launcher_extra_name()
        return ('launcher_socket_pin' if self.placement == 'inter_socket'
                and extra == 'launcher_pin' else extra)

    def own_arguments(self) -> list[str]:
        if self.row.group != 'threaded':
            return []
        return ['-t', f'1:{self.threads if self.row.starts_threads else 1}']

    def record_and_check_cpu_binding(self, run: guards.Run) -> None:
        super().record_and_check_cpu_binding(run)
        if (self.placement != 'inter_node' and self.memory == 'host'
                and sockets.has_pairs_of_sockets(self.current_partition)
                and self.partition_launcher_extra_name() in placement.PINNING):
            sockets.check_sockets_of_pair(run, 1 + (self.placement == 'inter_socket'))

    def parse_values(self, run: guards.Run) -> dict[str, float]:
        threads = {name: float(value) for name, value in parse_setup(run.out).items()
                   if name.endswith('_threads')}
        receivers = threads.get('receiver_threads', self.threads)
        if receivers != self.threads:
            guards.fail_test_case('table', f'{run.name}.out: {receivers:g} receiver '
                                  f'threads instead of {self.threads}: does this '
                                  'version of OMB ignore the option -t?')
        return super().parse_values(run) | threads


class OsuMulti(OsuBenchmark):
    """Pairs of ranks at once: latency, bandwidth and message rate."""

    program = parameter(runnable_programs(programs.programs_of_group('multi')))

    #: Nodes, and ranks per node. Each pair has a rank in the first half of the
    #: nodes and one in the second half; on one node "one" is a single pair.
    layout = parameter(pair_layouts(), fmt=format_layout)

    def ranks_per_node(self) -> int:
        nodes, kind = self.layout
        return 1 + (nodes == 1) if kind == 'one' else max(
            2, self.cores_per_node() // 2 * 2)

    def is_in_default_modes(self) -> bool:
        return self.layout[1] == 'full'


class OsuOneSided(OsuBenchmark, special=True):
    """One-sided operations: one rank works, the other's memory answers."""

    #: How the window is made (-w).
    window = parameter(['allocate', 'create', 'dynamic'])

    #: How the two ranks synchronise (-s).
    synchronisation: str

    placement = parameter(available_placements())

    def own_arguments(self) -> list[str]:
        return ['-w', self.window, '-s', self.synchronisation]


class OsuRma(OsuOneSided):
    """Put, get, accumulate and atomics over windows."""

    program = parameter(runnable_programs(programs.programs_of_group('one_sided')))
    synchronisation = parameter(['flush', 'flush_local', 'lock', 'lock_all',
                                 'pscw', 'fence'])

    def is_in_default_modes(self) -> bool:
        return (self.window, self.synchronisation) == ('allocate', 'flush')


class OsuPutBibw(OsuOneSided):
    """Both ranks put at once, with active synchronisation only."""

    program = parameter(runnable_programs(
        programs.programs_of_group('one_sided_active')))
    synchronisation = parameter(['pscw', 'fence'])

    def is_in_default_modes(self) -> bool:
        return (self.window, self.synchronisation) == ('allocate', 'pscw')


class OsuCollective(OsuBenchmark):
    """Each installed collective, over all ranks."""

    program = parameter(runnable_programs())

    #: Nodes, and ranks per node.
    layout = parameter(runnable_layouts(), fmt=format_layout)

    buffers = parameter(available_buffer_memory_kinds())

    def ranks_per_node(self) -> int:
        nodes, kind = self.layout
        each = 1 if kind == 'one' else max(2 // nodes, self.ranks_per_full_node())
        return max(each, -(-self.row.min_ranks // nodes)
                   ) if self.row.min_ranks > 2 else each

    def is_in_short_modes(self) -> bool:
        return self.layout == (1, 'full')


class OsuStartup(OsuBenchmark):
    """Startup time of a parallel program."""

    SETTINGS = {'options': ''}
    INTERNAL: ClassVar[frozenset[str]] = frozenset({
        'min_size', 'max_size', 'iterations', 'warmup', 'full_output'})

    program = parameter(runnable_programs(programs.programs_of_group('startup')))
    layout = parameter(runnable_layouts(), fmt=format_layout)

    ranks_per_node = OsuCollective.ranks_per_node

    def parse_values(self, run: guards.Run) -> dict[str, float]:
        # A program that does nothing has the time of its job.
        own = {self.row.job_metric: run.wall} if self.row.job_metric else {}
        return super().parse_values(run) | own


for check in (OsuPt2pt, OsuMulti, OsuRma, OsuPutBibw, OsuCollective, OsuStartup):
    # ReFrame refuses a parameter without values.
    if check.num_variants:
        rfm.simple_test(check)
