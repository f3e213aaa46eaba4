"""The page: verdicts true and first, nothing asked of the network."""
from __future__ import annotations

import html
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import perflogs_factory as make
import pytest

from postprocess.records import read as read_records
from postprocess.report import build as report
from postprocess.report import charts, plots, sections
from postprocess.report.plots import box
from postprocess.report.tidy import build_tidy_records

JUDGED = {'reference': 1.0, 'upper': 0.2, 'result': 'pass'}


def page(tmp_path, records, *options) -> tuple[int, str]:
    """Exit code and text of the page ('' if none)."""
    make.write(tmp_path / 'perflogs', records)
    code = report.main(['--perflogs', str(tmp_path / 'perflogs'),
                        '--output', str(tmp_path / 'out'), *options])
    file = tmp_path / 'out' / 'index.html'
    return code, file.read_text('utf-8') if file.exists() else ''


def visible(text: str) -> str:
    """Words of a page, without tags, style, metrics and data."""
    text = re.sub(r'<(style|svg|script|noscript).*?</\1>', ' ', text,
                  flags=re.S)
    return ' '.join(html.unescape(re.sub(r'<[^>]*>', ' ', text)).split())


def panels(tmp_path, records) -> list[plots.Panel]:
    """What stands in a metric each, of the latencies of these records."""
    make.write(tmp_path / 'perflogs', records)
    made = build_tidy_records(read_records(tmp_path / 'perflogs'))
    records = sections.records_for_plots(made, 'osu', [], [])
    return list(plots.metric_panels(records, ('latency',)))


def boxes(tmp_path, records) -> list:
    """The axes of the box metric of these records."""
    [panel] = panels(tmp_path, records)
    return [axes for drawing in box.drawings_from_records(panel.records,
                                                          metric=('latency',))
            for axes in drawing.chart(*drawing.args).axes]


@pytest.fixture(scope='module')
def demo_page(demo) -> str:
    """The page of the demo, which has plots of all families."""
    return (demo.folder / 'report' / 'index.html').read_text('utf-8')


def test_exit_code_and_order_of_verdicts(tmp_path):
    code, text = page(tmp_path, [
        make.case('osu_bw', 1),
        make.record('completed', 0.0, guard='transport', program='osu_reduce',
                    params='n=4', reason='tcp used, shared memory asked for'),
        make.case('osu_bcast', 1, 'fail')])
    assert code == 1
    words = visible(text)
    assert '✗ failed osu_bcast (embedded) ' in words
    assert 'guard: transport tcp used, shared memory asked for' in words
    assert words.index('✗ failed') < words.index('✓ passed')


def test_the_page_needs_nothing_else(demo_page):
    text = demo_page
    assert not re.search(r'<(link|img|iframe|object)\b', text)
    assert not re.search(r'<script[^>]*\ssrc\b', text)
    # Browsers see to it too.
    assert ('http-equiv="Content-Security-Policy" content="default-src '
            "'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
            'img-src data:"') in text
    assert not re.search(r'(src|href)="(?:https?:)?//', text)
    assert not re.search(r'@import|url\((?!#)', text)
    assert not re.search(r'fetch\(|XMLHttp|import\(|WebSocket', text)
    # The only addresses are the names of XML.
    assert set(re.findall(r'https?://[\w./]+', text)) <= {
        'http://www.w3.org/2000/svg', 'http://www.w3.org/1999/xlink'}
    assert len(text) < 4e6


def test_page_is_well_formed_and_every_link_leads_somewhere(demo_page):
    text = demo_page
    ids = re.findall(r'\sid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'href="([^"]*)"', text):
        if target.startswith('#'):
            assert target[1:] in ids
        else:
            assert target.startswith('data:image/png;base64,')
    for plot in re.findall(r'<svg.*?</svg>', text, re.S):
        ET.fromstring(plot)
        used = set(re.findall(r'(?:url\(|href=")#([^")]+)', plot))
        assert used <= set(re.findall(r'id="([^"]+)"', plot))


def test_light_and_dark_follow_the_reader(demo_page):
    text = demo_page
    assert 'prefers-color-scheme: dark' in text
    plots_ = ''.join(re.findall(r'<svg.*?</svg>', text, re.S))
    styles = re.findall(r'^\.v\w+ \{.*', text, re.M)
    assert any('var(--c0)' in style for style in styles)
    assert any('currentColor' in style for style in styles)
    for colour in (*charts.COLOURS, charts.INK, charts.PAPER):
        assert not any(colour in style for style in styles)
        assert colour not in plots_


def test_all_well_is_0(tmp_path, capsys):
    code, text = page(tmp_path, [
        make.record('latency', 1.1, 8, **JUDGED), make.record('wall_time')])
    assert code == 0
    assert '✓ passed osu_latency' in visible(text)
    assert '≤ 1.2' in text and '1.10\u2009×' in text
    assert ('1 pass of 1 test case, '
            '1 session; 1 with a tolerance\n'
            in capsys.readouterr().out)


def test_known_faults_do_not_fail_but_show(tmp_path):
    code, text = page(tmp_path, [make.record(
        'latency', 3.0, 8, **{**JUDGED, 'result': 'xfail'})])
    assert code == 0 and '~ known fault' in visible(text)
    code, text = page(tmp_path, [make.record(
        'latency', 1.0, 8, day=2, **{**JUDGED, 'result': 'xpass'})])
    assert code == 1 and '1 known fault fixed' in visible(text)


def test_test_cases_without_references_or_tolerances_are_counted(tmp_path, capsys):
    other = {'params': 'program=osu_bw', 'program': 'osu_bw'}
    noisy = {'params': 'program=osu_init', 'program': 'osu_init',
             'check': 'OsuStartup'}
    code, text = page(tmp_path, [
        make.record('latency', 1.0, 8, **JUDGED),
        *make.curve('bandwidth', float, [1, 2, 4, 8], **other),
        # With a reference that has no tolerance.
        make.record('init_time', 300.0, reference=290.0, **noisy)])
    assert code == 0
    words = visible(text)
    assert (
        'Test cases: 0 failed 1 passed 0 inconclusive 2 without a reference '
        '1 with a tolerance 1 with a metric that lacks one'
        in words
    ), words
    assert ('2 test cases without a reference, 1 with a metric that lacks a tolerance: '
            './plumb references status lists them.') in words
    assert (
        '1 pass · 2 no_reference of 3 test cases, 1 session; 1 with a tolerance, 1 '
        'with a metric that lacks one'
        in capsys.readouterr().out
    )


def test_better_is_news(tmp_path):
    """The note of the check is what counts."""
    code, text = page(tmp_path, [make.record(
        'latency', 0.8, 8, no_reference=note, params=f'n={len(note)}', **JUDGED)
        for note in ('', 'improved: calibrate again (latency@8B)')])
    words = visible(text)
    assert code == 0 and '2 passed' in words and '1 improved: calibrate again' in words


def test_a_line_that_is_no_number_is_told_once_and_the_page_goes_on(
        tmp_path, capsys):
    make.write(tmp_path / 'perflogs', [
        make.record('latency', value, size, **JUDGED) for value, size in
        ((1.0, 8), (float('nan'), 16), (float('nan'), 32))], ended=False)
    code, text = page(tmp_path, [])
    assert code == 1 and '✓ passed osu_latency' in visible(text)
    [line] = capsys.readouterr().err.splitlines()
    assert re.match(
        r'plumb report: \S+OsuPt2pt.log:\d: .* is not a finite number', line)


def test_damage_is_shown_and_exits_1(tmp_path, capsys):
    [file] = make.write(tmp_path / 'perflogs', [
        make.record('latency', 1.0, 8, **JUDGED)])
    file.write_text(file.read_text()[:-7])
    code, text = page(tmp_path, [])
    assert code == 1
    assert f'{file}:1: this report of ReFrame cannot be read' in visible(text)
    assert f'{file}:1:' in capsys.readouterr().err
    assert '✓ passed' in text


@pytest.mark.parametrize('options', [['--site', 'beta'], []])
def test_nothing_to_show_is_2(tmp_path, capsys, options):
    records = [make.record()] if options else []
    (tmp_path / 'perflogs').mkdir()
    code, text = page(tmp_path, records, *options)
    assert code == 2 and not text
    assert capsys.readouterr().err.startswith('plumb report: no records')


def test_no_such_folder_is_2(tmp_path, capsys):
    assert report.main(['--perflogs', str(tmp_path / 'no'), '--output',
                        str(tmp_path / 'out')]) == 2
    assert 'does not exist' in capsys.readouterr().err
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('options', [['--last', '0'], ['--last', 'x'],
                                     ['--bogus']])
def test_usage_is_2(options):
    with pytest.raises(SystemExit) as end:
        report.main(options)
    assert end.value.code == 2


def test_last_title_and_emulated_values(tmp_path):
    _, text = page(tmp_path, [make.record('latency', 1.0, 8, day=d, emulated=d == 3)
                              for d in range(5)],
                   '--last', '2', '--title', 'Nights <of> alpha')
    assert '2 sessions of 1 test case,' in visible(text)
    assert 'EMULATED. Some values' in visible(text)
    assert '<h1>Nights &lt;of&gt; alpha</h1>' in text


def test_a_full_disk_leaves_the_old_page(tmp_path, capsys, monkeypatch):
    code, old = page(tmp_path, [make.record('latency', 1.0, 8)])

    replace = os.replace

    def full(source, target):
        if Path(target).is_relative_to(tmp_path / 'out'):
            raise OSError(28, 'No space left on device')
        replace(source, target)
    monkeypatch.setattr('os.replace', full)
    code, text = page(tmp_path, [make.record('latency', 2.0, 8, day=2)])
    assert code == 2 and text == old
    assert 'No space left on device' in capsys.readouterr().err
    assert not list((tmp_path / 'out').rglob('.*'))


def test_hostile_text_stays_text(tmp_path):
    evil = '<script>alert(1)</script>"& $x^$ \\frac'
    _, text = page(tmp_path, [
        make.record('latency', 1.0, 8, program=evil, params=f'a={p}{evil}',
                    nodes=evil, guard=g, **JUDGED)
        for p, g in (('', ''), ('x', evil))])
    assert '<script>' not in text


def test_many_series_are_split_over_plots(tmp_path):
    result = panels(tmp_path, [
        make.record('latency', 1.0, 8, day=n, num_nodes=n, params=f'algorithm={a}')
        for n in (1, 2, 4) for a in ('ring', 'tree')])
    assert [panel.title for panel in result] == [
        'osu_latency (embedded): latency, ring',
        'osu_latency (embedded): latency, tree']
    for panel in result:
        assert list(panel.labels['label']) == ['1 node', '2 nodes', '4 nodes']


@pytest.mark.parametrize(('many', 'plots'), [(2, 0), (3, 1)])
def test_few_samples_have_no_box(tmp_path, many, plots):
    assert len(boxes(tmp_path, [
        make.record('latency', 1.0 + d / 10, 8, day=d)
        for d in range(many)])) == plots


def test_repetitions_of_a_job_and_jobs_are_apart(tmp_path):
    """A job has repetitions 1, 2, 3 and their median; a copy of --repeat is
    another job of the same session."""
    [panel] = panels(tmp_path, [
        make.record('latency', value * job, 8, repetition=repetition, day=day,
                    name=f'OsuPt2pt %.repeat_no={job}')
        for day in (1, 2) for job in (1, 2)
        for repetition, value in ((0, 1.0), (1, 1.0), (2, 0.5), (3, 4.0))])
    sessions, repetitions = (
        drawing.args[0] for values in ('relative', 'repetitions')
        for drawing in box.drawings_from_records(
            panel.records, metric=('latency',), values=values))
    # One value per job: 1, 2, 1, 2.
    assert sessions[['count', 'q2', 'high']].values.tolist() == [[4, 1.5, 2.0]]
    # Twelve repetitions, as parts of the median of their job.
    assert repetitions['count'].tolist() == [12]
    assert repetitions[['q1', 'q2', 'high']].values.tolist() == [[0.5, 1.0, 4.0]]


def test_a_guard_shows_no_empty_cells(tmp_path):
    """On a phone a cell is shown with its name unless it is empty."""
    _, text = page(tmp_path, [make.record(
        'completed', 0.0, repetition=0, result='fail', guard='ranks',
        reference=1.0, lower=0.0)])
    for name in ('value', 'reference', 'allowed', 'ratio'):
        assert re.search(
            rf'<td class="[^"]*" data-name="{name}"[^>]*></td>', text)


def test_odd_sizes_and_values_can_be_drawn(tmp_path):
    code, text = page(tmp_path, [
        make.record('latency', value, size, day=day, params=f'n={number}')
        for number, values in enumerate([{0: -1.0, 1: 2.0, 8: 99.0}, {8: 0.0}])
        for size, value in values.items() for day in range(3)])
    assert code == 0 and '<svg' in text
