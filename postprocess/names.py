"""Short names of test cases, the same everywhere, and the natural order of names."""
from __future__ import annotations

import re

from config.families import parameters_by_name, printed_name

#: Maximum width of a name without the mark of embedded programs. Unit: characters.
WIDTH = 60
#: Values of parameters that are usual, so that a name leaves them out.
USUAL = {'', '0', '1', 'off', 'False', 'none', 'host', 'standard'}


def natural_sort_key(text: str) -> str:
    """A key that sorts '2 nodes' before '10 nodes'."""
    return re.sub(r'\d+', lambda number: number[0].zfill(9), text)


def short_name(check: str, params: str, settings: str, test_case: str,
               source: str = '') -> str:
    """The name of a test case: program, unusual parameters, settings and short id,
    which `plumb run` takes. The id alone makes it unique; a name that is too long is
    cut before it, with a mark.

    :param check, params, settings, test_case, source: columns of a record; a check
        without a parameter `program` is named by itself

    >>> short_name('Copy', 'program=copy_bw placement=intra_node', '', 'a38ba5b9')
    'copy_bw intra_node a38ba5b9'
    >>> short_name('StoreServes', 'store=redis plain=False', 'payload=64', 'b328e76d')
    'StoreServes redis payload=64 b328e76d'
    >>> short_name('Copy', 'program=copy_bw', '', 'a38ba5b9', 'embedded')
    'copy_bw (embedded) a38ba5b9'
    """
    values = parameters_by_name(params)
    program = values.pop('program', '') or check
    words = [program]
    words += [f'{name}={value}' if value.isdecimal() else
              name if value == 'True' else value
              for name, value in values.items() if value not in USUAL]
    text, end = ' '.join(filter(None, [*words, settings])), f' {test_case}'.rstrip()
    if len(text) > WIDTH - len(end):
        text = text[:WIDTH - len(end) - 1].rstrip() + '…'
    return printed_name(program, source) + text[len(program):] + end
