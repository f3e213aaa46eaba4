"""Options of launchers and MPIs that pin ranks, share cores or spread ranks.

`{cpus}` in an option is the number of cores of a rank: one for each of its
threads. srun does not need it: ReFrame passes `--cpus-per-task` to srun, which
binds a rank to the CPUs of its task. `{ranks}` is the number of ranks per node,
`{sockets}` the first cores of each socket, for one rank: 0-1:56-57.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: mpiexec of PALS copies a program to the nodes by default, and rank.sh would not find
#: the scripts beside it.
PALS = ['--no-transfer', '--ppn', '{ranks}']

#: Launcher (srun), or the MPI if the launcher is its mpirun or mpiexec -> options
#: that pin ranks.
PIN: dict[str, list[str]] = {
    # block: neighbouring ranks are neighbours on the node, as with mpirun.
    'srun': ['--cpu-bind=cores', '--distribution=block:block'],
    # PE counts cores, even if they have two hardware threads.
    'openmpi': ['--map-by', 'slot:PE={cpus}', '--bind-to', 'core'],
    'mpich': ['-bind-to', 'core:{cpus}'],
    # A domain counts CPUs unless its cells are cores.
    'intelmpi': ['-genv', 'I_MPI_PIN', '1', '-genv', 'I_MPI_PIN_CELL', 'core',
                 '-genv', 'I_MPI_PIN_DOMAIN', '{cpus}'],
    'cray-mpich': [*PALS, '--depth', '{cpus}', '--cpu-bind', 'depth'],
}

#: The same -> options that let ranks share cores.
SHARE: dict[str, list[str]] = {
    'srun': ['--overcommit', '--cpu-bind=none'],
    'openmpi': ['--map-by', ':OVERSUBSCRIBE', '--bind-to', 'none'],
    'mpich': [],
    'intelmpi': ['-genv', 'I_MPI_PIN', '0'],
    'cray-mpich': [*PALS, '--cpu-bind', 'none'],
}

#: The same -> variables for ranks that share cores.
SHARE_ENV: dict[str, dict[str, str]] = {
    'openmpi': {'OMPI_MCA_mpi_yield_when_idle': '1'},
    'intelmpi': {'I_MPI_WAIT_MODE': '1'},
}

#: The same -> options that pin neighbouring ranks to different sockets.
SOCKETS: dict[str, list[str]] = {
    'srun': ['--cpu-bind=cores', '--distribution=block:cyclic'],
    'openmpi': ['--map-by', 'socket:PE={cpus}', '--bind-to', 'core'],
    'mpich': ['-bind-to', 'core:{cpus}', '-map-by', 'socket'],
    'intelmpi': ['-genv', 'I_MPI_PIN', '1', '-genv', 'I_MPI_PIN_CELL', 'core',
                 '-genv', 'I_MPI_PIN_DOMAIN', '{cpus}',
                 '-genv', 'I_MPI_PIN_ORDER', 'scatter'],
    # PALS binds to listed CPUs only, so the cores of the first socket must have
    # the first numbers; the guard `binding` compares the sockets.
    'cray-mpich': [*PALS, '--cpu-bind', 'list:{sockets}'],
}

#: The same -> options that bind no rank: ranks with GPUs bind themselves
#: (checks/core/src/rank.sh), because each launcher has another form of lists of
#: CPUs. Of Open MPI's forms one is a file that names the nodes.
UNBOUND: dict[str, list[str]] = {
    'srun': ['--cpu-bind=none'],
    'openmpi': ['--map-by', 'slot', '--bind-to', 'none'],
    'mpich': ['-bind-to', 'none'],
    'intelmpi': ['-genv', 'I_MPI_PIN', '0'],
    'cray-mpich': [*PALS, '--cpu-bind', 'none'],
}

#: Extra of a partition -> the table that has it if the site does not.
TABLES: dict[str, dict[str, Any]] = {
    'launcher_pin': PIN,
    'launcher_socket_pin': SOCKETS,
    'launcher_oversubscribe': SHARE,
    'oversubscribe_env': SHARE_ENV,
}

#: The same -> the command that starts processes inside a job, beside others, and
#: further arguments for a job of several nodes. Processes are not bound, because each
#: binds itself. In braces: {ranks}, {nodes}, {each} (processes of a node), {names}
#: (n2,n3) and {slots} (n2:4,n3:4).
STEP: dict[str, tuple[list[str], list[str]]] = {
    # --cpus-per-task, by option or variable, would leave the step only the
    # CPUs that Slurm picks, and --overlap needs them all.
    'srun': (['env', '-u', 'SRUN_CPUS_PER_TASK', '-u', 'SLURM_CPUS_PER_TASK',
              'srun', '--overlap', '--overcommit', '--cpu-bind=none', '--mem=0',
              '--kill-on-bad-exit=1', '--nodes={nodes}', '--ntasks={ranks}',
              '--ntasks-per-node={each}'], ['--nodelist={names}']),
    # In a Slurm job mpirun starts its daemons with srun.
    'openmpi': (['env', 'SLURM_OVERLAP=1', 'mpirun', '-np', '{ranks}',
                 '--map-by', ':OVERSUBSCRIBE', '--bind-to', 'none'],
                ['--host', '{slots}']),
    'mpich': (['mpiexec', '-n', '{ranks}', '-bind-to', 'none'],
              ['-hosts', '{names}', '-ppn', '{each}']),
    'intelmpi': (['mpiexec', '-n', '{ranks}', '-genv', 'I_MPI_PIN', '0'],
                 ['-hosts', '{names}', '-ppn', '{each}']),
    'cray-mpich': (['mpiexec', '-n', '{ranks}', '--no-transfer', '--ppn', '{each}',
                    '--cpu-bind', 'none'], ['--hosts', '{names}']),
}

#: Key of STEP -> name of a launcher on which no server has run yet.
UNPROVEN = {'cray-mpich': 'PALS'}

#: Further options for processes that are not ranks of an MPI program.
STEP_WITHOUT_MPI: dict[str, list[str]] = {'srun': ['--mpi=none']}

#: Launchers to which ReFrame itself passes the CPUs of a task.
TOLD_CPUS = ('srun', 'srunalloc', 'alps')


def step_key(launcher: str, mpi_library: str) -> str:
    """The key of STEP for a launcher and an MPI; STEP may not have it."""
    return launcher if launcher in STEP else mpi_library.partition(' ')[0]


def step_launch_command(launcher: str, mpi_library: str, nodes: int, mpi: bool = False
                        ) -> list[str]:
    """The command that starts processes inside a job; see STEP.

    :arg launcher: ReFrame's name of the partition's launcher
    :arg mpi_library: MPI of the environment, e.g. `openmpi 5.0`
    :arg nodes: number of nodes of the job
    :arg mpi: they are ranks of an MPI program
    :returns: empty if the launcher is unknown
    """
    key = step_key(launcher, mpi_library)
    words, named = STEP.get(key, ([], []))
    return [*words, *([] if mpi else STEP_WITHOUT_MPI.get(key, [])),
            *(named if nodes > 1 else [])]


def launcher_extra(extra: str, launcher: str, mpi: str, extras: Mapping[str, Any]
                   ) -> Any:
    """An extra of a partition, or its value in TABLES if the site has none.

    For `gpu_cores` it is the launcher options that bind no rank, because the
    site's own value is a list of cores.

    :arg launcher: ReFrame's name of the partition's launcher
    :arg mpi: MPI of the environment, e.g. `openmpi 5.0`
    :arg extras: extras of the partition
    :returns: None if neither has it
    """
    flavour = mpi.partition(' ')[0]
    if extra == 'gpu_cores':
        return UNBOUND.get(launcher, UNBOUND.get(flavour))
    if extra in extras:
        return extras[extra]
    # Each MPI has its own mpirun or mpiexec. The options of Cray MPICH are those
    # of PALS, which has no mpirun.
    is_of_mpi = (launcher.startswith('mpi')
                 and (launcher, flavour) != ('mpirun', 'cray-mpich'))
    return TABLES.get(extra, {}).get(flavour if is_of_mpi else launcher)


def fill_in_numbers(options: Iterable[str], ranks: int, threads: int, processor: Any
                    ) -> list[str]:
    """Launcher options with numbers in place of `{cpus}` and the other words.

    :arg ranks: ranks of a node
    :arg threads: threads of a rank
    :arg processor: ReFrame's processor of the partition
    """
    each = (processor.num_cpus_per_socket or 0) // (processor.num_cpus_per_core or 1)
    first = [each * socket for socket in range(processor.num_sockets or 1)]
    values = {'{cpus}': threads, '{ranks}': ranks, '{sockets}': ':'.join(
        f'{core}-{core + threads - 1}' for core in first)}
    for word, value in values.items():
        options = [option.replace(word, str(value)) for option in options]
    return [*options]
