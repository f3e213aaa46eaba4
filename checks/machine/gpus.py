"""The GPUs that ranks used: their PCI addresses, and their sanity check."""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from ..core.guards import Run, fail_test_case


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
                       'node, so all ranks used the same GPU (src/rank.sh)')
    for host, gpus in () if shared else gpus_by_host.items():
        for address, count in Counter(gpus).items():
            if count > 1 and address != '-':
                fail_test_case('gpus', f'{run.name}: {host}: {count} ranks use the GPU '
                               f'{address}: the job must have one GPU per rank')
