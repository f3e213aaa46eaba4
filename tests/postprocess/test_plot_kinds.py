"""Metrics by family.yaml: a module a kind, options that are checked."""
from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip('pandas')
pytest.importorskip('matplotlib')
pytest.importorskip('jinja2')
import perflogs_factory as make

from config import families as known
from config import strict
from postprocess import perflogs
from postprocess.report import build as report
from postprocess.report import plots

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = known.families()


def family(tmp_path: Path, text: str, **more) -> known.Family:
    """A family whose plots are this YAML."""
    file = tmp_path / 'family.yaml'
    file.write_text(text)
    return dataclasses.replace(FAMILIES['osu'], name='new',
                               plots=strict.load_yaml(file)['plots'], **more)


def page(tmp_path: Path, records: list[dict]) -> tuple[int, str]:
    make.write(tmp_path / 'perflogs', records)
    code = report.main(['--perflogs', str(tmp_path / 'perflogs'),
                        '--output', str(tmp_path / 'out')])
    file = tmp_path / 'out' / 'index.html'
    return code, file.read_text('utf-8') if file.exists() else ''


@pytest.mark.parametrize('name', sorted(FAMILIES))
def test_plots_of_every_family_are_known(name):
    assert plots.parse_family_plot_entries(FAMILIES[name])


def test_every_kind_takes_the_options_that_it_has():
    for kind in map(plots.module_of_kind, plots.plot_kinds()):
        taken = inspect.signature(kind.drawings_from_records).parameters
        if 'choice' not in taken:
            assert set(kind.OPTIONS) <= set(taken), kind.__name__


def test_every_kind_is_documented():
    text = (ROOT / 'docs/reference/plots.md').read_text('utf-8')
    text = text.partition('## Kinds\n')[2].partition('\n## ')[0]
    assert plots.plot_kinds() == sorted(re.findall(r'^\| `(\w+)`', text, re.M))
    for kind in map(plots.module_of_kind, plots.plot_kinds()):
        assert kind.READING and callable(kind.drawings_from_records)


@pytest.mark.parametrize(
    ('text', 'line', 'reason'),
    [
        (
            '- {kind: curv}',
            2,
            "plots: kind: 'curv' is not allowed; did you mean 'curve'?",
        ),
        (
            '- {kind: curve}\n- kind: box\n  metrics: latency',
            4,
            "box: unknown key 'metrics'; did you mean 'metric'?",
        ),
        (
            '- {kind: times, metric: latency}',
            2,
            "times: unknown key 'metric'; allowed: none",
        ),
        (
            '- {kind: curve, metric: latncy}',
            2,
            "curve: metric: 'latncy' is not allowed; did you mean 'latency'?",
        ),
        (
            '- {kind: curve, metric: []}',
            2,
            'curve: metric: expected the name of a metric or a list of them, got []',
        ),
        (
            '- {kind: curve, limit: [latency, bandwidth]}',
            2,
            "curve: limit: ['latency', 'bandwidth'] is not allowed",
        ),
        (
            '- {kind: bars, where: program}',
            2,
            "bars: where: expected a mapping of fields to patterns, such as {program: ",
        ),
        (
            '- {kind: bars, where: {program: []}}',
            2,
            'where: program: expected a pattern or a list of them, got []',
        ),
        (
            '- kind: bars\n  where:\n    program: x\n    num nodes: 2',
            5,
            "where: num nodes: expected a field: a parameter, or one of family",
        ),
        (
            '- {kind: bars, by: [num nodes]}',
            2,
            "by: expected a field: a parameter, or one of family, ",
        ),
        ('- {kind: bars, title: 5}', 2, 'bars: title: expected text, got 5'),
        (
            '- {kind: bars, at: 8 B}',
            2,
            "bars: at: expected a size in B, smallest or largest, got '8 B'",
        ),
        (
            '- {kind: scaling, fit: log}',
            2,
            "scaling: fit: 'log' is not allowed; did you mean 'log2'?",
        ),
        ('- {kind: scaling, over: [a, b]}', 2, 'scaling: over: '),
        (
            '- {kind: violin, call: 5}',
            2,
            'violin: call: expected text, got 5',
        ),
        ('- {kind: ratio, of: [a, b]}', 2, 'ratio: of: '),
        ('- {kind: series, panels: 5}', 2, 'series: panels: expected a mapping, got 5'),
        (
            '- kind: series\n  panels:\n  - {of: server, metric: x}',
            4,
            'series: panels: says is missing',
        ),
    ],
)
def test_a_wrong_entry_says_file_line_and_key(tmp_path, text, line, reason):
    wrong = family(tmp_path, f'plots:\n{text}\n')
    with pytest.raises(strict.Fault) as err:
        plots.parse_family_plot_entries(wrong)
    assert str(err.value).startswith(
        f'checks/new/family.yaml:{line}: plots: '), err.value
    assert reason in str(err.value)


def test_a_wrong_entry_ends_the_report(tmp_path, capsys, monkeypatch):
    wrong = family(tmp_path, 'plots:\n- {kind: curv}\n')
    monkeypatch.setitem(FAMILIES, 'osu', wrong)
    assert page(tmp_path, [make.record()]) == (2, '')
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith('plumb report: checks/new/family.yaml:2: plots:')


def test_a_new_kind_is_one_module(tmp_path, monkeypatch):
    """As somebody would add one, here into a folder of its own."""
    (tmp_path / 'dots.py').write_text('''
from postprocess.report import charts
from postprocess.report.plots import CHOICE, metric_panels
OPTIONS = {'metric': CHOICE['metric']}
READING = 'Dots: a value each.'
def drawings_from_records(records, metric):
    for panel in metric_panels(records, metric):
        yield panel.make_drawing('dots', dots, panel.points_of_panel, panel.title)
def dots(frame, title):
    value, axes = charts.create_figure(title, charts.legend_entries(frame))
    axes.plot(frame['value'], 'o')
    return value
''')
    monkeypatch.setattr(plots, '__path__',
                        [*plots.__path__, str(tmp_path)])
    monkeypatch.setattr(plots, 'plot_kinds', lambda: ['dots'])
    monkeypatch.setitem(FAMILIES, 'osu', family(
        tmp_path, 'plots:\n- {kind: dots, metric: [latency, wall_time]}\n'))
    code, text = page(tmp_path, [make.record('latency', 1.0, 8),
                                 make.record('wall_time', 1.0)])
    assert code == 0
    assert text.count('<figure>') == 2 and 'Dots: a value each.' in text


def test_a_family_without_a_folder_is_drawn(tmp_path):
    code, text = page(tmp_path, [make.record(
        'latency', 1.0, 8, family='gone', day=day) for day in (1, 2)])
    assert code == 0 and text.count('<figure>') == 2


def test_what_a_benchmark_tells_stands_beside_its_plots(tmp_path):
    _, text = page(tmp_path, [make.record('latency', 1.0, 8)])
    tells = FAMILIES['osu'].description_of_program('osu_latency')
    section = text[text.index('id="family-osu"'):text.index('id="numbers"')]
    assert tells and '<figure>' in section
    assert f'<dt>osu_latency</dt>\n<dd>{tells}</dd>' in section


def test_no_family_is_named_in_postprocess():
    """But for the examples of its help texts."""
    names = re.compile(rf"(?i)(?<![a-z])({'|'.join(FAMILIES)})(?![a-z])")
    for file in (ROOT / 'postprocess').rglob('*.py'):
        text = file.read_text('utf-8')
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and './plumb ' in str(
                    node.value):
                for line in range(node.lineno - 1, node.end_lineno or 0):
                    lines[line] = ''
        for number, line in enumerate(lines, 1):
            assert not names.search(line), f'{file}:{number}: {line}'


def test_plots_that_are_the_same_are_not_drawn_again(tmp_path, monkeypatch):
    from postprocess.report import svg
    drawn: list[str] = []
    render = svg.render_svg

    def count(metric, name):
        drawn.append(name)
        return render(metric, name)
    monkeypatch.setattr(svg, 'render_svg', count)
    monkeypatch.setitem(FAMILIES, 'osu', family(
        tmp_path, 'plots:\n- kind: curve\n'))
    records = [make.record('latency', 1.0, size, case=p, program=p, params=p)
               for p in ('osu_latency', 'osu_bw') for size in (1, 8)]
    _, first = page(tmp_path, records)
    assert len(drawn) == 2
    _, second = page(tmp_path, [])
    assert len(drawn) == 2
    shown = re.findall(r'<figure>.*?</figure>', first, re.S)
    assert shown == re.findall(r'<figure>.*?</figure>', second, re.S)
    # A new value, and a metric that somebody changed: these are drawn.
    page(tmp_path, [make.record('latency', 2.0, 8, day=2, case='osu_bw',
                                program='osu_bw', params='osu_bw')])
    assert len(drawn) == 3 and 'osu_bw' in drawn[-1]
    [file] = (tmp_path / 'out' / 'plots').glob('*osu_latency*.svg')
    file.write_text(file.read_text()[:-40])
    page(tmp_path, [])
    assert len(drawn) == 4 and 'osu_latency' in drawn[-1]
    # A metric that no page has any more goes; what is not ours stays.
    rows = file.with_name('mine.svg')
    rows.write_text('<svg/>')
    monkeypatch.setitem(FAMILIES, 'osu', family(
        tmp_path, 'plots:\n- {kind: curve, metric: bandwidth}\n'))
    page(tmp_path, [])
    assert list(file.parent.iterdir()) == [rows]


def test_a_limit_of_the_devices_is_a_line_of_the_curve(tmp_path, monkeypatch):
    """Only where a test case has one, and in its own colour."""
    from postprocess.report.plots import curve
    lines = []
    draw = curve.draw_curves

    def count(frame, *more):
        picture = draw(frame, *more)
        lines.append([line for line in picture.axes[0].lines
                      if line.get_linestyle() == '-.'])
        return picture
    monkeypatch.setattr(curve, 'draw_curves', count)
    monkeypatch.setitem(FAMILIES, 'osu', family(
        tmp_path, 'plots:\n'
        '- {kind: curve, metric: bandwidth, limit: message_rate}\n'))
    records = [
        make.record(metric, value, size, case=case, program=case, params=case)
        for case, bound in (('osu_bw', True), ('osu_bibw', False))
        for size in (1, 8) for metric, value in (
            ('bandwidth', 100.0 * size), *([('message_rate', 900.0)]
                                           * bound))]
    page(tmp_path, records)
    assert sorted(map(len, lines)) == [0, 1], lines
    [line] = max(lines, key=len)
    assert list(line.get_ydata()) == [900.0, 900.0]


def test_a_page_asks_once_how_far_its_cases_are(tmp_path, monkeypatch):
    from cli.session import account
    from postprocess import outcomes
    from postprocess.references import progress
    requests: list[int] = []
    ahead = progress.progress_of_test_cases

    def count(frame, *more):
        requests.append(len(frame))
        return ahead(frame, *more)
    monkeypatch.setattr(outcomes, 'progress_of_test_cases', count)
    monkeypatch.setattr(report, 'progress_of_test_cases', count)
    make.write(tmp_path / 'perflogs', make.latencies(make.CALM))
    made = report.write_page(str(tmp_path / 'perflogs'), tmp_path / 'out')
    run = make.record(day=4)['run']
    plan = type('Plan', (), {'session_name': run, 'cases': []})
    account.rows_by_test_case(plan, made.records, [], made.ahead)
    assert len(requests) == 1
    assert outcomes.sessions_needed_by_test_case(
        made.records, run, made.ahead
    ) == outcomes.sessions_needed_by_test_case(made.records, run)


def test_two_systems_do_not_wait_for_each_other(tmp_path):
    from postprocess import outcomes
    make.write(tmp_path, make.latencies(make.CALM * 3)
               + make.latencies([1.0], system='beta', case='b'))
    frame = perflogs.read(tmp_path)
    needs = outcomes.sessions_needed_by_test_case(frame)
    assert needs['cpu', 'openmpi', 'b']
    assert not needs['cpu', 'openmpi', 'c0ffee00']


def test_more_runs_than_a_line_has_points():
    """A run is a category, of which some may not be drawn."""
    import pandas as pd

    from postprocess.report import charts
    from postprocess.report.plots import runs
    names = [f'run{n:04}' for n in range(3 * runs.MAXIMUM)]
    frame = pd.DataFrame({
        'label': 'a', 'speed': 'fast', 'value': range(1, 1 + len(names)),
        'run': pd.Categorical(names, ['other', *names]),
        'time': pd.date_range('2026-01-01', periods=len(names), tz='UTC'),
        'reference': 1.0, 'lower': float('nan'), 'upper': 0.2})
    line = runs.draw_values_over_sessions(
        frame, 'many', charts.Quantity('Latency', 'us')).axes[0].lines[0]
    assert 2 < len(line.get_xdata()) <= runs.MAXIMUM
    assert max(line.get_xdata()) > 2.9 * runs.MAXIMUM


def test_a_heat_map_has_its_sizes_and_a_single_size_has_no_axis():
    import pandas as pd

    from postprocess.report.plots import heatmap
    frame = pd.DataFrame([
        {'label': label, 'speed': 'fast', 'point': size, 'value': 1.1, 'median': 1.0}
        for label in 'ab' for size in (1, 8, 64)])
    axes = heatmap.draw_heatmap(frame, 'many', 'lower').axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == [
        '64 B', '8 B', '1 B']
    axes = heatmap.draw_heatmap(frame[frame['point'] == 8], 'one', 'lower').axes[0]
    assert not len(axes.get_xticks()) and not axes.get_xlabel()
