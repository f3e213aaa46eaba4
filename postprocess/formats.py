"""Perflogs that ReFrame's own handlers write, and what they are turned into.

A header names the columns, as ReFrame makes it: of `format`, where `check_` is
left out (`job_completion_time`, `system`, ...), and of `format_perfvars`, once
for each figure (`latency_value`, `latency_unit`, ...). With
`perflog_multiline` there is a line a figure, whose columns are `perf_var`,
`perf_value`, ... The separator is what stands between names: `|` as a rule.
Nothing is quoted or escaped, so a line whose number of cells is not that of
the header is refused. JSON lines have the same names as keys, with or without
`check_`; figures are keys of their own, or `perfvalues`: figure -> [value,
reference, lower, upper, unit, result].

A record gets what such a file has: system, partition, environ, check, params,
time, job, nodes, metric, value, unit, reference and thresholds. What it has
not stays empty. `run` is the session's identifier, else the date: a night. A
time without a zone is taken as UTC. `better` is what the thresholds say, or
else the unit; `none` where neither does.
"""
from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import records
from .records import FIGURE, HEAD, KIND, Part

#: Values of the column `format`.
REFRAME, EXCALIBUR, JSON_LINES = 'reframe', 'excalibur-tests', 'reframe-json'
#: What a figure's columns end in, and ReFrame's order in `perfvalues`.
PERF = {'value': 'value', 'ref': 'reference', 'lower_thres': 'lower',
        'upper_thres': 'upper', 'unit': 'unit', 'result': 'result'}
_ORDER = ('value', 'reference', 'lower', 'upper', 'unit', 'result')
#: Column of HEAD -> names that ReFrame has for it, the best one first.
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
_RESULTS = {'pass', 'fail', 'xfail', 'xpass'}
_EMPTY = ('None', 'null', 'NULL')


class Layout:
    """What the columns of a header mean.

    :raises ValueError: it is no header of a perflog, and why
    """

    def __init__(self, header: Sequence[str]) -> None:
        names = [name.strip().removeprefix('check_') for name in header]
        self.columns = {name: at for at, name in enumerate(names)}
        if len(self.columns) < len(names):
            raise ValueError('two columns of its header have one name')
        if 'job_completion_time' not in self.columns:
            raise ValueError('its header has no job_completion_time')
        self.figures = [name.removesuffix('_value') for name in names
                        if name.endswith('_value') and name != '_value']
        if not self.figures:
            raise ValueError('its header has no column of a figure '
                             '(NAME_value)')
        self.format = (EXCALIBUR if {'spack_spec', 'spack_spec_dict'}
                       & set(names) else REFRAME)

    def part(self, rows: list[list[str]], lines: Sequence[int], file: str,
             report: records.Report) -> Part:
        """Rows of cells, as many as the header has."""
        if not rows:
            return records.joined([])
        columns = list(zip(*rows, strict=True))
        where = np.asarray(lines, np.int64)
        head = self._heads(columns, file, len(rows))
        found = [self._figure(name, columns, head, where, report)
                 for name in self.figures]
        return _checked(records.joined(found), report)

    def _cells(self, columns: list[tuple[str, ...]], name: str
               ) -> tuple[str, ...] | None:
        at = self.columns.get(name)
        return None if at is None else columns[at]

    def _heads(self, columns: list[tuple[str, ...]], file: str, size: int
               ) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
        """Texts and codes of HEAD, a head for each row."""
        texts: dict[str, list[str]] = {name: [''] for name in HEAD}
        codes = {name: np.zeros(size, np.int32) for name in HEAD}
        texts['file'], texts['format'] = [file], [self.format]
        parents = Path(file).absolute().parent
        texts['partition'] = [parents.name]
        texts['system'] = [parents.parent.name]
        for name, sources in _SOURCES.items():
            for source in sources:
                if cells := self._cells(columns, source):
                    texts[name], codes[name] = _mapped(
                        cells, _CLEAN.get(name, _clean))
                    break
        name = next((n for n in _NAME if n in self.columns), '')
        cells = self._cells(columns, name) or (_stem(file),) * size
        names, named = _mapped(cells, str)
        for column, parts in zip(('check', 'params', 'case'), zip(
                *map(_named, names), strict=True), strict=True):
            if column != 'case' or texts['case'] == ['']:
                again, code = records.coded({'': parts}, [''])
                texts[column], codes[column] = again[''], code[''][named]
        if texts['run'] == ['']:
            days, day = records.coded(
                {'': [text[:10] for text in texts['time']]}, [''])
            texts['run'], codes['run'] = days[''], day[''][codes['time']]
        # The program's name and version are one spec.
        specs = texts['program']
        if specs != ['']:
            texts['version'] = [s.partition('@')[2] for s in specs]
            codes['version'] = codes['program']
            texts['program'] = [s.partition('@')[0] for s in specs]
        return texts, codes

    def _figure(self, name: str, columns: list[tuple[str, ...]],
                head: tuple[dict[str, list[str]], dict[str, np.ndarray]],
                lines: np.ndarray, report: records.Report) -> Part:
        """The records of one figure."""
        size = len(lines)
        given = {ours: self._cells(columns, f'{name}_{theirs}')
                 for theirs, ours in PERF.items()}
        values = given['value'] or ()
        figure = np.full((len(FIGURE), size), np.nan)
        good = np.ones(size, bool)
        for at, ours in enumerate(FIGURE):
            cells = given[ours]
            if cells is None:
                continue
            plain = records.quick_numbers(cells, ours == 'value')
            if plain is not None:
                figure[at] = plain
                continue
            texts, codes = _mapped(cells, _clean)
            known = np.full(len(texts), np.nan)
            for n, text in enumerate(texts):
                try:
                    known[n] = records.finite(text) if text else np.nan
                except ValueError as err:
                    bad = np.flatnonzero((codes == n) & good)
                    good[bad] = False
                    if len(bad):
                        report(int(lines[bad[0]]), f'{name}_{ours} '
                               f'{text[:40]!r} {err}; {records.REPAIR}')
            figure[at] = known[codes]
        units, unit = _mapped(given['unit'] or ('',) * size, _clean)
        said = given['result'] or self._cells(columns, 'result') or (
            '',) * size
        results, result = _mapped(said, lambda text: text.strip().lower())
        value, reference, lower, upper = figure
        judged = (reference == reference) & (reference != 0) & (
            (lower == lower) | (upper == upper))
        bound = np.abs(reference)
        inside = ~((value < reference + lower * bound)
                   | (value > reference + upper * bound))
        metric = self._cells(columns, 'perf_var') if name == 'perf' \
            else None
        metrics, which = _mapped(metric or (name,) * size, _clean)
        # 0: higher is better, 1: lower, 2: ask the unit.
        way = np.where((lower == lower) & (upper != upper), 0, np.where(
            (upper == upper) & (lower != lower), 1, 2))
        empty = value != value
        # One number for all that a kind is made of: to sort rows of an array
        # takes ten times as long.
        sizes = (len(units), len(results), len(metrics), 3, 2, 2, 2)
        keys, kind = np.unique(np.ravel_multi_index(
            (unit, result, which, way, judged.astype(int),
             inside.astype(int), empty.astype(int)), sizes),
            return_inverse=True)
        rows: list[tuple[str, ...]] = []
        for u, r, w, b, is_judged, is_inside, is_empty in zip(*(
                part.tolist() for part in np.unravel_index(keys, sizes)),
                strict=True):
            word = results[r] if results[r] in _RESULTS else (
                'recorded' if not is_judged else
                'pass' if is_inside else 'fail')
            if is_empty:
                # Nothing was measured: that is how the suite says so.
                rows.append(('0', 'completed', '', '1', 'higher', 'fail',
                             'no_value'))
            else:
                rows.append(('1', metrics[w], '', units[u], _better(
                    metrics[w], units[u], b), word, ''))
        figure[0, empty] = 0
        words, kinds = records.coded(dict(zip(
            KIND, zip(*rows, strict=True), strict=True)), KIND)
        each = np.arange(size, dtype=np.int32)
        part = Part(head[0] | words, head[1], kinds, each,
                    kind.astype(np.int32).ravel(), figure, lines)
        return part.where(good) if values else records.joined([])


def _checked(part: Part, report: records.Report) -> Part:
    """Without the records of which a text is refused."""
    return records.checked(part, records.FOREIGN, report)


def _mapped(cells: Sequence[str], change: Callable[[str], str]
            ) -> tuple[list[str], np.ndarray]:
    """Distinct texts after a change, and a code for each cell."""
    texts, codes = records.coded({'': cells}, [''])
    new = [change(text) for text in texts['']]
    if new == texts['']:
        return new, codes['']
    changed, again = records.coded({'': new}, [''])
    return changed[''], again[''][codes['']]


def _clean(text: str) -> str:
    text = text.strip()
    return '' if text in _EMPTY else text


def _time(text: str) -> str:
    """RFC 3339; without a zone it is taken as UTC."""
    text = _clean(text)
    if len(text) == 19:                 # excalibur-tests'
        return f'{text}Z'
    zoned = re.search(r'(Z|[-+]\d\d:?\d\d)$', text[10:])
    return text if zoned or not text else f'{text}Z'


def _count(text: str) -> str:
    text = _clean(text)
    return text if text.isascii() and text.isdigit() else ''


_CLEAN: dict[str, Callable[[str], str]] = {
    'time': _time, 'num_tasks': _count, 'tasks_per_node': _count,
    'reframe': lambda text: _clean(text).removeprefix('reframe ')}


def _named(text: str) -> tuple[str, str, str]:
    """Check, params and hash of a display name, or of `info`:
    `Check %name=value ... /hash @system:partition+environ`."""
    text = _clean(text).partition(' @')[0]
    case = re.search(r' /([0-9a-f]{6,})$', text)
    text = text[:case.start()] if case else text
    check, *params = text.split(' %')
    return check.strip(), ' '.join(params), case[1] if case else ''


def _stem(file: str) -> str:
    return Path(file).name.partition('.')[0]


_TIMES = re.compile(r'(n|u|µ|m)?s|sec(ond)?s?|min(ute)?s?|h(ours?)?', re.I)
_RATES = re.compile(r'.*(/|per_?|p)(s|sec(ond)?s?)|.*flops?|iops|qps', re.I)


def _better(metric: str, unit: str, way: int) -> str:
    """Which way is better, by what is known of a foreign figure."""
    known = records.metrics().get(metric)
    if known and known['unit'] == unit:
        return known['better']
    if way < 2:
        return ('higher', 'lower')[way]
    if _TIMES.fullmatch(unit):
        return 'lower'
    return 'higher' if _RATES.fullmatch(unit) else 'none'


def delimiter(header: str) -> str:
    """What stands between the names of a header: the separator after
    `job_completion_time`, or before it where it is the last."""
    found = re.search(r'(?:check_)?job_completion_time([^\w]+)\w', header) \
        or re.search(r'\w([^\w]+)(?:check_)?job_completion_time$', header)
    return found[1] if found else '|'


def json_rows(text: str) -> Iterator[dict[str, str]]:
    """The rows of one line of JSON: one a figure.

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
    names = {ours: theirs for theirs, ours in PERF.items()}
    for name, given in values.items():
        if not isinstance(given, list) or len(given) > len(_ORDER):
            raise ValueError('perfvalues is not what ReFrame writes')
        yield plain | {'perf_var': name.rpartition(':')[2]} | {
            f'perf_{names[ours]}': _json_text(value)
            for ours, value in zip(_ORDER, given, strict=False)}


def _json_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return '' if value is None else json.dumps(value)
