"""Alps (CSCS, Lugano): HPE Cray EX, four GH200 a node, Slingshot-11."""
import os
import sys

# A ReFrame that was not installed by `plumb` does not find the suite.
sys.path.append(os.path.abspath(f'{__file__}/../../..'))

from checks.core import environs, hardware
from checks.nccl import recommended
from config.common import SETTINGS
from config.sites import fabrics

_WORK = os.environ.get('PLUMBLINE_WORK', '.plumbline')
_NODE = hardware.reframe_devices(('GH200-96GB-quad', 4), ('Cassini-200', 4))

#: The stack's Open MPI has a PMIx of its own; srun must be told to use it.
_PMIX = [['SLURM_MPI_TYPE', 'pmix']]

#: Open MPI must take libfabric's provider cxi, and it says which it took
#: (words as seen with other providers, Open MPI 5.0.11).
_CXI = {'name': 'Slingshot',
        'env': {'OMPI_MCA_pml': 'cm', 'OMPI_MCA_mtl': 'ofi',
                'OMPI_MCA_mtl_ofi_provider_include': 'cxi',
                'OMPI_MCA_mtl_ofi_verbose': '1',
                'OMPI_MCA_mtl_base_verbose': '1'},
        'evidence': r'mtl:ofi:provider: cxi\b'}

#: NCCL loads the plugin aws-ofi-nccl of the uenv.
_PLUGIN = ['LD_LIBRARY_PATH', '/user-environment/env/default/lib'
           '${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}']

_NCCL = fabrics.slingshot_transport('aws-ofi-nccl', nics=4)


def _without_keydb(environment: dict) -> dict:
    """An environment without KeyDB.

    KeyDB probably does not start on ARM with pages of 64 KiB: a test at its start
    assumes pages of 4 KiB (Snapchat/KeyDB issues 856 and 894). Remove this
    function when KeyDB has run on the nodes.
    """
    features = [name for name in environment['features'] if 'keydb' not in name]
    return {**environment, 'features': features}


site_configuration = {
    **SETTINGS,
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
            # The account of a person comes from SBATCH_ACCOUNT.
            'sched_options': {'slurm_envvar_whitelist': ['SBATCH_ACCOUNT']},
            'launcher': 'srun',
            'access': ['--partition=normal', '--exclusive'],
            'resources': [{'name': '_rfm_gpu', 'options': [
                '--gpus-per-node={num_gpus_per_node}']}],
            'environs': ['openmpi', 'openmpi-cuda', 'nccl', 'stores', 'tao', 'dcperf',
                         'smartredis'],
            'features': ['gpu_nvidia'],
            # Four Grace of 72 cores, one thread each.
            'processor': {'arch': 'neoverse_v2', 'num_cpus': 288,
                          'num_cpus_per_core': 1, 'num_sockets': 4,
                          'num_cpus_per_socket': 72},
            'devices': _NODE,
            'extras': {'max_nodes': 16,
                       **hardware.bandwidth_extras(_NODE),
                       'node_memory': 480,
                       # A GPU has the number of its NUMA node (docs.cscs.ch,
                       # running jobs with Slurm, 2026-08).
                       'gpu_cores': [f'{n}-{n + 71}' for n in range(0, 288, 72)]},
        }],
    }],
    'environments': [
        environs.stack_environment('openmpi', 'mpi-host', mpi='openmpi 5.0.x',
                                   env_vars=_PMIX, transport=_CXI),
        environs.stack_environment('openmpi-cuda', 'mpi-cuda',
                                   mpi='openmpi 5.0.x with CUDA', env_vars=_PMIX,
                                   transport=_CXI),
        environs.stack_environment('nccl', 'nccl', env_vars=[*_PMIX, _PLUGIN],
                                   transport=_NCCL,
                                   nccl_settings=[recommended.CHANNELS_PER_PEER]),
        _without_keydb(environs.stack_environment('stores', 'keyvalue')),
        _without_keydb(environs.stack_environment(
            'smartredis', 'smartredis', mpi='openmpi 5.0.x', env_vars=_PMIX)),
        environs.embedded_program_environment('tao', 'taobench'),
        environs.stack_environment('dcperf', 'taobench'),
    ],
}
