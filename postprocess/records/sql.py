"""`plumb sql`: a question in SQL to the records."""
from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import duckdb

from config.commandline import ANSWER_CODES, Parser

from .. import options
from . import cache
from .files import Faults

HELP = """\
Answers a question in SQL about all records.

The views are
  results       one row per value of the measurements that count
  measurements  one row per measurement, also those that do not count
  sessions      one row per session of ReFrame
`DESCRIBE results` lists all columns; docs/reference/perflogs.md explains them.
`point` is a number of bytes. Times are UTC. An empty text is '', an empty number is
NULL. The name "check" needs quotes. The language is that of DuckDB
(https://duckdb.org/docs/stable/sql/introduction).

The statement can only read, and it reads only the perflogs. In CSV, a text that a
spreadsheet would run as a formula begins with an apostrophe.

""" + ANSWER_CODES
#: Rows that a table shows; --csv and --json have all.
MAXIMUM = 1000


def parser() -> Parser:
    """The command line."""
    cmd = Parser(prog='plumb sql', text=HELP, example="""\
./plumb sql "SELECT params, point, median(value), any_value(unit) FROM results
      WHERE metric = 'latency' GROUP BY ALL ORDER BY ALL" --csv latency.csv""")
    cmd.add_argument('question', metavar='SELECT',
                     help='one statement that only reads, such as SELECT')
    options.add_saved_results_option(options.add_record_options(cmd))
    options.add_answer_options(
        cmd.add_argument_group('output').add_mutually_exclusive_group())
    return cmd


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    args = parser().parse_args(argv)
    faults: Faults = []
    try:
        with (options.folders_of_records(args, 'sql') as folders,
              cache.open_records_database(folders, faults) as con):
            options.print_faults('sql', faults)
            cache.restrict_views_to_site(con, args.site)
            names, rows = run_query(con, args.question)
            if not options.write_rows(args, names, rows):
                print('\n'.join(table_lines(names, rows)))
    except BrokenPipeError:             # `| head`
        raise
    except (duckdb.Error, OSError, ValueError) as err:
        text = ' '.join(str(err).partition('\n\n')[0].split())
        print(f'plumb sql: {text}', file=sys.stderr)
        return 2
    return 1 if faults else 0


def run_query(con: duckdb.DuckDBPyConnection, question: str
        ) -> tuple[list[str], Iterator[tuple]]:
    """Names of the columns of an answer, and its rows.

    :raises duckdb.Error, ValueError: DuckDB refuses the question, or it does
        more than read
    """
    statements = con.extract_statements(question)
    if len(statements) != 1 or statements[0].type not in (
            duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        raise ValueError('only one statement that reads is allowed: SELECT, '
                         'WITH, FROM, DESCRIBE, SUMMARIZE or EXPLAIN')
    # From here on only the parts of the cache can be read.
    con.execute('SET enable_external_access = false')
    con.execute('SET lock_configuration = true')
    con.execute(statements[0])
    return [name for name, *_ in con.description or ()], _fetch_rows(con)


def _fetch_rows(con: duckdb.DuckDBPyConnection) -> Iterator[tuple]:
    while rows := con.fetchmany(10_000):
        yield from rows


def table_lines(names: Sequence[str], rows: Iterator[tuple]) -> Iterator[str]:
    """Lines of text: the columns, and the first rows."""
    cells = [[*names]]
    more = 0
    for row in rows:
        if len(cells) <= MAXIMUM:
            cells.append([str(options.cell_text(cell)) for cell in row])
        else:
            more += 1
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield '  '.join(f'{cell:<{width}}' for cell, width
                        in zip(line, widths, strict=True)).rstrip()
    if more:
        yield f'and {more} more rows; --csv FILE writes all'
