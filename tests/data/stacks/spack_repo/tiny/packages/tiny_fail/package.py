from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class TinyFail(Package):
    """A build that fails."""

    has_code = False
    version("1.0")
    license("BSD-3-Clause")

    def install(self, spec, prefix):
        Executable("/bin/ls")("/no/such/file")
