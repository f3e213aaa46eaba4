"""Atomic writing of files, and whether git tracks a file."""
from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path


def write_files_atomically(folder: Path, files: dict[str, bytes]) -> None:
    """Writes files below a folder; none appears before all are on the disk.

    :param files: path below the folder -> content, renamed in this order
    :raises OSError: nothing was replaced, unless a rename itself failed
    """
    ready: list[tuple[Path, Path]] = []
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f'.{path.name}.{os.getpid()}.part')
            ready.append((part, path))
            with open(part, 'wb') as handle:
                handle.write(content)
                handle.flush()
        for part, path in ready:
            os.replace(part, path)
    finally:
        for part, _ in ready:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def is_tracked_by_git(path: Path) -> bool:
    """Whether git tracks a file, so that `git diff` shows its changes."""
    with contextlib.suppress(OSError):          # there is no git
        return subprocess.run(
            ['git', '-C', str(path.parent), 'ls-files', '--error-unmatch', path.name],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL).returncode == 0
    return False


def git_commit_hint(path: Path) -> str:
    """`; commit it`, or '' if git ignores a file or is not used there."""
    with contextlib.suppress(OSError):          # there is no git
        check = subprocess.run(
            ['git', '-C', str(path.parent), 'check-ignore', '-q', path.name],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # 0: it is ignored; 1: it is not; 128: outside of a repository.
        return '; commit it' if check.returncode == 1 else ''
    return ''
