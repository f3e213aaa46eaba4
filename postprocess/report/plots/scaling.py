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
    add_dates_of_older_sessions,
    field_title,
    fields_given_by_axis,
    metric_panels,
    points_at_size,
    title_size_suffix,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What is fitted to the medians, and how the legend calls it.
FITS = {'log2': 'a + b log2 N', 'linear': 'a + b N', 'constant': 'a',
        'none': ''}
#: A point this far from what is expected departs from it, however steady it
#: is; so does one beyond three times the spread of its runs.
FAR = 0.1
#: Robust standard deviation from the distance of the 10 % and 90 % quantiles.
NORMAL = 1 / 2.563


OPTIONS = {
    **CHOICE,
    'over': FIELD | {'default': 'num_nodes'},
    'fit': {'enum': [*FITS], 'default': 'log2'},
    'at': SIZES,
}
READING = ('Scaling: points are the newest session, the line is the median of '
           'all sessions. The dashed line is a fit to the medians that one '
           'point cannot bend. A point far from the fit has a ring and its '
           'distance.')
COLUMNS = ['label', 'x', 'runs', 'low', 'median', 'high', 'value', 'older']


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
        points = add_dates_of_older_sessions(points)
        if len(points):
            yield panel.make_drawing(
                f'scaling {over}{title_size_suffix(points)}', draw_scaling,
                points[COLUMNS], panel.title + title_size_suffix(points),
                panel.quantity, field_title(over), fit)


def fitted_values(x: np.ndarray, y: np.ndarray, fit: str) -> np.ndarray | None:
    """The fitted value at each x; None: too few points.

    The slope is the median of those between any two points (Theil and Sen),
    so that one point that departs does not bend the line.
    """
    if fit == 'none' or len(x) < 3:
        return None
    at = {'log2': np.log2(x), 'linear': x,
          'constant': np.zeros(len(x))}[fit]
    one, two = np.triu_indices(len(x), 1)
    apart = at[one] != at[two]
    slope = np.median((y[two] - y[one])[apart] / (at[two] - at[one])[apart]
                      ) if apart.any() else 0.0
    return np.median(y - slope * at) + slope * at


def fit_and_deviations(frame: pd.DataFrame, fit: str
            ) -> tuple[np.ndarray | None, np.ndarray]:
    """The fit of a series, and the distance of each point from it that
    departs; NaN: it does not.

    :param frame: COLUMNS of one series
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
    """Points of the newest run, the median of all, what is expected.

    :param frame: COLUMNS, a row a series and x
    """
    names = charts.legend_entries(frame)
    parts = [(colour, line, marker, rows, *fit_and_deviations(rows, fit)) for
             _, colour, line, marker, rows in charts.series_with_styles(frame)]
    if any(line is not None for *_, line, _ in parts):
        names.append((f'fit: {FITS[fit]}', charts.INK, '--', ''))
    if (frame['runs'] > 1).any():
        names += [('median of all sessions', charts.INK, '-', '', {'lw': 1}),
                  ('8 of 10 sessions', charts.INK, '', '|', {'ms': 8})]
    if any((~np.isnan(off)).any() for *_, off in parts):
        names.append(('far from the fit', charts.INK, '', 'o', {
            'fillstyle': 'none', 'ms': 7}))
    figure, axes = charts.create_figure(title, names)
    for colour, line, marker, rows, expected_values, off in parts:
        x = np.log2(rows['x'].to_numpy())
        axes.plot(x, rows['median'], line, color=colour, lw=1)
        axes.errorbar(x, rows['median'], color=colour, lw=0, elinewidth=1,
                      yerr=[rows['median'] - rows['low'],
                            rows['high'] - rows['median']])
        axes.plot(x, rows['value'], marker, color=colour, ms=4.5, mew=0)
        if expected_values is not None:
            axes.plot(
                x, expected_values, '--', color=colour, lw=0.9, alpha=0.9
            )
        for at, value, far in zip(x, rows['value'], off, strict=True):
            if not np.isnan(far):
                axes.plot([at], [value], 'o', ms=10, mfc='none',
                          mec=charts.INK, mew=1)
                axes.annotate(
                    f'{far:+.0%}'.replace('%', ' %'), (at, value),
                    xytext=(0, 8), textcoords='offset points', ha='center',
                    fontsize=charts.SMALL, fontweight='bold', color=charts.INK)
    every = sorted(frame['x'].unique())
    axes.set_xticks(np.log2(every), [f'{v:g}' for v in every])
    axes.set_xlim(np.log2(every[0]) - 0.4, np.log2(every[-1]) + 0.4)
    axes.set_xlabel(f'{over} (log)')
    charts.set_value_axis(axes, pd.concat([
        frame[name] for name in ('value', 'low', 'high')]), quantity)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 1.15 if axes.get_yscale() == 'linear'
                  else high * 1.3)
    return figure
