"""The one subclass of ReFrame's Runner: plan, records, order and retries.

ReFrame writes a performance log only for test cases that reach their sanity
stage. This runner first writes the plan, all test cases of the session
(`<perflogs>/<system>/sessions/<run>.json`), and then a record for each of
them: a test case that failed, was skipped or was cancelled gets
`completed = 0` with the guard's name. A session holds a lock on its plan, so
that test cases without a record can be attributed to a killed session.

config/common.py installs the runner, also for plain `reframe`. `PRIVATE`
lists all that the suite needs of ReFrame without documentation.
"""
from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import logging
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import reframe
from reframe.core import runtime
from reframe.core.exceptions import (
    ForceExitError,
    JobBlockedError,
    LoggingError,
    RunSessionTimeout,
)
from reframe.core.logging import getlogger
from reframe.frontend import dependencies
from reframe.frontend.executors import (
    RegressionTask,
    Runner,
    TaskEventListener,
)

from config import places
from config.console import count_with_noun
from config.records import perflog
from config.references import accepted_files
from config.sessions import (
    clock,
    cost,
    disk,
    lock,
    ordering,
    pinned,
    selection,
    slurm_jobs,
)
from config.sessions.judged import MEASUREMENTS, out_of_tolerance_text
from config.sessions.progress import Progress
from config.version import VERSION

#: What the suite needs of ReFrame that is not documented, `MODULE:NAME` or
#: `MODULE:CLASS.NAME`, and why. tests/config/test_reframe_names.py fails with
#: the name if ReFrame changes it.
PRIVATE = {
    'reframe.frontend.cli:Runner':
        'replaced by AccountedRunner: ReFrame has no option for a runner',
    'reframe.utility.osext:run_command_async':
        'replaced if the path of the work folder has blanks or quotes: the '
        'scheduler local splits the path of a job script there '
        '(config/sessions/local_jobs.py)',
    'reframe.frontend.executors:Runner.runall':
        'extended: selects test cases, refuses zero of them, writes the plan',
    'reframe.frontend.executors:Runner._runall':
        'extended: one round of --reruns or --duration, with its retries',
    'reframe.frontend.executors:Runner.policy':
        'to add listeners; has the printer and the option --dry-run',
    'reframe.frontend.executors:Runner.stats':
        'which test cases failed; how long the jobs of a round took',
    'reframe.frontend.executors:TestStats.failed':
        'whether ReFrame will exit 1 by itself',
    'reframe.frontend.executors:TestStats._alltasks':
        'a retry replaces the measurement before it; a dry run replaces '
        "ReFrame's report",
    'reframe.frontend.executors:ExecutionPolicy.task_listeners':
        'to learn how each test case ended',
    'reframe.frontend.executors:ExecutionPolicy.dry_run_mode':
        'a dry run has no plan and no records',
    'reframe.frontend.executors:ExecutionPolicy.printer':
        'lines among those of ReFrame',
    'reframe.frontend.executors:TaskEventListener.on_task_abort':
        'one of the events of which records are made',
    'reframe.frontend.executors:RegressionTask.testcase':
        'the test case of an event',
    'reframe.frontend.executors:RegressionTask.failed_stage':
        'the guard of a record, if no guard of the suite refused the run',
    'reframe.frontend.executors:RegressionTask.exc_info':
        'the reason beside the plan',
    'reframe.frontend.executors:RegressionTask.aborted':
        'the guard of a test case that was cancelled',
    'reframe.frontend.executors:RegressionTask.duration':
        'how long the job took, for the limit on retries',
    'reframe.frontend.executors:RegressionTask.ref_count':
        'keeps a build for the retry of a test case that passed',
    'reframe.frontend.executors:TestCase.prepare':
        'a copy of the check of a test case that never started',
    'reframe.frontend.executors:TestCase.clone':
        'a test case to measure again',
    'reframe.frontend.executors:TestCase.deps':
        'the builds of a test case',
    'reframe.frontend.executors:TestCase.in_degree':
        'how many test cases use a build (config/sessions/pinned.py)',
    'reframe.frontend.dependencies:build_deps':
        'the builds of a test case that is measured again',
    'reframe.frontend.dependencies:toposort':
        'the order of test cases that are measured again',
    'reframe.core.pipeline:RegressionTest._current_partition':
        'time limit, place and references of a test case before its setup',
    'reframe.core.pipeline:RegressionTest._current_environ':
        'the same',
    'reframe.core.pipeline:RegressionTest._rfm_unique_name':
        'names a test case on chosen nodes (config/sessions/pinned.py)',
    'reframe.core.pipeline:RegressionTest._rfm_display_name':
        'the same',
    'reframe.core.pipeline:RegressionTest._rfm_hashcode':
        'a name that changed needs a new hash (config/sessions/pinned.py)',
    'reframe.core.pipeline:RegressionTest._rfm_name':
        'the same',
    'reframe.core.pipeline:RegressionTest._rfm_dry_run':
        'what a dry run would find (cli/site/cases.py)',
    'reframe.core.systems:SystemPartition._max_jobs':
        'how many pairs of nodes are measured at a time '
        '(config/sessions/pinned.py)',
}

#: Version of the plan's format.
PLAN = 1

#: Exceptions by which a signal ends a session.
ABORTS = (KeyboardInterrupt, ForceExitError)
#: Seconds that an `sbatch` has to end when its session is aborted.
SBATCH_TIMEOUT = 10

#: How the file of reasons beside a plan ends, and letters of a reason.
REASONS, MAX_REASON = '.reasons', 400

#: Variable with a file of the test cases to which a session is restricted: a
#: list of [partition, environment, hash] in JSON.
ONLY = 'PLUMBLINE_ONLY'

#: Variable with the seconds until the first retry of a test case that is out
#: of tolerance or had interference, or `never`.
AGAIN = 'PLUMBLINE_AGAIN_AFTER'
#: Variable that is set in a round of `plumb references calibrate`: test cases with
#: interference are left to the next round. Those out of tolerance are measured again
#: in the round: the tolerance is made for four measurements, and without the values
#: that passed at last, a later one would become too narrow.
ROUND = 'PLUMBLINE_ROUND'
#: Test cases with interference are measured again if that takes at most this
#: fraction of the time of all jobs, or this time (s): longer interference does
#: not end soon, and a session would take several times as long.
AGAIN_PART, AGAIN_SECONDS = 0.25, 300

#: Stage in which a test case failed -> guard of its record, unless a guard of
#: the suite refused it.
STAGES = {
    'startup': 'setup', 'setup': 'setup', 'compile': 'build',
    'compile_complete': 'build', 'compile_wait': 'build', 'run': 'submit',
    'run_complete': 'job_state', 'run_wait': 'job_state',
    'sanity': 'sanity', 'performance': 'performance', 'finalize': 'cleanup',
    'cleanup': 'cleanup'}


def exit_with_error(reason: str, code: int = 1) -> NoReturn:
    """Ends ReFrame with one line on stderr and an exit code."""
    print(f'plumb: {reason}', file=sys.stderr)
    sys.exit(code)


def first_retry_delay_seconds() -> float | None:
    """Seconds before the first retry of a test case.

    $PLUMBLINE_AGAIN_AFTER, or 30, because interference lasts for some seconds.
    None for `never`: the first measurement decides.
    """
    text = os.environ.get(AGAIN) or '30'
    if text == 'never':
        return None
    try:
        # The records of a retry differ from the first only in their time,
        # which is in whole seconds.
        return max(float(text), 1.0)
    except ValueError:
        exit_with_error(f'{AGAIN} is {text!r}; set it to a number of seconds, or to '
                        'never')


def is_benchmark(check: Any) -> bool:
    """Whether a test case is a benchmark of the suite, not a build."""
    return hasattr(check, 'params')


def test_case_key(case: Any) -> tuple[str, str, str]:
    """The key of a test case, unique in a session."""
    return case.partition.name, case.environ.name, case.check.hashcode


def plan_row(case: Any) -> dict[str, Any]:
    """The columns of a test case that are known before it runs."""
    check = case.check
    return {
        'partition': case.partition.name, 'environ': case.environ.name,
        'family': check.family, 'check': type(check).variant_name(),
        'params': check.params, 'case': check.hashcode,
        'program': check.program, 'emulated': int(check.emulated),
        **check.find_program_origin(case.environ), 'name': check.display_name}


def plan_rows(cases: list[Any]) -> list[dict[str, Any]]:
    """The rows of a plan. `veto` is 1 for the test cases that mode veto has, with
    which a nightly session measures the nodes that are due."""
    veto = {*selection.select_veto_test_cases(cases)}
    return [{**plan_row(case), **({'veto': 1} if case in veto else {})}
            for case in cases]


def write_and_lock_plan(folder: Path, run: str, head: dict[str, Any],
                        cases: list[dict[str, Any]]) -> int:
    """Write a plan atomically; returns its file descriptor, locked.

    :raises OSError: it cannot be written
    """
    folder.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f'.{run}.', dir=folder)
    try:
        # Some file systems have no locks: a live session then looks killed.
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


def guard_of_failed_task(task: RegressionTask) -> str:
    """The name of the guard of a test case that ended early."""
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
    if isinstance(task.exc_info[1], JobBlockedError):
        return 'pending'
    if task.failed_stage == 'run' and job and job.jobid:
        return 'job_state'              # submitted, and then lost
    return STAGES.get(str(task.failed_stage), 'unknown')


class Listener(TaskEventListener):
    """A task listener with empty methods; subclasses override some."""

    def ignore_event(self, task: RegressionTask) -> None:
        """Ignored: the task has not ended."""

    on_task_setup = on_task_run = on_task_compile = ignore_event
    on_task_exit = on_task_compile_exit = on_task_success = ignore_event
    on_task_xfailure = on_task_xsuccess = ignore_event
    on_task_failure = on_task_abort = on_task_skip = ignore_event


class Retries:
    """Test cases that are measured again for one reason, and how often."""

    def __init__(self, why: str) -> None:
        self.why = why
        #: Measurements so far, by test case.
        self.made: Counter[Any] = Counter()
        #: Tasks that are to be measured again.
        self.due: list[RegressionTask] = []
        #: Expected time of all retries so far. Unit: s.
        self.seconds = 0.0

    def count_and_queue_retry(self, task: RegressionTask) -> bool:
        """Count a measurement; returns whether a retry follows it."""
        self.made[task.testcase] += 1
        more = self.made[task.testcase] < MEASUREMENTS
        if more:
            self.due.append(task)
        return more

    def pop_due_tasks(self) -> list[RegressionTask]:
        """Remove and return what is to be measured again."""
        tasks, self.due = self.due, []
        return tasks


def total_job_seconds(tasks: Iterable[RegressionTask]) -> float:
    """Time of the tasks' jobs together, that in a queue too. Unit: s."""
    return sum(task.duration('run_complete') or 0.0 for task in tasks)


@contextlib.contextmanager
def set_partition_and_environ_temporarily(
    check: Any, partition: Any, environ: Any
) -> Iterator[None]:
    """Give a check, which its test cases share, a place before its setup.
    """
    before = check._current_partition, check._current_environ
    check._current_partition, check._current_environ = partition, environ
    try:
        yield
    finally:
        check._current_partition, check._current_environ = before


class Accounts(Listener):
    """Writes a record for each planned test case that has none."""

    def __init__(self, handler: perflog.PerflogHandler) -> None:
        self.handler = handler
        #: Test case -> the guard that failed it, or what was built for it.
        self.failed: dict[Any, str] = {}
        #: Test case that failed -> why.
        self.failure_reasons: dict[Any, str] = {}
        #: Test case -> its latest task.
        self.tasks: dict[Any, RegressionTask] = {}
        #: Seconds until the first retry; None: there is none.
        self.pause = first_retry_delay_seconds()
        self.retries_interference = self.pause is not None and (
            ROUND not in os.environ)
        self.reset_retries()

    def reset_retries(self) -> None:
        """Forget the retries of the round before."""
        self.out_of_tolerance = Retries('Out of tolerance')
        self.interference = Retries('Interference, or a change of CPU speed')

    def on_task_setup(self, task: RegressionTask) -> None:
        self.tasks[task.testcase] = task

    def record_failed_test_case(
        self, case: Any, guard: str, stage: str, reason: str
    ) -> None:
        """Write the records of a test case that failed, at any stage.

        :param guard: of the record, unless a guard of the suite refused it
        :param stage: in which it failed
        """
        self.failed[case] = guard
        self.failure_reasons[case] = reason
        if not is_benchmark(case.check):
            return
        case.prepare()
        check = case.check
        for name, value in check.find_program_origin(case.environ).items():
            if not getattr(check, name):
                setattr(check, name, value)
        refuted = any(v[5] == 'fail' for v in check.perfvalues.values())
        if not (stage == 'performance' and refuted):
            check.guard = check.guard or guard
        if not check.guard:
            # ReFrame's text has tolerances as absolute numbers, such as l=-inf.
            reason = out_of_tolerance_text(check.perfvalues) or reason
            # Out of tolerance, and nothing else: one measurement is no proof.
            check.retried = (
                self.pause is not None
                and self.out_of_tolerance.count_and_queue_retry(self.tasks[case])
            )
        with set_partition_and_environ_temporarily(check, case.partition, case.environ):
            try:
                self.handler.record_failed_test_case(
                    check, stage not in ('startup', 'setup')
                )
            except LoggingError as err:
                getlogger().warning(str(err))
        self.write_failure_reason(case, reason)

    def write_failure_reason(self, case: Any, reason: str) -> None:
        """Write why a test case failed, or is inconclusive, beside the plan:
        perflogs have no free text (reasons.py reads it)."""
        text = ' '.join(reason.split()
                        ).removeprefix(': ')    # ReFrame's, without a name
        partition, environ, code = test_case_key(case)
        line = json.dumps({'partition': partition, 'environ': environ,
                           'case': code, 'guard': case.check.guard,
                           'reason': text[:MAX_REASON]}) + '\n'
        folder = (self.handler.basedir
                  / case.partition.fullname.partition(':')[0] / 'sessions')
        # Only details: the record already has the failure.
        with contextlib.suppress(OSError), open(
                folder / f'{self.handler.run}{REASONS}', 'a') as handle:
            if text:
                handle.write(line)

    def on_task_success(self, task: RegressionTask) -> None:
        if is_benchmark(task.check) and task.check.inconclusive:
            self.write_failure_reason(task.testcase, task.check.inconclusive)
        if self.out_of_tolerance.made[task.testcase]:
            self.failed.pop(task.testcase, None)
        if (self.retries_interference and getattr(task.check, 'transient', False)
                and self.interference.count_and_queue_retry(task)):
            # Another user of each build, which ReFrame removes after its
            # last one.
            for case in task.testcase.deps:
                self.tasks[case].ref_count += 1

    def is_unrecorded(self, case: Any) -> bool:
        """Whether a test case has no record yet."""
        return test_case_key(case) not in self.handler.recorded

    def record_unstarted_test_case(self, case: Any) -> None:
        """Write the record of a test case that was never started."""
        self.record_failed_test_case(case, 'cancelled', 'startup', '')

    def record_failed_task(self, task: RegressionTask, guard: str) -> None:
        """Write the records of a task that failed."""
        reason = str(task.exc_info[1] or '')
        self.record_failed_test_case(
            task.testcase, guard, str(task.failed_stage),
            disk.full_disk_text(reason, task.check.stagedir) or reason)

    def on_task_failure(self, task: RegressionTask) -> None:
        self.record_failed_task(task, guard_of_failed_task(task))

    def on_task_abort(self, task: RegressionTask) -> None:
        # A test case that ends in a retry has its records already.
        if is_benchmark(task.check) and self.is_unrecorded(task.testcase):
            self.record_failed_task(task, 'cancelled')

    def on_task_skip(self, task: RegressionTask) -> None:
        needs = [c for c in task.testcase.deps if c in self.failed]
        build = any(not is_benchmark(c.check) for c in needs)
        if not needs:
            return self.record_failed_task(task, 'skipped')
        self.record_failed_test_case(
            task.testcase, 'build' if build else 'dependency', str(task.failed_stage),
            self.failure_reasons[needs[0]])


class Reporter(Listener):
    """Writes the progress of the session to its folder, where `plumb run` reads it."""

    def __init__(self, folder: Path, seconds_of_case: dict[Any, float],
                 cost_text: str = '') -> None:
        """:param seconds_of_case: expected seconds of each test case
        :param cost_text: the cost of the session; '' on one machine
        """
        self.folder = folder
        self.seconds = seconds_of_case
        self.progress = Progress(len(seconds_of_case),
                                 expected=sum(seconds_of_case.values()),
                                 cost=cost_text)
        self.ended: set[tuple[str, str, str]] = set()
        self.failed: set[tuple[str, str, str]] = set()
        self.write()

    def write(self) -> None:
        """Write the progress; it is only for people, so a full disk is no failure."""
        with contextlib.suppress(OSError):
            self.progress.write(self.folder)

    def count_retries(self, tasks: Iterable[RegressionTask]) -> None:
        """Count test cases that are measured again, before the pause."""
        keys = [test_case_key(task.testcase) for task in tasks]
        self.progress.again = len(keys)
        self.progress.expected += sum(self.seconds.get(key, 0.0) for key in keys)
        self.write()

    def count_end(self, task: RegressionTask, is_failed: bool) -> None:
        """Count a test case, or a retry, that has ended."""
        key = test_case_key(task.testcase)
        if key not in self.seconds:
            return                          # a build
        if key in self.ended:
            self.progress.again = max(self.progress.again - 1, 0)
        self.ended.add(key)
        (self.failed.add if is_failed else self.failed.discard)(key)
        self.progress.ended, self.progress.failed = len(self.ended), len(self.failed)
        self.progress.expected_ended += self.seconds[key]
        self.write()

    def on_task_success(self, task: RegressionTask) -> None:
        self.count_end(task, False)

    def on_task_failure(self, task: RegressionTask) -> None:
        self.count_end(task, True)

    on_task_skip = on_task_failure


class Pins(Listener):
    """Gives each job its chosen nodes."""

    def on_task_setup(self, task: RegressionTask) -> None:
        pinned.pin_job_to_nodes(task.check)


class PendingLimits(Listener):
    """Gives each job the limit of its partition for the time in the queue."""

    def on_task_setup(self, task: RegressionTask) -> None:
        check = task.check
        limit = check.current_partition.extras.get(slurm_jobs.MAX_PENDING)
        if limit and not any('max_pending_time=' in word for word in sys.argv[1:]):
            check.max_pending_time = limit


class Causes(Listener):
    """The failures of a dry run, one line for each cause."""

    def __init__(self) -> None:
        #: Cause without the details of one test case -> number and example.
        self.examples: dict[str, list[Any]] = {}

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
        entry = self.examples.setdefault(
            f'{task.failed_stage} ' + re.sub(r'\d+', '0', cause),
            [0, check.display_name, text])
        entry[0] += 1

    def print_causes(self, printer: Any) -> None:
        """One line per cause; ReFrame has twenty lines per test case."""
        for number, name, text in sorted(self.examples.values(), reverse=True):
            cases = 'test case' if number == 1 else 'test cases'
            printer.info(f'{number} {cases}: {text} (e.g. {name.replace(" ", "")})')


def select_listed_test_cases(testcases: list) -> list:
    """The test cases named in the file $PLUMBLINE_ONLY, with their fixtures.

    The file has a list of `test_case_key`s in JSON. ReFrame's own -n /HASH would add to
    the user's -n, and would select all environments of a test case.
    """
    path = os.environ.get(ONLY)
    if not path:
        return testcases
    keys = {(place, environ, code) for place, environ, code in
            json.loads(Path(path).read_text())}
    return add_dependencies(
        testcases,
        [
            case
            for case in testcases
            if is_benchmark(case.check) and test_case_key(case) in keys
        ],
    )


def refuse_unlisted_node_counts(testcases: list) -> None:
    """End the session if it would leave out a number of nodes in silence."""
    unlisted = {count for case in testcases
                if is_benchmark(case.check) and case.check.is_collective
                for count in case.check.unlisted_node_counts}
    if unlisted:
        exit_with_error(
            f'node_counts: no partition runs collectives on '
            f'{", ".join(map(str, sorted(unlisted)))} nodes; add this number to the '
            'extra node_counts of a partition in system.py')


def select_test_cases_of_mode(testcases: list) -> list:
    """The test cases of modes smoke and veto, with their fixtures; all in other
    modes."""
    cases = [case for case in testcases if is_benchmark(case.check)]
    select = selection.SELECTIONS.get(next((
        case.check.selection for case in cases if case.check.selection), ''))
    return add_dependencies(testcases, select(cases)) if select else testcases


def add_dependencies(testcases: list, selected: list) -> list:
    """Selected test cases and their dependencies, in the original order."""
    needed, left = set(selected), list(selected)
    while left:
        more = set(left.pop().deps) - needed
        needed |= more
        left += more
    return [case for case in testcases if case in needed]


def time_limit_of_test_case(case: Any) -> float:
    """The maximum time of a test case before its setup. Unit: s."""
    with set_partition_and_environ_temporarily(case.check, case.partition,
                                               case.environ):
        return ordering.max_job_seconds(case.check)


def expected_test_case_seconds(case: Any, known: ordering.Known) -> tuple[float, bool]:
    """Expected seconds of a test case, and whether it was measured before.

    The time of its builds is unknown, and counts as 0.
    """
    if not is_benchmark(case.check):
        return 0.0, False
    return known.expected_seconds(
        test_case_key(case),
        case.check.repetitions,
        time_limit_of_test_case(case),
    )


def expected_cost(case: Any, seconds: float) -> ordering.Case:
    """The cost of a test case that takes so many seconds."""
    return ordering.Case(
        test_case_key(case), case.check.node_count_before_setup, seconds)


def cost_of_test_cases(testcases: list, known: ordering.Known) -> cost.Cost:
    """The cost of all benchmarks among test cases."""
    cases = [case for case in testcases if is_benchmark(case.check)]
    times = [expected_test_case_seconds(case, known) for case in cases]
    return cost.total_cost(
        (expected_cost(case, seconds), was_seen)
        for case, (seconds, was_seen) in zip(cases, times, strict=True)
    )


def split_by_budget(cases: list, known: ordering.Known
                   ) -> tuple[list, list[dict[str, Any]]]:
    """The test cases of this session, and a row of the plan for each one that
    the budget of its partition leaves to later sessions."""
    now: set[Any] = set()
    left = []
    for part in {case.partition.name: case.partition
                 for case in cases}.values():
        partition_cases = [case for case in cases if case.partition is part]
        budget = part.extras.get(ordering.BUDGET) if known.budgets else None
        if budget is None:
            now.update(partition_cases)
            continue
        times = {
            case: expected_test_case_seconds(case, known)
            for case in partition_cases
        }
        costs = {
            expected_cost(case, seconds): case
            for case, (seconds, _) in times.items()
        }
        this_session, others = ordering.select_within_budget(costs, budget, known.last)
        now.update(costs[cost] for cost in this_session)
        sessions_needed = ordering.sessions_until_all_ran(costs, budget)
        left += [
            {
                **plan_row(costs[cost]),
                'hours': cost.node_hours,
                'budget': budget,
                'nightly_sessions': (
                    sessions_needed
                    if cost.node_hours <= budget + ordering.ROUNDING
                    else 0
                ),
                'by': 'time' if times[costs[cost]][1] else 'limit',
                'last': known.last.get(cost.key, ''),
            }
            for cost in others
        ]
    return [case for case in cases if case in now], left


class AccountedRunner(Runner):
    """ReFrame's runner: zero test cases are an error, each test case has a
    record, and one out of tolerance or with interference is retried."""

    accounts: Accounts | None = None
    #: Writes the progress for `plumb run`; None: ReFrame was started without it.
    reporter: Reporter | None = None
    #: All test cases that ReFrame selected, with those that a mode leaves out: a
    #: test case depends on the builds of all environments.
    selected_by_reframe: list = []
    #: Times and last sessions of the test cases, from the records.
    known = ordering.Known()

    def runall(self, testcases: list, restored_cases: Any = None) -> None:
        self.selected_by_reframe = testcases
        testcases = pinned.pin_test_cases(
            select_test_cases_of_mode(select_listed_test_cases(testcases)),
            is_benchmark,
        )
        if all(case.check.is_fixture() for case in testcases):
            site = places.current_site_option()
            exit_with_error(
                'no test case ran, so nothing was measured: none matches all filters '
                '(mode, -n, -t, -p, -E, --failed). `reframe -l` lists the test cases, '
                f'./plumb doctor{site} reports what this site can run', 2)
        refuse_unlisted_node_counts(testcases)
        if any(is_benchmark(case.check) and not case.check.bringup
               for case in testcases):
            self.print_if_no_reference_files()
        try:
            self.known = ordering.Known.read_from_environment()
        except ValueError as err:
            exit_with_error(str(err))
        if self.policy.dry_run_mode:
            self.print_cost(testcases)
            return self.dry_run(testcases, restored_cases)
        if path := os.environ.get(cost.COST_FILE):
            Path(path).write_text(str(cost_of_test_cases(testcases, self.known)))
            self.policy.printer.info(
                f'The cost is in {path}; nothing runs, because {cost.COST_FILE} is set')
            sys.exit(0)
        with hold_machine_lock():
            self.run_with_records(testcases, restored_cases)

    def print_if_no_reference_files(self) -> None:
        """Print once that no file has references, with their folder."""
        try:
            folder = places.reference_folder()
        except places.PlaceError as err:
            exit_with_error(str(err))
        if not accepted_files(folder):
            self.policy.printer.info(
                f'No reference file in {folder}: only limits and the vendor '
                'profile of the site, if it has one, can fail a value')

    def print_cost(self, testcases: list) -> None:
        """Print the cost of the benchmarks, except on one machine."""
        if not has_only_local_partitions():
            self.policy.printer.info(
                f'Cost: {cost_of_test_cases(testcases, self.known)}')

    def run_with_records(self, testcases: list, restored_cases: Any) -> None:
        """Run with a plan, and write a record for each test case."""
        handler = perflog.perflog_handler()
        cases = [case for case in testcases if is_benchmark(case.check)]
        if handler is None or not cases:
            return self.run_until_timeout(testcases, restored_cases)
        cases, left = split_by_budget(cases, self.known)
        if not cases:
            exit_with_error(
                f'no test case ran: each of {len(left)} needs more node-hours '
                f'than its partition has per session ({ordering.BUDGET})')
        if left:
            testcases = add_dependencies(testcases, cases)
        self.print_cost(cases)
        self.accounts = accounts = Accounts(handler)
        self.policy.task_listeners[:0] = [accounts, Pins(), PendingLimits()]
        if folder := os.environ.get('PLUMBLINE_SESSION'):
            times = {test_case_key(case): expected_test_case_seconds(case, self.known)
                     for case in cases}
            # A time limit says nothing of the time that a test case will take.
            seen = all(was_seen for _, was_seen in times.values())
            self.reporter = Reporter(Path(folder), {
                key: seconds if seen else 1.0
                for key, (seconds, _) in times.items()},
                '' if has_only_local_partitions() else str(
                    cost_of_test_cases(cases, self.known)))
            self.policy.task_listeners.append(self.reporter)
        with self.write_plan_and_hold_lock(handler, cases, left):
            try:
                self.run_until_timeout(testcases, restored_cases)
            except ABORTS:
                cancel_jobs_of_tasks(accounts.tasks.values())
                raise
            finally:
                for case in filter(accounts.is_unrecorded, cases):
                    accounts.record_unstarted_test_case(case)
        if accounts.failed and not self.stats.failed():
            # ReFrame counts test cases as successful that were skipped, did
            # not start in time, or passed in its own retry.
            why = ', '.join(sorted(set(accounts.failed.values())))
            exit_with_error(
                f'{len(accounts.failed)} of {len(cases)} test cases failed at '
                f'least once, or never ran ({why}); their records have '
                'completed = 0')

    def _runall(self, testcases: list) -> None:
        """Run the test cases, then retry those that are out of tolerance or
        had interference.

        A retry replaces the measurement before it in what ReFrame counts.
        ReFrame's --max-retries would also repeat test cases that crashed or
        hung, would not repeat those that are inconclusive, and would count
        only the last retry.
        """
        if self.accounts:
            self.accounts.reset_retries()
        for some in pinned.group_by_round(testcases):
            super()._runall(self.sort_for_execution(some))
        done = self.stats._alltasks[runtime.runtime().current_run]
        # The time of the first users of a build includes the wait for it.
        limit = max(AGAIN_SECONDS, AGAIN_PART * total_job_seconds(
            task for task in done if is_benchmark(task.check)))
        while self.accounts and (due := [
                retries for retries in (
                    self.accounts.out_of_tolerance,
                    self.drop_all_retries_if_slow(self.accounts.interference, limit))
                if retries.due]):
            pause = max(map(self.print_retry_and_return_delay, due))
            tasks = [task for retries in due for task in retries.pop_due_tasks()]
            for task in tasks:
                done.remove(task)
            if self.reporter:
                self.reporter.count_retries(tasks)
            time.sleep(pause)
            cases = [task.testcase.clone() for task in tasks]
            graph, _ = dependencies.build_deps(
                cases, [*dict.fromkeys([*testcases, *self.selected_by_reframe])])
            super()._runall(dependencies.toposort(graph, is_subgraph=True))

    def drop_all_retries_if_slow(self, retries: Retries, max_seconds: float) -> Retries:
        """The retries if they take at most so many seconds, else none."""
        retries.seconds += total_job_seconds(retries.due)
        if retries.due and retries.seconds > max_seconds:
            count = len(retries.pop_due_tasks())
            self.policy.printer.info(
                f'{retries.why}: {count_with_noun(count, "test case")}, not measured '
                f'again: that would take {retries.seconds / 60:.0f} min, more than '
                f'{max_seconds / 60:.0f} min'
            )
        return retries

    def print_retry_and_return_delay(self, retries: Retries) -> float:
        """Print the next retry; returns the seconds until it begins.

        They double with each retry: interference may last for minutes.
        """
        number = max(retries.made[task.testcase] for task in retries.due)
        first = self.accounts.pause if self.accounts else None
        pause = (first or 0) * 2 ** (number - 1)
        self.policy.printer.info(
            f'{retries.why}: {count_with_noun(len(retries.due), "test case")}, '
            f'measured again in {pause:g} s (retry {number} of {MEASUREMENTS - 1})'
        )
        return pause

    def sort_for_execution(self, testcases: list) -> list:
        """The longest first, unless the user chose another order."""
        if any(word.startswith('--exec-o') for word in sys.argv[1:]):
            return testcases
        return ordering.sort_longest_first(
            testcases, lambda case: expected_test_case_seconds(case, self.known)[0],
            lambda case: case.deps)

    def run_until_timeout(self, testcases: list, restored_cases: Any) -> None:
        """Run the test cases; the end of --duration is not an error."""
        try:
            super().runall(testcases, restored_cases)
        except RunSessionTimeout as err:
            # ReFrame warns of it, and the suite makes warnings errors.
            self.policy.printer.info(f'--duration: {err}')

    def dry_run(self, testcases: list, restored_cases: Any) -> None:
        """A dry run that ends with one line per cause of failures."""
        causes = Causes()
        self.policy.task_listeners.insert(0, causes)
        super().runall(testcases, restored_cases)
        if not causes.examples:
            return
        causes.print_causes(self.policy.printer)
        # Else ReFrame adds its own report.
        self.stats._alltasks[:] = [[]]
        number = sum(number for number, *_ in causes.examples.values())
        exit_with_error(
            f'{count_with_noun(number, "test case")} cannot run here; the lines above '
            'list the causes'
        )

    @contextlib.contextmanager
    def write_plan_and_hold_lock(self, handler: perflog.PerflogHandler, cases: list,
                                 left: list[dict[str, Any]]) -> Iterator[None]:
        """Write the plan, which stays locked until the session ends.

        :param left: test cases left to later sessions
        """
        now = datetime.datetime.now(datetime.timezone.utc)
        system = cases[0].partition.fullname.partition(':')[0]
        folder = handler.basedir / system / 'sessions'
        if why := clock.reason_clock_is_behind(folder.parent):
            exit_with_error(why)
        head: dict[str, Any] = {
                'time': f'{now:%Y-%m-%dT%H:%M:%SZ}', 'system': system,
                'suite': VERSION, 'commit': perflog.suite_commit(),
                'reframe': reframe.VERSION}
        if os.environ.get(ONLY) or left:
            head['partial'] = True
        if self.known.budgets:
            head['left'] = left
        try:
            fd = write_and_lock_plan(folder, handler.run, head, plan_rows(cases))
        except OSError as err:
            exit_with_error(
                f'cannot write to {folder} ({err.strerror}), so nothing was '
                'run; free space on the disk, or set PLUMBLINE_PERFLOGS to '
                'another folder')
        try:
            yield
        finally:
            os.close(fd)


def cancel_jobs_of_tasks(tasks: Iterable[RegressionTask]) -> None:
    """Cancel the Slurm jobs of an aborted session that ReFrame does not know: a
    signal has interrupted its `sbatch`."""
    folders = [Path(task.check.stagedir) for task in tasks
               if task.check.current_partition.scheduler.registered_name
               in slurm_jobs.SLURM]
    if not folders:
        return
    deadline = time.monotonic() + SBATCH_TIMEOUT
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.1)
    slurm_jobs.cancel_jobs_in_folders(
        folders, 'an interrupted session',
        lambda line: print(f'plumb: {line}', file=sys.stderr))


def has_only_local_partitions() -> bool:
    """Whether no scheduler allocates the CPUs of the system."""
    return all(part.scheduler.registered_name == 'local'
               for part in runtime.runtime().system.partitions)


@contextlib.contextmanager
def hold_machine_lock() -> Iterator[None]:
    """Hold the machine's lock if no scheduler allocates the CPUs."""
    with contextlib.ExitStack() as stack:
        if has_only_local_partitions():
            try:
                stack.enter_context(lock.hold_file_lock(lock.machine_lock_path(),
                                                        program='reframe'))
            except lock.LockError as err:
                exit_with_error(str(err))
        yield


def remove_first_log_file() -> None:
    """Remove the file in which ReFrame logs until it knows its configuration,
    and which it leaves in the folder of temporary files at each start."""
    logger: Any = getlogger().logger
    # None: something else than ReFrame's command line reads the configuration.
    for handler in list(logger.handlers) if logger else ():
        if isinstance(handler, logging.FileHandler) and re.fullmatch(
                r'rfm-.+\.log', Path(handler.baseFilename).name):
            logger.removeHandler(handler)
            handler.close()
            Path(handler.baseFilename).unlink(missing_ok=True)


def install_runner() -> None:
    """Replace ReFrame's runner, if its command line is imported."""
    cli: Any = sys.modules.get('reframe.frontend.cli')
    if cli is None:
        return
    if not hasattr(cli, 'Runner'):
        # ReFrame's runner would write no plan, and pass with zero test cases.
        exit_with_error(f'ReFrame {reframe.VERSION} has no reframe.frontend.cli.Runner '
                        'for the suite to replace; use an older ReFrame, or a newer '
                        'Plumbline')
    cli.Runner = AccountedRunner
