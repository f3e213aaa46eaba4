"""Perflogs as bytes: plain, or unpacked (.gz, .zst) up to a limit.

A few KiB can unpack to terabytes. A perflog unpacks to some 20 times its
size; more than FACTOR times is not one, once it is more than FREE bytes.
"""
from __future__ import annotations

import contextlib
import gzip
import importlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from config import regular

#: Bytes that any file may unpack to, and how many times its size beyond that.
FREE, FACTOR = 64 << 20, 200


class Damaged(Exception):
    """A compressed file cannot be read further."""


class Limited:
    """An unpacked file that ends with an error after `most` bytes."""

    def __init__(self, unpacked: Any, most: int) -> None:
        self.unpacked, self.most = unpacked, most

    def read(self, size: int) -> bytes:
        return self._counted(self.unpacked.read(size))

    def readline(self, size: int) -> bytes:
        return self._counted(self.unpacked.readline(size))

    def seek(self, offset: int) -> None:
        """Goes to a place in the unpacked bytes."""
        if offset > self.unpacked.tell():
            # Unpacks all that is between.
            self._counted(b'', offset)
        self.unpacked.seek(offset)

    def _counted(self, data: bytes, place: int = 0) -> bytes:
        if max(place, self.unpacked.tell()) > self.most:
            raise Damaged(f'it unpacks to more than {self.most >> 20} MiB, '
                          f'{FACTOR} times its size: not a perflog')
        return data


@contextlib.contextmanager
def opened(file: Path) -> Iterator[Any]:
    """The bytes of a file, unpacked.

    :raises OSError: it cannot be read, or is not a regular file
    :raises Damaged: what is compressed is damaged, or unpacks to too much
    """
    with regular.opened(file) as handle:
        broken: tuple[type[Exception], ...] = ()
        unpacked: Any = handle
        if file.suffix == '.gz':
            unpacked = gzip.GzipFile(fileobj=handle)
            broken = (gzip.BadGzipFile, zlib.error, EOFError)
        elif file.suffix == '.zst':
            zstd = _zstd()
            unpacked = zstd.ZstdFile(handle)
            broken = (zstd.ZstdError, EOFError)
        if unpacked is not handle:
            size = os.fstat(handle.fileno()).st_size
            unpacked = Limited(unpacked, max(FREE, FACTOR * size))
        try:
            yield unpacked
        except broken as err:
            raise Damaged(err) from None


def _zstd() -> Any:
    """Python's module for zstd, which 3.14 is the first to have."""
    for name in ('compression.zstd', 'backports.zstd'):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise OSError('no module for zstd: run ./plumb again')
