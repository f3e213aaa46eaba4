"""The script of a job under PBS, as ReFrame generates it: no PBS runs here."""
from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from conftest import of_family

from checks.services.script import SERVICES

SITE = '''
from config.common import SETTINGS
site_configuration = {
    **SETTINGS,
    'systems': [{
        'name': 'cluster', 'hostnames': ['.*'],
        'partitions': [{
            'name': 'nodes', 'scheduler': 'pbs', 'launcher': 'mpirun',
            'environs': ['tensors'], 'time_limit': '1h2m3s',
            # What begins with no dash becomes part of `select`.
            'access': ['-q workq', '-l place=scatter:excl', 'mem=8gb'],
            'processor': {'num_cpus': 64, 'num_cpus_per_core': 1},
            'extras': {'max_nodes': 4, 'service_interface': 'ib0'}}]}],
    'environments': [{
        'name': 'tensors', 'cc': 'mpicc', 'features': ['tensor_redis'],
        'extras': {'mpi_library': 'openmpi 5.0', 'programs': {
            'keyvalue': {'source': 'system', 'prefix': '/usr'},
            'smartredis': {'source': 'embedded'}}}}],
}
'''


@pytest.fixture
def scripts(suite, tmp_path):
    """Check -> its script."""
    suite.write_site(tmp_path / 'cluster', SITE)
    done = suite.reframe(
        '--dry-run', '-Sbringup=1', *of_family('smartredis'), '-n',
        'SmartRedis', '-E',
        'scenario.client_nodes == 2 and scenario.clients_per_node == 4 and '
        'scenario.deployment == "standard"',
        '-SSmartRedisThroughput.time_limit=2h', '-SSmartRedisInference.pin=off')
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.parent.name.partition('_')[0]: path.read_text()
            for path in suite.tmp.rglob('rfm_job.sh')
            if 'run_services' in path.read_text()}


#: Combinations that cannot run, and the causes: kind -> settings, cause. Each round is
#: one call of ReFrame.
EXCLUDED = [
    {'Aggregation': ('deployment=colocated client_nodes=2',
                     'deployment=colocated needs client_nodes=0 for a consumer'),
     'Throughput': ('deployment=colocated db_nodes=3',
                    'deployment=colocated needs db_nodes=1'),
     'Inference': ('network=resnet50.pt',
                   'no environment has +tensor_redis +libtorch')},
    {'Throughput': ('net_type=tcp', 'net_type=tcp needs deployment=colocated'),
     'Inference': ('network=nothing.pt', 'network is neither a file nor')},
    {'Throughput': ('server_access=fat', 'server_access needs client_nodes'),
     'Inference': ('device=GPU network=resnet50.pt',
                   'no partition has 1 nodes with NVIDIA GPUs')},
    {'Throughput': ('client_nodes=4', 'no partition has 5 nodes')}]


@pytest.mark.parametrize('excluded', EXCLUDED)
def test_a_combination_that_cannot_run_is_named(suite, tmp_path, excluded):
    suite.write_site(tmp_path / 'cluster', SITE)
    done = suite.reframe(
        '--dry-run', '-Sbringup=1', *of_family('smartredis'), '-n',
        f'SmartRedis({"|".join(excluded)})', '-E',
        'scenario.clients_per_node == 1 and scenario.client_nodes == 0',
        *(f'-SSmartRedis{kind}.{setting}' for kind, (settings, _) in excluded.items()
          for setting in settings.split()))
    for kind, (_, cause) in excluded.items():
        assert f'SmartRedis{kind}: left out, because {cause}' in done.stderr
    assert 'Ran 0/0' in done.stdout


def test_redisai_runs_a_model_on_a_gpu(suite, tmp_path):
    suite.write_site(tmp_path / 'cluster', SITE.replace(
        "['tensor_redis']", "['tensor_redis', 'redisai']").replace(
            "'processor'", "'features': ['gpu_nvidia'], 'processor'"))
    (tmp_path / 'own.pt').touch()
    done = suite.reframe(
        '--dry-run', '-Sbringup=1', *of_family('smartredis'), '-n',
        'SmartRedisInference', '-E', 'scenario.clients_per_node == 1 and '
        'scenario.client_nodes == 0', '-SSmartRedisInference.device=GPU',
        '-SSmartRedisInference.options=--num-devices 2',
        '-SSmartRedisInference.inter_op_threads=3',
        f'-SSmartRedisInference.network={tmp_path}/own.pt')
    assert done.returncode == 0, done.stdout + done.stderr
    (script,) = [text for path in suite.tmp.rglob('rfm_job.sh')
                 if 'run_services' in (text := path.read_text())]
    assert f'--model {tmp_path}/own.pt' in script
    assert '--device GPU --num-devices 2' in script
    assert '/redisai.so" THREADS_PER_QUEUE 1 INTER_OP_PARALLELISM 3' in script


def test_the_script_of_a_job_under_pbs(scripts):
    assert set(scripts) == {'SmartRedisThroughput', 'SmartRedisInference',
                            'SmartRedisAggregation'}
    for name, script in scripts.items():
        # The database, two nodes of ranks, and that of the consumer.
        nodes = 4 if name == 'SmartRedisAggregation' else 3
        messages = [line.removeprefix('#PBS ') for line in script.splitlines()
                    if line.startswith('#PBS ')]
        # A chunk for each node, with CPUs for the four ranks of a node.
        assert f'-l select={nodes}:mpiprocs=1:ncpus=4:mem=8gb' in messages
        assert '-l place=scatter:excl' in messages and '-q workq' in messages
        limit = '1:2:3' if name == 'SmartRedisThroughput' else '0:10:0'
        assert f'-l walltime={limit}' in messages
        # PBS starts a job in the home directory.
        assert '\ncd /' in script
        words = ' '.join(script.split())
        launcher = ('"${guard[@]}" env SLURM_OVERLAP=1 mpirun -np %d --map-by '
                    ':OVERSUBSCRIBE --bind-to none --host %s ')
        assert ('server 0 ' + launcher % (1, '"${nodes[0]}:1"')
                + '"${node[@]}" serve ') in words
        # With pin=off no process is bound.
        assert ('server=1x1' in words) == (name != 'SmartRedisInference')
        assert ('=4x1' in words) == (name != 'SmartRedisInference')
        # Ranks on named nodes, inside the same job.
        assert launcher % (8, '"${nodes[1]}:4,${nodes[2]}:4"') in words
        assert '--interface ib0' in words
        assert not any(word in words for word in ('srun ', 'sbatch', '#SBATCH'
                                                  )), script
        assert subprocess.run(['bash', '-n'], input=script, text=True
                              ).returncode == 0


@pytest.mark.parametrize('scheduler, access, expected', [
    ('pbs', 'fat', 'nodes of two types need slurm and srun'),
    ('squeue', 'fat', 'has the scheduler squeue and the launcher srun'),
    ('slurm', 'thick', 'the site has no partition thick, only nodes, fat')])
def test_other_nodes_of_servers_are_refused(suite, tmp_path, scheduler, access,
                                            expected):
    suite.write_site(tmp_path / 'cluster', two_types(scheduler))
    done = suite.reframe(*on_two_types(access))
    assert expected in ' '.join((done.stdout + done.stderr).split())


def test_other_nodes_of_servers_cannot_be_distributed(suite, tmp_path):
    suite.write_site(tmp_path / 'cluster', two_types('slurm'))
    scontrol = tmp_path / 'scontrol'
    scontrol.write_text('#!/bin/sh\necho NodeName=n1 State=IDLE Partitions=thin\n')
    scontrol.chmod(0o755)
    done = suite.reframe(*on_two_types('fat'), '--distribute=all',
                         PATH=f'{tmp_path}:{os.environ["PATH"]}')
    assert 'omit --distribute, or server_access' in done.stdout


@pytest.mark.parametrize('family, check, nodes, scenario', [
    ('taobench', 'TaoBench', 2,
     'str(scenario) == "autoscale tao_server small from 2 nodes"'),
    ('optcast', 'OptcastAllReduce', 2, 'scenario.client_nodes == 2 and '
     'scenario.type == "optcast" and scenario.servers == 1'),
    ('keyvalue', 'StoreServes', 1, 'str(scenario) == "redis get client_nodes=1"'),
    ('smartredis', 'SmartRedisThroughput', 1, 'scenario.client_nodes == 1 and '
     'scenario.db_nodes == 3 and scenario.clients_per_node == 4')])
def test_nodes_of_servers_are_not_those_of_the_partition(
        suite, tmp_path, family, check, nodes, scenario):
    """The partition has enough nodes for the clients alone."""
    suite.write_site(tmp_path / 'cluster', two_types('slurm').replace(
        "'max_nodes': 4", f"'max_nodes': {nodes}").replace(
            "'tensor_redis'", "'tensor_redis', 'redis', 'tao_server', 'mpi'").replace(
            "'smartredis': {", "'optcast': {'source': 'embedded'}, 'taobench': {"
            "'source': 'embedded'}, 'smartredis': {"))
    options = ['--dry-run', '-Sbringup=1', *of_family(family), '-n', check,
               '-E', scenario]
    done = suite.reframe(*options, f'-S{check}.server_access=fat')
    assert 'PASSED' in done.stdout and 'Ran 0/0' not in done.stdout, done.stdout
    assert 'Ran 0/0' in suite.reframe(*options).stdout


def test_the_launcher_is_that_of_an_environment_that_is_not_selected(suite, tmp_path):
    """Servers are started by the mpirun of the partition, also with -p."""
    suite.write_site(tmp_path / 'cluster', SITE.replace(
        "'environs': ['tensors']", "'environs': ['tensors', 'stores']").replace(
            "'environments': [{", """'environments': [{
        'name': 'stores', 'cc': 'cc', 'features': ['redis'], 'extras': {'programs': {
            'keyvalue': {'source': 'system', 'prefix': '/usr'}}}}, {"""))
    done = suite.reframe(
        '--dry-run', '-Sbringup=1', *of_family('keyvalue'), '-p', 'stores', '-n',
        'StoreServes', '-E', 'str(scenario) == "redis get client_nodes=1"')
    assert 'PASSED' in done.stdout and 'Ran 0/0' not in done.stdout, done.stdout


def test_servers_on_nodes_of_another_type(suite, tmp_path):
    """-J is for both parts; only the clients' part has the partition's options."""
    suite.write_site(tmp_path / 'cluster', two_types('slurm'))
    done = suite.reframe(*on_two_types('fat --mem=64G'), '-Jqos=test')
    assert done.returncode == 0, done.stdout + done.stderr
    (script,) = [text for path in suite.tmp.rglob('rfm_job.sh')
                 if 'run_services' in (text := path.read_text())]
    clients, servers = (set(re.findall('#SBATCH (.*)', part))
                        for part in script.split('#SBATCH hetjob\n'))
    assert {'--nodes=2', '--partition=thin', '--qos=test', '--no-requeue'} <= clients
    assert servers == {
        '--nodes=1', '--ntasks=1', '--ntasks-per-node=1', '--cpus-per-task=1',
        '--partition=fat', '--mem=64G', '--qos=test'}
    assert re.search('server 0 .*--het-group=1 ', script)
    assert re.search('client 0 .*--het-group=0 ', script)


def two_types(scheduler):
    """A site with a second partition for servers."""
    return SITE.replace("'pbs', 'launcher': 'mpirun'", repr(scheduler) + (
        ", 'launcher': 'mpirun'" if scheduler == 'pbs' else ", 'launcher': 'srun'")
        ).replace("['-q workq', '-l place=scatter:excl', 'mem=8gb']",
                  "['--partition=thin']").replace(
            "'service_interface': 'ib0'}}]", """'service_interface': 'ib0'}}, {
            'name': 'fat', 'scheduler': 'slurm', 'launcher': 'srun', 'environs': [],
            'processor': {'num_cpus': 64, 'num_cpus_per_core': 1},
            'access': ['--partition=fat']}]""")


def on_two_types(access):
    return ['--dry-run', '-Sbringup=1', *of_family('smartredis'), '-n',
            'SmartRedisThroughput', '-E',
            'scenario.client_nodes == 2 and scenario.clients_per_node == 4 and '
            'scenario.deployment == "standard"',
            f'-SSmartRedisThroughput.server_access={access}']


def test_nodes_of_a_job_under_pbs(tmp_path):
    """One line per rank, in the order of the chunks; a node may have several."""
    (tmp_path / 'nodefile').write_text('x1.site\nx1.site\nx3.site\nx2.site\n')
    done = subprocess.run(
        ['bash', '-c', '. "$0/services.sh"; nodes', SERVICES], text=True,
        capture_output=True, env={
            'PATH': os.environ['PATH'], 'PBS_NODEFILE': str(tmp_path / 'nodefile'),
            'python': sys.executable, 'services': str(SERVICES)})
    assert done.stdout.split() == ['x1.site', 'x3.site', 'x2.site'], done.stderr


@pytest.mark.parametrize('setting, expected', [
    ('client_nodes=-2', 'client_nodes=-2: -2 is too small; the smallest value is 0'),
    ('tensor_bytes=1024,2', '2 is too small; the smallest value is 4'),
    ('tensor_bytes=8,9', 'tensor_bytes: a size occurs twice'),
    ('options=--bytes 5', 'options: remove --bytes: use the setting tensor_bytes')])
def test_settings_that_are_refused(suite, tmp_path, setting, expected):
    suite.write_site(tmp_path / 'cluster', SITE)
    done = suite.reframe('--dry-run', '-Sbringup=1', *of_family('smartredis'), '-n',
                         'SmartRedisThroughput', f'-SSmartRedisThroughput.{setting}')
    assert expected in ' '.join((done.stdout + done.stderr).split())


def test_lists_of_a_parameter_are_crossed(suite, tmp_path):
    suite.write_site(tmp_path / 'cluster', SITE)
    done = suite.reframe(
        '-L', '-Sbringup=1', *of_family('smartredis'), '-n', 'SmartRedisThroughput',
        '-PSmartRedisThroughput.db_cpus=2,3', '-PSmartRedisThroughput.iterations=5,6',
        '-E', 'scenario.client_nodes == 2 and scenario.clients_per_node == 4 and '
        'scenario.deployment == "standard"')
    names = re.findall(r'^- SmartRedisThroughput', done.stdout, re.M)
    assert len(names) == 4, done.stdout


def test_a_changed_arrangement_keeps_its_mode(suite, tmp_path):
    """It is not in the list any more, and needs more CPUs than a node has."""
    suite.write_site(tmp_path / 'cluster', SITE)
    done = suite.reframe(
        '-L', '-Sbringup=1', *of_family('smartredis'), '-t', '^quick$', '-n',
        'SmartRedisInference', '-SSmartRedisInference.deployment=colocated',
        '-SSmartRedisInference.db_cpus=100')
    assert len(re.findall(r'^- SmartRedisInference', done.stdout, re.M)) == 2, (
        done.stdout)
