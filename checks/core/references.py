"""References of a test case, from the reference file of its family.

The files are in the folder of `config.places.reference_folder`; their form is in
config/references.py. A test case without a reference fails if the file of its family
has `complete: true`. Otherwise it is `no_reference`.
"""
from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reframe.core.builtins import xfail

from config import places
from config.records import metrics
from config.references import (
    NO_TOLERANCE,
    Entry,
    File,
    ReferenceError_,
    fault_of_reference,
    has_tolerance,
    metrics_without_tolerance,
    read,
    strip_xfail_mark,
)
from config.sessions.judged import IMPROVED, is_improved

#: One reference: centre, lower and upper as fractions (None: open), unit.
Reference = tuple[float, float | None, float | None, str]


def reference_file(family: str) -> Path:
    """The reference file of a family."""
    return places.reference_folder() / f'{family}.yaml'


@functools.cache
def load_references(family: str) -> File:
    """The references of a family; empty without a file.

    :raises ReferenceError_: the file is broken.
    """
    return read(reference_file(family))


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


def _level_of_test_case(check: Any, level: str) -> Any:
    """The value that a test case has for a level of `$index`; None: any.

    The version that a stack will install is known after the job.

    :raises ReferenceError_: no test case has this level
    """
    if level == 'version' and not check.version and not check.samples:
        return None
    if level == 'settings':
        return check.changed_settings
    partition = check.current_partition
    match level.split('.'):
        case ['$system']:
            return check.current_system.name
        case ['$partition']:
            return partition.fullname
        case ['$environ']:
            return check.current_environ.name
        case ['$processor', name] if hasattr(partition.processor, name):
            return getattr(partition.processor, name)
        case ['$dev', kind, name]:
            # '' if the partition has no such device: matches no text.
            return next((getattr(device, name, '')
                         for device in partition.select_devices(kind)), '')
        case [name] if hasattr(check, name):
            return getattr(check, name)
    name = type(check).variant_name()
    line = load_references(check.family).checks[name].lines['$index']
    raise ReferenceError_(
        f'{reference_file(check.family)}:{line}: {name}: $index has '
        f'{level!r}, which is neither a parameter nor a variable of this check; remove '
        f'all of {name} from the file and run {places.calibrate_command()}')


def entries_of_test_case(check: Any) -> Iterator[Entry]:
    """The entries that match a test case, the closest first.

    Published values are of real programs, so an emulated one has none.

    :raises ReferenceError_: the file is broken
    """
    name = type(check).variant_name()
    file = load_references(check.family)
    index = file.checks.get(name, {}).get('$index', ())
    for entry in file.matching_entries(
            name, [_level_of_test_case(check, level) for level in index],
            check.changed_settings):
        if not (entry.is_published and check.emulated):
            yield entry


def find_entry(check: Any) -> Entry | None:
    """The references that a test case is compared with; None: it has none.

    An inconclusive test case is not compared. With `bringup` only published values
    count.

    :raises ReferenceError_: the file is broken
    """
    return None if check.inconclusive else closest_entry(check)


def closest_entry(check: Any) -> Entry | None:
    """The closest entry of a test case, with `bringup` of published values; None: it
    has none.

    :raises ReferenceError_: the file is broken
    """
    return next((entry for entry in entries_of_test_case(check)
                 if entry.is_published or not check.bringup), None)


def reason_without_entry(check: Any) -> str:
    """Why a test case is compared with no references."""
    if check.inconclusive:
        return str(check.inconclusive)
    return 'bring-up' if check.bringup else (
        f'no reference yet: {places.calibrate_command()}')


def references_without_tolerance(check: Any, values: Mapping[str, float]
                                 ) -> dict[str, Any]:
    """Those references of a test case that have a tolerance, without it.

    :raises ReferenceError_: the file is broken
    """
    entry = closest_entry(check)
    sound = {metric: strip_xfail_mark(reference) for metric, reference
             in entry.values.items()} if entry else {}
    return {metric: (reference[0], None, None, reference[3])
            for metric, reference in sound.items()
            if metric in values and has_tolerance(reference)}


def references_to_compare_and_note(check: Any, values: Mapping[str, float]
          ) -> tuple[dict[str, Any], str]:
    """The checked references of a test case, and a note for the summary.

    The note has the reason why nothing is compared, the source of published values,
    the metrics without a tolerance, and the metrics that are far better than their
    reference. An inconclusive test case has its references without their tolerances:
    nothing judges it, and its record says that it could have been judged.

    :raises ReferenceError_: a reference is malformed, or missing in a
        complete file.
    """
    entry = find_entry(check)
    to_compare = check.metrics_to_compare(values)
    file = reference_file(check.family)
    if entry is None:
        why = reason_without_entry(check)
        if check.inconclusive:
            return references_without_tolerance(check, values), why
        if check.bringup:
            return {}, why
        if not to_compare:
            return {}, ''
        if load_references(check.family).complete:
            raise ReferenceError_(
                f'{file}: {type(check).variant_name()}: {check.params}: '
                f'{why.partition(":")[0]}, on {check.current_partition.fullname} '
                f'{check.current_environ.name} {check.source}, but `complete: true` at '
                'the top of the file requires a reference for each test case; '
                f'{places.calibrate_command()}')
        return {}, why
    where = f'{file}:{entry.line}: {type(check).variant_name()}: {check.params}'
    sound = {f: strip_xfail_mark(e) for f, e in entry.values.items()}
    # Before the job only the planned metrics are known.
    reference_table: dict[str, Any] = dict(parse_reference_table(sound, {
        *values, *(() if check.samples else sound)}, where))
    better = [] if not check.samples else [
        metric for metric, (value, lower, upper, _) in reference_table.items()
        if is_improved(metrics.metric(metrics.split_metric_key(metric)[0]).better,
                       values[metric], value, lower, upper)]
    without_tolerance = [metric for metric in metrics_without_tolerance(
        check.family, entry.values, values) if metric in to_compare]
    unknown = [metric for metric in without_tolerance
               if metric not in entry.values]
    if unknown and 'source' not in entry.source:
        raise ReferenceError_(
            f'{where}: no reference for the metrics {", ".join(unknown)}, '
            f'which are compared with references; {places.calibrate_command()}')
    notes = [
        f'published values: {entry.source["source"]} ({entry.source["date"]})'
        if entry.is_published else '',
        f'{NO_TOLERANCE}{", ".join(without_tolerance)}' if without_tolerance else '',
        f'{IMPROVED} ({", ".join(better)})' if better else '',
    ]
    for metric, reference in entry.values.items():
        if sound[metric] is not reference and metric in reference_table:
            reference_table[metric] = xfail(reference[1], reference_table[metric])
    return reference_table, '; '.join(filter(None, notes))
