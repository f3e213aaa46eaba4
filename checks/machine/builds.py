"""Builds: the first error of their output, and programs that they share."""
from __future__ import annotations

import errno
import os
import re
import shlex
from pathlib import Path
from typing import Any

#: Errors of the file system that a build can meet.
_FILE_SYSTEM = [os.strerror(number) for number in (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.ENOENT)]
#: Lines that give the cause. A linker names it before `collect2: error`.
_ERROR = re.compile(
    r'\berror\b|undefined reference|cannot find|command not found|'
    + '|'.join(map(re.escape, _FILE_SYSTEM)), re.IGNORECASE)
_HARMLESS = re.compile(r'\b(warning|note):', re.IGNORECASE)

#: File that a successful build leaves in its stage directory.
BUILT = 'build.done'
#: Build command, with the partition and the settings of the environment that it
#: depends on -> stage directories of this session in which it runs.
_FOLDERS_OF_COMMAND: dict[tuple[str, ...], list[str]] = {}


def copy_or_build_command(build: Any, program: str, command: str) -> str:
    """Shell command that copies a program from a build of this session in an
    equal environment, or builds it.

    :param build: the test of the build, after its setup
    :param program: its file or folder in the stage directory
    :param command: the command that builds it
    """
    environ = build.current_environ
    folders = _FOLDERS_OF_COMMAND.setdefault((
        build.current_partition.fullname, command, str(environ.modules_detailed),
        str(environ.env_vars), str(environ.extras.get('stack'))), [])
    copies = [f'{{ [ -e {folder}/{BUILT} ] && cp -pR {folder}/{program} .; }}'
              for folder in map(shlex.quote, folders)]
    if build.stagedir not in folders:
        folders.append(build.stagedir)
    return f'{{ {" || ".join([*copies, command])}; }}'


def build_script_command(build: Any, script: Path, out: str) -> str:
    """The same for a script `build.sh OUT`, which compiles one program.

    :param out: path of the program in the stage directory
    """
    cc = build.current_environ.cc or 'cc'
    return copy_or_build_command(
        build, out.split('/')[0],
        f'CC={shlex.quote(cc)} {shlex.quote(str(script))} {out}')


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
