"""Common parts of plots: colours, sizes, axes and legends.

A plot is as wide as the screen of a phone; a desktop shows several side by side.
The colours suit colour-blind people. In a page they follow its light or dark
scheme (`svg.inline_svg`), in a file they are those of one scheme
(`use_theme_temporarily`).
"""
from __future__ import annotations

import contextlib
import functools
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from config.families import all_metrics
from config.records.units import (
    Scale,
    axis_text,
    quantity_text,
    readable_scale,
    size_text,
    tick_text,
    value_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Ink, grid, paper, and the colours of series, on light and dark paper; no
#: two of a page are the same.
LIGHT = ['#3a3f47', '#d8dbe0', '#fefefe',
         '#0067a5', '#c4500b', '#008060', '#a5479b', '#7a6a00', '#555c66']
DARK = ['#d9dde3', '#3a424c', '#1c2026',
        '#5ab4f0', '#ff9350', '#38c79c', '#e592dc', '#d4c04a', '#a9b2be']
INK, GRID, PAPER, *COLOURS = LIGHT
#: Markers of series: they differ without their colours, too.
MARKERS = 'os^DvP'
#: Lines of the first series, and of more series than there are colours.
LINES = ('-', '--', ':')
WIDTH = 4.7            # inches
#: Font sizes in points: of names of rows and values, of axes and legends, of titles.
SMALL, TEXT, TITLE = 7.0, 7.5, 8.5
#: Widths of plots for a paper (one column, a page) in inches, and their font sizes.
PAPER_WIDTHS, PAPER_FONTS = (3.5, 7.0), (8.0, 8.0, 9.0)
SIZE = 'Size'           # title of the axis of sizes
FEWEST_FOR_BOX = 3     # samples
MAX_POINTS = 130      # of a line over time; half of it among many lines
BAR = 0.75             # opacity of bars
GOOD = 2               # number of the colour where values are to be


def series_with_styles(frame: pd.DataFrame) -> Iterator[tuple]:
    """(label, colour, line style, marker, records) of each series."""
    for n, label in enumerate(dict.fromkeys(frame['label'])):
        yield (label, COLOURS[n % len(COLOURS)],
               LINES[n // len(COLOURS) % len(LINES)], MARKERS[n % len(MARKERS)],
               frame[frame['label'] == label])


class Quantity(NamedTuple):
    """What the values of a plot are."""
    #: Its name as the title of an axis, such as `Latency`.
    title: str
    #: Unit of the metric, as in records.
    unit: str
    #: Which values are better: lower, higher or none.
    better: str = 'none'

    @classmethod
    def of_metric(cls, metric: str) -> Quantity:
        """The quantity of a metric."""
        known = all_metrics()[metric]
        return cls(quantity_text(metric, known['unit']), known['unit'], known['better'])

    def scale(self, value: float) -> Scale:
        """The unit of an axis with values of this size; ticks of counts and rates
        have a letter instead (200k)."""
        if self.unit in ('1', '1/s'):
            return Scale('' if self.title.endswith(' per second') or
                         self.unit == '1' else 'per second', 1)
        return readable_scale(self.unit, value)

    def text(self, value: float) -> str:
        """A value with its unit."""
        return value_text(value, self.unit)


@contextlib.contextmanager
def use_theme_temporarily(dark: bool, paper_width: float = 0) -> Iterator[None]:
    """Plots that are made and rendered within have the colours of dark, or
    of light paper.

    :param paper_width: inches of a plot for a paper, whose fonts have the size of
        PAPER_FONTS; 0: a plot for a screen
    """
    global INK, GRID, PAPER, WIDTH, SMALL, TEXT, TITLE
    before = [INK, GRID, PAPER, *COLOURS]
    sizes = WIDTH, SMALL, TEXT, TITLE
    INK, GRID, PAPER, *COLOURS[:] = DARK if dark else LIGHT
    if paper_width:
        WIDTH, (SMALL, TEXT, TITLE) = paper_width, PAPER_FONTS
    try:
        with _import_configured_matplotlib().rc_context(_theme_parameters()):
            yield
    finally:
        INK, GRID, PAPER, *COLOURS[:] = before
        WIDTH, SMALL, TEXT, TITLE = sizes


@functools.cache
def _import_configured_matplotlib():
    """Imports matplotlib, sets what all plots share."""
    import matplotlib
    matplotlib.use('agg')
    matplotlib.rcParams.update({
        **_theme_parameters(), 'text.parse_math': False,
        'font.size': 8, 'font.family': 'DejaVu Sans', 'axes.linewidth': 0.6,
        'axes.spines.top': False, 'axes.spines.right': False,
        'axes.grid': True,
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
        'xtick.labelsize': TEXT, 'ytick.labelsize': TEXT,
        'figure.facecolor': PAPER, 'savefig.facecolor': PAPER}


def create_figure(title: str, names: list[tuple],
                  height: float = 2.5, rows: int = 1):
    """A plot with a title and a legend above its axes, laid out by hand.

    :param title: after a line break, where its values are from
    :param names: (name, colour, line style, marker) of each entry of the
        legend, and what else its line is made with; line style `bar`: a bar,
        whose marker is its hatch
    :param height: of the axes, in inches
    :param rows: they share their x axis
    """
    _import_configured_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    line = TEXT * 0.0183                    # inches between lines
    lines = [(wrap_text(name, 1.1 * TEXT), *style) for name, *style in names]
    longest = max((len(name) for name, *_ in lines), default=0)
    across = min(len(lines), max(1, int(WIDTH * 134 / TEXT) // (longest + 8))) or 1
    title, _, origin = title.partition('\n')
    title, origin = wrap_text(title, TITLE), wrap_text(origin, SMALL)
    below_title = 0.1 + TITLE * 0.0165 * (title.count('\n') + 1)
    head = below_title + (0.02 + SMALL * 0.018 * (origin.count('\n') + 1)
                          ) * bool(origin)
    above = head + 0.12 + line * (sum(
        n.count('\n') + 1 for n, *_ in lines) / across).__ceil__()
    # Left are ticks and a title of two lines.
    left, below = 0.104 * TEXT, 0.067 * TEXT
    above += 0.06 * (not lines) + 0.14 * (rows > 1)
    height += 0.3 * (rows - 1)
    total = above + height + below
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.subplots(rows, sharex=rows > 1, gridspec_kw={
        'left': left / WIDTH, 'right': 1 - 0.2 / WIDTH,
        'top': 1 - above / total, 'bottom': below / total,
        'hspace': 0.28})
    figure.text(0.06 / WIDTH, 1 - 0.06 / total, title, va='top',
                fontsize=TITLE, fontweight='bold')
    figure.text(0.06 / WIDTH, 1 - below_title / total, origin, va='top',
                fontsize=SMALL)
    if lines:
        figure.legend(
            [Patch(**{'facecolor': c, 'hatch': m, 'alpha': BAR, 'lw': 0, **dict(*more)})
             if ls == 'bar' else
             Line2D([], [], **{'color': c, 'ls': ls, 'marker': m, 'ms': 3.5,
                               'lw': 1.6, **dict(*more)})
             for _, c, ls, m, *more in lines],
            [n for n, *_ in lines], ncols=across, loc='upper left',
            bbox_to_anchor=(0.04 / WIDTH, 1 - head / total),
            borderaxespad=0, borderpad=0.2, frameon=False, fontsize=TEXT,
            labelspacing=0.25, handlelength=2.4)
    return figure, axes


def wrap_text(text: str, font_size: float) -> str:
    """A text, in several lines if it is wider than a plot.

    :param font_size: in points
    """
    return textwrap.fill(text, int(WIDTH * 110 / font_size))


def inconclusive_style(marker: str = 'o') -> dict[str, Any]:
    """How inconclusive values are drawn: hollow and grey, without a line."""
    return {'color': INK, 'alpha': 0.6, 'ls': '', 'marker': marker,
            'fillstyle': 'none', 'ms': 4, 'mew': 0.9}


def mask_of_inconclusive(frame: pd.DataFrame) -> np.ndarray:
    """Whether each value is inconclusive.

    :param frame: a row a value, perhaps with its `result`
    """
    return (frame['result'].eq('inconclusive').to_numpy() if 'result' in frame
            else np.zeros(len(frame), bool))


def inconclusive_entries(frame: pd.DataFrame) -> list[tuple]:
    """The entry of the legend for inconclusive values, if there are any."""
    return [('inconclusive, not compared', INK, '', 'o', inconclusive_style())] * bool(
        mask_of_inconclusive(frame).any())


def band_entries(frame: pd.DataFrame) -> list[tuple]:
    """Entries of the legend for what is drawn around the line of a series.

    :param frame: with a column runs, and `median` unless the lines are means
    """
    if not (frame['runs'] > 1).any():
        return []
    band = (INK, 'bar', '', {'alpha': 0.16})
    if 'median' not in frame:
        return [('mean of all sessions, with its 95 % interval', *band)]
    return [('median of all sessions', INK, '-', '', {'lw': 0.7}),
            ('8 of 10 sessions', *band)]


def reference_entries(frame: pd.DataFrame) -> list[tuple]:
    """Entries of the legend for references and tolerances, if there are any."""
    tolerances = frame.loc[frame['reference'].notna(), ['lower', 'upper']]
    return [('reference', INK, ':', '', {'lw': 1})] * bool(len(tolerances)) + [
        ('tolerance', INK, '-', '', {'lw': 4, 'alpha': 0.4, 'solid_capstyle': 'butt'})
    ] * bool(tolerances.notna().any(axis=None))


def box_entries() -> list[tuple]:
    """Entries of the legend for the parts of a box."""
    return [('quartiles', INK, 'bar', '', {'alpha': 0.35}),
            ('median', INK, '-', '', {'lw': 1.6}),
            ('whiskers: at most 1.5 times the box', INK, '', '|', {'ms': 8}),
            ('farthest values', INK, '', 'o', {'ms': 2})]


def series_name(label: str) -> str:
    """The label of a series; `all sessions` if the series has none."""
    return label or 'all sessions'


def legend_entries(frame: pd.DataFrame, runs: bool = True) -> list[tuple]:
    """Legend: (name, colour, line style, marker) of each series.

    :param frame: with a column `runs`: how many there are
    """
    entries = []
    for label, colour, line, marker, rows in series_with_styles(frame):
        many = int(rows['runs'].max()) if runs else 0
        name = series_name(label) + f" ({many} session{'s' * (many > 1)})" * runs
        hollow = bool(mask_of_inconclusive(rows).all())
        entries.append((name, colour, line, marker,
                        *[inconclusive_style(marker)] * hollow))
    return entries


def log2_size_positions(sizes, every: list[int]) -> np.ndarray:
    """log2 of sizes; 0 B stands one step before the smallest other."""
    sizes = np.asarray(sizes, float)
    minimum = min([s for s in every if s > 0], default=1)
    return np.log2(np.where(sizes > 0, sizes, minimum / 2))


def room_for_sizes(axes: Axes) -> int:
    """How many sizes have room on the x axis, at least two."""
    return max(int(axes.get_position().width * WIDTH / (0.071 * TEXT)), 2)


def set_size_axis(axes: Axes, every: list[int], title: str) -> None:
    """Ticks at as many of the sizes as there is room for, the last one included, so
    far apart that their labels are; a single size has no axis.

    :param title: SIZE, or of another number
    """
    if len(every) == 1:                     # the title has it
        axes.set_xticks([])
        return
    at = log2_size_positions(every, every)
    room = room_for_sizes(axes)
    shown: list[int] = []
    for n in reversed(np.unique(np.linspace(
            0, len(every) - 1, min(room, len(every))).round()).astype(int)):
        if not shown or at[shown[-1]] - at[n] >= (at[-1] - at[0]) / (room + 1):
            shown.append(n)
    axes.set_xticks(at[shown], [axis_label(every[n], title) for n in shown])
    axes.set_xlabel(f'{title} (log)')
    axes.set_xlim(at[0] - 0.6, at[-1] + 0.6)


def axis_label(value: float, title: str) -> str:
    """The label of a size, or of a number on an axis of another title."""
    return size_text(value) if title == SIZE else f'{value:g}'


def set_value_axis(axes: Axes, values: pd.Series, quantity: Quantity) -> None:
    """The y axis: a log scale where the values allow and need it; its title has
    quantity, unit and scale."""
    from matplotlib import ticker
    log = bool(len(values) and values.min() > 0 and values.max() > 4 * values.min())
    if log:
        decades = np.log10(values.max() / values.min())
        axes.set_yscale('log')
        axes.yaxis.set_major_locator(ticker.LogLocator(
            subs=(1,) if decades > 2.5 else (1, 2, 5), numticks=9))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    else:
        middle = values.mean() if len(values) else 0
        if middle and (abs(values / middle - 1) < 0.005).all():
            # Ticks of such a span would all have the same label.
            low, high = sorted((0.98 * middle, 1.02 * middle))
            axes.yaxis.set_view_interval(low, high, ignore=True)
        axes.yaxis.set_major_locator(ticker.MaxNLocator(6))
    set_axis_title_and_labels(axes.yaxis, values, quantity, log)


def set_axis_title_and_labels(axis, values: pd.Series, quantity: Quantity,
                              log: bool) -> None:
    """The title of an axis, and plain numbers in a unit that suits its values."""
    from matplotlib import ticker
    better = '' if quantity.better == 'none' else (
        (', ' if axis.axis_name == 'x' else '\n') + f'{quantity.better} is better')
    size = abs(values).median() if log else abs(values).max()
    scale = quantity.scale(size if len(values) else 1)
    axis.set_label_text(axis_text(quantity.title, scale.unit, log) + better)
    axis.labelpad = 2
    axis.set_major_formatter(ticker.FuncFormatter(
        lambda v, _: tick_text(v / scale.factor)))


def set_row_title(axes: Axes, text: str) -> None:
    """Sets the title of one of several rows."""
    axes.set_title(text, loc='left', fontsize=TEXT, color=INK, pad=3)


def draw_boxes(axes: Axes, at: np.ndarray, frame: pd.DataFrame, colour: str,
               width: float) -> None:
    """Boxes: quartiles, whiskers, and the farthest values beyond them.

    :param frame: columns q1, q2, q3, low, high (ends of the whiskers), minimum and
        maximum (NaN: nothing is beyond), a row a box
    """
    from matplotlib.collections import PolyCollection
    # One artist: a bar each would cost most of the plot's time.
    left, right = at - width / 2, at + width / 2
    q1, q3 = frame['q1'].to_numpy(), frame['q3'].to_numpy()
    axes.add_collection(PolyCollection(
        list(np.stack([left, q1, right, q1, right, q3, left, q3], 1).reshape(-1, 4, 2)),
        facecolors=colour, alpha=0.35, linewidths=0))
    axes.vlines([*at, *at], [*frame['low'], *frame['q3']],
                [*frame['q1'], *frame['high']], color=colour, lw=0.8)
    axes.hlines(frame['q2'], at - width / 2, at + width / 2, color=colour, lw=1.6)
    axes.plot(at, frame[['minimum', 'maximum']], 'o', color=colour, ms=2, mew=0)


def set_few_ticks(axis) -> None:
    """Four ticks at most on a narrow axis."""
    from matplotlib import ticker
    axis.set_major_locator(ticker.MaxNLocator(4))
    axis.set_minor_locator(ticker.NullLocator())
