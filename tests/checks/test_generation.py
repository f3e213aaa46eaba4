"""What is generated for a site: all it can run, nothing it cannot."""
from __future__ import annotations

import json
import re

import pytest
from conftest import OSU, suite_in

SITE = '''
from checks.osu import programs
from config.common import SETTINGS

site_configuration = {
    **SETTINGS,
    'systems': [{
        'name': 'cluster', 'hostnames': ['.*'],
        'partitions': [{
            'name': 'accelerated', 'scheduler': 'local',
            'launcher': 'mpirun', 'environs': ['gnu'],
            'features': ['gpu_nvidia'],
            'processor': {'num_cpus': 64, 'num_cpus_per_core': 1},
            'devices': [{'type': 'gpu', 'model': 'H100',
                         'num_devices': 4}],
            'extras': {'max_nodes': 4, 'nic_bandwidth': 200000,
                       'launcher_pin': ['--pin={cpus}'],
                       'launcher_oversubscribe': ['--share'],
                       'oversubscribe_env': {'YIELD': '1'}},
        }]}],
    'environments': [{
        'name': 'gnu', 'cc': 'mpicc',
        'features': ['mpi', 'mpi_cuda', 'osu', *programs.EMBEDDED],
        'extras': {'mpi_library': 'openmpi 5',
                   'programs': {'osu': {'source': 'embedded'}}}}],
}
'''


@pytest.fixture
def cluster(suite, tmp_path):
    suite.write_site(tmp_path / 'cluster', SITE)
    return suite


def listed(suite, *args):
    done = suite.reframe('-l', *args)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_one_machine_lists_nothing_impossible(suite):
    text = listed(suite, *OSU)
    assert 'placement=intra_node' in text and 'layout=1xfull' in text
    assert not re.search('inter_node|cuda|rocm|layout=2', text)
    assert not re.search(r'putbibw.*synchronisation=(lock|flush)', text,
                         re.I)


def test_a_cluster_lists_its_nodes_and_devices_in_three_modes(cluster):
    """Mode quick is part of nightly, and nightly of full."""
    done = cluster.reframe('--describe', *OSU)
    cases = [{*case['tags']} for case in json.loads(done.stdout)]
    counts = [sum(mode in tags for tags in cases)
              for mode in ('quick', 'nightly', 'full')]
    assert 0 < counts[0] < counts[1] < counts[2]
    text = listed(cluster, *OSU, '--mode=full')
    for words in ('placement=inter_node', 'buffers=cuda', 'layout=4xfull',
                  'layout=2xone'):
        assert words in text
    assert not re.search(r'rocm|layout=8|layout=1xone program=osu_(?!m)', text)


#: Environments and their launchers: where the site has no options of its own, the
#: launcher and the MPI select them.
LAUNCHERS = {'srun': 'srun', 'openmpi': 'mpirun', 'mpich': 'mpirun',
             'intelmpi': 'mpirun', 'cray-mpich': 'mpiexec'}
#: Partitions of one node and their changes of SITE's: CPUs and launcher.
PLACED = {
    'two_cpus': {'processor': {'num_cpus': 2, 'num_cpus_per_core': 1}},
    'one_cpu': {'processor': {'num_cpus': 1, 'num_cpus_per_core': 1}},
    **{f'sockets_{kind}': {
        'launcher': LAUNCHERS[kind], 'environs': [kind], 'extras': {},
        'processor': {'num_cpus': 64, 'num_cpus_per_core': 1, 'num_sockets': 2,
                      'num_cpus_per_socket': 32}}
       for kind in ('srun', 'openmpi', 'cray-mpich')},
    # Ranks are not bound, so a pair has no sockets.
    'free': {'processor': {'num_cpus': 64, 'num_cpus_per_core': 1, 'num_sockets': 2,
                           'num_cpus_per_socket': 32},
             'extras': {'launcher_free': ['--free']}},
    **{kind: {'launcher': launcher, 'environs': [kind], 'extras': {}}
       for kind, launcher in LAUNCHERS.items()},
}
#: Their environments, each with an MPI.
ENVIRONMENTS = f'''
_environments = site_configuration['environments']
_environments += [
    {{**_environments[0], 'name': kind,
     'extras': {{**_environments[0]['extras'], 'mpi_library': f'{{kind}} 5'}}}}
    for kind in {[*LAUNCHERS]!r}]
'''

#: More partitions, at the end of the site's file.
MORE = """
_system = site_configuration['systems'][0]
for _name, _change in {changes!r}.items():
    _system['partitions'].append({{
        **_system['partitions'][0], 'name': _name,
        'features': [], 'devices': [], **_change}})
    _extras = _system['partitions'][-1]['extras']
    _system['partitions'][-1]['extras'] = {{**_extras, 'max_nodes': 1}}
"""


@pytest.fixture(scope='module')
def scripts(tmp_path_factory):
    """One dry run: partition -> scripts of its jobs."""
    suite = suite_in(tmp_path_factory.mktemp('placed'))
    suite.write_site(suite.tmp / 'cluster', SITE + ENVIRONMENTS + MORE.format(
        changes=PLACED))
    done = suite.reframe('--dry-run', *OSU, '-Sbringup=1', '-n',
                         'OsuPt2pt|OsuCollective', '-E',
                         'program in ("osu_bw", "osu_allreduce", '
                         '"osu_latency", "osu_latency_mt")')
    assert done.returncode == 0, done.stdout
    return {name: [path.read_text() for path in suite.tmp.glob(
        f'**/cluster/{name}/**/rfm_job.sh')]
        for name in ('accelerated', *PLACED)}


def test_options_of_the_cases_of_a_cluster(scripts):
    scripts = scripts['accelerated']
    assert any(re.search(r'-np 2 .*osu_bw -m 4194304 -d cuda D D', s)
               for s in scripts), scripts[:1]
    # Ranks: a core each with host memory, a GPU each with a GPU's.
    assert any(re.search(r'-np 256 .*osu_allreduce -m 1048576\n', s + '\n')
               for s in scripts)
    assert any(re.search(r'-np 16 .*osu_allreduce .* -d cuda', s)
               for s in scripts)


@pytest.mark.parametrize('partition, option', [
    ('two_cpus', '--pin=1'), ('one_cpu', '--share')])
def test_ranks_share_cores_only_where_they_are_short(scripts, partition,
                                                     option):
    results = [text for text in scripts[partition] if '/osu_bw ' in text]
    assert results
    for script in results:
        assert f'mpirun -np 2 {option} ' in script
        assert ('YIELD' in script) == (option == '--share')


@pytest.mark.parametrize('kind, words', [
    ('srun', 'srun --cpus-per-task=2 --cpu-bind=cores --distribution=block:block '),
    ('openmpi', 'mpirun -np 2 --map-by slot:PE=2 --bind-to core '),
    ('mpich', 'mpirun -np 2 -bind-to core:2 '),
    ('intelmpi', 'mpirun -np 2 -genv I_MPI_PIN 1 -genv I_MPI_PIN_CELL core '
     '-genv I_MPI_PIN_DOMAIN 2 '),
    ('cray-mpich', 'mpiexec -n 2 --no-transfer --ppn 2 --depth 2 --cpu-bind depth '),
])
def test_a_rank_gets_a_core_for_each_of_its_threads(scripts, kind, words):
    """C9: with one core both threads of osu_latency_mt were on it."""
    [threads], [plain] = (
        [text for text in scripts[kind] if f'/{program} ' in text]
        for program in ('osu_latency_mt', 'osu_latency'))
    assert words in threads
    assert ' -t 1:2' in threads
    one = re.sub(r'\b2(?= --| -g| -b|$)|(?<=[:=])2\b', '1', words.strip())
    assert re.sub(r' -(np?) 1', r' -\1 2', one).replace('--ppn 1', '--ppn 2') in plain


@pytest.mark.parametrize('kind, one, two', [
    ('srun', '--cpu-bind=cores --distribution=block:block ',
     '--cpu-bind=cores --distribution=block:cyclic '),
    ('openmpi', '--map-by slot:PE=1 ', '--map-by socket:PE=1 --bind-to core '),
    ('cray-mpich', '--ppn 2 --depth 1 --cpu-bind depth ',
     '--ppn 2 --cpu-bind list:0-0:32-32 ')])
def test_a_pair_on_one_socket_and_one_on_two(scripts, kind, one, two):
    pairs = [text for text in scripts[f'sockets_{kind}'] if '/osu_latency ' in text]
    assert len(pairs) == 2
    for words in (one, two):
        [script] = [text for text in pairs if words in text]
        assert 'PLUMBLINE_GPUS' not in script


@pytest.mark.parametrize('partition', ['two_cpus', 'free'])
def test_no_pair_on_two_sockets_where_there_is_one_or_ranks_are_free(scripts,
                                                                      partition):
    assert sum('/osu_latency ' in text for text in scripts[partition]) == 1


def test_node_counts_of_a_session_select_among_those_of_the_partition(cluster):
    text = listed(cluster, *OSU, '--mode=full', '-Snode_counts=4')
    assert 'layout=4xfull' in text and 'layout=2x' not in text
    assert 'layout=1x' not in text and 'placement=inter_node' in text


def test_a_node_count_that_no_partition_lists_is_refused(cluster):
    done = cluster.reframe('--dry-run', *OSU, '-Snode_counts=3,4', '-n', 'OsuStartup')
    assert done.returncode == 1
    text = done.stdout + done.stderr
    assert ('node_counts: no partition runs collectives on 3 nodes; add this number '
            'to the extra node_counts of a partition') in text


def test_node_counts_do_not_refuse_a_session_without_collectives(cluster):
    done = cluster.reframe('--dry-run', *OSU, '-Snode_counts=3', '-n', 'OsuPt2pt',
                           '-E', 'program == "osu_bw"')
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_partition_that_does_not_say_how_ranks_are_placed(cluster,
                                                            tmp_path):
    pin = {'launcher_pin': ['--pin={cpus}']}
    path = tmp_path / 'cluster' / 'system.py'
    path.write_text(SITE + MORE.format(changes={
        'no_pin': {'launcher': 'ibrun', 'extras': {}},
        'no_cpus': {'extras': {'launcher_pin': ['--pin']}},
        'good': {'extras': pin}}))
    done = cluster.reframe('--dry-run', *OSU, '-Sbringup=1', '-n',
                           'OsuPt2pt', '-E',
                           'program == "osu_latency_mt"')
    text = re.sub(r'\s+', ' ', done.stdout + done.stderr)
    assert done.returncode == 1, text
    for words in (
            'partition cluster:no_pin needs launcher options for launcher_pin, and '
            'those of ibrun with openmpi 5 are unknown; add them to its extras: '
            "'launcher_pin': [...],",
            'no_cpus has a launcher_pin without {cpus}: threads would'):
        assert words in text, text
    assert 'cluster:good has' not in text


def test_a_partition_without_processor_is_refused(cluster, tmp_path):
    """C11: it became one rank a node."""
    path = tmp_path / 'cluster' / 'system.py'
    path.write_text(re.sub("'processor'.*\n", '', SITE))
    done = cluster.plumb('run', '--site', str(path.parent))
    assert done.returncode == 2
    assert "has no 'processor' with num_cpus" in done.stderr


def test_an_installation_without_a_program_is_no_error(cluster, tmp_path):
    path = tmp_path / 'cluster' / 'system.py'
    path.write_text(SITE.replace('*programs.EMBEDDED', '"osu_bw"'))
    text = listed(cluster, *OSU)
    assert 'osu_bw' in text and 'OsuCollective' not in text
