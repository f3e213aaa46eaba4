"""Records as columns of numbers: what perflogs are turned into.

The records of a case begin alike: all that is known of its run stands before
the figure. So a record is kept as the number of its *head* (system, check,
job, ...; `HEAD`), the number of its *kind* (metric, point, unit, ...;
`KIND`), five numbers (`FIGURE`) and its line. Texts are kept, checked and
given their types once a head or a kind, so that a million records cost little
more than to split their lines.
"""
from __future__ import annotations

import csv
import dataclasses
import datetime
import difflib
import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from config import families

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
RESULTS = ('pass', 'fail', 'xfail', 'xpass', 'recorded', 'unfit')
REPAIR = 'remove the line, or restore the file'
#: Where metrics are named.
METRICS = 'config/metrics.yaml, checks/*/family.yaml'

_NUMBERS = frozenset('0123456789.eE+-')
#: Called with line and reason of a fault of the file at hand.
Report = Callable[[int, str], None]


@functools.cache
def metrics() -> dict[str, dict[str, str]]:
    """Every metric: name -> {unit, better, point, means}."""
    return families.metrics()


class Numbers(dict):
    """Distinct key -> its number, in order of appearance."""

    def __missing__(self, key) -> int:
        self[key] = number = len(self)
        return number


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Records of one file, as columns."""
    #: Texts of the columns HEAD, one tuple a head; KIND, one a kind.
    heads: list[tuple[str, ...]]
    kinds: list[tuple[str, ...]]
    #: Of each record: int32 head and kind, float64 FIGURE (a row each), and
    #: its line, int64.
    head: np.ndarray
    kind: np.ndarray
    figure: np.ndarray
    line: np.ndarray

    def __len__(self) -> int:
        return len(self.head)

    def where(self, good: np.ndarray) -> Part:
        """The records for which `good` is true, and what they need."""
        if good.all():
            return self
        heads, head = _used(self.heads, self.head[good])
        kinds, kind = _used(self.kinds, self.kind[good])
        return Part(heads, kinds, head, kind, self.figure[:, good],
                    self.line[good])


def _used(texts: list[tuple[str, ...]], codes: np.ndarray
          ) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """Those that codes name, and the codes of these."""
    used = np.unique(codes)
    return ([texts[n] for n in used],
            np.searchsorted(used, codes).astype(np.int32))


def quick(text: str, columns: Sequence[str], schema: str, file: str,
          first: int) -> Part | None:
    """Whole lines of a file of ours, checked; None: they are not all well,
    and are to be read cell by cell.

    :param columns: of the schema, which has its number in the first column
    :param first: number of the first line
    """
    if '\0' in text or '\r' in text or not text.endswith('\n'):
        return None
    rows = [line.rsplit(',', len(TAIL)) for line in text[:-1].split('\n')]
    if set(map(len, rows)) != {1 + len(TAIL)}:
        return None
    begin, *tail = zip(*rows, strict=True)
    cells = dict(zip(TAIL, tail, strict=True))
    numbers = Numbers()
    head = np.fromiter(map(numbers.__getitem__, begin), np.int32, len(rows))
    heads = []
    for start in numbers:
        try:
            [row] = csv.reader([start], strict=True)
        except (ValueError, csv.Error):
            return None
        if len(row) != len(columns) - len(TAIL) or row[0] != schema:
            return None
        known = dict(zip(columns, row, strict=False),
                     file=file, format=OURS)
        heads.append(tuple(known.get(name, '') for name in HEAD))
    kinds = Numbers()
    kind = np.fromiter(
        map(kinds.__getitem__, zip(*(cells[name] for name in KIND),
                                   strict=True)), np.int32, len(rows))
    figure = np.empty((len(FIGURE), len(rows)))
    for at, name in enumerate(FIGURE):
        column = _quick_numbers(cells[name], name == 'value')
        if column is None:
            return None
        figure[at] = column
    part = Part(heads, list(kinds), head, kind, figure,
                np.arange(first, first + len(rows)))
    return part if not any('"' in text for key in kinds for text in key) \
        and not any(any(f) for f in _faults(part, False)) else None


def _quick_numbers(texts: Sequence[str], needed: bool) -> np.ndarray | None:
    """Finite numbers of texts; NaN where one may be empty. None: not all."""
    known: dict[str, float] = {} if needed else {'': math.nan}
    try:
        if needed:
            if not set(''.join(texts)) <= _NUMBERS:
                return None
            found = np.fromiter(map(float, texts), float, len(texts))
        else:
            for text in set(texts) - set(known):
                known[text] = finite(text)
            found = np.fromiter(map(known.__getitem__, texts), float,
                                len(texts))
    except ValueError:
        return None
    return None if np.isinf(found).any() else found


def from_rows(columns: Sequence[str], rows: Iterable[Sequence[str]],
              lines: Iterable[int], file: str, form: str, report: Report
              ) -> Part:
    """Rows of cells; each fault is reported, and costs its records.

    :param columns: names of the cells of a row
    :param lines: where each row stands in the file
    :param form: value of the column `format`
    """
    rows, given = list(rows), {name: at for at, name in enumerate(columns)}
    fixed = {'file': file, 'format': form}
    heads, kinds = Numbers(), Numbers()

    def numbered(numbers: Numbers, names: Sequence[str]) -> np.ndarray:
        where = [(given.get(name, -1), fixed.get(name, '')) for name in names]
        return np.fromiter((numbers[tuple(
            row[at] if at >= 0 else text for at, text in where)]
            for row in rows), np.int32, len(rows))

    figure = np.full((len(FIGURE), len(rows)), math.nan)
    head, kind = numbered(heads, HEAD), numbered(kinds, KIND)
    part = Part(list(heads), list(kinds), head, kind, figure,
                np.fromiter(lines, np.int64, len(rows)))
    good = np.ones(len(rows), bool)

    def refuse(reasons: list[str | None] | np.ndarray, codes: np.ndarray
               ) -> None:
        """Records whose code has a reason: one report a reason."""
        found: dict[str, list[int]] = {}
        bad = np.array([reason is not None for reason in reasons], bool)
        for at in np.flatnonzero(bad[codes] & good):
            found.setdefault(str(reasons[codes[at]]), []).append(int(at))
        for reason, ats in found.items():
            more = f' (and {len(ats) - 1} more)' if len(ats) > 1 else ''
            report(int(part.line[ats[0]]), f'{reason}; {REPAIR}{more}')
            good[ats] = False

    each = np.arange(len(rows))
    for at, name in enumerate(FIGURE):
        reasons: list[str | None] = [None] * len(rows)
        for n, row in enumerate(rows if name in given else ()):
            try:
                text = row[given[name]]
                if text or name == 'value':
                    figure[at, n] = finite(text)
            except ValueError as err:
                reasons[n] = f'{name} {text[:40]!r} {err}'
        refuse(reasons, each)
    ours = form == OURS
    for faults, codes in zip(_faults(part, not ours), (
            part.head, part.kind), strict=True):
        refuse(faults, codes)
    return part.where(good)


def _faults(part: Part, foreign: bool
            ) -> tuple[list[str | None], list[str | None]]:
    """What is wrong with each head and each kind; None: nothing."""
    parsers = _FOREIGN if foreign else _PARSERS

    def first(names: Sequence[str], texts: tuple[str, ...]) -> str | None:
        for name, text in zip(names, texts, strict=True):
            if name in parsers and (reason := _fault(
                    parsers[name], text)):
                return f'{name} {text[:40]!r} {reason}'
        return None

    kinds = [first(KIND, kind) for kind in part.kinds]
    if not foreign:
        kinds = [reason or _against_metric(*kind[1:4])
                 for reason, kind in zip(kinds, part.kinds, strict=True)]
    return [first(HEAD, head) for head in part.heads], kinds


@functools.lru_cache(100_000)
def _fault(parse: Callable[[str], object], text: str) -> str:
    """Why a text cannot be parsed; '' if it can."""
    try:
        parse(text)
    except ValueError as err:
        return str(err)
    return ''


def _against_metric(metric: str, point: str, unit: str) -> str | None:
    """Why a kind disagrees with its metric; None if it agrees."""
    row = metrics()[metric]
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


def finite(text: str) -> float:
    """A finite number in ASCII digits."""
    if not re.fullmatch(r'[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?', text,
                        re.ASCII) or math.isinf(float(text)):
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
_FOREIGN = {name: _PARSERS[name] for name in (
    'time', 'num_nodes', 'num_tasks', 'tasks_per_node', 'better', 'result')
    } | dict.fromkeys(('metric', 'check', 'system', 'partition'), _not_empty)
