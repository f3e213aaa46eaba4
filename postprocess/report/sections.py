"""The sections of families, with their plots."""
from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pandas as pd

from config.families import Family, families, printed_name

from .. import results
from ..records import attached, samples, series
from . import plots, svg
from .tidy import Tidy

if TYPE_CHECKING:
    from .page import Page

#: Newest runs whose raw samples are read, of each family.
MAX_SAMPLES = 24


def family_section(page: Page, name: str, over_time: list[plots.OverTime],
                   rows: list[dict]) -> dict:
    """The section of a family."""
    known = families().get(name)
    drawings = plots.drawings_of_family(
        records_for_plots(page.data, name, over_time, page.faults), known)
    table = page.data.table[page.data.table['family'] == name]
    programs = sorted({*zip(table['program'], table['source'], strict=True)})
    return {'name': name, 'title': known.title if known else '',
            'plots': [draw_plot(page, name, one) for one in drawings],
            'over_time': bool(over_time),
            'about': _plot_descriptions_of_programs(known, programs),
            'rows': [row for row in rows if row['family'] == name
                     and row['result'] not in results.FAILED]}


def records_for_plots(data: Tidy, name: str, over_time: list[plots.OverTime],
                      faults: attached.Faults, maximum: int = MAX_SAMPLES
                      ) -> plots.Records:
    """The records of a family for its plots; '': of all families.

    :param faults: receives the faults of files with raw samples
    :param maximum: number of runs whose raw samples are read
    """
    table = data.table[data.table['family'] == name] if name else data.table
    drawn = data.metric_records
    points = data.point_statistics_without_repetitions
    if len(table) < len(data.table):
        drawn = drawn[drawn['kind'].isin(table.index)]
        points = points[points['kind'].isin(table.index)]
    return plots.Records(name, drawn, table, points, over_time,
                         functools.cache(
                             lambda: raw_samples(data, table, faults, maximum)))


def raw_samples(data: Tidy, table: pd.DataFrame, faults: attached.Faults, maximum: int
                ) -> list[tuple[int, pd.DataFrame]]:
    """Kind and raw samples of the newest run of each kind of a table, the newest
    first.

    :param maximum: number of runs
    """
    frame = data.frame
    records = frame[frame['kind'].isin(table.index)].drop_duplicates(
        'kind', keep='last').sort_values('time', kind='stable')
    raw_samples = []
    for row in records[::-1].itertuples():
        calls = samples.read_samples_of_record(row, faults)
        if calls is not None and len(calls):
            raw_samples.append((int(row.kind), calls))
        if len(raw_samples) == maximum:
            break
    return raw_samples


def draw_plot(page: Page, place: str, drawing: plots.Drawing) -> dict[str, str]:
    """What the page shows of a plot: {svg, note}.

    :param place: of the page, in which no other plot has its name
    """
    return {'note': drawing.note, 'svg': svg.inline_svg(
        drawing.chart(*drawing.args), f'{place} {drawing.name}', drawing.about,
        page.svg_names)}


def time_series_by_family(data: Tidy, runs: list[series.Series]
               ) -> dict[str, list[plots.OverTime]]:
    """The series over time to draw, by family."""
    by_family: dict[str, list[plots.OverTime]] = {}
    frame = data.frame
    labels = plots.kind_names(data.table)
    for run in runs:
        row = frame.loc[run.record]
        of_run = frame['measurement'] == row.measurement
        guards = sorted(set(frame.loc[of_run, 'guard']) - {''})
        title = ', '.join(filter(None, [
            f'{printed_name(row.program, row.source)}: over time', labels[row.kind],
            f'{row.time:%d %b %H:%M} UTC', 'NOT VALID' * bool(guards)
            or 'INCONCLUSIVE' * bool(row.result == 'inconclusive')]))
        note = guards and (
            f"Not valid (guard: {', '.join(guards)}): "
            + ('; '.join(run.reasons) or 'no reason was recorded'))
        by_family.setdefault(row.family, []).append(plots.OverTime(
            row.kind, run, row.program, f'{row.session} {row.test_case}', title,
            families()[row.family].valid_value_bands(
                f'{row.params} {row.settings}'.rstrip()), note or ''))
    return by_family


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

