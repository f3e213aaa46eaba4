"""The file of `plumb bundle`: the wheels of the lock files, for one platform.

A tar file with ``bundle.json`` first, then each wheel once::

    {"bundle": 1, "suite": "0.1.0", "python": "3.11",
     "platform": "manylinux_2_28_x86_64",
     "locks": {"requirements": {"sha256": "6b..", "wheels": ["a-1-..whl"]}}}

The hashes of the wheels are in the lock files of the checkout, not here,
because a bundle is not trusted. This module imports the standard library only,
because set-up reads a bundle before anything is installed.
"""
from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:       # every command imports this, few read a bundle
    import tarfile

#: Variable with the path of the bundle that set-up installs from.
VARIABLE = 'PLUMBLINE_BUNDLE'
#: Version of the format.
FORMAT = 1
CONTENTS = 'bundle.json'
#: Name of a platform before PEP 600 -> x of the glibc 2.x that it means.
ALIASES = {'manylinux2014': 17, 'manylinux2010': 12, 'manylinux1': 5}
COPY_AGAIN = 'copy the file again, and compare its sha256'


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


def write(file: Path, contents: Mapping[str, Any],
          wheels: Mapping[str, Path]) -> None:
    """Write a bundle completely or not at all; equal wheels give equal files.

    :param contents: the contents of bundle.json without the format's version
    :param wheels: name -> file
    """
    import tarfile

    def reset_metadata(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ''
        member.mode = 0o644
        return member

    draft = file.with_name(f'.{file.name}.{os.getpid()}')
    try:
        with tarfile.open(draft, 'w') as tar:
            text = json.dumps({'bundle': FORMAT, **contents}, indent=1)
            head = tarfile.TarInfo(CONTENTS)
            head.size = len(text.encode())
            tar.addfile(reset_metadata(head), io.BytesIO(text.encode()))
            for name in sorted(wheels):
                tar.add(wheels[name], name, filter=reset_metadata)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def unpack_wheels(file: Path, lock: Path, work: Path) -> Iterator[Path]:
    """A temporary folder with the wheels of a lock file.

    The hash of each wheel is compared with the lock file.

    :param work: the folder in which it is made
    :raises BundleError: the bundle is damaged, or not for this machine or
        checkout
    """
    import tarfile
    import tempfile
    with contextlib.ExitStack() as stack:
        try:
            tar = stack.enter_context(tarfile.open(file, 'r:'))
            members = {member.name: member for member in tar}
            contents = json.loads(_read_member(tar, members[CONTENTS]))
            if contents['bundle'] != FORMAT:
                raise BundleError(
                    f'{file} has format {contents["bundle"]} of a bundle, '
                    f'but this checkout reads only format {FORMAT}; make a '
                    'new bundle with this checkout')
            _refuse_other_platform(file, contents, lock)
            folder = Path(stack.enter_context(
                tempfile.TemporaryDirectory(prefix='bundle.', dir=work)))
            hashes = lock.read_text()
            for name in contents['locks'][lock.stem]['wheels']:
                if name not in members or '/' in name:
                    raise BundleError(f'{file} is not complete: {name} is '
                                      f'missing; {COPY_AGAIN}')
                data = _read_member(tar, members[name])
                if hashlib.sha256(data).hexdigest() not in hashes:
                    raise BundleError(
                        f'{file} is damaged: the hash of {name} is not in '
                        f'{lock.name}; {COPY_AGAIN}')
                (folder / name).write_bytes(data)
        except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError
                ) as err:
            raise BundleError(
                f'{file} is damaged, or was not made by `plumb bundle` '
                f'({type(err).__name__}: {err}); {COPY_AGAIN}') from None
        except OSError as err:
            if err.filename != str(file):
                raise
            raise BundleError(
                f'{VARIABLE}={file} cannot be read ({err.strerror}); set it '
                'to the file that `plumb bundle` made') from None
        yield folder


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    handle = tar.extractfile(member)
    if handle is None:
        raise ValueError(f'{member.name} is not a file')
    return handle.read()


def _refuse_other_platform(file: Path, contents: dict[str, Any], lock: Path) -> None:
    """Refuse a bundle that is not for this Python, machine or lock file."""
    python = '.'.join(map(str, sys.version_info[:2]))
    if contents['python'] != python:
        raise BundleError(
            f'{file} is for Python {contents["python"]}, but this is Python '
            f'{python} ({sys.executable}); make a bundle with --python '
            f'{python}, or set PLUMBLINE_PYTHON to a Python '
            f'{contents["python"]}')
    built, here = Platform.parse(contents['platform']), Platform.of_this_machine()
    if built.machine != here.machine or built.minor > here.minor:
        raise BundleError(f'{file} is for {built}, but this machine is '
                          f'{here}; make a bundle with --platform {here}')
    known = contents['locks'].get(lock.stem)
    if known is None or known['sha256'] != sha256_of_file(lock):
        raise BundleError(
            f'{file} was made with a different config/python/{lock.name} '
            f'(version {contents["suite"]} of the suite); make a new bundle '
            'with this checkout')
