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
    drop_curves,
    metric_panels,
    points_at_size,
    title_size_suffix,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIONS = {**CHOICE, 'at': SIZES}
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
        points = points[points['value'].notna()]
        if points.empty or not (points['value'] >= 0).all():
            continue
        group = (records.table[first].reindex(points['kind']).to_numpy()
                 if by and first in records.table else '')
        yield panel.make_drawing('bars', draw_bars, points.assign(group=group),
                                 panel.title + title_size_suffix(points)
                                 + ', newest session', panel.quantity)


def draw_bars(frame: pd.DataFrame, title: str, quantity: charts.Quantity) -> Figure:
    """A bar a row, below its name and value.

    :param frame: points of a panel; bars of a `group` have a colour
    """
    hollow = charts.mask_of_inconclusive(frame)
    names = [charts.wrap_text(
        f'{charts.series_name(row.label)}: {quantity.text(row.value)}'
        + ', inconclusive' * bool(is_hollow), charts.SMALL)
        for row, is_hollow in zip(frame.itertuples(), hollow, strict=True)]
    legend = charts.reference_entries(frame)
    if (frame['runs'] > 1).any():
        legend.append(('minimum to maximum of all sessions', charts.INK, '-', '',
                       {'lw': 1}))
    lines = 1 + max(name.count('\n') for name in names)
    figure, axes = charts.create_figure(
        title, legend, height=0.25 + len(names) * (0.2 + 0.13 * lines))
    values, rows = frame['value'].to_numpy(), np.arange(len(frame))
    groups = list(dict.fromkeys(frame['group']))
    colours = [charts.COLOURS[groups.index(group) % len(charts.COLOURS)]
               for group in frame['group']]
    # Opacity is part of the colours: as `alpha` it would fill 'none' with black.
    faces = [(0, 0, 0, 0) if is_hollow else (colour, charts.BAR)
             for colour, is_hollow in zip(colours, hollow, strict=True)]
    top = np.nanmax([*values, *frame['maximum'], *frame['reference'], 0]) or 1
    high = 0.3 / (1 + lines)                # half the height of a bar
    axes.barh(rows, values, height=2 * high, color=faces,
              edgecolor=(charts.INK, charts.BAR), lw=hollow)
    axes.set_xlim(0, 1.05 * top)
    for y, name, row in zip(rows, names, frame.itertuples(), strict=True):
        axes.text(0, y - high - 0.04, name, fontsize=charts.SMALL, va='bottom',
                  transform=axes.get_yaxis_transform())
        if row.runs > 1:
            axes.plot([row.minimum, row.maximum], [y, y], color=charts.INK, lw=1)
        if row.reference == row.reference:
            axes.plot([row.reference] * 2, [y - high, y + high], ':', color=charts.INK,
                      lw=1.6)
            for deviation in (row.lower, row.upper):
                axes.plot([row.reference, row.reference * (1 + deviation)],
                          [y + high] * 2, color=charts.INK, lw=4, alpha=0.4,
                          solid_capstyle='butt')
    axes.set_ylim(len(names) - 0.5, -high - lines / (1 + lines))
    axes.set_yticks([])
    charts.set_few_ticks(axes.xaxis)
    charts.set_axis_title_and_labels(axes.xaxis, frame['value'], quantity, False)
    return figure
