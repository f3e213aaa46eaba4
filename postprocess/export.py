"""`plumb export`: the perflogs for other tools."""
from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from config.commandline import Parser
from config.families import all_metrics
from config.sessions.judged import point_with_unit

from . import options
from .records import Faults, open_records_database, restrict_views_to_site
from .records.typed import sql_text

if TYPE_CHECKING:
    # It takes longer to import than many an answer takes.
    import pandas as pd

HELP = """\
Writes the perflogs as files for other tools.

--parquet and --csv have one row per record, in order of time: the columns of
config/perflog.yaml, with the point as a number of bytes, and `file`, where the
record is. Empty cells are NULL, times are UTC. In the CSV
file a text that a spreadsheet would run as a formula begins with an
apostrophe.

--junit and --openmetrics have the newest result of each test case. JUnit has
one test per test case: it fails if the test case failed or regressed, and is
skipped if the test case is inconclusive or cannot be judged yet. OpenMetrics
has a gauge plumb_METRIC for each judged metric (plumb_METRIC_value if the name
ends like a counter of Prometheus), plumb_case_failed (0 or 1) and
plumb_case_run_seconds (the time of the session).

--groups has one row per test case, metric and point: count, mean, median,
minimum and maximum. --over sessions (the default) has one value per job, the
median of its repetitions; --over repetitions has the repetitions inside each
job, one row per session. These are different experiments: the first has the
spread between jobs, the second the spread inside an allocation. Values of
inconclusive, refused or emulated test cases are left out.

Several files can be written at once. Each is replaced as a whole, or not.

Exit codes: 0 good, also if a test case failed; 1 written, but the perflogs
have damaged places, which stderr lists; 2 wrong usage, no records, or a file
that cannot be written.
"""
#: Texts that a spreadsheet would run as a formula. No number is one, nor is
#: the `-` of a column without a value.
_FORMULA = r'(?s)^(?:[=@\t\r]|[+-].*[^0-9.])'
#: Endings of names that mean something to Prometheus, and not a gauge.
_KEPT = re.compile('_(total|created|count|sum|bucket|info)$')
#: Columns of --groups that make a test case.
_GROUP = ('system', 'partition', 'environ', 'family', 'check', 'params', 'settings',
          'source', 'program', 'version', 'num_nodes', 'num_tasks')
_LABELS = ('system', 'partition', 'environ', 'check', 'params', 'settings', 'program',
           'source', 'copy')


def parser() -> Parser:
    """The command line."""
    cmd = Parser(prog='plumb export', text=HELP, example='./plumb export '
                 '--site mycluster --csv all.csv --junit junit.xml')
    options.add_parsed_csv_option(options.add_record_options(cmd))
    output = cmd.add_argument_group('output')
    for name, text in (
            ('parquet', 'all records as Parquet (zstd)'),
            ('csv', 'all records as CSV'),
            ('junit', 'the result of each test case as JUnit XML'),
            ('openmetrics', 'the newest values for Prometheus'),
            ('groups', 'means and medians of each test case as CSV')):
        output.add_argument(f'--{name}', type=Path, metavar='FILE',
                            help=f'write {text} to FILE; - prints it')
    output.add_argument('--over', choices=('sessions', 'repetitions'),
                        default='sessions', help='what --groups summarises '
                        '(default: sessions)')
    return cmd


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    cmd = parser()
    args = cmd.parse_args(argv)
    if not any((args.parquet, args.csv, args.junit, args.openmetrics, args.groups)):
        cmd.error('nothing to write; give at least one of --parquet, --csv, '
                  '--junit, --openmetrics and --groups')
    faults: Faults = []
    try:
        with options.folder_of_records(args, 'export') as folder:
            code = _export_folder(args, folder, faults)
    except BrokenPipeError:             # `| head`
        raise
    except (OSError, ValueError) as err:
        print(f'plumb export: {err}', file=sys.stderr)
        return 2
    return code or (1 if faults else 0)


def _export_folder(args: argparse.Namespace, folder: Path, faults: Faults) -> int:
    """Exports the perflogs of a folder; returns an exit code.

    :raises ValueError: the site has no records
    """
    with open_records_database([folder], faults) as con:
        options.print_faults('export', faults)
        restrict_views_to_site(con, args.site)
        if not con.execute('FROM results LIMIT 1').fetchone():
            if not faults:
                print(f'plumb export: no records in {args.perflogs}: run '
                      '`./plumb run` first, or name another folder with '
                      '--perflogs', file=sys.stderr)
            return 2
        return _write_requested_files(args, con, folder)


def _write_requested_files(args: argparse.Namespace, con: duckdb.DuckDBPyConnection,
                           folder: Path) -> int:
    """Writes what is asked for; returns an exit code.

    :param folder: of the perflogs
    """
    try:
        for file, form in ((args.parquet, 'parquet'), (args.csv, 'csv')):
            if file:
                options.write_answer(
                    file, functools.partial(write_records_table, con, form))
        if args.junit or args.openmetrics or args.groups:
            from . import records, results
            from .regressions import telling, verdict
            frame, sessions, _ = records.read_with_sessions(folder)
            frame = options.records_of_site(frame, args.site)
            if args.openmetrics:
                options.write_text_answer(args.openmetrics, '\n'.join(
                    openmetrics_lines(frame)) + '\n')
            if args.groups:
                table = group_statistics(frame, args.over)
                options.write_text_answer(args.groups, table.to_csv(
                    index=False, lineterminator='\n'))
            if args.junit:
                judged = verdict.verdict_of_records(results.add_missing_records(
                    frame, sessions), sessions=sessions)
                options.write_text_answer(args.junit, telling.junit_xml(judged))
    except ValueError as err:       # also a damaged file beside the references
        print(f'plumb export: {err}', file=sys.stderr)
        return 2
    return 0


def write_records_table(con: duckdb.DuckDBPyConnection, form: str, file: Path) -> None:
    """All records in one table, in order of time, as Parquet or CSV.

    :raises OSError: the file cannot be written
    """
    names, kinds = zip(*((name, kind) for name, kind, *_ in con.execute(
        'DESCRIBE results').fetchall()), strict=True)
    # No text is an empty cell.
    text = "nullif({0}, '')"
    if form == 'csv':
        # An apostrophe keeps a spreadsheet from running a formula.
        text = (f'CASE WHEN regexp_matches({{0}}, {sql_text(_FORMULA)}) '
                "THEN concat('''', {0}) ELSE " + text + ' END')
    cells = ', '.join(
        text.format(f'"{name}"') + f' AS "{name}"' if kind == 'VARCHAR'
        else f'"{name}"' for name, kind in zip(names, kinds, strict=True))
    how = ("FORMAT parquet, COMPRESSION zstd" if form == 'parquet' else
           "FORMAT csv, HEADER, TIMESTAMPFORMAT '%Y-%m-%dT%H:%M:%SZ'")
    try:
        con.execute(f'COPY (SELECT {cells} FROM results '
                    'ORDER BY results.time, results.file, results.measurement, '
                    f'metric, point, repetition) TO {sql_text(file)} ({how})')
    except duckdb.Error as err:
        raise OSError(0, str(err).splitlines()[0], str(file)) from None


def group_statistics(frame: pd.DataFrame, over: str) -> pd.DataFrame:
    """Statistics of the values of each test case, metric and point.

    :param frame: as records.read gives it
    :param over: `sessions`: one value per job, the median of its repetitions;
        `repetitions`: those inside jobs, one row per session
    :returns: columns of the test case, `metric`, `point` (bytes), `unit`,
        `count`, `mean`, `median`, `minimum`, `maximum`
    """
    import numpy as np

    from . import naming
    from .references.progress import usable_records
    good = usable_records(frame, include_reference_failures=True)[0]
    if over == 'repetitions':
        # Those of the same runs that are not the median.
        runs = naming.group_number_of_records(frame, ['test_case', 'copy', 'session'])
        good = frame[np.isin(runs, runs[frame.index.get_indexer(good.index)])
                     & ~naming.mask_preferring_median_to_repetitions(frame)]
    good = good[good['metric'] != 'completed']
    columns = [*_GROUP, *['session'] * (over == 'repetitions'), 'metric', 'point',
               'unit']
    table = good.groupby(columns, observed=True, dropna=False)['value'].agg(
        ['count', 'mean', 'median', 'min', 'max']).reset_index()
    return table.astype({'point': 'Int64'}).rename(
        columns={'min': 'minimum', 'max': 'maximum'})


def openmetrics_lines(frame: pd.DataFrame) -> Iterator[str]:
    """Lines of OpenMetrics text, which is Prometheus' own format too.

    :param frame: as records.read gives it
    """
    from . import results
    families: dict[str, tuple[str, dict[str, str]]] = {
        'plumb_case_failed': ('1 if the test case failed in its newest '
                              'session', {}),
        'plumb_case_run_seconds': ('Time of the newest session of the test '
                                   'case, in seconds since 1970', {})}
    known = all_metrics()
    records = results.newest_records(frame)
    # One record decides how a test case ended.
    deciding = records.assign(rank=records['result'].map(results.ORDER.index)
                              ).sort_values('rank', kind='stable')
    for row in deciding.drop_duplicates(['test_case', 'copy']).itertuples():
        labels = _format_labels(_labels_of_record(row))
        families['plumb_case_failed'][1][labels] = str(
            int(row.result in results.FAILED))
        families['plumb_case_run_seconds'][1][labels] = str(int(row.time.timestamp()))
    for row in records[records['metric'] != 'completed'].itertuples():
        name = 'plumb_' + re.sub(r'\W', '_', str(row.metric), flags=re.ASCII)
        name += '_value' * bool(_KEPT.search(name))
        means = known[str(row.metric)]['means'] if str(row.metric) in known else ''
        # The last of several repetitions that have no median.
        families.setdefault(name, (means, {}))[1][_format_labels(
            _labels_of_record(row) | {
                'metric': str(row.metric), 'point': point_with_unit(row.point),
                'unit': str(row.unit)})] = repr(float(row.value))
    for name, (means, samples) in sorted(families.items()):
        yield f'# HELP {name} {_escape_label_text(means or name)}'
        yield f'# TYPE {name} gauge'
        for labels_, value in samples.items():
            yield f'{name}{labels_} {value}'
    yield '# EOF'


def _labels_of_record(row: Any) -> dict[str, str]:
    """The labels of a test case, from a record (itertuples)."""
    return {name: str(getattr(row, name)) for name in _LABELS}


def _format_labels(labels: dict[str, str]) -> str:
    return '{' + ','.join(f'{name}="{_escape_label_text(value)}"'
                          for name, value in labels.items()) + '}'


def _escape_label_text(text: str) -> str:
    text = ''.join(c if c.isprintable() else ' ' for c in text)
    return text.replace('\\', r'\\').replace('"', r'\"')
