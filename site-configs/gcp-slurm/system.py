"""Slurm on Google Cloud: machine types over gVNIC Ethernet.

c2d: c2d-standard-112 (Milan), 100 Gb/s; c3: c3-standard-176 (Sapphire
Rapids), 200 Gb/s; both with per-VM Tier_1 networking. The other partitions are the
machine types of published values. What differs from cluster to cluster is marked SITE.
"""
import os
import sys

# A ReFrame that was not installed by `plumb` does not find the suite.
sys.path.append(os.path.abspath(f'{__file__}/../../..'))

from checks.core import environs, hardware
from config.common import SETTINGS

_WORK = os.environ.get('PLUMBLINE_WORK', '.plumbline')
_C2D = hardware.reframe_devices(('gVNIC-100', 1))
_C3 = hardware.reframe_devices(('gVNIC-200', 1))

#: Open MPI must take its own TCP (and shared memory), not what UCX or
#: libfabric make of it: the three differ (words as seen with 5.0.11).
_TCP = {'name': 'TCP of Open MPI',
        'env': {'OMPI_MCA_pml': 'ob1', 'OMPI_MCA_btl': 'self,sm,tcp',
                'OMPI_MCA_pml_base_verbose': '10'},
        'evidence': 'select: component ob1 selected'}

#: Programs with published values: those of the OSU study.
_STUDY = [f'osu_{name}' for name in (
    'latency', 'bw', 'bibw', 'latency_mt', 'mbw_mr', 'multi_lat', 'acc_latency',
    'get_latency', 'put_latency', 'get_acc_latency', 'get_bw', 'put_bw', 'put_bibw',
    'allgather', 'allreduce', 'barrier', 'ibarrier')]


def _study_partition(name: str, machine: str, arch: str, cores: int,
                     counts: list[int]) -> dict:
    """A machine type of published values.

    :param counts: numbers of nodes in the publication
    """
    return hardware.published_machine(
        name, machine, arch, cores, launcher='mpirun', environs=['openmpi-study'],
        access=[f'--partition={name}', '--exclusive'],              # SITE
        extras={'max_nodes': max(counts), 'node_counts': counts})   # SITE


_OPENMPI = environs.stack_environment('openmpi', 'mpi-host', mpi='openmpi 5.0.x',
                                      transport=_TCP)

site_configuration = {
    **SETTINGS,
    'systems': [{
        'name': 'gcp-slurm',
        'descr': 'Slurm on Google Cloud, gVNIC',
        'hostnames': ['.*'],                # the site is chosen by its name
        'stagedir': f'{_WORK}/stage',       # must be on a shared file system
        'outputdir': f'{_WORK}/output',
        'partitions': [{
            'name': 'c2d',
            'descr': 'c2d-standard-112, gVNIC 100 Gb/s',
            'scheduler': 'slurm',
            # The account of a person comes from SBATCH_ACCOUNT.
            'sched_options': {'slurm_envvar_whitelist': ['SBATCH_ACCOUNT']},
            'launcher': 'mpirun',
            'access': ['--partition=c2d',               # SITE
                       '--exclusive', '--hint=nomultithread'],
            'environs': ['openmpi', 'openmpi-embedded', 'stores', 'tao',
                         'dcperf', 'smartredis'],
            # Sockets as a VM sees them are not published: see lscpu.
            'processor': {'arch': 'zen3', 'num_cpus': 112,
                          'num_cpus_per_core': 2},
            'devices': _C2D,
            'extras': {'max_nodes': 128, 'node_counts': [4, 32, 64, 128],     # SITE
                       **hardware.bandwidth_extras(_C2D),
                       'node_memory': 448},
        }, {
            'name': 'c3',
            'descr': 'c3-standard-176, gVNIC 200 Gb/s',
            'scheduler': 'slurm',
            'sched_options': {'slurm_envvar_whitelist': ['SBATCH_ACCOUNT']},
            'launcher': 'mpirun',
            'access': ['--partition=c3',                # SITE
                       '--exclusive', '--hint=nomultithread'],
            'environs': ['openmpi', 'openmpi-embedded', 'stores', 'tao',
                         'dcperf', 'smartredis'],
            'processor': {'arch': 'sapphirerapids', 'num_cpus': 176,
                          'num_cpus_per_core': 2},
            'devices': _C3,
            'extras': {'max_nodes': 16,   # SITE: nodes
                       **hardware.bandwidth_extras(_C3),
                       'node_memory': 704},
        },
            _study_partition('c2d-2', 'c2d-standard-2', 'zen3', 1,
                             [4, 8, 16, 32, 64, 128]),
            _study_partition('c2d-56', 'c2d-standard-56', 'zen3', 28,
                             [4, 8, 16, 32, 64]),
            _study_partition('c3-4', 'c3-standard-4', 'sapphirerapids', 2,
                             [4, 8, 16, 32, 64, 128]),
            _study_partition('c4', 'c4-standard-96', 'sapphirerapids', 48,
                             [4, 8, 16, 32]),
            _study_partition('h3', 'h3-standard-88', 'sapphirerapids', 88,
                             [4, 16, 32, 64, 128]),
        ],
    }],
    'environments': [
        _OPENMPI,
        {**_OPENMPI, 'name': 'openmpi-study', 'features': ['osu', *_STUDY]},
        # The suite's own programs, with the mpicc of the same stack.
        environs.stack_environment('openmpi-embedded', 'mpi', mpi='openmpi 5.0.x',
                                   transport=_TCP),
        environs.stack_environment('stores', 'keyvalue'),
        environs.stack_environment('smartredis', 'smartredis', mpi='openmpi 5.0.x'),
        environs.embedded_program_environment('tao', 'taobench'),
        environs.stack_environment('dcperf', 'taobench'),
    ],
}
