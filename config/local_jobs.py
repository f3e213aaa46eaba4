"""Job scripts of the scheduler `local` in a folder whose path has blanks.

ReFrame (4.10 at least) starts such a script by its path as a string, which it
splits as a shell splits a command line: at blanks, with quotes removed.
"""
from __future__ import annotations

import os
from typing import Any

from reframe.utility import osext

_run_command_async = osext.run_command_async


def run_command_async(cmd: Any, *args: Any, **options: Any) -> Any:
    """ReFrame's function, but the path of a file is one word."""
    if isinstance(cmd, str) and os.path.isfile(cmd):
        cmd = [cmd]
    return _run_command_async(cmd, *args, **options)


def install() -> None:
    """Replaces ReFrame's function."""
    osext.run_command_async = run_command_async
