"""Violins: all calls of the newest run, from its raw samples."""
from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from config.families import Family

from ... import naming
from .. import charts
from . import (
    Drawing,
    Raw,
    Records,
    natural_sort_key,
    parse_field_option,
    parse_text_option,
    parse_where_option,
    rows_matching_fields,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def parse_call_option(value: Any, family: Family | None = None) -> tuple[str, ...]:
    """Option `call`: a pattern or a list of them; left out: every call.

    :raises ValueError: what is wrong with it
    """
    patterns = value if isinstance(value, list) else [value or '*']
    if not patterns or any(not isinstance(one, str) for one in patterns):
        raise ValueError(f'{value!r} is not the name of a call')
    return tuple(patterns)


OPTIONS = {
    'call': parse_call_option,
    'where': parse_where_option,
    'by': parse_field_option,
    'panel': parse_field_option,
    'title': parse_text_option,
}
READING = ('Violins: the distribution of all calls of the newest session. A '
           'line marks the mean, whose value is beside it. The ends are the '
           'fastest and the slowest call.')
#: Calls that a violin is made of: quantiles of more look the same.
MAX_CALLS = 600


def drawings_from_records(records: Records, call: tuple[str, ...], by: naming.Names,
                          panel: naming.Names, title: str, where: tuple = ()
             ) -> Iterator[Drawing]:
    """A plot for each call and panel."""
    for split, head, runs in samples_grouped_by_plot(records, by, panel, title, where):
        every = sorted({name for _, run in runs
                        for name in run.calls['call'].unique()})
        for name in every:
            if not any(fnmatch.fnmatchcase(name, one) for one in call):
                continue
            parts = {label: reduce_to_quantiles(run.calls.loc[
                run.calls['call'] == name, 'seconds']) for label, run in runs}
            parts = {label: part for label, part in parts.items()
                     if len(part)}
            text = ', '.join(filter(None, [
                f'{head}: {call_label(name)}', split]))
            yield Drawing(
                f'{head} {name} {split} violin', f'{text}: all calls',
                draw_violins, (pd.DataFrame(
                    [(label, value) for label, part in parts.items()
                     for value in part], columns=['label', 'seconds']),
                    text), section='Calls')


def samples_grouped_by_plot(records: Records, by: naming.Names, panel: naming.Names,
                            title: str, where: tuple
            ) -> Iterator[tuple[str, str, list[tuple[str, Raw]]]]:
    """Raw samples of what stands in one plot: panel, heading, and the runs
    with their labels; of each program, or with `by` of all together."""
    table = rows_matching_fields(records.table, where)
    runs = {run.kind: run for run in records.samples()
            if run.kind in table.index}
    table = table.loc[sorted(runs)]
    for program, kinds in ([('', table)] if by
                           else list(table.groupby('program'))):
        if kinds.empty:
            continue
        labels = naming.series_labels_and_panels(kinds, by, panel, 12)
        labels = labels.sort_values('label', key=lambda texts: texts.map(
            natural_sort_key))
        for split, part in labels.groupby('panel', sort=False):
            yield str(split), title or str(program) or 'all programs', [
                (str(label), runs[kind]) for kind, label in
                part['label'].items()]


def call_label(call: str) -> str:
    """The name of a call, and its size if the call ends with `/BYTESB`."""
    name, _, size = call.partition('/')
    return f'{name} of {charts.size_text(int(size[:-1]))}' \
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
    unit, scale = _time_unit_and_factor(frame['seconds'].median())
    values = frame['seconds'] * scale
    good = values[values > 0]
    log = len(good) == len(values) and good.max() > 20 * good.min()
    parts = [values[frame['label'] == label].to_numpy() for label in labels]
    names = [f"{label or 'all calls'} ({len(part)}"
             f"{'+' * (len(part) == MAX_CALLS)})"
             for label, part in zip(labels, parts, strict=True)]
    figure, axes = charts.create_figure(title, [], height=0.35 + 0.3 * len(labels),
                                        names_beside=max(map(len, names)))
    for n, part in enumerate(parts):
        colour = charts.COLOURS[n % len(charts.COLOURS)]
        shown = np.log10(part) if log else part
        _draw_violin_outline(axes, n, shown, colour)
        mean = part.mean()
        at = np.log10(mean) if log else mean
        axes.plot([at, at], [n - 0.36, n + 0.36], color=charts.INK, lw=1)
        axes.annotate(f'{charts.number_text(mean)} {unit}', (shown.max(), n),
                      xytext=(4, 0), textcoords='offset points', fontsize=7,
                      va='center', color=charts.INK)
    minimum, maximum = np.log10([good.min(), good.max()]) if log else (
        values.min(), values.max())
    wide = (maximum - minimum) or abs(maximum) or 1
    axes.set_xlim(minimum - 0.03 * wide, maximum + 0.3 * wide)
    if log:
        from matplotlib import ticker
        axes.xaxis.set_major_locator(ticker.MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(
            lambda v, _: charts.tick_text(10 ** v)))
    else:
        charts.set_few_ticks(axes.xaxis, False)
    axes.set_xlabel(f'{unit} (in brackets: number of calls)')
    charts.set_row_names(axes, names)
    return figure


def _draw_violin_outline(axes, at: int, values: np.ndarray, colour: str) -> None:
    """The outline, from the least to the most; a line where all are alike."""
    if len(values) > 2 and np.ptp(values) > 1e-12 * abs(values).max():
        shape = axes.violinplot([values], [at], widths=0.75, points=60,
                                showextrema=False, orientation='horizontal')
        for body in shape['bodies']:
            body.set(facecolor=colour, edgecolor=colour, alpha=0.45, lw=0.8)
    axes.plot([values.min(), values.max()], [at, at], color=colour, lw=0.8)


def _time_unit_and_factor(seconds: float) -> tuple[str, float]:
    """A unit that suits times of this size, and its number per second."""
    for unit, scale in (('s', 1.0), ('ms', 1e3), ('µs', 1e6)):
        if seconds * scale >= 0.5:
            return unit, scale
    return 'ns', 1e9
