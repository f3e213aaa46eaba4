"""A file of texts and columns, as they stand in memory.

    8 bytes    length of the header, little-endian
    header     JSON: texts, and of each column its type, begin and bytes
    columns    as the machine has them

Written and read by the standard library alone. The file is mapped: nothing is
read of it but what is asked for.
"""
from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Columns begin at multiples of this.
_ALIGN = 8


def write(file: Path, texts: Mapping[str, Any], columns: Mapping[str, Any]
          ) -> None:
    """
    :param texts: what JSON can hold
    :param columns: what supports Python's buffers, of one dimension, not empty
    """
    views = {name: memoryview(column) for name, column in columns.items()}
    places, at = {}, 0
    for name, view in views.items():
        places[name] = (view.format, at, view.nbytes)
        at += -(-view.nbytes // _ALIGN) * _ALIGN
    header = json.dumps({'order': sys.byteorder, 'columns': places,
                         'texts': texts}, separators=(',', ':')).encode()
    header += b' ' * (-len(header) % _ALIGN)
    with open(file, 'wb') as handle:
        handle.write(len(header).to_bytes(8, 'little') + header)
        for view in views.values():
            handle.write(view)
            handle.write(bytes(-view.nbytes % _ALIGN))


def read(file: Path) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """Texts and columns.

    :raises ValueError, LookupError, TypeError: it is damaged
    """
    with open(file, 'rb') as handle:
        view = memoryview(mmap.mmap(handle.fileno(), 0,
                                    access=mmap.ACCESS_READ))
    begin = 8 + int.from_bytes(view[:8], 'little')
    header = json.loads(view[8:begin].tobytes())
    if header['order'] != sys.byteorder:
        raise ValueError('of another machine')
    return header['texts'], {
        name: view[begin + at:begin + at + size].cast(form)
        for name, (form, at, size) in header['columns'].items()}
