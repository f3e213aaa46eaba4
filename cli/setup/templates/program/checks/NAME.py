"""NAME: what one core reads and writes in memory."""
from __future__ import annotations

import reframe as rfm
from reframe.core.builtins import fixture, parameter

from ..core.program import (
    EmbeddedPrograms,
    ProgramBenchmark,
)


class NamePrograms(EmbeddedPrograms):
    """src/*.c, compiled where it runs."""

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
