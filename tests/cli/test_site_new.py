"""plumb site new: what machines tell, and the folder that comes of it."""
from __future__ import annotations

import argparse
import re
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from cli.setup.venv import WORK, SetupError
from cli.site import check as sites
from cli.site import detect, new, nodes, pbs
from config.sites import launch, topology

DATA = ROOT / 'tests' / 'data' / 'sites'
H100, MI250X = DATA / 'h100-ndr', DATA / 'mi250x-slingshot'
PBS = DATA / 'pbs-a100'


def message(machine: Path, command: str) -> str:
    return (machine / f'{command}.txt').read_text()


def options(name: str, **more) -> argparse.Namespace:
    return argparse.Namespace(**{
        'name': name, 'path': None, 'yes': True, 'recorded': H100,
        'partition': None, 'launcher': None, 'access': [], 'modules': '',
        **more})


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """The recorded machines and this one, each made into a site."""
    folder = tmp_path_factory.mktemp('sites')
    with pytest.MonkeyPatch.context() as patch:
        # The command below lists test cases, and `plumb site check` those of all.
        patch.setattr(new.sites, 'list_test_cases_with_reframe',
                      lambda folder: {'cases': [], 'output': []})
        cray = 'PrgEnv-gnu/8.5.0 cray-mpich/8.1.29'
        for name, machine, expected, modules in (
                ('quarry', H100, ['gpu', 'debug', 'cpu', 'mixed.q'], ''),
                ('fjord', MI250X, None, cray), ('basalt', PBS, None, cray)):
            assert new.new(options(name, path=folder / name, recorded=machine,
                                   partition=expected, modules=modules)) == 0
    done = subprocess.run(
        [ROOT / 'plumb', 'site', 'new', 'bench-1', '--yes', '--path', folder / 'bench-1'
         ],
        stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def partition(folder: Path, name: str) -> dict:
    return next(p for p in configuration(folder)['systems'][0]['partitions']
                if p['name'] == name)


def configuration(folder: Path) -> dict:
    return runpy.run_path(str(folder / 'system.py'))['site_configuration']


@pytest.fixture
def recorded(tmp_path):
    """A copy of a recorded machine, with other words of some commands."""
    def copy(machine: Path, **output: str | None) -> Path:
        folder = tmp_path / 'recorded'
        shutil.copytree(machine, folder)
        for name, text in output.items():
            path = folder / f'{name.replace("_", "-")}.txt'
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)
        return folder
    return copy


@pytest.fixture
def site_of(tmp_path, monkeypatch, capsys):
    """Makes a site here, without ReFrame: (folder, what was said)."""
    monkeypatch.setattr(new.sites, 'list_test_cases_with_reframe',
                        lambda folder: {'cases': [], 'output': []})

    def make(**more) -> tuple[Path, str]:
        folder = tmp_path / 'quarry'
        assert new.new(options('quarry', path=folder, **more)) == 0
        return folder, capsys.readouterr().out
    return make


@pytest.mark.parametrize('launcher, module, extras', [
    ('mpirun', 'openmpi/5', {
        'launcher_pin': ['--map-by', 'slot:PE={cpus}', '--bind-to', 'core']}),
    ('mpirun', 'mpich/4', {'launcher_pin': ['-bind-to', 'core:{cpus}']}),
    ('mpiexec', 'cray-mpich/9', {
        'launcher_pin': ['--no-transfer', '--ppn', '{ranks}', '--depth', '{cpus}',
                         '--cpu-bind', 'depth']}),
    ('srun', 'cray-mpich/9', {
        'launcher_pin': ['--cpu-bind=cores', '--distribution=block:block']}),
    # An empty list would say that it binds by itself.
    ('mpirun', 'cray-mpich/9', None),
])
def test_how_ranks_are_bound_is_known_or_left_to_finish(site_of, launcher, module,
                                                        extras):
    folder, text = site_of(launcher=launcher, modules=module,
                           partition=['debug'])
    written = partition(folder, 'quarry-debug')['extras']
    assert 'launcher_pin' not in written
    assert ('add launcher_pin' in text) == (extras is None)
    for extra, options in (extras or {}).items():
        assert launch.launcher_extra(
            extra, launcher, module.replace('/', ' '), written) == options


def test_what_was_made_passes_the_check_unedited(made):
    """The tutorial does so with h100-ndr (tests/test_docs_commands.py)."""
    snapshot = made / 'bench-1' / 'cases.txt'
    listed = snapshot.read_text()
    done = subprocess.run(
        [ROOT / 'plumb', 'site', 'check', '--update',
         *(made / name for name in ('basalt', 'bench-1', 'fjord'))],
        text=True, capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'sites: 3, to fix: 0; 0 of ' in done.stdout
    assert done.stdout.count('test cases with a tolerance; programs') == 4
    assert listed and snapshot.read_text() == listed


def test_h100_with_infiniband(made):
    part = partition(made / 'quarry', 'quarry-gpu')
    assert part['access'][0] == '--partition=gpu'
    assert part['processor']['num_cpus'] == 192
    assert 'gpu_nvidia' in part['features']
    # Two nodes are down.
    assert 8 <= part['extras']['max_nodes'] < 16
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
    assert not {'gpu_nvidia', 'gpu_amd'} & set(mixed.get('features', ()))


def test_mi250x_with_slingshot(made):
    part = partition(made / 'fjord', 'fjord-standard-g')
    assert part['launcher'] == 'srun' and 'gpu_amd' in part['features']
    assert part['processor']['num_cpus'] == 112     # of 128: cores reserved
    assert part['extras']['nic_bandwidth'] == 4 * 200 * 125
    site = runpy.run_path(str(made / 'fjord' / 'system.py'))
    environ, = site['site_configuration']['environments']
    assert environ['cc'] == 'cc' and environ['modules'] == [
        'PrgEnv-gnu/8.5.0', 'cray-mpich/8.1.29']


def test_a100_with_pbs(made):
    part = partition(made / 'basalt', 'basalt-preemptable')
    assert (part['scheduler'], part['launcher']) == ('pbspro', 'mpiexec')
    assert part['access'] == ['-q preemptable', '-l place=scatter:exclhost']
    assert part['resources'][0]['options'] == ['ngpus={num_gpus_per_node}']
    # Two of twelve nodes are for others (demand), one is down.
    assert part['extras']['max_nodes'] == 9 and 'gpu_nvidia' in part['features']
    assert part['extras']['nic_bandwidth'] == 2 * 200 * 125
    assert part['time_limit'] == '60m'
    # PBS prints neither threads nor sockets; the node itself does.
    assert part['processor'] == {'num_cpus': 64, 'num_cpus_per_core': 2,
                                 'num_sockets': 1, 'num_cpus_per_socket': 64}
    fat = partition(made / 'basalt', 'basalt-fat')
    assert fat['processor']['num_cpus'] == 96 and 'features' not in fat
    assert 'time_limit' not in fat
    text = (made / 'basalt' / 'system.py').read_text()
    assert text.count('FINISH: PBS prints the CPUs of a node') == 1
    environ, = configuration(made / 'basalt')['environments']
    assert environ['extras']['mpi_library'] == 'cray-mpich 8.1.29'


def test_job_scripts_for_pbs(made, tmp_path, suite):
    done = suite.plumb('run', '--site', str(made / 'basalt'), '--dry-run', '-n',
                       'OsuPt2pt', '-E', 'program == "osu_latency"')
    assert done.returncode == 0, done.stdout + done.stderr
    # A dry run passes without the programs.
    assert 'programs: ' in done.stdout, done.stdout
    script = next(suite.tmp.rglob('rfm_job.sh'), None)
    lines = (script.read_text() if script else '').splitlines()
    assert '#PBS -q preemptable' in lines, done.stdout
    assert '#PBS -r n' in lines         # not twice in one stage directory
    assert any(re.fullmatch(r'#PBS -l select=\d+:mpiprocs=\d+:ncpus=\d+:ngpus=4', line)
               for line in lines), lines


def test_many_modules_take_several_lines(site_of):
    modules = [f'library-number-{n}/1.2.3' for n in range(9)]
    folder, _ = site_of(modules=' '.join([*modules, 'openmpi/5.0.3']))
    text = (folder / 'system.py').read_text()
    assert max(map(len, text.splitlines())) <= 88
    assert f"modules=['{modules[0]}'," in text
    environment, = configuration(folder)['environments']
    assert environment['modules'] == [*modules, 'openmpi/5.0.3']


def test_a_login_node_knows_no_cards(site_of, recorded):
    folder, text = site_of(recorded=recorded(H100, hostname='login1\n'),
                           partition=['gpu'])
    devices = partition(folder, 'quarry-gpu')['devices']
    assert [(d['type'], d['model']) for d in devices] == [('gpu', 'h100')]
    assert 'the network cards were not seen' in text


# -------------------------------------------------------------- no writing

def test_nobody_to_ask_writes_nothing(suite, tmp_path):
    folder = tmp_path / 'quarry'
    done = suite.plumb('site', 'new', 'quarry', '--path', str(folder),
                       '--recorded', str(H100), '--partition', 'debug')
    assert done.returncode == 2 and 'nothing was written' in done.stderr
    assert len(done.stdout.splitlines()) < 15
    assert re.search('left out +gpu, cpu, mixed.q: not selected', done.stdout)
    assert not folder.exists()


@pytest.mark.parametrize('word', ['', 'y'])
def test_a_terminal_is_asked(tmp_path, monkeypatch, word):
    monkeypatch.setattr(sys.stdin, 'isatty', lambda: True, raising=False)
    monkeypatch.setattr('builtins.input', lambda text: word)
    monkeypatch.setattr(new.sites, 'list_test_cases_with_reframe',
                        lambda folder: {'cases': [], 'output': []})
    folder = tmp_path / 'quarry'
    assert new.new(options('quarry', path=folder, yes=False, launcher='srun',
                           partition=['debug'], access=['--account=x'])
                   ) == 0
    assert folder.exists() == (word == 'y')
    if word == 'y':
        part = partition(folder, 'quarry-debug')
        assert part['launcher'] == 'srun'
        assert '--account=x' in part['access']
        # No default in Slurm, so that srun is told which MPI starts.
        environ, = configuration(folder)['environments']
        assert environ['env_vars'] == [['SLURM_MPI_TYPE', 'pmix']]


@pytest.mark.parametrize('name', ['2x', 'a/b', 'a.b', ''])
def test_bad_names(name):
    with pytest.raises(SetupError, match='is not a valid name for a site'):
        new.new(options(name))


@pytest.mark.parametrize('name', ['x', 'Quarry', 'my_site'])
def test_any_name_of_reframe(tmp_path, name):
    new.refuse_bad_site_name(name, tmp_path / name)


def test_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / 'mine.txt').write_text('own')
    with pytest.raises(SetupError, match='exists, and plumb does not overw'):
        new.new(options('quarry', path=tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ['mine.txt']
    with pytest.raises(SetupError, match='exists, and plumb does not overw'):
        new.new(options('local'))


@pytest.mark.parametrize('more, words', [
    ({'partition': ['gpuu']}, 'unknown partition .gpuu.; did you mean .gpu.'),
    ({'modules': 'gcc/13.2.0'},
     'none of these modules provides a known MPI'),
    ({'access': ['qos=x']}, 'expected an option of sbatch'),
    ({'recorded': Path('/no/such')}, 'the folder does not exist'),
])
def test_wrong_options(tmp_path, monkeypatch, more, words):
    monkeypatch.setattr(detect, 'parse_mpi_of_path', lambda *_: None)
    with pytest.raises(SetupError, match=words):
        new.new(options('quarry', path=tmp_path / 'q', **more))


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(draft, folder):
        folder.mkdir(parents=True)
        (folder / 'system.py').write_text('half')
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(new.sites, 'list_test_cases_with_reframe',
                        lambda folder: {'cases': [], 'output': []})
    monkeypatch.setattr(new.shutil, 'copytree', full)
    with pytest.raises(OSError):
        new.new(options('quarry', path=tmp_path / 'deep' / 'quarry'))
    assert not list((tmp_path / 'deep').iterdir())


# Forms of public reports (tests/data/sites/changes) ------------------------

@pytest.fixture
def changed(recorded, tmp_path, monkeypatch):
    """Makes a site of a recorded machine with other output of some commands.

    :returns: its folder, and its lines with FINISH in one text
    """
    monkeypatch.setattr(new.sites, 'list_test_cases_with_reframe',
                        lambda folder: {'cases': [], 'output': []})

    def make(change: str, machine: Path = H100, **more) -> tuple[Path, str]:
        folder = tmp_path / 'quarry'
        assert new.new(options('quarry', path=folder, recorded=recorded(machine, **{
            path.stem: path.read_text()
            for path in (DATA / 'changes' / change).iterdir()}), **more)) == 0
        return folder, ' '.join(' '.join(sites.unfinished_lines(folder)).split())

    return make


def test_several_kinds_of_nodes_are_to_be_finished(changed):
    folder, lines = changed('mixed-gpu-types')
    assert '3 kinds of nodes: 2 nodes with 128 CPUs' in lines
    assert 'GPUs of several models (1080ti+980gtx)' in lines
    assert partition(folder, 'quarry-dev')['processor']['num_cpus'] == 128


def test_nodes_that_are_down_do_not_count(changed):
    folder, lines = changed('majority-down')
    part = partition(folder, 'quarry-work')
    assert part['processor']['num_cpus'] == 256 and part['extras']['max_nodes'] == 6
    assert 'kinds of nodes' not in lines
    assert 'sinfo: 6 of 16 nodes take jobs' in (folder / 'system.py').read_text()


def test_a_partition_that_starts_no_jobs_is_left_out(changed, capsys):
    folder, _ = changed('partition-inactive')
    [part] = configuration(folder)['systems'][0]['partitions']
    assert part['name'] == 'quarry-batch'
    assert re.search('left out +old: State=INACTIVE\n', capsys.readouterr().out)


def test_slices_of_gpus_are_no_gpus(changed):
    folder, lines = changed('mig')
    part = partition(folder, 'quarry-mig')
    assert 'features' not in part and 'resources' not in part
    assert not [one for one in part['devices'] if one['type'] == 'gpu']
    assert 'slices (14 x nvidia_a100_80gb_pcie_1g.10gb, MIG)' in lines


def left_out(text: str) -> dict[str, str]:
    """Partition -> why it is left out, in the output of site new."""
    return {name: why for names, why in re.findall(r'left out +([^:]+): (.*)', text)
            for name in names.split(', ')}


def test_each_partition_that_is_left_out_has_a_reason(changed, capsys):
    folder, _ = changed('unusable-partitions')
    [part] = configuration(folder)['systems'][0]['partitions']
    assert part['name'] == 'quarry-batch'
    assert left_out(capsys.readouterr().out) == {
        'broken': 'none of 4 nodes takes jobs (down*)', 'drain': 'State=DRAIN',
        'old': 'State=INACTIVE', 'login': 'login nodes', 'future': 'no nodes'}


def test_partitions_of_like_nodes_for_everybody_come_first(changed, capsys):
    """Partitions for some users, and those of several kinds of nodes, have all nodes of
    others."""
    folder, lines = changed('overlapping-partitions')
    parts = [part['name'] for part in configuration(folder)['systems'][0]['partitions']]
    assert parts == [f'quarry-{name}' for name in (
        'gpu_v100', 'gpu_a100', 'batch', 'physics')]
    assert left_out(capsys.readouterr().out) == {
        'root_all': 'RootOnly=YES, Hidden=YES', 'resv': 'ReqResv=YES',
        'large': 'a job has at least 16 nodes',
        'preempt': 'all nodes are also in batch, gpu_a100',
        'gpu': 'all nodes are also in gpu_v100, gpu_a100',
        'all': 'all nodes are also in gpu_v100, gpu_a100, batch'}
    assert 'only groups physics may use it' in lines
    assert 'in spite of --exclusive (OverSubscribe=FORCE:2)' in lines


@pytest.mark.parametrize('groups, reason', [
    ('users astro', 'you are in none of the groups physics'), ('physics', '')])
def test_a_partition_of_other_groups_is_left_out(groups, reason):
    part = nodes.Partition('p', False, None, [nodes.Node('n1', 'idle')])
    nodes.add_slurm_rules(part, {'AllowGroups': 'physics'}, groups.split())
    assert part.closed == reason


def test_1024_nodes_are_1K_in_sinfo():
    [part] = nodes.parse_sinfo('b|n1|idle|1K|16|64|1|(null)|1-1K|none')
    assert (part.largest, part.nodes[0].cpus) == (1024, 1024)


def test_one_number_of_nodes_is_the_fewest_and_the_most():
    [part] = nodes.parse_sinfo('b|n1|idle|2|1|2|1|(null)|4|none')
    assert (part.smallest, part.largest) == (4, 4)


def test_other_clusters_of_a_federation_are_left_out():
    [part] = nodes.parse_sinfo('CLUSTER: a\nb|n1|idle|2|1|2|1|(null)|1-4|none\n\n'
                               'CLUSTER: c\nb|n2|idle|8|1|8|1|(null)|1-4|none\n')
    assert [node.name for node in part.nodes] == ['n1']


def test_a_scheduler_that_counts_cores(changed):
    """CPUs=64 in slurm.conf although the 64 cores have two threads each."""
    folder, _ = changed('cpus-are-cores')
    part = partition(folder, 'quarry-main')
    assert part['processor'] == {'num_cpus': 128, 'num_cpus_per_core': 2,
                                 'num_sockets': 2, 'num_cpus_per_socket': 64}
    # A job would have 4 GB of a node.
    assert part['access'][-2:] == ['--hint=nomultithread', '--mem=0']


def test_a_socket_per_cpu_is_to_be_finished(changed, capsys):
    """As Slurm reports a node whose entry in slurm.conf has CPUs alone."""
    folder, lines = changed('cloud-vcpus')
    assert partition(folder, 'quarry-queue1')['processor'] == {
        'num_cpus': 96, 'num_cpus_per_core': 1, 'num_sockets': 1,
        'num_cpus_per_socket': 96}
    assert lines.count('Slurm has the number of CPUs of a node, and neither') == 3
    assert left_out(capsys.readouterr().out) == {
        'queue3': 'none of 8 nodes takes jobs (down~)'}


def test_queues_that_route_jobs(changed, capsys):
    folder, _ = changed('pbs-routes', PBS)
    assert [(part['name'], part['access'][0]) for part in configuration(folder)[
        'systems'][0]['partitions']] == [('quarry-normal', '-q normal'),
                                         ('quarry-gpuvolta', '-q gpuvolta')]
    assert left_out(capsys.readouterr().out) == {
        'copyq': 'not enabled', 'hidden': 'not started',
        **dict.fromkeys(('normal-exec', 'gpuvolta-exec'),
                        'takes jobs only from a queue of type Route'),
        'broken-route': 'none of the queues to which it routes jobs exists here'}


@pytest.mark.parametrize('change, nodes_text', [
    ('pbs-comment-escape', None), ('pbs-numeric-host', None),
    ('', '{"nodes": {"007": {"state": "free", "resources_available": {"host": 007, '
         '"ncpus": 08}}, "1e5": {"state": "free", "comment": "a\\c\td", '
         '"resources_available": {"host": 1e5, "ncpus": 8}}}}')])
def test_json_of_pbs_is_read_as_pbs_writes_it(change, nodes_text):
    text = nodes_text or (DATA / 'changes' / change / 'pbsnodes.txt').read_text()
    queues = '{"Queue": {"q": {"enabled": "True", "started": "True"}}}'
    parts = pbs.parse_partitions(text, queues if nodes_text
                                 else message(PBS, 'qstat'))
    names = {node.name for part in parts for node in part.nodes}
    if nodes_text:
        assert names == {'007', '1e5'}
        assert {node.cpus for node in parts[0].nodes} == {8}
    else:
        assert len(parts) >= 5 and names
        assert ('1001' in names) == (change == 'pbs-numeric-host')


@pytest.mark.parametrize('gres, other, alike', [
    ('gpu:h100:8(S:0-1)', 'gpu:H100:8(S:0,1),nvme:1', True),
    ('gpu:h100:8', 'gpu:h100:no_consume:8', True), ('', 'gpu:0', True),
    ('gpu:h200:4(S:0),gpu:l40s:2(S:1)', 'gpu:l40s:2(S:1),gpu:h200:4(S:0)', True),
    ('gpu:h100:8', 'gpu:h100:4', False), ('gpu:8', 'gpu:h100:8', False)])
def test_nodes_are_compared_by_model_and_number(gres, other, alike):
    kinds = {nodes.Node('n', 'idle', gres=one).hardware_kind for one in (gres, other)}
    assert (len(kinds) == 1) == alike


# ----------------------------------------------------------------- parsers


def test_queues_of_pbs():
    parts = {part.name: part for part in pbs.parse_partitions(
        message(PBS, 'pbsnodes'), message(PBS, 'qstat'))}
    # A queue for some users is last.
    assert [name for name, part in parts.items() if not part.closed] == [
        'preemptable', 'capacity', 'prod', 'debug', 'fat', 'transfer', 'R1150389']
    assert {name: part.closed for name, part in parts.items() if part.closed} == {
        'run_next': 'not enabled, not started',
        **dict.fromkeys(('small', 'large'),
                        'takes jobs only from a queue of type Route')}
    assert [(part.smallest, part.largest, part.max_nodes_per_job)
            for part in parts.values() if not part.closed] == [
        (1, 10, 9), (1, 4, 4), (10, 496, 7), (1, 2, 2), (1, 0, 1), (1, 0, 1),
        (1, 0, 9)]
    assert parts['R1150389'].only_for == 'users geologist@*'
    assert Counter(node.state for node in parts['preemptable'].nodes) == {
        'idle': 6, 'allocated': 3, 'down,offline': 1}
    down, = (node for node in parts['preemptable'].nodes if not node.is_usable)
    assert str(down) == ('x3001c0s7b0n0 (down,offline: node down: communication '
                         'closed)')
    # Two vnodes of one host.
    node, = parts['fat'].nodes
    assert (node.name, node.cpus, node.gres) == ('fat01', 96, '')
    assert parts['debug'].nodes[0].gres == 'gpu:A100:4'


def test_without_login_nodes_and_large_jobs_alone():
    parts = pbs.parse_partitions(message(PBS, 'pbsnodes'), message(PBS, 'qstat'))
    # The node of transfer is a login node; prod takes no job of one node.
    chosen, reasons = nodes.default_partitions(parts)
    assert [part.name for part in chosen] == ['preemptable', 'fat']
    assert (reasons['transfer'], reasons['prod'], reasons['debug']) == (
        'login nodes', 'a job has at least 10 nodes',
        'all nodes are also in preemptable')
    login = nodes.parse_sinfo('login|n1|idle|2|1|2|1|(null)|1-4|none\n'
                              'gpu|login-n2|idle|2|1|2|1|(null)|1-4|none\n'
                              'large|n3|idle|2|1|2|1|(null)|2-4|none\n'
                              'all|n4|idle|2|1|2|1|(null)|1-infinite|none')
    assert [part.name for part in nodes.default_partitions(login)[0]] == ['all']
    # Better these than none.
    assert nodes.default_partitions(login[:1]) == (login[:1], {})


def test_a_queue_for_large_jobs_is_for_a_person(site_of):
    folder, text = site_of(recorded=PBS, partition=['prod'])
    assert 'a job has at least 10 nodes here' in text
    assert partition(folder, 'quarry-prod')['access'][0] == '-q prod'


@pytest.mark.parametrize('text', ['{"nodes": {', '[1]'])
def test_output_of_pbs_that_is_not_json(text):
    with pytest.raises(SetupError, match='the output of pbsnodes -F json is not JSON'):
        pbs.parse_partitions(text, '')
    assert pbs.parse_partitions('', '') == []
    with pytest.raises(SetupError, match='expected that of pbsnodes -a -F json'):
        pbs.parse_partitions('{"nodes": {"n1": {"State": "free"}}}', '')


@pytest.mark.parametrize('gres, expected', [
    ('gpu:h100:8(S:0-1)', ('nvidia', 'h100', 8)),
    ('gpu:4', ('', '', 4)),
    ('gpu:a100:3,gpu:a100_3g.20gb:2,nvme:1', (
        'nvidia', 'a100+a100_3g.20gb', 5)),
    ('craynetwork:4,gpu:gh200:4(S:0-3)', ('nvidia', 'gh200', 4)),
    ('gpu:volta:4', ('nvidia', 'volta', 4)), ('gpu:k80:2', ('nvidia', 'k80', 2)),
    ('gpu:mi300x:8', ('amd', 'mi300x', 8)), ('gpu:pvc:6', ('', 'pvc', 6)),
    ('nvme:1', None), ('gpu:0', None),
])
def test_gres(gres, expected):
    result = detect.parse_gres_gpus(gres)
    assert (
        result and (result.vendor, result.model, result.number)
    ) == expected


def test_gpus_of_the_vendors_tools():
    result = detect.parse_smi_gpus('nvidia-smi', message(H100, 'nvidia-smi'))
    assert (result.model, result.number) == ('H100 80GB HBM3', 8)
    mig = ('GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n'
           '  MIG 3g.20gb     Device  0: (UUID: MIG-1)\n')
    assert detect.parse_smi_gpus('nvidia-smi', mig).number == 1
    assert detect.parse_smi_gpus('nvidia-smi', 'No devices found.') is None
    for words in ('GH200 120GB', 'nvidia_gh200_120gb', 'nvidia_a100_80gb_pcie'):
        assert new.hardware.recognise_model('gpu', words) is None
    # Of Slurm's AutoDetect.
    assert new.hardware.recognise_model('gpu', 'nvidia_h100_80gb_hbm3'
                                        ) == 'H100-SXM5-80GB'
    assert new.hardware.recognise_model('gpu', 'NVIDIA H200') == 'H200-SXM5-141GB'
    result = detect.parse_smi_gpus('rocm-smi', message(MI250X, 'rocm-smi'))
    assert (result.model, result.number) == ('Instinct MI250X', 8)
    assert detect.parse_smi_gpus('rocm-smi', 'ERROR: No AMD GPUs') is None


@pytest.mark.parametrize('card, layer, rate, model', [
    ('MT4123', 'InfiniBand', '200 Gb/sec (4X HDR)', 'ConnectX-6-HDR200'),
    ('MT4123', 'InfiniBand', '100 Gb/sec (2X HDR)', 'ConnectX-6-HDR100'),
    ('MT4121', 'InfiniBand', '100 Gb/sec (4X EDR)', 'ConnectX-5-EDR100'),
    ('MT4115', 'InfiniBand', '100 Gb/sec (4X EDR)', 'ConnectX-4-EDR100'),
    ('MT4129', 'InfiniBand', '400 Gb/sec (4X NDR)', 'ConnectX-7-NDR400'),
    # RoCE is another fabric.
    ('MT4123', 'Ethernet', '200 Gb/sec (4X HDR)', None)])
def test_cards_of_the_catalogue(card, layer, rate, model):
    port = '/sys/class/infiniband/mlx5_0/ports/1'
    nic, = detect.parse_nics(
        f'/sys/class/infiniband/mlx5_0/hca_type:{card}\n{port}/state:4: ACTIVE\n'
        f'{port}/rate:{rate}\n{port}/link_layer:{layer}\n')
    assert new.hardware.recognise_model(
        'nic', f'{nic.model} {nic.layer}', nic.rate) == model


def test_without_slurm_this_machine_is_the_partition(site_of, recorded):
    folder, text = site_of(recorded=recorded(H100, sinfo=None))
    part = partition(folder, 'quarry-node')
    assert part['scheduler'] == 'local' and part['max_jobs'] == 1
    assert part['processor'] == {'num_cpus': 192, 'num_cpus_per_core': 2,
                                 'num_sockets': 2, 'num_cpus_per_socket': 96}
    assert 'gpu_nvidia' in part['features']
    assert part['extras']['nic_bandwidth'] == 8 * 400 * 125
    assert ('# ReFrame: Intel(R) Xeon(R) Platinum 8468, 2 sockets, 2 NUMA'
            in (folder / 'system.py').read_text())
    assert 'this machine alone: neither Slurm nor PBS was found' in text


def test_output_of_another_form_is_refused(tmp_path):
    (tmp_path / 'sinfo.txt').write_text('PARTITION AVAIL NODES\nbatch* up 4\n')
    with pytest.raises(SetupError, match='sinfo lists no node, but prints: PARTITION'):
        new.new(options('quarry', path=tmp_path / 'q', recorded=tmp_path))
    (tmp_path / 'sinfo.txt').unlink()
    (tmp_path / 'pbsnodes.txt').write_text('n1\n     state = free\n     np = 16\n')
    with pytest.raises(SetupError, match='its text form and Torque are not supported'):
        new.new(options('quarry', path=tmp_path / 'q', recorded=tmp_path))


def test_another_scheduler_is_named(site_of, recorded):
    _, text = site_of(recorded=recorded(H100, sinfo=None, schedulers='/opt/bin/bsub\n'))
    assert 'this machine alone: LSF (/opt/bin/bsub) was found' in text


def test_a_scheduler_that_does_not_answer_is_named(tmp_path, monkeypatch):
    (tmp_path / 'sinfo').write_text('#!/bin/sh\necho "no controller" >&2; exit 1\n')
    (tmp_path / 'sinfo').chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:/usr/bin:/bin')
    machine = detect.Machine()
    machine.command_output('sinfo')
    assert new.find_other_scheduler(machine).startswith('sinfo failed (no controller)')


def test_gpus_that_are_no_resource_are_not_requested(site_of, recorded):
    sinfo = re.sub(r'gpu:h[^|]*', '(null)', message(H100, 'sinfo'))
    folder, text = site_of(recorded=recorded(H100, sinfo=sinfo))
    part = partition(folder, 'quarry-gpu')
    assert part['features'] == ['gpu_nvidia'] and 'resources' not in part
    assert 'Slurm has no resource for the GPUs of these nodes' in text
    assert 'features' not in partition(folder, 'quarry-cpu')


@pytest.mark.parametrize('text, system', [
    ('Modules based on Lua: Version 8.7.53', 'lmod'),
    ('Modules Release 5.3.0 (2023-05-14)\nLua/5.4.6', 'tmod4'),
    ('', 'nomod')])
def test_modules_systems(text, system):
    assert detect.parse_modules_system(text) == system


@pytest.mark.parametrize('module, flavour, version', [
    ('OpenMPI/5.0.3-GCC-13.3.0', 'openmpi', '5.0.3'),
    ('openmpi/gcc/64/4.1.5', 'openmpi', '4.1.5'), ('mpi/mpich-x86_64', 'mpich', ''),
    ('openmpi5/5.0.3', 'openmpi', '5.0.3'),
    # Its Open MPI has another version.
    ('hpcx/2.21', 'openmpi', '')])
def test_names_of_modules(module, flavour, version):
    mpi = new.parse_modules_option(f'hdf5/1.14 {module}', None)
    assert (mpi.flavour, mpi.version) == (flavour, version)


def test_the_suites_own_mpi_is_not_the_sites():
    own = f'{WORK}/mpi/bin/mpicc\n{WORK}/mpi/bin/mpirun'
    banner = message(H100, 'mpirun')
    assert detect.parse_mpi_of_path(banner, own) is None
    assert (
        detect.parse_mpi_of_path(banner, message(H100, 'paths')).version == '5.0.3'
    )


def test_commands_that_say_nothing(monkeypatch):
    monkeypatch.setattr(detect, 'LIMIT', 1)
    monkeypatch.setattr(detect, 'COMMANDS', {
        'slow': ['sh', '-c', 'sleep 9999 | cat'], 'gone': ['no-such-command'],
        'bad': [sys.executable, '-c', 'raise SystemExit("broken link")']})
    machine = detect.Machine()
    assert [machine.command_output(name) for name in detect.COMMANDS] == ['', '', '']
    assert machine.silent == {'slow': 'no output within 1 s', 'gone':
                              'not found', 'bad': 'broken link'}


def test_a_card_without_a_rate_is_for_a_person_to_write(site_of, recorded):
    rates = re.sub('(?m)^(.*/rate:).*', r'\1unknown', message(H100, 'rdma'))
    folder, text = site_of(recorded=recorded(H100, rdma=rates),
                           partition=['gpu'])
    assert 'the rate of ConnectX-7 is not known: write a row for it' in text
    assert not (folder / 'hardware.yaml').exists()
    part = partition(folder, 'quarry-gpu')
    assert {d['model']: d['num_devices'] for d in part['devices']} == {
        'H100-SXM5-80GB': 8, 'ConnectX-7': 8}
    assert 'gpu_bandwidth' in part['extras']
    assert 'nic_bandwidth' not in part['extras']


# ------------------------------------- what a site has that others have not

def test_a_card_that_the_catalogue_lacks_is_the_sites_own(
        site_of, recorded):
    """Two models of it: one known, one not."""
    output = message(H100, 'rdma').replace('rate:400 Gb', 'rate:200 Gb', 4)
    folder, text = site_of(recorded=recorded(H100, rdma=output),
                           partition=['gpu'])
    row, = yaml.safe_load((folder / 'hardware.yaml').read_text())[
        'nic'].items()
    assert row[0] == 'ConnectX-7-InfiniBand-200' and row[1]['rate'] == 200
    assert row[1]['source'].startswith('rdma on ')
    part = partition(folder, 'quarry-gpu')
    assert {d['model']: d['num_devices'] for d in part['devices']} == {
        'H100-SXM5-80GB': 8, 'ConnectX-7-NDR400': 4,
        'ConnectX-7-InfiniBand-200': 4}
    assert part['extras']['nic_bandwidth'] == 4 * (400 + 200) * 125
    assert 'ConnectX-7-InfiniBand-200, 200 Gb/s: not in config' in text


def test_the_tree_of_switches(site_of, recorded):
    folder, text = site_of()
    tree = topology.load_switches(folder / 'topology.yaml')
    assert tree['spine'].switches == ('leaf1', 'leaf2', 'leaf3')
    assert len(tree['leaf3'].nodes) == 44 and not tree['spine'].nodes
    assert '60 nodes on 3 leaf switches, 4 switches in all' in text
    shutil.rmtree(folder)
    # Slurm without a tree: 'No topology information available', on stderr.
    folder, text = site_of(recorded=recorded(H100, scontrol_topology=None))
    assert not (folder / 'topology.yaml').exists()
    assert 'leaf switch' not in text
    assert re.search('not found +scontrol-topology\n', text)
    assert '- scontrol-topology: not found' in (
        folder / 'README.md').read_text()


def test_without_a_tree_slurm_is_not_asked_for_it(site_of, recorded):
    config = message(H100, 'scontrol-config')
    folder, text = site_of(recorded=recorded(
        H100, scontrol_topology=None,
        scontrol_config=f'{config}TopologyPlugin          = topology/default\n'))
    assert 'switches     unknown to Slurm, because its TopologyPlugin is ' in text
    assert 'scontrol-topology' not in text + (folder / 'README.md').read_text()


@pytest.mark.parametrize('gpus, left', [
    (True, ['has no GPU h100', 'add gpu_cores', 'add service_interface']), (False, [])])
def test_a_node_has_only_those_devices_to_finish_that_it_has(
        site_of, recorded, gpus, left):
    """On a node without InfiniBand, and with or without GPUs."""
    sinfo = message(H100, 'sinfo')
    folder, text = site_of(partition=['gpu'], access=['--qos=gpu'], recorded=recorded(
        H100, rdma=None, nvidia_smi=None,
        sinfo=sinfo if gpus else re.sub(r'gpu:h[^|]*', '(null)', sinfo)))
    lines = sites.unfinished_lines(folder)
    assert len(lines) == len(left)
    assert all(words in line for words, line in zip(left, lines, strict=True))
    assert 'was seen on this node' in (folder / 'system.py').read_text()


@pytest.mark.parametrize('text, names', [
    ('n1', ['n1']), ('n[8-10,12], login', ['login', 'n8', 'n9', 'n10', 'n12']),
    ('n[08-10]', ['n08', 'n09', 'n10']), ('', []), ('n2 n1,', ['n1', 'n2']),
    ('@n1', ['@n1']),
    ('r[1-2]n[1-2]-hsn', ['r1n1-hsn', 'r1n2-hsn', 'r2n1-hsn', 'r2n2-hsn'])])
def test_lists_of_hosts(text, names):
    assert topology.expand_host_list(text) == names
    assert topology.expand_host_list(topology.fold_host_list(names)) == names


@pytest.mark.parametrize('text, words', [
    ('a: [', '2: not YAML'), ('[]', '1: expected `switches:`'),
    ('switches:\n  a: {nodes: n1, switches: b}',
     '2: switches: a: expected {nodes: LIST} or'),
    ('switches:\n  a: {nods: n1}',
     "2: switches: a: unknown key 'nods'; did you mean 'nodes'"),
    ('switches: {a: {nodes: n1}, a: {nodes: n2}}', "1: 'a' occurs twice "
     'here'),
    ('switches:\n  a: {nodes: "n[1-x]"}',
     "2: switches: a: nodes: 'n[1-x]' is not a list of hosts, such as"),
    ('switches:\n  a: {nodes: n1}\n  b: {nodes: n1}',
     '3: switches: b: node n1 is also plugged into a; remove '
     'one of them'),
    ('switches: {a: {switches: b}}', "1: switches: a: the file has no switch "
     "'b'"),
    ('switches: {a: {switches: b}, b: {switches: a}}', 'is above itself; '
     'remove this loop'),
])
def test_what_is_no_tree_of_switches(tmp_path, text, words):
    path = tmp_path / 'topology.yaml'
    path.write_text(text)
    with pytest.raises(topology.TopologyError) as caught:
        topology.load_switches(path)
    assert str(caught.value).startswith(f'{path}:')
    assert words in str(caught.value) and '\n' not in str(caught.value)


def test_options_that_jobs_need(site_of):
    folder, text = site_of(access=['--qos=gpu', '--account=x'])
    for name in ('quarry-gpu', 'quarry-cpu'):
        assert partition(folder, name)['access'][-2:] == ['--qos=gpu', '--account=x']
    assert 'takes --qos' not in text


def test_what_slurm_enforces_is_told(site_of):
    folder, text = site_of(access=['--qos=other'])
    assert 'Slurm enforces associations,limits,qos: ' in text
    line = re.search(r'system.py:(\d+): this partition takes --qos=gpu,'
                     'gpu-long alone', text)
    rows = (folder / 'system.py').read_text().splitlines()
    assert 'FINISH: this partition takes' in rows[int(line[1]) - 1]
    assert text.count('alone: write') == 1


def test_the_modules_of_an_mpi(site_of):
    folder, _ = site_of(modules='gcc/12.3.0 mpich/4.2')
    environ, = configuration(folder)['environments']
    assert (environ['name'], environ['modules'], environ['env_vars']) == (
        'mpich', ['gcc/12.3.0', 'mpich/4.2'], [['SLURM_MPI_TYPE', 'pmi2']])
    assert partition(folder, 'quarry-gpu')['launcher'] == 'srun'


def test_without_slurm_the_lines_to_finish_are_told(site_of, tmp_path):
    (tmp_path / 'bare').mkdir()
    folder, text = site_of(recorded=tmp_path / 'bare',
                           access=['--account=z19', '--qos=standard'])
    rows = (folder / 'system.py').read_text().splitlines()
    assert any("'access': ['--account=z19', '--qos=standard']," in row for row in rows)
    told_of = re.findall(r'system.py:(\d+): (.*)', text)
    assert all(f'FINISH: {what[:20]}' in rows[int(number) - 1]
               for number, what in told_of)
    below = ' '.join(rows[int(number) + 3].strip() + rows[int(number)]
                     + rows[int(number) + 1] + rows[int(number) + 2]
                     for number, _ in told_of)
    for key in ('scheduler', 'launcher', 'access', 'extras', 'processor'):
        assert f"'{key}': " in below, key
    assert 'no MPI was found' in text and 'spack external find' in text
    path = folder / 'system.py'
    assert len(told_of) == path.read_text().count('# FINISH: ') > 0
    path.write_text(path.read_text().replace('# FINISH: ', '# '))
    assert sites.unfinished_lines(folder) == []
