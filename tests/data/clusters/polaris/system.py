"""A cluster like ALCF's Polaris: PBS Pro, PALS, Cray MPICH, four A100 per node,
Slingshot. Written from its public documentation; no job has run there."""
from checks.core import hardware
from checks.osu import programs
from config.common import SETTINGS

_NODE = hardware.reframe_devices(('A100-SXM4', 4))

site_configuration = {
    **SETTINGS,
    'systems': [{
        'name': 'polaris', 'hostnames': ['.*'],
        'partitions': [{
            'name': 'compute', 'scheduler': 'pbspro', 'launcher': 'mpiexec',
            # Of 1 to 10 nodes, one job at a time.
            'access': ['-A project', '-q debug-scaling', '-l filesystems=home',
                       '-l place=scatter:excl'],
            'environs': ['cray', 'tao', 'tensors', 'nccl'],
            'features': ['gpu_nvidia'],
            'max_jobs': 1,
            'processor': {'num_cpus': 64, 'num_cpus_per_core': 2,
                          'num_sockets': 1, 'num_cpus_per_socket': 64},
            'devices': _NODE,
            'extras': {
                'node_memory': 512, 'max_nodes': 10,
                **hardware.bandwidth_extras(_NODE),
                # ALCF's user guide, Polaris device affinity, 2026-08.
                'gpu_cores': ['24-31', '16-23', '8-15', '0-7'],
                'service_interface': 'hsn0'}}]}],
    'environments': [
        {'name': 'cray', 'cc': 'cc', 'features': [
            'mpi', 'mpi_cuda', 'osu', *programs.EMBEDDED],
         # Without it, buffers of GPUs crash a program (ALCF's example job scripts).
         'env_vars': [['MPICH_GPU_SUPPORT_ENABLED', '1']],
         'extras': {'mpi_library': 'cray-mpich 8.1.28',
                    'programs': {'osu': {'source': 'embedded'}}}},
        {'name': 'tao', 'cc': 'cc', 'features': ['tao_server'],
         'extras': {'mpi_library': 'cray-mpich 8.1.28',
                    'programs': {'taobench': {'source': 'embedded'}}}},
        {'name': 'nccl', 'cc': 'cc', 'features': ['nccl_tests'],
         'extras': {'mpi_library': 'cray-mpich 8.1.28',
                    'programs': {'nccl': {'source': 'embedded'}}}},
        {'name': 'tensors', 'cc': 'cc', 'features': ['tensor_redis'],
         'extras': {'mpi_library': 'cray-mpich 8.1.28', 'programs': {
             'keyvalue': {'source': 'system', 'prefix': '/usr'},
             'smartredis': {'source': 'embedded'}}}}],
}
