"""A verdict as text for people."""
from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from config import places
from config.console import count_with_noun, print_lines, print_table
from config.families import all_metrics, printed_name
from config.records.units import change_text, point_text, value_text
from config.sessions import clock
from config.sites import topology

from ..names import short_name
from ..results import OPEN, Place, Result, comparison_fault
from .finding import Case, Changed, Failure, Member, Power, Regression, Verdict

#: Lines of a kind; the rest is counted.
MAXIMUM = 20


def verdict_headline(verdict: Verdict) -> str:
    """The whole verdict in one sentence."""
    counts_of_results = Counter(
        'cut short' if one.is_cut_short else one.result for one in verdict.results)
    missing, cut_short = (counts_of_results[name] for name in ('missing', 'cut short'))
    failed = len(verdict.failures) - missing - cut_short
    known = counts_of_results['xfail']
    uncompared = comparison_fault(verdict.results)
    counts = [text for number, text in (
        (len(verdict.regressions),
         count_with_noun(len(verdict.regressions), 'regression')
         + _test_case_count_text(verdict.regressions)),
        (failed, f'{count_with_noun(failed, "test case")} failed'),
        (missing, f'{count_with_noun(missing, "test case")} missing'),
        (cut_short, f'{count_with_noun(cut_short, "test case")} did not run'),
        (verdict.ended_early and not cut_short, 'it ended early'),
        (uncompared, uncompared),
        (known, f'{known} with a known fault'),
        (verdict.damaged, count_with_noun(verdict.damaged, 'damaged place')
         + ' in the perflogs'),
        (verdict.failed_levels, 'a level out of tolerance'),
        (verdict.improved, count_with_noun(len(verdict.improved), 'improvement')),
        (verdict.muted, f'{len(verdict.muted)} muted'),
        (verdict.changed, count_with_noun(len(verdict.changed), 'change')
         + ' of the environment'),
        (any(case.incident for case in verdict.rerun), 'an incident')) if number]
    summary = ', '.join(counts) or 'no regression' * verdict.is_compared
    return (f'Session {verdict.session}: {verdict.state.upper()}'
            + f': {summary}' * bool(summary) + f'. {comparison_text(verdict)}')


def comparison_text(verdict: Verdict) -> str:
    """What the results were compared with, in one sentence for page and verdict."""
    parts = [
        f'{count_with_noun(verdict.compared, "test case")} with a reference or a '
        'limit' if verdict.compared else '',
        f'{count_with_noun(verdict.judged, "metric")} with '
        f"{'its' if verdict.judged == 1 else 'their'} history"
        if verdict.judged else '']
    return f'{count_with_noun(verdict.cases, "test case")} ran; ' + (
        'compared: ' + ', '.join(filter(None, parts)) if any(parts) else
        'nothing was compared: '
        + 'no reference, and ' * (not verdict.uncompared)
        + 'too few sessions for a comparison with the history')


def cut_short_text(results: Sequence[Result]) -> str:
    """Which sessions ended early, how many test cases have not run since, and how
    to run them; '' if none ended early, or if all have run since.

    :param results: of all test cases, in the newest session of each
    """
    texts = []
    cut_short = [one for one in results if one.is_cut_short]
    for run, number in sorted(Counter(one.session for one in cut_short).items()):
        texts.append(f'The session of {session_name(run)} was cut short: '
                     f'{count_with_noun(number, "test case")} did not run')
    if not texts:
        return ''
    return '. '.join([*texts, f'To resume: {rerun_commands_text(cut_short)}'])


def rerun_command_text(site: str) -> str:
    """The command that measures test cases of a site again: those that did not run,
    and those of which a single session cannot decide.

    :param site: the option that selects the site
    """
    return f'./plumb run{site} --suspects'


def rerun_commands_text(cases: Iterable[Result | Case]) -> str:
    """The commands for test cases of several sites."""
    return '; '.join(map(rerun_command_text, sorted(
        {places.site_option(one.system) for one in cases})))


def session_name(run: str) -> str:
    """The date and time of a session, from its ID.

    >>> session_name('20261106T030000Z-1a2b3c')
    '2026-11-06 03:00 UTC'
    """
    start = clock.session_start_time(run)
    return f'{start:%Y-%m-%d %H:%M} UTC' if start else run


class Section(NamedTuple):
    """A part of the text of a verdict."""
    title: str
    lines: list[str]
    #: Things that it lists.
    number: int = 0
    #: Whether a terminal shows only its title and count.
    is_folded: bool = False


def print_verdict(verdict: Verdict, every: bool = False) -> None:
    """Print the text for people on a terminal, the worst last.

    :param every: also the lists that need nothing at once
    """
    for section in reversed(_sections(verdict)):
        if section.is_folded and not every:
            print_lines([f'{section.title.removesuffix(":")}: {section.number} '
                         '(--all lists them)'])
        else:
            print_lines([*filter(None, [section.title]), *section.lines])
    print_lines([verdict_headline(verdict)])


def verdict_lines(verdict: Verdict) -> list[str]:
    """The text below the headline, the worst first, without the lists that need nothing
    at once."""
    return [line for section in _sections(verdict) if not section.is_folded
            for line in (section.title, *section.lines) if line]


def _sections(verdict: Verdict) -> list[Section]:
    """The parts of the text below the headline, the worst first."""
    cut_short = {one.test_case for one in verdict.cut_short}
    failures = [one for one in verdict.failures if one.test_case not in cut_short]
    sections = [
        *(_regression_section(*part) for part in (
            ('Regressed:', verdict.regressions), ('Muted:', verdict.muted),
            ('Improved:', verdict.improved))),
        Section('Levels of all metrics together:', [
            f'  {line}' for level in verdict.levels for line in level.lines],
            len(verdict.levels)),
        *(Section(title, [
            *(f'  {text}' for text in shared_node_lines(some)),
            *(line for failure in some[:MAXIMUM] for line in (
                f'  {failure_line(failure)}', f'    to do: {failure.todo}')),
            *_omitted_count_line(len(some))], len(some)) for title, some in (
                ('Failed:', [one for one in failures if one.result != 'missing']),
                ('Missing:', [one for one in failures if one.result == 'missing']))),
        Section('Not compared with their references:', [
            *(f'  {uncompared_line(one)}' for one in verdict.uncompared[:MAXIMUM]),
            *_omitted_count_line(len(verdict.uncompared))], len(verdict.uncompared)),
        Section('', [cut_short_text(verdict.results)], len(cut_short)),
        Section('Changed environment:', [
            *(f'  {environment_change_line(change)}'
              for change in verdict.changed[:MAXIMUM]),
            *_omitted_count_line(len(verdict.changed))], len(verdict.changed)),
        Section('', [*incident_line(verdict)], any(
            case.incident for case in verdict.rerun)),
        *(Section(title, [
            *(f'  {test_case_and_partition_text(case)}: {case.why}'
              for case in cases[:MAXIMUM]), *_omitted_count_line(len(cases))],
            len(cases), True) for title, cases in (
                (f'Worth measuring again ({rerun_commands_text(verdict.rerun)}):',
                 verdict.rerun),
                ('Too few sessions for a comparison with the history:',
                 verdict.not_enough)))]
    return [section for section in sections if section.number]


def _regression_section(title: str, regressions: list[Regression]) -> Section:
    return Section(title, [
        *(f'  {text}' for one in regressions[:MAXIMUM]
          for text in regression_lines(one)),
        *_omitted_count_line(len(regressions))], len(regressions))


def print_power_table(verdict: Verdict) -> None:
    """The smallest change that is found in each test case, the largest first."""
    if not verdict.power:
        print('No test case has enough sessions to be compared with its history')
        return
    print_table([(
        test_case_and_partition_text(one),
        f'{one.metric} {point_text(one.point)}'.strip(),
        f'{100 * one.in_3_sessions:.1f} %', f'{100 * one.in_6_sessions:.1f} %',
        one.baseline) for one in sorted(
            verdict.power, key=lambda one: -one.in_6_sessions)],
        ['test case', 'metric', '3 sessions', '6 sessions', 'baseline'], right=[2, 3])
    print(power_sentence(verdict))


def power_text(power: Power) -> str:
    """The smallest change that is found in a test case, and what hides others."""
    return (f'{100 * power.in_3_sessions:.1f} % in 3 sessions, '
            f'{100 * power.in_6_sessions:.1f} % in 6 '
            f'({f"{power.metric} {point_text(power.point)}".strip()})'
            + f'; baseline: {power.baseline}' * bool(power.baseline))


def power_sentence(verdict: Verdict) -> str:
    """The smallest change that is found in half of the test cases and in nine tenths
    of them; '': no test case is compared with its history."""
    sizes = sorted(one.in_6_sessions for one in verdict.power)
    if not sizes:
        return ''
    hidden = sum(bool(one.baseline) for one in verdict.power)
    return (
        f'Nine times in ten, six sessions are enough to find a lasting change of '
        f'{100 * sizes[(len(sizes) - 1) // 2]:.1f} % in half of the test cases, and of '
        f'{100 * sizes[math.ceil(0.9 * len(sizes)) - 1]:.1f} % in 90 % of them'
        + (f'. In {hidden} of {len(sizes)} the baseline hides smaller changes'
           if hidden else ''))


def incident_line(verdict: Verdict) -> Iterator[str]:
    """The line of all test cases that were far outside in the newest session alone."""
    worst = sorted((case for case in verdict.rerun if case.incident),
                   key=lambda case: -(case.incident or 0))
    if worst:
        yield (f'Incident: {count_with_noun(len(worst), "test case")} of '
               f'{verdict.cases} were worse in this session alone than noise '
               f'explains, up to {worst[0].incident:.3g} times as bad '
               f'({test_case_and_partition_text(worst[0])}); measure again to decide '
               'whether it is a regression')


def regression_lines(change: Regression) -> list[str]:
    """The lines of a change: place, metric, size, since when, what to do."""
    what, *more = regression_detail_lines(change)
    return [f'{what}, {more[0]}', *(f'  {line}' for line in more[1:])]


def regression_detail_lines(change: Regression) -> list[str]:
    """The same lines, with the date apart from the title."""
    what = change.metric or ', '.join(change.metrics)
    if change.point:
        what += f' at {point_text(change.point)}'
    where = test_case_and_partition_text(change) if change.is_of_single_test_case \
        else _group_text(change)
    if change.ran:
        slow = len({one.test_case for one in change.members})
        where += f' ({slow} of {count_with_noun(change.ran, "test case")})'
    texts = [
        f'{where}: {what} {_change_size_text(change)} [{change.id}]',
        f'since {change.since} '
        f'({count_with_noun(change.sessions, "session")}){_nodes_text(change)}',
    ]
    texts += _earlier_lines(change)
    if change.reason:
        texts.append(f'muted until {change.until}: {change.reason}')
    if change.cause:
        texts.append(f'changed in the same session: {change.cause}')
    if change.todo and not change.reason:
        texts.append(f'to do: {change.todo}')
    return texts


def _earlier_lines(change: Regression) -> list[str]:
    """When and how often a regression was at its new level before."""
    if not change.earlier:
        return []
    first, last, number = change.earlier[-1]
    return [f'at this level before: {count_with_noun(len(change.earlier), "spell")}, '
            f'the last from {first} to {last} ({count_with_noun(number, "session")})']


def event_lines(regressions: Sequence[Regression]) -> list[str]:
    """The lines of an event: a regression, or several that began on one date."""
    members = members_by_change(regressions)
    worst = {one.test_case: one for one in reversed(members)}
    spread = median_and_range_text([*worst.values()]) if len(worst) > 1 else ''
    if len(regressions) == 1:
        lines = regression_detail_lines(regressions[0])
        return [*lines[:2], *([spread] if spread else []), *lines[2:]]
    first = regressions[0]
    places = sorted({f'{one.system}:{one.partition}' for one in members})
    causes = dict.fromkeys(one.cause for one in regressions if one.cause)
    cases = ' '.join(worst)
    site = _common_site_option(members)
    return [
        ', '.join(places[:3]) + f' and {len(places) - 3} more' * (len(places) > 3)
        + f': {count_with_noun(len(worst), "test case")} worse',
        f'since {first.since} ({count_with_noun(first.sessions, "session")})',
        *([spread] if spread else []),
        *dict.fromkeys(line for one in regressions for line in _earlier_lines(one)),
        *(f'changed in the same session: {cause}' for cause in causes),
        'to do: run the test cases again, if possible on other nodes'
        + (f': ./plumb run{site} {cases}' if len(worst) <= 3 else '')
        + f'; to mute or accept one: ./plumb verdict{site}']


def _common_site_option(items: Iterable[Member]) -> str:
    """The option that selects the site of test cases; '' if there are several."""
    systems = {one.system for one in items}
    return places.site_option(systems.pop()) if len(systems) == 1 else ''


def members_by_change(regressions: Sequence[Regression]) -> list[Member]:
    """The metrics of regressions, the worst first."""
    return sorted((member for one in regressions for member in one.members),
                  key=lambda member: -times_as_bad(member))


def times_as_bad(member: Member) -> float:
    """How many times as bad a metric is, whichever side is better; 1: unknown."""
    if not member.ratio or member.ratio < 0:
        return 1.0
    better = all_metrics().get(member.metric, {}).get('better')
    return 1 / member.ratio if better == 'higher' else member.ratio


def median_and_range_text(members: Sequence[Member]) -> str:
    """The median change of metrics, and the smallest and largest; '': unknown."""
    ratios = sorted(one.ratio for one in members if one.ratio)
    if not ratios:
        return ''
    sides = {all_metrics().get(one.metric, {}).get('better') for one in members}
    if len(sides) > 1:
        ratios = sorted(map(times_as_bad, members))
    return (f'test cases: median {change_text(statistics.median(ratios))}, '
            f'from {change_text(ratios[0])} to {change_text(ratios[-1])}'
            + ' (+ is worse)' * (len(sides) > 1))


def _change_size_text(change: Regression) -> str:
    """The size of a change: `+5.0 % (+4.1 to +5.9 %)`."""
    ratio, low, high = change.ratio, change.low, change.high
    values = ''
    if change.before is not None and change.now is not None:
        values = (f'{value_text(change.before, change.unit)} -> '
                  f'{value_text(change.now, change.unit)}')
    if ratio is None or low is None or high is None:
        return values
    if not 0.5 <= ratio <= 2:
        text = (f'{ratio:.3g} x' + ('' if change.better else ' as bad')
                + f' ({low:.3g} to {high:.3g})')
    elif change.better:
        text = '{:+.1f} % ({:+.1f} to {:+.1f} %)'.format(
            *(100 * (part - 1) for part in (ratio, low, high)))
    else:  # of metrics of which some are better if higher, others if lower
        sign = 1 if ratio >= 1 else -1
        size, *ends = (100 * sign * (part - 1) for part in (ratio, low, high))
        text = (f'{size:.1f} % {"worse" if sign > 0 else "better"} '
                f'({min(ends):.1f} to {max(ends):.1f} %)')
    return text + f', {values}' * bool(values)


def failure_line(failure: Failure) -> str:
    """The line of a test case that failed: place, reason and nodes."""
    text = f'{test_case_and_partition_text(failure)}: '
    if failure.result == 'xpass':
        return text + 'the known fault is fixed'
    if failure.result == 'missing' or failure.guard == OPEN:
        return text + failure.reason
    if failure.guard:
        return text + _guard_text(failure) + _nodes_text(failure)
    if failure.value is None:
        return text + 'the test case did not complete' + _nodes_text(failure)
    at = f' at {point_text(failure.point)}' if failure.point else ''
    return text + (f'{failure.metric}{at}: '
                   f'{value_text(failure.value, failure.unit)}, '
                   + (f'reference {value_text(failure.reference, failure.unit)}'
                      if failure.reference is not None
                      else 'beyond a limit')
                   + f'; {failure.note}' * bool(failure.note)) + _nodes_text(failure)


def uncompared_line(result: Result) -> str:
    """The line of a test case that was not compared with its reference."""
    return (f'{test_case_and_partition_text(result)}: '
            f'{result.reason or "inconclusive"} '
            f'({count_with_noun(result.uncompared, "session")})')


def _guard_text(failure: Failure) -> str:
    """The guard and its message, which usually begins with its name."""
    if not failure.reason:
        return failure.guard
    return failure.reason if failure.reason.startswith(f'{failure.guard}:') \
        else f'{failure.guard}: {failure.reason}'


def _nodes_text(item: Failure | Regression) -> str:
    return f' [ran on {item.nodes}]' if item.nodes else ''


def shared_node_lines(failures: Sequence[Failure]) -> Iterator[str]:
    """The nodes that test cases which ran on different ones have in common: of
    those that one guard refused, and of those that were too slow."""
    kinds: dict[tuple[str, str], list[Failure]] = defaultdict(list)
    for one in failures:
        if one.nodes:
            kinds[one.system, one.guard].append(one)
    for (system, guard), of_kind in kinds.items():
        if shared := shared_nodes(one.nodes for one in of_kind):
            yield f'{shared} of {system}: ' + failed_together_text(
                guard, [one.family for one in of_kind])


def shared_nodes(texts: Iterable[str]) -> str:
    """The nodes that jobs on different ones have in common; '': none.

    :param texts: nodes of each job, as records have them
    """
    ran_on = {frozenset(topology.nodes_of_record(text)) for text in texts}
    shared = frozenset.intersection(*ran_on) if len(ran_on) > 1 else frozenset()
    return topology.fold_host_list(shared) if shared else ''


def failed_together_text(guard: str, families: Sequence[str]) -> str:
    """The text of test cases that failed for one reason: `5 nccl test cases failed,
    guard exit_code`.

    :param families: of each test case
    """
    text = count_with_noun(len(families), 'test case')
    if len({*families}) == 1:
        text = text.replace(' ', f' {families[0]} ', 1)
    return text + (' failed before, and have not passed on the same nodes since'
                   if guard == OPEN else f' failed, guard {guard}' if guard
                   else ' out of tolerance')


def environment_change_line(change: Changed) -> str:
    """A change of the environment, and the test cases that it affects."""
    where = ', '.join(change.where[:3]) + ', ...' * (len(change.where) > 3)
    return f'{change.what}: {count_with_noun(len(change.cases), "test case")} on ' \
        f'{change.system} ({where})'


def test_case_and_partition_text(
    item: Regression | Failure | Case | Power | Result
) -> str:
    """A test case, its partition and its environment."""
    return ' '.join(filter(None, [
        short_name(item.check, item.params, item.settings, item.test_case,
                   _common_source(item)),
        getattr(item, 'copy', ''),
        f'on {item.system}:{item.partition}', item.environ]))


def _common_source(item: Regression | Place) -> str:
    """The source of a test case, or of all members of a regression; '': they differ."""
    if isinstance(item, Place):
        return item.source
    sources = {one.source for one in item.members}
    return sources.pop() if len(sources) == 1 else ''


def _group_text(change: Regression) -> str:
    """The name of a group; that of a program says if it is embedded."""
    if change.kind != 'program':
        return change.group
    program = change.members[0].program
    return change.group.replace(
        program, printed_name(program, _common_source(change)), 1)


def _test_case_count_text(regressions: list[Regression]) -> str:
    cases = {m.test_case for one in regressions for m in one.members}
    return f" of {count_with_noun(len(cases), 'test case')}"


def _omitted_count_line(count: int) -> Iterator[str]:
    if count > MAXIMUM:
        yield f'  and {count - MAXIMUM} more: --json'
