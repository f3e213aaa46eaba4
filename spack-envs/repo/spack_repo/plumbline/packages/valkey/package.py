from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Valkey(MakefilePackage):
    """Valkey, the in-memory store that went on from Redis 7.2 under the BSD
    licence: server, command line client and load generator."""

    homepage = "https://valkey.io"
    git = "https://github.com/valkey-io/valkey.git"

    license("BSD-3-Clause")

    # Debian's archive is the release without two files for macOS, whose
    # licence Debian does not take.
    version(
        "8.1.1",
        sha256="d9bbd82eecb82f359e649a0007ad3dc1b47cc15afa626348ca86b73c4ae2c7ee",
        url="https://deb.debian.org/debian/pool/main/v/valkey/"
        "valkey_8.1.1+dfsg1.orig.tar.xz",
    )

    variant("tls", default=False, description="Encrypted connections")
    variant(
        "malloc",
        default="jemalloc",
        values=("jemalloc", "libc"),
        multi=False,
        description="The allocator: the bundled jemalloc, or the system's",
    )

    depends_on("c", type="build")
    # The server parses numbers with a C++ library.
    depends_on("cxx", type="build")
    depends_on("gmake", type="build")
    depends_on("openssl@1.1.1:", when="+tls")

    @property
    def build_targets(self):
        tls = "yes" if self.spec.satisfies("+tls") else "no"
        return [
            f"BUILD_TLS={tls}",
            "USE_SYSTEMD=no",
            f"MALLOC={self.spec.variants['malloc'].value}",
            f"PREFIX={self.prefix}",
        ]

    @property
    def install_targets(self):
        # The options once more: other ones would build it anew.
        return [*self.build_targets, "install"]

    def test_version(self):
        """server, client and load generator say their version"""
        for name in ("valkey-server", "valkey-cli", "valkey-benchmark"):
            with test_part(self, f"test_version_{name}", purpose=name):
                program = which(self.prefix.bin.join(name), required=True)
                output = program(
                    '--version', output=str.split, error=str.split
                )
                check_outputs([str(self.version)], output)

    def test_allocator(self):
        """the server has the allocator that was asked for"""
        server = which(self.prefix.bin.join("valkey-server"), required=True)
        output = server("--version", output=str.split, error=str.split)
        check_outputs([f"malloc={self.spec.variants['malloc'].value}"], output)
