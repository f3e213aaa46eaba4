"""Wall, user and system time of whole programs, all programs in a figure."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .. import charts
from . import TIMES, Drawing, Records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Programs in one figure.
MOST_ROWS = 30
OPTIONS: dict = {}
READING = ('Times of whole programs: a colour a node count; quartiles as '
           'boxes, fewer than three runs as points.')
#: Heading on the page.
SECTION = 'Time of whole programs'


def drawings(records: Records) -> Iterator[Drawing]:
    """A figure for each partition and environment, and MOST_ROWS programs."""
    spent = records.frame[records.frame['metric'].isin(TIMES)
                          & records.frame['judged']]
    for place, mine in spent.groupby(['system', 'partition', 'environ']):
        where = '{}:{} {}'.format(*place)
        nodes = mine['num_nodes'].astype('Int64').fillna(0)
        mine = mine.assign(nodes=nodes, label=[
            f"{n} node{'s' * (n != 1)}" for n in map(int, nodes)])
        order = sorted(mine['row'].unique())
        for n in range(0, len(order), MOST_ROWS):
            yield Drawing(
                f'times {where} {n}',
                f'Time of the whole program on {where}', times,
                (mine[mine['row'].isin(order[n:n + MOST_ROWS])].sort_values(
                    ['nodes', 'row']),
                 f'{records.family}: time of the whole program ({where})'),
                section=SECTION)


def times(frame: pd.DataFrame, title: str) -> Figure:
    """Wall, user and system time: a row a program, a colour a node count.

    :param frame: with a column `row`; `label` is the node count
    """
    rows = list(dict.fromkeys(frame['row']))
    figure, columns = charts.figure(
        title, charts.names(frame), columns=3, height=0.5 + 0.22 * len(rows))
    parts = list(charts.series(frame))
    for axes, metric in zip(columns, ('wall_time', 'user_time',
                                      'system_time'), strict=True):
        for n, (_, _, colour, _, marker, mine) in enumerate(parts):
            mine = mine[mine['metric'] == metric]
            groups = [(rows.index(r), g.to_numpy()) for r, g in
                      mine.groupby('row')['value']]
            shift = 0.7 * ((n + 0.5) / len(parts) - 0.5)
            charts.boxes(axes, np.array([r + shift for r, _ in groups]),
                         [v for _, v in groups], colour, marker,
                         0.6 / len(parts), upright=False)
        charts.plain_log(
            axes.xaxis, frame.loc[frame['metric'] == metric, 'value'],
            axes.set_xscale, few=True)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_title(metric.replace('_', ' ') + ' (s)', fontsize=8,
                       color=charts.INK, pad=3)
        axes.set_yticks(range(len(rows)), [])
    columns[0].set_yticklabels([r if len(r) < 28 else r[:27] + '…'
                                for r in rows], fontsize=6.6)
    return figure
