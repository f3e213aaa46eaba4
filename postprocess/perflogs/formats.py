"""The columns of perflogs, and the queries that read them.

A query of DuckDB turns staged lines (reading.py) into typed records. Each
record has a column `fault`: NULL, or what is wrong with it; the first check
that finds something decides.

config/perflog.yaml describes the suite's own format. ReFrame's file handler
writes a header that names the columns: those of `format` without `check_`
(`job_completion_time`, `system`, ...), and those of `format_perfvars` once
per metric (`latency_value`, `latency_unit`, ...). With `perflog_multiline`
there is one line per metric, with the columns `perf_var`, `perf_value`, ...
Nothing is quoted or escaped, so a line is refused if its number of cells is
not that of the header. excalibur-tests adds `spack_spec` to this format.

A record of ReFrame gets what its file has; the rest stays empty. `run` is the
identifier of the session, or else the date. A time without a zone is UTC.
`better` is that of the metric, or else the open side of its thresholds.
"""
from __future__ import annotations

import contextlib
import csv
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from config import schema as schemas
from config.families import all_metrics
from config.records.columns import schema_number_and_columns

#: Values of the column `format`.
OURS, REFRAME = 'plumbline', 'reframe'
RESULTS = ('pass', 'fail', 'xfail', 'xpass', 'retried', 'no_reference',
           'inconclusive')
REPAIR = 'remove the line, or restore the file'
#: Where metrics are named.
METRICS = 'config/metrics.yaml, checks/*/family.yaml'
COUNTS = ('schema', 'repetition', 'num_nodes', 'num_tasks', 'tasks_per_node')
METRIC = ('value', 'reference', 'lower', 'upper')
#: Columns whose text must not be empty, here and in files of ReFrame.
_FILLED = ('run', 'system', 'partition', 'environ', 'family', 'check')
_FOREIGN_FILLED = ('metric', 'check', 'system', 'partition')
#: Between a fault and the cells that it names.
_BETWEEN = '\x1f'
#: A cast to TIMESTAMP alone would leave out the offset.
_TIME = 'make_timestamp(epoch_us(TRY_CAST(time AS TIMESTAMPTZ)))'
_FINITE = r'[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?'
#: Our column -> names that ReFrame has for it, the best one first.
_SOURCES = {
    'time': ('job_completion_time',), 'run': ('session_uuid',),
    'system': ('system',), 'partition': ('partition',),
    'environ': ('environ',), 'check': ('display_name', 'name'),
    'job': ('jobid',), 'nodes': ('job_nodelist',),
    'num_tasks': ('num_tasks',), 'tasks_per_node': ('num_tasks_per_node',),
    'reframe': ('version',), 'case': ('hashcode',),
    'program': ('spack_spec',)}
#: Our column -> end of ReFrame's column of a metric.
_ENDS = {'value': 'value', 'reference': 'ref', 'lower': 'lower_thres',
         'upper': 'upper_thres', 'unit': 'unit'}


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of a file, and what separates them."""
    form: str
    columns: tuple[str, ...]
    delimiter: str = ','
    quote: str = '"'

    @property
    def malformed_row_condition(self) -> str:
        """SQL that is true of a row that has not as many cells as a line, or
        is of no line."""
        maximum = len(self.columns)
        return (f'(line IS NULL OR c{maximum - 1} IS NULL '
                f'OR c{maximum} IS NOT NULL)')

    def split_line(self, line: bytes) -> list[str]:
        """The cells of a line.

        :raises ValueError: it is not well-formed, and why
        """
        if self.quote:
            return parse_csv_line_of_width(line, len(self.columns))
        text = line.decode(errors='replace')
        if '\ufffd' in text or '\0' in text:
            raise ValueError('not text')
        return _check_cell_count(text.split(self.delimiter), len(self.columns))

    def encode_rows_as_lines(self, rows: Iterable[Sequence[str]]) -> bytes:
        """Lines of cells, as `split_line` takes them apart."""
        mark = self.quote
        return ''.join(self.delimiter.join(
            f'{mark}{cell.replace(mark, 2 * mark) if mark else cell}{mark}'
            for cell in row) + '\n' for row in rows).encode()

    def typed_records_query(self, lines: Sequence[Any]) -> str:
        """SQL of the typed records of lines (reading.Lines)."""
        # DuckDB drops an empty cell beyond the last column. So there is one
        # column more, and whatever is not in a line is NULL. No text is.
        columns = ', '.join(f"'c{at}': 'VARCHAR'"
                            for at in range(len(self.columns) + 1))
        quote = sql_string_literal(self.quote)
        files = ', '.join(sql_string_literal(one.text) for one in lines)
        places = sql_values_table(('file', 'first', 'count'), (
            (one.name, one.first, one.number) for one in lines))
        read = (f'read_csv([{files}], '
                'auto_detect=false, header=false, strict_mode=true, '
                'null_padding=true, '
                f'delim={sql_string_literal(self.delimiter)}, quote={quote}, '
                f'escape={quote}, nullstr={sql_string_literal(chr(2))}, '
                f"new_line='\\n', max_line_size={1 << 25}, "
                f'columns={{{columns}}}) POSITIONAL JOIN (SELECT file, '
                'unnest(range(first, first + count)) AS line FROM '
                f'{places})')
        return _typed_records_sql(
            self,
            _plumbline_rows_query(self, read)
            if self.form == OURS
            else _reframe_rows_query(self, read),
        )


def typed_records_queries(lines: Iterable[Any]) -> list[str]:
    """SQL of the typed records of lines, one query for each layout."""
    layouts: dict[Layout, list[Any]] = {}
    for one in lines:
        layouts.setdefault(one.layout, []).append(one)
    return [layout.typed_records_query(group) for layout, group in layouts.items()]


def plumbline_layout() -> Layout:
    """The suite's own format."""
    return Layout(OURS, schema_number_and_columns()[1])


def reframe_layout(header: str) -> Layout:
    """The format of a header that ReFrame's file handler wrote.

    :raises ValueError: it is not a header of a perflog, and why
    """
    # The separator is what follows or precedes the name of the time.
    match = re.search(r'job_completion_time([^\w]+)\w', header) \
        or re.search(r'\w([^\w]+)(?:check_)?job_completion_time$', header)
    between = match[1] if match else '|'
    names = tuple(name.strip().removeprefix('check_')
                  for name in header.split(between))
    if len(set(names)) < len(names):
        raise ValueError('two columns of its header have the same name')
    if 'job_completion_time' not in names:
        raise ValueError('its header has no column job_completion_time')
    if not any(re.fullmatch('.+_value', name) for name in names):
        raise ValueError('its header has no column of a metric (NAME_value)')
    return Layout(REFRAME, names, between, '')


# ------------------------------------------------------------------ cells

def parse_csv_line(line: bytes) -> list[str]:
    """Cells of one line of CSV.

    :raises ValueError: it is none
    """
    try:
        [row] = csv.reader([line.decode().removesuffix('\r')], strict=True)
    except (ValueError, csv.Error):
        row = ['\0']
    # DuckDB 1.5 does not return from a quoted cell with a carriage return.
    if any('\0' in cell or '\r' in cell for cell in row):
        raise ValueError('not a line of CSV')
    return row


def parse_csv_line_of_width(line: bytes, columns: int) -> list[str]:
    """The cells of a line of CSV with this number of columns."""
    return _check_cell_count(parse_csv_line(line) if line.strip(b'\r') else [], columns)


def _check_cell_count(cells: list[str], columns: int) -> list[str]:
    if len(cells) != columns:
        raise ValueError(f'the line has {len(cells)} columns, not {columns}')
    return cells


def parse_finite_number(text: str) -> float:
    """A finite number in ASCII digits."""
    if not re.fullmatch(_FINITE, text, re.ASCII) or math.isinf(float(text)):
        raise ValueError('is not a finite number')
    return float(text)


# -------------------------------------------------------------------- SQL

def sql_string_literal(text: object) -> str:
    """A text as SQL has it."""
    return "'" + str(text).replace("'", "''") + "'"


def sql_values_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Some rows as a table."""
    values = ', '.join('(' + ', '.join(
        str(cell) if isinstance(cell, int) else sql_string_literal(cell)
        for cell in row) + ')' for row in rows)
    return f"(VALUES {values}) AS given ({', '.join(names)})"


def sql_string_list(words: Sequence[str]) -> str:
    """Some texts as what IN takes."""
    return f"({', '.join(map(sql_string_literal, words))})"


def column_types() -> dict[str, str]:
    """Every column of a typed record and its type, in order."""
    known = dict.fromkeys(schema_number_and_columns()[1], 'VARCHAR')
    return known | dict.fromkeys(COUNTS, 'BIGINT') | dict.fromkeys(
        METRIC, 'DOUBLE') | {'time': 'TIMESTAMP', 'emulated': 'BOOLEAN',
                             'point': 'BIGINT', 'file': 'VARCHAR',
                             'format': 'VARCHAR', 'line': 'BIGINT',
                             'fault': 'VARCHAR'}


@contextlib.contextmanager
def define_sql_macros(con: Any) -> Iterator[None]:
    """While it lasts, the queries can be run."""
    # Lines stay in their order: they are never what a join looks up.
    con.execute("SET disabled_optimizers = "
                "'join_order,build_side_probe_side'")
    con.execute('CREATE OR REPLACE TEMP TABLE metrics AS FROM ' + sql_values_table(
        ('name', 'known_unit', 'known_better', 'has_point'),
        ((name, row['unit'], row['better'], row['point'] != '')
         for name, row in all_metrics().items())))
    for name, body in {
            # Of ReFrame: what stands for nothing is empty.
            'cleaned(x)': "CASE WHEN trim(x, e' \\t\\r\\n') IN ('None', "
                          "'null', 'NULL') THEN '' "
                          "ELSE trim(x, e' \\t\\r\\n') END",
            'number(x)': "TRY_CAST(nullif(x, '') AS DOUBLE)",
            'no_number(x)': f"NOT regexp_full_match(x, '{_FINITE}') OR NOT "
                            'coalesce(isfinite(TRY_CAST(x AS DOUBLE)), '
                            'false)'}.items():
        con.execute(f'CREATE OR REPLACE TEMP MACRO {name} AS {body}')
    yield
    con.execute('RESET disabled_optimizers')


def _typed_records_sql(layout: Layout, texts: str) -> str:
    """SQL of records of the right types, and of their faults.

    :param texts: SQL of the columns of the format as texts, with `file`,
        `line` and `torn` (whether the row has not all of these)
    """
    cells = {name: f'"{name}"' for name in schema_number_and_columns()[1]}
    cells |= {name: f'''TRY_CAST(nullif("{name}", '') AS BIGINT)'''
              for name in COUNTS}
    cells |= {name: f'number("{name}")' for name in METRIC}
    cells['time'] = _TIME
    cells['emulated'] = "emulated = '1'"
    cells['point'] = "TRY_CAST(rtrim(point, ' B') AS BIGINT)"
    if layout.form != OURS:
        cells['better'] = _BETTER
    chosen = ', '.join(f'{sql} AS "{name}"' for name, sql in cells.items())
    faults = ' '.join(
        f"WHEN {bad} THEN concat_ws('{_BETWEEN}', {sql_string_literal(reason)}"
        + ''.join(f', left("{name}", 40)' for name in names) + ')'
        for bad, reason, *names in _record_fault_conditions(layout))
    return (
        f'SELECT {chosen}, file, {sql_string_literal(layout.form)} AS format, line, '
        f'CASE {faults} END AS fault FROM ({texts}) AS texts '
        'LEFT JOIN metrics ON metrics.name = texts.metric'
    )


def _record_fault_conditions(layout: Layout) -> Iterator[tuple[str, ...]]:
    """SQL that is true of a bad record; the reason; columns that it names."""
    own = layout.form == OURS
    yield 'torn', TORN
    if own:
        number = str(schema_number_and_columns()[0])
        yield (f'"schema" <> {sql_string_literal(number)}',
               f'the schema of the record is not {number}')
    for name in METRIC:
        empty = '' if name == 'value' else f"\"{name}\" <> '' AND "
        yield (f'{empty}(no_number("{name}"))',
               f'{name} {{!r}} is not a finite number', name)
    yield (f"{_TIME} IS NULL OR NOT (suffix(time, 'Z') "
           "OR regexp_matches(time, '[-+]\\d\\d(:?\\d\\d)?$'))",
           'time {!r} is not a time (RFC 3339)', 'time')
    for name in COUNTS:
        yield (f"NOT regexp_full_match(\"{name}\", '\\d{{0,18}}')",
               f'{name} {{!r}} is not a whole number', name)
    for name in _FILLED if own else _FOREIGN_FILLED:
        yield f"\"{name}\" = ''", f"{name} '' must not be empty"
    if not own:
        return
    yield ("NOT regexp_full_match(point, '(\\d{1,18} B)?')",
           "point {!r} is not a size like '8 B'", 'point')
    for name, words in {'emulated': ('', '0', '1'), 'result': RESULTS,
                        'better': ('higher', 'lower', 'none')}.items():
        yield (f'{name} NOT IN {sql_string_list(words)}',
               f'{name} {{!r}} is not one of {", ".join(words)}', name)
    yield ('name IS NULL', f'metric {{!r}} is not a metric ({METRICS}; '
           '{near})', 'metric')
    yield ('unit <> known_unit', f'unit {{!r}} of {{}} is not {{!r}} '
           f'({METRICS})', 'unit', 'metric', 'known_unit')
    yield ("point <> '' AND NOT has_point",
           f'metric {{}} has no points, but the record has {{!r}} ({METRICS})',
           'metric', 'point')


#: Fault of a line that was reported as it was split.
TORN = 'torn'


def fault_text(fault: str) -> str:
    """The text of the column `fault`."""
    text, *cells = fault.split(_BETWEEN)
    near = schemas.suggest_name(cells[0], all_metrics()) if '{near}' in text else ''
    return text.format(*cells, near=near)


def _plumbline_rows_query(layout: Layout, read: str) -> str:
    """SQL of the suite's own lines as texts."""
    columns = ', '.join(f'c{at} AS "{name}"'
                        for at, name in enumerate(layout.columns))
    return (f'SELECT {columns}, file, line, '
            f'{layout.malformed_row_condition} AS torn FROM {read}')


def _reframe_rows_query(layout: Layout, read: str) -> str:
    """SQL of ReFrame's lines as texts: one row per line and metric."""
    def cell_expression(*names: str) -> str:
        at = next((layout.columns.index(name) for name in names
                   if name in layout.columns), None)
        return "''" if at is None else f'cleaned(c{at})'

    head = ', '.join(f'{cell_expression(*names)} AS "{name}"'
                     for name, names in _SOURCES.items())
    metrics = []
    for name in layout.columns:
        metric = name.removesuffix('_value')
        if metric in ('', name):
            continue
        called = cell_expression(
            'perf_var') if metric == 'perf' else sql_string_literal(metric)
        metrics.append('{' + ', '.join(
            f"'{key}': {sql}" for key, sql in {
                **{key: cell_expression(f'{metric}_{end}')
                   for key, end in _ENDS.items()},
                'result': f"lower({cell_expression(f'{metric}_result', 'result')})",
                'metric': called}.items()) + '}')
    given = (f'SELECT {head}, file, line, {layout.malformed_row_condition} AS torn, '
             f'unnest([{", ".join(metrics)}]) AS f FROM {read}')
    texts = {
        **{name: "''" for name in schema_number_and_columns()[1]},
        **{name: f'"{name}"' for name in _SOURCES},
        'time': "time || CASE WHEN time = '' OR regexp_matches(substr(time, "
                "11), '(Z|[-+]\\d\\d:?\\d\\d)$') THEN '' ELSE 'Z' END",
        'run': "CASE WHEN run = '' THEN left(time, 10) ELSE run END",
        'check': "trim(split_part(\"check\", ' %', 1))",
        'params': "array_to_string(string_split(\"check\", ' %')[2:], ' ')",
        'program': "split_part(program, '@', 1)",
        'version': "regexp_extract(program, '^[^@]*@(.*)$', 1)",
        'value': 'f.value', 'reference': 'f.reference', 'lower': 'f.lower',
        'upper': 'f.upper', 'repetition': "'1'", 'metric': 'f.metric',
        'unit': 'f.unit', 'result': _RESULT}
    # Where nothing was measured, the record is what the suite writes then.
    texts |= {name: f"CASE WHEN f.value = '' THEN {sql_string_literal(text)} "
              f'ELSE {texts[name]} END' for name, text in {
                        'value': '0', 'repetition': '0', 'metric': 'completed',
                        'unit': '1', 'result': 'fail'}.items()}
    texts['guard'] = "CASE WHEN f.value = '' THEN 'no_value' ELSE '' END"
    chosen = ', '.join(f'{sql} AS "{name}"' for name, sql in texts.items())
    return f'SELECT {chosen}, file, line, torn FROM ({given})'


#: A value within its thresholds passes, as ReFrame judges it.
_RESULT = '''CASE WHEN f.result IN ('pass', 'fail', 'xfail', 'xpass')
    THEN f.result
    WHEN coalesce(number(f.reference), 0) = 0
    OR f.lower = '' AND f.upper = '' THEN 'no_reference'
    WHEN number(f.value) < number(f.reference)
    + number(f.lower) * abs(number(f.reference))
    OR number(f.value) > number(f.reference)
    + number(f.upper) * abs(number(f.reference)) THEN 'fail' ELSE 'pass'
    END'''
_BETTER = '''CASE WHEN unit = known_unit THEN known_better
    WHEN lower <> '' AND upper = '' THEN 'higher'
    WHEN upper <> '' AND lower = '' THEN 'lower' ELSE 'none' END'''
