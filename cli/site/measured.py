"""The file `measured.yaml` of a site: how its families were measured there."""
from __future__ import annotations

from pathlib import Path

from config import schema, strict
from config.families import families

FILE = 'measured.yaml'


def read_measured_families(folder: Path) -> dict[str, str]:
    """Family -> how it was measured on a site: real or emulated. A family that is not
    in the file was never measured.

    The documentation shows it (docs/generate.py).

    :arg folder: the site's folder
    :raises strict.Fault: the file has another family or word
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    data = strict.load_yaml(path)
    rows = dict.fromkeys(families(), {'enum': ['real', 'emulated']})
    for fault in schema.faults_by_schema(str(path), data, {
            'type': 'object', 'additionalProperties': False, 'properties': rows}):
        raise fault
    return dict(data)
