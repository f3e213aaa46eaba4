"""Settings of NCCL and RCCL that vendors and operators recommend.

A site selects them in an environment (`nccl_settings`).
"""
from __future__ import annotations

from config.sites.fabrics import NcclSetting

#: Several channels between two ranks on different nodes. By default NCCL has
#: one or two, which do not fill a NIC.
CHANNELS_PER_PEER = NcclSetting(
    {'NCCL_NCHANNELS_PER_NET_PEER': '4'},
    source='eth-cscs/cscs-reframe-tests, xccl_tests.py; NVIDIA/nccl issue 1272',
    date='2026-08', programs=('sendrecv_perf',), min_nodes=2)

#: MI300A and MI300X: as many channels as with all eight GPUs of a node.
CHANNELS_OF_PARTIAL_MI300_NODE = NcclSetting(
    {'NCCL_MIN_NCHANNELS': '32'},
    source='ROCm documentation, RCCL usage tips; eth-cscs/cscs-reframe-tests, '
           'xccl_tests.py',
    date='2026-08', max_gpus=7)
