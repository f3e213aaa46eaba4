"""The MPI and the stores of this machine, for the site `local`.

Set-up installs what is missing and keeps all that it found in local.json of
the work folder. Without this file, or with another MPI on PATH since, the
programs of PATH are asked once more.
"""
from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from config.regular import write_file_atomically
from config.sites.programs import command_output

from ..stores.found import find_store_servers

#: In the work folder.
FILE = 'local.json'

_FLAVOURS = (
    ('openmpi', re.compile(r'\(Open MPI\) (\S+)')),
    ('intelmpi', re.compile(r'Intel\(R\) MPI Library.*Version (\S+)')),
    ('mpich', re.compile(r'HYDRA[\s\S]*?Version:\s+(\S+)')),
)


class NoMpi(RuntimeError):
    """This machine has no MPI; the message says how to get one."""


def identify_mpi(banner: str) -> tuple[str, str]:
    """Flavour and version from what ``mpirun --version`` prints.

    Returns ('unknown', '') where it is none of Open MPI, MPICH, Intel MPI.
    """
    for flavour, pattern in _FLAVOURS:
        result = pattern.search(banner)
        if result:
            return flavour, result.group(1)
    return 'unknown', ''


def detect_mpi(search_path: str | None = None) -> dict[str, str] | None:
    """The MPI of PATH (or of a loaded module, which is on PATH), or None.

    Keys: flavour, version, mpicc, mpirun, compiler, origin.
    """
    mpicc = shutil.which('mpicc', path=search_path)
    mpirun = shutil.which('mpirun', path=search_path)
    if not mpicc or not mpirun:
        return None
    flavour, version = identify_mpi(command_output(mpirun, '--version'))
    if flavour == 'unknown':
        print(f'plumb: {mpirun} is not used, because it is not of Open MPI, MPICH '
              'or Intel MPI', file=sys.stderr, flush=True)
        return None
    words = command_output(mpicc, '-show').split()
    ours = Path(mpicc).parents[1] / 'plumbline.stamp'
    return {'flavour': flavour, 'version': version, 'mpicc': mpicc,
            'mpirun': mpirun, 'compiler': words[0] if words else '',
            'origin': 'wheel' if ours.is_file() else 'system'}


def save_detected_software(work: Path, mpi: dict[str, str], result: list[dict[str, Any]]
         ) -> None:
    """Writes what was found, so that each session need not ask again."""
    path = work / FILE
    text = json.dumps({'mpi': mpi, 'stores': result}, indent=1) + '\n'
    try:
        if path.read_text() == text:
            return
    except OSError:
        pass
    # Another session may do the same now.
    write_file_atomically(path, text)


def detect_mpi_and_store_servers(work: Path
                    ) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The MPI and the stores of this machine.

    The MPI that set-up has installed is put on PATH if PATH has none.

    :raises NoMpi: neither has one
    """
    wheel = work / 'mpi' / 'bin'
    if not shutil.which('mpicc') and wheel.is_dir():
        os.environ['PATH'] = f'{os.environ.get("PATH", "")}:{wheel}'
    try:
        kept = json.loads((work / FILE).read_text())
        if (kept['mpi']['mpicc'], kept['mpi']['mpirun']) == (
                shutil.which('mpicc'), shutil.which('mpirun')):
            return kept['mpi'], kept['stores']
    except (OSError, ValueError, KeyError, TypeError):
        pass
    mpi = detect_mpi()
    if mpi is None:
        raise NoMpi('no MPI: mpicc and mpirun are not on PATH. Load a module '
                    'of Open MPI, MPICH or Intel MPI, or install one with '
                    './plumb env')
    return mpi, find_store_servers(work / 'stores')
