"""Whether Spack loads the stacks of a site with the settings of the site."""
from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from checks.spack.stack import ENVS, spack_command, spack_environment_variables

#: Time limit for Spack to load the files of a stack. Unit: s.
LIMIT = 300


def faults_of_loading_stacks(
    folder: Path, names: Iterable[str]
) -> tuple[list[str], str]:
    """Let Spack itself load stacks with the settings of a site.

    :returns: faults, and a note on how many stacks were loaded
    """
    spack = spack_command()
    if not spack:
        return [], ('not loaded, because Spack is not available; set '
                    'SPACK_ROOT, or add spack to PATH')
    env = {name: value for name, value in spack_environment_variables(folder).items()
           if name not in ('PLUMBLINE_ROOT', 'PLUMBLINE_WORK')}
    faults, names = [], sorted(set(names))
    for name in names:
        manifest = ENVS / name
        try:
            subprocess.run(
                [spack, '-e', str(manifest), 'config', 'get'], env=env,
                text=True, capture_output=True, timeout=LIMIT, check=True,
                stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as err:
            lines = (getattr(err, 'stderr', '') or str(err)).splitlines()
            reason = next((line for line in lines if 'Error: ' in line), lines[0])
            faults.append(f'{manifest}/spack.yaml:1: Spack cannot load this '
                          f'file with PLUMBLINE_SITE={folder}: {reason}')
    return (
        faults,
        f'{len(names) - len(faults)} of {len(names)} load with Spack',
    )
