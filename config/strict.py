"""Reading YAML: strictly for files that people edit, fast for our tables.

PyYAML takes the last of two equal keys and does not keep lines. Here a
duplicate key is a fault, and every mapping has the line of each key.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from config import regular
from config.commandline import SetupError


class Fault(SetupError, ValueError):
    """A fault of a file: `FILE:LINE: reason`."""

    def __init__(self, file: Path | str, line: int, reason: str) -> None:
        super().__init__(f'{file}:{line}: {reason}')
        self.file, self.line, self.reason = str(file), line, reason


class Mapping(dict):
    """A mapping of the file; `lines`: key -> the line of the key."""

    lines: dict[Any, int]

    @property
    def first_line_number(self) -> int:
        """Line of the first key; 1 if the mapping is empty."""
        return min(self.lines.values(), default=1)


#: PyYAML's safe loader. With libyaml it is ten times as fast, which matters
#: for a site with thousands of test cases.
_Safe: Any = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


class Loader(_Safe):
    """PyYAML's safe loader, with :class:`Mapping` and without duplicates."""

    def construct_mapping_with_lines(self, node: yaml.MappingNode) -> Any:
        """Construct a :class:`Mapping`, as a generator that PyYAML resumes to fill the
        mapping.

        :raises Fault: a key occurs twice, or is neither text nor a number
        """
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == 'tag:yaml.org,2002:merge':
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str | int | float | bool | None):
                raise Fault(self.name, line, f'{key!r} cannot be a key; '
                            'write text or a number')
            if key in lines:
                raise Fault(self.name, line, f'{key!r} occurs twice here '
                            f'(first in line {lines[key]}); remove one')
            lines[key] = line
        made = Mapping()
        made.lines = lines
        yield made
        made.update(self.construct_mapping(node))


Loader.add_constructor('tag:yaml.org,2002:map', Loader.construct_mapping_with_lines)


def load_trusted_yaml(path: Path) -> Any:
    """Data of a table of the suite; tests check its form."""
    return yaml.load(path.read_text(encoding='utf-8'), _Safe)


def load_yaml(path: Path) -> Any:
    """The data of a file; its mappings are of :class:`Mapping`.

    :raises FileNotFoundError: the file does not exist
    :raises Fault: it cannot be read, is not YAML, or has a key twice
    """
    try:
        text = regular.read_regular_file(path)
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as err:
        raise Fault(path, 1, f'cannot be read: {err}') from None
    return parse_yaml(text, path)


def parse_yaml(text: str, file: Path | str) -> Any:
    """The data of a file's text, as `load_yaml` has it.

    :raises Fault: as `load_yaml`.
    """
    try:
        loader = Loader(text)
        loader.name = str(file)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as err:
        mark = getattr(err, 'problem_mark', None)
        raise Fault(file, mark.line + 1 if mark else 1, 'not YAML: '
                    f'{getattr(err, "problem", None) or err}') from None
    except ValueError as err:           # a date like 2026-99-99
        if isinstance(err, Fault):
            raise
        raise Fault(file, 1, f'not YAML: {err}') from None
