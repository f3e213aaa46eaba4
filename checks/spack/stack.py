"""Software stacks: spack-envs/<stack> installed for a site by Spack's own commands.

A person installs a stack beforehand, with Spack's commands in docs/how-to/spack.md, in
a folder outside of every test's stage directory. The fixture of a family
(`base.Programs`) finds it with :func:`installed_stack_record`, which needs no Spack.

ReFrame's own Spack build system is not used. It puts the environment and (by
default) the install tree into the stage directory of each test, so that each
test solves and builds everything again. Even with a shared store it took 14 s
per test and session; here an installed stack is recognised in milliseconds.
It also runs Spack on the compute node, and two tests at once failed on the
lock of a build stage that they shared.
"""
from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config import strict
from config.commandline import suggest_nearest_word
from config.families import families as all_families
from config.places import ROOT, is_site_named_local, work_folder
from config.regular import write_file_atomically

ENVS = ROOT / 'spack-envs'

#: File in the folder of a stack, with what `spack find` printed of each package
#: (docs/how-to/spack.md has the command).
PREFIXES = 'prefix.log'

#: View of a stack, in its folder.
VIEW = '.spack-env/view'


class StackError(Exception):
    """A stack cannot be solved or installed; one line with what to do."""


class NoStack(StackError):
    """The stack does not exist, or a file or Spack itself is unusable."""


def spack_command() -> str:
    """The path of the spack command; empty: none was found.

    The whole suite uses this rule: if SPACK_ROOT is set, it is the command
    below it, even if that does not exist; else it is the `spack` on PATH.
    """
    root = os.environ.get('SPACK_ROOT')
    return f'{root}/bin/spack' if root else shutil.which('spack') or ''


def spack_environment_variables(site: Path) -> dict[str, str]:
    """Environment variables for Spack: the suite's paths, no ~/.spack."""
    return {
        **os.environ,
        'PLUMBLINE_ROOT': str(ROOT),
        'PLUMBLINE_WORK': str(work_folder()),
        'PLUMBLINE_SITE': str(site),
        # A user's ~/.spack would merge into the site's settings.
        'SPACK_DISABLE_LOCAL_CONFIG': '1',
        'SPACK_USER_CACHE_PATH': str(work_folder() / 'spack' / 'cache'),
        # This Python has the solver, so Spack does not bootstrap one.
        'SPACK_PYTHON': os.environ.get('SPACK_PYTHON') or sys.executable,
        'SPACK_COLOR': 'never',
    }


def _last_line(text: str) -> str:
    lines = [ln.strip() for ln in text.splitlines() if ln.strip()]
    return lines[-1] if lines else 'no output'


def _read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file of the suite; empty for an empty file."""
    try:
        content = strict.load_yaml(path)
    except FileNotFoundError:
        raise NoStack(f'{path} does not exist') from None
    except strict.Fault as err:
        raise NoStack(str(err)) from None
    if not isinstance(content, (dict, type(None))):
        raise NoStack(f'{path}: expected a mapping, keys and values')
    return content or {}


def _provider_of_mpi(lock: dict[str, Any]) -> str:
    """Name of the MPI package of a solution; '' without one."""
    nodes = lock['concrete_specs']
    for node in nodes.values():
        for edge in node.get('dependencies', ()):
            if 'mpi' in edge.get('parameters', {}).get('virtuals', ()):
                return edge['name']
    return next((nodes[root['hash']]['name'] for root in lock['roots']
                 if root['spec'] == 'mpi'), '')


# --------------------------------------------------------------- stacks

def stack_names() -> list[str]:
    """The names of all stacks."""
    return sorted(p.parent.name for p in ENVS.glob('*/spack.yaml'))


#: Key of stack.yaml -> its type.
_ABOUT = {'descr': str, 'features': list, 'provides': dict}


def read_stack_yaml(name: str) -> dict[str, Any]:
    """Contents of a stack's stack.yaml.

    Keys: descr; features of an environment with the stack; provides (family
    -> package, or program -> package).

    :raises NoStack: the stack does not exist, a key is unknown, or a value
        has another type.
    """
    if name not in stack_names():
        raise NoStack(
            f'unknown stack {name!r}: {suggest_nearest_word(name, stack_names())}'
            f'stacks: {", ".join(stack_names())}'
        )
    path = ENVS / name / 'stack.yaml'
    result = _read_yaml(path)
    for key in result | _ABOUT:
        if key not in _ABOUT:
            raise NoStack(f'{path}: unknown key {key!r}')
        if not isinstance(result.get(key), _ABOUT[key]):
            raise NoStack(f'{path}: {key}: expected a {_ABOUT[key].__name__}')
    return result


def has_mpi(name: str) -> bool:
    """Whether a stack has an MPI with which the suite builds programs."""
    specs = _read_yaml(ENVS / name / 'spack.yaml')['spack']['specs']
    return 'mpi' in [*read_stack_yaml(name)['features'], *specs]


def families_of_stack(name: str) -> dict[str, dict[str, str]]:
    """The families of an environment with this stack: name -> {source}.

    If the stack has a feature of a family but no package of it (only an MPI),
    the suite builds embedded programs with the stack.
    """
    description = read_stack_yaml(name)
    families = {family: {'source': 'spack'}
                for family in description['provides']}
    for family in all_families().values():
        if family.features.keys() & set(description['features']):
            families.setdefault(family.name, {'source': 'embedded'})
    return families


def stacks_of_site(configuration: dict[str, Any]) -> list[str]:
    """The stacks in the environments of a site."""
    return sorted({env['extras']['stack']
                   for env in configuration.get('environments', ())
                   if 'stack' in env.get('extras', {})})


def read_spack_lock_file(path: Path) -> dict[str, Any] | None:
    """Contents of a spack.lock; None: missing or damaged."""
    try:
        lock = json.loads(path.read_text())
        whole = (isinstance(lock['roots'], list)
                 and isinstance(lock['concrete_specs'], dict))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return lock if whole else None


@dataclass(frozen=True)
class Stack:
    """One stack for one site.

    :arg name: folder under spack-envs/.
    :arg site: folder of the site; its spack/ holds Spack's settings.
    """
    name: str
    site: Path

    @property
    def manifest_file(self) -> Path:
        """The manifest in the repository, from which the Spack environment is made."""
        return ENVS / self.name / 'spack.yaml'

    @property
    def folder(self) -> Path:
        """The Spack environment: manifest, lock, view, logs, installed packages."""
        return work_folder() / 'spack' / 'envs' / self.site.name / self.name

    @property
    def lock_file_of_site(self) -> Path:
        """A solution that the site keeps, so that an installation need not solve."""
        folder = (work_folder() / 'local-spack' if is_site_named_local(self.site)
                  else self.site)
        return folder / 'locks' / f'{self.name}.lock'

    def concretize(self, spack: str) -> dict[str, Any]:
        """Solve the stack anew; return its spack.lock.

        :param spack: the command
        :raises StackError: Spack finds no solution, or has no compiler
        """
        manifest, text = self.folder / 'spack.yaml', self.manifest_file.read_text()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file_atomically(manifest, text)
        lock_file = self.folder / 'spack.lock'
        lock_file.unlink(missing_ok=True)
        try:
            done = subprocess.run(
                [spack, '-e', str(self.folder), 'concretize'], text=True,
                env=spack_environment_variables(self.site), errors='replace',
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT)
        except OSError as err:
            raise NoStack(f'cannot run {spack}: {err}') from None
        lock = read_spack_lock_file(lock_file)
        if done.returncode or lock is None:
            errors = [line for line in done.stdout.splitlines() if 'rror:' in line]
            raise StackError(f'{self.name} for {self.site.name}: spack concretize '
                             f'failed: {[*errors, _last_line(done.stdout)][0].strip()}')
        if manifest.read_text() != text:
            lock_file.unlink()
            raise StackError(f'{self.site}/spack has no compiler that Spack can use, '
                             f'so Spack changed {manifest}; add gcc with '
                             'extra_attributes to packages.yaml')
        return lock

    def record(self) -> dict[str, Any] | None:
        """The record of a complete installation: stack, site, folder, view, provides
        (family -> package), packages (name -> version, hash, prefix) and mpi (its
        name); None: there is none.
        """
        lock = read_spack_lock_file(self.folder / 'spack.lock')
        try:
            packages = _parse_packages((self.folder / PREFIXES).read_text())
            manifest = (self.folder / 'spack.yaml').read_text()
        except OSError:
            return None
        view = self.folder / VIEW
        # An external of a module has no prefix.
        prefixes = [view, *(Path(package['prefix']) for package in packages.values()
                            if package['prefix'])]
        if (lock is None or manifest != self.manifest_file.read_text()
                or _missing_roots(lock, packages)
                or not all(prefix.is_dir() for prefix in prefixes)):
            return None
        about = read_stack_yaml(self.name)
        return {'stack': self.name, 'site': self.site.name, 'folder': str(self.folder),
                'view': str(view), 'provides': about['provides'],
                'mpi': _provider_of_mpi(lock), 'packages': packages}


def _parse_packages(text: str) -> dict[str, dict[str, str]]:
    """Package -> version, hash and prefix, from what `spack find` printed."""
    return {name: {'version': version, 'hash': digest,
                   'prefix': '' if prefix == 'None' else prefix}
            for name, version, digest, prefix in re.findall(
                r'^ *plumb:(.*?):(.*?):(.*?):(.*\S)', text, re.M)}


def _missing_roots(lock: dict[str, Any], packages: Mapping[str, Mapping[str, str]]
                   ) -> list[str]:
    """Specs of a solution that are not among the installed packages."""
    there = {package['hash'] for package in packages.values()}
    return [root['spec'] for root in lock['roots'] if root['hash'] not in there]


def installed_stack_record(name: str, site: Path) -> dict[str, Any]:
    """The record of an installed stack of a site; see `Stack.record`.

    :raises StackError: it is not installed, or its manifest was changed since
    """
    if record := Stack(name, site).record():
        return record
    raise StackError(
        f'the stack {name} is not installed for the site {site.name} in '
        f'{Stack(name, site).folder}, or is older than {ENVS}/{name}/spack.yaml: run '
        'the commands of Spack in docs/how-to/spack.md')


def write_installed_stack_files(record: Mapping[str, Any], folder: Path) -> None:
    """Leave a record in a folder, with the lock and a file to source.

    What `spack env activate` prints holds the whole PATH of the shell that
    installed; programs need no more than the view's bin, for their libraries
    are found by RPATH.
    """
    write_file_atomically(folder / 'stack.record.json', json.dumps(record, indent=1))
    shutil.copy(Path(record['folder'], 'spack.lock'),
                folder / 'stack.spack.lock')
    path = shlex.quote(str(Path(record['view'], 'bin')))
    write_file_atomically(folder / 'stack.sh', f'export PATH={path}:"$PATH"\n')


def program_origin(record: Mapping[str, Any], family: str, program: str = ''
           ) -> dict[str, str]:
    """The origin of a family's programs in an installed stack.

    :arg program: name, if the family has one package per program.
    :returns: prefix, version, and spec (name@version/hash).
    :raises StackError: the stack has no package of that family.
    """
    package = record['provides'].get(family)
    if isinstance(package, dict):
        package = package.get(program)
    if package not in record['packages']:
        raise StackError(f"stack {record['stack']} provides no "
                         f'{program or family}: see its stack.yaml')
    return installed_package_origin(record, package)


def add_program_origin(origin: Mapping[str, Any], record: Mapping[str, Any] | None,
                       family: str, program: str) -> dict[str, Any]:
    """The origin of a program, with what the record of its stack says about it.

    :param origin: by its environment
    :param record: None: the environment has no stack
    :raises StackError: the program is of the stack, which has no package of it
    """
    if not record:
        return {**origin}
    mpi = record['mpi']
    spec = installed_package_origin(record, mpi)['spec'] if mpi else ''
    of_stack = program_origin(record, family, program) if (
        origin['source'] == 'spack') else {}
    return {**origin, 'mpi': spec.partition('/')[0], 'spec': spec, **of_stack}


def installed_package_origin(record: Mapping[str, Any],
                                   package: str) -> dict[str, str]:
    """prefix, version and spec of one package of an installed stack."""
    entry = record['packages'][package]
    return {'prefix': entry['prefix'], 'version': entry['version'],
            'spec': f"{package}@{entry['version']}/{entry['hash']}"}
