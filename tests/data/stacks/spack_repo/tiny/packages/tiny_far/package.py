from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class TinyFar(Package):
    """A source that is nowhere."""

    url = "https://localhost:9/tiny-far-1.0.tar.gz"
    version("1.0", sha256="0" * 64)
    license("BSD-3-Clause")

    def install(self, spec, prefix):
        mkdirp(prefix.bin)
