"""`./plumb plot [FILE]`: plots of the page, or of a YAML file, as files."""
from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from config import schema, strict
from config.commandline import Parser
from config.families import families, faults_of_panels
from config.regular import write_files_atomically

from ..options import (
    add_record_options,
    add_saved_results_option,
    folders_of_records,
    print_faults,
    records_of_site,
)
from ..records import read, series
from . import charts, plots, sections, svg
from .tidy import Tidy, build_tidy_records

HELP = """\
Draws the plots of the page, or those that a YAML file describes.

Without FILE the plots are those of each family.yaml. With FILE they are those
that FILE lists, for example:
  title: Sessions of alpha             # optional; above every plot
  plots:
    - {kind: curve, metric: latency, where: {program: 'osu_*latency',
       system: alpha}, by: program, panel: placement}
    - {kind: scaling, metric: latency, at: 8, where: {program: osu_barrier},
       by: program, name: barrier}     # name: of the files
    - {kind: ratio, of: system, base: alpha, metric: bandwidth}

docs/reference/page.md describes the kinds and their options.

--from draws saved results, of other people too, without perflogs:
  ./plumb parse osu old/*.txt --csv old.csv
  ./plumb plot --from old.csv

Exit codes: 0 good, also if a plot has nothing to show (a line on stderr lists
it); 1 the perflogs have damaged places; 2 the file or the perflogs cannot be
used, or nothing was written.
"""
#: Schema of FILE. The kind of an entry describes its other keys.
SCHEMA = {
    'type': 'object', 'required': ['plots'], 'additionalProperties': False,
    'expected': '{title, plots}',
    'properties': {
        'title': plots.TEXT,
        'plots': {
            'type': 'array', 'minItems': 1, 'expected': 'a list of {kind, ...}',
            'examples': ["a list, such as 'plots: [{kind: curve}]'"],
            'items': {
                'type': 'object', 'required': ['kind'], 'expected': '{kind, ...}',
                'properties': {'name': {
                    'type': 'string', 'pattern': r'^[\w.-]+$',
                    'expected': 'the name of a file'}}}}}}


def parser() -> Parser:
    """The command line."""
    cmd = Parser(prog='plumb plot', text=HELP, example='./plumb plot '
                 'plots.yaml --site mycluster --output talk --dark --png')
    cmd.add_argument('file', type=Path, metavar='FILE', nargs='?',
                     help='the description of the plots, in YAML (default: the plots '
                          'of the page)')
    add_saved_results_option(add_record_options(cmd))
    output = cmd.add_argument_group('output')
    output.add_argument('--output', default='plots', metavar='DIR', type=Path,
                        help='write the plots to this folder (default: plots)')
    output.add_argument('--dark', action='store_true',
                        help='draw on a dark background')
    output.add_argument('--paper', action='store_true',
                        help='write PDF and SVG for a paper, 3.5 and 7 inches wide, '
                        'with fonts of 8 and 9 pt')
    output.add_argument('--png', action='store_true',
                        help='write the plots as PNG, too, and not only SVG')
    return cmd


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code (usage errors exit with 2)."""
    args = parser().parse_args(argv)
    try:
        title, entries = load_plot_entries(args.file) if args.file else ('', [])
        with folders_of_records(args, 'plot') as folders:
            frame, faults = read(folders, on_error='collect')
        print_faults('plot', faults)
        frame = records_of_site(frame, args.site)
        if frame.empty:
            print(f'plumb plot: no records in {args.perflogs}: run '
                  '`./plumb run` first, or name another folder with '
                  '--perflogs', file=sys.stderr)
            return 2
        files: dict[str, bytes] = {}
        data = build_tidy_records(frame)
        widths, formats = ((charts.PAPER_WIDTHS, ('pdf', 'svg')) if args.paper else
                           ((0.0,), ('svg', 'png') if args.png else ('svg',)))
        for drawing in (drawings_of_file(data, args.file, title, entries)
                        if args.file else drawings_of_families(
                            data, [] if args.saved else families())):
            for width in widths:
                draw_plot(files, drawing, args.dark, formats, width)
        write_files_atomically(args.output, files)
    except (strict.Fault, OSError, ValueError) as err:
        print(f'plumb plot: {err}', file=sys.stderr)
        return 2
    for name in files:
        print(args.output / name)
    return 1 if faults else 0


def load_plot_entries(file: Path) -> tuple[str, list[tuple[Any, Any, dict[str, Any]]]]:
    """The title, and (entry, module of its kind, options) of each plot.

    :raises strict.Fault: file, line, key and what is allowed
    """
    data = strict.load_yaml(file)
    for fault in schema.faults_by_schema(str(file), data, SCHEMA):
        raise fault
    return data.get('title', ''), [
        (entry, *plots.parse_plot_entry(plots.mapping_with_lines({
            key: value for key, value in entry.items() if key != 'name'}, entry),
            str(file)))
        for entry in data['plots']]


def drawings_of_file(data: Tidy, file: Path, title: str,
                     entries: list[tuple[Any, Any, dict[str, Any]]]
                     ) -> Iterator[plots.Drawing]:
    """The plots that a file lists; one line on stderr for each that is empty.

    :param entries: see load_plot_entries
    :raises strict.Fault: it names a field that no record has
    """
    records = build_plot_records(data)
    for entry, kind, options in entries:
        drawn = drawings_of_entry(records, entry, kind, options, file, title)
        if not drawn:
            print(f'plumb plot: {file}:{_line_number_of_entry(entry)}: plots: '
                  f'{entry["kind"]}: no record matches; nothing is drawn',
                  file=sys.stderr)
        yield from drawn


def drawings_of_families(data: Tidy, expected: Iterable[str]
                         ) -> Iterator[plots.Drawing]:
    """The plots that the page has of each family; one line on stderr for each that is
    empty.

    :param expected: families that are listed as empty if they have no record
    """
    empty: dict[str, None] = {}
    names = sorted(map(str, data.frame['family'].unique()))
    for name in names:
        records = sections.records_for_plots(
            data, name, series_of_family(data, name), [], len(data.table))
        for kind, options in plots.parse_family_plot_entries(families().get(name)):
            drawn = list(kind.drawings_from_records(records, **options))
            if not drawn:
                empty[_entry_name(name, kind, options)] = None
            yield from drawn
    for name in [*empty, *sorted({*expected} - {*names})]:
        print(f'plumb plot: {name}: no records to draw', file=sys.stderr)


def _entry_name(family: str, kind: ModuleType, options: Mapping[str, Any]) -> str:
    """The name of a plot of a family: family, kind, and its title or metrics."""
    metric = options.get('metric') or ''
    title = options.get('title') or (
        metric if isinstance(metric, str) else ', '.join(metric))
    return f'{family}: {kind.__name__.rpartition(".")[2]} {title}'.rstrip()


def _line_number_of_entry(entry: Any) -> int:
    return min(getattr(entry, 'lines', {}).values(), default=0)


def build_plot_records(data: Tidy) -> plots.Records:
    """Records of all families, and what their newest runs left over time."""
    return plots.Records(
        '', data.metric_records, data.table, data.point_statistics_without_repetitions,
        [run for name in data.frame['family'].unique()
         for run in series_of_family(data, name)],
        lambda: sections.raw_samples(data, data.table, [], len(data.table)))


def series_of_family(data: Tidy, name: str) -> list[plots.OverTime]:
    """What the newest runs of a family left over time."""
    newest = series.read_series_of_newest_runs(data.frame[data.frame['family'] == name])
    return sections.time_series_by_family(data, newest.series).get(name, [])


def drawings_of_entry(records: plots.Records, entry: Any, kind: Any,
                      options: Mapping[str, Any], file: Path, title: str
             ) -> list[plots.Drawing]:
    """The plots of an entry.

    :raises strict.Fault: it names a field that no record has
    """
    for key in ('where', 'by', 'panel', 'merge', 'over', 'of'):
        for name in _field_names_of_option(options.get(key)):
            if name not in records.table:
                known = [c for c in records.table if c not in (
                    'params', 'settings', 'valid')]
                raise strict.Fault(
                    file, entry.lines.get(key, _line_number_of_entry(entry)), f'plots: '
                    f"{entry['kind']}: {key}: no record has the field "
                    f"{name!r} (fields: {', '.join(known)}); "
                    f'{schema.suggest_name(name, known)}')
    base, of = options.get('base', ''), options.get('of', '')
    if base and base not in (values := set(records.table[of].astype(str))):
        raise strict.Fault(
            file, entry.lines['base'], f"plots: {entry['kind']}: base: no record has "
            f'{of} {base!r}; {schema.suggest_name(base, sorted(values))}')
    families_ = _families_in_plot(records, options)
    if len(families_) == 1:
        records = dataclasses.replace(records, family=families_[0])
    family = families().get(records.family)
    for path, reason in faults_of_panels({
            'plots': [entry], 'series': family.series if family else {}}):
        raise schema.fault_at_path(str(file), entry, path[2:], reason)
    drawings_ = list(kind.drawings_from_records(records, **options))
    if title:
        drawings_ = [dataclasses.replace(drawing, args=(
            drawing.args[0], f'{title}: {drawing.args[1]}', *drawing.args[2:]))
            for drawing in drawings_]
    name = entry.get('name')
    if name:
        drawings_ = [dataclasses.replace(
            drawing, name=name + f'-{n}' * (len(drawings_) > 1))
            for n, drawing in enumerate(drawings_, 1)]
    return drawings_


def _field_names_of_option(value: Any) -> list[str]:
    """The fields that an option names."""
    if isinstance(value, str):
        return [value] * bool(value)
    return [one if isinstance(one, str) else one[0] for one in value or ()]


def _families_in_plot(records: plots.Records, options: Mapping[str, Any]
            ) -> list[str]:
    """The families that an entry is about: their limits and judged sizes
    count."""
    names = sorted(set(plots.rows_matching_fields(
        records.table, options.get('where', ()))['family']))
    return [name for name in names if name in families()]


def draw_plot(files: dict[str, bytes], drawing: plots.Drawing, dark: bool,
              formats: Iterable[str], paper_width: float) -> None:
    """Draws a plot into `files`, by a name of its own.

    :param formats: svg, png, pdf
    :param paper_width: as `use_theme_temporarily` has it
    """
    stem = _unused_stem(files, drawing, f'-{paper_width:g}in' if paper_width else '')
    with charts.use_theme_temporarily(dark, paper_width):
        figure = drawing.chart(*drawing.args)
        for name in formats:
            files[f'{stem}.{name}'] = (
                svg.render_svg(figure, stem) if name == 'svg' else
                charts.render_png(figure) if name == 'png' else
                charts.render_pdf(figure))


def _unused_stem(files: dict[str, bytes], drawing: plots.Drawing, end: str) -> str:
    """The stem of the files of a plot, which no other plot has."""
    stem = re.sub(r'[^\w.]+', '-', drawing.name).strip('-')
    while f'{stem}{end}.svg' in files:
        stem += '-'
    return stem + end
