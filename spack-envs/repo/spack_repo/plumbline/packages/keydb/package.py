import re

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Keydb(Package):
    """KeyDB, a fork of Redis with several threads, as an external only.

    Its last release is of 2023. Its authors build it with `make` in a clone
    with submodules; `make install PREFIX=...` leaves bin/keydb-server.
    Register that prefix.
    """

    homepage = "https://docs.keydb.dev"
    git = "https://github.com/Snapchat/KeyDB.git"
    has_code = False

    license("BSD-3-Clause")

    executables = ["^keydb-server$"]

    # Named for externals; nothing is fetched.
    version("6.3.4")

    @classmethod
    def determine_version(cls, exe):
        output = Executable(exe)("--version", output=str, error=str)
        match = re.search(r"v=(\S+)", output)
        return match.group(1) if match else None

    def install(self, spec, prefix):
        raise InstallError(
            "keydb is not built by Spack: build it as its authors say, then "
            "name it under packages:keydb:externals in the site's "
            "packages.yaml (spack-envs/repo/README.md)"
        )

    def test_version(self):
        """the server says its version"""
        server = which(self.prefix.bin.join("keydb-server"), required=True)
        output = server("--version", output=str.split, error=str.split)
        check_outputs([str(self.version)], output)
