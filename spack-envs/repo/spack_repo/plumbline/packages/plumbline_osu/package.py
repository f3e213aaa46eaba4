import hashlib
from pathlib import Path

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *

#: The sources lie in the checkout that this recipe lies in.
SOURCES = Path(__file__).resolve().parents[6] / "checks" / "osu" / "src"


def source_version():
    """A version that changes with any byte of the sources: Spack hashes the
    recipe, not what the recipe reads."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"1.0-{digest.hexdigest()[:12]}"


class PlumblineOsu(Package):
    """The suite's own OSU programs, from the checkout's checks/osu/src.

    For sites that want them in Spack's store beside all the rest; without
    this package the suite builds them with the environment's compiler.
    """

    homepage = "https://mvapich.cse.ohio-state.edu/benchmarks/"
    has_code = False

    version(source_version())

    depends_on("c", type="build")
    depends_on("mpi")

    def install(self, spec, prefix):
        if spec.satisfies(f"@={source_version()}"):
            mkdirp(prefix.bin)
        else:
            raise InstallError(
                f"{SOURCES} changed since this spec was made: concretize anew"
            )
        program = prefix.bin.osu_embedded
        compiler = Executable(spec["mpi"].mpicc)
        sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
        compiler("-O2", "-std=gnu11", "-pthread", *sources, "-o", program,
                 "-lm")
        Executable(program)("--links", prefix.bin)

    def test_list(self):
        """the programs are there"""
        for name in ("osu_latency", "osu_bw", "osu_allreduce"):
            assert Path(self.prefix.bin, name).exists(), name
