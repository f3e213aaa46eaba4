"""Software stacks: spack-envs/<stack> solved and installed for a site.

A :class:`Stack` is a manifest and a site. A person solves and installs it
beforehand with ``plumb dev spack``, in a folder outside of every test's stage
directory. The fixture of a family (`base.Programs`) finds it with
:func:`installed_stack_record`, which needs no Spack, by a key over all that
    decides what
comes out: the manifest, the site's Spack settings, our recipes, Spack's
version. It also finds what plain Spack installed (spack-envs/README.md).

ReFrame's own Spack build system is not used. It puts the environment and (by
default) the install tree into the stage directory of each test, so that each
test solves and builds everything again. Even with a shared store it took 14 s
per test and session; here an installed stack is recognised in milliseconds.
It also runs Spack on the compute node, and two tests at once failed on the
lock of a build stage that they shared.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from config import strict
from config.commandline import suggest_nearest_word
from config.families import families as all_families
from config.places import ROOT, SITES, is_site_named_local, work_folder
from config.sessions import lock as locks

ENVS = ROOT / 'spack-envs'

#: Oldest Spack that can read the configuration files of the stacks.
OLDEST = (1, 0)

#: Keys of a site's stacks.yaml with their defaults.
DEFAULTS: dict[str, Any] = {
    'offline': False,       # use only the site's mirrors
    'solve_limit': 1800,    # seconds for one concretization
    'install_limit': 21600,  # seconds for one installation
}

#: What `spack find` prints of each package of a stack, and the file of it.
FORMAT, PREFIXES = 'plumb:{name}:{version}:{hash}:{prefix}', 'prefix.log'

#: File with the Spack that installed a stack: its version, and its recipes.
ORIGIN = 'origin.json'

#: Signals that end an installation, and Spack with it.
_ENDING_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

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


def write_file_atomically(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(f'.{path.name}.{os.getpid()}')
    try:
        new.write_text(text)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


@contextlib.contextmanager
def _process_with_time_limit(command: Sequence[str], env: Mapping[str, str],
                             limit: float
                             ) -> Iterator[tuple[subprocess.Popen[str],
                                                 threading.Event]]:
    """Start a process in a process session of its own; end it after its time
    limit, or when this block ends early.

    :param limit: the time limit; unit: seconds
    :returns: the process, whose output is a pipe, and an event that is set after
        the time limit
    """
    late = threading.Event()
    process: subprocess.Popen[str] | None = None

    def end_process() -> None:
        assert process
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        _kill_processes(_pids_in_process_sessions({process.pid}))

    def end_process_at_time_limit() -> None:
        late.set()
        end_process()

    timer = threading.Timer(limit, end_process_at_time_limit)
    # A handler that ends this program must not run between the start of the
    # process and the block that ends it: the process would go on.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
    try:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, text=True,
            errors='replace', stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            bufsize=1, start_new_session=True, preexec_fn=lambda: (
                signal.pthread_sigmask(signal.SIG_SETMASK, before)))
        timer.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield process, late
    finally:
        timer.cancel()
        if process and process.poll() is None:
            end_process()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _list_processes() -> Iterator[tuple[int, int, str]]:
    """Process, session and command line of every process of this host."""
    for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
        with contextlib.suppress(OSError):
            yield (pid, os.getsid(pid),
                   Path(f'/proc/{pid}/cmdline').read_text(errors='replace'))


def _pids_in_process_sessions(leaders: set[int]) -> set[int]:
    """The processes of some process sessions.

    Spack's builds have their own process groups. They would outlive Spack,
    continue to build, and hold locks that block the next installation.
    """
    return {pid for pid, session, _ in _list_processes() if session in leaders}


def _kill_processes(processes: set[int]) -> None:
    for pid in processes - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def failure_reason(text: str) -> str:
    """The line of Spack's output with the reason of a failure."""
    if 'No space left on device' in text:
        return ('the disk is full: free space, or move install_tree and '
                'build_stage in the settings of the site')
    patterns = [r'^> (.*)', r'(FetchError: .*)', r'(ChecksumError: .*)',
                r'^==> Error: (.*)', r'^(.*[Ee]rror: .*)']
    if 'failed to concretize' in text:
        patterns.insert(0, r'^ *1\. (.*)')
    for pattern in patterns:
        match = re.search(pattern, text, re.M)
        if match:
            hint = (': no mirror of the site has its source, and the '
                    'download from upstream failed'
                    if 'FetchError' in pattern else '')
            why = match[1].strip()
            if why.endswith(':'):
                rest = text[match.end():].split('\n')
                why += next((f' {ln.strip()}' for ln in rest if ln.strip()),
                            '')
            return why + hint
    return _last_line(text)


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


def _site_stacks_folder(site: Path) -> Path:
    """Folder of the stacks that are installed for a site."""
    return work_folder() / 'spack' / 'envs' / site.name


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
    :arg say: called with each line of progress.
    :arg own: folder of detected settings, if the site is this machine and its
        files do not belong into the checkout.
    """
    name: str
    site: Path
    spack: Spack
    say: Callable[[str], None] = field(default=lambda text: None)
    own: Path | None = None

    # Paths --------------------------------------------------------------

    @property
    def manifest_file(self) -> Path:
        return ENVS / self.name / 'spack.yaml'

    @property
    def site_spack_lock_file(self) -> Path:
        """A solution that the site keeps, so that no session solves again."""
        return (self.own or self.site) / 'locks' / f'{self.name}.lock'

    @property
    def environment_folder(self) -> Path:
        """The Spack environment: manifest, lock, view, logs, record."""
        return _site_stacks_folder(self.site) / f'{self.name}-{self.content_hash}'

    @cached_property
    def stack_yaml_contents(self) -> dict[str, Any]:
        """stack.yaml; see the function `read_stack_yaml`."""
        return read_stack_yaml(self.name)

    @cached_property
    def settings_of_site(self) -> dict[str, Any]:
        """The site's stacks.yaml over the defaults."""
        return site_stack_settings(self.site)

    @cached_property
    def content_hash(self) -> str:
        """Twelve digits of a hash over everything that affects the result."""
        _ = self.stack_yaml_contents
        if not (self.site / 'spack').is_dir():
            raise StackError(f'{self.site}/spack is missing: add the Spack '
                             'settings of the site (docs/how-to/spack.md)')
        digest = hashlib.sha256(self.spack.version.encode())
        digest.update(self.spack.recipes.encode())
        # Not the whole folder of the manifest: plain Spack writes there.
        for base in (self.manifest_file, self.manifest_file.with_name('stack.yaml'),
                     ENVS / 'common', ENVS / 'repo',
                     self.site / 'spack', self.site_spack_lock_file,
                     *([self.own / 'packages.yaml'] if self.own else [])):
            files = [base] if base.is_file() else sorted(base.rglob('*'))
            for path in files:
                if path.suffix in ('.yaml', '.py', '.patch', '.lock'):
                    digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()[:12]

    # Actions ------------------------------------------------------------

    def concretize(self) -> dict[str, Any]:
        """Solve the stack, unless it is solved; return its spack.lock.

        :raises StackError: it has no solution or breaks a promise, or Spack
            would use settings that are not the site's.
        """
        with self._hold_lock():
            return self._solve_and_check()

    def solve_and_save_spack_lock(self) -> Path:
        """Solve again, and keep the solution as the site's.

        :raises StackError: as `concretize`; then an older kept lock stays.
        """
        with self._hold_lock():
            lock_file = self.environment_folder / 'spack.lock'
            lock_file.unlink(missing_ok=True)
            self._solve_and_check(anew=True)
            self.site_spack_lock_file.parent.mkdir(exist_ok=True)
            write_file_atomically(self.site_spack_lock_file, lock_file.read_text())
        return self.site_spack_lock_file

    def install(self) -> dict[str, Any]:
        """Solve and install missing packages; return the record.

        The record: stack, site, key, spack, view, provides (family ->
        package), packages (name -> version, hash, prefix) and mpi (its name).

        :raises StackError: with the package, the reason and its log.
        """
        done = self.read_installation_record()
        if done:
            return done
        with self._hold_lock():
            # Another process may have installed it while we waited.
            done = self.read_installation_record()
            if done:
                return done
            lock = self._solve_and_check()
            self.say(f'{self.name}: installing {len(lock["concrete_specs"])}'
                     f' packages into {self.environment_folder}')
            start = time.monotonic()
            code, text = self._run_spack('install', '--fail-fast',
                                         limit=self.settings_of_site['install_limit'],
                                         log='install.log', progress=True)
            if code:
                raise StackError(self._installation_failure_message(text))
            self.say(f'{self.name}: installed in '
                     f'{time.monotonic() - start:.0f} s')
            return self._write_installation_record(lock)

    # Steps --------------------------------------------------------------

    def _solve_and_check(self, anew: bool = False) -> dict[str, Any]:
        lock_file = self.environment_folder / 'spack.lock'
        self.environment_folder.mkdir(parents=True, exist_ok=True)
        ours = self.environment_folder / 'spack.yaml'
        text = self.manifest_file.read_text()
        if not ours.exists() or ours.read_text() != text:
            write_file_atomically(ours, text)
            lock_file.unlink(missing_ok=True)
        old = self._read_spack_lock_or_remove(lock_file)
        if old is None and self.site_spack_lock_file.exists() and not anew:
            old = self._read_spack_lock_or_remove(self.site_spack_lock_file)
            if old is None:
                raise StackError(f'{self.site_spack_lock_file} is not a lock file of '
                                 'Spack: create it with plumb dev spack lock')
            shutil.copy(self.site_spack_lock_file, lock_file)
        self._refuse_foreign_settings()
        start = time.monotonic()
        code, output = self._run_spack('concretize',
                                       limit=self.settings_of_site['solve_limit'],
                                       log='concretize.log')
        if ours.read_text() != text or self.spack.default_packages_file.exists():
            lock_file.unlink(missing_ok=True)
            changed = (f'{self.spack.default_packages_file}, which you must remove'
                       if self.spack.default_packages_file.exists() else ours)
            ours.unlink()
            raise StackError(
                f'{self.site}/spack has no compiler that Spack can use, so '
                f'Spack wrote its own settings: {changed}; add gcc with '
                'extra_attributes to packages.yaml (output of Spack: '
                f'{self.environment_folder}/concretize.log)')
        if code:
            raise StackError(f'{self.name} does not concretize for '
                             f'{self.site.name}: {failure_reason(output)} (whole '
                             f'output: {self.environment_folder}/concretize.log)')
        lost = re.search(r'Error constructing repository.*', output)
        if lost:
            raise StackError(f'{self.name}: Spack ignored a recipe '
                             f'repository: {lost.group()}')
        lock = self._read_spack_lock_or_remove(lock_file)
        if lock is None:
            raise StackError(f'{self.name}: Spack did not write {lock_file}; '
                             f'read {self.environment_folder}/concretize.log')
        if old is not None and old['roots'] != lock['roots'] \
                and self.site_spack_lock_file.exists() and not anew:
            lock_file.unlink()
            raise StackError(f'{self.site_spack_lock_file} is older than the stack: '
                             'create it again with plumb dev spack lock')
        broken = unsatisfied_spec_promises(lock, self.stack_yaml_contents['promises'])
        if broken:
            lock_file.unlink()
            raise StackError(f'the solution of {self.name} breaks promises of '
                             f'{self.manifest_file.with_name("stack.yaml")}: '
                             f'{"; ".join(broken)}')
        self.say(f'{self.name}: {len(lock["concrete_specs"])} packages '
                 f'solved in {time.monotonic() - start:.0f} s')
        return lock

    def _refuse_foreign_settings(self) -> None:
        """Refuse settings that Spack would use silently.

        :raises StackError: such settings exist.
        """
        if self.spack.default_packages_file.exists():
            raise StackError(
                f'{self.spack.default_packages_file} applies to every site; '
                'Spack itself may have written it. Remove it, or move it to the '
                "site's spack/ "
                'if you need it'
            )
        checkout = os.environ.get('PLUMBLINE_SPACK_PACKAGES')
        if checkout and not Path(checkout, 'repos').is_dir():
            raise NoStack(f'PLUMBLINE_SPACK_PACKAGES={checkout} is not a '
                          'checkout of spack-packages')
        pinned = _read_yaml(ENVS / 'common' / 'packages-pinned.yaml')
        commit = pinned['repos']['builtin']['commit']
        if checkout and _packages_checkout_commit() != commit:
            self.say(
                f'PLUMBLINE_SPACK_PACKAGES is at {_packages_checkout_commit()[:10]}, '
                f'but the stacks were tested with {commit[:10]}'
            )

    def _read_spack_lock_or_remove(self, path: Path) -> dict[str, Any] | None:
        """A lock file's contents; a damaged one of ours is removed.

        With a damaged lock every command of Spack fails without a reason.
        """
        lock = read_spack_lock_file(path)
        if lock is None and path.exists():
            self.say(f'{path} is damaged')
            if path != self.site_spack_lock_file:
                path.unlink()
        return lock

    def _installation_failure_message(self, text: str) -> str:
        """A message with the package, the reason and the path of its log."""
        failed = re.search(
            r'^\[x\] \w+ (?P<name>\S+) failed: (?P<log>\S+)', text, re.M
        ) or re.search(r'(?P<name>\S+?)/\w{32}: (?P<log>/\S+)', text)
        log = Path(failed['log']) if failed else self.environment_folder / 'install.log'
        name = failed['name'] if failed else 'a package'
        return (f'{self.name}: {name} failed to install: {failure_reason(text)} '
                f'(whole log: {log})')

    def read_installation_record(self) -> dict[str, Any] | None:
        """The record of a complete installation that still exists."""
        folder = self.environment_folder
        try:
            origin = json.loads((folder / ORIGIN).read_text())
        except (OSError, ValueError):
            return None
        record = _record_of_folder(self.name, self.site, folder)
        return {**origin, **record} if record else None

    def _write_installation_record(self, lock: dict[str, Any]) -> dict[str, Any]:
        _, text = self._run_spack('find', '--deps', '--format', FORMAT,
                                  limit=600, log=PREFIXES)
        if lost := _missing_roots(lock, _parse_packages(text)):
            raise StackError(f'{self.name}: Spack reported success, but '
                             f'{", ".join(lost)} is not installed; read '
                             f'{self.environment_folder}/{PREFIXES}')
        write_file_atomically(self.environment_folder / ORIGIN, json.dumps(
            {'key': self.content_hash, 'spack': self.spack.version,
             'recipes': self.spack.recipes}))
        record = self.read_installation_record()
        if not record:
            raise StackError(f'{self.name}: Spack reported success, but its view or '
                             f'a prefix does not exist; read '
                             f'{self.environment_folder}/{PREFIXES}')
        return record

    @contextlib.contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold the lock: one solve or installation of a stack at a time."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locks.hold_file_lock(
                    self.environment_folder.with_suffix('.guard'),
                    self.settings_of_site['solve_limit']
                    + self.settings_of_site['install_limit'],
                    busy=f'{self.name} is installed by'))
            except locks.LockError as err:
                raise StackError(str(err)) from None
            self._end_leftover_processes()
            yield

    def _end_leftover_processes(self) -> None:
        """End processes of a killed installation.

        Only the holder of the lock runs Spack. A Spack that the suite starts
        leads its own process session; one that a user starts by hand in this
        folder does not.
        """
        running = list(_list_processes())
        commands = {pid: command for pid, _, command in running}
        ours = f'-e\0{self.environment_folder}\0'
        left = {session for _, session, command in running if ours in command
                and ours in commands.get(session, ours)}
        if left:
            self.say(f'{self.name}: ending processes of a killed run')
            _kill_processes(_pids_in_process_sessions(left))

    def _run_spack(self, *words: str, limit: float, log: str,
                   progress: bool = False) -> tuple[int, str]:
        """Run Spack in the environment; return its exit code and output."""
        env = spack_environment_variables(self.site)
        if self.settings_of_site['offline']:
            # Spack has no such switch, and would try every upstream for
            # minutes: so every request goes to a proxy that refuses at once.
            env |= dict.fromkeys(
                ('http_proxy', 'https_proxy', 'ftp_proxy', 'all_proxy',
                 'HTTP_PROXY', 'HTTPS_PROXY', 'ALL_PROXY'),
                'http://127.0.0.1:9')
        command = [self.spack.command, '-e', str(self.environment_folder), *words]
        messages: list[str] = []
        with open(self.environment_folder / log, 'w') as handle:
            print('$', shlex.join(command), file=handle, flush=True)
            with _process_with_time_limit(command, env, limit) as (process, late):
                assert process.stdout
                for line in process.stdout:
                    messages.append(line)
                    handle.write(line)
                    handle.flush()
                    # Only Spack's steps; the rest is in the log.
                    if progress and line.startswith(('[', '==>')):
                        self.say(f'{self.name}: {line.rstrip()}')
                code = process.wait()
        if late.is_set():
            raise StackError(f'{self.name}: `spack {words[0]}` took more than '
                             f'{limit:g} s and was ended; set a longer limit '
                             f'in {self.site}/stacks.yaml')
        return code, ''.join(messages)


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


def _record_of_folder(name: str, site: Path, folder: Path) -> dict[str, Any] | None:
    """The record of an installation in a folder; None: it is not complete.

    The command `find` of spack-envs/README.md left the packages there, by plumb or
    by hand.
    """
    lock = read_spack_lock_file(folder / 'spack.lock')
    try:
        packages = _parse_packages((folder / PREFIXES).read_text())
    except OSError:
        return None
    view = folder / VIEW
    # An external of a module has no prefix.
    prefixes = [view, *(Path(package['prefix']) for package in packages.values()
                        if package['prefix'])]
    if lock is None or _missing_roots(lock, packages) or not all(
            prefix.is_dir() for prefix in prefixes):
        return None
    return {'stack': name, 'site': site.name, 'folder': str(folder),
            'view': str(view), 'provides': read_stack_yaml(name)['provides'],
            'mpi': _provider_of_mpi(lock), 'packages': packages}


def detected_settings_folder(site: Path) -> Path | None:
    """Folder of Spack's settings that were detected here; None: the site has
    its own."""
    return work_folder() / 'local-spack' if is_site_named_local(site) else None


def installed_stack_record(name: str, site: Path) -> dict[str, Any]:
    """The record of an installed stack of a site; see `Stack.install`.

    :raises StackError: it is not installed, or what decides was changed
        since; names the command that installs it.
    """
    result = []
    for path in _site_stacks_folder(site).glob(f'{name}-*/{ORIGIN}'):
        try:
            origin = json.loads(path.read_text())
            spack = Spack('', origin['spack'], origin['recipes'])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        stack = Stack(name, site, spack, own=detected_settings_folder(site))
        if stack.environment_folder == path.parent and (
                record := stack.read_installation_record()):
            result.append((path.stat().st_mtime, record))
    if result:
        return max(result, key=lambda one: one[0])[1]
    if record := _record_of_manual_installation(name, site):
        return record
    where = site.name if site.parent == SITES else site
    raise StackError(
        f'the stack {name} is not installed for the site {site.name}, or '
        f'files of either were changed since: ./plumb dev spack install --site '
        f'{where} --stack {name}; spack-envs/README.md has the commands of '
        'plain Spack')


def _record_of_manual_installation(name: str, site: Path) -> dict[str, Any] | None:
    """The record of a stack that a person installed without plumb; None: it
    is not complete, or of another manifest."""
    folder = _site_stacks_folder(site) / name
    try:
        same = (folder / 'spack.yaml').read_text() == (
            ENVS / name / 'spack.yaml').read_text()
    except OSError:
        return None
    record = _record_of_folder(name, site, folder) if same else None
    if record and (broken := unsatisfied_spec_promises(
            json.loads((folder / 'spack.lock').read_text()),
            read_stack_yaml(name)['promises'])):
        raise StackError(f'{folder}: {"; ".join(broken)}')
    return record


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
