"""The sections of families and of the comparison of sites, with their plots."""
from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from config.families import Family, all_metrics, families, printed_name

from .. import naming, results
from ..records import attached, samples, series
from . import charts, plots, svg
from .plots import ratio
from .tidy import Tidy

if TYPE_CHECKING:
    from .page import Page

#: Newest runs whose raw samples are read, of each family.
MAX_SAMPLES = 24


def family_section(page: Page, name: str, over_time: list[plots.OverTime],
                   rows: list[dict]) -> dict:
    """The section of a family."""
    known = families().get(name)
    drawings, reading = plots.drawings_of_family(
        records_for_plots(page.data, name, over_time, page.faults), known)
    plain = [draw_plot(page, name, one) for one in drawings if not one.section]
    sections: dict[str, list[dict]] = {}
    for one in drawings:
        if one.section:
            sections.setdefault(one.section, []).append(
                draw_plot(page, name, one))
    table = page.data.table[page.data.table['family'] == name]
    programs = sorted({*zip(table['program'], table['source'], strict=True)})
    return {'name': name, 'title': known.title if known else '',
            'plots': plain, 'sections': sections, 'reading': reading,
            'number_of_plots': len(drawings),
            'about': _plot_descriptions_of_programs(known, programs),
            'over_time': bool(over_time),
            'rows': [row for row in rows if row['family'] == name
                     and row['result'] not in results.FAILED]}


def site_comparison(page: Page) -> dict | None:
    """A comparison of sites: ratio curves, and a table of mean ratios."""
    if page.data.table['system'].nunique() < 2:
        return None
    drawn, rows = [], []
    for name in sorted(page.data.table['family'].unique()):
        records = records_for_plots(page.data, name, [], page.faults)
        for one in ratio.drawings_from_records(records, of='system', base='',
                                               metric=(),
                                               where=(), title=''):
            drawn.append(draw_plot(page, name, one))
        for other, base, pairs in ratio.ratio_points_by_value(
            records, records.table, 'system'
        ):
            main = plots.main_metrics(name, set(pairs['metric']))
            for (label, metric), group in pairs[
                    pairs['metric'].isin(main)].groupby(
                        ['label', 'metric'], observed=True):
                good = group['ratio'][group['ratio'] > 0]
                if len(good):
                    rows.append({
                        'what': label, 'family': name, 'metric': metric,
                        'better': all_metrics()[metric]['better'],
                        'pair': f'{other} / {base}',
                        'mean': float(np.exp(np.log(good).mean())),
                        'minimum': float(good.min()),
                        'maximum': float(good.max()), 'n': len(good),
                        'runs': int(group[['runs', 'runs_base']].min(
                            axis=None))})
    return {'plots': drawn, 'rows': rows} if rows else None


def records_for_plots(data: Tidy, name: str, over_time: list[plots.OverTime],
                      faults: attached.Faults, maximum: int = MAX_SAMPLES
                      ) -> plots.Records:
    """The records of a family for its plots.

    :param faults: receives the faults of files with raw samples
    :param maximum: number of runs whose raw samples are read
    """
    table = data.table[data.table['family'] == name]
    drawn = data.metric_records
    points = data.point_statistics_without_repetitions
    if len(table) < len(data.table):
        drawn = drawn[drawn['kind'].isin(table.index)]
        points = points[points['kind'].isin(table.index)]
    return plots.Records(name, drawn, table, points, over_time,
                         functools.cache(
                             lambda: raw_samples(data, table, faults, maximum)))


def raw_samples(data: Tidy, table: pd.DataFrame, faults: attached.Faults, maximum: int
                ) -> list[plots.Raw]:
    """Raw samples of the newest run of each kind of a table, the newest first.

    :param maximum: number of runs
    """
    frame = data.frame
    records = frame[frame['kind'].isin(table.index)].drop_duplicates(
        'kind', keep='last').sort_values('time', kind='stable')
    raw_samples = []
    for row in records[::-1].itertuples():
        calls = samples.read_samples_of_record(row, faults)
        if calls is not None and len(calls):
            raw_samples.append(
                plots.Raw(int(row.kind), str(row.session), calls)
            )
        if len(raw_samples) == maximum:
            break
    return raw_samples


def draw_plot(page: Page, family: str, drawing: plots.Drawing) -> dict:
    """Draws a plot into `files`; returns what the page shows of it."""
    stem = re.sub(r'[^\w.]+', '-', f'{family} {drawing.name}').strip('-')
    while f'plots/{stem}.svg' in page.plots:
        stem += '-'
    names = [f'plots/{stem}.svg'] + [f'plots/{stem}.png'] * page.png
    made_of = b'<!-- %s -->\n' % drawing.content_hash().encode()
    file = _reusable_svg(page.before, names, made_of)
    if file is None:
        figure = drawing.chart(*drawing.args)
        file = svg.render_svg(figure, stem) + made_of
        # The PNG first: only a plot that is whole is taken another
        # time.
        if page.png:
            page.files[names[1]] = charts.render_png(figure)
        page.files[names[0]] = file
    page.plots += names
    return {'svg': svg.inline_svg(file.removesuffix(made_of), drawing.about,
                                  page.svg_names),
            'stem': stem, 'note': drawing.note, 'png': page.png}


def time_series_by_family(data: Tidy, runs: list[series.Series]
               ) -> dict[str, list[plots.OverTime]]:
    """The series over time to draw, by family."""
    by_family: dict[str, list[plots.OverTime]] = {}
    frame = data.frame
    labels = _kind_labels(data.table)
    for run in runs:
        row = frame.loc[run.record]
        of_run = frame['measurement'] == row.measurement
        guards = sorted(set(frame.loc[of_run, 'guard']) - {''})
        title = ', '.join(filter(None, [
            f'{printed_name(row.program, row.source)}: over time', labels[row.kind],
            f'{row.time:%d %b %H:%M} UTC', 'NOT VALID' * bool(guards)]))
        note = guards and (
            f"Not valid (guard: {', '.join(guards)}): "
            + ('; '.join(run.reasons) or 'no reason was recorded'))
        by_family.setdefault(row.family, []).append(plots.OverTime(
            run, row.program, f'{row.session} {row.test_case}', title,
            families()[row.family].valid_value_bands(
                f'{row.params} {row.settings}'.rstrip()), note or ''))
    return by_family


def _kind_labels(table: pd.DataFrame) -> pd.Series:
    """What tells each kind apart from others of its program."""
    # One program may serve several checks, and they say what it did.
    names = pd.concat([naming.series_labels_and_panels(
        group, panel=('check',), maximum=len(group))
        for _, group in table.groupby(['family', 'program'], sort=False)])
    return pd.Series([', '.join(filter(None, pair)) for pair in zip(
        names['panel'], names['label'], strict=True)], index=names.index)


def _plot_descriptions_of_programs(
    known: Family | None, programs: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The descriptions of the plots of programs: (programs, text).

    :param programs: (program, source)
    """
    texts: dict[str, list[str]] = {}
    for program, source in programs:
        if known and (text := known.description_of_program(program)):
            texts.setdefault(text, []).append(printed_name(program, source))
    return [(', '.join(names), text) for text, names in texts.items()]


def _reusable_svg(folder: Path | None, names: list[str], made_of: bytes
           ) -> bytes | None:
    """The SVG of a plot that is still the same; None: draw it."""
    if not folder or not all((folder / name).exists() for name in names):
        return None
    try:
        old = (folder / names[0]).read_bytes()
    except OSError:
        return None
    return old if old.endswith(made_of) else None
