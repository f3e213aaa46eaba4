"""The file `measured.yaml` of a site: how its families were measured there."""
from __future__ import annotations

from pathlib import Path

from config import schema, strict
from config.families import families

FILE = 'measured.yaml'

#: Values of the file. A family that is not in it was never measured.
WAYS = ('real', 'emulated')


def read_measured_families(folder: Path) -> dict[str, str]:
    """Family -> how it was measured on a site; empty without the file.

    The documentation shows it (docs/generate.py).

    :arg folder: the site's folder
    :raises strict.Fault: the file is not a mapping of families to WAYS
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    data = strict.load_yaml(path)
    if not isinstance(data, strict.Mapping):
        raise strict.Fault(str(path), 1, 'expected FAMILY: real or FAMILY: emulated')
    for name, way in data.items():
        line = data.lines[name]
        if name not in families():
            raise strict.Fault(str(path), line, f'{name!r} is not a family; '
                               + schema.suggest_name(name, families()))
        if way not in WAYS:
            raise strict.Fault(str(path), line, f'{name}: expected real or '
                               f'emulated, got {way!r}')
    return dict(data)
