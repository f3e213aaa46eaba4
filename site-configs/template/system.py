"""A site to copy: the smallest that runs. README.md says how, in ten steps.

A site is data: which partitions there are, what they have, and where the
programs come from. It is Python because some of that is worth computing.
"""
import os

from checks.core import environs, hardware
from config.sites.launch import LAUNCH, SOCKETS, SPREAD

# Where runs and results live; `plumb env` sets it.
_WORK = os.environ.get('PLUMBLINE_WORK', '.plumbline')

# The devices of a node: (model, how many). The models are in
# config/hardware.yaml; the limits of physics follow from them. With GPUs:
# hardware.reframe_devices(('H100-SXM5-80GB', 8), ('ConnectX-7-NDR400', 8)).
_NODE = hardware.reframe_devices(('ConnectX-7-NDR400', 1))

site_configuration = {
    'systems': [{
        # The name in every record. No check may know it.
        'name': 'mysite',
        # Any host: the site is chosen by name (--site), not by host.
        'hostnames': ['.*'],
        # Both must be on a file system that the nodes share.
        'stagedir': f'{_WORK}/stage',
        'outputdir': f'{_WORK}/output',
        # A partition: nodes that are alike. Two kinds of node are two
        # partitions, even if Slurm has them in one.
        'partitions': [{
            'name': 'mynodes',
            # As ReFrame calls them: slurm, squeue (Slurm without
            # accounting), pbs, flux, local, ...
            'scheduler': 'slurm',
            # mpirun is Open MPI's own and asks nothing of Slurm but nodes;
            # srun needs an MPI and a Slurm that know each other.
            'launcher': 'mpirun',
            # ReFrame hands only these SBATCH_* variables to sbatch. The
            # account belongs to a person and is better not written down.
            'sched_options': {'slurm_envvar_whitelist': ['SBATCH_ACCOUNT']},
            # What sbatch needs here. --exclusive: a neighbour on the node
            # would be measured too. With two threads a core:
            # --hint=nomultithread, so that a rank gets a core.
            'access': ['--partition=compute', '--exclusive'],
            # Environments (below) that can be used on these nodes.
            'environs': ['openmpi'],
            # As lscpu tells. A full node gets a rank for every core.
            'processor': {'num_cpus': 64, 'num_cpus_per_core': 1,
                          'num_sockets': 2, 'num_cpus_per_socket': 32},
            'devices': _NODE,
            'extras': {
                # Nodes that one job may have. Choose a small number at first.
                'max_nodes': 4,
                **hardware.bandwidth_extras(_NODE),
                # Options that bind each rank to as many cores as it has
                # threads. For srun: LAUNCH['srun'][0].
                'launcher_pin': LAUNCH['openmpi'][0],
                # The same for a pair of ranks on two sockets of a node.
                'launcher_socket_pin': SOCKETS['openmpi'],
                # Options that start one process a node (servers in a job).
                'launcher_spread': SPREAD['openmpi'],
            },
        }],
    }],
    # An environment: one way to get programs. Spack installs this one from
    # spack-envs/mpi-host, with this site's spack/ folder; stack.yaml there has
    # its features. `mpi` is for the records. docs/reference/site-files.md has
    # the other ways.
    # Add `transport` as soon as you know what your MPI prints: without it a
    # run over TCP is only slow.
    'environments': [
        environs.stack_environment('openmpi', 'mpi-host', mpi='openmpi 5.0.x'),
        # environs.stack_environment('stores', 'keyvalue'),
        # environs.embedded_program_environment('tao', 'taobench'),
    ],
}
