"""The content of the page, from records; templates/report.html lays it out.

The results of test cases are those of results.py, so that page, table and
exit codes agree. Plots come from plots/ as inline SVG. Data that people sort,
filter or open are JSON in the page.
"""
from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from config.families import Family, families
from config.records.units import change_text, number_text, size_text, unit_text
from config.sessions import run_id
from config.sessions.judged import is_improved, point_in_bytes

from .. import naming, outcomes, perflogs, results
from ..perflogs import attached, reasons, samples, series
from ..perflogs.plans import Left, Partial
from ..references.progress import Progress
from ..regressions import telling
from ..regressions.finding import Member, Regression, Verdict
from ..regressions.judging import judge_session
from . import charts, plots
from .plots import ratio
from .tidy import build_tidy_records

TEMPLATES = Path(__file__).parent / 'templates'
#: Sessions that the grid has, the newest; runs of a sparkline.
SESSIONS, SPARK = 180, 90
#: Letters of the grid's cells: results.ORDER, NO_RECORD, NOT_EXPECTED; and
#: of what did not fail and is worse than it was.
LETTERS, WORSE = 'fnkXxpir-.', 'w'
#: Letters of results.FAILED.
FAILED = LETTERS[:len(results.FAILED)]
#: Letter -> top and bottom of the filled parts of a cell, so that results
#: differ without colours, too.
CELLS = {**dict.fromkeys('fX-', ((0, 1),)), 'n': ((0, .3), (.7, 1)),
         'k': ((0, .45),), 'w': ((.1, 1),), 'x': ((.3, 1),), 'i': ((.3, 1),),
         'p': ((.3, .8),), 'r': ((.45, .65),)}
#: Column that may differ between sessions of a test case -> its title.
ENVIRONMENT = {
    'version': 'version', 'source': 'source', 'stack': 'stack',
    'spec': 'spec hash', 'reframe': 'ReFrame', 'suite': 'suite',
    'commit': 'commit of the suite', 'machine': 'node facts',
    'binding': 'CPU binding', 'num_nodes': 'number of nodes',
    'num_tasks': 'number of ranks', 'nodes': 'nodes',
    'speed': 'speed class'}
#: Columns whose change is listed on the first screen.
NEWS = ('version', 'source', 'stack', 'spec', 'reframe', 'suite', 'machine')
#: Lines of a list before 'and N more'; rows of numbers in the page.
MAX_LINES, MAX_NUMBERS = 6, 20_000
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
    #: Its newest record.
    row: Any
    name: str
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

    @property
    def newest_result_session_count(self) -> int:
        """The number of newest sessions with this result, or no record."""
        tail = self.cells[len(self.cells.rstrip(self.newest_result_letter + '-.')):]
        return tail.count(self.newest_result_letter) + tail.count('-')


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
        self.faults: attached.Faults = []
        self.names = _test_case_names(data.table)
        self.past = results.result_history(frame, data.judged, data.case, partial)
        letters = np.array(list(LETTERS))[self.past.ended]
        last = self.data.frame.loc[self.past.last.index]
        self.cases = [
            _Case(number, row, self.test_case_name(row), ''.join(cells),
                  results.ORDER[LETTERS.index(''.join(cells).rstrip('-.')[-1])], '')
            for number, (row, cells) in enumerate(zip(
                last.itertuples(), letters, strict=True))]
        self.cases = [case._replace(reason=reasons.reason_of_result(case.row))
                      if case.newest_result_letter in FAILED + 'i' else case
                      for case in self.cases]

        self.verdict = verdict or judge_session(frame, partial=partial)
        #: perflogs.CASE of each test case -> its number.
        self.numbers = {tuple(str(getattr(case.row, name)) for name in
                              perflogs.CASE): case.number for case in self.cases}
        self.regressions = self.verdict.regressions
        self.improved = self.verdict.improved
        for one in self.regressions:
            self._mark_test_cases_as_worse(one)
        self.places = len({_place_text(case.row) for case in self.cases})

    def _mark_test_cases_as_worse(self, regression: Regression) -> None:
        """Marks the sessions in which test cases are worse than they were."""
        since = next((n for n, runs in enumerate(self.past.sessions)
                      if regression.since_run in runs), 0)
        for member in regression.members:
            number = self.numbers.get(member.test_case_key)
            if number is not None:
                case = self.cases[number]
                self.cases[number] = case._replace(
                    worse=True, cells=case.cells[:since] + re.sub(
                        '[pr]', WORSE, case.cells[since:]))

    # Names ------------------------------------------------------------

    def test_case_name(self, row: Any) -> str:
        """The name of the test case of a record: program and label."""
        return str(self.names['name'][row.kind])

    def test_case_name_and_place(self, row: Any) -> str:
        """The name of a test case and its place."""
        return ' · '.join(filter(None, [
            self.test_case_name(row), row.speed.strip('-'), _place_text(row)]))

    def session_name(self, session_number: int) -> str:
        """The name of a session: its date and time."""
        run = self.past.sessions[session_number][0]
        return telling.session_name(run).removesuffix(' UTC')

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
        """Failed test cases, grouped by reason: {why, lines, more}.

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
            if case.result not in results.FAILED or case.is_cut_short:
                continue
            row = worst.get(case.number, {})
            guard = str(case.row.guard).partition(':')[0] or row.get(
                'guard', '').partition(':')[0]
            why = ('known fault fixed: remove it from the reference file'
                   if case.result == 'xpass' else
                   'flaky: passed when it was measured again'
                   if case.result == 'flaky' else
                   f'guard {guard}' if guard else
                   f"{row.get('metric', 'a metric')} out of tolerance")
            text = case.reason if guard else ' '.join(filter(None, [
                row.get('metric'), row.get('size') and f"at {row['size']}",
                f"{row.get('value')} {row.get('unit')}, "
                f"{row.get('ratio')} of the reference"]))
            groups.setdefault(why, []).append({
                'name': case.name, 'place': _place_text(case.row), 'text': text
                or (guard and row.get('guard', '')), 'number': case.number,
                'sessions': case.newest_result_session_count,
                'is_new': case.number in new})
        lost = [case for case in self.cases if case.cells[-1:] == '-']
        if lost:
            groups['no record in the newest session'] = [{
                'name': case.name, 'place': _place_text(case.row), 'text':
                f'last ran {case.row.time:%Y-%m-%d %H:%M}',
                'number': case.number, 'sessions': 0} for case in lost]
        return [{'why': why, 'lines': lines[:MAX_LINES],
                 'count': len(lines), 'more': lines[MAX_LINES:]}
                for why, lines in sorted(groups.items(),
                                         key=lambda g: -len(g[1]))]

    def regression_events(self) -> list[dict]:
        """A card per event: the regression of a group, or all regressions of
        single test cases that began on one date. {first, rest, worst, rows, more}"""
        events: dict[str, list[Regression]] = {}
        for one in self.regressions:
            events.setdefault(one.since if one.kind in ('metric', 'case')
                              else one.id, []).append(one)
        cards = []
        for regressions in events.values():
            first, *rest = telling.event_lines(regressions)
            rows = [self._regression_row(one, member) for one in regressions
                    for member in telling.members_by_change([one])]
            rows.sort(key=lambda row: -row['times_as_bad'])
            worst = {row['key']: row for row in reversed(rows)}
            cards.append({
                'first': first, 'rest': rest, 'rows': rows[:MAX_EVENT_ROWS],
                'more': len(rows) - MAX_EVENT_ROWS, 'cases': len(worst),
                'several': len(regressions) > 1,
                'worst': sorted(worst.values(), key=lambda row: -row[
                    'times_as_bad'])[:MAX_WORST] if len(rows) > 1 else []})
        return cards

    def _regression_row(self, regression: Regression, member: Member) -> dict:
        """A metric of a test case that is part of a regression."""
        number = self.numbers.get(member.test_case_key)
        return {
            'id': regression.id, 'key': member.test_case_key, 'number': number,
            'name': member.check if number is None else self.cases[number].name,
            'place': _place_text(member) if self.places > 1 else '',
            'metric': member.metric, 'point': member.point,
            'change': change_text(member.ratio) if member.ratio else '',
            'times_as_bad': telling.times_as_bad(member)}

    def changes_since_last_session(self, rows: list[dict]) -> list[dict]:
        """Changes since the session before: {what, lines, count}."""
        changed: dict[str, list[tuple[str, int]]] = {}
        this_session = len(self.past.sessions) - 1
        changes: Counter[str] = Counter()
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
            for name, past in self.environment_changes_of_test_case(
                    case.number).items():
                # What a test case that never ran had is not known.
                if (
                    name in NEWS
                    and len(past) > 1
                    and past[-1][0] == this_session
                    and past[-2][1]
                    and past[-1][1]
                ):
                    changes[f'{ENVIRONMENT[name]}: {past[-2][1]} → '
                            f'{past[-1][1]}'] += 1
        improved = [(f"{row['program']} {row['label']} {row['metric']} "
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
        if changes:
            news.append({'what': 'changed environment', 'count': len(changes),
                         'lines': [(f'{text} ({n} test case{"s" * (n > 1)})',
                                    None)
                                   for text, n in changes.most_common(
                                       MAX_LINES)],
                         'more': len(changes) - MAX_LINES})
        return news

    def result_grid_rows(self) -> list[dict]:
        """A row of cells for each test case, those that failed first."""
        first = max(len(self.past.sessions) - SESSIONS, 0)
        rows = []
        for case in sorted(self.cases, key=lambda c: (
                c.cells[-1:] != '-' and c.newest_result_letter not in FAILED + WORSE,
                str(c.row.family), plots.natural_sort_key(c.name), _place_text(c.row))):
            cells = case.cells[first:]
            paths: dict[str, list[str]] = {}
            for match in re.finditer(r'(.)\1*', cells):
                letter = match[1]
                wide = match.end() - match.start()
                for top, bottom in CELLS.get(letter, ()):
                    paths.setdefault(letter, []).append(
                        f'M{match.start()} {top}h{wide}v{bottom - top:.2g}'
                        f'h-{wide}z')
            rows.append({
                'number': case.number, 'name': case.name,
                'place': _place_text(case.row) if self.places > 1 else '',
                'ended': '-' if cells.endswith('-') else case.newest_result_letter,
                'paths': [(letter, ''.join(parts))
                          for letter, parts in paths.items()]})
        return rows

    # Test cases ------------------------------------------------------------

    @functools.cached_property
    def _first_record_per_session(self) -> pd.DataFrame:
        """The first record of each test case and session of the grid."""
        data, past = self.data, self.past
        frame = data.frame
        _, column = results.group_into_nightly_sessions(frame)
        first = max(len(past.sessions) - SESSIONS, 0)
        key = data.case * len(past.sessions) + column
        shown = column >= first
        _, at = np.unique(key[shown], return_index=True)
        at = np.flatnonzero(shown)[at]
        return frame.iloc[at].assign(number=data.case[at], session=column[at])

    @functools.cached_property
    def _sessions_by_test_case(self) -> dict[int, pd.DataFrame]:
        runs = self._first_record_per_session[
            ['number', 'session', 'job', 'file', 'line', *ENVIRONMENT]
        ]
        # A test case that was not set up has no number of nodes.
        runs = runs.astype(object).fillna('').astype(
            {name: str for name in ENVIRONMENT} | {'job': str, 'file': str})
        return dict(list(runs.groupby('number', sort=False)))

    @functools.cache                         # noqa: B019  (one page)
    def environment_changes_of_test_case(self, test_case_number: int) -> dict[
            str, list[tuple[int, str]]]:
        """The environment of a test case: field -> [(first session,
        value)]."""
        runs = self._sessions_by_test_case.get(test_case_number)
        changes: dict[str, list[tuple[int, str]]] = {}
        if runs is None:
            return changes
        sessions = runs['session'].tolist()
        for name in ENVIRONMENT:
            before = None
            for session, value in zip(sessions, runs[name].tolist(),
                                      strict=True):
                if value != before:
                    changes.setdefault(name, []).append((session, value))
                    before = value
        return changes

    def test_case_details(self) -> list[dict]:
        """The details of each test case that the page opens, by number."""
        first = max(len(self.past.sessions) - SESSIONS, 0)
        power = {self.numbers.get(one.test_case_key): telling.power_text(one)
                 for one in self.verdict.power}
        entries = []
        for case in self.cases:
            runs = self._sessions_by_test_case.get(case.number)
            files = {} if runs is None else {
                session: f'{file}:{line}' for session, file, line in runs[
                    ['session', 'file', 'line']].itertuples(index=False)}
            newest = max(files, default=None)
            entries.append({
                'n': case.name, 'p': _place_text(case.row),
                'a': str(case.row.params), 'c': case.cells[first:],
                'k': str(case.row.check), 'i': str(case.row.case),
                'r': case.reason, 'g': str(case.row.guard),
                'f': files.get(newest, ''), 'w': power.get(case.number, ''),
                'j': {} if runs is None else {
                    session - first: job for session, job in runs[
                        ['session', 'job']].itertuples(index=False) if job},
                'h': {name: [(max(session - first, 0), value)
                             for session, value in past]
                      for name,
                      past in self.environment_changes_of_test_case(case.number).items()
                      if past != [(past[0][0], '')]}})
        return entries

    def value_table_rows(self) -> list[dict]:
        """Values of the newest session of each test case, failed ones first:
        all judged values, and the main values of other test cases."""
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
        shown = self._main_records_without_reference(frame[~result.isin(order)], judged)
        past = self._values_of_past_sessions(pd.concat([judged, shown]))
        return [self._value_table_row(row, past) for part in (judged, shown)
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

    def _values_of_past_sessions(self, rows: pd.DataFrame) -> dict[tuple, np.ndarray]:
        """Values of all sessions of some metrics, per test case, CPU speed class,
        metric and point."""
        data = self.data
        metric = rows['metric'].cat.codes if len(rows) else []
        keys = set(zip(rows['number'], rows['speed'], metric, rows['point'].fillna(
            -1), strict=True))
        drawn = data.metric_records
        chosen = drawn['judged'] & drawn['metric'].isin(
            list(rows['metric'].unique())) & drawn['point'].isin(
                [*rows['point'].unique(), np.nan])
        records = drawn.loc[chosen]
        number = pd.Series(data.case, data.frame.index)[records.index]
        frame = pd.DataFrame(
            {
                'number': number.to_numpy(),
                'speed': records['speed'].astype(object).to_numpy(),
                'metric': records['metric'].cat.codes.to_numpy(),
                'point': records['point'].fillna(-1).to_numpy(),
                'value': records['value'].to_numpy(),
            }
        )
        return {key: part.to_numpy()[-SPARK:] for key, part in frame.groupby(
            ['number', 'speed', 'metric', 'point'])['value'] if key in keys}

    def _value_table_row(self, row: Any, past: dict[tuple, np.ndarray]) -> dict:
        sign = {'lower': '≤', 'higher': '≥'}
        allowed = [
            f'{sign[side]} {number_text(row.reference * (1 + part))}'
            for side, part in (('higher', row.lower), ('lower', row.upper))
            if pd.notna(part) and pd.notna(row.reference)
        ]
        ratio = row.value / row.reference if row.reference else float('nan')
        better = row.result == 'pass' and is_improved(
            row.better, row.value, row.reference, row.lower, row.upper)
        codes = self.data.frame['metric'].cat.categories
        values = past.get((row.number, row.speed, codes.get_loc(row.metric),
                           -1.0 if pd.isna(row.point) else row.point))
        spark = '' if values is None else sparkline(values, row.reference)
        if row.metric == 'completed':      # the guard is the result
            row = row._replace(
                metric='values kept' if row.kept else 'no values',
                value=float('nan'), unit='', reference=float('nan'))
            ratio, allowed, spark = float('nan'), [], ''
        name = self.names.loc[row.kind]
        return {
            'result': row.result, 'number': row.number,
            'family': str(row.family),
            'anchor': f'{row.family}-{row.program}',
            'program': name['program'],
            'label': name['label'], 'speed': row.speed.strip('-'),
            'place': _place_text(row), 'metric': row.metric,
            'size': '' if pd.isna(row.point) else size_text(row.point),
            'bytes': '' if pd.isna(row.point) else int(row.point),
            'value': '' if pd.isna(row.value)
            else number_text(row.value), 'unit': unit_text(row.unit),
            'raw': '' if pd.isna(row.value) else float(row.value),
            'reference': '' if pd.isna(row.reference)
            else number_text(row.reference),
            'allowed': ', '.join(allowed),
            'guard': '' if row.guard in reasons.CUT_SHORT else row.guard,
            'reason': reasons.reason_of_result(row) if row.guard else '',
            'ratio': '' if pd.isna(ratio) else f'{ratio:.2f}\u2009×',
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
                         and row['result'] in ('pass', 'no_reference',
                                               'inconclusive')]}

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
        metrics = list(dict.fromkeys(points['metric']))
        where = {name: n for n, name in enumerate(metrics)}
        # Records of other formats have metrics that config/ does not name.
        own = self.data.frame.drop_duplicates('metric').set_index('metric')
        known = {name: {'unit': str(own['unit'][name]), 'means': ''}
                 for name in metrics} | perflogs.all_metrics()
        return {
            'left': left,
            'kinds': [[*row] for row in zip(
                table['family'], self.names['name'], places, strict=True)],
            'metrics': [[name, unit_text(known[name]['unit']),
                         known[name]['means']] for name in metrics],
            'rows': [[row.kind, row.speed.strip('-'), where[row.metric],
                      point_in_bytes(row.point),
                      *map(_round_to_five_digits, (row.value, row.median, row.minimum,
                                                   row.maximum)), row.runs,
                      _round_to_five_digits(row.reference)]
                     for row in points.itertuples()]}

    def draw_plot(self, family: str, drawing: plots.Drawing) -> dict:
        """Draws a plot into `files`; returns what the page shows of it."""
        stem = re.sub(r'[^\w.]+', '-', f'{family} {drawing.name}').strip('-')
        while f'plots/{stem}.svg' in self.plots:
            stem += '-'
        names = [f'plots/{stem}.svg'] + [f'plots/{stem}.png'] * self.png
        made_of = b'<!-- %s -->\n' % drawing.content_hash().encode()
        svg = _reusable_svg(self.before, names, made_of)
        if svg is None:
            figure = drawing.chart(*drawing.args)
            svg = charts.render_svg(figure, stem) + made_of
            # The PNG first: only a plot that is whole is taken another
            # time.
            if self.png:
                self.files[names[1]] = charts.render_png(figure)
            self.files[names[0]] = svg
        self.plots += names
        return {'svg': charts.inline_svg(svg.removesuffix(made_of),
                                         drawing.about),
                'stem': stem, 'note': drawing.note, 'png': self.png}


@functools.cache
def _template_environment() -> Any:
    """The page's templates, each compiled once."""
    import jinja2
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True, trim_blocks=True, lstrip_blocks=True)


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
    first = max(len(page.past.sessions) - SESSIONS, 0)
    sessions = [page.session_name(n) for n in range(first, len(page.past.sessions))]
    text = (
        _template_environment()
        .get_template('report.html')
        .render(
            title=title
            or 'Plumbline · ' + ', '.join(sorted(frame['system'].unique())),
            written=f'{datetime.datetime.now(datetime.timezone.utc):%F %H:%M}',
            health=health_summary(counts | page.last_completed_result_counts,
                                  page.verdict, len(faults)),
            compared=bool(page.verdict.compared or page.verdict.judged),
            cut_short=telling.cut_short_text(page.verdict.results),
            cut_short_cases=[(case.name, _place_text(case.row), case.number)
                             for case in page.cases if case.is_cut_short],
            counts=counts,
            levels=[level.lines for level in page.verdict.failed_levels],
            power=telling.power_sentence(page.verdict),
            worse=page.regression_events(),
            wrong=page.failure_groups(rows),
            news=page.changes_since_last_session(rows),
            grid=page.result_grid_rows(),
            failed=FAILED,
            places=page.places,
            sessions=sessions,
            older=first,
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
            data=_script_safe_json(
                {
                    'cases': page.test_case_details(),
                    'sessions': sessions,
                    'fields': ENVIRONMENT,
                    'numbers': page.numbers_table_data(),
                }
            ),
            not_shown=runs.more if runs else 0,
            light=charts.LIGHT,
            dark=charts.DARK,
        )
    )
    page.files['index.html'] = text.encode()
    return Made(page.files, page.plots, counts)


def health_summary(counts: dict[str, int], verdict: Verdict, faults: int
                   ) -> dict[str, str]:
    """The health of the system: {state, word, text}; the state is bad if
    something failed or regressed, or the perflogs are damaged.

    :param counts: test cases per result of the last session that was complete
    """
    cases = counts['cases']
    bad = [count_with_noun(number, what) for number, what in (
        (counts['fail'], f'of {cases} test cases failed'),
        (counts['not_run'], 'not run'),
        (counts['flaky'], 'flaky'),
        (counts['regressed'], 'regression(s)'),
        (counts['xpass'], 'known fault(s) fixed'),
        (len(verdict.failed_levels), 'level(s) out of tolerance'),
        (faults, 'damaged place(s) in the perflogs')) if number]
    also = [count_with_noun(number, what) for number, what in (
        (counts['inconclusive'], 'inconclusive'),
        (counts['no_record'], 'without a record in the newest session'),
        (counts['waiting'] * any([verdict.compared, verdict.judged]),
         'without a reference'),
        (counts['xfail'], 'with a known fault')) if number]
    compared = telling.comparison_text(verdict)
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
               + 'not ' * (not is_complete) + 'complete: ')
    return {'state': state, 'word': word,
            'text': '. '.join(filter(None, [
                ', '.join(bad), session + '; '.join([compared, *also])]))}


def _names_of_sessions_cut_short(verdict: Verdict) -> set[str]:
    """The sessions that ended early, and the dates (UTC) on which they began."""
    first = run_id.first_session_id_by_session(one.run for one in verdict.results)
    runs = {one.run for one in verdict.cut_short}
    return runs | {telling.session_name(first[run])[:10] for run in runs}


def count_with_noun(number: int, what: str) -> str:
    """A number and its noun.

    >>> count_with_noun(1, 'test case(s)'), count_with_noun(2, 'test case(s)')
    ('1 test case', '2 test cases')
    """
    return f"{number} {what.replace('(s)', 's' * (number != 1))}"


def version_and_session_facts(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Versions, time and number of sessions: (name, text)."""
    def distinct_texts(*columns: str) -> str:
        rows = frame[list(columns)].drop_duplicates().astype(str)
        return ', '.join(sorted({' '.join(filter(None, r)) for r in
                                 rows.itertuples(index=False)} - {''}))

    first, last = frame['time'].min(), frame['time'].max()
    programs = frame[['version', 'source', 'program']].drop_duplicates(
        ).groupby(['version', 'source'], observed=True)['program'].unique()
    cases = frame[perflogs.CASE].drop_duplicates()
    runs = frame['run'].nunique()
    speeds = frame[['speed', 'run']].drop_duplicates()['speed'].value_counts()
    return [(name, text) for name, text in [
        ('System', ', '.join(sorted({
            f'{s}:{p}' for s, p in frame[['system', 'partition']]
            .drop_duplicates().itertuples(index=False)}))),
        ('Environment', distinct_texts('environ')),
        ('Stack', distinct_texts('stack')),
        ('Programs', '; '.join(
            f"{_shortened_list(list(names))} {version} ({source})"
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


def sparkline(values: np.ndarray, reference: float) -> str:
    """A small line plot of the values of a metric over sessions, as SVG; '' if
    there are fewer than two."""
    if len(values) < 2:
        return ''
    low, high = float(values.min()), float(values.max())
    if reference == reference:
        low, high = min(low, reference), max(high, reference)
    scale = 16 / (high - low) if high > low else 0.0
    step = 96 / (len(values) - 1)

    def y_coordinate(value: float) -> str:
        return f'{18 - (value - low) * scale:.0f}' if scale else '10'

    line = ' '.join(f'{2 + n * step:.0f},{y_coordinate(v)}'
                    for n, v in enumerate(values))
    level = (f'<path d="M0 {y_coordinate(reference)}H100" class="level"/>'
             if reference == reference else '')
    return (
        f'<svg class="spark" viewBox="0 0 100 20" role="img" '
        f'aria-label="{len(values)} sessions, {number_text(low)} to '
        f'{number_text(high)}">{level}<polyline points="{line}"/>'
        f'<circle cx="98" cy="{y_coordinate(values[-1])}" r="2"/></svg>'
    )


def _script_safe_json(data: Any) -> str:
    """JSON that may stand in a script element.

    :raises ValueError: a value is NaN or infinite, which no browser reads
    """
    return json.dumps(data, separators=(',', ':'), ensure_ascii=False,
                      allow_nan=False, default=int).replace('<', '\\u003c')


def _test_case_names(table: pd.DataFrame) -> pd.DataFrame:
    """`program`, `label` and `name` of each kind."""
    # One program may serve several checks, and they say what it did.
    parts = [naming.series_labels_and_panels(group, panel=('check',),
                                             maximum=len(group))
             for _, group in table.groupby(['family', 'program'], sort=False)]
    names = pd.concat(parts).reindex(table.index)
    program = table['program'].where(table['program'] != '', table['check'])
    label = [', '.join(filter(None, pair)) for pair in zip(
        names['panel'], names['label'], strict=True)]
    return pd.DataFrame({'program': program, 'label': label, 'name': [
        f'{one} {two}'.strip() for one, two in zip(program, label,
                                                   strict=True)]},
                        index=table.index)


def _place_text(row: Any) -> str:
    return f'{row.system}:{row.partition} {row.environ}'


def _round_to_five_digits(value: float) -> float | None:
    """Five digits, for the page."""
    return None if value != value else float(f'{value:.5g}')


def _shortened_list(names: list[str], maximum: int = 6) -> str:
    """'a, b, c' or 'a, b and 20 more'."""
    if len(names) <= maximum:
        return ', '.join(names)
    rest = len(names) - maximum + 1
    return f"{', '.join(names[:maximum - 1])} and {rest} more"


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
            f'{row.program}: over time', page.names['label'][row.kind],
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
