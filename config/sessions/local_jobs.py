"""Job scripts of the scheduler `local` in a folder whose path has blanks.

ReFrame (4.10 at least) starts such a script by its path as a string, which it
splits as a shell splits a command line: at blanks, with quotes removed. Its
function is replaced only if the path of the work folder needs this.
"""
from __future__ import annotations

import os
import shlex
from typing import Any

from reframe.utility import osext

_run_command_async = osext.run_command_async


def run_command_async(cmd: Any, *args: Any, **options: Any) -> Any:
    """ReFrame's function, but the path of a file is not split."""
    if isinstance(cmd, str) and os.path.isfile(cmd):
        cmd = [cmd]
    return _run_command_async(cmd, *args, **options)


def replace_run_command_async(folder: str) -> None:
    """Replace ReFrame's function if a shell would split this path."""
    if shlex.quote(folder) != folder:
        osext.run_command_async = run_command_async
