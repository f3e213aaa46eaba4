import os
import time

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class TinySlow(Package):
    """A build that takes as long as $TINY_SECONDS says."""

    has_code = False
    version("1.0")
    depends_on("tiny-ok", type="run")
    license("BSD-3-Clause")

    def setup_build_environment(self, env):
        env.set("TINY_SECONDS", os.environ.get("TINY_SECONDS", "0"))

    def install(self, spec, prefix):
        mkdirp(prefix.bin)
        time.sleep(float(os.environ.get("TINY_SECONDS", "0")))
        touch(prefix.bin.join(spec.name))
