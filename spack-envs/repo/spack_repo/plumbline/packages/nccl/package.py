import os

from spack_repo.builtin.packages.nccl.package import Nccl as BuiltinNccl

from spack.package import *


class Nccl(BuiltinNccl):
    """NCCL, also as Optcast evaluates it: 2.19.4 with the variable
    NCCL_COLLNET_CHUNKSIZE, which sets the size of a chunk."""

    version(
        "2.19.4-optcast",
        git="https://github.com/osrg/nccl.git",
        commit="7e0324b3385ed6b680aeb562bc0dd49d9fd01008",
    )

    def test_library(self):
        """the library is there"""
        assert os.path.exists(self.prefix.lib.join("libnccl.so"))
