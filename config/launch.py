"""How ranks are pinned, share cores or are spread, by launcher or MPI.

`{cpus}` in an option is the number of cores of a rank: one for each of its
threads. srun needs none: ReFrame gives it `--cpus-per-task`, and it binds a
rank to the CPUs of its task.
"""
from __future__ import annotations

#: Launcher, and the MPI under mpirun -> options that pin, that let ranks
#: share cores, and the variables for the latter.
LAUNCH: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    'srun': (['--cpu-bind=cores'], ['--overcommit', '--cpu-bind=none'], {}),
    # PE counts cores, even if they have two hardware threads.
    'openmpi': (['--map-by', 'slot:PE={cpus}', '--bind-to', 'core'],
                ['--map-by', ':OVERSUBSCRIBE', '--bind-to', 'none'],
                {'OMPI_MCA_mpi_yield_when_idle': '1'}),
    'mpich': (['-bind-to', 'core:{cpus}'], [], {}),
    # A domain counts CPUs unless its cells are cores.
    'intelmpi': (['-genv', 'I_MPI_PIN', '1', '-genv', 'I_MPI_PIN_CELL',
                  'core', '-genv', 'I_MPI_PIN_DOMAIN', '{cpus}'],
                 ['-genv', 'I_MPI_PIN', '0'],
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

#: Launchers to which ReFrame itself passes the CPUs of a task.
TOLD_CPUS = ('srun', 'srunalloc', 'alps')


def line(extra: str, launcher: str, mpi: str) -> str:
    """The line of system.py that gives a partition an extra of this kind.

    :arg launcher: the partition's, as ReFrame calls it.
    :arg mpi: the MPI under another launcher than srun, e.g. `openmpi 5.0`.
    """
    kind = launcher if launcher in LAUNCH else mpi.partition(' ')[0]
    pin, share, _ = LAUNCH.get(kind, (None, None, None))
    options = {'launcher_pin': pin, 'launcher_oversubscribe': share,
               'launcher_spread': SPREAD.get(kind)}[extra]
    return f"'{extra}': " + ('[...],' if options is None else f'{options},')
