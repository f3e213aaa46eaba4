"""A timeline: who called what when in the newest run, from raw samples."""
from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ... import naming
from .. import charts
from . import TEXT, Drawing, Records, violin, with_origin
from .violin import calls_text, samples_grouped_by_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIONS = {name: option for name, option in violin.OPTIONS.items()
           if name != 'over'} | {'rows': TEXT}
READING = ('Timelines of the newest session: one row per rank (or as the axis '
           'says), one colour per call. A mark without a length is an event.')
#: Ranks and calls in a plot; of more, the first ranks and the time until
#: that many calls.
MAX_RANKS, MAX_SPANS = 32, 4000


def drawings_from_records(records: Records, call: tuple[str, ...], by: naming.Names,
                          panel: naming.Names, title: str, where: tuple = (),
                          rows: str = '') -> Iterator[Drawing]:
    """A plot for each run whose samples say when they began.

    :param rows: what a row is, where it is no rank
    """
    for split, head, runs in samples_grouped_by_plot(records, by, panel, title, where):
        for label, run in runs:
            names = [name for name in run.calls['call'].unique()
                     if any(fnmatch.fnmatchcase(name, one) for one in call)]
            spans = run.calls[run.calls['start'].notna()
                              & run.calls['call'].isin(names)]
            if spans.empty:
                continue
            ranks = sorted(spans['rank'].unique())
            spans = spans[spans['rank'].isin(ranks[:MAX_RANKS])
                          ].sort_values('start')
            left = max(len(ranks) - MAX_RANKS, 0)
            cut = len(spans) > MAX_SPANS
            spans = spans[:MAX_SPANS]
            text = ', '.join(filter(None, [head, split, label]))
            note = '; '.join(filter(None, [
                f'{left} more {rows or "ranks"} are not drawn' * bool(left),
                f'only the first {MAX_SPANS} calls are drawn' * cut]))
            yield Drawing(
                f'{head} {split} {label} timeline',
                f'{text}: timeline of {len(spans)} calls'
                + calls_text(spans.assign(label=spans['call'])),
                draw_call_timeline,
                (spans[['rank', 'call', 'start', 'seconds']],
                 with_origin(f'{text}: calls over time' + f' ({note})' * bool(note),
                             records, [run.kind]), rows or 'rank'), section='Calls')


def draw_call_timeline(spans: pd.DataFrame, title: str, rows: str = 'rank') -> Figure:
    """A row a rank, a span a call.

    :param spans: columns rank, call, start and seconds, both in seconds
    :param rows: what a row is
    """
    charts._import_configured_matplotlib()
    from matplotlib.collections import PolyCollection
    ranks = sorted(spans['rank'].unique())
    names = list(spans.groupby('call')['start'].min().sort_values().index)
    looks = {name: charts.COLOURS[n % len(charts.COLOURS)]
             for n, name in enumerate(names)}
    figure, axes = charts.create_figure(
        title, [(name, colour, '', 's') for name, colour in
                looks.items()], height=0.4 + max(0.14 * len(ranks), 0.9))
    end = float((spans['start'] + spans['seconds']).max()) or 1.0
    unit, scale = ('s', 1.0) if end >= 2 else ('ms', 1e3)
    for name, calls_of_name in spans.groupby('call'):
        y = np.searchsorted(ranks, calls_of_name['rank'])
        x = calls_of_name['start'].to_numpy() * scale
        wide = calls_of_name['seconds'].to_numpy() * scale
        has_length = wide > 0
        high = 0.38
        boxes = np.stack([np.stack(p, -1) for p in (
            (x, y - high), (x + wide, y - high), (x + wide, y + high),
            (x, y + high))], 1)[has_length]
        axes.add_collection(PolyCollection(
            boxes, facecolors=looks[name], edgecolors=looks[name],
            linewidths=0.3, alpha=0.8))
        axes.plot(
            x[~has_length], y[~has_length], '|', color=looks[name], ms=6, mew=1
        )
    axes.set_xlim(0, end * scale * 1.01)
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    step = -(-len(ranks) // 12)
    axes.set_yticks(range(0, len(ranks), step), ranks[::step])
    axes.set_ylabel(rows.capitalize(), labelpad=2)
    axes.set_xlabel(f'Time ({unit})')
    axes.grid(axis='y', visible=False)
    return figure
