"""Settings of GPU collectives libraries that several sites have.

A site uses them in its environments (`transport`, `nccl_settings`).
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NcclSetting:
    """Variables of NCCL or RCCL that a vendor or an operator recommends for
    some test cases, with the source of the recommendation."""
    env: Mapping[str, str]
    source: str
    #: Year and month in which the source was read.
    date: str
    #: Names of programs; empty: all.
    programs: tuple[str, ...] = ()
    #: Minimum number of nodes.
    min_nodes: int = 1
    #: Maximum number of GPUs of a node that the test case uses; 0: any.
    max_gpus: int = 0

    def applies_to(self, program: str, nodes: int, gpus: int) -> bool:
        """Whether the setting is for this test case.

        :arg program: name of the program
        :arg nodes: number of nodes
        :arg gpus: number of GPUs of each node
        """
        return (program in (self.programs or (program,))
                and nodes >= self.min_nodes
                and gpus <= (self.max_gpus or gpus))


def slingshot_transport(plugin: str, nics: int, **more: str) -> dict[str, Any]:
    """NCCL or RCCL over Slingshot: libfabric's provider cxi.

    The library uses the network through a plugin. Its log proves that (see
    `evidence`), in the wording of the plugin and of the library.

    :arg plugin: aws-ofi-nccl or aws-ofi-rccl
    :arg nics: number of interfaces of a node: hsn0, hsn1, ...
    :arg more: further variables of the environment
    """
    return {'name': f'Slingshot, by {plugin}',
            'env': {'FI_MR_CACHE_MONITOR': 'userfaultfd',
                    'FI_CXI_DISABLE_HOST_REGISTER': '1',
                    'FI_CXI_DEFAULT_CQ_SIZE': '131072',
                    'FI_CXI_DEFAULT_TX_SIZE': '2048',
                    'FI_CXI_RDZV_PROTO': 'alt_read',
                    'FI_CXI_RDZV_EAGER_SIZE': '0',
                    'FI_CXI_RDZV_THRESHOLD': '0', 'FI_CXI_RDZV_GET_MIN': '0',
                    'FI_CXI_RX_MATCH_MODE': 'hybrid',
                    # srun's --network, without which alt_read has no effect.
                    'SLURM_NETWORK': 'disable_rdzv_get',
                    'NCCL_CROSS_NIC': '1', 'NCCL_NET_GDR_LEVEL': 'PHB',
                    'NCCL_SOCKET_IFNAME': ','.join(
                        f'hsn{number}' for number in range(nics)), **more},
            'evidence': r'Using network (AWS Libfabric|OFI|Libfabric)',
            'source': 'HewlettPackard/shs-ccl-docs, ccl_env.sh',
            'date': '2026-04'}
