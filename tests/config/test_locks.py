"""Locks that another user of the machine cannot hold, and waits that end."""
from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import perflogs_factory as make
import pytest
from conftest import ROOT
from impostor import UID, as_another_user

from cli.session import process as session
from cli.setup import venv as setup
from config.sessions import lock
from postprocess import records

as_root = pytest.mark.skipif(os.geteuid() != 0,
                             reason='needs root, to become another user')


@contextlib.contextmanager
def locked_by_a_reader(*paths: Path) -> Iterator[set[Path]]:
    """Another user, who can read all folders, holds every lock that it can
    get; the files that it could lock."""
    for folder in {above for path in paths for above in path.parents}:
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o055)
    (output, say), (wait, end) = os.pipe(), os.pipe()

    def lock_all() -> None:
        os.close(end)
        kept = []
        for path in paths:
            for take, how in ((fcntl.flock, fcntl.LOCK_EX),
                              (fcntl.flock, fcntl.LOCK_SH),
                              (fcntl.lockf, fcntl.LOCK_SH)):
                with contextlib.suppress(OSError):
                    kept.append(open(path))
                    take(kept[-1], how | fcntl.LOCK_NB)
                    os.write(say, f'{path}\n'.encode())
        os.close(say)
        os.read(wait, 1)

    pid = as_another_user(lock_all)
    os.close(say)
    os.close(wait)
    with open(output) as stream:
        kept = set(map(Path, stream.read().splitlines()))
    try:
        yield kept
    finally:
        os.close(end)
        os.waitpid(pid, 0)


# A reader who locks what it can ----------------------------------------------

@as_root
def test_a_reader_of_the_work_folder_does_not_stop_a_set_up(
        tmp_path, monkeypatch):
    monkeypatch.setattr(setup, 'WORK', tmp_path / 'work')
    monkeypatch.setattr(setup, 'LOCK_LIMIT', 0)
    with setup._hold_setup_lock():
        pass
    with locked_by_a_reader(tmp_path / 'work' / 'setup.lock') as kept:
        assert not kept
        with setup._hold_setup_lock():
            pass


@as_root
def test_a_reader_neither_stops_nor_fakes_a_session(tmp_path):
    """Only the process of the session can hold the lock of its log."""
    code = ('from config.sessions import record; record.begin_record(); '
            'print(flush=True); input()')
    job = subprocess.Popen(
        [sys.executable, '-c', code], cwd=ROOT, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env={**os.environ, 'PLUMBLINE_PERFLOGS': str(tmp_path)})
    assert job.stdout.readline()
    log, = tmp_path.glob('sessions/*.log')
    log.chmod(0o644)

    def is_running() -> bool:
        return records.sessions([tmp_path]).running.iloc[0]

    log.write_text("command: 'reframe -r'\nselected system: 'alpha'\n"
                   '[ RUN      ] Check /1 @alpha:cpu+gnu\n')
    with locked_by_a_reader(log):
        assert is_running()
    job.communicate('\n')
    with locked_by_a_reader(log) as kept:
        assert kept == {log} and not is_running()


@as_root
def test_a_reader_of_the_session_and_the_cache_holds_no_lock(
        tmp_path, monkeypatch):
    monkeypatch.setattr(session, 'WORK', tmp_path)
    with session.create_session_folders({}) as subset:
        path = subset.folder / 'lock'
    logs = tmp_path / 'perflogs'
    make.write(logs, [make.record()])
    records.read(logs)
    guards = [path, *logs.rglob('lock')]
    with locked_by_a_reader(*guards) as kept:
        assert not kept
        assert len(records.read(logs)) == 1


def test_a_lock_of_an_earlier_session_becomes_private(tmp_path):
    path = tmp_path / 'alpha.lock'
    path.touch(0o644)
    path.chmod(0o644)
    with lock.hold_file_lock(path):
        assert path.stat().st_mode & 0o777 == 0o600


# Where the machine's lock is -------------------------------------------------

@pytest.fixture
def places(tmp_path, monkeypatch):
    """Variables of a user whose folders are in tmp_path."""
    for name in ('PLUMBLINE_LOCK', 'XDG_RUNTIME_DIR'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('PLUMBLINE_WORK', str(tmp_path / 'work'))
    private = lock._is_private
    # This machine may have a folder for the user who runs the tests.
    monkeypatch.setattr(lock, '_is_private', lambda folder:
                        folder.is_relative_to(tmp_path) and private(folder))
    return monkeypatch


def test_the_lock_of_a_machine_is_in_the_folder_of_its_user(
        tmp_path, places):
    work = tmp_path / 'work' / 'locks' / f'{os.uname().nodename}.lock'
    assert lock.machine_lock_path() == work
    folder = tmp_path / 'user'
    places.setenv('XDG_RUNTIME_DIR', str(folder))
    assert lock.machine_lock_path() == work                     # it does not exist
    folder.mkdir(mode=0o700)
    assert lock.machine_lock_path() == folder / 'plumbline.lock'
    with lock.hold_file_lock(lock.machine_lock_path()):
        assert lock.machine_lock_path().stat().st_mode & 0o777 == 0o600
    folder.chmod(0o777)
    assert lock.machine_lock_path() == work                     # others can write there
    places.setenv('PLUMBLINE_LOCK', str(tmp_path / 'own'))
    assert lock.machine_lock_path() == tmp_path / 'own'


@as_root
def test_a_file_that_a_stranger_made_in_tmp_stops_nobody(tmp_path, places):
    """Also not where the folder of the user is another's (sudo -E)."""
    stranger = tmp_path / 'user'
    stranger.mkdir(mode=0o700)
    os.chown(stranger, UID, UID)
    places.setenv('XDG_RUNTIME_DIR', str(stranger))
    assert not str(lock.machine_lock_path()).startswith(
        ('/tmp/plumbline', str(stranger))
    )
    with lock.hold_file_lock(lock.machine_lock_path(), limit=0):
        pass


def test_the_folder_in_run_is_next(places):
    places.setattr(lock, '_is_private', lambda folder:
                   folder == Path(f'/run/user/{os.geteuid()}'))
    assert lock.machine_lock_path() == Path(f'/run/user/{os.geteuid()}/plumbline.lock')


def test_a_file_that_is_no_lock_is_refused_and_unchanged(tmp_path):
    path, other = tmp_path / 'lock', tmp_path / 'other'
    other.write_text('precious')
    makers = {'cannot lock': lambda: path.symlink_to(other),
              'not a plain file': lambda: os.link(other, path),
              'not a plain file of': lambda: os.mkfifo(path)}
    if os.geteuid() == 0:
        makers['not a plain file of .*; remove'] = lambda: (
            path.touch(), os.chown(path, UID, UID))
    for words, make_file in makers.items():
        make_file()
        with pytest.raises(lock.LockError, match=words), lock.hold_file_lock(path):
            pass
        path.unlink()
    assert other.read_text() == 'precious'


# Waits that end --------------------------------------------------------------

WHO = rf'pid {os.getpid()} of \S+ since 20[-\d]+ [:\d]+: \S'


def test_a_wait_has_a_limit_and_names_the_holder(tmp_path):
    path = tmp_path / 'lock'
    with lock.hold_file_lock(path), pytest.raises(lock.LockError, match=(
            rf'measured by {WHO}.*; waited 0\.05 s for {path}; wait until')
            ), lock.hold_file_lock(path, limit=0.05):
        pass


def test_a_set_up_that_never_ends_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(setup, 'WORK', tmp_path)
    monkeypatch.setattr(setup, 'LOCK_LIMIT', 0.05)
    with setup._hold_setup_lock(), pytest.raises(setup.SetupError, match=(
            f'{tmp_path} is being set up by {WHO}')), setup._hold_setup_lock():
        pass


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(37, 'No locks available')
    monkeypatch.setattr(fcntl, 'flock', none)
    with pytest.raises(lock.LockError, match='No locks available'), \
            lock.hold_file_lock(tmp_path / 'lock'):
        pass
