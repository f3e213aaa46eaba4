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


def figure(title: str, names: list[tuple], columns: int = 1,
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


def name(label: str, speed: str) -> str:
    return ' · '.join(filter(None, [label, speed.strip('-')])) or 'all runs'


def names(frame: pd.DataFrame) -> list[tuple]:
    """Legend: (name, colour, line style, marker) of each series."""
    return [(f'{name(label, speed)} '
             f"({runs} run{'s' * (runs > 1)})", colour, line, marker)
            for label, speed, colour, line, marker, mine in series(frame)
            for runs in [mine['run'].nunique()]]


def sizes(frame: pd.DataFrame) -> list[int]:
    return sorted(frame['size'].dropna().unique())


def position(sizes, every: list[int]) -> np.ndarray:
    """log2 of sizes; 0 B stands one step before the smallest other."""
    sizes = np.asarray(sizes, float)
    least = min([s for s in every if s > 0], default=1)
    return np.log2(np.where(sizes > 0, sizes, least / 2))


def size_axis(axes: Axes, every: list[int]) -> None:
    """Ticks at seven of the sizes at most, the first and last included."""
    shown = [every[int(n)] for n in np.unique(np.linspace(
        0, len(every) - 1, min(7, len(every))).round())]
    axes.set_xticks(position(shown, every), [human(s) for s in shown])
    axes.set_xlabel('size')
    at = position(every, every)
    axes.set_xlim(at[0] - 0.6, at[-1] + 0.6)


def value_axis(axes: Axes, values: pd.Series, unit: str) -> None:
    axes.set_ylabel(unit, labelpad=2)
    plain_log(axes.yaxis, values, axes.set_yscale)


def plain_log(axis, values: pd.Series, set_scale, few: bool = False) -> None:
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
    axis.set_major_formatter(ticker.FuncFormatter(lambda v, _: tick(v)))


def tick(value: float) -> str:
    """A number for an axis: 0.05, 20, 3k, 12M."""
    for limit, letter in ((1e9, 'G'), (1e6, 'M'), (1e4, 'k')):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f'{value:.4g}'


def says(axes: Axes, text: str) -> None:
    """What one of several rows shows, above it."""
    axes.set_title(text, loc='left', fontsize=7.5, color=INK, pad=3)


def boxes(axes: Axes, at: np.ndarray, groups: list, colour: str,
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
