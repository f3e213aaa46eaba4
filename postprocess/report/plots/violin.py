"""Violins: all calls of the newest run, from its raw samples."""
from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from config.records.units import size_text

from ... import naming
from ...names import natural_sort_key
from .. import charts
from . import (
    FIELD,
    FIELDS,
    TEXT,
    WHERE,
    Drawing,
    Raw,
    Records,
    field_title,
    fields_given_by_axis,
    rows_matching_fields,
    with_origin,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


OPTIONS = {
    'call': {'type': 'array', 'minItems': 1, 'items': TEXT, 'default': ['*'],
             'expected': 'the name of a call, a pattern, or a list of them'},
    'where': WHERE,
    'by': FIELDS,
    'panel': FIELDS,
    'over': FIELD,
    'title': TEXT,
}
READING = ('Violins: the distribution of all calls of the newest session. A '
           'line marks the mean, whose value is beside it. The ends are the '
           'fastest and the slowest call. Over a field the violins stand upright, '
           'and a dotted line joins the means.')
#: What is drawn: records of calls are in seconds.
TIME = charts.Quantity('Time of a call', 'us')
#: Calls that a violin is made of: quantiles of more look the same.
MAX_CALLS = 600


def drawings_from_records(records: Records, call: tuple[str, ...], by: naming.Names,
                          panel: naming.Names, title: str, where: tuple = (),
                          over: str = '') -> Iterator[Drawing]:
    """A plot for each call and panel; with `over`, over the values of a field."""
    if over and over not in records.table:
        return
    for split, head, runs in samples_grouped_by_plot(records, by, panel, title, where,
                                                     over):
        every = sorted({name for _, run in runs
                        for name in run.calls['call'].unique()}, key=natural_sort_key)
        for name in every:
            if not any(fnmatch.fnmatchcase(name, one) for one in call):
                continue
            frame = pd.DataFrame(
                [(label, records.table.at[run.kind, over] if over else '', value)
                 for label, run in runs for value in reduce_to_quantiles(run.calls.loc[
                     run.calls['call'] == name, 'seconds'])],
                columns=['label', 'x', 'seconds'])
            text = ', '.join(filter(None, [f'{head}: {call_label(name)}', split]))
            origin = with_origin(text, records, [run.kind for _, run in runs])
            if over:
                yield Drawing(
                    f'{head} {name} {split} violin {over}',
                    f'{text}: all calls over {field_title(over).lower()}'
                    + calls_text(frame),
                    draw_violins_over_field,
                    (frame.assign(x=pd.to_numeric(frame['x'])), origin,
                     field_title(over)), section='Calls')
            else:
                yield Drawing(
                    f'{head} {name} {split} violin',
                    f'{text}: all calls' + calls_text(frame), draw_violins,
                    (frame.drop(columns='x'), origin), section='Calls')


def samples_grouped_by_plot(records: Records, by: naming.Names, panel: naming.Names,
                            title: str, where: tuple, over: str = ''
            ) -> Iterator[tuple[str, str, list[tuple[str, Raw]]]]:
    """Raw samples of what stands in one plot: panel, heading, and the runs
    with their labels; of each program, or with `by` of all together.

    :param over: field on the axis, which is not in labels; without a number
        there a run is left out
    """
    table = rows_matching_fields(records.table, where)
    runs = {run.kind: run for run in records.samples()
            if run.kind in table.index}
    table = table.loc[sorted(runs)]
    if over:
        table = table[pd.to_numeric(table[over], errors='coerce').notna()]
    for program, kinds in ([('', table)] if by
                           else list(table.groupby('program'))):
        if kinds.empty:
            continue
        named = kinds.drop(columns=fields_given_by_axis(kinds, over, by)) if over else (
            kinds)
        labels = naming.series_labels_and_panels(named, by, panel, 0 if over else 12)
        labels = labels.sort_values('label', key=lambda texts: texts.map(
            natural_sort_key))
        for split, part in labels.groupby('panel', sort=False):
            yield str(split), title or str(program) or 'all programs', [
                (str(label), runs[kind]) for kind, label in
                part['label'].items()]


def calls_text(frame: pd.DataFrame) -> str:
    """Number and mean time of the calls of a plot, for who cannot see it.

    :param frame: columns label and seconds
    """
    means = frame.groupby('label', sort=False)['seconds'].mean() * 1e6
    return '. Mean: ' + '; '.join(
        f"{label or 'all calls'} {TIME.text(mean)}" for label, mean in means.items())


def call_label(call: str) -> str:
    """The name of a call, and its size if the call ends with `/BYTESB`."""
    name, _, size = call.partition('/')
    return f'{name} of {size_text(int(size[:-1]))}' \
        if size[:-1].isdecimal() else call


def reduce_to_quantiles(values: pd.Series) -> np.ndarray:
    """Values that are distributed as these are, MAX_CALLS at most; with the
    least and the most."""
    if len(values) <= MAX_CALLS:
        return np.sort(values.to_numpy())
    return np.quantile(values, np.linspace(0, 1, MAX_CALLS))


def draw_violins(frame: pd.DataFrame, title: str) -> Figure:
    """A violin a label, its mean beside it; times of a wide range on a log
    axis.

    :param frame: columns label and seconds
    """
    labels = list(dict.fromkeys(frame['label']))
    values = frame['seconds'] * 1e6
    good = values[values > 0]
    log = len(good) == len(values) and good.max() > 20 * good.min()
    parts = [values[frame['label'] == label].to_numpy() for label in labels]
    names = charts.wrap_row_names([
        f"{label or 'all calls'} ({len(part)}{'+' * (len(part) == MAX_CALLS)})"
        for label, part in zip(labels, parts, strict=True)])
    figure, axes = charts.create_figure(
        title, [], height=0.35 + charts.rows_height(names, 0.3), names_beside=names)
    for n, part in enumerate(parts):
        colour = charts.COLOURS[n % len(charts.COLOURS)]
        shown = np.log10(part) if log else part
        _draw_violin_outline(axes, n, shown, colour)
        mean = part.mean()
        at = np.log10(mean) if log else mean
        axes.plot([at, at], [n - 0.36, n + 0.36], color=charts.INK, lw=1)
        axes.annotate(TIME.text(mean), (shown.max(), n),
                      xytext=(4, 0), textcoords='offset points', fontsize=charts.SMALL,
                      va='center', color=charts.INK)
    minimum, maximum = np.log10([good.min(), good.max()]) if log else (
        values.min(), values.max())
    wide = (maximum - minimum) or abs(maximum) or 1
    axes.set_xlim(minimum - 0.03 * wide, maximum + wide * charts.room_for_values(
        axes, [TIME.text(part.mean()) for part in parts]))
    if not log:
        charts.set_few_ticks(axes.xaxis, False)
    _set_title_and_labels(axes.xaxis, values, log)
    charts.set_row_names(axes, names)
    return figure


def draw_violins_over_field(frame: pd.DataFrame, title: str, over: str) -> Figure:
    """Upright violins over the values of a field, the series side by side; times
    of a wide range on a log axis.

    :param frame: columns label, x and seconds
    """
    labels = list(dict.fromkeys(frame['label']))
    every = sorted(frame['x'].unique())
    values = frame['seconds'] * 1e6
    log = bool(values.min() > 0 and values.max() > 20 * values.min())
    figure, axes = charts.create_figure(title, [
        (label or 'all calls', charts.COLOURS[n % len(charts.COLOURS)], '-', '')
        for n, label in enumerate(labels)], height=2.8)
    width = 0.8 / len(labels)
    for n, label in enumerate(labels):
        colour = charts.COLOURS[n % len(charts.COLOURS)]
        places, means = [], []
        for x, part in values[frame['label'] == label].groupby(frame['x']):
            at = every.index(x) + width * (n - (len(labels) - 1) / 2)
            shown = np.log10(part.to_numpy()) if log else part.to_numpy()
            mean = np.log10(part.mean()) if log else part.mean()
            _draw_violin_outline(axes, at, shown, colour, 0.9 * width, upright=True)
            for end, cap in ((shown.min(), 0.2), (shown.max(), 0.2), (mean, 0.3)):
                axes.plot([at - cap * width, at + cap * width], [end, end],
                          color=colour, lw=1)
            places.append(at)
            means.append(mean)
        axes.plot(places, means, ':', color=colour, lw=1)
    axes.set_xticks(range(len(every)), [f'{x:g}' for x in every])
    axes.set_xlim(-0.6, len(every) - 0.4)
    axes.set_xlabel(over)
    _set_title_and_labels(axes.yaxis, values, log)
    if not log:
        axes.set_ylim(bottom=0)
    return figure


def _set_title_and_labels(axis, values: pd.Series, log: bool) -> None:
    """The title of an axis of times, or of their logarithms, and plain numbers."""
    from matplotlib import ticker
    charts.set_axis_title_and_labels(axis, values, TIME, log)
    if log:
        plain = axis.get_major_formatter()
        axis.set_major_locator(ticker.MaxNLocator(4, integer=True))
        axis.set_major_formatter(ticker.FuncFormatter(lambda v, _: plain(10 ** v)))


def _draw_violin_outline(axes, at: float, values: np.ndarray, colour: str,
                         width: float = 0.75, upright: bool = False) -> None:
    """The outline, from the least to the most; a line where all are alike."""
    if len(values) > 2 and np.ptp(values) > 1e-12 * abs(values).max():
        shape = axes.violinplot([values], [at], widths=width, points=60,
                                showextrema=False, orientation='vertical' if upright
                                else 'horizontal')
        for body in shape['bodies']:
            body.set(facecolor=colour, edgecolor=colour, alpha=0.45, lw=0.8)
    line = [values.min(), values.max()], [at, at]
    axes.plot(*(line[::-1] if upright else line), color=colour, lw=0.8)
