"""ReFrame's report of a session as measurements, in SQL."""
from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import duckdb

from config import regular
from config.records.columns import reframe_names

from .rows import name_query
from .typed import (
    COUNTS,
    FLAGS,
    TEXTS,
    columns_query,
    first_line_query,
    sql_text,
    typed_measurements_query,
)

#: Major version of ReFrame's report.
DATA_VERSION = '4'
#: Maximum size of a report: about 40 000 test cases. Unit: bytes.
LARGEST = 128 << 20
#: Fields of a test case that are no columns of rows.
_FIELDS = ('result', 'fail_phase', 'fail_reason', 'fixture', 'unique_name')


class ReportError(Exception):
    """A report cannot be read."""


def check_report(path: Path) -> int:
    """The size of a report. Unit: bytes.

    :raises ReportError: why not, without the path
    :raises OSError: it cannot be read, or is not a regular file
    """
    with regular.open_regular_file(path) as handle:
        size = handle.seek(0, 2)
        handle.seek(0)
        head = handle.read(4096).decode(errors='replace')
        handle.seek(max(size - 64, 0))
        tail = handle.read().rstrip()
    if size > LARGEST:
        raise ReportError(f'it has more than {LARGEST >> 20} MiB')
    version = re.search(r'"data_version":\s*("[^"]*"|[\d.]+)', head)
    if version and json.loads(version[1]).partition('.')[0] != DATA_VERSION:
        raise ReportError(f'its data_version is {json.loads(version[1])}, and this '
                          f'checkout reads only {DATA_VERSION}.x; use a newer '
                          'checkout of Plumbline')
    if not tail.endswith(b'}'):
        raise ReportError('it is cut off')
    return size


def reports_query(files: Mapping[Path, str]) -> str:
    """SQL of the typed measurements of reports.

    :param files: report -> its name in the records
    """
    names = {column: name for column, name in reframe_names().items()
             if column in (*TEXTS, *COUNTS, *FLAGS)}
    fields = dict.fromkeys([*names.values(), *_FIELDS], 'VARCHAR') | {
        'job_completion_time_unix': 'DOUBLE', 'dependencies_actual': 'VARCHAR[][]',
        'perfvalues': 'MAP(VARCHAR, VARCHAR[])'}
    case = 'STRUCT(' + ', '.join(f'"{n}" {kind}' for n, kind in fields.items()) + ')'
    columns = (
        "{session_info: 'STRUCT(cmdline VARCHAR, time_start_unix DOUBLE, "
        "time_end_unix DOUBLE, num_aborted BIGINT)', "
        f"runs: 'STRUCT(run_index BIGINT, testcases {case}[])[]'}}")
    size = max(1 << 20, *(path.stat().st_size + 1 for path in files))
    known = ', '.join(f'({sql_text(path)}, {sql_text(name)}, {sql_text(path.stem)})'
                      for path, name in files.items())
    texts = {column: f"coalesce(c.\"{name}\", '')" for column, name in names.items()}
    # A report of another suite has no short id, and its names say less.
    texts |= {
        'session': 'stem',
        'measurement': "coalesce(nullif(c.measurement, ''), "
                       "stem || '.' || retry || '.' || line)",
        **{part: f'CASE WHEN is_foreign THEN {name_query("c.display_name", part)} '
                 f'ELSE {texts[part]} END' for part in ('check', 'params')}}
    return typed_measurements_query(f'''
        WITH runs AS (
            SELECT session_info AS info, file, stem, unnest(runs) AS run
            FROM read_json([{', '.join(map(sql_text, files))}],
                format = 'unstructured', columns = {columns}, filename = true,
                maximum_object_size = {size})
            JOIN (VALUES {known}) AS known (path, file, stem) ON path = filename),
        cases AS MATERIALIZED (
            SELECT info, file, stem, run.run_index AS retry, unnest(run.testcases) AS c,
                generate_subscripts(run.testcases, 1) AS line FROM runs),
        causes AS (
            SELECT file AS of_file, retry AS of_retry, c.unique_name AS name,
                any_value(c.fixture = 'true') AS is_build,
                any_value({first_line_query('c.fail_reason')}) AS reason
            FROM cases WHERE c.result = 'fail' GROUP BY ALL)
        SELECT c.test_case IS NULL AS is_foreign, CASE
                WHEN c.test_case IS NOT NULL AND c.session <> stem
                THEN printf('the report is that of the session %s; name it '
                    || '%s.json, or move it elsewhere', c.session, c.session)
                ELSE '' END AS wrong_file, {columns_query(texts)},
            strftime(to_timestamp(coalesce(c.job_completion_time_unix,
                info.time_end_unix)) AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%SZ') AS time,
            CASE WHEN c.result = 'fail_deps'
                THEN CASE WHEN causes.is_build THEN 'build' ELSE 'dependency' END
            WHEN c.result = 'skip' THEN 'skipped'
            -- What is cancelled while its files are removed has passed.
            WHEN c.result IS NULL OR c.result IN ('abort', '<unknown>')
                AND c.fail_phase IS DISTINCT FROM 'cleanup'
                THEN 'cancelled' END AS not_run,
            CASE WHEN not_run IS NOT NULL THEN 'not_run'
                WHEN c.result IN ('pass', 'xfail', 'abort') THEN 'pass' ELSE 'fail'
                END AS outcome,
            coalesce(not_run, c.fail_phase) AS phase,
            CASE not_run
                WHEN 'build' THEN 'not run: a build that it needs failed: '
                    || causes.reason
                WHEN 'dependency' THEN concat_ws(': ',
                    'not run: a test case that it depends on failed', causes.reason)
                ELSE c.fail_reason END AS reason,
            info.cmdline AS command,
            make_timestamp(CAST(info.time_start_unix * 1e6 AS BIGINT)) AS started,
            make_timestamp(CAST(info.time_end_unix * 1e6 AS BIGINT)) AS ended,
            info.num_aborted AS aborted,
            list_transform(list_filter(map_entries(c.perfvalues),
                lambda e: e.value[1] IS NOT NULL), lambda e: {{
                'perf_var': regexp_extract(e.key, '[^:]*$'), 'value': e.value[1],
                'reference': e.value[2], 'lower': e.value[3], 'upper': e.value[4],
                'unit': coalesce(e.value[5], ''), 'result': coalesce(e.value[6], '')
                }}) AS vals, file, line, retry
        FROM cases LEFT JOIN causes ON of_file = file AND of_retry = retry
            AND causes.name = c.dependencies_actual[1][1]
        WHERE c.fixture IS DISTINCT FROM 'true' ''')


def error_text(err: Exception) -> str:
    """Why a report cannot be read, in one line."""
    if isinstance(err, duckdb.Error):
        return ' '.join(str(err).split())[:200]
    return str(getattr(err, 'strerror', None) or err)
