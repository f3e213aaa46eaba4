"""What the suite's YAML says of perflogs: the columns of a record, and the
metrics there are.

To read it takes longer than to read a night, so the store keeps it with the
hash of these files (postprocess/manifest.py), and gives it back.
"""
from __future__ import annotations

from typing import Any

_TEXTS = ('unit', 'better', 'point', 'means')
_known: dict[str, Any] = {}


def metrics() -> dict[str, dict[str, str]]:
    """Every metric: name -> {unit, better, point, means}."""
    if 'metrics' not in _known:
        from config import families
        _known['metrics'] = {
            name: {key: row[key] for key in _TEXTS}
            for name, row in families.metrics().items()}
    return _known['metrics']


def schema() -> tuple[int, tuple[str, ...]]:
    """Number and columns of the schema that is written."""
    if 'schema' not in _known:
        from config import strict
        from config.families import ROOT
        table = strict.table(ROOT / 'config' / 'perflog.yaml')
        _known['schema'] = [table['schema'], [*table['columns']]]
    number, columns = _known['schema']
    return number, tuple(columns)


def kept() -> dict[str, Any]:
    """All of it, as JSON has it."""
    metrics()
    schema()
    return _known


def take(given: Any) -> None:
    """Takes what `kept` gave, of the same files; nonsense is let be."""
    try:
        number, columns = given['schema']
        good = isinstance(number, int) and all(
            isinstance(name, str) for name in columns) and all(
                isinstance(row[key], str) for row
                in given['metrics'].values() for key in _TEXTS)
    except (LookupError, TypeError, ValueError, AttributeError):
        return
    if good:
        for name in ('schema', 'metrics'):
            _known.setdefault(name, given[name])
