"""LUMI (CSC, Kajaani): HPE Cray EX, Slingshot-11.

lumi-c: two Milan, one NIC. lumi-g: one Trento, four MI250X, which are eight
GPUs (dies) to Slurm and to programs, four NICs.
"""
import os
import sys

# A ReFrame that was not installed by `plumb` does not find the suite.
sys.path.append(os.path.abspath(f'{__file__}/../../..'))

from checks.core import environs, hardware
from config.common import SETTINGS
from config.sites import fabrics

_WORK = os.environ.get('PLUMBLINE_WORK', '.plumbline')
_LUMI_C = hardware.reframe_devices(('Cassini-200', 1))
_LUMI_G = hardware.reframe_devices(('MI250X-GCD', 8), ('Cassini-200', 4))

_RCCL = fabrics.slingshot_transport('aws-ofi-rccl', nics=4,
                                    HSA_FORCE_FINE_GRAIN_PCIE='1')

site_configuration = {
    **SETTINGS,
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
            # The project of a person comes from SBATCH_ACCOUNT.
            'sched_options': {'slurm_envvar_whitelist': ['SBATCH_ACCOUNT']},
            'launcher': 'srun',
            'access': ['--partition=standard', '--exclusive',
                       '--hint=nomultithread'],
            'environs': ['cray-mpich', 'stores', 'tao', 'dcperf', 'smartredis'],
            'processor': {'arch': 'zen3', 'num_cpus': 256,
                          'num_cpus_per_core': 2, 'num_sockets': 2,
                          'num_cpus_per_socket': 128},
            'devices': _LUMI_C,
            'extras': {'max_nodes': 16,
                       **hardware.bandwidth_extras(_LUMI_C),
                       'node_memory': 256},
        }, {
            'name': 'lumi-g',
            'descr': '1 EPYC 7A53, 4 MI250X, 4 Slingshot-11 NICs',
            'scheduler': 'slurm',
            'sched_options': {'slurm_envvar_whitelist': ['SBATCH_ACCOUNT']},
            'launcher': 'srun',
            'access': ['--partition=standard-g', '--exclusive',
                       '--hint=nomultithread'],
            'resources': [{'name': '_rfm_gpu', 'options': [
                '--gpus-per-node={num_gpus_per_node}']}],
            'environs': ['cray-mpich', 'cray-mpich-rocm', 'rccl'],
            'features': ['gpu_amd'],
            # 56 of the 64 cores: the system keeps one of every eight.
            'processor': {'arch': 'zen3', 'num_cpus': 112,
                          'num_cpus_per_core': 2, 'num_sockets': 1,
                          'num_cpus_per_socket': 112},
            'devices': _LUMI_G,
            'extras': {'max_nodes': 16,
                       **hardware.bandwidth_extras(_LUMI_G),
                       # The masks of LUMI's user guide (distribution and
                       # binding, 2024-10), without the system's cores.
                       'gpu_cores': ['49-55', '57-63', '17-23', '25-31',
                                     '1-7', '9-15', '33-39', '41-47']},
        }],
    }],
    'environments': [
        # No `transport`: see README.md.
        environs.stack_environment('cray-mpich', 'mpi-host', mpi='cray-mpich 9.0.x'),
        environs.stack_environment('cray-mpich-rocm', 'mpi-rocm',
                                   mpi='cray-mpich 9.0.x with ROCm',
                                   env_vars=[['MPICH_GPU_SUPPORT_ENABLED', '1']]),
        environs.stack_environment('rccl', 'rccl', transport=_RCCL),
        environs.stack_environment('stores', 'keyvalue'),
        environs.stack_environment('smartredis', 'smartredis', mpi='cray-mpich 9.0.x'),
        environs.embedded_program_environment('tao', 'taobench'),
        environs.stack_environment('dcperf', 'taobench'),
    ],
}
