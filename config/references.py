"""Reference files of a site: names, format and reading.

A file `<family>.yaml` has ReFrame's format: check class, `$index`, levels,
then `metric@size: [value, lower, upper, unit]`, or `[$xfail, reason, [value,
...]]` for a known fault. ReFrame only warns of a wrong unit or a misspelt
metric. This module refuses such a file, and names the line.

Besides its values an entry may have `$from` (its source, written by the suite)
and `$no_reference` (metric that needs a tolerance -> about how many more
sessions until it has one; 0: more sessions would not help). `complete: true`
at the top requires a reference for every test case of the family.

A proposal is a file of the same form beside it, `<family>.proposed.yaml`.
"""
from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import strict
from .console import count_with_noun
from .records import metrics
from .sessions.judged import (
    derived_replacement_metric,
    judged_metric_keys,
    judged_rules_by_family,
)

_PROPOSED = '.proposed.yaml'

#: Mark of a known fault.
XFAIL = '$xfail'

#: Keys of `$from`.
FROM = ('runs', 'days', 'first', 'last', 'suite', 'reason', 'tolerances')

#: Widest tolerance allowed, as a fraction: a wider one was probably meant in
#: percent.
MAX_TOLERANCE = 10


class ReferenceError_(ValueError):
    """A reference file cannot be used; names the file, and the line or key."""

    guard = 'reference'


class File(NamedTuple):
    """The references of a family."""
    path: Path
    #: Whether a test case without a reference fails.
    complete: bool = False
    #: Check class -> indexed references.
    checks: Mapping[str, Any] = {}


def accepted_files(folder: Path) -> list[Path]:
    """The accepted reference files of a site, one per family."""
    return sorted(path for path in folder.glob('*.yaml')
                  if not path.name.endswith(_PROPOSED))


def proposed_files(folder: Path) -> dict[str, Path]:
    """Family -> its proposal, beside the accepted file."""
    return {path.name.removesuffix(_PROPOSED): path
            for path in sorted(folder.glob('*' + _PROPOSED))}


def proposal_file_name(family: str) -> str:
    """The name of the file with the proposed references of a family."""
    return family + _PROPOSED


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
    raise_first_fault(path, [*find_faults(path.stem, data)]
                      or [*_faults_of_missing_tolerances(path.stem, data)])
    return File(path, data.get('complete', False), {
        name: below or {} for name, below in data.items()
        if name != 'complete'})


def raise_first_fault(path: Path, faults: list[tuple[int, str]]) -> None:
    """Refuse a file with faults.

    :raises ReferenceError_: names the first fault
    """
    if faults:
        line, reason = faults[0]
        more = f' (and {len(faults) - 1} more faults)' if faults[1:] else ''
        raise ReferenceError_(f'{path}:{line}: {reason}{more}')


def find_faults(family: str, data: Any) -> Iterator[tuple[int, str]]:
    """All faults of a file: line and reason."""
    if not isinstance(data, strict.Mapping):
        yield 1, ('expected check classes at the top, each with $index and '
                  'its references')
        return
    for name, below in data.items():
        line = data.lines.get(name, 1)
        if name == 'complete':
            if not isinstance(below, bool):
                yield line, f'complete: {below!r} must be true or false'
            continue
        if below is not None and not isinstance(below, strict.Mapping):
            yield line, (f'{name}: expected check classes at the top, each '
                         'with $index and its references')
        elif below:
            index = below.get('$index')
            if not isinstance(index, list) or not index or not all(
                    isinstance(level, str) for level in index):
                yield line, (f'{name}: $index is missing; it lists the names '
                             'of the levels')
                continue
            for entry, at, where in _walk_entries(below, len(index), line, name):
                if isinstance(entry, str):
                    yield at, f'{where}: {entry}'
                else:
                    yield from _entry_faults(family, entry, at, where)


def _walk_entries(level: strict.Mapping, depth: int, line: int, where: str
             ) -> Iterator[tuple[Any, int, str]]:
    """Entries below a level, each with its line and keys; for a level with a
    fault, the fault as text."""
    for key, below in level.items():
        if key == '$index':
            continue
        at = level.lines.get(key, line)
        if not isinstance(below, strict.Mapping):
            yield (f'expected a level of $index below it, got {below!r}', at,
                   f'{where}: {key}')
        elif depth > 1:
            yield from _walk_entries(below, depth - 1, at, where)
        else:
            yield below, at, f'{where}: {key}'


def _entry_faults(family: str, entry: strict.Mapping, line: int, where: str
                  ) -> Iterator[tuple[int, str]]:
    """Faults of the references of one test case."""
    for key, value in entry.items():
        fault = (_fault_of_dollar_key(family, str(key), value)
                 if str(key).startswith('$') else fault_of_reference(key, value))
        if fault:
            yield entry.lines.get(key, line), f'{where}: {key}: {fault}'


def _faults_of_missing_tolerances(family: str, data: Any) -> Iterator[tuple[int, str]]:
    """Faults: metrics without the tolerance that they need.

    The file must have no other faults. These are not checked when a proposal
    is accepted, because the proposal may add the tolerance.
    """
    for name, below in data.items():
        if name == 'complete' or not below:
            continue
        for entry, line, where in _walk_entries(below, len(below['$index']), 1,
                                                name):
            for metric, runs in metrics_lacking_tolerance(family, entry).items():
                if runs is None:
                    yield entry.lines.get(metric, line), (
                        f'{where}: {metric}: the metric has no tolerance, '
                        'but needs one; add it, or let `./plumb references '
                        'propose` write $no_reference')


def _fault_of_dollar_key(family: str, key: str, value: Any) -> str:
    """The fault of an entry's $from or $no_reference; empty: none."""
    if key not in ('$from', '$no_reference'):
        return 'unknown key; use $from or $no_reference'
    if not isinstance(value, Mapping):
        return f'expected keys and values, got {value!r}'
    if key == '$from':
        for name in value:
            if name not in FROM:
                near = difflib.get_close_matches(str(name), FROM, 1)
                return (f'unknown key {name!r}: '
                        + (f'did you mean {near[0]}?' if near
                           else f'use {", ".join(FROM)}'))
        tolerances = value.get('tolerances', {})
        if not isinstance(tolerances, Mapping) or not all(
            isinstance(pair, list)
            and len(pair) == 2
            and all(map(_is_finite, pair))
            for pair in tolerances.values()
        ):
            return (
                'tolerances: expected metric: [centre, tolerance] in numbers'
            )
        for name, what in (('runs', 'sessions'), ('days', 'days')):
            number = value.get(name, 1)
            if type(number) is not int or number < 1:
                return f'{name}: {number!r} is not a number of {what}'
        return ''
    known = {name for rule in judged_rules_by_family().get(family, ())
             for name in (rule['metric'], rule.get('instead'))}
    for metric, runs in value.items():
        if str(metric).partition('@')[0] not in known:
            return f'{metric} has no tolerance by checks/{family}/family.yaml'
        if type(runs) is not int or runs < 0:
            return f'{metric}: {runs!r} is not a number of sessions'
    return ''


def _is_finite(number: Any) -> bool:
    return (isinstance(number, int | float) and not isinstance(number, bool)
            and math.isfinite(number))


def fault_of_reference(metric: Any, entry: Any) -> str:
    """The fault of a reference; empty: none.

    :arg entry: [value, lower, upper, unit], or ['$xfail', reason, entry]
    """
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


def metrics_lacking_tolerance(family: str, entry: Mapping[str, Any],
                              further: Iterable[str] = ()) -> dict[str, int | None]:
    """Metrics without the tolerance that they need. A tolerance of the derived
    metric that replaces a metric is enough.

    :arg entry: the references of one test case, without faults
    :arg further: further metrics of the test case
    :returns: metric -> about how many more sessions until it has a tolerance;
        0: more sessions would not help; None: not stated, which is a fault
    """
    more_sessions = entry.get('$no_reference', {})
    there = {*further, *(f for f in (*entry, *more_sessions) if f[0] != '$')}
    if family not in judged_rules_by_family():
        return {}
    missing: dict[str, int | None] = {}
    for metric in sorted(
        judged_metric_keys(family, map(metrics.split_metric_key, there))
    ):
        both = [f for f in (metric, derived_replacement_metric(family, metric)) if f]
        if not any(has_tolerance(entry.get(f)) for f in both):
            needs = [more_sessions[f] for f in both if f in more_sessions]
            # 0 means never: take the one of the two that can get a tolerance.
            missing[metric] = min(filter(None, needs), default=0) \
                if needs else _default_sessions_needed(entry, both)
    return missing


def more_sessions_text(number: int | None) -> str:
    """How many more sessions a metric without a tolerance needs; 0 or None:
    more sessions would not help."""
    return (f'needs about {count_with_noun(number, "more session")}' if number
            else 'more sessions would not help')


def _default_sessions_needed(entry: Mapping[str, Any], metrics: Iterable[str]
                  ) -> int | None:
    """Sessions that metrics need which are not in `$no_reference`.

    1 if the suite wrote the entry before these metrics were in `judged`, so
    that older files stay valid. None, which is a fault, if a person wrote the
    entry, or if the suite gave one of the metrics a tolerance that is missing
    now.
    """
    tolerances = entry.get('$from', {}).get('tolerances')
    return None if tolerances is None or any(
        metric in tolerances for metric in metrics) else 1


def iterate_reference_entries(table: Mapping, depth: int | None = None, keys: tuple = ()
           ) -> Iterator[tuple[tuple, Any]]:
    """(check, keys of the index) -> entry, of a reference file."""
    if depth is None:
        for check, below in table.items():
            if isinstance(below, Mapping) and below:
                yield from iterate_reference_entries(
                    below, len(below['$index']), (check,)
                )
    elif depth == 0:
        yield keys, table
    else:
        for key, below in table.items():
            if key != '$index':
                yield from iterate_reference_entries(below, depth - 1, (*keys, key))


def tolerances_worse_and_better(
    metric: str, line: Any
) -> tuple[float | None, float | None]:
    """(tolerance on the worse side, tolerance on the other); None: open."""
    _, lower, upper, _ = strip_xfail_mark(line)
    return (lower, upper) if better_direction(metric) == 'higher' else (upper, lower)


def better_direction(metric: str) -> str:
    """The better direction of a metric like `latency@8B`."""
    return metrics.metric(metrics.split_metric_key(metric)[0]).better
