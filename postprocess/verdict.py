"""What a night says of a system: `judge(records) -> Verdict`.

A night is the records of one session, or of all sessions that began on one
date (UTC). Each figure that has a better side is judged by its own history
(postprocess/history.py, detect.py), whether or not a reference judges it too;
what a reference, a limit or a guard failed is a failure, as in `plumb report`
(postprocess/outcomes.py).

**Together.** For each case, program, stack, partition, system and, from the
nodes of each job, node and switch, the mean of its cases' z each night is a
series of its own, whose spread and autocorrelation hold what its members have
in common: a loss of 1 % that 25 figures share shows there in a night or two.
Of all groups that alarm, or most of whose cases do, the one that explains
most comes first: the largest n * mean(z)^2 of n cases, which a group of all
that is worse and of nothing else has. Its cases are taken out, and the rest
judged again; what is left are single figures. So a bad switch is one line.

**The baseline** of a figure never follows a regression. It is told every
night, with the night it began, until it is over or somebody accepts it
(postprocess/accepted.py).
"""
from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from .accepted import Accepted


@dataclass(frozen=True)
class Member:
    """A figure that is worse, of a regression."""
    system: str
    partition: str
    environ: str
    check: str
    params: str
    #: ReFrame's hash.
    case: str
    metric: str
    #: '8 B', or ''.
    point: str
    ratio: float | None


@dataclass(frozen=True)
class Regression:
    """A change for the worse that nobody accepted (or, in `improved`, one
    for the better). Texts are '' where its figures differ in them."""
    #: Stays the same from night to night; what `ack` is given.
    id: str
    #: figure, case, program, stack, metric, partition, system, node, switch.
    kind: str
    #: Name of the group, for people; '' for a figure.
    group: str
    system: str
    partition: str
    environ: str
    family: str
    check: str
    params: str
    #: Hash of the only case, or ''.
    case: str
    #: Hashes of all cases that are held to be worse.
    cases: list[str]
    #: The first judged one; all of them are in `metrics`.
    metric: str
    metrics: list[str]
    point: str
    unit: str
    #: lower, higher, or '' where they differ: then `ratio` is how many times
    #: as bad they are.
    better: str
    #: Date of the first night, and its first session.
    since: str
    since_run: str
    #: Nights since then.
    nights: int
    #: Centre of the baseline, and level since; None: several figures.
    before: float | None
    now: float | None
    #: Level since over the centre before, with an interval of 95 %; None
    #: where the centre is 0.
    ratio: float | None
    low: float | None
    high: float | None
    #: 0 to 1: that there is a change at all.
    sure: float
    #: What else changed that night; '': nothing that is recorded.
    cause: str
    #: What to do.
    todo: str
    members: list[Member] = field(default_factory=list)
    #: Why it is known, and until when: accepted faults alone.
    reason: str = ''
    until: str = ''


@dataclass(frozen=True)
class Failure:
    """A case that failed in its newest session: refused by a guard, beyond
    its reference or a limit, never run to its end, or a known fault that is
    gone (`xpass`). One a case, as in report and table."""
    system: str
    partition: str
    environ: str
    family: str
    check: str
    params: str
    case: str
    #: fail or xpass.
    result: str
    guard: str
    metric: str
    point: str
    value: float | None
    reference: float | None
    unit: str
    run: str
    time: str
    todo: str


@dataclass(frozen=True)
class Case:
    """A case that has not run (stale), that has too few nights (not_enough)
    or is worth running again (rerun)."""
    system: str
    partition: str
    environ: str
    family: str
    check: str
    params: str
    case: str
    #: Nights that there are, of those that are needed; stale: the last one.
    why: str
    nights: int = 0
    needs: int = 0
    last: str = ''


@dataclass(frozen=True)
class Verdict:
    """What is to be said of a night."""
    #: The session, or the date where there were several.
    night: str
    #: good, regressed or failed.
    verdict: str
    regressions: list[Regression] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    improved: list[Regression] = field(default_factory=list)
    #: Regressions that somebody accepted as a known fault.
    known: list[Regression] = field(default_factory=list)
    stale: list[Case] = field(default_factory=list)
    not_enough: list[Case] = field(default_factory=list)
    #: One night was worse: a rerun says at once whether it is the figure.
    rerun: list[Case] = field(default_factory=list)
    #: Figures that were judged by their history.
    judged: int = 0
    #: Cases that ran.
    cases: int = 0

    @property
    def code(self) -> int:
        """The exit code: 1 where something regressed or failed."""
        return 1 if self.regressions or self.failures else 0

    def data(self) -> dict[str, Any]:
        """As JSON has it."""
        return dataclasses.asdict(self)

    def json(self) -> str:
        """One JSON object; no NaN, which JSON does not know."""
        return json.dumps(self.data(), indent=1, allow_nan=False) + '\n'


def judge(records: pd.DataFrame, night: str | None = None, *,
          partial: Set[str] = frozenset(),
          accepted: Sequence[Accepted] = (),
          switches: Mapping[str, Mapping[str, Sequence[str]]] = {}
          ) -> Verdict:
    """The verdict of a night.

    :param records: as perflogs.read gives them
    :param night: a session, or a date (YYYY-MM-DD), or the unique beginning
        of one; later records are not looked at. None: the newest night of
        each system, and what is still true of cases that did not run then:
        what `plumb report` shows
    :param partial: runs that left cases out on purpose (`plans.partial`)
    :param accepted: levels and faults that people accepted
    :param switches: system -> node -> the switches above it
    :raises ValueError: no records, or no such night
    """
    from . import judging
    return judging.judge(records, night, partial, accepted, switches)
