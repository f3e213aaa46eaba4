"""Ratio curves: one of what can be compared against another, by size."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from config.families import all_metrics

from ... import naming
from .. import charts
from . import (
    CHOICE,
    FIELD,
    TEXT,
    Drawing,
    Records,
    main_metrics,
    numbers_text,
    rows_matching_fields,
    title_size_suffix,
    with_origin,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


OPTIONS = {name: CHOICE[name] for name in ('metric', 'where', 'title')} | {
    'of': FIELD | {'default': 'system'}, 'base': TEXT}
READING = ('Ratios: the median of all sessions of the first, divided by the '
           'median of the second, for each test case. The shaded side is '
           'better.')
COLUMNS = ['label', 'point', 'ratio']
#: What must be the same of two test cases besides program, check and
#: parameters, where both sides have it in common at all.
ALIKE = ('environ', 'partition', 'source', 'system', 'num_nodes',
         'tasks_per_node')
#: Curves in a plot.
MAXIMUM = 6


def drawings_from_records(records: Records, of: str, base: str, metric: tuple[str, ...],
                          where: tuple, title: str) -> Iterator[Drawing]:
    """A plot for each metric with sizes and each value but the base."""
    table = rows_matching_fields(records.table, where)
    if of not in table:
        return
    names = set(records.points.loc[records.points['kind'].isin(table.index),
                                   'metric'])
    for other, first, pairs in ratio_points_by_value(records, table, of, base):
        for name in metric or main_metrics(records.family, names):
            of_metric = pairs[
                (pairs['metric'] == name) & pairs['point'].notna()
            ]
            labels = sorted(of_metric['label'].unique())
            parts = -(-len(labels) // MAXIMUM)
            for n in range(parts):
                part = of_metric[of_metric['label'].isin(
                    labels[n * len(labels) // parts:
                           (n + 1) * len(labels) // parts])]
                text = ', '.join(filter(None, [
                    f'{title or name}: {other} / {first}{title_size_suffix(part)}',
                    f'{n + 1} of {parts}' * (parts > 1)]))
                yield Drawing(
                    f'ratio {of} {other} {name} {n}', text + numbers_text(part, '1'),
                    draw_ratio_curves,
                    (part[COLUMNS], with_origin(text, records, part['kind'].unique()),
                     all_metrics()[name]['better']),
                    section=f'Comparison by {of}')


def ratio_points_by_value(records: Records, table: pd.DataFrame, of: str, base: str = ''
             ) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """The points that two values of a field have in common: other, base,
    and their records.points side by side, with `label` and `ratio`.

    :param base: what others are compared with; '': what most test cases are of
    """
    counts = table[of][table[of] != ''].value_counts()
    first = base if base in counts.index else next(iter(counts.index), '')
    points = records.points[['kind', 'metric', 'point', 'median', 'runs']]
    for other in sorted(set(counts.index) - {first}):
        one, two = table[table[of] == other], table[table[of] == first]
        keys = [name for name in table if name not in (
            of, 'params', 'settings', 'valid', 'family', *naming.FIELDS)
            or name in ALIKE and name != of
            and set(one[name]) & set(two[name])]
        pairs = one.reset_index(names='kind').merge(
            two.reset_index(names='kind'), on=keys, suffixes=('', '_base'))
        pairs = pairs.drop_duplicates('kind')[['kind', 'kind_base']]
        if pairs.empty:
            continue
        both = pairs.merge(points, on='kind').merge(
            points.rename(columns={'kind': 'kind_base'}), how='inner',
            on=['kind_base', 'metric', 'point'], suffixes=('', '_base'))
        both = both[(both['median_base'] > 0)]
        # All that tells them apart: they are split into plots above.
        labels = naming.series_labels_and_panels(
            one.loc[pairs['kind'].unique()], ('program',), maximum=len(pairs)
        )['label']
        yield other, first, both.assign(
            label=both['kind'].map(labels),
            ratio=both['median'] / both['median_base'])


def draw_ratio_curves(frame: pd.DataFrame, title: str, better: str) -> Figure:
    """A curve a label.

    :param frame: COLUMNS
    :param better: which side of 1 is: higher, lower or none
    """
    figure, axes = charts.create_figure(
        title, [*charts.legend_entries(frame, runs=False), *(
            [('better', charts.COLOURS[charts.GOOD], 'bar', '', {'alpha': 0.08})]
            if better != 'none' else [])])
    every = charts.distinct_sizes(frame)
    for _, colour, line, marker, rows in charts.series_with_styles(frame):
        rows = rows.sort_values('point')
        axes.plot(
            charts.log2_size_positions(rows['point'], every),
            rows['ratio'],
            line,
            color=colour,
            lw=1.4,
            marker=marker,
            ms=2.6,
            mew=0,
        )
    charts.set_size_axis(axes, every)
    charts.set_value_axis(axes, frame['ratio'], charts.Quantity('Ratio', '1'))
    low, high = axes.get_ylim()
    low, high = min(low, 0.93), max(high, 1.07)
    axes.axhline(1, color=charts.INK, lw=0.9)
    if better != 'none':
        axes.axhspan(*((low, 1) if better == 'lower' else (1, high)),
                     color=charts.COLOURS[charts.GOOD], alpha=0.08, lw=0)
    axes.set_ylim(low, high)
    return figure
