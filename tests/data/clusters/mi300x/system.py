"""A Slurm cluster with eight MI300X per node and InfiniBand HDR. Its site is
made up; no job has run there."""
from checks.core import hardware
from checks.nccl import recommended
from checks.osu import programs
from config.common import SETTINGS

_NODE = hardware.reframe_devices(('MI300X', 8))

site_configuration = {
    **SETTINGS,
    'systems': [{
        'name': 'mi300x', 'hostnames': ['.*'],
        'partitions': [{
            'name': 'gpu', 'scheduler': 'squeue', 'launcher': 'srun',
            'access': ['--partition=gpu', '--exclusive', '--hint=nomultithread'],
            'resources': [{'name': '_rfm_gpu', 'options': [
                '--gpus-per-node={num_gpus_per_node}']}],
            'environs': ['openmpi', 'tao', 'tensors', 'rccl'],
            'features': ['gpu_amd'],
            'max_jobs': 4,
            'processor': {'num_cpus': 192, 'num_cpus_per_core': 2,
                          'num_sockets': 2, 'num_cpus_per_socket': 96},
            'devices': _NODE,
            'extras': {
                'node_memory': 2048, 'max_nodes': 6,
                **hardware.bandwidth_extras(_NODE),
                # Four GPUs at each socket, as rocm-smi --showtoponuma prints for
                # nodes of eight (ROCm/legacy-rocm-build issue 4740, 2025-05).
                'gpu_cores': [f'{n}-{n + 11}' for n in range(0, 96, 12)],
                'service_interface': 'ib0'}}]}],
    'environments': [
        {'name': 'openmpi', 'cc': 'mpicc', 'features': [
            'mpi', 'mpi_rocm', 'osu', *programs.EMBEDDED],
         'extras': {'mpi_library': 'openmpi 5.0',
                    'programs': {'osu': {'source': 'embedded'}}}},
        {'name': 'tao', 'cc': 'cc', 'features': ['tao_server'],
         'extras': {'mpi_library': 'openmpi 5.0',
                    'programs': {'taobench': {'source': 'embedded'}}}},
        {'name': 'rccl', 'cc': 'cc', 'features': ['rccl_tests'],
         'extras': {'mpi_library': 'openmpi 5.0',
                    'nccl_settings': [recommended.CHANNELS_PER_PEER,
                                      recommended.CHANNELS_OF_PARTIAL_MI300_NODE],
                    'programs': {'nccl': {'source': 'embedded'}}}},
        {'name': 'tensors', 'cc': 'mpicc', 'features': ['tensor_redis'],
         'extras': {'mpi_library': 'openmpi 5.0', 'programs': {
             'keyvalue': {'source': 'system', 'prefix': '/usr'},
             'smartredis': {'source': 'embedded'}}}}],
}
