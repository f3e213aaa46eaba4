"""An installed RedisAI instead of the embedded module, and an own model on it.

RedisAI needs a libtorch, which few machines have. Its place has the embedded module
with RedisAI's line in the log, which takes the name of a network as a model, and any
script.
"""
from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from conftest import of_family

from checks.stores import aimodule

SITE = '''
from config.common import SETTINGS
site_configuration = {{
    **SETTINGS,
    'systems': [{{
        'name': 'box', 'hostnames': ['.*'],
        'partitions': [{{
            'name': 'node', 'scheduler': 'local', 'launcher': 'mpirun',
            'environs': ['tensors'],
            'env_vars': [['OMPI_ALLOW_RUN_AS_ROOT', '1'],
                         ['OMPI_ALLOW_RUN_AS_ROOT_CONFIRM', '1']],
            'processor': {{'num_cpus': 2, 'num_cpus_per_core': 1}}}}]}}],
    'environments': [{{
        'name': 'tensors', 'cc': 'mpicc',
        'features': ['tensor_{store}', 'redisai'],
        'env_vars': [['REDISAI', '{module}']],
        'extras': {{'mpi_library': 'openmpi 5.0', 'programs': {{
            'keyvalue': {{'source': 'system', 'prefix': '{prefix}'}},
            'smartredis': {{'source': 'embedded'}}}}}}}}],
}}
'''


@pytest.fixture
def session(suite, store, tmp_path):
    """A session of one check with settings, in an environment with RedisAI."""
    if not shutil.which('mpicc'):
        pytest.skip('no MPI')

    def run(module, check, *settings):
        suite.write_site(tmp_path / 'box', SITE.format(
            store=store.name, prefix=store.binary.parents[1], module=module))
        return suite.reframe(
            '-r', '-Sbringup=1', *of_family('smartredis'), '-n', check, '-E',
            'scenario.clients_per_node == 1 and scenario.client_nodes == 0',
            *(f'-S{check}.{setting}' for setting in settings))
    return run


@pytest.fixture(scope='module')
def redisai(tmp_path_factory):
    folder = tmp_path_factory.mktemp('redisai')
    source = shutil.copytree(aimodule.BUILD.parent, folder / 'src')
    for file, old, new in (
            ('module.c', '"plumbline ai: embedded AI module, %s"',
             '"RedisAI version 10207, git_sha=%s"'),
            ('standin.c', 'if (begins_with(source, size, "# plumbline-kernels 1\\n"))',
             'if (size)')):
        text = (source / file).read_text()
        assert text.count(old) == 1
        (source / file).write_text(text.replace(old, new))
    subprocess.run(['sh', source / 'build.sh', folder / 'redisai.so'], check=True,
                   env={**os.environ, 'TORCH_PREFIX': ''})
    return folder / 'redisai.so'


@pytest.mark.parametrize('arrangement, shards', [
    (['deployment=colocated'], 1), (['db_nodes=3'], 3)])
def test_an_own_model_on_redisai(session, suite, redisai, tmp_path, arrangement,
                                 shards):
    model = tmp_path / 'own.pt'
    model.write_bytes(aimodule.model_blob('small'))
    done = session(redisai, 'SmartRedisInference', f'network={model}', 'iterations=2',
                   *arrangement)
    assert done.returncode == 0, done.stdout + done.stderr
    records = suite.records
    assert {record['version'].partition(', ')[2] for record in records} == {
        'RedisAI version 10207'}
    assert all(f'network={model}' in record['settings']
               and arrangement[0] in record['settings'] for record in records)
    (config,) = {path.read_text() for path in suite.tmp.rglob('rfm_job.sh')
                 if 'run_services' in path.read_text()}
    assert '/redisai.so" THREADS_PER_QUEUE 1' in config
    assert config.count(f'# {records[0]["params"].split()[0][3:]}, on node') == shards


@pytest.mark.parametrize('module, settings, expected', [
    ('/nowhere/redisai.so', ['tensor_bytes=8'],
     'REDISAI is not the path of redisai.so: /nowhere/redisai.so'),
    ('embedded', ['tensor_bytes=8'], 'embedded AI module, stand-in served, but')])
def test_another_module_is_refused(session, tmp_path, module, settings, expected):
    if module == 'embedded':
        module = tmp_path / 'ai.so'
        subprocess.run(['sh', aimodule.BUILD, module], check=True,
                       env={**os.environ, 'TORCH_PREFIX': ''})
    done = session(module, 'SmartRedisThroughput', 'iterations=10', *settings)
    assert done.returncode == 1
    assert expected in ' '.join((done.stdout + done.stderr).split())
