import os

from spack_repo.builtin.build_systems.autotools import AutotoolsPackage

from spack.package import *


class Optcast(AutotoolsPackage):
    """Optcast: reductions of NCCL on servers in the network. A plugin of NCCL
    in C, and a server in Rust, which also is its own client.

    The project has no releases: the version is the day of the commit. The
    server uses features of Rust that are not stable and change with its
    versions, so the compiler is of the month of the commit, and a variable
    makes it allow them. The project has no lock file for its crates, so a
    patch adds one, with versions for this compiler. Cargo downloads the crates.
    """

    homepage = "https://github.com/osrg/optcast"
    git = "https://github.com/osrg/optcast.git"

    license("BSD-3-Clause")

    version("2024-04-09", commit="355ca0a9dbfd6517aeeb2faa699c11eb50c627fb")

    patch("cargo-lock.patch")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("autoconf", type="build")
    depends_on("automake", type="build")
    depends_on("libtool", type="build")
    # The compiler of the Rust project itself, because building another one
    # takes an hour.
    depends_on("rust-bootstrap@1.78", type="build")
    # bindgen reads a header with libclang.
    depends_on("llvm+clang", type="build")
    depends_on("cuda")
    depends_on("rdma-core")

    configure_directory = "nccl_plugin"

    def configure_args(self):
        return [
            f"--with-cuda={self.spec['cuda'].prefix}",
            f"--with-verbs={self.spec['rdma-core'].prefix}",
        ]

    def setup_build_environment(self, env):
        env.set("LIBCLANG_PATH", self.spec["llvm"].prefix.lib)
        env.set("RUSTC_BOOTSTRAP", "1")
        env.set(
            "RUSTFLAGS",
            f"-L {self.prefix.lib} -C link-arg=-Wl,-rpath,{self.prefix.lib}",
        )

    @run_after("install")
    def install_server(self):
        with working_dir("reduction_server"):
            Executable("cargo")(
                "install",
                "--locked",
                "--path",
                ".",
                "--root",
                self.prefix,
                "-j",
                str(make_jobs),
            )

    @run_after("install")
    def install_run_script(self):
        mkdirp(self.prefix.share.optcast)
        install("test/run.py", self.prefix.share.optcast)

    def test_parts(self):
        """server, plugin and run.py exist, and the server finds the plugin"""
        for name in (
            "bin/optcast-reduction-server",
            "lib/libnccl-net.so",
            "share/optcast/run.py",
        ):
            assert os.path.exists(self.prefix.join(name)), name
        server = which(
            self.prefix.bin.join("optcast-reduction-server"), required=True
        )
        check_outputs(["--reduce-jobs"], server("--help", output=str.split))
