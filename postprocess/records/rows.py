"""ReFrame's rows as measurements, of this suite and of others, in SQL.

ReFrame's file handler writes a header with the names of its format: `session`,
`nodes`, ..., and with `perflog_multiline` one row per value with `perf_var`,
`perf_value`, ... Without it a row has the values of all metrics: `latency_value`,
`latency_unit`, ... Nothing is quoted, so a line counts only if it has as many cells as
the header. Other suites have further texts in a cell (`jobid=12`), or name, hash and
place of a test case together (`info`). ReFrame 3 wrote no header; its default format
is known.
"""
from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from config.records.columns import DELIMITER, reframe_names, row_formats
from config.records.writing import VALUE_COLUMNS

from .files import REPAIR
from .typed import (
    COUNTS,
    FLAGS,
    RESULTS,
    TEXTS,
    columns_query,
    sql_list,
    sql_text,
    typed_measurements_query,
)

#: Maximum length of a line. Unit: bytes.
LONGEST = 1 << 20
#: Bytes that have a meaning for read_csv (\x02: nullstr).
_SPECIAL = re.compile(rb'[\0\r\x02]')
#: Part of a value -> names that ReFrame has for it, after that of the metric.
_ENDS = {'value': ('value',), 'reference': ('ref',),
         'lower': ('lower_thres', 'lower'), 'upper': ('upper_thres', 'upper'),
         'unit': ('unit',), 'result': ('result',)}
#: Column -> names that formats of other suites have for it, the best one first.
_FOREIGN = {
    'time': ('job_completion_time',), 'session': ('session_uuid',),
    'system': ('system',), 'partition': ('partition',), 'environ': ('environ',),
    'name': ('display_name', 'name', 'info', 'unique_name', 'short_name'),
    'job': ('jobid',),
    'nodes': ('job_nodelist', 'nodelist'), 'num_tasks': ('num_tasks',),
    'tasks_per_node': ('num_tasks_per_node',), 'reframe': ('version',),
    'program': ('spack_spec',)}
#: `NAME %parameter=value /hash @system:partition+environ`, as ReFrame prints it.
_INFO = (r'^(\S+)(.*?)(?: ~\S+)?(?: /[0-9a-f]+)?(?: @([^:\s]+):([^+\s]+)\+(\S+))?'
         r'(?: \[.*\])?$')
#: The place as ReFrame 3 printed it: ` on system:partition using environ`.
_INFO_3 = r' on ([^:\s]+:\S+) using (\S+)$'
_INFO_PARTS = {'check': 1, 'params': 2, 'system': 3, 'partition': 4, 'environ': 5}
#: A name of ReFrame in a cell of a header.
_NAMES = re.compile(
    r'(?<!\w)(?:[^\W\d][\w.-]*_(?:var|value|ref|lower_thres|upper_thres|unit|result)|'
    r'jobid|version|num_tasks(?:_per_node)?|display_name|short_name|name|info|system|'
    r'partition|environ|job_completion_time|job_nodelist|nodelist|spack_spec|'
    r'session_uuid)\b')
#: A row of ReFrame 3 with its default format, and the header that it lacks.
_ROW_3 = re.compile(r'\d{4}-\d\d-\d\dT[^|]*\|reframe [^|]*\|[^|]*\|jobid=[^|]*\|'
                    r'(num_tasks=[^|]*\|)?[^|=]+=[^|]*\|ref=\S+ \(l=\S+, u=\S+\)'
                    r'\|[^|]*')
_HEADER_3 = ('job_completion_time|reframe version|info|jobid=jobid|{tasks}'
             'perf_var=perf_value|ref=perf_ref (l=perf_lower_thres, u=perf_upper_thres)'
             '|perf_unit')


class Layout(NamedTuple):
    """The columns of a file."""
    #: Cells of the header.
    cells: tuple[str, ...]
    delimiter: str
    #: Whether the columns are those of config/perflog.yaml.
    is_own: bool
    has_header: bool = True


def name_query(sql: str, part: str) -> str:
    """SQL of a part of ReFrame's name of a test case: check, params, system, ..."""
    modern = f"regexp_replace(trim({sql}), '{_INFO_3}', ' @\\1+\\2')"
    text = f"regexp_extract({modern}, '{_INFO}', {_INFO_PARTS[part]})"
    if part != 'params':
        return text
    return (f"trim(replace(regexp_replace({text}, '%(\\.repeat_no|\\.part|\\.nid|"
            "\\.?pinned_nodes)=\\S+', '', 'g'), '%', ''))")


def layout_of_header(line: bytes) -> Layout:
    """The columns of a file from its first line.

    :raises ValueError: it is not a header of ReFrame's rows, and what is missing
    """
    header = line.decode('utf-8-sig').rstrip('\r\n')
    if re.match(r'\s*\{|.*": ', header):
        raise ValueError('it is JSON, not the columns of the handler filelog')
    if not header.replace('\t', ' ').isprintable():
        raise ValueError('it is not text')
    if header.split(DELIMITER) == list(reframe_names().values()):
        return Layout(tuple(reframe_names().values()), DELIMITER, True)
    old = _ROW_3.fullmatch(header)
    if old:
        header = _HEADER_3.format(tasks='num_tasks=num_tasks|' * bool(old[1]))
    # The delimiter is what follows or precedes the name of the time.
    match = (re.search(r'job_completion_time([^\w]+)\w', header)
             or re.search(r'\w([^\w]+)(?:check_)?job_completion_time$', header))
    delimiter = match[1] if match else DELIMITER
    cells = tuple(cell.strip().removeprefix('check_')
                  for cell in header.split(delimiter))
    named = [cell for cell in cells if cell]
    if len(set(named)) < len(named):
        raise ValueError('two columns of its header have the same name')
    layout = Layout(cells, delimiter, False, not old)
    missing = []
    if not _cell(layout, 'job_completion_time'):
        missing.append('job_completion_time')
    if not any(_cell(layout, name) for name in _FOREIGN['name']):
        missing.append('display_name (or name, info, unique_name)')
    elif not _cell(layout, 'info'):
        missing += [name for name in ('system', 'partition')
                    if not _cell(layout, name)]
    if not any(_metrics(layout)):
        missing.append('a value (NAME_value, or perf_var and perf_value)')
    if missing:
        raise ValueError('its header has no column ' + ', '.join(missing))
    return layout


def copy_whole_lines(handle: BinaryIO, out: BinaryIO, reported: Collection[str]
                     ) -> tuple[Layout | None, list[tuple[int, str]]]:
    """Copy the whole lines of a file that count, each with its number.

    :param reported: sessions whose values are in their reports
    :returns: the layout, None if it is not known; line and reason of each fault
    """
    faults: list[tuple[int, str]] = []
    first = handle.readline(LONGEST)
    if not first:
        return None, [(1, 'the file is empty; remove it')]
    try:
        layout = layout_of_header(first)
    except ValueError as err:
        why = 'it is not text' if isinstance(err, UnicodeError) else str(err)
        return None, [(1, f'not a perflog of ReFrame: {why}; move this file out of the '
                           'perflogs folder')]
    header = first.rstrip(b'\r\n') + b'\n'
    mark, count = layout.delimiter.encode(), len(layout.cells)
    known = {name.encode() for name in reported} if layout.is_own else set()
    at = layout.cells.index('session') if known else 0
    # The beginning of the lines of a reported measurement; they follow each other.
    reported_start: bytes | tuple[bytes, ...] = ()
    lines = iter(partial(handle.readline, LONGEST), b'')
    if not layout.has_header:
        lines = itertools.chain([first], lines)
    for number, line in enumerate(lines, 1 + layout.has_header):
        if line.startswith(reported_start):
            continue
        # A file that came from Windows has its line ends.
        if line.endswith(b'\r\n'):
            line = line[:-2] + b'\n'
        if line[-1:] != b'\n':
            # Without a limit, one line could fill the memory. A session still writes
            # a shorter one, or it was cut off.
            if len(line) == LONGEST:
                faults.append((number, f'the line has more than {LONGEST} bytes; the '
                               'rest of the file is not read'))
            break
        cells = line.split(mark, at + 1)
        if len(cells) > at + 1 and cells[at] in known:
            reported_start = mark.join([*cells[:at + 1], b''])
            continue
        if line == header and layout.has_header:
            continue
        if b'job_completion_time' in line:
            faults.append((number, 'the file has another header here; the rest is not '
                           'read: move it to a file of its own'))
            break
        columns = line.count(mark) + 1
        if not _is_text(line):
            faults.append((number, f'not text; {REPAIR}'))
        elif columns != count:
            faults.append((number, f'the line has {columns} columns, not {count}; '
                           f'{REPAIR}'))
        else:
            out.write(b'%d%s%s' % (number, mark, line))
    return layout, faults


def _is_text(line: bytes) -> bool:
    """Whether a line is text, without the characters that read_csv treats specially."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return not _SPECIAL.search(line)


def rows_query(layout: Layout, lines: Path, name: str) -> str:
    """SQL of the typed measurements of lines that `copy_whole_lines` wrote.

    :param name: name of the file in the records
    """
    columns = ', '.join(["'line': 'BIGINT'", *(
        f"'c{at}': 'VARCHAR'" for at in range(len(layout.cells)))])
    read = (f'read_csv({sql_text(lines)}, auto_detect = false, header = false, '
            f"delim = {sql_text(layout.delimiter)}, quote = '', escape = '', "
            f"nullstr = '\x02', new_line = '\\n', null_padding = false, "
            f'max_line_size = {2 * LONGEST}, columns = {{{columns}}})')
    return typed_measurements_query(
        _own_measurements(read, name) if layout.is_own
        else _foreign_measurements(layout, read, name))


#: Columns of a measurement that rows do not have.
_NO_REPORT = ''''' AS wrong_file, 0 AS retry, '' AS command, NULL::TIMESTAMP AS started,
    NULL::TIMESTAMP AS ended, 0 AS aborted'''


def _own_measurements(read: str, name: str) -> str:
    """SQL of the suite's own rows: one row per measurement."""
    at = {column: f'c{number}' for number, column in enumerate(row_formats())}
    values = ', '.join(
        f"'{part}': nullif({at[part]}, 'null')" for part in VALUE_COLUMNS)
    common = columns_query({
        column: f"coalesce(first(nullif({cell}, 'null') ORDER BY line), '')"
        for column, cell in at.items() if column not in VALUE_COLUMNS})
    # A cleanup that fails writes all rows twice; a sanity failure writes null.
    return f'''
        SELECT *,
            {_NO_REPORT}, {sql_text(name)} AS file, '' AS reason, false AS is_foreign,
            CASE WHEN len(vals) >= coalesce(TRY_CAST(number_of_values AS BIGINT), 0)
                THEN 'pass' ELSE 'not_run' END AS outcome,
            CASE outcome WHEN 'not_run' THEN 'cancelled' ELSE '' END AS phase
        FROM (SELECT {common}, list({{{values}}} ORDER BY line) AS vals,
                min(line) AS line
            FROM (FROM {read} WHERE {at['value']} <> 'null'
                QUALIFY row_number() OVER (PARTITION BY {at['session']},
                    {at['measurement']}, {at['perf_var']} ORDER BY line) = 1)
            GROUP BY {at['session']}, {at['measurement']})'''


def _cell(layout: Layout, *names: str) -> str:
    """SQL of the first of some names that the header has; '': none.

    A cell of the header may have further text: `jobid=jobid` has values like
    `jobid=12`, and `ref=perf_ref (l=perf_lower_thres)` those of two names.
    """
    for wanted in names:
        for at, cell in enumerate(layout.cells):
            if cell == wanted:
                return _cleaned(f'c{at}')
            matches = [match for match in _NAMES.finditer(cell)
                       # What stands before a = is text, unless it is a metric's name.
                       if cell[match.end():match.end() + 1] != '='
                       or match[0].endswith('_var')]
            if wanted not in (match[0] for match in matches) or len(cell) == len(
                    matches[0][0]):
                continue
            pattern, end, group = '^', 0, 0
            for number, match in enumerate(matches, 1):
                pattern += re.escape(cell[end:match.start()]) + '(.*?)'
                end = match.end()
                group = number if match[0] == wanted else group
            return _cleaned(f"regexp_extract(c{at}, "
                            f"{sql_text(pattern + re.escape(cell[end:]) + '$')}, "
                            f'{group})')
    return ''


def _cleaned(sql: str) -> str:
    """SQL of a text without blanks around it; what means nothing is empty."""
    return (f"CASE WHEN trim({sql}) IN ('None', 'null', 'NULL') THEN '' "
            f'ELSE trim({sql}) END')


def _metrics(layout: Layout) -> Iterator[dict[str, str]]:
    """SQL of the parts of each value of a row."""
    names = ['perf'] if _cell(layout, 'perf_value') else [
        name.removesuffix('_value') for cell in layout.cells
        for name in (_NAMES.findall(cell) if '=' in cell else [cell])
        if name.endswith('_value') and name != '_value']
    for metric in names:
        called = _cell(layout, 'perf_var') if metric == 'perf' else sql_text(metric)
        if called:
            yield {'perf_var': called, **{
                part: _cell(layout, *(f'{metric}_{end}' for end in ends)) or "''"
                for part, ends in _ENDS.items()}}


def _foreign_measurements(layout: Layout, read: str, name: str) -> str:
    """SQL of rows of other suites: one row per measurement."""
    cells = {column: _cell(layout, *names) or "''"
             for column, names in _FOREIGN.items()}
    for part in ('system', 'partition', 'environ'):
        if cells[part] == "''":
            cells[part] = name_query(cells['name'], part)
    program = cells['program']
    time = cells['time']
    texts = {**dict.fromkeys((*TEXTS, *COUNTS, *FLAGS), "''"), **cells,
             'time': f"{time} || CASE WHEN {time} = '' OR regexp_matches({time}, "
                     "'(Z|[-+]\\d\\d:?\\d\\d)$') THEN '' ELSE 'Z' END",
             'session': f"CASE WHEN {cells['session']} = '' THEN left({time}, 10) "
                        f"ELSE {cells['session']} END",
             'check': name_query(cells['name'], 'check'),
             'params': name_query(cells['name'], 'params'),
             'program': f"split_part({program}, '@', 1)",
             'version': f"regexp_extract({program}, '^[^@]*@(.*)$', 1)",
             'reframe': f"ltrim({cells['reframe']}, 'reframe ')"}
    values = ', '.join('{' + ', '.join(
        f"'{part}': {sql}" if part in ('perf_var', 'unit') else
        f"'{part}': nullif({sql}, '')" for part, sql in parts.items()) + '}'
        for parts in _metrics(layout))
    given = f'SELECT {columns_query(texts)}, line, [{values}] AS given FROM {read}'
    # Rows of one measurement agree in all but their values.
    keys = ', '.join(f'"{column}"' for column in texts if column != 'measurement')
    grouped = f'''SELECT {keys}, min(line) AS line, flatten(list(given ORDER BY line))
        AS given FROM ({given}) GROUP BY {keys}'''
    values = f'''list_transform(list_filter(given, lambda v: v.value IS NOT NULL),
        lambda v: {{'perf_var': replace(replace(v.perf_var, '@', '_'), '#', '_'),
            'value': v.value, 'reference': v.reference, 'lower': v.lower,
            'upper': v.upper, 'unit': v.unit, 'result': {_RESULT}}})'''
    return f'''SELECT {keys}, left(sha256(concat_ws(chr(31), {keys})), 12)
        AS measurement, given, {values} AS vals, line, {_NO_REPORT},
        {sql_text(name)} AS file, true AS is_foreign,
        CASE WHEN len(vals) = len(given) THEN 'pass' ELSE 'fail' END AS outcome,
        '' AS phase, 'sanity error: no_value: a metric has no value' AS reason
        FROM ({grouped})'''


#: A value within its thresholds passes, as ReFrame judges it.
_RESULT = f'''CASE WHEN lower(v.result) IN {sql_list(RESULTS)} THEN lower(v.result)
    WHEN coalesce(TRY_CAST(v.reference AS DOUBLE), 0) = 0 THEN 'pass'
    WHEN TRY_CAST(v.value AS DOUBLE) < TRY_CAST(v.reference AS DOUBLE)
        + TRY_CAST(v.lower AS DOUBLE) * abs(TRY_CAST(v.reference AS DOUBLE))
    OR TRY_CAST(v.value AS DOUBLE) > TRY_CAST(v.reference AS DOUBLE)
        + TRY_CAST(v.upper AS DOUBLE) * abs(TRY_CAST(v.reference AS DOUBLE))
    THEN 'fail' ELSE 'pass' END'''
