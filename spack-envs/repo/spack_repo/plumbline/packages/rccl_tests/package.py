import os

from spack_repo.builtin.packages.rccl_tests.package import (
    RcclTests as BuiltinRcclTests,
)

from spack.package import *


class RcclTests(BuiltinRcclTests):
    """rccl-tests at a commit: the project has no releases, and a branch is
    another program every month."""

    version("2024-09-10", commit="ae3e6357cb3514d5649b3b5dfaa80cb2d2af3532")

    def test_programs(self):
        """each collective has its program"""
        for name in ("all_reduce_perf", "all_gather_perf", "sendrecv_perf"):
            assert os.path.exists(self.prefix.bin.join(name)), name
