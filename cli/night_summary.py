"""What a night says: one text, as a mail and for a webhook too.

Files only. Who wants to send them does that with the site's own tools
(`sendmail -t < FILE`, `curl --json @FILE URL`): no address, no password and
no URL is known here.
"""
from __future__ import annotations

import getpass
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from pathlib import Path
from typing import Any

from cli.reruns import Trial
from config.version import VERSION

#: Lines of a kind; the rest is counted.
MOST = 20


@dataclass
class Nodes:
    """What a night says of the nodes of a partition of Slurm."""
    #: Partition of Slurm; '' for its default one.
    pool: str
    usable: int
    measured: int
    #: Left out, with state and reason, in words.
    out: list[str] = field(default_factory=list)
    #: Due tonight, and not measured for they were not free.
    busy: list[str] = field(default_factory=list)
    #: Not measured for longer than they should wait.
    late: list[str] = field(default_factory=list)


@dataclass
class Summary:
    """A night, as far as it is known."""
    site: str
    #: Seconds since 1970.
    began: float
    #: Nights in which each node is to be measured; 0: nobody asked for it.
    cover: int = 0
    #: Its first session.
    night: str = ''
    #: What the reader is to know besides, the most important first.
    notes: list[str] = field(default_factory=list)
    #: Cases that the night meant to run.
    cases: int = 0
    trials: list[Trial] = field(default_factory=list)
    #: Lines of each change for the worse (postprocess/telling.py).
    regressions: list[list[str]] = field(default_factory=list)
    #: Cases without a reference.
    waiting: int = 0
    nodes: list[Nodes] = field(default_factory=list)
    #: The verdict's own sentence.
    verdict: str = ''
    page: str = ''
    #: Why there is nothing to judge; '': there is.
    broken: str = ''
    #: A case can never run within the site's budget.
    never: bool = False
    #: What ended it early; '': nothing did.
    ended_by: str = ''
    #: Exit code where nothing was judged.
    usage: bool = False

    def note(self, text: str) -> None:
        """Adds what the reader is to know, and says it at once."""
        print(f'plumb: {text}', flush=True)
        self.notes.append(text)

    def those(self, *verdicts: str) -> list[Trial]:
        return [one for one in self.trials if one.verdict in verdicts]

    @property
    def word(self) -> str:
        """The night in a word, the worst that is true of it."""
        return ('not run' if self.broken else 'ended' if self.ended_by
                else 'failed' if self.those('fail', 'xpass')
                else 'regressed' if self.regressions
                else 'unstable' if self.those('unstable')
                else 'incomplete' if self.never or not self.page
                else 'good')

    @property
    def code(self) -> int:
        """0 good; 1 anything else, also what is unstable alone: nobody looks
        at a night that ends with 0; 2 it could not run."""
        return 2 if self.usage else 0 if self.word == 'good' else 1

    @property
    def headline(self) -> str:
        """All of it in a sentence."""
        if self.broken:
            said = self.broken
        else:
            parts = [(len(self.those('fail', 'xpass')), 'failed'),
                     (len(self.those('unstable')), 'unstable'),
                     (len(self.regressions), 'worse by its history')]
            said = ', '.join(f'{number} {what}' for number, what in parts
                             if number) or 'nothing is worse'
            said += f'; {self.cases} case{"s" * (self.cases != 1)} to run'
            if self.ended_by:
                said = f'{self.ended_by}; {said}'
        return f'{self.site}: {self.word.upper()}: {said}'

    def lines(self) -> list[str]:
        """What people read, the worst first."""
        found = [f'Night {self.night} of {self.headline}'.replace('  ', ' ')]
        found += [f'! {note}' for note in self.notes]
        found += _trials('Failed:', self.those('fail', 'xpass'))
        found += _trials('Unstable: failed, and not when measured again. No '
                         'pass:', self.those('unstable'))
        if self.regressions:
            found.append('Worse than it was, by its history (./plumb '
                         'verdict):')
            found += [f'  {text}' for one in self.regressions[:MOST]
                      for text in one]
            found += _more(len(self.regressions))
        for one in self.nodes:
            found += _nodes(one, self.cover)
        if self.waiting:
            found.append(f'{self.waiting} of the cases have no reference and '
                         'were recorded, not judged: ./plumb references '
                         'learn')
        found += [text for text in (
            self.verdict, self.page and f'Page: {self.page}') if text]
        return found

    def data(self) -> dict[str, Any]:
        """For a program. `text` is what Slack, Mattermost and others show."""
        return {
            'text': '\n'.join(self.lines()), 'plumbline': VERSION,
            'site': self.site, 'host': socket.gethostname(),
            'night': self.night, 'began': _stamp(self.began),
            'seconds': round(time.time() - self.began),
            'verdict': self.word, 'code': self.code,
            'headline': self.headline, 'notes': self.notes,
            'cases': self.cases, 'failed': [
                _trial(one) for one in self.those('fail', 'xpass')],
            'unstable': [_trial(one) for one in self.those('unstable')],
            'regressions': ['\n'.join(one) for one in self.regressions],
            'nodes': [vars(one) for one in self.nodes], 'page': self.page}

    def mail(self, to: str = '') -> bytes:
        """A message (RFC 5322), for `sendmail -t`."""
        host = socket.gethostname()
        mail = EmailMessage(policy=policy.default)
        mail['Subject'] = ' '.join(f'plumbline: {self.headline}'.split())
        mail['From'] = f'{_user()}@{host}'
        if to:
            mail['To'] = to
        mail['Date'] = format_datetime(_date(time.time()))
        mail['Message-ID'] = make_msgid(domain=host)
        # Who is away does not answer a machine (RFC 3834).
        mail['Auto-Submitted'] = 'auto-generated'
        mail.set_content('\n'.join(self.lines()) + '\n',
                         cte='quoted-printable')
        return bytes(mail)

    def write(self, mail: Path | None, webhook: Path | None, to: str = ''
              ) -> None:
        """Writes the files; none of them is ever half there.

        :raises OSError: one cannot be written
        """
        from postprocess.files import write_all
        for path, made in ((mail, lambda: self.mail(to)),
                           (webhook, lambda: json.dumps(
                               self.data(), indent=1).encode() + b'\n')):
            if path:
                write_all(path.parent, {path.name: made()})


def _trials(title: str, some: Sequence[Trial]) -> list[str]:
    found = [title] if some else []
    for one in some[:MOST]:
        why = ('a known fault is gone: take it out of the reference file'
               if one.result == 'xpass' else one.why or one.guard)
        found.append(f'  {one.name} on {one.key[0]}'
                     + (f' ({" ".join(sorted(one.nodes))})' if one.nodes
                        else '') + f': {why}')
        if one.story:
            found.append(f'    measured again: {one.story}')
        if one.suspects:
            found.append(f'    look at {" ".join(sorted(one.suspects))}: it '
                         'is there, and not elsewhere')
    return found + _more(len(some))


def _nodes(one: Nodes, cover: int) -> list[str]:
    where = f'of partition {one.pool}' if one.pool else ''
    found = [' '.join(filter(None, [
        f'Nodes: {one.measured} of {one.usable} that take jobs', where,
        'were measured tonight']))]
    if one.out:
        found.append(f'  left out: {_some(one.out)}')
    if one.busy:
        found.append(f'  due, and not free: {_some(one.busy)}')
    if one.late:
        found.append(f'  not measured for more than {cover} nights: '
                     f'{_some(one.late)}')
    return found


def _some(texts: Sequence[str]) -> str:
    rest = len(texts) - MOST
    return ', '.join(texts[:MOST]) + (f' and {rest} more' if rest > 0 else '')


def _more(number: int) -> list[str]:
    return [f'  and {number - MOST} more'] if number > MOST else []


def _trial(one: Trial) -> dict[str, Any]:
    partition, environ, case = one.key
    return {'name': one.name, 'partition': partition, 'environ': environ,
            'case': case, 'why': one.why, 'guard': one.guard,
            'nodes': sorted(one.nodes), 'suspects': sorted(one.suspects),
            'tries': one.tries, 'again': [
                {'where': where, 'nodes': sorted(trial.nodes),
                 'failed': trial.failed} for where, trial in one.again]}


def _date(seconds: float) -> Any:
    import datetime
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def _stamp(seconds: float) -> str:
    return f'{_date(seconds):%Y-%m-%dT%H:%M:%SZ}'


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return 'plumbline'
