"""A heat map: how much better or worse than all runs the newest one is."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from config.families import all_metrics
from config.records.units import size_text

from ... import naming
from .. import charts
from . import CHOICE, Drawing, Records, metric_panels, numbers_text, title_size_suffix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIONS = CHOICE
READING = ('Heat maps: the newest session compared with the median of all '
           'sessions, at each size. Blue is better, orange is worse, pale is '
           'the same. A triangle marks a value beyond the ends of the colour scale.')
COLUMNS = ['label', 'point', 'value', 'median']
#: Rows of a plot, runs it takes, and where the colours end: a factor.
MAX_ROWS, FEWEST_RUNS, FAR = 32, 3, 1.3


def drawings_from_records(records: Records, by: naming.Names = (), **choice: Any
             ) -> Iterator[Drawing]:
    """A plot for each metric and panel with sizes and several runs."""
    for panel in metric_panels(records, by=by or ('program',), maximum=MAX_ROWS,
                               **choice):
        points = panel.points_of_panel
        points = points[points['point'].notna()
                        & (points['runs'] >= FEWEST_RUNS)
                        & (points['median'] > 0)][COLUMNS]
        better = all_metrics()[panel.metric]['better']
        if len(points):
            yield panel.make_drawing(
                'heat', draw_heatmap, points,
                f'{panel.title}{title_size_suffix(points)}, newest session / median',
                better,
                about=f'{panel.title}, newest session divided by the median of all '
                'sessions' + numbers_text(points.assign(
                    value=points['value'] / points['median']), '1'))


def draw_heatmap(frame: pd.DataFrame, title: str, better: str) -> Figure:
    """A row a series, a column a size.

    :param frame: COLUMNS
    :param better: which side of the median is: higher, lower or none
    """
    charts._import_configured_matplotlib()
    from matplotlib.colors import LinearSegmentedColormap
    every = charts.distinct_sizes(frame)
    names = charts.wrap_row_names([
        charts.series_name(label) for label, *_ in charts.series_with_styles(frame)])
    ratio = np.full((len(names), len(every)), np.nan)
    for row, (*_, rows) in enumerate(charts.series_with_styles(frame)):
        ratio[row, np.searchsorted(every, rows['point'])] = (
            rows['value'] / rows['median'])
    figure, axes = charts.create_figure(
        title, [], height=0.3 + charts.rows_height(names, 0.17),
        names_beside=names, beside=0.62)
    colours = [charts.COLOURS[1], charts.GRID, charts.COLOURS[0]]
    end = np.log(FAR)
    image = axes.imshow(
        np.log(np.where(ratio > 0, ratio, np.nan)), aspect='auto',
        interpolation='nearest', vmin=-end, vmax=end,
        cmap=LinearSegmentedColormap.from_list(
            'heat', colours[::-1] if better == 'lower' else colours))
    for marker, beyond in (('^', ratio > FAR), ('v', ratio < 1 / FAR)):
        axes.plot(*np.nonzero(beyond)[::-1], marker, color=charts.PAPER, ms=3, mew=0)
    many = int(axes.get_position().width * charts.WIDTH / 0.48) + 1
    shown = np.arange(len(every) - 1, -1, -(len(every) // many + 1))
    axes.set_xticks(*(([], []) if len(every) == 1 else (
        shown, [size_text(every[n]) for n in shown])))
    charts.set_row_names(axes, names)
    axes.set_xlabel('Size (log)' if len(every) > 1 else '')
    axes.grid(visible=False)
    height = figure.get_size_inches()[1]
    box = axes.get_position()
    bar = figure.colorbar(image, cax=figure.add_axes(
        [1 - 0.5 / charts.WIDTH, box.y0, 0.1 / charts.WIDTH,
         min(box.height, 1.2 / height)]), extend={
             (True, True): 'both', (True, False): 'max', (False, True): 'min'}.get(
                 (bool((ratio > FAR).any()), bool((ratio < 1 / FAR).any())), 'neither'))
    marks = (1 / FAR, 0.9, 1, 1.1, FAR)
    bar.set_ticks(np.log(marks), labels=[f'{m:.2g}' for m in marks],
                  fontsize=charts.SMALL)
    bar.outline.set_visible(False)
    return figure
