"""The version of the suite, MAJOR.MINOR.PATCH, for records and `--version`.

MINOR increases if a change of the suite may change values, or if a format that
the suite writes changes. PATCH increases otherwise. CHANGELOG.md lists the
changes.
"""
from __future__ import annotations

import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

VERSION = '0.1.0'


@functools.cache
def suite_commit() -> str:
    """Commit of the checkout, '-dirty' if changed; without git: 'unknown'."""
    try:
        return subprocess.run(
            ['git', '-C', str(ROOT), 'describe', '--always', '--dirty',
             '--abbrev=12', '--exclude=*'],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return 'unknown'
