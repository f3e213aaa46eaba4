"""The spread of a metric over runs and repeats, at each message size."""
from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .. import charts
from . import Drawing, Records, metrics, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIONS = {'metric': metrics}
READING = ('Boxes: quartiles, whiskers to 1.5 times their distance, over all '
           'runs and repeats; fewer than three samples are drawn as points, '
           'a single one not at all.')


def drawings(records: Records, metric: tuple[str, ...]) -> Iterator[Drawing]:
    """A figure for each metric and panel with several samples of a point."""
    for panel in panels(records, metric):
        samples = panel.frame[panel.frame['size'].notna()
                              & panel.frame['sample']]
        # One sample of each point has no spread.
        if samples.duplicated(['label', 'speed', 'size']).any():
            yield panel.drawing(
                'spread', spread, samples,
                f'{panel.title}, spread around the median',
                about=f'{panel.title}: spread')


def spread(frame: pd.DataFrame, title: str) -> Figure:
    """Box plots over runs and repeats, relative to the median of the size.

    A band a series, in per cent. Fewer than three samples are points.
    """
    parts = []
    every = charts.sizes(frame)
    for label, speed, colour, _, marker, mine in charts.series(frame):
        groups = [(size, group.to_numpy() / group.median() - 1) for
                  size, group in mine.groupby('size')['value']
                  if group.median()]
        counts = sorted({len(v) for _, v in groups}) or [0]
        many = '\u2013'.join(map(str, dict.fromkeys(
            [counts[0], counts[-1]])))
        parts.append((f'{charts.name(label, speed)} ({many} '
                      f"sample{'s' * (many != '1')} a size)",
                      colour, marker, groups))
    far = max([0.01] + [abs(v).max() for *_, groups in parts
                        for _, v in groups])
    far = next(f for f in (m * 10 ** e for e in range(-2, 99)
                           for m in (1, 2, 3, 5)) if f >= far)
    figure, axes = charts.figure(title, [], height=max(1.5, 0.8 * len(parts)))
    # No wider than the margins of the axis.
    width = min([0.6 * step for step in np.diff(charts.position(
        every, every))], default=0.6)
    width = min(width, 1.0)
    for n, (name, colour, marker, groups) in enumerate(parts):
        middle = -3 * n            # a band is as high as 3 times `far`
        charts.boxes(
            axes, charts.position([size for size, _ in groups], every),
            [middle + v / far for _, v in groups], colour, marker, width)
        axes.text(0.01, middle + 1.06, textwrap.shorten(
            name, 68, placeholder='…'), transform=axes.get_yaxis_transform(),
            color=colour, fontsize=7.5, va='bottom')
    axes.set_yticks(
        [y - 3 * n for n in range(len(parts)) for y in (-1, 0, 1)],
        [f'{y * far:+.0%}'.replace('%', ' %') if y else '0'
         for _ in parts for y in (-1, 0, 1)])
    axes.set_ylim(-3 * (len(parts) - 1) - 1.2, 1.6)
    charts.size_axis(axes, every)
    return figure
