"""The file of `plumb bundle`: a zip file with the wheels of the lock files, for one
Python and one platform.

A bundle is not trusted: pip compares each wheel with the hashes in the lock files of
the checkout, and chooses those that fit. This module imports the standard library only,
because set-up reads a bundle before anything is installed.
"""
from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

#: Variable with the path of the bundle that set-up installs from.
VARIABLE = 'PLUMBLINE_BUNDLE'
#: Name of a platform before PEP 600 -> x of the glibc 2.x that it means.
ALIASES = {'manylinux2014': 17, 'manylinux2010': 12, 'manylinux1': 5}


class BundleError(Exception):
    """A bundle cannot be used; the message says why and what to do."""


class Platform(NamedTuple):
    """Linux with glibc 2.MINOR or newer, on a type of machine (x86_64)."""
    minor: int
    machine: str

    def __str__(self) -> str:
        return f'manylinux_2_{self.minor}_{self.machine}'

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Read a name like manylinux_2_28_x86_64 or manylinux2014_x86_64.

        :raises BundleError: the text is not the name of such a platform
        """
        for alias, minor in ALIASES.items():
            text = re.sub(f'^{alias}_', f'manylinux_2_{minor}_', text)
        match = re.fullmatch(r'manylinux_2_(\d+)_(\w+)', text)
        if not match:
            raise BundleError(
                f'{text!r} is not a platform for which wheels are built; '
                'write manylinux_2_28_x86_64 for an x86_64 machine whose '
                '`ldd --version` prints 2.28 or more')
        return cls(int(match[1]), match[2])

    @classmethod
    def of_this_machine(cls) -> Platform:
        """The platform of this machine.

        :raises BundleError: its C library is not glibc
        """
        library, version = platform.libc_ver()
        if library != 'glibc':
            raise BundleError('the C library of this machine is not glibc, '
                              'which the wheels of the lock files need; use '
                              'a machine with glibc')
        return cls(int(version.split('.')[1]), os.uname().machine)

    @property
    def wheel_tags(self) -> list[str]:
        """Tags of the wheels that run on this platform, the newest first."""
        known = {minor: name for name, minor in ALIASES.items()}
        tags = []
        for minor in range(self.minor, 4, -1):
            tags.append(f'manylinux_2_{minor}_{self.machine}')
            if minor in known:
                tags.append(f'{known[minor]}_{self.machine}')
        return [*tags, f'linux_{self.machine}']


def sha256_of_file(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    checksum = hashlib.sha256()
    with open(path, 'rb') as handle:
        while block := handle.read(1 << 20):
            checksum.update(block)
    return checksum.hexdigest()


def write(file: Path, wheels: Mapping[str, Path]) -> None:
    """Write a bundle completely or not at all; equal wheels give equal files.

    :param wheels: name -> file
    """
    import zipfile
    draft = file.with_name(f'.{file.name}.{os.getpid()}')
    try:
        with zipfile.ZipFile(draft, 'w') as archive:
            for name in sorted(wheels):
                # With a name alone, the entry has a constant date and mode.
                archive.writestr(zipfile.ZipInfo(name), wheels[name].read_bytes())
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def unpack_wheels(file: Path, work: Path) -> Iterator[Path]:
    """A temporary folder with the wheels of a bundle.

    :param work: the folder in which it is made
    :raises BundleError: the bundle cannot be read, or is damaged
    """
    import tempfile
    import zipfile
    import zlib
    with tempfile.TemporaryDirectory(prefix='bundle.', dir=work) as folder:
        try:
            with zipfile.ZipFile(file) as archive:
                for name in archive.namelist():
                    # No name may lead out of the folder.
                    if not re.fullmatch(r'[^/]+\.whl', name):
                        raise zipfile.BadZipFile(f'{name} is not a wheel')
                    # Compares the checksum of the member.
                    Path(folder, name).write_bytes(archive.read(name))
        # A damaged file can also look compressed, encrypted or of a later version.
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError
                ) as err:
            raise BundleError(
                f'{file} is damaged, or was not made by `plumb bundle` of this version '
                f'({err}); copy the file again, and compare its sha256') from None
        except OSError as err:
            if err.filename != str(file):
                raise
            raise BundleError(
                f'{VARIABLE}={file} cannot be read ({err.strerror}); set it '
                'to the file that `plumb bundle` made') from None
        yield Path(folder)
