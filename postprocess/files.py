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
