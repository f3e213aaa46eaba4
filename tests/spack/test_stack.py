"""Stacks: what is promised, and every way in which it is not had.

Spack is a fake here (tests/fake/spack) but for the last part, which runs
where a real one is found.
"""
from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from checks.spack import stack as stacks
from tests.conftest import LIMIT, OSU, ROOT, until

FAKE = ROOT / 'tests' / 'fake' / 'spack'


def fake_spack(folder, monkeypatch):
    """The fake is found on PATH, and run by a Python that has YAML."""
    spack = folder / 'fake' / 'spack'
    spack.parent.mkdir()
    spack.write_text('#!/bin/sh\nexec '
                     f'{shlex.join([sys.executable, str(FAKE)])} "$@"\n')
    spack.chmod(0o755)
    monkeypatch.setenv('PATH', f'{spack.parent}:{os.environ["PATH"]}')


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A stack `tiny` and a site, with the fake Spack."""
    envs = tmp_path / 'spack-envs'
    (envs / 'tiny').mkdir(parents=True)
    (envs / 'tiny' / 'spack.yaml').write_text('spack: {specs: [redis]}\n')
    (envs / 'tiny' / 'stack.yaml').write_text(
        'descr: tiny\nfeatures: [redis]\nprovides: {keyvalue: redis}\n'
        'promises: ["redis@7.0.15 +tls"]\n')
    shutil.copytree(stacks.ENVS / 'common', envs / 'common')
    (tmp_path / 'site' / 'spack').mkdir(parents=True)
    (tmp_path / 'site' / 'spack' / 'packages.yaml').write_text('{}\n')
    monkeypatch.setattr(stacks, 'ENVS', envs)
    for name, value in {'PLUMBLINE_WORK': str(tmp_path / 'work'),
                        'FAKE_ENVS': str(envs), 'FAKE_SPACK': '',
                        'FAKE_CALLS': str(tmp_path / 'calls')}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv('SPACK_ROOT', raising=False)
    fake_spack(tmp_path, monkeypatch)
    return tmp_path


def tiny(place):
    messages = []
    stack = stacks.Stack('tiny', place / 'site', stacks.find_and_check_spack(),
                         messages.append)
    object.__setattr__(stack, 'messages', messages)
    return stack


def calls(place):
    return [line.split()[2] for line in
            (place / 'calls').read_text().splitlines() if '-e' in line]


def installs(place):
    """Whether the fake has begun to install."""
    return (place / 'calls').exists() and 'install' in calls(place)


# ------------------------------------------------------------- promises

LOCK = {'concrete_specs': {'h': {
    'name': 'osu', 'version': '7.5.2', 'parameters': {
        'cuda': True, 'xccl': False, 'cuda_arch': ['80', '90']}}}}


@pytest.mark.parametrize('promise', [
    'osu', 'osu@7.5', 'osu@7.5.2 +cuda', 'osu ~xccl', 'osu cuda_arch=90'])
def test_a_promise_that_is_kept(promise):
    assert stacks.unsatisfied_spec_promises(LOCK, [promise]) == []


@pytest.mark.parametrize('promise, has', [
    ('osu@7.4', 'osu@7.5.2'), ('osu+xccl', '~xccl'), ('osu ~cuda', '+cuda'),
    ('osu cuda_arch=70', 'cuda_arch=80,90'), ('osu@7.5.20', '7.5.2'),
    ('osu +rocm', 'rocm=nothing'), ('nccl', 'not in the solution')])
def test_a_promise_that_is_broken(promise, has):
    broken, = stacks.unsatisfied_spec_promises(LOCK, [promise])
    assert promise in broken and has in broken


def test_a_promise_that_nobody_can_read():
    with pytest.raises(stacks.StackError, match='expected name'):
        stacks.unsatisfied_spec_promises(LOCK, ['osu == 7'])


# ----------------------------------------------------- solve and install

def test_installed_once_found_again_without_spack(place):
    record = tiny(place).install()
    assert calls(place) == ['concretize', 'install', 'find']
    assert record['packages']['redis']['version'] == '7.0.15'
    assert record['mpi'] == 'openmpi'
    again = tiny(place)
    assert again.install() == record and not again.messages
    assert len(calls(place)) == 3
    where = stacks.program_origin(record, 'keyvalue')
    assert where['spec'].startswith('redis@7.0.15/')
    assert Path(where['prefix']).is_dir()
    with pytest.raises(stacks.StackError, match='provides no nccl'):
        stacks.program_origin(record, 'nccl')


def test_checks_find_it_without_spack(place, monkeypatch):
    """Nor do they need the checkout of recipes that it was solved with."""
    (place / 'recipes' / 'repos').mkdir(parents=True)
    monkeypatch.setenv('PLUMBLINE_SPACK_PACKAGES', str(place / 'recipes'))
    record = stacks.Stack('tiny', place / 'site',
                          stacks.find_and_check_spack()).install()
    assert record['recipes'] == f'{place}/recipes@'
    monkeypatch.setenv('PATH', '/no/such')
    monkeypatch.delenv('PLUMBLINE_SPACK_PACKAGES')
    assert stacks.installed_stack_record('tiny', place / 'site') == record
    stacks.write_installed_stack_files(record, place)
    assert json.loads((place / 'stack.record.json').read_text()) == record
    assert f"{record['view']}/bin" in (place / 'stack.sh').read_text()


def test_one_that_was_changed_since_is_not_installed(place):
    tiny(place).install()
    path = place / 'site' / 'spack' / 'packages.yaml'
    path.write_text('{}\n# changed\n')
    with pytest.raises(stacks.StackError, match='the stack tiny is not '
                       'installed for the site site, .* ./plumb dev spack install '
                       f'--site {place}/site --stack tiny;'):
        stacks.installed_stack_record('tiny', place / 'site')


def by_hand(place):
    """What the commands of spack-envs/README.md leave."""
    folder = place / 'work' / 'spack' / 'envs' / 'site' / 'tiny'
    made = Path(tiny(place).install()['folder'])
    made.rename(folder)
    (folder / 'origin.json').unlink()
    return folder


def test_checks_find_what_plain_spack_installed(place):
    folder = by_hand(place)
    record = stacks.installed_stack_record('tiny', place / 'site')
    assert record['folder'] == str(folder) and record['mpi'] == 'openmpi'
    assert Path(record['view']).is_dir()
    assert stacks.program_origin(record, 'keyvalue')['version'] == '7.0.15'


@pytest.mark.parametrize('change', [
    lambda folder: (folder / 'prefix.log').unlink(),
    lambda folder: (folder / 'prefix.log').write_text(''),
    lambda folder: (folder / 'spack.lock').write_text('{'),
    lambda folder: (folder / 'spack.yaml').write_text('spack: {}\n'),
    lambda folder: shutil.rmtree(folder / '.spack-env'),
    lambda folder: shutil.rmtree(folder.parents[2] / 'opt')])
def test_half_of_what_plain_spack_installs_is_not_installed(place, change):
    change(by_hand(place))
    with pytest.raises(stacks.StackError, match='tiny is not installed'):
        stacks.installed_stack_record('tiny', place / 'site')


def test_what_plain_spack_installed_keeps_its_promises(place):
    by_hand(place)
    path = place / 'spack-envs' / 'tiny' / 'stack.yaml'
    path.write_text(path.read_text().replace('7.0.15', '7.4'))
    with pytest.raises(stacks.StackError, match='the solution has redis@7.0'):
        stacks.installed_stack_record('tiny', place / 'site')


@pytest.mark.parametrize('path', [
    'spack-envs/tiny/spack.yaml', 'spack-envs/tiny/stack.yaml',
    'site/spack/packages.yaml', 'site/spack/config.yaml',
    'spack-envs/repo/spack_repo/plumbline/packages/x/package.py',
    'spack-envs/common/work-given.yaml', 'site/locks/tiny.lock'])
def test_what_decides_is_in_the_key(place, path):
    before = tiny(place).content_hash
    file = place / path
    file.parent.mkdir(parents=True, exist_ok=True)
    old = file.read_text() if file.exists() else ''
    file.write_text(old + '\n# changed\n')
    assert tiny(place).content_hash != before


def test_a_prefix_that_is_gone_is_installed_again(place):
    record = tiny(place).install()
    Path(record['packages']['redis']['prefix'], 'bin').rmdir()
    Path(record['packages']['redis']['prefix']).rmdir()
    assert tiny(place).install() == record
    assert calls(place).count('install') == 2


@pytest.mark.parametrize('wrong, words', [
    ('unsolvable', 'does not concretize for site: Cannot build openmpi'),
    ('promise', r'breaks promises of .*stack.yaml.*redis@7.0.15 \+tls: redis '
                'is not in the solution'),
    ('rewrites', 'has no compiler .*spack.yaml; add gcc'),
    ('repository', 'Spack ignored a recipe repository'),
    ('install', r'redis@1.0 failed to install: cc: error: no such file '
                r'\(whole log: .*the-build.log\)'),
    ('full', 'the disk is full: free space'),
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


@pytest.mark.parametrize('text', ['', '{"roots": [', '[]', '{"roots": []}',
                                  '{"roots": 5, "concrete_specs": []}'])
def test_a_damaged_lock_is_solved_again(place, text):
    stack = tiny(place)
    stack.concretize()
    (stack.environment_folder / 'spack.lock').write_text(text)
    again = tiny(place)
    assert again.install()
    assert any('damaged' in line for line in again.messages)


@pytest.mark.parametrize('name', ['spack.lock', 'prefix.log', 'origin.json'])
def test_a_damaged_installation_is_mended(place, name):
    stack = tiny(place)
    record = stack.install()
    (stack.environment_folder / name).write_text('{')
    assert tiny(place).install() == record
    assert (stack.environment_folder / name).read_text() != '{'


def test_settings_of_spack_itself_are_refused(place):
    spack = place / 'root' / 'bin' / 'spack'
    spack.parent.mkdir(parents=True)
    spack.write_text('#!/bin/sh\necho 1.2\n')
    spack.chmod(0o755)
    scope = place / 'root' / 'etc' / 'spack' / 'packages.yaml'
    scope.parent.mkdir(parents=True)
    scope.write_text('packages: {}\n')
    stack = stacks.Stack('tiny', place / 'site',
                         stacks.Spack(str(spack), '1.2'))
    with pytest.raises(stacks.StackError, match='applies to every site'):
        stack.concretize()


def test_a_person_who_calls_spack_by_hand_is_left_alone(place):
    stack = tiny(place)
    shell = subprocess.Popen(
        ['bash', '-c', shlex.join([
            sys.executable, '-c', 'import time; time.sleep(600)', '-e',
            str(stack.environment_folder), 'find']) + '; true'], start_new_session=True)
    until(lambda: [pid for pid, session, command in stacks._list_processes()
                   if session == shell.pid != pid and '\0find' in command], shell)
    stack.concretize()
    assert shell.poll() is None
    os.killpg(shell.pid, 9)
    shell.wait()


def test_a_new_lock_replaces_the_old_one_only_when_it_is_there(
        place, monkeypatch):
    path = tiny(place).solve_and_save_spack_lock()
    old = path.read_text()
    monkeypatch.setenv('FAKE_SPACK', 'unsolvable')
    with pytest.raises(stacks.StackError):
        tiny(place).solve_and_save_spack_lock()
    assert path.read_text() == old
    monkeypatch.setenv('FAKE_SPACK', '')
    path.write_text('{')
    assert tiny(place).solve_and_save_spack_lock().read_text() == old


def test_a_kept_lock_is_used_and_a_damaged_one_refused(place):
    stack = tiny(place)
    stack.concretize()
    stack.site_spack_lock_file.parent.mkdir()
    stack.site_spack_lock_file.write_text(
        (stack.environment_folder / 'spack.lock').read_text())
    fresh = tiny(place)
    assert fresh.environment_folder != stack.environment_folder
    fresh.concretize()
    stack.site_spack_lock_file.write_text('{')
    with pytest.raises(stacks.StackError, match='plumb dev spack lock'):
        tiny(place).concretize()


@pytest.mark.parametrize('file, text, words', [
    ('spack-envs/tiny/stack.yaml', 'promise: []\n', "unknown key 'promise'"),
    ('spack-envs/tiny/stack.yaml', 'descr: [\n', r'stack.yaml:\d: not YAML'),
    ('spack-envs/tiny/stack.yaml', 'descr: x\n', 'features: expected a list'),
    ('spack-envs/tiny/stack.yaml', 'descr: x\nfeatures: []\nprovides: {}\n'
     'promises: [{redis: 7}]\n', 'stack.yaml: promise .*expected name'),
    ('site/stacks.yaml', '- a\n', 'expected a mapping, keys'),
    ('site/stacks.yaml', 'ofline: true\n', 'ofline: expected a key'),
    ('site/stacks.yaml', 'offline: 1\n', 'offline: expected a key'),
])
def test_typos_in_our_own_files(place, file, text, words):
    (place / file).write_text(text)
    with pytest.raises(stacks.StackError, match=words):
        tiny(place).install()


def test_what_is_not_there(place, monkeypatch):
    with pytest.raises(stacks.StackError, match='stacks: tiny'):
        _ = stacks.Stack('tini', place / 'site',
                         stacks.find_and_check_spack()).content_hash
    monkeypatch.setenv('FAKE_SPACK', 'old')
    with pytest.raises(stacks.StackError, match='need 1.0 or newer'):
        stacks.find_and_check_spack()
    monkeypatch.setenv('PATH', str(place))
    with pytest.raises(stacks.StackError, match='set SPACK_ROOT'):
        stacks.find_and_check_spack()
    monkeypatch.setenv('SPACK_ROOT', str(place))
    with pytest.raises(stacks.StackError, match='cannot run'):
        stacks.find_and_check_spack()


def test_a_site_without_spack_settings(place):
    (place / 'site' / 'spack' / 'packages.yaml').unlink()
    (place / 'site' / 'spack').rmdir()
    with pytest.raises(stacks.StackError, match='add the Spack settings'):
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
from checks.spack import stack as stacks
stacks.ENVS = Path(sys.argv[1]) / 'spack-envs'
print(stacks.Stack('tiny', Path(sys.argv[1]) / 'site', stacks.find_and_check_spack(),
                   print).install()['key'])
'''


def start(place, **more):
    return subprocess.Popen(
        [sys.executable, '-c', INSTALL, str(place)], cwd=ROOT, text=True,
        env={**os.environ, **more}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True)


def test_two_at_once_install_once(place):
    gate = place / 'gate'
    first = start(place, FAKE_GATE=str(gate))
    until(lambda: installs(place), first)
    second = start(place)
    late = threading.Timer(LIMIT, gate.touch)
    late.start()
    two = ''
    for line in second.stdout:
        two += line
        if 'waiting' in line:
            gate.touch()
    late.cancel()
    gate.touch()
    one = first.communicate()[0]
    second.wait()
    assert first.returncode == second.returncode == 0, one + two
    assert 'waiting' in two and calls(place).count('install') == 1
    assert one.splitlines()[-1] == two.splitlines()[-1]


@pytest.mark.parametrize('number', [1, 15])
def test_ended_means_that_spack_is_ended(suite, monkeypatch, number):
    monkeypatch.delenv('SPACK_ROOT', raising=False)
    fake_spack(suite.tmp, monkeypatch)
    folder = suite.tmp / 'work' / 'local-spack'
    folder.mkdir()
    (folder / 'packages.yaml').write_text('packages: {}\n')
    first = subprocess.Popen(
        [str(ROOT / 'plumb'), 'dev', 'spack', 'install', '--stack', 'mpi'],
        env={**os.environ, **suite.variables, 'FAKE_SECONDS': '600',
             'FAKE_ENVS': str(stacks.ENVS),
             'FAKE_CALLS': str(suite.tmp / 'calls')})
    until(lambda: installs(suite.tmp), first)
    first.send_signal(number)
    assert first.wait(LIMIT) == 128 + number
    # What is killed may need a while to end.
    until(lambda: not [c for _, _, c in stacks._list_processes()
                       if str(suite.tmp / 'work') in c and 'install' in c])


def test_killed_in_the_middle_is_installed_the_next_time(place):
    first = start(place, FAKE_SECONDS='600')
    stack = tiny(place)
    # Until it builds: before, Spack dies of its first line, which nobody
    # reads any more.
    log = stack.environment_folder / 'install.log'
    until(lambda: log.exists() and '[ ] ' in log.read_text(), first)
    os.kill(first.pid, 9)
    first.wait()
    record = stack.install()
    assert record['packages']['redis']
    assert any('killed run' in line for line in stack.messages)
    # What is killed may need a while to end.
    until(lambda: not [c for _, _, c in stacks._list_processes()
                       if f'-e\0{stack.environment_folder}\0' in c])


# ------------------------------------------------- the fixture of checks

@pytest.fixture
def with_stack(suite, monkeypatch):
    """The local site with an environment of the stack `mpi`."""
    monkeypatch.delenv('SPACK_ROOT', raising=False)
    fake_spack(suite.tmp, monkeypatch)
    work = Path(suite.variables['PLUMBLINE_WORK'])
    (work / 'local-spack').mkdir()
    # As if detected: the fake finds nothing on this machine.
    (work / 'local-spack' / 'packages.yaml').write_text('packages: {}\n')
    suite.variables |= {'PLUMBLINE_STACKS': 'mpi',
                        'FAKE_ENVS': str(stacks.ENVS),
                        'FAKE_CALLS': str(suite.tmp / 'calls')}
    return suite


CASE = ['run', '--bringup', '--', *OSU, '-n', 'OsuPt2pt', '-p', '^mpi$',
        '-SOsuPt2pt.max_size=1024', '-SOsuPt2pt.iterations=200', '-SOsuPt2pt.warmup=20',
        '-E',
        'program == "osu_latency"']


def test_checks_run_from_a_stack_and_say_which(with_stack):
    done = with_stack.plumb('dev', 'spack', 'install', '--site', 'local')
    assert done.returncode == 0, done.stderr
    done = with_stack.plumb(*CASE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert calls(with_stack.tmp).count('install') == 1
    answer = {(r['source'], r['stack'], r['spec'].partition('/')[0])
              for r in with_stack.records if r['environ'] == 'mpi'}
    assert answer == {('embedded', 'openmpi@5.0.8', 'openmpi@5.0.8')}
    kept = list((with_stack.tmp / 'work').rglob('output/**/stack.spack.lock'))
    assert kept and json.loads(kept[0].read_text())['roots']


def test_a_stack_that_is_missing_fails_with_the_command(with_stack):
    done = with_stack.plumb(*CASE)
    assert done.returncode == 1
    assert ('the stack mpi is not installed for the site local' in done.stdout
            and './plumb dev spack install --site local --stack mpi;'
            in done.stdout)
    assert 'not run: a build that it needs failed' in done.stdout
    assert not (with_stack.tmp / 'calls').exists(), 'Spack was called'


def test_an_install_that_fails_names_the_package(with_stack):
    done = with_stack.plumb('dev', 'spack', 'install', FAKE_SPACK='install')
    assert done.returncode == 1
    assert ('openmpi@1.0 failed to install: cc: error: no such file'
            in done.stderr and 'the-build.log' in done.stderr)


# ---------------------------------------------------------- a real Spack

@pytest.fixture
def real(tmp_path, monkeypatch, tmp_path_factory):
    """Makes stacks of tiny packages for a real Spack, and a site."""
    if not stacks.spack_command():
        pytest.skip('Spack is missing: set SPACK_ROOT, or put spack on PATH')
    if not os.environ.get('PLUMBLINE_SPACK_PACKAGES'):
        pytest.skip('PLUMBLINE_SPACK_PACKAGES is not set to a checkout of '
                    'spack-packages')
    work = tmp_path / 'work'
    monkeypatch.setenv('PLUMBLINE_WORK', str(work))
    # Spack's index of all recipes takes half a minute: once is enough.
    cache = tmp_path_factory.getbasetemp() / 'spack-cache'
    (work / 'spack').mkdir(parents=True)
    cache.mkdir(exist_ok=True)
    (work / 'spack' / 'cache').symlink_to(cache)
    monkeypatch.setattr(stacks, 'ENVS', tmp_path / 'spack-envs')
    settings = tmp_path / 'site' / 'spack'
    settings.mkdir(parents=True)
    (settings / 'packages.yaml').write_text(yaml.safe_dump({'packages': {
        'gcc': {'buildable': False, 'externals': [{
            'spec': "gcc@12.2.0 languages:='c,c++'", 'prefix': '/usr',
            'extra_attributes': {'compilers': {
                'c': '/usr/bin/gcc', 'cxx': '/usr/bin/g++'}}}]}}}))
    (settings / 'config.yaml').write_text(yaml.safe_dump({'config': {
        'install_tree': {'root': '$PLUMBLINE_WORK/spack/opt'},
        'build_stage': ['$PLUMBLINE_WORK/spack/stage']}}))
    (settings / 'repos.yaml').write_text(yaml.safe_dump({'repos:': {
        'tiny': str(ROOT / 'tests/data/stacks/spack_repo/tiny'),
        **stacks.builtin_repo_settings()}}).replace("'repos:':", 'repos::'))
    shutil.copytree(ROOT / 'spack-envs' / 'common',
                    tmp_path / 'spack-envs' / 'common')
    (settings / 'mirrors.yaml').write_text('mirrors:: {}\n')
    (tmp_path / 'site' / 'stacks.yaml').write_text('offline: true\n')

    def make(spec, name='tiny', promises=()):
        folder = tmp_path / 'spack-envs' / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'spack.yaml').write_text(yaml.safe_dump({'spack': {
            'include': ['${PLUMBLINE_SITE}/spack'], 'specs': [spec],
            'concretizer': {'unify': True, 'reuse': False}, 'view': True}}))
        (folder / 'stack.yaml').write_text(yaml.safe_dump({
            'descr': name, 'features': [],
            'provides': {'keyvalue': 'tiny-ok'},
            'promises': list(promises)}))
        return stacks.Stack(name, tmp_path / 'site', stacks.find_and_check_spack(),
                            print)
    make.place = tmp_path
    return make


def test_real_install_and_its_record(real):
    record = real('tiny-ok@1.0 +tls', promises=['tiny-ok@1.0 +tls']).install()
    where = stacks.program_origin(record, 'keyvalue')
    assert where['version'] == '1.0' and len(where['spec']) == 44
    assert Path(where['prefix'], 'bin', 'tiny-ok').exists()
    assert Path(record['view'], 'bin', 'tiny-ok').exists()


def shell(lines, real, name, **variables):
    """Run lines of spack-envs/README.md in the folder of the stacks."""
    env = {**stacks.spack_environment_variables(real.place / 'site'), **variables,
           'PATH': f'{Path(stacks.spack_command()).parent}:'
           f'{os.environ["PATH"]}'}
    # The one variable that must be set; the lines set what else they need.
    for given in ('PLUMBLINE_ROOT', 'PLUMBLINE_WORK'):
        del env[given]
    lines = (lines.replace('site-configs/SITE', 'site')
             .replace('SITE/STACK', f'site/{name}').replace('STACK', name))
    return subprocess.run(['bash', '-ec', lines], env=env, text=True,
                          cwd=real.place, capture_output=True)


def commands_of_the_readme():
    text = (ROOT / 'spack-envs' / 'README.md').read_text()
    part = text.partition('## Plain Spack')[2]
    blocks = re.findall(r'(?:^    .*\n)+', part, re.M)
    assert len(blocks) == 2
    return blocks


def test_real_spack_installs_without_plumb(real):
    real('tiny-ok@1.0 +tls', promises=['tiny-ok@1.0 +tls'])
    variables, install = commands_of_the_readme()
    lines = (variables.partition('\n')[0] + '\n' + install).replace(
        '$PWD/.plumbline', os.environ['PLUMBLINE_WORK'])
    done = shell(lines, real, 'tiny')
    assert done.returncode == 0, done.stderr
    record = stacks.installed_stack_record('tiny', real.place / 'site')
    where = stacks.program_origin(record, 'keyvalue')
    assert where['version'] == '1.0'
    assert Path(where['prefix'], 'bin', 'tiny-ok').exists()


def test_real_spack_loads_the_stacks_with_one_variable(real, tmp_path):
    """From the checkout, where Spack also finds our recipes."""
    real('tiny-ok')
    path = tmp_path / 'where.py'
    path.write_text('import spack.repo, spack.store\n'
                    'print(spack.store.STORE.root, spack.repo.PATH.repos[0]'
                    '.root)\n')
    settings = tmp_path / 'site' / 'spack' / 'config.yaml'
    settings.unlink()
    (settings.parent / 'repos.yaml').unlink()
    done = shell(f'spack -e {ROOT}/spack-envs/STACK python {path}', real,
                 'mpi-host')
    assert done.stdout.split() == [
        f'{ROOT}/.plumbline/spack/opt',
        f'{ROOT}/spack-envs/repo/spack_repo/plumbline'], done.stderr


@pytest.mark.parametrize('spec, promises, words', [
    ('tiny-ok@3.0', [], 'does not concretize for site: .*3.0'),
    ('tiny-okk', [], 'does not concretize for site: .*tiny-okk'),
    ('tiny-ok', ['tiny-ok@1.0 +tls'], r'has tiny-ok@2.0 ~tls'),
    ('tiny-fail', [], r'tiny-fail@1.0 failed to install: /bin/ls: cannot '
                      r'access .* \(whole log: /'),
    ('tiny-far', [], 'tiny-far@1.0 failed to install: FetchError: .* no '
                     'mirror of the site has its source'),
])
def test_real_failures_are_one_line(real, spec, promises, words):
    with pytest.raises(stacks.StackError, match=words) as caught:
        real(spec, promises=promises).install()
    assert '\n' not in str(caught.value)


def test_real_spack_without_a_compiler(real):
    (real.place / 'site' / 'spack' / 'packages.yaml').write_text(
        'packages: {}\n')
    with pytest.raises(stacks.StackError, match='has no compiler'):
        real('tiny-ok').install()
    assert not stacks.find_and_check_spack().default_packages_file.exists()


def test_real_kill_and_real_concurrency(real):
    stack = real('tiny-slow')
    stack.concretize()
    first = start(real.place, TINY_SECONDS='60')
    log = stack.environment_folder / 'install.log'
    until(lambda: log.exists() and 'tiny-slow' in log.read_text(), first)
    os.killpg(first.pid, 9)
    first.wait()
    # The second starts while the first still builds, also on a slow machine.
    both = [start(real.place, TINY_SECONDS='15') for _ in range(2)]
    messages = [p.communicate()[0] for p in both]
    assert [p.returncode for p in both] == [0, 0], messages
    assert sum('waiting' in text for text in messages) == 1
    record = stack.install()
    assert Path(record['view'], 'bin', 'tiny-slow').exists()
