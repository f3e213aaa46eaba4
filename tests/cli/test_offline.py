"""Set-up without a network: pip takes wheels of a folder, and only sound ones."""
from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, git, skip_missing

from cli.setup import venv
from cli.setup.venv import SetupError


def wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    """A wheel of a few files."""
    path = folder / f'{name}-1-py3-none-any.whl'
    info = f'{name}-1.dist-info'
    files = files | {
        f'{info}/METADATA': f'Metadata-Version: 2.1\nName: {name}\n'
                            'Version: 1\n',
        f'{info}/WHEEL': 'Wheel-Version: 1.0\nGenerator: test\n'
                         'Root-Is-Purelib: true\nTag: py3-none-any\n'}
    with zipfile.ZipFile(path, 'w') as archive:
        for member, text in files.items():
            entry = zipfile.ZipInfo(member)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)
        archive.writestr(f'{info}/RECORD', ''.join(
            f'{member},,\n' for member in [*files, f'{info}/RECORD']))
    return path


def locked(path: Path) -> str:
    """An entry of a lock file for a wheel."""
    return (f"{path.name.partition('-')[0]}==1 \\\n    --hash=sha256:"
            f'{hashlib.sha256(path.read_bytes()).hexdigest()}\n')


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The folder of wheels. An earlier set-up has installed folders."""
    folder, locks, index = (tmp_path / name for name in ('work', 'locks', 'index'))
    for path in (locks, index, *(folder / name for name in ('mpi', 'stores', 'venv'))):
        path.mkdir(parents=True)
    lock = locked(wheel(index, 'one', {'one.py': ''}))
    for name in ('mpi', 'stores', 'requirements'):
        (locks / f'{name}.lock').write_text(lock)
    for name in ('mpi', 'stores', 'venv'):
        (folder / name / 'kept').touch()
    monkeypatch.setattr(venv, 'WORK', folder)
    monkeypatch.setattr(venv, 'LOCKS', locks)
    monkeypatch.setenv('PIP_NO_INDEX', '1')
    monkeypatch.setenv('PIP_FIND_LINKS', str(index))
    return index


def test_a_refused_wheel_is_not_installed(index, monkeypatch):
    monkeypatch.setattr(venv, 'ensure_venv', lambda: Path(sys.executable))
    prefix = venv.ensure_folder_of_lock('mpi')
    assert [*prefix.glob('lib/python*/site-packages/one.py')]
    assert not (prefix / 'kept').exists()
    wheel(index, 'one', {'one.py': 'changed'})
    (prefix / 'plumbline.stamp').unlink()
    with pytest.raises(SetupError, match='DO NOT MATCH THE HASHES'):
        venv.ensure_folder_of_lock('mpi')
    for path in index.iterdir():
        path.unlink()
    with pytest.raises(SetupError, match=r'No matching .* docs/how-to/offline\.md'):
        venv.ensure_folder_of_lock('mpi')
    assert not (prefix / 'plumbline.stamp').exists()
    # Stores are optional.
    monkeypatch.setattr(venv, 'find_store_servers', lambda *_: [])
    venv.ensure_store_servers()
    assert 'No matching' in (venv.WORK / 'stores' / 'missing').read_text()


#: With a loopback, as every machine has one, and nothing else.
INSIDE = 'ip link set lo up && exec "$@"'


@pytest.fixture
def without_network() -> list[str]:
    """What starts a command in a network namespace without a route."""
    if not shutil.which('ip'):
        skip_missing('ip', 'no ip, which brings up the loopback')
    message = ''
    for options in ('-n', '-rn'):
        words = ['unshare', options, 'sh', '-c', INSIDE, 'sh']
        with contextlib.suppress(OSError):
            done = subprocess.run([*words, 'true'], text=True,
                                  capture_output=True)
            if not done.returncode:
                return words
            message = done.stderr.strip()
    pytest.skip(f'no network namespace can be made here: {message}')


def clone(place: Path) -> Path:
    """A clean clone of what this checkout is, with changes not committed."""
    git('clone', '-q', '--no-hardlinks', str(ROOT), str(place))
    changed = git('ls-files', '-z', '-m', '-o', '--exclude-standard')
    for name in filter(None, changed.split('\0')):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, place / name)
        else:
            (place / name).unlink()
    return place


def stand_in(checkout: Path, index: Path) -> None:
    """Locks a clone onto one wheel that leads to the packages of this venv:
    the real ones take a minute to install. An MPI is here.
    """
    packages = next(path for path in sys.path if Path(path, 'pandas').exists())
    name = wheel(index, 'standin', {
        'standin.pth': f'{packages}\n',
        'standin-1.data/scripts/reframe':
            '#!python\nimport sys\nfrom reframe.frontend.cli import main\n'
            'sys.exit(main())\n'})
    for lock in (checkout / 'config' / 'python').glob('*.lock'):
        if 'mpi' in lock.name:
            lock.unlink()
        else:
            lock.write_text(locked(name))


@pytest.mark.strict
def test_both_commands_of_the_readme_without_a_network(tmp_path, without_network):
    checkout, home = clone(tmp_path / 'clone'), tmp_path / 'home'
    home.mkdir()
    stand_in(checkout, tmp_path)

    def there(*words: str) -> str:
        done = subprocess.run(
            [*without_network, *words], cwd=checkout, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={
                'PATH': os.environ['PATH'], 'HOME': str(home),
                'PIP_NO_INDEX': '1', 'PIP_FIND_LINKS': str(tmp_path),
                'PLUMBLINE_LOCK': str(tmp_path / 'lock'),
                'PLUMBLINE_PYTHON': sys._base_executable,
                'PLUMBLINE_OTHERS_LIMIT': '1e6'})
        assert done.returncode == 0, done.stdout
        return done.stdout

    assert 'unreachable' in there(sys.executable, '-c', (
        'import socket\ntry: socket.create_connection(("192.0.2.1", 9), 5)\n'
        'except OSError as err: print(err)'))
    assert ' of 1 test case · ' in there(
        './plumb', 'run', '--', '-E', 'program == "osu_init"')
    assert re.search(r'^[1-9]\d* passed', there(
        './plumb', 'selftest', '--', '-n0', 'tests/cli/test_cli.py', '-k',
        'mpi_flavours'), re.M)
