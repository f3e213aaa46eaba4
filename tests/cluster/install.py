"""Installs what the cluster needs: only this asks a package manager."""
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from cluster import ACCOUNTING, PROGRAMS, CannotRunHere, ClusterError

#: Asked by every package that would start a service; 101: do not.
POLICY = Path('/usr/sbin/policy-rc.d')


def install(accounting: bool) -> None:
    """The Debian packages, without starting one of their services."""
    if os.geteuid() or not shutil.which('apt-get'):
        raise CannotRunHere('install needs root, and apt-get')
    wanted = PROGRAMS | (ACCOUNTING if accounting else {})
    apt = ['apt-get', '-q', '-y', '--no-install-recommends']
    env = {**os.environ, 'DEBIAN_FRONTEND': 'noninteractive'}
    kept = POLICY.with_suffix('.kept')
    if POLICY.exists() and not kept.exists():
        POLICY.rename(kept)
    try:
        POLICY.write_text('#!/bin/sh\nexit 101\n')
        POLICY.chmod(0o755)
        for words in (['update'], ['install', *sorted(set(wanted.values()))]):
            if subprocess.run([*apt, *words], env=env).returncode:
                raise ClusterError(f'apt-get {words[0]} failed: see above')
    finally:
        POLICY.unlink(missing_ok=True)
        if kept.exists():
            kept.rename(POLICY)
