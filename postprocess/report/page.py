"""The content of the page, from records; templates/report.html lays it out.

The results of test cases are those of results.py, so that page, table and
exit codes agree. Plots come from plots/ as inline SVG. Data that people sort,
filter or open are JSON in the page.
"""
from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from config.console import count_with_noun
from config.families import Family, families
from config.records.columns import MADE_UP
from config.records.units import (
    change_text,
    number_text,
    size_text,
    unit_text,
    value_text,
)
from config.sessions import run_id
from config.sessions.judged import (
    change_in_percent,
    is_improved,
    point_in_bytes,
)
from config.sites.topology import nodes_of_record

from .. import naming, outcomes, perflogs, results
from ..names import short_name
from ..perflogs import attached, reasons, samples, series
from ..perflogs.plans import Left, Partial
from ..references.progress import Progress
from ..regressions import detect, telling
from ..regressions.finding import Baseline, Member, Regression, Verdict
from ..regressions.judging import judge_session
from . import charts, folders, grid, plots, svg
from .curves import (
    NO_LINES,
    Curve,
    Key,
    Lines,
    curves_of_metrics,
    median_curve,
    newest_curve_by_metric,
    sparkline,
)
from .grid import FAILED, LETTERS, WORSE
from .plots import ratio
from .tidy import build_tidy_records

TEMPLATES = Path(__file__).parent / 'templates'
#: Newest sessions whose jobs the page has, and most changes of one field of the
#: environment of a test case.
SESSIONS = 180
#: Column that may differ between sessions of a test case -> its title.
ENVIRONMENT = {
    'version': 'version', 'source': 'source', 'stack': 'stack',
    'spec': 'spec hash', 'reframe': 'ReFrame', 'suite': 'suite',
    'commit': 'commit of the suite', 'machine': 'node facts',
    'binding': 'CPU binding', 'num_nodes': 'number of nodes',
    'num_tasks': 'number of ranks', 'nodes': 'nodes',
    'speed': 'speed class'}
#: Lines of a list before 'and N more'; rows of numbers in the page.
MAX_LINES, MAX_NUMBERS = 5, 20_000
#: Test cases that the card of an event names, and rows of its table.
MAX_WORST, MAX_EVENT_ROWS = 5, 500
#: Newest runs whose raw samples are read, of each family.
MAX_SAMPLES = 24


class Made(NamedTuple):
    """A page, not written yet."""
    #: Path -> content of what is new, index.html last.
    files: dict[str, bytes]
    #: Plots that the page has, drawn now or before.
    plots: list[str]
    #: Judged records of the newest run of each test case by result; and test
    #: cases that are stale, judged, waiting for a reference, ...
    counts: dict[str, int]


class _Case(NamedTuple):
    """A test case as the page shows it."""
    number: int
    #: Its newest record; if it is flaky, the one that failed.
    row: Any
    name: str
    #: Its address in every page: `case=HASH@SYSTEM:PARTITION+ENVIRONMENT`.
    address: str
    #: Letters of all sessions.
    cells: str
    #: Its newest result: one of results.ORDER.
    result: str
    #: Why it failed, or is inconclusive, if that is known.
    reason: str
    #: Part of a regression, even if its newest session is inconclusive.
    worse: bool = False

    @property
    def is_cut_short(self) -> bool:
        """Whether its newest session ended before the test case did."""
        return reasons.is_cut_short(self.result, self.row.guard)

    @property
    def last_completed_result(self) -> str:
        """Its newest result but those of sessions that were cut short; '': none."""
        if not self.is_cut_short:
            return self.result
        letters = self.cells.rstrip('-.n')[-1:].replace(WORSE, 'p')
        return results.ORDER[LETTERS.index(letters)] if letters else ''

    @property
    def newest_result_letter(self) -> str:
        """The letter of its newest result."""
        letter = self.cells.rstrip('-.')[-1:]
        return (
            WORSE if self.worse and letter not in FAILED else letter
        )


class Page:
    """The page of some records."""

    def __init__(self, frame: pd.DataFrame, partial: Partial = {},
                 before: Path | None = None, png: bool = False,
                 verdict: Verdict | None = None) -> None:
        """
        :param frame: as perflogs.read gives it, at least one record
        :param partial: runs that left test cases out on purpose
        :param before: folder of an earlier page: plots that are still the
            same are taken from there
        :param png: plots come as PNG too
        :param verdict: what is worse than it was; None: judged by these records
        """
        data = build_tidy_records(frame)
        self.data = dataclasses.replace(
            data, frame=frame.assign(kind=data.kind))
        self.before, self.png, self.partial = before, png, partial
        self.files: dict[str, bytes] = {}
        self.plots: list[str] = []
        #: Of the plots in the page: style or id -> its short name.
        self.svg_names: dict[str, str] = {}
        self.faults: attached.Faults = []
        self.labels = _kind_labels(data.table)
        self.past = results.result_history(frame, data.judged, data.case, partial)
        letters = np.array(list(LETTERS))[self.past.ended]
        last = list(self.data.frame.loc[self.past.last.index].itertuples())
        judged, _ = self.table_records
        flaky = {row.number: row for row in judged[judged['result'] == 'flaky']
                 .drop_duplicates('number').itertuples()}
        self.cases: list[_Case] = []
        for number, (row, address, of_case) in enumerate(zip(
                last, _addresses(last), letters, strict=True)):
            cells = ''.join(of_case)
            case = _Case(number, flaky.get(number, row), self.test_case_name(row),
                         address, cells, results.ORDER[LETTERS.index(
                             cells.rstrip('-.')[-1])], '')
            if case.newest_result_letter in FAILED + 'i':
                case = case._replace(reason=reasons.reason_of_result(case.row))
            self.cases.append(case)

        self.verdict = verdict or judge_session(frame, partial=partial)
        #: perflogs.CASE of each test case -> its number.
        self.numbers = {tuple(str(getattr(case.row, name)) for name in
                              perflogs.CASE): case.number for case in self.cases}
        self.regressions = self.verdict.regressions
        self.improved = self.verdict.improved
        #: Of each regression, by its ID.
        self.sessions_on_nodes = {one.id: self.sessions_on_node(one)
                                  for one in self.regressions}
        #: Test case -> its metrics that are part of a regression.
        self.worse_metrics: dict[int, set[str]] = {}
        for one in self.regressions:
            self._mark_test_cases_as_worse(one)
        #: Systems whose level is in the card of an event.
        self.levels_of_events: set[str] = set()
        self.places = len({_place_text(case.row) for case in self.cases})

    def _mark_test_cases_as_worse(self, regression: Regression) -> None:
        """Marks the sessions in which test cases are worse than they were; of a node
        those that ran on it."""
        since = self.session_number(regression.since_run)
        there = self.sessions_on_nodes[regression.id]
        for member in regression.members:
            number = self.numbers.get(member.test_case_key)
            if number is not None:
                self.worse_metrics.setdefault(number, set()).add(member.metric)
                case = self.cases[number]
                self.cases[number] = case._replace(worse=True, cells=''.join(
                    WORSE if session >= since and cell in 'pr' and (
                        there is None or (number, session) in there) else cell
                    for session, cell in enumerate(case.cells)))

    def sessions_on_node(self, regression: Regression) -> set[tuple[int, int]] | None:
        """Numbers of test cases, and of sessions in which they ran on the node of a
        regression; None: it is not the regression of a node."""
        if not regression.node:
            return None
        frame, node = self.data.frame, regression.node
        texts = [text for text in frame['nodes'].unique()
                 if node in nodes_of_record(str(text))]
        there = (frame['nodes'].isin(texts)
                 & (frame['system'] == regression.system)).to_numpy()
        return set(zip(self.data.case[there].tolist(),
                       self.past.session[there].tolist(), strict=True))

    # Names ------------------------------------------------------------

    def test_case_name(self, row: Any) -> str:
        """The name of the test case of a record."""
        return short_name(str(row.check), str(row.params), str(row.case))

    def test_case_name_and_place(self, row: Any) -> str:
        """The name of a test case and its place."""
        return ' · '.join(filter(None, [
            self.test_case_name(row), row.speed.strip('-'), _place_text(row)]))

    def session_name(self, session_number: int) -> str:
        """The name of a session: its date and time."""
        run = self.past.sessions[session_number][0]
        return telling.session_name(run).removesuffix(' UTC')

    def session_number(self, run: str) -> int:
        """The number of the nightly session of a session; 0: unknown."""
        return next((n for n, runs in enumerate(self.past.sessions) if run in runs), 0)

    # Curves -----------------------------------------------------------

    @functools.cached_property
    def table_records(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Records of the newest session of each test case: all judged ones, the
        worst first; and the main ones of metrics without a reference."""
        frame = results.newest_records(self.data.frame.assign(
            number=self.data.case))
        result = frame['result']
        kept = (frame['metric'] != 'completed').groupby(
            frame['number']).transform('any')
        order = [*results.FAILED, 'xfail', 'pass']
        judged = frame.assign(kept=kept)[result.isin(order)]
        judged = judged.assign(rank=judged['result'].map(order.index)
                               ).sort_values(['rank', 'family', 'program',
                                              'params', 'metric', 'point'])
        return judged, self._main_records_without_reference(
            frame[~result.isin(order)], judged)

    def _last_values_of_other_test_cases(self) -> pd.DataFrame:
        """The main records of test cases without a value in their newest session:
        those of the last session in which they had one."""
        there = {number for records in self.table_records for number in records.loc[
            records['metric'] != 'completed', 'number']}
        frame = self.data.frame.assign(number=self.data.case,
                                       session=self.past.session)
        frame = frame[~frame['number'].isin(there) & self.data.judged
                      & frame['value'].notna() & (frame['metric'] != 'completed')]
        newest = frame.groupby('number')['session'].transform('max')
        return self._main_records_without_reference(
            frame[frame['session'] == newest], frame[:0])

    @functools.cached_property
    def lines(self) -> dict[Key, Lines]:
        """What the metrics of the page's tables, and those that are judged by
        their history, are compared with."""
        lines = {}
        for row in pd.concat([*self.table_records,
                              self._last_values_of_other_test_cases()]).itertuples():
            sides = [None if pd.isna(part) or pd.isna(row.reference)
                     else float(row.reference * (1 + part))
                     for part in (row.lower, row.upper)]
            lines[_key_of_record(row)] = Lines(
                None, None if pd.isna(row.reference) else float(row.reference),
                *sides)
        for key, one in self._baselines.items():
            lines[key] = lines.get(key, Lines())._replace(baseline=one.value)
        return lines

    @functools.cached_property
    def _baselines(self) -> dict[Key, Baseline]:
        return {Key(self.numbers[one.test_case_key], one.speed, one.metric,
                    _point_number(one.point)): one
                for one in self.verdict.baselines
                if one.test_case_key in self.numbers}

    @functools.cached_property
    def curves(self) -> dict[Key, Curve]:
        """The curves of the metrics of `lines`, in all CPU speed classes."""
        return curves_of_metrics(self.data, self.past.session, {
            (key.test_case, key.metric, key.point) for key in self.lines})

    # The first screen -------------------------------------------------

    @functools.cached_property
    def result_counts(self) -> dict[str, int]:
        """The number of test cases per result (results.ORDER) of their newest
        session, and of some other kinds."""
        ends = Counter(case.result for case in self.cases)
        this_session = len(self.past.sessions) - 1
        return {result: ends[result] for result in results.ORDER} | {
            'cases': len(self.cases),
            'regressed': len(self.regressions),
            'no_record': sum(case.cells[this_session] == '-'
                             for case in self.cases)}

    @functools.cached_property
    def last_completed_result_counts(self) -> dict[str, int]:
        """`result_counts`, without results of sessions that were cut short."""
        ends = Counter(case.last_completed_result for case in self.cases)
        return self.result_counts | {
            result: ends[result] for result in results.ORDER}

    def failure_groups(self, rows: list[dict]) -> list[dict]:
        """Failed test cases, grouped by reason: {why, lines, count, rows, todo}.

        Test cases whose metric is part of a regression are in the card of its event.

        :param rows: of `value_table_rows`
        """
        worst: dict[int, dict] = {}
        for row in rows:
            if row['result'] in results.FAILED:
                worst.setdefault(row['number'], row)
        groups: dict[str, list[dict]] = {}
        this_session = len(self.past.sessions) - 1
        new = {case.number for case in self.cases
               if case.cells[this_session:] in FAILED
               and case.cells[:this_session].rstrip('-.')[-1:] not in FAILED}
        for case in self.cases:
            row = worst.get(case.number, {})
            if case.result not in results.FAILED or case.is_cut_short or (
                    self._is_part_of_event(row)):
                continue
            guard = str(case.row.guard).partition(':')[0] or row.get(
                'guard', '').partition(':')[0]
            why = ('known fault fixed: remove it from the reference file'
                   if case.result == 'xpass' else
                   'flaky: passed when it was measured again'
                   if case.result == 'flaky' else
                   f'guard {guard}' if guard else
                   f"{row.get('metric', 'a metric')} out of tolerance")
            text = case.reason if guard else ' '.join(filter(None, [
                row.get('metric'), row.get('size') and f"at {row['size']}:",
                row.get('value'), row.get('unit'), row.get('reference') and (
                    f"(reference {row['reference']}, {row['change']})")]))
            groups.setdefault(why, []).append({
                'name': case.name, 'place': _place_text(case.row), 'text': text
                or (guard and row.get('guard', '')), 'number': case.number,
                'sessions': grid.sessions_in_a_row(
                    case.cells, case.newest_result_letter),
                'is_new': case.number in new, 'times_as_bad': row.get(
                    'times_as_bad', 1), 'family': str(case.row.family),
                'spark': '' if guard else row.get('spark', ''),
                'where': row.get('where', ''),
                'log': self.folders_of_test_case(case).get('log', '')})
        lost = [case for case in self.cases if case.cells[-1:] == '-']
        if lost:
            groups['no record in the newest session'] = [{
                'name': case.name, 'place': _place_text(case.row), 'text':
                f'last ran {case.row.time:%Y-%m-%d %H:%M}',
                'number': case.number, 'sessions': 0} for case in lost]
        todo = {self.numbers.get(one.test_case_key): one.todo
                for one in self.verdict.failures}
        cards = []
        for why, lines in sorted(groups.items(), key=lambda group: -len(group[1])):
            lines.sort(key=lambda line: -line.get('times_as_bad', 1))
            numbers = {line['number'] for line in lines}
            todos = dict.fromkeys(filter(None, map(todo.get, numbers)))
            cards.append({
                'why': why, 'lines': lines[:MAX_LINES], 'count': len(lines),
                'more': lines[MAX_LINES:], 'families': sorted(
                    {line['family'] for line in lines if 'family' in line}),
                'rows': [row for row in rows if row['number'] in numbers
                         and row['result'] in results.FAILED],
                'todo': next(iter(todos)) if len(todos) == 1 else ''})
        return cards

    def _is_part_of_event(self, row: dict) -> bool:
        """Whether a value out of tolerance is of a metric that is part of a
        regression.

        :param row: of `value_table_rows`
        """
        return not row.get('guard') and row.get('result') == 'fail' and row.get(
            'metric') in self.worse_metrics.get(row['number'], ())

    def regression_events(self, rows: Sequence[dict] = ()) -> list[dict]:
        """A card per event: the regression of a group, or all regressions of
        single test cases that began on one date.

        {id, first, rest, spark, worst, rows, more, cases, several, ...}

        :param rows: of `value_table_rows`
        """
        events: dict[str, list[Regression]] = {}
        for one in self.regressions:
            events.setdefault(one.since if one.kind in ('metric', 'case')
                              else one.id, []).append(one)
        out_of_tolerance = {row['number'] for row in rows
                            if self._is_part_of_event(row)}
        cards = []
        for regressions in events.values():
            values = [self._regression_row(one, member) for one in regressions
                      for member in telling.members_by_change([one])]
            values.sort(key=lambda row: -row['times_as_bad'])
            worst = {row['key']: row for row in reversed(values)}
            failed = len(out_of_tolerance & {row['number'] for row in worst.values()})
            first, *rest = telling.event_lines(regressions)
            if not any(one.cause for one in regressions):
                rest.insert(-1, 'changed in the same session: nothing that is recorded')
            cards.append({
                'first': first, 'rest': [
                    *rest[:-1], certainty_text(regressions),
                    *([f"{count_with_noun(failed, 'test case')} of these out of "
                       'tolerance'] if failed else []), *rest[-1:]],
                'rows': values[:MAX_EVENT_ROWS],
                'more': len(values) - MAX_EVENT_ROWS, 'cases': len(worst),
                'systems': {member.system for one in regressions
                            for member in one.members},
                'several': len(regressions) > 1,
                'families': sorted({member.family for one in regressions
                                    for member in one.members}),
                'spark': self._event_sparkline(values, min(
                    self.session_number(one.since_run) for one in regressions),
                    self.sessions_on_nodes[regressions[0].id]),
                'worst': sorted(worst.values(), key=lambda row: -row[
                    'times_as_bad'])[:MAX_WORST]})
        self._add_levels(cards)
        return cards

    def _add_levels(self, cards: list[dict]) -> None:
        """Adds the level of each system to the event that most of its test cases
        have in common."""
        cases = Counter(str(case.row.system) for case in self.cases)
        for level in self.verdict.failed_levels:
            for card in cards:
                if card['systems'] == {level.system} and (
                        card['cases'] > cases[level.system] / 2):
                    card['rest'].insert(-1, f'all metrics together: {level.text}')
                    self.levels_of_events.add(level.system)
                    break

    @functools.cached_property
    def _newest_keys(self) -> dict[tuple[int, str, int], Key]:
        return newest_curve_by_metric(self.curves)

    def _key_of_member(self, member: Member) -> Key | None:
        """The key of a metric that is part of a regression; None: it has no curve."""
        number = self.numbers.get(member.test_case_key)
        return None if number is None else self._newest_keys.get(
            (number, member.metric, _point_number(member.point)))

    def _event_sparkline(self, rows: Sequence[dict], since: int,
                         there: set[tuple[int, int]] | None) -> str:
        """The median of the metrics of an event, relative to their baselines; more is
        worse if some are better higher and others lower.

        :param there: test cases and sessions that count; None: all
        """
        curves, low, high = [], [], []
        several_sides = len({row['better'] for row in rows}) > 1
        for row in rows:
            lines = self.lines.get(row['curve'], NO_LINES)
            if row['curve'] not in self.curves or not lines.baseline:
                continue
            curve = self.curves[row['curve']]
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

    def _regression_row(self, regression: Regression, member: Member) -> dict:
        """A metric of a test case that is part of a regression."""
        number = self.numbers.get(member.test_case_key)
        case = None if number is None else self.cases[number]
        key = self._key_of_member(member)
        before = self.lines.get(key, NO_LINES).baseline if key else None
        metric = perflogs.all_metrics().get(member.metric, {})
        return {
            'id': regression.id, 'key': member.test_case_key, 'number': number,
            'curve': key, 'name': case.name if case else member.check,
            'place': _place_text(member) if self.places > 1 else '',
            'metric': member.metric, 'point': size_text(
                _point_number(member.point)) if member.point else '',
            'change': change_text(member.ratio) if member.ratio else '',
            'better': metric.get('better', ''),
            'values': '' if before is None or member.ratio is None else ' → '.join(
                value_text(value, str(metric.get('unit', '')))
                for value in (before, before * member.ratio)),
            'times_as_bad': telling.times_as_bad(member),
            'where': self.record_text(case.row) if case else '',
            'log': self.folders_of_test_case(case).get('log', '') if case else ''}

    def changes_since_last_session(self, rows: list[dict]) -> list[dict]:
        """Changes since the session before: {what, lines, count}."""
        changed: dict[str, list[tuple[str, int]]] = {}
        this_session = len(self.past.sessions) - 1
        for case in self.cases:
            now, before = (
                case.cells[this_session:],
                case.cells[:this_session].rstrip('-.')[-1:],
            )
            if not this_session or now in '-.':
                continue
            if now in FAILED and before not in FAILED:
                pass                # its failure says that it is new
            elif not before:
                changed.setdefault('new test cases', []).append(
                    (case.name, case.number))
            elif before in FAILED and now not in FAILED:
                changed.setdefault('no longer failing', []).append(
                    (case.name, case.number))
        improved = [(f"{row['name']} {row['metric']} "
                     f"{row['ratio']}", row['number'])
                    for row in rows if row['note']]
        news = [{'what': what, 'count': len(cases),
                 'lines': cases[:MAX_LINES],
                 'more': len(cases) - MAX_LINES}
                for what, cases in changed.items()]
        if improved:
            news.append({'what': 'improved: propose new references',
                         'count': len(improved),
                         'lines': improved[:MAX_LINES],
                         'more': len(improved) - MAX_LINES})
        if self.improved:
            news.append({'what': 'improved',
                         'count': len(self.improved), 'lines': [
                             (telling.regression_lines(one)[0], None)
                             for one in self.improved[:MAX_LINES]],
                         'more': len(self.improved) - MAX_LINES})
        # What changed when something regressed is in the card of the event.
        causes = {cause for one in self.regressions for cause in one.cause.split('; ')}
        changes = [one for one in self.verdict.changed if one.what not in causes]
        if changes:
            news.append({'what': 'changed environment', 'count': len(changes),
                         'lines': [(telling.environment_change_line(one), None)
                                   for one in changes[:MAX_LINES]],
                         'more': len(changes) - MAX_LINES})
        return news

    def result_grid_rows(self) -> list[grid.Row]:
        """A row of cells for each test case, those that failed first."""
        rows = []
        for case in sorted(self.cases, key=lambda c: (
                c.cells[-1:] != '-' and c.newest_result_letter not in FAILED + WORSE,
                str(c.row.family), plots.natural_sort_key(c.name), _place_text(c.row))):
            place = _place_text(case.row)
            ended = '-' if case.cells.endswith('-') else case.newest_result_letter
            rows.append(grid.Row(
                case.number, case.name, place if self.places > 1 else '', case.address,
                ended, f'{case.name}, {place}: {grid.result_text(case.cells, ended)}',
                grid.cell_outlines(case.cells), str(case.row.family)))
        return rows

    # Test cases ------------------------------------------------------------

    @functools.cached_property
    def _first_record_per_session(self) -> pd.DataFrame:
        """The first record of each test case and session, by test case and time."""
        key = self.past.case * len(self.past.sessions) + self.past.session
        _, at = np.unique(key, return_index=True)
        return self.data.frame.iloc[at].assign(
            number=self.past.case[at], session=self.past.session[at])

    @functools.cached_property
    def _environment_changes(self) -> dict[int, dict[str, list[tuple[int, str]]]]:
        """Test case -> field of the environment -> [(first session, value)]."""
        rows = self._first_record_per_session
        number, session = rows['number'].to_numpy(), rows['session'].to_numpy()
        begins = np.diff(number, prepend=-1) != 0
        changes: dict[int, dict[str, list[tuple[int, str]]]] = {}
        for name in ENVIRONMENT:
            # A test case that was not set up has no number of nodes.
            codes, values = pd.factorize(rows[name])
            texts = [*map(str, values), '']
            for at in np.flatnonzero(begins | (np.diff(codes, prepend=-1) != 0)):
                past = changes.setdefault(int(number[at]), {}).setdefault(name, [])
                if not past or past[-1][1] != texts[codes[at]]:
                    past.append((int(session[at]), texts[codes[at]]))
        return changes

    def test_case_details(self) -> list[dict]:
        """The details of each test case that the page opens, by number."""
        power = {self.numbers.get(one.test_case_key): telling.power_text(one)
                 for one in self.verdict.power}
        sessions = range(len(self.past.sessions))[-SESSIONS:]
        jobs = self._first_record_per_session.astype({'job': str}).pivot(
            index='number', columns='session', values='job').reindex(
                columns=sessions).fillna('')
        curves: dict[int, list[dict]] = {}
        for key in self.curves:
            curves.setdefault(key.test_case, []).append(self._curve_details(key))
        return [{
            'n': case.name, 'p': _place_text(case.row), 'u': case.address,
            'm': _reframe_name(case.row), 'a': f'-n /{case.row.case}',
            'c': case.cells, 'r': case.reason, 'g': str(case.row.guard),
            'f': self.record_text(case.row), 'd': self.folders_of_test_case(case),
            'w': power.get(case.number, ''), 'v': curves.get(case.number, []),
            'j': jobs.loc[case.number].tolist(),
            'h': {name: past[-SESSIONS:] for name, past in
                  self._environment_changes[case.number].items()
                  if past != [(past[0][0], '')]}} for case in self.cases]

    def _curve_details(self, key: Key) -> dict:
        """A curve of the view of a test case: values, lines, change points."""
        curve, lines = self.curves[key].thinned(), self.lines.get(key, NO_LINES)
        row = self.cases[key.test_case].row
        metric = perflogs.all_metrics().get(key.metric, {})
        return {
            'm': key.metric, 'p': size_text(key.point) if key.point >= 0 else '',
            'u': unit_text(str(metric.get('unit', ''))), 's': key.speed.strip('-'),
            'x': curve.sessions.tolist(), 'o': len(self.curves[key].values),
            'y': [*map(_round_to_five_digits, curve.values)],
            'l': [_round_to_five_digits(value) if value is not None else None
                  for value in lines],
            'z': plots.physical_limits(str(row.family), key.metric, str(row.params)),
            'k': sorted({self._number_of_date[date]
                         for date in self._baselines[key].changes
                         if date in self._number_of_date}
                        ) if key in self._baselines else []}

    @functools.cached_property
    def _number_of_date(self) -> dict[str, int]:
        """Date -> the number of its first session."""
        numbers: dict[str, int] = {}
        for number in range(len(self.past.sessions)):
            numbers.setdefault(self.session_name(number)[:10], number)
        return numbers

    def record_text(self, row: Any) -> str:
        """File and line of a record."""
        return f'{row.file}:{row.line}'

    @functools.cached_property
    def _folders(self) -> dict[folders.Key, dict[str, str]]:
        return folders.folders_of_test_cases(str(case.row.run) for case in self.cases)

    def folders_of_test_case(self, case: _Case) -> dict[str, str]:
        """Stage folder, output folder and log of the newest session of a test
        case, as far as they exist on this machine."""
        row = case.row
        return self._folders.get((str(row.run), str(row.partition), str(row.environ),
                                  str(row.case)), {})

    def value_table_rows(self) -> list[dict]:
        """Values of the newest session of each test case, failed ones first:
        all judged values, and the main values of other test cases."""
        return [self._value_table_row(row) for part in self.table_records
                for row in part.itertuples()]

    def _main_records_without_reference(self, frame: pd.DataFrame, judged: pd.DataFrame
               ) -> pd.DataFrame:
        """The main records of metrics without a reference."""
        parts = []
        there = set(zip(judged['number'], judged['metric'].astype(str),
                        strict=True))
        for (family, number), records in frame.groupby(
                ['family', 'number'], observed=True):
            for metric in plots.main_metrics(str(family), set(
                    records['metric'])):
                if (number, metric) not in there:
                    of_metric = records[records['metric'] == metric]
                    parts.append(plots.points_at_size(of_metric, str(family), metric,
                                                      ()).tail(1).index)
        shown = [index for part in parts for index in part]
        return frame.loc[shown].assign(kept=True, rank=9).sort_values(
            ['family', 'program', 'params', 'metric'])

    def _value_table_row(self, row: Any) -> dict:
        sign = {'lower': '≤', 'higher': '≥'}
        allowed = [
            f'{sign[side]} {number_text(row.reference * (1 + part))}'
            for side, part in (('higher', row.lower), ('lower', row.upper))
            if pd.notna(part) and pd.notna(row.reference)
        ]
        ratio = row.value / row.reference if row.reference else float('nan')
        better = row.result == 'pass' and is_improved(
            row.better, row.value, row.reference, row.lower, row.upper)
        key = _key_of_record(row)
        spark = sparkline(self.curves.get(key), self.lines[key])
        if row.metric == 'completed':      # the guard is the result
            row = row._replace(
                metric='values kept' if row.kept else 'no values',
                value=float('nan'), unit='', reference=float('nan'))
            ratio, allowed, spark = float('nan'), [], ''
        return {
            'result': row.result, 'number': row.number,
            'family': str(row.family),
            'name': self.test_case_name(row), 'speed': row.speed.strip('-'),
            'place': _place_text(row), 'metric': row.metric,
            'size': '' if pd.isna(row.point) else size_text(row.point),
            'value': '' if pd.isna(row.value)
            else number_text(row.value), 'unit': unit_text(row.unit),
            'raw': '' if pd.isna(row.value) else float(row.value),
            'reference': '' if pd.isna(row.reference)
            else number_text(row.reference),
            'allowed': ', '.join(allowed),
            'guard': '' if row.guard in reasons.CUT_SHORT else row.guard,
            'reason': reasons.reason_of_result(row) if row.guard else '',
            'ratio': '' if pd.isna(ratio) else f'{ratio:.2f}\u2009×',
            'change': '' if pd.isna(ratio) else change_in_percent(
                row.value, row.reference),
            'times_as_bad': _times_as_bad(ratio, row.better),
            'note': 'improved: propose a new reference' if better else '',
            'spark': spark, 'run': row.run, 'where':
            f'{row.file}:{row.line}', 'emulated': row.emulated}

    # Families ---------------------------------------------------------

    def records_for_plots(self, name: str, over_time: list[plots.OverTime]
                ) -> plots.Records:
        """The records of a family for its plots."""
        table = self.data.table
        table = table[table['family'] == name]
        drawn = self.data.metric_records
        points = self.data.point_statistics_without_repetitions
        if len(table) < len(self.data.table):
            drawn = drawn[drawn['kind'].isin(table.index)]
            points = points[points['kind'].isin(table.index)]
        return plots.Records(name, drawn, table, points, over_time,
                             functools.cache(lambda: self.raw_samples(table)))

    def raw_samples(self, table: pd.DataFrame, maximum: int = MAX_SAMPLES
                    ) -> list[plots.Raw]:
        """Raw samples of the newest run of each kind of a table, the newest first.

        :param maximum: number of runs
        """
        frame = self.data.frame
        records = frame[frame['kind'].isin(table.index)].drop_duplicates(
            'kind', keep='last').sort_values('time', kind='stable')
        raw_samples = []
        for row in records[::-1].itertuples():
            calls = samples.read_samples_of_record(row, self.faults)
            if calls is not None and len(calls):
                raw_samples.append(
                    plots.Raw(int(row.kind), str(row.run), calls)
                )
            if len(raw_samples) == maximum:
                break
        return raw_samples

    def family_section(self, name: str, over_time: list[plots.OverTime],
                       rows: list[dict]) -> dict:
        """The section of a family."""
        known = families().get(name)
        drawings, reading = plots.drawings_of_family(
            self.records_for_plots(name, over_time), known)
        plain = [self.draw_plot(name, one) for one in drawings if not one.section]
        sections: dict[str, list[dict]] = {}
        for one in drawings:
            if one.section:
                sections.setdefault(one.section, []).append(
                    self.draw_plot(name, one))
        programs = sorted({str(p) for p in self.data.table.loc[
            self.data.table['family'] == name, 'program']})
        return {'name': name, 'title': known.title if known else '',
                'plots': plain, 'sections': sections, 'reading': reading,
                'about': _plot_descriptions_of_programs(known, programs),
                'over_time': bool(over_time),
                'rows': [row for row in rows if row['family'] == name
                         and row['result'] not in results.FAILED]}

    def site_comparison(self) -> dict | None:
        """A comparison of sites: ratio curves, and a table of mean ratios."""
        if self.data.table['system'].nunique() < 2:
            return None
        drawn, rows = [], []
        for name in sorted(self.data.table['family'].unique()):
            records = self.records_for_plots(name, [])
            for one in ratio.drawings_from_records(records, of='system', base='',
                                                   metric=(),
                                                   where=(), title=''):
                drawn.append(self.draw_plot(name, one))
            for other, base, pairs in ratio.ratio_points_by_value(
                records, records.table, 'system'
            ):
                main = plots.main_metrics(name, set(pairs['metric']))
                for (label, metric), group in pairs[
                        pairs['metric'].isin(main)].groupby(
                            ['label', 'metric'], observed=True):
                    good = group['ratio'][group['ratio'] > 0]
                    if len(good):
                        rows.append({
                            'what': label, 'family': name, 'metric': metric,
                            'better': perflogs.all_metrics()[metric]['better'],
                            'pair': f'{other} / {base}',
                            'mean': float(np.exp(np.log(good).mean())),
                            'minimum': float(good.min()),
                            'maximum': float(good.max()), 'n': len(good),
                            'runs': int(group[['runs', 'runs_base']].min(
                                axis=None))})
        return {'plots': drawn, 'rows': rows} if rows else None

    def numbers_table_data(self) -> dict:
        """All points, for the page's table of numbers."""
        points = self.data.point_statistics_without_repetitions
        left = 0
        if len(points) > MAX_NUMBERS:
            keep = points['reference'].notna() | points['point'].isna()
            left = len(points) - int(keep.sum())
            points = points[keep][:MAX_NUMBERS]
        table = self.data.table
        places = (table['system'] + ':' + table['partition'] + ' '
                  + table['environ'])
        # The test case of each kind.
        first_record_numbers = self.data.case[
            np.unique(self.data.kind, return_index=True)[1]].tolist()
        metrics = list(dict.fromkeys(points['metric']))
        where = {name: n for n, name in enumerate(metrics)}
        # Records of other formats have metrics that config/ does not name.
        own = self.data.frame.drop_duplicates('metric').set_index('metric')
        known = {name: {'unit': str(own['unit'][name]), 'means': ''}
                 for name in metrics} | perflogs.all_metrics()
        return {
            'left': left,
            'kinds': [[family, self.cases[number].name, place, number]
                      for family, place, number in zip(
                          table['family'], places, first_record_numbers, strict=True)],
            'metrics': [[name, unit_text(known[name]['unit']),
                         known[name]['means']] for name in metrics],
            'rows': [[kind, speed.strip('-'), where[metric], [
                [point_in_bytes(row.point),
                 *map(_round_to_five_digits, (row.value, row.median, row.minimum,
                                              row.maximum)), row.runs,
                 _round_to_five_digits(row.reference)] for row in of_metric]]
                for (kind, speed, metric), of_metric in itertools.groupby(
                    points.itertuples(), lambda row: (row.kind, row.speed, row.metric)
                )]}

    def draw_plot(self, family: str, drawing: plots.Drawing) -> dict:
        """Draws a plot into `files`; returns what the page shows of it."""
        stem = re.sub(r'[^\w.]+', '-', f'{family} {drawing.name}').strip('-')
        while f'plots/{stem}.svg' in self.plots:
            stem += '-'
        names = [f'plots/{stem}.svg'] + [f'plots/{stem}.png'] * self.png
        made_of = b'<!-- %s -->\n' % drawing.content_hash().encode()
        file = _reusable_svg(self.before, names, made_of)
        if file is None:
            figure = drawing.chart(*drawing.args)
            file = svg.render_svg(figure, stem) + made_of
            # The PNG first: only a plot that is whole is taken another
            # time.
            if self.png:
                self.files[names[1]] = charts.render_png(figure)
            self.files[names[0]] = file
        self.plots += names
        return {'svg': svg.inline_svg(file.removesuffix(made_of), drawing.about,
                                      self.svg_names),
                'stem': stem, 'note': drawing.note, 'png': self.png}


@functools.cache
def _template_environment() -> Any:
    """The page's templates, each compiled once."""
    import jinja2
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters['commands'] = mark_commands
    return environment


def mark_commands(text: str) -> Any:
    """A text as HTML whose commands are code, which the page's script lets people
    copy.

    >>> str(mark_commands('do: ./plumb run -n /a; if <not>: ./plumb verdict'))[:44]
    'do: <code class="command">./plumb run -n /a<'
    """
    import markupsafe
    return markupsafe.Markup(re.sub(
        r'\./plumb [^;]*', lambda match: f'<code class="command">{match[0]}</code>',
        str(markupsafe.escape(text))))


def build_page(frame: pd.DataFrame, faults: list | None = None,
               title: str | None = None, runs: series.Newest | None = None,
               partial: Partial = {},
               ahead: list[Progress] | None = None,
               before: Path | None = None, png: bool = False,
               verdict: Verdict | None = None,
               left: Sequence[Left] = ()) -> Made:
    """The page and its plots; the parameters are those of `Page`, and

    :param faults: what was damaged, shown on the page; what is found to be
        is added
    :param runs: what is drawn over time
    :param ahead: `progress` of these records; None: it is asked
    :param left: test cases that budgets left to other sessions
        (`outcomes.postponed_test_cases`)
    """
    page = Page(frame, partial, before, png, verdict)
    faults = [] if faults is None else faults
    rows = page.value_table_rows()
    frame = page.data.frame
    stale = [
        f'{page.test_case_name_and_place(row)} · last ran {row.time:%Y-%m-%d %H:%M}'
             for row in outcomes.stale_test_cases(frame, partial).itertuples()]
    standing = outcomes.summarize_reference_status(frame, ahead)
    postponed = [str(case) for case in left if case.nightly_sessions]
    never = [f'{case}; the budget is {case.budget:g} per nightly session'
             for case in left if not case.nightly_sessions]
    counts = page.result_counts | {
        'stale': len(stale), 'rotated': len(postponed),
        'never': len(never), 'judged': standing.judged,
        'waiting': len(standing.waiting),
        'no_tolerance': len({row.Index for row, *_ in standing.no_tolerance}),
        'improved': len({row['number'] for row in rows if row['note']})}
    series_of = time_series_by_family(page, runs.series if runs else [])
    sections = [page.family_section(name, series_of.get(name, []), rows)
                for name in sorted(page.data.table['family'].unique())]
    sites = page.site_comparison()
    faults += page.faults
    sessions = [page.session_name(n) for n in range(len(page.past.sessions))]
    events = page.regression_events(rows)
    levels = [level.lines for level in page.verdict.failed_levels
              if level.system not in page.levels_of_events]
    cells = {case.number: case.cells for case in page.cases}
    text = (
        _template_environment()
        .get_template('report.html')
        .render(
            title=title
            or 'Plumbline · ' + ', '.join(sorted(frame['system'].unique())),
            written=f'{datetime.datetime.now(datetime.timezone.utc):%F %H:%M}',
            health=health_summary(counts | page.last_completed_result_counts | {
                'levels': len(levels)}, page.verdict, len(faults)),
            compared=bool(page.verdict.compared or page.verdict.judged),
            cut_short=telling.cut_short_text(page.verdict.results),
            addresses=[case.address for case in page.cases],
            cut_short_cases=[(case.name, _place_text(case.row), case.number)
                             for case in page.cases if case.is_cut_short],
            counts=counts,
            levels=levels,
            worse=events,
            wrong=page.failure_groups(rows),
            news=page.changes_since_last_session(rows),
            families_of_grid=grid.rows_by_family(page.result_grid_rows(), cells),
            ranges=grid.session_ranges(sessions),
            legend=grid.legend(''.join(cells.values())),
            places=page.places,
            sessions=sessions,
            facts=version_and_session_facts(frame),
            stale=stale,
            postponed=postponed,
            never=never,
            within=max((case.nightly_sessions for case in left), default=0),
            verdicts=rows,
            families=sections,
            sites=sites,
            waiting=[
                f'{page.test_case_name_and_place(row)} · {reason}'
                for row, reason in standing.waiting
            ],
            no_tolerance=[
                f'{page.test_case_name_and_place(row)} · {metric} · {reason}'
                for row, metric, reason in standing.no_tolerance
            ],
            faults=[str(fault) for fault in faults],
            emulated=sorted(frame.loc[frame['emulated'], 'program'].unique()),
            made_up=sorted(frame.loc[frame['source'] == MADE_UP, 'system'].unique()),
            data=_script_safe_json(
                {
                    'cases': page.test_case_details(),
                    'sessions': sessions,
                    'fields': ENVIRONMENT,
                    'words': grid.WORDS | {'.': 'not planned'},
                    'bad': grid.BAD,
                    'numbers': page.numbers_table_data(),
                }
            ),
            not_shown=runs.more if runs else 0,
            plot_styles=[(name, style) for style, name in page.svg_names.items()
                         if ':' in style],
            light=charts.LIGHT,
            dark=charts.DARK,
        )
    )
    page.files['index.html'] = text.encode()
    return Made(page.files, page.plots, counts)


def health_summary(counts: dict[str, int], verdict: Verdict, faults: int
                   ) -> dict[str, str]:
    """The health of the system: {state, word, text, details}; the state is bad if
    something failed or regressed, or the perflogs are damaged. `text` says what is
    bad, and when and how completely it was measured.

    :param counts: test cases per result of the last session that was complete;
        `levels`: levels out of tolerance that are no part of a regression
    """
    cases = counts['cases']
    bad = [text for number, text in (
        (counts['fail'], f"{counts['fail']} of {cases} test cases failed"),
        (counts['not_run'], f"{counts['not_run']} not run"),
        (counts['flaky'], f"{counts['flaky']} flaky"),
        (counts['regressed'], count_with_noun(counts['regressed'], 'regression')),
        (counts['xpass'], count_with_noun(counts['xpass'], 'known fault') + ' fixed'),
        (counts['levels'], count_with_noun(counts['levels'], 'level')
         + ' out of tolerance'),
        (faults, count_with_noun(faults, 'damaged place') + ' in the perflogs'))
        if number]
    also = [f'{number} {what}' for number, what in (
        (counts['inconclusive'], 'inconclusive'),
        (counts['no_record'], 'without a record in the newest session'),
        (counts['waiting'] * any([verdict.compared, verdict.judged]),
         'without a reference'),
        (counts['xfail'], 'with a known fault')) if number]
    if bad:
        state, word = 'bad', 'Not healthy'
    elif not verdict.compared and not verdict.judged:
        state, word = 'open', 'Not compared yet'
    else:
        state = 'warn' if counts['no_record'] or counts['inconclusive'] else 'good'
        word = 'Healthy'
    is_complete = (not counts['no_record']
                   and verdict.session not in _names_of_sessions_cut_short(verdict))
    session = (f'Session of {telling.session_name(verdict.session)}, '
               + 'not ' * (not is_complete) + 'complete')
    return {'state': state, 'word': word,
            'text': '. '.join(filter(None, [', '.join(bad), session])),
            'details': '. '.join(filter(None, [
                '; '.join([telling.comparison_text(verdict), *also]),
                telling.power_sentence(verdict)]))}


def _names_of_sessions_cut_short(verdict: Verdict) -> set[str]:
    """The sessions that ended early, and the dates (UTC) on which they began."""
    first = run_id.first_session_id_by_session(one.run for one in verdict.results)
    runs = {one.run for one in verdict.cut_short}
    return runs | {telling.session_name(first[run])[:10] for run in runs}


def certainty_text(regressions: Sequence[Regression]) -> str:
    """How certain the change of an event is."""
    sessions = max(one.sessions for one in regressions)
    return (f'certainty: worse in {count_with_noun(sessions, "session")}; the '
            f'interval has a confidence of 95 %; about '
            f'{100 * detect.FALSE_SHARE:.0f} % of all reported changes are temporary')


def version_and_session_facts(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Versions, time and number of sessions: (name, text)."""
    def distinct_texts(*columns: str) -> str:
        rows = naming.first_record_per_group(frame, columns)[[*columns]].astype(str)
        return ', '.join(sorted({' '.join(filter(None, r)) for r in
                                 rows.itertuples(index=False)} - {''}))

    first, last = frame['time'].min(), frame['time'].max()
    programs = naming.first_record_per_group(
        frame, ['version', 'source', 'program']).groupby(
            ['version', 'source'], observed=True)['program'].unique()
    cases = naming.first_record_per_group(frame, perflogs.CASE)
    runs = frame['run'].nunique()
    speeds = naming.first_record_per_group(
        frame, ['speed', 'run'])['speed'].value_counts()
    return [(name, text) for name, text in [
        ('System', ', '.join(sorted({
            f'{s}:{p}' for s, p in frame[['system', 'partition']]
            .drop_duplicates().itertuples(index=False)}))),
        ('Environment', distinct_texts('environ')),
        ('Stack', distinct_texts('stack')),
        ('Programs', '; '.join(
            f"{plots.shortened_list(list(names), 6)} {version} ({source})"
            for (version, source), names in programs.items())),
        ('Suite', distinct_texts('suite', 'commit')),
        ('ReFrame', distinct_texts('reframe')),
        ('Time (UTC)', f'{first:%Y-%m-%d %H:%M}' + (
            f' to {last:%Y-%m-%d %H:%M}' if last > first else '')),
        ('Sessions', f"{runs} session{'s' * (runs > 1)} of {len(cases)} "
         f"test case{'s' * (len(cases) > 1)}"
         f', {number_text(len(frame))} records'),
        ('CPU speed class', ', '.join(
            f"{'no speed probe' if s == '-' else s} ({n} "
            f"session{'s' * (n > 1)})" for s, n in speeds.items() if n))]
        if text]


def _script_safe_json(data: Any) -> str:
    """JSON that may stand in a script element.

    :raises ValueError: a value is NaN or infinite, which no browser reads
    """
    return json.dumps(data, separators=(',', ':'), ensure_ascii=False,
                      allow_nan=False, default=int).replace('<', '\\u003c')


def _kind_labels(table: pd.DataFrame) -> pd.Series:
    """What tells each kind apart from others of its program."""
    # One program may serve several checks, and they say what it did.
    names = pd.concat([naming.series_labels_and_panels(
        group, panel=('check',), maximum=len(group))
        for _, group in table.groupby(['family', 'program'], sort=False)])
    return pd.Series([', '.join(filter(None, pair)) for pair in zip(
        names['panel'], names['label'], strict=True)], index=names.index)


def _addresses(rows: Sequence[Any]) -> list[str]:
    """Addresses of test cases in the page, by their newest records; those of two
    sources or programs have the same hash."""
    addresses: list[str] = []
    for row in rows:
        address = f'case={row.case}@{row.system}:{row.partition}+{row.environ}'
        for more in ('', f'+{row.source}', f'+{row.source}+{row.program}',
                     f'+{row.source}+{row.program}+{len(addresses)}'):
            if address + more not in addresses:
                addresses.append(address + more)
                break
    return addresses


def _reframe_name(row: Any) -> str:
    """A test case as ReFrame lists it."""
    return ' '.join([row.check, *(f'%{word}' for word in str(row.params).split()),
                     f'/{row.case} @{row.system}:{row.partition}+{row.environ}'])


def _key_of_record(row: Any) -> Key:
    """The key of a record's metric; the record has the number of its test case."""
    return Key(int(row.number), str(row.speed), str(row.metric),
               -1 if pd.isna(row.point) else int(row.point))


def _point_number(point: str) -> int:
    """A point in bytes, of its text `8 B`; -1: no point."""
    return int(point.split()[0]) if point else -1


def _times_as_bad(ratio: float, better: str) -> float:
    """How many times as bad as its reference a value is; 1: unknown."""
    if not ratio > 0:
        return 1.0
    return 1 / ratio if better == 'higher' else ratio


def _place_text(row: Any) -> str:
    return f'{row.system}:{row.partition} {row.environ}'


def _round_to_five_digits(value: float) -> float | None:
    """Five digits, for the page."""
    return None if value != value else float(f'{value:.5g}')


def _plot_descriptions_of_programs(known: Family | None, programs: Iterable[str]
           ) -> list[tuple[str, str]]:
    """The descriptions of the plots of programs: (programs, text)."""
    texts: dict[str, list[str]] = {}
    for program in programs:
        if known and (text := known.description_of_program(program)):
            texts.setdefault(text, []).append(program)
    return [(', '.join(names), text) for text, names in texts.items()]


def time_series_by_family(page: Page, runs: list[series.Series]
               ) -> dict[str, list[plots.OverTime]]:
    """The series over time to draw, by family."""
    by_family: dict[str, list[plots.OverTime]] = {}
    frame = page.data.frame
    for run in runs:
        row = frame.loc[run.record]
        of_run = (frame[[*perflogs.CASE, 'run']] == row[
            [*perflogs.CASE, 'run']]).all(axis=1)
        guards = sorted(set(frame.loc[of_run, 'guard']) - {''})
        title = ', '.join(filter(None, [
            f'{row.program}: over time', page.labels[row.kind],
            f'{row.time:%d %b %H:%M} UTC', 'NOT VALID' * bool(guards)]))
        note = guards and (
            f"Not valid (guard: {', '.join(guards)}): "
            + ('; '.join(run.reasons) or 'no reason was recorded'))
        by_family.setdefault(row.family, []).append(plots.OverTime(
            run, row.program, f'{row.run} {row.case}', title,
            families()[row.family].valid_value_bands(row.params), note or ''))
    return by_family


def _reusable_svg(folder: Path | None, names: list[str], made_of: bytes
           ) -> bytes | None:
    """The SVG of a plot that is still the same; None: draw it."""
    if not folder or not all((folder / name).exists() for name in names):
        return None
    try:
        old = (folder / names[0]).read_bytes()
    except OSError:
        return None
    return old if old.endswith(made_of) else None
