"""The plan of a session, and a record for every case in it.

ReFrame writes a performance log only for cases that reach their sanity stage.
Here its runner first writes the plan, all cases that it was given
(`<perflogs>/<system>/sessions/<run>.json`), and then a record for each of
them: a case that failed, was skipped or cancelled gets `completed = 0` with
the guard's name. A session holds a lock on its plan, so that cases without a
record can be attributed to a killed session.

The hooks are installed wherever config/common.py is loaded, also for plain
`reframe`.
"""
from __future__ import annotations

import contextlib
import copy
import datetime
import fcntl
import json
import logging
import os
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import reframe
from reframe.core import fields, runtime, variables
from reframe.core import logging as rfm_logging
from reframe.core.exceptions import RunSessionTimeout
from reframe.core.schedulers.slurm import SlurmJobScheduler
from reframe.core.warnings import (
    ReframeDeprecationWarning,
    user_deprecation_warning,
)
from reframe.frontend import dependencies
from reframe.frontend.argparse import ArgumentParser
from reframe.frontend.executors import (
    RegressionTask,
    Runner,
    TaskEventListener,
    policies,
)
from reframe.frontend.loader import RegressionCheckLoader

from config import loading, lock, ordering, perflog, pinned, pipeline
from config.judged import TRIES
from config.loading import ONLY
from config.version import VERSION

_parse_args = ArgumentParser.parse_args
_inject = variables.VarSpace._inject
_validate_check = RegressionCheckLoader._validate_check
_make_scheduler = SlurmJobScheduler.__init__
#: Types of values that need no copy.
_UNCHANGING = {bool, float, int, str, type(None)}

#: Version of the plan's format.
PLAN = 1

#: How the file of reasons beside a plan ends, and letters of a reason.
REASONS, MOST_REASON = '.reasons', 400

#: Variable with the seconds until a case that is beyond its reference, or was
#: disturbed, is measured again, or `never`.
AGAIN = 'PLUMBLINE_AGAIN_AFTER'
#: What was disturbed is measured again where that takes at most this part of
#: the time of all jobs, or so long (s): a machine that is restless for longer
#: will go on, and a night would take several.
AGAIN_PART, AGAIN_SECONDS = 0.25, 300

#: Stage that a case failed in -> the guard of its record, where no guard of
#: the suite refused it.
STAGES = {
    'startup': 'setup', 'setup': 'setup', 'compile': 'build',
    'compile_complete': 'build', 'compile_wait': 'build', 'run': 'submit',
    'run_complete': 'job_state', 'run_wait': 'job_state',
    'sanity': 'sanity', 'performance': 'performance', 'finalize': 'cleanup',
    'cleanup': 'cleanup'}


def seconds_between_tries() -> float | None:
    """Seconds to wait before a case is measured again for the first time.

    $PLUMBLINE_AGAIN_AFTER, or 30: what disturbs a machine lasts for some
    seconds. None for `never`: the first try decides.
    """
    text = os.environ.get(AGAIN) or '30'
    if text == 'never':
        return None
    try:
        # The records of a second try are told from the first by their time,
        # which is in whole seconds.
        return max(float(text), 1.0)
    except ValueError:
        pipeline.refuse(f'{AGAIN} is {text!r}; it must be a number of '
                        'seconds, or never')


def measures(check: Any) -> bool:
    """Whether a case is a benchmark of the suite, not a build."""
    return hasattr(check, 'params')


def key(case: Any) -> tuple[str, str, str]:
    """The key of a case, unique in a session."""
    return case.partition.name, case.environ.name, case.check.hashcode


def planned(case: Any) -> dict[str, Any]:
    """The columns of a case that are known before it runs."""
    check = case.check
    return {
        'partition': case.partition.name, 'environ': case.environ.name,
        'family': check.family, 'check': type(check).variant_name(),
        'params': check.params, 'case': check.hashcode,
        'program': check.program, 'emulated': int(check.emulated),
        **check.origin_in(case.environ), 'name': check.display_name}


def write_plan(folder: Path, run: str, head: dict[str, Any],
               cases: list[dict[str, Any]]) -> int:
    """Writes a plan atomically; returns the file, locked.

    :raises OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f'.{run}.', dir=folder)
    try:
        # Some file systems have no locks: there a live session looks dead.
        with contextlib.suppress(OSError):
            fcntl.lockf(fd, fcntl.LOCK_EX)
        text = ',\n'.join(json.dumps(case, separators=(',', ':'))
                          for case in cases)
        data = (json.dumps({'plan': PLAN, 'run': run, **head})[:-1]
                + f', "cases": [\n{text}\n]}}\n').encode()
        while data:
            data = data[os.write(fd, data):]
        os.fsync(fd)
        os.fchmod(fd, 0o644)
        os.rename(name, folder / f'{run}.json')
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        os.close(fd)
        raise
    return fd


def guard_of(task: RegressionTask) -> str:
    """The guard's name for a case that ended early."""
    err = task.exc_info[1]
    while err is not None:
        guard = getattr(err, 'guard', '')
        if guard and isinstance(guard, str):
            return guard
        err = err.__cause__
    if task.aborted:
        return 'cancelled'
    job = task.check.job
    if 'job timed out' in str(task.exc_info[1]):
        return 'time_limit'
    if task.failed_stage == 'run' and job and job.jobid:
        return 'job_state'              # submitted, and then lost
    return STAGES.get(str(task.failed_stage), 'unknown')


class Listener(TaskEventListener):
    """A task listener with empty methods; subclasses handle some ends."""

    def nothing(self, task: RegressionTask) -> None:
        """Ignored: the task has not ended."""

    on_task_setup = on_task_run = on_task_compile = nothing
    on_task_exit = on_task_compile_exit = on_task_success = nothing
    on_task_xfailure = on_task_xsuccess = nothing
    on_task_failure = on_task_abort = on_task_skip = nothing


class Tries:
    """Cases that are measured again for one reason, and how often."""

    def __init__(self, why: str) -> None:
        self.why = why
        #: Tries so far.
        self.made: Counter[Any] = Counter()
        #: Those that are to be measured again.
        self.again: list[RegressionTask] = []
        #: What all further tries are expected to take. Unit: s.
        self.seconds = 0.0

    def add(self, task: RegressionTask) -> bool:
        """Whether another try follows this one."""
        self.made[task.testcase] += 1
        more = self.made[task.testcase] < TRIES
        if more:
            self.again.append(task)
        return more

    def take(self) -> list[RegressionTask]:
        """What is to be measured again, which is then no longer due."""
        tasks, self.again = self.again, []
        return tasks


def seconds_of(tasks: Iterable[RegressionTask]) -> float:
    """Time of the tasks' jobs together, that in a queue too. Unit: s."""
    return sum(task.duration('run_complete') or 0.0 for task in tasks)


class Accounts(Listener):
    """Writes a record for each planned case that has none."""

    def __init__(self, handler: perflog.PerflogHandler, policy: Any) -> None:
        self.handler, self.policy = handler, policy
        #: Why a case, or what was built for it, has no figures.
        self.failed: dict[Any, str] = {}
        #: Seconds from a try to the next; None: no other.
        self.pause = seconds_between_tries()
        self.begin()

    def begin(self) -> None:
        """Forgets the tries of a round before."""
        self.beyond = Tries('Beyond their references')
        self.disturbed = Tries('Disturbed while they ran')

    def settle(self, task: RegressionTask, guard: str) -> None:
        """Writes the record of a case that failed, at any stage."""
        self.failed[task.testcase] = guard
        if not measures(task.check):
            return
        task.testcase.prepare()
        check = task.check
        if check.current_partition is None:         # failed before setup
            check._current_partition = task.testcase.partition
            check._current_environ = task.testcase.environ
        for name, value in check.origin_in(task.testcase.environ).items():
            if not getattr(check, name):
                setattr(check, name, value)
        refuted = any(v[5] == 'fail' for v in check.perfvalues.values())
        if not (task.failed_stage == 'performance' and refuted):
            check.guard = check.guard or guard
        if not check.guard:
            self.suspect(task)
        # By ReFrame's own logger, so that there is one writer. ReFrame itself
        # logs nothing for a case that ends before its sanity stage.
        task._perflogger = rfm_logging.getperflogger(check)
        task.log_result()
        task._perflogger = rfm_logging.null_logger
        self.tell(task, str((task.exc_info or ('', ''))[1] or ''))

    def tell(self, task: RegressionTask, reason: str) -> None:
        """Writes why a test case failed, or is inconclusive, beside the plan:
        perflogs have no free text (postprocess/reasons.py reads it)."""
        case = task.testcase
        text = ' '.join(reason.split()
                        ).removeprefix(': ')    # ReFrame's, without a name
        partition, environ, code = key(case)
        line = json.dumps({'partition': partition, 'environ': environ,
                           'case': code, 'guard': task.check.guard,
                           'reason': text[:MOST_REASON]}) + '\n'
        folder = (self.handler.basedir
                  / case.partition.fullname.partition(':')[0] / 'sessions')
        # The record says that it failed; this only says it better.
        with contextlib.suppress(OSError), open(
                folder / f'{self.handler.run}{REASONS}', 'a') as handle:
            if text:
                handle.write(line)

    def suspect(self, task: RegressionTask) -> None:
        """Beyond a reference, and nothing else: one try is no proof."""
        task.check.again = (self.pause is not None
                            and self.beyond.add(task))

    def on_task_success(self, task: RegressionTask) -> None:
        if measures(task.check) and task.check.inconclusive:
            self.tell(task, task.check.inconclusive)
        if self.beyond.made[task.testcase]:
            self.failed.pop(task.testcase, None)
        if (self.pause is not None and getattr(task.check, 'transient', False)
                and self.disturbed.add(task)):
            # Not done with what was built for it, which ReFrame removes
            # after its last user.
            for case in task.testcase.deps:
                if case in self.policy._task_index:
                    self.policy._task_index[case].ref_count += 1

    def is_unrecorded(self, case: Any) -> bool:
        """Whether a case has no record yet."""
        return key(case) not in self.handler.recorded

    def never_started(self, case: Any) -> None:
        """Writes the record of a case that was never started."""
        task = RegressionTask(case)
        task._aborted, task._failed_stage = True, 'startup'
        self.settle(task, 'cancelled')

    def on_task_failure(self, task: RegressionTask) -> None:
        self.settle(task, guard_of(task))

    def on_task_abort(self, task: RegressionTask) -> None:
        # Cases have their records already if it ends in a retry.
        if measures(task.check) and self.is_unrecorded(task.testcase):
            self.settle(task, 'cancelled')

    def on_task_skip(self, task: RegressionTask) -> None:
        needs = [c for c in task.testcase.deps if c in self.failed]
        build = any(not measures(c.check) for c in needs)
        self.settle(task, 'build' if build else
                    'dependency' if needs else 'skipped')


class Pins(Listener):
    """Gives each job the nodes that were chosen for it."""

    def on_task_setup(self, task: RegressionTask) -> None:
        pinned.pin(task.check)


class Causes(Listener):
    """The failures of a dry run, one line for each cause."""

    def __init__(self) -> None:
        #: Cause without what is of one case alone -> example and number.
        self.found: dict[str, list[Any]] = {}

    def on_task_failure(self, task: RegressionTask) -> None:
        check = task.check
        text = ' '.join(str(task.exc_info[1]).split())
        cause = text
        for own in sorted({str(getattr(check, name, '')) for name in
                           ('params', 'program', 'speed', 'source')}
                          | {type(check).__name__,
                             task.testcase.environ.name}, key=len,
                          reverse=True):
            if len(own) > 1:
                cause = re.sub(rf'\b{re.escape(own)}\b', '*', cause)
        entry = self.found.setdefault(
            f'{task.failed_stage} ' + re.sub(r'\d+', '0', cause),
            [0, check.display_name, text])
        entry[0] += 1

    def report(self, printer: Any, *args: Any, **kwargs: Any) -> None:
        """Replaces ReFrame's report, which has twenty lines a case."""
        for number, name, text in sorted(self.found.values(), reverse=True):
            cases = 'case' if number == 1 else 'cases'
            printer.info(f'{number} {cases}: {text} (e.g. {name})')
        printer.info('\nThe line of each case: with -v')


def chosen(testcases: list) -> list:
    """The cases named in the file $PLUMBLINE_ONLY, with their fixtures.

    A list of `key`s in JSON. ReFrame's own -n /HASH adds to the user's -n,
    and takes a case with all its environments.
    """
    wanted = loading.only()
    if wanted is None:
        return testcases
    return with_needs(testcases, [case for case in testcases if measures(
        case.check) and key(case) in wanted])


def with_needs(testcases: list, found: list) -> list:
    """Those that were found and all that they need, in their order."""
    needed, left = set(found), list(found)
    while left:
        more = set(left.pop().deps) - needed
        needed |= more
        left += more
    return [case for case in testcases if case in needed]


def limit(case: Any) -> float:
    """Seconds that a case takes at the most, before it is set up."""
    check = case.check
    place = check._current_partition, check._current_environ
    check._current_partition = case.partition
    check._current_environ = case.environ
    try:
        return ordering.limit_of(check)
    finally:
        # Shared by the cases of a check until each is set up.
        check._current_partition, check._current_environ = place


def expected(case: Any, known: ordering.Known) -> tuple[float, bool]:
    """Seconds that a case is expected to take, and whether it was seen.

    Nobody knows how long what is built for it takes: 0.
    """
    if not measures(case.check):
        return 0.0, False
    return known.seconds(key(case), case.check.repeats, limit(case))


def within_budgets(cases: list, known: ordering.Known
                   ) -> tuple[list, list[dict[str, Any]]]:
    """The cases that run tonight, and a row of the plan for each of those
    that the budgets of their partitions leave to other nights."""
    now: set[Any] = set()
    left = []
    for part in {case.partition.name: case.partition
                 for case in cases}.values():
        mine = [case for case in cases if case.partition is part]
        budget = part.extras.get(ordering.BUDGET) if known.budgets else None
        if budget is None:
            now.update(mine)
            continue
        times = {case: expected(case, known) for case in mine}
        costs = {ordering.Case(key(case), case.check.most_nodes, seconds):
                 case for case, (seconds, _) in times.items()}
        tonight, others = ordering.select(costs, budget, known.last)
        now.update(costs[cost] for cost in tonight)
        bound = ordering.nights(costs, budget)
        left += [{
            **planned(costs[cost]), 'hours': cost.hours, 'budget': budget,
            'nights': (bound if cost.hours <= budget + ordering.ROUNDING
                       else 0),
            'by': 'time' if times[costs[cost]][1] else 'limit',
            'last': known.last.get(cost.key, '')} for cost in others]
    return [case for case in cases if case in now], left


class AccountedRunner(Runner):
    """ReFrame's runner: zero cases are an error, every case has a record, and
    what is beyond its reference, or was disturbed, is measured again."""

    accounts: Accounts | None = None
    #: What earlier sessions tell of the cases.
    known = ordering.Known()

    def runall(self, testcases: list, restored_cases: Any = None) -> None:
        testcases = pinned.placed(chosen(testcases), measures)
        if all(case.check.is_fixture() for case in testcases):
            pipeline.refuse(pipeline.ZERO)
        if self.policy.dry_run_mode:
            return self.dry_run(testcases, restored_cases)
        try:
            self.known = ordering.Known.handed()
        except ValueError as err:
            pipeline.refuse(str(err))
        with machine_lock():
            self.account(testcases, restored_cases)

    def account(self, testcases: list, restored_cases: Any) -> None:
        """A run with a plan, and a record for each of its cases."""
        handler = next((h for h in rfm_logging._perf_logger.handlers if
                        isinstance(h, perflog.PerflogHandler)), None)
        cases = [case for case in testcases if measures(case.check)]
        if handler is None or not cases:
            return self.run(testcases, restored_cases)
        cases, left = within_budgets(cases, self.known)
        if not cases:
            pipeline.refuse(
                f'zero cases ran: each of {len(left)} needs more node-hours '
                f'than its partition has a night ({ordering.BUDGET})')
        if left:
            testcases = with_needs(testcases, cases)
        self.accounts = accounts = Accounts(handler, self.policy)
        self.policy.task_listeners[:0] = [accounts, Pins()]
        with self.plan(handler, cases, left):
            try:
                self.run(testcases, restored_cases)
            finally:
                for case in filter(accounts.is_unrecorded, cases):
                    accounts.never_started(case)
        if accounts.failed and not self.stats.failed(
                None if self._global_stats else -1):
            # ReFrame counts as success what was skipped, not started before
            # the time was over, or passed in a retry.
            why = ', '.join(sorted(set(accounts.failed.values())))
            pipeline.refuse(
                f'{len(accounts.failed)} of {len(cases)} cases failed at '
                f'least once, or never ran ({why}); their records say '
                'completed = 0')

    def _runall(self, testcases: list) -> None:
        """ReFrame's, then further tries of what is beyond a reference, or
        was disturbed.

        A later try takes the place of the one before in what ReFrame counts;
        its own retries would forget all cases but those.
        """
        if self.accounts:
            self.accounts.begin()
        for some in pinned.rounds(testcases):
            super()._runall(self.in_order(some))
        done = self.stats._alltasks[runtime.runtime().current_run]
        # What builds waits for others within this time.
        limit = max(AGAIN_SECONDS, AGAIN_PART * seconds_of(
            task for task in done if measures(task.check)))
        while self.accounts and (due := [
                tries for tries in (
                    self.accounts.beyond,
                    self.bounded(self.accounts.disturbed, limit))
                if tries.again]):
            pause = max(map(self.announced, due))
            tasks = [task for tries in due for task in tries.take()]
            for task in tasks:
                done.remove(task)
            time.sleep(pause)
            cases = [task.testcase.clone() for task in tasks]
            graph, _ = dependencies.build_deps(cases, testcases)
            super()._runall(dependencies.toposort(graph, is_subgraph=True))

    def bounded(self, tries: Tries, limit: float) -> Tries:
        """Tries that take at most so many seconds, else none of them."""
        tries.seconds += seconds_of(tries.again)
        if not tries.again or tries.seconds <= limit:
            return tries
        tasks = tries.take()
        self._printer.info(
            f'{tries.why}: {len(tasks)} cases, not measured again: that '
            f'would take {tries.seconds / 60:.0f} min, more than '
            f'{limit / 60:.0f}, on a machine that is not quiet')
        # What was built for them waits for their next try.
        for task in tasks:
            for case in task.testcase.deps:
                if case in self.policy._task_index:
                    self.policy._task_index[case].ref_count -= 1
        policies._cleanup_all(self.policy._retired_tasks,
                              not self.policy.keep_stage_files)
        return tries

    def announced(self, tries: Tries) -> float:
        """Seconds until something is measured again, which is told.

        Twice as long before each further try: what disturbs a machine may
        last for minutes.
        """
        number = max(tries.made[task.testcase] for task in tries.again) + 1
        first = self.accounts.pause if self.accounts else None
        pause = (first or 0) * 2 ** (number - 2)
        count = len(tries.again)
        self._printer.info(
            f'{tries.why}: {count} case{"s" * (count > 1)}, measured again '
            f'in {pause:g} s (try {number} of {TRIES})')
        return pause

    def in_order(self, testcases: list) -> list:
        """The longest first, unless somebody asked for another order."""
        if any(word.startswith('--exec-o') for word in sys.argv[1:]):
            return testcases
        return ordering.longest_first(
            testcases, lambda case: expected(case, self.known)[0],
            lambda case: case.deps)

    def run(self, testcases: list, restored_cases: Any) -> None:
        """Runs the cases; the end of --duration is no error."""
        try:
            super().runall(testcases, restored_cases)
        except RunSessionTimeout as err:
            # ReFrame warns of it, and the suite makes warnings errors.
            self._printer.info(f'--duration: {err}')

    def dry_run(self, testcases: list, restored_cases: Any) -> None:
        """A dry run that prints one line a cause; single cases with -v."""
        start_at_once(self.policy)
        causes = Causes()
        self.policy.task_listeners.insert(0, causes)
        self._printer.failure_report = partial(causes.report, self._printer)
        streams = [] if runtime.runtime().get_option('general/0/verbose') \
            else [h for h in rfm_logging._logger.handlers
                  if type(h) is logging.StreamHandler]
        for handler in streams:
            handler.addFilter(not_of_a_case)
        try:
            super().runall(testcases, restored_cases)
        finally:
            for handler in streams:
                handler.removeFilter(not_of_a_case)

    @contextlib.contextmanager
    def plan(self, handler: perflog.PerflogHandler, cases: list,
             left: list[dict[str, Any]]) -> Iterator[None]:
        """Writes the plan, which stays locked until the session ends.

        :param left: what is left to other nights
        """
        now = datetime.datetime.now(datetime.timezone.utc)
        system = cases[0].partition.fullname.partition(':')[0]
        folder = handler.basedir / system / 'sessions'
        head: dict[str, Any] = {
                'time': f'{now:%Y-%m-%dT%H:%M:%SZ}', 'system': system,
                'suite': VERSION, 'commit': perflog.suite_commit(),
                'reframe': reframe.VERSION}
        if os.environ.get(ONLY) or left:
            head['partial'] = True
        if self.known.budgets:
            head['left'] = left
        try:
            fd = write_plan(folder, handler.run, head,
                            [planned(case) for case in cases])
        except OSError as err:
            pipeline.refuse(
                f'{folder}: cannot be written ({err.strerror}): nothing was '
                'run, for its figures would be lost; free the disk, or set '
                'PLUMBLINE_PERFLOGS to another folder')
        try:
            yield
        finally:
            os.close(fd)


@contextlib.contextmanager
def machine_lock() -> Iterator[None]:
    """Holds the machine's lock if no scheduler keeps others from the CPUs."""
    with contextlib.ExitStack() as stack:
        if all(part.scheduler.registered_name == 'local'
               for part in runtime.runtime().system.partitions):
            try:
                stack.enter_context(lock.held(lock.place(),
                                              program='reframe'))
            except lock.LockError as err:
                pipeline.refuse(str(err))
        yield


def start_at_once(policy: Any) -> None:
    """Has ReFrame start all cases of a dry run together, and wait for none.

    It would keep to the number of jobs of a partition, one on this machine,
    and pause for a tenth of a second before it looks whether that has ended:
    a minute and more for the whole suite, in which nothing is run.
    """
    policy._pollctl.snooze = lambda: None
    # Without jobs there is no number of them: policy serial.
    limits = getattr(policy, '_max_jobs', {})
    for name in ('_rfm_local', *(part.fullname for part in
                                 runtime.runtime().system.partitions)):
        limits[name] = sys.maxsize


def not_of_a_case(record: Any) -> bool:
    """A log filter: false for ReFrame's lines on single cases."""
    text = re.sub('\x1b\\[\\d+m', '', record.getMessage())
    return not re.match(r'==> test failed|\[ *(DRY|OK|FAIL|SKIP) ', text)


def built_anew(session: Any, graph: dict[Any, Any]) -> tuple[dict, list]:
    """The cases of a restored session, with their fixtures.

    ReFrame reads what was built from files that a good build does not leave,
    and cannot import a check of a package that way; building is quick.
    """
    needed = [dep for deps in graph.values() for dep in deps]
    return {**graph, **{dep: dep.deps for dep in needed}}, []


def parse_args(self: Any, args: Any = None, namespace: Any = None,
               **more: Any) -> Any:
    """ReFrame's, where a default is not what a person gave.

    After the options of a mode ReFrame parses the command line again, and
    adds its `-p` to the default `.*` of the first time: all environments
    would run.
    """
    if namespace is not None:
        for name, default in vars(self._defaults).items():
            if isinstance(default, list) \
                    and getattr(namespace, name, None) is default:
                setattr(namespace, name, None)
    return _parse_args(self, args, namespace, **more)


def deprecation_warning(message: str, from_version: str = '0.0.0') -> None:
    """ReFrame's, unless it is suppressed.

    ReFrame reads the source of the whole stack before it finds that nobody
    wants the warning, twice for each test that it makes: a quarter of the
    CPU time of `reframe -l`.
    """
    if warnings.filters[:1] != [
            ('ignore', None, ReframeDeprecationWarning, None, 0)]:
        user_deprecation_warning(message, from_version)


def inject(self: Any, obj: Any, cls: type) -> None:
    """ReFrame's, which makes the descriptors of a class with each object.

    They, and the check of the defaults' types, are the same for all objects
    of a class: from the second one on only the values are given. That was a
    fifth of the CPU time of `reframe -l`.
    """
    if vars(self).get('injected_into') is not cls:
        _inject(self, obj, cls)
        self.injected_into = cls
        return
    for name, var in self.items():
        value = var._default_value
        if value is not variables.Undefined:
            # As ReFrame's: no object changes the default of its class.
            obj.__dict__[name] = (value if type(value) in _UNCHANGING
                                  else copy.deepcopy(value))


def validate_check(self: Any, check: Any) -> bool:
    """ReFrame's, which walks through all that each check has, to find what
    cannot be copied.

    That is up to the class: after one check of it only the variables that a
    check may lack are looked for. The walk was a tenth of the CPU time of
    `reframe -l`; what it would miss is an error when the check is cloned.
    """
    copyable = vars(self).setdefault('_copyable', set())
    if type(check) in copyable and hasattr(check, 'valid_systems') \
            and hasattr(check, 'valid_prog_environs'):
        return True
    sound = _validate_check(self, check)
    if sound:
        copyable.add(type(check))
    return sound


def make_scheduler(self: Any) -> None:
    """ReFrame's, which takes every SBATCH_* away before it calls sbatch, but
    for those that a site names (`slurm_envvar_whitelist`).

    The account is a person's, and not the site's: it is not written down.
    """
    _make_scheduler(self)
    self._envvar_whitelist.add('SBATCH_ACCOUNT')


def install() -> None:
    """Installs the hooks; most of them in ReFrame's command line."""
    module: Any
    for module in (variables, fields):
        module.user_deprecation_warning = deprecation_warning
    variables.VarSpace._inject = inject
    RegressionCheckLoader._validate_check = validate_check
    SlurmJobScheduler.__init__ = make_scheduler
    loading.install()
    cli: Any = sys.modules.get('reframe.frontend.cli')
    if cli is not None:
        cli.Runner = AccountedRunner
        cli.argparse.ArgumentParser.parse_args = parse_args
        cli.ci.emit_pipeline = pipeline.emit
        cli.reporting._RestoredSessionInfo.restore_dangling = built_anew
