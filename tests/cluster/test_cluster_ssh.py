"""Job scripts with servers and clients without Slurm: `bash`, and nodes by ssh."""
from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import rounds
from cluster import Cluster
from conftest import skip_missing, started_cluster, until
from rounds import ShellJob, build, left, load, play, seen

from cli.setup.venv import ensure_store_servers

pytestmark = pytest.mark.cluster


@pytest.fixture(scope='module')
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes with sshd."""
    base = tmp_path_factory.getbasetemp()
    cluster = started_cluster(base / 'ssh', base, ssh=True)
    yield cluster
    cluster.down()


@pytest.fixture(scope='module')
def tools(nodes, tmp_path_factory):
    """A folder with the load generator, and stores where a plan has them."""
    if not any(one['store'] == rounds.STORE for one in ensure_store_servers()):
        pytest.skip(f'no {rounds.STORE}: no wheel for this Python')
    folder = tmp_path_factory.mktemp('load')
    build(folder)
    return folder


@pytest.fixture(params=['openmpi', 'hydra'])
def launcher(request):
    program = rounds.SSH[request.param]
    if not Path('/usr/bin', program).exists():
        # Debian's names of both packages' programs; hydra is one of MPICH's.
        name = 'mpirun.openmpi' if request.param == 'openmpi' else 'mpirun.mpich'
        skip_missing(name, f'no {program}')
    return request.param


def session_folders(cluster: Cluster) -> list[str]:
    """Session folders of Open MPI on the node of the job script."""
    root = Path('/proc', str(cluster.alive('n1')), 'root', 'tmp')
    return sorted(path.name for pattern in ('ompi*', 'prte*')
                  for path in root.glob(pattern))


def test_a_store_and_clients_on_other_nodes(nodes, tools, tmp_path, launcher):
    before = seen(nodes)
    job = ShellJob(nodes, launcher, tmp_path / 'job').submit(load(1, tools))
    job.wait()
    assert job.verdict() == ''
    record = (job.folder / 'run.1.out').read_text()
    assert '"node": "n1"' in record
    clients = ''.join(path.read_text()
                      for path in job.folder.glob('run.1.measure.*.err'))
    assert all(f'plumbline-client {node} ' in clients for node in ('n2', 'n3', 'n4'))
    assert left(nodes, before, job.folder) == []
    assert session_folders(nodes) == []


@pytest.mark.parametrize('victim', ['batch', 'server', 'launcher'])
def test_nothing_is_left_whoever_is_killed(nodes, tools, tmp_path, launcher, victim):
    one = play(nodes, launcher, victim, load(10, tools), tmp_path / 'job', 2,
               random.Random(victim))
    assert one.killed and one.verdict and not one.faults, one
    until(lambda: not session_folders(nodes))
