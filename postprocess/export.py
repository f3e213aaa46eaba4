"""`plumb export`: the perflogs for other tools."""
from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from config.commandline import ANSWER_CODES, Parser
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

--parquet has one row per record, in order of time: the view `results` of `plumb
sql`. Empty cells are NULL, times are UTC.

--openmetrics has the newest values of each test case: a gauge plumb_METRIC for each
metric that is compared with references (plumb_METRIC_value if the name ends like a
counter of Prometheus), plumb_case_failed (1: the test case failed, is missing, or has
not passed on the same nodes since it failed; else 0)
and plumb_case_run_seconds (the time of the session).

CSV and JSON of any selection: `plumb sql`. JUnit: `plumb verdict --junit`.

Both files can be written at once. If an error occurs, the old file stays.

""" + ANSWER_CODES
#: Endings of names that mean something to Prometheus, and not a gauge.
_KEPT = re.compile('_(total|created|count|sum|bucket|info)$')
_LABELS = ('system', 'partition', 'environ', 'check', 'params', 'settings', 'program',
           'source', 'copy')


def parser() -> Parser:
    """The command line."""
    cmd = Parser(prog='plumb export', text=HELP,
                 example='./plumb export --site mycluster --parquet all.parquet')
    options.add_saved_results_option(options.add_record_options(cmd))
    output = cmd.add_argument_group('output')
    for name, text in (('parquet', 'all records as Parquet (zstd)'),
                       ('openmetrics', 'the newest values for Prometheus')):
        output.add_argument(f'--{name}', type=Path, metavar='FILE',
                            help=f'write {text} to FILE; - prints it')
    return cmd


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    cmd = parser()
    args = cmd.parse_args(argv)
    if not args.parquet and not args.openmetrics:
        cmd.error('nothing to write; give --parquet, --openmetrics or both')
    faults: Faults = []
    try:
        with options.folders_of_records(args, 'export') as folders:
            code = _export_folders(args, folders, faults)
    except BrokenPipeError:             # `| head`
        raise
    except (OSError, ValueError) as err:
        print(f'plumb export: {err}', file=sys.stderr)
        return 2
    return code or (1 if faults else 0)


def _export_folders(args: argparse.Namespace, folders: Sequence[Path],
                    faults: Faults) -> int:
    """Exports the perflogs of folders; returns an exit code.

    :raises ValueError: the site has no records, or a file cannot be written
    """
    with open_records_database(folders, faults) as con:
        options.print_faults('export', faults)
        restrict_views_to_site(con, args.site)
        if not con.execute('FROM results LIMIT 1').fetchone():
            if not faults:
                print(f'plumb export: no records in {args.perflogs}: run '
                      '`./plumb run` first, or name another folder with '
                      '--perflogs', file=sys.stderr)
            return 2
        if args.parquet:
            options.write_answer(args.parquet,
                                 functools.partial(write_parquet, con))
    if args.openmetrics:
        from . import debts
        frame = options.records_of_site(debts.read(*folders).frame, args.site)
        options.write_text_answer(args.openmetrics,
                                  '\n'.join(openmetrics_lines(frame)) + '\n')
    return 0


def write_parquet(con: duckdb.DuckDBPyConnection, file: Path) -> None:
    """Write all records in one table, in order of time.

    :raises OSError: the file cannot be written
    """
    # No text is an empty cell.
    cells = ', '.join(
        f"""nullif("{name}", '') AS "{name}\"""" if kind == 'VARCHAR' else f'"{name}"'
        for name, kind, *_ in con.execute('DESCRIBE results').fetchall())
    try:
        con.execute(f'COPY (SELECT {cells} FROM results '
                    'ORDER BY results.time, results.file, results.measurement, '
                    f'metric, point, repetition) TO {sql_text(file)} '
                    '(FORMAT parquet, COMPRESSION zstd)')
    except duckdb.Error as err:
        raise OSError(0, str(err).splitlines()[0], str(file)) from None


def openmetrics_lines(frame: pd.DataFrame) -> Iterator[str]:
    """Lines of OpenMetrics text, which is Prometheus' own format too.

    :param frame: as records.read and debts.add_debts give it
    """
    from . import results
    families: dict[str, tuple[str, dict[str, str]]] = {
        'plumb_case_failed': ('1 if the test case failed in its newest session, has a '
                              'failure that is open, or is missing', {}),
        'plumb_case_run_seconds': ('Time of the newest session of the test '
                                   'case, in seconds since 1970', {})}
    known = all_metrics()
    # What is owed has no values, and did not run.
    records = results.newest_records(frame[~frame['guard'].isin(
        (results.MISSING, results.OPEN))])
    for newest, name, number_of in (
            (results.newest_records(frame), 'plumb_case_failed',
             lambda row: row.result in results.FAILED),
            (records, 'plumb_case_run_seconds', lambda row: row.time.timestamp())):
        # One record decides how a test case ended.
        deciding = newest.assign(rank=newest['result'].map(results.ORDER.index)
                                 ).sort_values('rank', kind='stable')
        for row in deciding.drop_duplicates(['test_case', 'copy']).itertuples():
            families[name][1][_format_labels(_labels_of_record(row))] = str(
                int(number_of(row)))
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
