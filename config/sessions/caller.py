"""Variables of the caller: those that must not change a session, and a name.

With VARIABLES, Git uses another repository (for example in a hook), and a Python
that a job starts skips its assertions. With those of ReFrame, which a module or another
suite sets, it looks for another system, runs other checks, or writes the record of the
session elsewhere, so that the session looks cut short.
"""
from __future__ import annotations

import getpass
import os

VARIABLES = (
    'PYTHONOPTIMIZE', 'GIT_DIR', 'GIT_WORK_TREE', 'GIT_INDEX_FILE',
    'GIT_COMMON_DIR', 'GIT_OBJECT_DIRECTORY', 'GIT_PREFIX',
    'GIT_ALTERNATE_OBJECT_DIRECTORIES', 'GIT_NAMESPACE',
    'RFM_CHECK_SEARCH_PATH', 'RFM_CHECK_SEARCH_RECURSIVE', 'RFM_GENERATE_FILE_REPORTS',
    'RFM_PERFLOG_DIR', 'RFM_REPORT_FILE', 'RFM_SYSTEM')


def unset_caller_environment_variables() -> None:
    """Remove the variables from this process and its child processes."""
    for name in VARIABLES:
        os.environ.pop(name, None)


def set_missing_user_name() -> None:
    """Name a user without an entry in /etc/passwd by the user's number.

    ReFrame needs a name when it writes a perflog. It asks getpass, which reads
    the variable LOGNAME first.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):         # KeyError: before Python 3.13
        os.environ['LOGNAME'] = str(os.getuid())
