"""Reference files of a site: names, format and reading.

A file `<family>.yaml` has the format of ReFrame's external references: check class,
`$index`, one level of keys for each name in it, then
`metric@size: [value, lower, upper, unit]`, or `[$xfail, reason, [value, ...]]` for a
known fault. A key is a text, or an anchored regular expression. ReFrame only warns of a
wrong unit or a misspelt metric. This module refuses such a file, and names the line.

Two further keys at the top are ignored by ReFrame. `complete: true` requires a
reference for every test case of the family. `$from` has the sources of entries:
check class -> keys of the entry, joined by ` | ` -> {source, date, reason}. A source
that begins with `measured` was written by `./plumb references calibrate`; every other
one is a publication. An entry with a reason was set by a person, so that calibrate
keeps it.
"""
from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import strict
from .commandline import SetupError
from .records import metrics
from .sessions.judged import (
    derived_replacement_metric,
    judged_metric_keys,
    max_tolerance,
)

#: Beginning of the note that lists metrics whose reference has no tolerance.
NO_TOLERANCE = 'no tolerance: '

#: Mark of a known fault.
XFAIL = '$xfail'

#: Top-level keys that are no check classes.
COMPLETE, FROM = 'complete', '$from'

#: Keys of a source.
SOURCE_KEYS = ('source', 'date', 'reason')

#: First word of the source of an entry that calibrate wrote.
MEASURED = 'measured'

#: Between the keys of an entry in `$from`.
SEPARATOR = ' | '

#: Widest tolerance allowed, as a fraction: a wider one was probably meant in
#: percent.
MAX_TOLERANCE = 10

#: Characters that make a key a pattern, not only a text.
_SPECIAL = frozenset('.*+?()[]{}|^$\\')


class ReferenceError_(SetupError, ValueError):
    """A reference file cannot be used; names the file, and the line or key."""

    guard = 'reference'


class Entry(NamedTuple):
    """An entry of a file: the references of the test cases that have its keys."""
    check: str
    keys: tuple
    #: metric -> [value, lower, upper, unit], or ['$xfail', reason, that list].
    values: Mapping[str, Any]
    #: Its part of `$from`: source, date, reason.
    source: Mapping[str, Any] = {}
    #: Line of its last key.
    line: int = 1

    @property
    def is_published(self) -> bool:
        """Whether the values were published elsewhere."""
        return 'source' in self.source and not self.is_measured

    @property
    def is_measured(self) -> bool:
        """Whether calibrate wrote the values."""
        return self.source.get('source', '').startswith(MEASURED)

    @property
    def is_set_by_hand(self) -> bool:
        """Whether a person set the values, for a reason."""
        return 'reason' in self.source

    def has_useful_tolerance(self, family: str) -> bool:
        """Whether any value has a tolerance no wider than its max tolerance."""
        return any(
            abs(limit) <= max_tolerance(family, metrics.split_metric_key(metric)[0])
            for metric, entry in self.values.items()
            for limit in strip_xfail_mark(entry)[1:3] if limit is not None)


class File(NamedTuple):
    """The references of a family."""
    path: Path
    #: Whether a test case without a reference fails.
    complete: bool = False
    #: Check class -> its levels, with `$index`.
    checks: Mapping[str, Any] = {}
    #: Check class -> joined keys -> source.
    sources: Mapping[str, Any] = {}

    def matching_entries(self, check: str, values: Sequence[Any], settings: str = ''
                         ) -> Iterator[Entry]:
        """Entries of a check class whose keys match, first those with equal keys; none
        if the test case has settings and `$index` has no level for them.

        ReFrame takes the first key that matches at each level, and has no second
        choice. Here an entry for all environments remains one where an environment
        has entries of other test cases.

        :param values: value of each level of `$index`; None: any
        :param settings: changed settings of the test case
        """
        if settings and 'settings' not in self.checks.get(check, {}).get('$index', ()):
            return
        for keys, values_of_entry, line in _matching_keys(
                self.checks.get(check) or strict.Mapping(), values):
            yield self._entry(check, keys, values_of_entry, line)

    def all_entries(self) -> Iterator[Entry]:
        """All entries of the file."""
        for check, table in self.checks.items():
            for keys, values, line in _matching_keys(
                    table, [None] * len(table.get('$index', ()))):
                yield self._entry(check, keys, values, line)

    def _entry(self, check: str, keys: tuple, values: Mapping[str, Any], line: int
               ) -> Entry:
        return Entry(check, keys, values,
                     self.sources.get(check, {}).get(source_key(keys), {}), line)


def source_key(keys: Iterable[Any]) -> str:
    """The key of an entry in `$from`, without empty keys at its end."""
    return re.sub(r'[ |]+$', '', SEPARATOR.join(map(str, keys)))


def _matching_keys(level: strict.Mapping, values: Sequence[Any], line: int = 1
                   ) -> Iterator[tuple[tuple, Mapping[str, Any], int]]:
    """Keys, values and line of the entries below a level."""
    if not values:
        if level:
            yield (), level, line
        return
    value, *further = values
    exact = [value] if value is not None and value in level else []
    for key in (*exact, *(key for key in level if key not in exact
                          and _matches(key, value))):
        for keys, entry, at in _matching_keys(level[key], further, level.lines[key]):
            yield (key, *keys), entry, at


def _matches(key: Any, value: Any) -> bool:
    """Whether a key matches as a regular expression; None: any value."""
    if key == '$index':
        return False
    return value is None or (
        isinstance(key, str) and isinstance(value, str) and not
        _SPECIAL.isdisjoint(key) and re.fullmatch(key, value) is not None)


def reference_files(folder: Path) -> list[Path]:
    """The reference files of a site, one per family."""
    return sorted(folder.glob('*.yaml'))


def read(path: Path) -> File:
    """The references of the family after which a file is named; empty if the
    file does not exist.

    :raises ReferenceError_: the file cannot be read, or has faults; names the
        line of the first fault, and the number of others
    """
    try:
        data = strict.load_yaml(path)
    except FileNotFoundError:
        return File(path)
    except strict.Fault as err:
        raise ReferenceError_(str(err)) from None
    raise_first_fault(path, [*find_faults(data)])
    return File(path, data.get(COMPLETE, False), {
        name: below or {} for name, below in data.items()
        if name not in (COMPLETE, FROM)}, data.get(FROM) or {})


def raise_first_fault(path: Path, faults: list[tuple[int, str]]) -> None:
    """Refuse a file with faults.

    :raises ReferenceError_: names the first fault
    """
    if faults:
        line, reason = faults[0]
        more = f' (and {len(faults) - 1} more faults)' if faults[1:] else ''
        raise ReferenceError_(f'{path}:{line}: {reason}{more}')


def find_faults(data: Any) -> Iterator[tuple[int, str]]:
    """All faults of a file: line and reason."""
    if not isinstance(data, strict.Mapping):
        yield 1, ('expected check classes at the top, each with $index and '
                  'its references')
        return
    keys_by_check: dict[str, set[str]] = {}
    for name, below in data.items():
        line = data.lines.get(name, 1)
        if name == COMPLETE:
            if not isinstance(below, bool):
                yield line, f'complete: {below!r} must be true or false'
        elif name != FROM:
            keys_by_check[name] = set()
            yield from _check_faults(name, below, line, keys_by_check[name])
    yield from _source_faults(data.get(FROM), data.lines.get(FROM, 1),
                              keys_by_check)


def _check_faults(name: str, below: Any, line: int, entry_keys: set[str]
                  ) -> Iterator[tuple[int, str]]:
    """Faults of a check class.

    :param entry_keys: receives the joined keys of its entries
    """
    if below is not None and not isinstance(below, strict.Mapping):
        yield line, (f'{name}: expected check classes at the top, each '
                     'with $index and its references')
        return
    if not below:
        return
    index = below.get('$index')
    if not isinstance(index, list) or not index or not all(
            isinstance(level, str) for level in index):
        yield line, f'{name}: $index is missing; it lists the names of the levels'
        return
    levels: list[tuple[tuple, strict.Mapping, int]] = [((), below, line)]
    for depth in range(len(index)):
        next_levels = []
        for keys, level, _ in levels:
            for key, value in level.items():
                at = level.lines.get(key, line)
                if fault := _pattern_fault(key):
                    yield at, f'{name}: {key}: {fault}'
                if isinstance(value, strict.Mapping):
                    next_levels.append(((*keys, key), value, at))
                elif depth or key != '$index':
                    where = ': '.join(map(str, (name, *keys, key)))
                    yield at, (f'{where}: expected a level of $index below it, got '
                               f'{value!r}')
        levels = next_levels
    for keys, entry, _ in levels:
        entry_keys.add(source_key(keys))
        for metric, value in entry.items():
            if fault := fault_of_reference(metric, value):
                where = ': '.join(map(str, (name, *keys, metric)))
                yield entry.lines[metric], f'{where}: {fault}'


def _pattern_fault(key: Any) -> str:
    """Why a key is no regular expression; '': it is one, or a text."""
    if isinstance(key, str) and key != '$index' and not _SPECIAL.isdisjoint(key):
        try:
            re.compile(key)
        except re.error as err:
            return f'not a regular expression: {err}'
    return ''


def _source_faults(sources: Any, line: int, keys_by_check: Mapping[str, set[str]]
                   ) -> Iterator[tuple[int, str]]:
    """Faults of `$from`.

    :param keys_by_check: check class -> joined keys of its entries
    """
    if sources is not None and not isinstance(sources, strict.Mapping):
        yield line, f'$from: expected check classes, got {sources!r}'
        return
    sources = sources or strict.Mapping()
    for check, below in sources.items():
        at = sources.lines[check]
        if not isinstance(below, strict.Mapping):
            yield at, f'$from: {check}: expected keys of entries, got {below!r}'
            continue
        for key, source in below.items():
            at, where = below.lines[key], f'$from: {check}: {key}'
            if key not in keys_by_check.get(check, ()):
                yield at, (f'{where}: the file has no entry with these keys '
                           f'(joined by {SEPARATOR!r})')
            elif fault := _fault_of_source(source):
                yield at, f'{where}: {fault}'


def _fault_of_source(source: Any) -> str:
    """The fault of the source of an entry; empty: none."""
    if not isinstance(source, strict.Mapping) or not source:
        return f'expected {", ".join(SOURCE_KEYS)}, got {source!r}'
    for name, value in source.items():
        if name not in SOURCE_KEYS:
            near = difflib.get_close_matches(str(name), SOURCE_KEYS, 1)
            return (f'unknown key {name!r}: '
                    + (f'did you mean {near[0]}?' if near
                       else f'use {", ".join(SOURCE_KEYS)}'))
        if name != 'date' and not (isinstance(value, str) and value):
            return f'{name}: expected text, got {value!r}'
        if name == 'date' and not isinstance(value, str | datetime.date):
            return f'date: {value!r} is not a date; write 2026-11 or 2026-11-28'
    if ('source' in source) != ('date' in source):
        return 'source and date belong together; add the other one'
    return ''


def _is_finite(number: Any) -> bool:
    return (isinstance(number, int | float) and not isinstance(number, bool)
            and math.isfinite(number))


def fault_of_reference(metric: Any, entry: Any) -> str:
    """The fault of a reference; empty: none.

    :arg entry: [value, lower, upper, unit], or ['$xfail', reason, entry]
    """
    if str(metric).startswith('$'):
        return 'expected a metric; sources stand in $from at the top of the file'
    try:
        name, _ = metrics.split_metric_key(str(metric))
        known = metrics.metric(name)
    except (KeyError, ValueError) as err:
        return str(err.args[0])
    entry = strip_xfail_mark(entry)
    if not isinstance(entry, (list, tuple)) or len(entry) != 4:
        return f'expected [value, lower, upper, unit], got {entry!r}'
    value, lower, upper, unit = entry
    if unit != known.unit:
        return (f'the unit is {unit!r}, but the metric has the unit '
                f'{known.unit!r}')
    for number in (value, lower, upper):
        if number is not None and not _is_finite(number):
            return f'{number!r} is not a finite number'
    if value is None or (lower or 0) > 0 or (upper or 0) < 0:
        return ('expected a value, lower <= 0 and upper >= 0 (fractions, or '
                'null for no limit)')
    if lower is None and upper is None:
        return ''
    if value <= 0:
        return f'{value!r} has a tolerance, so the value must be above 0'
    if (upper or 0) > MAX_TOLERANCE:
        return (f'upper is {upper!r}; write a fraction of at most 10 (0.3 '
                'for 30 %), or null for no limit')
    if (lower or 0) < -1 or known.better == 'higher' and lower == -1:
        return (f'lower is {lower!r}; write a fraction above -1 (-0.3 for '
                '30 %), or null for no limit')
    worse = {'lower': upper, 'higher': lower}
    if known.better in worse and worse[known.better] is None:
        side = 'upper' if known.better == 'lower' else 'lower'
        return (f'{side} is missing: {known.better} is better, so {side} '
                'limits worse values')
    return ''


def strip_xfail_mark(entry: Any) -> Any:
    """A reference without its mark of an expected failure ($xfail)."""
    if isinstance(entry, list) and len(entry) == 3 and entry[0] == XFAIL:
        return entry[2]
    return entry


def has_tolerance(entry: Any) -> bool:
    """Whether a reference has a tolerance."""
    return entry is not None and strip_xfail_mark(entry)[1:3] != [None, None]


def metrics_without_tolerance(family: str, values: Mapping[str, Any],
                              metrics_: Iterable[str]) -> list[str]:
    """Metrics that are compared with references, and have no tolerance. A tolerance of
    the derived metric that replaces a metric is enough.

    :param values: the references of a test case, without faults
    :param metrics_: metrics of the test case
    """
    return sorted(
        metric for metric in judged_metric_keys(
            family, map(metrics.split_metric_key, {*metrics_, *values}))
        if not any(has_tolerance(values.get(name)) for name in (
            metric, derived_replacement_metric(family, metric) or '')))


def better_direction(metric: str) -> str:
    """The better direction of a metric like `latency@8B`."""
    return metrics.metric(metrics.split_metric_key(metric)[0]).better
