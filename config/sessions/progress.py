"""The progress of a session, which ReFrame's process writes to a file of the
session's folder and `plumb run` reads."""
from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

#: The file.
NAME = 'progress.json'


@dataclass
class Progress:
    """How far a session is. Times in s."""
    #: Planned test cases, those that ended at least once, and those that failed.
    cases: int
    ended: int = 0
    failed: int = 0
    #: Jobs that are measured again, in the last round of retries.
    again: int = 0
    #: Expected times of all jobs, and of those that ended.
    expected: float = 0.0
    expected_ended: float = 0.0
    #: Cost of the session, printed before its first job; '' on one machine.
    cost: str = ''

    def write(self, folder: Path) -> None:
        """Write it to the session's folder.

        :raises OSError: it cannot be written
        """
        new = folder / f'.{NAME}'
        new.write_text(json.dumps(asdict(self)))
        os.replace(new, folder / NAME)

    @classmethod
    def read(cls, folder: Path) -> Progress | None:
        """What was written last; None: nothing yet."""
        try:
            return cls(**json.loads((folder / NAME).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def seconds_left(self, elapsed: float) -> float | None:
        """Expected seconds until all jobs have ended, at the pace so far; None:
        unknown, because none has ended, or some are measured again after pauses.

        :param elapsed: seconds since the first job
        """
        if self.expected_ended <= 0 or self.again:
            return None
        return elapsed * max(self.expected / self.expected_ended - 1, 0.0)

    def text(self, elapsed: float) -> str:
        """One line for people, at most 80 columns.

        >>> Progress(37, 22, 1, expected=600, expected_ended=300).text(240)
        '22 of 37 test cases, 1 failed · 4 min, about 4 min left'
        """
        left = self.seconds_left(elapsed)
        return (f'{self.ended} of {self.cases} test cases'
                + f', {self.failed} failed' * bool(self.failed)
                + f', {self.again} to measure again' * bool(self.again)
                + f' · {duration_text(elapsed)}'
                + (f', about {duration_text(left // 60 * 60)} left'
                   if left and left >= 60 else ''))


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
