"""Check YAML files against Spack's own schema, in a separate process.

    python spack_schema.py SPACK_ROOT FILE...

The suite does not import Spack's modules, because they bring their own copies
of libraries. Neither clingo nor a package repository is needed. The program
prints JSON: Spack's version, the keys of each section, and for each file its
errors as (path, message).
"""
from __future__ import annotations

import json
import sys
from typing import Any

sys.path.insert(0, f'{sys.argv[1]}/lib/spack')

import spack
import spack.schema
import spack.schema.env
import spack.schema.merged
from spack.util import spack_yaml


def deepest_error(error: Any) -> Any:
    """The error of the alternative that matches most of the file."""
    while error.context:
        error = max(error.context, key=lambda e: (
            len(e.absolute_path), e.validator != 'type'))
    return error


def schema_errors_of_file(path: str) -> list[tuple[list[str | int], str]]:
    with open(path) as handle:
        try:
            data = spack_yaml.load_config(handle)
        except Exception as err:
            return [([], str(err).splitlines()[0])]
    schema = spack.schema.env if 'spack' in data else spack.schema.merged
    schema_errors = map(deepest_error, spack.schema.Validator(schema.schema)
                        .iter_errors(data))
    # Without the marks at the end of keys: they say how Spack merges them.
    return [([step if isinstance(step, int) else str(step).rstrip(':+-')
              for step in e.absolute_path], e.message) for e in schema_errors]


def keys_by_section() -> dict[str, list[str]]:
    """Section -> the keys that the schema allows."""
    schema: dict[str, Any] = spack.schema.merged.schema
    known = {}
    for name, section in schema['properties'].items():
        if '$ref' in section:
            section = schema['definitions'][section['$ref'].split('/')[-1]]
        known[name] = sorted(section.get('properties', {}))
    return known


json.dump({'version': spack.spack_version, 'keys': keys_by_section(),
           'errors': {path: schema_errors_of_file(path) for path in sys.argv[2:]}},
          sys.stdout)
