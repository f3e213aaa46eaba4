"""The cards of the first screen: the health, what failed, regressed and changed."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from config.console import count_with_noun
from config.families import all_metrics
from config.records.units import change_text, size_text, value_text
from config.sessions.judged import IMPROVED
from config.sessions.session_id import first_session_id_by_session

from .. import results
from ..records import folders
from ..regressions import detect
from ..regressions.events import Event, Member, Verdict, session_name
from ..results import Result
from . import grid, plots, sections
from .curves import NO_LINES, Key, point_number
from .grid import FAILED, place_text
from .plots import curve as ratio_plot

if TYPE_CHECKING:
    from .page import Page

#: Lines of a list before 'and N more', and test cases that the card of an event draws.
MAX_LINES = 5
#: Rows of the table of an event.
MAX_EVENT_ROWS = 500


def health_summary(counts: dict[str, int], verdict: Verdict) -> dict[str, str]:
    """The verdict's headline for the first lines: {look, word, text, details}. `look`
    is a class of report.css.

    :param counts: test cases per result
    """
    state = verdict.state
    look = {'good': 'warn' if counts['inconclusive'] else 'good', 'cut short': 'open',
            'not compared': 'open'}.get(state, 'bad')
    summary = verdict.headline.removesuffix(verdict.comparison_text).partition(
        state.upper())[2].strip(' :.')
    first = first_session_id_by_session(one.session for one in verdict.results)
    cut_short = {name for one in verdict.results if one.is_cut_short
                 for name in (one.session, session_name(first[one.session])[:10])}
    is_complete = not (counts['missing'] or verdict.ended_early
                       or verdict.session in cut_short)
    session = (f'Session of {session_name(verdict.session)}, '
               + 'not ' * (not is_complete) + 'complete')
    also = [f'{number} {what}' for number, what in (
        (counts['inconclusive'] * verdict.is_compared, 'inconclusive'),
        (counts['no_reference'] * verdict.is_compared, 'without a reference'),
        (counts['xfail'], 'with a known fault')) if number]
    return {'look': look, 'word': state.upper(),
            'text': '. '.join(filter(None, [summary[:1].upper() + summary[1:],
                                            session])),
            'details': '; '.join([verdict.comparison_text, *also])}


def is_mostly_inconclusive(verdict: Verdict) -> bool:
    """Whether the causes of inconclusive test cases stand above everything else: at
    least half of the test cases have one, or too little was compared because of them.
    """
    number = sum(len(one.cases) for one in verdict.events_of('inconclusive'))
    return bool(results.comparison_fault(verdict.results)) or (
        2 * number >= len({one.test_case for one in verdict.results}) > 0)


def event_cards(page: Page, rows: list[dict]) -> list[dict]:
    """A card per event: of failed test cases, the new ones first, and of regressions.

    {title, look, where, since, values, change, texts, lines, more, families, rows, ...}

    :param rows: of `value_table_rows`
    """
    worst: dict[int, dict] = {}
    for row in rows:
        if row['result'] in results.FAILED:
            worst.setdefault(row['number'], row)
    failed = [card for event in page.verdict.failures
              if (card := _failure_card(page, event, worst))]
    for card in failed:
        card['rows'] = [row for row in rows if row['result'] in results.FAILED
                        and row['number'] in card['numbers']]
    return [*sorted(failed, key=lambda card: (not card['is_new'],
                                              -len(card['numbers']))),
            *(_regression_card(page, event, {
                number for number, row in worst.items()
                if _is_part_of_event(page, row)}) for event in page.regressions)]


def _failure_card(page: Page, event: Event, worst: dict[int, dict]) -> dict | None:
    """The card of failed test cases; None: the cards of regressions have them all.

    :param worst: test case -> its worst value that failed, of `value_table_rows`
    """
    failed = {page.numbers[one.test_case]: one for one in reversed(event.failed)
              if one.test_case in page.numbers}
    lines = sorted((
        _failure_line(page, number, failed[number], worst.get(number, {}))
        for number in sorted(failed)
        if not _is_part_of_event(page, worst.get(number, {}))),
        key=lambda line: -line['times_as_bad'])
    if not lines:
        return None
    sessions = max(line['sessions'] for line in lines)
    # What all of them have in common is printed once.
    is_new, reasons = [line['is_new'] for line in lines], {
        line['text'] for line in lines}
    if len(lines) > 1 and len(reasons) == 1:
        lines = [line | {'text': ''} for line in lines]
    if all(is_new):
        lines = [line | {'note': ''} for line in lines]
    first = page.session_name(max(0, len(page.past.sessions) - sessions))
    return {
        **{name: lines[0][name] for name in ('values', 'change')},
        'title': event.title + ', new' * all(is_new),
        'look': 'fail', 'where': event.nodes or event.system,
        'since': f'{first[:10]} ({sessions})',
        'texts': [f'to do: {event.todo}'] * bool(event.todo)
        + [*reasons] * (not lines[0]['text']),
        'is_new': any(is_new),
        'numbers': {line['number'] for line in lines},
        'lines': lines[:MAX_LINES], 'more': lines[MAX_LINES:],
        'families': sorted({one.family for one in event.failed})}


def _failure_line(page: Page, number: int, result: Result, row: dict) -> dict:
    """A test case that failed.

    :param row: its worst value, of `value_table_rows`; {}: it has none
    """
    case, this_session = page.cases[number], len(page.past.sessions) - 1
    sessions = grid.sessions_in_a_row(case.cells, case.newest_result_letter)
    is_new = case.cells[this_session:] in FAILED and case.cells[
        :this_session].rstrip('.')[-1:] not in FAILED
    has_value = not result.guard and row.get('reference')
    return {
        'name': case.name, 'place': place_text(case.row), 'number': number,
        'text': result.why, 'sessions': sessions, 'is_new': is_new,
        'note': 'new' if is_new else f'{sessions} sessions in a row' * (sessions > 1),
        'times_as_bad': row.get('times_as_bad', 1),
        'values': f"{row['reference']} → {row['value']} {row['unit']}"
        if has_value else '',
        **{name: '' if result.guard else row.get(name, '')
           for name in ('spark', 'change')},
        'where': row.get('where', ''),
        'log': folders.log_of_failure(page.folders_by_measurement, result.measurement,
                                      result.file)}


def _is_part_of_event(page: Page, row: dict) -> bool:
    """Whether a value out of tolerance is of a metric that is part of a
    regression.

    :param row: of `value_table_rows`
    """
    return not row.get('guard') and row.get('result') == 'fail' and row.get(
        'metric') in page.worse_metrics.get(row['number'], ())


def _regression_card(page: Page, event: Event, out_of_tolerance: set[int]) -> dict:
    """The card of a regression. Its values are those of the metric that is nearest to
    the size of the event.

    :param out_of_tolerance: test cases with a value that is part of a regression
    """
    last = dict(sorted(page.sessions_on_nodes[event.id] or ()))
    values = sorted((_regression_row(page, event, member, last)
                     for member in event.members),
                    key=lambda row: -row['times_as_bad'])
    worst = {row['key']: row for row in reversed(values)}
    failed = len(out_of_tolerance & {row['number'] for row in worst.values()})
    evidence = [*event.evidence] if event.cause else [
        *event.evidence, 'no recorded property changed in the same session']
    if failed:
        evidence.append(f"{count_with_noun(failed, 'test case')} of these out of "
                        'tolerance')
    size = abs(np.log(event.ratio)) if event.ratio else np.inf
    typical = min((row for row in values if row['values']), default={}, key=lambda row:
                  abs(np.log(row['times_as_bad']) - size))
    return {
        **{name: typical.get(name, '') for name in ('values', 'change')},
        'title': event.title, 'look': 'worse', 'where': event.node or event.system,
        'since': f'{event.since} ({event.sessions})',
        'texts': [event.when, *evidence, certainty_text(event),
                  f'to do: {event.todo}'],
        'rows': values[:MAX_EVENT_ROWS], 'left_out': len(values) - MAX_EVENT_ROWS,
        'numbers': worst.keys(),
        'families': sorted({member.family for member in event.members}),
        'plot': _plot_of_ratios(page, event, values), 'curve': _event_curve(
            page, values, page.session_number(event.since_session),
            page.sessions_on_nodes[event.id]),
        'lines': sorted(worst.values(),
                        key=lambda row: -row['times_as_bad'])[:MAX_LINES]}


def _event_curve(page: Page, rows: Sequence[dict], since: int,
                 there: set[tuple[int, int]] | None) -> dict | None:
    """The median of the metrics of an event relative to their baselines, as the script
    of the page draws it; more is worse, whichever side is better. None: fewer than two
    sessions.

    :param there: test cases and sessions that count; None: all
    """
    curves = []
    for row in rows:
        baseline = page.lines.get(row['curve'], NO_LINES).baseline
        if row['curve'] not in page.curves or not baseline:
            continue
        values = {
            session: baseline / value if row['better'] == 'higher' else value / baseline
            for session, value, _ in zip(*page.curves[row['curve']].sound, strict=True)
            if value > 0 and (there is None or (row['number'], session) in there)}
        if values:
            curves.append(pd.Series(values))
    medians = pd.concat(curves).groupby(level=0).median() if curves else pd.Series()
    if len(medians) < 2:
        return None
    text = (f'median of {count_with_noun(len(curves), "metric")} relative to the '
            f'baseline: {change_text(medians.iloc[-1])} in the newest '
            f'of {count_with_noun(len(medians), "session")}')
    return {'x': [*map(int, medians.index)], 'y': medians.round(4).tolist(),
            'l': [1, None, None, None], 'k': [since], 't': text}


def _plot_of_ratios(page: Page, event: Event, values: Sequence[dict]
                    ) -> dict[str, str] | None:
    """Values since a change as a ratio of those before, over size; of a node those on
    it and those without it. None: no metric of the event has several sizes.

    :param values: rows of its metrics, the worst first; the metric and the test cases
        of the first rows are drawn
    """
    metric = next((row['metric'] for row in values if row['point']), '')
    numbers = list(dict.fromkeys(
        row['number'] for row in values
        if row['metric'] == metric and row['number'] is not None))[:MAX_LINES]
    records = page.data.metric_records
    records = records[records['judged'] & (records['metric'] == metric)
                      & records['value'].notna() & records['point'].notna()]
    at = page.data.frame.index.get_indexer(records.index)
    records = records.assign(number=page.data.case[at], session=page.past.session[at])
    records = records[records['number'].isin(numbers)]
    there = page.sessions_on_nodes[event.id]
    after = records['session'] >= page.session_number(event.since_session)
    if there is not None:
        after &= np.array([pair in there for pair in zip(
            records['number'], records['session'], strict=True)], bool)
    medians = records.groupby(['number', 'point', after.rename('after')])[
        'value'].median().unstack().dropna()
    if medians.shape[1] < 2 or medians.index.get_level_values('point').nunique() < 2:
        return None
    names = [page.cases[number].name for number in medians.index.get_level_values(0)]
    title = f'{metric}: ' + (
        f'on {event.node} since {event.since} / before, and on other nodes'
        if event.node else f'since {event.since} / before')
    frame = medians.reset_index().assign(label=names, ratio=(
        medians[True] / medians[False]).to_numpy())
    return sections.draw_plot(page, 'event', plots.Drawing(
        event.id, title + plots.numbers_text(frame, '1'), ratio_plot.draw_ratios,
        (frame[['label', 'point', 'ratio']], title, metric)))


def _regression_row(page: Page, event: Event, member: Member, last: dict[int, int]
                    ) -> dict:
    """A metric of a test case that is part of a regression.

    :param last: of the regression of a node: test case -> its last session on the node
    """
    number = page.numbers.get(member.test_case)
    case = None if number is None else page.cases[number]
    session = None if number is None else last.get(number)
    is_newest = session is None or not case or not case.cells[session + 1:].strip('.')
    key = Key(-1 if number is None else number, member.metric,
              point_number(member.point))
    before = page.lines.get(key, NO_LINES).baseline
    metric = all_metrics().get(member.metric, {})
    return {
        'key': member.test_case, 'number': number, 'curve': key, 'session': session,
        'note': '' if is_newest else f'not measured on {event.node} since',
        'name': case.name if case else member.check,
        'place': place_text(member) if page.places > 1 else '', 'text': '',
        'metric': member.metric,
        'point': size_text(key.point) if member.point else '',
        'change': change_text(member.ratio) if member.ratio else '',
        'better': metric.get('better', ''),
        'values': '' if before is None or member.ratio is None else ' → '.join(
            value_text(value, str(metric.get('unit', '')))
            for value in (before, before * member.ratio)),
        'times_as_bad': member.times_as_bad,
        'where': str(case.row.file) if case else '',
        'log': page.folders_of_test_case(case).get('log', '') if case else ''}


def changes_since_last_session(page: Page) -> list[dict]:
    """Changes since the session before: {what, lines, count}. A test case that failed
    is in the card of its event."""
    this_session = len(page.past.sessions) - 1
    appeared: list[tuple[str, int | None]] = []
    passed: list[tuple[str, int | None]] = []
    for case in page.cases:
        now = case.cells[this_session:]
        before = case.cells[:this_session].rstrip('.')[-1:]
        if not this_session or now in FAILED + '.':
            continue
        if not before:
            appeared.append((case.name, case.number))
        elif before in FAILED:
            passed.append((case.name, case.number))
    # What changed when something regressed is in the card of the event.
    causes = {cause for one in page.regressions for cause in one.cause.split('; ')}
    news: dict[str, list[tuple[str, int | None]]] = {
        'new test cases': appeared,
        'no longer failing': passed,
        IMPROVED: [(case.name, case.number) for case in page.cases if case.is_improved],
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
