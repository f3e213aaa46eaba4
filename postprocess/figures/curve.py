"""A metric over message size: each run, their median, the reference."""
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
READING = ('Curves: each run faint, the median over runs strong, the '
           'reference dotted, what a bound allows as a thick bar.')


def drawings(records: Records, metric: tuple[str, ...]) -> Iterator[Drawing]:
    """A figure for each metric and panel that has sizes."""
    for panel in panels(records, metric):
        sized = panel.frame['size'].notna()
        if sized.any():
            yield panel.drawing('curve', curve, panel.frame[
                sized & panel.frame['judged']], panel.title, panel.unit)


def curve(frame: pd.DataFrame, title: str, unit: str) -> Figure:
    """A figure over size: each run faint, the median strong."""
    figure, axes = charts.figure(title, charts.names(frame))
    every = charts.sizes(frame)
    for _, _, colour, line, marker, mine in charts.series(frame):
        runs = mine.groupby(['size', 'run'], observed=True)[
            'value'].median().unstack()
        x = charts.position(runs.index, every)
        newest = list(dict.fromkeys(mine.sort_values('time')['run']))
        if len(newest) > 1:
            # One path, with gaps between the runs.
            some = runs[newest[-charts.FAINT_RUNS:]].T
            axes.plot(np.tile([*x, np.nan], len(some)), np.column_stack(
                [some, np.full(len(some), np.nan)]).ravel(),
                color=colour, lw=0.7, alpha=0.35)
        middle = runs.median(axis=1)
        axes.plot(x, middle, line, color=colour, lw=1.8, marker=marker,
                  ms=2.6)
        last = mine[mine['run'] == newest[-1]].groupby('size')[
            ['reference', 'lower', 'upper']].first().dropna(
                subset='reference')
        if len(last):
            at = charts.position(last.index, every)
            axes.plot(at, last['reference'], color=colour, lw=1, ls=':')
            for x0, (ref, lower, upper) in zip(at, last.to_numpy(),
                                               strict=True):
                for bound in (lower, upper):
                    if not np.isnan(bound):
                        axes.plot([x0, x0], [ref, ref * (1 + bound)], '-',
                                  color=colour, lw=4, alpha=0.4,
                                  solid_capstyle='butt')
    charts.size_axis(axes, every)
    charts.value_axis(axes, frame['value'], unit)
    return figure
