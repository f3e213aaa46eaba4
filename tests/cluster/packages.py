"""Debian packages of the tests: which has a program, and their installation.

The list is .ci/packages.txt, and only .ci/packages asks a package manager.
"""
from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

CI = Path(__file__).resolve().parents[2] / '.ci'


@functools.cache
def package_of() -> dict[str, str]:
    """Program or header -> the package that every release has it in."""
    lines = map(str.split, (CI / 'packages.txt').read_text().splitlines())
    return {program: words[0] for words in lines
            if words and words[0] not in ('#', '?') for program in words[1:]}


def install(names: list[str]) -> int:
    """Installs packages without starting one of their services.

    :returns: its exit code; 2 where this machine cannot.
    """
    if os.geteuid() or not shutil.which('apt-get'):
        return 2
    return subprocess.run([CI / 'packages', *names]).returncode
