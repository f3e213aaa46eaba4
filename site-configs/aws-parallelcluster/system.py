"""AWS ParallelCluster with queues over EFA.

p5: p5.48xlarge, eight H100. hpc7a: hpc7a.96xlarge, 192 Genoa cores. hpc6a and
hpc7g: machine types with published values; ParallelCluster has one architecture per
cluster, so hpc7g (ARM) is for a cluster of its own. What differs from cluster to
cluster is marked SITE.
"""
import os
import sys

# A ReFrame that was not installed by `plumb` does not find the suite.
sys.path.append(os.path.abspath(f'{__file__}/../../..'))

from checks.core import environs, hardware
from config.common import SETTINGS

_WORK = os.environ.get('PLUMBLINE_WORK', '.plumbline')
_P5 = hardware.reframe_devices(('H100-SXM5-80GB', 8), ('EFA-100', 32))
_HPC7A = hardware.reframe_devices(('EFA-150', 2))

#: ParallelCluster's Slurm has PMIx; srun must be told to use it.
_PMIX = [['SLURM_MPI_TYPE', 'pmix']]

#: Open MPI must take libfabric's provider efa, and it says which it took
#: (words as seen with other providers, Open MPI 5.0.11; 4.1 says them at
#: the framework's verbosity).
_EFA = {'name': 'EFA',
        'env': {'OMPI_MCA_pml': 'cm', 'OMPI_MCA_mtl': 'ofi',
                'OMPI_MCA_mtl_ofi_provider_include': 'efa',
                'OMPI_MCA_mtl_ofi_verbose': '1',
                'OMPI_MCA_mtl_base_verbose': '1'},
        'evidence': r'mtl:ofi:provider: efa\b'}

#: NCCL loads the plugin aws-ofi-nccl of the EFA installer. SITE: its folder.
_PLUGIN = ['LD_LIBRARY_PATH', '/opt/amazon/ofi-nccl/lib'
           '${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}']

#: NCCL must take EFA by the plugin aws-ofi-nccl, and it says which network it
#: took (words of NCCL).
_NCCL = {'name': 'EFA, by aws-ofi-nccl',
         'env': {'FI_PROVIDER': 'efa'},
         'evidence': r'Using network (AWS Libfabric|OFI|Libfabric)',
         'source': 'aws-samples/awsome-distributed-training, nccl-tests',
         'date': '2026-11'}


def _study_partition(name: str, machine: str, arch: str, cores: int,
                     nodes: int) -> dict:
    """A machine type of published values.

    :param nodes: most nodes in the publication
    """
    return hardware.published_machine(
        name, machine, arch, cores, launcher='srun', environs=['openmpi'],
        access=[f'--partition={name}', '--exclusive'],      # SITE: queue
        extras={'max_nodes': nodes})                        # SITE: nodes


site_configuration = {
    **SETTINGS,
    'systems': [{
        'name': 'aws-parallelcluster',
        'descr': 'AWS ParallelCluster with EFA',
        'hostnames': ['.*'],                # the site is chosen by its name
        'stagedir': f'{_WORK}/stage',       # must be on a shared file system
        'outputdir': f'{_WORK}/output',
        'partitions': [{
            'name': 'p5',
            'descr': 'p5.48xlarge: 8 H100, 32 EFA of 100 Gb/s',
            'scheduler': 'slurm',
            # The account of a person comes from SBATCH_ACCOUNT.
            'sched_options': {'slurm_envvar_whitelist': ['SBATCH_ACCOUNT']},
            'launcher': 'srun',
            'access': ['--partition=p5',                # SITE: queue
                       '--exclusive', '--hint=nomultithread'],
            'resources': [{'name': '_rfm_gpu', 'options': [
                '--gpus-per-node={num_gpus_per_node}']}],
            'environs': ['openmpi', 'openmpi-cuda', 'nccl'],
            'features': ['gpu_nvidia'],
            'processor': {'arch': 'zen3', 'num_cpus': 192,
                          'num_cpus_per_core': 2, 'num_sockets': 2,
                          'num_cpus_per_socket': 96},
            'devices': _P5,
            # FINISH: if not every network interface of a node reaches the other nodes
            #     (ip -br address on a node), add service_interface to the extras: NCCL
            #     and servers of test cases use it
            'extras': {'max_nodes': 2,   # SITE: nodes
                       **hardware.bandwidth_extras(_P5),
                       # Four GPUs at each socket (aws/aws-ofi-nccl,
                       # p5.48xl-topo.xml, 2025-06).
                       'gpu_cores': [f'{n}-{n + 11}' for n in range(0, 96, 12)]},
        }, {
            'name': 'hpc7a',
            'descr': 'hpc7a.96xlarge: 192 cores, EFA of 300 Gb/s',
            'scheduler': 'slurm',
            'sched_options': {'slurm_envvar_whitelist': ['SBATCH_ACCOUNT']},
            'launcher': 'srun',
            'access': ['--partition=hpc7a', '--exclusive'],     # SITE: queue
            'environs': ['openmpi', 'stores', 'tao', 'dcperf', 'smartredis'],
            # One thread a core, whatever the cluster's settings say.
            'processor': {'arch': 'zen4', 'num_cpus': 192,
                          'num_cpus_per_core': 1, 'num_sockets': 2,
                          'num_cpus_per_socket': 96},
            'devices': _HPC7A,
            'extras': {'max_nodes': 8,   # SITE: nodes
                       **hardware.bandwidth_extras(_HPC7A),
                       'node_memory': 768},
        },
            _study_partition('hpc6a', 'hpc6a.48xlarge', 'zen3', 96, 2),
            _study_partition('hpc7g', 'hpc7g.4xlarge', 'neoverse_v1', 16, 32),
        ],
    }],
    'environments': [
        environs.stack_environment('openmpi', 'mpi-host', mpi='openmpi 5.0.x',
                                   env_vars=_PMIX, transport=_EFA),
        environs.stack_environment('openmpi-cuda', 'mpi-cuda',
                                   mpi='openmpi 5.0.x with CUDA', env_vars=_PMIX,
                                   transport=_EFA),
        environs.stack_environment('nccl', 'nccl', env_vars=[*_PMIX, _PLUGIN],
                                   transport=_NCCL),
        environs.stack_environment('stores', 'keyvalue'),
        environs.stack_environment('smartredis', 'smartredis', mpi='openmpi 5.0.x',
                                   env_vars=_PMIX),
        environs.embedded_program_environment('tao', 'taobench'),
        environs.stack_environment('dcperf', 'taobench'),
    ],
}
