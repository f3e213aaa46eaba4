"""NAME: the memory bandwidth of one core."""
from __future__ import annotations

import reframe as rfm
from reframe.core.builtins import fixture, parameter

from ..core.program import (
    EmbeddedPrograms,
    ProgramBenchmark,
)


class NamePrograms(EmbeddedPrograms):
    """The programs of src/*.c, compiled on the machine that runs them."""

    family = 'NAME'


@rfm.simple_test
class Name(ProgramBenchmark):
    """Copies a buffer within memory."""

    family = program = 'NAME'
    programs = fixture(NamePrograms, scope='environment')

    #: Size of the buffer. Unit: MiB.
    size = parameter([16, 64])

    def arguments(self) -> list[str]:
        return [str(self.size)]
