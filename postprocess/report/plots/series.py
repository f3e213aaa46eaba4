"""Series of a session over time (series.csv), one panel below the other.

The panels are the family's, in its family.yaml:

    - kind: series
      panels:
        - {of: server, metric: total_qps, beside: slow_qps,
           says: 'requests/s; thin: requests that missed'}
        - {of: server, metric: hit_rate, share_of: total_qps,
           says: 'hit ratio, valid: {hit_rate}'}
        - {of: cpu, metric: cpu_total, beside: cpu_user,
           says: 'CPU: all (valid: {cpu_total})'}

`of` and the metrics are of the family's `series`; `beside` is drawn thin or
dashed in the same panel; of `share_of`, no share is drawn where that is
nothing. `says` stands above the panel, a metric in braces is its band.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from config.families import families
from config.records.units import axis_text, quantity_text, tick_text

from .. import charts
from . import TEXT, Drawing, Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bands = Mapping[str, list[float]]
Panel = dict[str, str]

READING = ('Over time: the newest session of each test case. Phases other '
           'than the test are shaded. Filled points count, hollow points do '
           'not. Neighbouring points of the same kind are drawn as their '
           'mean. The values of a valid session lie in the green band; values '
           'of the warm-up that are far below the band are cut off.')
OPTIONS = {'panels': {
    'type': 'array', 'minItems': 1, 'default': [],
    'expected': 'a list of {of, metric, says}',
    'items': {
        'type': 'object', 'required': ['of', 'metric', 'says'],
        'additionalProperties': False, 'properties': {
            name: TEXT for name in ('of', 'metric', 'says', 'beside', 'share_of')}}}}


def drawings_from_records(records: Records, panels: Sequence[Panel]
                          ) -> Iterator[Drawing]:
    """A plot for each run that left series which a panel shows.

    :param panels: empty: one for each metric of the family's series
    """
    family = families().get(records.family)
    panels = panels or [
        {'of': kind, 'metric': metric, 'says': f'{metric} ({kind})'}
        for kind, units in (family.series if family else {}).items()
        for metric in units]
    for run in records.over_time:
        if not set(run.series.series_kinds) & {panel['of'] for panel in panels}:
            continue
        yield Drawing(
            f'{run.program} time {run.name}', run.title, draw_series_panels,
            (run.series.points, run.title, run.series.server_names, run.bands,
             panels), note=run.note)


def draw_series_panels(points: pd.DataFrame, title: str, servers: list[str],
                       bands: Bands, panels: Sequence[Panel]) -> Figure:
    """The panels of a run, those that it has points of.

    :param points: as series.read gives them
    :param servers: series that are servers, in their order
    :param bands: metric -> where a valid run is
    """
    # A line and a mark for each server; further ones begin anew, dashed.
    looks = {name: (charts.COLOURS[n % len(charts.COLOURS)],
                    ('-', '--', ':')[n // len(charts.COLOURS) % 3])
             for n, name in enumerate(servers)}
    others = [n for n in dict.fromkeys(points['series']) if n not in looks]
    names: list[tuple] = [(name, *look, 'o') for name, look in looks.items()]
    if (points['counts'] == '0').any():
        names.append(('does not count', charts.INK, '', 'o',
                      {'fillstyle': 'none'}))
    there = {name.partition(' ')[0] for name in points['series'].unique()}
    panels = [panel for panel in panels if panel['of'] in there]
    heights = [1.5 if panel['of'] == 'server' and panel['metric'] not in bands
               else 1.05 for panel in panels]
    figure, rows = charts.create_figure(title, names, rows=len(panels),
                                        height=sum(heights))
    rows = np.atleast_1d(rows)
    step = ((1 + (len(servers) > 2)) * points['second'].max()
            / charts.MAX_POINTS or 1)
    for panel, axes in zip(panels, rows, strict=True):
        if panel['of'] == 'server':
            _draw_server_lines(axes, points, looks, step, panel)
        else:
            _draw_node_lines(axes, points, [
                name for name in others
                if name.partition(' ')[0] == panel['of']], step, panel)
        _set_axis_and_title(axes, points, panel, bands)
    _shade_phases_outside_test(rows, points)
    return figure


def _merge_close_points(points: pd.DataFrame, name: str, metric: str, step: float,
                        share_of: str = '') -> pd.DataFrame:
    """Points of one series; neighbours closer than `step` as their mean, if
    they are alike.

    :param share_of: a metric that the other one is a share of
    """
    rows = points[points['series'] == name]
    whole = rows.loc[(rows['metric'] == share_of) & (rows['value'] > 1),
                     'second']
    rows = rows[rows['metric'] == metric]
    if share_of:                    # of nothing there is no share
        rows = rows.assign(value=rows['value'].where(
            rows['second'].isin(whole)))
    look = rows['counts'] + rows['phase']
    turns = (look != look.shift()).cumsum().rename('turn')
    return rows.groupby([turns, rows['second'] // step]).agg(
        {'second': 'mean', 'value': 'mean', 'counts': 'first'})


def _draw_server_lines(axes: Axes, points: pd.DataFrame,
                       looks: dict[str, tuple[str, str]], step: float, panel: Panel
                ) -> None:
    """A line for each server; points that do not count are hollow."""
    for name, (colour, line) in looks.items():
        if 'beside' in panel:
            other = _merge_close_points(points, name, panel['beside'], step)
            axes.plot(other['second'], other['value'], line, color=colour,
                      lw=0.6)
        rows = _merge_close_points(points, name, panel['metric'], step,
                                   panel.get('share_of', ''))
        axes.plot(rows['second'], rows['value'], line, color=colour, lw=0.9)
        for counts, fill in (('1', 'full'), ('0', 'none')):
            marked = rows[rows['counts'] == counts]
            axes.plot(marked['second'], marked['value'], 'o', color=colour,
                      ms=2.4, mew=0.5, fillstyle=fill)


def _draw_node_lines(axes: Axes, points: pd.DataFrame, nodes: list[str],
                     step: float, panel: Panel) -> None:
    """A line for each node, named where there are several."""
    for n, node in enumerate(nodes):
        colour = (charts.INK if len(nodes) == 1
                  else charts.COLOURS[n % len(charts.COLOURS)])
        for key, line in (('metric', '-'), ('beside', '--')):
            if key not in panel:
                continue
            rows = _merge_close_points(points, node, panel[key], step)
            axes.plot(rows['second'], rows['value'], line, color=colour,
                      lw=1.1)
            if len(nodes) > 1 and key == 'metric' and len(rows):
                axes.annotate(
                    node.partition(' ')[2], rows.iloc[-1][
                        ['second', 'value']], color=colour, fontsize=charts.SMALL,
                    ha='right', va='bottom')


def _set_axis_and_title(axes: Axes, points: pd.DataFrame, panel: Panel, bands: Bands
           ) -> None:
    """The y axis, the bands, and what stands above the panel."""
    metric = panel['metric']
    rows = points[points['metric'] == metric]
    unit = next(iter(rows['unit']), '')
    for name in (metric, panel.get('beside', '')):
        if name in bands:
            axes.axhspan(*bands[name], alpha=0.2, lw=0,
                         color=charts.COLOURS[charts.GOOD])
    if unit == '%':
        axes.set_ylim(0, 104)
        axes.set_yticks([0, 25, 50, 75, 100])
        axes.set_ylabel(axis_text(quantity_text(metric, unit), '%'), labelpad=2)
    elif metric in bands:
        # What a warm-up has far below the band is cut off.
        seen = rows.loc[rows['phase'] == 'test', 'value']
        low = min([bands[metric][0], *seen])
        high = max([bands[metric][1], *seen])
        margin = max(0.15 * (high - low), 0.02)
        axes.set_ylim(low - margin, high + margin)
    else:
        # Room for the names of the phases.
        axes.set_ylim(0, 1.2 * max([*rows['value'], 1]))
        charts.set_axis_title_and_labels(
            axes.yaxis, rows['value'],
            charts.Quantity(quantity_text(metric, unit), unit), False)

    def band_text(match: re.Match) -> str:
        if match[1] not in bands:
            return '-'
        low, high = bands[match[1]]
        return (f'{low:.0f} to {high:.0f} %' if unit == '%'
                else f'{low:.2f} to {high:.2f}')
    charts.set_row_title(axes, re.sub(r'\{(\w+)\}', band_text, panel['says']))


def _shade_phases_outside_test(rows: np.ndarray, points: pd.DataFrame) -> None:
    """The time axis of all rows; what is not the test is shaded."""
    from matplotlib import ticker
    ends = points.groupby('phase')['second'].max()
    last = points['second'].max()
    start = 0.0
    for phase, word in (('warmup', 'warm-up'), ('rest', 'rest'),
                        ('test', 'test'), ('after', 'after')):
        if phase not in ends:
            continue
        end = ends[phase]
        if phase != 'test':
            for axes in rows:
                axes.axvspan(start, end, color=charts.GRID, alpha=0.6, lw=0,
                             zorder=0)
        if phase == 'warmup' or end - start > 0.08 * last:
            rows[0].text((start + end) / 2, 0.97, word, fontsize=charts.SMALL,
                         ha='center', va='top', color=charts.INK,
                         transform=rows[0].get_xaxis_transform())
        start = end
    for axes in rows:
        if not axes.get_ylabel():
            axes.yaxis.set_major_locator(ticker.MaxNLocator(5))
        axes.yaxis.set_major_formatter(
            ticker.FuncFormatter(lambda v, _: tick_text(v)))
    rows[-1].set_xlim(0, last * 1.01 or 1)
    rows[-1].set_xlabel('Time since the first server started (s)')
