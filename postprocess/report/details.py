"""The data of the page that its script shows: test cases, and all values."""
from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from config.families import all_metrics
from config.records.units import size_text, unit_text
from config.sessions.judged import point_in_bytes

from ..regressions.events import power_text
from ..regressions.sessions import ENVIRONMENT_NAMES
from .curves import MAX_SESSIONS, NO_LINES, Key
from .grid import place_text

if TYPE_CHECKING:
    from .page import Page

#: Newest sessions whose jobs the page has, and most changes of one field of the
#: environment of a test case.
SESSIONS = 180
#: Column that may differ between sessions of a test case -> its title.
ENVIRONMENT = ENVIRONMENT_NAMES | {
    'binding': 'CPU binding', 'source': 'source'}
#: Rows of numbers in the page.
MAX_NUMBERS = 20_000


def test_case_details(page: Page) -> list[dict]:
    """The details of each test case that the page opens, by number."""
    power = {page.numbers.get(one.test_case): power_text(one)
             for one in page.verdict.power}
    sessions = range(len(page.past.sessions))[-SESSIONS:]
    records = _first_record_per_session(page)
    jobs = records.astype({'job': str}).pivot(
        index='number', columns='column', values='job').reindex(
            columns=sessions).fillna('')
    curves: dict[int, list[dict]] = {}
    session_by_date = {page.session_name(number)[:10]: number
                       for number in reversed(range(len(page.past.sessions)))}
    for key in page.curves:
        curves.setdefault(key.test_case, []).append(
            _curve_details(page, key, session_by_date))
    changes = _environment_changes(records)
    nodes: dict[int, list[dict]] = {}
    for event in page.regressions:
        there = sorted(page.sessions_on_nodes[event.id] or ())
        for number in {page.numbers[one.test_case] for one in event.members
                       if one.test_case in page.numbers} & {case for case, _ in there}:
            nodes.setdefault(number, []).append({
                'node': event.node,
                'since': page.session_number(event.since_session),
                'sessions': [session for case, session in there if case == number]})
    return [{
        'n': case.name, 'p': place_text(case.row), 'u': case.address,
        'm': f'{case.row.name} @{case.row.system}:{case.row.partition}+'
             f'{case.row.environ}',
        'a': page.verdict.commands.measure(
            'run', str(case.row.system), str(case.row.test_case)),
        'c': case.cells, 'r': case.reason, 'g': str(case.row.guard),
        'k': str(case.row.not_checked), 'f': str(case.row.file),
        'd': page.folders_of_test_case(case),
        'w': power.get(case.number, ''), 'v': curves.get(case.number, []),
        'j': jobs.loc[case.number].tolist(), 'e': nodes.get(case.number, []),
        'h': {name: past[-SESSIONS:] for name, past in
              changes[case.number].items()
              if past != [(past[0][0], '')]}} for case in page.cases]


def _environment_changes(rows: pd.DataFrame
                         ) -> dict[int, dict[str, list[tuple[int, str]]]]:
    """Test case -> field of the environment -> [(first session, value)].

    :param rows: of `_first_record_per_session`
    """
    number, session = rows['number'].to_numpy(), rows['column'].to_numpy()
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


def _first_record_per_session(page: Page) -> pd.DataFrame:
    """The first record of each test case and session, by test case and time."""
    return page.data.frame.assign(
        number=page.past.case, column=page.past.session).drop_duplicates(
            ['number', 'column']).sort_values(['number', 'column'])


def _curve_details(page: Page, key: Key, session_by_date: dict[str, int]) -> dict:
    """A curve of the view of a test case: values, lines, change points."""
    lines = page.lines.get(key, NO_LINES)
    sessions, values, inconclusive = (
        part[-MAX_SESSIONS:] for part in page.curves[key])
    metric = all_metrics().get(key.metric, {})
    return {
        'm': key.metric, 'p': size_text(key.point) if key.point >= 0 else '',
        'u': unit_text(str(metric.get('unit', ''))), 'x': sessions.tolist(),
        'o': len(page.curves[key].values),
        'y': [*map(_round_to_five_digits, values)],
        # Places of inconclusive values among them.
        'i': np.flatnonzero(inconclusive).tolist(),
        'l': [_round_to_five_digits(value) if value is not None else None
              for value in lines],
        'k': sorted({session_by_date[date]
                     for date in page.baselines[key].changes
                     if date in session_by_date}) if key in page.baselines else []}


def numbers_table_data(page: Page) -> dict:
    """All points, for the page's table of numbers."""
    points = page.data.point_statistics_without_repetitions
    left = 0
    if len(points) > MAX_NUMBERS:
        keep = points['reference'].notna() | points['point'].isna()
        left = len(points) - int(keep.sum())
        points = points[keep][:MAX_NUMBERS]
    table = page.data.table
    places = (table['system'] + ':' + table['partition'] + ' '
              + table['environ'])
    # The test case of each kind.
    first_record_numbers = page.data.case[
        np.unique(page.data.kind, return_index=True)[1]].tolist()
    metrics = list(dict.fromkeys(points['metric']))
    where = {name: n for n, name in enumerate(metrics)}
    # Records of other formats have metrics that config/ does not name.
    own = page.data.frame.drop_duplicates('metric').set_index('metric')
    known = {name: {'unit': str(own['unit'][name]), 'means': ''}
             for name in metrics} | all_metrics()
    return {
        'left': left,
        'kinds': [[family, page.cases[number].name, place, number]
                  for family, place, number in zip(
                      table['family'], places, first_record_numbers, strict=True)],
        'metrics': [[name, unit_text(known[name]['unit']),
                     known[name]['means']] for name in metrics],
        'rows': [[kind, where[metric], [
            [point_in_bytes(row.point),
             *map(_round_to_five_digits, (row.value, row.median, row.minimum,
                                          row.maximum)), row.runs,
             _round_to_five_digits(row.reference)] for row in of_metric]]
            for (kind, metric), of_metric in itertools.groupby(
                points.itertuples(), lambda row: (row.kind, row.metric))]}


def _round_to_five_digits(value: float) -> float | None:
    """Five digits, for the page."""
    return None if value != value else float(f'{value:.5g}')
