"""Whether the programs of a site's environments are installed.

A dry run starts no program, and `plumb site check` also runs far from the cluster, so
both print these states beside their test cases. `plumb doctor` takes them as reasons
why test cases cannot start.
"""
from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from checks.spack import stack
from cli.site.schedulers import Pool, Pools, query_pools

Row = Mapping[str, Any]

#: Scheduler of ReFrame -> its command that submits jobs.
SUBMIT = {'slurm': 'sbatch', 'squeue': 'sbatch', 'pbs': 'qsub', 'pbspro': 'qsub',
          'torque': 'qsub', 'sge': 'qsub', 'lsf': 'bsub', 'oar': 'oarsub',
          'flux': 'flux'}

INSTALLED, MISSING, UNKNOWN = 'installed', 'not installed', 'unknown'


class State(NamedTuple):
    """Whether the programs of an environment are installed."""
    #: INSTALLED, MISSING or UNKNOWN.
    word: str
    #: The path of INSTALLED, or why not; '': none.
    reason: str = ''

    def __str__(self) -> str:
        return self.word + (f' ({self.reason})' if self.word == INSTALLED else
                            f': {self.reason}') * bool(self.reason)


def count_states(states: Iterable[State]) -> str:
    """How many environments have each state: `3 installed, 1 not installed`."""
    counts = Counter(state.word for state in states)
    return ', '.join(f'{counts[word]} {word}' for word in (INSTALLED, MISSING, UNKNOWN)
                     if counts[word])


def environment_states(folder: Path, configuration: Row,
                       pools: Pools | None = None) -> dict[str, State]:
    """The state of each environment that a partition names.

    :param folder: of the site
    :param configuration: its `site_configuration`; the site `local` extends PATH while
        it is loaded
    :param pools: the nodes of its partitions; None: the schedulers are asked
    """
    partitions = [part for system in configuration['systems']
                  for part in system['partitions']]
    here = _is_machine_of_site(
        partitions, query_pools(partitions) if pools is None else pools)
    used = {name for part in partitions for name in part['environs']}
    return {env['name']: _state_of_environment(folder, env, here)
            for env in configuration['environments'] if env['name'] in used}


def _is_machine_of_site(partitions: list[Row], pools: Pools) -> bool:
    """Whether the scheduler of this machine has nodes of a partition; other schedulers
    than Slurm and PBS are not asked."""
    return any(
        isinstance(pools[part['name']], Pool) if part['name'] in pools else
        part['scheduler'] == 'local' or shutil.which(SUBMIT.get(part['scheduler'], ''))
        for part in partitions)


def _state_of_environment(folder: Path, environment: Row, here: bool) -> State:
    """
    :param here: whether this machine is of the site
    """
    extras = environment.get('extras', {})
    name, missing = extras.get('stack'), ''
    if name:
        try:
            return State(INSTALLED, stack.installed_stack_record(name, folder)['view'])
        except stack.StackError as err:
            missing = str(err)
    if not here:
        return State(UNKNOWN, 'this machine does not belong to the site')
    if missing:
        return State(MISSING, missing)
    if modules := ' '.join(map(str, environment.get('modules', ()))):
        if not {'LMOD_CMD', 'MODULESHOME', 'MODULES_CMD'} & set(os.environ):
            return State(MISSING, f'it loads {modules}, but no modules system is '
                         'available')
        return State(
            UNKNOWN, f'its programs come from modules that jobs load ({modules})')
    programs = extras.get('programs', {})
    for family, origin in programs.items():
        if origin.get('prefix') and not Path(origin['prefix']).is_dir():
            return State(MISSING, f'{family}: folder {origin["prefix"]} does not exist')
    if not any(origin.get('source') == 'embedded' for origin in programs.values()):
        return State(INSTALLED)
    compiler = environment.get('cc') or 'cc'
    path = shutil.which(compiler)
    return State(INSTALLED, path) if path else State(
        MISSING, f'it builds its programs with {compiler}, which is not found: load a '
        'module, or add it to PATH')
