"""What is known of a folder's perflogs: the manifest of their store.

Standard library alone: a question to a store that is up to date
(postprocess/lookup.py) is answered before numpy would be imported.
postprocess/store.py writes all of it, and says what stands where.
"""
from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from config import lock as locks

from . import plans, tree

FOLDER, MANIFEST, VERSION = '.store', 'manifest.json', 4
ROOT = Path(__file__).resolve().parent.parent

T = TypeVar('T')


class StoreError(Exception):
    """The store cannot be used; the perflogs can."""


#: What a question raises where the store is damaged, or somebody's nonsense.
DAMAGED = (StoreError, LookupError, TypeError, ValueError, AttributeError)


class Known:
    """What the manifest says; empty where there is none that can be used."""

    def __init__(self, folder: Path, place: Path) -> None:
        """
        :param folder: of the perflogs
        :param place: of the store, or where one is to be made
        """
        self.folder, self.place = folder, place
        self.manifest = self._manifest()
        self._broken: list[tuple[Path, int, str]] = []

    def _key(self) -> str:
        """What the records depend on besides the perflogs: their format, and
        the metrics there are. Of the files, for to parse them takes longer
        than all that a question to the store takes."""
        found = hashlib.sha256(f'{VERSION}'.encode())
        for path in sorted([*ROOT.glob('config/*.yaml'),
                            *ROOT.glob('checks/*/family.yaml')]):
            found.update(path.read_bytes())
        return found.hexdigest()[:16]

    def _manifest(self) -> dict[str, Any]:
        empty = {'key': self._key(), 'next': 1, 'files': {}, 'parts': {}}
        try:
            found = json.loads((self.place / MANIFEST).read_text())
            if found['key'] != empty['key']:
                return empty
            for name, part in found['parts'].items():
                if not re.fullmatch(r'p\d+', name):
                    return empty
                for file, size in part['sizes'].items():
                    if os.stat(f'{self.place}/{name}/{file}').st_size != size:
                        return empty
            return found
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return empty

    def faults(self) -> list[tuple[Path, int, str]]:
        """File, line and reason of all that was wrong with the perflogs."""
        return self._broken + [
            (self.folder / name, line, reason)
            for name, file in self.manifest['files'].items()
            for line, reason in file['faults'] + file['ends']]

    def current(self) -> bool:
        """Whether no perflog has changed since."""
        there = self._files()
        known = self.manifest['files']
        return (self.place / MANIFEST).exists() and not self._broken \
            and there.keys() == known.keys() and all(
                stat(there[name]) == known[name]['stat'] for name in there)

    def _files(self) -> dict[str, Path]:
        """Perflogs by their name below the folder; `_broken`: what could
        not be searched."""
        self._broken = []

        def report(file: Path, line: int, reason: str) -> None:
            self._broken.append((file, line, reason))

        root = '' if self.folder == Path() else f'{self.folder}/'
        return {os.fspath(file).removeprefix(root): file
                for file in tree.files([self.folder], report)
                if not plans.is_plan(file)}

    def sources(self) -> dict[str, str]:
        """Text of the column `file` in the store -> the file's path."""
        return {str(file['source']): str(self.folder / name)
                for name, file in self.manifest['files'].items()}


def asked(folder: Path, report: Callable, question: Callable[[Known], T]
          ) -> T | None:
    """What the store of a folder says; None: it is to be brought up to date
    first (postprocess/store.py).

    :param report: called with file, line and reason of each fault
    """
    place = folder / FOLDER
    try:
        with os.fdopen(locks.opened(place / 'lock'), 'r+') as lock:
            fcntl.lockf(lock, fcntl.LOCK_SH)
            known = Known(folder, place)
            if not known.current():
                return None
            found = question(known)
            faults = known.faults()
    except (OSError, locks.LockError, *DAMAGED):
        return None
    for fault in faults:
        report(*fault)
    return found


def stat(file: Path) -> list[int]:
    """Inode, size and time of change; zeros: it is not there."""
    try:
        found = file.stat()
    except OSError:
        return [0, 0, 0]
    return [found.st_ino, found.st_size, found.st_mtime_ns]
