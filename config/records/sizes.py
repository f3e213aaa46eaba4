"""Sizes of messages in words."""
from __future__ import annotations


def exact(count: int) -> str:
    """`8 B`, `4 MiB`: in the largest unit that leaves a whole number."""
    for unit in ('B', 'KiB', 'MiB'):
        if count < 1024 or count % 1024:
            return f'{count} {unit}'
        count //= 1024
    return f'{count} GiB'
