import re

from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Keydb(MakefilePackage):
    """KeyDB, a fork of Redis with several threads: server, command line
    client and load generator.

    Its last release is of 2023. It is built without its storage on flash
    (RocksDB), so the submodules are not needed, and without its message of
    the day, for which the client would call a web server.
    """

    homepage = "https://docs.keydb.dev"
    git = "https://github.com/Snapchat/KeyDB.git"

    license("BSD-3-Clause")

    executables = ["^keydb-server$"]

    # The commit of the tag v6.3.4.
    version("6.3.4", commit="7e7e5e57d25fe246a8201f0acf5e7363c0bf1e14")

    variant("tls", default=False, description="Encrypted connections")
    variant(
        "malloc",
        default="jemalloc",
        values=("jemalloc", "libc"),
        multi=False,
        description="The allocator: the bundled jemalloc, or the system's",
    )

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("gmake", type="build")
    depends_on("util-linux-uuid")
    depends_on("openssl@1.1.1:", when="+tls")
    # The Makefile finds OpenSSL with it.
    depends_on("pkgconfig", type="build", when="+tls")

    @classmethod
    def determine_version(cls, exe):
        output = Executable(exe)("--version", output=str, error=str)
        match = re.search(r"v=(\S+)", output)
        return match.group(1) if match else None

    @property
    def build_targets(self):
        tls = "yes" if self.spec.satisfies("+tls") else "no"
        return [
            f"BUILD_TLS={tls}",
            "USE_SYSTEMD=no",
            "NO_MOTD=yes",
            f"MALLOC={self.spec.variants['malloc'].value}",
            f"PREFIX={self.prefix}",
        ]

    @property
    def install_targets(self):
        # The options once more: other ones would build it anew.
        return [*self.build_targets, "install"]

    def test_version(self):
        """the server says its version"""
        server = which(self.prefix.bin.join("keydb-server"), required=True)
        output = server("--version", output=str.split, error=str.split)
        check_outputs([str(self.version)], output)

    def test_allocator(self):
        """the server has the allocator that was asked for"""
        server = which(self.prefix.bin.join("keydb-server"), required=True)
        output = server("--version", output=str.split, error=str.split)
        check_outputs([f"malloc={self.spec.variants['malloc'].value}"], output)
