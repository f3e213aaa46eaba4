"""A metric over message size: newest run, all runs, reference; or the ratio of after
and before a change."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from config.families import all_metrics

from .. import charts, tidy
from . import (
    CHOICE,
    METRIC,
    Drawing,
    Records,
    metric_panels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: `limit`: a metric that is the most, or the least, that the one drawn can be at
#: each size. `beside`: a metric of the same session that is drawn beside it.
OPTIONS = CHOICE | {'limit': METRIC, 'beside': METRIC, 'line': {
    'enum': ['median', 'mean'], 'default': 'median'}}


def drawings_from_records(records: Records, limit: str = '', beside: str = '',
                          line: str = 'median', **choice: Any) -> Iterator[Drawing]:
    """A plot for each metric and panel that has sizes."""
    if line == 'mean':
        records = dataclasses.replace(records, points=records.points.drop(
            columns=['value', 'median', 'low', 'high']).merge(tidy.mean_statistics(
                records.frame[records.frame['judged']]), on=tidy.KEYS))
    place = ['kind', 'point']
    others = [
        records.points[records.points['metric'] == metric]
        .drop_duplicates(place, keep='last').set_index(place)['value'].rename(name)
        for name, metric in (('limit', limit), ('beside', beside))]
    for panel in metric_panels(records, **choice):
        points = panel.points_of_panel
        for other in others:
            points = points.join(other, on=place)
        # A single size is no curve: bars show it.
        several = points.groupby('label', observed=True)['point'].transform(
            'nunique') > 1
        points = points[several]
        points = points.drop(columns=[name for name in ('limit', 'beside')
                                      if points[name].isna().all()])
        if len(points):
            yield panel.make_drawing('curve', draw_curves, points, panel.title,
                                     panel.quantity, beside)


def draw_curves(frame: pd.DataFrame, title: str, quantity: charts.Quantity,
                beside: str = '', over: str = charts.SIZE,
                more_names: Sequence[tuple] = ()) -> Figure:
    """A plot over size, or over a number.

    :param frame: points of a panel, a row a series and size; `limit` and `beside`
        where it has one; `runs`, `low`, `median` and `high` may be missing; without
        `median`, `value` is the mean
    :param beside: the metric in the column `beside`
    :param over: title of the axis
    :param more_names: further entries of the legend
    """
    has_runs = 'runs' in frame
    names = [*charts.legend_entries(frame, has_runs), *more_names,
             *(charts.band_entries(frame) if has_runs else []),
             *charts.reference_entries(frame), *charts.inconclusive_entries(frame)]
    if 'beside' in frame:
        names.append((f'{beside} of the same job', charts.INK, '-', 'o',
                      {'fillstyle': 'none', 'lw': 0.8}))
    if 'limit' in frame:
        names.append(('limit of the devices', charts.INK, '-.', '', {'lw': 1}))
    values = pd.concat([frame[name].dropna() for name in ('value', 'low', 'high')
                        if name in frame])
    every = sorted(frame['point'].dropna().unique())
    figure, axes = charts.create_figure(title, names)
    for _, colour, dashes, marker, rows in charts.series_with_styles(frame):
        rows = rows.sort_values('point')
        x = charts.log2_size_positions(rows['point'], every)
        if has_runs and rows['runs'].max() > 1:
            axes.fill_between(x, rows['low'], rows['high'], color=colour,
                              alpha=0.16, lw=0)
            if 'median' in rows:
                axes.plot(x, rows['median'], dashes, color=colour, lw=0.7,
                          alpha=0.8)
        hollow = charts.mask_of_inconclusive(rows)
        axes.plot(x[~hollow], rows['value'][~hollow], dashes, color=colour, lw=1.6,
                  marker=marker, ms=3.5, mew=0)
        axes.plot(x[hollow], rows['value'][hollow],
                  **charts.inconclusive_style(marker))
        if 'beside' in rows:
            axes.plot(x, rows['beside'], dashes, color=colour, lw=0.8, marker='o',
                      ms=4.5, mew=0.8, fillstyle='none')
        if 'limit' in rows:
            axes.plot(x, rows['limit'], color=colour, lw=1, ls='-.')
        known = rows['reference'].notna().to_numpy()
        axes.plot(x[known], rows['reference'][known], color=colour, lw=1,
                  ls=':')
        for side in ('lower', 'upper'):
            limited = rows[side].notna().to_numpy() & known
            if limited.any():
                reference = rows['reference'][limited]
                axes.vlines(x[limited], reference,
                            reference * (1 + rows[side][limited]),
                            color=colour, lw=4, alpha=0.4)
    charts.set_size_axis(axes, every, over)
    charts.set_value_axis(axes, values, quantity)
    return figure


def draw_ratios(frame: pd.DataFrame, title: str, metric: str) -> Figure:
    """A curve of ratios for each label.

    :param frame: columns label, point and ratio
    """
    figure = draw_curves(
        frame.rename(columns={'ratio': 'value'}).assign(
            reference=np.nan, lower=np.nan, upper=np.nan), title,
        charts.Quantity('Ratio', '1', all_metrics()[metric]['better']))
    [axes] = figure.axes
    low, high = axes.get_ylim()
    axes.axhline(1, color=charts.INK, lw=0.9)
    axes.set_ylim(min(low, 0.99), max(high, 1.01))
    return figure
