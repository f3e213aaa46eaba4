"""LUMI (CSC, Kajaani): HPE Cray EX, Slingshot-11.

lumi-c: two Milan, one NIC. lumi-g: one Trento, four MI250X, which are eight
GPUs (dies) to Slurm and to programs, four NICs.
"""
import os

from checks.lib import environs, hardware
from checks.lib.features import node_features
from config.launch import LAUNCH, SPREAD

_WORK = os.environ.get('PLUMBLINE_WORK', '.plumbline')
_LUMI_C = hardware.devices(('Cassini-200', 1))
_LUMI_G = hardware.devices(('MI250X-GCD', 8), ('Cassini-200', 4))

#: RCCL must take libfabric's provider cxi by the plugin aws-ofi-rccl, and it
#: says which network it took (words of RCCL).
_RCCL = {'name': 'Slingshot, by aws-ofi-rccl',
         'env': {'FI_MR_CACHE_MONITOR': 'userfaultfd',
                 'FI_CXI_DISABLE_HOST_REGISTER': '1',
                 'FI_CXI_DEFAULT_CQ_SIZE': '131072',
                 'FI_CXI_DEFAULT_TX_SIZE': '2048',
                 'FI_CXI_RDZV_PROTO': 'alt_read',
                 'FI_CXI_RDZV_EAGER_SIZE': '0', 'FI_CXI_RDZV_THRESHOLD': '0',
                 'FI_CXI_RDZV_GET_MIN': '0',
                 'FI_CXI_RX_MATCH_MODE': 'hybrid',
                 # srun's --network, without which alt_read has no effect.
                 'SLURM_NETWORK': 'disable_rdzv_get',
                 'NCCL_CROSS_NIC': '1', 'NCCL_NET_GDR_LEVEL': 'PHB',
                 'NCCL_SOCKET_IFNAME': 'hsn0,hsn1,hsn2,hsn3',
                 'HSA_FORCE_FINE_GRAIN_PCIE': '1'},
         'evidence': r'Using network (AWS Libfabric|OFI|Libfabric)',
         'source': 'HewlettPackard/shs-ccl-docs, ccl_env.sh',
         'date': '2026-04'}

site_configuration = {
    'systems': [{
        'name': 'lumi',
        'descr': 'LUMI: HPE Cray EX, Slingshot-11',
        'hostnames': ['.*'],                # the site is chosen by its name
        'stagedir': f'{_WORK}/stage',       # must be on a shared file system
        'outputdir': f'{_WORK}/output',
        'partitions': [{
            'name': 'lumi-c',
            'descr': '2 EPYC 7763, 1 Slingshot-11 NIC',
            'scheduler': 'slurm',
            'launcher': 'srun',
            # The project comes from SBATCH_ACCOUNT, which Slurm reads.
            'access': ['--partition=standard', '--exclusive',
                       '--hint=nomultithread'],
            'environs': ['cray-mpich', 'stores', 'tao', 'smartredis'],
            'features': node_features(16),
            'processor': {'arch': 'zen3', 'num_cpus': 256,
                          'num_cpus_per_core': 2, 'num_sockets': 2,
                          'num_cpus_per_socket': 128},
            'devices': _LUMI_C,
            'extras': {**hardware.limits(_LUMI_C),
                       'node_memory': 256,
                       'launcher_pin': LAUNCH['srun'][0],
                       'launcher_spread': SPREAD['srun']},
        }, {
            'name': 'lumi-g',
            'descr': '1 EPYC 7A53, 4 MI250X, 4 Slingshot-11 NICs',
            'scheduler': 'slurm',
            'launcher': 'srun',
            'access': ['--partition=standard-g', '--exclusive',
                       '--hint=nomultithread'],
            'resources': [{'name': '_rfm_gpu', 'options': [
                '--gpus-per-node={num_gpus_per_node}']}],
            'environs': ['cray-mpich', 'cray-mpich-rocm', 'rccl'],
            'features': [*node_features(16), 'gpu_amd'],
            # 56 of the 64 cores: the system keeps one of every eight.
            'processor': {'arch': 'zen3', 'num_cpus': 112,
                          'num_cpus_per_core': 2, 'num_sockets': 1,
                          'num_cpus_per_socket': 112},
            'devices': _LUMI_G,
            'extras': {**hardware.limits(_LUMI_G),
                       'launcher_pin': LAUNCH['srun'][0],
                       'launcher_spread': SPREAD['srun']},
        }],
    }],
    'environments': [
        # No `transport`: see README.md.
        environs.of_stack('cray-mpich', 'mpi-host', mpi='cray-mpich 9.0.x'),
        environs.of_stack('cray-mpich-rocm', 'mpi-rocm',
                          mpi='cray-mpich 9.0.x with ROCm',
                          env_vars=[['MPICH_GPU_SUPPORT_ENABLED', '1']]),
        environs.of_stack('rccl', 'rccl', transport=_RCCL),
        environs.of_stack('stores', 'keyvalue'),
        environs.of_stack('smartredis', 'smartredis'),
        environs.embedded('tao', 'taobench'),
    ],
}
