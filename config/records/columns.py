"""Columns of the perflogs (config/perflog.yaml), and texts in them."""
from __future__ import annotations

import functools
from pathlib import Path

from config import strict

#: What ReFrame writes between two columns.
DELIMITER = '|'
#: System, partition, environment and source of saved results without a name.
SAVED = 'saved'
#: Columns of the CSV of `plumb parse`, which `--from` reads. `output` counts the
#: outputs in a file.
PARSED = ('file', 'output', 'time', 'family', 'program', 'version', 'num_nodes',
          'num_tasks', 'params', 'size', 'metric', 'value', 'unit')
#: Source of records that no program measured (cli/demo). They never become references.
MADE_UP = 'made-up'


@functools.cache
def row_formats() -> dict[str, str]:
    """Column -> what ReFrame's format has for it, e.g. `%(check_nodes)s`, in order."""
    data = strict.load_trusted_yaml(
        Path(__file__).resolve().parents[1] / 'perflog.yaml')
    return {name: column['reframe'] for name, column in data['columns'].items()}


@functools.cache
def reframe_names() -> dict[str, str]:
    """Column -> name that ReFrame has for it, in a header of rows and in a report."""
    return {name: text.removeprefix('%(').removesuffix(')s').removeprefix('check_')
            for name, text in row_formats().items()}


def text_for_row(text: object) -> str:
    """A text as a row may have it: without delimiters and control characters.

    ReFrame quotes nothing, so such a character would shift the columns.
    """
    return ''.join(' ' if c == DELIMITER or not c.isprintable() else c
                   for c in str(text))
