"""plumb nightly: an unattended session, and what `plumb run` does not do at night.

The order: the session of ReFrame; failures measured again; page and verdict; summary.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Sequence

from cli.nightly import messages
from cli.nightly.summary import Summary
from cli.session import calibrate, commands, identities
from cli.session import process as session
from cli.setup.venv import WORK, SetupError, print_progress
from cli.site import schedulers
from config.console import count_with_noun
from config.sessions import lock, session_id, slurm_jobs
from config.sites import topology
from postprocess import results
from postprocess.options import write_text_answer
from postprocess.regressions.events import Verdict
from postprocess.regressions.judging import judge_session
from postprocess.results import Result

#: Options of ReFrame by which people choose nodes themselves.
CHOOSES = ('-J', '--job-option', '--distribute', '--flex-alloc')
#: More failures than these, and more than PART of the test cases, are not chance: none
#: is measured again, so that the nightly session ends.
MAXIMUM, PART = 10, 0.25
#: Nightly sessions, with this one, whose stage and output folders are kept.
KEPT = 5


def nightly(args: argparse.Namespace) -> int:
    """Run the command `plumb nightly`; return the exit code."""
    commands.refuse_what_measures_nothing(args, 'nightly')
    folder = commands.site_folder(args.site)
    urls = messages.take_urls(folder)
    summary = Summary(folder.name, args.mode, args.page_url, args.require_compared)
    kind = session.nightly_kind(folder.name)
    timer = threading.Timer(3600 * args.hours, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        with (lock.hold_file_lock(
                WORK / 'nightly' / f'{folder.name}.lock', 0,
                busy='another nightly session of this site runs:',
                advice='it ends itself after --hours; if it hangs, end it with '
                'kill -9'),
              calibrate.raise_interrupt_on_signals(),
              commands.prepare_session(args) as work):
            if slurm_jobs.can_list_jobs(work.system):
                slurm_jobs.cancel_jobs_in_folders(
                    [one.stage for one in session.ended_sessions(kind)],
                    'a killed nightly session', summary.add_note)
            session.remove_old_sessions(kind, KEPT - 1)
            summary.nightly_session = session_id.new_session_id()
            NightlySession(work._replace(nightly_session=session.NightlySession(
                folder.name, summary.nightly_session)), args, summary).run_all()
    except KeyboardInterrupt:
        summary.ended_by = summary.ended_by or 'ended by a signal'
    except Exception as err:
        # The session is unattended: the error is in the messages, too.
        summary.usage = isinstance(err, SetupError)
        summary.broken = str(err) if summary.usage else \
            f'{type(err).__name__}: {err}'
        publish_summary(summary, args, urls)
        raise
    timer.cancel()
    if summary.ended_by and time.time() - summary.began >= 3600 * args.hours:
        summary.ended_by = f'its limit of {args.hours:g} h was reached (--hours)'
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
                                     summary.state)
    for fault in faults:
        print_progress(fault)
    return not faults


class NightlySession:
    """The ReFrame sessions of a nightly session, one after the other."""

    def __init__(self, work: commands.Work, args: argparse.Namespace,
                 summary: Summary) -> None:
        self.work, self.summary, self.site = work, summary, args.site
        self.system: str = work.system['name']
        #: Partition of the site -> its nodes; empty: unknown, or the user chooses them.
        self.pools: dict[str, schedulers.Pool] = {}
        self.chooses = any(word.startswith(CHOOSES) for word in args.reframe)
        self.read_records()

    def run_all(self) -> None:
        """Measure, and fill `summary`."""
        try:
            self.find_pools()
            [first] = self.run_sessions('all test cases of the mode')
            if not first.has_begun:
                if not self.summary.ended_by:
                    commands.print_zero_test_cases_reason(self.work, first)
                    self.summary.broken = ('nothing was measured; output of ReFrame: '
                                           f'{first.output}')
                    self.summary.usage = True
                return
            if first.code and not first.ended_by and not any(
                    one.is_failed for one in self.summary.results):
                self.summary.broken = (
                    f'ReFrame ended with exit code {first.code}, but no test case '
                    f'failed; output of ReFrame: {first.output}')
            self.measure_failures_again()
        except KeyboardInterrupt:
            self.summary.ended_by = self.summary.ended_by or 'ended by a signal'
        self.write_page()

    def run_sessions(self, title: str, cases: Sequence[str] = (), *options: str
                     ) -> list[commands.Ended]:
        """Run sessions of ReFrame; []: the nightly session is over.

        :param cases: short IDs of the only test cases to run; (): all of the mode, or
            those that options select
        """
        if self.summary.ended_by:
            return []
        print_progress(title)
        if cases:
            known = identities.identities_of_records(self.frame)
            ended = [*commands.run_test_cases(
                self.work, [known[name] for name in dict.fromkeys(cases)], *options)]
        else:
            ended = [commands.run_reframe_session(
                self.work, *options, any_mode=bool(options))]
        if ended[-1].ended_by:
            self.summary.ended_by = (self.summary.ended_by
                                     or f'ended by {ended[-1].ended_by}')
        if ended[0].has_begun:
            self.read_records()
        return ended

    def read_records(self) -> None:
        """Read all records of the system, and the results of this nightly session.

        :raises SetupError: the file of decisions is damaged
        """
        #: The perflogs, and all records of the system.
        self.perflogs = commands.read_perflogs(self.work.perflog_folder)
        frame = self.perflogs.frame
        self.frame = frame[frame['system'] == self.system].reset_index(drop=True)
        self.summary.results = [*results.results_of_nightly_session(
            self.frame, self.summary.nightly_session).values()]

    # Nodes -----------------------------------------------------------------

    def find_pools(self) -> None:
        """Query the nodes of each partition.

        :raises SetupError: no node takes jobs, so nothing can be measured
        """
        if self.chooses or self.summary.ended_by:
            return
        self.pools, why = schedulers.find_node_pools(self.work.system)
        if why and why not in self.summary.notes:
            self.summary.add_note(why)
        if self.pools and not any(one.usable_nodes for one in self.pools.values()):
            raise SetupError('no node takes jobs: ' + ', '.join(dict.fromkeys(
                str(node) for one in self.pools.values()
                for node in one.unusable_nodes)))

    def add_nodes_to_summary(self) -> None:
        """Add the nodes of each pool to the summary."""
        with contextlib.suppress(SetupError):       # all were lost
            self.find_pools()
        measured = {node for one in self.summary.results for part in one.sessions
                    if part.guard == '' for node in part.nodes}
        for pool in {(one.name, one.excluded): one
                     for one in self.pools.values()}.values():
            self.summary.nodes.append((pool, len(measured & pool.usable_nodes)))

    # Failures --------------------------------------------------------------

    def measure_failures_again(self) -> None:
        """Measure failures again, on the same nodes and on others."""
        failed = [one for one in self.summary.results
                  if one.result in ('fail', 'not_run')]
        cases = len({one.test_case for one in self.summary.results})
        if len(failed) > max(MAXIMUM, PART * cases):
            self.summary.add_note(
                f'{len(failed)} of {cases} test cases failed; so many failures '
                'are not random, so none was measured again')
            return
        if not failed:
            return
        self.find_pools()
        for (where, *options), some in self.plan_reruns(failed).items():
            self.run_sessions(
                f'measured again on {where}: {count_with_noun(len(some), "test case")}',
                [one.test_case for one in some], *options)

    def plan_reruns(self, failed: Sequence[Result]) -> dict[tuple, list[Result]]:
        """The sessions that measure failures again: place and options of ReFrame -> the
        results of single sessions.

        A failure that its session has measured again already (--max-retries) is not
        measured on the same nodes again.
        """
        plan: dict[tuple, list[Result]] = {}
        for one in (part for result in failed for part in result.sessions
                    # A job that did not start would wait as long again.
                    if part.result in ('fail', 'not_run') and part.guard != 'pending'):
            pool = self.pools.get(one.partition)
            if pool is None or not one.nodes:
                if one.measurements == 1:
                    plan.setdefault(('any nodes',), []).append(one)
                continue
            if (one.measurements == 1 and one.nodes <= pool.usable_nodes
                    and len(one.nodes) == one.width):
                plan.setdefault(('the same nodes', '-P', f'{identities.PINNED}='
                                 + '+'.join(sorted(one.nodes))), []).append(one)
            # A failure of an earlier session was measured on others in this one.
            if not one.is_open and len(pool.usable_nodes - one.nodes) >= one.width:
                # Only the last --exclude counts, so it repeats that of the site.
                plan.setdefault((
                    'other nodes', '-J', 'exclude=' + topology.fold_host_list(
                        one.nodes | pool.excluded)), []).append(one)
        return plan

    def newest_verdict(self) -> Verdict:
        """The verdict on the newest session of the system, as `plumb verdict` has it.

        :raises SetupError: the file of its switches is damaged
        """
        try:
            return judge_session(
                self.frame, decisions=self.perflogs.decided,
                sessions=self.perflogs.sessions, damaged=len(self.perflogs.faults),
                site=self.site)
        except ValueError as err:
            raise SetupError(str(err)) from None

    # The end ---------------------------------------------------------------

    def write_page(self) -> None:
        """Write the page, and add nodes and the verdict to the summary."""
        if not self.summary.results:
            return
        self.add_nodes_to_summary()
        page, _ = commands.write_report_page(self.work.perflog_folder, self.site)
        self.summary.page = page or ''
        if not page:
            self.summary.broken = 'the page was not written'
        verdict = self.newest_verdict()
        self.summary.verdict = dataclasses.replace(
            verdict, session=self.summary.nightly_session,
            ended_early=verdict.ended_early or bool(self.summary.ended_by))
