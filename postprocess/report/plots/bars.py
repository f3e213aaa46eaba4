"""Bars beside each other: the newest run of what can be compared."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ... import naming
from .. import charts
from . import (
    CHOICE,
    SIZES,
    Drawing,
    Records,
    add_dates_of_older_sessions,
    drop_curves,
    metric_panels,
    points_at_size,
    title_size_suffix,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIONS = {**CHOICE, 'at': SIZES}
READING = ('Bars: the value of the newest session of each test case, with its date '
           'if other test cases have a later one. Values that differ by more than a '
           'factor of 60 are dots on a logarithmic axis.')
COLUMNS = ['label', 'group', 'runs', 'minimum', 'maximum', 'value', 'reference',
           'lower', 'upper', 'older']
#: Bars in a plot.
MAX_ROWS = 24


def drawings_from_records(records: Records, by: naming.Names = (),
                          at: tuple[Any, ...] = (), **choice: Any) -> Iterator[Drawing]:
    """A plot for each metric and panel; without `by`, of what has no size
    and of all programs together."""
    first = (by or ('program',))[0]
    if not by and not at:
        records = drop_curves(records)
    for panel in metric_panels(records, by=by or ('program',), maximum=MAX_ROWS,
                               **choice):
        points = panel.points_of_panel
        if by or at:
            points = points_at_size(points, records.family, panel.metric, at)
        points = add_dates_of_older_sessions(points[points['value'].notna()])
        if points.empty or not (points['value'] >= 0).all():
            continue
        group = (records.table[first].reindex(points['kind']).to_numpy()
                 if by and first in records.table else '')
        yield panel.make_drawing('bars', draw_bars, points.assign(group=group)[COLUMNS],
                                 panel.title + title_size_suffix(points)
                                 + ', newest session', panel.quantity)


def draw_bars(frame: pd.DataFrame, title: str, quantity: charts.Quantity) -> Figure:
    """A bar a row, its value beside it; dots if a logarithmic axis is needed,
    because the length of a bar means nothing there.

    :param frame: COLUMNS, a row a series; bars of a `group` have a colour
    """
    charts._import_configured_matplotlib()
    names = charts.wrap_row_names([
        charts.series_name(row.label) + row.older for row in frame.itertuples()])
    texts = [*map(quantity.text, frame['value'])]
    legend: list[tuple] = []
    if (frame['runs'] > 1).any():
        legend.append(('minimum to maximum of all sessions', charts.INK, '-', '',
                       {'lw': 1}))
    if frame['reference'].notna().any():
        legend.append(('reference', charts.INK, '', '|', {'ms': 8, 'mew': 1.6}))
        if frame[['lower', 'upper']].notna().any(axis=None):
            legend.append(('tolerance', charts.INK, '-', '',
                           {'lw': 2.4, 'alpha': 0.5}))
    groups = list(dict.fromkeys(frame['group']))
    rows = np.arange(len(frame))
    values = frame['value'].to_numpy()
    figure, axes = charts.create_figure(
        title, legend, height=0.35 + charts.rows_height(names, 0.24),
        names_beside=names)
    colours = [charts.COLOURS[groups.index(row) % len(charts.COLOURS)]
               for row in frame['group']]
    top = np.nanmax([*values, *frame['maximum'], *frame['reference'], 0]) or 1
    minimum = values[values > 0].min() if (values > 0).any() else top
    wide = top > 60 * minimum
    if wide:
        axes.scatter(values, rows, color=colours, s=28, lw=0, zorder=3)
    else:
        axes.barh(rows, values, height=0.62, color=colours, alpha=charts.BAR, lw=0)
    for y, text, row in zip(rows, texts, frame.itertuples(), strict=True):
        if row.runs > 1:
            axes.plot(
                [row.minimum, row.maximum], [y, y], color=charts.INK, lw=1
            )
        if row.reference == row.reference:
            axes.plot([row.reference] * 2, [y - 0.4, y + 0.4],
                      color=charts.INK, lw=1.6)
        for deviation in (row.lower, row.upper):
            if row.reference == row.reference and deviation == deviation:
                axes.plot([row.reference, row.reference * (1 + deviation)],
                          [y + 0.36] * 2, color=charts.INK, lw=2.4,
                          alpha=0.5, solid_capstyle='butt')
        axes.annotate(
            text,
            (max(row.value, row.maximum if row.runs > 1 else 0), y),
            xytext=(4, 0), textcoords='offset points', va='center',
            fontsize=charts.SMALL, color=charts.INK)
    room = charts.room_for_values(axes, texts)
    if wide:
        start = min([minimum, *frame.loc[frame['minimum'] > 0, 'minimum']]) / 2
        axes.set_xscale('log')
        axes.set_xlim(start, top * (top / start) ** room)
    else:
        axes.set_xlim(0, top * (1 + room))
    charts.set_few_ticks(axes.xaxis, wide)
    charts.set_row_names(axes, names)
    charts.set_axis_title_and_labels(axes.xaxis, frame['value'], quantity, wide)
    return figure
