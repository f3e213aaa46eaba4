"""The GPUs that ranks used: their PCI addresses, and their sanity check."""
from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from ..core import placement
from ..core.guards import Run, check_rank_binding, fail_test_case
from .cpus import parse_cpu_list


def cpus_of_ranks(gpu_cores: Sequence[str], ranks: int, gpus_per_rank: int
                  ) -> list[str]:
    """The CPUs near the GPUs of each rank of a node, by the extra `gpu_cores`.

    Rank 0 has the first GPUs, rank 1 the next ones, as OMB and NCCL's programs
    take them. Empty: the ranks have no GPUs of their own, or the partition has
    no `gpu_cores`.
    """
    if not 0 < ranks * gpus_per_rank <= len(gpu_cores):
        return []
    return [','.join(gpu_cores[first:first + gpus_per_rank])
            for first in range(0, ranks * gpus_per_rank, gpus_per_rank)]


def check_cpus_near_gpus(run: Run, expected: Iterable[str], threads: int) -> None:
    """Check that the ranks of each node ran on the CPUs near their GPUs.

    Ranks that know the address of their GPU report the CPUs of its NUMA node,
    so a `gpu_cores` that does not fit the node is found, too.

    :arg expected: CPUs of each rank of a node
    :arg threads: threads of a rank
    """
    planned = sorted(tuple(sorted(parse_cpu_list(text))) for text in expected)
    for host, ranks in placement.parse_rank_lines(run.err).items():
        actual = [rank.cpus for rank in ranks]
        if actual != planned:
            fail_test_case(
                'binding', f'{run.name}: {host}: ranks ran on the CPUs '
                f'{placement.format_cpu_sets(actual)} instead of '
                f'{placement.format_cpu_sets(planned)} (gpu_cores): the job needs '
                'all CPUs of its nodes')
    for host, address, own, near in re.findall(
            r'plumbline-gpu (\S+) (\S+) ([\d,-]+) ([\d,-]+)', run.err):
        if not {*parse_cpu_list(own)} <= {*parse_cpu_list(near)}:
            fail_test_case('binding', f'{run.name}: {host}: a rank ran on the CPUs '
                           f'{own}, but the CPUs {near} are near its GPU {address}: '
                           'correct gpu_cores')
    # The rank of a node with one GPU may have all cores.
    check_rank_binding(run, threads, sys.maxsize, 'gpu_cores')


def parse_gpu_lines(output: str) -> dict[str, list[str]]:
    """The PCI address of each rank's GPU, by host; `-`: unknown.

    :arg output: stderr of the ranks, with the lines of rank.sh
    """
    return group_by_host(re.findall(r'plumbline-gpu (\S+) (\S+)', output))


def group_by_host(gpus: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The addresses of each host, both in order.

    :arg gpus: host and address of each rank
    """
    by_host: dict[str, list[str]] = {}
    for host, address in gpus:
        by_host.setdefault(host, []).append(address)
    return {host: sorted(group) for host, group in sorted(by_host.items())}


def format_gpus(gpus_by_host: dict[str, list[str]]) -> str:
    """The GPUs of all ranks: `n1:00000000:07:00.0,00000000:0F:00.0 n2:...`."""
    return ' '.join(f'{host}:{",".join(group)}'
                    for host, group in gpus_by_host.items())


def check_rank_gpus(run: Run, ranks: int, shared: bool = False) -> None:
    """Check that each rank reported its GPU, and has one of its own.

    :arg ranks: number of ranks that must report a GPU
    :arg shared: whether several ranks may use one GPU
    """
    gpus_by_host = parse_gpu_lines(run.err)
    if (lines := sum(map(len, gpus_by_host.values()))) != ranks:
        fail_test_case('gpus', f'{run.name}: {lines} of {ranks} ranks reported their '
                       'GPU (lines plumbline-gpu of src/rank.sh): does the launcher '
                       'pass on stderr of all ranks?')
    if 'OMB could not identify' in run.out + run.err:
        fail_test_case('gpus', f'{run.name}: OMB could not identify the rank on its '
                       'node, so all ranks used the same GPU: src/rank.sh needs the '
                       "launcher's variable for the number of a rank on its node")
    for host, gpus in gpus_by_host.items():
        # A rank that is alone on its node shares its GPU with no other.
        if (unknown := gpus.count('-')) and len(gpus) > 1:
            fail_test_case('gpus', f'{run.name}: {host}: {unknown} of {len(gpus)} '
                           'ranks did not report the PCI address of their GPU: '
                           'nvidia-smi or rocm-smi must be on PATH, and each rank must '
                           'see all GPUs '
                           'of the job (Slurm: --gpus-per-node, not --gpus-per-task)')
        for address, count in () if shared else Counter(gpus).items():
            if count > 1:
                fail_test_case('gpus', f'{run.name}: {host}: {count} ranks use the GPU '
                               f'{address}: the job must have one GPU per rank')
