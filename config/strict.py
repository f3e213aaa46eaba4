"""YAML: what people edit is read strictly, tables of the suite fast.

PyYAML takes the last one of two equal keys and forgets lines. Here a
duplicate key is a fault, and every mapping knows the line of each key.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


class Fault(ValueError):
    """What is wrong with a file: `FILE:LINE: reason`."""

    def __init__(self, file: Path | str, line: int, reason: str) -> None:
        super().__init__(f'{file}:{line}: {reason}')
        self.file, self.line, self.reason = str(file), line, reason


class Mapping(dict):
    """A mapping of the file; `lines`: key -> the line that it stands at."""

    lines: dict[Any, int]

    @property
    def first_line(self) -> int:
        return min(self.lines.values(), default=1)


#: PyYAML's safe loader; libyaml's, where it was built with it, is ten times
#: as fast, and a site has some thousand cases.
_Safe: Any = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


class Loader(_Safe):
    """PyYAML's safe one, with :class:`Mapping` and without duplicates."""

    def mapping(self, node: yaml.MappingNode) -> Any:
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == 'tag:yaml.org,2002:merge':
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str | int | float | bool | None):
                raise Fault(self.name, line, f'{key!r} is no key')
            if key in lines:
                raise Fault(self.name, line, f'{key!r} stands here a second '
                            f'time (first in line {lines[key]}); remove one')
            lines[key] = line
        made = Mapping()
        made.lines = lines
        yield made
        made.update(self.construct_mapping(node))


Loader.add_constructor('tag:yaml.org,2002:map', Loader.mapping)


def table(path: Path) -> Any:
    """Data of a table that comes with the suite; tests see to its form."""
    return yaml.load(path.read_text(encoding='utf-8'), _Safe)


def load(path: Path) -> Any:
    """A file's data; its mappings are of :class:`Mapping`.

    :raises FileNotFoundError: there is no such file.
    :raises Fault: it cannot be read, is no YAML, or has a key twice.
    """
    try:
        text = path.read_text(encoding='utf-8')
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as err:
        raise Fault(path, 1, f'cannot be read: {err}') from None
    loader = Loader(text)
    loader.name = str(path)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as err:
        mark = getattr(err, 'problem_mark', None)
        raise Fault(path, mark.line + 1 if mark else 1, 'not YAML: '
                    f'{getattr(err, "problem", None) or err}') from None
    except ValueError as err:           # a date like 2026-99-99
        if isinstance(err, Fault):
            raise
        raise Fault(path, 1, f'not YAML: {err}') from None
    finally:
        loader.dispose()
