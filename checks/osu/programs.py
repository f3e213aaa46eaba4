"""The OSU programs, and those of an installation."""
from __future__ import annotations

import os
import re
from pathlib import Path

PT2PT = ('osu_latency', 'osu_bw', 'osu_bibw')
THREADED = ('osu_latency_mt', 'osu_latency_mp')
MULTI = ('osu_multi_lat', 'osu_mbw_mr')
ONE_SIDED = ('osu_acc_latency', 'osu_get_latency', 'osu_put_latency',
             'osu_get_acc_latency', 'osu_cas_latency', 'osu_fop_latency',
             'osu_get_bw', 'osu_put_bw')
STARTUP = ('osu_hello', 'osu_init')

#: Any collective: blocking, non-blocking, vector, neighbourhood, persistent.
COLLECTIVE = re.compile(
    r'osu_i?(neighbor_)?(allgather|allreduce|alltoall|barrier|bcast|gather|'
    r'reduce|reduce_scatter|reduce_scatter_block|scatter)[vw]?(_persistent)?')

#: Programs that are embedded.
EMBEDDED = (*PT2PT, *THREADED, *MULTI, *ONE_SIDED, 'osu_put_bibw', *STARTUP,
            'osu_allgather', 'osu_allreduce', 'osu_barrier', 'osu_ibarrier')

_KINDS = ('allgather', 'allgatherv', 'allreduce', 'alltoall', 'alltoallv',
          'alltoallw', 'barrier', 'bcast', 'gather', 'gatherv', 'reduce',
          'reduce_scatter', 'scatter', 'scatterv')
_NEIGHBOUR = ('allgather', 'allgatherv', 'alltoall', 'alltoallv', 'alltoallw')

#: Programs of OMB 7.2 or newer, for a site that has not installed it yet.
OMB7 = (*PT2PT, *THREADED, *MULTI, *ONE_SIDED, 'osu_put_bibw', *STARTUP,
        *(f'osu_{i}{kind}' for i in ('', 'i') for kind in _KINDS),
        *(f'osu_{i}neighbor_{kind}' for i in ('', 'i') for kind in _NEIGHBOUR))


def program_features(source: str) -> tuple[str, ...]:
    """Programs of a source before they are installed: the embedded ones, or
    those of OMB in a stack."""
    return EMBEDDED if source == 'embedded' else OMB7


def last_message_size(program: str, ranks: int, requested: int = 0) -> int | None:
    """Size of the last row of OMB's table. Unit: bytes.

    :arg ranks: number of ranks; 0: unknown.
    :arg requested: largest size of -m; 0: OMB's default.
    :returns: None if the table has no sizes, or its end is not known.
    """
    if COLLECTIVE.fullmatch(program):
        size = requested or 1048576
        if 'barrier' in program:
            return None
        if not re.search('gather|alltoall|(?<!reduce_)scatter', program):
            return size
        # Each rank's buffer holds a message for every rank: OMB ends the
        # table before that exceeds 512 MiB (-M), at 16 nodes of 128.
        return min(size, 1 << (2**29 // ranks).bit_length() - 1) if ranks else None
    if program in ('osu_cas_latency', 'osu_fop_latency') or program not in EMBEDDED:
        return None
    return None if program in STARTUP else requested or 4194304


def last_message_sizes(program: str, ranks: int, requested: int = 0,
                       first: int = 1) -> tuple[int, int] | tuple[None, None]:
    """Smallest and largest permitted size of the last row. Unit: bytes.

    Sizes double from the first one on. OMB's limit of memory may end the table
    earlier; some versions do not heed it.

    :arg first: the first size above 0
    """
    low = last_message_size(program, ranks, requested)
    if not low:
        return None, None
    high = requested or (1048576 if COLLECTIVE.fullmatch(program) else 4194304)

    def doubled(limit: int) -> int:
        return first << max((limit // first).bit_length() - 1, 0)

    return doubled(min(low, high)), doubled(high)


def find_installed_programs(prefix: str | os.PathLike[str]) -> dict[str, str]:
    """Programs of an installation: name -> path.

    Programs are in libexec/osu-micro-benchmarks/mpi/<kind> (up to 6.x) or in
    c/mpi/<kind> (7.x).

    :arg prefix: prefix of the installation, or a folder with programs.
    """
    result: dict[str, str] = {}
    for path in sorted(Path(prefix).glob('**/osu_*')):
        if (re.fullmatch(r'osu_[a-z_0-9]+', path.name) and path.is_file()
                and os.access(path, os.X_OK)
                and not {'openshmem', 'upc', 'upcxx', 'xccl'}
                & set(path.parts)):
            result.setdefault(path.name, str(path))
    return result
