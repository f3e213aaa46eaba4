"""Stacks: what is promised, and every way in which it is not had.

Spack is a fake here (tests/fake/spack) but for the last part, which runs
where a real one is found.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
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
    return stacks.Stack('tiny', place / 'site')


def install(place):
    return tiny(place).install(stacks.find_and_check_spack())


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

def test_installed_once_found_again_without_spack(place, monkeypatch):
    record = install(place)
    assert calls(place) == ['concretize', 'install', 'find']
    assert record['packages']['redis']['version'] == '7.0.15'
    assert record['mpi'] == 'openmpi'
    assert install(place) == record and calls(place).count('install') == 1
    where = stacks.program_origin(record, 'keyvalue')
    assert where['spec'].startswith('redis@7.0.15/')
    assert Path(where['prefix']).is_dir()
    with pytest.raises(stacks.StackError, match='provides no nccl'):
        stacks.program_origin(record, 'nccl')
    # Checks have neither Spack nor its checkout of recipes.
    monkeypatch.setenv('PATH', '/no/such')
    assert stacks.installed_stack_record('tiny', place / 'site') == record
    stacks.write_installed_stack_files(record, place)
    assert json.loads((place / 'stack.record.json').read_text()) == record
    assert f"{record['view']}/bin" in (place / 'stack.sh').read_text()


def by_hand(place):
    """What the commands of spack-envs/README.md leave."""
    folder = Path(install(place)['folder'])
    (folder / 'origin.json').unlink()
    return folder


def test_checks_find_what_plain_spack_installed(place):
    folder = by_hand(place)
    # Its settings are not compared.
    (place / 'site' / 'spack' / 'config.yaml').write_text('{}\n')
    record = stacks.installed_stack_record('tiny', place / 'site')
    assert record['folder'] == str(folder) and record['mpi'] == 'openmpi'
    assert stacks.program_origin(record, 'keyvalue')['version'] == '7.0.15'


@pytest.mark.parametrize('change', [
    lambda folder: (folder / 'prefix.log').unlink(),
    lambda folder: (folder / 'prefix.log').write_text(''),
    lambda folder: (folder / 'spack.lock').write_text('{'),
    lambda folder: (folder / 'spack.lock').write_text('{"roots": 5}'),
    lambda folder: (folder / 'spack.yaml').write_text('spack: {}\n'),
    lambda folder: shutil.rmtree(folder / '.spack-env'),
    lambda folder: shutil.rmtree(folder.parents[2] / 'opt')])
@pytest.mark.parametrize('make', [
    by_hand, lambda place: Path(install(place)['folder'])])
def test_half_an_installation_is_not_installed(place, make, change):
    folder = make(place)
    change(folder)
    with pytest.raises(stacks.StackError, match='tiny is not installed'):
        stacks.installed_stack_record('tiny', place / 'site')
    assert install(place)['folder'] == str(folder)


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
def test_one_whose_settings_changed_is_not_installed(place, path):
    install(place)
    file = place / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((file.read_text() if file.exists() else '') + '\n# changed\n')
    with pytest.raises(stacks.StackError, match='the stack tiny is not '
                       'installed for the site site, .* ./plumb dev spack install '
                       f'--site {place}/site --stack tiny;'):
        stacks.installed_stack_record('tiny', place / 'site')


@pytest.mark.parametrize('wrong, words', [
    ('unsolvable', 'tiny for site: spack concretize failed: .*failed to concretize'),
    ('promise', r'breaks promises of .*stack.yaml.*redis@7.0.15 \+tls: redis '
                'is not in the solution'),
    ('rewrites', 'has no compiler .*spack.yaml.*; add gcc'),
    ('repository', 'Spack ignored a recipe repository'),
    ('install', r'tiny for site: spack install failed: > cc: error: no such file'),
])
def test_what_goes_wrong_is_one_line_and_the_next_run_is_clean(
        place, monkeypatch, wrong, words):
    monkeypatch.setenv('FAKE_SPACK', wrong)
    with pytest.raises(stacks.StackError, match=words) as caught:
        install(place)
    assert '\n' not in str(caught.value)
    monkeypatch.setenv('FAKE_SPACK', '')
    assert install(place)['packages']


def test_settings_of_spack_itself_are_refused(place):
    spack = place / 'root' / 'bin' / 'spack'
    scope = place / 'root' / 'etc' / 'spack' / 'packages.yaml'
    scope.parent.mkdir(parents=True)
    scope.write_text('packages: {}\n')
    with pytest.raises(stacks.StackError, match='applies to every site'):
        tiny(place).concretize(stacks.Spack(str(spack), '1.2'))


def test_the_solution_that_a_site_keeps(place, monkeypatch):
    def lock():
        return tiny(place).solve_and_save_spack_lock(stacks.find_and_check_spack())

    path = lock()
    old = path.read_text()
    monkeypatch.setenv('FAKE_SPACK', 'unsolvable')
    with pytest.raises(stacks.StackError):
        lock()
    assert path.read_text() == old
    monkeypatch.setenv('FAKE_SPACK', '')
    path.write_text(old.replace('7.0.15', '7.0.15.1'))
    assert install(place)['packages']['redis']['version'] == '7.0.15.1'
    path.write_text('{')
    with pytest.raises(stacks.StackError, match='plumb dev spack lock'):
        install(place)
    assert lock().read_text() == old


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
        install(place)


def test_what_is_not_there(place, monkeypatch):
    with pytest.raises(stacks.StackError, match='stacks: tiny'):
        stacks.Stack('tini', place / 'site').install(stacks.find_and_check_spack())
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
        install(place)


def test_offline_leaves_no_way_out(place, monkeypatch):
    (place / 'site' / 'stacks.yaml').write_text('offline: true\n')
    spack = place / 'bin' / 'spack'
    spack.parent.mkdir()
    spack.write_text('#!/bin/sh\necho "Error: proxy=$https_proxy"; exit 1\n')
    spack.chmod(0o755)
    with pytest.raises(stacks.StackError, match='proxy=http://127.0.0.1:9'):
        tiny(place).concretize(stacks.Spack(str(spack), '1.2'))


def processes(*words):
    """Processes with these words in their command lines."""
    commands = []
    for path in Path('/proc').glob('[0-9]*/cmdline'):
        with contextlib.suppress(OSError):
            text = path.read_text(errors='replace')
            commands += [text] * all(word in text for word in words)
    return commands


@pytest.mark.parametrize('number', [1, 15])
def test_ended_means_that_spack_is_ended(with_stack, number):
    tmp = with_stack.tmp
    first = subprocess.Popen(
        [str(ROOT / 'plumb'), 'dev', 'spack', 'install', '--stack', 'mpi'],
        env={**os.environ, **with_stack.variables, 'FAKE_SECONDS': '600'})
    until(lambda: (tmp / 'calls').exists() and 'install' in calls(tmp), first)
    first.send_signal(number)
    assert first.wait(LIMIT) == 128 + number
    # What is ended may need a while.
    until(lambda: not processes(str(tmp / 'work'), 'install'))


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
    assert '[x]' in done.stderr and 'openmpi@1.0 failed: ' in done.stderr
    assert 'mpi for local: spack install failed: > cc: error: no such file' in (
        done.stderr)


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
        return stacks.Stack(name, tmp_path / 'site')
    make.place = tmp_path
    return make


def test_real_install_and_its_record(real):
    record = real('tiny-ok@1.0 +tls', promises=['tiny-ok@1.0 +tls']).install(
        stacks.find_and_check_spack())
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
    ('tiny-ok@3.0', [], 'spack concretize failed: .*'),
    ('tiny-ok', ['tiny-ok@1.0 +tls'], r'has tiny-ok@2.0 ~tls'),
    ('tiny-fail', [], 'spack install failed: .*'),
])
def test_real_failures_are_one_line(real, spec, promises, words):
    with pytest.raises(stacks.StackError, match=words) as caught:
        real(spec, promises=promises).install(stacks.find_and_check_spack())
    assert '\n' not in str(caught.value)


def test_real_spack_without_a_compiler(real):
    (real.place / 'site' / 'spack' / 'packages.yaml').write_text(
        'packages: {}\n')
    with pytest.raises(stacks.StackError, match='has no compiler'):
        real('tiny-ok').install(stacks.find_and_check_spack())
    assert not stacks.find_and_check_spack().default_packages_file.exists()

