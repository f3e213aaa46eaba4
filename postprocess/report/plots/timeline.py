"""The newest session over time: the calls of ranks, or the series of servers.

A family whose sessions leave series (series.csv) names the panels, which stand one
below the other:

    - kind: timeline
      panels:
        - {of: server, metric: total_qps, beside: slow_qps,
           says: 'requests/s; thin: requests that missed'}
        - {of: cpu, metric: cpu_total, says: 'CPU: all (valid: {cpu_total})'}

`of` and the metrics are of the family's `series`; `beside` is drawn thin or dashed in
the same panel; of `share_of`, no share is drawn where that is nothing. `says` stands
above the panel, a metric in braces is its band. Without `panels` the raw samples of
calls are drawn.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from config.records.units import axis_text, quantity_text

from ...records.series import PHASES
from .. import charts
from . import CALLS, TEXT, WHERE, Drawing, Records, rows_matching_fields, with_origin

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bands = Mapping[str, list[float]]
Panel = dict[str, str]

OPTIONS = {'call': CALLS | {'default': ['*']}, 'rows': TEXT, 'where': WHERE,
           'title': TEXT, 'panels': {
    'type': 'array', 'minItems': 1, 'default': [],
    'expected': 'a list of {of, metric, says}',
    'items': {
        'type': 'object', 'required': ['of', 'metric', 'says'],
        'additionalProperties': False, 'properties': {
            name: TEXT for name in ('of', 'metric', 'says', 'beside', 'share_of')}}}}
#: Ranks and calls in a plot; of more, the first ranks and the time until
#: that many calls.
MAX_RANKS, MAX_SPANS = 32, 4000


def drawings_from_records(records: Records, call: tuple[str, ...] = ('*',),
                          rows: str = '', where: tuple = (), title: str = '',
                          panels: Sequence[Panel] = ()) -> Iterator[Drawing]:
    """A plot for each session that left series which a panel shows; without panels
    for each whose samples say when they began.

    :param rows: what a row is, where it is no rank
    """
    table = rows_matching_fields(records.table, where)
    if panels:
        for run in records.over_time:
            if run.kind in table.index and run.series.series_kinds & {
                    panel['of'] for panel in panels}:
                yield Drawing(
                    f'{run.program} time {run.name}', run.title, draw_series,
                    (run.series.points, run.title, run.series.server_names, run.bands,
                     panels), note=run.note)
        return
    for kind, calls in records.calls(call):
        spans = calls[calls['start'].notna()]
        if kind not in table.index or spans.empty:
            continue
        ranks = sorted(spans['rank'].unique())
        spans = spans[spans['rank'].isin(ranks[:MAX_RANKS])].sort_values('start')
        left = max(len(ranks) - MAX_RANKS, 0)
        note = '; '.join(filter(None, [
            f'{left} more {rows or "ranks"} are not drawn' * bool(left),
            f'only the first {MAX_SPANS} calls are drawn' * (len(spans) > MAX_SPANS)]))
        spans = spans[:MAX_SPANS]
        head = ', '.join(filter(None, [
            title or str(table.at[kind, 'program']), records.kind_names[kind]]))
        yield Drawing(
            f'{head} timeline', f'{head}: timeline of {len(spans)} calls', draw_calls,
            (spans[['rank', 'call', 'start', 'seconds']],
             with_origin(f'{head}: calls over time' + f' ({note})' * bool(note),
                         records, [kind]), rows or 'rank'))


def draw_calls(spans: pd.DataFrame, title: str, rows: str = 'rank') -> Figure:
    """A row a rank, a span a call.

    :param spans: columns rank, call, start and seconds, both in seconds
    :param rows: what a row is
    """
    ranks = sorted(spans['rank'].unique())
    names = list(spans.groupby('call')['start'].min().sort_values().index)
    looks = {name: charts.COLOURS[n % len(charts.COLOURS)]
             for n, name in enumerate(names)}
    figure, axes = charts.create_figure(
        title, [(name, colour, '', 's') for name, colour in
                looks.items()], height=0.4 + max(0.14 * len(ranks), 0.9))
    end = float((spans['start'] + spans['seconds']).max()) or 1.0
    unit, scale = ('s', 1.0) if end >= 2 else ('ms', 1e3)
    for (name, rank), calls in spans.groupby(['call', 'rank']):
        y = ranks.index(rank)
        times = scale * calls[['start', 'seconds']].to_numpy()
        axes.broken_barh(times[times[:, 1] > 0], (y - 0.38, 0.76),
                         facecolors=looks[name], edgecolors=looks[name],
                         linewidths=0.3, alpha=0.8)
        events = times[times[:, 1] == 0, 0]
        axes.plot(events, [y] * len(events), '|', color=looks[name], ms=6, mew=1)
    axes.set_xlim(0, end * scale * 1.01)
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    step = -(-len(ranks) // 12)
    axes.set_yticks(range(0, len(ranks), step), ranks[::step])
    axes.set_ylabel(rows.capitalize(), labelpad=2)
    axes.set_xlabel(f'Time ({unit})')
    axes.grid(axis='y', visible=False)
    return figure


def draw_series(points: pd.DataFrame, title: str, servers: list[str], bands: Bands,
                panels: Sequence[Panel]) -> Figure:
    """The panels of a session, those that it has points of; each series has a colour
    and a line, the first ones those of the servers.

    :param points: as series.read_series_file gives them
    :param servers: series that are servers, in their order
    :param bands: metric -> where a valid session is
    """
    names = list(dict.fromkeys([*servers, *points['series']]))
    looks = {name: (charts.COLOURS[n % len(charts.COLOURS)],
                    charts.LINES[n // len(charts.COLOURS) % len(charts.LINES)])
             for n, name in enumerate(names)}
    legend: list[tuple] = [(name, *look, 'o' * (name in servers))
                           for name, look in looks.items()]
    if (points['counts'] == '0').any():
        legend.append(('does not count', charts.INK, '', 'o', {'fillstyle': 'none'}))
    kinds = {name: name.partition(' ')[0] for name in names}
    panels = [panel for panel in panels if panel['of'] in kinds.values()]
    figure, rows = charts.create_figure(title, legend, rows=len(panels),
                                        height=1.2 * len(panels))
    rows = np.atleast_1d(rows)
    step = (1 + (len(servers) > 2)) * points['second'].max() / charts.MAX_POINTS or 1
    for panel, axes in zip(panels, rows, strict=True):
        for name, (colour, line) in looks.items():
            if kinds[name] != panel['of']:
                continue
            of_series = points[points['series'] == name]
            for key, width in (('metric', 1.0), ('beside', 0.6)):
                if key not in panel:
                    continue
                part = _merge_close_points(of_series, panel[key], step, panel.get(
                    'share_of', '') * (key == 'metric'))
                axes.plot(part['second'], part['value'], line, color=colour, lw=width)
                for counts, fill in (('1', 'full'), ('0', 'none')) * (key == 'metric'):
                    marked = part[part['counts'] == counts]
                    axes.plot(marked['second'], marked['value'], 'o', color=colour,
                              ms=2.4, mew=0.5, fillstyle=fill)
        _set_axis_and_title(axes, points, panel, bands)
    _shade_phases_outside_test(rows, points)
    return figure


def _merge_close_points(points: pd.DataFrame, metric: str, step: float,
                        share_of: str) -> pd.DataFrame:
    """Points of a metric of one series; neighbours closer than `step` as their mean, if
    they are alike.

    :param share_of: a metric that the other one is a share of
    """
    rows = points[points['metric'] == metric]
    if share_of:                    # of nothing there is no share
        whole = points.loc[(points['metric'] == share_of) & (points['value'] > 1),
                           'second']
        rows = rows.assign(value=rows['value'].where(rows['second'].isin(whole)))
    look = rows['counts'] + rows['phase']
    turns = (look != look.shift()).cumsum().rename('turn')
    return rows.groupby([turns, rows['second'] // step]).agg(
        {'second': 'mean', 'value': 'mean', 'counts': 'first'})


def _set_axis_and_title(axes: Axes, points: pd.DataFrame, panel: Panel, bands: Bands
                        ) -> None:
    """The y axis, the bands, and what stands above the panel."""
    metric = panel['metric']
    rows = points[points['metric'] == metric]
    unit = next(iter(rows['unit']), '')
    for name in (metric, panel.get('beside', '')):
        if name in bands:
            axes.axhspan(*bands[name], alpha=0.2, lw=0,
                         color=charts.COLOURS[charts.GOOD])
    if unit == '%':
        axes.set_ylim(0, 104)
        axes.set_yticks([0, 25, 50, 75, 100])
        axes.set_ylabel(axis_text(quantity_text(metric, unit), '%'), labelpad=2)
    elif metric in bands:
        # What a warm-up has far below the band is cut off.
        seen = [*bands[metric], *rows.loc[rows['phase'] == 'test', 'value']]
        margin = max(0.15 * (max(seen) - min(seen)), 0.02)
        axes.set_ylim(min(seen) - margin, max(seen) + margin)
    else:
        # Room for the names of the phases.
        axes.set_ylim(0, 1.2 * max([*rows['value'], 1]))
        charts.set_axis_title_and_labels(
            axes.yaxis, rows['value'],
            charts.Quantity(quantity_text(metric, unit), unit), False)

    def band_text(match: re.Match) -> str:
        ends = bands.get(match[1])
        return '-' if ends is None else (
            '{:.0f} to {:.0f} %' if unit == '%' else '{:.2f} to {:.2f}').format(*ends)
    charts.set_row_title(axes, re.sub(r'\{(\w+)\}', band_text, panel['says']))


def _shade_phases_outside_test(rows: np.ndarray, points: pd.DataFrame) -> None:
    """The time axis of all rows; what is not the test is shaded."""
    ends = points.groupby('phase')['second'].max()
    last = points['second'].max()
    start = 0.0
    for phase in PHASES:
        end = ends.get(phase, start)
        if phase in ends and phase != 'test':
            for axes in rows:
                axes.axvspan(start, end, color=charts.GRID, alpha=0.6, lw=0, zorder=0)
        if phase in ends and (phase == 'warmup' or end - start > 0.08 * last):
            rows[0].text((start + end) / 2, 0.97, phase.replace('warmup', 'warm-up'),
                         fontsize=charts.SMALL,
                         ha='center', va='top', color=charts.INK,
                         transform=rows[0].get_xaxis_transform())
        start = end
    rows[-1].set_xlim(0, last * 1.01 or 1)
    rows[-1].set_xlabel('Time since the first server started (s)')
