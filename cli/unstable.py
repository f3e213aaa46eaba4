"""Tests that failed beside the others are run again, alone.

A test of thousands that fails now and then, because the machine was busy,
would block everybody. It is told by name, so that somebody mends it.
"""
from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: More failures than these are not for want of luck.
MOST = 3


def run(together: Sequence[str], alone: Sequence[str], **more: Any) -> int:
    """Runs the tests, and what failed of them again; 0: good, else 1.

    :param together: pytest's command line for all tests
    :param alone: the one for a few, by their ids, one after the other
    :param more: for subprocess.run: cwd, env
    """
    with tempfile.TemporaryDirectory(prefix='plumbline-tests') as folder:
        path = Path(folder, 'outcomes.json')
        option = f'--outcomes={path}'
        code = subprocess.run([*together, option], **more).returncode
        failed = {name: how for name, how in _outcomes(path).items()
                  if how in ('failed', 'crashed')}
        # 1: all have run; a worker that died took others along.
        if (code != 1 or not failed or len(failed) > MOST
                or 'crashed' in failed.values()):
            return 1 if code else 0
        print(f'\n{len(failed)} failed: again, alone, one after the other',
              flush=True)
        path.unlink()
        code = subprocess.run([*alone, option, *failed], **more).returncode
        if code or _outcomes(path) != dict.fromkeys(failed, 'passed'):
            return 1
    print(''.join(f'\nunstable: failed beside the others, passed alone: {one}'
                  for one in failed), flush=True)
    return 0


def _outcomes(path: Path) -> dict[str, str]:
    """Id of a test -> how it ended; empty where pytest did not get so far."""
    try:
        found: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found
