"""Which measurement of a test case counts in a session: one view in SQL.

A session measures a copy of a test case again if it failed. Of its measurements

- the last sound one counts. If one before it was out of tolerance, and it passes, its
  note is OUT_THEN_PASSED. If one before it failed otherwise (build, run, sanity
  check), its result is `flaky`. If it is out of tolerance itself, and no sound one
  follows, its note is NOT_CONFIRMED if others follow;
- without a sound one, the last failure counts, else the last inconclusive one, else
  that it did not run.

Rows of other suites name no session; each of their measurements counts.

A sound measurement has values, no failure, and no reason why it is inconclusive.
"""
from __future__ import annotations

import duckdb

from .typed import TEXTS

NOT_CONFIRMED = 'not confirmed'
OUT_THEN_PASSED = 'out of tolerance, then passed'

#: Columns that all values of a measurement have, in the order of the table.
COMMON = ('time', *(name for name in TEXTS if name != 'inconclusive'), 'num_nodes',
          'num_tasks', 'tasks_per_node', 'emulated', 'transient', 'copy', 'guard',
          'reason', 'note', 'measurements', 'file')

#: The same in SQL.
COMMON_COLUMNS = ', '.join(f'"{name}"' for name in COMMON)
_VIEWS = f'''
CREATE TEMP VIEW measured AS
    SELECT * REPLACE (getvariable('root') || file AS file),
        hash(file, retry, line) AS place, (retry, time, line) AS sequence,
        CASE WHEN family = '' AND command = '' THEN measurement ELSE copy END AS one
    FROM (FROM parts WHERE NOT broken UNION ALL FROM failures_of_logs)
    WHERE getvariable('site') IN ('', system) AND NOT (outcome = 'not_run'
        AND session IN (SELECT session FROM logs WHERE running));

-- A row per session and copy of a test case: the place of the measurement that counts,
-- and what the others were.
CREATE TEMP VIEW counting AS
    SELECT arg_max(place, (CASE outcome WHEN 'pass' THEN 3 WHEN 'out' THEN 3
            WHEN 'refused' THEN 2 WHEN 'inconclusive' THEN 1 ELSE 0 END, sequence))
            AS counted,
        arg_max(place, sequence) AS last,
        count(*) FILTER (outcome = 'out') AS times_out,
        arg_max({{'guard': guard, 'reason': reason}}, sequence)
            FILTER (outcome = 'refused') AS refusal,
        greatest(count(*) FILTER (outcome <> 'not_run'), 1) AS measurements
    FROM measured GROUP BY session, test_case, one;

CREATE TEMP VIEW judged AS
    SELECT * EXCLUDE (guard, reason),
        CASE WHEN is_flaky THEN refusal.guard ELSE guard END AS guard,
        CASE WHEN is_flaky THEN refusal.reason ELSE reason END AS reason,
        CASE WHEN is_flaky THEN 'flaky' WHEN outcome IN ('out', 'refused') THEN 'fail'
             ELSE outcome END AS result,
        CASE WHEN outcome = 'out' AND last <> counted THEN '{NOT_CONFIRMED}'
             WHEN outcome = 'pass' AND times_out > 0 THEN '{OUT_THEN_PASSED}'
             ELSE '' END AS note
    FROM (SELECT *, counted IS NOT NULL AS counts,
              outcome = 'pass' AND refusal IS NOT NULL AS is_flaky
          FROM measured LEFT JOIN counting ON place = counted);

CREATE TEMP VIEW measurements AS
    SELECT {COMMON_COLUMNS}, outcome, result, counts, retry, line, vals FROM judged;

CREATE TEMP VIEW counted AS
    SELECT {COMMON_COLUMNS}, inconclusive, result, vals FROM judged WHERE counts;
'''


def values_query(counted: str, columns: str = COMMON_COLUMNS) -> str:
    """SQL of the values of measurements that count.

    :param counted: SQL with the columns of the view `counted`
    :param columns: columns of each measurement that its values have
    """
    return f'''
    SELECT {columns}, position, v.metric AS metric,
        v.point AS point, v.repetition AS repetition, v.value AS "value",
        v.unit AS unit, coalesce(v.better, CASE
            WHEN v.lower IS NOT NULL AND v.upper IS NULL THEN 'higher'
            WHEN v.upper IS NOT NULL AND v.lower IS NULL THEN 'lower'
            ELSE 'none' END) AS better,
        CASE WHEN v.reference <> 0 OR v.lower IS NOT NULL OR v.upper IS NOT NULL
            THEN v.reference END AS reference, v.lower AS lower, v.upper AS upper,
        CASE WHEN v.metric = 'completed' THEN v.result
            WHEN result = 'flaky' THEN 'flaky'
            -- Also values of a measurement that a check refused, and that are kept.
            WHEN inconclusive <> '' THEN 'inconclusive'
            WHEN v.lower IS NULL AND v.upper IS NULL THEN 'no_reference'
            WHEN v.result = '' THEN 'no_reference' ELSE v.result END AS result
    FROM (SELECT *, unnest(vals) AS v, generate_subscripts(vals, 1) AS position
          FROM ({counted}))'''


def create_views(con: duckdb.DuckDBPyConnection) -> None:
    """Make the views `results`, `measurements` and `counted`.

    :param con: with `parts` and the tables of `create_session_tables`, and the
        variables `root`, folder of which the names of files are relative, and `site`,
        name of a system ('': all)
    """
    con.execute(_VIEWS)
    con.execute('CREATE TEMP VIEW results AS ' + values_query('FROM counted'))
