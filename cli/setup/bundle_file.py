"""The file of `plumb bundle`: the wheels of the lock files, for one platform.

A tar file with ``bundle.json`` first, then each wheel once::

    {"bundle": 1, "suite": "0.1.0", "python": "3.11",
     "platform": "manylinux_2_28_x86_64",
     "locks": {"requirements": {"sha256": "6b..", "wheels": ["a-1-..whl"]}}}

The hashes of wheels stand in the lock files of the checkout, not here: a
bundle is not trusted. Standard library only: set-up reads it before anything
is installed.
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

#: Names the bundle that set-up is to take.
VARIABLE = 'PLUMBLINE_BUNDLE'
#: Number of the format.
FORMAT = 1
CONTENTS = 'bundle.json'
#: Names of before PEP 600, and the glibc 2.x that each stands for.
ALIASES = {'manylinux2014': 17, 'manylinux2010': 12, 'manylinux1': 5}
COPY_AGAIN = 'copy it again, and compare its sha256'


class BundleError(Exception):
    """A bundle cannot be used; the message says why and what to do."""


class Platform(NamedTuple):
    """A Linux with glibc 2.MINOR or newer on a machine."""
    minor: int
    machine: str

    def __str__(self) -> str:
        return f'manylinux_2_{self.minor}_{self.machine}'

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Of manylinux_2_28_x86_64, also of manylinux2014_x86_64.

        :raises BundleError: it is none
        """
        for alias, minor in ALIASES.items():
            text = re.sub(f'^{alias}_', f'manylinux_2_{minor}_', text)
        match = re.fullmatch(r'manylinux_2_(\d+)_(\w+)', text)
        if not match:
            raise BundleError(
                f'no platform that wheels are built for: {text!r}; for a '
                'machine x86_64 whose `ldd --version` says 2.28 or more: '
                'manylinux_2_28_x86_64')
        return cls(int(match[1]), match[2])

    @classmethod
    def here(cls) -> Platform:
        """That of this machine.

        :raises BundleError: its C library is not glibc
        """
        library, version = platform.libc_ver()
        if library != 'glibc':
            raise BundleError('no glibc here, and wheels of the locks are '
                              'built for it: take a machine that has it')
        return cls(int(version.split('.')[1]), os.uname().machine)

    @property
    def tags(self) -> list[str]:
        """Tags of the wheels that run there, the newest first."""
        known = {minor: name for name, minor in ALIASES.items()}
        tags = []
        for minor in range(self.minor, 4, -1):
            tags.append(f'manylinux_2_{minor}_{self.machine}')
            if minor in known:
                tags.append(f'{known[minor]}_{self.machine}')
        return [*tags, f'linux_{self.machine}']


def digest(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    checksum = hashlib.sha256()
    with open(path, 'rb') as handle:
        while block := handle.read(1 << 20):
            checksum.update(block)
    return checksum.hexdigest()


def write(file: Path, contents: Mapping[str, Any],
          wheels: Mapping[str, Path]) -> None:
    """Writes a bundle, whole or not at all; the same wheels, the same file.

    :param contents: of bundle.json, but its format's number
    :param wheels: name -> file
    """
    import tarfile

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
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
            tar.addfile(plain(head), io.BytesIO(text.encode()))
            for name in sorted(wheels):
                tar.add(wheels[name], name, filter=plain)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def unpacked(file: Path, lock: Path, work: Path) -> Iterator[Path]:
    """A folder, for as long as it is needed, with the wheels of a lock file.

    Each wheel's hash was found in the lock file.

    :param work: where the folder is made
    :raises BundleError: it is not for this machine or checkout, or damaged
    """
    import tarfile
    import tempfile
    with contextlib.ExitStack() as stack:
        try:
            tar = stack.enter_context(tarfile.open(file, 'r:'))
            members = {member.name: member for member in tar}
            contents = json.loads(_data(tar, members[CONTENTS]))
            if contents['bundle'] != FORMAT:
                raise BundleError(
                    f'{file}: a bundle of format {contents["bundle"]}, and '
                    f'this checkout reads {FORMAT}: make one with this '
                    'checkout')
            _fits(file, contents, lock)
            folder = Path(stack.enter_context(
                tempfile.TemporaryDirectory(prefix='bundle.', dir=work)))
            hashes = lock.read_text()
            for name in contents['locks'][lock.stem]['wheels']:
                if name not in members or '/' in name:
                    raise BundleError(f'{file} lacks {name}, which it should '
                                      f'have: {COPY_AGAIN}')
                data = _data(tar, members[name])
                if hashlib.sha256(data).hexdigest() not in hashes:
                    raise BundleError(
                        f'{file}: {name} is not what {lock.name} has the '
                        f'hash of, the file is damaged: {COPY_AGAIN}')
                (folder / name).write_bytes(data)
        except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError
                ) as err:
            raise BundleError(
                f'{file} is damaged, or was not made by `plumb bundle` '
                f'({type(err).__name__}: {err}): {COPY_AGAIN}') from None
        except OSError as err:
            if err.filename != str(file):
                raise
            raise BundleError(
                f'{VARIABLE}={file} cannot be read ({err.strerror}): name '
                'the file that `plumb bundle` made') from None
        yield folder


def _data(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    handle = tar.extractfile(member)
    if handle is None:
        raise ValueError(f'{member.name} is no file')
    return handle.read()


def _fits(file: Path, contents: dict[str, Any], lock: Path) -> None:
    """Whether a bundle is for this Python, machine and lock file."""
    python = '.'.join(map(str, sys.version_info[:2]))
    if contents['python'] != python:
        raise BundleError(
            f'{file} is for Python {contents["python"]}, and this is '
            f'{python} ({sys.executable}): make one with --python {python}, '
            'or set PLUMBLINE_PYTHON to the other Python')
    built, here = Platform.parse(contents['platform']), Platform.here()
    if built.machine != here.machine or built.minor > here.minor:
        raise BundleError(f'{file} is for {built}, and this machine is '
                          f'{here}: make one with --platform {here}')
    known = contents['locks'].get(lock.stem)
    if known is None or known['sha256'] != digest(lock):
        raise BundleError(
            f'{file} was made of another config/python/{lock.name} (version '
            f'{contents["suite"]} of the suite): make one with this checkout')
