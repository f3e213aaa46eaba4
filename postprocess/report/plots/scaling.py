"""A metric against the number of nodes, with what is expected of it."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ... import naming
from .. import charts
from . import (
    CHOICE,
    FIELD,
    SIZES,
    Drawing,
    Records,
    field_title,
    fields_given_by_axis,
    metric_panels,
    points_at_size,
    title_size_suffix,
)
from .curve import draw_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What is fitted to the medians, and how the legend calls it.
FITS = {'log2': 'a + b log2 N', 'linear': 'a + b N', 'none': ''}
#: A point this far from what is expected departs from it, however steady it
#: is; so does one beyond three times the spread of its runs.
FAR = 0.1
#: Robust standard deviation from the distance of the 10 % and 90 % quantiles.
NORMAL = 1 / 2.563

OPTIONS = CHOICE | {'over': FIELD | {'default': 'num_nodes'}, 'at': SIZES,
                    'fit': {'enum': [*FITS], 'default': 'log2'}}


def drawings_from_records(records: Records, over: str, fit: str, at: tuple[Any, ...],
                          by: naming.Names = (), **choice: Any) -> Iterator[Drawing]:
    """A plot for each metric and panel with several numbers of nodes."""
    if over not in records.table:
        return
    x = pd.to_numeric(records.table[over], errors='coerce')
    for panel in metric_panels(records, by=by and (*by, 'tasks_per_node'),
                               drop=lambda table: fields_given_by_axis(table, over, by),
                               **choice):
        points = points_at_size(panel.points_of_panel, records.family, panel.metric, at)
        points = points.assign(x=x.reindex(points['kind']).to_numpy())
        points = points[(points['x'] > 0) & points['value'].notna()]
        # Whatever else differs (a stack of before): the newest counts.
        points = points.sort_values('time').drop_duplicates(
            ['label', 'x'], keep='last')
        points = points.assign(place=points.groupby('label')['place'].transform(
            'min')).sort_values(['place', 'x'], kind='stable')
        points = points[points.groupby('label')['x'].transform('nunique') > 1]
        if len(points):
            yield panel.make_drawing(
                f'scaling {over}{title_size_suffix(points)}', draw_scaling,
                points, panel.title + title_size_suffix(points),
                panel.quantity, field_title(over), fit)


def fitted_values(x: np.ndarray, y: np.ndarray, fit: str) -> np.ndarray | None:
    """The fitted value at each x; None: too few points.

    The slope is the median of those between any two points (Theil and Sen),
    so that one point that departs does not bend the line.
    """
    if fit == 'none' or len(x) < 3:
        return None
    at = np.log2(x) if fit == 'log2' else x
    one, two = np.triu_indices(len(x), 1)
    apart = at[one] != at[two]
    slope = np.median((y[two] - y[one])[apart] / (at[two] - at[one])[apart]
                      ) if apart.any() else 0.0
    return np.median(y - slope * at) + slope * at


def fit_and_deviations(frame: pd.DataFrame, fit: str
            ) -> tuple[np.ndarray | None, np.ndarray]:
    """The fit of a series, and the distance of each point from it that
    departs; NaN: it does not.

    :param frame: points of one series, and their `x`
    """
    line = fitted_values(frame['x'].to_numpy(), frame['median'].to_numpy(), fit)
    if line is None:
        return None, np.full(len(frame), np.nan)
    off = frame['value'].to_numpy() / np.where(line > 0, line, np.nan) - 1
    spread = NORMAL * (frame['high'] - frame['low']) / frame['median'].where(
        frame['median'] > 0)
    far = np.maximum(FAR, 3 * np.nan_to_num(spread.to_numpy()))
    return line, np.where(abs(off) > far, off, np.nan)


def draw_scaling(frame: pd.DataFrame, title: str, quantity: charts.Quantity, over: str,
                 fit: str) -> Figure:
    """Curves over a number of nodes, with a fit; points far from it have a ring and
    their distance.

    :param frame: points of a panel, and their `x`
    """
    fits = [(colour, rows, *fit_and_deviations(rows, fit))
            for _, colour, _, _, rows in charts.series_with_styles(frame)]
    names = [(f'fit: {FITS[fit]}', charts.INK, '--', '')] * any(
        line is not None for *_, line, _ in fits) + [
        ('far from the fit', charts.INK, '', 'o', {'fillstyle': 'none', 'ms': 7})
    ] * any((off == off).any() for *_, off in fits)
    figure = draw_curves(frame.assign(point=frame['x']), title, quantity,
                         over=over, more_names=names)
    [axes] = figure.axes
    for colour, rows, line, off in fits:
        x = np.log2(rows['x'].to_numpy())
        if line is not None:
            axes.plot(x, line, '--', color=colour, lw=0.9, alpha=0.9)
        for at, value, far in zip(x, rows['value'], off, strict=True):
            if far == far:
                axes.plot([at], [value], 'o', ms=10, mfc='none', mec=charts.INK, mew=1)
                axes.annotate(
                    f'{far:+.0%}'.replace('%', ' %'), (at, value),
                    xytext=(0, 8), textcoords='offset points', ha='center',
                    fontsize=charts.SMALL, fontweight='bold', color=charts.INK)
    axes.margins(y=0.15)
    return figure
