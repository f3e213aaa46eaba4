"""People's own metrics, and what the kinds of metrics say."""
from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import perflogs_factory as make
import pytest

from config.records import samples
from config.records.samples import Sample
from postprocess.records import read as read_records
from postprocess.report import charts, plot, plots, sections
from postprocess.report.plots import scaling
from postprocess.report.tidy import build_tidy_records


def drawn(tmp_path: Path, text: str, records: list[dict], *options: str
          ) -> tuple[int, list[Path]]:
    """Exit code, and the files."""
    file = tmp_path / 'plots.yaml'
    file.write_text(text)
    make.write(tmp_path / 'perflogs', records)
    code = plot.main([str(file), '--perflogs', str(tmp_path / 'perflogs'),
                      '--output', str(tmp_path / 'out'), *options])
    return code, sorted((tmp_path / 'out').glob('*'))


def records(tmp_path: Path, rows: list[dict]) -> plots.Records:
    make.write(tmp_path, rows)
    return sections.records_for_plots(
        build_tidy_records(read_records(tmp_path)), 'osu', [], [])


@pytest.mark.parametrize(
    ('text', 'line', 'reason'),
    [
        ('title: x\n', 1, 'plots is missing; write a list'),
        (
            'plots:\n- {kind: curve}\nplts: x\n',
            3,
            "unknown key 'plts'; did you mean 'plots'?",
        ),
        ('title: x\nplots: curve\n', 2, 'plots: expected a list'),
        (
            'plots:\n- kind: curve\n  metric: latncy\n',
            3,
            "did you mean 'latency'?",
        ),
        (
            'plots:\n- kind: curve\n  name: a/b\n',
            3,
            "name: expected the name of a file, got 'a/b'",
        ),
        ('plots:\n- {kind: curve\n', 3, 'not YAML'),
    ],
)
def test_a_wrong_file_says_file_line_and_key(tmp_path, capsys, text, line,
                                             reason):
    code, files = drawn(tmp_path, text, [make.record('latency', 1.0, 8)])
    assert code == 2 and not files
    [output] = capsys.readouterr().err.splitlines()
    assert output.startswith(f'plumb plot: {tmp_path}/plots.yaml:{line}: ')
    assert reason in output


def test_a_family_without_records_is_listed(tmp_path, capsys):
    make.write(tmp_path, make.curve('latency', float, [1, 8, 64]))
    assert plot.main(['--perflogs', str(tmp_path),
                      '--output', str(tmp_path / 'drawn')]) == 0
    output = capsys.readouterr()
    assert 'Point-to-point-latency-curve.svg' in output.out
    assert 'plumb plot: nccl: no records to draw' in output.err.splitlines()


def test_plots_of_a_file_on_dark_paper(tmp_path, capsys):
    code, files = drawn(tmp_path, '''
title: Nights of alpha
plots:
- {kind: curve, metric: latency, by: program, name: mine}
- {kind: timeline}
''', make.curve('latency', float, [1, 8, 64]), '--dark', '--png')
    # The second entry has nothing to show, which is told.
    assert code == 0
    output = capsys.readouterr()
    assert f'{tmp_path}/plots.yaml:5: plots: timeline: no record matches' in (
        output.err)
    assert [file.name for file in files] == ['mine.png', 'mine.svg']
    assert all(str(file) in output.out for file in files)
    text = files[1].read_text()
    assert 'Nights of alpha: latency' in text
    assert charts.DARK[2] in text and charts.LIGHT[3] not in text
    # The colours of a page are as they were.
    assert [charts.INK, charts.GRID, charts.PAPER,
            *charts.COLOURS] == charts.LIGHT


def test_what_departs_from_the_expectation_is_marked(tmp_path):
    """a + b log2 N, one point of six half as long again."""
    rows = [make.record('latency', (2 + 3 * n) * (1.5 if n == 4 else 1),
                        day=day, program='osu_barrier', check='OsuCollective',
                        num_nodes=2 ** n, num_tasks=2 ** n, tasks_per_node=1,
                        params=f'layout={2 ** n}xone program=osu_barrier')
            for n in range(6) for day in range(3)]
    [figure] = scaling.drawings_from_records(records(tmp_path, rows), over='num_nodes',
                                             fit='log2', at=(), metric=('latency',))
    frame = figure.args[0]
    assert set(frame['label']) == {''} and len(frame) == 6
    line, off = scaling.fit_and_deviations(frame, 'log2')
    assert line is not None
    assert line.tolist() == pytest.approx([2, 5, 8, 11, 14, 17])
    assert [round(v, 2) for v in off if v == v] == [0.5]
    [axes] = figure.chart(*figure.args).axes
    assert '+50 %' in [text.get_text() for text in axes.texts]
    # Two node counts say nothing of a line of two parameters.
    assert scaling.fit_and_deviations(frame[:2], 'log2')[0] is None


def test_nodes_that_follow_from_what_is_on_the_axis_split_no_line(tmp_path):
    """Nodes of clients on the axis, those of the database are a line's."""
    rows = [make.record('latency', clients, num_nodes=clients + servers,
                        num_tasks=clients + servers, tasks_per_node=1,
                        params=f'db_nodes={servers} client_nodes={clients}')
            for servers in (1, 3) for clients in (1, 2, 3)]
    [figure] = scaling.drawings_from_records(
        records(tmp_path, rows), over='client_nodes', fit='linear', at=(),
        metric=('latency',), by=('db_nodes',))
    assert figure.args[0].groupby('label')['x'].agg(list).to_dict() == {
        'db_nodes 1': [1, 2, 3], 'db_nodes 3': [1, 2, 3]}


def write_samples(root: Path, row: dict, calls: Iterable[Sample]) -> None:
    """The samples of a record."""
    folder = root / 'files' / row['session'] / row['measurement']
    folder.mkdir(parents=True)
    (folder / samples.file_name(make.short_id(row))).write_text(
        samples.samples_as_csv(calls))


def test_calls_of_a_run_are_drawn_from_its_samples(tmp_path):
    row = make.record('latency', 1.0, 8, measurement='c0ffee')
    make.write(tmp_path / 'perflogs', [row])
    write_samples(tmp_path / 'perflogs', row, (
        Sample(rank, call, n, 0.001 * (n + 1), 0.01 * n)
        for rank in range(3) for call in ('put', 'wall_time') for n in range(5)))
    result = plot.records_of_family(
        build_tidy_records(read_records(tmp_path / 'perflogs')), '')
    [boxes] = plots.module_of_kind('box').drawings_from_records(result, call=('w*',))
    [axes] = boxes.chart(*boxes.args).axes
    assert boxes.args[0][['count', 'q2']].values.tolist() == [[15, 3000]]
    assert boxes.args[1].startswith('osu_latency (embedded): wall_time, all calls\n')
    # A metric of this name is in seconds.
    assert axes.get_ylabel() == 'Time of a call (µs, log)\nlower is better'
    [one] = plots.module_of_kind('timeline').drawings_from_records(result)
    [axes] = one.chart(*one.args).axes
    assert sum(len(c.get_paths()) for c in axes.collections) == 30
    assert [t.get_text() for t in axes.get_yticklabels()] == ['0', '1', '2']
    assert axes.get_ylabel() == 'Rank'
    [one] = plots.module_of_kind('timeline').drawings_from_records(
        result, rows='request')
    [axes] = one.chart(*one.args).axes
    assert axes.get_ylabel() == 'Request'


def write_samples_of_arrangements(folder):
    """Two databases and three numbers of clients, with calls of their own."""
    rows = []
    for db in (4, 16):
        for clients in (8, 32, 128):
            rows.append(make.record('latency', 1.0, 8) | {
                'params': f'db_nodes={db} client_total={clients} '
                          f'client_nodes={clients // 4}',
                'measurement': f'{db}c{clients}'})
    make.write(folder, rows)
    for row in rows:
        clients = int(row['measurement'].partition('c')[2])
        write_samples(folder, row, (
            Sample(0, 'put', n, 0.001 * clients * (n + 1)) for n in range(5)))
    return plot.records_of_family(build_tidy_records(read_records(folder)), '')


def test_boxes_of_calls_over_a_field(tmp_path):
    result = write_samples_of_arrangements(tmp_path)
    [one] = plots.module_of_kind('box').drawings_from_records(
        result, call=('*',), by=('db_nodes',), over='client_total')
    [axes] = one.chart(*one.args).axes
    assert [t.get_text() for t in axes.get_xticklabels()] == ['8', '32', '128']
    assert axes.get_xlabel() == 'Number of clients'
    # What each number of clients has once (client_nodes) is in no label.
    assert {t.get_text() for t in axes.figure.legends[0].texts} > {
        'db_nodes 4 (5 values)', 'db_nodes 16 (5 values)'}
    # Of 0.008 to 0.04 s, 0.032 to 0.16 s and 0.128 to 0.64 s.
    medians = one.args[0].sort_values(['label', 'x'])['q2'].tolist()
    assert medians == pytest.approx([24_000, 96_000, 384_000] * 2)


def test_bars_start_at_zero_and_show_the_reference(tmp_path):
    rows = records(tmp_path, [make.record(
        'init_time', 300.0 * n, program='osu_init', num_nodes=n,
        params=f'num_nodes={n}', reference=290.0, upper=0.2)
        for n in (1, 2)])
    [figure] = plots.module_of_kind('bars').drawings_from_records(
        rows, metric=('init_time',))
    [axes] = figure.chart(*figure.args).axes
    assert [bar.get_width() for bar in axes.patches[:2]] == [300, 600]
    assert axes.get_xscale() == 'linear' and axes.get_xlim()[0] == 0
    assert '300 ms' in axes.texts[0].get_text()


def test_the_newest_session_of_a_curve_is_one_session(tmp_path):
    """Sizes that it lacks are not taken from another one."""
    rows = records(tmp_path, [
        *make.latencies([1.0, 2.0], sizes=(1, 8, 64)),
        *make.curve('latency', lambda size: 3.0, (1, 8), day=2),
        *make.latencies([9.0], sizes=(1, 8, 64), environ='mpich')])
    [drawing] = plots.module_of_kind('curve').drawings_from_records(
        rows, metric=('latency',))
    frame = drawing.args[0].set_index(['label', 'point'])['value']
    assert frame['openmpi'].fillna(0).tolist() == [3, 3, 0]
    figure = drawing.chart(*drawing.args)
    assert [text.get_text() for text in figure.legends[0].texts] == [
        'mpich (1 session)', 'openmpi (3 sessions)',
        'median of all sessions', '8 of 10 sessions']


def test_a_curve_has_another_metric_of_its_own_session_beside_it(tmp_path):
    """A ring of the same job, and not the one of another environment."""
    rows = records(tmp_path, [
        make.record(metric, value * size, size, day=day, environ=environ)
        for day, environ, factor in ((1, 'openmpi', 1.0), (2, 'mpich', 0.5))
        for size in (1, 8)
        for metric, value in (('bandwidth', factor), ('message_rate', factor))])
    [drawing] = plots.module_of_kind('curve').drawings_from_records(
        rows, metric=('bandwidth',), beside='message_rate')
    frame = drawing.args[0]
    assert frame['beside'].tolist() == frame['value'].tolist()
    figure = drawing.chart(*drawing.args)
    assert 'message_rate of the same job' in [
        text.get_text() for text in figure.legends[0].texts]


def test_plots_for_a_paper_have_its_widths_and_fonts(tmp_path):
    import re as regular
    make.write(tmp_path / 'perflogs', make.latencies([1.0, 2.0, 3.0]))
    out = tmp_path / 'out'
    assert plot.main(['--perflogs', str(tmp_path / 'perflogs'), '--paper',
                      '--output', str(out)]) == 0
    for width in ('3.5', '7'):
        svg = next(out.glob(f'*curve-{width}in.svg'))
        assert svg.with_suffix('.pdf').read_bytes().startswith(b'%PDF')
        text = svg.read_text()
        points = float(regular.search(r'<svg[^>]* width="([\d.]+)pt"', text)[1])
        assert points == pytest.approx(72 * float(width), abs=0.5)
        fonts = {float(size) for size in regular.findall(
            r'font(?:-size)?: (?:bold )?([\d.]+)px', text)}
        assert fonts and min(fonts) >= 8 and max(fonts) <= 9


def test_titles_axes_and_texts_say_what_a_plot_shows(tmp_path):
    rows = records(tmp_path, make.curve('latency', lambda size: 5.0 + size, (1, 4096)))
    [drawing] = plots.module_of_kind('curve').drawings_from_records(
        rows, metric=('latency',))
    assert '6 µs at 1 B to 4101 µs at 4 KiB' in drawing.about
    figure = drawing.chart(*drawing.args)
    [axes] = figure.axes
    assert axes.get_ylabel() == 'Latency (µs, log)\nlower is better'
    assert axes.get_xlabel() == 'Size (log)'
    origin = drawing.args[1].partition('\n')[2]
    assert origin == 'alpha:cpu · 2026-11-02 · openmpi 5.0.6 embedded 7.5'
    assert origin in [text.get_text() for text in figure.texts]


def test_a_line_of_means_has_their_interval_and_boxes_have_values(tmp_path):
    rows = records(tmp_path, [
        make.record('latency', value * scale, size, day=day)
        for size, scale in ((8, 1), (16, 100))
        for day, value in enumerate([1.0, 2.0, 3.0, 10.0])])
    [drawing] = plots.module_of_kind('curve').drawings_from_records(
        rows, metric=('latency',), line='mean')
    at_8 = drawing.args[0].iloc[0]
    assert at_8['value'] == 4.0 and 'median' not in at_8
    # No line of the newest session beside it.
    axes, = drawing.chart(*drawing.args).axes
    assert [line.get_ydata().tolist() for line in axes.lines if len(
        line.get_ydata())] == [[4.0, 400.0]]
    # Any mean of four of these values, and no interval as wide as the values.
    assert 1.0 < at_8['low'] < 4.0 < at_8['high'] < 10.0
    [drawing] = plots.module_of_kind('box').drawings_from_records(
        rows, metric=('latency',), values='absolute')
    assert drawing.args[0][['x', 'q2']].values.tolist() == [[8, 2.5], [16, 250]]
    axes, = drawing.chart(*drawing.args).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ['8 B', '16 B']


def test_no_name_and_no_value_of_a_bar_is_cut(tmp_path):
    rows = records(tmp_path, [make.record(
        'latency', 1.234e-3 * threads, program='a_store_with_a_name',
        params=f'persistence={name} placement={place} threads={threads}')
        for name, place, threads in itertools.product(
            ['off', 'append_only_file'], ['intra_node', 'inter_node'], [1, 16])])
    [drawing] = plots.module_of_kind('bars').drawings_from_records(
        rows, metric=('latency',))
    with charts.use_theme_temporarily(False, 3.5):
        figure = drawing.chart(*drawing.args)
        axes = figure.axes[0]
        names = axes.texts
        assert [' '.join(name.get_text().split()).partition(':')[0] for name in names
                ] == [*drawing.args[0]['label']]
        for text in names:
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= figure.bbox.width, text
        tops = [name.get_window_extent().y1 for name in names]
        bottoms = [name.get_window_extent().y0 for name in names]
        assert all(below < above for below, above in zip(
            tops[1:], bottoms, strict=False))


def test_bars_of_inconclusive_values_are_hollow(tmp_path):
    rows = records(tmp_path, [make.record(
        'init_time', 300.0 * n, program='osu_init', num_nodes=n,
        params=f'num_nodes={n}', **{'inconclusive': 'other programs'} if n == 2 else {})
        for n in (1, 2)])
    [figure] = plots.module_of_kind('bars').drawings_from_records(
        rows, metric=('init_time',))
    [axes] = figure.chart(*figure.args).axes
    filled, hollow = axes.patches[:2]
    assert filled.get_facecolor()[3] > 0 and filled.get_linewidth() == 0
    assert hollow.get_facecolor()[3] == 0 and hollow.get_linewidth() > 0


@pytest.mark.parametrize('newest', [False, True])
def test_inconclusive_values_are_hollow_and_in_no_line_or_band(tmp_path, newest):
    days = range(4)
    disturbed = days[-1] if newest else 1
    rows = [record for day in days for record in make.curve(
        'latency', lambda size, day=day: 100.0 if day == disturbed else 1.0 + size / 64,
        [8, 64], day=day, **{'inconclusive': 'other programs'} if day == disturbed
        else {})]
    of_osu = records(tmp_path, rows)
    for kind, options in (('history', {'at': (8,)}), ('curve', {})):
        [drawing] = plots.module_of_kind(kind).drawings_from_records(
            of_osu, metric=('latency',), **options)
        figure = drawing.chart(*drawing.args)
        [axes] = figure.axes
        hollow = [line for line in axes.lines if line.get_fillstyle() == 'none'
                  and len(line.get_ydata())]
        shown = kind == 'history' or newest
        assert [set(line.get_ydata()) for line in hollow] == [{100.0}] * shown
        assert all(line.get_linestyle() == 'None' for line in hollow)
        assert all(max(line.get_ydata(), default=0) < 100 for line in axes.lines
                   if line not in hollow)
        assert all(area.get_paths()[0].vertices[:, 1].max() < 100
                   for area in axes.collections)
        texts = [text.get_text() for text in figure.legends[0].get_texts()]
        assert ('inconclusive, not compared' in texts) == shown
