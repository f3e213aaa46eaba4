"""Variables of the caller that must not change a session.

With them, Git uses another repository (for example in a hook), and a Python
that a job starts skips its assertions.
"""
from __future__ import annotations

import os

VARIABLES = (
    'PYTHONOPTIMIZE', 'GIT_DIR', 'GIT_WORK_TREE', 'GIT_INDEX_FILE',
    'GIT_COMMON_DIR', 'GIT_OBJECT_DIRECTORY', 'GIT_PREFIX',
    'GIT_ALTERNATE_OBJECT_DIRECTORIES', 'GIT_NAMESPACE')


def unset_caller_environment_variables() -> None:
    """Remove the variables from this process and its child processes."""
    for name in VARIABLES:
        os.environ.pop(name, None)
