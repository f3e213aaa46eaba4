"""`plumb history`: a metric of each test case over sessions.

The answer is one query to the cache (records/cache.py). pandas is not
imported, because that takes longer than the answer.
"""
from __future__ import annotations

import argparse
import functools
import itertools
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from config import console
from config.commandline import ANSWER_CODES, Parser
from config.places import default_site, site_folder_of_name
from config.records.units import Scale, change_text, point_text, readable_scale
from config.schema import suggest_name
from config.sessions.judged import point_with_unit

from . import options
from .names import short_name
from .records import Faults, open_records_database, restrict_views_to_site
from .records.cache import kept_answer
from .records.typed import sql_text

HELP = """\
Shows a metric of test cases, session by session.

If CASE is a short ID, or at most 3 test cases match, each has a table with one row per
session and one column per size of a message (point). `change` compares the last session
with the median of the earlier ones. If it is 5 % or more, the next line has `worse` or
`better`. If the sessions ran on different nodes, the last column has these nodes.

If more test cases match, one table lists them. `change` is then the median of the
changes at all points. A session with several repetitions has their median.

With CASE, the tables end with what the verdict reports on these test cases.

--csv and --json write one row per session, test case, metric, point, and source of
the program (spack, module, system, ...): time, session, system, partition, environ,
check, params, settings, test_case, metric, point, value, unit, better, result, source,
nodes.

""" + ANSWER_CODES
#: Test cases that have a table of their own.
TABLES = 3
#: A change that is folded; points side by side in a table.
SMALL, IN_A_TABLE = 0.05, 8
#: The place of a test case, in SQL; and what people call it.
_PLACE = "concat('@', system, ':', partition, '+', environ)"
_NAME = f"concat_ws(' ', \"check\", params, nullif(settings, ''), {_PLACE})"
#: Whether a test case is CASE.
_MATCHES = "({case} = '' OR contains({name}, {case}) OR test_case = {case})"
#: One row per session, test case, source and point: of several repetitions what was
#: judged counts, or else the median of all.
_ROWS = '''WITH measured AS (
    SELECT session, left(replace(session, '-', ''), 8) AS day FROM counted
    WHERE {matches} AND len(list_filter(vals, lambda v: v.metric = {metric})) > 0
), newest_sessions AS (
    FROM measured GROUP BY session, day ORDER BY day DESC, session DESC LIMIT {last}
), matching AS NOT MATERIALIZED (
    SELECT *, coalesce(repetition, 1) = 0 AS judged FROM results
    WHERE metric = {metric} AND {matches}
)
SELECT strftime(max(time), '%Y-%m-%dT%H:%M:%SZ') AS time, session,
    any_value(system) AS system, any_value(partition) AS partition,
    any_value(environ) AS environ, any_value("check") AS "check",
    any_value(params) AS params, any_value(settings) AS settings, test_case,
    metric, point, coalesce(median(value) FILTER (judged), median(value)) AS value,
    unit, better,
    -- The judged record and those that it is the median of have one time.
    arg_max(result, 2 * epoch_us(time) + judged::INTEGER) AS result,
    source, any_value({name}) AS name, day,
    array_to_string(list_sort(list(DISTINCT nodes)), ' ') AS nodes
FROM matching JOIN newest_sessions USING (session)
GROUP BY test_case, source, session, day, metric, point, unit, better'''
#: The last session of each test case, compared with those before it.
_CHANGES = f'''WITH ordered AS (
    SELECT *, row_number() OVER (PARTITION BY test_case, source, unit, point
        ORDER BY day DESC, session DESC) = 1 AS newest FROM answer
), points AS (
    SELECT test_case, source, unit, better, any_value(value) FILTER (newest)
        / nullif(median(value) FILTER (NOT newest), 0) - 1 AS change,
        bool_or(newest AND result IN ('fail', 'xpass')) AS failed,
        any_value("check") AS "check", any_value(params) AS params,
        any_value(settings) AS settings, any_value({_PLACE}) AS place,
        any_value(name) AS name
    FROM ordered GROUP BY test_case, source, unit, better, point
)
SELECT CASE WHEN bool_or(failed) THEN 'fail' ELSE '' END, median(change),
    count(*), any_value("check"), any_value(params), any_value(settings), test_case,
    source, any_value(place)
FROM points GROUP BY test_case, source, unit, better
ORDER BY any_value(name), source, unit'''


class Row(NamedTuple):
    """A metric of a test case at a point, in one session."""
    time: str
    session: str
    system: str
    partition: str
    environ: str
    check: str
    params: str
    settings: str
    test_case: str
    metric: str
    point: str
    value: float
    unit: str
    better: str
    result: str
    source: str
    nodes: str

    @property
    def heading(self) -> str:
        """The test case and its place, and below them all that it consists of."""
        name = short_name(self.check, self.params, self.settings, self.test_case,
                          self.source)
        return (f'{name} @{self.system}:{self.partition}+{self.environ}\n'
                f'{self.check} {self.params} {self.settings}'.rstrip())

    def text(self, scale: Scale) -> str:
        """The value, with a mark if it failed."""
        return scale.number(self.value) + '!' * (self.result in ('fail', 'xpass'))


def parser() -> Parser:
    """The command line."""
    cmd = Parser(prog='plumb history', text=HELP, example='./plumb history '
                 'latency "OsuPt2pt program=osu_latency" --last 30')
    cmd.add_argument('metric', metavar='METRIC', help='the name of a metric, '
                     'for example latency or bandwidth')
    cmd.add_argument('case', metavar='CASE', nargs='?', default='',
                     help='a part of the name of a test case, which is `check '
                     'params settings @system:partition+environ`, or its short ID '
                     '(default: all test cases)')
    options.add_record_options(cmd).add_argument(
        '--last', type=options.parse_positive_number, metavar='N',
        help='show only the newest N sessions (default: 8; with --csv and '
             '--json all)')
    output = cmd.add_argument_group('output')
    output.add_argument('--all', action='store_true', help='in the table of many test '
                     'cases, also list those that changed by less than 5 %%')
    options.add_answer_options(output.add_mutually_exclusive_group())
    return cmd


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    args = parser().parse_args(argv)
    try:
        return print_history(args)
    except ValueError as err:
        print(f'plumb history: {err}', file=sys.stderr)
        return 2


def print_history(args: argparse.Namespace) -> int:
    """Print or write the answer; return the exit code.

    :raises ValueError: there is no answer, or a file cannot be read or written
    """
    last = args.last or (0 if args.csv or args.json else 8)
    if not Path(args.perflogs).is_dir():
        raise ValueError(f'{args.perflogs} is not a folder; run `./plumb run` first, '
                         'or name another folder with --perflogs')
    faults: Faults = []
    with open_records_database([args.perflogs], faults) as con:
        restrict_views_to_site(con, args.site)
        [[state]] = con.execute("SELECT getvariable('state')").fetchall()
        test_cases = fill_answer_table(con, args.metric, args.case, last)
        known = set() if test_cases else {name for name, in con.execute(
            'SELECT DISTINCT metric FROM results').fetchall()}
        many = test_cases > TABLES and not args.csv and not args.json \
            and not re.fullmatch('[0-9a-f]{8}', args.case)
        answer: list[Any] = con.execute(
            _CHANGES).fetchall() if many else read_answer_rows(con)
    options.print_faults('history', faults)
    if not answer:
        raise ValueError(_reason_for_empty_answer(args, known))
    if options.write_rows(args, Row._fields, answer):
        pass
    elif many:
        print_newest_changes(answer, args.all)
    else:
        print_tables(answer)
        if args.case:
            print_verdict_on_test_cases(args, state, answer)
    return 1 if faults else 0


def _reason_for_empty_answer(args: argparse.Namespace, known: set[str]) -> str:
    """The reason why the answer has no row."""
    if args.metric in known:
        return (f'no test case with {args.metric} matches {args.case!r}; '
                'omit CASE to show all test cases')
    if not known:
        return (f'no records in {args.perflogs}: run `./plumb run` first, or '
                'name another folder with --perflogs')
    return (f'no records of metric {args.metric!r}; '
            f'{suggest_name(args.metric, sorted(known))}')


def fill_answer_table(
    con: duckdb.DuckDBPyConnection, metric: str, case: str, last: int
) -> int:
    """Fills the table `answer` with the rows of a metric.

    :param con: of open_records_database
    :param last: only the newest sessions that have it; 0: all
    :returns: how many test cases it has
    """
    # Not as parameters: the client imports pandas for those.
    con.execute('CREATE OR REPLACE TEMP TABLE answer AS ' + _ROWS.format(
        metric=sql_text(metric), name=_NAME,
        matches=_MATCHES.format(case=sql_text(case), name=_NAME),
        last=last or 'NULL'))
    [[count]] = con.execute(
        'SELECT count(DISTINCT (test_case, source)) FROM answer').fetchall()
    return count


def read_answer_rows(con: duckdb.DuckDBPyConnection) -> list[Row]:
    """The rows of `answer`, in order of test case, point and time."""
    columns = ', '.join(f'"{name}"' for name in Row._fields)
    at = Row._fields.index('point')
    return [Row._make((*row[:at], point_with_unit(row[at]), *row[at + 1:]))
            for row in con.execute(
                f'SELECT {columns} FROM answer ORDER BY name, source, unit, better, '
                'point NULLS FIRST, day, session').fetchall()]


def print_newest_changes(cells: Iterable[tuple], every: bool = False) -> None:
    """Print one row per test case from the rows of `_CHANGES`, the largest change last.

    :param every: also those that changed by less than SMALL and did not fail
    """
    rows = sorted(cells, key=lambda row: (row[0], abs(row[1] or 0)))
    shown = [row for row in rows if every or row[0] or abs(row[1] or 0) >= SMALL]
    console.print_table(
        [(result, '' if change is None else change_text(1 + change), points,
          f'{short_name(check, params, settings, case, source)} {place}')
         for result, change, points, check, params, settings, case, source, place
         in shown],
        ('', 'change', 'points', 'test case'), right=(1, 2), below=True)
    folded = f'; {len(rows) - len(shown)} changed by less than {100 * SMALL:g} % ' \
        '(--all lists them)' if len(shown) < len(rows) else ''
    console.print_lines([
        f'{console.count_with_noun(len(rows), "test case")}{folded}',
        'To see the values of a test case, give its ID or a part of its name as '
        'CASE'])


def print_tables(records: Iterable[Row]) -> None:
    """Print one table per test case and unit, one row per session."""
    failed = False
    for (name, unit), group in itertools.groupby(
            records, lambda row: (row.heading, row.unit)):
        rows = [*group]
        failed |= any(row.result in ('fail', 'xpass') for row in rows)
        scale = readable_scale(unit, statistics.median(abs(row.value) for row in rows))
        better = rows[0].better
        console.print_lines([
            *name.split('\n'), f'{rows[0].metric} ({scale.unit or "dimensionless"})'
            + f', {better} is better' * (better != 'none')])
        _print_test_case_table(rows, scale)
        print()
    if failed:
        print('! failed')


def print_verdict_on_test_cases(args: argparse.Namespace, state: str,
                                rows: Iterable[Row]) -> None:
    """Print what the verdict on the newest session reports on test cases.

    A regression is judged together with all other test cases, which takes ten times
    as long as the tables. So the answer about all of them is kept.

    :param state: the variable `state` of the database
    :raises ValueError: the file of decisions is damaged
    """
    site = args.site or default_site()
    lines_by_test_case = kept_answer(
        Path(args.perflogs), [state, args.site, site], [
            Path(args.perflogs, 'decisions.yaml'),
            site_folder_of_name(site) / 'topology.yaml'],
        functools.partial(_verdict_by_test_case, args))
    for name in dict.fromkeys(row.test_case for row in rows):
        console.print_lines(f'Verdict on {name}: {line}' for line in
                            lines_by_test_case.get(name) or [
            'not compared: no reference, and too few sessions for a comparison with '
            'the history'])


def _verdict_by_test_case(args: argparse.Namespace) -> dict[str, list[str]]:
    """Test case -> what `./plumb verdict` reports on it; without those that were not
    compared.

    :raises ValueError: the file of decisions is damaged
    """
    # With pandas, which takes longer to import than the tables take.
    from .regressions.events import KINDS
    from .regressions.verdict import verdict_of_perflogs
    verdict, _ = verdict_of_perflogs(args.perflogs, site=args.site)
    lines = {one.test_case: ['no regression'] for one in (
        *verdict.power, *(one for one in verdict.results if one.is_compared))}
    reported: dict[str, list[str]] = {}
    for event in verdict.events:
        for name in event.cases:
            reported.setdefault(name, []).append(
                f'{KINDS[event.kind]} {event.lines[0]}'.strip())
    return lines | reported


def _print_test_case_table(records: Sequence[Row], scale: Scale) -> None:
    """Print the sessions of a test case, with IN_A_TABLE points side by side."""
    sessions: dict[str, str] = {}
    nodes: dict[str, str] = {}
    # Sorted again, because the rows of one point stand together.
    for row in sorted(records, key=lambda row: (
            row.session.replace('-', '')[:8], row.session, row.time)):
        sessions[row.session] = row.time[:16].replace('T', ' ')
        nodes[row.session] = row.nodes
    columns = []
    for at, group in itertools.groupby(records, lambda row: row.point):
        values = {row.session: row for row in group}
        change = _change_from_earlier_median([row.value for row in values.values()])
        columns.append((
            point_text(at) or 'all',
            [values[session].text(scale) if session in values else '-'
             for session in sessions],
            change_text(change) if change else '',
            side_of_change(change, records[0].better)))
    differ = len({*nodes.values()}) > 1
    for part in range(0, len(columns), IN_A_TABLE):
        names, cells, changes, sides = zip(
            *columns[part:part + IN_A_TABLE], strict=True)
        lines = list(zip(sessions.values(), *cells, *[nodes.values()] * differ,
                         strict=True))
        lines.append(('change', *changes))
        if any(sides):
            lines.append(('', *sides))
        console.print_table(lines, ('session (UTC)', *names, *['nodes'] * differ),
                            right=range(1, len(names) + 1))


def side_of_change(change: float | None, better: str) -> str:
    """`worse` or `better` of a change of at least SMALL; otherwise ''.

    :param change: the last value divided by the earlier ones; None: unknown
    :param better: `higher`, `lower` or `none`
    """
    if change is None or abs(change - 1) < SMALL or better == 'none':
        return ''
    return 'better' if (change > 1) == (better == 'higher') else 'worse'


def _change_from_earlier_median(values: list[float]) -> float | None:
    """The last value divided by the median of the earlier values; None: unknown."""
    before = statistics.median(values[:-1]) if values[1:] else 0
    return values[-1] / before if before and values[-1] > 0 else None
