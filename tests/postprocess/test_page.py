"""The page's first screen: the grid, what is wrong, what is new."""
from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import perflogs_factory as make
import pytest

from postprocess import debts, results
from postprocess.printed import PrintedCommands
from postprocess.records import read as read_records
from postprocess.regressions.events import failure_text
from postprocess.regressions.failures import failure_events
from postprocess.regressions.judging import judge_session
from postprocess.report import cards, details, grid, page
from tests.conftest import printed_verdict_lines

JUDGED = make.JUDGED
case, short_id = make.case, make.short_id


def cancelled(name: str, day: int) -> dict:
    """The record of a test case whose session ended before it ran."""
    return case(name, day, 'cancelled')


def made(tmp_path: Path, records: list[dict]) -> page.Page:
    make.write(tmp_path, records)
    return page.Page(debts.read(str(tmp_path)).frame)


def cells(built: page.Page) -> dict[str, str]:
    return {str(one.row.program): one.cells for one in built.cases}


def test_a_session_that_lacks_a_case_stands_out(tmp_path):
    records = [case(name, day) for name in 'abc' for day in range(5)
               if (name, day) not in (('a', 2), ('a', 4))]
    # A new test case owes nothing.
    built = made(tmp_path, [*records, case('d', 4)])
    assert cells(built) == {'a': 'pp-p-', 'b': 'ppppp', 'c': 'ppppp',
                            'd': '....p'}
    assert built.result_counts['missing'] == 1
    [group] = cards.event_cards(built, built.value_table_rows())
    assert 'an earlier session of the mode measured it' in group['title']
    assert group['title'].endswith(', new')
    assert [line['name'] for line in group['lines']] == [
        f'a (embedded) {short_id(case("a", 0))}']


def test_systems_of_one_date_stand_in_one_session(tmp_path):
    records = [case('a', 0), case('a', 1), case('a', 0, system='beta',
               session='20261101T040000Z-bbbbbb', time='2026-11-01T04:00:00Z')]
    # A second session of a date has a column of its own.
    records.append(case('a', 0, session='20261101T090000Z-cccccc',
                        time='2026-11-01T09:00:00Z'))
    built = made(tmp_path, records)
    assert [len(runs) for runs in built.past.sessions] == [2, 1, 1]


def test_what_is_new_is_told(tmp_path):
    records = [case(name, day, 'fail' if (name, day) in (
        ('a', 2), ('b', 1)) else 'pass', version='7.5' if day < 2 else '7.6')
        for name in 'abc' for day in range(3)] + [case('new', 2)]
    # What did not run tells no version: no change.
    records += [case('d', 1, version='7.5'),
                case('d', 2, 'cancelled', version='')]
    built = made(tmp_path, records)
    news = {
        item['what']: item['lines']
        for item in cards.changes_since_last_session(built)
    }
    assert [name.split()[0] for what in (
        'no longer failing', 'new test cases')
        for name, _ in news[what] if name[0] != 'd'] == ['b', 'new']
    # What failed is told once, with the word new.
    assert 'newly failed' not in news
    assert [(line['name'][0], line['is_new'])
            for group in cards.event_cards(built, [])
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
        case('a', 0), case('a', 1, 'setup', num_nodes=None, num_tasks=None,
                           tasks_per_node=None)])
    text = page.build_page(read_records(tmp_path), []).text
    [data] = re.findall(r'<script id="data"[^>]*>(.*?)</script>', text, re.S)

    def refuse(name: str) -> None:
        raise ValueError(name)

    [one] = json.loads(data, parse_constant=refuse)['cases']
    assert one['h']['num_nodes'] == [[0, '1'], [1, '']]
    with pytest.raises(ValueError, match='JSON'):
        page._template_environment().from_string('{{ value | tojson }}').render(
            value=float('nan'))


def test_a_test_case_has_the_same_name_on_the_page_and_in_the_verdict(tmp_path):
    built = made(tmp_path, [
        make.record('latency', 1.0, 8, day=1, program='p', check=check,
                    params=f'x={x}', result='fail', **JUDGED)
        for check in ('Puts', 'Asks') for x in (1, 2)])
    names = [one.name for one in built.cases]
    assert sorted(name.rpartition(' ')[0] for name in names) == [
        'Asks (embedded)', 'Asks (embedded) x=2',
        'Puts (embedded)', 'Puts (embedded) x=2']
    lines = [failure_text(one) for event in built.verdict.failures
             for one in event.failed]
    assert all(any(line.startswith(name) for line in lines) for name in names)
    assert {one['m'] for one in details.test_case_details(built)} == {
        f'{check} %x={x} @alpha:cpu+openmpi'
        for check in ('Puts', 'Asks') for x in (1, 2)}


def test_a_case_that_was_measured_again_stands_in_the_grid(tmp_path):
    built = made(tmp_path, [
        case('a', 1, result, retry=number, time=f'2026-11-02T0{number + 3}:00:00Z')
        for number, result in enumerate(['fail', 'pass'])])
    assert cells(built) == {'a': 'p'}


def test_a_flaky_test_case_has_the_reason_of_the_session_that_failed(tmp_path):
    first = '20261102T030000Z-aaaaaa'
    make.write(tmp_path, [
        case('a', 1, 'job_state', session=first, reason='the job ended in NODE_FAIL'),
        case('a', 1, session=f'{first}01', time='2026-11-02T04:00:00Z')])
    built = page.Page(read_records(tmp_path))
    [group] = cards.event_cards(built, built.value_table_rows())
    assert group['texts'][0].startswith('to do: nothing now: the test case passed')
    [line] = group['lines']
    assert line['text'] == 'job_state: job error: the job ended in NODE_FAIL'
    [one] = details.test_case_details(built)
    assert line['text'].endswith(one['r']) and one['g'] == 'job_state'
    assert one['f'] == line['where'] and line['where'].endswith(f'{first}.json')


def test_results_differ_without_their_colours():
    shapes = [outline for _, _, outline in grid.legend(grid.LETTERS + grid.WORSE)]
    assert len({*shapes}) == len(shapes) == len(grid.WORDS) == len(
        grid.LETTERS + grid.WORSE) - 1
    # Bars differ in their heights, too: a single bar has no other beside it.
    heights = [float(match[1]) for shape in shapes if (
        match := re.fullmatch(r'M0 [\d.]+h1v([\d.]+)h-1z', shape))]
    assert len(heights) == 4 and min(np.diff(sorted(heights))) > 0.09


def test_addresses_of_test_cases_are_unique_and_stable(tmp_path):
    records = [case(name, day) for name in 'ab' for day in range(2)] + [
        case('a', 1, settings='size=1')]
    addresses = [one.address for one in made(tmp_path / 'x', records).cases]
    assert sorted(addresses) == sorted({f'case={short_id(one)}' for one in records})
    # Neither other test cases nor further sessions change them.
    [one] = made(tmp_path / 'y', [case('b', day) for day in range(5)]).cases
    assert one.address == f'case={short_id(case("b", 0))}'


def test_history_without_references_is_a_comparison(tmp_path):
    """Page and verdict say in the same words what was compared with what."""
    make.write(tmp_path, [
        make.record('latency', 1 + 0.01 * (day * 7 % 5), 8, day=day,
                    params=f'n={n}') for day in range(60) for n in range(4)])
    frame = read_records(tmp_path)
    verdict = judge_session(frame)
    sentence = '4 test cases ran; compared: 4 metrics with their history'
    assert verdict.headline.endswith(sentence)
    text = page.build_page(frame, verdict=verdict).text
    assert ('<b>GOOD.</b> No regression. Session of 2026-12-30 03:00 UTC, '
            'complete.</p>') in text
    assert f'{sentence}; 4 without a reference' in text
    assert 'NOT COMPARED' not in text


@pytest.mark.parametrize('ran', [0, 1])
def test_a_session_that_was_cut_short_leaves_the_health_as_it_was(tmp_path, ran):
    make.write(tmp_path, [*(case(name, 1) for name in 'abc'), *(
        (cancelled if n >= ran else case)(name, 2) for n, name in enumerate('abc'))])
    frame = read_records(tmp_path)
    verdict = judge_session(frame)
    assert verdict.state == 'cut short'
    assert not verdict.failures
    sentence = ('The session of 2026-11-03 03:00 UTC was cut short: '
                f'{3 - ran} test cases did not run. To resume: ./plumb run --site '
                'alpha --suspects')
    lines = printed_verdict_lines(verdict)
    assert sentence in lines and not [line for line in lines if 'guard' in line]
    assert re.search(rf'CUT SHORT: {3 - ran} test cases? did not run\. '
                     rf'{ran or 3} test cases? ran', lines[-1]), lines[-1]
    text = page.build_page(frame, verdict=verdict).text
    assert '<p class="health open"><b>CUT SHORT.</b>' in text
    assert sentence in re.sub('</?code[^>]*>', '', text)
    assert f'<b>{3 - ran}</b> not run' in text and f'<b>{ran}</b> passed' in text
    # Of the last session in which a test case ran.
    assert (' 1 test case ' if ran else ' 3 test cases ') + 'with a reference' in text
    assert ('Session of 2026-11-03 03:00 UTC, not complete.' if ran
            else 'Session of 2026-11-02 03:00 UTC, complete.') in text
    assert ('1 test case ran' if ran else '3 test cases ran') in text


@pytest.mark.parametrize('ident', ['bbbbbb', 'aaaaaa01'])
def test_a_session_that_was_resumed_is_complete(tmp_path, ident):
    """Of two test cases the second session has only the one that had not run; it is
    a session of its own, or a further one of the same nightly session."""
    resumed = case('b', 2) | {'session': f'20261103T150000Z-{ident}',
                              'time': '2026-11-03T15:00:00Z'}
    make.write(tmp_path, [case('a', 2), cancelled('b', 2), resumed])
    frame = read_records(tmp_path)
    verdict = judge_session(frame)
    assert (verdict.state, verdict.events_of('cut short')) == ('good', [])
    assert {one.result for one in verdict.results} == {'pass'}
    built = page.build_page(frame, verdict=verdict)
    assert (built.counts['pass'], built.counts['missing']) == (2, 0)
    assert 'Session of 2026-11-03, complete.' in built.text


def test_one_of_two_sessions_of_a_date_was_cut_short(tmp_path):
    second = {'session': '20261103T150000Z-bbbbbb', 'time': '2026-11-03T15:00:00Z'}
    make.write(tmp_path, [*(case(name, 2) for name in 'ab'),
                          case('c', 2) | second, cancelled('d', 2) | second])
    frame = read_records(tmp_path)
    verdict = judge_session(frame)
    assert verdict.session == '2026-11-03'
    text = page.build_page(frame, verdict=verdict).text
    assert 'Session of 2026-11-03, not complete.' in text


def test_sessions_of_several_sites_that_were_cut_short_are_resumed_one_by_one(tmp_path):
    cut_short = [results.Result(
        'c', system, *[''] * 8, session='r', result='not_run', guard='cancelled')
        for system in ('beta', 'local')]
    [event] = failure_events(cut_short, PrintedCommands())
    assert event.title.endswith(
        'To resume: ./plumb run --suspects; ./plumb run --site beta --suspects')
    # A site that is given by a path is printed so.
    site = tmp_path / 'beta'
    site.mkdir()
    (site / 'system.py').touch()
    [event] = failure_events(cut_short, PrintedCommands(site=str(site)))
    assert f'./plumb run --site {site} --suspects' in event.title


def test_an_event_is_one_card(tmp_path):
    """Test cases that regressed on one node."""
    make.write(tmp_path, make.slow_node())
    frame = read_records(tmp_path)
    built = page.Page(frame)
    [card] = cards.event_cards(built, [])
    assert card['title'].startswith(
        'node n7 of alpha (7 of 7 test cases): latency at 8 B +')
    assert len(card['curve']['x']) > 20 and card['curve']['l'][0] == 1
    assert built.session_name(card['curve']['k'][0]) == '2026-12-06 03:00'
    assert card['texts'][0] == 'since 2026-12-06 (5 sessions) [ran on n7]'
    assert [row['change'] for row in card['lines']] == [
        '+70 %', '+60 %', '+50 %', '+40 %', '+30 %']
    assert len(card['rows']) == 7
    assert {(row['session'], row['note']) for row in card['rows']} == {(39, '')}
    text = page.build_page(frame).text
    assert text.count('class="alarm worse"') == 1
    # A test case that regressed is counted once.
    assert re.findall(r'<b>(-?\d+)</b> (regressed|passed|without a reference)', text
                      ) == [('7', 'regressed'), ('0', 'passed'),
                            ('33', 'without a reference')]
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
    make.write(tmp_path, [case('a', 1, point=size) for size in (8, 16, 32)] + [
        case('b', 1, 'no_reference', point=size) for size in (8, 16)])
    made = page.build_page(read_records(tmp_path))
    assert {name: made.counts[name] for name in (
        'pass', 'no_reference', 'cases')} == {'pass': 1, 'no_reference': 1, 'cases': 2}
    assert '<b>1</b> passed' in made.text
