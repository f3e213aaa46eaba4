"""The first error of a build, from its output."""
from __future__ import annotations

import errno
import os
import re
from pathlib import Path

#: Errors of the file system that a build can meet.
_FILE_SYSTEM = [os.strerror(number) for number in (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.ENOENT)]
#: Lines that give the cause. A linker names it before `collect2: error`.
_ERROR = re.compile(
    r'\berror\b|undefined reference|cannot find|command not found|'
    + '|'.join(map(re.escape, _FILE_SYSTEM)), re.IGNORECASE)
_HARMLESS = re.compile(r'\b(warning|note):', re.IGNORECASE)


def first_build_error(output: Path) -> str:
    """The line of a build's output that gives the cause.

    It is the last line of plumb, else the first error of compiler, linker or file
    system, else the first line. If the disk is full the output may be empty.

    :param output: standard error of the build, in its stage directory
    """
    lines = [line.strip() for line in
             output.read_text(errors='replace').splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith('plumb: ')][-1:]
    errors = ours or [line for line in lines if _ERROR.search(line)
                      and not _HARMLESS.search(line)] or lines
    if errors:
        return errors[0]
    if not os.statvfs(output.parent).f_bavail:
        return f'{os.strerror(errno.ENOSPC)}: {output.parent}'
    return 'no output'
