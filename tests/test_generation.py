"""What is generated for a site: all it can run, nothing it cannot."""
from __future__ import annotations

import re

import pytest

SITE = '''
from checks.lib.features import node_features
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
                       'launcher_pin': ['--pin'],
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
    site = tmp_path / 'cluster'
    site.mkdir()
    (site / 'system.py').write_text(SITE)
    suite.variables['PLUMBLINE_SITE'] = str(site)
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
    text = listed(cluster)
    for words in ('placement=inter_node', 'buffers=cuda', 'layout=4xfull',
                  'layout=2xone'):
        assert words in text
    assert not re.search('rocm|layout=8|layout=1xone', text)


def test_options_of_the_cases_of_a_cluster(cluster):
    done = cluster.reframe('--dry-run', '-Sbringup=1', '-n', 'OsuPt2pt|'
                           'OsuCollective', '-E', 'program in ("osu_bw", '
                           '"osu_allreduce")')
    assert done.returncode == 0, done.stdout
    scripts = [p.read_text() for p in cluster.tmp.rglob('rfm_job.sh')]
    assert any(re.search(r'-np 2 .*osu_bw -m 4194304 -d cuda D D', s)
               for s in scripts), scripts[:1]
    # Ranks: a core each with host memory, a GPU each with a GPU's.
    assert any(re.search(r'-np 256 .*osu_allreduce -m 1048576\n', s + '\n')
               for s in scripts)
    assert any(re.search(r'-np 16 .*osu_allreduce .* -d cuda', s)
               for s in scripts)


@pytest.mark.parametrize('cpus, option', [(2, '--pin'), (1, '--share')])
def test_ranks_share_cores_only_where_they_are_short(cluster, tmp_path, cpus,
                                                     option):
    path = tmp_path / 'cluster' / 'system.py'
    path.write_text(SITE.replace("'num_cpus': 64", f"'num_cpus': {cpus}"))
    cluster.reframe('--dry-run', '-Sbringup=1', '-n', 'OsuPt2pt', '-E',
                    'program == "osu_bw" and placement == "intra_node"')
    scripts = [p.read_text() for p in cluster.tmp.rglob('rfm_job.sh')]
    assert scripts
    for script in scripts:
        assert f'mpirun -np 2 {option} ' in script
        assert ('YIELD' in script) == (option == '--share')


def test_an_installation_without_a_program_is_no_error(cluster, tmp_path):
    path = tmp_path / 'cluster' / 'system.py'
    path.write_text(SITE.replace('*programs.EMBEDDED', '"osu_bw"'))
    text = listed(cluster)
    assert 'osu_bw' in text and 'OsuCollective' not in text


def test_quick_is_part_of_nightly_is_part_of_full(cluster):
    counts = [len(re.findall(r'^- ', listed(cluster, f'--mode={mode}'), re.M))
              for mode in ('quick', 'nightly', 'full')]
    assert 0 < counts[0] < counts[1] < counts[2]
