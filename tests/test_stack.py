"""Stacks: what is promised, and every way in which it is not had.

Spack is a fake here (tests/fake/spack) but for the last part, which runs
where a real one is found.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checks.lib import stack as stacks
from tests.conftest import ROOT

FAKE = ROOT / 'tests' / 'fake'


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A stack `tiny` and a site, with the fake Spack."""
    envs = tmp_path / 'spack-envs'
    (envs / 'tiny').mkdir(parents=True)
    (envs / 'tiny' / 'spack.yaml').write_text('spack: {specs: [redis]}\n')
    (envs / 'tiny' / 'stack.yaml').write_text(
        'descr: tiny\nprovides: {keyvalue: redis}\n'
        'promises: ["redis@7.0.15 +tls"]\n')
    (tmp_path / 'site' / 'spack').mkdir(parents=True)
    (tmp_path / 'site' / 'spack' / 'packages.yaml').write_text('{}\n')
    monkeypatch.setattr(stacks, 'ENVS', envs)
    for name, value in {'PLUMBLINE_WORK': str(tmp_path / 'work'),
                        'FAKE_ENVS': str(envs), 'FAKE_SPACK': '',
                        'FAKE_CALLS': str(tmp_path / 'calls')}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv('SPACK_ROOT', raising=False)
    monkeypatch.setenv('PATH', f'{FAKE}:{os.environ["PATH"]}')
    return tmp_path


def tiny(place):
    said = []
    stack = stacks.Stack('tiny', place / 'site', stacks.find_spack(),
                         said.append)
    object.__setattr__(stack, 'said', said)
    return stack


def calls(place):
    return [line.split()[2] for line in
            (place / 'calls').read_text().splitlines() if '-e' in line]


# ------------------------------------------------------------- promises

LOCK = {'concrete_specs': {'h': {
    'name': 'osu', 'version': '7.5.2', 'parameters': {
        'cuda': True, 'xccl': False, 'cuda_arch': ['80', '90']}}}}


@pytest.mark.parametrize('promise', [
    'osu', 'osu@7.5', 'osu@7.5.2 +cuda', 'osu ~xccl', 'osu cuda_arch=90'])
def test_a_promise_that_is_kept(promise):
    assert stacks.broken_promises(LOCK, [promise]) == []


@pytest.mark.parametrize('promise, has', [
    ('osu@7.4', 'osu@7.5.2'), ('osu+xccl', '~xccl'), ('osu ~cuda', '+cuda'),
    ('osu cuda_arch=70', 'cuda_arch=80,90'), ('osu@7.5.20', '7.5.2'),
    ('osu +rocm', 'rocm=nothing'), ('nccl', 'not in the solution')])
def test_a_promise_that_is_broken(promise, has):
    broken, = stacks.broken_promises(LOCK, [promise])
    assert promise in broken and has in broken


def test_a_promise_that_nobody_can_read():
    with pytest.raises(stacks.StackError, match='expected name'):
        stacks.broken_promises(LOCK, ['osu == 7'])


# ----------------------------------------------------- solve and install

def test_installed_once_found_again_without_spack(place):
    record = tiny(place).install()
    assert calls(place) == ['concretize', 'install', 'find', 'find']
    assert record['packages']['redis']['version'] == '7.0.15'
    assert record['mpi'] == 'openmpi'
    again = tiny(place)
    assert again.install() == record and not again.said
    assert len(calls(place)) == 4
    where = stacks.origin(record, 'keyvalue')
    assert where['spec'].startswith('redis@7.0.15/')
    assert Path(where['prefix']).is_dir()
    with pytest.raises(stacks.StackError, match='provides no nccl'):
        stacks.origin(record, 'nccl')


@pytest.mark.parametrize('path', [
    'spack-envs/tiny/spack.yaml', 'spack-envs/tiny/stack.yaml',
    'site/spack/packages.yaml', 'site/spack/config.yaml',
    'spack-envs/repo/spack_repo/plumbline/packages/x/package.py',
    'spack-envs/common/config.yaml', 'site/locks/tiny.lock'])
def test_what_decides_is_in_the_key(place, path):
    before = tiny(place).key
    file = place / path
    file.parent.mkdir(parents=True, exist_ok=True)
    old = file.read_text() if file.exists() else ''
    file.write_text(old + '\n# changed\n')
    assert tiny(place).key != before


def test_a_prefix_that_is_gone_is_installed_again(place):
    record = tiny(place).install()
    Path(record['packages']['redis']['prefix'], 'bin').rmdir()
    Path(record['packages']['redis']['prefix']).rmdir()
    assert tiny(place).install() == record
    assert calls(place).count('install') == 2


@pytest.mark.parametrize('wrong, words', [
    ('unsolvable', 'does not concretize for site: Cannot build openmpi'),
    ('promise', r'not as promised .*stack.yaml.*redis@7.0.15 \+tls: redis is '
                'not in the solution'),
    ('rewrites', 'names no compiler'),
    ('repository', 'a recipe repository was dropped'),
    ('install', r'redis@1.0 failed to install: cc: error: no such file '
                r'\(whole log: .*the-build.log\)'),
    ('full', 'no space left on the disk: free it'),
    ('slow', r'`spack concretize` took more than 1 s .*stacks.yaml'),
])
def test_what_goes_wrong_is_one_line_and_the_next_run_is_clean(
        place, monkeypatch, wrong, words):
    if wrong == 'slow':
        (place / 'site' / 'stacks.yaml').write_text('solve_limit: 1\n')
    monkeypatch.setenv('FAKE_SPACK', wrong)
    with pytest.raises(stacks.StackError, match=words) as caught:
        tiny(place).install()
    assert '\n' not in str(caught.value)
    monkeypatch.setenv('FAKE_SPACK', '')
    (place / 'site' / 'stacks.yaml').unlink(missing_ok=True)
    assert tiny(place).install()['packages']


@pytest.mark.parametrize('text', ['', '{"roots": [', '[]', '{"roots": []}'])
def test_a_damaged_lock_is_solved_again(place, text):
    stack = tiny(place)
    stack.concretize()
    (stack.folder / 'spack.lock').write_text(text)
    again = tiny(place)
    assert again.install()
    assert any('damaged' in line for line in again.said)


def test_a_kept_lock_is_used_and_a_damaged_one_refused(place):
    stack = tiny(place)
    stack.concretize()
    stack.kept_lock.parent.mkdir()
    stack.kept_lock.write_text((stack.folder / 'spack.lock').read_text())
    fresh = tiny(place)
    assert fresh.folder != stack.folder
    fresh.concretize()
    stack.kept_lock.write_text('{')
    with pytest.raises(stacks.StackError, match='plumb spack lock'):
        tiny(place).concretize()


@pytest.mark.parametrize('file, text, words', [
    ('spack-envs/tiny/stack.yaml', 'promise: []\n', "unknown key 'promise'"),
    ('spack-envs/tiny/stack.yaml', 'descr: [\n', r'stack.yaml:\d: not YAML'),
    ('site/stacks.yaml', 'ofline: true\n', 'ofline: expected one of'),
    ('site/stacks.yaml', 'offline: 1\n', 'offline: expected one of'),
])
def test_typos_in_our_own_files(place, file, text, words):
    (place / file).write_text(text)
    with pytest.raises(stacks.StackError, match=words):
        tiny(place).install()


def test_what_is_not_there(place, monkeypatch):
    with pytest.raises(stacks.StackError, match='there are tiny'):
        _ = stacks.Stack('tini', place / 'site', stacks.find_spack()).key
    monkeypatch.setenv('FAKE_SPACK', 'old')
    with pytest.raises(stacks.StackError, match='need 1.0 or newer'):
        stacks.find_spack()
    monkeypatch.setenv('PATH', str(place))
    with pytest.raises(stacks.StackError, match='set SPACK_ROOT'):
        stacks.find_spack()
    monkeypatch.setenv('SPACK_ROOT', str(place))
    with pytest.raises(stacks.StackError, match='does not run'):
        stacks.find_spack()


def test_a_site_without_spack_settings(place):
    (place / 'site' / 'spack' / 'packages.yaml').unlink()
    (place / 'site' / 'spack').rmdir()
    with pytest.raises(stacks.StackError, match='no Spack settings'):
        tiny(place).install()


def test_offline_leaves_no_way_out(place, monkeypatch):
    (place / 'site' / 'stacks.yaml').write_text('offline: true\n')
    spack = place / 'bin' / 'spack'
    spack.parent.mkdir()
    spack.write_text('#!/bin/sh\necho "1.2 proxy=$https_proxy"; exit 1\n')
    spack.chmod(0o755)
    stack = stacks.Stack('tiny', place / 'site',
                         stacks.Spack(str(spack), '1.2'))
    with pytest.raises(stacks.StackError, match='proxy=http://127.0.0.1:9'):
        stack.concretize()


INSTALL = '''
import sys
from pathlib import Path
from checks.lib import stack as stacks
stacks.ENVS = Path(sys.argv[1]) / 'spack-envs'
print(stacks.Stack('tiny', Path(sys.argv[1]) / 'site', stacks.find_spack(),
                   print).install()['key'])
'''


def start(place, **more):
    return subprocess.Popen(
        [sys.executable, '-c', INSTALL, str(place)], cwd=ROOT, text=True,
        env={**os.environ, **more}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True)


def test_two_at_once_install_once(place):
    first = start(place, FAKE_SECONDS='1')
    while 'install' not in (calls(place) if (place / 'calls').exists()
                            else []):
        time.sleep(0.05)
    second = start(place)
    one, two = first.communicate()[0], second.communicate()[0]
    assert first.returncode == second.returncode == 0, one + two
    assert 'waiting' in two and calls(place).count('install') == 1
    assert one.splitlines()[-1] == two.splitlines()[-1]


def test_killed_in_the_middle_is_installed_the_next_time(place):
    first = start(place, FAKE_SECONDS='30')
    while 'install' not in (calls(place) if (place / 'calls').exists()
                            else []):
        time.sleep(0.05)
    os.killpg(first.pid, 9)
    first.wait()
    record = tiny(place).install()
    assert record['packages']['redis']


# ------------------------------------------------- the fixture of checks

@pytest.fixture
def with_stack(suite, monkeypatch):
    """The local site with an environment of the stack `mpi`."""
    monkeypatch.delenv('SPACK_ROOT', raising=False)
    monkeypatch.setenv('PATH', f'{FAKE}:{os.environ["PATH"]}')
    work = Path(suite.variables['PLUMBLINE_WORK'])
    (work / 'local-spack').mkdir()
    # As if detected: the fake finds nothing on this machine.
    (work / 'local-spack' / 'packages.yaml').write_text('packages: {}\n')
    suite.variables |= {'PLUMBLINE_STACKS': 'mpi',
                        'FAKE_ENVS': str(stacks.ENVS),
                        'FAKE_CALLS': str(suite.tmp / 'calls')}
    return suite


CASE = ['run', '--bringup', '--', '-n', 'OsuPt2pt',
        '-SOsuPt2pt.max_size=1024', '-E', 'program == "osu_latency"']


def test_checks_run_from_a_stack_and_say_which(with_stack):
    for _ in range(2):
        done = with_stack.plumb(*CASE)
        assert done.returncode == 0, done.stdout + done.stderr
    assert calls(with_stack.tmp).count('install') == 1
    said = {(r['source'], r['stack'], r['spec'].partition('/')[0])
            for r in with_stack.records if r['environ'] == 'mpi'}
    assert said == {('embedded', 'openmpi@5.0.8', 'openmpi@5.0.8')}
    kept = list((with_stack.tmp / 'work').rglob('output/**/stack.spack.lock'))
    assert kept and json.loads(kept[0].read_text())['roots']


def test_a_stack_that_fails_fails_what_needs_it(with_stack):
    done = with_stack.plumb(*CASE, FAKE_SPACK='install')
    assert done.returncode == 1
    last = done.stdout.split('zero cases')[0]
    assert 'openmpi@1.0 failed to install: cc: error: no such file' in last
    assert 'the-build.log' in last
    assert 'not run: what it needs could not be built' in done.stdout
