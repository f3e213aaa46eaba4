"""Events of a session: the only output of the verdict.

An event has where, what, since when, how large, what changed, and what to do. Terminal,
page, mail, JUnit and JSON show the same list, with the lines of `Event.lines`.
"""
from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from config.console import LISTED, count_with_noun, print_lines, print_table
from config.families import all_metrics
from config.records.units import point_text
from config.sessions import clock, judged
from config.sites import topology

from ..names import short_name
from ..printed import PrintedCommands
from ..results import (
    MISSING,
    OPEN,
    Place,
    Result,
    comparison_fault,
    result_by_test_case,
    session_state,
)

#: Kind of an event -> the title of its list on a terminal, the worst kind first.
KINDS = {
    'regression': 'Regressed:',
    'muted': 'Muted:',
    'improvement': 'Improved:',
    'failure': 'Failed:',
    'missing': 'Missing:',
    'inconclusive': 'Inconclusive:',
    'cut short': '',
    'environment': 'Changed environment:',
    'incident': '',
    'rerun': 'Worth measuring again:',
    'few sessions': 'Too few sessions for a comparison with the history:'}
#: Kinds of which a terminal shows only the number.
FOLDED = ('rerun', 'few sessions')


@dataclass(frozen=True)
class Member(Place):
    """A metric that is part of an event."""
    metric: str = ''
    #: '8 B', or ''.
    point: str = ''
    #: Level since over that before; 0: the value is 0 since. None: unknown.
    ratio: float | None = None

    @property
    def times_as_bad(self) -> float:
        """How many times as bad it is, whichever side is better; 1: unknown."""
        if self.ratio is None:
            return 1.0
        better = all_metrics().get(self.metric, {}).get('better')
        return judged.worsening_ratio(str(better), self.ratio, 1.0)


@dataclass(frozen=True)
class Event:
    """What happened to test cases."""
    #: One of KINDS.
    kind: str
    #: Where, what, and how large.
    title: str
    #: Short ids of its test cases.
    cases: list[str] = field(default_factory=list)
    system: str = ''
    #: Date of its first session, and its sessions since then; '': this session.
    since: str = ''
    sessions: int = 0
    #: Further lines: earlier spells, and what else changed in the first session.
    evidence: list[str] = field(default_factory=list)
    todo: str = ''
    #: Stays the same from session to session; `accept` and `mute` name it.
    id: str = ''
    #: Of a regression: metric, node, switch, stack, program, family or system, and the
    #: name of the group; '': a metric.
    scope: str = ''
    group: str = ''
    since_session: str = ''
    #: Centre of the baseline, and level since; None: several metrics.
    before: float | None = None
    now: float | None = None
    #: Level since over the centre before (0: the value is 0 since), with an interval of
    #: 95 %; None: unknown.
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    #: What else changed in the first session; '': nothing that is recorded.
    cause: str = ''
    #: Spells in which it was at the new level before: first and last date, sessions.
    earlier: list[tuple[str, str, int]] = field(default_factory=list)
    #: Of changes: the metrics; of failures: the results.
    members: list[Member] = field(default_factory=list)
    failed: list[Result] = field(default_factory=list)
    #: Nodes that all of its jobs had; '': unknown, or they differ.
    nodes: str = ''
    #: Of failures: one of results.ORDER.
    result: str = ''

    @property
    def when(self) -> str:
        """Since when, in how many sessions, and on which nodes; '': this session."""
        return self.since and (
            f'since {self.since} ({count_with_noun(self.sessions, "session")})'
            + f' [ran on {self.nodes}]' * bool(self.nodes))

    @property
    def lines(self) -> list[str]:
        """The text for people: title, since when, evidence, what to do."""
        return [', '.join(filter(None, [self.title, self.when])),
                *(f'  {text}' for text in self.evidence),
                *[f'  to do: {self.todo}'] * bool(self.todo)]

    @property
    def node(self) -> str:
        """The node that is worse; '': the regression is not that of a node."""
        return (self.group.removeprefix('node ').removesuffix(f' of {self.system}')
                if self.scope == 'node' else '')


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
    #: The smallest lasting change that is found nine times in ten, as a share of the
    #: value: 0.05 is 5 %. None: no family.yaml names the metric.
    in_3_sessions: float | None
    in_6_sessions: float | None


@dataclass(frozen=True)
class Verdict:
    """The verdict on a session."""
    #: The session, or the date where there were several.
    session: str
    events: list[Event] = field(default_factory=list)
    #: The results of all test cases.
    results: list[Result] = field(default_factory=list)
    #: Test cases that ran; those of them that were measured again; those with a value
    #: that was compared with a reference or a limit; metrics that were compared with
    #: their history.
    cases: int = 0
    again: int = 0
    compared: int = 0
    judged: int = 0
    #: The baselines of what was judged by its history: judged metrics of family.yaml,
    #: and what regressed.
    baselines: list[Baseline] = field(default_factory=list)
    #: Whether the session, or the newest one of a system, was cut short.
    ended_early: bool = False
    #: Damaged places of the perflogs.
    damaged: int = 0
    commands: PrintedCommands = PrintedCommands()

    def events_of(self, *kinds: str) -> list[Event]:
        """The events of some kinds."""
        return [one for one in self.events if one.kind in kinds]

    @property
    def regressions(self) -> list[Event]:
        """Changes for the worse that are neither accepted nor muted."""
        return self.events_of('regression')

    @property
    def failures(self) -> list[Event]:
        """Test cases that failed or are missing, by reason."""
        return self.events_of('failure', 'missing')

    @property
    def power(self) -> list[Baseline]:
        """Of each test case the baseline with the widest noise, the widest first."""
        widest: dict[str, Baseline] = {}
        for one in sorted(self.baselines, key=lambda one: -(one.in_6_sessions or 0.0)):
            if one.in_6_sessions:
                widest.setdefault(one.test_case, one)
        return [*widest.values()]

    @property
    def state(self) -> str:
        """The state of the session: one of results.STATES."""
        return session_state(
            self.results, regressed=bool(self.regressions),
            compared=self.is_compared, ended_early=self.ended_early,
            incomplete=bool(self.damaged))

    @property
    def suspects(self) -> list[str]:
        """Short ids of the test cases to measure again: those that did not run, and
        those of which a single session cannot decide."""
        return [*dict.fromkeys(name for one in self.events_of('cut short', 'rerun')
                               for name in one.cases)]

    @property
    def is_compared(self) -> bool:
        """Whether a value was compared with a reference, a limit or its history."""
        return bool(self.compared or self.judged)

    @property
    def headline(self) -> str:
        """The whole verdict in one sentence."""
        number = Counter(one.kind for one in self.events)
        ends = Counter(result_by_test_case(self.results).values())
        failed = ends['fail'] + ends['xpass']
        known = sum(one.result == 'xfail' for one in self.results)
        uncompared = comparison_fault(self.results)
        worse = {name for one in self.regressions for name in one.cases}
        summary = ', '.join(text for is_shown, text in (
            (worse, f'{count_with_noun(number["regression"], "regression")} of '
                    f'{count_with_noun(len(worse), "test case")}'),
            (failed, f'{count_with_noun(failed, "test case")} failed'),
            (ends['flaky'], f'{ends["flaky"]} flaky'),
            (ends['missing'],
             f'{count_with_noun(ends["missing"], "test case")} missing'),
            (ends['not_run'],
             f'{count_with_noun(ends["not_run"], "test case")} did not run'),
            (self.ended_early and not any(one.is_cut_short for one in self.results),
             'it ended early'),
            (uncompared, uncompared),
            (known, f'{known} with a known fault'),
            (self.damaged, count_with_noun(self.damaged, 'damaged place')
             + ' in the perflogs'),
            (number['improvement'],
             count_with_noun(number['improvement'], 'improvement')),
            (number['muted'], f'{number["muted"]} muted'),
            (number['environment'], count_with_noun(number['environment'], 'change')
             + ' of the environment'),
            (number['incident'], 'an incident')) if is_shown)
        summary = summary or 'no regression' * self.is_compared
        # A date has all sessions that began on it.
        name = ('Session' if 'T' in self.session else 'All sessions of'
                ) + f' {self.session}'
        return (f'{name}: {self.state.upper()}'
                + f': {summary}' * bool(summary) + f'. {self.comparison_text}')

    @property
    def comparison_text(self) -> str:
        """What the results were compared with, in one sentence."""
        parts = [
            f'{count_with_noun(self.compared, "test case")} with a reference or a '
            'limit' if self.compared else '',
            f'{count_with_noun(self.judged, "metric")} with '
            f"{'its' if self.judged == 1 else 'their'} history"
            if self.judged else '']
        ran = f'{count_with_noun(self.cases, "test case")} ran'
        return ran + f', {self.again} measured again' * bool(self.again) + '; ' + (
            'compared: ' + ', '.join(filter(None, parts)) if any(parts) else
            f'nothing was compared: {self._lacking_text()}, and too few sessions for a '
            'comparison with the history')

    def _lacking_text(self) -> str:
        """Why no test case was compared with a reference."""
        others = len({one.test_case for one in self.results
                      if one.result == 'no_reference'})
        parts = [f'{number} {text}' for number, text in (
            (sum(len(one.cases) for one in self.events_of('inconclusive')),
             'inconclusive'),
            (len({one.test_case for one in self.results
                  if one.is_failed and one.has_run and not one.is_earlier}), 'failed'),
        ) if number]
        return ', '.join([*parts, *[f'{others} without a reference'] * bool(others)]
                         ) if parts else 'no reference'

    def json(self) -> str:
        """One JSON object; no NaN, which JSON does not know."""
        return json.dumps({
            'session': self.session, 'state': self.state, 'cases': self.cases,
            'again': self.again,
            'compared': self.compared, 'judged': self.judged, 'damaged': self.damaged,
            'events': [*map(dataclasses.asdict, self.events)],
            'power': [{name: getattr(one, name) for name in (
                'test_case', 'metric', 'point', 'in_3_sessions', 'in_6_sessions')}
                for one in self.power]},
            indent=1, allow_nan=False, default=sorted) + '\n'


def print_verdict(verdict: Verdict, every: bool = False) -> None:
    """Print the events on a terminal, the worst last, and the headline.

    :param every: also the lists that need nothing at once
    """
    for kind, title in reversed(KINDS.items()):
        events = verdict.events_of(kind)
        if kind == 'rerun' and events:
            again = verdict.commands.measure_again(one.system for one in events)
            title = 'Worth measuring again' + f' ({again})' * bool(again) + ':'
        if events and kind in FOLDED and not every:
            print_lines([f'{title[:-1]}: {len(events)} (--all lists them)'])
        else:
            print_lines(_lines_of_kind(title, events))
    print_lines([verdict.headline])


def verdict_lines(verdict: Verdict) -> list[str]:
    """The text below the headline, the worst first, without the lists that need nothing
    at once."""
    return [line for kind, title in KINDS.items() if kind not in FOLDED
            for line in _lines_of_kind(title, verdict.events_of(kind))]


def _lines_of_kind(title: str, events: Sequence[Event]) -> list[str]:
    """The list of the events of one kind; empty: there are none."""
    indent = '  ' * bool(title)
    return [*filter(None, [title]), *(
        f'{indent}{text}' for one in events[:LISTED] for text in one.lines),
        *_omitted_lines(len(events))] if events else []


def shortened_lines(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    return [*lines[:LISTED], *_omitted_lines(len(lines))]


def _omitted_lines(count: int) -> list[str]:
    return [f'  and {count - LISTED} more: --json'] * (count > LISTED)


def session_name(run: str) -> str:
    """The date and time of a session, from its ID.

    >>> session_name('20261106T030000Z-1a2b3c')
    '2026-11-06 03:00 UTC'
    """
    start = clock.session_start_time(run)
    return f'{start:%Y-%m-%d %H:%M} UTC' if start else run


def test_case_text(case: Place, copy: str = '') -> str:
    """A test case, its partition and its environment."""
    return ' '.join(filter(None, [
        short_name(case.check, case.params, case.settings, case.test_case, case.source),
        copy, f'on {case.system}:{case.partition}', case.environ]))


def failure_text(one: Result) -> str:
    """A test case that failed, why, and where."""
    text = f'{test_case_text(one, one.copy)}: {one.why}'
    return text + f' [ran on {topology.fold_host_list(one.nodes)}]' * bool(
        one.nodes and one.guard not in (MISSING, OPEN))


def print_power(verdict: Verdict) -> None:
    """Print the smallest change that is found in each test case, the largest first."""
    power = verdict.power
    if not power:
        print('No test case has enough sessions to be compared with its history')
        return
    print_table([(test_case_text(one), f'{one.metric} {point_text(one.point)}'.strip(),
                  *_shares(one)) for one in power],
                ['test case', 'metric', '3 sessions', '6 sessions'], right=[2, 3])
    print('With a probability of 90 %, six sessions show a lasting change of '
          f'{_shares(power[len(power) // 2])[1]} in half of the test cases, and '
          f'of {_shares(power[len(power) // 10])[1]} in 90 % of them')


def power_text(one: Baseline) -> str:
    """The smallest change that is found in a test case."""
    return '{} in 3 sessions, {} in 6 ({})'.format(
        *_shares(one), f'{one.metric} {point_text(one.point)}'.strip())


def _shares(one: Baseline) -> list[str]:
    return [f'{100 * (part or 0.0):.1f} %' for part in (
        one.in_3_sessions, one.in_6_sessions)]
