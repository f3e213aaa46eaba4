"""Reading regular files only, with a limit on their size; writing files atomically.

A path may lead to something else: the open of a FIFO waits for a writer, and a
device never ends.
"""
from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path
from typing import Any

#: Maximum size of a text file. Unit: bytes.
LARGEST = 256 << 20


def open_regular_file(path: os.PathLike[str] | str) -> Any:
    """Open a regular file to read its bytes.

    :raises OSError: it cannot be read, or is not a regular file
    """
    handle = open(path, 'rb', opener=lambda name, flags: os.open(
        name, flags | os.O_NONBLOCK))
    mode = os.fstat(handle.fileno()).st_mode
    if not stat.S_ISREG(mode):
        handle.close()
        raise OSError(errno.EINVAL, 'it is not a regular file')
    return handle


def read_regular_file(path: os.PathLike[str] | str, largest: int = LARGEST) -> str:
    """The text of a regular file, like `Path.read_text`.

    :raises OSError: it cannot be read, is not a regular file, or is larger
    :raises UnicodeDecodeError: it is not UTF-8
    """
    with open_regular_file(path) as handle:
        data = handle.read(largest + 1)
    if len(data) > largest:
        raise OSError(errno.EFBIG, f'it has more than {largest >> 20} MiB')
    return data.decode('utf-8').replace('\r\n', '\n').replace('\r', '\n')


def write_file_atomically(path: Path, text: str) -> None:
    """Write a file completely or not at all.

    :raises OSError: it cannot be written; an existing file is unchanged
    """
    draft = path.with_name(f'.{path.name}.{secrets.token_hex(3)}')
    try:
        draft.write_text(text, encoding='utf-8')
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
