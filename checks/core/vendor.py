"""The vendor profile: published values that serve as first references.

``vendor.yaml`` in the site's folder is a flat list of rows::

    - {family: osu, partition: cluster-c, when: 'program=osu_latency$',
       metric: latency, at: 8, value: 1.8, worse: 1.0, unit: us,
       source: 'who published it', date: 2025-12}

`when` is a regular expression on the test case's parameters, and `check` the class of
the check (left out: any). `at` is a size in bytes (left out: the value of the whole
run). `worse` is the fraction by
which a value may be worse than `value`. A test case that matches a row is
compared with such rows only, and its note names the source. The site's own
references override them. They are never written or proposed as references.
"""
from __future__ import annotations

import difflib
import functools
import math
import re
import runpy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from config import families, strict
from config.places import SYSTEM
from config.places import current_site_folder as site_folder
from config.records import metrics


class VendorError(ValueError):
    """A vendor profile cannot be used; the message has the file and row."""

    guard = 'reference'


@dataclass(frozen=True)
class Row:
    """One published value with its source."""
    family: str
    partition: str
    when: str
    metric: str
    value: float
    worse: float
    unit: str
    source: str
    date: str
    at: int | None = None
    check: str = ''

    @property
    def metric_key(self) -> str:
        return metrics.metric_key(self.metric, self.at)

    @property
    def as_reference(self) -> list[Any]:
        """The reference as in a file: [value, lower, upper, unit]."""
        if metrics.metric(self.metric).better == 'higher':
            return [self.value, -self.worse, None, self.unit]
        return [self.value, None, self.worse, self.unit]


    def is_of(self, check: Any) -> bool:
        """Whether the row is of a test case. Published values are of the default
        settings."""
        return ((self.family, self.partition) == (check.family,
                                                  check.current_partition.name)
                and self.check in ('', check.check_class)
                and not check.changed_settings
                and bool(re.search(self.when, check.params)))


#: Keys of a row; those without a default are required.
KEYS = {f.name for f in fields(Row)}
REQUIRED = KEYS - {'at', 'check'}


def load_vendor_rows(path: Path, places: Mapping[str, set[str]]) -> tuple[Row, ...]:
    """Check the rows of a profile and return them.

    :arg places: partition -> families with programs in its environments
        (`families_by_partition`); a row for another place would never apply.
    :raises VendorError: with the file, the row and the fault.
    """
    try:
        data = strict.load_yaml(path) or []
    except strict.Fault as err:
        raise VendorError(str(err)) from None
    if not isinstance(data, list):
        raise VendorError(f'{path}: expected a list of rows')
    rows = []
    for number, entry in enumerate(data, 1):
        try:
            rows.append(_parse_and_check_row(entry, places))
        except (KeyError, ValueError) as err:
            raise VendorError(f'{path}: row {number}: {err.args[0]}') from None
    return tuple(rows)


def _parse_and_check_row(entry: Any, places: Mapping[str, set[str]]) -> Row:
    """One checked row.

    :raises ValueError: with the fault; so does a KeyError.
    """
    if not isinstance(entry, dict):
        raise ValueError(f'expected keys and values, got {entry!r}')
    for key in entry:
        _refuse_unknown_name(key, KEYS, 'key')
    missing = sorted(key for key in REQUIRED if entry.get(key) in (None, ''))
    if missing:
        raise ValueError(f'missing keys: {", ".join(missing)}')
    for key in ('family', 'partition', 'when', 'metric', 'unit', 'source', 'check'):
        if not isinstance(entry.get(key, ''), str):
            raise ValueError(f'{key}: expected text, got {entry[key]!r}')
    _refuse_unknown_name(entry['partition'], places, 'partition')
    _refuse_unknown_name(entry['family'], places[entry['partition']],
                         f"family on {entry['partition']}:")
    metric = metrics.metric(entry['metric'])
    if metric.better == 'none':
        raise ValueError(f'metric {metric.name} cannot be better or worse; '
                         'it needs no vendor value')
    if entry['unit'] != metric.unit:
        raise ValueError(f"unit is {entry['unit']!r}, {metric.name} is in "
                         f'{metric.unit!r}')
    for key in ('value', 'worse'):
        if type(entry[key]) not in (int, float) or not (
                0 < entry[key] < math.inf):
            raise ValueError(f'{key}: {entry[key]!r} is not a number above 0')
    if metric.better == 'higher' and entry['worse'] >= 1:
        raise ValueError(f"worse: {entry['worse']!r} would accept any value: "
                         'write a fraction below 1')
    if 'at' in entry and (type(entry['at']) is not int or entry['at'] <= 0):
        raise ValueError(f"at: {entry['at']!r} is not a size in bytes")
    try:
        re.compile(entry['when'])
    except re.error as err:
        raise ValueError(f'when: not a regular expression: {err}') from None
    return Row(**{**entry, 'date': str(entry['date'])})


def _refuse_unknown_name(name: str, known: Iterable[str], what: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(str(name), known, 1, 0)
        raise ValueError(f'unknown {what} {name!r}'
                         f'{f": did you mean {near[0]!r}?" if near else ""}')


def families_by_partition(configuration: Mapping[str, Any]) -> dict[str, set[str]]:
    """The families with programs on each partition of a site."""
    offered = {env['name']: set(env.get('extras', {}).get('programs', ()))
               for env in configuration['environments']}
    return {part['name']: set().union(*(offered.get(name, set())
                                        for name in part['environs']))
            for system in configuration['systems']
            for part in system['partitions']}


@functools.cache
def site_profile_rows() -> tuple[Row, ...]:
    """The rows of the current site; none without such a file."""
    site = site_folder()
    if site is None or not (site / 'vendor.yaml').exists():
        return ()
    # Read from the site's file: with --system NAME:PARTITION ReFrame's
    # runtime has that one partition only.
    configuration = runpy.run_path(str(site / SYSTEM))
    return load_vendor_rows(site / 'vendor.yaml',
                             families_by_partition(configuration['site_configuration']))


def vendor_rows_of_test_case(check: Any) -> tuple[Row, ...]:
    """The rows of a test case; empty if its program is embedded."""
    origin = families.program_origin(check.current_environ.extras, '', check.family)
    if check.emulated or origin.get('source') == 'embedded':
        return ()
    rows = tuple(row for row in site_profile_rows() if row.is_of(check))
    names = [row.metric_key for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise VendorError(
                f'vendor.yaml: two rows match {name} of '
                f'{check.params}: change `when` so that only one row matches'
            )
    return rows


def references_by_metric(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """Metric -> [value, lower, upper, unit], as in reference files."""
    return {row.metric_key: row.as_reference for row in rows}


def source_note(rows: Iterable[Row]) -> str:
    """Source and date of the rows; empty without rows."""
    sources = dict.fromkeys(f'{row.source} ({row.date})' for row in rows)
    return f'vendor profile: {"; ".join(sources)}' if sources else ''
