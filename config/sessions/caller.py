"""Variables of the caller that must not change what the suite does.

Git finds another repository by them, from a hook for example, and a Python
that a job starts skips its assertions.
"""
from __future__ import annotations

import os

VARIABLES = (
    'PYTHONOPTIMIZE', 'GIT_DIR', 'GIT_WORK_TREE', 'GIT_INDEX_FILE',
    'GIT_COMMON_DIR', 'GIT_OBJECT_DIRECTORY', 'GIT_PREFIX',
    'GIT_ALTERNATE_OBJECT_DIRECTORIES', 'GIT_NAMESPACE')


def forget() -> None:
    """Removes the variables from this process and what it starts."""
    for name in VARIABLES:
        os.environ.pop(name, None)
