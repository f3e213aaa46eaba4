"""What all benchmarks of the suite share.

:class:`Benchmark` runs a program under its launcher, guards it, turns its
output into figures and judges them. A family says how a program is called
(`arguments`), how its output is read (`figures_of`) and what must be there
(`assert_whole`); everything else follows.
"""
from __future__ import annotations

import dataclasses
import json
import math
import shlex
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import reframe as rfm
import reframe.core.runtime as rt
from reframe.core.builtins import (
    run_after,
    run_before,
    sanity_function,
    variable,
)
from reframe.core.exceptions import (
    BuildSystemError,
    PerformanceError,
    SanityError,
)
from reframe.utility import sanity as sn

from config import families, places
from config.sessions.judged import derived, judged, judged_metrics, worse_by

from ..machine import nodes
from ..spack import stack
from . import (
    features,
    guards,
    limits,
    metrics,
    placement,
    references,
    vendor,
)

SRC = Path(__file__).resolve().parent / 'src'

#: Folder of a build that gets a file of facts from each node.
FACTS = 'facts'


if TYPE_CHECKING:
    class Plugin(rfm.RegressionTestPlugin):
        """What ReFrame's metaclass makes of a class, for mypy."""

        executable: str
        executable_opts: list[str]
        keep_files: list[str]
        prerun_cmds: list[str]

        def __init_subclass__(cls, special: bool = False) -> None: ...
else:
    Plugin = rfm.RegressionTestPlugin


class Settings(Plugin):
    """What the modes set with -S.

    Fixtures have these too: ReFrame warns of an unknown variable of a test,
    and the suite takes warnings as errors.
    """

    #: Runs of the program inside one job; the median over them is judged.
    #: Unit: runs. Default: 1.
    repetitions = variable(int, value=1)

    #: Values are compared with limits alone; --bringup of plumb sets it.
    bringup = variable(bool, value=False)

    #: Programs that can validate their data do so, in a run of its own.
    validates = variable(bool, value=True)


class Programs(rfm.CompileOnlyRegressionTest, Settings, special=True):
    """Programs of one family in one environment: built once for all checks.

    Builds what `build_commands` says, the observer of the nodes, and the
    speed probe where the machine's speed is watched (here, not in a fixture of
    its own: every fixture costs each case that uses it). Installed programs
    need no build.
    """

    build_system: Any = 'CustomBuild'
    keep_files = ['stack.*']
    max_pending_time = '1h'

    @run_after('init')
    def build_stacks_locally(self) -> None:
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

    def build_tools(self) -> list[str]:
        """Shell commands that build what is needed with any program."""
        return []

    @property
    def record(self) -> dict[str, Any] | None:
        """The record of the environment's stack; None: no stack, or a dry
        run, which installs nothing."""
        path = Path(self.stagedir, 'stack.record.json')
        return json.loads(path.read_text()) if path.exists() else None

    def origin(self, program: str = '') -> dict[str, Any]:
        """Where the programs came from: source, prefix, version, spec, mpi.

        What the environment says, and what its stack really has. Embedded
        programs are no package: of a stack they have the MPI.
        """
        origin = families.origin(self.current_environ.extras, program,
                                 self.family)
        record = self.record
        if record:
            mpi = record['mpi']
            has = stack.package_origin(record, mpi) if mpi else {'spec': ''}
            origin |= {'mpi': has['spec'].partition('/')[0],
                       'spec': has['spec']}
            if origin['source'] == 'spack':
                origin |= stack.origin(record, families.offering(
                    program, self.family), program)
        return origin

    @run_before('compile')
    def limit_pending_time(self) -> None:
        # ReFrame hands the limit to the jobs that run, not to those that
        # build.
        self.build_job.max_pending_time = self.max_pending_time

    @run_before('compile')
    def set_build_commands(self) -> None:
        commands = ['true']
        extras = self.current_environ.extras
        if 'stack' in extras:
            self.find_stack(extras['stack'])
            commands.append('. ./stack.sh')
        if families.origin(extras, '', self.family).get(
                'source') == 'embedded':
            commands += self.build_commands()
        commands += self.build_tools()
        tools = ['observe']
        if 'speed_probe' in self.current_partition.features:
            tools.append('speed_probe')
        commands += [
            f'{self.current_environ.cc or "cc"} -O2 -std=gnu11 -pthread '
            f'{shlex.quote(str(SRC / tool))}.c -o {tool}' for tool in tools]
        # One list: a failed command ends the build. The job's exit code is 0
        # all the same: `built` then reports which command failed.
        self.build_system.commands = [
            f'( {" && ".join(commands)} ) && touch build.done || true']

    def find_stack(self, name: str) -> None:
        """Leave the record of an installed stack in the stage directory."""
        if self.is_dry_run():
            return
        try:
            record = stack.installed(name, places.site() or Path())
            stack.hand_over(record, Path(self.stagedir))
        except stack.StackError as err:
            raise BuildSystemError(str(err)) from None

    @sanity_function
    def check_build(self) -> bool:
        if Path(self.stagedir, 'build.done').exists():
            return True
        guards.check_job(self.build_job)
        output = Path(self.stagedir, 'rfm_build.err')
        lines = [ln.strip() for ln in
                 output.read_text(errors='replace').splitlines() if ln.strip()]
        # A compiler's first error matters, of plumb's messages the last.
        ours = [ln for ln in lines if ln.startswith('plumb: ')][-1:]
        result = ours or [ln for ln in lines if 'rror' in ln] or lines
        raise SanityError(f'build: {result[0] if result else "no word why"} '
                          f'(all of it: {output})')


class Glossary(Plugin):
    """Refuses requirements that are not in the glossary of features."""

    @run_after('init', always_last=True)
    def check_glossary(self) -> None:
        features.check_feature_names(
            self.valid_systems, self.valid_prog_environs, type(self).__name__
        )


class Launch(Plugin):
    """Pins ranks where cores suffice, oversubscribes where they do not."""

    #: Threads or processes that each rank has while it measures.
    threads = variable(int, value=1)

    #: Why a valid run must not be judged (oversubscription); empty: it may.
    inconclusive = variable(str, value='')

    #: What made it inconclusive may pass: the session measures it again.
    transient = variable(bool, value=False)

    def transport(self) -> Mapping[str, Any] | None:
        """The transport of MPI that must be used; None: one rank has none."""
        extras = {} if self.num_tasks == 1 else self.current_environ.extras
        return extras.get('transport')

    def lay_out_ranks(self) -> None:
        """Sets ranks, nodes and threads, in a hook after the setup."""

    def launcher_kind(self) -> str:
        """The extra of the partition that says how ranks are placed."""
        if placement.core_shortage(self):
            return 'launcher_oversubscribe'
        return placement.pinning_extra(self.current_partition)

    # Last: hooks of families after the setup set the ranks.
    @run_after('setup', always_last=True)
    def check_cores(self) -> None:
        placement.cores(self.current_partition)
        placement.options(self)
        if self.launcher_kind() == 'launcher_oversubscribe':
            self.inconclusive = placement.core_shortage(self)

    @run_before('run')
    def pin_or_oversubscribe(self) -> None:
        self.job.launcher.options += placement.options(self)
        extras = self.current_partition.extras
        if self.launcher_kind() == 'launcher_oversubscribe':
            self.env_vars.update(extras.get('oversubscribe_env', {}))
        self.env_vars.update((self.transport() or {}).get('env', {}))


class NoRequeue(Plugin):
    """A job that lost a node fails; Slurm does not start it again in the
    same stage directory."""

    @run_before('run')
    def disable_requeue(self) -> None:
        if self.current_partition.scheduler.registered_name in (
                'slurm', 'squeue'):
            self.job.options.append('--no-requeue')


class Measured(Plugin):
    """Puts measure.sh before the launcher and rank.sh before the program,
    with an observer (observe.c) behind each of them.

    The family's fixture of :class:`Programs` is called `programs`.
    """

    #: Exit codes of the program that count as success (known faults only).
    accept = variable(list, value=[0])

    #: Names of the files of facts of the job's nodes.
    node_facts = variable(str, value='', loggable=True)

    #: These files: name -> text.
    facts_files: Mapping[str, str] = {}

    #: Options of one more run that validates data; empty: no such run.
    validation = variable(str, value='')

    def before_launcher(self) -> list[str]:
        """A command in front of the launcher, as shell words."""
        return []

    @run_before('run', always_last=True)
    def measure(self) -> None:
        part = self.current_partition
        observe = f'{self.programs.stagedir}/observe'
        options = ['--repetitions', self.repetitions, '--accept',
                   ' '.join(map(str, self.accept)), '--observe', observe]
        if 'speed_probe' in part.features:
            options += [
                '--speed-probe',
                f'{self.programs.stagedir}/speed_probe',
            ]
        if self.validation:
            options += ['--validate', self.validation]
        self.job.launcher.modifier = shlex.quote(str(SRC / 'measure.sh'))
        self.job.launcher.modifier_options = [
            *(shlex.quote(str(o)) for o in options), '--',
            *self.before_launcher()]
        self.executable_opts = [
            shlex.quote(observe), '--facts', *(shlex.quote(str(word)) for word
                                               in self.facts_of_a_node()),
            '--', self.executable, *self.executable_opts]
        self.executable = shlex.quote(str(SRC / 'rank.sh'))
        self.keep_files = [*self.keep_files, 'run.*.out', 'run.*.err',
                           'runs.tsv', 'validate.*']

    def facts_of_a_node(self) -> list[Any]:
        """Arguments of `observe --facts`: folder, script, scratch, launcher.
        Collected once a node, session and environment, as each environment
        has its own libraries and launcher."""
        folder = Path(self.programs.stagedir, FACTS)
        if not self.is_dry_run():
            folder.mkdir(exist_ok=True)
        # The launcher's name may have a suffix: mpirun-openmpi.
        launcher, *_ = (self.current_partition.launcher_type
                        .registered_name.split('-'))
        return [folder, SRC / 'facts.sh',
                self.current_partition.extras.get('scratch', ''), launcher]

    @run_before('sanity')
    def collect_node_facts(self) -> None:
        self.node_facts, self.facts_files = nodes.node_facts_files(
            Path(self.programs.stagedir, FACTS), self.job.nodelist or [])


class Referenced(Plugin):
    """References from the site's file, judged strictly (contract 6)."""

    #: What is wrong with the case's references.
    reference_fault = variable(str, value='')

    #: Note for the summary: why nothing was judged, whose references were
    #: used, which values have no bound yet or are far better than expected.
    no_reference = variable(str, value='', loggable=True)

    #: Beyond a reference, and the session will measure it once more.
    retried = variable(bool, value=False)

    @run_after('setup')
    def check_reference_file(self) -> None:
        # Called in any case: a broken vendor profile must fail now.
        vendor.values(self)
        if not self.bringup:
            references.load(self.family)

    def judge_by_references(self, values: dict[str, float]) -> None:
        """Sets `reference` for every figure; only judged ones are bounded.

        A fault of the file fails the case, and so does a reference that is
        missing where the file is complete; but not before its figures were
        kept: they are what the reference will be made from.
        """
        try:
            known, self.no_reference = references.resolve(self, values)
        except references.ReferenceError_ as err:
            self.guard, self.reference_fault, known = 'reference', str(err), {}
        self.reference = {'*': {
            f: known.get(f, (0, None, None, metrics.metric(
                metrics.split(f)[0]).unit)) for f in values}}


class Benchmark(rfm.RunOnlyRegressionTest, Settings, Glossary, Launch,
                NoRequeue, Measured, Referenced, special=True):
    """A program of the suite under the partition's launcher.

    After a run: `samples` holds every figure of every repetition, `speed` the
    machine's speed class, `guard` the name of the guard that refused.
    """

    #: Family of the check: names its reference file and its parser.
    family: ClassVar[str]

    #: Name of the program, for the records; a check makes it a parameter.
    program: str

    #: Version of the program, from its own output.
    version = variable(str, value='')

    #: Where the program came from: spack, module, system, embedded.
    source = variable(str, value='')

    #: Spack hash of the program, empty otherwise.
    spec = variable(str, value='')

    #: The MPI or stack that the program was built with, for the records.
    stack = variable(str, value='')

    #: Whether a device or a server is emulated: never used as a reference.
    emulated = variable(bool, value=False)

    #: Speed class of the machine: fast, slow; mixed: it did not stay at one;
    #: other: at neither; -: no speed probe.
    speed = variable(str, value='-')

    #: Nodes of the job.
    num_nodes = variable(int, value=1)

    #: The guard that refused the run.
    guard = variable(str, value='')

    #: CPUs that the ranks of each node really had, `n1:0,1 n2:0,1`.
    binding = variable(str, value='', loggable=True)

    #: CPU time of other programs on its nodes, in words, if above the limit.
    disturbed = variable(str, value='')

    #: The benchmark's rules that a complete run has broken: the case fails,
    #: its figures are recorded and never judged; empty: it is valid.
    invalid = variable(str, value='')

    sourcesdir = None
    require_reference = True
    time_limit: Any = '10m'
    max_pending_time = '1h'

    @run_after('init')
    def expose_program(self) -> None:
        # ReFrame's -E looks at what the object has itself.
        self.__dict__.setdefault('program', getattr(self, 'program', ''))

    @property
    def params(self) -> str:
        """All parameters that distinguish this case from others of its
        check, as `name=value name=value`."""
        own: dict[str, Any] = {}
        for name in sorted(type(self).raw_params):
            value = getattr(self, name)
            if dataclasses.is_dataclass(type(value)):
                own |= dataclasses.asdict(value)
            elif not name.startswith('.'):
                own[name] = type(self).raw_params[name].format(value)
        own |= self.more_params()
        return ' '.join(f'{k}={str(v).replace(" ", "_")}'
                        for k, v in own.items())

    @property
    def max_nodes(self) -> int:
        """Nodes of the job, as far as is known before it is set up."""
        return max(
            self.num_nodes, features.requested_nodes(self.valid_systems)
        )

    @property
    def attached(self) -> dict[str, str]:
        """Files that are kept beside the records, path -> text."""
        return {}

    # What a family adds ------------------------------------------------

    def more_params(self) -> dict[str, Any]:
        """Variables that, when set, make it a different case."""
        return {}

    def values_of(self, run: guards.Run) -> dict[str, float]:
        """Values of one repetition's output, by metric and point.

        The output is parsed here, and nowhere else.

        :raises guards.Refused: the output is damaged or not complete
        """
        raise NotImplementedError

    def claimed_seconds(self, values: dict[str, float]) -> float:
        """The least time that a run must have taken, by its figures."""
        return 0.0

    def seconds_needed(self) -> float:
        """What the job needs at the least, whatever its time limit; 0: no
        more than that. Known on a partition."""
        return 0.0

    def planned_values(self) -> list[str]:
        """Figures that every run of this case must have."""
        raise NotImplementedError

    def transport_log(self, run: guards.Run) -> str:
        """Where the library tells which transport it took."""
        return run.err

    def judged_values(self, values: Any) -> set[str]:
        """The figures that need a reference with a bound."""
        return judged(self.family, map(metrics.split, values))

    # The pipeline ------------------------------------------------------

    def origin_in(self, environ: Any) -> dict[str, str]:
        """Source, version and stack of the program, by the environment."""
        origin = families.origin(environ.extras, self.program, self.family)
        return {'source': origin.get('source', 'system'),
                'version': origin.get('version', ''),
                'stack': environ.extras.get('mpi_library', '')}

    @run_after('setup')
    def set_origin(self) -> None:
        for name, value in self.origin_in(self.current_environ).items():
            setattr(self, name, value)

    @run_before('run')
    def use_installed_programs(self) -> None:
        origin = self.programs.origin(self.program)
        self.spec = origin.get('spec', '')
        self.stack = origin.get('mpi') or self.stack
        if self.programs.record:
            self.prerun_cmds = [
                f'. {shlex.quote(self.programs.stagedir)}/stack.sh',
                *self.prerun_cmds]

    @sanity_function
    def check_run(self) -> bool:
        """Every guard, then the figures of every repetition."""
        try:
            guards.check_disk(Path(self.stagedir))
            guards.check_services(Path(self.stagedir), self.job)
            guards.check_job(self.job)
            runs = guards.read_runs(Path(self.stagedir), self.repetitions,
                                    self.accept)
            nodes.check_leftovers(Path(self.stagedir), runs)
            self.samples: list[dict[str, float]] = []
            seen = []
            for run in runs:
                guards.check_rank_count(run, self.num_tasks, self.num_nodes)
                self.check_binding(run)
                guards.check_transport(
                    run, self.transport(), self.transport_log(run)
                )
                values = self.values_of(run)
                guards.check_wall_time(run, self.claimed_seconds(values))
                sample = {**values, **derived(self.family, values),
                          'wall_time': run.wall,
                          'user_time': run.user, 'system_time': run.system}
                seen.append(nodes.read_nodes(run, self.accept,
                                           self.job.submit_time))
                sample |= nodes.values(seen[-1], self.cpus_per_rank())
                if not math.isnan(run.before + run.after):
                    sample['cacheline_roundtrip'] = max(run.before, run.after)
                # Every repetition: a median could hide a bad one.
                guards.check_finite(sample)
                self.samples.append(sample)
            lasting = self.inconclusive
            self.speed, why = self.speed_class(runs)
            self.add_inconclusive(why)
            self.disturbed = nodes.disturbed(
                seen, self.cpus_per_rank(), self.current_partition.extras)
            self.add_inconclusive(self.disturbed)
            self.transient = self.inconclusive != lasting and not lasting
            if self.invalid:
                self.guard, self.inconclusive = 'validity', self.invalid
            self.values = {
                f: statistics.median(s[f] for s in self.samples if f in s)
                for f in dict.fromkeys(f for s in self.samples for f in s)}
            guards.check_values(
                self.family, self.values, self.planned_values(),
                self.params, self.current_partition.extras)
        except guards.Refused as err:
            self.guard = err.guard
            raise
        return True

    def add_inconclusive(self, why: str) -> None:
        """Adds a reason to `inconclusive`, once; an empty one is ignored."""
        self.inconclusive = '; '.join(filter(None, dict.fromkeys(
            [*self.inconclusive.split('; '), why])))

    def check_binding(self, run: guards.Run) -> None:
        """Records the CPUs of the ranks and checks their binding."""
        there, kind = placement.ranks(run.err), self.launcher_kind()
        self.binding = placement.format_binding(there)
        if kind == 'launcher_pin':
            guards.check_rank_binding(
                run, self.threads, placement.cores(self.current_partition))
        elif kind == 'launcher_free':
            self.inconclusive = self.inconclusive or placement.core_sharing(
                there, self.threads)

    def cpus_per_rank(self) -> int:
        """CPUs that a rank uses; other programs should not use them."""
        return max(self.num_cpus_per_task or 1, self.threads)

    def speed_class(self, runs: list[guards.Run]) -> tuple[str, str]:
        """The machine's speed class, and why runs at it cannot be judged.

        A job in which the speed changed is `mixed`, and the session measures
        it again. A change and back within one run cannot be seen.
        """
        extras = self.current_partition.extras
        boundary = extras.get('speed_boundary_ns')
        if boundary == math.inf:        # one class, whatever was read
            return 'fast', ''
        readings = [x for run in runs for x in (run.before, run.after)]
        if boundary is None or any(map(math.isnan, readings)):
            return '-', ''
        bands = {'fast': (0, boundary), 'slow': (boundary, math.inf),
                 **extras.get('speed_bands_ns', {})}

        def class_of(x: float) -> str:
            name = 'fast' if x < boundary else 'slow'
            return name if bands[name][0] <= x <= bands[name][1] else 'other'

        odd = [x for x in readings if class_of(x) == 'other']
        if odd:
            known = ' nor '.join(f'{name} ({low:g} to {high:g} ns)'
                                 for name, (low, high) in bands.items())
            return 'other', (
                f'the machine was at a speed of its own: a cache line went '
                f'to and fro in {max(odd):g} ns, neither {known}; throttled, '
                'or are its CPUs shared? If it is always so, see '
                'speed_bands_ns')
        classes = set(map(class_of, readings))
        if len(classes) > 1:
            return 'mixed', 'the machine kept changing its speed'
        return classes.pop(), ''

    @run_before('performance')
    def declare_metrics(self) -> None:
        if self.is_dry_run():
            self.values = dict.fromkeys(self.planned_values(), 0.0)
        self.add_worst_ratio()
        self.judge_by_references(self.values)
        self.note_low_values()
        for metric, value in self.values.items():
            self.perf_variables[metric] = sn.make_performance_function(
                sn.defer(value),
                metrics.metric(metrics.split(metric)[0]).unit)

    def note_low_values(self) -> None:
        """Adds to the summary's note; fails nothing."""
        far = '' if self.is_dry_run() else limits.below_half_of_limit(
            self.family, self.values, self.params,
            self.current_partition.extras)
        self.no_reference = '; '.join(filter(None, (self.no_reference, far)))

    def add_worst_ratio(self) -> None:
        """The worst point of the curve against its reference.

        The largest of `worse_by` over the points of the judged metrics that
        have a reference.
        """
        result = references.entry(self).values
        curves = judged_metrics(self.family)
        ratios = []
        for metric, value in self.values.items():
            name, size = metrics.split(metric)
            entry = result.get(metric)
            centre = entry[0] if isinstance(entry, list) and entry else None
            # Skips expected failures and malformed references; the latter
            # are refused when all references are checked.
            if (name in curves and size is not None
                    and isinstance(centre, (int, float))):
                ratios.append(worse_by(
                    self.family, name, metrics.metric(name).better, value,
                    centre))
        # A single point is no curve: it is judged by its own reference.
        if len(ratios) > 1 or ratios and 'worst_ratio' in result:
            self.values['worst_ratio'] = max(ratios)

    @run_after('performance', always_last=True)
    def check_extracted_metrics(self) -> None:
        if self.invalid:
            raise PerformanceError(f'validity: {self.invalid}')
        if self.reference_fault:
            raise PerformanceError(f'reference: {self.reference_fault}')
        if self.is_dry_run():
            return
        done = {name.split(':')[-1] for name in self.perfvalues}
        lost = sorted(set(self.perf_variables) - done)
        if lost or not done:
            self.guard = 'missing_metric'
            raise PerformanceError('missing_metric: not extracted: '
                                   f'{", ".join(lost) or "anything"}')
