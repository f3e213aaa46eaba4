"""`./plumb plot [FILE]`: plots of the page, or of a YAML file, as files."""
from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from config import schema, strict
from config.commandline import ANSWER_CODES, Parser
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
    - {kind: history, metric: bandwidth, at: largest}

docs/reference/page.md describes the kinds and their options.

--from draws saved results, of other people too, without perflogs:
  ./plumb parse osu old/*.txt --csv old.csv
  ./plumb plot --from old.csv

An entry of FILE or a family that has nothing to show is listed on stderr.

""" + ANSWER_CODES
#: Key -> schema of what an entry of FILE has besides the options of its kind.
NAME = {'name': {'type': 'string', 'pattern': r'^[\w.-]+$',
                 'expected': 'the name of a file'}}
#: Schema of FILE. The kind of an entry describes its other keys.
SCHEMA = {
    'type': 'object', 'required': ['plots'], 'additionalProperties': False,
    'expected': '{title, plots}',
    'properties': {
        'title': plots.TEXT,
        'plots': {
            'type': 'array', 'minItems': 1, 'expected': 'a list of {kind, ...}',
            'examples': ["a list, such as 'plots: [{kind: curve}]'"],
            'items': {'type': 'object', 'required': ['kind'],
                      'expected': '{kind, ...}', 'properties': NAME}}}}


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
        drawings = (drawings_of_file(data, args.file, title, entries) if args.file else
                    drawings_of_families(data, [] if args.saved else families()))
        for drawing in drawings:
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
        (entry, *plots.parse_plot_entry(entry, str(file), NAME))
        for entry in data['plots']]


def drawings_of_file(data: Tidy, file: Path, title: str,
                     entries: list[tuple[Any, Any, dict[str, Any]]]
                     ) -> Iterator[plots.Drawing]:
    """The plots that a file lists; one line on stderr for each entry that is empty.

    :param entries: see load_plot_entries
    :raises strict.Fault: an entry names a series that its family does not have
    """
    records = records_of_family(data, '')
    for entry, kind, options in entries:
        of_plot = [name for name in sorted({*plots.rows_matching_fields(
            records.table, options.get('where', ()))['family']}) if name in families()]
        # The judged sizes of a family count if the plot is of one.
        family = of_plot[0] if len(of_plot) == 1 else ''
        for path, reason in faults_of_panels({'plots': [entry], 'series': families()[
                family].series if family else {}}):
            raise schema.fault_at_path(str(file), entry, path[2:],
                                       f"plots: {entry['kind']}: {reason}")
        drawn = list(kind.drawings_from_records(
            dataclasses.replace(records, family=family), **options))
        if not drawn:
            print(f'plumb plot: {file}:{min(entry.lines.values())}: plots: '
                  f'{entry["kind"]}: no record matches; nothing is drawn',
                  file=sys.stderr)
        for n, one in enumerate(drawn, 1):
            name = entry.get('name', '')
            yield dataclasses.replace(
                one, name=name + f'-{n}' * (len(drawn) > 1) if name else one.name,
                args=(one.args[0], f'{title}: {one.args[1]}' if title else one.args[1],
                      *one.args[2:]))


def drawings_of_families(data: Tidy, expected: Iterable[str]
                         ) -> Iterator[plots.Drawing]:
    """The plots that the page has of each family; one line on stderr for each family
    without one.

    :param expected: families that are listed if they have no record
    """
    names = sorted(map(str, data.frame['family'].unique()))
    for name in names:
        yield from plots.drawings_of_family(
            records_of_family(data, name), families().get(name))
    for name in sorted({*expected} - {*names}):
        print(f'plumb plot: {name}: no records to draw', file=sys.stderr)


def records_of_family(data: Tidy, name: str) -> plots.Records:
    """The records of a family with all raw samples, and what its newest runs left over
    time; '': of all families."""
    frame = data.frame[data.frame['family'] == name] if name else data.frame
    over_time = sections.time_series_by_family(
        data, series.read_series_of_newest_runs(frame).series)
    return sections.records_for_plots(
        data, name, [one for runs in over_time.values() for one in runs], [],
        len(data.table))


def draw_plot(files: dict[str, bytes], drawing: plots.Drawing, dark: bool,
              formats: Iterable[str], paper_width: float) -> None:
    """Draws a plot into `files`, by a name of its own.

    :param formats: svg, png, pdf
    :param paper_width: as `use_theme_temporarily` has it
    """
    end = f'-{paper_width:g}in' if paper_width else ''
    stem = re.sub(r'[^\w.]+', '-', drawing.name).strip('-')
    while any(f'{stem}{end}.{name}' in files for name in formats):
        stem += '-'
    with charts.use_theme_temporarily(dark, paper_width):
        figure = drawing.chart(*drawing.args)
        for name in formats:
            files[f'{stem}{end}.{name}'] = svg.render(figure, name, stem)
