"""Whether git tracks a file."""
from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path


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
