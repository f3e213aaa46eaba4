"""Metrics by family.yaml: a module a kind, options that are checked."""
from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import perflogs_factory as make
import pytest

from config import families as known
from config import strict
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
    text = (ROOT / 'docs/reference/page.md').read_text('utf-8')
    text = text.partition('### Kinds\n')[2].partition('\n###')[0]
    assert plots.plot_kinds() == sorted(re.findall(r'^\| `(\w+)`', text, re.M))


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
            '- {kind: bars, at: 8 B}',
            2,
            "bars: at: expected a size in B, smallest or largest, got '8 B'",
        ),
        (
            '- {kind: scaling, fit: log}',
            2,
            "scaling: fit: 'log' is not allowed; did you mean 'log2'?",
        ),
        (
            '- {kind: box, call: 5}',
            2,
            'box: call: expected text, got 5',
        ),
        (
            '- kind: timeline\n  panels:\n  - {of: server, metric: x}',
            4,
            'timeline: panels: says is missing',
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
    assert text.count('<figure>') == 2


def test_a_family_without_a_folder_is_drawn(tmp_path):
    code, text = page(tmp_path, [make.record(
        'latency', 1.0, 8, family='gone', day=day) for day in (1, 2)])
    assert code == 0 and text.count('<figure>') == 2


def test_what_a_benchmark_tells_stands_beside_its_plots(tmp_path):
    _, text = page(tmp_path, [make.record('latency', 1.0, 8)])
    tells = FAMILIES['osu'].description_of_program('osu_latency')
    section = text[text.index('id="family-osu"'):text.index('id="numbers"')]
    assert tells and '<figure>' in section
    assert f'<dt>osu_latency (embedded)</dt>\n<dd>{tells}</dd>' in section


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
        make.record(metric, value, size, program=case, params=case)
        for case, bound in (('osu_bw', True), ('osu_bibw', False))
        for size in (1, 8) for metric, value in (
            ('bandwidth', 100.0 * size), *([('message_rate', 900.0)]
                                           * bound))]
    page(tmp_path, records)
    assert sorted(map(len, lines)) == [0, 1], lines
    [line] = max(lines, key=len)
    assert list(line.get_ydata()) == [900.0, 900.0]
