import os

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Optcast(Package):
    """Optcast, reductions of NCCL on servers in the network, as an external
    only.

    Its authors build a reduction server in Rust and a plug-in for NCCL, and
    need their forks of NCCL and nccl-tests. Register a prefix with
    bin/optcast-reduction-server and lib/libnccl-net.so; there are no
    releases, so the version is the commit's month.
    """

    homepage = "https://github.com/osrg/optcast"
    git = "https://github.com/osrg/optcast.git"
    has_code = False

    license("Apache-2.0")

    # Named for externals; nothing is fetched.
    version("2024-04")

    def install(self, spec, prefix):
        raise InstallError(
            "optcast is not built by Spack: build it as its authors say, "
            "then name it under packages:optcast:externals in the site's "
            "packages.yaml (spack-envs/repo/README.md)"
        )

    def test_server(self):
        """the reduction server is there"""
        name = self.prefix.bin.join("optcast-reduction-server")
        assert os.path.exists(name), name
