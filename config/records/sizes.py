"""Sizes of messages as text."""
from __future__ import annotations


def size_with_unit(count: int) -> str:
    """A size as `8 B` or `4 MiB`: in the largest unit with a whole number."""
    for unit in ('B', 'KiB', 'MiB'):
        if count < 1024 or count % 1024:
            return f'{count} {unit}'
        count //= 1024
    return f'{count} GiB'
