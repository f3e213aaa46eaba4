"""How ranks are pinned, share cores or are spread, by launcher or MPI."""
from __future__ import annotations

#: Launcher, and the MPI under mpirun -> options that pin, that let ranks
#: share cores, and the variables for the latter.
LAUNCH: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    'srun': (['--cpu-bind=cores'], ['--overcommit', '--cpu-bind=none'], {}),
    'openmpi': (['--map-by', 'core', '--bind-to', 'core'],
                ['--map-by', ':OVERSUBSCRIBE', '--bind-to', 'none'],
                {'OMPI_MCA_mpi_yield_when_idle': '1'}),
    'mpich': (['-bind-to', 'core'], [], {}),
    'intelmpi': (['-genv', 'I_MPI_PIN', '1'], ['-genv', 'I_MPI_PIN', '0'],
                 {'I_MPI_WAIT_MODE': '1'}),
}

#: The same -> options that start one process on each node, free to run on
#: all CPUs that the job has there: an agent that starts servers. If one of
#: them dies, the launcher ends.
SPREAD: dict[str, list[str]] = {
    'srun': ['--cpu-bind=none', '--mpi=none', '--kill-on-bad-exit=1'],
    'openmpi': ['--map-by', 'ppr:1:node', '--bind-to', 'none'],
    'mpich': ['-ppn', '1', '-bind-to', 'none'],
    'intelmpi': ['-ppn', '1', '-genv', 'I_MPI_PIN', '0'],
}
