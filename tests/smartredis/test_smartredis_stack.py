"""The stack `smartredis` in checks: its library, its servers and its MPI.

Spack is not needed: a folder has what `spack install` would leave. With
$SMARTREDIS_PREFIX its library is that of SmartRedis.
"""
from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import of_family

from tests.conftest import ROOT, require_program

#: The nodes of the site `devcluster`, with the stack.
SITE = '''
import runpy
from checks.core import environs
base = runpy.run_path({devcluster!r})
site_configuration = base['site_configuration']
for part in site_configuration['systems'][0]['partitions']:
    part.update(environs=['tensors'], {changes})
site_configuration['environments'] = [environs.stack_environment(
    'tensors', 'smartredis', mpi='openmpi 5.0', env_vars=base['_OPENMPI'])]
'''


def install_by_hand(suite, store, library: Path) -> None:
    """What plain Spack leaves of the stack (spack-envs/README.md).

    :arg library: has include/ and lib/ of SmartRedis.
    """
    work = Path(suite.variables['PLUMBLINE_WORK'])
    folder = work / 'spack' / 'envs' / 'devcluster' / 'smartredis'
    view = folder / '.spack-env' / 'view'
    view.mkdir(parents=True)
    mpi = work / 'mpi'
    if not mpi.exists():
        # The machine's own, as `plumb setup` takes it.
        mpi = Path(shutil.which('mpicc') or pytest.skip('no mpicc')).parents[1]
    (view / 'bin').symlink_to(mpi / 'bin')
    for name in ('include', 'lib'):
        (view / name).symlink_to(library / name)
    shutil.copy(ROOT / 'spack-envs' / 'smartredis' / 'spack.yaml', folder)
    prefix = store.binary.parents[1]
    nodes = {
        'smartredis': ('0.6.1', {}, library),
        'redis-plus-plus': ('1.3.8', {'cxxstd': '17'}, library),
        'hiredis': ('1.1.0', {}, library),
        'redis': ('7.0.15', {}, prefix),
        'valkey': ('8.1.1', {'malloc': 'jemalloc'}, prefix),
        'keydb': ('6.3.4', {'malloc': 'jemalloc'}, prefix),
        'openmpi': ('5.0.9', {}, mpi)}
    lock = {
        'roots': [{'hash': 'openmpi', 'spec': 'mpi'}],
        'concrete_specs': {name: {
            'name': name, 'version': version, 'parameters': parameters}
            for name, (version, parameters, _) in nodes.items()}}
    (folder / 'spack.lock').write_text(json.dumps(lock))
    (folder / 'prefix.log').write_text(''.join(
        f'plumb:{name}:{version}:{name}:{where}\n'
        for name, (version, _, where) in nodes.items()))


def test_a_view_without_the_library_fails_to_build(suite, store, tmp_path):
    require_program('c++')
    for name in ('include', 'lib'):
        (tmp_path / 'empty' / name).mkdir(parents=True)
    install_by_hand(suite, store, tmp_path / 'empty')
    suite.write_site(tmp_path / 'devcluster', SITE.format(
        devcluster=str(ROOT / 'site-configs/devcluster/system.py'),
        changes="scheduler='local'"))
    done = suite.reframe(
        '-r', '-Sbringup=1', *of_family('smartredis'), '--system',
        'devcluster:slurm-mpirun', '-n', 'SmartRedisThroughput', '-E',
        f'str(scenario) == "{store.name}"')
    assert done.returncode == 1
    assert 'client.h: No such file' in done.stdout + done.stderr


@pytest.mark.cluster
@pytest.mark.skipif('SMARTREDIS_PREFIX' not in os.environ,
                    reason="SMARTREDIS_PREFIX is not set to the prefix of "
                    "SmartRedis' library")
@pytest.mark.parametrize('name, scenario', [
    ('SmartRedisThroughput', 'db_nodes=3 client_nodes=1'),
    ('SmartRedisInference', 'client_nodes=2 network=small'),
    ('SmartRedisAggregation', 'deployment=colocated tensors_per_dataset=4')])
def test_a_session_with_the_stack(suite, store, cluster, tmp_path, name, scenario):
    install_by_hand(suite, store, Path(os.environ['SMARTREDIS_PREFIX']))
    suite.write_site(tmp_path / 'devcluster', SITE.format(
        devcluster=str(ROOT / 'site-configs/devcluster/system.py'), changes=''))
    sizes = [f'-S{name}.tensor_bytes=1024,65536'] * ('Inference' not in name)
    text, _ = suite.on(
        cluster, '-r', '-Sbringup=1', '--system', 'devcluster:slurm-mpirun',
        *of_family('smartredis'), '-n', name,
        '-E', f'set(str(scenario).split()) == set("{store.name} {scenario} '
        'iterations=10".split())',
        f'-S{name}.iterations=10', *sizes,
        site=str(tmp_path / 'devcluster')).communicate()
    assert 'PASSED' in text, text
    for record in suite.records:
        assert (record['source'], record['spec'], record['stack']) == (
            'spack', 'smartredis@0.6.1/smartredis', 'openmpi@5.0.9'), record
