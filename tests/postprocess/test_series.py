"""Series beside perflogs: read strictly, drawn with all their parts."""
from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path

import pytest

pytest.importorskip('pandas')
pytest.importorskip('matplotlib')
pytest.importorskip('jinja2')
import perflogs_factory as make

from config.families import all_metrics, families
from postprocess import records as all_records
from postprocess.records import series
from postprocess.report import build as report
from postprocess.report import plots, sections
from postprocess.report.plots import timeline
from postprocess.report.tidy import build_tidy_records

TAO = families()['taobench']

PHASES = ((20, 'warmup'), (22, 'rest'), (52, 'test'), (55, 'after'))
LOW = 'hit_rate below 0.88: a dip in the window'


def tao_record(metric='total_qps', value=9000.0, **columns) -> dict:
    """A record of the family."""
    return make.record(metric, value, **{
        'family': 'taobench', 'check': 'TaoBench', 'program': 'tao_server',
        'params': 'job=standalone', 'measurement': f'{columns.get("day", 1):012x}',
        **columns})


def rows(servers=1, dip=(), ratio=0.89, cpu=(75.0, 20.0)) -> list[list]:
    """Points a second of a run; those of server 0 in `dip` do not count."""
    result: list[list] = []
    for second in range(1, 56):
        phase = next(p for end, p in PHASES if second <= end)
        for server in range(servers):
            busy = phase in ('warmup', 'test')
            why = ('' if phase == 'test' else 'no load' if not busy else
                   'before the last 26 points')
            hit = ratio * busy
            if second in dip and server == 0:
                why, hit = LOW, 0.7
            total = 9000.0 * busy
            result += [
                [second + server / 10, f'server {server}', metric, value,
                 unit, phase, int(not why), why] for metric, value, unit in
                (('fast_qps', total * hit, '1/s'),
                 ('slow_qps', total * (1 - hit), '1/s'),
                 ('total_qps', total, '1/s'), ('hit_rate', hit, '1'))]
        result += [[second, 'cpu n1', metric, value, '%', phase, '', '']
                   for metric, value in zip(('cpu_total', 'cpu_user'), cpu,
                                            strict=False)]
    return result


def attach(root: Path, record: dict, points: list[list]) -> Path:
    """Writes a measurement's files as the suite does; returns its series."""
    folder = root / 'files' / record['session'] / record['measurement']
    (folder / 'benchmark_metrics_1').mkdir(parents=True)
    (folder / 'benchmark_metrics_1' / 'a.json').write_text('{}')
    (folder / 'server_0.csv').write_text('seq,total_qps\n0,1\n')
    with open(folder / 'series.csv', 'w', newline='') as handle:
        csv.writer(handle, lineterminator='\n').writerows(
            [series.COLUMNS, *points])
    return folder / 'series.csv'


def site(tmp_path: Path, record: dict, points: list[list], options: str = '') -> Path:
    make.write(tmp_path / 'perflogs', [record], options)
    return attach(tmp_path / 'perflogs', record, points)


def page(tmp_path: Path) -> tuple[int, str]:
    """Exit code of a report, and its words with those of its metrics."""
    code = report.main(['--perflogs', str(tmp_path / 'perflogs'),
                        '--output', str(tmp_path / 'out')])
    text = re.sub(r'<(style|script).*?</\1>', ' ', shown(tmp_path),
                  flags=re.S)
    return code, ' '.join(html.unescape(
        re.sub(r'<[^>]*>', ' ', text)).split())


def shown(tmp_path: Path) -> str:
    """The page."""
    return (tmp_path / 'out' / 'index.html').read_text('utf-8')


def read(tmp_path: Path, points: list[list]) -> series.Series:
    faults: list = []
    result = series.read_series_file(attach(tmp_path, tao_record(), points), TAO.series,
                                     faults)
    assert not faults
    return series.Series(0, result)


def drawn(one: series.Series):
    [options] = [options for kind, options in plots.parse_family_plot_entries(TAO)
                 if kind is timeline]
    return timeline.draw_series(one.points, 'title', one.server_names, TAO.bands,
                                options['panels'])


def marks(axes, fill: str) -> list[float]:
    """Where the marks of one kind stand."""
    return [x for line in axes.lines if line.get_marker() == 'o'
            and line.get_fillstyle() == fill for x in line.get_xdata()]


def test_the_units_of_series_are_those_of_the_metrics():
    for units in TAO.series.values():
        for metric, unit in units.items():
            assert all_metrics().get(
                metric, {'unit': '1'})['unit'] == unit


def test_what_is_attached_is_no_perflog(tmp_path):
    site(tmp_path, tao_record(), rows())
    frame, faults = all_records.read(tmp_path / 'perflogs', on_error='collect')
    assert len(frame) == 1 and not faults
    # Only folders of measurements: what else lies about is still a fault.
    (tmp_path / 'perflogs' / 'alpha' / 'more').mkdir()
    (tmp_path / 'perflogs' / 'alpha' / 'more' / 'a.log').write_text('x\n')
    assert len(all_records.read(tmp_path / 'perflogs', on_error='collect')[1]) == 1


def test_a_run_is_drawn_over_time(tmp_path):
    """The bands of version 2 are others."""
    made = [tao_record(), tao_record(params='job=autoscale_v2_beta', measurement='2')]
    make.write(tmp_path / 'perflogs', made)
    for record in made:
        attach(tmp_path / 'perflogs', record, rows())
    code, words = page(tmp_path)
    assert code == 0
    assert '(valid: 75 to 80 %); thin: user mode (valid: 25 to 30 %)' in words
    for part in ('tao_server (embedded): over time, ', 'requests per second; thin',
                 'hit ratio, valid: 0.88 to 0.90', 'warm-up', 'server 0',
                 'total (valid: 70 to 80 %)',
                 'thin: user mode (valid: 15 to 30 %)',
                 'Time since the first server started (s)'):
        assert part in words
    assert 'not valid' not in words.lower()


def test_without_series_there_is_no_metric_and_no_fault(tmp_path):
    make.write(tmp_path / 'perflogs', [tao_record()])
    code, words = page(tmp_path)
    assert code == 0 and 'over time' not in words.lower()


def test_only_the_newest_run_of_a_case(tmp_path):
    make.write(tmp_path / 'perflogs', [
        old := tao_record(day=1), new := tao_record(day=2)])
    attach(tmp_path / 'perflogs', old, rows()).write_text('damaged')
    attach(tmp_path / 'perflogs', new, rows())
    result = series.read_series_of_newest_runs(all_records.read(tmp_path / 'perflogs'))
    assert len(result.series) == 1 and not result.faults


def test_cases_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(series, 'MAX_RUNS', 2)
    for day in range(5):
        record = tao_record(day=day, params=f'job={day}')
        site(tmp_path, record, rows()[:6], '-n one')
    result = series.read_series_of_newest_runs(all_records.read(tmp_path / 'perflogs'))
    assert len(result.series) == 2 and result.more == 3
    code, words = page(tmp_path)
    assert code == 0 and '3 older sessions are not drawn' in words


HEAD = ','.join(series.COLUMNS)
GOOD = '1,server 0,total_qps,5,1/s,test,1,'


@pytest.mark.parametrize(('lines', 'line', 'reason'), [
    (['{}'], 1, 'the first line is not the header of a file of series'),
    ([HEAD], 1, 'the file is cut off'),
    ([HEAD, GOOD, GOOD[:-4]], 3, 'the line has 6 columns, not 8'),
    ([HEAD, GOOD, '1,"x'], 3, 'unexpected end of data'),
    ([HEAD, GOOD, GOOD], 3, 'second 1, series server 0, metric total_qps occurs'),
    *[([HEAD, GOOD, bad], 3, reason) for bad, reason in (
        ('x,server 0,total_qps,5,1/s,test,1,', "second 'x' is not a finite"),
        ('-1,server 0,total_qps,5,1/s,test,1,', "second '-1' is less than"),
        ('2,server 0,total_qps,nan,1/s,test,1,', "value 'nan' is not a"),
        ('2,server x,total_qps,5,1/s,test,1,', "series 'server x' is not"),
        ('2,cpu,cpu_user,5,%,test,,', "series 'cpu' is not 'server N' or"),
        ('2,server 0,cpu_user,5,%,test,1,', "metric 'cpu_user' is not one"),
        ('2,server 0,total_qps,5,1/min,test,1,', "unit '1/min' of total_qps"),
        ('2,server 0,total_qps,5,1/s,pause,1,', "phase 'pause' is not one"),
        ('2,server 0,total_qps,5,1/s,test,,', "counts '' is not allowed for a"),
        ('2,cpu n1,cpu_user,5,%,test,1,', "counts '1' is not allowed for a cpu"),
        ('2,server 0,total_qps,5,1/s,test,0,', "counts is '0' and why is"),
        ('2,server 0,total_qps,5,1/s,test,1,low', "counts is '1' and why is"))]])
def test_a_damaged_file_is_refused(tmp_path, lines, line, reason):
    file = attach(tmp_path, tao_record(), [])
    file.write_text('\n'.join(lines) + '\n')
    faults: list = []
    assert series.read_series_file(file, TAO.series, faults).empty
    [fault] = faults
    assert (fault.line, reason in fault.reason) == (line, True), fault


@pytest.mark.parametrize('text', ['', f'{HEAD}\n{GOOD}'])
def test_a_file_that_is_cut_off_is_a_fault_of_the_page(tmp_path, capsys, text):
    file = site(tmp_path, tao_record(), [])
    file.write_text(text)
    code, words = page(tmp_path)
    assert code == 1 and f'{file}:' in words and 'cannot be read (' in words
    assert f'{file}:' in capsys.readouterr().err
    assert 'server 0' not in words


def test_an_unreadable_file_is_a_fault(tmp_path):
    file = site(tmp_path, tao_record(), rows())
    file.unlink()
    file.mkdir()
    [fault] = series.read_series_of_newest_runs(
        all_records.read(tmp_path / 'perflogs')).faults
    assert f'{file}:1: cannot be read' in str(fault)


def test_a_case_cannot_lead_elsewhere(tmp_path):
    file = site(tmp_path, tao_record(), rows())
    make.write(tmp_path / 'perflogs', [
        tao_record(day=9, measurement=f'../{file.parent.parent.name}/'
                   f'{file.parent.name}')])
    result = series.read_series_of_newest_runs(all_records.read(tmp_path / 'perflogs'))
    assert result == series.Newest([], [], 0)


def test_points_that_count_are_filled(tmp_path):
    one = read(tmp_path, rows(dip=range(30, 34)))
    for axes in drawn(one).axes[:2]:
        full, hollow = marks(axes, 'full'), marks(axes, 'none')
        assert [x for x in hollow if 22 < x <= 52] == [30, 31, 32, 33]
        assert set(full) == {*range(23, 30), *range(34, 53)}


def test_a_metric_has_its_parts(tmp_path):
    metric = drawn(read(tmp_path, rows(servers=2)))
    qps, hit, cpu = metric.axes
    assert [a.get_ylabel() for a in metric.axes] == [
        'Total queries per second', '', 'CPU total (%)']
    assert [t.get_text() for t in metric.legends[0].texts] == [
        'server 0', 'server 1', 'cpu n1', 'does not count']
    assert {t.get_text() for t in qps.texts} == {'warm-up', 'test'}

    def spans(axes):
        inside = axes.transData.inverted()
        return {tuple(inside.transform(p.get_window_extent()).ravel().round(
            2).tolist()) for p in axes.patches}
    # What is shaded ends where the next phase begins.
    edges = {(left, right) for left, _, right, _ in spans(qps)}
    assert edges == {(0.0, 20.1), (20.1, 22.1), (52.1, 55.1)}
    for axes, bands in ((hit, [(0.88, 0.9)]), (cpu, [(70, 80), (15, 30)])):
        heights = {(low, high) for _, low, _, high in spans(axes)}
        assert heights >= set(bands)


def test_of_nothing_there_is_no_hit_ratio(tmp_path):
    _, hit, _ = drawn(read(tmp_path, rows())).axes
    [line] = [line for line in hit.lines if line.get_marker() != 'o']
    for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
        assert (y == y) == (x <= 20 or 22 < x <= 52)


def test_six_servers_keep_their_own_look(tmp_path):
    metric = drawn(read(tmp_path, rows(servers=12)))
    names = [t.get_text() for t in metric.legends[0].texts]
    assert names[:12] == [f'server {n}' for n in range(12)]
    looks = {(h.get_color(), h.get_linestyle())
             for h in metric.legends[0].get_lines()[:12]}
    assert len(looks) == 12


def test_many_points_are_thinned_but_not_a_dip(tmp_path):
    points = [[n, 'server 0', 'total_qps', 5 + (n == 7000), '1/s', 'test',
               int(n != 7000), LOW * (n == 7000)] for n in range(10000)]
    [axes] = [a for a in drawn(read(tmp_path, points)).axes
              if a.get_ylabel() == 'Total queries per second']
    assert marks(axes, 'none') == [7000]
    assert len(marks(axes, 'full')) < 150


def test_odd_series_can_be_drawn(tmp_path, monkeypatch):
    odd = [
        rows(servers=0), rows(cpu=()), rows()[:1], rows(servers=3)[:8],
        [[0, 'server 0', 'hit_rate', 0, '1', 'warmup', 1, '']],
        [[0, 'cpu a', 'cpu_user', 0, '%', 'after', '', ''],
         [0, 'cpu b', 'cpu_total', 0, '%', 'after', '', '']],
        [[1, 'server 3', 'fast_qps', 0, '1/s', 'test', 1, '']]]
    monkeypatch.setattr(series, 'MAX_RUNS', len(odd))
    made = [tao_record(params=f'job={number}', measurement=f'{number:012x}')
            for number in range(len(odd))]
    make.write(tmp_path / 'perflogs', made)
    for record, points in zip(made, odd, strict=True):
        attach(tmp_path / 'perflogs', record, points)
    code, words = page(tmp_path)
    assert code == 0 and words.count('over time, ') == len(odd)


def test_an_invalid_run_says_what_made_it_so(tmp_path):
    reasons = ['hit ratio 0.98, not 0.88 to 0.9: too few keys', 'server 1: <none>']
    made = [tao_record('completed', 0.0, repetition=0, reference='1.0', lower='0.0',
                       result='fail', guard='validity', params=f'job={number}',
                       measurement=f'{number:012x}') for number in range(2)]
    make.write(tmp_path / 'perflogs', made)
    with_reasons, _ = (attach(tmp_path / 'perflogs', record, rows()) for record in made)
    (with_reasons.parent / 'invalid.txt').write_text('\n'.join(reasons) + '\n')
    code, words = page(tmp_path)
    assert code == 1
    titles = re.findall(r'over time, [^,]*(?:, [^,]*)?, 02 Nov 03:00 UTC, NOT VALID',
                        words)
    assert len({*titles}) == 2, words
    notes = re.findall(r'<p class="fail">Not valid \(guard: validity\): (.*?)</p>',
                       shown(tmp_path))
    assert sorted(map(html.unescape, notes)) == [
        '; '.join(reasons), 'no reason was recorded']


def test_kept_metrics_of_a_refused_run_are_a_series_apart(tmp_path):
    make.write(tmp_path / 'perflogs', [
        *[tao_record(day=day) for day in (1, 2)],
        tao_record('completed', 0.0, day=3, guard='validity'),
        tao_record(value=99.0, day=3)])
    records = sections.records_for_plots(
        build_tidy_records(all_records.read(tmp_path / 'perflogs')),
        'taobench', [], [])
    [panel] = plots.metric_panels(records, ('total_qps',))
    assert dict(panel.points_of_panel[['value', 'label']].itertuples(index=False)) == {
        9000.0: '', 99.0: 'not valid'}
    code, words = page(tmp_path)
    assert code == 1
    assert 'guard: validity values kept' in words


def test_metrics_without_a_point_are_drawn_and_listed(tmp_path):
    names = ('total_qps', 'fast_qps', 'hit_ratio', 'score', 'cpu_total',
             'num_data_points', 'spawned_instances')
    make.write(tmp_path / 'perflogs', [
        tao_record(name, 0.5 + day, day=day) for name in names
        for day in (1, 2)])
    code, words = page(tmp_path)
    assert code == 0 and 'tao_server (embedded): total_qps' in words
    [data] = re.findall(r'<script id="data"[^>]*>(.*?)</script>',
                        shown(tmp_path), re.S)
    numbers = json.loads(data)['numbers']
    result = {numbers['metrics'][metric][0]: point[1:6]
              for _, metric, [point] in numbers['rows']}
    # Newest, median, least and most of two runs.
    assert result == {name: [2.5, 2.0, 1.5, 2.5, 2] for name in names}
