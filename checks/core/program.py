"""Base classes of a benchmark with one embedded program.

The program is compiled from the family's `src/` and runs as one process. The
family's parser (`parsers` in its family.yaml) reads its output.
`./plumb dev benchmark new` creates such a family.
"""
from __future__ import annotations

import shlex

from reframe.core.builtins import run_after, run_before

from config.families import families

from . import guards
from .base import Benchmark, Programs
from .parsers import load_parser_module


class EmbeddedPrograms(Programs, special=True):
    """The program, compiled from all of `src/`; it has the family's name."""

    sourcesdir = 'src'

    #: Options of the compiler.
    cflags = '-O2 -std=gnu11 -pthread'

    def build_commands(self) -> list[str]:
        """The command that compiles all C files of `src/` into one program."""
        return [f'{self.current_environ.cc} {self.cflags} -o {self.family} '
                '*.c -lm']


class ProgramBenchmark(Benchmark, special=True):
    """One process under the partition's launcher, with `threads` cores."""

    #: Modes of the test cases, besides full.
    modes: tuple[str, ...] = ('smoke', 'quick', 'nightly')

    valid_systems = ['*']
    #: Every environment in which the launcher can start it.
    valid_prog_environs = ['+mpi']

    def arguments(self) -> list[str]:
        """Words of the program's command line."""
        return []

    @run_after('init')
    def add_mode_tags(self) -> None:
        """Tag the test case with its family, mode full, and `modes`."""
        self.tags = {'full', self.family, *self.modes}

    @run_after('setup')
    def lay_out_ranks(self) -> None:
        """Start one rank, with a CPU for each of its threads."""
        self.num_tasks = self.num_tasks_per_node = 1
        self.num_cpus_per_task = self.threads

    @run_before('run')
    def set_program_command(self) -> None:
        """Run the family's built program with the words of `arguments`."""
        self.executable = shlex.quote(
            f'{self.programs.stagedir}/{self.family}')
        self.executable_opts = [*map(shlex.quote, self.arguments())]

    def required_metrics(self) -> list[str]:
        """The family's own metrics. A check with a curve overrides this."""
        return [*families()[self.family].metrics]

    def parse_values(self, run: guards.Run) -> dict[str, float]:
        """Values of the output, read with the parser of the family."""
        records = guards.parse_output(load_parser_module(self.family).parse,
                                      run.out, f'{run.name}.out')
        self.version = records[0].version
        return guards.values_by_metric(records, f'{run.name}.out')
