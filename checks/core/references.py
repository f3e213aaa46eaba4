"""References of a test case: its site's reference file, or a vendor profile.

The files are in the folder of `config.places.reference_folder`; their form is in
config/references.py. A test case without a reference fails where the file
of its family has `complete: true`. Elsewhere it is `no_reference`.
"""
from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reframe.core.builtins import xfail
from reframe.core.pipeline import RegressionTestDict

from config import places, strict
from config.records import metrics
from config.references import (
    File,
    ReferenceError_,
    fault_of_reference,
    has_tolerance,
    metrics_lacking_tolerance,
    more_sessions_text,
    read,
    strip_xfail_mark,
)
from config.sessions.judged import is_improved

from . import vendor

#: One reference: centre, lower and upper as fractions (None: open), unit.
Reference = tuple[float, float | None, float | None, str]


class Entry(NamedTuple):
    """The references of a test case."""
    #: own, vendor, none (no reference yet), - (must not be compared).
    kind: str
    #: metric -> [value, lower, upper, unit], or ['$xfail', reason, that list].
    values: Mapping[str, Any] = {}
    #: Why nothing is compared, or who published the values.
    note: str = ''
    #: Entries beside the values: `$from`, `$no_reference`.
    about: Mapping[str, Any] = {}
    #: Line in the file; 0: not in a file.
    line: int = 0

    @property
    def has_any_tolerance(self) -> bool:
        """Whether any value has a tolerance."""
        return any(map(has_tolerance, self.values.values()))


def reference_file(family: str) -> Path:
    """The reference file of a family."""
    return places.reference_folder() / f'{family}.yaml'


@functools.cache
def load_references(family: str) -> File:
    """The references of a family; empty without a file.

    :raises ReferenceError_: the file is broken.
    """
    return read(reference_file(family))


def _missing_tolerance_note(sessions_needed: Mapping[str, int | None]) -> str:
    """The summary's note on metrics without a tolerance."""
    runs = {f: number for f, number in sessions_needed.items() if number is not None}
    if not runs:
        return ''
    return (f'no_reference: {more_sessions_text(max(runs.values()))} '
            f'({", ".join(runs)})')


def parse_reference_table(table: Mapping[str, Any], metrics: Iterable[str],
                          where: str) -> dict[str, Reference]:
    """Check the references of one test case and return them.

    A reference without tolerances may belong to a metric that is sometimes
    missing.

    :arg table: metric -> [value, lower, upper, unit].
    :arg metrics: every metric of this test case.
    :raises ReferenceError_: a reference is malformed, or the test case has no
        such metric.
    """
    known = set(metrics)
    for metric, entry in table.items():
        fault = fault_of_reference(metric, entry) or (
            'this test case has no such metric'
            if metric not in known and has_tolerance(entry) else '')
        if fault:
            raise ReferenceError_(f'{where}: {metric}: {fault}')
    return {metric: tuple(entry) for metric, entry in table.items()
            if metric in known}


def _entry(check: Any) -> strict.Mapping | None:
    """The entry of a test case; None: it has none.

    :raises ReferenceError_: the file has a level that no test case has.
    """
    name = type(check).variant_name()
    table = load_references(check.family).checks.get(name)
    if not table or check.changed_settings and 'settings' not in table['$index']:
        return None
    # Some checks have a variable `settings`.
    levels = ['changed_settings' if level == 'settings' else level
              for level in table['$index']]
    for level in levels:
        # ReFrame would only warn, and find no entry.
        if not level.startswith('$') and not hasattr(check, level):
            raise ReferenceError_(
                f'{reference_file(check.family)}: {name}: no test case has the level '
                f'{level!r} of $index; remove the level, or remove the check and run '
                f'{places.calibrate_command()}')
    try:
        return RegressionTestDict({**table, '$index': levels})[check] or None
    except KeyError:
        return None


def find_entry(check: Any) -> Entry:
    """The references of a test case, from the file or the vendor profile.

    A dry run does not know the version that a stack will install, so it accepts
    any of them.

    :raises ReferenceError_: the file is broken.
    """
    if check.inconclusive:
        return Entry('-', note=check.inconclusive)
    published = vendor.vendor_rows_of_test_case(check)
    if published:
        none = Entry('vendor', vendor.references_by_metric(published),
                     vendor.source_note(published))
    else:
        none = Entry('none', note=f'no reference yet: {places.calibrate_command()}')
    if check.bringup:
        return none if published else Entry('-', note='bring-up')
    table = _entry(check) or _entry_at_any_version(check)
    if table is None:
        return none
    return Entry('own', {f: e for f, e in table.items() if f[0] != '$'},
                 line=min(table.lines.values(), default=0),
                 about={f: e for f, e in table.items() if f[0] == '$'})


def _entry_at_any_version(check: Any) -> strict.Mapping | None:
    """The entry of any version, for a dry run, which does not know the version
    that a stack will install."""
    table = load_references(check.family).checks.get(type(check).variant_name()) or {}
    if (check.version or not check.is_dry_run()
            or 'version' not in table.get('$index', ())):
        return None
    level = [table]
    for _ in table['$index'][:table['$index'].index('version')]:
        level = [below for one in level for key, below in one.items()
                 if key != '$index' and isinstance(below, dict)]
    table_entry = None
    for check.version in sorted({v for one in level for v in one}):
        if table_entry is None:
            table_entry = _entry(check)
    check.version = ''
    return table_entry


def references_to_compare_and_note(check: Any, values: Mapping[str, float]
          ) -> tuple[dict[str, Any], str]:
    """The checked references of a test case, and a note for the summary.

    The note has the reason why nothing is compared, the origin of the
    references, the metrics without a tolerance, and the metrics that are far
    better than their reference.

    :raises ReferenceError_: a reference is malformed, or missing in a
        complete file.
    """
    site_entry = find_entry(check)
    # Origin of the references: the vendor profile, or the file.
    line = f':{site_entry.line}' if site_entry.line else ''
    who = (site_entry.note if site_entry.kind == 'vendor'
           else f'{reference_file(check.family)}{line}')
    where = f'{who}: {type(check).variant_name()}: {check.params}'
    to_judge = check.metrics_to_compare(values)
    if site_entry.kind == 'none':
        if not to_judge:
            return {}, ''
        if load_references(check.family).complete:
            raise ReferenceError_(
                f'{where}: {site_entry.note.partition(":")[0]}, on '
                f'{check.current_partition.fullname} '
                f'{check.current_environ.name} {check.source}, but the file has '
                f'`complete: true`; {places.calibrate_command()}')
    sound = {f: strip_xfail_mark(e) for f, e in site_entry.values.items()}
    # A dry run has only the planned metrics.
    reference_table: dict[str, Any] = dict(parse_reference_table(sound, {
        *values, *(sound if check.is_dry_run() else ())}, where))
    better = [] if check.is_dry_run() else [
        metric for metric, (value, lower, upper, _) in reference_table.items()
        if is_improved(metrics.metric(metrics.split_metric_key(metric)[0]).better,
                       values[metric], value, lower, upper)]
    needs = {} if site_entry.kind != 'own' else metrics_lacking_tolerance(
        check.family, {**site_entry.values, **site_entry.about}, values)
    if missing := [f for f in needs if needs[f] is None and f in to_judge]:
        raise ReferenceError_(
            f'{where}: no reference for the metrics {", ".join(missing)}, '
            f'which are compared with references; {places.calibrate_command()}')
    notes = [
        site_entry.note,
        _missing_tolerance_note(needs),
        f'improved: propose again ({", ".join(better)})' if better else '',
    ]
    for metric, reference in site_entry.values.items():
        if sound[metric] is not reference and metric in reference_table:
            reference_table[metric] = xfail(reference[1], reference_table[metric])
    return reference_table, '; '.join(filter(None, notes))
