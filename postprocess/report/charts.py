"""Common parts of plots: colours, sizes, axes, legends, SVG and PNG.

A series has a label and a CPU speed class; classes never share a median. A
plot is as wide as the screen of a phone; a desktop shows several side by side.
The colours suit colour-blind people. In a page they follow its light or dark
scheme (`inline_svg`), in a file they are those of one scheme (`use_theme_temporarily`).
"""
from __future__ import annotations

import contextlib
import functools
import html
import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Ink, grid, paper, and the colours of series, on light and dark paper; no
#: two of a page are the same.
LIGHT = ['#3a3f47', '#d8dbe0', '#fefefe',
         '#0067a5', '#c4500b', '#008060', '#a5479b', '#7a6a00', '#555c66']
DARK = ['#d9dde3', '#3a424c', '#1c2026',
        '#5ab4f0', '#ff9350', '#38c79c', '#e592dc', '#d4c04a', '#a9b2be']
INK, GRID, PAPER, *COLOURS = LIGHT
#: Speed class -> line and marker; an unknown class looks like 'mixed'.
STYLES = {'fast': ('-', 'o'), '-': ('-', 'o'), 'slow': ('--', 's'),
          'mixed': (':', '^')}
WIDTH = 4.7            # inches
FEWEST_FOR_BOX = 3     # samples
MAX_POINTS = 130      # of a line over time; half of it among many lines
BAR = 0.75             # opacity of bars
#: Speed class -> hatch of a bar.
HATCHES = {'slow': '////', 'mixed': '....'}
GOOD = 2               # number of the colour where values are to be


def size_text(size: float) -> str:
    """A size in bytes with a binary prefix: 4194304 -> '4 MiB'."""
    for prefix in ('', 'Ki', 'Mi', 'Gi'):
        if size < 1024 or prefix == 'Gi':
            return f'{size:.4g} {prefix}B'
        size /= 1024
    raise AssertionError


def number_text(value: float) -> str:
    """Four digits, no exponent where people read it without."""
    if value and not 1e-4 <= abs(value) < 1e7:
        return f'{value:.3e}'
    if abs(value) >= 1000:
        return f'{value:,.0f}'.replace(',', '\u202f')
    return f'{value:.4g}'


def series_with_styles(frame: pd.DataFrame) -> Iterator[tuple]:
    """(label, speed, colour, line style, marker, records) of each series."""
    order = list(dict.fromkeys(frame['label']))
    for label in order:
        rows = frame[frame['label'] == label]
        for speed in sorted(rows['speed'].unique()):
            line, marker = STYLES.get(speed, STYLES['mixed'])
            yield (label, speed, COLOURS[order.index(label) % len(COLOURS)],
                   line, marker, rows[rows['speed'] == speed])


@contextlib.contextmanager
def use_theme_temporarily(dark: bool) -> Iterator[None]:
    """Plots that are made and rendered within have the colours of dark, or
    of light paper."""
    global INK, GRID, PAPER
    before = [INK, GRID, PAPER, *COLOURS]
    INK, GRID, PAPER, *COLOURS[:] = DARK if dark else LIGHT
    try:
        with _import_configured_matplotlib().rc_context(_theme_parameters()):
            yield
    finally:
        INK, GRID, PAPER, *COLOURS[:] = before


def render_svg(figure: Figure, name: str) -> bytes:
    """SVG of a plot; its ids begin anew with `series_name`."""
    import matplotlib
    out = io.BytesIO()
    with matplotlib.rc_context({'svg.fonttype': 'none',
                                'svg.hashsalt': name}):
        figure.savefig(out, format='svg', metadata={
            'Date': None, 'Creator': None})
    # Two decimals of a point are enough, except in what people read.
    text = re.sub(r'<[^>]*>', lambda tag: re.sub(
        r'(\d\.\d\d)\d+', r'\1', tag[0]), out.getvalue().decode())
    text = re.sub(r'<metadata>.*?</metadata>', '', text, flags=re.S)
    return text.encode()


def render_png(figure: Figure) -> bytes:
    """PNG of a plot, for who cannot use an SVG."""
    out = io.BytesIO()
    figure.savefig(out, format='png', dpi=200,
                   pil_kwargs={'compress_level': 3})
    return out.getvalue()


def inline_svg(svg: bytes, about: str) -> str:
    """The SVG as part of a page: its colours, its font, no fixed size."""
    text = svg.decode()
    text = text[text.index('<svg'):]
    text = re.sub(r'\s(width|height)="[\d.]+pt"', '', text, count=2)
    text = re.sub(r'<g id="[^"]*">', '<g>', text)
    text = re.sub(r'<style.*?</style>', '', text, flags=re.S)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r'font-size: \1', text)
    # Paper is drawn once, behind all; where it covers a line it stays.
    text = re.sub(rf'(<path d="[^"]*") style="fill: {PAPER}"',
                  r'\1 style="fill: none"', text, count=1)
    text = text.replace(INK, 'currentColor').replace(GRID, 'var(--grid)')
    text = text.replace(PAPER, 'var(--card)')
    for n, colour in enumerate(COLOURS):
        text = text.replace(colour, f'var(--c{n})')
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda match: match[0]
                  if match[1] in used else '', text)
    text = re.sub(r'\n\s*', '\n', text)
    return text.replace(
        '<svg', f'<svg role="img" aria-label="{html.escape(about)}"', 1)


@functools.cache
def _import_configured_matplotlib():
    """Imports matplotlib, sets what all plots share."""
    import matplotlib
    from matplotlib.artist import Artist
    # While it is imported it writes the help text of set() for a hundred
    # classes, a third of what that takes; nobody reads it here.
    if hasattr(Artist, '_update_set_signature_and_docstring'):
        Artist._update_set_signature_and_docstring = classmethod(
            lambda cls: None)
    matplotlib.use('agg')
    matplotlib.rcParams.update({
        **_theme_parameters(), 'text.parse_math': False,
        'font.size': 8, 'font.family': 'DejaVu Sans', 'axes.linewidth': 0.6,
        'axes.spines.top': False, 'axes.spines.right': False,
        'xtick.labelsize': 7.5, 'ytick.labelsize': 7.5, 'axes.grid': True,
        'grid.linewidth': 0.5, 'axes.axisbelow': True,
        'axes.facecolor': 'none', 'hatch.linewidth': 0.5,
        # The grid does what ticks would.
        'xtick.bottom': False, 'ytick.left': False,
        'xtick.major.pad': 3, 'ytick.major.pad': 3})
    return matplotlib


def _theme_parameters() -> dict[Any, Any]:
    """The rcParams of the theme."""
    return {**dict.fromkeys((
        'text.color', 'axes.edgecolor', 'axes.labelcolor', 'xtick.color',
        'ytick.color', 'hatch.color'), INK), 'grid.color': GRID,
        'figure.facecolor': PAPER, 'savefig.facecolor': PAPER}


def create_figure(title: str, names: list[tuple], columns: int = 1,
                  height: float = 2.5, rows: int = 1, names_beside: int = 0,
                  beside: float = 0.12):
    """A plot with a title and a legend above its axes, laid out by hand.

    :param names: (name, colour, line style, marker) of each entry of the
        legend, and what else its line is made with; line style `bar`: a bar,
        whose marker is its hatch
    :param rows: they share their x axis
    :param names_beside: letters of the longest name left of the axes
    :param beside: inches on their right
    """
    _import_configured_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    lines = [(textwrap.fill(name, 62), *style) for name, *style in names]
    longest = max((len(name) for name, *_ in lines), default=0)
    across = min(len(lines), max(1, 84 // (longest + 8))) or 1
    title = textwrap.fill(title, 62)
    head = 0.24 + 0.137 * title.count('\n')
    above = head + 0.12 + 0.137 * (sum(
        n.count('\n') + 1 for n, *_ in lines) / across).__ceil__()
    left, below = 0.62, 0.5
    if names_beside:
        left = min(max(0.15 + 0.058 * names_beside, 0.5), 2.7)
    above += 0.06 * (not lines) + 0.14 * (rows > 1)
    height += 0.3 * (rows - 1)
    total = above + height + below
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.subplots(rows, columns, sharex=rows > 1, gridspec_kw={
        'left': left / WIDTH, 'right': 1 - beside / WIDTH,
        'top': 1 - above / total, 'bottom': below / total,
        'wspace': 0.15, 'hspace': 0.28})
    figure.text(0.06 / WIDTH, 1 - 0.06 / total, title, va='top',
                fontsize=8.5, fontweight='bold')
    if lines:
        figure.legend(
            [Patch(facecolor=c, hatch=m, alpha=BAR, lw=0) if ls == 'bar' else
             Line2D([], [], **{'color': c, 'ls': ls, 'marker': m, 'ms': 3.5,
                               'lw': 1.6, **dict(*more)})
             for _, c, ls, m, *more in lines],
            [n for n, *_ in lines], ncols=across, loc='upper left',
            bbox_to_anchor=(0.04 / WIDTH, 1 - head / total),
            borderaxespad=0, borderpad=0.2, frameon=False, fontsize=7.5,
            labelspacing=0.25, handlelength=2.4)
    return figure, axes


def series_name(label: str, speed: str) -> str:
    return (
        ' · '.join(filter(None, [label, speed.strip('-')])) or 'all sessions'
    )


def legend_entries(frame: pd.DataFrame, runs: bool = True) -> list[tuple]:
    """Legend: (name, colour, line style, marker) of each series.

    :param frame: with a column `runs`: how many there are, and perhaps `older`
        (plots.add_dates_of_older_sessions)
    """
    entries = []
    for label, speed, colour, line, marker, rows in series_with_styles(frame):
        many = int(rows['runs'].max()) if runs else 0
        older = rows['older'].iloc[0] if 'older' in rows else ''
        entries.append((series_name(label, speed)
                        + f" ({many} session{'s' * (many > 1)}{older})"
                        * runs, colour, line, marker))
    return entries


def distinct_sizes(frame: pd.DataFrame) -> list[int]:
    return sorted(frame['point'].dropna().unique())


def log2_size_positions(sizes, every: list[int]) -> np.ndarray:
    """log2 of sizes; 0 B stands one step before the smallest other."""
    sizes = np.asarray(sizes, float)
    minimum = min([s for s in every if s > 0], default=1)
    return np.log2(np.where(sizes > 0, sizes, minimum / 2))


def set_size_axis(axes: Axes, every: list[int]) -> None:
    """Ticks at seven of the sizes at most, the last one included, so far
    apart that their labels are."""
    at = log2_size_positions(every, every)
    shown: list[int] = []
    for n in reversed(np.unique(np.linspace(
            0, len(every) - 1, min(7, len(every))).round()).astype(int)):
        if not shown or at[shown[-1]] - at[n] >= (at[-1] - at[0]) / 8:
            shown.append(n)
    axes.set_xticks(at[shown], [size_text(every[n]) for n in shown])
    axes.set_xlabel('size')
    axes.set_xlim(at[0] - 0.6, at[-1] + 0.6)


def set_value_axis(axes: Axes, values: pd.Series, unit: str) -> None:
    axes.set_ylabel(unit, labelpad=2)
    set_log_axis(axes.yaxis, values, axes.set_yscale)


def set_log_axis(axis, values: pd.Series, set_scale, few: bool = False) -> None:
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
    axis.set_major_formatter(ticker.FuncFormatter(lambda v, _: tick_text(v)))


def tick_text(value: float) -> str:
    """A number for an axis: 0.05, 20, 3k, 12M."""
    for limit, letter in ((1e9, 'G'), (1e6, 'M'), (1e4, 'k')):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f'{value:.4g}'


def set_row_title(axes: Axes, text: str) -> None:
    """Sets the title of one of several rows."""
    axes.set_title(text, loc='left', fontsize=7.5, color=INK, pad=3)


def draw_boxes(axes: Axes, at: np.ndarray, frame: pd.DataFrame, colour: str,
               width: float, upright: bool = True) -> None:
    """Boxes: quartiles, whiskers, and the farthest beyond them.

    :param frame: columns q1, q2, q3, low, high (ends of the whiskers), least
        and most (NaN: nothing is beyond), a row a box
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    q1, q2, q3, low, high, minimum, maximum = (
        frame[name].to_numpy()
        for name in ('q1', 'q2', 'q3', 'low', 'high', 'minimum', 'maximum')
    )
    at = np.asarray(at, float)
    a, b, gap = at - width / 2, at + width / 2, np.full(len(at), np.nan)
    turn = 1 if upright else -1
    corners = np.stack([np.stack(p, -1) for p in (
        (a, q1), (b, q1), (b, q3), (a, q3), (a, q1))], 1)
    axes.add_patch(PathPatch(Path.make_compound_path_from_polys(
        corners[:, :, ::turn]), facecolor=colour, edgecolor=colour,
        alpha=0.35, lw=0.6))
    for (xs, ys), look in (
            (((at, at, gap, at, at, gap), (low, q1, gap, q3, high, gap)),
             {'lw': 0.8}),
            (((a, b, gap), (q2, q2, gap)), {'lw': 1.6}),
            (((at, at), (minimum, maximum)),
             {'ls': '', 'marker': 'o', 'ms': 2, 'mew': 0})):
        line = np.stack([np.stack(xs, -1).ravel(),
                         np.stack(ys, -1).ravel()])[::turn]
        axes.plot(*line, color=colour, solid_capstyle='butt', **look)
    axes.autoscale_view()


def set_row_names(axes: Axes, names: Sequence[str]) -> None:
    """A row for each name, the first one at the top; `names_beside` has room
    for so many letters."""
    axes.set_yticks(range(len(names)), [
        name if len(name) < 44 else name[:43] + '…' for name in names],
        fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis='y', visible=False)


def set_few_ticks(axis, log: bool) -> None:
    """Four plain numbers on a narrow axis."""
    from matplotlib import ticker
    axis.set_major_locator(ticker.LogLocator(numticks=4) if log
                           else ticker.MaxNLocator(4))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda v, _: tick_text(v)))
