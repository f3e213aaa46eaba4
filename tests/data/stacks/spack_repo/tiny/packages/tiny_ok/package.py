from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class TinyOk(Package):
    """One file."""

    has_code = False
    version("2.0")
    version("1.0")
    variant("tls", default=False, description="A variant that does nothing")
    license("BSD-3-Clause")

    def install(self, spec, prefix):
        mkdirp(prefix.bin)
        touch(prefix.bin.join(spec.name))
