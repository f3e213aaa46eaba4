import os

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Optcast(Package):
    """Optcast, reductions of NCCL on servers in the network, as an external
    only.

    It has two parts: a reduction server (`cargo build -r` in
    reduction_server, with a nightly Rust) and a plug-in for NCCL
    (`autogen.sh`, `configure --with-cuda=...`, `make install` in
    nccl_plugin). Register a prefix with bin/optcast-reduction-server and
    lib/libnccl-net.so. There are no releases: the version is the commit's
    day.
    """

    homepage = "https://github.com/osrg/optcast"
    git = "https://github.com/osrg/optcast.git"
    has_code = False

    license("BSD-3-Clause")

    # Named for externals; nothing is fetched.
    version("2024-04-09")

    def install(self, spec, prefix):
        raise InstallError(
            "optcast is not built by Spack: build it as its authors say, "
            "then name it under packages:optcast:externals in the site's "
            "packages.yaml (spack-envs/repo/README.md)"
        )

    def test_parts(self):
        """server and plug-in are there"""
        for name in ("bin/optcast-reduction-server", "lib/libnccl-net.so"):
            assert os.path.exists(self.prefix.join(name)), name
