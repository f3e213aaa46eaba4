"""plumb site new: what machines tell, and the folder that comes of it."""
from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from conftest import ROOT

from cli import detect, new
from cli.setup import WORK, SetupError

DATA = ROOT / 'tests' / 'data' / 'sites'
H100, MI250X = DATA / 'h100-ndr', DATA / 'mi250x-slingshot'


def told(machine: Path, command: str) -> str:
    return (machine / f'{command}.txt').read_text()


def options(name: str, **more) -> argparse.Namespace:
    return argparse.Namespace(**{
        'name': name, 'path': None, 'yes': True, 'recorded': H100,
        'partition': None, 'launcher': None, 'access': [], 'modules': None,
        'stack': [], **more})


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """The two recorded machines and this one, each made into a site."""
    folder = tmp_path_factory.mktemp('sites')
    # Without Spack: looking for externals takes it half a minute.
    env = {k: v for k, v in os.environ.items() if k != 'SPACK_ROOT'}
    running = [subprocess.Popen(
        [ROOT / 'plumb', 'site', 'new', name, '--path', folder / name,
         '--yes', *(['--recorded', machine] if machine else []),
         *(f'--partition={p}' for p in wanted)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env)
        for name, machine, wanted in (
            ('quarry', H100, ['gpu', 'debug', 'cpu', 'mixed.q']),
            ('fjord', MI250X, []), ('bench-1', None, []))]
    for process in running:
        said = process.communicate()[0]
        assert process.returncode == 0, said
    return folder


def partition(folder: Path, name: str) -> dict:
    site = runpy.run_path(str(folder / 'system.py'))['site_configuration']
    return next(p for p in site['systems'][0]['partitions']
                if p['name'] == name)


@pytest.mark.parametrize('launcher, flavour, extras', [
    ('mpirun', 'openmpi', {
        'launcher_pin': ['--map-by', 'slot:PE={cpus}', '--bind-to', 'core'],
        'launcher_spread': ['--map-by', 'ppr:1:node', '--bind-to', 'none']}),
    ('mpirun', 'mpich', {'launcher_pin': ['-bind-to', 'core:{cpus}']}),
    ('srun', 'cray', {'launcher_pin': ['--cpu-bind=cores']}),
    # Empty lists would say that it binds by itself, and spreads agents.
    ('mpirun', 'cray', None),
])
def test_how_ranks_are_bound_is_written_down(launcher, flavour, extras):
    found = SimpleNamespace(mpi=SimpleNamespace(flavour=flavour))
    text = '\n'.join(new.launch(found, SimpleNamespace(launcher=launcher)))
    written: dict = {}
    exec(text, written)
    if extras is None:
        assert written['_LAUNCH'] == {} and 'add launcher_pin' in text
    else:
        assert written['_LAUNCH'].items() >= extras.items()


def test_what_was_made_passes_the_check_unedited(made):
    done = subprocess.run(
        [ROOT / 'plumb', 'site', 'check', *sorted(made.iterdir())],
        text=True, capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('cases.txt unchanged') == 3
    assert 'sites: 3, to mend: 0' in done.stdout


def test_h100_with_infiniband(made):
    part = partition(made / 'quarry', 'quarry-gpu')
    assert part['access'][0] == '--partition=gpu'
    assert part['processor']['num_cpus'] == 192
    assert {'gpu_nvidia', 'nodes_8'} <= set(part['features'])
    assert 'nodes_16' not in part['features']       # two nodes are down
    # Two Ethernet ports of the node are not the fabric.
    assert [(d['type'], d['num_devices']) for d in part['devices']] == [
        ('gpu', 8), ('nic', 8)]
    assert part['extras']['nic_bandwidth'] == 8 * 400 * 125
    # A node of the same kind has the same cards, another kind is not known.
    assert 'nic_bandwidth' in partition(made / 'quarry',
                                        'quarry-debug')['extras']
    cpu = partition(made / 'quarry', 'quarry-cpu')
    assert 'devices' not in cpu and 'nic_bandwidth' not in cpu['extras']
    # GPUs on one of four nodes are no feature of the partition.
    mixed = partition(made / 'quarry', 'quarry-mixed-q')
    assert not {'gpu_nvidia', 'gpu_amd'} & set(mixed['features'])


def test_mi250x_with_slingshot(made):
    part = partition(made / 'fjord', 'fjord-standard-g')
    assert part['launcher'] == 'srun' and 'gpu_amd' in part['features']
    assert part['processor']['num_cpus'] == 112     # of 128: cores reserved
    assert part['extras']['nic_bandwidth'] == 4 * 200 * 125
    site = runpy.run_path(str(made / 'fjord' / 'system.py'))
    environ, = site['site_configuration']['environments']
    assert environ['cc'] == 'cc' and environ['modules'] == [
        'PrgEnv-gnu/8.5.0', 'cray-mpich/8.1.29']


def test_spack_is_never_without_a_compiler(made):
    for path in made.glob('*/spack/packages.yaml'):
        packages = yaml.safe_load(path.read_text())['packages']
        for gcc in packages['gcc']['externals']:
            assert gcc['extra_attributes']['compilers']['c']
        assert packages['mpi']['require']
    assert len(list(made.glob('*/spack/packages.yaml'))) == 3


def test_generated_lines_fit(made):
    for path in made.glob('*/*.py'):
        assert max(map(len, path.read_text().splitlines())) <= 79


def test_a_login_node_knows_no_cards(monkeypatch, tmp_path):
    machine = tmp_path / 'login'
    machine.mkdir()
    for path in H100.iterdir():
        (machine / path.name).write_text(path.read_text())
    (machine / 'hostname.txt').write_text('login1\n')
    found = new.look(machine, None)
    text = '\n'.join(new.partition_lines(
        'quarry', found.partitions[0], found,
        new.Choices(found.partitions, 'srun', [], []), ['openmpi']))
    assert "'model': 'h100'" in text and "'nic'" not in text
    assert 'Network cards: not known' in text


def test_without_gcc_there_is_nothing_for_spack(tmp_path):
    assert new.externals(detect.Machine(tmp_path), None, '') == {}


# -------------------------------------------------------------- no writing

def test_nobody_to_ask_writes_nothing(suite, tmp_path):
    folder = tmp_path / 'quarry'
    done = suite.plumb('site', 'new', 'quarry', '--path', str(folder),
                       '--recorded', str(H100), '--partition', 'debug')
    assert done.returncode == 2 and 'nothing was written' in done.stderr
    assert f'=== {folder}/system.py' in done.stdout
    assert 'not found: fi_info' in done.stdout
    assert 'left out: partition cpu (40 nodes)' in done.stdout
    assert not folder.exists()


@pytest.mark.parametrize('word, code', [('n', 1), ('', 1), ('y', 0)])
def test_a_terminal_is_asked(tmp_path, monkeypatch, word, code):
    answers = {'Slurm': 'debug', 'Launcher': 'srun', 'Write': word,
               'Options': '--account=x'}
    monkeypatch.setattr(sys.stdin, 'isatty', lambda: True, raising=False)
    monkeypatch.setattr('builtins.input',
                        lambda text: answers.get(text.split()[0].strip(','),
                                                 ''))
    monkeypatch.setattr(new.sites, 'ask_reframe',
                        lambda folder: {'cases': [], 'said': []})
    folder = tmp_path / 'quarry'
    assert new.new(options('quarry', path=folder, yes=False)) == code
    assert folder.exists() == (code == 0)
    if code == 0:
        part = partition(folder, 'quarry-debug')
        assert part['launcher'] == 'srun'
        assert '--account=x' in part['access']
        # No default in Slurm, so that srun is told which MPI starts.
        assert part['env_vars'] == [['SLURM_MPI_TYPE', 'pmix']]


@pytest.mark.parametrize('name', ['Quarry', 'a_b', '3d', '-x', 'a/b', ''])
def test_bad_names(name):
    with pytest.raises(SetupError, match='no name of a site'):
        new.new(options(name))


@pytest.mark.parametrize('name', ['osu', 'host', 'cuda'])
def test_a_name_that_checks_use(name):
    with pytest.raises(SetupError, match='word that the checks use'):
        new.new(options(name))


def test_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / 'mine.txt').write_text('mine')
    with pytest.raises(SetupError, match='there already'):
        new.new(options('quarry', path=tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ['mine.txt']
    with pytest.raises(SetupError, match='there already'):
        new.new(options('local'))


@pytest.mark.parametrize('more, words', [
    ({'partition': ['gpuu']}, 'did you mean gpu'),
    ({'stack': ['mpi-hots']}, 'unknown stack'),
    ({'modules': 'gcc/13.2.0'}, 'none of them is an MPI|openmpi'),
    ({'recorded': Path('/no/such')}, 'no such folder'),
])
def test_wrong_options(tmp_path, monkeypatch, more, words):
    monkeypatch.setattr(detect, 'mpi_of_path', lambda *_: None)
    monkeypatch.setattr(new, 'files', lambda *_: {})
    with pytest.raises(SetupError, match=words):
        new.new(options('quarry', path=tmp_path / 'q', **more))


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(folder, made):
        (folder / 'system.py').write_text('half')
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(new, 'files', lambda *_: {'system.py': 'x'})
    monkeypatch.setattr(new, 'write', full)
    with pytest.raises(OSError):
        new.new(options('quarry', path=tmp_path / 'deep' / 'quarry'))
    assert not list((tmp_path / 'deep').iterdir())


# ----------------------------------------------------------------- parsers

def test_partitions_of_sinfo():
    parts = {p.name: p for p in detect.partitions(told(H100, 'sinfo'))}
    assert list(parts) == ['gpu', 'debug', 'cpu', 'mixed.q']
    assert parts['gpu'].default and not parts['cpu'].default
    # drained and down are gone, powered down (~) is not
    assert (parts['gpu'].jobs, parts['debug'].jobs, parts['cpu'].jobs) == (
        14, 1, 8)
    assert len(parts['mixed.q'].kinds) == 2 and parts['mixed.q'].jobs == 3
    assert detect.partitions('slurm_load_partitions: Unable to contact') == []


def test_the_same_nodes_are_not_taken_twice():
    parts = detect.partitions(told(H100, 'sinfo'))
    assert [p.name for p in detect.distinct(parts)] == [
        'gpu', 'cpu', 'mixed.q']
    assert detect.distinct([parts[0], parts[0]]) == [parts[0]]


@pytest.mark.parametrize('gres, expected', [
    ('gpu:h100:8(S:0-1)', ('nvidia', 'h100', 8)),
    ('gpu:mi250:8', ('amd', 'mi250', 8)),
    ('gpu:4', ('', '', 4)),
    ('gpu:a100:3,gpu:a100_3g.20gb:2,nvme:1', (
        'nvidia', 'a100+a100_3g.20gb', 5)),
    ('craynetwork:4,gpu:gh200:4(S:0-3)', ('nvidia', 'gh200', 4)),
    ('nvme:1', None), ('', None), ('gpu:0', None),
])
def test_gres(gres, expected):
    found = detect.gres_gpus(gres)
    assert (found and (found.vendor, found.model, found.number)) == expected


def test_gpus_of_the_vendors_tools():
    found = detect.nvidia_gpus(told(H100, 'nvidia-smi'))
    assert (found.model, found.number) == ('H100 80GB HBM3', 8)
    mig = ('GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n'
           '  MIG 3g.20gb     Device  0: (UUID: MIG-1)\n')
    assert detect.nvidia_gpus(mig).number == 1
    assert detect.nvidia_gpus('No devices found.') is None
    found = detect.amd_gpus(told(MI250X, 'rocm-smi'))
    assert (found.model, found.number) == ('Instinct MI250X', 8)
    assert detect.amd_gpus('ERROR: No AMD GPUs') is None


def test_two_ways_to_the_same_cards():
    tool = detect.ibstat_nics(told(H100, 'ibstat'))
    files = detect.sysfs_nics(told(H100, 'rdma'))
    assert [(n.model, n.rate, n.layer) for n in tool] == [
        (n.model, n.rate, n.layer) for n in files]
    assert len(tool) == 9 and len(detect.fabric(tool)) == 8
    ethernet = [n for n in tool if n.layer == 'Ethernet']
    assert detect.fabric(ethernet) == ethernet


def test_slingshot_cards_count_once():
    nics = detect.fabric_nics(told(MI250X, 'fi_info'), told(MI250X, 'rdma'))
    assert [n.rate for n in nics] == [200.0] * 4
    assert detect.fabric_nics('fi_getinfo: -61', '') == []


def test_cpus_old_and_new_lscpu():
    old, late = (detect.cpu(told(m, 'lscpu')) for m in (MI250X, H100))
    assert (old.cpus, old.threads, old.sockets, old.numa) == (128, 2, 1, 4)
    assert (late.cpus, late.threads, late.sockets, late.numa) == (
        192, 2, 2, 2)
    assert detect.cpu('') is None and detect.cpu(json.dumps({})) is None


@pytest.mark.parametrize('text, system', [
    ('Modules based on Lua: Version 8.7.53', 'lmod'),
    ('Modules Release 5.3.0 (2023-05-14)', 'tmod4'),
    ('', 'nomod')])
def test_modules_systems(text, system):
    assert detect.modules_system(text) == system


def test_modules_the_default_before_the_newest():
    there = detect.modules('/opt/m:\nopenmpi/4.1.10\nopenmpi/4.1.9\n'
                           'openmpi/\nmpich/4.0(default)\nmpich/4.2\n')
    assert detect.newest(there, 'openmpi') == 'openmpi/4.1.10'
    assert detect.newest(there, 'mpich') == 'mpich/4.0'
    assert detect.mpi_of_modules(there).modules == ('openmpi/4.1.10',)
    assert detect.mpi_of_modules([]) is None


def test_the_suites_own_mpi_is_not_the_sites():
    own = f'{WORK}/mpi/bin/mpicc\n{WORK}/mpi/bin/mpirun'
    banner = told(H100, 'mpirun')
    assert detect.mpi_of_path(banner, own) is None
    assert detect.mpi_of_path(banner, told(H100, 'paths')).version == '5.0.3'


@pytest.mark.parametrize('text', ['', 'packages: 3', ': [', '[]'])
def test_broken_words_of_spack(text):
    assert detect.spack_packages(text) == {}


def test_commands_that_say_nothing(monkeypatch):
    monkeypatch.setattr(detect, 'LIMIT', 1)
    monkeypatch.setattr(detect, 'COMMANDS', {
        'slow': ['sleep', '9'], 'gone': ['no-such-command'],
        'bad': [sys.executable, '-c', 'raise SystemExit("broken link")']})
    machine = detect.Machine()
    assert [machine.tell(name) for name in detect.COMMANDS] == ['', '', '']
    assert machine.silent == {'slow': 'no answer in 1 s', 'gone':
                              'not found', 'bad': 'broken link'}


def test_spack_is_asked_in_a_scope_of_its_own(tmp_path, monkeypatch):
    """A stand-in, for the real one takes half a minute to look around."""
    (tmp_path / 'bin').mkdir()
    spack = tmp_path / 'bin' / 'spack'
    spack.write_text(
        '#!/bin/sh\necho "$@" > $SPACK_ROOT/asked\n'
        'cp $SPACK_USER_CONFIG_PATH/repos.yaml $SPACK_ROOT\n'
        'echo "$SPACK_USER_CONFIG_PATH" > $SPACK_ROOT/scope\n'
        'echo "packages: {gcc: {externals: [{spec: gcc@12}]}}" > '
        '$SPACK_USER_CONFIG_PATH/packages.yaml\n')
    spack.chmod(0o755)
    monkeypatch.setenv('SPACK_ROOT', str(tmp_path))
    monkeypatch.setenv('PLUMBLINE_SPACK_PACKAGES', '/recipes')
    found = detect.spack_packages(detect.Machine().tell('spack'))
    assert found == {'gcc': {'externals': [{'spec': 'gcc@12'}]}}
    assert (tmp_path / 'asked').read_text().startswith(
        'external find --scope user gcc openmpi ')
    assert '/recipes/repos/' in (tmp_path / 'repos.yaml').read_text()
    scope = Path((tmp_path / 'scope').read_text().strip())
    assert scope != tmp_path and not scope.exists()


def test_every_recording_is_explained():
    text = (DATA / 'README.md').read_text()
    assert all(f'`{name}.txt`' in text for name in detect.COMMANDS)
    for path in DATA.glob('*/*.txt'):
        assert path.stem in detect.COMMANDS, path


def test_upstreams_of_spack():
    assert detect.spack_upstreams(told(H100, 'upstreams')) == {
        'this-spack': {'install_tree': '/opt/apps/spack/opt/spack'}}
    assert detect.spack_upstreams(
        'upstreams:\n  old:\n    install_tree: /a\n'
        '  this-spack:\n    install_tree: /b\n') == {
        'old': {'install_tree': '/a'}, 'this-spack': {'install_tree': '/b'}}
    for text in ('', 'upstreams: {}\n', '==> Error: no', 'upstreams: [a]'):
        assert detect.spack_upstreams(text) == {}


@pytest.mark.parametrize('text, number', [
    ('400', 400), ('N/A', 0), ('', 0), ('56 Gb/s', 56)])
def test_numbers_that_are_words(text, number):
    assert detect.number(text) == number


def test_limits_follow_from_models_that_are_known(tmp_path):
    nic = detect.Nic('ConnectX-7', 'InfiniBand', 400, 'ibstat')
    text = '\n'.join(new.devices(detect.Gpus('nvidia', 'H100 80GB HBM3', 8,
                                            'nvidia-smi'), [nic] * 8))
    assert 'hardware.limits(' in text and "'ConnectX-7-NDR400', 8" in text
    slow = detect.Nic('ConnectX-7', 'InfiniBand', 200, 'ibstat')
    text = '\n'.join(new.devices(None, [slow] * 2))
    assert 'hardware' not in text and "'nic_bandwidth': 50000" in text
