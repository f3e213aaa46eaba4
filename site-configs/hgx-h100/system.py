"""Nodes with an HGX H100 board and InfiniBand NDR, under Slurm.

Eight H100 SXM5 behind NVSwitch and eight 400 Gb/s NICs a node, as many
vendors build them. What differs from cluster to cluster is marked SITE.
"""
import os
import sys

# A ReFrame that was not installed by `plumb` does not find the suite.
sys.path.append(os.path.abspath(f'{__file__}/../../..'))

from checks.core import environs, hardware
from config.common import SETTINGS

_WORK = os.environ.get('PLUMBLINE_WORK', '.plumbline')
_NODE = hardware.reframe_devices(('H100-SXM5-80GB', 8), ('ConnectX-7-NDR400', 8))

#: Open MPI must take UCX, which by its defaults needs a Mellanox NIC; it
#: says that it did (words as seen with Open MPI 5.0.11).
_UCX = {'name': 'UCX',
        'env': {'OMPI_MCA_pml': 'ucx', 'OMPI_MCA_pml_base_verbose': '10'},
        'evidence': 'select: component ucx selected'}

#: NCCL's own InfiniBand, and it says that it took it. SITE: NCCL_IB_HCA where
#: some of the NICs are for storage.
_NCCL = {'name': 'InfiniBand',
         'env': {'NCCL_NET': 'IB'},
         'evidence': r'Using network IB',
         'source': 'NVIDIA NCCL user guide, environment variables',
         'date': '2026-11'}

#: Servers and clients of Optcast must use the plugin's InfiniBand.
_OPTCAST = {'name': 'InfiniBand of the plugin',
            'env': {'NCCL_PLUGIN_P2P': 'ib'},
            'evidence': r'P2P plugin IBext',
            'source': 'osrg/optcast, nccl_plugin', 'date': '2026-11'}

site_configuration = {
    **SETTINGS,
    'systems': [{
        'name': 'hgx-h100',
        'descr': 'HGX H100 with InfiniBand NDR',
        'hostnames': ['.*'],                # the site is chosen by its name
        'stagedir': f'{_WORK}/stage',       # must be on a shared file system
        'outputdir': f'{_WORK}/output',
        'partitions': [{
            'name': 'h100',
            'descr': '8 H100 SXM5, 8 NDR400',
            'scheduler': 'slurm',
            # The account of a person comes from SBATCH_ACCOUNT.
            'sched_options': {'slurm_envvar_whitelist': ['SBATCH_ACCOUNT']},
            # Open MPI's own launcher: asks nothing of Slurm but the nodes.
            'launcher': 'mpirun',
            'access': ['--partition=gpu',               # SITE
                       '--exclusive', '--hint=nomultithread'],
            'resources': [{'name': '_rfm_gpu', 'options': [
                '--gpus-per-node={num_gpus_per_node}']}],
            'environs': ['openmpi', 'openmpi-cuda', 'nccl', 'stores', 'tao',
                         'dcperf', 'smartredis', 'optcast'],
            'features': ['gpu_nvidia'],
            # SITE: two Xeon 8480C as in a DGX H100, with hyperthreads.
            'processor': {'arch': 'sapphirerapids', 'num_cpus': 224,
                          'num_cpus_per_core': 2, 'num_sockets': 2,
                          'num_cpus_per_socket': 112},
            'devices': _NODE,
            # FINISH: if not every network interface of a node reaches the other nodes
            #     (ip -br address on a node), add service_interface to the extras: NCCL
            #     and servers of test cases use it
            'extras': {'max_nodes': 4,   # SITE: nodes
                       **hardware.bandwidth_extras(_NODE),
                       'node_memory': 2048,
                       # SITE: GPUs 0 to 3 at the first socket (nvidia-smi topo -m
                       # of a DGX H100 in vllm-project/vllm issue 13855, 2025-02).
                       'gpu_cores': [f'{n}-{n + 13}' for n in range(0, 112, 14)]},
        }],
    }],
    'environments': [
        environs.stack_environment('openmpi', 'mpi-host', mpi='openmpi 5.0.x',
                                   transport=_UCX),
        environs.stack_environment('openmpi-cuda', 'mpi-cuda',
                                   mpi='openmpi 5.0.x with CUDA', transport=_UCX),
        environs.stack_environment('nccl', 'nccl', transport=_NCCL),
        environs.stack_environment('stores', 'keyvalue'),
        environs.stack_environment('smartredis', 'smartredis', mpi='openmpi 5.0.x'),
        environs.embedded_program_environment('tao', 'taobench'),
        environs.stack_environment('dcperf', 'taobench'),
        environs.stack_environment('optcast', 'optcast', mpi='openmpi 5.0.x',
                                   transport=_OPTCAST),
    ],
}
