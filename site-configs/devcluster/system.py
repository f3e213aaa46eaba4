"""The cluster in a box of tests/cluster: some nodes on one machine.

A partition for each way to start ranks and each way to ask Slurm about a
job: ReFrame's backend belongs to the partition, and so each can be named.
"""
import os
import sys
from typing import Any

# A ReFrame that was not installed by `plumb` does not find the suite.
sys.path.append(os.path.abspath(f'{__file__}/../../..'))

from checks.core import environs
from checks.osu import programs
from config.common import SETTINGS

_WORK = os.environ.get('PLUMBLINE_WORK', '.plumbline')

#: As `tests/cluster/box up` makes them when it is not told otherwise.
_NODES = int(os.environ.get('PLUMBLINE_BOX_NODES', 4))
_CORES = 2

#: All nodes share the cores of one machine: ranks stay where the kernel
#: puts them, and let others run while they wait.
_SHARE = {'srun': ['--overcommit', '--cpu-bind=none'],
          'mpirun': ['--map-by', ':OVERSUBSCRIBE', '--bind-to', 'none']}


#: Open MPI's own launcher: where it is, whatever is started; and that it
#: may start things as root (containers).
_MPIRUN = [['PATH', f'{_WORK}/mpi/bin:$PATH'],
           *([['OMPI_ALLOW_RUN_AS_ROOT', '1'],
              ['OMPI_ALLOW_RUN_AS_ROOT_CONFIRM', '1']]
             if os.geteuid() == 0 else [])]


def _partition(backend: str, launcher: str, environment: str
               ) -> dict[str, Any]:
    return {
        'name': f'{backend}-{launcher}',
        'descr': f'{launcher}; jobs watched with {backend}',
        'scheduler': backend,
        'launcher': launcher,
        'max_jobs': 2,
        'environs': [environment, f'tensors-{environment}', 'valkey', 'tao'],
        'env_vars': _MPIRUN if launcher == 'mpirun' else [],
        'processor': {'num_cpus': _CORES, 'num_cpus_per_core': 1,
                      'num_sockets': 1, 'num_cpus_per_socket': _CORES},
        'extras': {'max_nodes': _NODES,
                   'launcher_free': _SHARE[launcher],
                   'launcher_oversubscribe': _SHARE[launcher],
                   'service_interface': 'eth0',
                   # The kernel counts for all nodes together: to each of
                   # them the others are other programs.
                   'others_cpu_limit': float(os.environ.get(
                       'PLUMBLINE_OTHERS_LIMIT', 1e6))},
    }


#: MPICH under Slurm. Collectives in shared memory wait without letting
#: others run: with more ranks than cores a second's work was seen to take a
#: minute. Over the network they do not.
_MPICH = [['SLURM_MPI_TYPE', 'pmi2'], ['MPIR_CVAR_NOLOCAL', '1'],
          ['MPIR_CVAR_ENABLE_HEAVY_YIELD', '1']]
_OPENMPI = [['OMPI_MCA_mpi_yield_when_idle', '1'], ['OMPI_MCA_osc', '^ucx']]


def _tensors(mpi: str, wheel: str, env_vars: list[list[str]]
             ) -> dict[str, Any]:
    """Ranks of this MPI that put tensors into a Redis or a Valkey.

    If SMARTREDIS_PREFIX is set, with SmartRedis' library.
    """
    library = os.environ.get('SMARTREDIS_PREFIX', '')
    return {'name': f"tensors-{mpi.partition(' ')[0]}",
            'cc': f'{_WORK}/{wheel}/bin/mpicc', 'cxx': '', 'ftn': '',
            'env_vars': env_vars,
            'features': ['tensor_redis', 'tensor_valkey',
                         *(['smartredis'] if library else [])],
            'extras': {'mpi_library': mpi, 'wheel': f'{wheel} stores',
                       'programs': {
                           'keyvalue': {'source': 'wheel',
                                        'prefix': f'{_WORK}/stores'},
                           'smartredis': {'source': 'system', 'prefix': library}
                           if library else {'source': 'embedded'}}}}


site_configuration = {
    **SETTINGS,
    'systems': [{
        'name': 'devcluster',
        'descr': 'Slurm on namespaces of this machine',
        'hostnames': ['.*'],                # the site is chosen by its name
        'stagedir': f'{_WORK}/stage',
        'outputdir': f'{_WORK}/output',
        'partitions': [
            _partition('slurm', 'srun', 'mpich'),
            _partition('slurm', 'mpirun', 'openmpi'),
            _partition('squeue', 'srun', 'mpich'),
            _partition('squeue', 'mpirun', 'openmpi'),
        ],
    }],
    'environments': [
        {'name': 'mpich', 'cc': f'{_WORK}/mpich/bin/mpicc',
         'cxx': '', 'ftn': '',
         'env_vars': _MPICH,
         'features': ['mpi', 'osu', *programs.EMBEDDED],
         'extras': {'mpi_library': 'mpich 5.0', 'wheel': 'mpich',
                    'programs': {'osu': {'source': 'embedded'}}}},
        {'name': 'openmpi', 'cc': f'{_WORK}/mpi/bin/mpicc',
         'cxx': '', 'ftn': '',
         'env_vars': _OPENMPI,
         'features': ['mpi', 'osu', *programs.EMBEDDED],
         'extras': {'mpi_library': 'openmpi 5.0', 'wheel': 'mpi',
                    'programs': {'osu': {'source': 'embedded'}},
                    'transport': {
                        'name': 'TCP of Open MPI',
                        'env': {'OMPI_MCA_pml': 'ob1',
                                'OMPI_MCA_btl': 'self,sm,tcp',
                                'OMPI_MCA_pml_base_verbose': '10'},
                        'evidence': 'select: component ob1 selected'}}},
        _tensors('mpich 5.0', 'mpich', _MPICH),
        _tensors('openmpi 5.0', 'mpi', _OPENMPI),
        environs.embedded_program_environment('tao', 'taobench', cc='cc'),
        {'name': 'valkey', 'cc': 'cc', 'cxx': '', 'ftn': '',
         'features': ['valkey'],
         'extras': {'wheel': 'stores',
                    'programs': {'keyvalue': {
                        'source': 'wheel', 'prefix': f'{_WORK}/stores'}}}},
    ],
}
