"""The summary of a nightly session: a text, and the same as data."""
from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.nightly import reruns
from config.console import count_with_noun
from config.places import CALIBRATE, site_option
from config.version import VERSION
from postprocess.names import short_name
from postprocess.regressions.events import uncompared_event
from postprocess.results import (
    Result,
    comparison_fault,
    exit_code_of_state,
    session_state,
)

#: Maximum of lines of a kind; the rest is counted.
MAXIMUM = 20
#: States of a status page, the worst first.
STATUSES = ('failed', 'degraded', 'ok')
#: Status of a session by its state (results.STATES); others: failed.
_STATUS_OF_SESSION = {'good': 'ok', 'regressed': 'degraded', 'degraded': 'degraded',
                      'not compared': 'degraded'}


@dataclass
class Nodes:
    """The nodes of a Slurm partition in a nightly session."""
    #: Partition of Slurm; '' for its default one.
    pool: str
    usable: int
    measured: int
    #: Left out, with state and reason, in words.
    out: list[str] = field(default_factory=list)
    #: Due, but not measured because they were not free.
    busy: list[str] = field(default_factory=list)
    #: Not measured for more than `max_node_age` sessions.
    late: list[str] = field(default_factory=list)


@dataclass
class Summary:
    """The results of a nightly session so far."""
    site: str
    #: Seconds since 1970.
    began: float
    #: Sessions within which each node is measured; 0: no such limit.
    max_node_age: int = 0
    mode: str = 'nightly'
    #: Identifier of its first session.
    nightly_session: str = ''
    #: Further remarks, the most important first.
    notes: list[str] = field(default_factory=list)
    #: Test cases of its first session.
    cases: int = 0
    results: list[Result] = field(default_factory=list)
    #: Lines of each change for the worse (postprocess/regressions/events.py).
    regressions: list[list[str]] = field(default_factory=list)
    #: Short IDs of test cases that are part of one.
    regressed: set[str] = field(default_factory=set)
    #: Whether a metric was compared with its history.
    compared_with_history: bool = False
    #: Whether a session in which nothing was compared exits with 3.
    require_compared: bool = False
    #: Cases without a reference.
    waiting: int = 0
    nodes: list[Nodes] = field(default_factory=list)
    #: Nodes that take no jobs at the end, with state and reason, in words.
    unusable_nodes: dict[str, str] = field(default_factory=dict)
    #: Lines on failures and regressions that other sessions have left.
    elsewhere: list[str] = field(default_factory=list)
    page: str = ''
    #: Address at which others can open the page; '': none.
    page_url: str = ''
    #: Why nothing was measured; '': something was.
    broken: str = ''
    #: What ended it early; '': nothing did.
    ended_by: str = ''
    #: Whether the session could not run because of a usage error.
    usage: bool = False

    def add_note(self, text: str) -> None:
        """Add a remark, and print it at once."""
        print(f'plumb: {text}', flush=True)
        self.notes.append(text)

    def test_cases_with_result(self, *names: str) -> list[Result]:
        """The test cases that have one of these results."""
        return [one for one in self.results if one.result in names]

    @property
    def failed_test_cases(self) -> list[Result]:
        """The results that are failures, and were so when measured again."""
        return self.test_cases_with_result('fail', 'not_run', 'xpass')

    @property
    def state(self) -> str:
        """The state of the session: one of results.STATES."""
        return session_state(
            self.results, regressed=bool(self.regressions),
            compared=self.compared_with_history, broken=bool(self.broken),
            ended_early=bool(self.ended_by),
            incomplete=not self.page or not self.results)

    @property
    def exit_code(self) -> int:
        """The exit code of the state, also if all failures are flaky, because people
        do not read the summary of a nightly session that ends with 0; 2 if it could
        not run.
        """
        return 2 if self.usage else exit_code_of_state(
            self.state, self.require_compared)

    @property
    def headline(self) -> str:
        """The summary in one sentence."""
        if self.broken:
            sentence = self.broken
        else:
            parts = [(len(self.failed_test_cases), 'failed'),
                     (len(self.test_cases_with_result('missing')), 'missing'),
                     (len(self.test_cases_with_result('flaky')), 'flaky'),
                     (len(self.regressions), 'worse than before')]
            sentence = ', '.join([
                *(f'{number} {what}' for number, what in parts if number),
                *filter(None, [comparison_fault(self.results)])]) or (
                'nothing was measured' if not self.results
                else 'no reference, so nothing was compared'
                if self.state == 'not compared' else 'nothing is worse than before')
            sentence += f'; {count_with_noun(self.cases, "test case")} to run'
            if self.ended_by:
                sentence = f'{self.ended_by}; {sentence}'
        return f'{self.site}: {self.state.upper()}: {sentence}'

    def summary_lines(self) -> list[str]:
        """The lines of the summary, the worst first."""
        site = site_option(self.site)
        lines = [
            f'Nightly session {self.nightly_session} of '
            f'{self.headline}'.replace(
                '  ', ' '
            )
        ]
        lines += [f'! {note}' for note in self.notes]
        lines += self._failed_test_case_lines('Failed:', self.failed_test_cases)
        lines += self._failed_test_case_lines(
            'Missing:', self.test_cases_with_result('missing'))
        lines += self._failed_test_case_lines(
            'Flaky: failed, and passed when measured again:',
            self.test_cases_with_result('flaky'),
        )
        if comparison_fault(self.results):
            some = [one for one in self.results if one.uncompared]
            lines.append('Not compared with their references:')
            lines += [f'  {uncompared_event(one).title}' for one in some[:MAXIMUM]]
            lines += _omitted_count_lines(len(some))
        if self.regressions:
            lines.append(f'Worse than before (./plumb verdict{site} explains it):')
            lines += [f'  {text}' for one in self.regressions[:MAXIMUM]
                      for text in one]
            lines += _omitted_count_lines(len(self.regressions))
        for one in self.nodes:
            lines += _node_lines(one, self.max_node_age)
        if self.waiting:
            lines.append(f'{self.waiting} of the test cases have no '
                         f'reference: {CALIBRATE}{site} --mode {self.mode}')
        if self.page:
            lines.append(f'Page: {self.page_address}')
        if self.elsewhere:
            lines.append('Left by other sessions, not part of this result '
                         f'(./plumb verdict{site} explains it):')
            lines += [f'  {text}' for text in self.elsewhere[:MAXIMUM]]
            lines += _omitted_count_lines(len(self.elsewhere))
        return lines

    def data(self) -> dict[str, Any]:
        """The summary for a program, such as a status page; `text` is the text."""
        return {
            'text': '\n'.join(self.summary_lines()),
            'plumbline': VERSION,
            'site': self.site,
            'host': socket.gethostname(),
            'nightly_session': self.nightly_session,
            'began': _utc_timestamp(self.began),
            'seconds': round(time.time() - self.began),
            'state': self.state,
            'status': self.status,
            'code': self.exit_code,
            'headline': self.headline,
            'notes': self.notes,
            'cases': self.cases,
            'failed': [
                self._test_case_data(one) for one in self.failed_test_cases
            ],
            **{name: [self._test_case_data(one)
                      for one in self.test_cases_with_result(name)]
               for name in ('missing', 'flaky')},
            'regressions': ['\n'.join(one) for one in self.regressions],
            'nodes': [vars(one) for one in self.nodes],
            'elsewhere': self.elsewhere,
            'page': self.page_address,
            'components': self._components(),
        }

    @property
    def page_address(self) -> str:
        """Where the page is, for others if they can open it; '': there is none."""
        return self.page_url or self.page

    @property
    def status(self) -> str:
        """One of STATUSES, of the whole session."""
        return (_STATUS_OF_SESSION.get(self.state, 'failed')
                if self.results else 'failed')

    def _components(self) -> list[dict[str, Any]]:
        """`ok`, `degraded` or `failed`, of each family and partition that the session
        measured.

        `degraded`: a test case regressed, is flaky or missing, or was not compared
        with its reference. `failed`: one failed or did not run.
        """
        components: dict[tuple[str, str], list[str]] = {}
        for one in self.results:
            status = ('failed' if one.is_failed
                      and one.result not in ('flaky', 'missing') else
                      'degraded' if one.is_failed or one.uncompared
                      or one.test_case in self.regressed else 'ok')
            components.setdefault((one.partition, one.family), []).append(status)
        return [{'partition': partition, 'family': family,
                 'status': next(name for name in STATUSES if name in all_of),
                 'cases': len(all_of),
                 **{name: all_of.count(name) for name in STATUSES[:2]}}
                for (partition, family), all_of in sorted(components.items())]

    def _failed_test_case_lines(self, title: str, some: Sequence[Result]) -> list[str]:
        """Lines on test cases that failed."""
        lines = [title] if some else []
        for one in some[:MAXIMUM]:
            first = next(s for s in one.sessions if s.is_failed)
            why = ('a known fault no longer occurs: remove $xfail from the '
                   'reference file'
                   if one.result == 'xpass' else first.reason or first.guard
                   or 'out of tolerance')
            lines.append(
                f'  {self._test_case_name(one)} on {one.partition}'
                + (f' ({" ".join(sorted(first.nodes))})' if first.nodes
                   else '') + f': {why}')
            if sentence := slowdown_sentence(one):
                lines[-1:] = [f'  {self._test_case_name(one)} on {one.partition}: '
                              f'{sentence}']
                continue
            lost = self.lost_nodes(one)
            if text := describe_reruns(one, lost):
                lines.append(f'    measured again: {text}')
            if lost:
                names = ', '.join(self.unusable_nodes[name] for name in lost)
                lines.append(f'    check {names}: takes no jobs since the test case '
                             'failed')
            elif one.suspect_nodes:
                lines.append(f'    check {" ".join(sorted(one.suspect_nodes))}: '
                             'the test case failed only there')
        return lines + _omitted_count_lines(len(some))

    def _test_case_name(self, one: Result) -> str:
        return short_name(one.check, one.params, one.settings, one.test_case,
                          one.source)

    def lost_nodes(self, one: Result) -> list[str]:
        """The nodes of a test case that failed which take no jobs any more."""
        first = next(s for s in one.sessions if s.is_failed)
        return sorted(first.nodes & self.unusable_nodes.keys())

    def _test_case_data(self, one: Result) -> dict[str, Any]:
        """A test case that failed, for a program."""
        first = next(s for s in one.sessions if s.is_failed)
        return {
            'name': self._test_case_name(one),
            'partition': one.partition,
            'environ': one.environ,
            'test_case': one.test_case,
            'why': first.reason,
            'guard': first.guard,
            'nodes': sorted(first.nodes),
            'suspects': self.lost_nodes(one) or sorted(one.suspect_nodes),
            'measurements': first.measurements,
            'again': [
                {
                    'where': where,
                    'nodes': sorted(other.nodes),
                    'failed': other.is_failed,
                    'ran': other.has_run,
                }
                for where, other in sessions_by_relation_of_nodes(one)
            ],
        }


def sessions_by_relation_of_nodes(result: Result) -> list[tuple[str, Result]]:
    """The sessions besides the first one that failed, each with the nodes
    that it was on compared with those."""
    first = next(s for s in result.sessions if s.is_failed)
    return [(reruns.compare_nodes_of_results(s, first), s) for s in result.sessions
            if s is not first]


def describe_reruns(one: Result, lost: Sequence[str] = ()) -> str:
    """The results of the reruns of a test case, in words.

    :param lost: its nodes that take no jobs any more
    """
    others = sessions_by_relation_of_nodes(one)
    endings = []
    for where, other in others:
        nodes = f' ({" ".join(sorted(other.nodes))})' if other.nodes else ''
        endings.append('could not run again' + (f' on {where}{nodes}' if nodes else '')
                       if not other.has_run else
                       f'{"failed again" if other.is_failed else "passed"} on '
                       f'{where}{nodes}')
    if lost and not any(where == reruns.SAME for where, _ in others):
        endings.insert(0, f'could not run again on {reruns.SAME}')
    first = one.sessions[0]
    if first.measurements > 1:
        endings.insert(0, 'passed in the same session' if first.result == 'flaky' else
                       f'failed in each of {first.measurements} measurements')
    return ', '.join(endings)


def slowdown_sentence(one: Result) -> str:
    """How far a test case is out of tolerance on which nodes, if it is on several
    without a common one; '' otherwise."""
    failed = [s for s in one.sessions if s.is_failed]
    if (len(failed) < 2 or failed != [*one.sessions]
            or not all(s.change and s.nodes for s in failed)
            or frozenset.intersection(*(s.nodes for s in failed))):
        return ''
    nodes_by_change: dict[str, list[str]] = {}
    for session in failed:
        nodes_by_change.setdefault(session.change, []).append(
            f'on {" ".join(sorted(session.nodes))}')
    first = failed[0]
    changes = [f'{change} {" and ".join(places)}'
               for change, places in nodes_by_change.items()]
    changes[0] = changes[0].replace(first.change,
                                    f'{first.change} against its reference', 1)
    return f'{first.metric} {" and ".join(changes)}: not one node'


def _node_lines(one: Nodes, cover: int) -> list[str]:
    where = f'of partition {one.pool}' if one.pool else ''
    lines = [' '.join(filter(None, [
        f'Nodes: {one.measured} of {one.usable} that take jobs', where,
        'were measured']))]
    if one.out:
        lines.append(f'  left out: {shortened_list_text(one.out)}')
    if one.busy:
        lines.append(f'  due, but not free: {shortened_list_text(one.busy)}')
    if one.late:
        lines.append(f'  not measured in the last {cover} sessions: '
                     f'{shortened_list_text(one.late)}')
    return lines


def shortened_list_text(texts: Sequence[str]) -> str:
    """The first texts, and how many more there are."""
    rest = len(texts) - MAXIMUM
    return ', '.join(texts[:MAXIMUM]) + (
        f' and {rest} more' if rest > 0 else ''
    )


def _omitted_count_lines(number: int) -> list[str]:
    return [f'  and {number - MAXIMUM} more'] if number > MAXIMUM else []


def _utc_timestamp(seconds: float) -> str:
    return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(seconds))
