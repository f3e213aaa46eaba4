"""Software stacks: spack-envs/<stack> installed for a site by Spack's own commands.

A person installs a stack beforehand, with ``plumb dev spack install`` or with the
commands of spack-envs/README.md, in a folder outside of every test's stage directory.
The fixture of a family (`base.Programs`) finds it with
:func:`installed_stack_record`, which needs no Spack. An installation by ``plumb`` also
keeps a hash of its settings, so that one with outdated settings is refused.

ReFrame's own Spack build system is not used. It puts the environment and (by
default) the install tree into the stage directory of each test, so that each
test solves and builds everything again. Even with a shared store it took 14 s
per test and session; here an installed stack is recognised in milliseconds.
It also runs Spack on the compute node, and two tests at once failed on the
lock of a build stage that they shared.
"""
from __future__ import annotations

import hashlib
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
from config.places import ROOT, SITES, is_site_named_local, work_folder
from config.regular import write_file_atomically

ENVS = ROOT / 'spack-envs'

#: Oldest Spack that can read the configuration files of the stacks.
OLDEST = (1, 0)

#: Keys of a site's stacks.yaml with their defaults.
DEFAULTS: dict[str, Any] = {
    'offline': False,       # use only the site's mirrors
}

#: What `spack find` prints of each package of a stack, and the file of it.
FORMAT, PREFIXES = 'plumb:{name}:{version}:{hash}:{prefix}', 'prefix.log'

#: File with the Spack that solved a stack, and the hash of the settings.
ORIGIN = 'origin.json'

#: View of a stack, in its folder.
VIEW = '.spack-env/view'


class StackError(Exception):
    """A stack cannot be solved or installed; one line with what to do."""


class NoStack(StackError):
    """The stack does not exist, or a file or Spack itself is unusable."""


@dataclass(frozen=True)
class Spack:
    """An installed Spack: its command, and the output of `--version`."""
    command: str
    version: str
    #: Checkout of recipes that replaces the pinned one, with its commit; ''
    #: without one.
    recipes: str = ''

    @property
    def default_packages_file(self) -> Path:
        """The file that Spack itself writes if it has no compiler."""
        return Path(self.command).parents[1] / 'etc/spack/packages.yaml'


def spack_command() -> str:
    """The path of the spack command; empty: none was found.

    The whole suite uses this rule: if SPACK_ROOT is set, it is the command
    below it, even if that does not exist; else it is the `spack` on PATH.
    """
    root = os.environ.get('SPACK_ROOT')
    return f'{root}/bin/spack' if root else shutil.which('spack') or ''


def find_and_check_spack() -> Spack:
    """Run the Spack of :func:`spack_command` and check its version.

    :raises NoStack: it does not exist, does not run, or is too old.
    """
    command = spack_command()
    if not command:
        raise NoStack('Spack was not found: set SPACK_ROOT to a clone of it, '
                      'or put `spack` on PATH')
    try:
        done = subprocess.run([command, '--version'], text=True, timeout=60,
                              stdin=subprocess.DEVNULL, capture_output=True,
                              env=spack_environment_variables(Path('none')))
    except (OSError, subprocess.TimeoutExpired) as err:
        raise NoStack(f'cannot run {command}: {err}') from None
    match = re.match(r'(\d+)\.(\d+)', done.stdout)
    if done.returncode or not match:
        raise NoStack(f'{command} --version failed: {_last_line(done.stderr)}')
    if tuple(map(int, match.groups())) < OLDEST:
        raise NoStack(f'{command} is Spack {done.stdout.strip()}: the '
                      f'stacks need {OLDEST[0]}.{OLDEST[1]} or newer')
    checkout = os.environ.get('PLUMBLINE_SPACK_PACKAGES', '')
    return Spack(os.path.realpath(command), done.stdout.strip(),
                 checkout and f'{checkout}@{_packages_checkout_commit()}')


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


def builtin_repo_settings() -> dict[str, Any]:
    """The source of Spack's own recipes, from spack-envs/common.

    A checkout in $PLUMBLINE_SPACK_PACKAGES overrides it.
    """
    checkout = os.environ.get('PLUMBLINE_SPACK_PACKAGES')
    if checkout:
        return {'builtin': f'{checkout}/repos/spack_repo/builtin'}
    pinned = _read_yaml(ENVS / 'common' / 'packages-pinned.yaml')
    return {'builtin': pinned['repos']['builtin']}


def _packages_checkout_commit() -> str:
    """The commit of $PLUMBLINE_SPACK_PACKAGES; '' if it is not set."""
    folder = os.environ.get('PLUMBLINE_SPACK_PACKAGES')
    if not folder:
        return ''
    return subprocess.run(
        ['git', '-C', folder, 'rev-parse', 'HEAD'], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()


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


# ------------------------------------------------------------ promises

_PROMISE = re.compile(r'[+~]?[\w.:-]+(=[\w.,:-]+)?')


def unsatisfied_spec_promises(lock: dict[str, Any], promises: list[str]) -> list[str]:
    """Promises of a stack that its solution breaks, one line each.

    :arg lock: contents of a spack.lock.
    :arg promises: ``name[@version] [+v|~v|key=value]...``; one node of the
        lock must meet all words of a promise. A version also matches versions
        that begin with it; a value also matches a list that contains it.
    :raises StackError: a promise is malformed.
    """
    nodes = list(lock.get('concrete_specs', {}).values())
    broken = []
    for promise in promises:
        words = re.findall(r'[+~]?[^\s+~]+', str(promise))
        if not words or not all(_PROMISE.fullmatch(w.replace('@', '.'))
                                for w in words):
            raise StackError(f'promise {promise!r}: expected name[@version] '
                             '[+v|~v|key=value]...')
        name, _, version = words[0].partition('@')
        there = [n for n in nodes if n['name'] == name]
        if not there:
            broken.append(f'{promise}: {name} is not in the solution')
        elif not any(_satisfies_spec_promise(n, version, words[1:]) for n in there):
            got = ', '.join(format_spec(n, words[1:]) for n in there)
            broken.append(f'{promise}: the solution has {got}')
    return broken


def _satisfies_spec_promise(node: dict[str, Any], version: str,
                            variants: list[str]) -> bool:
    have = str(node.get('version', ''))
    if version and have != version and not have.startswith(f'{version}.'):
        return False
    parameters = node.get('parameters', {})
    for word in variants:
        key, _, value = word.lstrip('+~').partition('=')
        got = parameters.get(key)
        expected: Any = (True if word[0] == '+' else False if word[0] == '~'
                         else value)
        if got != expected and not (isinstance(got, list) and expected in got):
            return False
    return True


def format_spec(node: dict[str, Any], variants: list[str] = []) -> str:
    """name@version of a node of a lock, and the variants in `variants`."""
    text = f"{node['name']}@{node.get('version', '?')}"
    for word in variants:
        key = word.lstrip('+~').partition('=')[0]
        value = node.get('parameters', {}).get(key)
        if isinstance(value, bool):
            text += f' {"+" if value else "~"}{key}'
        else:
            value = ','.join(value) if isinstance(value, list) else value
            text += f' {key}={value or "nothing"}'
    return text


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
_ABOUT = {'descr': str, 'features': list, 'provides': dict, 'promises': list}


def read_stack_yaml(name: str) -> dict[str, Any]:
    """Contents of a stack's stack.yaml.

    Keys: descr; features of an environment with the stack; provides (family
    -> package, or program -> package); promises (see `unsatisfied_spec_promises`).

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
    try:
        unsatisfied_spec_promises({}, result['promises'])
    except StackError as err:
        raise NoStack(f'{path}: {err}') from None
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


def site_stack_settings(site: Path) -> dict[str, Any]:
    """A site's stacks.yaml over the defaults.

    :raises NoStack: an unknown key, or a value of another type.
    """
    path = site / 'stacks.yaml'
    own = _read_yaml(path) if path.exists() else {}
    for name, value in own.items():
        if type(value) is not type(DEFAULTS.get(name)):
            raise NoStack(f'{path}: {name}: expected a key with a value of '
                          f'the same type from {DEFAULTS}')
    return {**DEFAULTS, **own}


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
        return ENVS / self.name / 'spack.yaml'

    @property
    def folder(self) -> Path:
        """The Spack environment: manifest, lock, view, logs, installed packages."""
        return work_folder() / 'spack' / 'envs' / self.site.name / self.name

    @property
    def lock_file_of_site(self) -> Path:
        """A solution that the site keeps, so that no installation solves again."""
        folder = detected_settings_folder(self.site) or self.site
        return folder / 'locks' / f'{self.name}.lock'

    def settings_hash(self) -> str:
        """Twelve digits of a hash over all files that affect the result."""
        if not (self.site / 'spack').is_dir():
            raise StackError(f'{self.site}/spack is missing: add the Spack '
                             'settings of the site (docs/how-to/spack.md)')
        own = detected_settings_folder(self.site)
        digest = hashlib.sha256()
        # Not the whole folder of the manifest: plain Spack writes there.
        for base in (self.manifest_file, self.manifest_file.with_name('stack.yaml'),
                     ENVS / 'common', ENVS / 'repo', self.site / 'spack',
                     self.lock_file_of_site, *([own / 'packages.yaml'] if own else [])):
            for path in [base] if base.is_file() else sorted(base.rglob('*')):
                if path.suffix in ('.yaml', '.py', '.patch', '.lock'):
                    digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()[:12]

    def concretize(self, spack: Spack, anew: bool = False) -> dict[str, Any]:
        """Solve the stack, unless it is solved; return its spack.lock.

        :param anew: solve it even if it is solved, or if the site keeps a solution
        :raises StackError: it has no solution or breaks a promise, or Spack
            would use settings that are not the site's.
        """
        promises = read_stack_yaml(self.name)['promises']
        origin = {'settings': self.settings_hash(), 'spack': spack.version,
                  'recipes': spack.recipes}
        lock_file, manifest = self.folder / 'spack.lock', self.folder / 'spack.yaml'
        text = self.manifest_file.read_text()
        _refuse_foreign_settings(spack)
        self.folder.mkdir(parents=True, exist_ok=True)
        if anew or _read_origin(self.folder) != origin or (
                read_spack_lock_file(lock_file) is None):
            for name in ('spack.lock', PREFIXES, ORIGIN):
                (self.folder / name).unlink(missing_ok=True)
            if self.lock_file_of_site.exists() and not anew:
                shutil.copy(self.lock_file_of_site, lock_file)
        if not manifest.exists() or manifest.read_text() != text:
            write_file_atomically(manifest, text)
        old = read_spack_lock_file(lock_file)
        if old is None and lock_file.exists():
            raise StackError(f'{self.lock_file_of_site} is not a lock file of '
                             'Spack: create it with plumb dev spack lock')
        output = self._run_spack(spack, 'concretize')
        lock = read_spack_lock_file(lock_file)
        fault = ''
        if manifest.read_text() != text or spack.default_packages_file.exists():
            fault = (f'{self.site}/spack has no compiler that Spack can use, so Spack '
                     f'changed {manifest}, or wrote {spack.default_packages_file}, '
                     'which you must remove; add gcc with extra_attributes to '
                     'packages.yaml')
        elif lost := re.search(r'Error constructing repository.*', output):
            fault = f'{self.name}: Spack ignored a recipe repository: {lost.group()}'
        elif lock is None:
            fault = f'{self.name}: Spack did not write {lock_file}'
        elif old and old['roots'] != lock['roots']:
            fault = (f'{self.lock_file_of_site} is older than the stack: create it '
                     'again with plumb dev spack lock')
        elif broken := unsatisfied_spec_promises(lock, promises):
            fault = (f'the solution of {self.name} breaks promises of '
                     f'{self.manifest_file.with_name("stack.yaml")}: '
                     f'{"; ".join(broken)}')
        if fault or lock is None:
            lock_file.unlink(missing_ok=True)
            raise StackError(fault)
        write_file_atomically(self.folder / ORIGIN, json.dumps(origin))
        return lock

    def solve_and_save_spack_lock(self, spack: Spack) -> Path:
        """Solve again, and keep the solution as the site's.

        :raises StackError: as `concretize`; then an older kept lock stays.
        """
        self.concretize(spack, anew=True)
        self.lock_file_of_site.parent.mkdir(exist_ok=True)
        write_file_atomically(self.lock_file_of_site,
                              (self.folder / 'spack.lock').read_text())
        return self.lock_file_of_site

    def install(self, spack: Spack) -> dict[str, Any]:
        """Solve the stack and install missing packages; return `record`.

        :raises StackError: Spack fails; it printed the package, the reason and a log
        """
        lock = self.concretize(spack)
        if record := self.record():
            return record
        self._run_spack(spack, 'install', '--fail-fast')
        packages = self._run_spack(spack, 'find', '--deps', '--format', FORMAT)
        write_file_atomically(self.folder / PREFIXES, packages)
        record = self.record()
        if not record:
            lost = _missing_roots(lock, _parse_packages(packages))
            raise StackError(f'{self.name}: Spack reported success, but '
                             f'{", ".join(lost) or "its view or a prefix"} does not '
                             f'exist; read {self.folder}/{PREFIXES}')
        return record

    def record(self) -> dict[str, Any] | None:
        """The record of a complete installation that is not outdated, by plumb or by
        hand: stack, site, folder, view, provides (family -> package), packages (name
        -> version, hash, prefix) and mpi (its name); None: there is none.

        :raises StackError: the solution breaks promises of the stack
        """
        lock = read_spack_lock_file(self.folder / 'spack.lock')
        try:
            packages = _parse_packages((self.folder / PREFIXES).read_text())
            manifest = (self.folder / 'spack.yaml').read_text()
        except OSError:
            return None
        origin = _read_origin(self.folder)
        view = self.folder / VIEW
        # An external of a module has no prefix.
        prefixes = [view, *(Path(package['prefix']) for package in packages.values()
                            if package['prefix'])]
        if (lock is None or manifest != self.manifest_file.read_text()
                or origin and origin['settings'] != self.settings_hash()
                or _missing_roots(lock, packages)
                or not all(prefix.is_dir() for prefix in prefixes)):
            return None
        about = read_stack_yaml(self.name)
        if broken := unsatisfied_spec_promises(lock, about['promises']):
            raise StackError(f'{self.folder}: {"; ".join(broken)}')
        return {'stack': self.name, 'site': self.site.name, 'folder': str(self.folder),
                'view': str(view), 'provides': about['provides'],
                'mpi': _provider_of_mpi(lock), 'packages': packages}

    def _run_spack(self, spack: Spack, *words: str) -> str:
        """Run Spack in the environment; return its output, and print it unless it is
        a list of packages.

        :raises StackError: it fails
        """
        env = spack_environment_variables(self.site)
        if site_stack_settings(self.site)['offline']:
            # Spack has no such switch, and would try every upstream for
            # minutes: so every request goes to a proxy that refuses at once.
            env |= dict.fromkeys(
                ('http_proxy', 'https_proxy', 'ftp_proxy', 'all_proxy',
                 'HTTP_PROXY', 'HTTPS_PROXY', 'ALL_PROXY'),
                'http://127.0.0.1:9')
        lines = []
        with subprocess.Popen(
                [spack.command, '-e', str(self.folder), *words], env=env, text=True,
                errors='replace', stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT) as process:
            assert process.stdout
            try:
                for line in process.stdout:
                    lines.append(line)
                    if words[0] != 'find':
                        print(line, end='', file=sys.stderr, flush=True)
            except BaseException:
                # Killed at once, its builds would continue and hold their locks.
                process.terminate()
                raise
        if process.returncode:
            errors = [line.strip() for line in lines if 'rror:' in line]
            raise StackError(f'{self.name} for {self.site.name}: spack {words[0]} '
                             f'failed: {[*errors, _last_line("".join(lines))][0]}')
        return ''.join(lines)


def _read_origin(folder: Path) -> dict[str, str]:
    """The Spack and the settings of a solution; empty: plain Spack solved it."""
    try:
        return dict(json.loads((folder / ORIGIN).read_text()))
    except (OSError, ValueError):
        return {}


def _refuse_foreign_settings(spack: Spack) -> None:
    """Refuse settings that Spack would use silently.

    :raises StackError: such settings exist.
    """
    if spack.default_packages_file.exists():
        raise StackError(
            f'{spack.default_packages_file} applies to every site; Spack itself may '
            "have written it. Remove it, or move it to the site's spack/ if you need "
            'it')
    checkout = os.environ.get('PLUMBLINE_SPACK_PACKAGES')
    if checkout and not Path(checkout, 'repos').is_dir():
        raise NoStack(f'PLUMBLINE_SPACK_PACKAGES={checkout} is not a '
                      'checkout of spack-packages')


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


def detected_settings_folder(site: Path) -> Path | None:
    """Folder of Spack's settings that were detected here; None: the site has
    its own."""
    return work_folder() / 'local-spack' if is_site_named_local(site) else None


def installed_stack_record(name: str, site: Path) -> dict[str, Any]:
    """The record of an installed stack of a site; see `Stack.record`.

    :raises StackError: it is not installed, or what decides was changed
        since; names the command that installs it.
    """
    if record := Stack(name, site).record():
        return record
    where = site.name if site.parent == SITES else site
    raise StackError(
        f'the stack {name} is not installed for the site {site.name}, or '
        f'files of either were changed since: ./plumb dev spack install --site '
        f'{where} --stack {name}; spack-envs/README.md has the commands of '
        'plain Spack')


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
