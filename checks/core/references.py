"""What judges a test case: its site's reference file, or a vendor profile.

The files are in the folder of `config.places.references`; their form is in
config/references.py. A test case without a reference fails where the file
of its family has `complete: true`. Elsewhere it is `no_reference`.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reframe.core.builtins import xfail
from reframe.core.pipeline import RegressionTestDict

from config import places, strict
from config.references import (
    File,
    ReferenceError_,
    has_tolerance,
    metric_fault,
    more_runs,
    no_reference,
    plain,
    read,
)
from config.sessions.judged import improved

from . import metrics, vendor

#: One reference: centre, lower and upper as fractions (None: open), unit.
Reference = tuple[float, float | None, float | None, str]

#: What to do about a case without a reference.
CALIBRATE = './plumb references calibrate'


class Entry(NamedTuple):
    """What judges a case, if anything does."""
    #: own, vendor, none (no reference yet), - (must not be judged).
    kind: str
    #: figure -> [value, lower, upper, unit], or ['$xfail', reason, that].
    values: Mapping[str, Any] = {}
    #: Why it is not judged, or whose figures are used instead of the site's.
    note: str = ''
    #: What stands beside the figures: `$from`, `$no_reference`.
    about: Mapping[str, Any] = {}
    #: Where it stands in the file; 0: not in a file.
    line: int = 0

    @property
    def judges(self) -> bool:
        """Whether it tolerances any figure."""
        return any(map(has_tolerance, self.values.values()))


def file(family: str) -> Path:
    """The reference file of a family."""
    return places.references() / f'{family}.yaml'


@functools.cache
def load(family: str) -> File:
    """The references of a family; empty without a file.

    :raises ReferenceError_: it is broken
    """
    return read(file(family))


def _missing_tolerance_note(needs: Mapping[str, int | None]) -> str:
    """The summary's note on figures without a tolerance."""
    runs = {f: number for f, number in needs.items() if number is not None}
    if not runs:
        return ''
    return (f'no_reference: {more_runs(max(runs.values()))} '
            f'({", ".join(runs)})')


def validate(table: Mapping[str, Any], values: Iterable[str],
             where: str) -> dict[str, Reference]:
    """The references of one case, each one checked.

    A reference without tolerances may be for a figure that is sometimes
    missing, such as the speed probe's reading on a busy machine.

    :arg found: figure -> [value, lower, upper, unit].
    :arg figures: every figure that this case has.
    :raises ReferenceError_: not a sound reference, or no such figure.
    """
    known = set(values)
    for metric, entry in table.items():
        fault = metric_fault(metric, entry) or (
            'this case has no such figure'
            if metric not in known and has_tolerance(entry) else '')
        if fault:
            raise ReferenceError_(f'{where}: {metric}: {fault}')
    return {metric: tuple(entry) for metric, entry in table.items()
            if metric in known}


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
    published = vendor.values(check)
    if published:
        none = Entry('vendor', vendor.tolerances(published),
                     vendor.note(published))
    else:
        none = Entry('none', note=f'no reference yet: {CALIBRATE}')
    if check.bringup:
        return none if published else Entry('-', note='bring-up')
    speed, features = check.speed, check.current_partition.features
    result = _at_speed(check, speed) or _at_any_version(check, speed)
    if result is None and 'speed_probe' in features:
        others = {name: _at_speed(check, name) or _at_any_version(
            check, name) for name in ('fast', 'slow')}
        there = [other for other in others.values() if other]
        missing_speeds = [name for name in speeds(check) if not others[name]]
        if there and not check.is_dry_run():
            if speed == '-':
                return Entry('-', note="the machine's speed cannot be told")
            return Entry('none', note=f'no reference at speed {speed}: '
                         f'{CALIBRATE}')
        if there and missing_speeds and load(check.family).complete:
            return Entry('none', note='no reference at speed '
                         f'{missing_speeds[0]}: {CALIBRATE}')
        result = there[0] if there else None
    if result is None:
        return none
    return Entry('own', {f: e for f, e in result.items() if f[0] != '$'},
                 line=min(result.lines.values(), default=0),
                 about={f: e for f, e in result.items() if f[0] == '$'})


def speeds(check: Any) -> tuple[str, ...]:
    """The classes of speed that the partition of a case can have."""
    boundary = check.current_partition.extras.get('speed_boundary_ns')
    return ('fast',) if boundary == math.inf else ('fast', 'slow')


def _at_any_version(check: Any, speed: str) -> strict.Mapping | None:
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
    result = None
    for check.version in sorted({v for one in level for v in one}):
        if result is None:
            result = _at_speed(check, speed)
    check.version = ''
    return result


def resolve(check: Any, values: Mapping[str, float]
          ) -> tuple[dict[str, Any], str]:
    """The references of a case, each one checked, and a note for the
    summary: why nothing judges it, whose figures do, what is unjudged, what
    is far better than its reference.

    :raises ReferenceError_: a wrong one; none where the file is complete.
    """
    results = entry(check)
    # Who judges: the vendor profile, or the file.
    who = results.note if results.kind == 'vendor' else \
        f'{file(check.family)}{f":{results.line}" if results.line else ""}'
    where = f'{who}: {type(check).variant_name()}: {check.params}'
    to_judge = check.judged_values(values)
    if results.kind == 'none':
        if not to_judge:
            return {}, ''
        if load(check.family).complete:
            raise ReferenceError_(
                f'{where}: {results.note.partition(":")[0]}, on '
                f'{check.current_partition.fullname} '
                f'{check.current_environ.name} {check.source} {check.speed},'
                f' and the file says `complete: true`; {CALIBRATE}')
    sound = {f: plain(e) for f, e in results.values.items()}
    # A dry run knows only the figures that are planned.
    result: dict[str, Any] = dict(validate(sound, {
        *values, *(sound if check.is_dry_run() else ())}, where))
    better = [] if check.is_dry_run() else [
        metric for metric, (value, lower, upper, _) in result.items()
        if improved(metrics.metric(metrics.split(metric)[0]).better,
                    values[metric], value, lower, upper)]
    needs = {} if results.kind != 'own' else no_reference(
        check.family, {**results.values, **results.about}, values)
    if missing := [f for f in needs if needs[f] is None and f in to_judge]:
        raise ReferenceError_(
            f'{where}: no reference for the judged {", ".join(missing)}')
    notes = [
        results.note,
        _missing_tolerance_note(needs),
        f'improved: propose again ({", ".join(better)})' if better else '',
    ]
    for metric, reference in results.values.items():
        if sound[metric] is not reference and metric in result:
            result[metric] = xfail(reference[1], result[metric])
    return result, '; '.join(filter(None, notes))
