"""What the columns of perflogs are, and the queries that read them.

A query of DuckDB turns staged lines (reading.py) into typed
records. Each record has a column `fault`: NULL, or what is wrong with it; the
first check that finds something decides.

The suite's own format is in config/perflog.yaml. Perflogs of ReFrame's own
handlers have a header that names the columns, as ReFrame makes it: of
`format`, where `check_` is left out (`job_completion_time`, `system`, ...),
and of `format_perfvars`, once for each metric (`latency_value`,
`latency_unit`, ...). With `perflog_multiline` there is one line per metric,
whose columns are `perf_var`, `perf_value`, ... The separator is what stands
between names: `|` as a rule. Nothing is quoted or escaped, so a line whose
number of cells is not that of the header is refused. JSON lines have the same
names as keys, with or without `check_`; metrics are keys of their own, or
`perfvalues`: metric -> [value, reference, lower, upper, unit, result].

A record of ReFrame gets what its file has. The rest stays empty. `run` is the
session's identifier, else the date. A time without a zone is taken as UTC.
`better` is what the thresholds say, or else the unit; `none` where neither
does.
"""
from __future__ import annotations

import csv
import dataclasses
import difflib
import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from config import strict
from config.families import ROOT, metrics

#: Values of the column `format`.
OURS, REFRAME, EXCALIBUR, JSON_LINES = (
    'plumbline', 'reframe', 'excalibur-tests', 'reframe-json')
RESULTS = ('pass', 'fail', 'xfail', 'xpass', 'again', 'no_reference',
           'inconclusive')
REPAIR = 'remove the line, or restore the file'
#: Where metrics are named.
METRICS = 'config/metrics.yaml, checks/*/family.yaml'
COUNTS = ('schema', 'repeat', 'num_nodes', 'num_tasks', 'tasks_per_node')
FIGURE = ('value', 'reference', 'lower', 'upper')
#: Columns whose text must not be empty, here and in files of ReFrame.
_FILLED = ('run', 'system', 'partition', 'environ', 'family', 'check')
_FOREIGN_FILLED = ('metric', 'check', 'system', 'partition')
#: Between the parts of a fault.
_BETWEEN = '\x1f'
#: A cast to TIMESTAMP alone would leave out the offset.
_TIME = 'make_timestamp(epoch_us(TRY_CAST(time AS TIMESTAMPTZ)))'
_FINITE = r'[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?'
#: Ends of the columns of a metric in a file of ReFrame, and its order in
#: `perfvalues`.
_ENDS = {'value': 'value', 'reference': 'ref', 'lower': 'lower_thres',
         'upper': 'upper_thres', 'unit': 'unit', 'result': 'result'}
#: Our column -> names that ReFrame has for it, the best one first.
_SOURCES = {
    'time': ('job_completion_time',), 'run': ('session_uuid',),
    'system': ('system', 'current_system'),
    'partition': ('partition', 'current_partition'),
    'environ': ('environ', 'current_environ'),
    'job': ('jobid',), 'nodes': ('job_nodelist',),
    'num_tasks': ('num_tasks',), 'tasks_per_node': ('num_tasks_per_node',),
    'reframe': ('version',), 'case': ('hashcode',),
    'program': ('spack_spec',)}
_NAME = ('display_name', 'info', 'unique_name', 'name')


@functools.cache
def schema() -> tuple[int, tuple[str, ...]]:
    """Number and columns of the suite's own format."""
    data = strict.table(ROOT / 'config' / 'perflog.yaml')
    return data['schema'], tuple(data['columns'])


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the columns of a file are, and how they are separated."""
    form: str
    columns: tuple[str, ...]
    delimiter: str = ','
    quote: str = '"'
    #: Value of the column `schema` in each record.
    schema: str = ''

    def as_csv(self) -> Layout:
        """The same columns, as standard CSV."""
        return dataclasses.replace(self, delimiter=',', quote='"')

    @property
    def torn(self) -> str:
        """SQL that is true of a row that has not as many cells as a line, or
        is of no line."""
        most = len(self.columns)
        return (f'(line IS NULL OR c{most - 1} IS NULL '
                f'OR c{most} IS NOT NULL)')

    def split(self, line: bytes) -> list[str]:
        """The cells of a line.

        :raises ValueError: it is not well-formed, and why
        """
        if self.quote:
            return csv_row(line, len(self.columns))
        text = line.decode(errors='replace')
        cells = text.split(self.delimiter)
        if '\ufffd' in text or '\0' in text:
            raise ValueError('not text')
        return _as_many(cells, len(self.columns))

    def query(self, staged: Sequence[Path]) -> str:
        """SQL of the typed records of staged lines, with `origin`, `line` and
        `fault`. Table `places` has origin and line of each of their rows,
        `origins` what the place of each file says."""
        # DuckDB drops an empty cell beyond the last column. So there is one
        # column more, and whatever is not in a line is NULL. No text is.
        columns = ', '.join(f"'c{at}': 'VARCHAR'"
                            for at in range(len(self.columns) + 1))
        quote, files = sql_text(self.quote), ', '.join(map(sql_text, staged))
        read = (f'SELECT * FROM read_csv([{files}], '
                'auto_detect=false, header=false, strict_mode=true, '
                'null_padding=true, '
                f'delim={sql_text(self.delimiter)}, quote={quote}, '
                f'escape={quote}, nullstr={sql_text(chr(2))}, '
                f"new_line='\\n', max_line_size={1 << 25}, "
                f'columns={{{columns}}}) POSITIONAL JOIN places')
        return _typed(_own(self, read) if self.form == OURS
                      else _foreign(self, read), self)


def ours(number: str | None = None) -> Layout:
    """The suite's own format.

    :param number: what stands in `schema`, if not the number of the format
    """
    known, columns = schema()
    return Layout(OURS, columns,
                  schema=str(known) if number is None else number)


def foreign(header: str) -> Layout:
    """The format of a header that ReFrame's file handler wrote.

    :raises ValueError: it is not a header of a perflog, and why
    """
    # The separator after `job_completion_time`, or before it where it is
    # the last.
    found = re.search(r'(?:check_)?job_completion_time([^\w]+)\w', header) \
        or re.search(r'\w([^\w]+)(?:check_)?job_completion_time$', header)
    between = found[1] if found else '|'
    layout = of_names(header.split(between), '')
    form = EXCALIBUR if {'spack_spec', 'spack_spec_dict'} & {
        *layout.columns} else REFRAME
    return dataclasses.replace(layout, form=form, delimiter=between, quote='')


def of_names(header: Sequence[str], form: str) -> Layout:
    """The layout of columns with ReFrame's names.

    :raises ValueError: they are not those of a perflog, and why
    """
    names = tuple(name.strip().removeprefix('check_') for name in header)
    if len(set(names)) < len(names):
        raise ValueError('two columns of its header have one name')
    if 'job_completion_time' not in names:
        raise ValueError('its header has no job_completion_time')
    if not _figures(names):
        raise ValueError('its header has no column of a figure (NAME_value)')
    return Layout(form, names)


def _figures(names: Sequence[str]) -> list[str]:
    return [name.removesuffix('_value') for name in names
            if name.endswith('_value') and name != '_value']


# ------------------------------------------------------------------ cells

def csv_cells(line: bytes) -> list[str]:
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


def csv_row(line: bytes, columns: int) -> list[str]:
    """The same; as many as there are columns."""
    return _as_many(csv_cells(line) if line.strip(b'\r') else [], columns)


def _as_many(cells: list[str], columns: int) -> list[str]:
    if len(cells) != columns:
        raise ValueError(f'{len(cells)} columns, not {columns}')
    return cells


def finite(text: str) -> float:
    """A finite number in ASCII digits."""
    if not re.fullmatch(_FINITE, text, re.ASCII) or math.isinf(float(text)):
        raise ValueError('is not a finite number')
    return float(text)


def json_rows(text: str) -> Iterator[dict[str, str]]:
    """The rows of one line of JSON: one per metric.

    :raises ValueError: it is none
    """
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError('too deep') from None
    if not isinstance(data, dict):
        raise ValueError('not an object')
    plain = {str(key).removeprefix('check_'): _json_text(value)
             for key, value in data.items()}
    values = data.get('check_perfvalues', data.get('perfvalues'))
    if not isinstance(values, dict):
        yield plain
        return
    del plain['perfvalues']
    for name, given in values.items():
        if not isinstance(given, list) or len(given) > len(_ENDS):
            raise ValueError('perfvalues is not what ReFrame writes')
        yield plain | {'perf_var': name.rpartition(':')[2]} | {
            f'perf_{end}': _json_text(value)
            for end, value in zip(_ENDS.values(), given, strict=False)}


def _json_text(value: Any) -> str:
    if isinstance(value, str):
        # As other files: no cell has a line break.
        return value.replace('\n', ' ').replace('\0', ' ')
    return '' if value is None else json.dumps(value)


# -------------------------------------------------------------------- SQL

def sql_text(text: object) -> str:
    """A text as SQL has it."""
    return "'" + str(text).replace("'", "''") + "'"


def sql_rows(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Some rows as a table."""
    values = ', '.join('(' + ', '.join(
        str(cell) if isinstance(cell, int) else sql_text(cell)
        for cell in row) + ')' for row in rows)
    return f"(VALUES {values}) AS given ({', '.join(names)})"


def sql_words(words: Sequence[str]) -> str:
    """Some texts as what IN takes."""
    return f"({', '.join(map(sql_text, words))})"


def types() -> dict[str, str]:
    """Every column of a typed record and its type, in order."""
    known = dict.fromkeys(schema()[1], 'VARCHAR')
    return known | dict.fromkeys(COUNTS, 'BIGINT') | dict.fromkeys(
        FIGURE, 'DOUBLE') | {'time': 'TIMESTAMP', 'emulated': 'BOOLEAN',
                             'size': 'BIGINT', 'origin': 'INTEGER',
                             'line': 'BIGINT', 'fault': 'VARCHAR'}


def prepare(con: Any) -> None:
    """Makes what the queries need: what is known of metrics, and macros."""
    # Lines stay in their order: they are never what a join looks up.
    con.execute("SET disabled_optimizers = "
                "'join_order,build_side_probe_side'")
    con.execute('CREATE TEMP TABLE metrics AS FROM ' + sql_rows(
        ('name', 'known_unit', 'has_point'),
        ((name, row['unit'], row['point'] != '')
         for name, row in metrics().items())))
    for name, body in {
            # Of ReFrame: what stands for nothing is empty.
            'cleaned(x)': "CASE WHEN trim(x, e' \\t\\r\\n') IN ('None', "
                          "'null', 'NULL') THEN '' "
                          "ELSE trim(x, e' \\t\\r\\n') END",
            'number(x)': "TRY_CAST(nullif(x, '') AS DOUBLE)",
            'no_number(x)': f"NOT regexp_full_match(x, '{_FINITE}') OR NOT "
                            'coalesce(isfinite(TRY_CAST(x AS DOUBLE)), '
                            'false)'}.items():
        con.execute(f'CREATE TEMP MACRO {name} AS {body}')


def _typed(texts: str, layout: Layout) -> str:
    """SQL of records of the right types, and of their faults.

    :param texts: SQL of the columns of the format as texts, with `origin`,
        `line`, `torn` (whether the row has not all of these) and `figure`
        (what the columns of the metric begin with)
    """
    cells = {name: f'"{name}"' for name in schema()[1]}
    cells |= {name: f'''TRY_CAST(nullif("{name}", '') AS BIGINT)'''
              for name in COUNTS}
    cells |= {name: f'number("{name}")' for name in FIGURE}
    cells['time'] = _TIME
    cells['emulated'] = "emulated = '1'"
    cells['size'] = "TRY_CAST(nullif(replace(point, ' B', ''), '') AS BIGINT)"
    chosen = ', '.join(f'{sql} AS "{name}"' for name, sql in cells.items())
    faults = ' '.join(
        f'WHEN {bad} THEN concat_ws(chr({ord(_BETWEEN)}), {shown})'
        for bad, shown in _checks(layout))
    return (f'SELECT {chosen}, origin, line, CASE {faults} END AS fault '
            f'FROM ({texts}) AS texts' + (
                ' LEFT JOIN metrics ON metrics.name = texts.metric'
                if layout.form == OURS else ''))


def _checks(layout: Layout) -> Iterator[tuple[str, str]]:
    """SQL that is true of a bad record; and what is kept of it."""
    own = layout.form == OURS

    def named(name: str) -> str:
        return f"'{name}', left(\"{name}\", 40)"

    yield 'torn', "'torn'"
    if own:
        yield f'"schema" <> {sql_text(layout.schema)}', "'other schema'"
    for name in FIGURE:
        empty = '' if name == 'value' else f"\"{name}\" <> '' AND "
        yield (f'{empty}(no_number("{name}"))',
               f"concat(figure, '{name}'), left(\"{name}\", 40)")
    yield (f"{_TIME} IS NULL OR NOT (suffix(time, 'Z') "
           "OR regexp_matches(time, '[-+]\\d\\d(:?\\d\\d)?$'))",
           named('time'))
    for name in COUNTS:
        yield (f"NOT regexp_full_match(\"{name}\", '\\d{{0,18}}')",
               named(name))
    if own:
        yield ("NOT regexp_full_match(point, '(\\d{1,18} B)?')",
               named('point'))
        yield "emulated NOT IN ('', '0', '1')", named('emulated')
    yield "better NOT IN ('higher', 'lower', 'none')", named('better')
    yield f'result NOT IN {sql_words(RESULTS)}', named('result')
    if own:
        yield 'name IS NULL', named('metric')
    for name in _FILLED if own else _FOREIGN_FILLED:
        yield f"\"{name}\" = ''", f"'empty', '{name}'"
    if own:
        yield 'unit <> known_unit', "'unit', left(unit, 40), metric"
        yield ("point <> '' AND NOT has_point",
               "'no point', left(point, 40), metric")


def reason(fault: str) -> str:
    """What the column `fault` says, for people."""
    name, *texts = fault.split(_BETWEEN)
    if name == 'other schema':
        return f'a record of another schema than {schema()[0]}'
    if name == 'empty':
        return f"{texts[0]} '' must not be empty"
    if name == 'unit':
        return (f'unit {texts[0]!r} of {texts[1]} is not '
                f'{metrics()[texts[1]]["unit"]!r} ({METRICS})')
    if name == 'no point':
        return (f'{texts[1]} has no point, but {texts[0]!r} is given '
                f'({METRICS})')
    what = {**dict.fromkeys(COUNTS, 'is not a whole number'),
            'time': 'is not a time (RFC 3339)',
            'point': "is not a size like '8 B'",
            'emulated': 'is not one of , 0, 1',
            'better': 'is not one of higher, lower, none',
            'result': 'is not one of ' + ', '.join(RESULTS)
            }.get(name, 'is not a finite number')
    if name == 'metric':
        near = difflib.get_close_matches(texts[0], metrics(), 1)
        what = f'is no metric ({METRICS})' + (
            f", nearest: '{near[0]}'" if near else '')
    return f'{name} {texts[0]!r} {what}'


def _own(layout: Layout, read: str) -> str:
    """SQL of the suite's own lines as texts."""
    columns = ', '.join(f'c{at} AS "{name}"'
                        for at, name in enumerate(layout.columns))
    return (f"SELECT {columns}, origin, line, '' AS figure, "
            f'{layout.torn} AS torn FROM ({read})')


def _foreign(layout: Layout, read: str) -> str:
    """SQL of ReFrame's lines as texts: one row per line and metric."""
    def cell(*names: str) -> str:
        at = next((layout.columns.index(name) for name in names
                   if name in layout.columns), None)
        return "''" if at is None else f'cleaned(c{at})'

    head = {name: cell(*names) for name, names in _SOURCES.items()}
    head['reframe'] = f"regexp_replace({head['reframe']}, '^reframe ', '')"
    head['time'] = (f"{head['time']} || CASE WHEN {head['time']} = '' OR "
                    f"regexp_matches(substr({head['time']}, 11), "
                    "'(Z|[-+]\\d\\d:?\\d\\d)$') THEN '' ELSE 'Z' END")
    for name in ('num_tasks', 'tasks_per_node'):
        head[name] = (f"CASE WHEN regexp_full_match({head[name]}, '\\d*') "
                      f"THEN {head[name]} ELSE '' END")
    for name in ('system', 'partition'):
        if head[name] == "''":
            head[name] = f'own_{name}'
    # `Check %name=value ... /hash @system:partition+environ`
    name = f"split_part({cell(*_NAME)}, ' @', 1)"
    if not {*_NAME} & {*layout.columns}:
        name = 'own_check'
    figures = ', '.join(_figure(layout, name, cell)
                        for name in _figures(layout.columns))
    shown = ', '.join(f'{sql} AS "{name}"' for name, sql in head.items())
    given = f'''SELECT {shown}, origin, line,
        {layout.torn} AS torn, {name} AS called, unnest([{figures}]) AS f
        FROM ({read}) LEFT JOIN origins USING (origin)'''
    texts = {
        **{name: "''" for name in schema()[1]}, **{name: f'"{name}"'
                                                   for name in head},
        'run': "CASE WHEN run = '' THEN left(time, 10) ELSE run END",
        'check': "trim(split_part(plain, ' %', 1))",
        'params': "array_to_string(string_split(plain, ' %')[2:], ' ')",
        'case': "CASE WHEN \"case\" = '' THEN "
                f"regexp_extract(called, '{_HASH}', 1) ELSE \"case\" END",
        'program': "split_part(program, '@', 1)",
        'version': "regexp_extract(program, '^[^@]*@(.*)$', 1)",
        'value': 'f.value', 'reference': 'f.reference', 'lower': 'f.lower',
        'upper': 'f.upper', 'repeat': "'1'", 'metric': 'f.metric',
        'unit': 'f.unit', 'better': _better(), 'result': _RESULT}
    # Where nothing was measured, the record is what the suite writes then.
    texts |= {name: f"CASE WHEN f.value = '' THEN {sql_text(text)} "
                    f'ELSE {texts[name]} END' for name, text in {
                        'value': '0', 'repeat': '0', 'metric': 'completed',
                        'unit': '1', 'better': 'higher', 'result': 'fail'
                        }.items()}
    texts['guard'] = "CASE WHEN f.value = '' THEN 'no_value' ELSE '' END"
    chosen = ', '.join(f'{sql} AS "{name}"' for name, sql in texts.items())
    return f'''SELECT {chosen}, origin, line, torn, f.figure AS figure FROM (
        SELECT *, regexp_replace(called, '{_HASH}', '') AS plain
        FROM ({given}))'''


_HASH = ' /([0-9a-f]{6,})$'
_TIMES = '(?i)(n|u|µ|m)?s|sec(ond)?s?|min(ute)?s?|h(ours?)?'
_RATES = '(?i).*(/|per_?|p)(s|sec(ond)?s?)|.*flops?|iops|qps'
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


def _better() -> str:
    """SQL of which way is better, by what is known of a metric. There is no
    join, because lines would not stay in their order."""
    known = ' '.join(
        f"WHEN concat(f.metric, ' ', f.unit) IN {sql_words(names)} "
        f"THEN '{better}'" for better in ('higher', 'lower', 'none')
        if (names := [f'{name} {row["unit"]}' for name, row
                      in metrics().items() if row['better'] == better]))
    return f'''CASE {known}
        WHEN f.lower <> '' AND f.upper = '' THEN 'higher'
        WHEN f.upper <> '' AND f.lower = '' THEN 'lower'
        WHEN regexp_full_match(f.unit, '{_TIMES}') THEN 'lower'
        WHEN regexp_full_match(f.unit, '{_RATES}') THEN 'higher'
        ELSE 'none' END'''


def _figure(layout: Layout, name: str, cell: Any) -> str:
    """SQL of one metric of a line, as a struct of texts."""
    at = {ours: cell(f'{name}_{end}') for ours, end in _ENDS.items()}
    at['result'] = f"lower({cell(f'{name}_result', 'result')})"
    metric = cell('perf_var') if name == 'perf' and (
        'perf_var' in layout.columns) else sql_text(name)
    return '{' + ', '.join(f"'{key}': {sql}" for key, sql in {
        **at, 'metric': metric, 'figure': sql_text(f'{name}_')}.items()) + '}'
