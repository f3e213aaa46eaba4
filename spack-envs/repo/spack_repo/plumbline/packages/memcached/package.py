from spack_repo.builtin.packages.memcached.package import (
    Memcached as BuiltinMemcached,
)

from spack.package import *


class Memcached(BuiltinMemcached):
    """Memcached that brings its libevent along.

    Spack's recipe needs libevent for the build only. Installed from a build
    cache, the server would take the system's libevent, or none.
    """

    version(
        "1.6.18",
        sha256="35872bd25f8d29d7cc2072d23e74344530891bfd0aa4f4f64184a8ae7291164b",
        url="https://deb.debian.org/debian/pool/main/m/memcached/"
        "memcached_1.6.18.orig.tar.xz",
    )

    depends_on("libevent", type=("build", "link"))

    def test_version(self):
        """the server says its version"""
        server = which(self.prefix.bin.memcached, required=True)
        output = server("--version", output=str.split, error=str.split)
        check_outputs([str(self.version)], output)

    def test_libevent(self):
        """the server runs with the libevent that it was built with"""
        tool = which("ldd", required=True)
        output = tool(self.prefix.bin.memcached, output=str.split)
        check_outputs([str(self.spec["libevent"].prefix)], output)
