"""Reading regular files only, with a limit on their size; writing files atomically.

A path may lead to something else: the open of a FIFO waits for a writer, and a
device never ends.
"""
from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
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


@contextlib.contextmanager
def draft_of_file(path: Path) -> Iterator[Path]:
    """A path to write to; the file there replaces `path` when the block ends.

    If the block raises, `path` is unchanged. A symbolic link stays one: its target is
    replaced. A device or a FIFO is yielded itself.

    :raises OSError: the folder does not exist, or cannot be written to
    """
    if path.exists() and not path.is_file():
        yield path
        return
    path = path.resolve()
    handle, name = tempfile.mkstemp(prefix=f'.{path.name}.', suffix='.part',
                                    dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def write_file_atomically(path: Path, text: str) -> None:
    """Write a file completely or not at all.

    :raises OSError: it cannot be written; an existing file is unchanged
    """
    with draft_of_file(path) as draft:
        draft.write_text(text, 'utf-8')


def write_files_atomically(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder; none appears before all are on the disk.

    :param files: path below the folder -> content, renamed in this order
    :raises OSError: nothing was replaced, unless a rename itself failed
    """
    with contextlib.ExitStack() as stack:
        # The stack renames the last one first.
        for name, content in reversed([*files.items()]):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(draft_of_file(path)).write_bytes(content)
