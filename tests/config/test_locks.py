"""Locks that another user of the machine cannot hold, and waits that end."""
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import perflogs_factory as make
import pytest
from conftest import ROOT
from impostor import UID, as_another_user

from cli.nightly import overlap
from cli.session import process as session
from cli.setup import venv as setup
from config.records import perflog
from config.sessions import lock
from config.sessions import runner as hooks
from postprocess import perflogs
from postprocess.perflogs import plans

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


@pytest.fixture
def header() -> list[str]:
    return list(perflog.schema_number_and_columns()[1])


# A reader who locks what it can ----------------------------------------------

@as_root
def test_a_reader_of_a_perflog_does_not_stop_a_session(
        tmp_path, header, monkeypatch):
    monkeypatch.setattr(perflog, 'LOCK_LIMIT', 0)
    path = tmp_path / 'alpha' / 'cpu' / 'OsuPt2pt.v3.csv'
    perflog.append_records(path, header, [['1'] * len(header)])
    # The reader can read, whatever the umask of the tests.
    for folder in (path.parent, path.parent.parent):
        folder.chmod(0o755)
    path.chmod(0o644)
    with locked_by_a_reader(*path.parent.iterdir()) as kept:
        assert kept == {path}
        perflog.append_records(path, header, [['2'] * len(header)])
    assert len(path.read_text().splitlines()) == 3


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
def test_a_reader_of_a_plan_neither_stops_nor_fakes_a_session(tmp_path):
    run = make.record()['run']
    made = hooks.write_and_lock_plan(tmp_path / plans.FOLDER, run, {}, [])
    path = tmp_path / plans.FOLDER / f'{run}.json'
    alive = ('import sys; from pathlib import Path; from postprocess.perflogs '
             'import plans; print(plans.is_session_running(Path(sys.argv[1])))')

    def is_alive() -> str:
        return subprocess.run([sys.executable, '-c', alive, path], cwd=ROOT,
                              capture_output=True, text=True).stdout.strip()

    with locked_by_a_reader(path):
        assert is_alive() == 'True'
    os.close(made)
    with locked_by_a_reader(path) as kept:
        assert kept == {path} and is_alive() == 'False'


@as_root
def test_a_reader_of_the_session_and_the_cache_holds_no_lock(
        tmp_path, monkeypatch):
    monkeypatch.setattr(session, 'WORK', tmp_path)
    with session.create_session_folders({}) as subset:
        path = subset.folder / 'lock'
    logs = tmp_path / 'perflogs'
    make.write(logs, [make.record()])
    perflogs.read(logs)
    guards = [path, *logs.rglob('lock')]
    with locked_by_a_reader(*guards) as kept:
        assert not kept
        assert len(perflogs.read(logs)) == 1


def test_a_lock_of_an_earlier_session_becomes_private(tmp_path):
    path = tmp_path / 'alpha.lock'
    path.touch(0o644)
    path.chmod(0o644)
    with overlap.hold_nightly_lock(path, 1, print, 0):
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


def test_a_fifo_in_place_of_a_lock_is_refused(tmp_path):
    path = tmp_path / 'lock'
    os.mkfifo(path)
    with pytest.raises(lock.LockError, match='not a plain file'), \
            lock.hold_file_lock(path):
        pass


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


def test_a_session_that_never_lets_a_perflog_go_is_named(
        tmp_path, header, monkeypatch):
    monkeypatch.setattr(perflog, 'LOCK_LIMIT', 0.05)
    with lock.hold_file_lock(tmp_path / perflog.LOCK), pytest.raises(
            lock.LockError, match=f'{tmp_path} is written by {WHO}'):
        perflog.append_records(tmp_path / 'X.v3.csv', header, [])


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(37, 'No locks available')
    monkeypatch.setattr(fcntl, 'flock', none)
    with pytest.raises(lock.LockError, match='No locks available'), \
            lock.hold_file_lock(tmp_path / 'lock'):
        pass


def test_a_group_that_writes_to_the_perflogs_shares_their_lock(
        tmp_path, header):
    for mode, expected in ((0o2775, 0o660), (0o755, 0o600)):
        tmp_path.chmod(mode)
        perflog.append_records(tmp_path / 'X.v3.csv', header, [])
        path = tmp_path / perflog.LOCK
        assert path.stat().st_mode & 0o777 == expected
        assert re.match(r'reframe\b',
                        json.loads(path.read_text())['command'])
