"""The cards of the first screen: the health, what failed, regressed and changed."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from config.console import count_with_noun, shortened_list_text
from config.families import all_metrics
from config.records.units import change_text, size_text, value_text
from config.sessions.session_id import first_session_id_by_session

from .. import results
from ..regressions import detect
from ..regressions.events import Event, Member, Verdict, session_name
from . import grid
from .curves import NO_LINES, Key, Lines, median_curve, point_number, sparkline
from .grid import FAILED
from .testcases import place_text

if TYPE_CHECKING:
    from .page import Page

#: Lines of a list before 'and N more'.
MAX_LINES = 5
#: Test cases that the card of an event names, and rows of its table.
MAX_WORST, MAX_EVENT_ROWS = 5, 500


def health_summary(counts: dict[str, int], verdict: Verdict) -> dict[str, str]:
    """The state of the newest session: {look, word, text, details}. `text` says what
    is bad, and when and how completely it was measured. `look` is a class of
    report.css.

    :param counts: test cases per result of the last session that was complete;
        `levels`: levels out of tolerance
    """
    cases = counts['cases']
    bad = [text for number, text in (
        (counts['fail'], f"{counts['fail']} of {cases} test cases failed"),
        (counts['missing'], f"{counts['missing']} missing"),
        (counts['not_run'], f"{counts['not_run']} not run"),
        (counts['flaky'], f"{counts['flaky']} flaky"),
        (counts['regressed'], count_with_noun(counts['regressed'], 'regression')),
        (counts['xpass'], count_with_noun(counts['xpass'], 'known fault') + ' fixed'),
        (counts['levels'], count_with_noun(counts['levels'], 'level')
         + ' out of tolerance'),
        (verdict.damaged, count_with_noun(verdict.damaged, 'damaged place')
         + ' in the perflogs')) if number]
    bad += filter(None, [results.comparison_fault(verdict.results)])
    also = [f'{number} {what}' for number, what in (
        (counts['inconclusive'], 'inconclusive'),
        (counts['waiting'] * verdict.is_compared,
         'without a reference'),
        (counts['xfail'], 'with a known fault')) if number]
    state = verdict.state
    look = ('bad' if bad else 'open' if state == 'not compared' else 'good'
            if state == 'good' and not counts['inconclusive']
            else 'warn')
    is_complete = (not counts['missing'] and not verdict.ended_early
                   and verdict.session not in _names_of_sessions_cut_short(verdict))
    session = (f'Session of {session_name(verdict.session)}, '
               + 'not ' * (not is_complete) + 'complete')
    return {'look': look, 'word': state.upper(),
            'text': '. '.join(filter(None, [', '.join(bad), session])),
            'details': '; '.join([verdict.comparison_text, *also])}


def _names_of_sessions_cut_short(verdict: Verdict) -> set[str]:
    """The sessions that ended early, and the dates (UTC) on which they began."""
    first = first_session_id_by_session(one.session for one in verdict.results)
    runs = {one.session for one in verdict.results if one.is_cut_short}
    return runs | {session_name(first[run])[:10] for run in runs}


def failure_groups(page: Page, rows: list[dict]) -> list[dict]:
    """A card per event of failed test cases: {why, lines, count, rows, todo}, the new
    ones first.

    Test cases whose metric is part of a regression are in the card of its event.

    :param rows: of `value_table_rows`
    """
    worst: dict[int, dict] = {}
    for row in rows:
        if row['result'] in results.FAILED:
            worst.setdefault(row['number'], row)
    this_session = len(page.past.sessions) - 1
    cards = []
    for event in page.verdict.failures:
        members: dict[str, Member] = {}
        for one in event.members:
            members.setdefault(one.test_case, one)
        lines = []
        for one in members.values():
            number = page.numbers.get(one.test_case)
            if number is None:
                continue
            case, row = page.cases[number], worst.get(number, {})
            if _is_part_of_event(page, row):
                continue
            has_value = not one.guard and row.get('reference')
            lines.append({
                'name': case.name, 'place': place_text(case.row), 'number': number,
                'text': one.why, 'sessions': grid.sessions_in_a_row(
                    case.cells, case.newest_result_letter),
                'is_new': case.cells[this_session:] in FAILED and case.cells[
                    :this_session].rstrip('.')[-1:] not in FAILED,
                'times_as_bad': row.get('times_as_bad', 1),
                'spark': '' if one.guard else row.get('spark', ''),
                'values': f"{row['reference']} → {row['value']} {row['unit']}"
                if has_value else '',
                'change': '' if one.guard else row.get('change', ''),
                'where': row.get('where', ''),
                'log': page.folders_of_test_case(case).get('log', '')})
        if not lines:
            continue
        lines.sort(key=lambda line: -line['times_as_bad'])
        sessions = max(line['sessions'] for line in lines)
        shown = {line['number'] for line in lines}
        cards.append({
            'what': event.title, 'values': lines[0]['values'],
            'change': lines[0]['change'], 'where': event.nodes or event.system,
            'since': page.session_name(max(0, this_session + 1 - sessions))[:10]
            + f' ({sessions})',
            'why': event.title + ', new' * all(line['is_new'] for line in lines),
            'lines': lines[:MAX_LINES], 'count': len(lines),
            'more': lines[MAX_LINES:], 'families': sorted(
                {one.family for one in event.members}),
            'rows': [row for row in rows if row['number'] in shown
                     and row['result'] in results.FAILED], 'todo': event.todo})
    return sorted(cards, key=lambda card: (
        not any(line['is_new'] for line in card['lines'] + card['more']),
        -card['count']))


def _is_part_of_event(page: Page, row: dict) -> bool:
    """Whether a value out of tolerance is of a metric that is part of a
    regression.

    :param row: of `value_table_rows`
    """
    return not row.get('guard') and row.get('result') == 'fail' and row.get(
        'metric') in page.worse_metrics.get(row['number'], ())


def regression_events(page: Page, rows: Sequence[dict] = ()) -> list[dict]:
    """A card per regression of the verdict.

    {id, first, rest, spark, worst, rows, more, cases, ...}

    :param rows: of `value_table_rows`
    """
    out_of_tolerance = {row['number'] for row in rows
                        if _is_part_of_event(page, row)}
    cards = []
    for event in page.regressions:
        values = sorted((_regression_row(page, member) for member in event.members),
                        key=lambda row: -row['times_as_bad'])
        worst = {row['key']: row for row in reversed(values)}
        failed = len(out_of_tolerance & {row['number'] for row in worst.values()})
        evidence = [*event.evidence] if event.cause else [
            *event.evidence, 'changed in the same session: nothing that is recorded']
        if failed:
            evidence.append(f"{count_with_noun(failed, 'test case')} of these out of "
                            'tolerance')
        cards.append({
            **_regression_table_row(event, values),
            'first': event.title, 'rest': [
                event.when, *evidence, certainty_text(event), f'to do: {event.todo}'],
            'rows': values[:MAX_EVENT_ROWS],
            'more': len(values) - MAX_EVENT_ROWS, 'cases': len(worst),
            'families': sorted({member.family for member in event.members}),
            'spark': _event_sparkline(
                page, values, page.session_number(event.since_session),
                page.sessions_on_nodes[event.id]),
            'worst': sorted(worst.values(), key=lambda row: -row[
                'times_as_bad'])[:MAX_WORST]})
    return cards


def _regression_table_row(event: Event, values: list[dict]) -> dict:
    """The cells of an event in the table of events: {what, values, change, where,
    since}, those of the worst metric if there are several.

    :param values: rows of its metrics, the worst first
    """
    programs = sorted({one.program for one in event.members})
    places = sorted({f'{one.system}:{one.partition}' for one in event.members})
    cases = len({row['key'] for row in values})
    worst = next((row for row in values if row['values']), {})
    return {'what': f'{shortened_list_text(programs, 2)}: '
            + f'{count_with_noun(cases, "test case")} worse'
            + f', {worst.get("metric")}' * bool(worst),
            'values': worst.get('values', ''), 'change': worst.get('change', ''),
            'where': event.node or ', '.join(places),
            'since': f'{event.since} ({event.sessions})'}


def _key_of_member(page: Page, member: Member) -> Key | None:
    """The key of a metric that is part of a regression; None: it has no curve."""
    number = page.numbers.get(member.test_case)
    if number is None:
        return None
    key = Key(number, member.metric, point_number(member.point))
    return key if key in page.curves else None


def _event_sparkline(page: Page, rows: Sequence[dict], since: int,
                     there: set[tuple[int, int]] | None) -> str:
    """The median of the metrics of an event, relative to their baselines; more is
    worse if some are better higher and others lower.

    :param there: test cases and sessions that count; None: all
    """
    curves, low, high = [], [], []
    several_sides = len({row['better'] for row in rows}) > 1
    for row in rows:
        lines = page.lines.get(row['curve'], NO_LINES)
        if row['curve'] not in page.curves or not lines.baseline:
            continue
        curve = page.curves[row['curve']]
        if there is not None:
            curve = curve.part(np.array([(row['number'], session) in there
                                         for session in curve.sessions.tolist()]))
        ends = [end and end / lines.baseline for end in (lines.low, lines.high)]
        ratios = curve.values / lines.baseline
        if several_sides and row['better'] == 'higher':
            curve = curve.part(ratios > 0)
            ratios = 1 / ratios[ratios > 0]
            ends = [end and 1 / end for end in reversed(ends)]
        curves.append(curve._replace(values=ratios))
        low.append(ends[0])
        high.append(ends[1])
    if not any(len(curve.values) for curve in curves):
        return ''
    curve = median_curve(curves)
    ends = [float(np.median([*filter(None, side)])) if all(side) else None
            for side in (low, high)]
    return sparkline(curve, Lines(1.0, None, *ends), since, (
        f'median of {count_with_noun(len(curves), "metric")} relative to the '
        f'baseline: {change_text(float(curve.values[-1]))} in the newest '
        f'of {count_with_noun(len(curve.values), "session")}'))


def _regression_row(page: Page, member: Member) -> dict:
    """A metric of a test case that is part of a regression."""
    number = page.numbers.get(member.test_case)
    case = None if number is None else page.cases[number]
    key = _key_of_member(page, member)
    before = page.lines.get(key, NO_LINES).baseline if key else None
    metric = all_metrics().get(member.metric, {})
    return {
        'key': member.test_case, 'number': number, 'curve': key,
        'name': case.name if case else member.check,
        'place': place_text(member) if page.places > 1 else '',
        'metric': member.metric, 'point': size_text(
            point_number(member.point)) if member.point else '',
        'change': change_text(member.ratio) if member.ratio else '',
        'better': metric.get('better', ''),
        'values': '' if before is None or member.ratio is None else ' → '.join(
            value_text(value, str(metric.get('unit', '')))
            for value in (before, before * member.ratio)),
        'times_as_bad': member.times_as_bad,
        'where': str(case.row.file) if case else '',
        'log': page.folders_of_test_case(case).get('log', '') if case else ''}


def changes_since_last_session(page: Page, rows: list[dict]) -> list[dict]:
    """Changes since the session before: {what, lines, count}."""
    changed: dict[str, list[tuple[str, int | None]]] = {}
    this_session = len(page.past.sessions) - 1
    for case in page.cases:
        now, before = (
            case.cells[this_session:],
            case.cells[:this_session].rstrip('.')[-1:],
        )
        if not this_session or now == '.':
            continue
        if now in FAILED and before not in FAILED:
            pass                # its failure says that it is new
        elif not before:
            changed.setdefault('new test cases', []).append(
                (case.name, case.number))
        elif before in FAILED and now not in FAILED:
            changed.setdefault('no longer failing', []).append(
                (case.name, case.number))
    # What changed when something regressed is in the card of the event.
    causes = {cause for one in page.regressions for cause in one.cause.split('; ')}
    uncompared = page.verdict.events_of('uncompared') if results.comparison_fault(
        page.verdict.results) else []
    news: dict[str, list[tuple[str, int | None]]] = {
        'not compared with their references': [
            (one.title, page.numbers.get(one.cases[0]))
            for one in uncompared],
        **changed,
        'improved: calibrate again': [
            (f"{row['name']} {row['metric']} {row['ratio']}", row['number'])
            for row in rows if row['improved']],
        'improved': [(one.lines[0], None)
                     for one in page.verdict.events_of('improvement')],
        'changed environment': [
            (one.title, None) for one in page.verdict.events_of('environment')
            if one.cause not in causes]}
    return [{'what': what, 'count': len(lines), 'lines': lines[:MAX_LINES],
             'more': len(lines) - MAX_LINES} for what, lines in news.items() if lines]


def certainty_text(event: Event) -> str:
    """How certain the change of an event is."""
    return (f'certainty: worse in {count_with_noun(event.sessions, "session")}; the '
            f'interval has a confidence of 95 %; about '
            f'{100 * detect.FALSE_SHARE:.0f} % of all reported changes are temporary')
