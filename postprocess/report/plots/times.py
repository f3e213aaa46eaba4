"""Wall, user and system time of whole programs, all programs in a plot."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from config.families import printed_name

from ... import naming
from .. import charts
from . import TIMES, Drawing, Records, numbers_text, with_origin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Programs in one plot.
MAX_ROWS = 30
OPTIONS: dict = {}
READING = ('Times of whole programs: a bar is the median of all sessions, '
           'with one colour per number of nodes. A line goes from the minimum '
           'to the maximum.')
#: Heading on the page.
SECTION = 'Time of whole programs'
COLUMNS = ['row', 'label', 'metric', 'runs', 'median', 'minimum',
           'maximum']


def drawings_from_records(records: Records) -> Iterator[Drawing]:
    """A plot for each partition and environment, and MAX_ROWS programs."""
    spent = records.points[records.points['metric'].isin(TIMES)]
    table = records.table[records.table.index.isin(spent['kind'])]
    for place, kinds in table.groupby(['system', 'partition', 'environ']):
        where = '{}:{} {}'.format(*place)
        rows = pd.concat([naming.series_labels_and_panels(part)['row'] for _, part in
                          kinds.groupby('program')])
        programs = kinds['program'].combine(kinds['source'], printed_name)
        rows = (programs + ' ' + rows).str.strip()
        nodes = pd.to_numeric(kinds['num_nodes'], errors='coerce').fillna(
            0).astype(int)
        order = sorted(rows.unique())
        for n in range(0, len(order), MAX_ROWS):
            part = spent.assign(
                row=spent['kind'].map(rows), nodes=spent['kind'].map(nodes))
            part = part[part['row'].isin(order[n:n + MAX_ROWS])].sort_values(
                ['nodes', 'row', 'time']).drop_duplicates(
                    ['nodes', 'row', 'metric'], keep='last')
            part = part.assign(label=[
                f"{n} node{'s' * (n != 1)}" for n in map(int, part['nodes'])])
            yield Drawing(
                f'times {where} {n}',
                f'Time of the whole program on {where}' + numbers_text(
                    part[part['metric'] == 'wall_time'].assign(
                        label=part['row'] + ', ' + part['label']), 's'),
                draw_program_times,
                (part[COLUMNS], with_origin(
                    f'{records.family}: time of the whole program ({where})', records,
                    part['kind'].unique())), section=SECTION)


def draw_program_times(frame: pd.DataFrame, title: str) -> Figure:
    """Wall, user and system time: a row a program, a colour a node count.

    :param frame: COLUMNS; `label` is the node count
    """
    rows = sorted(frame['row'].unique())
    parts = list(charts.series_with_styles(frame))
    # A row has as many lines as there are series of it.
    lanes: dict[str, list[int]] = {}
    for n, (*_, bars) in enumerate(parts):
        for row in bars['row'].unique():
            lanes.setdefault(row, []).append(n)
    names: list[tuple] = [(name, colour, 'bar', '')
                          for name, colour, *_ in charts.legend_entries(frame)]
    if (frame['runs'] > 1).any():
        names.append(('minimum to maximum', charts.INK, '-', '', {'lw': 0.7}))
    metrics = [metric for metric in TIMES if metric in set(frame['metric'])]
    row_names = charts.wrap_row_names(rows, 28)
    figure, columns = charts.create_figure(
        title, names, columns=len(metrics), names_beside=row_names,
        height=0.5 + charts.rows_height(row_names, 0.19) + 0.05 * len(parts))
    columns = np.atleast_1d(columns)
    for axes, metric in zip(columns, metrics, strict=True):
        for n, (_, colour, _, _, bars) in enumerate(parts):
            bars = bars[bars['metric'] == metric]
            at = np.array([rows.index(row) + 0.8 * (
                (lanes[row].index(n) + 0.5) / len(lanes[row]) - 0.5)
                for row in bars['row']])
            high = [0.7 / len(lanes[row]) for row in bars['row']]
            axes.barh(at, bars['median'], height=high, color=colour,
                      alpha=charts.BAR, lw=0)
            lines = np.stack([bars['minimum'], bars['maximum'],
                              np.full(len(bars), np.nan)], -1)
            axes.plot(lines.ravel(), np.repeat(at, 3), color=charts.INK,
                      lw=0.7)
        axes.set_xlim(0)
        charts.set_few_ticks(axes.xaxis, False)
        charts.set_axis_title_and_labels(
            axes.xaxis, frame['median'], charts.Quantity.of_metric(metric, 's'), False)
        charts.set_row_names(axes, row_names)
        axes.tick_params(labelleft=axes is columns[0])
    return figure
