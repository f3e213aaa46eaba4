"""A metric over sessions: of the whole session, or at one size."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

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
#: Sessions that are drawn as points, too.
POINTS = 40


def drawings_from_records(records: Records, at: tuple[Any, ...] = (), **choice: Any
             ) -> Iterator[Drawing]:
    """A plot for each metric and panel with several runs."""
    if not at:
        records = drop_curves(records)
    judged = records.frame[records.frame['judged']]
    for panel in metric_panels(records, **choice):
        points = panel.points_of_panel
        if at:
            points = points_at_size(points, records.family, panel.metric, at)
        rows = panel.rows_of_panel(judged)
        rows = rows[rows['kind'].isin(points['kind'])
                    & rows['point'].isin(points['point'].unique())]
        if rows.groupby('kind')['session'].nunique().max() < 2 or rows.empty:
            continue
        yield panel.make_drawing('history', draw_values_over_sessions, rows,
                                 panel.title + title_size_suffix(points),
                                 panel.quantity)


def draw_values_over_sessions(frame: pd.DataFrame, title: str,
                              quantity: charts.Quantity) -> Figure:
    """A line a series, over runs; inconclusive values stand apart.

    :param frame: records, a row a run of a series
    """
    frame = frame.assign(runs=frame.groupby('label')['session'].transform('nunique'))
    figure, axes = charts.create_figure(
        title, [*charts.legend_entries(frame), *charts.reference_entries(frame),
                *charts.inconclusive_entries(frame)])
    runs = frame.groupby('session', observed=True)['time'].max().sort_values()
    place = {run: n for n, run in enumerate(runs.index)}
    for _, colour, line, marker, rows in charts.series_with_styles(frame):
        rows = rows.assign(x=rows['session'].astype(object).map(place).astype(
            int)).sort_values('x')
        few = rows['runs'].iloc[0] <= POINTS
        hollow = charts.mask_of_inconclusive(rows)
        at = rows[~hollow].groupby('x', as_index=False)['value'].median()
        axes.plot(at['x'], at['value'], line, color=colour, lw=1.2,
                  marker=marker if few else '', ms=3, mew=0)
        axes.plot(rows['x'][hollow], rows['value'][hollow],
                  **charts.inconclusive_style(marker))
        last = rows.dropna(subset='reference').tail(1)
        for ref, lower, upper in last[['reference', 'lower', 'upper']].to_numpy():
            axes.axhline(ref, color=colour, lw=1, ls=':')
            for tolerance in (lower, upper):
                if not np.isnan(tolerance):
                    axes.axhspan(*sorted((ref, ref * (1 + tolerance))),
                                 color=colour, alpha=0.12, lw=0)
    step = -(-len(runs) // 5)
    ticks = range(len(runs) - 1, -1, -step)
    axes.set_xticks(ticks, [runs.iloc[n].strftime('%Y-%m-%d\n%H:%M') for n in ticks])
    # The newest one stands at the edge.
    axes.get_xticklabels()[0].set_horizontalalignment('right')
    axes.set_xlim(-0.5, len(runs) - 0.5)
    axes.set_xlabel('Session (UTC)')
    charts.set_value_axis(axes, frame['value'], quantity)
    return figure

