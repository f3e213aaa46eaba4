"""The verdict on a session as data, from which text, page, JSON and JUnit are
made. postprocess/regressions/verdict.py describes the rules."""
from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from ..references.level import Level
from ..results import Place, Result, session_state


@dataclass(frozen=True)
class Member(Place):
    """A metric that is part of a regression."""
    metric: str
    #: '8 B', or ''.
    point: str
    ratio: float | None


@dataclass(frozen=True)
class Regression:
    """A change for the worse that nobody accepted (in `improved`: for the
    better). A text is '' if the metrics of the regression differ in it."""
    #: Stays the same from session to session; `accept` and `mute` name it.
    id: str
    #: metric, node, switch, stack, program, family or system.
    kind: str
    #: Name of the group, for people; '' if `kind` is metric.
    group: str
    system: str
    partition: str
    environ: str
    family: str
    check: str
    params: str
    settings: str
    #: Short id of the only test case, or ''.
    test_case: str
    #: Short ids of all test cases that regressed.
    cases: list[str]
    #: The first judged metric; `metrics` has all of them.
    metric: str
    metrics: list[str]
    point: str
    unit: str
    #: lower, higher, or '' where they differ: then `ratio` is how many times
    #: as bad they are.
    better: str
    #: Date of the first session, and its first session.
    since: str
    since_session: str
    #: Sessions since then.
    sessions: int
    #: Centre of the baseline, and level since; None: several metrics.
    before: float | None
    now: float | None
    #: Level since over the centre before, with an interval of 95 %; None
    #: where the centre is 0.
    ratio: float | None
    low: float | None
    high: float | None
    #: What else changed that session; '': nothing that is recorded.
    cause: str
    #: What to do.
    todo: str
    members: list[Member] = field(default_factory=list)
    #: Nodes of its jobs since then, as the scheduler writes them, where these
    #: were always the same and the system has others; else ''.
    nodes: str = ''
    #: Of a group: its test cases that ran since then; 0: a single test case.
    ran: int = 0
    #: Spells in which it was at the new level before: first and last date, sessions.
    earlier: list[tuple[str, str, int]] = field(default_factory=list)
    #: Why it is muted, and until when; '' if it is not muted.
    reason: str = ''
    until: str = ''

    @property
    def is_of_single_test_case(self) -> bool:
        """Whether it is the regression of a test case, not of a group."""
        return self.kind == 'metric'

    @property
    def node(self) -> str:
        """The node that is worse; '': the regression is not that of a node."""
        return (self.group.removeprefix('node ').removesuffix(f' of {self.system}')
                if self.kind == 'node' else '')


@dataclass(frozen=True)
class Failure(Place):
    """A test case that failed in its newest session, with the record that
    decided. One per test case and copy, as in the table."""
    #: One of results.FAILED.
    result: str
    guard: str
    metric: str
    point: str
    value: float | None
    reference: float | None
    unit: str
    session: str
    time: str
    todo: str
    copy: str = ''
    #: Why it failed; '': unknown.
    reason: str = ''
    #: What other measurements of the session say.
    note: str = ''
    #: Nodes of its job, as the scheduler writes them.
    nodes: str = ''


@dataclass(frozen=True)
class Changed:
    """A change of the environment of test cases since the sessions before."""
    system: str
    #: `spec hash 4f2a -> 9c01`.
    what: str
    #: Short id of each test case, and `PARTITION ENVIRONMENT`, each once.
    cases: list[str]
    where: list[str]


@dataclass(frozen=True)
class Case(Place):
    """A test case that has too few sessions (not_enough) or is worth running again
    (rerun)."""
    #: Sessions that there are, of those that are needed.
    why: str
    sessions: int = 0
    needs: int = 0
    #: Of `rerun`: how many times as bad the newest session was, if noise does not
    #: explain it; else None.
    incident: float | None = None


@dataclass(frozen=True)
class Power(Place):
    """The smallest lasting change that is found nine times in ten in a test case,
    by its judged metric with the widest noise."""
    metric: str
    #: '8 B', or ''.
    point: str
    #: As a share of the value: 0.05 is 5 %.
    in_3_sessions: float
    in_6_sessions: float
    #: What makes its baseline hide changes; '': nothing.
    baseline: str = ''


@dataclass(frozen=True)
class Baseline(Place):
    """The baseline of a metric that is judged by its history."""
    metric: str
    #: '8 B', or ''.
    point: str
    #: Its centre, in the unit of the metric.
    value: float
    #: Dates of the sessions from which on the metric was worse or better than its
    #: baseline, or no longer was.
    changes: list[str]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a session."""
    #: The session, or the date where there were several.
    session: str
    regressions: list[Regression] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    improved: list[Regression] = field(default_factory=list)
    #: Changes of the environment, reported in their first session.
    changed: list[Changed] = field(default_factory=list)
    #: Regressions that somebody muted.
    muted: list[Regression] = field(default_factory=list)
    not_enough: list[Case] = field(default_factory=list)
    #: One session was worse: a rerun says at once whether it is the metric.
    rerun: list[Case] = field(default_factory=list)
    #: What can be found in each test case that was judged by its history.
    power: list[Power] = field(default_factory=list)
    #: The baselines of what was judged by its history: judged metrics of family.yaml,
    #: and what regressed.
    baselines: list[Baseline] = field(default_factory=list)
    #: The level of each system, all metrics together against their references, in
    #: its newest session that has enough of them.
    levels: list[Level] = field(default_factory=list)
    #: Metrics that were compared with their history.
    judged: int = 0
    #: Test cases with a value that was compared with a reference or a limit.
    compared: int = 0
    #: Test cases that ran.
    cases: int = 0
    #: The results of all test cases.
    results: list[Result] = field(default_factory=list)
    #: Whether the session, or the newest one of a system, was cut short.
    ended_early: bool = False
    #: Damaged places of the perflogs.
    damaged: int = 0

    @property
    def events(self) -> list[list[Regression]]:
        """The regressions by cause: that of a group stands alone, and those of single
        test cases that began on one date are one event."""
        events: dict[str, list[Regression]] = {}
        for one in self.regressions:
            events.setdefault(one.since if one.is_of_single_test_case else one.id,
                              []).append(one)
        return list(events.values())

    @property
    def cut_short(self) -> list[Result]:
        """The test cases that did not run because their session ended early."""
        return [one for one in self.results if one.is_cut_short]

    @property
    def state(self) -> str:
        """The state of the session: one of results.STATES."""
        return session_state(
            self.results,
            regressed=bool(self.regressions or self.failed_levels),
            compared=self.is_compared, ended_early=self.ended_early,
            incomplete=bool(self.damaged))

    @property
    def suspects(self) -> list[str]:
        """Short ids of the test cases to measure again: those that did not run, and
        those of which a single session cannot decide."""
        return [*dict.fromkeys(one.test_case for one in (*self.cut_short, *self.rerun))]

    @property
    def uncompared(self) -> list[Result]:
        """The test cases with a reference that were not compared."""
        return [one for one in self.results if one.uncompared]

    @property
    def is_compared(self) -> bool:
        """Whether a value was compared with a reference, a limit or its history."""
        return bool(self.compared or self.judged)

    @property
    def failed_levels(self) -> list[Level]:
        """Levels that are out of tolerance."""
        return [level for level in self.levels if level.is_failed]

    def as_json_data(self) -> dict[str, Any]:
        """As JSON has it: all but results and baselines, which are no news."""
        fields = dataclasses.asdict(dataclasses.replace(
            self, results=[], baselines=[]))
        del fields['results'], fields['baselines'], fields['ended_early']
        return {'session': fields.pop('session'), 'state': self.state, **fields}

    def json(self) -> str:
        """One JSON object; no NaN, which JSON does not know."""
        return json.dumps(self.as_json_data(), indent=1, allow_nan=False) + '\n'
