"""The figures of a report: tables in, matplotlib figures out.

Every function takes records as perflogs.read gives them, with the columns
`label` (what the series is called) and `speed`; a series is one label at one
speed class, so classes never share a median. Figures are as wide as a phone,
and stand side by side on a desk. Colours are safe for the colour-blind; in a
page they follow its light or dark scheme (see `inline`).
"""
from __future__ import annotations

import functools
import html
import io
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Series colours; the page has a lighter set for dark (--c0, --c1, ...).
COLOURS = ['#0067a5', '#c4500b', '#008060', '#a5479b', '#7a6a00', '#555c66']
INK, GRID, PAPER = '#3a3f47', '#d8dbe0', '#fefefe'
#: Speed class -> line and marker; an unknown class looks like 'mixed'.
STYLES = {'fast': ('-', 'o'), '-': ('-', 'o'), 'slow': ('--', 's'),
          'mixed': (':', '^')}
WIDTH = 4.7            # inches
FAINT_RUNS = 25        # the newest runs are drawn one by one
FEWEST_FOR_BOX = 3
MOST_POINTS = 130      # of a line over time; half of it among many lines
GOOD = COLOURS[2]      # where values are to be


def human(size: float) -> str:
    """A size in bytes with a binary prefix: 4194304 -> '4 MiB'."""
    for prefix in ('', 'Ki', 'Mi', 'Gi'):
        if size < 1024 or prefix == 'Gi':
            return f'{size:.4g} {prefix}B'
        size /= 1024
    raise AssertionError


def short(value: float) -> str:
    """Four digits, no exponent where people read it without."""
    if value and not 1e-4 <= abs(value) < 1e7:
        return f'{value:.3e}'
    if abs(value) >= 1000:
        return f'{value:,.0f}'.replace(',', '\u202f')
    return f'{value:.4g}'


def series(frame: pd.DataFrame) -> Iterator[tuple]:
    """(label, speed, colour, line style, marker, records) of each series."""
    order = list(dict.fromkeys(frame['label']))
    for label in order:
        mine = frame[frame['label'] == label]
        for speed in sorted(mine['speed'].unique()):
            line, marker = STYLES.get(speed, STYLES['mixed'])
            yield (label, speed, COLOURS[order.index(label) % len(COLOURS)],
                   line, marker, mine[mine['speed'] == speed])


def curve(frame: pd.DataFrame, title: str, unit: str) -> Figure:
    """A figure over size: each run faint, the median strong."""
    figure, axes = _figure(title, _names(frame))
    every = _sizes(frame)
    for _, _, colour, line, marker, mine in series(frame):
        runs = mine.groupby(['size', 'run'], observed=True)[
            'value'].median().unstack()
        x = _position(runs.index, every)
        newest = list(dict.fromkeys(mine.sort_values('time')['run']))
        if len(newest) > 1:
            # One path, with gaps between the runs.
            some = runs[newest[-FAINT_RUNS:]].T
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
            at = _position(last.index, every)
            axes.plot(at, last['reference'], color=colour, lw=1, ls=':')
            for x0, (ref, lower, upper) in zip(at, last.to_numpy(),
                                               strict=True):
                for bound in (lower, upper):
                    if not np.isnan(bound):
                        axes.plot([x0, x0], [ref, ref * (1 + bound)], '-',
                                  color=colour, lw=4, alpha=0.4,
                                  solid_capstyle='butt')
    _size_axis(axes, every)
    _value_axis(axes, frame['value'], unit)
    return figure


def spread(frame: pd.DataFrame, title: str) -> Figure:
    """Box plots over runs and repeats, relative to the median of the size.

    A band a series, in per cent. Fewer than three samples are points.
    """
    parts = []
    every = _sizes(frame)
    for label, speed, colour, _, marker, mine in series(frame):
        groups = [(size, group.to_numpy() / group.median() - 1) for
                  size, group in mine.groupby('size')['value']
                  if group.median()]
        counts = sorted({len(v) for _, v in groups}) or [0]
        many = '\u2013'.join(map(str, dict.fromkeys(
            [counts[0], counts[-1]])))
        parts.append((f'{_name(label, speed)} ({many} '
                      f"sample{'s' * (many != '1')} a size)",
                      colour, marker, groups))
    far = max([0.01] + [abs(v).max() for *_, groups in parts
                        for _, v in groups])
    far = next(f for f in (m * 10 ** e for e in range(-2, 99)
                           for m in (1, 2, 3, 5)) if f >= far)
    figure, axes = _figure(title, [], height=max(1.5, 0.8 * len(parts)))
    width = 0.6 * min(np.diff(_position(every, every)), default=1)
    for n, (name, colour, marker, groups) in enumerate(parts):
        middle = -3 * n            # a band is as high as 3 times `far`
        _boxes(axes, _position([size for size, _ in groups], every),
               [middle + v / far for _, v in groups], colour, marker, width)
        axes.text(0.01, middle + 1.06, textwrap.shorten(
            name, 68, placeholder='…'), transform=axes.get_yaxis_transform(),
            color=colour, fontsize=7.5, va='bottom')
    axes.set_yticks(
        [y - 3 * n for n in range(len(parts)) for y in (-1, 0, 1)],
        [f'{y * far:+.0%}'.replace('%', ' %') if y else '0'
         for _ in parts for y in (-1, 0, 1)])
    axes.set_ylim(-3 * (len(parts) - 1) - 1.2, 1.6)
    _size_axis(axes, every)
    return figure


def strip(frame: pd.DataFrame, title: str, unit: str) -> Figure:
    """A figure of the whole run, over runs: repeats as points.

    :param frame: with columns `sample` (one repeat) and `judged` (the run)
    """
    figure, axes = _figure(title, _names(frame))
    runs = frame.groupby('run', observed=True)['time'].max().sort_values()
    place = {run: n for n, run in enumerate(runs.index)}
    for _, _, colour, line, marker, mine in series(frame):
        mine = mine.assign(x=mine['run'].map(place))
        samples = mine[mine['sample']]
        axes.plot(samples['x'], samples['value'], marker, color=colour, ms=4,
                  alpha=0.55, mew=0)
        middle = mine[mine['judged']].groupby('x')['value'].median()
        axes.plot(middle.index, middle, line, color=colour, lw=1.2)
        last = mine[mine['judged']].sort_values('time').dropna(
            subset='reference').tail(1)
        for ref, lower, upper in last[
                ['reference', 'lower', 'upper']].to_numpy():
            axes.axhline(ref, color=colour, lw=1, ls=':')
            for bound in (lower, upper):
                if not np.isnan(bound):
                    axes.axhspan(*sorted((ref, ref * (1 + bound))),
                                 color=colour, alpha=0.12, lw=0)
    step = -(-len(runs) // 5)
    ticks = range(len(runs) - 1, -1, -step)
    axes.set_xticks(list(ticks), [f'{runs.iloc[n]:%d %b\n%H:%M}'
                                  for n in ticks])
    axes.set_xlim(-0.5, len(runs) - 0.5)
    axes.set_xlabel('run (UTC)')
    _value_axis(axes, frame['value'], unit)
    return figure


def times(frame: pd.DataFrame, title: str) -> Figure:
    """Wall, user and system time: a row a program, a colour a node count.

    :param frame: with a column `row`; `label` is the node count
    """
    rows = list(dict.fromkeys(frame['row']))
    figure, columns = _figure(title, _names(frame), columns=3,
                              height=0.5 + 0.22 * len(rows))
    parts = list(series(frame))
    for axes, metric in zip(columns, ('wall_time', 'user_time',
                                      'system_time'), strict=True):
        for n, (_, _, colour, _, marker, mine) in enumerate(parts):
            mine = mine[mine['metric'] == metric]
            groups = [(rows.index(r), g.to_numpy()) for r, g in
                      mine.groupby('row')['value']]
            shift = 0.7 * ((n + 0.5) / len(parts) - 0.5)
            _boxes(axes, np.array([r + shift for r, _ in groups]),
                   [v for _, v in groups], colour, marker,
                   0.6 / len(parts), upright=False)
        _plain_log(axes.xaxis, frame.loc[frame['metric'] == metric, 'value'],
                   axes.set_xscale, few=True)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_title(metric.replace('_', ' ') + ' (s)', fontsize=8,
                       color=INK, pad=3)
        axes.set_yticks(range(len(rows)), [])
    columns[0].set_yticklabels([r if len(r) < 28 else r[:27] + '…'
                                for r in rows], fontsize=6.6)
    return figure


def timeline(points: pd.DataFrame, servers: list[str], title: str,
             bands: dict[str, tuple[float, float]]) -> Figure:
    """Requests, hit ratio and CPU of a run over time, one below the other.

    :param points: as series.read gives them
    :param servers: series that are servers, in their order
    :param bands: metric -> where a valid run is
    """
    # A line and a mark for each server; further ones begin anew, dashed.
    looks = {name: (COLOURS[n % len(COLOURS)],
                    ('-', '--', ':')[n // len(COLOURS) % 3])
             for n, name in enumerate(servers)}
    nodes = [n for n in dict.fromkeys(points['series']) if n not in looks]
    names: list[tuple] = [(name, *look, 'o') for name, look in looks.items()]
    if (points['counts'] == '0').any():
        names.append(('does not count', INK, '', 'o', {'fillstyle': 'none'}))
    panels = ['qps', 'hit'] * bool(servers) + ['cpu'] * bool(nodes)
    figure, rows = _figure(title, names, rows=len(panels), height=sum(
        1.5 if panel == 'qps' else 1.05 for panel in panels))
    step = (1 + (len(servers) > 2)) * points['second'].max() / MOST_POINTS or 1
    asked = points[(points['metric'] == 'total_qps') & (points['value'] > 1)]
    for panel, axes in zip(panels, np.atleast_1d(rows), strict=True):
        if panel == 'cpu':
            _cpu(axes, points, nodes, step, bands)
            continue
        metric = {'qps': 'total_qps', 'hit': 'hit_rate'}[panel]
        for name, (colour, line) in looks.items():
            mine = points[points['series'] == name]
            if panel == 'qps':
                slow = _thinned(mine[mine['metric'] == 'slow_qps'], step)
                axes.plot(slow['second'], slow['value'], line, color=colour,
                          lw=0.6)
            mine = mine[mine['metric'] == metric]
            if panel == 'hit':    # of nothing there is no share
                mine = mine.assign(value=mine['value'].where(
                    mine['second'].isin(asked.loc[
                        asked['series'] == name, 'second'])))
            mine = _thinned(mine, step)
            axes.plot(mine['second'], mine['value'], line, color=colour,
                      lw=0.9)
            for counts, fill in (('1', 'full'), ('0', 'none')):
                some = mine[mine['counts'] == counts]
                axes.plot(some['second'], some['value'], 'o', color=colour,
                          ms=2.4, mew=0.5, fillstyle=fill)
        if panel == 'qps':
            # Room for the names of the phases.
            axes.set_ylim(0, 1.2 * max([*asked['value'], 1]))
            axes.set_ylabel('1/s', labelpad=2)
            _says(axes, 'requests a second; thin: those that missed')
        else:
            _near(axes, points, bands[metric])
            low, high = bands[metric]
            _says(axes, f'hit ratio, valid: {low:.2f} to {high:.2f}')
    _phases(np.atleast_1d(rows), points)
    return figure


def render(figure: Figure, name: str) -> tuple[bytes, bytes]:
    """(SVG, PNG) of a figure; the ids of the SVG begin anew with `name`."""
    import matplotlib
    svg, png = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context({'svg.fonttype': 'none',
                                'svg.hashsalt': name}):
        figure.savefig(svg, format='svg', metadata={
            'Date': None, 'Creator': None})
    figure.savefig(png, format='png', dpi=140,
                   pil_kwargs={'compress_level': 3})
    # Two decimals of a point are enough, except in what people read.
    text = re.sub(r'<[^>]*>', lambda tag: re.sub(
        r'(\d\.\d\d)\d+', r'\1', tag[0]), svg.getvalue().decode())
    text = re.sub(r'<metadata>.*?</metadata>', '', text, flags=re.S)
    return text.encode(), png.getvalue()


def inline(svg: bytes, about: str) -> str:
    """The SVG as part of a page: its colours, its font, no fixed size."""
    text = svg.decode()
    text = text[text.index('<svg'):]
    text = re.sub(r'\s(width|height)="[\d.]+pt"', '', text, count=2)
    text = re.sub(r'<g id="[^"]*">', '<g>', text)
    text = re.sub(r'<style.*?</style>', '', text, flags=re.S)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r'font-size: \1', text)
    text = text.replace(INK, 'currentColor').replace(GRID, 'var(--grid)')
    text = text.replace(PAPER, 'none')
    for n, colour in enumerate(COLOURS):
        text = text.replace(colour, f'var(--c{n})')
    return text.replace(
        '<svg', f'<svg role="img" aria-label="{html.escape(about)}"', 1)


@functools.cache
def _matplotlib():
    """Imports matplotlib, sets what all figures share."""
    import matplotlib
    from matplotlib.artist import Artist
    # While it is imported it writes the help text of set() for a hundred
    # classes, a third of what that takes; nobody reads it here.
    if hasattr(Artist, '_update_set_signature_and_docstring'):
        Artist._update_set_signature_and_docstring = classmethod(
            lambda cls: None)
    matplotlib.use('agg')
    matplotlib.rcParams.update({
        'text.parse_math': False, 'text.color': INK,
        'font.size': 8, 'font.family': 'DejaVu Sans',
        'axes.edgecolor': INK, 'axes.labelcolor': INK, 'axes.linewidth': 0.6,
        'axes.spines.top': False, 'axes.spines.right': False,
        'xtick.color': INK, 'ytick.color': INK, 'xtick.labelsize': 7.5,
        'ytick.labelsize': 7.5, 'axes.grid': True, 'grid.color': GRID,
        'grid.linewidth': 0.5, 'axes.axisbelow': True,
        'figure.facecolor': PAPER, 'axes.facecolor': 'none',
        # The grid does what ticks would.
        'xtick.bottom': False, 'ytick.left': False,
        'xtick.major.pad': 3, 'ytick.major.pad': 3})
    return matplotlib


def _figure(title: str, names: list[tuple], columns: int = 1,
            height: float = 2.5, rows: int = 1):
    """A figure with a title and a legend above its axes, laid out by hand.

    :param names: (name, colour, line style, marker) of each entry of the
        legend, and what else its line is made with; in short columns where
        there are `rows`, which share their x axis
    """
    _matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    lines = [(textwrap.fill(name, 62), *style) for name, *style in names]
    across = 1 if rows == 1 else min(4, len(lines)) or 1
    title = textwrap.fill(title, 60) if rows > 1 else title
    head = 0.24 + 0.137 * title.count('\n')
    above = head + 0.12 + 0.137 * (sum(
        n.count('\n') + 1 for n, *_ in lines) / across).__ceil__()
    left, below = (1.55 if columns > 1 else 0.62), 0.5
    above += 0.2 * (columns > 1) + 0.16 * (not lines) + 0.14 * (rows > 1)
    height += 0.3 * (rows - 1)
    total = above + height + below
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.subplots(rows, columns, sharex=rows > 1, gridspec_kw={
        'left': left / WIDTH, 'right': 1 - 0.12 / WIDTH,
        'top': 1 - above / total, 'bottom': below / total,
        'wspace': 0.15, 'hspace': 0.28})
    figure.text(0.06 / WIDTH, 1 - 0.06 / total, title, va='top',
                fontsize=8.5, fontweight='bold')
    if lines:
        figure.legend(
            [Line2D([], [], color=c, ls=ls, marker=m, ms=3.5, lw=1.6,
                    **dict(*more)) for _, c, ls, m, *more in lines],
            [n for n, *_ in lines], ncols=across, loc='upper left',
            bbox_to_anchor=(0.04 / WIDTH, 1 - head / total),
            borderaxespad=0, borderpad=0.2, frameon=False, fontsize=7.5,
            labelspacing=0.25, handlelength=2.4)
    return figure, axes


def _name(label: str, speed: str) -> str:
    return ' · '.join(filter(None, [label, speed.strip('-')])) or 'all runs'


def _names(frame: pd.DataFrame) -> list[tuple]:
    """Legend: (name, colour, line style, marker) of each series."""
    return [(f'{_name(label, speed)} '
             f"({runs} run{'s' * (runs > 1)})", colour, line, marker)
            for label, speed, colour, line, marker, mine in series(frame)
            for runs in [mine['run'].nunique()]]


def _sizes(frame: pd.DataFrame) -> list[int]:
    return sorted(frame['size'].dropna().unique())


def _position(sizes, every: list[int]) -> np.ndarray:
    """log2 of sizes; 0 B stands one step before the smallest other."""
    sizes = np.asarray(sizes, float)
    least = min([s for s in every if s > 0], default=1)
    return np.log2(np.where(sizes > 0, sizes, least / 2))


def _size_axis(axes: Axes, every: list[int]) -> None:
    """Ticks at seven of the sizes at most, the first and last included."""
    shown = [every[int(n)] for n in np.unique(np.linspace(
        0, len(every) - 1, min(7, len(every))).round())]
    axes.set_xticks(_position(shown, every), [human(s) for s in shown])
    axes.set_xlabel('size')
    at = _position(every, every)
    axes.set_xlim(at[0] - 0.6, at[-1] + 0.6)


def _value_axis(axes: Axes, values: pd.Series, unit: str) -> None:
    axes.set_ylabel(unit, labelpad=2)
    _plain_log(axes.yaxis, values, axes.set_yscale)


def _plain_log(axis, values: pd.Series, set_scale, few: bool = False) -> None:
    """A log scale with plain numbers, where the values allow and need it."""
    from matplotlib import ticker
    if len(values) and values.min() > 0 and values.max() > 4 * values.min():
        decades = np.log10(values.max() / values.min())
        set_scale('log')
        axis.set_major_locator(ticker.LogLocator(
            subs=(1,) if decades > 1.5 + (not few) else (1, 2, 5),
            numticks=4 if few else 9))
        axis.set_minor_formatter(ticker.NullFormatter())
        axis.set_minor_locator(ticker.NullLocator())
    else:
        middle = values.mean() if len(values) else 0
        if middle and (abs(values / middle - 1) < 0.005).all():
            # Ticks of such a span would all have the same label.
            axis.set_view_interval(*sorted((0.98 * middle, 1.02 * middle)),
                                   ignore=True)
        axis.set_major_locator(ticker.MaxNLocator(3 if few else 6))
    axis.set_major_formatter(ticker.FuncFormatter(lambda v, _: _tick(v)))


def _tick(value: float) -> str:
    """A number for an axis: 0.05, 20, 3k, 12M."""
    for limit, letter in ((1e9, 'G'), (1e6, 'M'), (1e4, 'k')):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f'{value:.4g}'


def _says(axes: Axes, text: str) -> None:
    """What one of several rows shows, above it."""
    axes.set_title(text, loc='left', fontsize=7.5, color=INK, pad=3)


def _thinned(mine: pd.DataFrame, step: float) -> pd.DataFrame:
    """Neighbours closer than `step` as their mean, if they are alike."""
    look = mine['counts'] + mine['phase']
    turns = (look != look.shift()).cumsum().rename('turn')
    return mine.groupby([turns, mine['second'] // step]).agg(
        {'second': 'mean', 'value': 'mean', 'counts': 'first'})


def _cpu(axes: Axes, points: pd.DataFrame, nodes: list[str], step: float,
         bands: dict[str, tuple[float, float]]) -> None:
    """CPU shares of each node: all of it, and dashed that of user mode."""
    for n, node in enumerate(nodes):
        for metric, line in (('cpu_total', '-'), ('cpu_user', '--')):
            mine = _thinned(points[(points['series'] == node) & (
                points['metric'] == metric)], step)
            colour = INK if len(nodes) == 1 else COLOURS[n % len(COLOURS)]
            axes.plot(mine['second'], mine['value'], line, color=colour,
                      lw=1.1)
            if len(nodes) > 1 and metric == 'cpu_total' and len(mine):
                axes.annotate(
                    node.removeprefix('cpu '), mine.iloc[-1][
                        ['second', 'value']], color=colour, fontsize=7,
                    ha='right', va='bottom')
    texts = []
    for metric, word in (('cpu_total', 'all'), ('cpu_user', 'user, dashed')):
        low, high = bands[metric]
        axes.axhspan(low, high, color=GOOD, alpha=0.2, lw=0)
        texts.append(f'{word} (valid: {low:.0f} to {high:.0f} %)')
    axes.set_ylim(0, 104)
    axes.set_yticks([0, 25, 50, 75, 100])
    axes.set_ylabel('%', labelpad=2)
    _says(axes, 'CPU: ' + '; '.join(texts))


def _near(axes: Axes, points: pd.DataFrame, band: tuple[float, float]
          ) -> None:
    """Marks the band; what a warm-up has far below it is cut off."""
    seen = points.loc[(points['metric'] == 'hit_rate')
                      & (points['phase'] == 'test'), 'value']
    low, high = min([band[0], *seen]), max([band[1], *seen])
    margin = max(0.15 * (high - low), 0.02)
    axes.axhspan(*band, color=GOOD, alpha=0.2, lw=0)
    axes.set_ylim(low - margin, high + margin)


def _phases(rows: np.ndarray, points: pd.DataFrame) -> None:
    """The time axis of all rows; what is not the test is shaded."""
    from matplotlib import ticker
    ends = points.groupby('phase')['second'].max()
    last = points['second'].max()
    start = 0.0
    for phase, word in (('warmup', 'warm-up'), ('rest', 'rest'),
                        ('test', 'test'), ('after', 'after')):
        if phase not in ends:
            continue
        end = ends[phase]
        if phase != 'test':
            for axes in rows:
                axes.axvspan(start, end, color=GRID, alpha=0.6, lw=0,
                             zorder=0)
        if phase == 'warmup' or end - start > 0.08 * last:
            rows[0].text((start + end) / 2, 0.97, word, fontsize=7,
                         ha='center', va='top', color=INK,
                         transform=rows[0].get_xaxis_transform())
        start = end
    for axes in rows:
        if not axes.get_ylabel():
            axes.yaxis.set_major_locator(ticker.MaxNLocator(5))
        axes.yaxis.set_major_formatter(
            ticker.FuncFormatter(lambda v, _: _tick(v)))
    rows[-1].set_xlim(0, last * 1.01 or 1)
    rows[-1].set_xlabel('time since the first server started (s)')


def _boxes(axes: Axes, at: np.ndarray, groups: list, colour: str,
           marker: str, width: float, upright: bool = True) -> None:
    """Boxes (quartiles, whiskers to 1.5 IQR, points beyond); few: points."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path
    boxes, middles, whiskers, dots, beyond = [], [], [], [], []
    for x, v in zip(at, groups, strict=True):
        if len(v) < FEWEST_FOR_BOX:
            dots += [(x, y) for y in v]
            continue
        q1, q2, q3 = np.percentile(v, [25, 50, 75])
        inside = v[(v >= q1 - 1.5 * (q3 - q1)) & (v <= q3 + 1.5 * (q3 - q1))]
        low, high = min(q1, inside.min()), max(q3, inside.max())
        a, b = x - width / 2, x + width / 2
        boxes.append([(a, q1), (b, q1), (b, q3), (a, q3), (a, q1)])
        middles += [(a, q2), (b, q2), (np.nan, np.nan)]
        whiskers += [(x, low), (x, q1), (np.nan, np.nan),
                     (x, q3), (x, high), (np.nan, np.nan)]
        beyond += [(x, y) for y in v if not low <= y <= high]
    turn = 1 if upright else -1
    if boxes:
        axes.add_patch(PathPatch(Path.make_compound_path_from_polys(
            np.array(boxes)[:, :, ::turn]), facecolor=colour,
            edgecolor=colour, alpha=0.35, lw=0.6))
    for points, look in (
            (whiskers, {'lw': 0.8}), (middles, {'lw': 1.6}),
            (beyond, {'ls': '', 'marker': marker, 'ms': 2, 'mew': 0}),
            (dots, {'ls': '', 'marker': marker, 'ms': 3.4, 'mew': 0,
                    'alpha': 0.8})):
        if points:
            axes.plot(*np.array(points).T[::turn], color=colour,
                      solid_capstyle='butt', **look)
