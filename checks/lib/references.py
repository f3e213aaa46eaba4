"""Reference files: loaded with errors that name the line, judged strictly.

A file ``<family>.yaml`` under the reference prefix (the environment variable
RFM_REFERENCE_PREFIX) has ReFrame's own form: check class, ``$index``, levels,
then ``metric@size: [value, lower, upper, unit]``. ReFrame itself warns and
goes on where a file is missing, a unit differs or a metric is misspelt; here
each of these is an error.
"""
from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from reframe.core.builtins import xfail
from reframe.core.pipeline import RegressionTestDict

from . import metrics, vendor

#: One reference: centre, lower and upper as fractions (None: open), unit.
Reference = tuple[float, float | None, float | None, str]


class ReferenceError_(ValueError):
    """A reference file that cannot be used; names file and line or key."""

    guard = 'reference'


def prefix() -> Path:
    """The folder of the site's reference files."""
    return Path(os.environ.get('RFM_REFERENCE_PREFIX') or 'references')


def file(family: str) -> Path:
    """The reference file of a family."""
    return prefix() / f'{family}.yaml'


@functools.cache
def load(family: str) -> dict[str, Any]:
    """The references of a family: check class -> indexed references.

    :raises ReferenceError_: missing, unreadable or broken file.
    """
    path = file(family)
    try:
        data = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ReferenceError_(
            f'{path}: no such reference file; make one with '
            '`plumb references propose`, or run with --bringup') from None
    except (OSError, UnicodeDecodeError) as err:
        raise ReferenceError_(f'{path}: cannot be read: {err}') from None
    except yaml.YAMLError as err:
        mark = getattr(err, 'problem_mark', None)
        line = f':{mark.line + 1}' if mark else ''
        raise ReferenceError_(f'{path}{line}: not YAML: '
                              f'{getattr(err, "problem", err)}') from None
    if not isinstance(data, dict) or not all(
            isinstance(v, dict) for v in data.values()):
        raise ReferenceError_(f'{path}: expected check classes at the top, '
                              'each with $index and its references')
    return data


def validate(found: Mapping[str, Any], figures: Iterable[str],
             where: str) -> dict[str, Reference]:
    """The references of one case, each one checked.

    :arg found: what the index led to: figure -> [value, lower, upper, unit].
    :arg figures: every figure that this case has.
    :raises ReferenceError_: unknown figure, other unit, not a reference.
    """
    known = set(figures)
    result = {}
    for figure, entry in found.items():
        at = f'{where}: {figure}'
        try:
            name, _ = metrics.split(str(figure))
            unit = metrics.metric(name).unit
        except (KeyError, ValueError) as err:
            raise ReferenceError_(f'{where}: {err.args[0]}') from None
        if figure not in known:
            raise ReferenceError_(f'{at}: this case has no such figure')
        if not isinstance(entry, (list, tuple)) or len(entry) != 4:
            raise ReferenceError_(
                f'{at}: expected [value, lower, upper, unit], got {entry!r}')
        value, lower, upper, ref_unit = entry
        if ref_unit != unit:
            raise ReferenceError_(f'{at}: unit is {ref_unit!r}, the metric '
                                  f'is in {unit!r}')
        for number in (value, lower, upper):
            if number is not None and (isinstance(number, bool) or
                                       not isinstance(number, (int, float))):
                raise ReferenceError_(f'{at}: {number!r} is not a number')
        if value is None or (lower or 0) > 0 or (upper or 0) < 0:
            raise ReferenceError_(f'{at}: a value is needed, lower <= 0 and '
                                  'upper >= 0 (fractions), null leaves open')
        result[str(figure)] = (value, lower, upper, ref_unit)
    return result


def _at_speed(check: Any, speed: str) -> dict[str, Any] | None:
    """The entry of a case, were it at that speed; None: there is none."""
    table = load(check.family).get(type(check).variant_name())
    if not table:
        return None
    now, check.speed = check.speed, speed
    try:
        return RegressionTestDict(dict(table))[check]
    except KeyError:
        return None
    finally:
        check.speed = now


def entry(check: Any) -> dict[str, Any] | None:
    """What the file says of a case; None: nothing, which is a fault.

    Empty where nothing can be judged (bring-up, a machine that changed its
    speed, a speed that has no reference yet); `check.unjudged` says why. A
    dry run cannot know the speed: it takes any. Where the site has nothing
    of its own, the vendor profile speaks; `check.unjudged` says that too.
    """
    if check.unfit:
        check.unjudged = check.unfit
        return {}
    published = vendor.figures(check)
    if check.bringup or published and not file(check.family).exists():
        check.unjudged = vendor.note(published) or 'bring-up'
        return vendor.bounds(published)
    found = (_at_speed(check, check.speed)
             or _of_some_version(check, check.speed))
    if found is None and ('speed_sentinel'
                          in check.current_partition.features):
        others = [_at_speed(check, speed) for speed in ('fast', 'slow')]
        found = next((e for e in others if e is not None), None)
        if found is not None and not check.is_dry_run():
            check.unjudged = f'no reference at speed {check.speed}'
            return {}
    if found is None and published:
        check.unjudged = vendor.note(published)
        return vendor.bounds(published)
    return found


def _of_some_version(check: Any, speed: str) -> dict[str, Any] | None:
    """A dry run may not know the version of what a stack will install:
    whatever version has a reference will do."""
    table = load(check.family).get(type(check).variant_name()) or {}
    if (check.version or not check.is_dry_run()
            or 'version' not in table.get('$index', ())):
        return None
    level = [table]
    for _ in table['$index'][:table['$index'].index('version')]:
        level = [below for one in level for key, below in one.items()
                 if key != '$index' and isinstance(below, dict)]
    for check.version in sorted({v for one in level for v in one}):
        found = _at_speed(check, speed)
        if found is not None:
            break
    else:
        found = None
    check.version = ''
    return found


def known(check: Any, figures: Iterable[str]) -> dict[str, Any]:
    """The references of a case, each one checked.

    :raises ReferenceError_: none for the case, or one that is wrong.
    """
    found = entry(check)
    # Who judges: the file, or the vendor profile.
    where = (f'{check.unjudged or file(check.family)}: '
             f'{type(check).variant_name()}: {check.params}')
    if found is None:
        raise ReferenceError_(
            f'{where}: no reference for this case on '
            f'{check.current_partition.fullname} '
            f'{check.current_environ.name} {check.source} {check.speed}; '
            'propose one, or run with --bringup')
    plain = {f: (e[2] if isinstance(e, list) and len(e) == 3
                 and e[0] == '$xfail' else e) for f, e in found.items()}
    # A dry run knows only the figures that are planned.
    there = set(figures) | set(plain if check.is_dry_run() else ())
    result: dict[str, Any] = dict(validate(plain, there, where))
    missing = set() if check.unjudged else (
        check.judged_figures(figures) - set(result))
    if missing:
        raise ReferenceError_(f'{where}: no reference for the judged '
                              f'{", ".join(sorted(missing))}')
    for figure in found:
        if plain[figure] is not found[figure]:
            result[figure] = xfail(found[figure][1], result[figure])
    return result
