"""The summary of a nightly session: a text, and the same as data."""
from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from cli.site.schedulers import Pool
from config.version import VERSION
from postprocess.printed import PrintedCommands
from postprocess.regressions import events
from postprocess.results import Result, exit_code_of_state, session_state


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
    #: The results of its test cases.
    results: list[Result] = field(default_factory=list)
    #: The verdict on the system, as page and `plumb verdict` have it; None: nothing was
    #: measured.
    verdict: events.Verdict | None = None
    #: Nodes of each partition of Slurm at the end, and how many of those that take jobs
    #: were measured.
    nodes: list[tuple[Pool, int]] = field(default_factory=list)
    page: str = ''
    #: Why the session could not run or report; '': it could.
    broken: str = ''
    #: What ended it early; '': nothing did.
    ended_by: str = ''
    #: Whether the session could not run because of a usage error.
    usage: bool = False

    def add_note(self, text: str) -> None:
        """Add a remark, and print it at once."""
        print(f'plumb: {text}', flush=True)
        self.notes.append(text)

    @property
    def state(self) -> str:
        """The state of the session: one of results.STATES."""
        return self.verdict.state if self.verdict and not self.broken else \
            session_state((), regressed=False, compared=False, incomplete=True,
                          broken=bool(self.broken), ended_early=bool(self.ended_by))

    @property
    def exit_code(self) -> int:
        """The exit code of the state; 2 if the session could not run."""
        return 2 if self.usage else exit_code_of_state(
            self.state, self.require_compared)

    @property
    def headline(self) -> str:
        """The summary in one sentence."""
        text = self.broken or self.ended_by or 'nothing was measured'
        if self.verdict and not self.broken:
            _, _, text = self.verdict.headline.partition(
                f'{self.state.upper()}')
        return f'{self.site}: {self.state.upper()}: {text.lstrip(":. ")}'

    def summary_lines(self) -> list[str]:
        """The lines of the summary, the worst first."""
        lines = [' '.join(f'Nightly session {self.nightly_session} of '
                          f'{self.headline}'.split()),
                 *(f'! {note}' for note in [*filter(None, [self.ended_by]),
                                            *self.notes]),
                 *(events.verdict_lines(self.verdict) if self.verdict else ())]
        again = [text for one in self.results for text in self._rerun_lines(one)]
        lines += ['Measured again:', *again] if again else []
        lines += [f'Nodes: {measured} of {len(pool.usable_nodes)} that take jobs '
                  + f'of partition {pool.name} ' * bool(pool.name) + 'were measured'
                  + pool.left_out_text for pool, measured in self.nodes]
        if waiting := sum(one.result == 'no_reference' for one in self.results):
            commands = self.verdict.commands if self.verdict else PrintedCommands()
            calibrate = commands.measure(
                'references calibrate', self.site, f'--mode {self.mode}')
            lines.append(f'{waiting} of the test cases have no reference: {calibrate}')
        if self.page:
            lines.append(f'Page: {self.page_url or self.page}')
        return lines

    def data(self) -> dict[str, Any]:
        """The summary for a program; `text` is the text."""
        return {
            'text': '\n'.join(self.summary_lines()), 'plumbline': VERSION,
            'site': self.site, 'host': socket.gethostname(),
            'nightly_session': self.nightly_session,
            'began': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(self.began)),
            'seconds': round(time.time() - self.began),
            'state': self.state, 'code': self.exit_code,
            'headline': self.headline, 'notes': self.notes,
            'failed': [self._result_data(one) for one in self.results
                       if one.is_failed],
            'verdict': self.verdict and json.loads(self.verdict.json()),
            'nodes': [{'pool': pool.name, 'usable': len(pool.usable_nodes),
                       'measured': measured, 'out': [*map(str, pool.unusable_nodes)]}
                      for pool, measured in self.nodes],
            'page': self.page_url or self.page}

    def _result_data(self, one: Result) -> dict[str, Any]:
        """A test case that failed, and where it was measured again."""
        first = next((part for part in one.sessions if part.is_failed), one)
        return {
            'name': events.test_case_text(one),
            'test_case': one.test_case, 'result': one.result, 'why': first.reason,
            'guard': first.guard, 'nodes': sorted(first.nodes),
            'measurements': first.measurements,
            'again': [{'where': 'any nodes' if not (other.nodes and first.nodes) else
                       'the same nodes' if other.nodes & first.nodes else 'other nodes',
                       'nodes': sorted(other.nodes), 'failed': other.is_failed,
                       'ran': other.has_run}
                      for other in one.sessions if other is not first]}

    def _rerun_lines(self, one: Result) -> list[str]:
        """Where a test case that failed was measured again."""
        data = self._result_data(one)
        if not one.is_failed or not data['again']:
            return []
        endings = ['{} on {}{}'.format(
            'could not run again' if not each['ran'] else
            'failed again' if each['failed'] else 'passed', each['where'],
            f' ({" ".join(each["nodes"])})' * bool(each['nodes']))
            for each in data['again']]
        return [f'  {data["name"]}: {", ".join(endings)}']
