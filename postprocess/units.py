"""Units as people read them; records and files keep the units of metrics."""
from __future__ import annotations

#: Unit of a metric -> its text for people. A dimensionless value has none.
_TEXTS = {'1': '', 'us': 'µs'}


def display_unit(unit: str) -> str:
    """The text of a unit for people.

    >>> display_unit('us'), display_unit('MB/s'), display_unit('1')
    ('µs', 'MB/s', '')
    """
    return _TEXTS.get(unit, unit)
