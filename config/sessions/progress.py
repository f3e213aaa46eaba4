"""The progress of a session, from the lines that ReFrame prints."""
from __future__ import annotations

import re

#: A test case, or a build, that has ended: result, number, total, name and place.
_ENDED = re.compile(r'\[ +(OK|FAIL|ERROR|XFAIL|XPASS|SKIP|ABORT) +\] '
                    r'\( *(\d+)/(\d+)\) (.*? /[0-9a-f]+ @\S+)')
_BEGUN = re.compile(r'\[ RUN +\] ')
_RETRY = re.compile(r'\[=+\] Retrying .*\(retry (\d+)/(\d+)\)')
#: Results of ReFrame that are no failure.
_GOOD = ('OK', 'XFAIL')


class Progress:
    """How far a session is."""

    def __init__(self) -> None:
        #: Whether a test case or build has begun.
        self.has_begun = False
        #: Test cases and builds that have ended, and their total: of the session, or
        #: of its retry.
        self.ended = self.total = 0
        #: Those that failed and have not passed since.
        self.failed: set[str] = set()
        #: Builds that have ended: they say nothing about the pace of test cases.
        self.builds = 0
        #: Number of the retry; 0: the first measurements.
        self.retry = 0

    def read_line(self, line: str) -> None:
        """Take a line of ReFrame's output into account."""
        if match := _ENDED.match(line):
            result, ended, total, name = match.groups()
            self.ended, self.total = int(ended), int(total)
            self.builds += ' ~' in name
            (self.failed.discard if result in _GOOD else self.failed.add)(name)
        elif _BEGUN.match(line):
            self.has_begun = True
        elif match := _RETRY.match(line):
            self.retry, self.ended, self.total = int(match[1]), 0, 0

    def text(self, elapsed: float) -> str:
        """One line for people, at most 80 columns.

        :param elapsed: seconds since ReFrame began

        >>> progress = Progress()
        >>> progress.read_line('[     FAIL ] (22/37) Check %size=1 /a38ba5b9 @s:p+e []')
        >>> progress.text(240)
        '22 of 37 test cases and builds, 1 failed · 4 min, 2 min left at this pace'
        """
        # At the pace so far; unknown in a retry, which has slow test cases only.
        left = (elapsed * (self.total / self.ended - 1)
                if self.ended > self.builds and not self.retry else 0)
        return (f'retry {self.retry}: ' * bool(self.retry)
                + (f'{self.ended} of {self.total} test cases and builds' if self.total
                   else 'the first builds or test cases run' if self.has_begun
                   else 'ReFrame reads the checks')
                + f', {len(self.failed)} failed' * bool(self.failed)
                + f' · {duration_text(elapsed)}'
                + (f', {duration_text(left // 60 * 60)} left at this pace'
                   if left >= 60 else ''))


def duration_text(seconds: float) -> str:
    """A time for people: `45 s`, `5 min 20 s`, `12 min`, `3 h 5 min`.

    >>> duration_text(45), duration_text(320), duration_text(725), duration_text(11100)
    ('45 s', '5 min 20 s', '12 min', '3 h 5 min')
    """
    number = round(seconds)
    if number < 60:
        return f'{number} s'
    minutes, rest = divmod(number, 60)
    if minutes < 60:
        return f'{minutes} min' + f' {rest} s' * (minutes < 10 and rest > 0)
    hours, minutes = divmod(minutes, 60)
    return f'{hours} h' + f' {minutes} min' * (minutes > 0)
