"""plumb nightly: an unattended session that measures all nodes in turn.

The parts: the lock, and the end of a nightly session that hangs (overlap.py);
the nodes that are due (nodes.py); the failures that are measured again
(reruns.py); the summary (summary.py) and its messages (messages.py). This module has
their order.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cli.arguments import build_parser
from cli.nightly import locate, messages, overlap, reruns
from cli.nightly.summary import Nodes, Summary, shortened_list_text
from cli.session import calibrate, commands, identities, table
from cli.session import process as session
from cli.session.reframe_options import find_non_run_action
from cli.setup.venv import SetupError, print_progress
from cli.site import nodes
from cli.site.listing import list_test_cases_with_reframe
from config.console import count_with_noun
from config.sessions import session_id, slurm_jobs
from config.sessions.modes import VETO
from postprocess import results
from postprocess.options import write_text_answer
from postprocess.regressions import locating, telling
from postprocess.regressions import verdict as verdicts
from postprocess.results import Result

if TYPE_CHECKING:
    import pandas as pd

    from postprocess.regressions.decisions import Decision
    from postprocess.regressions.finding import Regression, Verdict

#: Options of ReFrame by which people choose nodes themselves.
CHOOSES = ('-J', '--job-option', '--distribute', '--flex-alloc')
#: What test cases that differ only in their settings have in common, on a system.
CHECK = ('partition', 'environ', 'check', 'params')


def nightly(args: argparse.Namespace) -> int:
    """Run the command `plumb nightly`; return the exit code."""
    _check_options(args)
    folder = commands.site_folder(args.site)
    urls = messages.take_urls(folder)
    summary = Summary(folder.name, time.time(), args.max_node_age, args.mode,
                      page_url=args.page_url, require_compared=args.require_compared)
    path = overlap.lock_path(folder.name)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                overlap.hold_nightly_lock(
                    path, args.hours, summary.add_note, summary.began
                )
            )
            stack.enter_context(calibrate.raise_interrupt_on_signals())
            stack.enter_context(end_session_after_hours(args.hours, summary))
            overlap.end_leftover_processes(path, summary.add_note)
            os.environ[overlap.MARK] = str(path)
            work = stack.enter_context(commands.prepare_session(args))
            if slurm_jobs.can_list_jobs(work.system):
                overlap.cancel_orphaned_jobs(folder.name, summary.add_note)
            session.remove_old_sessions(
                session.nightly_kind(folder.name), args.keep_sessions - 1)
            summary.nightly_session = session_id.new_session_id()
            if args.max_pending:
                for options in work.options, work.options_of_any_mode:
                    options.append(f'-Smax_pending_time={args.max_pending}')
            NightlySession(work._replace(nightly_session=session.NightlySession(
                folder.name, summary.nightly_session)), args, summary).run_session()
    except KeyboardInterrupt:
        summary.ended_by = summary.ended_by or 'ended by a signal'
    except Exception as err:
        # The session is unattended: the error is in the messages, too.
        summary.usage = isinstance(err, SetupError)
        summary.broken = str(err) if summary.usage else \
            f'{type(err).__name__}: {err}'
        publish_summary(summary, args, urls)
        raise
    print('', *summary.summary_lines(), sep='\n', flush=True)
    return summary.exit_code if publish_summary(summary, args, urls) else \
        summary.exit_code or 1


def publish_summary(summary: Summary, args: argparse.Namespace, urls: dict[str, str]
                    ) -> bool:
    """Write the files of --text and --json, and send the messages.

    :param urls: receivers, as of `messages.take_urls`
    :returns: whether all files were written and all messages were sent; otherwise
        stderr has a line on each
    """
    text = '\n'.join(summary.summary_lines()) + '\n'
    faults = []
    for file, content in ((args.text, text),
                          (args.json, json.dumps(summary.data(), indent=1) + '\n')):
        if file:
            try:
                write_text_answer(file, content)
            except ValueError as err:
                faults.append(str(err))
    faults += messages.send_messages(urls, f'plumbline: {summary.headline}', text,
                                     summary.status)
    for fault in faults:
        print_progress(fault)
    return not faults


def _check_options(args: argparse.Namespace) -> None:
    """Check the options of a nightly session.

    :raises SetupError: an option cannot be used, and what to write instead
    """
    action = find_non_run_action(args.reframe)
    if action:
        raise SetupError(f'{action} measures nothing, so it is not a nightly '
                         'session; use ./plumb run with this option')
    commands.refuse_mode_veto(args.mode, 'nightly')
    for name, minimum in (('hours', 0.0), ('keep_sessions', 1),
                          ('max_node_age', 0)):
        value = getattr(args, name)
        if value < minimum or name == 'hours' and not value:
            option = '--' + name.replace('_', '-')
            raise SetupError(f'{option} is {value:g}; it must be '
                             + ('more than 0' if name == 'hours' else
                                f'{minimum} or more'))


@contextlib.contextmanager
def end_session_after_hours(hours: float, summary: Summary) -> Iterator[None]:
    """End the session with SIGTERM when its time is over."""
    def end_session_on_alarm(number: int, frame: Any) -> None:
        summary.ended_by = f'its limit of {hours:g} h was reached (--hours)'
        os.kill(os.getpid(), signal.SIGTERM)
    before = signal.signal(signal.SIGALRM, end_session_on_alarm)
    signal.setitimer(signal.ITIMER_REAL, 3600 * hours)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class NightlySession:
    """The ReFrame sessions of a nightly session, one after the other."""

    def __init__(self, work: commands.Work, args: argparse.Namespace,
                 summary: Summary) -> None:
        self.work, self.summary = work, summary
        self.max_node_age: int = args.max_node_age
        #: Whether to look for the slow node after a regression.
        self.locates: bool = args.locate
        self.system: str = work.system['name']
        #: Whether the user chose nodes by an option of ReFrame.
        self.chooses = any(word.startswith(CHOOSES) for word in args.reframe)
        #: Partition of the site -> nodes; without partitions whose nodes
        #: are unknown.
        self.pools: dict[str, nodes.Pool] = {}
        #: Nodes that are due, by the name of their pool.
        self.due: dict[str, list[str]] = {}
        #: Short ID -> result of the first session.
        self.first: dict[str, Result] = {}
        #: All records of the system, before the first session and after each
        #: one.
        self.frame: pd.DataFrame | None = None
        #: What people decided about them.
        self.decided: list[Decision] = []

    def run_session(self) -> None:
        """Measure, and fill `summary`."""
        try:
            self.read_records()
            self.find_due_nodes()
            ended = self.run_reframe_sessions('all test cases that are due')
            if not ended or not ended[-1].has_begun:
                if ended and not self.summary.ended_by:
                    commands.print_zero_test_cases_reason(self.work, ended[-1])
                    self.summary.broken = (
                        'nothing was measured; its log says why'
                    )
                    self.summary.usage = True
                return
            [first] = ended
            assert self.frame is not None
            rows = table.rows_of_session(self.frame, first.session,
                                         self.work.perflog_folder)
            self.first = {one.test_case: one for one in results.results_of_session(
                self.frame, first.session).values() if not one.is_open}
            self.summary.cases = len({row.test_case for row in rows})
            self.summary.waiting = sum(row.waits for row in rows)
            if first.code and not first.ended_by and not any(
                    one.is_failed for one in self.first.values()):
                self.summary.broken = ('ReFrame failed, but no test case did; '
                                       'its log gives the reason')
            self.measure_due_nodes()
            self.rerun_failures_and_suspected_regressions()
        except KeyboardInterrupt:
            self.summary.ended_by = (
                self.summary.ended_by or 'ended by a signal'
            )
        if self.first:
            self.write_page_and_update_summary()

    # Sessions --------------------------------------------------------------

    def run_reframe_sessions(self, title: str, cases: Collection[str] = (),
                             options: Sequence[str] = ()) -> list[commands.Ended]:
        """Run sessions of ReFrame; []: the nightly session is over.

        :param cases: short IDs of the only test cases to run; (): all of the mode
        """
        if self.summary.ended_by:
            return []
        print_progress(title)
        if cases:
            assert self.frame is not None
            known = identities.identities_of_records(self.frame)
            ended = [*commands.run_test_cases(
                self.work, [known[name] for name in cases], *options)]
        else:
            ended = [commands.run_reframe_session(self.work, *options)]
        if ended[-1].ended_by:
            self.summary.ended_by = (self.summary.ended_by
                                     or f'ended by {ended[-1].ended_by}')
        if ended[0].has_begun:
            self.read_records()
        return ended

    def read_records(self) -> None:
        """Reads all records of the system, and the results of this nightly
        session; the page reports what is damaged.

        :raises SetupError: the file of decisions is damaged
        """
        # All perflogs, as for the page: each folder that is read has a cache.
        read = commands.read_perflogs(self.work.perflog_folder)
        self.decided = read.decided
        self.frame = read.frame[read.frame['system'] == self.system].reset_index(
            drop=True)
        self.summary.results = [*results.results_of_nightly_session(
            self.frame, self.summary.nightly_session).values()]

    # Nodes -----------------------------------------------------------------

    def find_due_nodes(self) -> None:
        """Find the nodes of each partition, and those that are due.

        :raises SetupError: no node takes jobs, so nothing can be measured
        """
        if self.chooses:
            self.summary.add_note('no nodes were added: options of ReFrame choose '
                                  'the nodes')
            return
        self.pools, why = nodes.find_node_pools(self.work.system)
        if why:
            self.summary.add_note(why)
        self.report_partitions_without_nodes()
        seen = {} if self.frame is None else nodes.last_measurement_time_by_node(
            self.frame, self.system)
        for pool in self.distinct_pools():
            if self.max_node_age:
                self.due[pool.name] = nodes.due_nodes(
                    pool, seen, self.max_node_age
                )

    def report_partitions_without_nodes(self) -> None:
        """Add a note on each partition of which no node takes jobs.

        :raises SetupError: that is true of all partitions of the session
        """
        unusable = {name: pool for name, pool in self.pools.items()
                    if not pool.usable_nodes}
        selected = nodes.selected_partitions(self.work.system, self.work.options)
        lines = [
            f'no node of partition {pool.name or "(default)"} takes jobs: '
            f'{shortened_list_text(list(map(str, pool.unusable_nodes)))}'
            for pool in {pool.name: pool for name, pool in unusable.items()
                         if name in selected}.values()]
        if lines and selected <= set(unusable):
            raise SetupError('; '.join(lines))
        for line in lines:
            self.summary.add_note(f'{line}; its test cases cannot run')

    def update_pools(self) -> None:
        """Query the nodes again: since the session began some may have been lost.
        The old ones stay if Slurm does not answer."""
        if self.pools:
            now, _ = nodes.find_node_pools(self.work.system)
            self.pools |= now

    def distinct_pools(self) -> list[nodes.Pool]:
        """The pools, each once."""
        return list({pool.name: pool for pool in self.pools.values()
                     }.values())

    def measure_due_nodes(self) -> None:
        """Measure on the nodes that are due and were not measured yet."""
        if not self.pools or self.frame is None:
            return
        for pool in self.distinct_pools():
            for group, case in self.node_groups_with_test_case(pool):
                self.run_reframe_sessions(
                    f'nodes that are due: {" ".join(sorted(group))}', [case],
                    nodes.reframe_options_selecting_nodes(group, [pool]))

    def node_groups_with_test_case(self, pool: nodes.Pool
               ) -> list[tuple[frozenset[str], str]]:
        """Groups of nodes, each with the short ID of the test case that measures it.
        """
        assert self.frame is not None
        this_session = self.nodes_measured_this_session()
        # Their states have changed since the nightly session began.
        now, _ = nodes.find_node_pools(self.work.system)
        free = next((one for one in now.values() if one.name == pool.name),
                    pool)
        due = [n for n in self.due.get(pool.name, ())
               if n not in this_session and n in free.idle_nodes]
        if not due:
            return []
        names = [name for name, one in self.pools.items() if one is pool]
        answer = list_test_cases_with_reframe(commands.site_folder(self.summary.site))
        case = select_test_case_for_due_nodes(
            [one for one in self.first.values() if one.partition in names],
            {tuple(one[name] for name in CHECK) for one in answer.get('cases', ())
             if VETO in one['modes']},
            max_wall_times(self.frame[self.frame['session'].isin(
                [one.session for one in self.first.values()])]),
            len(free.idle_nodes),
        )
        if case is None:
            return []
        return [(group, case.test_case)
                for group in nodes.node_groups_of_width(due, free, case.width)]

    def nodes_measured_this_session(self) -> set[str]:
        if self.frame is None:
            return set()
        seen = nodes.last_measurement_time_by_node(self.frame, self.system)
        # Records have whole seconds.
        return {n for n, when in seen.items()
                if when >= int(self.summary.began)}

    def add_nodes_to_summary(self) -> None:
        """Add the nodes of each pool to the summary."""
        if not self.pools or self.frame is None:
            return
        self.update_pools()
        this_session = self.nodes_measured_this_session()
        seen = nodes.last_measurement_time_by_node(self.frame, self.system)
        since = self.summary.began - 86400 * (self.max_node_age + 0.5)
        for pool in self.distinct_pools():
            self.summary.unusable_nodes |= {
                node.name: str(node) for node in pool.unusable_nodes}
            self.summary.nodes.append(
                Nodes(
                    pool.name,
                    len(pool.usable_nodes),
                    len(this_session & pool.usable_nodes),
                    [str(node) for node in pool.unusable_nodes],
                    sorted(set(self.due.get(pool.name, ())) - this_session),
                    nodes.nodes_unmeasured_since(pool, seen, since)
                    if self.max_node_age and seen
                    else [],
                )
            )

    # Failures --------------------------------------------------------------

    def rerun_failures_and_suspected_regressions(self) -> None:
        """Measure failures and possible regressions again."""
        failed = [one for one in self.summary.results
                  if one.result in ('fail', 'not_run')]
        if reruns.has_too_many_failures(len(failed), self.summary.cases):
            self.summary.add_note(
                f'{len(failed)} of {self.summary.cases} test cases failed: '
                'too many for chance, none was measured again'
            )
            return
        if failed:
            self.update_pools()
        pools = {name: pool.usable_nodes for name, pool in self.pools.items()}
        sessions = reruns.plan_reruns([
            session for one in failed for session in one.sessions
            # A job that did not start would wait as long again.
            if session.result in ('fail', 'not_run') and session.guard != 'pending'
        ], pools)
        sessions += reruns.plan_suspected_regression_reruns(
            self.suspected_regressions(failed), pools
        )
        for number, one in enumerate(sessions[:reruns.MAX_SESSIONS], 1):
            some = [self.pools[name] for name in
                    {of.partition for of in one.of} & set(self.pools)]
            options = (nodes.reframe_options_selecting_nodes(one.nodes, some)
                       if one.where == reruns.SAME else
                       nodes.reframe_options_excluding_nodes(one.nodes, some)
                       if one.where == reruns.OTHER else [])
            cases = list(dict.fromkeys(of.test_case for of in one.of))
            ended = self.run_reframe_sessions(
                f'rerun {number} of {len(sessions)}, on {one.where}: '
                + count_with_noun(len(cases), 'test case'), cases, options)
            if not ended or not ended[-1].has_begun or ended[-1].ended_by:
                break
        left = len(sessions) - reruns.MAX_SESSIONS
        if left > 0:
            self.summary.add_note(f'{left} more reruns of failures were left out '
                                  f'(limit: {reruns.MAX_SESSIONS})')

    def suspected_regressions(self, failed: Sequence[Result]
                 ) -> list[tuple[Result, int]]:
        """Test cases that were worse once, which is too little evidence for a
        regression, and how many measurements would be enough."""
        if self.frame is None or not len(self.frame) or self.summary.ended_by:
            return []
        try:
            verdict = verdicts.verdict_of_records(self.frame, decided=self.decided)
        except ValueError as err:
            self.summary.add_note(f'no verdict: {err}')
            return []
        bad = {one.test_case for one in failed}
        some = [(self.first[case.test_case], case.needs)
                for case in verdict.rerun if case.test_case in self.first
                and case.test_case not in bad]
        if reruns.has_too_many_failures(len(some), self.summary.cases):
            self.summary.add_note(
                f'{len(some)} test cases were worse: none was measured '
                              'again, because so many are not chance'
            )
            return []
        return some

    # The end ---------------------------------------------------------------

    def write_page_and_update_summary(self) -> None:
        """Write the page, and add verdict and regressions to the summary."""
        self.add_nodes_to_summary()
        page, made = commands.write_report_page(self.work.perflog_folder)
        self.summary.page = page or ''
        if made.verdict is not None:
            first = self.first.values()
            lines = commands.regressions_in_session(made.verdict, first)
            self.summary.regressed = {
                one.test_case for line in lines for one in line.members}
            self.summary.compared_with_history = commands.is_compared_with_history(
                made.verdict, first)
            self.summary.elsewhere = other_session_lines(
                made.verdict, lines, self.summary.results)
            self.summary.regressions = [
                *(level.lines for level in commands.failed_levels_of_systems(
                    made.verdict, [self.system])),
                *map(telling.regression_lines, lines)]
            if self.locates and not self.summary.ended_by:
                self.locate_slow_node_of_regressions(lines)

    def locate_slow_node_of_regressions(self, lines: Sequence[Regression]) -> None:
        """Find the slow node if test cases of several nodes regressed."""
        wide = {key for key, one in self.first.items() if one.width > 1}
        partitions = [one.partition for line in lines for one in line.members
                      if one.test_case in wide]
        if not partitions:
            return
        print_progress('looking for the slow node: measuring pairs of nodes')
        try:
            args = build_parser().parse_args([
                'locate', '--site', self.summary.site, '--partition', partitions[0]])
            args.reframe = []
            search = locate.search_slow_nodes(args)
        except SetupError as err:
            self.summary.add_note(f'the slow node was not looked for: {err}')
            return
        if search.located:
            for line in locating.result_lines(search.located):
                self.summary.add_note(f'pairs of nodes: {line.strip()}')
        if search.why:
            self.summary.add_note(f'pairs of nodes: ended early: {search.why}')


def other_session_lines(verdict: Verdict, lines: Sequence[Regression],
                        own_results: Sequence[Result]) -> list[str]:
    """A line for each failure and regression of a verdict that other sessions
    of the same day, or of earlier days, have left.

    :param lines: regressions of the nightly session
    :param own_results: results of the nightly session
    """
    own = {each.session for one in own_results for each in one.sessions}
    return [*(f'session {one.session}: {telling.failure_line(one)}'
              for one in verdict.failures if one.session not in own),
            *(f'worse than before: {telling.regression_lines(one)[0]}'
              for one in verdict.regressions if one not in lines)]


def max_wall_times(frame: pd.DataFrame) -> dict[str, float]:
    """Test case -> the longest time of its program in these records. Unit: s."""
    times: dict[str, float] = frame[frame['metric'] == 'wall_time'].groupby(
        'test_case', observed=True)['value'].max().to_dict()
    return times


def select_test_case_for_due_nodes(
    some: Iterable[Result], veto: Collection[tuple], times: Mapping[str, float],
    max_nodes: int,
) -> Result | None:
    """The test case that measures nodes which no other test case used; None: no
    test case can.

    It has the fewest nodes, of those that passed in this session. Of several, it
    is the one of mode veto, or else the shortest.

    :param veto: CHECK of test cases of mode veto
    :param times: test case -> seconds
    :param max_nodes: number of free nodes
    """
    good = [one for one in some
            if not one.is_failed and one.nodes and one.width <= max_nodes]
    return min(good, default=None, key=lambda one: (
        one.width, tuple(getattr(one, name) for name in CHECK) not in veto,
        times.get(one.test_case, 0.0)))
