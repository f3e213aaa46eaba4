"""Units as people read them; records and files keep the units of metrics."""
from __future__ import annotations

#: Unit of a metric -> its text for people. A dimensionless value has none.
_TEXTS = {'1': '', 'us': 'µs'}


def unit_text(unit: str) -> str:
    """The text of a unit for people.

    >>> unit_text('us'), unit_text('MB/s'), unit_text('1')
    ('µs', 'MB/s', '')
    """
    return _TEXTS.get(unit, unit)
