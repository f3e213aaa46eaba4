"""Boxes: the spread of a metric over sessions and repetitions, or of single calls."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ... import naming
from .. import charts
from . import (
    CALLS,
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

#: `values`: what boxes at each size are of: differences from their median, of sessions
#: (of repetitions where too few sessions have been) or of repetitions; or values.
OPTIONS = CHOICE | {'call': CALLS, 'over': FIELD, 'at': SIZES, 'values': {
    'enum': ['relative', 'repetitions', 'absolute'], 'default': 'relative'}}
#: Parts of a box.
NUMBERS = ['q1', 'q2', 'q3', 'low', 'high', 'minimum', 'maximum']


def drawings_from_records(
        records: Records, call: tuple[str, ...] = (), over: str = '',
        at: tuple[Any, ...] = (), by: naming.Names = (), values: str = 'relative',
        **choice: Any) -> Iterator[Drawing]:
    """A plot for each metric, or call, and panel: those of sessions, or over size,
    where too few sessions have been, of the repetitions inside jobs."""
    if over and over not in records.table:
        return
    if call:
        records = records.of_calls(call)
        choice['metric'] = tuple(sorted(records.points['metric'].unique()))
    is_spread = not (over or call) and values != 'absolute'
    x = pd.to_numeric(records.table[over], errors='coerce') if over else None
    drawn: set[str] = set()
    for what in ['repetitions'] if is_spread and values == 'repetitions' else [
            'sessions', 'repetitions'][:1 + is_spread]:
        boxes = records.job_boxes if what == 'sessions' else records.repetition_boxes
        boxes = boxes[boxes['count'] >= charts.FEWEST_FOR_BOX]
        for panel in metric_panels(
                records, by=by, drop=lambda table: fields_given_by_axis(
                    table, over, by) if over else [], **choice):
            rows = panel.rows_of_panel(boxes)
            if x is not None:
                if not call:
                    rows = points_at_size(rows, records.family, panel.metric, at)
                rows = rows.assign(x=x.reindex(rows['kind']).to_numpy())
                rows = rows[rows['x'] > 0].drop_duplicates(['label', 'x'], keep='last')
            elif call:
                rows = rows.assign(x=0)
            else:
                rows = rows[rows['point'].notna()].assign(x=lambda rows: rows['point'])
            if is_spread:                 # relative to the median
                rows = rows[rows['q2'] > 0]
            if rows.empty or panel.name in drawn or (
                    over and rows['x'].nunique() < 2):
                continue
            drawn.add(panel.name)
            title = panel.title + title_size_suffix(rows) + (
                f', spread of {what} around the median' * is_spread
                or ', all calls' * bool(call))
            spread = rows.assign(value=100 * (rows['high'] - rows['low']) / rows['q2'])
            about = f'{title}{numbers_text(spread, "%")} from whisker to whisker'
            yield panel.make_drawing(
                f'spread {what}' if is_spread else f'boxes {over or "size"}'
                + title_size_suffix(rows) * bool(over), draw_boxes,
                rows, title,
                panel.quantity, field_title(over) if over else charts.SIZE, is_spread,
                about=about * is_spread)


def draw_boxes(frame: pd.DataFrame, title: str, quantity: charts.Quantity, over: str,
               is_spread: bool = False) -> Figure:
    """Boxes over sizes or a field, the series side by side.

    :param frame: columns label, x, count and NUMBERS, a row a box
    :param over: title of the axis
    :param is_spread: differences from the median of the box, in per cent; each series
        has a row of its own
    """
    if is_spread:
        frame = frame.assign(**100 * (frame[NUMBERS].div(frame['q2'], axis=0) - 1))
    parts = list(charts.series_with_styles(frame))
    names = [(f'{charts.series_name(label)} ('
              + '–'.join(map(str, sorted({int(rows['count'].min()),
                                          int(rows['count'].max())}))) + ' values)',
              colour, '-', '') for label, colour, _, _, rows in parts]
    figure, axes = charts.create_figure(
        title, names * (not is_spread) + charts.box_entries(),
        rows=len(parts) if is_spread else 1,
        height=max(1.2, 0.6 * len(parts)) if is_spread else 2.5)
    every = sorted(frame['x'].unique())
    width = min(0.8, 0.15 * max(len(every), len(parts))) / (
        1 if is_spread else len(parts))
    for n, (_, colour, _, _, rows) in enumerate(parts):
        beside = 0 if is_spread else n - (len(parts) - 1) / 2
        places = np.array([every.index(x) for x in rows['x']]) + width * beside
        own = np.atleast_1d(axes)[n if is_spread else 0]
        if is_spread:
            far = max(1.0, 1.1 * float(rows[['low', 'high']].abs().to_numpy().max()))
            rows = rows.assign(**rows[NUMBERS].clip(-far, far))
            own.set_ylim(-1.05 * far, 1.05 * far)
            charts.set_row_title(own, names[n][0])
        charts.draw_boxes(own, places, rows[NUMBERS], colour, 0.85 * width)
    last = np.atleast_1d(axes)[-1]
    step = -(-len(every) // charts.room_for_sizes(last))
    # Calls without a size stand at 0.
    ticks = range(0, len(every), step) if any(every) else []
    last.set_xticks(ticks, [charts.axis_label(every[n], over) for n in ticks])
    last.set_xlim(-0.6, len(every) - 0.4)
    last.set_xlabel(over if any(every) else '')
    if is_spread:
        for own in np.atleast_1d(axes):
            charts.set_few_ticks(own.yaxis)
        last.set_ylabel('Difference (%)', labelpad=2)
    else:
        ends = [frame[name].dropna() for name in ('low', 'high', 'minimum', 'maximum')]
        charts.set_value_axis(last, pd.concat(ends), quantity)
    return figure
