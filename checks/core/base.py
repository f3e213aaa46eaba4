"""Base classes of all checks.

:class:`Benchmark` runs a program under its launcher, checks its output, and
compares its values with references. The phases of a test case:

- init: the family sets parameters, modes and requirements;
- setup: the family sets ranks, nodes and threads;
- run: the base class adds measure.sh, rank.sh and launcher options; the
  family sets `executable` and its options;
- sanity: the guards run, and the family parses each repetition (`parse_values`);
- performance: the values become metrics and are compared with references.
"""
from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import reframe as rfm
import reframe.core.runtime as rt
import reframe.utility.typecheck as typ
from reframe.core.builtins import (
    required,
    run_after,
    run_before,
    sanity_function,
    variable,
)
from reframe.core.exceptions import (
    BuildSystemError,
    PerformanceError,
    PipelineError,
    SanityError,
)
from reframe.utility import sanity as sn

from config import families, places
from config.records import metrics
from config.sessions import lock, record, selection
from config.sessions.judged import (
    compute_derived_metrics,
    judged_metric_keys,
    judged_metric_names,
    worsening_of_metric,
)
from config.sessions.modes import SMOKE, VETO
from config.sessions.slurm_jobs import PBS, SLURM
from config.sites import allocation

from ..machine import builds, gpus, nodes
from ..spack import stack
from . import (
    features,
    guards,
    limits,
    placement,
    references,
)
from .record import Checked, Plugin, Recorded

SRC = Path(__file__).resolve().parent / 'src'

#: Folder of a build in which each node writes a file of facts.
FACTS = 'facts'


class Settings(Checked):
    """Variables that the modes set with -S.

    Fixtures have them too: ReFrame warns about an unknown variable of a test,
    and the suite treats warnings as errors.
    """

    #: Repetitions inside one job; their median is compared with the
    #: reference. Default: 1.
    repetitions = variable(int, value=1)

    #: Record all values; compare them with limits and published values only.
    #: --bringup of plumb sets it.
    bringup = variable(typ.Bool, value=False)

    #: The mode that selects the test case (config/sessions/modes.py); '': none.
    mode = variable(str, value='')

    #: Numbers of nodes on which collectives run, of those of the partition;
    #: empty: all of them.
    node_counts = variable(typ.List[int], value=[])

    #: Programs that can validate their data do so, in an extra repetition.
    validates = variable(typ.Bool, value=True)

    @run_after('init')
    def set_env_vars(self) -> None:
        """Give `env_vars` its default, unless -S has set it.

        While it has one, ReFrame looks for the user of its deprecated alias
        `variables` on the stack, twice for each test case: half of the time of a
        listing.
        """
        if not hasattr(self, 'env_vars'):
            self.env_vars: dict[str, Any] = {}

    @run_after('init')
    def hold_machine_lock(self) -> None:
        """Let no other session measure on this machine beside this one."""
        if record.runs_test_cases() and all(
                part.scheduler.is_local
                for part in rt.runtime().system.partitions):
            lock.hold_machine_lock_until_exit()

    @run_before('compile')
    def refuse_full_stage_disk(self) -> None:
        """Report it in one line, before ReFrame lists all files that it cannot copy."""
        if not self.is_dry_run():
            guards.check_disk_not_full(Path(self.stagedir))

    @run_after('setup')
    def set_max_pending_time(self) -> None:
        """Limit the time in the queue, unless -S does."""
        if self.max_pending_time is None:      # type: ignore[has-type]
            self.max_pending_time = self.current_partition.extras.get(
                'max_pending', '1h')


class Programs(rfm.CompileOnlyRegressionTest, Settings, special=True):
    """Programs of one family in one environment: built once for all checks.

    The build runs `build_commands`, and compiles the observer of the nodes.
    (Not in a fixture of its own, because every fixture costs time in each test
    case that uses it.) Environments with one compiler share builds; installed
    programs need none.
    """

    build_system: Any = 'CustomBuild'
    env_vars: Any = required
    keep_files = ['stack.*']

    @run_after('init')
    def set_build_locally_for_stacks(self) -> None:
        """Build where ReFrame runs, not in a job, if an environment with a stack is in
        a partition with a scheduler."""
        # What a stack has was built where people log in, with compilers that
        # compute nodes may lack. All else is built where it runs. Where
        # there is no scheduler they are here anyway, and ReFrame counts apart
        # what is forced to be: it would run beside a timed case.
        here = {env.name: env for part in rt.runtime().system.partitions
                if not part.scheduler.is_local
                for env in part.environs}
        self.build_locally = any(
            'stack' in here[name].extras
            for name in self.valid_prog_environs if name in here)

    def build_commands(self) -> list[str]:
        """Shell commands that build the embedded programs."""
        raise NotImplementedError

    def tool_build_commands(self) -> list[str]:
        """Shell commands that build tools needed with every program."""
        return []

    @property
    def stack_record(self) -> dict[str, Any] | None:
        """The record of the environment's stack.

        None if there is no stack, and in a dry run, which installs nothing.
        """
        path = Path(self.stagedir, 'stack.record.json')
        return json.loads(path.read_text()) if path.exists() else None

    def program_origin(self, program: str = '') -> dict[str, Any]:
        """The origin of the programs: source, prefix, version, spec, mpi.

        It comes from the environment and from the record of its stack.
        Embedded programs are not a package; a stack gives them only the MPI.
        """
        origin = families.program_origin(self.current_environ.extras, program,
                                         self.family)
        family = families.family_of_program(program, self.family)
        return stack.add_program_origin(origin, self.stack_record, family, program)

    def required_prefix(self, program: str) -> str:
        """The folder of an installed program.

        :raises SanityError: the environment has none
        """
        prefix = self.program_origin(program).get('prefix', '')
        # A dry run has no stack.
        if not prefix and not self.is_dry_run():
            guards.fail_test_case('programs', f'the environment '
                                  f'{self.current_environ.name} has no prefix for '
                                  f'{program}')
        return str(prefix)

    def find_installed_programs(self, prefix: str) -> dict[str, str]:
        """Programs of an installation: name -> path."""
        raise NotImplementedError

    def program_path(self, program: str) -> str:
        """Full path of a program, or its name if it must be on PATH.

        :raises SanityError: the installation lacks it
        """
        origin = self.program_origin(program)
        if origin['source'] == 'embedded':
            return f'{self.stagedir}/{program}'
        if 'prefix' not in origin:
            return program
        paths = self.find_installed_programs(origin['prefix'])
        if program not in paths:
            guards.fail_test_case(
                'programs', f'{program} does not exist in {origin["prefix"]}; programs '
                f'that exist: {", ".join(paths) or "none"}: correct `prefix` of the '
                'environment')
        return paths[program]

    @run_before('compile')
    def limit_pending_time(self) -> None:
        """Limit the time that the build job waits in the queue, like that of the job.
        """
        # ReFrame passes the limit to jobs that run, not to jobs that build.
        self.build_job.max_pending_time = self.max_pending_time

    @run_before('compile')
    def set_build_commands(self) -> None:
        """Let the build job load the stack and build the embedded programs, the tools
        and the observer of the nodes."""
        commands = ['true']
        extras = self.current_environ.extras
        if 'stack' in extras:
            self.copy_stack_record(extras['stack'])
            commands.append('. ./stack.sh')
        if families.program_origin(extras, '', self.family).get('source') == 'embedded':
            commands += self.build_commands()
        commands += self.tool_build_commands()
        cc = f'{self.current_environ.cc or "cc"} -O2 -std=gnu11 -pthread'
        sources = shlex.join(map(str, sorted(SRC.glob('*.c'))))
        commands.append(builds.copy_or_build_command(
            self, 'observe', f'{cc} {sources} -o observe'))
        # One list: a failed command ends the build. The job's exit code is
        # always 0, so that `check_build` can report which command failed.
        self.build_system.commands = [
            f'( {" && ".join(commands)} ) && touch {builds.BUILT} || true']

    def copy_stack_record(self, name: str) -> None:
        """Leave the record of an installed stack in the stage directory."""
        if self.is_dry_run():
            return
        try:
            record = stack.installed_stack_record(
                name, places.current_site_folder() or Path())
            stack.write_installed_stack_files(record, Path(self.stagedir))
        except stack.StackError as err:
            raise BuildSystemError(str(err)) from None

    @sanity_function
    def check_build(self) -> bool:
        """Check that every build command succeeded.

        :raises SanityError: the first error of the build, and the file of its output
        """
        if Path(self.stagedir, builds.BUILT).exists():
            return True
        guards.check_job_state(self.build_job)
        output = Path(self.stagedir, 'rfm_build.err')
        error = builds.first_build_error(output)
        raise SanityError(f'build: {error} (whole output: {output})')


class Glossary(Plugin):
    """Refuse requirements that are not in the glossary of features."""

    @run_after('init', always_last=True)
    def refuse_unknown_features(self) -> None:
        """Check the features that `valid_systems` and `valid_prog_environs` name."""
        features.check_feature_names(
            self.valid_systems, self.valid_prog_environs, type(self).__name__)


class Launch(Plugin):
    """Pin ranks if there are enough cores, else oversubscribe them."""

    INTERNAL: ClassVar[frozenset[str]] = frozenset({'threads', 'transient'})

    #: Threads or processes that each rank has while it measures.
    threads = variable(int, value=1)

    #: All reasons of `inconclusive` may vanish: `references calibrate` measures the
    #: test case for longer.
    transient = variable(typ.Bool, value=False)

    #: Nodes of the job, n1+n2, for `plumb locate`; empty: the scheduler selects them.
    #: -P pinned_nodes=n1+n2,n3+n4 makes a copy of the test case for each.
    pinned_nodes = variable(str, value='')

    def required_transport(self) -> Mapping[str, Any] | None:
        """The MPI transport that must be used; None for a single rank."""
        extras = {} if self.num_tasks == 1 else self.current_environ.extras
        return extras.get('transport')

    def lay_out_ranks(self) -> None:
        """Set ranks, nodes and threads, in a hook after the setup."""

    def partition_launcher_extra_name(self) -> str:
        """The extra of the partition that defines how ranks are placed."""
        if placement.describe_core_shortage(self):
            return 'launcher_oversubscribe'
        return ('gpu_cores' if self.cpus_near_gpus() else
                placement.pinning_launcher_extra_name(self.current_partition))

    def gpus_per_rank(self) -> int:
        """GPUs that each rank has for itself; 0: it uses none."""
        return 0

    def cpus_near_gpus(self) -> list[str]:
        """CPUs near the GPUs of each rank of a node; empty: any CPUs."""
        return gpus.cpus_of_ranks(self.current_partition.extras.get('gpu_cores', []),
                                  self.num_tasks_per_node or 1, self.gpus_per_rank())

    def check_launcher(self) -> None:
        """Check that the launcher can place the ranks.

        :raises PlacementError: the partition does not define how
        """
        placement.cores_per_node(self.current_partition)
        placement.launcher_options(self)

    # Last: hooks of families after the setup set the ranks.
    @run_after('setup', always_last=True)
    def check_placement_and_mark_shortage(self) -> None:
        """Check that the launcher can place the ranks, and mark the test case as
        inconclusive if the node has too few cores."""
        self.check_launcher()
        if self.partition_launcher_extra_name() == 'launcher_oversubscribe':
            self.inconclusive_reasons.append(placement.describe_core_shortage(self))

    @run_after('setup', always_last=True)
    def request_all_gpus(self) -> None:
        """Request all GPUs of each node, unless the partition has `gpus_only_if_used`,
        and all of its cores if ranks run near their GPUs."""
        part = self.current_partition
        requested = self.num_gpus_per_node or 0         # type: ignore[has-type]
        if not part.extras.get('gpus_only_if_used'):
            self.num_gpus_per_node = max(
                requested, placement.gpus_per_node(part)) or None
        if self.cpus_near_gpus():
            # All cores: the node's scheduler does not know which are near a GPU.
            self.num_cpus_per_task = (placement.cores_per_node(part)
                                      // (self.num_tasks_per_node or 1))

    @run_before('run')
    def pin_job_to_nodes(self) -> None:
        """Let the scheduler select only the nodes of `pinned_nodes`, if it names any.
        """
        if self.pinned_nodes:
            self.job.pin_nodes = self.pinned_nodes.split('+')

    @run_before('run')
    def narrow_allocation(self) -> None:
        """Inside an allocation, let launchers see only the nodes of the test case."""
        if nodes := self.current_partition.extras.get('allocation'):
            each = self.num_tasks_per_node or self.num_tasks
            self.env_vars.update(allocation.narrowed_variables(
                nodes[:-(-self.num_tasks // each)], each, Path(self.stagedir)))

    @run_before('run')
    def pin_or_oversubscribe(self) -> None:
        """Add the launcher options and environment variables that pin or oversubscribe
        the ranks and select the MPI transport."""
        self.job.launcher.options += placement.launcher_options(self)
        extra = self.partition_launcher_extra_name()
        if extra in placement.PINNING:
            for name, value in (('NUM_THREADS', self.threads), ('PLACES', 'cores'),
                                ('PROC_BIND', 'close')):
                self.env_vars.setdefault(f'OMP_{name}', value)
        if extra == 'gpu_cores':
            self.env_vars['PLUMBLINE_RANK_CPUS'] = ':'.join(self.cpus_near_gpus())
        if extra == 'launcher_oversubscribe':
            self.env_vars.update(placement.launcher_extra(
                self.current_partition, 'oversubscribe_env') or {})
        self.env_vars.update((self.required_transport() or {}).get('env', {}))


class NoRequeue(Plugin):
    """Let a job that lost a node fail.

    The scheduler would start it again in the same stage directory.
    """

    #: Scheduler -> the option of a job that it does not start a second time.
    NO_REQUEUE: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(SLURM, '--no-requeue'), **dict.fromkeys(PBS, '-r n')}

    @run_before('run')
    def disable_requeue(self) -> None:
        """Add the scheduler's option of `NO_REQUEUE` to the job."""
        option = self.NO_REQUEUE.get(
            self.current_partition.scheduler.registered_name)
        if option:
            self.job.options.append(option)


class Measured(Plugin):
    """Put measure.sh before the launcher and rank.sh before the program.

    The family's fixture of :class:`Programs` is called `programs`.
    """

    INTERNAL: ClassVar[frozenset[str]] = frozenset({'accept', 'validation'})

    #: Exit codes of the program that count as success (known faults only).
    accept = variable(list, value=[0])

    #: Options of one more repetition that validates data; empty: none.
    validation = variable(str, value='')

    @run_before('run', always_last=True)
    def enter_stage_directory(self) -> None:
        """Let the job script change to the stage directory, or end."""
        # A person may run the job script again, from any folder.
        self.prerun_cmds = [f'cd {shlex.quote(self.stagedir)} || exit',
                            *self.prerun_cmds]

    @run_before('run', always_last=True)
    def add_measurement_wrappers(self) -> None:
        """Put the launch under measure.sh with the options of this check, and keep the
        files that it writes."""
        options = ['--repetitions', self.repetitions, '--accept',
                   ' '.join(map(str, self.accept))]
        if self.validation:
            options += ['--validate', self.validation]
        self.put_under_measurement([shlex.quote(str(o)) for o in options])
        self.keep_files = [*self.keep_files, 'run.*.out', 'run.*.err',
                           'runs.tsv', 'validate.*']

    def put_under_measurement(self, options: list[str]) -> None:
        """Put measure.sh before the launcher, and rank.sh before the program.

        :param options: of measure.sh, words of the shell
        """
        self.job.launcher.modifier = shlex.quote(str(SRC / 'measure.sh'))
        self.job.launcher.modifier_options = [*options, '--']
        self.executable_opts = [*self.words_before_program()[1:], self.executable,
                                *self.executable_opts]
        self.executable = self.words_before_program()[0]

    def words_before_program(self) -> list[str]:
        """Words of the shell in front of the program in each rank.

        Facts of the nodes are collected once per node, session and environment,
        because each environment has its own libraries and launcher.
        """
        if not self.is_dry_run():
            Path(self.programs.stagedir, FACTS).mkdir(exist_ok=True)
        # The launcher's name may have a suffix: mpirun-openmpi.
        launcher, *_ = (self.current_partition.launcher_type
                        .registered_name.split('-'))
        return [shlex.quote(str(word)) for word in (
            SRC / 'rank.sh', self.programs.stagedir,
            self.current_partition.extras.get('scratch', ''), launcher)]

    @run_before('sanity')
    def collect_node_facts(self) -> None:
        """Read the facts of the nodes that the ranks collected, and save them in the
        perflog folder."""
        self.machine, self.facts_files = nodes.read_node_facts_files(
            Path(self.programs.stagedir, FACTS), self.job.nodelist or [])
        self.save_machine_facts()


class Referenced(Plugin):
    """References from the site's reference file, applied strictly.

    Setup: the file is read, and the entry of the test case looked up; a fault fails the
    test case. Performance: `set_references` sets the reference of each value, because
    only then all metrics are known.
    """

    INTERNAL: ClassVar[frozenset[str]] = frozenset({'reference_fault'})

    #: Fault of the test case's references; empty: none.
    reference_fault = variable(str, value='')

    @run_before('setup')
    def read_reference_file(self) -> None:
        """Read the reference file of the family, so that its fault fails the test case
        before its job."""
        references.load_references(self.family)

    @run_after('setup')
    def look_up_references(self) -> None:
        """Look up the references of the test case, so that their fault fails it before
        its job."""
        # Not only when values are compared: a wrong level must fail now.
        next(references.entries_of_test_case(self), None)

    def set_references(self, names: Iterable[str]) -> None:
        """Set `reference` for every performance variable; only judged values get
        tolerances.

        A fault of the file fails the test case, and so does a reference that
        is missing in a complete file. But its values are recorded first,
        because the reference will be made from them.
        """
        try:
            known, self.no_reference = references.references_to_compare_and_note(
                self, self.values)
        except references.ReferenceError_ as err:
            self.reference_fault, known = str(err), {}
        self.reference = {'*': {
            name: known.get(name, (0, None, None, unit_of_value(name)))
            for name in names}}


def unit_of_value(name: str) -> str:
    """The unit of a performance variable."""
    return metrics.metric(metrics.split_perf_var(name)[0]).unit


class Benchmark(rfm.RunOnlyRegressionTest, Settings, Glossary, Recorded, Launch,
                NoRequeue, Measured, Referenced, special=True):
    """A program of the suite under the partition's launcher.

    A family overrides `parse_values` and `required_metrics`, and sets the ranks
    after the setup. After the sanity phase, `samples` holds the values of
    every repetition, and `values` their medians.

    Errors: a guard that refuses raises a SanityError; a value out of
    tolerance, a fault of the references or a broken rule a PerformanceError. Their
    text begins with the name of the guard and a colon.
    """

    #: Family of the check: names its reference file and its parser.
    family: ClassVar[str]

    descr: Any

    #: Nodes that the partition must allow for one job, and whether `node_counts`
    #: selects the test case by them.
    required_nodes, is_collective = 1, False

    #: Numbers of nodes of the family's test cases with the tag smoke.
    smoke_node_counts: ClassVar[tuple[int, ...]] = (1, 2)

    #: Name of the program, for the records; a check makes it a parameter.
    program: str

    INTERNAL: ClassVar[frozenset[str]] = frozenset({'emulated', 'num_nodes', 'invalid'})

    #: Whether a device or a server is emulated: never used as a reference.
    emulated = variable(typ.Bool, value=False)

    #: Nodes of the job.
    num_nodes = variable(int, value=1)

    #: Rules of the benchmark that a complete run broke. The test case fails, or is
    #: inconclusive if other programs disturbed it; its values are recorded and never
    #: compared; empty: it is valid.
    invalid = variable(str, value='')

    #: Whether other programs disturbed the measurement.
    disturbed = False

    #: Values of each repetition, by metric; empty before the sanity stage.
    samples: Any = ()

    #: Partition and environment before the setup, which `plumb site check` sets.
    place: tuple[Any, Any] = (None, None)

    @property
    def current_partition(self) -> Any:
        """The partition; before the setup that of `place`."""
        return super().current_partition or self.place[0]

    @property
    def current_environ(self) -> Any:
        """The environment; before the setup that of `place`."""
        return super().current_environ or self.place[1]

    sourcesdir = None
    env_vars: Any = required
    require_reference = True
    time_limit: Any = '10m'

    @run_after('init')
    def expose_program_to_filters(self) -> None:
        """Copy `program` into the object, where ReFrame's option -E finds it."""
        # ReFrame's -E reads only the attributes of the object itself.
        self.__dict__.setdefault('program', getattr(self, 'program', ''))

    @property
    def node_count_before_setup(self) -> int:
        """Nodes of the job, as far as they are known before the setup."""
        return max(self.num_nodes, self.required_nodes)

    def require_nodes(self, count: int, *wanted: str,
                      only_collective_counts: bool = False) -> None:
        """Run only in partitions whose jobs may have so many nodes.

        :param wanted: features of the partition, as in `valid_systems`
        :param only_collective_counts: only if collectives run on this number
        """
        families.record_needed_node_count(self.family, count)
        self.required_nodes, self.is_collective = count, only_collective_counts
        # `refuse_unlisted_node_counts` refuses the others.
        only = () if self.unlisted_node_counts else self.node_counts
        self.valid_systems = [
            ' '.join([part.fullname, *wanted])
            for part in rt.runtime().system.partitions
            if (count in features.node_counts(part, only)
                if only_collective_counts else features.max_nodes(part) >= count)]

    @property
    def unlisted_node_counts(self) -> set[int]:
        """Those of `node_counts` on which no partition runs collectives."""
        return {*self.node_counts}.difference(*map(
            features.node_counts, rt.runtime().system.partitions))

    @run_before('setup')
    def refuse_unlisted_node_counts(self) -> None:
        """Leave out no number of nodes in silence."""
        if self.is_collective and self.unlisted_node_counts:
            raise PipelineError(
                'node_counts: no partition runs collectives on '
                f'{", ".join(map(str, sorted(self.unlisted_node_counts)))} nodes; add '
                'this number to the extra node_counts of a partition in system.py')

    def alternative_environments(self) -> list[str]:
        """`valid_prog_environs` of this test case and of those that differ from it
        only in their environment, the preferred first: modes smoke and veto have
        one of them."""
        return self.valid_prog_environs

    def is_first_in_veto(self, partition: Any) -> bool:
        """Whether no other family has the test case of mode veto in a partition."""
        return True

    def is_in_mode(self, mode: str, partition: Any, environ: Any) -> bool:
        """Whether a mode has this test case, in a partition and environment that
        fit it."""
        return selection.is_in_mode(self, mode, partition, environ)

    @run_after('init', always_last=True)
    def narrow_to_mode(self) -> None:
        """In modes smoke and veto, run only in the partitions and environments in
        which the mode has this test case."""
        if self.mode not in (SMOKE, VETO) or self.mode not in self.tags:
            return
        places = [(part.fullname, env.name)
                  for part in rt.runtime().system.partitions
                  if any(selection.partition_has(part, spec)
                         for spec in self.valid_systems)
                  for env in part.environs
                  if any(selection.environment_has(env, spec)
                         for spec in self.valid_prog_environs)  # type: ignore[has-type]
                  and self.is_in_mode(self.mode, part, env)]
        self.valid_systems = [*dict.fromkeys(part for part, _ in places)]
        self.valid_prog_environs = [*dict.fromkeys(env for _, env in places)]

    @run_after('init', always_last=True)
    def describe_embedded_programs(self) -> None:
        """Add to the description in which environments the program is embedded."""
        self.descr = families.description_with_embedded_environments(
            self, rt.runtime().system.partitions)

    # Overridden by families --------------------------------------------

    def parse_values(self, run: guards.Run) -> dict[str, float]:
        """Values of one repetition's output, by metric and point.

        The output is parsed here, and nowhere else.

        :raises SanityError: the output is damaged or not complete.
        """
        raise NotImplementedError

    def min_repetition_seconds(self, values: dict[str, float]) -> float:
        """The minimum duration of a repetition that its values imply.

        Unit: seconds.
        """
        return 0.0

    def required_metrics(self) -> list[str]:
        """Metrics that every run of this test case must have."""
        raise NotImplementedError

    def read_transport_log(self, run: guards.Run) -> str:
        """The output in which the library reports its transport."""
        return run.out + run.err

    def metrics_to_compare(self, values: Any) -> set[str]:
        """The metrics that need a reference with a tolerance."""
        return judged_metric_keys(self.family, map(metrics.split_metric_key, values))

    # The pipeline ------------------------------------------------------

    def find_program_origin(self, environ: Any) -> dict[str, str]:
        """Source, version and stack of the program in an environment."""
        origin = families.program_origin(environ.extras, self.program, self.family)
        return {'source': origin.get('source', 'system'),
                'version': origin.get('version', ''),
                'stack': environ.extras.get('mpi_library', '')}

    @run_after('setup')
    def set_program_origin(self) -> None:
        """Record source, version and stack of the program in the current environment.
        """
        for name, value in self.find_program_origin(self.current_environ).items():
            setattr(self, name, value)

    @run_before('run')
    def respect_longest_time_of_partition(self) -> None:
        """Ask for no more time than the partition gives a job: the scheduler would
        refuse it."""
        longest = self.current_partition.time_limit
        if longest and self.time_limit:
            self.time_limit = min(self.time_limit, typ.Duration(longest))

    @run_before('run')
    def load_stack_environment(self) -> None:
        """Record the program's Spack hash and MPI, and load its stack in the job
        script."""
        origin = self.programs.program_origin(self.program)
        self.spec = origin.get('spec', '')
        self.stack = origin.get('mpi') or self.stack
        if self.programs.stack_record:
            self.prerun_cmds = [
                f'. {shlex.quote(self.programs.stagedir)}/stack.sh', *self.prerun_cmds]

    @sanity_function
    def check_and_collect_values(self) -> bool:
        """Run every guard and collect the values of every repetition."""
        guards.check_disk_not_full(Path(self.stagedir))
        guards.check_started_once(Path(self.stagedir), self.job)
        guards.check_service_failures(Path(self.stagedir), self.job)
        guards.check_job_state(self.job)
        runs = guards.read_repetitions(Path(self.stagedir), self.repetitions,
                                       self.accept)
        nodes.check_leftover_processes(Path(self.stagedir), runs)
        self.samples = []
        seen = []
        for run in runs:
            guards.check_rank_count(run, self.num_tasks, self.num_nodes)
            self.record_and_check_cpu_binding(run)
            self.check_transport(run)
            values = self.parse_values(run)
            guards.check_minimum_wall_time(run, self.min_repetition_seconds(values))
            sample = {**values, **compute_derived_metrics(self.family, values),
                      'wall_time': run.wall,
                      'user_time': run.user, 'system_time': run.system}
            seen.append(nodes.read_node_reports(run, self.accept,
                                                self.job.submit_time))
            sample |= nodes.interference_metrics(seen[-1], self.cpus_per_rank())
            # Every repetition: a median could hide a bad one.
            guards.check_values_finite(sample)
            self.samples.append(sample)
        interference = nodes.describe_worst_interference(
            seen, self.cpus_per_rank(), self.current_partition.extras)
        self.disturbed = bool(interference)
        self.transient = self.disturbed and not self.inconclusive
        self.inconclusive_reasons += [interference, self.invalid]
        self.values = {
            f: statistics.median(s[f] for s in self.samples if f in s)
            for f in dict.fromkeys(f for s in self.samples for f in s)}
        guards.check_metrics_and_limits(
            self.family, self.values, self.required_metrics(),
            self.params, self.current_partition.extras)
        return True

    def check_transport(self, run: guards.Run) -> None:
        """Check which transport MPI used, if the environment says how."""
        if request := self.required_transport():
            guards.check_transport(run, request, self.read_transport_log(run))
        elif self.num_tasks > 1:
            self.unchecked.append('transport: the environment has no extra transport')

    def record_and_check_cpu_binding(self, run: guards.Run) -> None:
        """Record the CPUs of the ranks and check their binding."""
        there = placement.parse_rank_lines(run.err)
        self.rank_nodes = tuple(there)
        kind = self.partition_launcher_extra_name()
        self.binding = placement.format_binding(there)
        self.gpus = gpus.format_gpus(gpus.parse_gpu_lines(run.err))
        number = placement.gpus_per_node(self.current_partition)
        shared = bool(self.gpus_per_rank()) and self.num_tasks_per_node > number
        if shared:
            self.inconclusive_reasons.append(
                f'{self.num_tasks_per_node} ranks per node shared {number} GPUs')
        if 'PLUMBLINE_GPUS' in self.env_vars:
            gpus.check_rank_gpus(run, self.num_tasks, shared)
        if kind == 'gpu_cores':
            gpus.check_cpus_near_gpus(run, self.cpus_near_gpus(), self.threads)
        elif kind in placement.PINNING:
            guards.check_rank_binding(
                run, self.threads,
                placement.cores_per_node(self.current_partition), kind)
        else:
            self.unchecked.append('binding: ' + (
                f'ranks are placed with {kind}' if kind else
                'each process binds itself'))
            if kind == 'launcher_free':
                self.inconclusive_reasons.append(
                    placement.describe_core_sharing(there, self.threads))

    def cpus_per_rank(self) -> int:
        """Number of CPUs of a rank that other programs should not use."""
        return self.threads

    @run_before('performance')
    def declare_metrics(self) -> None:
        """Declare a performance variable, with its reference, for each median and each
        value of a repetition; a dry run has 0 for each required metric."""
        if self.is_dry_run():
            self.values = dict.fromkeys(self.required_metrics(), 0.0)
        self.add_worst_ratio_metric()
        values = {**self.values, **self.values_of_repetitions()}
        self.set_references(values)
        self.add_low_values_note()
        for name, value in values.items():
            self.perf_variables[name] = sn.make_performance_function(
                sn.defer(value), unit_of_value(name))
        self.number_of_values = len(values)

    def values_of_repetitions(self) -> dict[str, float]:
        """The values of each repetition, by performance variable, if there are
        several; they are never compared."""
        if len(self.samples) < 2:
            return {}
        return {metrics.perf_var(*metrics.split_metric_key(metric), number): value
                for number, sample in enumerate(self.samples, 1)
                for metric, value in sample.items()}

    def add_low_values_note(self) -> None:
        """Add values far below the hardware to the summary's note.

        This fails nothing.
        """
        far = '' if self.is_dry_run() else limits.low_values_note(
            self.family, self.values, self.params,
            self.current_partition.extras)
        self.no_reference = '; '.join(filter(None, (self.no_reference, far)))

    def add_worst_ratio_metric(self) -> None:
        """Add the metric `worst_ratio`: the worst point of the curves.

        It is the maximum of `worse_by` over the points of the judged metrics
        that have a reference.
        """
        entry = references.find_entry(self)
        known = entry.values if entry else {}
        curves = judged_metric_names(self.family)
        ratios = []
        for metric, value in self.values.items():
            name, size = metrics.split_metric_key(metric)
            reference = known.get(metric)
            centre = reference[0] if reference else None
            # Skips expected failures, and a centre that has no ratio.
            if (name in curves and size is not None
                    and isinstance(centre, (int, float)) and centre > 0):
                ratios.append(worsening_of_metric(
                    self.family, name, metrics.metric(name).better, value,
                    centre))
        # A single point is not a curve: its own reference judges it.
        if len(ratios) > 1 or ratios and 'worst_ratio' in known:
            self.values['worst_ratio'] = max(ratios)

    @run_after('performance', always_last=True)
    def check_extracted_metrics(self) -> None:
        """Fail the test case if ReFrame did not extract a metric.

        :raises PerformanceError: a metric is missing, the references have a fault, or
            the run is invalid without interference
        """
        if self.invalid and not self.disturbed:
            raise PerformanceError(f'validity: {self.invalid}')
        if self.reference_fault:
            raise PerformanceError(f'reference: {self.reference_fault}')
        if self.is_dry_run():
            return
        done = {name.split(':')[-1] for name in self.perfvalues}
        lost = sorted(set(self.perf_variables) - done)
        if lost or not done:
            raise PerformanceError(
                'missing_metric: ReFrame did not extract '
                f'{", ".join(lost) or "any metric"}')
