"""Measurements with typed columns, from the texts of reports, rows and logs, in SQL.

A measurement is one row, and its values are a list in it. Each row has `faults`: what
is wrong with it. A value that is wrong is left out; a measurement whose time or
identity is wrong is `broken`.
"""
from __future__ import annotations

import functools
from collections.abc import Iterable

from config.families import all_metrics
from config.records.columns import reframe_names
from config.records.identity import DIGITS, IDENTITY
from config.records.writing import VALUE_COLUMNS

COUNTS = ('num_nodes', 'num_tasks', 'tasks_per_node', 'number_of_values')
FLAGS = ('emulated', 'transient')
#: Columns of rows and reports that are texts.
TEXTS = tuple(name for name in reframe_names()
              if name not in (*VALUE_COLUMNS, *COUNTS, *FLAGS, 'time'))
#: Where metrics are named.
METRICS = 'config/metrics.yaml, checks/*/family.yaml'
RESULTS = ('pass', 'fail', 'xfail', 'xpass')
#: Type of a value in what `typed_measurements_query` takes.
TEXTS_OF_VALUE = 'STRUCT(' + ', '.join(
    f'"{name}" VARCHAR' for name in VALUE_COLUMNS) + ')'
#: Type of a value. `better` is NULL if the metric is not defined.
VALUE = ('STRUCT(metric VARCHAR, point BIGINT, repetition BIGINT, "value" DOUBLE, '
         'unit VARCHAR, reference DOUBLE, lower DOUBLE, upper DOUBLE, '
         'result VARCHAR, better VARCHAR)')
#: Every column of a measurement and its type, in order. `outcome`: pass, out (of
#: tolerance), refused, inconclusive, not_run. `command`, `started`, `ended` and
#: `aborted` are those of the report of the session.
COLUMN_TYPES = {
    'time': 'TIMESTAMP', **dict.fromkeys(TEXTS, 'VARCHAR'),
    **dict.fromkeys(COUNTS, 'BIGINT'), **dict.fromkeys(FLAGS, 'BOOLEAN'),
    **dict.fromkeys(('copy', 'outcome', 'guard', 'reason'), 'VARCHAR'),
    'retry': 'BIGINT', 'command': 'VARCHAR', 'started': 'TIMESTAMP',
    'ended': 'TIMESTAMP', 'aborted': 'BIGINT', 'vals': f'{VALUE}[]',
    'faults': 'VARCHAR[]', 'broken': 'BOOLEAN', 'file': 'VARCHAR', 'line': 'BIGINT'}
#: SQL of no measurement.
NO_MEASUREMENTS = 'SELECT ' + ', '.join(
    f'NULL::{kind} AS "{name}"' for name, kind in COLUMN_TYPES.items()) + ' WHERE false'

#: Guard of a failure without a text of the check, by the stage in which it failed.
STAGES = {
    'startup': 'setup', 'setup': 'setup', 'compile': 'build',
    'compile_complete': 'build', 'compile_wait': 'build', 'run': 'submit',
    'run_complete': 'job_state', 'run_wait': 'job_state', 'sanity': 'sanity',
    'performance': 'performance', 'finalize': 'cleanup', 'cleanup': 'cleanup'}
#: Guards that refuse a test case but keep its values.
KEEP_VALUES = ('reference', 'validity', 'no_value')


def sql_text(text: object) -> str:
    """A text as SQL has it."""
    return "'" + str(text).replace("'", "''") + "'"


def sql_list(words: Iterable[object]) -> str:
    """Some texts as what IN takes."""
    return f"({', '.join(map(sql_text, words))})"


def columns_query(columns: dict[str, str]) -> str:
    """SQL of columns: name -> SQL."""
    return ', '.join(f'{sql} AS "{name}"' for name, sql in columns.items())


#: Control characters, which a terminal would obey: ESC[8m hides what follows. Each is
#: replaced by its picture of Unicode, or by "?" if it has none.
_CONTROLS = {chr(n): chr(0x2400 + n) for n in range(1, 32) if n not in (9, 10)} | {
    chr(127): '\u2421'} | {chr(n): '?' for n in range(128, 160)}


def first_line_query(reason: str) -> str:
    """SQL of the first line of ReFrame's text, without the kind of the error; control
    characters are visible."""
    visible = (f"translate({reason}, {sql_text(''.join(_CONTROLS))}, "
               f"{sql_text(''.join(_CONTROLS.values()))})")
    return (f"left(trim(regexp_replace(split_part({visible}, e'\\n', 1), "
            "'^(?:sanity|performance) error: (?:[a-z][a-z_]*: )?', '')), 1000)")


#: A cast to TIMESTAMP alone would leave out the offset.
_TIME = '''CASE WHEN regexp_matches(time, '(Z|[-+]\\d\\d(:?\\d\\d)?)$')
    THEN make_timestamp(epoch_us(TRY_CAST(time AS TIMESTAMPTZ))) END'''
#: Number and nodes of a copy, from ReFrame's name of the test case.
_COPY = r'''array_to_string(list_transform(regexp_extract_all(name,
    '%(\.repeat_no|\.nid|\.?pinned_nodes)=(\S+)', 0),
    lambda part: ltrim(part, '%.')), ' ')'''
#: What is wrong with the columns of a measurement, NULL if nothing is.
_FAULT = f'''CASE WHEN wrong_file <> '' THEN wrong_file WHEN time IS NULL
        THEN printf('time ''%s'' is not a time with an offset (RFC 3339)',
            left(coalesce(time_text, ''), 40))
    WHEN NOT regexp_full_match(concat({', '.join(f'"{n}_text"' for n in COUNTS)}),
        '\\d*') THEN 'one of {', '.join(COUNTS)} is not a whole number'
    WHEN '' IN (session, system, partition, "check")
        THEN 'session, system, partition or check is empty' END'''
#: What is wrong with a value `v`, NULL if nothing is.
_FAULT_OF_VALUE = f'''CASE WHEN v.better IS NULL AND NOT is_foreign
        THEN concat('no metric ', v.metric, ' in ', v.unit, CASE WHEN v.point IS NULL
            THEN '' ELSE ' with a size like 8B' END, ' is defined ({METRICS})')
    WHEN NOT coalesce(isfinite(v.value), false) OR isfinite(v.reference) = false
        OR isfinite(v.lower) = false OR isfinite(v.upper) = false
        THEN concat('value or threshold of ', left(v.metric, 40),
            ' is not a finite number')
    WHEN v.result NOT IN {sql_list((*RESULTS, ''))}
        THEN printf('result ''%s'' is not one of {', '.join(RESULTS)}',
            left(v.result, 40)) END'''
_GUARD_OF_PHASE = 'CASE phase ' + ' '.join(
    f'WHEN {sql_text(phase)} THEN {sql_text(guard)}' for phase, guard in STAGES.items()
    ) + " ELSE 'unknown' END"


@functools.cache
def _better_query() -> str:
    """SQL of which direction is better for a value of `perf_var` and `unit`: higher,
    lower or none; NULL if no such value is defined."""
    better = {f'{name} {row["unit"]} {point}': row['better']
              for name, row in all_metrics().items()
              for point in (('', '@') if row['point'] else ('',))}
    # A cast to an ENUM finds one of many texts by its hash.
    directions = ', '.join(map(sql_text, better.values()))
    return (f'list_value({directions})[enum_code(TRY_CAST('
            "concat(v.metric, ' ', v.unit, ' ', CASE WHEN v.point >= 0 THEN '@' "
            "WHEN v.point < 0 THEN '?' END) "
            f"AS ENUM({', '.join(map(sql_text, better))}))) + 1]")


def _completed(result: str) -> str:
    """SQL of the value `completed` = 0 of a measurement that failed or did not run."""
    return (f"CAST({{'metric': 'completed', 'point': NULL, 'repetition': 0, "
            "'value': 0.0, 'unit': '1', 'reference': 1.0, 'lower': 0.0, "
            f"'upper': NULL, 'result': '{result}', 'better': 'higher'}} AS {VALUE})")


def typed_measurements_query(texts: str) -> str:
    """SQL of typed measurements.

    :param texts: SQL with the columns of COLUMN_TYPES, but `copy`, `guard`, `faults`
        and `broken`. TEXTS, COUNTS, FLAGS and `time` are texts, `outcome` is pass,
        fail or not_run; `phase` (of not_run: the guard) and `reason` say more. `vals`
        is a list of the texts perf_var, value, reference, lower, upper, unit, result.
        `is_foreign`: the measurement is one of another suite. `wrong_file`: why nothing
        of the file counts, or ''
    """
    key = "split_part(v.perf_var, '#', 1)"
    numbers = ', '.join(
        f"'{name}': coalesce(TRY_CAST(v.{name} AS DOUBLE), "
        f"CASE WHEN v.{name} IS NOT NULL THEN 'nan'::DOUBLE END)"
        for name in ('value', 'reference', 'lower', 'upper'))
    return f'''
    WITH parsed AS (
        SELECT {', '.join(f'"{name}"' for name in TEXTS if name != 'test_case')},
            {columns_query({n: f"TRY_CAST(nullif({n}, '') AS BIGINT)"
                            for n in COUNTS})},
            {columns_query({f'{n}_text': n for n in COUNTS})},
            {columns_query({n: f"lower({n}) IN ('true', '1')" for n in FLAGS})},
            {_TIME} AS time, time AS time_text,
            left(sha256(concat_ws(chr(31), {', '.join(f'"{n}"' for n in IDENTITY)})),
                {DIGITS}) AS test_case,
            {_COPY} AS copy, outcome AS given_outcome, coalesce(phase, '') AS phase,
            coalesce(reason, '') AS given_reason, is_foreign, wrong_file, retry,
            command, started, ended, aborted, file, line,
            regexp_extract(given_reason,
                '^(?:sanity|performance) error: ([a-z][a-z_]*): ', 1) AS own_guard,
            list_transform(vals, lambda v: {{
                'metric': split_part({key}, '@', 1),
                'point': CASE WHEN contains(v.perf_var, '@') THEN coalesce(TRY_CAST(
                    rtrim(split_part({key}, '@', 2), 'B') AS BIGINT), -1) END,
                'repetition': TRY_CAST(nullif(split_part(v.perf_var, '#', 2), '')
                    AS BIGINT),
                'unit': v.unit, 'result': v.result, {numbers}}}) AS parsed_values
        FROM ({texts})),
    checked AS (
        SELECT *, list_transform(
                list_transform(parsed_values,
                    lambda v: struct_insert(v, better := {_better_query()})),
                lambda v: struct_insert(v, fault := {_FAULT_OF_VALUE}))
                AS checked_values,
            len(list_filter(parsed_values,
                lambda v: v.repetition IS NOT NULL)) > 0 AS several,
            len(list_filter(parsed_values,
                lambda v: v.result IN ('fail', 'xpass'))) > 0 AS is_out,
            {_FAULT} AS fault FROM parsed),
    judged AS (
        SELECT *, CASE WHEN given_outcome = 'fail' AND NOT (
                phase = 'performance' AND own_guard = '' AND is_out) THEN 'refused'
            WHEN given_outcome = 'not_run' THEN 'not_run'
            WHEN inconclusive <> '' THEN 'inconclusive'
            WHEN is_out THEN 'out' ELSE 'pass' END AS outcome,
            CASE WHEN outcome = 'not_run' THEN phase WHEN outcome <> 'refused' THEN ''
            WHEN own_guard <> '' THEN own_guard
            WHEN contains(given_reason, 'job timed out') THEN 'time_limit'
            WHEN contains(given_reason, 'maximum pending time')
                OR contains(given_reason, 'job blocked') THEN 'pending'
            ELSE {_GUARD_OF_PHASE} END AS guard,
            CASE WHEN guard = 'cancelled'
                THEN 'cancelled: the session ended while it ran'
            WHEN outcome IN ('refused', 'not_run')
                THEN {first_line_query('given_reason')}
            ELSE inconclusive END AS reason,
            -- Repetition 0 is the median of several.
            CASE WHEN outcome = 'not_run' OR outcome = 'refused'
                AND guard NOT IN {sql_list(KEEP_VALUES)} THEN [] ELSE list_transform(
                list_filter(checked_values, lambda v: v.fault IS NULL), lambda v: {{
                    'metric': v.metric, 'point': v.point, 'repetition': coalesce(
                        v.repetition, CASE WHEN several THEN 0 ELSE 1 END),
                    'value': v.value, 'unit': v.unit, 'reference': v.reference,
                    'lower': v.lower, 'upper': v.upper, 'result': v.result,
                    'better': v.better}}) END AS kept
        FROM checked),
    finished AS (
        SELECT *, CASE outcome
            WHEN 'refused' THEN list_append(kept, {_completed('fail')})
            WHEN 'not_run' THEN [{_completed('not_run')}] ELSE kept END AS vals,
            list_distinct(list_filter(list_append(list_transform(checked_values,
                lambda v: v.fault), fault), lambda one: one IS NOT NULL)) AS faults,
            fault IS NOT NULL AS broken
        FROM judged)
    SELECT {columns_query({n: f'CAST("{n}" AS {t})' for n, t in COLUMN_TYPES.items()})}
    FROM finished'''
