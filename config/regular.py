"""Reading regular files only, with a limit on their size.

A path may lead to something else: the open of a FIFO waits for a writer, and a
device never ends.
"""
from __future__ import annotations

import errno
import os
import stat
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
