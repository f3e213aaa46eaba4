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

from . import cells, records
from .records import FIGURE, HEAD, KIND, Part

#: Values of the column `format`.
REFRAME, EXCALIBUR, JSON_LINES = 'reframe', 'excalibur-tests', 'reframe-json'
#: What a figure's columns end in, and ReFrame's order in `perfvalues`.
PERF = {'value': 'value', 'ref': 'reference', 'lower_thres': 'lower',
        'upper_thres': 'upper', 'unit': 'unit', 'result': 'result'}
#: The other way round.
_THEIRS = {ours: theirs for theirs, ours in PERF.items()}
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
_ASKED = {*_NAME, *(name for names in _SOURCES.values() for name in names),
          'result', 'perf_var'}
_RESULTS = {'pass', 'fail', 'xfail', 'xpass'}
_EMPTY = frozenset(('None', 'null', 'NULL'))


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
        #: Places of their values, and of all columns that are looked at.
        self.values = [self.columns[f'{name}_value'] for name in self.figures]
        asked = _ASKED | {f'{figure}_{end}' for figure in self.figures
                          for end in PERF}
        self.asked = [at for name, at in self.columns.items()
                      if name in asked]
        self.format = (EXCALIBUR if {'spack_spec', 'spack_spec_dict'}
                       & set(names) else REFRAME)

    def part(self, columns: cells.Table | cells.Rows, lines: Sequence[int],
             file: str, report: records.Report) -> Part:
        """Records of lines, which have as many cells as the header."""
        if not columns.size:
            return records.joined([])
        where = np.asarray(lines, np.int64)
        head = self._heads(columns, file)
        found = [self._figure(name, columns, head, where, report)
                 for name in self.figures]
        part = found[0] if len(found) == 1 else records.joined(found)
        return records.checked(part, records.FOREIGN, report)

    def _cells(self, columns: cells.Table | cells.Rows, name: str
               ) -> cells.Coded | None:
        at = self.columns.get(name)
        return None if at is None else columns.column(at)

    def _heads(self, columns: cells.Table | cells.Rows, file: str
               ) -> tuple[dict[str, Sequence[str]], dict[str, np.ndarray]]:
        """Texts and codes of HEAD, a head for each line."""
        none = np.zeros(columns.size, np.int32)
        texts: dict[str, Sequence[str]] = {name: [''] for name in HEAD}
        codes = dict.fromkeys(HEAD, none)
        texts['file'], texts['format'] = [file], [self.format]
        parents = Path(file).absolute().parent
        texts['partition'] = [parents.name]
        texts['system'] = [parents.parent.name]
        for name, sources in _SOURCES.items():
            for source in sources:
                if given := self._cells(columns, source):
                    texts[name], codes[name] = _mapped(
                        given, _CLEAN.get(name, _cleaned))
                    break
        name = next((n for n in _NAME if n in self.columns), '')
        names, named = self._cells(columns, name) or ([_stem(file)], none)
        for column, parts in zip(('check', 'params', 'case'), zip(
                *map(_named, names), strict=True), strict=True):
            if column != 'case' or texts['case'] == ['']:
                texts[column], code = cells.coded(parts)
                codes[column] = code[named]
        if texts['run'] == ['']:
            texts['run'], day = _days(texts['time'])
            codes['run'] = day[codes['time']]
        # The program's name and version are one spec.
        specs = texts['program']
        if specs != ['']:
            spec = codes['program']
            for column, at in (('program', 0), ('version', 2)):
                texts[column], code = cells.coded(
                    [text.partition('@')[at] for text in specs])
                codes[column] = code[spec]
        return texts, codes

    def _figure(self, name: str, columns: cells.Table | cells.Rows,
                head: tuple[dict[str, Sequence[str]], dict[str, np.ndarray]],
                lines: np.ndarray, report: records.Report) -> Part:
        """The records of one figure."""
        size = len(lines)
        figure = np.full((len(FIGURE), size), np.nan)
        good = np.ones(size, bool)
        for at, ours in enumerate(FIGURE):
            column = self.columns.get(f'{name}_{_THEIRS[ours]}')
            if column is None:
                continue
            # Figures differ from line to line, what bounds them does not.
            plain = columns.numbers(column) if ours == 'value' else None
            if plain is not None:
                figure[at] = plain
                continue
            texts, codes = _mapped(columns.column(column), _cleaned)
            known, refused = _numbers(texts)
            for n, reason in refused.items():
                bad = np.flatnonzero((codes == n) & good)
                good[bad] = False
                if len(bad):
                    report(int(lines[bad[0]]), f'{name}_{ours} {reason}; '
                           f'{records.REPAIR}')
            figure[at] = known[codes]
        none = [''], np.zeros(size, np.int32)
        units, unit = _mapped(self._cells(
            columns, f'{name}_{_THEIRS["unit"]}') or none, _cleaned)
        results, result = _mapped(
            self._cells(columns, f'{name}_{_THEIRS["result"]}')
            or self._cells(columns, 'result') or none,
            lambda texts: [text.strip().lower() for text in texts])
        value, reference, lower, upper = figure
        judged = (reference == reference) & (reference != 0) & (
            (lower == lower) | (upper == upper))
        bound = np.abs(reference)
        inside = ~((value < reference + lower * bound)
                   | (value > reference + upper * bound))
        metric = self._cells(columns, 'perf_var') if name == 'perf' \
            else None
        metrics, which = _mapped(metric or ([name], none[1]), _cleaned)
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
                'no_reference' if not is_judged else
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
        part = Part({**head[0], **words}, head[1], kinds, each,
                    kind.astype(np.int32).ravel(), figure, lines)
        return part.where(good)


def _mapped(given: cells.Coded,
            change: Callable[[Sequence[str]], Sequence[str]]) -> cells.Coded:
    """Distinct texts after a change, and a code for each line."""
    texts, codes = given
    new = change(texts)
    # As a rule they stay distinct.
    if new is texts or cells.distinct(new) == len(texts):
        return new, codes
    changed, again = cells.coded(new)
    return changed, again[codes]


def _numbers(texts: Sequence[str]) -> tuple[np.ndarray, dict[int, str]]:
    """Finite numbers, NaN where there is none; which texts are refused, and
    why."""
    found, refused = cells.optional(texts), {}
    if found is None:
        found = np.full(len(texts), np.nan)
        for n, text in enumerate(texts):
            try:
                found[n] = records.finite(text) if text else np.nan
            except ValueError as err:
                refused[n] = f'{text[:40]!r} {err}'
    return found, refused


def _clean(text: str) -> str:
    text = text.strip()
    return '' if text in _EMPTY else text


def _cleaned(texts: Sequence[str]) -> Sequence[str]:
    whole = cells.whole(texts)
    if len(whole.split(None, 1)) < 2 and whole == whole.strip() \
            and not any(word in whole for word in _EMPTY):
        return texts                    # as a rule there is nothing to do
    return [_clean(text) for text in texts]


def _time(text: str) -> str:
    """RFC 3339; without a zone it is taken as UTC."""
    zoned = re.search(r'(Z|[-+]\d\d:?\d\d)$', text[10:])
    return text if zoned or not text else f'{text}Z'


def _times(texts: Sequence[str]) -> Sequence[str]:
    texts = _cleaned(texts)
    if cells.even(texts, 19):           # excalibur-tests'
        if isinstance(texts, cells.Many):
            return cells.Many(texts.series + 'Z')
        found = f'{"Z |".join(texts)}Z'.split(' |')
        if len(found) == len(texts):
            return found
    return [_time(text) for text in texts]


def _days(times: Sequence[str]) -> cells.Coded:
    """The first ten letters of each."""
    whole = cells.even(times, 20)
    if not whole:
        return cells.coded([text[:10] for text in times])
    # As a rule some follow on each other that are of one day.
    days = np.frombuffer(whole.encode(), [('', 'S10')] * 2)['f0']
    begins = np.flatnonzero(np.append(True, days[1:] != days[:-1]))
    found, codes = cells.coded([whole[20 * at:20 * at + 10]
                                for at in begins.tolist()])
    return found, np.repeat(codes, np.diff(begins, append=len(times)))


def _counts(texts: Sequence[str]) -> list[str]:
    return [text if text.isascii() and text.isdigit() else ''
            for text in _cleaned(texts)]


def _releases(texts: Sequence[str]) -> list[str]:
    return [text.removeprefix('reframe ') for text in _cleaned(texts)]


_CLEAN: dict[str, Callable[[Sequence[str]], Sequence[str]]] = {
    'time': _times, 'num_tasks': _counts, 'tasks_per_node': _counts,
    'reframe': _releases}


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
