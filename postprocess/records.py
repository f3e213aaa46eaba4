"""Records as columns of numbers: what perflogs are turned into.

The records of a case begin alike: all that is known of its run stands before
the figure. So a record is kept as the number of its *head* (system, check,
job, ...; `HEAD`), the number of its *kind* (metric, point, unit, ...;
`KIND`), four numbers (`FIGURE`) and its line; a head and a kind are kept as
codes, one a column, into the distinct texts of that column. Texts are kept,
checked and given their types once, so that a million records cost little more
than to split their lines.
"""
from __future__ import annotations

import csv
import dataclasses
import datetime
import difflib
import functools
import itertools
import math
import re
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)

import numpy as np

from . import cells
from .vocabulary import metrics as metrics

#: Columns of all records of a case's run; `file` is where they stand.
HEAD = (
    'schema', 'time', 'run', 'suite', 'commit', 'reframe', 'system',
    'partition', 'environ', 'family', 'check', 'params', 'case', 'job',
    'nodes', 'machine', 'binding', 'num_nodes', 'num_tasks',
    'tasks_per_node', 'source', 'program', 'version', 'stack', 'spec',
    'emulated', 'speed', 'file', 'format')
#: Columns that say what a figure is, and how it was judged.
KIND = ('repeat', 'metric', 'point', 'unit', 'better', 'result', 'guard')
FIGURE = ('value', 'reference', 'lower', 'upper')
#: The last columns of each schema of ours, from `repeat` on.
TAIL = ('repeat', 'metric', 'point', 'value', 'unit', 'better', 'reference',
        'lower', 'upper', 'result', 'guard')

#: Value of the column `format` for perflogs of the suite.
OURS = 'plumbline'
RESULTS = ('pass', 'fail', 'xfail', 'xpass', 'again', 'no_reference',
           'inconclusive')
REPAIR = 'remove the line, or restore the file'
#: Where metrics are named.
METRICS = 'config/metrics.yaml, checks/*/family.yaml'

#: Called with line and reason of a fault of the file at hand.
Report = Callable[[int, str], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Records as columns."""
    #: Column of HEAD or KIND -> its distinct texts.
    texts: Mapping[str, Sequence[str]]
    #: Column of HEAD -> int32, a code into `texts` for each head; of KIND.
    heads: dict[str, np.ndarray]
    kinds: dict[str, np.ndarray]
    #: Of each record: int32 head and kind, float64 FIGURE (a row each), and
    #: its line, int64.
    head: np.ndarray
    kind: np.ndarray
    figure: np.ndarray
    line: np.ndarray

    def where(self, good: np.ndarray) -> Part:
        """The records for which `good` is true, and what they need."""
        if good.all():
            return self
        heads, head = _used(self.heads, self.head[good])
        kinds, kind = _used(self.kinds, self.kind[good])
        texts, codes = {}, {}
        for name, column in (heads | kinds).items():
            used, codes[name] = np.unique(column, return_inverse=True)
            texts[name] = [self.texts[name][n] for n in used]
        return Part(texts, _columns(codes, HEAD), _columns(codes, KIND),
                    head, kind, self.figure[:, good], self.line[good])

    def of_files(self, names: Mapping[str, str]) -> Part:
        """The same records, of files of other names."""
        return dataclasses.replace(self, texts={
            **self.texts, 'file': [names[file]
                                   for file in self.texts['file']]})

    def text(self, name: str) -> list[str]:
        """A column of HEAD or KIND as texts, one a head or kind."""
        texts = self.texts[name]
        codes = self.heads if name in self.heads else self.kinds
        return [texts[code] for code in codes[name].tolist()]


def _used(table: dict[str, np.ndarray], codes: np.ndarray
          ) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Those rows that codes name, and the codes of these."""
    used = np.unique(codes)
    return ({name: column[used] for name, column in table.items()},
            np.searchsorted(used, codes).astype(np.int32))


def _columns(table: dict[str, np.ndarray], names: Sequence[str]
             ) -> dict[str, np.ndarray]:
    return {name: table[name].astype(np.int32, copy=False) for name in names}


def coded(columns: dict[str, Sequence[str]], names: Sequence[str]
           ) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """Columns of texts as distinct texts and codes."""
    texts, codes = {}, {}
    for name in names:
        texts[name], codes[name] = cells.coded(columns[name])
    return texts, codes


def joined(parts: Sequence[Part]) -> Part:
    """The records of all parts, in their order; each kind once."""
    if len(parts) == 1:
        return parts[0]
    texts, codes = {}, {}
    for name in (*HEAD, *KIND):
        texts[name], known = cells.merged([part.texts[name]
                                           for part in parts])
        given = [(part.heads if name in part.heads else part.kinds)[name]
                 for part in parts]
        codes[name] = np.zeros(sum(map(len, given)), np.int32) \
            if len(texts[name]) == 1 else np.concatenate([
                np.empty(0, np.int32), *(of[column] for of, column in zip(
                    known, given, strict=True))])
    kinds, kind = np.unique(np.stack([codes[name] for name in KIND]), axis=1,
                            return_inverse=True)

    def shifted(column: str, table: str) -> np.ndarray:
        starts = itertools.accumulate(
            (len(next(iter(getattr(part, table).values())))
             for part in parts), initial=0)
        return np.concatenate([np.empty(0, np.int32), *(
            getattr(part, column) + np.int32(start)
            for part, start in zip(parts, starts, strict=False))])

    return Part(
        texts, _columns(codes, HEAD),
        dict(zip(KIND, kinds.astype(np.int32), strict=True)),
        shifted('head', 'heads'),
        kind.astype(np.int32).ravel()[shifted('kind', 'kinds')],
        np.concatenate([np.empty((len(FIGURE), 0)),
                        *(part.figure for part in parts)], axis=1),
        np.concatenate([np.empty(0, np.int64),
                        *(part.line for part in parts)]))


def quick(data: bytes, columns: Sequence[str], schema: str, file: str,
          first: int) -> Part | None:
    """Whole lines of a file of ours, checked; None: they are not all well,
    and are to be read cell by cell.

    :param columns: of the schema, which has its number in the first column
    :param first: number of the first line
    :raises UnicodeDecodeError: it is not text
    """
    if b'\0' in data or b'\r' in data or not data.endswith(b'\n'):
        return None
    lines = cells.Lines(data, b',')
    if (np.diff(lines.last, prepend=-1) < len(columns)).any():
        return None
    # Of each line, where the head and each cell of the tail end. Only a head
    # may have quotes, and commas inside of them.
    ends = lines.ends[lines.last[:, None] + np.arange(-len(TAIL), 1)]

    def between(begin: str, end: str) -> tuple[np.ndarray, np.ndarray]:
        return (ends[:, TAIL.index(begin)] + 1, ends[:, TAIL.index(end) + 1])

    value = lines.floats(*between('value', 'value'))
    if value is None:
        return None
    starts, head = lines.coded(lines.begins(), ends[:, 0])
    words = [lines.coded(*between(*names)) for names in (
        ('repeat', 'point'), ('unit', 'better'), ('result', 'guard'))]
    bounds, bound = lines.coded(*between('reference', 'upper'))
    if any('"' in text for texts, _ in words for text in texts):
        return None
    sizes = tuple(len(texts) for texts, _ in words)
    keys, kind = np.unique(np.ravel_multi_index(
        tuple(codes for _, codes in words), sizes), return_inverse=True)
    kinds = [','.join(texts[n] for (texts, _), n in zip(
        words, codes, strict=True)).split(',') for codes in zip(*(
            part.tolist() for part in np.unravel_index(keys, sizes)),
            strict=True)]
    limits = cells.optional([cell for text in bounds
                             for cell in text.split(',')])
    try:
        # A quote that is left open goes on in the next: fewer rows.
        heads = list(csv.reader(starts, strict=True))
    except csv.Error:
        return None
    if limits is None or len(heads) != len(starts) or any(
            len(row) != len(columns) - len(TAIL) or row[0] != schema
            for row in heads):
        return None
    given: dict[str, Sequence[str]] = dict(zip(
        columns, zip(*heads, strict=True), strict=False))
    given |= {'file': (file,) * len(heads), 'format': (OURS,) * len(heads)}
    part = _part(given, dict(zip(KIND, zip(*kinds, strict=True),
                                 strict=True)),
                 head, kind.astype(np.int32).ravel(),
                 np.concatenate([value[None], limits.reshape(
                     -1, len(FIGURE) - 1).T[:, bound]]),
                 np.arange(first, first + len(lines)))
    return None if next(_faults(part, _PARSERS), None) else part


def _part(heads: dict[str, Sequence[str]], kinds: dict[str, Sequence[str]],
          head: np.ndarray, kind: np.ndarray, figure: np.ndarray,
          line: np.ndarray) -> Part:
    """A part from texts; columns that are not given are empty."""
    size = len(next(iter(heads.values())))
    texts, codes = coded(dict.fromkeys(HEAD, ('',) * size) | heads, HEAD)
    more, which = coded(kinds, KIND)
    return Part(texts | more, codes, which, head, kind, figure, line)


def from_rows(columns: Sequence[str], rows: Iterable[Sequence[str]],
              lines: Iterable[int], file: str, form: str, report: Report
              ) -> Part:
    """Rows of cells; each fault is reported, and costs its records.

    :param columns: names of the cells of a row
    :param lines: where each row stands in the file
    :param form: value of the column `format`
    """
    rows, given = list(rows), {name: at for at, name in enumerate(columns)}
    if not rows:
        return joined([])

    def cells(names: Sequence[str]) -> dict[str, Sequence[str]]:
        return {name: [row[given[name]] for row in rows] if name in given
                else ('',) * len(rows) for name in names}

    each = np.arange(len(rows), dtype=np.int32)
    figure = np.full((len(FIGURE), len(rows)), math.nan)
    part = _part(cells(HEAD) | {'file': (file,) * len(rows),
                                'format': (form,) * len(rows)},
                 cells(KIND), each, each, figure,
                 np.fromiter(lines, np.int64, len(rows)))
    refused: dict[str, list[int]] = {}
    for at, name in enumerate(FIGURE):
        for n, text in enumerate(cells([name])[name]):
            try:
                if text or name == 'value':
                    figure[at, n] = finite(text)
            except ValueError as err:
                refused.setdefault(f'{name} {text[:40]!r} {err}',
                                   []).append(n)
    good = checked(part, _PARSERS if form == OURS else FOREIGN, report,
                   refused)
    return joined([good, joined([])])   # each kind once


def checked(part: Part, parsers: dict[str, Callable[[str], object]],
            report: Report, refused: dict[str, list[int]] | None = None
            ) -> Part:
    """The records of which no text is refused; each reason is reported.

    :param refused: reason -> records that are refused already
    """
    good, kept = np.ones(len(part.line), bool), {}
    for reason, ats in (refused or {}).items():
        if left := [at for at in ats if good[at]]:
            kept[reason] = left
        good[ats] = False
    for reason, bad in _faults(part, parsers):
        if (bad & good).any():
            kept.setdefault(reason, []).extend(
                np.flatnonzero(bad & good).tolist())
        good &= ~bad
    for reason, ats in kept.items():
        more = f' (and {len(ats) - 1} more)' if len(ats) > 1 else ''
        report(int(part.line[min(ats)]), f'{reason}; {REPAIR}{more}')
    return part.where(good)


def _faults(part: Part, parsers: dict[str, Callable[[str], object]]
            ) -> Iterator[tuple[str, np.ndarray]]:
    """Each reason to refuse records, and which of them (bool)."""
    for name, parse in parsers.items():
        if name == 'time' and _plain_times(part.texts[name]) is not None:
            continue
        table, which = ((part.heads, part.head) if name in part.heads
                        else (part.kinds, part.kind))
        for code, text in enumerate(part.texts[name]):
            if reason := _fault(parse, text):
                yield (f'{name} {text[:40]!r} {reason}',
                       (table[name] == code)[which])
    if 'point' not in parsers:
        return                          # of metrics that the suite lacks
    for number, kind in enumerate(zip(*(part.text(name) for name in (
            'metric', 'point', 'unit')), strict=True)):
        if wrong := _against_metric(*kind):
            yield wrong, part.kind == number


@functools.lru_cache(10_000)
def _fault(parse: Callable[[str], object], text: str) -> str:
    """Why a text cannot be parsed; '' if it can."""
    try:
        parse(text)
    except ValueError as err:
        return str(err)
    return ''


def _against_metric(metric: str, point: str, unit: str) -> str | None:
    """Why a kind disagrees with its metric; None if it agrees, and where
    there is no such metric."""
    row = metrics().get(metric)
    if row is None:
        return None
    if unit != row['unit']:
        return (f'unit {unit[:40]!r} of {metric} is not {row["unit"]!r} '
                f'({METRICS})')
    if point and not row['point']:
        return (f'{metric} has no point, but {point!r} is given '
                f'({METRICS})')
    return None


def time_of(text: str) -> datetime.datetime:
    """A time of RFC 3339, as one of UTC."""
    try:
        time = datetime.datetime.fromisoformat(text.replace('Z', '+00:00'))
    except ValueError:
        time = None
    if time is None or not time.tzinfo:
        raise ValueError('is not a time (RFC 3339)')
    try:
        return time.astimezone(datetime.timezone.utc)
    except OverflowError:
        raise ValueError('is not a time (RFC 3339)') from None


#: Times in the suite's own form.
_PLAIN = np.frombuffer(b'0000-00-00T00:00:00Z', np.uint8)


def _plain_times(texts: Sequence[str]) -> np.ndarray | None:
    """Times in the suite's own form, of UTC; None: not all are."""
    whole = cells.even(texts, len(_PLAIN))
    if not whole:
        return None
    found = np.frombuffer(whole.encode(), np.uint8).reshape(-1, len(_PLAIN))
    most = np.where(ord('0') == _PLAIN, ord('9'), _PLAIN)
    columns = np.ascontiguousarray(found.T)
    if (columns.min(axis=1) < _PLAIN).any() or (
            columns.max(axis=1) > most).any():
        return None
    try:
        return np.ascontiguousarray(found[:, :-1]).view(
            f'S{len(_PLAIN) - 1}').ravel().astype('datetime64[us]')
    except ValueError:
        return None


def times(texts: Sequence[str]) -> np.ndarray:
    """Times of UTC (datetime64[us]) of texts that were checked."""
    plain = _plain_times(texts)
    return np.array([time_of(text).replace(tzinfo=None) for text in texts],
                    'datetime64[us]') if plain is None else plain


_FINITE = re.compile(r'[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?', re.ASCII)


def finite(text: str) -> float:
    """A finite number in ASCII digits."""
    if not _FINITE.fullmatch(text) or math.isinf(float(text)):
        raise ValueError('is not a finite number')
    return float(text)


def count(text: str) -> int | None:
    """A whole number; None for ''."""
    if text and not re.fullmatch(r'\d{1,18}', text, re.ASCII):
        raise ValueError('is not a whole number')
    return int(text) if text else None


def size(text: str) -> int | None:
    """Bytes of a point: '8 B'; None for ''."""
    if text and not re.fullmatch(r'\d{1,18} B', text, re.ASCII):
        raise ValueError("is not a size like '8 B'")
    return int(text[:-2]) if text else None


def _one_of(*words: str) -> Callable[[str], None]:
    def parse(text: str) -> None:
        if text not in words:
            raise ValueError('is not one of ' + ', '.join(words))
    return parse


def _known_metric(text: str) -> None:
    if text not in metrics():
        near = difflib.get_close_matches(text, metrics(), 1)
        hint = f", nearest: '{near[0]}'" if near else ''
        raise ValueError(f'is no metric ({METRICS}){hint}')


def _not_empty(text: str) -> None:
    if not text:
        raise ValueError('must not be empty')


#: Column -> what reads one text of it (ValueError: why not).
_PARSERS: dict[str, Callable[[str], object]] = {
    'time': time_of,
    **dict.fromkeys(('schema', 'repeat', 'num_nodes', 'num_tasks',
                     'tasks_per_node'), count),
    'point': size,
    'emulated': _one_of('', '0', '1'),
    'better': _one_of('higher', 'lower', 'none'),
    'result': _one_of(*RESULTS),
    'metric': _known_metric,
    **dict.fromkeys(('run', 'system', 'partition', 'environ', 'family',
                     'check'), _not_empty),
}
#: The same, of a perflog that the suite did not write.
FOREIGN = {name: _PARSERS[name] for name in (
    'time', 'num_nodes', 'num_tasks', 'tasks_per_node', 'better', 'result')
    } | dict.fromkeys(('metric', 'check', 'system', 'partition'), _not_empty)
