"""A figure of the whole run, over runs: what is taken at no size."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .. import charts
from . import Drawing, Records, metrics, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIONS = {'metric': metrics}
READING = ('Over runs: repeats as points, the line through what counts of '
           'each run; the reference dotted, what a bound allows shaded.')


def drawings(records: Records, metric: tuple[str, ...]) -> Iterator[Drawing]:
    """A figure for each metric and panel without sizes."""
    for panel in panels(records, metric):
        whole = panel.frame['size'].isna()
        if whole.any():
            yield panel.drawing('runs', strip, panel.frame[whole],
                                panel.title, panel.unit)


def strip(frame: pd.DataFrame, title: str, unit: str) -> Figure:
    """A figure of the whole run, over runs: repeats as points.

    :param frame: with columns `sample` (one repeat) and `judged` (the run)
    """
    figure, axes = charts.figure(title, charts.names(frame))
    runs = frame.groupby('run', observed=True)['time'].max().sort_values()
    place = {run: n for n, run in enumerate(runs.index)}
    for _, _, colour, line, marker, mine in charts.series(frame):
        mine = mine.assign(x=mine['run'].map(place))
        samples = mine[mine['sample']]
        axes.plot(samples['x'], samples['value'], marker, color=colour, ms=4,
                  alpha=0.55, mew=0)
        middle = mine[mine['judged']].groupby('x')['value'].median()
        axes.plot(middle.index, middle, line, color=colour, lw=1.2)
        last = mine[mine['judged']].sort_values('time').dropna(
            subset='reference').tail(1)
        for ref, lower, upper in last[
                ['reference', 'lower', 'upper']].to_numpy():
            axes.axhline(ref, color=colour, lw=1, ls=':')
            for bound in (lower, upper):
                if not np.isnan(bound):
                    axes.axhspan(*sorted((ref, ref * (1 + bound))),
                                 color=colour, alpha=0.12, lw=0)
    step = -(-len(runs) // 5)
    ticks = range(len(runs) - 1, -1, -step)
    axes.set_xticks(list(ticks), [f'{runs.iloc[n]:%d %b\n%H:%M}'
                                  for n in ticks])
    axes.set_xlim(-0.5, len(runs) - 0.5)
    axes.set_xlabel('run (UTC)')
    charts.value_axis(axes, frame['value'], unit)
    return figure
