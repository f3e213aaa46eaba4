"""The content of the page, from records; templates/report.html lays it out.

The results of test cases are those of results.py, so that page, table and
exit codes agree. Plots come from plots/ as inline SVG. Data that people sort,
filter or open are JSON in the page.
"""
from __future__ import annotations

import dataclasses
import datetime
import functools
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from config.console import count_with_noun, shortened_list_text
from config.families import printed_name
from config.records.columns import MADE_UP
from config.records.units import number_text, size_text, unit_text
from config.references import has_tolerance, metrics_without_tolerance
from config.sessions.judged import (
    change_in_percent,
    judged_rules_by_family,
    metric_key,
    point_in_bytes,
    worsening_ratio,
)
from config.sites.topology import nodes_of_record

from .. import results
from ..names import short_name
from ..records import attached, folders, series
from ..regressions.events import Baseline, Event, Verdict, session_name
from ..regressions.judging import judge_session
from . import cards, charts, details, grid, plots, sections
from .curves import (
    Curve,
    Key,
    Lines,
    curves_of_metrics,
    key_of_record,
    point_number,
)
from .grid import LETTERS, WORSE, Case, place_text
from .tidy import build_tidy_records

TEMPLATES = Path(__file__).parent / 'templates'


class Made(NamedTuple):
    """A page, not written yet."""
    text: str
    #: Judged records of the newest run of each test case by result; and test
    #: cases that are missing, judged, waiting for a reference, ...
    counts: dict[str, int]
    #: With the number of damaged places, those of the plots' files included.
    verdict: Verdict


class Page:
    """The page of some records."""

    def __init__(self, frame: pd.DataFrame, verdict: Verdict | None = None) -> None:
        """
        :param frame: as records.read and debts.add_debts give it, at
            least one record
        :param verdict: what is worse than it was; None: judged by these records
        """
        data = self.data = build_tidy_records(frame)
        #: Of the plots in the page: style or id -> its short name.
        self.svg_names: dict[str, str] = {}
        self.faults: attached.Faults = []
        self.past = results.result_history(frame, data.judged, data.case)
        letters = np.array(list(LETTERS))[self.past.ended]
        last = list(self.data.frame.loc[self.past.last.index].itertuples())
        judged, _ = self.table_records
        flaky = {row.number: row for row in judged[judged['result'] == 'flaky']
                 .drop_duplicates('number').itertuples()}
        self.cases: list[Case] = []
        for number, (newest, of_case) in enumerate(zip(last, letters, strict=True)):
            cells, row = ''.join(of_case), flaky.get(number, newest)
            self.cases.append(Case(
                number, row, self.test_case_name(row), cells,
                results.ORDER[LETTERS.index(cells.rstrip('.')[-1])], str(row.reason)))

        self.verdict = verdict or judge_session(frame)
        #: Short id of each test case -> its number.
        self.numbers = {str(case.row.test_case): case.number for case in self.cases}
        self.regressions = self.verdict.regressions
        #: Of each regression, by its ID.
        self.sessions_on_nodes = {one.id: self.sessions_on_node(one)
                                  for one in self.regressions}
        #: Test case -> its metrics that are part of a regression.
        self.worse_metrics: dict[int, set[str]] = {}
        for one in self.regressions:
            self._mark_test_cases_as_worse(one)
        self.places = len({place_text(case.row) for case in self.cases})

    def _mark_test_cases_as_worse(self, regression: Event) -> None:
        """Marks the sessions in which test cases are worse than they were; of a node
        those that ran on it."""
        since = self.session_number(regression.since_session)
        there = self.sessions_on_nodes[regression.id]
        for member in regression.members:
            number = self.numbers.get(member.test_case)
            if number is not None:
                self.worse_metrics.setdefault(number, set()).add(member.metric)
                case = self.cases[number]
                self.cases[number] = case._replace(worse=True, cells=''.join(
                    WORSE if session >= since and cell in 'pr' and (
                        there is None or (number, session) in there) else cell
                    for session, cell in enumerate(case.cells)))

    def sessions_on_node(self, regression: Event) -> set[tuple[int, int]] | None:
        """Numbers of test cases, and of sessions in which they ran on the node of a
        regression; None: it is not the regression of a node."""
        if not regression.node:
            return None
        frame, node = self.data.frame, regression.node
        texts = [text for text in frame['nodes'].unique()
                 if node in nodes_of_record(str(text))]
        # An open failure has the nodes of the session in which it failed.
        there = (frame['nodes'].isin(texts) & (frame['guard'] != results.OPEN)
                 & (frame['system'] == regression.system)).to_numpy()
        return set(zip(self.data.case[there].tolist(),
                       self.past.session[there].tolist(), strict=True))

    # Names ------------------------------------------------------------

    def test_case_name(self, row: Any) -> str:
        """The name of the test case of a record."""
        return short_name(*(str(getattr(row, name)) for name in (
            'check', 'params', 'settings', 'test_case', 'source')))

    def session_name(self, session_number: int) -> str:
        """The name of a session: its date and time."""
        run = self.past.sessions[session_number][0]
        return session_name(run).removesuffix(' UTC')

    def session_number(self, run: str) -> int:
        """The number of the nightly session of a session; 0: unknown."""
        return next((n for n, runs in enumerate(self.past.sessions) if run in runs), 0)

    # Curves -----------------------------------------------------------

    @functools.cached_property
    def newest_records(self) -> pd.DataFrame:
        """The records of the newest session of each test case, with its `number`."""
        return results.newest_records(self.data.frame.assign(number=self.data.case))

    @functools.cached_property
    def table_records(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Records of the newest session of each test case: all judged ones, the
        worst first; and the main ones of metrics without a reference."""
        frame = self.newest_records
        result = frame['result']
        kept = (frame['metric'] != 'completed').groupby(
            frame['number']).transform('any')
        order = [*results.FAILED, 'xfail', 'pass']
        judged = frame.assign(kept=kept)[result.isin(order)]
        judged = judged.assign(rank=judged['result'].map(order.index)
                               ).sort_values(['rank', 'family', 'program',
                                              'params', 'settings', 'metric', 'point'])
        return judged, self._main_records_without_reference(
            frame[~result.isin(order)], judged)

    @functools.cached_property
    def lines(self) -> dict[Key, Lines]:
        """What metrics are compared with: those of the page's tables, those that have a
        baseline, and the main ones of test cases without a newest value."""
        frame = self.data.frame.assign(number=self.data.case)
        frame = frame[self.data.judged & frame['value'].notna()
                      & (frame['metric'] != 'completed')]
        shown = pd.concat(self.table_records)
        older = frame[~frame['number'].isin(
            shown.loc[shown['metric'] != 'completed', 'number'])].drop_duplicates(
                ['number', 'metric', 'point'], keep='last')
        lines = {}
        for row in pd.concat([shown, self._main_records_without_reference(
                older, older[:0])]).itertuples():
            sides = [None if pd.isna(part) or pd.isna(row.reference)
                     else float(row.reference * (1 + part))
                     for part in (row.lower, row.upper)]
            lines[key_of_record(row)] = Lines(
                None, None if pd.isna(row.reference) else float(row.reference),
                *sides)
        for key, one in self.baselines.items():
            lines[key] = lines.get(key, Lines())._replace(baseline=one.value)
        return lines

    @functools.cached_property
    def baselines(self) -> dict[Key, Baseline]:
        """Baselines of the verdict for the test cases that the page shows."""
        return {Key(self.numbers[one.test_case], one.metric,
                    point_number(one.point)): one
                for one in self.verdict.baselines
                if one.test_case in self.numbers}

    @functools.cached_property
    def curves(self) -> dict[Key, Curve]:
        """The curves of the metrics of `lines`."""
        return curves_of_metrics(self.data, self.past.session, self.lines.keys())

    @functools.cached_property
    def small_plots(self) -> dict[Key, str]:
        """The curves with several values -> where the data of the page have them: the
        number of the test case, and of the curve among those of the test case."""
        before: Counter[int] = Counter()
        places = {}
        for key, curve in self.curves.items():
            if len(curve.values) > 1:
                places[key] = f'{key.test_case} {before[key.test_case]}'
            before[key.test_case] += 1
        return places

    @functools.cached_property
    def result_counts(self) -> dict[str, int]:
        """The number of test cases per result (results.ORDER) of their newest
        session, and of some other kinds."""
        ends = Counter(case.result for case in self.cases)
        return {result: ends[result] for result in results.ORDER} | {
            'cases': len(self.cases),
            'regressed': len(self.regressions),
            'regressed_cases': sum(case.newest_result_letter in WORSE
                                   for case in self.cases)}

    @property
    def results_not_regressed(self) -> Counter[str]:
        """The number of test cases per result, without those that regressed."""
        return Counter(case.result for case in self.cases
                       if case.newest_result_letter not in WORSE)

    # Test cases ------------------------------------------------------------

    @functools.cached_property
    def folders_by_measurement(self) -> folders.Folders:
        """The folders of the measurements of all test cases."""
        return folders.folders_of_measurements(str(case.row.file)
                                               for case in self.cases)

    def folders_of_test_case(self, case: Case) -> dict[str, str]:
        """Stage folder, output folder and log of the newest session of a test
        case, as far as they exist on this machine."""
        return self.folders_by_measurement.get(str(case.row.measurement), {})

    def value_table_rows(self) -> list[dict]:
        """Values of the newest session of each test case, failed ones first:
        all judged values, and the main values of other test cases."""
        return [self._value_table_row(row) for part in self.table_records
                for row in part.itertuples()]

    def _main_records_without_reference(self, frame: pd.DataFrame, judged: pd.DataFrame
               ) -> pd.DataFrame:
        """The main records of metrics without a reference."""
        there = {*zip(judged['number'], judged['metric'], strict=True)}
        shown: list[Any] = []
        for (family, number), records in frame.groupby(
                ['family', 'number'], observed=True):
            for metric in plots.main_metrics(str(family), {*records['metric']}):
                if (number, metric) not in there:
                    of_metric = records[records['metric'] == metric]
                    shown += [*plots.points_at_size(
                        of_metric, str(family), metric, ()).index[-1:]]
        return frame.loc[shown].assign(kept=True, rank=9).sort_values(
            ['family', 'program', 'params', 'settings', 'metric'])

    def _value_table_row(self, row: Any) -> dict:
        allowed = [f'{sign} {number_text(row.reference * (1 + part))}'
                   for sign, part in (('≥', row.lower), ('≤', row.upper))
                   if pd.notna(part) and pd.notna(row.reference)]
        ratio = worsening_ratio(
            'lower', row.value, row.reference) if row.reference else float('nan')
        spark = self.small_plots.get(key_of_record(row), '')
        if row.metric == 'completed':      # the guard is the result
            row = row._replace(
                metric='values kept' if row.kept else 'no values',
                value=float('nan'), unit='', reference=float('nan'))
            ratio, allowed, spark = float('nan'), [], ''
        return {
            'result': row.result, 'number': row.number, 'family': str(row.family),
            'name': self.test_case_name(row), 'place': place_text(row),
            'metric': row.metric,
            'size': '' if pd.isna(row.point) else size_text(row.point),
            'value': '' if pd.isna(row.value) else number_text(row.value),
            'raw': '' if pd.isna(row.value) else float(row.value),
            'unit': unit_text(row.unit),
            'reference': '' if pd.isna(row.reference) else number_text(row.reference),
            'allowed': ', '.join(allowed),
            'guard': '' if row.guard in results.CUT_SHORT else row.guard,
            'reason': str(row.reason) if row.guard else '',
            'ratio': '' if pd.isna(ratio) else f'{ratio:.2f}\u2009×',
            'change': '' if pd.isna(ratio) else change_in_percent(
                row.value, row.reference),
            'times_as_bad': 1.0 if not ratio > 0 else worsening_ratio(
                row.better, row.value, row.reference),
            'note': str(row.note),
            'spark': spark, 'session': row.session, 'where': row.file,
            'emulated': row.emulated}


@functools.cache
def _template_environment() -> Any:
    """The page's templates, each compiled once."""
    import jinja2
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters['commands'] = mark_commands
    # No browser reads NaN: it is refused.
    environment.policies['json.dumps_kwargs'] = {
        'separators': (',', ':'), 'ensure_ascii': False, 'allow_nan': False,
        'default': int}
    return environment


def mark_commands(text: str) -> Any:
    """A text as HTML whose commands are code, which the page's script lets people
    copy.

    >>> str(mark_commands('do: ./plumb run a; if <not>: ./plumb verdict'))[:44]
    'do: <code class="command">./plumb run a</co'
    """
    import markupsafe
    words = re.split(r'((?:PLUMBLINE_PERFLOGS=\S+ )?\./plumb [^;]*)', text)
    return markupsafe.Markup(''.join(
        str(markupsafe.escape(part) if number % 2 == 0 else markupsafe.Markup(
            '<code class="command">{}</code>').format(part))
        for number, part in enumerate(words)))


def build_page(frame: pd.DataFrame, faults: list | None = None,
               title: str | None = None, runs: series.Newest | None = None,
               verdict: Verdict | None = None) -> Made:
    """The page and its plots; the parameters are those of `Page`, and

    :param faults: what was damaged, shown on the page; what is found to be
        is added
    :param runs: what is drawn over time
    """
    page = Page(frame, verdict)
    faults = [] if faults is None else faults
    rows = page.value_table_rows()
    frame = page.data.frame
    counts = page.result_counts | count_tolerances(page.newest_records) | {
        'improved': sum(case.is_improved for case in page.cases)}
    series_of = sections.time_series_by_family(page.data, runs.series if runs else [])
    families_ = [sections.family_section(page, name, series_of.get(name, []), rows)
                for name in sorted(page.data.table['family'].unique())]
    faults += page.faults
    # Only now all files were read.
    verdict = dataclasses.replace(page.verdict, damaged=len(faults))
    sessions = [page.session_name(n) for n in range(len(page.past.sessions))]
    events = cards.event_cards(page, rows)
    text = _template_environment().get_template('report.html').render(
        title=title or 'Plumbline · ' + ', '.join(sorted(frame['system'].unique())),
        written=f'{datetime.datetime.now(datetime.timezone.utc):%F %H:%M}',
        page=page, counts=counts, compared=page.verdict.is_compared,
        health=cards.health_summary(counts, verdict),
        inconclusive=page.verdict.events_of('inconclusive'),
        mostly_inconclusive=cards.is_mostly_inconclusive(page.verdict),
        cut_short=''.join(one.title for one in page.verdict.events_of('cut short')),
        cut_short_cases=[(case.name, place_text(case.row), case.number)
                         for case in page.cases if case.is_cut_short],
        events=events,
        all_events=page.verdict.commands.read('verdict', '', '--json -'),
        news=cards.changes_since_last_session(page),
        families_of_grid=grid.rows_by_family(page.cases),
        ranges=grid.session_ranges(sessions),
        legend=grid.legend(''.join(case.cells for case in page.cases)),
        sessions=sessions, facts=version_and_session_facts(frame), families=families_,
        faults=[str(fault) for fault in faults],
        emulated=sorted({printed_name(*names) for names in frame.loc[
            frame['emulated'], ['program', 'source']].drop_duplicates().astype(
                str).itertuples(index=False)}),
        made_up=sorted(frame.loc[frame['source'] == MADE_UP, 'system'].unique()),
        data={
            'cases': details.test_case_details(page), 'sessions': sessions,
            'events': [event.get('curve') for event in events],
            'fields': details.ENVIRONMENT, 'bad': grid.BAD,
            'words': grid.WORDS | {'.': 'not planned'},
            'numbers': details.numbers_table_data(page)},
        not_shown=runs.more if runs else 0,
        # Last: all plots were drawn.
        plot_styles=[(name, style) for style, name in page.svg_names.items()
                     if ':' in style],
        light=charts.LIGHT, dark=charts.DARK)
    return Made(text, counts, verdict)


def count_tolerances(records: pd.DataFrame) -> dict[str, int]:
    """The number of test cases that a tolerance judges, and of those with a reference
    in which a metric lacks a tolerance.

    :param records: of the newest session of each
    """
    records = records[records['metric'] != 'completed']
    counts = {'judged': 0, 'no_tolerance': 0}
    for _, rows in records.groupby('test_case', observed=True):
        if rows['result'].eq('inconclusive').any():
            continue
        tolerances = {
            metric_key(str(row.metric), point_in_bytes(row.point)):
            [row.reference, *(None if pd.isna(part) else part
                              for part in (row.lower, row.upper))]
            for row in rows.itertuples()}
        counts['judged'] += any(map(has_tolerance, tolerances.values()))
        family = str(rows['family'].iloc[0])
        counts['no_tolerance'] += bool(
            rows['reference'].notna().any() and family in judged_rules_by_family()
            and metrics_without_tolerance(family, tolerances, ()))
    return counts


def version_and_session_facts(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Versions, time and number of sessions: (name, text)."""
    def distinct_texts(*columns: str) -> str:
        rows = frame[[*columns]].drop_duplicates().astype(str)
        return shortened_list_text(sorted({' '.join(filter(None, row)) for row in
                                           rows.itertuples(index=False)} - {''}))

    first, last = (f'{when:%Y-%m-%d %H:%M}'
                   for when in (frame['time'].min(), frame['time'].max()))
    facts = {
        name: distinct_texts(*columns) for name, columns in {
            'System': ('system', 'partition'), 'Environment': ('environ',),
            'Stack': ('stack',), 'Programs': ('program', 'version', 'source'),
            'Suite': ('suite', 'commit'), 'ReFrame': ('reframe',)}.items()} | {
        'Time (UTC)': first + f' to {last}' * (last > first),
        'Sessions': f'{results.sessions_text(frame)} of '
                    f"{count_with_noun(frame['test_case'].nunique(), 'test case')}, "
                    f'{number_text(len(frame))} records'}
    return [(name, text) for name, text in facts.items() if text]
