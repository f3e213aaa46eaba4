"""The summary of a nightly session: a text, and the same as data."""
from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import Any

from config.console import count_with_noun, shortened_list_text
from config.places import CALIBRATE, site_option
from config.version import VERSION
from postprocess.names import short_name
from postprocess.results import (
    Result,
    comparison_fault,
    exit_code_of_state,
    session_state,
)

#: Maximum of lines of a kind; the rest is counted.
MAXIMUM = 20
#: Statuses of a status page, the worst first.
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
    #: Those that take no jobs, with state and reason, in words.
    out: list[str]


@dataclass
class Summary:
    """The results of a nightly session so far."""
    site: str
    mode: str = 'nightly'
    #: Address at which others can open the page; '': none.
    page_url: str = ''
    #: Whether a session in which nothing was compared exits with 3.
    require_compared: bool = False
    #: Seconds since 1970.
    began: float = field(default_factory=time.time)
    #: Identifier of its first session.
    nightly_session: str = ''
    #: Further remarks, the most important first.
    notes: list[str] = field(default_factory=list)
    #: Test cases of its first session.
    cases: int = 0
    results: list[Result] = field(default_factory=list)
    #: Lines of each change for the worse.
    regressions: list[list[str]] = field(default_factory=list)
    #: Short IDs of test cases that are part of one.
    regressed: set[str] = field(default_factory=set)
    #: Whether a metric was compared with its history.
    compared_with_history: bool = False
    nodes: list[Nodes] = field(default_factory=list)
    #: Nodes that take no jobs at the end, with state and reason, in words.
    unusable_nodes: dict[str, str] = field(default_factory=dict)
    #: Failures and regressions that other sessions have left.
    elsewhere: int = 0
    page: str = ''
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
        """The failures that did not pass when they were measured again."""
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
    def status(self) -> str:
        """One of STATUSES, of the whole session."""
        return (_STATUS_OF_SESSION.get(self.state, 'failed')
                if self.results else 'failed')

    @property
    def exit_code(self) -> int:
        """The exit code of the state; 2 if the session could not run."""
        return 2 if self.usage else exit_code_of_state(
            self.state, self.require_compared)

    @property
    def headline(self) -> str:
        """The summary in one sentence."""
        sentence = self.broken
        if not sentence:
            sentence = ', '.join([
                *(f'{number} {what}' for number, what in (
                    (len(self.failed_test_cases), 'failed'),
                    (len(self.test_cases_with_result('missing')), 'missing'),
                    (len(self.test_cases_with_result('flaky')), 'flaky'),
                    (len(self.regressions), 'worse than before')) if number),
                *filter(None, [comparison_fault(self.results)])]) or (
                'nothing was measured' if not self.results
                else 'no reference, so nothing was compared'
                if self.state == 'not compared' else 'nothing is worse than before')
            sentence = (f'{self.ended_by}; ' * bool(self.ended_by) + sentence
                        + f'; {count_with_noun(self.cases, "test case")} to run')
        return f'{self.site}: {self.state.upper()}: {sentence}'

    def summary_lines(self) -> list[str]:
        """The lines of the summary, the worst first."""
        site = site_option(self.site)
        lines = [' '.join(f'Nightly session {self.nightly_session} of '
                          f'{self.headline}'.split()),
                 *(f'! {note}' for note in self.notes)]
        for title, some in (
                ('Failed:', self.failed_test_cases),
                ('Missing:', self.test_cases_with_result('missing')),
                ('Flaky: failed, and passed when measured again:',
                 self.test_cases_with_result('flaky')),
                ('Not compared with their references:',
                 [one for one in self.results
                  if one.uncompared and comparison_fault(self.results)])):
            lines += _list_lines(title, [self._result_lines(one) for one in some])
        lines += _list_lines(f'Worse than before (./plumb verdict{site} explains it):',
                             self.regressions)
        lines += [f'Nodes: {one.measured} of {one.usable} that take jobs '
                  + f'of partition {one.pool} ' * bool(one.pool) + 'were measured'
                  + f'; left out: {shortened_list_text(one.out)}' * bool(one.out)
                  for one in self.nodes]
        if waiting := len(self.test_cases_with_result('no_reference')):
            lines.append(f'{waiting} of the test cases have no reference: '
                         f'{CALIBRATE}{site} --mode {self.mode}')
        if self.page:
            lines.append(f'Page: {self.page_url or self.page}')
        if self.elsewhere:
            lines.append('Not part of this result: '
                         f'{count_with_noun(self.elsewhere, "fault")} of other '
                         f'sessions, which ./plumb verdict{site} lists')
        return lines

    def data(self) -> dict[str, Any]:
        """The summary for a program, such as a status page; `text` is the text."""
        return {
            'text': '\n'.join(self.summary_lines()), 'plumbline': VERSION,
            'site': self.site, 'host': socket.gethostname(),
            'nightly_session': self.nightly_session,
            'began': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(self.began)),
            'seconds': round(time.time() - self.began),
            'state': self.state, 'status': self.status, 'code': self.exit_code,
            'headline': self.headline, 'notes': self.notes, 'cases': self.cases,
            **{name: [self._result_data(one) for one in some] for name, some in (
                ('failed', self.failed_test_cases),
                ('missing', self.test_cases_with_result('missing')),
                ('flaky', self.test_cases_with_result('flaky')))},
            'regressions': ['\n'.join(one) for one in self.regressions],
            'nodes': [vars(one) for one in self.nodes], 'elsewhere': self.elsewhere,
            'page': self.page_url or self.page, 'components': self._components()}

    def _components(self) -> list[dict[str, Any]]:
        """The status of each family and partition that the session measured.

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

    def _result_lines(self, one: Result) -> list[str]:
        """The lines of a test case that failed, or was not compared."""
        data = self._result_data(one)
        where = f' ({" ".join(data["nodes"])})' if data['nodes'] else ''
        lines = [f'{data["name"]} on {one.partition}{where}: {data["why"]}']
        endings = ['{} on {}{}'.format(
            'could not run again' if not each['ran'] else
            'failed again' if each['failed'] else 'passed', each['where'],
            f' ({" ".join(each["nodes"])})' * bool(each['nodes']))
            for each in data['again']]
        if one.sessions and one.sessions[0].measurements > 1:
            endings.insert(0, 'passed in the same session'
                           if one.sessions[0].result == 'flaky' else
                           f'failed in each of {one.sessions[0].measurements} '
                           'measurements')
        if endings:
            lines.append(f'  measured again: {", ".join(endings)}')
        if lost := [name for name in data['suspects'] if name in self.unusable_nodes]:
            names = ', '.join(self.unusable_nodes[name] for name in lost)
            lines.append(f'  check {names}: takes no jobs since the test case failed')
        elif data['suspects']:
            lines.append(f'  check {" ".join(data["suspects"])}: the test case failed '
                         'only there')
        return lines

    def _result_data(self, one: Result) -> dict[str, Any]:
        """A test case that failed, for a program."""
        first = next((s for s in one.sessions if s.is_failed), one)
        why = ('a known fault no longer occurs: remove $xfail from the reference file'
               if one.result == 'xpass' else first.reason or first.guard
               or f'{first.metric} {first.change} against its reference')
        return {
            'name': short_name(one.check, one.params, one.settings, one.test_case,
                               one.source),
            'partition': one.partition, 'environ': one.environ,
            'test_case': one.test_case, 'why': why, 'guard': first.guard,
            'nodes': sorted(first.nodes),
            'suspects': sorted(first.nodes & self.unusable_nodes.keys()
                               or one.suspect_nodes),
            'measurements': first.measurements,
            'again': [{'where': 'any nodes' if not (other.nodes and first.nodes) else
                       'the same nodes' if other.nodes & first.nodes else 'other nodes',
                       'nodes': sorted(other.nodes), 'failed': other.is_failed,
                       'ran': other.has_run}
                      for other in one.sessions if other is not first]}


def _list_lines(title: str, entries: list[list[str]]) -> list[str]:
    """A title and its entries, of which the last ones are counted if there are many."""
    rest = len(entries) - MAXIMUM
    return [title, *(f'  {text}' for one in entries[:MAXIMUM] for text in one),
            *[f'  and {rest} more'] * (rest > 0)] if entries else []
