"""The programs of nccl-tests and rccl-tests, and those of an installation.

family.yaml (`programs`) describes what each program measures. This module has
the relations between their values, from the sources of nccl-tests 2.0 to 2.19
and rccl-tests (`GetCollByteCount` and `GetBw` of each program).
"""
from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.sessions import selection

from ..core import placement


@dataclass(frozen=True)
class Program:
    """How a program counts its bytes."""
    #: busbw over algbw for n ranks: twice (n-1)/n, (n-1)/n, or 1.
    bus: str
    #: Each rank has the n-th part of the size, rounded down.
    split: bool = False
    #: It has a reduction, chosen by option -o.
    reduces: bool = False
    #: algbw counts what a rank receives from others: size (n-1)/n.
    received: bool = False
    #: Each rank sends a part of its own to every other rank.
    pairwise: bool = False
    #: The parts differ from rank to rank, so do the sizes from those requested.
    unequal: bool = False
    #: It measures with any number of ranks, not only with a power of two.
    any_ranks: bool = True
    #: Not all versions have it: a feature of the environment says so.
    is_optional: bool = False
    #: Modes with its test cases of full nodes, besides full and nightly; those of
    #: `one_node_modes` only on one node.
    modes: tuple[str, ...] = ()
    one_node_modes: tuple[str, ...] = ()

    def busbw_factor(self, ranks: int) -> float:
        """busbw over algbw."""
        return {'1': 1.0, '(n-1)/n': (ranks - 1) / ranks,
                '2(n-1)/n': 2 * (ranks - 1) / ranks}[self.bus]

    def algbw_to_size_byte_ratio(self, ranks: int) -> float:
        """Bytes that algbw counts, over the size."""
        return (ranks - 1) / ranks if self.received else 1.0


PROGRAMS: dict[str, Program] = {
    'all_reduce_perf': Program('2(n-1)/n', reduces=True, modes=('smoke', 'quick'),
                               one_node_modes=('veto',)),
    'all_gather_perf': Program('(n-1)/n', split=True),
    'reduce_scatter_perf': Program('(n-1)/n', split=True, reduces=True),
    'alltoall_perf': Program('(n-1)/n', split=True, pairwise=True),
    # Since nccl-tests 2.19.
    'alltoallv_perf': Program('(n-1)/n', split=True, pairwise=True, unequal=True,
                              is_optional=True),
    'broadcast_perf': Program('1'),
    'reduce_perf': Program('1', reduces=True),
    'gather_perf': Program('(n-1)/n', split=True),
    'scatter_perf': Program('(n-1)/n', split=True),
    'sendrecv_perf': Program('1', modes=('quick',)),
    'hypercube_perf': Program('1', split=True, received=True, any_ranks=False),
}

#: Bytes of an element, by the names of all versions.
TYPES = {'int8': 1, 'uint8': 1, 'char': 1, 'int32': 4, 'uint32': 4, 'int': 4,
         'int64': 8, 'uint64': 8, 'half': 2, 'float': 4, 'double': 8,
         'bfloat16': 2, 'f8e4m3': 1, 'f8e5m2': 1, 'fp8_e4m3': 1,
         'fp8_e5m2': 1}

#: Reductions, in the order in which `-o all` runs them.
OPERATIONS = ('sum', 'prod', 'max', 'min', 'avg', 'mulsum')


def strip_build_suffix(name: str) -> str:
    """Name of a program without the suffix of the build (NAME_SUFFIX)."""
    match = re.match(r'[a-z]+(?:_[a-z]+)*?_perf', name)
    return match[0] if match else name


def find_installed_programs(prefix: str | os.PathLike[str]) -> dict[str, str]:
    """Programs of an installation: name -> path.

    :param prefix: prefix of the installation, or folder of the programs.
    """
    result: dict[str, str] = {}
    for folder in (Path(prefix), Path(prefix, 'bin'), Path(prefix, 'build')):
        for path in sorted(folder.glob('*_perf*')):
            if (path.is_file() and os.access(path, os.X_OK)
                    and re.fullmatch(r'[a-z_]+_perf(_[a-z]+)?', path.name)):
                result.setdefault(strip_build_suffix(path.name), str(path))
    return result


def program_features(source: str) -> tuple[str, ...]:
    """Features of an environment with the stand-in, which has all programs;
    those of an installation are found when it exists."""
    optional = [name for name, row in PROGRAMS.items() if row.is_optional]
    return ('nccl_tests', *optional) if source == 'embedded' else ()


def are_offered(partition: Any) -> bool:
    """Whether a partition has GPUs and the programs of nccl-tests or rccl-tests."""
    return bool(placement.gpus_per_node(partition)) and selection.offers(
        partition, '+nccl_tests', '+rccl_tests')
