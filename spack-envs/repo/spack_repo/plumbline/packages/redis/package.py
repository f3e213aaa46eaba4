from spack_repo.builtin.packages.redis.package import Redis as BuiltinRedis

from spack.package import *


class Redis(BuiltinRedis):
    """Redis 7.0, which has the BSD licence.

    The checksum is that of the archive that the project's repository makes
    of its tag; Debian ships the same bytes.
    """

    version(
        "7.0.15",
        sha256="4b1dc4ee6d622a09fff9c6777191209750fb5e5a725ef78ea012d6eef4c22982",
        url="https://github.com/redis/redis/archive/refs/tags/7.0.15.tar.gz",
    )

    def test_version(self):
        """server, client and load generator say their version"""
        for name in ("redis-server", "redis-cli", "redis-benchmark"):
            with test_part(self, f"test_version_{name}", purpose=name):
                program = which(self.prefix.bin.join(name), required=True)
                output = program(
                    '--version', output=str.split, error=str.split
                )
                check_outputs([str(self.version)], output)
