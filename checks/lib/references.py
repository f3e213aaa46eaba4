"""Reference files: loaded with errors that name the line, judged strictly.

A file ``<family>.yaml`` under the reference prefix (the environment variable
RFM_REFERENCE_PREFIX) has ReFrame's own form: check class, ``$index``, levels,
then ``metric@size: [value, lower, upper, unit]``. ReFrame itself warns and
goes on where a file is missing, a unit differs or a metric is misspelt; here
what a file says is either sound or refused, with its line.

Beside the figures an entry may have ``$from`` (how the suite made it) and
``$unjudged`` (judged figure -> about how many more runs until it has a bound;
0: no number would do). ``complete: true`` at the top says that every case
has a reference here: one that has none fails. Anywhere else it is recorded.
"""
from __future__ import annotations

import difflib
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reframe.core.builtins import xfail
from reframe.core.pipeline import RegressionTestDict

from config import strict
from config.judged import improved, instead, judged, table

from . import metrics, vendor

#: One reference: centre, lower and upper as fractions (None: open), unit.
Reference = tuple[float, float | None, float | None, str]

#: What to do about a case without a reference.
LEARN = './plumb references learn'

#: Keys of `$from`.
FROM = ('runs', 'first', 'last', 'suite', 'reason', 'bounds')

#: Widest bound allowed, as a fraction: a wider one was probably meant in
#: percent.
WIDEST = 10


class ReferenceError_(ValueError):
    """A reference file that cannot be used; names file and line or key."""

    guard = 'reference'


class File(NamedTuple):
    """The references of a family."""
    path: Path
    #: Whether a case without a reference fails.
    complete: bool = False
    #: Check class -> indexed references.
    checks: Mapping[str, Any] = {}


class Entry(NamedTuple):
    """What judges a case, if anything does."""
    #: own, vendor, none (no reference yet), - (must not be judged).
    kind: str
    #: figure -> [value, lower, upper, unit], or ['$xfail', reason, that].
    figures: Mapping[str, Any] = {}
    #: Why it is not judged, or whose figures are used instead of the site's.
    note: str = ''
    #: What stands beside the figures: `$from`, `$unjudged`.
    about: Mapping[str, Any] = {}
    #: Where it stands in the file; 0: not in a file.
    line: int = 0

    @property
    def judges(self) -> bool:
        """Whether it bounds any figure."""
        return any(map(_bounded, self.figures.values()))


def prefix() -> Path:
    """The folder of the site's reference files."""
    return Path(os.environ.get('RFM_REFERENCE_PREFIX') or 'references')


def file(family: str) -> Path:
    """The reference file of a family."""
    return prefix() / f'{family}.yaml'


@functools.cache
def load(family: str) -> File:
    """The references of a family; empty without a file.

    :raises ReferenceError_: unreadable or broken file, with the line of the
        first fault, and how many more there are.
    """
    path = file(family)
    try:
        data = strict.load(path)
    except FileNotFoundError:
        return File(path)
    except strict.Fault as err:
        raise ReferenceError_(str(err)) from None
    faults = list(_faults(family, data))
    if faults:
        line, reason = faults[0]
        more = f' (and {len(faults) - 1} more faults)' if faults[1:] else ''
        raise ReferenceError_(f'{path}:{line}: {reason}{more}')
    return File(path, data.get('complete', False), {
        name: below or {} for name, below in data.items()
        if name != 'complete'})


def _faults(family: str, data: Any) -> Iterator[tuple[int, str]]:
    """All faults of a file: line and reason."""
    if not isinstance(data, strict.Mapping):
        yield 1, ('expected check classes at the top, each with $index and '
                  'its references')
        return
    for name, below in data.items():
        line = data.lines.get(name, 1)
        if name == 'complete':
            if not isinstance(below, bool):
                yield line, f'complete: {below!r} is neither true nor false'
            continue
        if below is not None and not isinstance(below, strict.Mapping):
            yield line, (f'{name}: expected check classes at the top, each '
                         'with $index and its references')
        elif below:
            index = below.get('$index')
            if not isinstance(index, list) or not index or not all(
                    isinstance(level, str) for level in index):
                yield line, (f'{name}: $index is missing, the list of what '
                             'its levels are')
                continue
            for entry, at, where in _entries(below, len(index), line, name):
                if isinstance(entry, str):
                    yield at, f'{where}: {entry}'
                else:
                    yield from _entry_faults(family, entry, at, where)


def _entries(level: strict.Mapping, depth: int, line: int, where: str
             ) -> Iterator[tuple[Any, int, str]]:
    """Entries below a level, each with its line and keys; or what is wrong
    with a level, as text."""
    for key, below in level.items():
        if key == '$index':
            continue
        at = level.lines.get(key, line)
        if not isinstance(below, strict.Mapping):
            yield (f'expected a level of $index below it, got {below!r}', at,
                   f'{where}: {key}')
        elif depth > 1:
            yield from _entries(below, depth - 1, at, where)
        else:
            yield below, at, f'{where}: {key}'


def _entry_faults(family: str, entry: strict.Mapping, line: int, where: str
                  ) -> Iterator[tuple[int, str]]:
    """What is wrong with the references of one case."""
    sound = True
    for key, value in entry.items():
        fault = (_data_fault(family, str(key), value)
                 if str(key).startswith('$') else figure_fault(key, value))
        if fault:
            sound = False
            yield entry.lines.get(key, line), f'{where}: {key}: {fault}'
    for figure, runs in unjudged(family, entry).items() if sound else ():
        if runs is None:
            yield entry.lines.get(figure, line), (
                f'{where}: {figure}: it is judged and has no bound; give it '
                f'one, or let `./plumb references propose` say in $unjudged '
                'how many runs it still needs')


def _data_fault(family: str, key: str, value: Any) -> str:
    """What is wrong with an entry's $from or $unjudged; empty: nothing."""
    if key not in ('$from', '$unjudged'):
        return 'unknown; there are $from and $unjudged'
    if not isinstance(value, Mapping):
        return f'expected keys and values, got {value!r}'
    if key == '$from':
        for name in value:
            if name not in FROM:
                near = difflib.get_close_matches(str(name), FROM, 1)
                return (f'unknown key {name!r}: '
                        + (f'did you mean {near[0]}?' if near
                           else f'there are {", ".join(FROM)}'))
        bounds = value.get('bounds', {})
        if not isinstance(bounds, Mapping) or not all(
                isinstance(pair, list) and len(pair) == 2
                and all(map(_is_finite, pair)) for pair in bounds.values()):
            return 'bounds: expected figure: [centre, bound] in numbers'
        runs = value.get('runs', 1)
        return '' if type(runs) is int and runs > 0 else (
            f'runs: {runs!r} is no number of runs')
    known = {name for rule in table().get(family, ())
             for name in (rule['metric'], rule.get('instead'))}
    for figure, runs in value.items():
        if str(figure).partition('@')[0] not in known:
            return f'{figure} is not judged (checks/{family}/family.yaml)'
        if type(runs) is not int or runs < 0:
            return f'{figure}: {runs!r} is no number of runs'
    return ''


def _is_finite(number: Any) -> bool:
    return (isinstance(number, int | float) and not isinstance(number, bool)
            and math.isfinite(number))


def figure_fault(figure: Any, entry: Any) -> str:
    """What is wrong with one reference; empty: nothing.

    :arg entry: [value, lower, upper, unit], or ['$xfail', reason, that].
    """
    try:
        name, _ = metrics.split(str(figure))
        metric = metrics.metric(name)
    except (KeyError, ValueError) as err:
        return str(err.args[0])
    entry = _plain(entry)
    if not isinstance(entry, (list, tuple)) or len(entry) != 4:
        return f'expected [value, lower, upper, unit], got {entry!r}'
    value, lower, upper, unit = entry
    if unit != metric.unit:
        return f'unit is {unit!r}, the metric is in {metric.unit!r}'
    for number in (value, lower, upper):
        if number is not None and not _is_finite(number):
            return f'{number!r} is not a number that is finite'
    if value is None or (lower or 0) > 0 or (upper or 0) < 0:
        return ('a value is needed, lower <= 0 and upper >= 0 (fractions), '
                'null leaves open')
    if lower is None and upper is None:
        return ''
    if value <= 0:
        return f'{value!r} is bounded, and a fraction of it means nothing'
    if (upper or 0) > WIDEST:
        return (f'upper is {upper!r}: a fraction is meant, not percent (0.3 '
                'for 30 %), and more than 10 judges nothing; null leaves '
                'open')
    if (lower or 0) < -1 or metric.better == 'higher' and lower == -1:
        return (f'lower is {lower!r}: a fraction above -1 is meant, not '
                'percent (-0.3 for 30 %); null leaves open')
    worse = {'lower': upper, 'higher': lower}
    if metric.better in worse and worse[metric.better] is None:
        side = 'upper' if metric.better == 'lower' else 'lower'
        return (f'only better figures are bounded: {side} is what may be '
                f'worse, for {metric.better} is better')
    return ''


def _plain(entry: Any) -> Any:
    """A reference without the mark of an expected failure."""
    if isinstance(entry, list) and len(entry) == 3 and entry[0] == '$xfail':
        return entry[2]
    return entry


def _bounded(entry: Any) -> bool:
    """Whether a sound reference judges its figure."""
    return entry is not None and _plain(entry)[1:3] != [None, None]


def unjudged(family: str, entry: Mapping[str, Any],
             figures: Iterable[str] = ()) -> dict[str, int | None]:
    """Judged figures without a bound, neither their own nor one of the metric
    that is judged instead.

    :arg entry: the references of one case, sound ones.
    :arg figures: further figures that the case has.
    :returns: figure -> about how many more runs until it has a bound; 0: no
        number would do; None: the entry does not say so, which is a fault.
    """
    said = entry.get('$unjudged', {})
    there = {*figures, *(f for f in (*entry, *said) if f[0] != '$')}
    if family not in table():
        return {}
    found: dict[str, int | None] = {}
    for figure in sorted(judged(family, map(metrics.split, there))):
        both = [f for f in (figure, instead(family, figure)) if f]
        if not any(_bounded(entry.get(f)) for f in both):
            needs = [said[f] for f in both if f in said]
            # 0 means never: takes the one of the two that can get a bound.
            found[figure] = min(filter(None, needs), default=0) \
                if needs else _judged_since(entry, both)
    return found


def _judged_since(entry: Mapping[str, Any], figures: Iterable[str]
                  ) -> int | None:
    """1, one more run: the suite wrote the entry before it judged these
    figures, and files of before stay valid. None: it gave one of them a
    bound, or a person wrote the entry, and the bound is missing."""
    bounds = entry.get('$from', {}).get('bounds')
    return None if bounds is None or any(
        figure in bounds for figure in figures) else 1


def _words(needs: Mapping[str, int | None]) -> str:
    """The summary's note on figures without a bound."""
    needs = {f: runs for f, runs in needs.items() if runs is not None}
    able = [n for n in needs.values() if n]
    if not needs:
        return ''
    how = (f'needs about {max(able)} more run{"s" * (max(able) > 1)}'
           if able else 'no number of runs would do')
    return f'unjudged: {how} ({", ".join(needs)})'


def validate(found: Mapping[str, Any], figures: Iterable[str],
             where: str) -> dict[str, Reference]:
    """The references of one case, each one checked.

    A reference without bounds may be for a figure that is sometimes missing,
    such as the sentinel's reading on a busy machine.

    :arg found: figure -> [value, lower, upper, unit].
    :arg figures: every figure that this case has.
    :raises ReferenceError_: not a sound reference, or no such figure.
    """
    known = set(figures)
    for figure, entry in found.items():
        fault = figure_fault(figure, entry) or (
            'this case has no such figure'
            if figure not in known and _bounded(entry) else '')
        if fault:
            raise ReferenceError_(f'{where}: {figure}: {fault}')
    return {figure: tuple(entry) for figure, entry in found.items()
            if figure in known}


def _at_speed(check: Any, speed: str) -> strict.Mapping | None:
    """The entry of a case at a given speed; None: there is none."""
    table = load(check.family).checks.get(type(check).variant_name())
    if not table:
        return None
    now, check.speed = check.speed, speed
    try:
        return RegressionTestDict(dict(table))[check] or None
    except KeyError:
        return None
    finally:
        check.speed = now


def entry(check: Any) -> Entry:
    """What judges a case: the file, or else the vendor profile.

    A dry run cannot know the speed, nor the version of what a stack will
    install: any will do; but a family that is complete has all speeds.

    :raises ReferenceError_: the file is broken.
    """
    if check.inconclusive:
        return Entry('-', note=check.inconclusive)
    published = vendor.figures(check)
    if published:
        none = Entry('vendor', vendor.bounds(published),
                     vendor.note(published))
    else:
        none = Entry('none', note=f'no reference yet: {LEARN}')
    if check.bringup:
        return none if published else Entry('-', note='bring-up')
    speed, features = check.speed, check.current_partition.features
    found = _at_speed(check, speed) or _of_some_version(check, speed)
    if found is None and 'speed_sentinel' in features:
        others = {name: _at_speed(check, name) or _of_some_version(
            check, name) for name in ('fast', 'slow')}
        there = [other for other in others.values() if other]
        missing_speeds = [name for name in speeds(check) if not others[name]]
        if there and not check.is_dry_run():
            if speed == '-':
                return Entry('-', note="the machine's speed cannot be told")
            return Entry('none', note=f'no reference at speed {speed}: '
                         f'{LEARN}')
        if there and missing_speeds and load(check.family).complete:
            return Entry('none', note='no reference at speed '
                         f'{missing_speeds[0]}: {LEARN}')
        found = there[0] if there else None
    if found is None:
        return none
    return Entry('own', {f: e for f, e in found.items() if f[0] != '$'},
                 line=min(found.lines.values(), default=0),
                 about={f: e for f, e in found.items() if f[0] == '$'})


def speeds(check: Any) -> tuple[str, ...]:
    """The classes of speed that the partition of a case can have."""
    boundary = check.current_partition.extras.get('speed_boundary_ns')
    return ('fast',) if boundary == math.inf else ('fast', 'slow')


def _of_some_version(check: Any, speed: str) -> strict.Mapping | None:
    """For a dry run that does not know which version a stack will install:
    the entry of any version."""
    table = load(check.family).checks.get(type(check).variant_name()) or {}
    if (check.version or not check.is_dry_run()
            or 'version' not in table.get('$index', ())):
        return None
    level = [table]
    for _ in table['$index'][:table['$index'].index('version')]:
        level = [below for one in level for key, below in one.items()
                 if key != '$index' and isinstance(below, dict)]
    found = None
    for check.version in sorted({v for one in level for v in one}):
        if found is None:
            found = _at_speed(check, speed)
    check.version = ''
    return found


def known(check: Any, figures: Mapping[str, float]
          ) -> tuple[dict[str, Any], str]:
    """The references of a case, each one checked, and a note for the
    summary: why nothing judges it, whose figures do, what is unjudged, what
    is far better than its reference.

    :raises ReferenceError_: a wrong one; none where the file is complete.
    """
    found = entry(check)
    # Who judges: the vendor profile, or the file.
    who = found.note if found.kind == 'vendor' else \
        f'{file(check.family)}{f":{found.line}" if found.line else ""}'
    where = f'{who}: {type(check).variant_name()}: {check.params}'
    to_judge = check.judged_figures(figures)
    if found.kind == 'none':
        if not to_judge:
            return {}, ''
        if load(check.family).complete:
            raise ReferenceError_(
                f'{where}: {found.note.partition(":")[0]}, on '
                f'{check.current_partition.fullname} '
                f'{check.current_environ.name} {check.source} {check.speed},'
                f' and the file says `complete: true`; {LEARN}')
    plain = {f: _plain(e) for f, e in found.figures.items()}
    # A dry run knows only the figures that are planned.
    result: dict[str, Any] = dict(validate(plain, {
        *figures, *(plain if check.is_dry_run() else ())}, where))
    better = [] if check.is_dry_run() else [
        figure for figure, (value, lower, upper, _) in result.items()
        if improved(metrics.metric(metrics.split(figure)[0]).better,
                    figures[figure], value, lower, upper)]
    needs = {} if found.kind != 'own' else unjudged(
        check.family, {**found.figures, **found.about}, figures)
    if missing := [f for f in needs if needs[f] is None and f in to_judge]:
        raise ReferenceError_(
            f'{where}: no reference for the judged {", ".join(missing)}')
    notes = [found.note, _words(needs), 'improved: propose again '
             f'({", ".join(better)})' if better else '']
    for figure, reference in found.figures.items():
        if plain[figure] is not reference and figure in result:
            result[figure] = xfail(reference[1], result[figure])
    return result, '; '.join(filter(None, notes))
