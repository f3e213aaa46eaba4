"""Files that people edit, checked against a JSON schema of config/schemas/.

Each fault names the file, the line, the keys that lead to the value, and
what is allowed there. Two keys of our schemas are not part of JSON schema,
which ignores them: `expected` completes a message "expected ...", and
`examples` has the text to write if a required key is missing.
"""
from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import strict

if TYPE_CHECKING:
    # Imported only if a file is checked: most commands check none.
    import jsonschema

FOLDER = Path(__file__).with_name('schemas')
#: JSON schema's type -> its name in a message.
TYPES = {'object': 'a mapping', 'array': 'a list', 'string': 'text',
         'boolean': 'true or false', 'number': 'a number',
         'integer': 'an integer'}


@functools.cache
def _load_schema(name: str, part: str) -> dict[str, Any]:
    schema = strict.load_trusted_yaml(FOLDER / f'{name}.yaml')
    if part:
        schema = {'$defs': schema['$defs'], '$ref': f'#/$defs/{part}'}
    return schema


def schema_faults(file: str, data: Any, name: str, part: str = ''
           ) -> list[strict.Fault]:
    """All faults of a file's data, as `faults_by_schema` gives them.

    :param name: name of the schema: config/schemas/NAME.yaml
    :param part: the part of its `$defs`; '': the whole schema
    """
    return faults_by_schema(file, data, _load_schema(name, part))


def faults_by_schema(file: str, data: Any, schema: Mapping[str, Any]
                     ) -> list[strict.Fault]:
    """All faults of a file's data, in the order of its lines.

    Missing keys come last, because the cause may be a misspelt key.

    :param file: name of the file in messages
    :param data: from :func:`strict.load_yaml`
    """
    import jsonschema
    kind = jsonschema.Draft202012Validator
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    errors = [(error.validator in ('required', 'anyOf'), fault.line, fault)
              for error in validator.iter_errors(data)
              for fault in _faults_of_error(file, data, error)]
    return [fault for *_, fault in sorted(errors, key=lambda row: row[:2])]


def fault_at_path(file: str, data: Any, path: Iterable[Any], reason: str
          ) -> strict.Fault:
    """A fault at a path of keys and positions of the data, or at the existing
    part of this path."""
    line = getattr(data, 'first_line_number', 1)
    keys = []
    for step in path:
        if not isinstance(step, int):
            keys.append(str(step))
        if isinstance(data, strict.Mapping):
            line = data.lines.get(step, line)
        try:
            data = data[step]
        except (KeyError, TypeError, IndexError):
            data = None
        line = max(line, getattr(data, 'first_line_number', line))
    return strict.Fault(file, line, ': '.join([*keys, reason]))


def suggest_name(name: Any, known: Iterable[Any]) -> str:
    """A suggestion for an unknown name, or the list of known names."""
    known = [str(one) for one in known]
    close = difflib.get_close_matches(str(name), known, 1, 0.5)
    if close:
        return f'did you mean {close[0]!r}?'
    if len(known) > 20:
        return 'check its spelling'
    return f'allowed: {", ".join(map(repr, known)) or "none"}'


def _faults_of_error(file: str, data: Any, error: jsonschema.ValidationError
              ) -> Iterator[strict.Fault]:
    path, schema = [*error.absolute_path], error.schema
    assert isinstance(schema, dict)
    known = schema.get('properties', {})
    if error.validator == 'additionalProperties':
        for key in error.instance:
            if key not in known:
                below = fault_at_path(file, data, [*path, key], '')
                yield strict.Fault(
                    file, below.line, fault_at_path(file, data, path, '').reason
                    + f'unknown key {key!r}; {suggest_name(key, known)}')
    elif error.validator == 'required':
        for key in schema['required']:
            # One error per missing key: each names its own.
            if error.message.startswith(f'{key!r} '):
                write = [f'write {text}' for text in
                         known.get(key, {}).get('examples', ())]
                needs = f'it needs {", ".join(schema["required"])}'
                yield fault_at_path(file, data, path, f'{key} is missing; '
                                    + ''.join(write or [needs]))
    elif 'propertyNames' in error.absolute_schema_path:
        yield fault_at_path(
            file, data, [*path, error.instance], _reason_of_error(error)
        )
    else:
        yield fault_at_path(file, data, path, _reason_of_error(error))


def _reason_of_error(error: jsonschema.ValidationError) -> str:
    """The fault of a value, with what is allowed."""
    schema, value = error.schema, error.instance
    assert isinstance(schema, dict)
    if error.validator == 'format' and error.validator_value == 'regex':
        return f'{value!r} is not a regular expression: {error.cause}'
    if error.validator == 'enum':
        return f'{value!r} is not allowed; {suggest_name(value, schema["enum"])}'
    expected = schema.get('expected') or TYPES[schema['type']]
    if error.validator == 'anyOf' and isinstance(value, dict):
        return f'expected {expected}'
    return f'expected {expected}, got {value!r}'
