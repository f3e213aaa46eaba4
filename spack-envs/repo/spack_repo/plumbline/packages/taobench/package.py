import os

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Taobench(Package):
    """TaoBench of DCPerf, as an external only.

    DCPerf installs it with `./benchpress_cli.py install
    tao_bench_autoscale` as root: it patches memcached and memtier and
    fetches its own libraries. Register the folder benchmarks/tao_bench of
    that clone; DCPerf has no releases, so the version is the commit's day.
    """

    homepage = "https://github.com/facebookresearch/DCPerf"
    git = "https://github.com/facebookresearch/DCPerf.git"
    has_code = False

    license("MIT")

    # Named for externals; nothing is fetched.
    version("2025-06-11")

    def install(self, spec, prefix):
        raise InstallError(
            "taobench is not built by Spack: install it with DCPerf's own "
            "tool, then name it under packages:taobench:externals in the "
            "site's packages.yaml (spack-envs/repo/README.md)"
        )

    def test_programs(self):
        """server and client are there"""
        for name in (
            'tao_bench_server',
            'tao_bench_client',
            'leader_sizes.json',
        ):
            assert os.path.exists(self.prefix.join(name)), name
