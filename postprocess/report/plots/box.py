"""The spread of a metric over sessions, and over the repetitions inside jobs."""
from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from config.records.units import size_text

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
    numbers_text,
    points_at_size,
    title_size_suffix,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: `values`: what boxes at each size are of, values or differences from their median.
OPTIONS = CHOICE | {'over': FIELD, 'at': SIZES, 'values': {
    'enum': ['relative', 'absolute'], 'default': 'relative'}}
READING = (
    'Boxes: quartiles. Whiskers reach to 1.5 times the distance of the '
    'quartiles; points are the farthest values beyond. A triangle at the edge '
    'marks values outside of the axis. Fewer than three values have no box. A box '
    'of sessions has one value per job, the median of its repetitions; a box of '
    'repetitions has those inside a job, relative to the median of their job. The '
    'two are different experiments and never mixed.'
)
COLUMNS = ['label', 'point', 'count', 'q1', 'q2', 'q3', 'low', 'high', 'minimum',
           'maximum']
#: Title of the axis of sizes.
SIZE = 'Size'
#: Ends of the parts of a box.
NUMBERS = COLUMNS[3:]


def drawings_from_records(records: Records, over: str = '', at: tuple[Any, ...] = (),
                          by: naming.Names = (), values: str = 'relative',
                          **choice: Any) -> Iterator[Drawing]:
    """A plot for each metric and panel with several values of a point: of
    sessions, and of the repetitions inside jobs; with `over` of sessions."""
    if values == 'absolute' and not over:
        yield from _drawings_over_size(records, by, choice)
        return
    if over:
        if over in records.table:
            yield from _drawings_over_field(records, over, at, by, choice)
        return
    for name, statistics in (('sessions', records.job_box_statistics),
                             ('repetitions', records.repetition_box_statistics)):
        table = _boxes_of_enough_values(*statistics)
        # Boxes over size are relative to their median.
        table = table[table['point'].notna() & (table['q2'] > 0)]
        for panel in metric_panels(records, by=by, **choice):
            rows = panel.rows_of_panel(table)[COLUMNS]
            if len(rows):
                yield panel.make_drawing(
                    f'spread {name}', draw_box_plots, rows,
                    f'{panel.title}{title_size_suffix(rows)}, spread of {name} around '
                    'the median',
                    about=f'{panel.title}: spread of {name}' + numbers_text(
                        rows.assign(value=(rows['high'] - rows['low']) / rows['q2']
                                    * 100), '%') + ' from whisker to whisker')


def _boxes_of_enough_values(table: pd.DataFrame, beyond: pd.DataFrame) -> pd.DataFrame:
    """The boxes of at least three values, with the farthest values beyond."""
    ends = beyond.groupby('row')['value'].agg(['min', 'max'])
    table = table.assign(minimum=ends['min'], maximum=ends['max'])
    return table[table['count'] >= charts.FEWEST_FOR_BOX]


def _drawings_over_field(records: Records, over: str, at: tuple[Any, ...],
                         by: naming.Names, choice: Any) -> Iterator[Drawing]:
    table = _boxes_of_enough_values(*records.job_box_statistics)
    x = pd.to_numeric(records.table[over], errors='coerce')
    for panel in metric_panels(
            records, by=by,
            drop=lambda table: fields_given_by_axis(table, over, by), **choice):
        rows = points_at_size(panel.rows_of_panel(table), records.family,
                              panel.metric, at)
        rows = rows.assign(x=x.reindex(rows['kind']).to_numpy())
        rows = rows[rows['x'] > 0].drop_duplicates(['label', 'x'], keep='last')
        if rows['x'].nunique() > 1:
            yield panel.make_drawing(
                f'boxes {over}{title_size_suffix(rows)}', draw_boxes_over_field,
                rows[['label', 'x', 'count', *NUMBERS]],
                panel.title + title_size_suffix(rows), panel.quantity,
                field_title(over))


def _drawings_over_size(records: Records, by: naming.Names, choice: Any
                        ) -> Iterator[Drawing]:
    """Boxes of the values at each size, also of programs that have one size."""
    table = _boxes_of_enough_values(*records.job_box_statistics)
    for panel in metric_panels(records, by=by, **choice):
        rows = panel.rows_of_panel(table).dropna(subset='point')
        rows = rows.assign(x=rows['point'])
        if len(rows):
            yield panel.make_drawing(
                'boxes size', draw_boxes_over_field,
                rows[['label', 'x', 'count', *NUMBERS]], panel.title, panel.quantity,
                SIZE)


def draw_boxes_over_field(frame: pd.DataFrame, title: str, quantity: charts.Quantity,
                          over: str) -> Figure:
    """Box plots over the values of a field, the series side by side.

    :param frame: `label`, `x`, `count` and NUMBERS, a row a box
    """
    parts = list(charts.series_with_styles(frame))
    figure, axes = charts.create_figure(title, [
        (f'{charts.series_name(label)} ({int(rows["count"].min())} values)'
         if rows['count'].nunique() == 1 else
         f'{charts.series_name(label)} ({int(rows["count"].min())}–'
         f'{int(rows["count"].max())} values)', colour, '-', '')
        for label, colour, _, _, rows in parts] + charts.box_entries())
    every = sorted(frame['x'].unique())
    width = 0.8 / len(parts)
    for n, (_, colour, _, _, rows) in enumerate(parts):
        places = np.array([every.index(x) for x in rows['x']]) + width * (
            n - (len(parts) - 1) / 2)
        charts.draw_boxes(axes, places, rows[NUMBERS], colour, 0.85 * width)
    step = -(-len(every) // charts.room_for_sizes(axes))
    axes.set_xticks(range(0, len(every), step), [
        size_text(v) if over == SIZE else f'{v:g}'
        for v in every[::step]])
    axes.set_xlim(-0.6, len(every) - 0.4)
    axes.set_xlabel(over)
    ends = [frame[name].dropna() for name in ('low', 'high', 'minimum', 'maximum')]
    charts.set_value_axis(axes, pd.concat(ends), quantity)
    return figure


def draw_box_plots(frame: pd.DataFrame, title: str) -> Figure:
    """Box plots at each size, relative to the median of the size.

    A band a series, in per cent.

    :param frame: COLUMNS, a row a series and size
    """
    every = charts.distinct_sizes(frame)
    ratios = frame[NUMBERS].div(frame['q2'], axis=0) - 1
    frame = frame.assign(**ratios)
    # The boxes and whiskers of nearly all sizes fill a band; a wild one, and
    # what is far beyond, ends at its edge.
    ends = frame[['low', 'high']].abs().max(axis=1)
    far = max(0.01, float(np.nanquantile(ends, 0.97)))
    far = next(f for f in (m * 10 ** e for e in range(-2, 99)
                           for m in (1, 2, 3, 5)) if f >= far)
    # No value is less than 100 % below the median, unless some are negative.
    low = far if (frame[NUMBERS] < -1).any(axis=None) else min(far, 1.0)
    parts = list(charts.series_with_styles(frame))
    figure, axes = charts.create_figure(title, charts.box_entries(),
                                        height=max(1.5, 0.8 * len(parts)))
    # No wider than the margins of the axis.
    width = min([0.6 * step for step in np.diff(charts.log2_size_positions(
        every, every))], default=0.6)
    width = min(width, 1.0)
    for n, (label, colour, _, _, rows) in enumerate(parts):
        middle = -3 * n            # a band is as high as 3 times `far`
        counts = sorted({int(rows['count'].min()), int(rows['count'].max())})
        x = charts.log2_size_positions(rows['point'], every)
        charts.draw_boxes(axes, x, middle + rows[NUMBERS].clip(-low, far) / far,
                          colour, width)
        for marker, edge, beyond in (
                ('^', 1, (rows[NUMBERS] > far).any(axis=1)),
                ('v', -low / far, (rows[NUMBERS] < -low).any(axis=1))):
            axes.plot(x[beyond], [middle + edge] * int(beyond.sum()), marker,
                      color=charts.INK, ms=3, mew=0)
        name = (f'{charts.series_name(label)} '
                f"({'–'.join(map(str, counts))} values per size)")
        axes.text(0.01, middle + 1.06, textwrap.shorten(
            name, int(charts.WIDTH * 108 / charts.TEXT), placeholder='…'),
            transform=axes.get_yaxis_transform(), color=colour,
            fontsize=charts.TEXT, va='bottom')
    # Labels closer than a third of the band would overlap.
    ticks = [-low, 0.0, far] if low > 0.3 * far else [0.0, far]
    axes.set_yticks(
        [y / far - 3 * n for n in range(len(parts)) for y in ticks],
        [f'{100 * y:+.0f}' if y else '0' for _ in parts for y in ticks])
    axes.set_ylim(-3 * (len(parts) - 1) - 1.2, 1.6)
    axes.set_ylabel('Difference (%)', labelpad=2)
    charts.set_size_axis(axes, every)
    return figure
