"""The page's first screen: the grid, what is wrong, what is new."""
from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip('pandas')
pytest.importorskip('jinja2')
import numpy as np
import perflogs_factory as make

from postprocess import perflogs, results
from postprocess.regressions import telling
from postprocess.regressions import verdict as verdict_command
from postprocess.regressions.finding import Verdict
from postprocess.regressions.verdict import verdict_of_records
from postprocess.report import cards, curves, details, grid, page, tidy
from tests.conftest import printed_verdict_lines

JUDGED = {'reference': '1.0', 'upper': '0.2'}


def case(name: str, day: int, result: str = 'pass', **more) -> dict:
    return make.record('latency', 1.0, 8, day=day, program=name,
                       params=f'program={name}', case=f'c{name}', **{
                           **JUDGED, 'result': result, **more})


def cancelled(name: str, day: int) -> dict:
    """The record of a test case whose session ended before it ran."""
    return make.record('completed', 0.0, day=day, repetition=0, program=name,
                       params=f'program={name}', case=f'c{name}', result='fail',
                       guard='cancelled')


def made(tmp_path: Path, records: list[dict], partial: Any = {}
         ) -> page.Page:
    make.write(tmp_path, records)
    return page.Page(perflogs.read(tmp_path), partial)


def cells(built: page.Page) -> dict[str, str]:
    return {str(one.row.program): one.cells for one in built.cases}


def test_a_session_that_lacks_a_case_stands_out(tmp_path):
    records = [case(name, day) for name in 'abc' for day in range(5)
               if (name, day) not in (('a', 2), ('a', 4))]
    # Others ran beside it, half of them at least; a new test case owes
    # nothing.
    built = made(tmp_path, [*records, case('d', 4)])
    assert cells(built) == {'a': 'pp-p-', 'b': 'ppppp', 'c': 'ppppp',
                            'd': '....p'}
    assert built.result_counts['no_record'] == 1
    [group] = cards.failure_groups(built, [])
    assert group['why'] == 'no record in the newest session'
    assert [line['name'] for line in group['lines']] == ['a /ca']
    # A session that left test cases out on purpose owes nothing.
    run = make.record(day=4)['run']
    assert cells(made(tmp_path / 'x', records, {run: None}))['a'] == 'pp-p.'
    # Nor does one of a few test cases.
    few = [case(name, day) for name in 'abcd' for day in range(3)
           if day < 2 or name == 'a']
    assert cells(made(tmp_path / 'y', few))['b'] == 'pp.'


def test_systems_of_one_date_stand_in_one_session(tmp_path):
    records = [case('a', 0), case('a', 1), case('a', 0, system='beta',
               run='20261101T040000Z-bbbbbb', time='2026-11-01T04:00:00Z')]
    # A second session of a date has a column of its own.
    records.append(case('a', 0, run='20261101T090000Z-cccccc',
                        time='2026-11-01T09:00:00Z'))
    built = made(tmp_path, records)
    assert [len(runs) for runs in built.past.sessions] == [2, 1, 1]


@pytest.mark.parametrize('seed', range(5))
def test_grid_and_outcomes_agree_on_every_case(tmp_path, seed):
    rng = random.Random(seed)
    records = []
    for name in 'abcdef':
        for day in range(6):
            if rng.random() < 0.7:
                records += [case(name, day, rng.choice(
                    ['pass', 'fail', 'xfail', 'no_reference', 'inconclusive',
                     'xpass']),
                    repetition=repetition,
                    guard=rng.choice(['', '', '', 'ranks']))
                    for repetition in rng.choice([(1,), (0, 1, 2)])]
    make.write(tmp_path, records)
    frame = perflogs.read(tmp_path)
    built = page.Page(frame)
    newest = results.newest_records(frame)
    for one in built.cases:
        rows = newest[newest['program'] == one.row.program]['result']
        worst = min(rows, key=results.ORDER.index)
        assert results.ORDER[page.LETTERS.index(one.newest_result_letter)] == worst
    # All records count but repetitions beside their median.
    minimum = frame['repetition'].groupby([frame[c] for c in (
        *perflogs.CASE, 'run', 'metric', 'point')],
        observed=True).transform('min')
    assert tidy.build_tidy_records(frame).judged.tolist() == (
        (frame['repetition'] == 0) | (minimum > 0)).tolist()


def test_what_is_new_is_told(tmp_path):
    records = [case(name, day, 'fail' if (name, day) in (
        ('a', 2), ('b', 1)) else 'pass', version='7.5' if day < 2 else '7.6')
        for name in 'abc' for day in range(3)] + [case('new', 2)]
    # What did not run tells no version: no change.
    records += [case('d', 1, version='7.5'),
                case('d', 2, 'fail', guard='cancelled', version='')]
    built = made(tmp_path, records)
    news = {
        item['what']: item['lines']
        for item in cards.changes_since_last_session(built, [])
    }
    assert [name.split()[0] for what in (
        'no longer failing', 'new test cases')
        for name, _ in news[what] if name[0] != 'd'] == ['b', 'new']
    # What failed is told once, with the word new.
    assert 'newly failed' not in news
    assert [(line['name'][0], line['is_new'])
            for group in cards.failure_groups(built, [])
            for line in group['lines']] == [('a', True)]
    assert news['changed environment'] == [
        ('program version 7.5 -> 7.6: 3 test cases on alpha (cpu openmpi)', None)]
    # And can be looked up: from which session on it was so.
    [one] = [one for one in details.test_case_details(built)
             if one['n'].startswith('c ')]
    assert one['h']['version'] == [(0, '7.5'), (2, '7.6')]
    assert one['c'] == 'ppp' and one['j'] == ['12', '12', '12']


def test_the_data_of_the_page_is_json_that_a_browser_reads(tmp_path):
    # A test case that was not set up has neither nodes nor tasks.
    make.write(tmp_path, [
        case('a', 0), make.record(
            'completed', 0.0, day=1, repetition=0, program='a',
            params='program=a', case='ca', result='fail', guard='setup',
            num_nodes='', num_tasks='', tasks_per_node='')])
    text = page.build_page(perflogs.read(tmp_path), []).files['index.html'].decode()
    [data] = re.findall(r'<script id="data"[^>]*>(.*?)</script>', text, re.S)

    def refuse(name: str) -> None:
        raise ValueError(name)

    [one] = json.loads(data, parse_constant=refuse)['cases']
    assert one['h']['num_nodes'] == [[0, '1'], [1, '']]
    with pytest.raises(ValueError, match='JSON'):
        page._script_safe_json({'value': float('nan')})


def test_a_test_case_has_the_same_name_on_the_page_and_in_the_verdict(tmp_path):
    built = made(tmp_path, [
        make.record('latency', 1.0, 8, day=1, program='p', check=check,
                    params=f'x={x}', case=f'{check}{x}', result='fail', **JUDGED)
        for check in ('Puts', 'Asks') for x in (1, 2)])
    names = [row.name for row in built.result_grid_rows()]
    assert names == ['Asks /Asks1', 'Asks x=2 /Asks2', 'Puts /Puts1', 'Puts x=2 /Puts2']
    lines = map(telling.failure_line, built.verdict.failures)
    assert all(line.startswith(name) for line, name in zip(
        lines, names, strict=True))
    assert {one['m'] for one in details.test_case_details(built)} == {
        f'{check} %x={x} /{check}{x} @alpha:cpu+openmpi'
        for check in ('Puts', 'Asks') for x in (1, 2)}


def test_a_case_that_was_measured_again_stands_in_the_grid(tmp_path):
    built = made(tmp_path, [
        case('a', 1, result, time=f'2026-11-02T0{hour + 3}:00:00Z')
        for hour, result in enumerate(['retried', 'pass'])])
    assert cells(built) == {'a': 'p'}


def test_a_flaky_test_case_has_the_reason_of_the_session_that_failed(tmp_path):
    first = '20261102T030000Z-aaaaaa'
    make.write(tmp_path, [
        case('a', 1, 'fail', guard='job_state', run=first),
        case('a', 1, run=f'{first}01', time='2026-11-02T04:00:00Z')])
    folder = tmp_path / 'alpha' / 'sessions'
    folder.mkdir()
    (folder / f'{first}.reasons').write_text(json.dumps({
        'partition': 'cpu', 'environ': 'openmpi', 'case': 'ca',
        'guard': 'job_state', 'reason': 'job_state: the job ended in NODE_FAIL'}))
    built = page.Page(perflogs.read(tmp_path))
    [group] = cards.failure_groups(built, built.value_table_rows())
    assert group['why'] == 'flaky: passed when it was measured again'
    [line] = group['lines']
    assert line['text'] == 'job_state: the job ended in NODE_FAIL'
    [one] = details.test_case_details(built)
    assert one['r'] == line['text'] and one['g'] == 'job_state'
    assert one['f'] == line['where'] and line['where'].endswith('.csv:2')


def test_the_grid_has_all_sessions(tmp_path):
    built = made(tmp_path, [case('a', day, 'fail' if day == 1 else 'pass')
                            for day in range(3)])
    [row] = built.result_grid_rows()
    assert row.paths == [('p', 'M0 0.3h1v0.5h-1zM2 0.3h1v0.5h-1z'),
                         ('f', 'M1 0h1v1h-1z')]


def test_results_differ_without_their_colours():
    shapes = [outline for _, _, outline in grid.legend(grid.LETTERS + grid.WORSE)]
    assert len({*shapes}) == len(shapes) == len(grid.WORDS) == len(
        grid.LETTERS + grid.WORSE) - 1
    # Bars differ in their heights, too: a single bar has no other beside it.
    heights = [float(match[1]) for shape in shapes if (
        match := re.fullmatch(r'M0 [\d.]+h1v([\d.]+)h-1z', shape))]
    assert len(heights) == 4 and min(np.diff(sorted(heights))) > 0.09


def test_good_families_and_most_rows_are_folded():
    def rows(family, letters):
        return [grid.Row(n, f'{family}{n}', '', '', letter, '', [], family)
                for n, letter in enumerate(letters)]

    every = [*rows('good', 'ppi'), *rows('bad', 'f' * 15 + 'pppp')]
    bad, good = grid.rows_by_family(every, dict.fromkeys(range(19), 'p'))
    assert (bad.row.is_bad, good.row.is_bad) == (True, False)
    assert [(title, len(part)) for title, part in bad.parts] == [
        ('', 12), ('3 more of these', 3), ('4 other test cases', 4)]
    assert [(title, len(part)) for title, part in good.parts] == [('', 3)]
    assert good.row.label == 'good: 1 inconclusive, 2 passed'


def test_older_sessions_can_be_chosen():
    names = [f'{n:04}-01-01 03:00' for n in range(1, 1001)]
    ranges = grid.session_ranges(names)
    assert [(one['text'], one['is_chosen']) for one in ranges] == [
        ('newest 60', False), ('newest 180', True), ('all 1000', False)]
    assert ranges[2]['dates'][-1] == (100.0, '1000-01-01')
    [only] = grid.session_ranges(names[:3])
    assert only['is_chosen'] and only['dates'] == [(100.0, '0003-01-01')]


def test_addresses_of_test_cases_are_unique_and_stable(tmp_path):
    records = [case(name, day) for name in 'ab' for day in range(2)] + [
        case('a', 1, source='system')]
    addresses = [one.address for one in made(tmp_path / 'x', records).cases]
    assert len({*addresses}) == 3
    assert addresses[:2] == ['case=ca@alpha:cpu+openmpi', 'case=cb@alpha:cpu+openmpi']
    # Neither other test cases nor further sessions change them.
    [one] = made(tmp_path / 'y', [case('b', day) for day in range(5)]).cases
    assert one.address == addresses[1]


@pytest.mark.parametrize(('more', 'state'), [
    ({}, 'good'), ({'fail': 1}, 'bad'), ({'regressed': 1}, 'bad'),
    ({'inconclusive': 2}, 'warn'), ({'no_record': 1}, 'warn'),
    ({'xpass': 1}, 'bad'), ({'not_run': 1}, 'bad'), ({'flaky': 1}, 'bad'),
    ({'levels': 1}, 'bad')])
def test_healthy_or_not_in_a_sentence(more, state):
    counts = dict.fromkeys((
        *results.ORDER, 'no_record', 'waiting', 'regressed', 'levels'), 0) | {
            'cases': 9}
    verdict = Verdict('x', 'good', judged=9, cases=9)
    assert cards.health_summary(counts | more, verdict, 0)['state'] == state
    assert cards.health_summary(counts | more, verdict, 1)['state'] == 'bad'


def test_history_without_references_is_a_comparison(tmp_path):
    """Page and verdict say in the same words what was compared with what."""
    make.write(tmp_path, [
        make.record('latency', 1 + 0.01 * (day * 7 % 5), 8, day=day, case=f'c{n}',
                    params=f'n={n}') for day in range(60) for n in range(4)])
    frame = perflogs.read(tmp_path)
    verdict = verdict_of_records(frame, [tmp_path])
    sentence = '4 test cases ran; compared: 4 metrics with their history'
    assert telling.verdict_headline(verdict).endswith(sentence)
    text = page.build_page(frame, verdict=verdict).files['index.html'].decode()
    assert '<b>Healthy.</b> Session of 2026-12-30 03:00 UTC, complete.</p>' in text
    assert f'{sentence}; 4 without a reference' in text
    assert 'Not compared yet' not in text
    # Neither references nor sessions.
    few = page.build_page(frame[frame['run'] == frame['run'].iloc[-1]])
    assert ('4 test cases ran; nothing was compared'
            in few.files['index.html'].decode())


@pytest.mark.parametrize('ran', [0, 1])
def test_a_session_that_was_cut_short_leaves_the_health_as_it_was(tmp_path, ran):
    make.write(tmp_path, [*(case(name, 1) for name in 'abc'), *(
        (cancelled if n >= ran else case)(name, 2) for n, name in enumerate('abc'))])
    frame = perflogs.read(tmp_path)
    verdict = verdict_of_records(frame, [tmp_path])
    assert (verdict.exit_code, verdict.verdict) == (1, 'not_run')
    assert {one.result for one in verdict.failures} == {'not_run'}
    sentence = ('The session of 2026-11-03 03:00 UTC was cut short: '
                f'{3 - ran} test cases did not run. To resume: ./plumb run --site '
                'alpha $(./plumb verdict --site alpha --print-rerun-options)')
    lines = printed_verdict_lines(verdict)
    assert sentence in lines and not [line for line in lines if 'guard' in line]
    assert re.search(rf'NOT RUN: {3 - ran} test cases? did not run\. '
                     rf'{ran or 3} test cases? ran', lines[-1]), lines[-1]
    text = page.build_page(frame, verdict=verdict).files['index.html'].decode()
    assert 'class="health good"' in text
    assert sentence in re.sub('</?code[^>]*>', '', text)
    assert f'<b>{3 - ran}</b> not run' in text and f'<b>{ran}</b> passed' in text
    assert '3 test cases with a reference or a limit' in text
    # Of the last session in which a test case ran.
    assert ('Session of 2026-11-03 03:00 UTC, not complete.' if ran
            else 'Session of 2026-11-02 03:00 UTC, complete.') in text
    assert ('1 test case ran' if ran else '3 test cases ran') in text


@pytest.mark.parametrize('ident', ['bbbbbb', 'aaaaaa01'])
def test_a_session_that_was_resumed_is_complete(tmp_path, ident):
    """Of two test cases the second session has only the one that had not run; it is
    a session of its own, or a further one of the same nightly session."""
    resumed = case('b', 2) | {'run': f'20261103T150000Z-{ident}',
                              'time': '2026-11-03T15:00:00Z'}
    make.write(tmp_path, [case('a', 2), cancelled('b', 2), resumed])
    frame = perflogs.read(tmp_path)
    verdict = verdict_of_records(frame, [tmp_path])
    assert (verdict.verdict, verdict.cut_short) == ('good', [])
    assert {one.result for one in verdict.results} == {'pass'}
    built = page.build_page(frame, verdict=verdict)
    assert (built.counts['pass'], built.counts['no_record']) == (2, 0)
    assert ('<b>Healthy.</b> Session of 2026-11-03, complete.'
            in built.files['index.html'].decode())


def test_one_of_two_sessions_of_a_date_was_cut_short(tmp_path):
    second = {'run': '20261103T150000Z-bbbbbb', 'time': '2026-11-03T15:00:00Z'}
    make.write(tmp_path, [*(case(name, 2) for name in 'ab'),
                          case('c', 2) | second, cancelled('d', 2) | second])
    frame = perflogs.read(tmp_path)
    verdict = verdict_of_records(frame, [tmp_path])
    assert verdict.session == '2026-11-03'
    text = page.build_page(frame, verdict=verdict).files['index.html'].decode()
    assert 'Session of 2026-11-03, not complete.' in text


def test_sessions_of_several_sites_that_were_cut_short_are_resumed_one_by_one():
    cut_short = [results.Result(system, *[''] * 8, run='r', result='not_run',
                                guard='cancelled') for system in ('beta', 'local')]
    assert telling.cut_short_text(cut_short).endswith(
        'To resume: ./plumb run $(./plumb verdict --print-rerun-options); '
        './plumb run --site beta $(./plumb verdict --site beta '
        '--print-rerun-options)')


def test_a_session_that_was_cut_short_is_resumed_by_its_test_cases(tmp_path, capsys):
    make.write(tmp_path, [case('a', 1), case('b', 1), case('a', 2), cancelled('b', 2)])
    assert verdict_command.main(
        ['--perflogs', str(tmp_path), '--print-rerun-options']) == 0
    assert capsys.readouterr().out == '-n /cb\n'


def test_a_sparkline_has_sessions_of_one_speed_class(tmp_path):
    built = made(tmp_path, [
        case('a', day, speed=speed) | {'value': str(value)} for day, (speed, value)
        in enumerate([('slow', 5.2), ('fast', 1.0), ('slow', 5.2), ('fast', 1.1)])])
    [row] = built.value_table_rows()
    assert 'aria-label="2 sessions, 1 to 1.1"' in row['spark']


def test_a_long_curve_is_thinned_to_medians_of_older_values():
    values = np.arange(1000.0)
    whole = curves.Curve(np.arange(1000), values)
    curve = whole.thinned()
    assert len(curve.values) == len(curve.sessions) == 237
    assert curve.values[-160:].tolist() == values[-160:].tolist()
    assert (np.diff(curve.sessions) > 0).all()
    assert np.abs(curve.values - curve.sessions).max() <= 1
    assert whole._replace(values=values[:200]).thinned().values.tolist() == [
        *values[:200]]


def test_a_sparkline_has_baseline_tolerance_and_change():
    curve = curves.Curve(np.arange(10), np.array([1.0] * 8 + [2.0] * 2))
    text = curves.sparkline(curve, curves.Lines(1.0, 1.1, None, 1.3), 8)
    for name in ('base', 'level', 'band', 'since'):
        assert f'class="{name}"' in text
    # From the top of the tolerance down: nothing is too low.
    assert 'class="band" d="M0 19.8H100V30H0z"' in text
    assert curves.sparkline(curve._replace(values=curve.values[:1])) == ''


def test_an_event_is_one_card(tmp_path):
    """Test cases that regressed one by one, and on one date."""
    slow = {2: 1.2, 5: 1.4, 8: 1.3, 11: 1.5, 14: 1.6, 17: 1.7, 20: 1.25}
    make.write(tmp_path, [
        make.record('latency', (n + 1) * (1 + 0.001 * (day * (7 + n) % 5)) * (
            slow.get(n, 1) if day > 34 else 1), 8, day=day, case=f'c{n}',
            params=f'n={n}', check=f'Check{n}', program=f'p{n}',
            partition=f'p{n % 2}')
        for day in range(40) for n in range(40)])
    built = page.Page(perflogs.read(tmp_path))
    assert len(built.regressions) == len(slow)
    [card] = cards.regression_events(built)
    assert card['first'] == '7 test cases worse since 2026-12-06 (5 sessions)'
    assert '<svg' in card['spark'] and 'class="since"' in card['spark']
    assert card['rest'][:2] == [
        'alpha:p0, alpha:p1', 'test cases: median +40 %, from +20 % to +70 %']
    assert [row['change'] for row in card['worst']] == [
        '+70 %', '+60 %', '+50 %', '+40 %', '+30 %']
    assert len(card['rows']) == 7 and card['several']
    text = page.build_page(perflogs.read(tmp_path)).files['index.html'].decode()
    assert text.count('class="alarm worse"') == 1
    assert 'all 7 values of 7 test cases' in text


@pytest.mark.parametrize('theme', [0, 1])
def test_colours_have_contrast(theme):
    """WCAG 2.2: 4.5 for text, 3 for what is drawn."""
    css = (page.TEMPLATES / 'report.css').read_text()
    colours = dict(re.findall(r'--([\w-]+): (#\w+)', re.findall(
        r':root \{(.*?)\}', css, re.S)[theme]))

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else ''.join(2 * c for c in colour[1:])
        parts = [int(digits[n:n + 2], 16) / 255 for n in (0, 2, 4)]
        return sum(weight * (part / 12.92 if part <= 0.04045
                             else ((part + 0.055) / 1.055) ** 2.4)
                   for weight, part in zip((.2126, .7152, .0722), parts, strict=True))

    def contrast(one: str, two: str) -> float:
        low, high = sorted(luminance(colour) for colour in (one, two))
        return (high + 0.05) / (low + 0.05)

    for name in ('ink', 'soft', 'bad', 'good', 'warn', 'known'):
        for paper in ('paper', 'card', 'bad-paper', 'warn-paper'):
            assert contrast(colours[name], colours[paper]) >= 4.5, (name, paper)
    for name in ('cell-good', 'cell-rec', 'cell-warn', 'cell-known'):
        assert contrast(colours[name], colours['paper']) >= 3, name
    for colour in re.findall(r'\.c-\w+ \{ --of: (#\w+)', css):
        assert contrast(colour, colours['paper']) >= 3, colour
    for colour in re.findall(r'\.mark[^{]*\{[^}]*background: (#\w+)', css):
        assert contrast(colour, '#ffffff') >= 4.5, colour


def test_tallies_count_test_cases(tmp_path):
    make.write(tmp_path, [case('a', 1, point=f'{size} B') for size in (8, 16, 32)] + [
        case('b', 1, 'no_reference', reference='', upper='', point=f'{size} B')
        for size in (8, 16)])
    made = page.build_page(perflogs.read(tmp_path))
    assert {name: made.counts[name] for name in (
        'pass', 'no_reference', 'cases')} == {'pass': 1, 'no_reference': 1, 'cases': 2}
    assert '<b>1</b> passed' in made.files['index.html'].decode()
