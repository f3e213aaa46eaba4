"""The spread of a metric over runs and repetitions, at each message size."""
from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .. import charts
from . import CHOICE, Drawing, Records, metric_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIONS = CHOICE
READING = (
    'Boxes: quartiles of all sessions and repetitions, relative to the '
    'median. Whiskers reach to 1.5 times the distance of the quartiles; '
    'points are the farthest values beyond. Fewer than three samples have no '
    'box.'
)
COLUMNS = ['label', 'speed', 'point', 'count', 'q1', 'q2', 'q3', 'low',
           'high', 'minimum', 'maximum']


def drawings_from_records(records: Records, **choice: Any) -> Iterator[Drawing]:
    """A plot for each metric and panel with several samples of a point."""
    table, beyond = records.sample_box_statistics
    ends = beyond.groupby('row')['value'].agg(['min', 'max'])
    table = table[(table['count'] >= charts.FEWEST_FOR_BOX)
                  & (table['q2'] > 0)]
    for panel in metric_panels(records, **choice):
        rows = panel.rows_of_panel(table)
        if len(rows):
            rows = rows.assign(minimum=ends['min'], maximum=ends['max'])[
                COLUMNS
            ]
            yield panel.make_drawing(
                'spread', draw_box_plots, rows,
                f'{panel.title}, spread around the median',
                about=f'{panel.title}: spread')


def draw_box_plots(frame: pd.DataFrame, title: str) -> Figure:
    """Box plots over runs and repetitions, relative to the median of the size.

    A band a series, in per cent.

    :param frame: COLUMNS, a row a series and size
    """
    every = charts.distinct_sizes(frame)
    numbers = ['q1', 'q2', 'q3', 'low', 'high', 'minimum', 'maximum']
    ratios = frame[numbers].div(frame['q2'], axis=0) - 1
    frame = frame.assign(**ratios)
    # The boxes and whiskers of nearly all sizes fill a band; a wild one, and
    # what is far beyond, ends at its edge.
    ends = frame[['low', 'high']].abs().max(axis=1)
    far = max(0.01, float(np.nanquantile(ends, 0.97)))
    far = next(f for f in (m * 10 ** e for e in range(-2, 99)
                           for m in (1, 2, 3, 5)) if f >= far)
    parts = list(charts.series_with_styles(frame))
    figure, axes = charts.create_figure(title, [], height=max(1.5, 0.8 * len(parts)))
    # No wider than the margins of the axis.
    width = min([0.6 * step for step in np.diff(charts.log2_size_positions(
        every, every))], default=0.6)
    width = min(width, 1.0)
    for n, (label, speed, colour, _, _, rows) in enumerate(parts):
        middle = -3 * n            # a band is as high as 3 times `far`
        counts = sorted({int(rows['count'].min()), int(rows['count'].max())})
        charts.draw_boxes(axes, charts.log2_size_positions(rows['point'], every),
                          middle + rows[numbers].clip(-far, far) / far, colour,
                          width)
        name = (f'{charts.series_name(label, speed)} '
                f"({'–'.join(map(str, counts))} samples per size)")
        axes.text(0.01, middle + 1.06, textwrap.shorten(
            name, 68, placeholder='…'), transform=axes.get_yaxis_transform(),
            color=colour, fontsize=7.5, va='bottom')
    axes.set_yticks(
        [y - 3 * n for n in range(len(parts)) for y in (-1, 0, 1)],
        [f'{y * far:+.0%}'.replace('%', ' %') if y else '0'
         for _ in parts for y in (-1, 0, 1)])
    axes.set_ylim(-3 * (len(parts) - 1) - 1.2, 1.6)
    charts.set_size_axis(axes, every)
    return figure
