"""Alps (CSCS, Lugano): HPE Cray EX, four GH200 a node, Slingshot-11."""
import os

from checks.lib import hardware
from checks.lib.features import node_features
from checks.osu import programs

_WORK = os.environ.get('PLUMBLINE_WORK', '.plumbline')
_NODE = hardware.devices(('GH200-96GB-quad', 4), ('Cassini-200', 4))

site_configuration = {
    'systems': [{
        'name': 'alps',
        'descr': 'Alps: four GH200 a node, Slingshot-11',
        'hostnames': ['.*'],                # the site is chosen by its name
        'stagedir': f'{_WORK}/stage',       # must be on a shared file system
        'outputdir': f'{_WORK}/output',
        'partitions': [{
            'name': 'gh200',
            'descr': '4 GH200, 4 Slingshot-11 NICs',
            'scheduler': 'slurm',
            'launcher': 'srun',
            # The account comes from SBATCH_ACCOUNT, which Slurm reads.
            'access': ['--partition=normal', '--exclusive'],
            'resources': [{'name': '_rfm_gpu', 'options': [
                '--gpus-per-node={num_gpus_per_node}']}],
            'environs': ['cray-mpich', 'cray-mpich-cuda', 'nccl', 'stores'],
            'features': [*node_features(16), 'gpu_nvidia'],
            # Four Grace of 72 cores, one thread each.
            'processor': {'arch': 'neoverse_v2', 'num_cpus': 288,
                          'num_cpus_per_core': 1, 'num_sockets': 4,
                          'num_cpus_per_socket': 72},
            'devices': _NODE,
            'extras': {**hardware.limits(_NODE),
                       'launcher_pin': ['--cpu-bind=cores']},
        }],
    }],
    'environments': [
        # No `transport`: see README.md.
        {'name': 'cray-mpich', 'cc': 'mpicc',
         'features': ['mpi', 'osu', *programs.OMB7],
         'extras': {'mpi_library': 'cray-mpich 8.1.x', 'stack': 'mpi-host',
                    'programs': {'osu': {'source': 'spack'}}}},
        {'name': 'cray-mpich-cuda', 'cc': 'mpicc',
         'env_vars': [['MPICH_GPU_SUPPORT_ENABLED', '1']],
         'features': ['mpi', 'mpi_cuda', 'osu', *programs.OMB7],
         'extras': {'mpi_library': 'cray-mpich 8.1.x with CUDA',
                    'stack': 'mpi-cuda',
                    'programs': {'osu': {'source': 'spack'}}}},
        {'name': 'nccl',
         'features': ['nccl_tests'],
         'extras': {'stack': 'nccl',
                    'programs': {'nccl': {'source': 'spack'}}}},
        {'name': 'stores',
         'features': ['redis', 'valkey', 'memcached'],
         'extras': {'stack': 'keyvalue',
                    'programs': {'keyvalue': {'source': 'spack'}}}},
    ],
}
