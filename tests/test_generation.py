"""What is generated for a site: all it can run, nothing it cannot."""
from __future__ import annotations

import re

import pytest
from conftest import OSU

from config.sites.launch import LAUNCH

SITE = '''
from checks.core.features import node_features
from checks.osu import programs

site_configuration = {
    'systems': [{
        'name': 'cluster', 'hostnames': ['.*'],
        'partitions': [{
            'name': 'accelerated', 'scheduler': 'local',
            'launcher': 'mpirun', 'environs': ['gnu'],
            'features': [*node_features(4), 'gpu_nvidia'],
            'processor': {'num_cpus': 64, 'num_cpus_per_core': 1},
            'devices': [{'type': 'gpu', 'model': 'H100',
                         'num_devices': 4}],
            'extras': {'nic_bandwidth': 200000,
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
    text = listed(suite)
    assert 'placement=intra_node' in text and 'layout=1xfull' in text
    assert not re.search('inter_node|cuda|rocm|layout=2', text)
    assert not re.search(r'putbibw.*synchronisation=(lock|flush)', text,
                         re.I)


def test_a_cluster_lists_its_nodes_and_devices(cluster):
    text = listed(cluster, *OSU)
    for words in ('placement=inter_node', 'buffers=cuda', 'layout=4xfull',
                  'layout=2xone'):
        assert words in text
    assert not re.search('rocm|layout=8|layout=1xone', text)


def test_options_of_the_cases_of_a_cluster(cluster):
    done = cluster.reframe('--dry-run', *OSU, '-Sbringup=1', '-n',
                           'OsuPt2pt|OsuCollective', '-E',
                           'program in ("osu_bw", "osu_allreduce")')
    assert done.returncode == 0, done.stdout
    scripts = [p.read_text() for p in cluster.tmp.rglob('rfm_job.sh')]
    assert any(re.search(r'-np 2 .*osu_bw -m 4194304 -d cuda D D', s)
               for s in scripts), scripts[:1]
    # Ranks: a core each with host memory, a GPU each with a GPU's.
    assert any(re.search(r'-np 256 .*osu_allreduce -m 1048576\n', s + '\n')
               for s in scripts)
    assert any(re.search(r'-np 16 .*osu_allreduce .* -d cuda', s)
               for s in scripts)


@pytest.mark.parametrize('cpus, option', [(2, '--pin=1'), (1, '--share')])
def test_ranks_share_cores_only_where_they_are_short(cluster, tmp_path, cpus,
                                                     option):
    path = tmp_path / 'cluster' / 'system.py'
    path.write_text(SITE.replace("'num_cpus': 64", f"'num_cpus': {cpus}"))
    cluster.reframe('--dry-run', *OSU, '-Sbringup=1', '-n', 'OsuPt2pt', '-E',
                    'program == "osu_bw" and placement == "intra_node"')
    scripts = [p.read_text() for p in cluster.tmp.rglob('rfm_job.sh')]
    assert scripts
    for script in scripts:
        assert f'mpirun -np 2 {option} ' in script
        assert ('YIELD' in script) == (option == '--share')


PLACED = {
    'srun': ('srun', 'srun --cpus-per-task=2 --cpu-bind=cores '),
    'openmpi': ('mpirun', 'mpirun -np 2 --map-by slot:PE=2 --bind-to core '),
    'mpich': ('mpirun', 'mpirun -np 2 -bind-to core:2 '),
    'intelmpi': ('mpirun', 'mpirun -np 2 -genv I_MPI_PIN 1 -genv '
                 'I_MPI_PIN_CELL core -genv I_MPI_PIN_DOMAIN 2 '),
}


@pytest.mark.parametrize('kind', PLACED)
def test_a_rank_gets_a_core_for_each_of_its_threads(cluster, tmp_path, kind):
    """C9: with one core both threads of osu_latency_mt were on it."""
    launcher, words = PLACED[kind]
    path = tmp_path / 'cluster' / 'system.py'
    path.write_text(SITE.replace("'mpirun'", f"'{launcher}'").replace(
        "['--pin={cpus}']", str(LAUNCH[kind][0])))
    done = cluster.reframe('--dry-run', *OSU, '-Sbringup=1', '-n',
                           'OsuPt2pt', '-E',
                           'program in ("osu_latency_mt", "osu_latency") and '
                           'placement == "intra_node"')
    assert done.returncode == 0, done.stdout
    texts = {'_mt ' in text: text for path in cluster.tmp.rglob('rfm_job.sh')
             for text in [path.read_text()]}
    assert words in texts[True], texts
    assert ' -t 2:2' in texts[True]
    one = re.sub(r'\b2(?= --| -g| -b|$)|(?<=[:=])2\b', '1', words.strip())
    assert one.replace('-np 1', '-np 2') in texts[False]


@pytest.mark.parametrize('old, new, words', [
    ("'launcher_pin': ['--pin={cpus}'],", '',
     'partition cluster:accelerated has no launcher_pin, without which a '
     "case cannot be started; write in its extras: 'launcher_pin': "
     "['--map-by', 'slot:PE={cpus}', '--bind-to', 'core'],"),
    ('={cpus}', '', 'has a launcher_pin without {cpus}: threads would'),
])
def test_a_partition_that_does_not_say_how_ranks_are_placed(
        cluster, tmp_path, old, new, words):
    path = tmp_path / 'cluster' / 'system.py'
    assert old in SITE
    path.write_text(SITE.replace(old, new))
    done = cluster.reframe('--dry-run', *OSU, '-Sbringup=1', '-n',
                           'OsuPt2pt', '-E',
                           'program == "osu_latency_mt"')
    text = re.sub(r'\s+', ' ', done.stdout + done.stderr)
    assert done.returncode == 1 and words in text, text


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


def test_quick_is_part_of_nightly_is_part_of_full(cluster):
    counts = [len(re.findall(r'^- ', listed(
        cluster, *OSU, f'--mode={mode}'), re.M))
        for mode in ('quick', 'nightly', 'full')]
    assert 0 < counts[0] < counts[1] < counts[2]
