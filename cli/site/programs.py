"""Whether the programs of a site's environments are installed.

A dry run starts no program, and `plumb site check` also runs far from the cluster, so
both print these lines beside their test cases.
"""
from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.spack import stack
from cli.setup.venv import ensure_mpi
from config.places import is_site_named_local

Row = Mapping[str, Any]

#: Scheduler of ReFrame -> its command that submits jobs.
SUBMIT = {'slurm': 'sbatch', 'squeue': 'sbatch', 'pbs': 'qsub', 'pbspro': 'qsub',
          'torque': 'qsub', 'sge': 'qsub', 'lsf': 'bsub', 'oar': 'oarsub',
          'flux': 'flux'}


def environment_lines(folder: Path, configuration: Row) -> list[str]:
    """`ENVIRONMENT: installed`, `not installed` or `cannot know here`, each with the
    reason.

    :param folder: of the site
    :param configuration: its `site_configuration`
    """
    partitions = [part for system in configuration['systems']
                  for part in system['partitions']]
    schedulers = {part['scheduler'] for part in partitions}
    here = 'local' in schedulers or any(
        shutil.which(SUBMIT.get(name, '')) for name in schedulers)
    used = {name for part in partitions for name in part['environs']}
    return [f'{env["name"]}: {_state_of_environment(folder, env, here)}'
            for env in configuration['environments'] if env['name'] in used]


def _state_of_environment(folder: Path, environment: Row, here: bool) -> str:
    extras = environment.get('extras', {})
    missing = [str(origin['prefix']) for origin in extras.get('programs', {}).values()
               if origin.get('prefix') and not Path(origin['prefix']).is_dir()]
    paths = []
    if name := extras.get('stack'):
        try:
            record = stack.installed_stack_record(name, folder)
            paths.append(record['view'])
        except stack.StackError:
            missing.append(f'the stack {name}')
    elif not missing and environment.get('modules'):
        return f'cannot know here: jobs load {" ".join(environment["modules"])}'
    elif compiler := _needed_compiler(environment):
        path = shutil.which(compiler, path=_search_path(folder))
        (paths if path else missing).append(path or f'{compiler} (not in PATH)')
    if missing and not here:
        return f'cannot know here: this machine is not of the site ({missing[0]})'
    if missing:
        return f'not installed: {", ".join(missing)}'
    return 'installed' + f' ({", ".join(paths)})' * bool(paths)


def _needed_compiler(environment: Row) -> str:
    """The compiler of the programs that the suite builds; '': it builds none."""
    programs = environment.get('extras', {}).get('programs', {}).values()
    return environment.get('cc') or 'cc' if any(
        origin.get('source') == 'embedded' for origin in programs) else ''


def _search_path(folder: Path) -> str:
    """PATH of a session; that of the site `local` has the suite's MPI."""
    path = os.environ.get('PATH', os.defpath)
    if is_site_named_local(folder):
        path = f'{Path(ensure_mpi()["mpirun"]).parent}{os.pathsep}{path}'
    return path
