"""A C compiler that keeps what it built (tests/cached_cc)."""
from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

WRAPPER = Path(__file__).resolve().parents[1] / 'cached_cc'


def cached_compiler(folder: Path) -> dict[str, str]:
    """Variables that make cc and mpicc use tests/cached_cc.

    :arg folder: keeps what was built
    """
    compiler = shutil.which('cc') or shutil.which('gcc')
    if not compiler:
        return {}
    programs = folder / 'bin'
    programs.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):      # another worker's
        (programs / 'cc').symlink_to(WRAPPER)
    # By name: MPI wrappers split a path at its blanks.
    return {'OMPI_CC': 'cc', 'MPICH_CC': 'cc',
            'PATH': f'{programs}:{os.environ.get("PATH", os.defpath)}',
            'PLUMBLINE_TEST_CC': compiler,
            'PLUMBLINE_TEST_BUILT': str(folder)}
