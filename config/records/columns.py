"""Columns of the perflogs, and the records of results that others saved."""
from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from config import strict
from config.families import all_metrics

#: System, partition, environment and source of saved results without a name.
SAVED = 'saved'
#: Source of records that no program measured (cli/demo). They never become references.
MADE_UP = 'made-up'


@functools.cache
def schema_number_and_columns() -> tuple[int, tuple[str, ...]]:
    """Number of the schema of perflogs, and the names of the columns in order."""
    data = strict.load_trusted_yaml(
        Path(__file__).resolve().parents[1] / 'perflog.yaml')
    return data['schema'], tuple(data['columns'])


def saved_value_records(values: Sequence[float], metric: str, unit: str,
                        size: int | str | None, **columns: Any
                        ) -> Iterator[dict[str, Any]]:
    """Records of a metric that others measured: one per repetition, and the median
    of several.

    :param values: values of the repetitions
    :param metric: a metric of a family.yaml
    :param size: point on the curve; empty or None: no curve. Unit: B
    :param columns: columns of the test case
    """
    record = {
        'schema': schema_number_and_columns()[0], 'partition': SAVED,
        'environ': SAVED, 'source': SAVED, 'emulated': 0, 'speed': '-',
        'metric': metric, 'unit': unit, 'better': all_metrics()[metric]['better'],
        'point': '' if size in ('', None) else f'{size} B',
        'result': 'no_reference', **columns}
    for number, value in enumerate(values, 1):
        yield record | {'repetition': number, 'value': repr(value)}
    if len(values) > 1:
        yield record | {'repetition': 0, 'value': repr(statistics.median(values))}
