"""Stacks: what an installation records, and every way in which it is not complete.

Spack is not needed, except by the last part: a folder has what `spack install` would
leave.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from checks.spack import stack as stacks
from cli.setup import stacks as command
from cli.setup.venv import SetupError
from tests.conftest import OSU, ROOT

#: A solution with an MPI.
LOCK = {
    'roots': [{'hash': 'r', 'spec': 'redis'}],
    'concrete_specs': {
        'r': {'name': 'redis', 'version': '7.0.15', 'parameters': {'tls': True},
              'dependencies': [{'name': 'openmpi', 'hash': 'm', 'parameters': {
                  'virtuals': ['mpi']}}]},
        'm': {'name': 'openmpi', 'version': '5.0.8', 'parameters': {}}}}


def install_by_hand(stack: stacks.Stack, view: Path) -> Path:
    """What the commands of docs/how-to/spack.md leave.

    :param view: a folder with the programs of the view
    """
    folder = stack.folder
    shutil.rmtree(folder, ignore_errors=True)
    (folder / stacks.VIEW).mkdir(parents=True)
    (folder / stacks.VIEW / 'bin').symlink_to(view)
    shutil.copy(stack.manifest_file, folder)
    (folder / 'spack.lock').write_text(json.dumps(LOCK))
    lines = []
    for digest, node in LOCK['concrete_specs'].items():
        prefix = folder.parents[2] / 'opt' / node['name']
        prefix.mkdir(parents=True, exist_ok=True)
        lines.append(f"plumb:{node['name']}:{node['version']}:{digest}:{prefix}\n")
    (folder / 'prefix.log').write_text(''.join(lines))
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A stack `tiny` and a site."""
    envs = tmp_path / 'spack-envs'
    (envs / 'tiny').mkdir(parents=True)
    (envs / 'tiny' / 'spack.yaml').write_text('spack: {specs: [redis]}\n')
    (envs / 'tiny' / 'stack.yaml').write_text(
        'descr: tiny\nfeatures: [redis]\nprovides: {keyvalue: redis}\n')
    (tmp_path / 'site' / 'spack').mkdir(parents=True)
    monkeypatch.setattr(stacks, 'ENVS', envs)
    monkeypatch.setenv('PLUMBLINE_WORK', str(tmp_path / 'work'))
    return tmp_path


def tiny(place):
    return stacks.Stack('tiny', place / 'site')


# --------------------------------------------------------- installations

def test_an_installation_and_its_record(place):
    folder = install_by_hand(tiny(place), place)
    record = stacks.installed_stack_record('tiny', place / 'site')
    assert record['folder'] == str(folder) and record['mpi'] == 'openmpi'
    where = stacks.program_origin(record, 'keyvalue')
    assert where['spec'] == 'redis@7.0.15/r' and Path(where['prefix']).is_dir()
    with pytest.raises(stacks.StackError, match='provides no nccl'):
        stacks.program_origin(record, 'nccl')
    stacks.write_installed_stack_files(record, place)
    assert json.loads((place / 'stack.record.json').read_text()) == record
    assert f"{record['view']}/bin" in (place / 'stack.sh').read_text()


def test_half_an_installation_is_not_installed(place):
    for change in (
            lambda folder: (folder / 'prefix.log').unlink(),
            lambda folder: (folder / 'prefix.log').write_text(''),
            lambda folder: (folder / 'spack.lock').write_text('{'),
            lambda folder: (folder / 'spack.lock').write_text('{"roots": 5}'),
            lambda folder: (folder / 'spack.yaml').write_text('spack: {}\n'),
            lambda folder: shutil.rmtree(folder / '.spack-env'),
            lambda folder: shutil.rmtree(folder.parents[2] / 'opt')):
        change(install_by_hand(tiny(place), place))
        with pytest.raises(stacks.StackError, match=f'tiny is not installed for the '
                           f'site site in {tiny(place).folder}, .*how-to/spack.md'):
            stacks.installed_stack_record('tiny', place / 'site')


@pytest.mark.parametrize('text, words', [
    ('feature: []\n', "unknown key 'feature'"), ('descr: [\n', r'stack.yaml:\d: not'),
    ('descr: x\n', 'features: expected a list')])
def test_typos_in_a_description(place, text, words):
    (place / 'spack-envs' / 'tiny' / 'stack.yaml').write_text(text)
    with pytest.raises(stacks.StackError, match=words):
        stacks.read_stack_yaml('tiny')


# ------------------------------------------------------------------- lock

def keep_lock(place, script, monkeypatch, name='tiny'):
    """`plumb dev spack lock` with a script in place of Spack."""
    spack = place / 'bin' / 'spack'
    spack.parent.mkdir(exist_ok=True)
    spack.write_text(f'#!/bin/sh\n{script}\n')
    spack.chmod(0o755)
    monkeypatch.setenv('SPACK_ROOT', str(place))
    monkeypatch.setattr(command, 'site_folder', lambda name: place / name)
    return command.spack(argparse.Namespace(site='site', stack=[name]))


def test_the_solution_that_a_site_keeps(place, monkeypatch, capsys):
    solution = place / 'solution'
    solution.write_text(json.dumps(LOCK))
    kept = place / 'site' / 'locks' / 'tiny.lock'
    assert keep_lock(place, f'cp {solution} "$2/spack.lock"', monkeypatch) == 0
    assert json.loads(kept.read_text()) == LOCK
    assert capsys.readouterr().out == f'{kept}\n'
    for script, words in (
            ('echo "==> Error: failed to concretize"; exit 1',
             'tiny for site: spack concretize failed: ==> Error: failed to concr'),
            ('echo done', 'spack concretize failed: done'),
            (f'cp {solution} "$2/spack.lock"; echo "spack: {{}}" >"$2/spack.yaml"',
             'has no compiler that Spack can use')):
        solution.write_text('{}' if 'failed' in words else json.dumps(LOCK))
        assert keep_lock(place, script, monkeypatch) == 1
        assert words in capsys.readouterr().err
        assert json.loads(kept.read_text()) == LOCK
    with pytest.raises(SetupError, match='stacks: tiny'):
        keep_lock(place, '', monkeypatch, 'tini')
    monkeypatch.delenv('SPACK_ROOT')
    monkeypatch.setenv('PATH', '/no/such')
    with pytest.raises(SetupError, match='set SPACK_ROOT'):
        command.spack(argparse.Namespace(site='site', stack=['tiny']))


# ------------------------------------------------- the fixture of checks

CASE = ['run', '--bringup', '--', *OSU, '-n', 'OsuPt2pt', '-p', '^mpi$',
        '-SOsuPt2pt.max_size=1024', '-SOsuPt2pt.iterations=200', '-SOsuPt2pt.warmup=20',
        '-E', 'program == "osu_latency"']


def test_checks_run_from_a_stack_and_say_which(suite, monkeypatch):
    """First the stack is missing, then it is installed."""
    suite.variables |= {'PLUMBLINE_STACKS': 'mpi'}
    done = suite.plumb(*CASE)
    assert done.returncode == 1
    assert 'the stack mpi is not installed for the site local' in done.stdout
    assert 'not run: a build that it needs failed' in done.stdout
    monkeypatch.setenv('PLUMBLINE_WORK', suite.variables['PLUMBLINE_WORK'])
    mpi = Path(suite.variables['PLUMBLINE_WORK'], 'mpi')
    if not mpi.exists():
        mpi = Path(shutil.which('mpicc') or pytest.skip('no mpicc')).parents[1]
    install_by_hand(stacks.Stack('mpi', ROOT / 'site-configs' / 'local'), mpi / 'bin')
    done = suite.plumb(*CASE)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = {(r['source'], r['stack'], r['spec'].partition('/')[0])
              for r in suite.records if r['environ'] == 'mpi' and r['source']}
    assert answer == {('embedded', 'openmpi@5.0.8', 'openmpi@5.0.8')}
    kept = list((suite.tmp / 'work').rglob('output/**/stack.spack.lock'))
    assert kept and json.loads(kept[0].read_text())['roots']


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
        'builtin': os.environ['PLUMBLINE_SPACK_PACKAGES']
        + '/repos/spack_repo/builtin'}}).replace("'repos:':", 'repos::'))
    shutil.copytree(ROOT / 'spack-envs' / 'common',
                    tmp_path / 'spack-envs' / 'common')
    (settings / 'mirrors.yaml').write_text('mirrors:: {}\n')

    def make(spec, name='tiny'):
        folder = tmp_path / 'spack-envs' / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'spack.yaml').write_text(yaml.safe_dump({'spack': {
            'include': ['${PLUMBLINE_SITE}/spack'], 'specs': [spec],
            'concretizer': {'unify': True, 'reuse': False}, 'view': True}}))
        (folder / 'stack.yaml').write_text(yaml.safe_dump({
            'descr': name, 'features': [],
            'provides': {'keyvalue': 'tiny-ok'}}))
        return stacks.Stack(name, tmp_path / 'site')
    make.place = tmp_path
    return make


def shell(lines, real, name, **variables):
    """Run lines of the documentation in the folder of the stacks."""
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


def commands_of_the_page():
    text = (ROOT / 'docs' / 'how-to' / 'spack.md').read_text()
    part = text.partition('## Install a stack')[2]
    return re.findall(r'(?:^    .*\n)+', part, re.M)[0]


def test_real_spack_installs_a_stack(real):
    real('tiny-ok@1.0 +tls')
    lines = commands_of_the_page().replace('$PWD/.plumbline',
                                           os.environ['PLUMBLINE_WORK'])
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


def test_real_spack_without_a_compiler(real):
    (real.place / 'site' / 'spack' / 'packages.yaml').write_text(
        'packages: {}\n')
    with pytest.raises(stacks.StackError, match='has no compiler'):
        real('tiny-ok').concretize(stacks.spack_command())
